"""Advice on declared queries: how tables answer them, and what the planned keys do not serve. Pure.

Rules kept here:

* The four ways to find rows are those of the service's design guide: both keys known; a stretch of one
  partition; whole partitions; everything. Pages hold 1,000 rows; each page is a request.
* A query may be answered through an index table: its pointer costs one more request for each row.
* What is known and not in the keys is sieved: more is read than comes back.
* The best answer counts: that is how an application written for these keys would ask.
* A query that the planned keys answer worse than today's is an error; one that is answered badly before and
  after is a warning.
* Each query has one cause: the first that fits of random keys, time not inverted, anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rekey.core.severity import Severity
from rekey.declaration.keys.base import Expression, Prop
from rekey.declaration.migration import Index
from rekey.declaration.query import Query
from rekey.inspect.shapes import Shape
from rekey.model import PARTITION_KEY, ROW_KEY
from rekey.plan.advice.facts import Facts, TableFacts, advice
from rekey.plan.advice.structure import (
    FALLING,
    RISING,
    inputs_of,
    is_known,
    is_moment,
    is_scrambled,
    keeps_order_of,
    parts_of,
)
from rekey.plan.requests import pages
from rekey.plan.result import Access, Advice, Answer, Rated

NEARLY_ALL = 0.95


def rated(facts: Facts) -> tuple[Rated, ...]:
    """Return how each declared query is answered before and after; nothing without planned tables."""
    if facts.migration is None or not facts.planned:
        return ()
    found = []
    for query in facts.migration.queries:
        answers = [_answer(query, table) for table in facts.planned]
        best = min(answers, key=lambda one: (one.access, one.requests))
        found.append(Rated(query, _answer(query, facts.today), best))
    return tuple(found)


def key_not_computable(facts: Facts) -> Iterator[Advice]:
    """A key that cannot be computed from what the application knows at read time."""
    for one in rated(facts):
        if one.query.kind == "point" and one.planned.access > Access.ROW_RANGE:
            table = _asked(one, facts.planned)
            partition, _ = _keys_of(table)
            key = (
                "RowKey"
                if is_known(partition, table.declared, frozenset(one.query.known))
                else "PartitionKey"
            )
            yield advice(
                "key-not-computable",
                _severity(one),
                table,
                _evidence(one),
                key=key,
                reason="one row is read by both keys; without one of them rows are searched",
                cure="make the key of what is known (and tell the application how), or add an index by it",
            )


def not_served(facts: Facts) -> Iterator[Advice]:
    """Ranges and newest rows that the planned keys do not serve, by cause."""
    for one in rated(facts):
        if one.query.kind == "point" or one.planned.access <= Access.ROW_RANGE:
            continue
        table = _asked(one, facts.planned)
        part = _deciding(one, table)
        if part is not None and is_scrambled(part):
            yield advice(
                "random-order",
                _severity(one),
                table,
                _evidence(one),
                key="RowKey",
                reason=f"the key sorts by {part.describe()}, which has no order that could be asked for",
                cure="put the property that is asked for before the random part, e.g. keys.join of"
                " keys.inverted_ticks and the id",
            )
        elif one.query.kind == "latest" and part is not None and _rises(part, one.query.by):
            yield advice(
                "time-not-inverted",
                _severity(one),
                table,
                _evidence(one),
                key="RowKey",
                reason="rows come oldest first, and a table cannot be read backwards: all older rows are"
                " read",
                cure="use keys.inverted_ticks, which counts down",
            )
        elif one.query.kind == "latest" or one.planned.access is Access.TABLE_SCAN:
            yield advice(
                "query-not-served",
                _severity(one),
                table,
                _evidence(one),
                reason="no key begins with what is asked for, so everything is read and sieved",
                cure="begin the RowKey with the property that is asked for, or add an index that does",
            )


def _asked(one: Rated, planned: Sequence[TableFacts]) -> TableFacts:
    return next(table for table in planned if table.table == one.planned.table)


def _deciding(one: Rated, table: TableFacts) -> Expression | None:
    """Return the part of the RowKey that decides the order of what is asked for."""
    known = frozenset(one.query.known)
    return next(
        (part for part in parts_of(_keys_of(table)[1]) if not is_known(part, table.declared, known)), None
    )


def _rises(part: Expression, by: str | None) -> bool:
    return isinstance(part, RISING) and keeps_order_of(part, by)


def _severity(one: Rated) -> Severity:
    return Severity.ERROR if one.planned.access > one.today.access else Severity.WARNING


def _evidence(one: Rated) -> str:
    return f"{one.query.describe()}: {one.today.describe()} today; {one.planned.describe()} planned"


def _keys_of(table: TableFacts) -> tuple[Expression, Expression]:
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
    partition, row = _keys_of(table)
    of, known = table.declared, frozenset(query.known)
    parts = _after_known(partition, table, known)
    if not known <= _used(query, table):
        # Rows of others are read too, and sieved.
        everything = Access.TABLE_SCAN if parts else Access.PARTITION_RANGE
        return everything, pages(table.rows if parts else round(table.rows_per_partition))
    if not parts:
        return _within_partition(query, row, table)
    # The PartitionKey goes on with the property asked for: a stretch of partitions.
    if keeps_order_of(parts[0], query.by) and is_known(partition, of, known | _walked(query, parts[0])):
        whole = max(1, round(query.rows / max(1.0, table.rows_per_partition)))
        access, each = _within_partition(query, row, table)
        return Access.PARTITION_RANGE if access > Access.ROW_RANGE else access, whole * each
    return Access.TABLE_SCAN, pages(table.rows)


def _point(query: Query, table: TableFacts) -> tuple[Access, int]:
    partition, row = _keys_of(table)
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
    partition, row = _keys_of(table)
    used = inputs_of(partition, table.declared)
    for part in parts_of(row):
        if not is_known(part, table.declared, frozenset(query.known)):
            break
        used |= inputs_of(part, table.declared)
    return used


def _counts_down(table: TableFacts) -> bool:
    """Tell whether RowKeys, of any origin, are inverted ticks."""
    return table.row_keys.share(Shape.INVERTED_TICKS) >= NEARLY_ALL


def _after_known(expression: Expression, table: TableFacts, known: frozenset[str]) -> tuple[Expression, ...]:
    """Return the parts of a key from the first one on that cannot be computed from what is known."""
    parts = parts_of(expression)
    for number, part in enumerate(parts):
        if not is_known(part, table.declared, known):
            return parts[number:]
    return ()


def _walked(query: Query, part: Expression) -> frozenset[str]:
    """Return the properties that a range over the part walks through."""
    return (
        frozenset({query.by}) if query.by is not None else part.inputs() if is_moment(part) else frozenset()
    )


RULES = (key_not_computable, not_served)
