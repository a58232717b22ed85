"""Advice on access: how tables answer declared queries; how rows and writes are spread over partitions. Pure.
Where no row was read (`rekey plan --offline`) nothing is an error that the rows may show to be none."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile

from rekey.core.limits import PARTITION_TARGET
from rekey.core.severity import Severity
from rekey.declaration.keys.base import Expression, Prop
from rekey.declaration.query import Query
from rekey.declaration.targets import Index
from rekey.inspect.profile import Order
from rekey.inspect.shapes import Shape
from rekey.model import PARTITION_KEY, ROW_KEY
from rekey.plan.advice.facts import Facts, TableFacts, percent
from rekey.plan.advice.structure import FALLING, RISING, SCRAMBLED, inputs_of, is_known, parts_of, sorts_as
from rekey.plan.estimate import pages
from rekey.plan.result import Access, Advice, Answer, Rated
from rekey.present.text import counted

NEARLY_ALL = 0.95
# Below this no partition is hot because of its keys.
FEW_ROWS = 1_000
MANY_ROWS = 100_000
SHARE_ROWS = 10_000
SHARE = 0.2
TIMES_THE_MEAN = 10
ALONE = 1.5
# PARTITION_TARGET: 2,000 entities/s ("Scalability and performance targets for Table storage").
BUSY_WRITES = PARTITION_TARGET / 4
FINE_ROWS = 10
MANY_PARTITIONS = 100


def rated(facts: Facts) -> tuple[Rated, ...]:
    """Return how today's and the planned tables answer each declared query; empty without planned tables."""
    if facts.migration is None or not facts.planned:
        return ()
    ratings, read = [], facts.today.rows > 0
    for query in facts.migration.queries:
        answers = [_answer(query, table, read) for table in facts.planned]
        # As an application written for these keys would ask.
        best = min(answers, key=lambda answer: (answer.access, answer.requests or 0))
        ratings.append(Rated(query, _answer(query, facts.today, read), best))
    return tuple(ratings)


def key_not_computable(facts: Facts) -> Iterator[Advice]:
    """Yield advice on point queries whose key cannot be computed from what the application knows then."""
    for rating, table in _badly_served(facts):
        if rating.query.kind == "point":
            partition_is_known = is_known(table.keys[0], table.declared, frozenset(rating.query.known))
            key = ROW_KEY if partition_is_known else PARTITION_KEY
            yield table.advice("key-not-computable", _severity(rating), key=key, evidence=_evidence(rating))


def not_served(facts: Facts) -> Iterator[Advice]:
    """Yield advice, by cause, on queries for ranges and newest rows that the planned keys do not serve."""
    for rating, table in _badly_served(facts):
        query = rating.query
        if query.kind == "point":
            continue
        # The part of the RowKey that decides the order of the rows asked for.
        part = next(iter(_after_known(table.keys[1], table, frozenset(query.known))), None)
        if isinstance(part, SCRAMBLED):
            code = "random-order"
        elif query.kind == "latest" and isinstance(part, RISING) and sorts_as(part, query.by):
            code = "time-not-inverted"
        elif query.kind == "latest" or rating.planned.access is Access.TABLE_SCAN:
            code = "query-not-served"
        else:
            continue
        described = "" if part is None else part.describe()
        yield table.advice(code, _severity(rating), part=described, evidence=_evidence(rating))


def _badly_served(facts: Facts) -> Iterator[tuple[Rated, TableFacts]]:
    """Yield queries that take more than a row range, with the planned table that answers them best."""
    for rating in rated(facts):
        if rating.planned.access > Access.ROW_RANGE:
            yield rating, next(table for table in facts.planned if table.table == rating.planned.table)


def _severity(rating: Rated) -> Severity:
    # Answered as badly today: only a warning.
    return Severity.ERROR if rating.planned.access > rating.today.access else Severity.WARNING


def _evidence(rating: Rated) -> str:
    return f"{rating.query.describe()}: {rating.today.describe()} today; {rating.planned.describe()} planned"


def _answer(query: Query, table: TableFacts, read: bool) -> Answer:
    access, requests = _access(query, table, read)
    through_index = isinstance(table.declared, Index) and table.declared.property_mapping.kept is not None
    if through_index and access is not Access.TABLE_SCAN and requests is not None:
        # Its pointers cost a request for each row.
        requests += query.rows
    return Answer(access, requests, table.table, through_index)


def _access(query: Query, table: TableFacts, read: bool) -> tuple[Access, int | None]:
    """Return how a table finds the rows of a query, and in how many requests; `read`: its rows were read."""
    partition, row = table.keys
    of, known = table.declared, frozenset(query.known)
    whole_table = Access.TABLE_SCAN, pages(table.rows) if read else None
    whole_partition = Access.PARTITION_RANGE, pages(round(table.rows_per_partition)) if read else None
    parts, row_parts = _after_known(partition, table, known), _after_known(row, table, known)
    if query.kind == "point":
        if not is_known(partition, of, known):
            return whole_table
        if is_known(row, of, known):
            return Access.POINT, 1
        return (Access.ROW_RANGE, 1) if len(row_parts) < len(parts_of(row)) else whole_partition
    # The PartitionKey and the known parts at the beginning of the RowKey decide which range is read. Where
    # more is known than that, other rows are read as well and filtered out.
    before = parts_of(row)[: len(parts_of(row)) - len(row_parts)]
    if not known <= frozenset[str]().union(*(inputs_of(key, of) for key in (partition, *before))):
        return whole_table if parts else whole_partition
    served = bool(row_parts) and sorts_as(row_parts[0], query.by)
    if query.kind == "latest" and row_parts:
        # A RowKey that is kept unchanged may hold inverted ticks. Without rows the worse is taken of today's
        # keys and the better of planned ones.
        counts_down = table.counts.row_keys.share(Shape.INVERTED_TICKS) >= NEARLY_ALL
        counts_down = counts_down or not (read or table.today)
        kept = row_parts[0] == Prop(ROW_KEY) and counts_down
        served = kept or (served and isinstance(row_parts[0], FALLING))
    within = (Access.ROW_RANGE, pages(query.rows)) if served else whole_partition
    if not parts:
        return within
    # The PartitionKey continues with the property asked for, or with a moment: a range of partitions.
    walked = parts[0].inputs() if query.by is None else frozenset([query.by])
    if sorts_as(parts[0], query.by) and is_known(partition, of, known | walked):
        partitions = max(1, round(query.rows / max(1.0, table.rows_per_partition)))
        return within[0], partitions * within[1] if read and within[1] is not None else None
    return whole_table


def _after_known(expression: Expression, table: TableFacts, known: frozenset[str]) -> tuple[Expression, ...]:
    """Return the parts of a key, beginning with the first that cannot be computed from `known`."""
    return tuple(dropwhile(lambda part: is_known(part, table.declared, known), parts_of(expression)))


# --- partitions ------------------------------------------------------------------------------------------


def one_partition(facts: Facts) -> Iterator[Advice]:
    """Yield advice on tables whose rows are all in one partition."""
    for table in facts.tables:
        if table.partitions == 1 and table.rows >= FEW_ROWS:
            severity = Severity.ERROR if table.rows >= MANY_ROWS else Severity.WARNING
            yield table.advice("one-partition", severity, rows=counted(table.rows, "row"))


def partition_load(facts: Facts) -> Iterator[Advice]:
    """Yield advice on a partition over (or over half of) the service's target at the declared load."""
    writes = facts.load.get("writes_per_second", 0.0)
    for table in facts.tables:
        fanned = table.rows / facts.today.rows if facts.today.rows and not table.today else 1.0
        hottest = writes * fanned * table.hottest_share
        if hottest <= PARTITION_TARGET / 2:
            continue
        severity = Severity.ERROR if hottest > PARTITION_TARGET else Severity.WARNING
        figures = {"rate": writes * fanned, "share": percent(table.hottest_share), "hottest": hottest}
        yield table.advice("partition-load", severity, target=PARTITION_TARGET, **figures)


def partition_share(facts: Facts) -> Iterator[Advice]:
    """Yield advice on the largest partition's share of the rows."""
    for table in facts.tables:
        share = table.largest_partition / table.rows if table.rows else 0.0
        uneven = share >= SHARE and table.largest_partition >= TIMES_THE_MEAN * table.rows_per_partition
        if table.rows >= SHARE_ROWS and uneven:
            partitions = counted(table.partitions, "partition")
            yield table.advice("partition-share", partitions=partitions, share=percent(share))


def partition_per_row(facts: Facts) -> Iterator[Advice]:
    """Yield advice on a partition for each row where ranges or batches are declared."""
    if facts.migration is None:
        return
    batch = facts.load.get("rows_per_batch", 1.0)
    ranged = [query for query in facts.migration.queries if query.kind != "point"]
    # An index may serve the ranges: they are badly served only where no planned table keeps rows together.
    shares_partitions = any(table.rows_per_partition > ALONE for table in facts.planned)
    for table in facts.planned[:1]:
        if table.rows < FEW_ROWS or table.rows_per_partition > ALONE:
            continue
        alone = f"{counted(table.rows, 'row')} in {counted(table.partitions, 'partition')}"
        if batch > 1:
            reason = "a transaction writes rows of one partition only: there are none to write together"
            cure = "give rows that are written together one PartitionKey"
            texts = {"alone": alone, "declared": f"batches of {batch:,.0f}", "reason": reason, "cure": cure}
            yield table.advice("partition-per-row", Severity.ERROR, **texts)
        elif ranged and not shares_partitions:
            yield table.advice("partition-per-row", alone=alone, declared=ranged[0].describe())


def partition_order(facts: Facts) -> Iterator[Advice]:
    """Yield advice on ascending or descending PartitionKeys, which put all inserts on one server: at a load,
    or where every few rows open a new partition."""
    writes, today = facts.load.get("writes_per_second", 0.0), ""
    if facts.today.partition_order in (Order.APPEND, Order.PREPEND):
        today = f"partitions are {facts.today.partition_order}, by their Timestamps"
    for table in facts.tables:
        text, severity = today if table.declared is None else "", None
        parts = () if table.declared is None else parts_of(table.declared.partition_key)
        if parts and isinstance(parts[0], RISING + FALLING):
            text = f"the PartitionKey begins with {parts[0].describe()}"
        elif parts and sorts_as(parts[0], PARTITION_KEY):
            # Today's order stays. Timestamps only suggest it: a table may have been imported in key order.
            text, severity = today, Severity.NOTE
        fine = table.rows_per_partition <= FINE_ROWS and table.partitions >= MANY_PARTITIONS
        if text and (writes >= BUSY_WRITES or fine):
            load = f"; {writes:,.0f} writes/s declared" if writes else ""
            partitions = counted(table.partitions, "partition")
            figures = f"; {partitions} of {table.rows_per_partition:.1f} rows" if table.rows else ""
            yield table.advice("partition-order", severity, said=text, figures=figures, load=load)


RULES = (
    *(key_not_computable, not_served),
    *(one_partition, partition_load, partition_share, partition_per_row, partition_order),
)
