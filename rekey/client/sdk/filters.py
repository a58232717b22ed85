"""What keys a query can return, as far as its filter proves it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

from rekey.core.edm import STRING
from rekey.core.key_space import KeySpace
from rekey.declaration.key_space import space_of
from rekey.declaration.rows import AllOf, Bounds, KeyIs, Value

# Possessive, as in `calls`.
_TEXT = r"'(?:[^']++|'')*+'"
_TOKEN = re.compile(rf"{_TEXT}|[()']|[^\s()']++")
# Names and keywords, numbers, and beginnings of typed constants. A service may read what is written without
# spaces as several tokens: `5or` as a number and an `or`.
_UNDERSTOOD = re.compile(
    rf"{_TEXT}|[()]|[^\W\d]\w*+|-?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?[DFLMdflm]?", re.DOTALL
)
_COMPARISON = re.compile(
    rf"(?P<name>PartitionKey|RowKey) (?P<operator>eq|ge|gt|le|lt) (?P<value>{_TEXT})", re.DOTALL
)


def keys_asked(condition: str) -> KeySpace | None:
    """Return the keys of the rows that a query can return; None where its filter proves nothing.

    Comparisons of the keys with constants are understood where all of them must hold, with `and`. Everything
    else in a filter can only leave rows out, except `or`, of which nothing is understood.
    """
    tokens = _TOKEN.findall(condition)
    if not all(map(_UNDERSTOOD.fullmatch, tokens)):
        return None
    comparisons = _conjuncts(tokens)
    understood = [_key_is(*comparison) for each in comparisons if (comparison := _comparison(each))]
    return space_of(AllOf(tuple(understood))) if understood else None


def _conjuncts(tokens: Sequence[str]) -> list[str]:
    """Return the terms that must all hold; none if the filter has no such form."""
    tokens = _without_parentheses(tokens)
    terms: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth < 0:
            return []
        if depth == 0 and token.lower() == "or":
            return []
        if depth == 0 and token.lower() == "and":
            terms.append([])
        else:
            terms[-1].append(token)
    if depth:
        return []
    if len(terms) == 1:
        return [" ".join(terms[0])]
    return [conjunct for term in terms for conjunct in _conjuncts(term)]


def _without_parentheses(tokens: Sequence[str]) -> Sequence[str]:
    """Return the tokens without parentheses around all of them."""
    while len(tokens) > 1 and tokens[0] == "(":
        depths = list(accumulate({"(": 1, ")": -1}.get(token, 0) for token in tokens))
        if 0 in depths[:-1] or depths[-1]:
            return tokens
        tokens = tokens[1:-1]
    return tokens


def _comparison(term: str) -> tuple[str, str, str] | None:
    match = _COMPARISON.fullmatch(term)
    if match is None:
        return None
    return match["name"], match["operator"], match["value"][1:-1].replace("''", "'")


def _key_is(name: str, operator: str, text: str) -> KeyIs:
    # No text is between a text and the one with U+0000 behind it.
    value, next_value = Value(STRING, text), Value(STRING, text + "\0")
    match operator:
        case "eq":
            return KeyIs(name, bounds=Bounds((value,)))
        case "ge":
            return KeyIs(name, bounds=Bounds(at_least=value))
        case "gt":
            return KeyIs(name, bounds=Bounds(at_least=next_value))
        case "le":
            return KeyIs(name, bounds=Bounds(below=next_value))
    return KeyIs(name, bounds=Bounds(below=value))
