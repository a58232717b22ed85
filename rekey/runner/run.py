"""One migration, opened: everything a phase needs, in one value.

Rules kept here:

* A `Run` is made by the session, which owns locks, connections and their ends; phases only use it.
* Progress and stop requests are asked of the run, so that phases know neither terminal nor signals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rekey.copy.scan import WindowSize, window_of
from rekey.copy.workers.driver import Factory
from rekey.copy.write import Copier
from rekey.core.clock import Clock, SystemClock
from rekey.core.progress import Progress, Silent
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Declared
from rekey.errors import Interrupted
from rekey.mapping.ids import SafeIds
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.mapping.store import MappingStore
from rekey.project.config import Config
from rekey.protocol.control import ControlStore
from rekey.protocol.journal import Journal
from rekey.protocol.propagate import Propagator
from rekey.protocol.registry import SAFETY_S, Registry
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.sweeper import Sweeper
from rekey.state.store import State
from rekey.tables.base import SHARED_SERVICE_S, Table, TableService

WRITING_S = 15.0
"""For how long the runner writes under one intent of its own."""
OPEN_S = WRITING_S + SHARED_SERVICE_S + SAFETY_S
"""After which nothing can be under way any more of what the runner has announced."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator said on the command line that phases act on.

    Attributes:
        writers_stopped: the operator confirms that no application writes.
        drop_targets: on rollback to `source`: drop the target tables (True) or keep them (False).
        typed_table: the source's name as typed for `retire`.
        executor: `module:callable`, instead of what [executor] says; "" as it says.
    """

    writers_stopped: bool = False
    drop_targets: bool = False
    typed_table: str = ""
    executor: str = ""


class StopFlag:
    """Set by a signal; asked between windows and pages."""

    def __init__(self) -> None:
        self._requested = False

    def request(self) -> None:
        """Ask the work to stop at the next safe place."""
        self._requested = True

    def requested(self) -> bool:
        """Tell whether a stop was requested."""
        return self._requested

    def check(self) -> None:
        """Raise Interrupted when a stop was requested."""
        if self._requested:
            raise Interrupted(
                "stopped on request",
                kept="all checkpoints; nothing is half done",
                hint="run the same command again to go on from here",
            )


@dataclass(slots=True)
class Run:
    """One migration, opened for work."""

    declared: Declared
    config: Config
    mapper: Mapper
    tables: TableService
    restricted: TableService
    state: State
    control: ControlStore
    mapping: MappingStore
    copier: Copier
    options: Options = field(default_factory=Options)
    progress: Progress = field(default_factory=Silent)
    stop: StopFlag = field(default_factory=StopFlag)
    clock: Clock = field(default_factory=SystemClock)
    still_alone: Callable[[], None] = lambda: None
    """Raises Locked when the runner lease was lost."""
    lease_id: str = ""
    factory: Factory | None = None
    """Begins the executor whose workers copy and compare; None: the runner does it itself."""
    keep_count: Callable[[], None] = lambda: None
    """Stores how many requests were sent, for a run that may be killed."""
    by_workers: Counter[str] = field(default_factory=Counter)
    """Requests that workers sent for it, by kind; is added to."""

    @property
    def script_id(self) -> str:
        """The migration's id."""
        return self.declared.script_id

    @property
    def ids(self) -> SafeIds:
        """The safe ids of this migration."""
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
    def factory_or_fail(self) -> Factory:
        """What begins the executor, where there must be one."""
        if self.factory is None:
            raise AssertionError("there is no executor")
        return self.factory

    @property
    def registry(self) -> Registry:
        """The application's clients."""
        return Registry(self.restricted, self.script_id)

    @property
    def journal(self) -> Journal:
        """The intents of the application, and the runner's own."""
        table = self.restricted.table(JOURNAL_TABLE)
        return Journal(table, self.script_id, self.mapping.keyring, open_s=OPEN_S, now=self.clock.ticks)

    @property
    def sweeper(self) -> Sweeper:
        """Settles intents."""
        return Sweeper(self.journal, self.propagator, self.reverse, monotonic=self.clock.rising)

    @property
    def source(self) -> Table:
        """The source table."""
        return self.propagator.source

    @property
    def targets(self) -> tuple[Table, ...]:
        """The target tables, main first."""
        return self.propagator.targets

    @property
    def window(self) -> WindowSize:
        """When a window of rows is full: several are on their way at a time."""
        return window_of(self.config.limits)

    @property
    def is_delta(self) -> bool:
        """Tell whether the migration follows the source by delta passes."""
        return self.declared.migration.capture == "delta"

    def check(self) -> None:
        """Raise Interrupted or Locked when the work must not go on."""
        self.still_alone()
        self.stop.check()
