"""Advice on declared queries: what the planned keys do not serve. Pure.

Rules kept here:

* A query that the planned keys answer worse than today's is an error; one that is answered badly before and
  after is a warning.
* Each query has one cause: the first that fits of random keys, time not inverted, anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rekey.core.severity import Severity
from rekey.declaration.keys.base import Expression
from rekey.plan.advice.facts import Advice, Facts, TableFacts, advice
from rekey.plan.advice.rating import Access, Rated, keys_of, rate
from rekey.plan.advice.structure import RISING, is_known, is_scrambled, keeps_order_of, parts_of


def rated(facts: Facts) -> tuple[Rated, ...]:
    """Return how each declared query is answered before and after; nothing without planned tables."""
    if facts.migration is None or not facts.planned:
        return ()
    return tuple(rate(query, facts.today, facts.planned) for query in facts.migration.queries)


def key_not_computable(facts: Facts) -> Iterator[Advice]:
    """A key that cannot be computed from what the application knows at read time."""
    for one in rated(facts):
        if one.query.kind == "point" and one.planned.access > Access.ROW_RANGE:
            table = _asked(one, facts.planned)
            partition, _ = keys_of(table)
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
        (part for part in parts_of(keys_of(table)[1]) if not is_known(part, table.declared, known)), None
    )


def _rises(part: Expression, by: str | None) -> bool:
    return isinstance(part, RISING) and keeps_order_of(part, by)


def _severity(one: Rated) -> Severity:
    return Severity.ERROR if one.planned.access > one.today.access else Severity.WARNING


def _evidence(one: Rated) -> str:
    return f"{one.query.describe()}: {one.today.describe()} today; {one.planned.describe()} planned"


RULES = (key_not_computable, not_served)
