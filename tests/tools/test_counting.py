"""Steps are counted as they are taken, and matching by backtracking agrees with `re`."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.asserts.steps import Steps, Text, _match, _program, steps_of

PATTERNS = [
    r"'(?:[^']|'')*'",
    r"'([^']*+(?:''[^']*+)*+)'",
    r"'(?:[^']++|'')*'",
    r"(?:a+)+b",
    r"(?:a|ab)*b?",
    r"a{2,3}b{1}(?:c|d){0,2}",
    r"\A(?:x|)a*(?=b)",
    r"%(?![0-9A-Fa-f]{2})",
    r"(?:.*;)?\s*a=(?:\"([^\"]{1,3})\"|([^\s;\"]{1,2}))\s*(?:;.*)?",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=st.text(alphabet="aabbcx';=%4 \n\"", max_size=12))
def test_what_is_matched_by_backtracking_ends_where_re_ends(pattern: str, text: str) -> None:
    compiled = re.compile(pattern, re.IGNORECASE)
    program, codes = _program(compiled), [ord(one) for one in text]
    found, whole = compiled.match(text), compiled.fullmatch(text)
    assert _match(program, codes, 0)[1] == (None if found is None else found.end())
    assert (_match(program, codes, 0, whole=True)[1] is None) == (whole is None)


def test_an_expression_that_tries_every_way_is_seen() -> None:
    program = _program(re.compile("(?:a+)+b"))
    assert steps_of(program, "a" * 12, "match") > 3 * steps_of(program, "a" * 10, "match")


def test_a_text_counts_what_is_done_with_it() -> None:
    steps = Steps()
    text = Text.of("a&b" * 100, steps)
    parts = text.split("&")
    assert steps.taken == 301
    assert "no" not in list(map(str.lower, parts))
    lower = parts[0].lower()
    before = steps.taken
    assert lower not in map(str.upper, parts)
    assert steps.taken - before == len(parts)
