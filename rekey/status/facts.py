"""All that is known of one migration, and reading it without a lock, a lease or a write, also while a runner
is at work. What could not be read is unknown, never guessed. Nothing here holds a key, except segments, whose
keys no repr shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rekey.core.clock import TICKS_PER_SECOND, Clock, format_ticks, ticks_of
from rekey.core.joint import names_in, spoken
from rekey.core.plain import exclude, json_field
from rekey.core.processes import is_running
from rekey.declaration.migration import Declared
from rekey.errors import RekeyError, ServiceError, TableBeingDeleted, TableMissing
from rekey.mapping.rows import CONTROL_TABLE, JOURNAL_TABLE, MAPPING_TABLE, Cohort
from rekey.mapping.store import cohorts_kept
from rekey.phases import FOLLOWED, ControlPhase, Phase
from rekey.present.text import differing
from rekey.project.config import Config, Gates
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.journal import IntentAge, Journal
from rekey.protocol.lease import Holder, ends_at, holder_of, lease_key
from rekey.protocol.lease import is_over as lease_is_over
from rekey.protocol.opening import Prepared, is_ours, name_taken, open_migration, secrets_refused
from rekey.protocol.references import referring_controls
from rekey.protocol.registry import (
    ClientRow,
    Registry,
    Standing,
    is_current,
    is_over,
    over_at,
    settlers,
    standing,
)
from rekey.protocol.rules import is_settled_by_clients
from rekey.protocol.sweeper import Company
from rekey.state.applied import aligned, applied_phases, handover
from rekey.state.audit import EVIDENCE_VERIFIED, HANDED_OVER, AuditEvent, erasures
from rekey.state.filelock import has_ended
from rekey.state.models import BACKFILL, MigrationRecord, PhaseRun, Segment, Verification
from rekey.state.store import State
from rekey.status.pulse import Pulse
from rekey.status.pulse import read as read_pulse
from rekey.status.reasons import reason
from rekey.tables.base import Accounts, TableService

# Fact: the number of the last full verification at `complete`, where index tables are maintained.
COMPLETED_AFTER = "completed_after"
# Fact: the number of the last full verification when a rollback from cutover last began.
RETURNED_AFTER = "returned_after"
# Fact of versions before 0.2: the same as a time, by the clock of some machine. It cannot tell which
# verifications are newer; the next full verification removes it.
RETURNED_AT = "returned_at"
# Fact: how many rows the source has, as planned before the first write.
ESTIMATED_ROWS = "estimated_rows"
# Fact: the number of the last full verification that was made while no client was registered.
UNFOLLOWED = "unfollowed"
# Fact: how many rows an unfinished full verification has seen to differ; None: none yet.
DIFFERING_SO_FAR = "differing_so_far"
# Fact: the number of the last full verification and the `change_id` of the control row that it began under;
# None where that was "".
VERIFIED_UNDER = "verified_under"
# Fact: until when, by the service's clock, requests of clients that were given up when dual writes began may
# take effect. They have no intent.
LATE_UNTIL = "late_until"
# Fact: since when `apply --follow` follows, and why its last cutover was refused; JSON.
FOLLOWING = "following"
# Fact: when index rows were last compared with main rows after the handover, and how many differed, as JSON.
INDEXES_VERIFIED = "indexes_verified"

# For intents that do not record how long their write may be in flight, of clients without a row.
_LONGEST_OPERATION_S = 30.0


@dataclass(frozen=True, slots=True)
class Lease:
    """The runner lease as read."""

    host: str
    pid: int
    # Unless it is renewed; by the service's clock.
    ends_at: str = field(metadata=json_field("lease_ends_at"))
    # It has not ended, and its process is not known to have ended.
    live: bool
    # Its process is known to have ended without giving it back.
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Unsettled intents whose client sends no heartbeat any more: one of the live clients settles them."""

    intents: int
    # Of how many clients.
    clients: int
    # When the oldest was made; ticks.
    since: int = field(metadata=json_field(form=format_ticks))
    # When all may be settled, because no request of their clients can take effect; ticks of the service's
    # clock.
    due_at: int = field(metadata=json_field(form=format_ticks))


@dataclass(frozen=True, slots=True)
class Intents:
    """The intents in the journal: of writes in flight, and of keys whose replicas may not be current."""

    # Unsettled ones.
    depth: int
    oldest_at: int | None = field(metadata=json_field(form=format_ticks))
    # Settled ones, kept while requests of their client may still take effect.
    kept: int = 0
    abandoned: Abandoned | None = field(default=None, metadata=json_field(omit_default=True))


@dataclass(frozen=True, slots=True)
class Indexes:
    """The index tables and kinds of secondary rows, and who maintains their rows now."""

    tables: tuple[str, ...]
    # `rekey` (its clients, or the runner) or `application`.
    maintained_by: str
    # When the application took over, by the service's clock.
    since: str | None = None
    # The last comparison with the main rows since then, and how many rows differed.
    compared_at: str | None = None
    differing: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A script and the phase it must reach before another can begin. `cli_selector`: as of
    `Declared`, for the command that takes it there."""

    script_id: str
    phase: Phase
    cli_selector: str = field(default="", compare=False, metadata=exclude)


@dataclass(frozen=True, slots=True)
class StateFacts:
    """What the state file says of one migration."""

    # The ledger's phases, in order; `Facts.phases` are those that count.
    applied: tuple[Phase, ...] = ()
    # Oldest first.
    runs: tuple[PhaseRun, ...] = ()
    # Of the backfill.
    segments: tuple[Segment, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    # The last full one.
    verification: Verification | None = None
    waits_for: tuple[Wait, ...] = ()
    # The id under which it has begun, if this script has not (`begun_as`).
    begun_as: str = ""
    events: tuple[AuditEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What the restricted store says of one migration."""

    # None: there is none, or it could not be read.
    control: ControlRow | None = None
    # None: it is free.
    lease: Lease | None = None
    # Why commands that map rows refuse it, for its secrets or its wrapping key.
    refused: RekeyError | None = None
    # Why the service could not be asked.
    unreachable: str = ""
    # That another project's migration has the same id in the restricted store.
    taken: str = ""
    # Names of tables that the migration depends on and that do not exist.
    missing: tuple[str, ...] = ()
    # Clients with a row in the registry (capture "dual-write"); `ended`: counters of those without one, by
    # name.
    clients: tuple[ClientRow, ...] = ()
    ended: Mapping[str, int] = field(default_factory=dict)
    # Of the journal (capture "dual-write"); None: it was not read.
    intents: Intents | None = None
    # Of the mapping, once the migration is complete.
    cohorts: tuple[Cohort, ...] = ()
    # Migrations in progress that look keys up in the mapping, if its retention is over: it stays for them.
    needed_by: tuple[str, ...] = ()
    # With index tables, once it is over: later migrations that have moved rows of its targets on, so that
    # index rows are not compared with them any more.
    moved_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts of one migration."""

    # The script as it is now.
    declared: Declared
    gates: Gates
    # Ticks of the service's clock; of this machine's when the service could not be asked.
    now: int
    state: StateFacts = StateFacts()
    store: StoreFacts = StoreFacts()
    # The operator has paused all copying with this state file.
    paused: bool = False
    # What the runner on this machine is doing.
    pulse: Pulse | None = None
    # When the window in which `apply --follow` cuts over by itself opens (or opened) and closes; ticks.
    window: tuple[int, int] | None = None

    @property
    def script_id(self) -> str:
        return self.declared.script_id

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that count as applied: the ledger's, aligned with the control row except in a freeze."""
        if self.store.control is None or self.store.control.phase is ControlPhase.FREEZE:
            return self.state.applied
        return aligned(self.store.control.phase, self.state.applied)

    @property
    def last_done(self) -> str:
        """The last phase that is done, in words for people."""
        return f"{self.declared.migration.shown(self.phases[-1])} done" if self.phases else "not begun"

    @property
    def is_delta(self) -> bool:
        return self.declared.migration.capture == "delta"

    @property
    def at_work(self) -> bool:
        """Whether a runner works on the migration; by its pulse where the lease could not be read."""
        return (
            self.pulse is not None
            if self.store.unreachable
            else self.store.lease is not None and self.store.lease.live
        )

    @property
    def live_clients(self) -> tuple[ClientRow, ...]:
        """Clients whose requests may still take effect. One that was killed leaves its row."""
        return tuple(row for row in self.store.clients if not is_over(row, self.now))

    @property
    def clients_behind(self) -> tuple[ClientRow, ...]:
        """Live clients that have not acknowledged the control row's epoch."""
        return tuple(row for row in self.live_clients if not self.is_current(row))

    @property
    def settlers(self) -> tuple[ClientRow, ...]:
        """The clients that settle what others abandoned, in the order in which they begin."""
        return tuple(settlers(self.store.clients, self.now)) if self.clients_settle else ()

    @property
    def clients_settle(self) -> bool:
        """Whether live clients settle what dead ones left."""
        phase = None if self.store.control is None else self.store.control.phase
        return is_settled_by_clients(phase, reverse=self.declared.migration.reverse)

    def is_current(self, row: ClientRow) -> bool:
        """Tell whether a client has acknowledged the control row's epoch; True without a control row."""
        control = self.store.control
        return control is None or is_current(row, control.run_id, control.epoch)

    @property
    def source(self) -> str:
        return self.declared.migration.source

    @property
    def target(self) -> str:
        """The main target table's name for people."""
        return spoken(self.declared.migration.tables[0])

    @property
    def retention_ends_at(self) -> int | None:
        """When the retention period ends, in ticks; None unless the control phase is `complete`, and before
        the handover while clients maintain index tables."""
        control = self.store.control
        if control is None or control.phase is not ControlPhase.COMPLETE:
            return None
        if control.ended_at is None:
            return None
        return ticks_of(control.ended_at) + round(self.gates.retention_s * TICKS_PER_SECOND)

    @property
    def indexes_verified(self) -> tuple[str, int] | None:
        """When index rows were last compared after the handover, and how many differed; None: never."""
        text = self.state.facts.get(INDEXES_VERIFIED)
        verified = None if text is None else json.loads(text)
        return None if verified is None else (str(verified["at"]), int(verified["divergences"]))

    @property
    def indexes(self) -> Indexes | None:
        """The index tables, and who maintains them; None where there are none, or nothing was written yet."""
        control, tables = self.store.control, self.declared.migration.index_labels
        if control is None or not tables:
            return None
        phase = control.phase
        is_theirs = control.ended_at is not None or (self.is_delta and phase is ControlPhase.CUTOVER)
        if not is_theirs:
            return Indexes(tables, "rekey")
        since = control.cutover_at if self.is_delta else control.handed_over_at or control.completed_at
        at, differing = self.indexes_verified or (None, None)
        return Indexes(tables, "application", since, at, differing)

    @property
    def due(self) -> tuple[Cohort, ...]:
        """Cohorts whose retention is over and that are not erased yet."""
        return tuple(cohort for cohort in self.store.cohorts if cohort.is_due(self.now))

    @property
    def proved(self) -> bool:
        """Whether the evidence that `retire` asks for was exported and verified."""
        return is_proved(self.state.events)

    @property
    def erasing(self) -> tuple[AuditEvent, ...]:
        """The events of erasures that were begun and not ended."""
        return erasures(self.state.events).open

    def since(self, moment: str) -> float:
        """Return the seconds since a time of the service's clock, at least 0."""
        return max(0.0, round((self.now - ticks_of(moment)) / TICKS_PER_SECOND, 1))


def waits(script: Declared, scripts: Mapping[str, Declared], ledger_ids: Iterable[str]) -> tuple[Wait, ...]:
    """Return the scripts that a script waits for before it can begin, as the ledger does."""
    ids = set(ledger_ids)
    if applied_phases(ids, script.script_id):
        return ()
    needed = [
        Wait(depend, handover(scripts[depend], script), scripts[depend].cli_selector)
        for depend in sorted(script.depends)
    ]
    return tuple(wait for wait in needed if wait.phase not in applied_phases(ids, wait.script_id))


def begun_as(declared: Declared, scripts: Mapping[str, Declared], records: Iterable[MigrationRecord]) -> str:
    """Return the id of a begun migration whose file is gone and that a script which has not begun resembles,
    by its declaration or by a table that both fill; "": none. `scripts` includes those kept in the state
    file; `records` are all begun ones."""
    renamed_from = ""
    for record in records:
        if record.script_id == declared.script_id:
            return ""
        other = scripts.get(record.script_id)
        shares = other is not None and other.is_kept and declared.collides_in(other)
        if shares or (other is None and record.digest == declared.digest):
            renamed_from = record.script_id
    return renamed_from


def verification_problem(
    last: Verification | None,
    facts: Mapping[str, str],
    *,
    now: int,
    gates: Gates,
    control: ControlRow | None,
    writers_stopped: bool = False,
) -> str:
    """Return why the last full verification keeps the gate before cutover closed; "": it opens it.

    Args:
        last: the last full verification.
        facts: small facts of the state file.
        now: ticks of the service's clock, by which verifications are timed.
        gates: how old the verification may be.
        control: the control row; None where it is gone or not known.
        writers_stopped: the operator confirmed that no application writes: no client needed to be registered.
    """
    if last is None:
        return reason("not-verified")
    if last.divergences:
        return reason("rows-differ", rows=differing(last.divergences, " that "))
    returned = RETURNED_AFTER in facts and last.number <= int(facts[RETURNED_AFTER])
    if returned or (RETURNED_AT in facts and RETURNED_AFTER not in facts):
        return reason("not-verified-since-return")
    if control is not None and control.change_id != change_covered(last, facts):
        return reason("changed-since")
    late_until = facts.get(LATE_UNTIL)
    if late_until is not None and ticks_of(last.started_at) < ticks_of(late_until):
        return reason("client-given-up", until=late_until)
    if is_unfollowed(last, facts) and not writers_stopped:
        return reason("verified-unfollowed")
    # From its first row: a write beside it may have come behind any row that it read since.
    if now - ticks_of(last.started_at) > gates.max_age_s(took_s(last)) * TICKS_PER_SECOND:
        return reason("verification-too-old", at=last.started_at)
    return ""


def handover_problem(
    last: Verification | None,
    facts: Mapping[str, str],
    *,
    now: int,
    gates: Gates,
    control: ControlRow | None,
) -> str:
    """Return why the last full verification keeps the handover closed; "": it opens it. Arguments as of
    `verification_problem`; no client needs to have been registered."""
    problem = verification_problem(last, facts, now=now, gates=gates, control=control, writers_stopped=True)
    if problem or last is None:
        return problem
    # The state file has the number where its machine completed the migration; where another did, the times
    # tell, by the clocks of two accounts.
    completed_at = None if control is None else control.completed_at
    is_older = completed_at is not None and ticks_of(last.started_at) < ticks_of(completed_at)
    if is_older or last.number <= int(facts.get(COMPLETED_AFTER, 0)):
        return reason("not-verified-since-complete")
    return ""


def took_s(last: Verification) -> float:
    """Return the seconds a full verification worked; 0.0 for a record that does not say."""
    if worked_s := last.report.get("took_s"):
        return float(worked_s)
    # Of an earlier version, with its pauses.
    readings = [(read["sitting"], read["begun_at"], read["ended_at"]) for read in last.report.get("read", ())]
    if not readings:
        return 0.0
    return seconds_read([*readings, (max(readings)[0], last.finished_at, last.finished_at)])


def seconds_read(readings: Iterable[tuple[int, str, str]]) -> float:
    """Return the seconds from first to last row of each sitting, added up; between sittings no time counts.
    `readings`: sitting, begin and end of each."""
    sittings: dict[int, list[int]] = {}
    for sitting, *times in readings:
        sittings.setdefault(sitting, []).extend(map(ticks_of, times))
    return sum(max(times) - min(times) for times in sittings.values()) / TICKS_PER_SECOND


def planned_s(plan: str | None) -> float:
    """Return the seconds that a full verification is expected to take by a stored plan; 0.0: unknown."""
    try:
        [migration] = json.loads(plan or "")["plan"]["migrations"]
        durations = {each["phase"]: each["at_limits_s"] for each in migration["estimate"]["durations"]}
        return float(durations[Phase.RECONCILE])
    except (ValueError, KeyError, TypeError):
        return 0.0


def change_covered(last: Verification | None, facts: Mapping[str, str]) -> str:
    """Return the control row's `change_id` that the last full verification began under."""
    number, _, change_id = facts.get(VERIFIED_UNDER, "").partition(" ")
    return change_id if last is not None and number == str(last.number) else ""


def is_unfollowed(last: Verification, facts: Mapping[str, str]) -> bool:
    """Tell whether a full verification was made while no client was registered."""
    return UNFOLLOWED in facts and last.number <= int(facts[UNFOLLOWED])


def is_proved(events: Iterable[AuditEvent]) -> bool:
    """Tell whether a signed bundle that was exported after `complete` was verified on this machine. `events`:
    those of one migration, in order."""
    # A bundle from before `complete` does not show how the migration ended. Where the log does not hold the
    # completion (the state file was lost since), every bundle in it was exported later.
    completed, proved = 0, False
    for event in events:
        is_end = event.event == "phase-done" and event.details.get("phase") == Phase.COMPLETE
        if is_end or event.event == HANDED_OVER:
            completed, proved = event.seq, False
        if event.event == EVIDENCE_VERIFIED and event.details["signed"]:
            proved = proved or event.details["exported"] > completed
    return proved


# --- reading -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the facts of migrations are read."""

    config: Config
    # All scripts, by id.
    scripts: Mapping[str, Declared]
    # Open for reading at least.
    state: State
    accounts: Accounts
    # This machine's clock, used when the service cannot be asked.
    clock: Clock


async def read_facts(
    sources: Sources, declared: Declared, *, paused: bool = False, at_end: bool = False
) -> Facts:
    """Collect the facts of one migration.

    Args:
        sources: where they are read.
        declared: the migration.
        paused: see `Facts`.
        at_end: the runner of this process is about to end, and does not count.

    Raises:
        StateUnusable: the state file, the control row or a client's row cannot be read.
    """
    config, script_id = sources.config, declared.script_id
    now, store = await _read_store(sources, declared, at_end=at_end)
    pulse = None if at_end or has_ended(config.state) else read_pulse(config.state, sources.clock.ticks())
    if pulse is not None and (pulse.script_id != script_id or (store.lease and not store.lease.live)):
        pulse = None
    return Facts(
        declared=declared,
        gates=config.gates,
        now=now,
        state=_read_state(sources, declared),
        store=store,
        paused=paused,
        pulse=pulse,
        window=None if config.follow.window is None else config.follow.window.next(now),
    )


def _read_state(sources: Sources, declared: Declared) -> StateFacts:
    state, script_id = sources.state, declared.script_id
    ids = state.ledger_ids()
    return StateFacts(
        applied=tuple(applied_phases(ids, script_id)),
        runs=tuple(state.phase_runs(script_id)),
        segments=tuple(state.segments(script_id, BACKFILL, keys=False)),
        facts=state.facts(script_id),
        verification=state.latest_verification(script_id, mode="full"),
        waits_for=waits(declared, sources.scripts, ids),
        begun_as=begun_as(declared, sources.scripts, state.migrations()),
        events=tuple(state.audit_events(script_id)),
    )


async def _read_store(sources: Sources, declared: Declared, *, at_end: bool) -> tuple[int, StoreFacts]:
    """Return the time in ticks, by the service's clock if it answers, and what the restricted store says."""
    migration, script_id = declared.migration, declared.script_id
    restricted, store = sources.accounts.restricted, StoreFacts()
    prepared, record = Prepared.of(sources.config, declared), sources.state.migration(script_id)
    now = sources.clock.ticks()
    try:
        control = await ControlStore(restricted, script_id, migration.group).read()
        server_time = await restricted.server_time()
        now = ticks_of(server_time)
        if control is not None and not is_ours(prepared, control, record.run_id if record else None):
            # So are its clients, journal and runner.
            return now, replace(store, taken=name_taken(script_id, control))
        lease = await _lease(restricted, script_id, server_time, not_ours=at_end)
        store = replace(store, control=control, lease=lease)
        if control is not None:
            try:
                missing = await _missing(declared, sources.scripts, control.phase, sources.accounts)
                store = replace(store, missing=missing)
            except ServiceError as error:
                unreachable = f"whether its tables exist could not be asked: {error.what}"
                store = replace(store, unreachable=unreachable)
        if control is not None and control.ended_at is not None and migration.indexes:
            store = replace(store, moved_by=await _moved_by(sources, declared, control))
        if migration.capture == "dual-write":
            registry = Registry(restricted, script_id)
            clients, ended = await registry.list(), await registry.ended()
            store = replace(store, clients=tuple(clients), ended=ended)
            store = replace(store, intents=await _intents(restricted, script_id, clients, now))
        if MAPPING_TABLE not in store.missing:
            ended_at = None if control is None else control.ended_at
            sealed, keep_s = migration.is_sealed, sources.config.gates.mapping_retention_s
            if migration.inverse is None:
                cohorts = await cohorts_kept(restricted, script_id, ended_at, sealed=sealed, keep_s=keep_s)
                due = any(cohort.is_due(now) for cohort in cohorts)
                scripts = sources.scripts.values() if due else ()
                referring = await referring_controls(restricted, scripts, script_id)
                # `rekey expire` refuses as long as one of them is in progress.
                needed_by = tuple(other for other, control in referring.items() if control.is_followed)
                store = replace(store, cohorts=cohorts, needed_by=needed_by)
            if control is None or control.phase is not ControlPhase.RETIRED:
                refused = await secrets_refused(open_migration(prepared, sources.accounts), control)
                store = replace(store, refused=refused)
    except ServiceError as error:
        # A fact, not an error: the state file is read in any case.
        store = replace(store, unreachable=f"the restricted store could not be asked: {error.what}")
    return now, store


async def _moved_by(sources: Sources, declared: Declared, control: ControlRow) -> tuple[str, ...]:
    moved_by: list[str] = []
    for other in sources.scripts.values():
        if other.builds_on(declared):
            store = ControlStore(sources.accounts.restricted, other.script_id, other.migration.group)
            theirs = await store.read()
            moved_by += [other.script_id] if theirs is not None and theirs.has_moved_on(control) else []
    return tuple(moved_by)


def stands_on(
    declared: Declared, scripts: Mapping[str, Declared], phase: ControlPhase
) -> tuple[list[str], list[str]]:
    """Return the tables, and those of the restricted store, that a migration depends on in a control phase:
    without them its status would not be true."""
    migration = declared.migration
    if phase is ControlPhase.SOURCE:
        return [migration.source], []
    if phase in FOLLOWED:
        journal = [] if migration.capture == "delta" else [JOURNAL_TABLE]
        return [migration.source, *migration.table_names], [MAPPING_TABLE, *journal]
    # Where another migration reads from a target, that migration may have deleted it since.
    handed_on = {script.migration.source.lower() for script in scripts.values()}
    return [name for name in names_in(migration.tables[0]) if name.lower() not in handed_on], []


async def _missing(
    declared: Declared, scripts: Mapping[str, Declared], phase: ControlPhase, accounts: Accounts
) -> tuple[str, ...]:
    tables, restricted = stands_on(declared, scripts, phase)
    asked = [(accounts.tables, name) for name in tables]
    asked += [(accounts.restricted, name) for name in restricted]
    there = await asyncio.gather(*(service.table_exists(name) for service, name in asked))
    return tuple(name for (_, name), exists in zip(asked, there, strict=True) if not exists)


async def _intents(
    restricted: TableService, script_id: str, clients: Sequence[ClientRow], now: int
) -> Intents:
    """Return what the journal holds, without keys. `now`: ticks of the service's clock."""
    intents: list[IntentAge] = []
    try:
        async for ages in Journal(restricted.table(JOURNAL_TABLE), script_id).ages():
            intents += ages
    except (TableMissing, TableBeingDeleted):
        return Intents(0, None)
    unsettled = [age for age in intents if not age.settled]
    oldest_at = min((age.since for age in unsettled), default=None)
    abandoned = _abandoned(unsettled, clients, now)
    return Intents(len(unsettled), oldest_at, len(intents) - len(unsettled), abandoned)


def _abandoned(unsettled: Sequence[IntentAge], clients: Sequence[ClientRow], now: int) -> Abandoned | None:
    """Return which intents are of clients that send no heartbeat any more."""
    company = Company.of(clients, now, usual_s=_LONGEST_OPERATION_S)
    left: list[tuple[IntentAge, int]] = []
    for age in unsettled:
        row, over = company.clients.get(age.client_id), company.over_at(age)
        if row is None and now >= over:
            left.append((age, age.since + over - age.at))  # `at` is later where somebody tried to settle it
        elif row is not None and standing(row, now) is not Standing.LIVE:
            left.append((age, over_at(row)))
    if not left:
        return None
    gone = {age.client_id for age, _ in left}
    return Abandoned(len(left), len(gone), min(age.since for age, _ in left), max(due for _, due in left))


async def _lease(
    restricted: TableService, script_id: str, server_time: str, *, not_ours: bool
) -> Lease | None:
    """Return the runner lease, None when there is none. `not_ours`: nor when this process holds it."""
    try:
        row = await restricted.table(CONTROL_TABLE).get(lease_key(script_id))
    except TableMissing:
        return None
    if row is None:
        return None
    holder, ours = holder_of(row), Holder.current(lock="")
    if not_ours and holder.process == ours.process:
        return None
    here = bool(ours.boot) and (holder.boot, holder.namespace) == (ours.boot, ours.namespace)
    killed = here and not is_running(holder.pid, holder.started)
    return Lease(
        host=holder.host,
        pid=holder.pid,
        ends_at=format_ticks(ends_at(row)),
        live=not lease_is_over(row, server_time) and not killed,
        killed=killed,
    )
