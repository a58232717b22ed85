"""How a declared query is answered by a table: point, row range, partition range or table scan. Pure.

Rules kept here:

* The four ways are those of the service's design guide: both keys known; a stretch of one partition; whole
  partitions; everything. Pages hold 1,000 rows; each page is a request.
* A query may be answered through an index table: its pointer costs one more request for each row.
* What is known and not in the keys is sieved: more is read than comes back.
* The best answer counts: that is how an application written for these keys would ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from rekey.declaration.keys.base import Expression, Prop
from rekey.declaration.migration import Index
from rekey.declaration.query import Query
from rekey.inspect.shapes import Shape
from rekey.model import PARTITION_KEY, ROW_KEY
from rekey.plan.advice.facts import TableFacts
from rekey.plan.advice.structure import FALLING, inputs_of, is_known, is_moment, keeps_order_of, parts_of
from rekey.plan.requests import pages

NEARLY_ALL = 0.95


class Access(IntEnum):
    """How rows are found, the best first."""

    POINT = 1
    ROW_RANGE = 2
    PARTITION_RANGE = 3
    TABLE_SCAN = 4

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Answer:
    """How one table answers one query.

    Attributes:
        access: the way.
        requests: how many it takes, more or less.
        table: which table is asked.
        through_index: an index table is asked first, then the main rows.
    """

    access: Access
    requests: int
    table: str
    through_index: bool = False

    def describe(self) -> str:
        """Return e.g. `row range, 1 request (PostsByTag, then 20 main rows)`."""
        noun = "request" if self.requests == 1 else "requests"
        return f"{self.access}, {self.requests:,} {noun}" + (
            f" by {self.table}" if self.through_index else ""
        )


@dataclass(frozen=True, slots=True)
class Rated:
    """A query, answered by today's keys and by the planned ones."""

    query: Query
    today: Answer
    planned: Answer


def rate(query: Query, today: TableFacts, planned: Sequence[TableFacts]) -> Rated:
    """Return how a query is answered before and after."""
    answers = [_answer(query, table) for table in planned]
    best = min(answers, key=lambda one: (one.access, one.requests))
    return Rated(query, _answer(query, today), best)


def keys_of(table: TableFacts) -> tuple[Expression, Expression]:
    """Return the key expressions of a table; those of the source are its keys as they are."""
    if table.declared is None:
        return Prop(PARTITION_KEY), Prop(ROW_KEY)
    return table.declared.partition_key, table.declared.row_key


def _answer(query: Query, table: TableFacts) -> Answer:
    access, requests = _found(query, table)
    through_index = isinstance(table.declared, Index)
    if through_index and access is not Access.TABLE_SCAN:
        requests += query.rows
    return Answer(access, requests, table.table, through_index)


def _found(query: Query, table: TableFacts) -> tuple[Access, int]:
    if query.kind == "point":
        return _point(query, table)
    partition, row = keys_of(table)
    of, known = table.declared, frozenset(query.known)
    parts = _after_known(partition, table, known)
    if not known <= _used(query, table):
        # Rows of others are read too, and sieved.
        everything = Access.TABLE_SCAN if parts else Access.PARTITION_RANGE
        return everything, pages(table.rows if parts else round(table.rows_per_partition))
    if not parts:
        return _within_partition(query, row, table)
    # The PartitionKey goes on with the property asked for: a stretch of partitions.
    if keeps_order_of(parts[0], query.by) and is_known(partition, of, known | _asked(query, parts[0])):
        whole = max(1, round(query.rows / max(1.0, table.rows_per_partition)))
        access, each = _within_partition(query, row, table)
        return Access.PARTITION_RANGE if access > Access.ROW_RANGE else access, whole * each
    return Access.TABLE_SCAN, pages(table.rows)


def _point(query: Query, table: TableFacts) -> tuple[Access, int]:
    partition, row = keys_of(table)
    of, known = table.declared, frozenset(query.known)
    if not is_known(partition, of, known):
        return Access.TABLE_SCAN, pages(table.rows)
    if is_known(row, of, known):
        return Access.POINT, 1
    if len(_after_known(row, table, known)) < len(parts_of(row)):
        return Access.ROW_RANGE, 1
    return Access.PARTITION_RANGE, pages(round(table.rows_per_partition))


def _within_partition(query: Query, row: Expression, table: TableFacts) -> tuple[Access, int]:
    parts = _after_known(row, table, frozenset(query.known))
    first = parts[0] if parts else None
    served = first is not None and keeps_order_of(first, query.by)
    if query.kind == "latest":
        served = (served and isinstance(first, FALLING)) or (first == Prop(ROW_KEY) and _counts_down(table))
    if served:
        return Access.ROW_RANGE, pages(query.rows)
    return Access.PARTITION_RANGE, pages(round(table.rows_per_partition))


def _used(query: Query, table: TableFacts) -> frozenset[str]:
    """Return the properties that decide which stretch is read: those of the PartitionKey, and those standing
    in the RowKey before what is asked for."""
    partition, row = keys_of(table)
    used = inputs_of(partition, table.declared)
    for part in parts_of(row):
        if not is_known(part, table.declared, frozenset(query.known)):
            break
        used |= inputs_of(part, table.declared)
    return used


def _counts_down(table: TableFacts) -> bool:
    """Tell whether RowKeys, whatever made them, are inverted ticks."""
    return table.row_keys.share(Shape.INVERTED_TICKS) >= NEARLY_ALL


def _after_known(expression: Expression, table: TableFacts, known: frozenset[str]) -> tuple[Expression, ...]:
    """Return the parts of a key from the first one on that cannot be computed from what is known."""
    parts = parts_of(expression)
    for number, part in enumerate(parts):
        if not is_known(part, table.declared, known):
            return parts[number:]
    return ()


def _asked(query: Query, part: Expression) -> frozenset[str]:
    """Return the properties that a range over the part walks through."""
    return (
        frozenset({query.by}) if query.by is not None else part.inputs() if is_moment(part) else frozenset()
    )
