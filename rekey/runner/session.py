"""A session: the locks, connections and state of one command that works on migrations."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from math import inf
from typing import Any, TypeVar

import orjson

from rekey.copy.throttle import Throttle, listen, restricted_throttle, throttle_of
from rekey.copy.workers.driver import Pool, load_factory
from rekey.copy.write import Copier
from rekey.core.clock import Clock, ServiceClock, SystemClock, format_ticks
from rekey.core.concurrency import first_of
from rekey.core.progress import Progress, ticking
from rekey.core.safe_ids import new_key
from rekey.declaration.migration import Declared
from rekey.errors import GateClosed, RekeyError
from rekey.evidence.log import make_checkpoint
from rekey.evidence.signing import open_signer
from rekey.mapping.rows import MAPPING_TABLE
from rekey.mapping.sealing import SealedKeys, cursors_key
from rekey.mapping.store import Keyring, MappingStore
from rekey.phases import ControlPhase, Phase
from rekey.project.config import Config
from rekey.protocol.control import ControlRow
from rekey.protocol.lease import RunnerLease
from rekey.protocol.opening import (
    OpenMigration,
    Prepared,
    connect,
    open_migration,
    require_same_digest,
    require_same_migration,
    require_same_secrets,
)
from rekey.protocol.rules import SOURCE, authority
from rekey.protocol.term import Term
from rekey.runner.clients import announcing, hand_over, unfrozen, until_quiet, wait_for_present
from rekey.runner.data_keys import KnownRoot, prove_data_keys
from rekey.runner.hooks import HookEvent, Stalls, run_hook
from rekey.runner.phases import PHASES
from rekey.runner.refusals import refusal
from rekey.runner.run import Counters, Options, Run, StopFlag, asks_again, keep_no_count
from rekey.runner.status import progress_document, read_status
from rekey.runner.steering import Steering, follow, is_paused
from rekey.state.applied import aligned
from rekey.state.audit import erasures
from rekey.state.filelock import FileLock
from rekey.state.ledger import Ledger
from rekey.state.models import OVERHEAD, MigrationRecord, PhaseRun
from rekey.state.store import State
from rekey.status import pulse
from rekey.status.facts import Sources, begun_as
from rekey.status.notes import note
from rekey.status.reasons import reason
from rekey.tables.allowance import while_allowed
from rekey.tables.base import Accounts, holding
from rekey.tables.kinds import by_number
from rekey.tables.part import parts_of
from rekey.tables.sent import Overhead, overhead, requests_in, since

_log = logging.getLogger(__name__)
T = TypeVar("T")
_WATCH_EVERY_S = 1.0
# Audit event: the operator's setting when a runner first worked with it.
_STEERED = "steered"
# Audit event: a state file that did not know a begun migration was brought to its phase.
_RESUMED = "resumed"


@dataclass(slots=True)
class Caller:
    """What a session takes from its caller."""

    # Connects the accounts; tests give tables in memory.
    connect_to: Callable[[Config], Accounts] = connect
    clock: Clock = field(default_factory=SystemClock)
    # Runs the work and is not closed by the session; None: the session makes one. One loop for the whole
    # session: yoyo's steps are synchronous calls, and connections and lease renewal live on between them.
    loop: asyncio.Runner | None = None
    # Called with each run of a phase when it has ended, done or not.
    phase_ended: Callable[[PhaseRun], None] = lambda _run: None


@dataclass(slots=True)
class AtWork:
    """What a session works on, for the pulse."""

    script_id: str = ""
    # Since when it follows the migration (`apply --follow`); "": it does not.
    following: str = ""


@dataclass(eq=False, repr=False)
class Session:
    """Locks, state and connections of one command. Use it as a context manager, which opens them."""

    config: Config
    scripts: Mapping[str, Declared]
    options: Options = field(default_factory=Options)
    progress: Progress = field(default_factory=Progress)
    stop: StopFlag = field(default_factory=StopFlag)
    caller: Caller = field(default_factory=Caller)
    # The opened migrations, by id.
    runs: dict[str, Run] = field(default_factory=dict, init=False)
    at_work: AtWork = field(default_factory=AtWork, init=False)
    # Figures of phases that were rolled back, by script and phase.
    rolled_back: dict[tuple[str, Phase], Counters] = field(default_factory=dict, init=False)
    _leases: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)
    _counted: Mapping[str, int] = field(default_factory=dict, init=False)
    _rates: tuple[Throttle, Throttle] | None = field(default=None, init=False)

    def __enter__(self) -> Session:
        """Open file lock, state file, connections and ledger, in this order; they are closed in reverse
        order.

        Raises:
            Locked: another process works with this state file.
            StateUnusable, MachineFailed, ConfigurationError: see `State.open`, `connect`, `load_factory`.
        """
        config = self.config
        self.signer = open_signer(config)
        self._stalls = Stalls(config.hooks.stalled_after_s)
        executor = self.options.executor or config.executor.factory
        self.factory = load_factory(executor, config.path.parent) if executor else None
        with ExitStack() as stack:
            self._lock = stack.enter_context(FileLock(config.state))
            self.state = stack.enter_context(State.open(config.state, lock=self._lock))
            stack.callback(pulse.remove, config.state)
            self._runner = self.caller.loop or stack.enter_context(asyncio.Runner())
            self.accounts = self.caller.connect_to(config)
            stack.callback(lambda: self.do(self.accounts.close()))
            scripts = list(self.scripts.values())
            run, undo = self._run_phase, self._undo_phase
            self.ledger = Ledger(config.state, scripts, run=run, undo=undo, lock=self._lock)
            stack.callback(lambda: self.do(self._leases.aclose()))
            self._opened = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    @property
    def sources(self) -> Sources:
        """Where the status of its migrations is read."""
        return Sources(self.config, self.scripts, self.state, self.accounts, self.caller.clock)

    def sent(self) -> dict[str, int]:
        """Return the requests sent since `count_anew`, by kind."""
        return since(self.accounts.sent, self._counted)

    def count_anew(self) -> None:
        """Restart the count of requests. What a command sends before a phase is counted with that phase."""
        self._counted = self.accounts.sent

    def add_overhead(self, script_id: str, why: Overhead) -> None:
        """Add the requests since `count_anew` to the overhead outside of phases."""
        known = json.loads(self.state.get_fact(script_id, OVERHEAD) or "{}")
        total = known.get(why, 0) + requests_in(self.sent())
        self.state.set_fact(script_id, OVERHEAD, json.dumps({**known, why: total}))
        self.count_anew()

    def tick(self) -> None:
        """Show the current progress and write this runner's pulse."""
        self.progress.tick()
        self.beat()

    def beat(self) -> None:
        """Write this runner's pulse."""
        holds = () if self._rates is None else tuple(self._rates[0].current_holds())
        pulse.write(
            self.config.state,
            pulse.pulse_of(self.progress, self.at_work.script_id, holds, self.at_work.following),
        )

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end on the session's loop and return its result."""
        every_s = self.progress.ticks_every_s
        if self.config.hooks.command:
            work = self._watched(work)
        return self._runner.run(work if every_s is None else ticking(work, self.tick, every_s))

    # --- hooks -------------------------------------------------------------------------------------------

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work, telling the hook when a pass of it stalls."""
        over = asyncio.Event()

        async def watch() -> None:
            while not over.is_set():
                paused = is_paused(self.config.state)
                if self._stalls.stalled(self.progress.work, self.caller.clock.monotonic(), paused=paused):
                    await self.tell(self.at_work.script_id, HookEvent.STALLED)
                await first_of(over, self.caller.clock.sleep(_WATCH_EVERY_S))

        watching = asyncio.ensure_future(watch())
        try:
            return await work
        finally:
            over.set()
            await watching

    async def tell(self, script_id: str, event: str, *, before: Phase | None = None, **more: object) -> None:
        """Run the hook, if any, for an event (`HookEvent`) of a migration; `more` goes into the document.
        Raises GateClosed when the hook fails and `before`, the phase that is to begin, is `cutover`."""
        if not self.config.hooks.command:
            return
        self.beat()
        happened = {"name": str(event), "script_id": script_id, "at": format_ticks(self.caller.clock.ticks())}
        try:
            with overhead(Overhead.REPEATS):
                status = await read_status(self.sources, self.scripts[script_id])
            document = {**progress_document(self.config, status, self.caller.clock), "event": happened | more}
            failed = await run_hook(self.config.hooks, self.config.path.parent, orjson.dumps(document))
        except RekeyError as error:
            failed = f"was not run: {error.what}"
        if not failed:
            return
        text = reason("hook-failed", failed=failed, event=event)
        if before is Phase.CUTOVER:
            hint = reason("fix-hook", again=asks_again(self.runs[script_id], before))
            raise GateClosed(before, [text], hint=hint)
        note(self.progress, "hook-failed", {"script": script_id, "problem": text}, script_id=script_id)

    # --- opening a migration ---------------------------------------------------------------------------

    def opened(self, script_id: str) -> OpenMigration:
        """Open a migration of the project; no request is sent.

        Raises:
            Refused: it has begun and its file is gone or unusable, or it fills the tables of such a one.
        """
        self.at_work.script_id = script_id
        declared = self.scripts[script_id]
        if declared.fault:
            raise refusal("script-broken", fault=declared.fault, script=script_id)
        began = script_id if declared.is_kept else begun_as(declared, self.scripts, self.state.migrations())
        if began:
            known = self.scripts.get(began)
            path = declared.path.with_name(f"{began}.py") if known is None else known.path
            more = "" if declared.is_kept else f"; {script_id} fills the same tables"
            raise refusal("script-gone", script=began, path=path, more=more)
        return open_migration(Prepared.of(self.config, declared), self.accounts, self._shredded)

    def _shredded(self, script_id: str) -> Mapping[str, str]:
        return erasures(self.state.audit_events(script_id)).cohorts

    def resume(self, script_id: str) -> Run:
        """Open a migration that has begun, as `begin` does. Raises Refused, before any write, when neither
        ledger nor restricted store knows it."""
        if not self.has_begun(script_id):
            raise refusal("not-begun", script=script_id)
        return self.begin(script_id)

    def resume_needed(self, script_id: str) -> None:
        """Open the begun migrations that a script waits for and that a new state file does not know: they
        count as far as their control rows say. Raises as `begin`."""
        for needed in sorted(self.scripts[script_id].depends):
            if needed in self.scripts and not self.ledger.applied(needed) and self.has_begun(needed):
                self.begin(needed)

    def has_begun(self, script_id: str) -> bool:
        """Tell whether the ledger or the restricted store knows of a migration."""
        if self.ledger.applied(script_id):
            return True
        return self.do(self.opened(script_id).control.read()) is not None

    def begin(self, script_id: str) -> Run:
        """Open a migration for work: check it, take the runner lease, create the control row if there is
        none. A second call returns the same run.

        Raises:
            Moved: declaration or secrets are not those that the migration started with.
            StateUnusable: the state file is of another migration, or the restricted store is another one.
            Locked: another runner works on it.
            SecretMissing: a secret or the wrapping key is missing.
        """
        if script_id not in self.runs:
            self.runs[script_id] = self.do(self._begin(self.opened(script_id)))
            self.do(self._align(self.runs[script_id]))
        return self.runs[script_id]

    async def _begin(self, migration: OpenMigration) -> Run:
        prepared, declared = migration.prepared, migration.prepared.declared
        known = await self.require_same(migration)
        prepared.require()
        self._guard(prepared, known)
        lease = await self._lease(declared.script_id)
        row = await self._control_row(migration)
        self._guard(prepared, row)
        mapping = await self._open_mapping(migration, row)
        source, place = declared.migration.source, prepared.endpoints(self.config)
        self.state.register(
            declared.script_id, declared.digest, source, row.run_id, prepared.fingerprints, place
        )
        # Also for migrations started before scripts were stored: the digest proves that this is the same
        # script.
        self.state.keep_script(declared.script_id, row.targets, declared.content)
        if mapping.keyring is not None and not mapping.keyring.lacks_root:
            await self._seal_checkpoints(mapping.keyring, row)
        run = await self._make_run(migration, mapping, lease)
        self._leases.push_async_callback(self._end_in_order, run, lease)
        return run

    async def _lease(self, script_id: str) -> RunnerLease:
        """Take the runner lease for as long as the session lasts."""
        lease = RunnerLease(self.accounts.restricted, script_id, self._lock)
        await self._leases.enter_async_context(lease)
        if lease.late_until is not None:
            await Term(self.accounts.restricted, script_id).extend(format_ticks(lease.late_until))
        return lease

    def _keyring(self, prepared: Prepared) -> Keyring | None:
        """Return a keyring that is not opened yet; None where the mapping is not sealed."""
        if prepared.wrapping is None:
            return None
        table = self.accounts.restricted.table(MAPPING_TABLE)
        return Keyring(table, prepared.declared.script_id, prepared.wrapping)

    async def _control_row(self, migration: OpenMigration) -> ControlRow:
        """Return the control row, read again: another runner may have dropped everything before this one got
        the lease. Create it in `source` if there is none."""
        prepared, declared, control = migration.prepared, migration.prepared.declared, migration.control
        run_id = secrets.token_hex(16)
        keyring = self._keyring(prepared)
        if keyring is not None and await control.read() is None:
            # The root key must exist before the control row says that the migration has begun.
            await self.accounts.restricted.create_table(MAPPING_TABLE)
            await keyring.begin()
            KnownRoot(self.state, declared.script_id, run_id).record(keyring.root)
        first = ControlRow(
            script_id=declared.script_id,
            phase=ControlPhase.SOURCE,
            epoch=1,
            run_id=run_id,
            digest=declared.digest,
            source=declared.migration.source,
            targets=declared.migration.table_names,
            fingerprints=prepared.fingerprints,
            id_key=new_key(),
            tables_endpoint=self.config.tables.endpoint,
            target_account=prepared.target_account,
            part="" if declared.migration.where is None else declared.migration.capture,
        )
        return await control.create(first)

    async def _open_mapping(self, migration: OpenMigration, row: ControlRow) -> MappingStore:
        """Open the mapping with data keys that are proved to be the migration's. Called before the state file
        knows the run: a run that it knows has data keys that were believed."""
        script_id = migration.prepared.declared.script_id
        record = self.state.migration(script_id)
        if (unopened := self._keyring(migration.prepared)) is not None:
            is_known = record is not None and record.run_id == row.run_id
            accept = self.options.accept_data_keys
            await prove_data_keys(unopened, row, self.state, self.progress, is_known=is_known, accept=accept)
        # A rollback that deletes all that was sealed needs no key where the source is the authority.
        may_lack_root = self.options.drop_targets and authority(row.unfrozen) == SOURCE
        mapping = await migration.mapping(row, may_lack_root=may_lack_root)
        if mapping.keyring is not None and mapping.keyring.lacks_root:
            note(self.progress, "root-key-gone", {"script": script_id})
        elif mapping.keyring is not None:
            KnownRoot(self.state, script_id, row.run_id).require(mapping.keyring.root)
        mapping.patience_s = inf  # a copy that meets a client's write is not yet a collision
        return mapping

    async def _seal_checkpoints(self, keyring: Keyring, row: ControlRow) -> None:
        """Seal checkpoints from now on; wrap data keys again if the wrapping key has changed."""
        cursors = cursors_key(keyring.root, row.id_key)
        self.state.use_keys(keyring.script_id, SealedKeys(keyring.script_id, cursors))
        if renewed := await keyring.rewrap():
            self.state.audit("data-keys-rewrapped", keyring.script_id, {"keys": renewed})
            note(self.progress, "keys-rewrapped", {"script": keyring.script_id, "keys": renewed})

    async def _make_run(self, migration: OpenMigration, mapping: MappingStore, lease: RunnerLease) -> Run:
        declared, asked = migration.prepared.declared, migration.prepared.declared.migration
        tables = self.accounts.tables
        propagator = migration.propagator(mapping, tables.multi_writer_table)
        throttle, restricted_rates = self._rates = self._rates or self._begin_rates()
        targets = by_number(asked.tables, asked.beginnings, parts_of(asked.key_spaces, tables.table))
        run = Run(
            declared=declared,
            config=self.config,
            accounts=self.accounts,
            state=self.state,
            control=migration.control,
            copier=Copier(propagator, self.config.limits.concurrency, throttle, targets, restricted_rates),
            options=self.options,
            progress=self.progress,
            stop=self.stop,
            clock=ServiceClock(await holding(tables, asked.source).server_time(), self.caller.clock),
            still_alone=lease.check,
            lease_id=lease.lease_id,
            pool=Pool(self.factory, self.config.executor.tasks) if self.factory else None,
            tell=partial(self.tell, declared.script_id),
            scripts=self.scripts.values(),
        )
        if not run.is_delta:
            propagator.announce = announcing(run.journal, run.clock)
        return run

    async def _end_in_order(self, run: Run, lease: RunnerLease) -> None:
        """Give back the lease, unless unanswered requests may outlive it."""
        service = run.copier.throttle.service
        is_first = run is next(iter(self.runs.values()), run)  # once: all runs share the rates
        if is_first and service is not None and service.account.rate != service.account.begins:
            note(self.progress, "rates", {"script": run.script_id, "rates": run.copier.throttle.describe()})
        # Before the lease is given back, the term must cover unanswered requests; else the lease stays.
        if not await hand_over(run):
            await lease.leave()

    async def require_same(self, migration: OpenMigration) -> ControlRow | None:
        """Return the control row of a migration. Raises Refused, Moved: see `require_same_migration`."""
        row = await migration.control.read()
        if row is not None:
            record = self.state.migration(migration.prepared.declared.script_id)
            require_same_migration(migration.prepared, row, record.run_id if record else None)
        return row

    def _guard(self, prepared: Prepared, control: ControlRow | None) -> None:
        """Refuse a migration whose declaration, secrets, state file and control row do not agree, before any
        table is written.

        Raises:
            StateUnusable: the state file is of another migration, or the restricted store is another one.
            Moved: declaration, secrets or the target account are not those that it started with.
        """
        declared, rules = prepared.declared, (prepared.declared.digest, prepared.fingerprints)
        record = self.state.migration(declared.script_id)
        if control is None and record is not None:
            if self.ledger.applied(declared.script_id):
                raise refusal("unknown-to-store", script=declared.script_id)
            # A rollback that dropped everything was cut off before its last step: do that step now.
            self.state.forget(declared.script_id)
        if control is None:
            return
        require_same_migration(prepared, control, record.run_id if record else None)
        prepared.require_place(control)
        if record is not None:
            endpoints = prepared.endpoints(self.config)
            require_same_place(record, declared.migration.source, endpoints, control.run_id)
            require_same_rules(declared.script_id, (record.digest, record.secret_fingerprints), rules)
        # If the state file was lost, only the control row says how the migration started.
        require_same_rules(declared.script_id, (control.digest, control.fingerprints), rules)

    def _begin_rates(self) -> tuple[Throttle, Throttle]:
        """Return the throttles that all migrations share, at the configured rates or the operator's."""

        def steered(setting: Steering, is_new: bool) -> None:
            note(self.progress, "steered", {"setting": setting.as_text()})
            if is_new:
                self.state.audit(_STEERED, None, asdict(setting))

        before = self.state.audit_events(event=_STEERED)
        recorded = Steering(**before[-1].details) if before else Steering()
        throttle = throttle_of(
            self.config,
            self.caller.clock,
            steering=follow(self.config.state, steered, recorded),
            stopping=self.stop.requested,
        )
        restricted_rates = restricted_throttle(throttle, self.config)
        listen(self.accounts, throttle, restricted_rates)
        return throttle, restricted_rates

    async def _align(self, run: Run) -> None:
        """Leave the freeze of a run that was killed, then align the ledger with the control row."""
        row = await unfrozen(run)
        if row is None:
            return
        applied = self.ledger.applied(run.script_id)
        # In `source` no phase counts as applied, so `prepare` runs again, which costs a few requests: a
        # rollback that was cut off may have dropped a table, perhaps by a request that took effect later.
        counts = () if row.phase is ControlPhase.SOURCE else aligned(row.phase, applied)
        if Phase.COMPLETE in counts and Phase.COMPLETE not in applied:
            # `complete` was cut off behind its move, and is not run again: what it removes last still stands.
            self.state.forget_keys(run.script_id)
        if counts and not applied:
            # If the state file was lost: without an entry of its audit log there is no evidence to export.
            self.state.audit(_RESUMED, run.script_id, {"phase": row.phase, "digest": run.declared.digest})
        self.ledger.align(run.script_id, counts)
        if run.is_delta and counts and counts[-1] is Phase.DUAL_WRITE:
            # If the state file was lost, `dual_write` is only marked here, not run: it set no watermark. The
            # backfill is still to come, so one that is set now is early enough.
            await PHASES[Phase.DUAL_WRITE].again(run)

    # --- phases, as yoyo calls them ----------------------------------------------------------------------

    def carry_out(self, script_id: str, phase: Phase) -> None:
        """Carry out a migration's next phase, and tell the hook how it ended. Raises as the ledger does."""
        ended = partial(self.tell, script_id, HookEvent.PHASE_ENDED, phase=str(phase))
        try:
            self.ledger.apply(script_id, phase)
        except Exception as error:
            self.do(ended(error=type(error).__name__))
            raise
        self.do(ended())

    def _run_phase(self, script_id: str, phase: Phase) -> None:
        run = self.runs[script_id]
        number = self.state.start_phase(script_id, phase)
        _tell("begins", "phase-begun", script_id, phase)
        run.keep_count = lambda: self.state.count_phase(number, self.sent())
        self.state.audit("phase-begun", script_id, {"phase": phase, "digest": run.declared.digest})
        try:
            self.do(run.tell(HookEvent.PHASE_BEGUN, before=phase, phase=str(phase)))
            counters = self.do(self._with_clients(run, PHASES[phase].run))
        except Exception as error:
            self.state.finish_phase(number, type(error).__name__, {}, self.sent())
            self.count_anew()
            self.state.audit("phase-stopped", script_id, {"phase": phase, "error": type(error).__name__})
            _tell("stopped", "phase-stopped", script_id, phase, error=type(error).__name__)
            self.caller.phase_ended(self.state.phase_runs(script_id)[-1])
            raise
        finally:
            run.keep_count = keep_no_count  # later requests do not belong to this phase
        self.state.finish_phase(number, "done", counters, self.sent())
        self.count_anew()
        self.state.audit("phase-done", script_id, {"phase": phase, "counters": counters})
        _tell("done", "phase-done", script_id, phase, counters=counters)
        self.caller.phase_ended(self.state.phase_runs(script_id)[-1])
        make_checkpoint(self.state, self.signer, f"{script_id}: `{phase}` done", self.progress)

    def _undo_phase(self, script_id: str, phase: Phase) -> None:
        run = self.runs[script_id]
        self.state.audit("phase-undo", script_id, {"phase": phase})
        try:
            self.do(until_quiet(run))
            counters = self.do(self._with_clients(run, PHASES[phase].undo))
        finally:
            self.add_overhead(script_id, Overhead.ROLLBACK)
        details: dict[str, Any] = {"phase": phase}
        if counters is not None:
            details["counters"] = self.rolled_back[script_id, phase] = counters
        self.state.audit("phase-undone", script_id, details)
        _tell("rolled back", "phase-undone", script_id, phase)
        make_checkpoint(self.state, self.signer, f"{script_id}: `{phase}` rolled back", self.progress)

    async def _with_clients(self, run: Run, work: Callable[[Run], Awaitable[T]]) -> T:
        """Run `work` of a phase after every live client has acknowledged the present epoch: an earlier run
        may have been cut off between a move and its waiting."""
        await wait_for_present(run)
        # Writes fail once the runner lease is lost.
        with while_allowed(run.still_alone):
            return await work(run)


def _tell(what: str, event: str, script_id: str, phase: Phase, **figures: object) -> None:
    figures = {"script_id": script_id, "phase": str(phase), **figures}
    _log.info("%s: `%s` %s", script_id, phase, what, extra={"event": event, "figures": figures})


def require_same_place(record: MigrationRecord, source: str, endpoint_id: str, run_id: str) -> None:
    """Refuse a state file that belongs to another migration of the same name. Raises StateUnusable."""
    for part, known, now in (
        ("account", record.endpoint_id, endpoint_id),
        ("source table", record.source.lower(), source.lower()),
        ("run", record.run_id, run_id),
    ):
        if known != now:
            raise refusal("other-state-file", script=record.script_id, part=part)


# What decides how rows are mapped: a declaration's digest, and the fingerprints of its secrets by name.
Rules = tuple[str, Mapping[str, str]]


def require_same_rules(script_id: str, began: Rules, now: Rules) -> None:
    """Refuse a declaration or a secret that changed since the first phase. Raises Moved."""
    (first_digest, first_secrets), (digest, secrets) = began, now
    require_same_digest(script_id, first_digest, digest)
    require_same_secrets(script_id, first_secrets, secrets)
