"""Key spaces: of a condition on keys (`where=`), as key ranges, and of what a migration writes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from rekey.core.edm import STRING
from rekey.core.key_order import first_after, last_below
from rekey.core.key_space import KeySpace
from rekey.declaration.keys.base import Expression, Prop, beginning, refuse_if
from rekey.declaration.rows import AllOf, AnyOf, Bounds, Condition, KeyIs, NoneOf, Value, need_condition
from rekey.declaration.targets import Index, Target
from rekey.model import LAST_ROW, PARTITION_KEY, ROW_KEY, EntityKey, KeyRange, utf16_order

# The texts from the first one on, below the second one; None: to the end.
_Interval = tuple[str, str | None]
_ALL: tuple[_Interval, ...] = (("", None),)
_KEYS = frozenset({PARTITION_KEY, ROW_KEY})
_COMBINATIONS = {combination.op: combination for combination in (AllOf, AnyOf, NoneOf)}


def key_space_of(where: object) -> KeySpace:
    """Return the keys of the rows that meet a condition. Raises InvalidDeclaration."""
    condition = need_condition("where", where)
    read = sorted(condition.inputs() - _KEYS)
    refuse_if(read, "where", "part-of-properties", read=", ".join(read))
    texts = _texts(condition, PARTITION_KEY)
    refuse_if(texts.is_exact and texts.intervals == _ALL, "where", "part-is-all")
    key_space = space_of(condition)
    refuse_if(not key_space.ranges, "where", "part-is-none")
    return key_space


def filled_keys(fills: Sequence[tuple[Target | Index, Condition]]) -> Condition:
    """Return what the keys of all rows meet, provably, that a migration writes to one table.

    Args:
        fills: targets and indexes in that table, each with a condition that the source rows meet.

    Raises:
        InvalidDeclaration: they may have any PartitionKey.
    """
    conditions = []
    for filled, condition in fills:
        partition = _result(filled.partition_key, PARTITION_KEY, condition)
        is_any = _texts(partition, PARTITION_KEY).intervals == _ALL
        refuse_if(is_any, f"{filled.where}.shared", "shared-without-text")
        conditions.append(AllOf((partition, _result(filled.row_key, ROW_KEY, condition))))
    return AnyOf(tuple(conditions))


def _result(expression: Expression, name: str, condition: Condition) -> Condition:
    """Return what the results of a key expression meet, under the name of the new key. `condition`: what the
    source rows meet."""

    def beginning_of(key: str) -> tuple[str, bool]:
        match _texts(condition, key).intervals:
            case ((text, end),) if end == text + "\0":
                return text, True
        return condition.prefix_of(key), False

    if isinstance(expression, Prop) and expression.name in _KEYS:
        intervals = _texts(condition, expression.name).intervals
        return AnyOf(tuple(_within(name, low, high) for low, high in intervals))
    text, whole = beginning(expression, beginning_of)
    return _within(name, text, text + "\0") if whole else KeyIs(name, text)


def _within(name: str, low: str, high: str | None) -> KeyIs:
    bounds = Value(STRING, low), None if high is None else Value(STRING, high)
    return KeyIs(name, bounds=Bounds((), *bounds))


def space_of(condition: Condition) -> KeySpace:
    """Return the keys that meet a condition on keys alone."""
    partitions = _texts(condition, PARTITION_KEY).intervals
    return KeySpace(tuple(_ranges(condition, partitions)), condition.compile())


def key_condition(as_json: Mapping[str, Any]) -> Condition:
    """Return the condition on keys that has this canonical form (`Condition.as_json`)."""
    if combination := _COMBINATIONS.get(as_json["op"]):
        return combination(tuple(key_condition(each) for each in as_json["of"]))

    def value(bound: Mapping[str, str] | None) -> Value | None:
        return None if bound is None else Value(bound["type"], bound["value"])

    chosen = tuple(Value(each["type"], each["value"]) for each in as_json.get("one_of", ()))
    bounds = Bounds(chosen, value(as_json.get("at_least")), value(as_json.get("below")))
    return KeyIs(as_json["name"], as_json.get("prefix", ""), as_json.get("pattern", ""), bounds)


@dataclass(frozen=True)
class _Texts:
    """The texts that a key may be, by a condition."""

    # Disjoint and in order, with other texts between them.
    intervals: tuple[_Interval, ...]
    # Whether a row meets the condition if, and only if, its key is one of these texts.
    is_exact: bool = True

    def __and__(self, other: _Texts) -> _Texts:
        both = [_common(mine, theirs) for mine in self.intervals for theirs in other.intervals]
        return _Texts(_joined(each for each in both if each), self.is_exact and other.is_exact)

    def __or__(self, other: _Texts) -> _Texts:
        return _Texts(_joined((*self.intervals, *other.intervals)), self.is_exact and other.is_exact)

    def __invert__(self) -> _Texts:
        if not self.is_exact:
            return _Texts(_ALL, is_exact=False)
        starts = ["", *(high for _, high in self.intervals if high is not None)]
        ends = [low for low, _ in self.intervals]
        ends += [] if self.intervals and self.intervals[-1][1] is None else [None]  # type: ignore[list-item]
        return _Texts(tuple((low, high) for low, high in zip(starts, ends, strict=True) if low != high))


def _texts(condition: Condition, key: str, partition: str | None = None) -> _Texts:
    """Return the texts that a key of a row that meets a condition may be. `partition`: the row's
    PartitionKey, None for any."""
    match condition:
        case KeyIs(name=name) if name == key:
            return _of_key(condition)
        case KeyIs() if partition is None:
            return _Texts(_ALL, is_exact=False)
        case KeyIs(name=name):
            return _Texts(_ALL if condition.compile()({name: partition}) else ())
        case AllOf(of=conditions):
            return reduce(_Texts.__and__, (_texts(each, key, partition) for each in conditions))
        case AnyOf(of=conditions):
            return reduce(_Texts.__or__, (_texts(each, key, partition) for each in conditions), _Texts(()))
        case NoneOf(of=conditions):
            none = (~_texts(each, key, partition) for each in conditions)
            return reduce(_Texts.__and__, none, _Texts(_ALL))
    return _Texts(_ALL, is_exact=False)


def _of_key(condition: KeyIs) -> _Texts:
    bounds = condition.bounds
    texts = _Texts(((condition.prefix, first_after(condition.prefix)),), not condition.pattern)
    if bounds.one_of:
        # No text is between a text and the one with U+0000 behind it.
        texts &= _Texts(_joined((value.text, value.text + "\0") for value in bounds.one_of))
    least = "" if bounds.at_least is None else bounds.at_least.text
    below = None if bounds.below is None else bounds.below.text
    return texts & _Texts(_joined([(least, below)]))


def _ranges(condition: Condition, partitions: Sequence[_Interval]) -> Iterator[KeyRange]:
    """Yield the key ranges in which the rows are that meet a condition. `partitions`: their PartitionKeys."""
    for low, high in partitions:
        if high != low + "\0":
            yield KeyRange(_before(low), None if high is None else EntityKey(last_below(high), LAST_ROW))
            continue
        for first, end in _texts(condition, ROW_KEY, low).intervals:
            after = EntityKey(low, last_below(first)) if first else _before(low)
            yield KeyRange(after, EntityKey(low, LAST_ROW if end is None else last_below(end)))


def _before(partition: str) -> EntityKey | None:
    return EntityKey(last_below(partition), LAST_ROW) if partition else None


def _common(first: _Interval, second: _Interval) -> _Interval | None:
    low = max(first[0], second[0], key=utf16_order)
    high = min(filter(None, (first[1], second[1])), key=utf16_order, default=None)
    return None if high is not None and utf16_order(high) <= utf16_order(low) else (low, high)


def _joined(intervals: Iterator[_Interval] | Sequence[_Interval]) -> tuple[_Interval, ...]:
    """Return intervals in order, those that touch as one."""
    joined: list[_Interval] = []
    for low, high in sorted(intervals, key=lambda each: utf16_order(each[0])):
        end = joined[-1][1] if joined else ""
        if not joined or (end is not None and utf16_order(end) < utf16_order(low)):
            joined.append((low, high))
        elif end is not None and (high is None or utf16_order(high) > utf16_order(end)):
            joined[-1] = (joined[-1][0], high)
    return tuple(joined)
