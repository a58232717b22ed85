"""One open migration as a value that phases work with (`Run`), and what each phase has (`Lifecycle`). The
session opens and closes locks and connections; phases know neither terminal nor signals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from rekey.backup.folder import Export
from rekey.copy.scan import WindowSize, window_of
from rekey.copy.workers.driver import Pool
from rekey.copy.write import Copier
from rekey.core.clock import Clock, SystemClock, format_ticks
from rekey.core.progress import Progress
from rekey.core.safe_ids import SafeIds
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Declared
from rekey.errors import RekeyError
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.mapping.store import MappingStore
from rekey.model import EntityKey
from rekey.next_steps import next_step
from rekey.phases import Phase
from rekey.present.text import shortened
from rekey.project.config import Config
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.journal import Journal
from rekey.protocol.propagate import Propagator
from rekey.protocol.registry import SAFETY_S, Registry
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.sweeper import Sweeper
from rekey.runner.refusals import refusal
from rekey.state.models import CHECKPOINT_AT
from rekey.state.store import State
from rekey.status.reasons import reason
from rekey.tables.base import MULTI_WRITER_SERVICE_S, Accounts, Table, TableService, holding

# Seconds for which the runner writes under one intent.
WRITING_S = 15.0
# Seconds after which no write announced in an intent can be in flight.
OPEN_S = WRITING_S + MULTI_WRITER_SERVICE_S + SAFETY_S


# Figures of a phase's work, for the audit log and `status`.
Counters = dict[str, int]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line that phases act on."""

    writers_stopped: bool = False
    # Refuse the cutover when the estimated write downtime is longer (capture "delta"); None: no limit.
    stop_at_most_s: float | None = None
    # On rollback to `source`: drop the target tables.
    drop_targets: bool = False
    # The source's name as typed for `retire`.
    typed_table: str = ""
    # `module:callable` in place of that of [executor]; "": use that one.
    executor: str = ""
    # Keep targets up to date before the gate of cutover, and go through it when that is requested.
    follow: bool = False
    # Why rows may go that cannot be proved to be on the other side; recorded.
    reason: str = ""
    # The export that holds the rows which `retire` deletes.
    backup: Export | None = None
    # Why `retire` needs none; recorded.
    no_backup: str = ""
    # Do not make writers wait after this time, in ticks.
    freeze_by: int | None = None
    # Believe data keys that a public key wrapped and that have no proof.
    accept_data_keys: bool = False


class StopFlag:
    """A request to stop: set by a signal, asked between windows and pages."""

    def __init__(self) -> None:
        self._requested = False

    def request(self) -> None:
        self._requested = True

    def requested(self) -> bool:
        return self._requested

    def check(self) -> None:
        """Raise Interrupted when a stop was requested."""
        if self._requested:
            raise refusal("stopped")


def keep_no_count() -> None:
    """Store nothing: no phase is running."""


async def tell_nobody(_event: str, *, before: Phase | None = None, **_more: object) -> None:
    """Do nothing: there is no hook. Arguments as of `Run.tell`."""
    del before


@dataclass(slots=True)
class Run:
    """One migration, open for work: all that its phases need."""

    declared: Declared
    config: Config
    accounts: Accounts
    state: State
    control: ControlStore
    copier: Copier
    options: Options = field(default_factory=Options)
    progress: Progress = field(default_factory=Progress)
    stop: StopFlag = field(default_factory=StopFlag)
    clock: Clock = field(default_factory=SystemClock)
    # Called before work goes on; raises Locked when the runner lease was lost.
    still_alone: Callable[[], None] = lambda: None
    lease_id: str = ""
    # The workers that copy and compare, started on demand; None: the runner does it itself.
    pool: Pool | None = None
    # Stores how many requests were sent so far, in case the run is killed.
    keep_count: Callable[[], None] = keep_no_count
    # The share of the rates in force that comparisons use.
    share: float = 1.0
    # Runs the operator's hook for an event. `before`: the phase that may not begin if the hook fails
    # (GateClosed); None: a hook that fails is only reported.
    tell: Callable[..., Coroutine[Any, Any, None]] = tell_nobody

    # The migrations of the project, itself among them.
    scripts: Collection[Declared] = ()
    # The runs of its whole group, itself among them, where a command works on the group.
    group: Sequence[Run] = ()
    # Figures of the last switchover, which the run of another member may have made.
    switchover: Counters = field(default_factory=dict)

    @property
    def script_id(self) -> str:
        return self.declared.script_id

    @property
    def builds_on(self) -> list[Declared]:
        """The migrations of the project that fill its source."""
        return [script for script in self.scripts if self.declared.builds_on(script)]

    @property
    def built_on_by(self) -> list[Declared]:
        """The migrations of the project whose source it fills."""
        return [script for script in self.scripts if script.builds_on(self.declared)]

    @property
    def beside(self) -> list[Declared]:
        """The migrations of the project that migrate other parts of its source."""
        return [script for script in self.scripts if script.is_beside(self.declared)]

    @property
    def of_same_rows(self) -> list[Declared]:
        """The other migrations of the project that migrate the same rows of its source."""
        return [script for script in self.scripts if script.shares_rows_with(self.declared)]

    @property
    def run_group(self) -> Sequence[Run]:
        """The runs whose authority moves at once: those of the group, or this one alone."""
        return self.group or (self,)

    @property
    def tables(self) -> TableService:
        return self.accounts.tables

    @property
    def restricted(self) -> TableService:
        return self.accounts.restricted

    @property
    def by_workers(self) -> Counter[str]:
        """Requests that workers sent, by kind; results of tasks are added to it."""
        return self.accounts.by_workers

    @property
    def mapper(self) -> Mapper:
        return self.propagator.mapper

    @property
    def mapping(self) -> MappingStore:
        return self.propagator.mapping

    @property
    def ids(self) -> SafeIds:
        return self.mapping.rows.ids

    @property
    def propagator(self) -> Propagator:
        """propagate(k) with the source as authority."""
        return self.copier.propagator

    @property
    def reverse(self) -> ReversePropagator:
        """propagate(k) with the main target as authority."""
        return ReversePropagator(self.propagator)

    @property
    def registry(self) -> Registry:
        return Registry(self.restricted, self.script_id)

    @property
    def journal(self) -> Journal:
        """The journal: intents of the clients, and the runner's own."""
        table = self.restricted.table(JOURNAL_TABLE)
        return Journal(table, self.script_id, self.mapping.keyring, open_s=OPEN_S, now=self.clock.ticks)

    @property
    def sweeper(self) -> Sweeper:
        """A new sweeper, which knows of no earlier sweep."""
        return Sweeper(self.journal, self.reverse, monotonic=self.clock.monotonic)

    @property
    def source(self) -> Table:
        return self.propagator.source

    async def control_of(self, declared: Declared) -> ControlRow | None:
        """Return the control row of a migration of the project, None when there is none."""
        return await ControlStore(self.restricted, declared.script_id, declared.migration.group).read()

    def listed(self, table: Table, keys: Sequence[EntityKey]) -> str:
        """Return the safe ids of the first of these rows of a table, in one line."""
        return shortened([self.ids.short(table.name, key) for key in keys], 5)

    async def source_time(self) -> str:
        """Return the time by the clock of the source's account, as its rows' Timestamps are."""
        return await holding(self.tables, self.source.name).server_time()

    async def target_time(self) -> str:
        """Return the time by the clock of the main target's account."""
        return await holding(self.tables, self.targets[0].name).server_time()

    @property
    def targets(self) -> Sequence[Table]:
        """The target tables, main first."""
        return self.propagator.targets

    @property
    def window(self) -> WindowSize:
        """The size at which a window of rows is full; several windows are in flight at a time."""
        return window_of(self.config.limits)

    @property
    def is_delta(self) -> bool:
        return self.declared.migration.capture == "delta"

    def checkpointed(self, **facts: str) -> None:
        """Record that a checkpoint was stored just now, with facts that belong to it."""
        self.state.set_facts(self.script_id, {CHECKPOINT_AT: format_ticks(self.clock.ticks()), **facts})

    def check(self) -> None:
        """Raise Interrupted or Locked when the work must not go on."""
        self.still_alone()
        self.stop.check()


@contextmanager
def of_member(run: Run) -> Iterator[None]:
    """Prefix the errors within with the member of a group that they are about."""
    try:
        yield
    except RekeyError as error:
        if run.group and not error.what.startswith(run.script_id):
            error.what = f"{run.script_id}: {error.what}"
        raise


def asks_again(run: Run, phase: Phase) -> str:
    """Return the hint of a closed gate: the command that asks it again."""
    step = {Phase.CUTOVER: "proceed" if run.options.follow else "cut-over", Phase.COMPLETE: "complete"}
    if phase not in step:
        return reason("once-fixed", step=f"`rekey apply {run.script_id}`")
    stopped = phase is Phase.CUTOVER and (run.is_delta or run.options.writers_stopped)
    again = next_step(step[phase] + ("-stopped" if stopped else ""), script=run.declared.cli_selector)
    return reason("once-fixed", step=again)


# --- phases ------------------------------------------------------------------------------------------------


async def open_gate(_run: Run) -> list[str]:
    """Return no reason: for phases that need no more than the phase before them."""
    return []


async def nothing_left(_run: Run) -> int:
    """Do nothing and return 0: for phases that leave nothing to repeat."""
    return 0


class Lifecycle(Protocol):
    """The lifecycle of one phase, implemented by each module of `rekey.runner.phases`."""

    async def gate(self, run: Run, /) -> list[str]:
        """Return every reason that keeps the phase from beginning; change nothing."""

    async def run(self, run: Run, /) -> Counters:
        """Carry out the phase; it may be cut off at any moment and run again."""

    async def undo(self, run: Run, /) -> Counters | None:
        """Go back to where the phase before it ended and return figures, if any; or raise why it cannot."""

    async def again(self, run: Run, /) -> int:
        """While no later phase was run: do new work; return the rows changed or intents settled."""
