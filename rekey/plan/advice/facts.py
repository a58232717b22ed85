"""What advice is judged from: a table's figures, today's or planned, and what a script asks for. Values only.

Rules kept here:

* Rules see counts and a bounded sample of keys; what they return holds figures, never a key.
* A figure that is a sample's comes with the number of rows it was taken from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rekey.core.severity import Severity
from rekey.declaration.keys.base import Expression, Prop
from rekey.declaration.migration import Index, Migration, Target
from rekey.inspect.columns import KeyColumn
from rekey.inspect.profile import Order, RowCounts
from rekey.model import PARTITION_KEY, ROW_KEY
from rekey.plan.result import Advice
from rekey.project.prices import Prices

HARDLY_ANY_TOGETHER = 1.02
"""Rows for each partition met, in a sample of one row in twenty. Where partitions have one row it is 1.0,
with two 1.03, with twenty 1.7."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Figures of one table.

    Attributes:
        table: its name.
        counts: keys and bytes of the rows looked at.
        rows: how many it holds or will hold, read or estimated.
        partitions: how many; a lower bound where not every row was read.
        largest_partition: rows of the largest, as far as it was seen.
        partitions_exact: whether `partitions` are all there are.
        property_names: met in rows looked at.
        pointer_rows: rows looked at that hold a whole pointer to a main row.
        hottest_share: share of new rows that go to one partition at a time, 0.0 to 1.0.
        partition_order: where new partitions go, by Timestamps.
        declared: the target or index that a migration fills; None for the source as it is today.
    """

    table: str
    counts: RowCounts
    rows: int
    partitions: int
    largest_partition: int
    partitions_exact: bool
    property_names: frozenset[str]
    pointer_rows: int
    hottest_share: float
    partition_order: Order = Order.UNKNOWN
    declared: Target | Index | None = None

    @property
    def today(self) -> bool:
        """Tell whether this is the source as it is."""
        return self.declared is None

    @property
    def columns(self) -> tuple[tuple[str, KeyColumn], tuple[str, KeyColumn]]:
        """Return both keys with their names."""
        return (PARTITION_KEY, self.counts.partition_keys), (ROW_KEY, self.counts.row_keys)

    @property
    def keys(self) -> tuple[Expression, Expression]:
        """Return what both keys are made of; those of the source are its keys as they are."""
        if self.declared is None:
            return Prop(PARTITION_KEY), Prop(ROW_KEY)
        return self.declared.partition_key, self.declared.row_key

    @property
    def rows_per_partition(self) -> float:
        """Return the mean size of a partition, rather too large than too small; 0.0 without rows."""
        if not self.partitions:
            return 0.0
        if not self.partitions_exact and self.counts.rows_met_together < HARDLY_ANY_TOGETHER:
            return self.counts.rows_met_together
        return self.rows / self.partitions

    def advice(
        self, code: str, severity: Severity, evidence: str, *, reason: str, cure: str, key: str = ""
    ) -> Advice:
        """Return a piece of advice about the table, or about one of its keys."""
        where = f"{self.table} {key}".rstrip()
        return Advice(code, severity, where, self.today, evidence, reason, cure)


@dataclass(frozen=True, slots=True)
class HashInput:
    """What an unkeyed hash is made of, over the rows looked at."""

    where: str
    described: str
    inputs: KeyColumn


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that rules see.

    Attributes:
        today: the source.
        planned: the tables the migration fills, main first; empty when there is no migration.
        migration: the declaration.
        colliding: rows that share a target key with another, by table.
        repeated: rows that were mapped twice.
        unrepeatable: how many of them came out with other keys the second time.
        hash_inputs: what unkeyed hashes are made of.
        is_cosmos: the endpoint is Cosmos DB's.
        prices: as configured.
    """

    today: TableFacts
    planned: tuple[TableFacts, ...] = ()
    migration: Migration | None = None
    colliding: Mapping[str, int] = field(default_factory=dict)
    repeated: int = 0
    unrepeatable: int = 0
    hash_inputs: tuple[HashInput, ...] = ()
    is_cosmos: bool = False
    prices: Prices = field(default_factory=Prices)

    @property
    def tables(self) -> tuple[TableFacts, ...]:
        """Return all tables, the source first."""
        return (self.today, *self.planned)

    @property
    def columns(self) -> Iterator[tuple[TableFacts, str, KeyColumn]]:
        """Yield both keys of all tables: the table, the key's name, and what was counted of it."""
        return ((table, key, column) for table in self.tables for key, column in table.columns)

    @property
    def load(self) -> Mapping[str, float]:
        """Return the declared load."""
        return self.migration.load if self.migration is not None else {}


def percent(share: float) -> str:
    """Return a share for people, never rounded to nothing or to everything."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if 0.999 < share < 1 else f"{share * 100:.3g} %"
