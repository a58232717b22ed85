"""Advice on partitions: how rows and writes are spread, and where new rows go. Pure.

Rules kept here:

* Target of the service: 2,000 entities/s a partition ("Scalability and performance targets for Table
  storage"). Over it at the declared load is an error, over half of it a warning.
* Where a PartitionKey holds a moment, new rows go to the newest partition of each stream: the share that
  counts is that of the largest stream, not that of the largest partition so far.
* PartitionKeys that only rise or fall put all inserts on one server. That matters at a load, or where every
  few rows open a new partition; a month or a day for a partition is left alone.
* Small tables get no such advice: below 1,000 rows no partition is hot because of its keys.
"""

from __future__ import annotations

from collections.abc import Iterator

from rekey.core.limits import PARTITION_TARGET
from rekey.core.severity import Severity
from rekey.inspect.profile import Order
from rekey.plan.advice.facts import Facts, percent
from rekey.plan.advice.structure import is_moment, parts_of
from rekey.plan.result import Advice
from rekey.present.text import counted

FEW_ROWS = 1_000
MANY_ROWS = 100_000
SHARE_ROWS = 10_000
SHARE = 0.2
TIMES_THE_MEAN = 10
ALONE = 1.5
BUSY_WRITES = PARTITION_TARGET / 4
FINE_ROWS = 10
MANY_PARTITIONS = 100


def one_partition(facts: Facts) -> Iterator[Advice]:
    """Yield advice on tables whose rows are all in one partition."""
    for table in facts.tables:
        if table.partitions == 1 and table.rows >= FEW_ROWS:
            severity = Severity.ERROR if table.rows >= MANY_ROWS else Severity.WARNING
            yield table.advice("one-partition", severity, rows=counted(table.rows, "row"))


def partition_load(facts: Facts) -> Iterator[Advice]:
    """Yield advice on a partition over (or over half of) the target at the declared load."""
    writes = facts.load.get("writes_per_second")
    if writes is None:
        return
    for table in facts.tables:
        fanned = table.rows / facts.today.rows if facts.today.rows and not table.today else 1.0
        hottest = writes * fanned * table.hottest_share
        if hottest <= PARTITION_TARGET / 2:
            continue
        severity = Severity.ERROR if hottest > PARTITION_TARGET else Severity.WARNING
        said = {"rate": writes * fanned, "share": percent(table.hottest_share), "hottest": hottest}
        yield table.advice("partition-load", severity, target=PARTITION_TARGET, **said)


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
    ranged = [one for one in facts.migration.queries if one.kind != "point"]
    # An index may be made for ranges: they are badly served only where no planned table keeps rows together.
    together = any(table.rows_per_partition > ALONE for table in facts.planned)
    for table in facts.planned[:1]:
        if table.rows < FEW_ROWS or table.rows_per_partition > ALONE:
            continue
        alone = f"{counted(table.rows, 'row')} in {counted(table.partitions, 'partition')}"
        if batch > 1:
            declared = f"batches of {batch:,.0f}"
            reason = "a transaction writes rows of one partition only: there are none to write together"
            cure = "give rows that are written together one PartitionKey"
            said = {"alone": alone, "declared": declared, "reason": reason, "cure": cure}
            yield table.advice("partition-per-row", Severity.ERROR, **said)
        elif ranged and not together:
            yield table.advice("partition-per-row", alone=alone, declared=ranged[0].describe())


def partition_order(facts: Facts) -> Iterator[Advice]:
    """Yield advice on ascending or descending PartitionKeys."""
    writes = facts.load.get("writes_per_second", 0.0)
    for table in facts.tables:
        said = ""
        if table.declared is not None:
            parts = parts_of(table.declared.partition_key)
            if parts and is_moment(parts[0]):
                said = f"the PartitionKey begins with {parts[0].describe()}"
        elif table.partition_order in (Order.APPEND, Order.PREPEND):
            said = f"partitions are {table.partition_order}, by their Timestamps"
        fine = table.rows_per_partition <= FINE_ROWS and table.partitions >= MANY_PARTITIONS
        if said and (writes >= BUSY_WRITES or fine):
            load = f"; {writes:,.0f} writes/s declared" if writes else ""
            partitions = counted(table.partitions, "partition")
            figures = f"; {partitions} of {table.rows_per_partition:.1f} rows" if table.rows else ""
            yield table.advice("partition-order", said=said, figures=figures, load=load)


RULES = (one_partition, partition_load, partition_share, partition_per_row, partition_order)
