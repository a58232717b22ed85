"""The facts that advice is judged from: figures of today's and planned tables, the declaration. Values only.
Rules see counts and a bounded sample of keys; the advice they return holds figures, never a key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rekey.core.severity import Severity
from rekey.core.texts import catalogue, filled, table
from rekey.declaration.keys.base import Expression, Prop
from rekey.declaration.migration import Migration
from rekey.declaration.targets import Index, Target
from rekey.inspect.profile import KeyColumn, Order, RowCounts
from rekey.model import PARTITION_KEY, ROW_KEY
from rekey.plan.result import Advice
from rekey.project.prices import Prices

# The entries `severity`, `reason`, `cure` and `key` of all advice, by code.
TEXTS = catalogue(Path(__file__).with_name("advice.toml"))
# What rules look for in names, by the kind of words.
WORDS = {kind: frozenset(words) for kind, words in table(Path(__file__).with_name("words.toml")).items()}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
# Limit of rows for each partition met. In a sample of one row in twenty this ratio is 1.0 where partitions
# have one row, 1.03 where they have two, 1.7 where they have twenty.
HARDLY_ANY_TOGETHER = 1.02


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Figures of one table, read or estimated."""

    table: str
    # Keys and bytes of the sampled rows.
    counts: RowCounts
    rows: int = 0
    # A lower bound unless `partitions_exact` (all of them, or an estimate).
    partitions: int = 0
    # Its rows, as far as it was read.
    largest_partition: int = 0
    partitions_exact: bool = False
    # Mean rows of a partition among the rows read; near 1.0 hardly any two rows share one, however many
    # partitions there are.
    rows_met_together: float = 0.0
    # Sampled rows that hold a whole pointer to a main row.
    pointer_rows: int = 0
    # Share of new rows that go to one partition at a time, 0.0 to 1.0.
    hottest_share: float = 0.0
    # Where new partitions go, by Timestamps.
    partition_order: Order = Order.UNKNOWN
    # The target or index that a migration fills; None for the source.
    declared: Target | Index | None = None

    @property
    def today(self) -> bool:
        """Tell whether this is the source table."""
        return self.declared is None

    @property
    def columns(self) -> tuple[tuple[str, KeyColumn], tuple[str, KeyColumn]]:
        return (PARTITION_KEY, self.counts.partition_keys), (ROW_KEY, self.counts.row_keys)

    @property
    def keys(self) -> tuple[Expression, Expression]:
        """The expressions of both keys; for the source, the keys themselves."""
        if self.declared is None:
            return Prop(PARTITION_KEY), Prop(ROW_KEY)
        return self.declared.partition_key, self.declared.row_key

    @property
    def rows_per_partition(self) -> float:
        """The mean rows of a partition, too large rather than too small; 0.0 without partitions."""
        if not self.partitions:
            return 0.0
        if not self.partitions_exact and self.rows_met_together < HARDLY_ANY_TOGETHER:
            return self.rows_met_together
        return self.rows / self.partitions

    def advice(self, code: str, severity: Severity | None = None, /, **values: object) -> Advice:
        """Return a piece of advice about the table or, where `values` names a `key`, about one of its keys;
        arguments as for `advice`."""
        [key] = filled(TEXTS[code], values, "key")
        return advice(code, f"{self.table} {key}".rstrip(), severity, self.today, **values)


def advice(
    code: str, where: str, severity: Severity | None = None, today: bool = False, /, **values: object
) -> Advice:
    """Return a piece of advice.

    Args:
        code: a key of `TEXTS`.
        where: the table, and the key if it is about one.
        severity: replaces the severity of `TEXTS`.
        today: whether it is about today's keys.
        values: for the names in braces in its texts; `evidence`, `reason` or `cure` replaces that text.
    """
    texts = TEXTS[code]
    evidence, reason, cure = filled(texts, values, "evidence", "reason", "cure")
    return Advice(code, severity or Severity(texts["severity"]), where, today, evidence, reason, cure)


@dataclass(frozen=True, slots=True)
class HashInput:
    """One unkeyed hash of a key expression, with its inputs in the sampled rows. `where`: the key."""

    where: str
    described: str
    inputs: KeyColumn
    # How many values it has, for `keys.bucket`; None: no two inputs share one.
    buckets: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts that rules see."""

    today: TableFacts
    # The tables the migration fills, main first.
    planned: tuple[TableFacts, ...] = ()
    migration: Migration | None = None
    # By table, rows that share a target key, in the first groups (`Collisions.first`).
    colliding: Mapping[str, int] = field(default_factory=dict)
    # Rows that were mapped twice, of which `unrepeatable` got other keys the second time.
    repeated: int = 0
    unrepeatable: int = 0
    hash_inputs: tuple[HashInput, ...] = ()
    prices: Prices = field(default_factory=Prices)

    @property
    def tables(self) -> tuple[TableFacts, ...]:
        """All tables, the source first."""
        return (self.today, *self.planned)

    @property
    def columns(self) -> Iterator[tuple[TableFacts, str, KeyColumn]]:
        """Both keys of all tables: the table, the key's name, and the counts of the key."""
        return ((table, key, column) for table in self.tables for key, column in table.columns)

    @property
    def load(self) -> Mapping[str, float]:
        return self.migration.load if self.migration is not None else {}


def words_among(kind: str, name: str) -> list[str]:
    """Return the words of a name (`updatedAt`: `updated`, `At`) that are of a kind in `WORDS`."""
    return [word for word in _WORD.findall(name) if word.lower() in WORDS[kind]]


def percent(share: float) -> str:
    """Return a share as text in percent, never rounded to 0 % or 100 %."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if 0.999 < share < 1 else f"{share * 100:.3g} %"
