"""Advice on the order of keys: ends that all inserts go to, numbers that sort as text. Pure.

Rules kept here:

* PartitionKeys that only rise or fall put all inserts on one server. That matters at a load, or where every
  few rows open a new partition; a month or a day for a partition is left alone.
* Text sorts 111 before 2. Only numbers that make up a key, or a part of it between separators, are judged: in
  `green-tea-12` the number says nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rekey.core.limits import PARTITION_TARGET
from rekey.core.severity import Severity
from rekey.inspect.columns import KeyColumn
from rekey.inspect.profile import Order
from rekey.plan.advice.facts import Advice, Facts, TableFacts, advice, count
from rekey.plan.advice.structure import is_moment, parts_of

BUSY_WRITES = PARTITION_TARGET / 4
FINE_ROWS = 10
MANY_PARTITIONS = 100
LEAST_KEYS = 20
NEARLY_ALL = 0.95
_PREFIX = re.compile(r"(\D*)(\d{1,18})")
_BETWEEN = re.compile(r"[_|:;,~!]")


def partition_order(facts: Facts) -> Iterator[Advice]:
    """Ascending or descending PartitionKeys."""
    writes = facts.load.get("writes_per_second", 0.0)
    for table in facts.tables:
        said = _one_way(table)
        fine = table.rows_per_partition <= FINE_ROWS and table.partitions >= MANY_PARTITIONS
        if said and (writes >= BUSY_WRITES or fine):
            load = f"; {writes:,.0f} writes/s declared" if writes else ""
            yield advice(
                "partition-order",
                Severity.WARNING,
                table,
                f"{said}; {count(table.partitions, 'partition')} of {table.rows_per_partition:.1f}"
                f" rows{load}",
                key="PartitionKey",
                reason="partitions next to each other are served by one server: all inserts go to that one",
                cure="put something before the moment or number that spreads: a device, a tenant,"
                " keys.bucket",
            )


def unpadded_numbers(facts: Facts) -> Iterator[Advice]:
    """Numbers that are not zero-padded."""
    for table in facts.tables:
        for key, column in table.columns:
            widths = number_widths(column)
            if widths is None:
                continue
            yield advice(
                "unpadded-numbers",
                Severity.WARNING if key == "RowKey" else Severity.NOTE,
                table,
                f"numbers of {widths[0]} to {widths[1]} digits in {count(column.keys, 'key')} looked at",
                key=key,
                reason="keys sort as text: 111 comes before 2, so ranges and pages come in no useful order",
                cure="write them with zeros in front: keys.zero_pad(10, …)",
            )


def number_widths(column: KeyColumn) -> tuple[int, int] | None:
    """Return the least and most digits of unpadded numbers that keys consist of, None when there are none."""
    keys = [key for key in column.sample if key]
    if len(keys) < LEAST_KEYS:
        return None
    prefixed = [match for match in map(_PREFIX.fullmatch, keys) if match is not None]
    if len(prefixed) >= NEARLY_ALL * len(keys):
        prefix, times = Counter(match[1] for match in prefixed).most_common(1)[0]
        if times >= NEARLY_ALL * len(keys):
            return _varying([match[2] for match in prefixed if match[1] == prefix])
    split = [_BETWEEN.split(key) for key in keys]
    parts = Counter(map(len, split)).most_common(1)[0][0]
    alike = [one for one in split if len(one) == parts]
    if parts < 2 or len(alike) < NEARLY_ALL * len(keys):
        return None
    for place in range(parts):
        digits = [one[place] for one in alike if one[place].isascii() and one[place].isdigit()]
        if len(digits) >= NEARLY_ALL * len(alike) and (found := _varying(digits)):
            return found
    return None


def _varying(digits: Sequence[str]) -> tuple[int, int] | None:
    padded = sum(len(one) > 1 and one[0] == "0" for one in digits)
    widths = Counter(map(len, digits))
    if padded > (1 - NEARLY_ALL) * len(digits) or len(widths) < 2:
        return None
    return min(widths), max(widths)


def _one_way(table: TableFacts) -> str:
    """Return in words why partitions are opened at one end only, "" when they are not."""
    if table.declared is not None:
        parts = parts_of(table.declared.partition_key)
        return f"the PartitionKey begins with {parts[0].describe()}" if parts and is_moment(parts[0]) else ""
    if table.partition_order in (Order.APPEND, Order.PREPEND):
        return f"partitions are {table.partition_order}, by their Timestamps"
    return ""


RULES = (partition_order, unpadded_numbers)
