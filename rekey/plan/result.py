"""The frozen values a plan consists of. As JSON they have their fields in order; times are seconds, sizes are
bytes. Only fields named `*_key` or `old_keys` hold keys, when asked for (`--show-keys`): never in a plan
file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from rekey.core.plain import exclude, json_field, members, plain
from rekey.core.severity import Severity
from rekey.declaration.query import Query
from rekey.errors import ExitCode
from rekey.inspect.inventory import Inventory
from rekey.model import EntityKey
from rekey.phases import Phase
from rekey.present.text import counted
from rekey.tables.sent import RequestKind

# What is not known where no account is asked.
NOT_LOOKED_AT = (
    "tables and rows (refused rows, collisions, sizes, time, requests, money, advice on what keys hold)",
    "secrets",
    "the control row: only the state file of this machine tells what has begun",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something the operator should know before applying."""

    code: str
    severity: Severity
    # In words, without keys.
    message: str
    cure: str
    rows: int = 0
    # Safe ids of the first of these rows.
    row_ids: tuple[str, ...] = ()


_TODAY = json_field("keys", form=lambda today: "today" if today else "planned")


def _partitions(listed: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [{"partition_id": name, "rows": rows} for name, rows in listed]


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice."""

    code: str
    severity: Severity
    # The table, and the name of the key if it is about one.
    where: str
    today: bool = field(metadata=_TODAY)
    # Figures; no key.
    evidence: str
    reason: str
    cure: str
    # The script's reason for setting it aside.
    waived: str | None = field(default=None, metadata=exclude)
    # It is about today's keys, and the planned keys do not have it.
    answered: bool = field(default=False, metadata=exclude)

    @property
    def blocks(self) -> bool:
        """Whether `apply` refuses."""
        return self.severity is Severity.ERROR and self.waived is None and not self.today

    def as_json(self) -> dict[str, Any]:
        return {
            **members(self),
            "blocks": self.blocks,
            **({"waived": self.waived} if self.waived is not None else {}),
            **({"answered": True} if self.answered else {}),
        }


class Access(IntEnum):
    """How rows of a query are found, the best first (the four ways of the service's design guide)."""

    POINT = 1
    ROW_RANGE = 2
    PARTITION_RANGE = 3
    TABLE_SCAN = 4

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Answer:
    """How one table answers one query."""

    access: Access
    # About; None where that depends on rows that were not read.
    requests: int | None
    table: str
    # It is an index table: the main rows are read after it.
    through_index: bool = field(default=False, metadata=exclude)

    def describe(self) -> str:
        """Return e.g. `row range, 1 request (PostsByTag, then 20 main rows)`."""
        requests = "" if self.requests is None else f", {counted(self.requests, 'request')}"
        return f"{self.access}{requests}" + (f" by {self.table}" if self.through_index else "")


@dataclass(frozen=True, slots=True)
class Rated:
    """A query, answered by today's keys and by the planned ones."""

    query: Query = field(metadata=json_field(flat=True))
    today: Answer
    planned: Answer


@dataclass(frozen=True, slots=True)
class NewKey:
    """The key one example row gets in one table, by safe id and length (UTF-16 units)."""

    table: str
    row_id: str
    partition_units: int
    row_units: int
    new_key: EntityKey | None = field(default=None, metadata=json_field(key=True))


@dataclass(frozen=True, slots=True)
class Example:
    """One source row and the new keys that its key becomes."""

    row_id: str
    old_key: EntityKey | None = field(default=None, metadata=json_field(key=True))
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
    old_keys: tuple[EntityKey, ...] | None = dataclasses.field(default=None, metadata=json_field(key=True))


@dataclass(frozen=True, slots=True)
class NotMigrated:
    """Rows that no kind takes and that the script drops; ids (and keys if asked for) of the first rows
    only."""

    # The script's reason.
    reason: str
    # Those of the whole table, estimated unless all were read.
    rows: int
    rows_read: int
    row_ids: tuple[str, ...]
    old_keys: tuple[EntityKey, ...] | None = field(default=None, metadata=json_field(key=True))


@dataclass(frozen=True, slots=True)
class CollisionGroup:
    """Source rows that map to one key of one table; ids (and keys if asked for) of the first rows only."""

    table: str
    rows: int
    row_ids: tuple[str, ...]
    old_keys: tuple[EntityKey, ...] | None = field(default=None, metadata=json_field(key=True))


@dataclass(frozen=True, slots=True)
class Collisions:
    """All target keys that more than one source row maps to."""

    keys: int
    rows: int
    exact: bool
    # The first groups by table (main first), at most 20.
    first: tuple[CollisionGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class TableFill:
    """The rows and batches that one target table gets."""

    table: str
    rows: int
    # Requests to write them with, single inserts included. Those of secondary rows count with their main
    # rows.
    batches: int
    partitions: int
    partitions_exact: bool
    largest_partition: int
    # Seconds that its busiest partitions take at 2,000 entities/s.
    hottest_seconds: float = field(metadata=exclude)
    # As the service bills them.
    stored_bytes: int = 0
    # Number of packed batches by the rows in a batch.
    fills: Mapping[int, int] = field(default_factory=dict, metadata=exclude)
    # Of the main target: rows of other kinds in the same batches.
    secondary_rows: int = field(default=0, metadata=json_field(omit_default=True))
    # They are secondary rows: their batches count with the main target's.
    with_main: bool = field(default=False, metadata=json_field(omit_default=True))

    @property
    def table_rows(self) -> int:
        """The rows of all kinds; 0 where they count with the main target's."""
        return 0 if self.with_main else self.rows + self.secondary_rows

    @property
    def rows_per_batch(self) -> float:
        """The mean rows of a batch, 1 to 100; 0.0 without rows."""
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
        first = {"table": self.table, "rows": self.rows, "batches": self.batches}
        return {**first, "rows_per_batch": round(self.rows_per_batch, 2), **members(self)}


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of one kind (`rekey.tables.sent`) in one phase. `operations`: the rows in batches."""

    phase: str
    what: str
    kind: RequestKind
    count: int
    operations: int = field(default=0, metadata=json_field(omit_default=True))


@dataclass(frozen=True, slots=True)
class Duration:
    """How long one phase takes, in seconds, and what bounds it."""

    phase: str
    # At the service's targets; only an adaptive rate limit (`"auto"`) may be quicker.
    at_targets_s: float = field(metadata=json_field(digits=3))
    at_targets_bound: str
    # Under the configured limits.
    at_limits_s: float = field(metadata=json_field(digits=3))
    at_limits_bound: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes stored while both tables exist, by the documented formula."""

    source_bytes: int
    target_bytes: int
    mapping_bytes: int
    # From `apply` to `retire`: the expected duration and the retention period.
    days: float = field(metadata=json_field(digits=2))

    @property
    def added_bytes(self) -> int:
        """The bytes stored in addition to the source."""
        return self.target_bytes + self.mapping_bytes


@dataclass(frozen=True, slots=True)
class Money:
    """What a migration costs, in the currency of the configured prices."""

    currency: str
    # All requests, a batch billed as one transaction.
    batch_as_one: float = field(metadata=json_field("requests_batch_as_one", digits=6))
    # All requests, a batch billed as one transaction for each operation.
    batch_each: float = field(metadata=json_field("requests_batch_each", digits=6))
    # The bytes added while both tables exist.
    storage: float = field(metadata=json_field(digits=6))


# Which rows `apply` tries before the first write: all, a sample, or a sample because it was told so.
EVERY_ROW, SAMPLED, SKIPPED = "every-row", "sample", "skipped"


@dataclass(frozen=True, slots=True)
class Disk:
    """Temporary files of this machine, in bytes."""

    row_check: str
    # To try every row.
    row_check_bytes: int
    # Of a comparison that repairs (capture "delta").
    comparison_bytes: int

    @property
    def needed_bytes(self) -> int:
        """The most that is taken at one time."""
        return max(self.row_check_bytes if self.row_check == EVERY_ROW else 0, self.comparison_bytes)


@dataclass(frozen=True, slots=True)
class OtherAccount:
    """An account of its own that would make a long migration shorter."""

    # The section that names it: `targets` or `restricted`.
    section: str
    # Expected seconds of all phases with it.
    at_limits_s: float = field(metadata=json_field(digits=3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a migration costs. `money` is None when prices of `[prices]` are missing."""

    requests: tuple[Requests, ...]
    storage: Storage
    money: Money | None = None
    prices_missing: tuple[str, ...] = ()
    durations: tuple[Duration, ...]
    mapping_rows: int = 0
    disk: Disk = Disk(SKIPPED, 0, 0)
    other_accounts: tuple[OtherAccount, ...] = field(default=(), metadata=json_field(omit_default=True))

    @property
    def likely_s(self) -> float:
        """Expected seconds of all phases."""
        return sum(duration.at_limits_s for duration in self.durations)

    def takes_s(self, phase: str) -> float:
        """Return the expected seconds of a phase; 0.0 where it has no duration."""
        return sum(duration.at_limits_s for duration in self.durations if duration.phase == phase)

    @property
    def requests_total(self) -> int:
        return sum(request.count for request in self.requests)

    def as_json(self) -> dict[str, Any]:
        known = members(self)
        return {"requests": known["requests"], "requests_total": self.requests_total, **known}


@dataclass(frozen=True, slots=True)
class Portrait:
    """One table in figures."""

    table: str
    today: bool = field(metadata=_TODAY)
    rows: int
    # Number of partitions by class of size, in rows read.
    sizes: Mapping[str, int] = field(metadata=json_field("partitions_by_rows"))
    # The largest partitions by safe id, with their rows.
    largest: tuple[tuple[str, int], ...] = field(metadata=json_field(form=_partitions))
    # For each key, rows by its length: the lower end of a class of 8 characters. Counted, or estimated from
    # the rows read.
    lengths: Mapping[str, Mapping[int, int]] = field(metadata=json_field("key_lengths"))
    # Mean bytes of both keys of a row, at two bytes a UTF-16 unit.
    key_bytes: float = field(metadata=json_field("mean_key_bytes", digits=1))
    # Number of packed batches by the rows in a batch; empty for the source.
    fills: Mapping[int, int] = field(default_factory=dict, metadata=json_field("batches_by_rows"))


@dataclass(frozen=True, slots=True)
class Load:
    """The rows of one table over time: lanes of partitions, columns of time."""

    table: str
    today: bool = field(metadata=_TODAY)
    # The beginnings of the columns, e.g. `2024-03`, also of those without rows.
    times: tuple[str, ...]
    # The partitions with most rows by safe id, with their rows in each column.
    lanes: tuple[tuple[str, tuple[int, ...]], ...] = field(
        metadata=json_field("partitions", form=_partitions)
    )
    # How many partitions have no lane, and their rows in each column.
    others: int = field(metadata=json_field("other_partitions"))
    others_rows: tuple[int, ...]
    partitions_exact: bool
    # For each column, the share of its rows that went to its busiest partition, 0.0 to 1.0.
    busiest: tuple[float, ...] = field(
        metadata=json_field(form=lambda shares: [round(share, 4) for share in shares])
    )


@dataclass(frozen=True, slots=True)
class TableState:
    """Whether a target table exists, and whether it holds rows that are not this migration's."""

    table: str
    exists: bool
    holds_rows: bool


@dataclass(frozen=True, slots=True)
class Basis:
    """What a plan rests on: `apply --plan` compares it with the state at that time."""

    script_id: str
    # Digest of the declaration.
    declaration: str
    # Fingerprints by name, never the secrets.
    secrets: Mapping[str, str]
    source: str
    source_exists: bool
    exact: bool
    rows: int
    # Digest over all rows' ETags and Timestamps when `exact` (`--exact`), else None.
    inventory: str | None
    targets: tuple[TableState, ...]
    # Severity by code of warnings and errors on planned keys.
    advice: Mapping[str, Severity] = field(default_factory=dict)
    # Which part of the source is migrated, in words; "" for the whole table.
    part: str = field(default="", metadata=json_field(omit_default=True))


@dataclass(frozen=True, slots=True)
class KindRows:
    """The source rows of one kind."""

    name: str
    # The condition in words.
    when: str
    # Those of the whole table, estimated unless all were read.
    rows: int
    rows_read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferredRows:
    """Rows that refer to rows of another migration, of those looked at, and whether these are there."""

    # The property with the old key, and the one with the new key.
    name: str = field(metadata=json_field("property"))
    to: str
    via: str
    # The table that was looked into.
    table: str
    rows: int
    rows_looked_up: int
    # Rows that refer to a row that is not there.
    rows_missing: int
    row_ids: tuple[str, ...] = ()
    # Why some were not looked up.
    not_looked_up: str = field(default="", metadata=json_field(omit_default=True))
    # The script refuses references to rows that are not there.
    refuses: bool = False
    # New rows hold the reference in place of the old one.
    removes: bool = field(default=False, metadata=json_field(omit_default=True))
    # Requests that were sent.
    requests: tuple[Requests, ...] = field(default=(), metadata=exclude)


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingResult:
    """The result of mapping the rows of the source."""

    # Rows the mapping was tried on, those refused included.
    mapped_rows: int = 0
    # How many of them, drawn evenly, advice, bytes and examples come from.
    sampled_rows: int = field(default=0, metadata=json_field("rows_looked_at"))
    examples: tuple[Example, ...] = ()
    # None when nothing could be mapped.
    collisions: Collisions | None = None
    refused: tuple[RefusedRows, ...] = ()
    # The target tables, main first.
    fills: tuple[TableFill, ...] = field(default=(), metadata=json_field("targets"))
    # Empty where the script declares no kinds.
    kinds: tuple[KindRows, ...] = field(default=(), metadata=json_field(omit_default=True))
    # None where every row is of a kind, or is refused.
    not_migrated: NotMigrated | None = field(default=None, metadata=json_field(omit_default=True))
    # Of each reference; empty where the script declares none.
    references: tuple[ReferredRows, ...] = field(default=(), metadata=json_field(omit_default=True))


@dataclass(frozen=True, slots=True)
class Figures:
    """What a plan's plots show."""

    portraits: tuple[Portrait, ...] = ()
    # Of the source and the main target; empty where no key holds a moment.
    loads: tuple[Load, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPlan:
    """The plan of one migration."""

    script_id: str
    # First line of the script's docstring.
    title: str
    basis: Basis
    # What the source holds; None when it does not exist.
    inventory: Inventory | None
    mapping: MappingResult = field(default_factory=MappingResult, metadata=json_field(flat=True))
    # None when nothing could be mapped.
    estimate: Estimate | None = None
    figures: Figures = field(default_factory=Figures, metadata=json_field(flat=True))
    problems: tuple[Problem, ...]
    advice: tuple[Advice, ...] = ()
    queries: tuple[Rated, ...] = ()
    group: str = field(default="", metadata=json_field(omit_default=True))
    capture: str = field(metadata=exclude)

    @property
    def sampled(self) -> str:
        """What was counted in some of the rows only; "": all were read."""
        mapping = self.mapping
        if mapping.sampled_rows == mapping.mapped_rows:
            return ""
        rows = f"{mapping.sampled_rows:,} of {mapping.mapped_rows:,} rows"
        return f"advice, bytes and examples come from {rows}, drawn evenly"

    @property
    def kinds(self) -> list[tuple[str, str, str]]:
        """Name, rows and condition of each kind, as text; rows that are not migrated come last."""
        exact = self.inventory is None or self.inventory.exact
        named: list[tuple[str, KindRows | NotMigrated, str]]
        named = [(kind.name, kind, kind.when) for kind in self.mapping.kinds]
        if (left := self.mapping.not_migrated) is not None:
            named.append(("of no kind", left, f"not migrated: {left.reason}"))
        return [
            (name, text if exact else f"about {text}" if rows.rows_read else "none read", when)
            for name, rows, when in named
            for text in [counted(rows.rows, "row")]
        ]

    @property
    def rows_counted(self) -> str:
        """The rows that partitions were counted in: `all 2,000 rows`, `the 30,000 rows read`."""
        rows = counted(self.figures.portraits[0].rows if self.figures.portraits else 0, "row")
        if self.inventory is None or not self.inventory.exact:
            return f"the {rows} read"
        return f"{rows}, the refused ones left out" if self.mapping.refused else f"all {rows}"

    @property
    def rows_weighted(self) -> str:
        """The rows that figures of the whole table were counted in, or estimated from."""
        if self.inventory is None or self.inventory.exact:
            return self.rows_counted
        rows = f"about {counted(self.inventory.rows.rows, 'row')}"
        return f"estimated: {rows}, by {self.rows_counted}, each weighted by the rows it stands for"

    @property
    def errors(self) -> tuple[Problem, ...]:
        """What makes `apply` refuse: problems and unwaived advice on planned keys that are errors."""
        errors = [problem for problem in self.problems if problem.severity is Severity.ERROR]
        for advice in self.advice:
            if advice.blocks:
                message = f"{advice.code}: {advice.where}: {advice.evidence}"
                cure = (
                    f'{advice.cure}; or set it aside in the script: waive={{"{advice.code}": "the reason"}}'
                )
                errors.append(Problem(advice.code, Severity.ERROR, message, cure))
        return tuple(errors)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What a group costs as one."""

    name: str
    members: tuple[str, ...]
    requests: int
    at_limits_s: float = field(metadata=json_field(digits=3))
    # Estimated write downtime: the cutovers of all, under one freeze.
    stop_s: float = field(metadata=json_field(digits=3))
    # Requests and storage, a batch billed as one.
    money: float | None = field(metadata=json_field(digits=6))


def _group_plan(name: str, plans: Sequence[MigrationPlan]) -> GroupPlan:
    costs = [plan.estimate for plan in plans if plan.estimate is not None]
    durations = [duration for cost in costs for duration in cost.durations]
    bills = [cost.money.batch_as_one + cost.money.storage for cost in costs if cost.money is not None]
    return GroupPlan(
        name,
        tuple(plan.script_id for plan in plans),
        sum(cost.requests_total for cost in costs),
        sum(duration.at_limits_s for duration in durations),
        sum(duration.at_limits_s for duration in durations if duration.phase == Phase.CUTOVER),
        sum(bills) if len(bills) == len(plans) else None,
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one or more migrations, in the order they are applied."""

    made_at: str
    exact: bool
    # The safe ids are those of the migrations; False: they are valid for this plan only.
    ids_hold: bool
    # For the operator's eyes only.
    shows_keys: bool
    migrations: tuple[MigrationPlan, ...] = field(default=())
    # No account was asked (`--offline`).
    offline: bool = False

    @property
    def groups(self) -> tuple[GroupPlan, ...]:
        """The groups of which several scripts are planned, all of them estimated; each as one."""
        members: dict[str, list[MigrationPlan]] = {}
        for migration in self.migrations:
            if migration.group:
                members.setdefault(migration.group, []).append(migration)
        known = {name: plans for name, plans in members.items() if all(plan.estimate for plan in plans)}
        return tuple(_group_plan(name, plans) for name, plans in known.items() if len(plans) > 1)

    @property
    def exit_code(self) -> ExitCode:
        """FINDINGS when any migration has an error, else DONE."""
        return ExitCode.FINDINGS if any(migration.errors for migration in self.migrations) else ExitCode.DONE

    def as_json(self, *, keys: bool | None = None) -> dict[str, Any]:
        """Return a plan as JSON-able data. `keys`: False omits keys even if the plan shows them."""
        with_keys = self.shows_keys if keys is None else keys and self.shows_keys
        migrations = plain(self.migrations, keys=with_keys)
        if self.offline:  # what is known without an account: no figure that looks counted
            known = ("script_id", "title", "problems", "advice", "queries")
            migrations = [{name: migration[name] for name in known} for migration in migrations]
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
