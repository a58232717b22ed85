"""A session: locks, connections and state of one command that works on migrations.

Rules kept here:

* Taken in this order, given back in the other: file lock, state file, connections, runner lease.
* One event loop for the whole session: yoyo's steps are plain calls, so each runs its phase on this loop, and
  connections and lease renewal live on between them.
* A migration is opened for work only when declaration, secrets, state file and control row agree on what it
  is; what disagrees is refused before anything is written.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rekey.copy.throttle import Throttle
from rekey.copy.workers.driver import Factory, load_factory
from rekey.copy.write import Copier
from rekey.core.clock import Clock, ServiceClock, SystemClock, format_ticks
from rekey.core.progress import Progress, Silent
from rekey.declaration.migration import Declared
from rekey.errors import StateUnusable
from rekey.evidence.keys import Signer
from rekey.evidence.log import make_checkpoint
from rekey.evidence.signing import open_signer
from rekey.mapping.ids import new_key
from rekey.mapping.keyring import Keyring
from rekey.mapping.rows import MAPPING_TABLE
from rekey.mapping.sealing import SealedKeys, cursors_key
from rekey.mapping.wrapping import WrappingKey
from rekey.migration.opening import OpenMigration, Prepared, connect, open_migration
from rekey.phases import ControlPhase, Phase
from rekey.project.config import Config
from rekey.protocol.control import ControlRow
from rekey.protocol.lease import RunnerLease
from rekey.protocol.term import Term
from rekey.runner.capture import begin_watermark
from rekey.runner.client_barrier import wait_for_present
from rekey.runner.freeze import leave_old_freeze
from rekey.runner.intents import announcing
from rekey.runner.phases import PHASES
from rekey.runner.quiet import hand_over, until_quiet
from rekey.runner.run import Options, Run, StopFlag
from rekey.runner.steering import Steering, follow
from rekey.state.filelock import FileLock
from rekey.state.ledger import Ledger, LedgerScript, aligned
from rekey.state.models import MigrationRecord
from rekey.state.store import State
from rekey.tables.allowance import while_allowed
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Accounts
from rekey.tables.sent import since

T = TypeVar("T")


def _first_row(declared: Declared, fingerprints: Mapping[str, str]) -> ControlRow:
    """Return the control row that begins a migration."""
    return ControlRow(
        script_id=declared.script_id,
        phase=ControlPhase.SOURCE,
        epoch=1,
        run_id=secrets.token_hex(16),
        digest=declared.digest,
        source=declared.migration.source,
        targets=declared.migration.tables,
        fingerprints=fingerprints,
        id_key=new_key(),
    )


@dataclass
class Session:
    """Open locks, state and connections. Use `Session.open`."""

    config: Config
    scripts: Mapping[str, Declared]
    accounts: Accounts
    state: State
    lock: FileLock
    loop: asyncio.Runner
    options: Options
    progress: Progress
    stop: StopFlag
    clock: Clock
    signer: Signer | None = None
    factory: Factory | None = None
    ledger: Ledger = field(init=False)
    runs: dict[str, Run] = field(default_factory=dict)
    leases: AsyncExitStack = field(default_factory=AsyncExitStack)
    counted: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        listed = [
            LedgerScript(one.script_id, one.depends, one.migration.source, one.migration.tables)
            for one in self.scripts.values()
        ]
        self.ledger = Ledger.open(
            self.config.state, listed, run=self._run_phase, undo=self._undo_phase, lock=self.lock
        )

    @classmethod
    @contextmanager
    def open(
        cls,
        config: Config,
        scripts: Mapping[str, Declared],
        *,
        options: Options | None = None,
        progress: Progress | None = None,
        stop: StopFlag | None = None,
        connect_to: Callable[[Config], Accounts] = connect,
        clock: Clock | None = None,
        loop: asyncio.Runner | None = None,
    ) -> Iterator[Session]:
        """Open a session for the time of one command.

        Args:
            config: the configuration.
            scripts: all scripts of the project, by id.
            options: what the operator said on the command line.
            progress: who hears how far the work is.
            stop: asked for stop requests.
            connect_to: connects the accounts; tests give tables in memory.
            clock: what waiting is asked of; the machine's clock by default.
            loop: runs the work, and stays the caller's; by default one of the session's own.

        Raises:
            Locked: another process works with this state file.
            StateUnusable, MachineFailed, ConfigurationError: see `State.open`, `connect`, `load_factory`.
        """
        options = options or Options()
        signer = open_signer(config)
        executor = options.executor or config.executor.factory
        factory = load_factory(executor, config.path.parent) if executor else None
        with ExitStack() as stack:
            lock = FileLock(config.state)
            stack.enter_context(lock)
            state = stack.enter_context(State.open(config.state, lock=lock))
            loop = loop or stack.enter_context(asyncio.Runner())
            accounts = connect_to(config)
            stack.callback(lambda: loop.run(accounts.close()))
            session = cls(
                config,
                scripts,
                accounts,
                state,
                lock,
                loop,
                options,
                progress or Silent(),
                stop or StopFlag(),
                clock or SystemClock(),
                signer,
                factory,
            )
            stack.callback(lambda: loop.run(session.leases.aclose()))
            yield session

    def sent(self) -> dict[str, int]:
        """Return the requests sent since `count_anew`, by kind."""
        return since(self.accounts.sent, self.counted)

    def count_anew(self) -> None:
        """Count requests from here: what comes before a phase in a command is counted with that phase."""
        self.counted = self.accounts.sent

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run asynchronous work to its end on the session's loop."""
        return self.loop.run(work)

    # --- opening a migration ---------------------------------------------------------------------------

    def begin(self, script_id: str) -> Run:
        """Open a migration for work: lease, guards, control row. Opens each migration once.

        Raises:
            Moved: declaration or secret are not what the migration started with.
            StateUnusable: the state file is of another migration.
            Locked: another runner works on it.
            SecretMissing: a secret is not configured.
        """
        if script_id not in self.runs:
            self.runs[script_id] = self.do(self._begin(self.scripts[script_id]))
            self._align(self.runs[script_id])
        return self.runs[script_id]

    def opened(self, script_id: str) -> OpenMigration:
        """Return a migration of the project, opened; nothing is asked or written."""
        return open_migration(Prepared.of(self.config, self.scripts[script_id]), self.accounts)

    async def _begin(self, declared: Declared) -> Run:
        migration = self.opened(declared.script_id)
        migration.prepared.require()
        control, fingerprints = migration.control, migration.prepared.fingerprints
        wrapping = migration.prepared.wrapping
        self.guard(declared, await control.read(), fingerprints)
        lease = RunnerLease(self.accounts.restricted, declared.script_id, self.lock)
        await self.leases.enter_async_context(lease)
        if lease.late_until is not None:
            late_until = format_ticks(lease.late_until)
            await Term(self.accounts.restricted, declared.script_id).extend(late_until)
        # Read again: before the lease was ours another runner may have dropped everything.
        if wrapping is not None and await control.read() is None:
            await self._make_root_key(declared.script_id, wrapping)
        row = await control.create(_first_row(declared, fingerprints))
        self.guard(declared, row, fingerprints)
        self.state.register(
            declared.script_id,
            declared.digest,
            declared.migration.source,
            row.run_id,
            fingerprints,
            self.endpoint_id,
        )
        mapping = await migration.mapping(row)
        await self._use_keys(declared.script_id, mapping.keyring, row)
        tables = self.accounts.tables
        propagator = migration.propagator(mapping, tables.shared)
        run = Run(
            declared=declared,
            config=self.config,
            mapper=migration.mapper,
            tables=tables,
            restricted=self.accounts.restricted,
            state=self.state,
            control=control,
            mapping=mapping,
            copier=Copier(
                propagator,
                self.config.limits.concurrency,
                self._throttle(),
                targets=[tables.table(name) for name in declared.migration.tables],
            ),
            options=self.options,
            progress=self.progress,
            stop=self.stop,
            clock=ServiceClock(await tables.server_time(), self.clock),
            still_alone=lease.check,
            lease_id=lease.lease_id,
            factory=self.factory,
            by_workers=self.accounts.by_workers,
        )
        if not run.is_delta:
            propagator.announce = announcing(run.journal, run.clock)
        self.leases.push_async_callback(self._hand_over, run, lease)
        return run

    async def _hand_over(self, run: Run, lease: RunnerLease) -> None:
        """End in order: what this runner has left open is said before its lease is given back."""
        if not await hand_over(run):
            await lease.leave()

    async def _make_root_key(self, script_id: str, wrapping: WrappingKey) -> None:
        """Make what ids and seals are derived of, before anything says that the migration has begun."""
        await self.accounts.restricted.create_table(MAPPING_TABLE)
        await Keyring(self.accounts.restricted.table(MAPPING_TABLE), script_id, wrapping).begin()

    async def _use_keys(self, script_id: str, keyring: Keyring | None, row: ControlRow) -> None:
        """Seal the checkpoints of a sealed migration, and follow a change of the wrapping key."""
        if keyring is None:
            return
        self.state.use_keys(script_id, SealedKeys(script_id, cursors_key(keyring.root, row.id_key)))
        renewed = await keyring.rewrap()
        if renewed:
            self.state.audit("data-keys-rewrapped", script_id, {"keys": renewed})
            self.progress.note(f"{script_id}: {renewed} data keys are wrapped with the new wrapping key now")

    def _throttle(self) -> Throttle:
        """Return what keeps copying under the rates that are configured, or said while it runs."""

        def changed(said: Steering) -> None:
            self.progress.note(f"from now on: {said.told()}")
            self.state.audit("steered", None, said.as_json())

        limits = self.config.rates
        throttle = Throttle(
            limits.entities_per_second,
            self.clock,
            partition=limits.partition_entities_per_second,
            steering=follow(self.config.state, changed),
            stopping=self.stop.requested,
        )
        if isinstance(self.accounts.tables, AzureTableService):
            self.accounts.tables.listen(throttle.heard)
        return throttle

    def guard(self, declared: Declared, control: ControlRow | None, fingerprints: Mapping[str, str]) -> None:
        """Refuse when declaration, secrets, state file and control row do not agree. Writes to no table.

        Raises:
            StateUnusable: the state file is of another migration, or the restricted store is another one.
            Moved: declaration or secrets are not what the migration started with.
        """
        record = self.state.migration(declared.script_id)
        if control is None and record is not None:
            if self.ledger.applied(declared.script_id):
                raise StateUnusable(
                    f"{declared.script_id} is begun in the state file but unknown to the restricted store",
                    kept="the state file and all tables, unchanged",
                    hint="check [restricted] endpoint; the runbook on resuming says what to do if the store"
                    " is lost",
                )
            # A rollback that dropped everything was cut off before its last step: take that step.
            self.state.forget(declared.script_id)
            record = None
        if record is not None and control is not None:
            record.require_same_place(
                source=declared.migration.source, endpoint_id=self.endpoint_id, run_id=control.run_id
            )
            record.require_same_rules(digest=declared.digest, secret_fingerprints=fingerprints)
        if control is not None:
            # With a lost state file the control row is the only witness of how the migration started.
            MigrationRecord(
                script_id=declared.script_id,
                digest=control.digest,
                source=control.source,
                run_id=control.run_id,
                endpoint_id=self.endpoint_id,
                secret_fingerprints=control.fingerprints,
                registered_at=control.updated_at,
            ).require_same_rules(digest=declared.digest, secret_fingerprints=fingerprints)

    @property
    def endpoint_id(self) -> str:
        """Which accounts the state file belongs to."""
        return self.config.endpoints

    def _align(self, run: Run) -> None:
        """Leave a freeze that a killed run left behind, then make the ledger follow the control row."""
        row = self.do(run.control.read())
        if row is None:
            return
        if row.phase is ControlPhase.FREEZE:
            row = self.do(leave_old_freeze(run, row))
        applied = self.ledger.applied(run.script_id)
        # In `source` all is prepared again, for a few requests: a way back that was cut off may have
        # dropped a table, also by a request that took effect after it.
        counts = () if row.phase is ControlPhase.SOURCE else aligned(row.phase, applied)
        self.ledger.unmark(run.script_id, [phase for phase in applied if phase not in counts])
        self.ledger.mark(run.script_id, [phase for phase in counts if phase not in applied])
        if run.is_delta and counts and counts[-1] is Phase.DUAL_WRITE:
            # Marked, not carried out, if the state file was lost; the backfill is still to come.
            self.do(begin_watermark(run))

    # --- phases, as yoyo calls them ----------------------------------------------------------------------

    def _run_phase(self, script_id: str, phase: Phase) -> None:
        run = self.runs[script_id]
        number = self.state.start_phase(script_id, phase)
        run.keep_count = lambda: self.state.count_phase(number, self.sent())
        self.state.audit("phase-begun", script_id, {"phase": phase, "digest": run.declared.digest})
        try:
            counters = self.do(self._with_clients(run, PHASES[phase].run))
        except Exception as error:
            self.state.finish_phase(number, type(error).__name__, {}, self.sent())
            self.count_anew()
            self.state.audit("phase-stopped", script_id, {"phase": phase, "error": type(error).__name__})
            raise
        self.state.finish_phase(number, "done", counters, self.sent())
        self.count_anew()
        self.state.audit("phase-done", script_id, {"phase": phase, "counters": counters})
        make_checkpoint(self.state, self.signer, f"{script_id}: `{phase}` done", self.progress)

    def _undo_phase(self, script_id: str, phase: Phase) -> None:
        run = self.runs[script_id]
        self.state.audit("phase-undo", script_id, {"phase": phase})
        self.do(until_quiet(run))
        self.do(self._with_clients(run, PHASES[phase].undo))
        self.state.audit("phase-undone", script_id, {"phase": phase})
        make_checkpoint(self.state, self.signer, f"{script_id}: `{phase}` taken back", self.progress)

    async def _with_clients(self, run: Run, work: Callable[[Run], Awaitable[T]]) -> T:
        """Begin work of a phase when all clients are where the control row is. A run may have been cut off
        between a move and the end of its waiting. Without the lease nothing more is written."""
        await wait_for_present(run)
        with while_allowed(run.still_alone):
            return await work(run)
