"""The frozen values a plan consists of. Whoever adds a figure adds its section in `render.py`.

Rules kept here:

* No value holds a key, except those whose name says so (`*_key`), which stay None unless the operator asked
  for keys (`--show-keys`); they are never written to a plan file.
* A figure that is an estimate lies beside what it rests on (`Inventory.basis`, `MigrationPlan.mapped_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rekey.core.severity import Severity
from rekey.errors import ExitCode
from rekey.inspect.inventory import Inventory
from rekey.model import EntityKey
from rekey.tables.sent import Kind

if TYPE_CHECKING:
    from rekey.plan.advice.facts import Advice
    from rekey.plan.advice.rating import Rated
    from rekey.plan.portrait import Load, Portrait


@dataclass(frozen=True, slots=True)
class Problem:
    """Something the operator should know before applying.

    Attributes:
        code: stable, for scripts: `source-missing`, `collision`, `row-refused`, ...
        severity: whether `apply` refuses.
        message: what is the matter, no keys.
        cure: what to do about it.
        rows: how many rows it concerns, 0 when it is not about rows.
        row_ids: safe ids of the first of them.
    """

    code: str
    severity: Severity
    message: str
    cure: str
    rows: int = 0
    row_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NewKey:
    """The key one example row gets in one table, by safe id and length (UTF-16 units)."""

    table: str
    row_id: str
    partition_units: int
    row_units: int
    new_key: EntityKey | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """One source row and what becomes of its key."""

    row_id: str
    new_keys: tuple[NewKey, ...]
    old_key: EntityKey | None = None


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Rows that the mapping refuses for one reason; ids, and keys if asked for, of the first of them."""

    code: str
    field: str
    problem: str
    cure: str
    rows: int
    row_ids: tuple[str, ...]
    old_keys: tuple[EntityKey, ...] | None = None


@dataclass(frozen=True, slots=True)
class CollisionGroup:
    """Source rows that map to one key of one table."""

    table: str
    rows: int
    row_ids: tuple[str, ...]
    old_keys: tuple[EntityKey, ...] | None = None


@dataclass(frozen=True, slots=True)
class Collisions:
    """All target keys that more than one source row maps to.

    Attributes:
        keys: how many target keys.
        rows: how many source rows map to them, counted once per key.
        first: the first groups, at most 20.
        exact: every source row was looked at; otherwise only the rows that were sampled.
    """

    keys: int
    rows: int
    first: tuple[CollisionGroup, ...]
    exact: bool


@dataclass(frozen=True, slots=True)
class TableFill:
    """What one target table gets.

    Attributes:
        rows: rows to be written.
        batches: transactions to write them in.
        partitions: partitions met.
        partitions_exact: whether these are all; otherwise `partitions` and `largest_partition` are lower
            bounds.
        largest_partition: rows of the largest partition.
        hottest_seconds: seconds its hottest partitions take, window after window, at 2,000 entities/s.
        stored_bytes: what the service will bill for these rows.
        fills: how full batches were, of those that were packed: rows in the batch, and how many such.
    """

    table: str
    rows: int
    batches: int
    partitions: int
    partitions_exact: bool
    largest_partition: int
    hottest_seconds: float
    stored_bytes: int = 0
    fills: Mapping[int, int] = field(default_factory=dict)

    @property
    def rows_per_batch(self) -> float:
        """Return how full batches get, 1 to 100; 0.0 without rows."""
        return self.rows / self.batches if self.batches else 0.0


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of one kind in one phase.

    Attributes:
        phase: the phase.
        what: what they are for.
        kind: what the service does for each (`rekey.tables.sent`).
        count: how many.
        operations: of batches, the rows in them; 0 of other kinds.
    """

    phase: str
    what: str
    kind: Kind
    count: int
    operations: int = 0


@dataclass(frozen=True, slots=True)
class Duration:
    """How long one phase takes, in seconds, and what bounds it.

    Attributes:
        at_targets_s: at the service's targets: it cannot be quicker.
        at_targets_bound: which of the targets.
        at_limits_s: under the configured limits.
        at_limits_bound: which of them, or of the targets.
    """

    phase: str
    at_targets_s: float
    at_targets_bound: str
    at_limits_s: float
    at_limits_bound: str


@dataclass(frozen=True, slots=True)
class Storage:
    """What is stored while both tables exist, by the documented formula, and for how long.

    Attributes:
        source_bytes: the source: it is there anyway until `retire`.
        target_bytes: all target tables.
        mapping_bytes: the mapping, in the restricted account.
        days: from `apply` to `retire`: the expected duration and the retention period.
    """

    source_bytes: int
    target_bytes: int
    mapping_bytes: int
    days: float

    @property
    def added_bytes(self) -> int:
        """Return what comes on top of the source."""
        return self.target_bytes + self.mapping_bytes


@dataclass(frozen=True, slots=True)
class Money:
    """What a migration costs, in the currency of the configured prices.

    Attributes:
        currency: as it was configured.
        batch_as_one: all requests, a batch billed as one transaction.
        batch_each: all requests, a batch billed as one transaction for each operation in it.
        storage: of what is added while both tables exist.
    """

    currency: str
    batch_as_one: float
    batch_each: float
    storage: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a migration costs.

    Attributes:
        requests: by phase and kind.
        durations: of the phases that take time.
        storage: while both tables exist.
        money: None when prices are missing.
        prices_missing: which keys of `[prices]` are not set.
    """

    requests: tuple[Requests, ...]
    durations: tuple[Duration, ...]
    storage: Storage | None = None
    money: Money | None = None
    prices_missing: tuple[str, ...] = ()

    @property
    def requests_total(self) -> int:
        """Return the number of all requests."""
        return sum(one.count for one in self.requests)


@dataclass(frozen=True, slots=True)
class TableState:
    """Whether a target table exists and holds rows."""

    table: str
    exists: bool
    holds_rows: bool


@dataclass(frozen=True, slots=True)
class Basis:
    """What a plan rests on: whoever applies it later compares this with what is there then.

    Attributes:
        script_id: the migration.
        declaration: digest of the declaration.
        secrets: fingerprints of the secrets by name, never the secrets.
        source: name of the source table.
        source_exists: whether it was there.
        exact: whether the plan was made with `--exact`.
        rows: rows, read or estimated.
        inventory: digest over all rows' ETags and Timestamps when `exact`, else None.
        targets: the target tables, main first.
        advice: warnings and errors on the planned keys: code and severity.
    """

    script_id: str
    declaration: str
    secrets: Mapping[str, str]
    source: str
    source_exists: bool
    exact: bool
    rows: int
    inventory: str | None
    targets: tuple[TableState, ...]
    advice: Mapping[str, Severity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """The plan of one migration.

    Attributes:
        script_id: the script's name.
        path: the script's file.
        title: first line of its docstring, "" without one.
        basis: what the plan rests on.
        inventory: what the source holds, None when it does not exist.
        problems: errors first.
        mapped_rows: rows the mapping was tried on.
        examples: up to five rows.
        refused: rows the mapping refuses, by reason; counted among `mapped_rows`.
        collisions: what two rows map to; None when nothing could be mapped.
        fills: the target tables, main first.
        estimate: requests and durations, None when nothing could be mapped.
        advice: on the planned keys, then on today's.
        queries: how each declared query is answered today and by the planned keys.
        portraits: the tables in figures, the source first.
        loads: load over time, of the source and the main target; empty where no key holds a moment.
    """

    script_id: str
    path: Path
    title: str
    basis: Basis
    inventory: Inventory | None
    problems: tuple[Problem, ...]
    mapped_rows: int = 0
    examples: tuple[Example, ...] = ()
    refused: tuple[RefusedRows, ...] = ()
    collisions: Collisions | None = None
    fills: tuple[TableFill, ...] = ()
    estimate: Estimate | None = None
    advice: tuple[Advice, ...] = ()
    queries: tuple[Rated, ...] = ()
    portraits: tuple[Portrait, ...] = ()
    loads: tuple[Load, ...] = ()

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Return what refuses `apply`: problems, and advice that is an error and not waived."""
        errors = [one for one in self.problems if one.severity is Severity.ERROR]
        errors += [
            Problem(
                one.code,
                Severity.ERROR,
                f"{one.code}: {one.where}: {one.evidence}",
                f'{one.cure}; or set it aside in the script: waive={{"{one.code}": "the reason"}}',
            )
            for one in self.advice
            if one.blocks
        ]
        return tuple(errors)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one or more migrations.

    Attributes:
        made_at: when, UTC, as the service writes times.
        exact: every row was read (`--exact`).
        ids_hold: the safe ids are those of the migration; False: they hold for this plan only.
        shows_keys: keys are shown: for the operator's eyes only.
        migrations: in the order they are applied.
    """

    made_at: str
    exact: bool
    ids_hold: bool
    shows_keys: bool
    migrations: tuple[MigrationPlan, ...] = field(default=())

    @property
    def exit_code(self) -> ExitCode:
        """Return FINDINGS when any migration has an error, else DONE."""
        return ExitCode.FINDINGS if any(one.errors for one in self.migrations) else ExitCode.DONE
