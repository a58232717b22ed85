"""The frozen values a plan consists of. A new figure needs a section in `render.py`.

Rules kept here:

* As JSON (`--json`, plan files) they have their fields in order, under their own names or the names that
  `told` gives; times are seconds, sizes are bytes.
* No value holds a key, except fields whose name says so (`*_key`, `old_keys`), which stay None unless the
  operator asked for keys (`--show-keys`); they are never written to a plan file.
* A figure that is an estimate comes with its basis (`Inventory.basis`, `MigrationPlan.mapped_rows`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from rekey.core.plain import UNTOLD, members, plain, told
from rekey.core.severity import Severity
from rekey.declaration.query import Query
from rekey.errors import ExitCode
from rekey.inspect.inventory import Inventory
from rekey.model import EntityKey
from rekey.phases import Phase
from rekey.present.text import counted
from rekey.tables.sent import Kind

# What is not known where no account is asked.
NOT_LOOKED_AT = (
    "tables and rows (refused rows, collisions, sizes, time, requests, money, advice on what keys hold)",
    "secrets",
    "the control row: only the state file of this machine tells what has begun",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something the operator should know before applying.

    Attributes:
        code: stable, for scripts: `source-missing`, `collision`, `row-refused`, ...
        severity: an error makes `apply` refuse or stop.
        message: the problem in words, without keys.
        cure: what to do about it.
        rows: how many rows it concerns, 0 when it is not about rows.
        row_ids: safe ids of the first of these rows.
    """

    code: str
    severity: Severity
    message: str
    cure: str
    rows: int = 0
    row_ids: tuple[str, ...] = ()


_TODAY = told("keys", form=lambda today: "today" if today else "planned")


def _partitions(listed: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [{"partition_id": name, "rows": rows} for name, rows in listed]


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice.

    Attributes:
        code: stable; see `rekey.declaration.requirements`.
        severity: an error refuses `apply` unless it is waived.
        where: the table, and the name of the key it is about, if it is about one.
        today: about today's keys; else about the planned ones.
        evidence: figures that show it; no key.
        reason: why it matters.
        cure: what to do.
        waived: the reason the script gives for setting it aside, None when it does not.
        answered: it is about today's keys, and the planned keys do not have it.
    """

    code: str
    severity: Severity
    where: str
    today: bool = field(metadata=_TODAY)
    evidence: str
    reason: str
    cure: str
    waived: str | None = field(default=None, metadata=UNTOLD)
    answered: bool = field(default=False, metadata=UNTOLD)

    @property
    def blocks(self) -> bool:
        """Tell whether `apply` refuses."""
        return self.severity is Severity.ERROR and self.waived is None and not self.today

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            **members(self),
            "blocks": self.blocks,
            **({"waived": self.waived} if self.waived is not None else {}),
            **({"answered": True} if self.answered else {}),
        }


class Access(IntEnum):
    """How rows of a query are found, the best first."""

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
        access: how the rows are found.
        requests: how many requests it takes, about; None where that depends on rows that were not read.
        table: the table that is queried.
        through_index: that is an index table: the main rows are read after it.
    """

    access: Access
    requests: int | None
    table: str
    through_index: bool = field(default=False, metadata=UNTOLD)

    def describe(self) -> str:
        """Return e.g. `row range, 1 request (PostsByTag, then 20 main rows)`."""
        requests = "" if self.requests is None else f", {counted(self.requests, 'request')}"
        return f"{self.access}{requests}" + (f" by {self.table}" if self.through_index else "")


@dataclass(frozen=True, slots=True)
class Rated:
    """A query, answered by today's keys and by the planned ones."""

    query: Query = field(metadata=told(flat=True))
    today: Answer
    planned: Answer


@dataclass(frozen=True, slots=True)
class NewKey:
    """The key one example row gets in one table, by safe id and length (UTF-16 units)."""

    table: str
    row_id: str
    partition_units: int
    row_units: int
    new_key: EntityKey | None = field(default=None, metadata=told(key=True))


@dataclass(frozen=True, slots=True)
class Example:
    """One source row and the new keys that its key becomes."""

    row_id: str
    old_key: EntityKey | None = field(default=None, metadata=told(key=True))
    new_keys: tuple[NewKey, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Rows that the mapping refuses for one reason; ids (and keys if asked for) of the first rows only."""

    code: str
    field: str
    problem: str
    cure: str
    rows: int
    row_ids: tuple[str, ...]
    old_keys: tuple[EntityKey, ...] | None = dataclasses.field(default=None, metadata=told(key=True))


@dataclass(frozen=True, slots=True)
class CollisionGroup:
    """Source rows that map to one key of one table; ids (and keys if asked for) of the first rows only."""

    table: str
    rows: int
    row_ids: tuple[str, ...]
    old_keys: tuple[EntityKey, ...] | None = field(default=None, metadata=told(key=True))


@dataclass(frozen=True, slots=True)
class Collisions:
    """All target keys that more than one source row maps to.

    Attributes:
        keys: how many target keys.
        rows: how many source rows map to these keys, counted once per key.
        exact: every source row was looked at; otherwise only the rows that were sampled.
        first: the first groups by table (main first), at most 20.
    """

    keys: int
    rows: int
    exact: bool
    first: tuple[CollisionGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class TableFill:
    """The rows and batches that one target table gets.

    Attributes:
        table: its name.
        rows: rows to be written.
        batches: requests to write them with; a single insert counts as one. Those of secondary rows count
            with their main rows.
        partitions: partitions met.
        partitions_exact: whether these are all; otherwise `partitions` and `largest_partition` are lower
            bounds.
        largest_partition: rows of the largest partition.
        hottest_seconds: seconds its hottest partitions take, window after window, at 2,000 entities/s.
        stored_bytes: the bytes that the service will bill for these rows.
        fills: the batches that were packed: their number by the rows in a batch.
        secondary_rows: of the main target: the rows of other kinds that go in the same batches.
        with_main: they are secondary rows, and their batches count with the main target's.
    """

    table: str
    rows: int
    batches: int
    partitions: int
    partitions_exact: bool
    largest_partition: int
    hottest_seconds: float = field(metadata=UNTOLD)
    stored_bytes: int = 0
    fills: Mapping[int, int] = field(default_factory=dict, metadata=UNTOLD)
    secondary_rows: int = field(default=0, metadata=told(if_any=True))
    with_main: bool = field(default=False, metadata=told(if_any=True))

    @property
    def table_rows(self) -> int:
        """Return the rows of all kinds; 0 where they count with the main target's."""
        return 0 if self.with_main else self.rows + self.secondary_rows

    @property
    def rows_per_batch(self) -> float:
        """Return the mean rows of a batch, 1 to 100; 0.0 without rows."""
        return self.table_rows / self.batches if self.batches else 0.0

    def describe(self) -> str:
        """Return e.g. `20 rows in 2 batches, 10 rows on average, 4 partitions, the largest of 6 rows`."""
        at_least = "" if self.partitions_exact else "at least "
        rows = f"{counted(self.rows, 'row')} with the main rows"
        if not self.with_main:
            rows = f"{counted(self.rows, 'row')} in {counted(self.batches, 'batch', 'batches')}"
            if self.batches > 1:
                rows += f", {self.rows_per_batch:.1f}".removesuffix(".0") + " rows on average"
        partitions = f"{at_least}{counted(self.partitions, 'partition')}"
        return f"{rows}, {partitions}, the largest of {at_least}{counted(self.largest_partition, 'row')}"

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        first = {"table": self.table, "rows": self.rows, "batches": self.batches}
        return {**first, "rows_per_batch": round(self.rows_per_batch, 2), **members(self)}


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of one kind in one phase.

    Attributes:
        phase: the phase.
        what: what they are for.
        kind: what each asks of the service (`rekey.tables.sent`).
        count: how many.
        operations: of batches, the rows in them; 0 for other kinds.
    """

    phase: str
    what: str
    kind: Kind
    count: int
    operations: int = field(default=0, metadata=told(if_any=True))


@dataclass(frozen=True, slots=True)
class Duration:
    """How long one phase takes, in seconds, and what bounds it.

    Attributes:
        at_targets_s: at the service's targets: only rates that follow the service (`"auto"`) may be quicker.
        at_targets_bound: the target that bounds it.
        at_limits_s: under the configured limits.
        at_limits_bound: the limit or target that bounds it.
    """

    phase: str
    at_targets_s: float = field(metadata=told(digits=3))
    at_targets_bound: str
    at_limits_s: float = field(metadata=told(digits=3))
    at_limits_bound: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes stored while both tables exist, by the documented formula, and for how long.

    Attributes:
        source_bytes: the source, which exists until `retire` in any case.
        target_bytes: all target tables.
        mapping_bytes: the mapping, in the restricted account.
        days: from `apply` to `retire`: the expected duration and the retention period.
    """

    source_bytes: int
    target_bytes: int
    mapping_bytes: int
    days: float = field(metadata=told(digits=2))

    @property
    def added_bytes(self) -> int:
        """Return the bytes stored in addition to the source."""
        return self.target_bytes + self.mapping_bytes


@dataclass(frozen=True, slots=True)
class Money:
    """What a migration costs, in the currency of the configured prices.

    Attributes:
        currency: as it was configured.
        batch_as_one: all requests, a batch billed as one transaction.
        batch_each: all requests, a batch billed as one transaction for each operation in it.
        storage: the bytes added while both tables exist.
    """

    currency: str
    batch_as_one: float = field(metadata=told("requests_batch_as_one", digits=6))
    batch_each: float = field(metadata=told("requests_batch_each", digits=6))
    storage: float = field(metadata=told(digits=6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a migration costs.

    Attributes:
        requests: requests by phase, purpose and kind.
        storage: bytes stored while both tables exist.
        money: None when prices are missing.
        prices_missing: which keys of `[prices]` are not set.
        durations: durations of the phases that take time.
    """

    requests: tuple[Requests, ...]
    storage: Storage
    money: Money | None = None
    prices_missing: tuple[str, ...] = ()
    durations: tuple[Duration, ...]

    @property
    def requests_total(self) -> int:
        """Return the number of all requests."""
        return sum(one.count for one in self.requests)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        known = members(self)
        return {"requests": known["requests"], "requests_total": self.requests_total, **known}


@dataclass(frozen=True, slots=True)
class Portrait:
    """One table in figures.

    Attributes:
        table: its name.
        today: the source as it is; else a table that the migration fills.
        rows: source rows that were looked at.
        sizes: number of partitions by class of size, in rows that were looked at.
        largest: the largest partitions by safe id, with their rows.
        lengths: for each key the number of rows of the table by its length: by the lower end of a class of 8
            characters. Counted, or estimated from the rows looked at; as is `key_bytes`.
        key_bytes: mean bytes of both keys of a row, at two bytes a UTF-16 unit.
        fills: the batches that were packed: their number by the rows in a batch; empty for the source.
    """

    table: str
    today: bool = field(metadata=_TODAY)
    rows: int
    sizes: Mapping[str, int] = field(metadata=told("partitions_by_rows"))
    largest: tuple[tuple[str, int], ...] = field(metadata=told(form=_partitions))
    lengths: Mapping[str, Mapping[int, int]] = field(metadata=told("key_lengths"))
    key_bytes: float = field(metadata=told("mean_key_bytes", digits=1))
    fills: Mapping[int, int] = field(default_factory=dict, metadata=told("batches_by_rows"))


@dataclass(frozen=True, slots=True)
class Load:
    """The rows of one table over time: lanes of partitions, columns of time.

    Attributes:
        table: its name.
        today: the source; else a table that the migration fills.
        times: the beginnings of the columns, e.g. `2024-03`, one after the other, also those of no row.
        lanes: the partitions with most rows by safe id, with their rows in each column.
        others: how many partitions have no lane.
        others_rows: the rows that are in no lane, in each column; with the lanes all rows of the table.
        partitions_exact: partitions were few enough to count each; otherwise lanes, `others` and `busiest`
            are lower bounds.
        busiest: for each column, the share of its rows that went to its busiest partition, 0.0 to 1.0.
    """

    table: str
    today: bool = field(metadata=_TODAY)
    times: tuple[str, ...]
    lanes: tuple[tuple[str, tuple[int, ...]], ...] = field(metadata=told("partitions", form=_partitions))
    others: int = field(metadata=told("other_partitions"))
    others_rows: tuple[int, ...]
    partitions_exact: bool
    busiest: tuple[float, ...] = field(metadata=told(form=lambda shares: [round(one, 4) for one in shares]))


@dataclass(frozen=True, slots=True)
class TableState:
    """Whether a target table exists, and whether it holds rows that are not this migration's."""

    table: str
    exists: bool
    holds_rows: bool


@dataclass(frozen=True, slots=True)
class Basis:
    """What a plan rests on: `apply --plan` compares it with the state at that time.

    Attributes:
        script_id: the migration.
        declaration: digest of the declaration.
        secrets: fingerprints of the secrets by name, never the secrets.
        source: name of the source table.
        source_exists: whether it was there.
        exact: whether the plan was made with `--exact`.
        rows: rows of the source, read or estimated.
        inventory: digest over all rows' ETags and Timestamps when `exact`, else None.
        targets: the target tables, main first.
        advice: warnings and errors on the planned keys: severity by code.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPlan:
    """The plan of one migration.

    Attributes:
        script_id: the script's name.
        path: the script's file.
        title: first line of its docstring, "" without one.
        basis: what the plan rests on.
        inventory: what the source holds, None when it does not exist.
        mapped_rows: rows the mapping was tried on.
        looked_at: how many of them, drawn evenly, advice, bytes and examples come from.
        examples: up to five rows.
        collisions: target keys that several rows map to; None when nothing could be mapped.
        refused: rows the mapping refuses, by reason; counted among `mapped_rows`.
        fills: the target tables, main first.
        estimate: requests, durations, storage and money, None when nothing could be mapped.
        portraits: the tables in figures, the source first.
        loads: load over time, of the source and the main target; empty where no key holds a moment.
        problems: errors first.
        advice: on the planned keys, then on today's.
        queries: how each declared query is answered today and by the planned keys.
        group: the migration's group, "" without one.
        capture: how changes are followed.
    """

    script_id: str
    path: Path = field(metadata=UNTOLD)
    title: str
    basis: Basis
    inventory: Inventory | None
    mapped_rows: int = 0
    looked_at: int = field(default=0, metadata=told("rows_looked_at"))
    examples: tuple[Example, ...] = ()
    collisions: Collisions | None = None
    refused: tuple[RefusedRows, ...] = ()
    fills: tuple[TableFill, ...] = field(default=(), metadata=told("targets"))
    estimate: Estimate | None = None
    portraits: tuple[Portrait, ...] = ()
    loads: tuple[Load, ...] = ()
    problems: tuple[Problem, ...]
    advice: tuple[Advice, ...] = ()
    queries: tuple[Rated, ...] = ()
    group: str = field(default="", metadata=told(if_any=True))
    capture: str = field(metadata=UNTOLD)

    @property
    def sampled(self) -> str:
        """Return what was counted in some of the rows only; "" where all were looked at."""
        if self.looked_at == self.mapped_rows:
            return ""
        rows = f"{self.looked_at:,} of {self.mapped_rows:,} rows"
        return f"advice, bytes and examples come from {rows}, drawn evenly"

    @property
    def rows_counted(self) -> str:
        """Return the rows that partitions were counted in: `all 2,000 rows`, `the 30,000 rows read`."""
        rows = counted(self.portraits[0].rows if self.portraits else 0, "row")
        if self.inventory is None or not self.inventory.exact:
            return f"the {rows} read"
        return f"{rows}, the refused ones left out" if self.refused else f"all {rows}"

    @property
    def rows_weighted(self) -> str:
        """Return the rows that figures of the whole table were counted in, or estimated from."""
        if self.inventory is None or self.inventory.exact:
            return self.rows_counted
        rows = f"about {counted(self.inventory.rows.rows, 'row')}"
        return f"estimated: {rows}, by {self.rows_counted}, each weighted by the rows it stands for"

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Return what makes `apply` refuse: problems that are errors, and advice that is an error on planned
        keys and not waived."""
        errors = [one for one in self.problems if one.severity is Severity.ERROR]
        for one in self.advice:
            if one.blocks:
                message = f"{one.code}: {one.where}: {one.evidence}"
                cure = f'{one.cure}; or set it aside in the script: waive={{"{one.code}": "the reason"}}'
                errors.append(Problem(one.code, Severity.ERROR, message, cure))
        return tuple(errors)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What a group costs as one.

    Attributes:
        name: the group.
        members: ids of the planned scripts.
        requests: of all of them.
        at_limits_s: seconds for all phases of all, one after the other.
        stop_s: those of them for which writers stand still, once for the whole group: the cutovers.
        money: requests and storage, a batch billed as one; None when prices are missing.
    """

    name: str
    members: tuple[str, ...]
    requests: int
    at_limits_s: float = field(metadata=told(digits=3))
    stop_s: float = field(metadata=told(digits=3))
    money: float | None = field(metadata=told(digits=6))


def _summed(name: str, plans: Sequence[MigrationPlan]) -> GroupPlan:
    costs = [one.estimate for one in plans if one.estimate is not None]
    durations = [duration for one in costs for duration in one.durations]
    bills = [one.money.batch_as_one + one.money.storage for one in costs if one.money is not None]
    return GroupPlan(
        name,
        tuple(one.script_id for one in plans),
        sum(one.requests_total for one in costs),
        sum(one.at_limits_s for one in durations),
        sum(one.at_limits_s for one in durations if one.phase == Phase.CUTOVER),
        sum(bills) if len(bills) == len(plans) else None,
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one or more migrations.

    Attributes:
        made_at: when it was made, UTC, as the service writes times.
        exact: every row was read (`--exact`).
        ids_hold: the safe ids are those of the migrations; False: they are valid for this plan only.
        shows_keys: keys are shown: for the operator's eyes only.
        migrations: in the order they are applied.
        offline: no account was asked (`--offline`): only declarations were looked at.
    """

    made_at: str
    exact: bool
    ids_hold: bool
    shows_keys: bool
    migrations: tuple[MigrationPlan, ...] = field(default=())
    offline: bool = False

    @property
    def groups(self) -> tuple[GroupPlan, ...]:
        """The groups of which several scripts are planned, all of them estimated; each as one."""
        members: dict[str, list[MigrationPlan]] = {}
        for one in self.migrations:
            if one.group:
                members.setdefault(one.group, []).append(one)
        known = {name: plans for name, plans in members.items() if all(one.estimate for one in plans)}
        return tuple(_summed(name, plans) for name, plans in known.items() if len(plans) > 1)

    @property
    def exit_code(self) -> ExitCode:
        """Return FINDINGS when any migration has an error, else DONE."""
        return ExitCode.FINDINGS if any(one.errors for one in self.migrations) else ExitCode.DONE

    def as_json(self, *, keys: bool | None = None) -> dict[str, Any]:
        """Return a plan as JSON-able data.

        Args:
            keys: False leaves keys out; otherwise they are in it when the plan shows keys.
        """
        with_keys = self.shows_keys if keys is None else keys and self.shows_keys
        migrations = plain(self.migrations, keys=with_keys)
        if self.offline:  # what is known without an account: no figure that looks as if it had been counted
            known = ("script_id", "title", "problems", "advice", "queries")
            migrations = [{name: one[name] for name in known} for one in migrations]
        return {
            "made_at": self.made_at,
            "exact": self.exact,
            "ids_hold": self.ids_hold,
            "shows_keys": with_keys,
            "exit_code": int(self.exit_code),
            "migrations": migrations,
            **({"groups": plain(self.groups)} if self.groups else {}),
            **({"not_looked_at": NOT_LOOKED_AT} if self.offline else {}),
        }
