"""What verification is given: the tables, the mapping, and how to ask who owns a row.

Rules kept here:

* The functions of this package take one frozen value and nothing else from their surroundings: no
  configuration, no state file, no clock of their own. They run alike in a phase, a command and a test.
* A write that a client has announced in the journal and not yet finished explains a difference. A caller
  with a journal passes `in_flight`; without one a difference counts once it stood still for a whole delay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rekey.core.clock import TICKS_PER_SECOND, Clock, SystemClock, format_ticks
from rekey.core.progress import Advance
from rekey.declaration.mapper import Mapper
from rekey.mapping.ids import SafeIds
from rekey.model import PARTITION_KEY, EntityKey, Row
from rekey.tables.base import Page, Table
from rekey.tables.kinds import whole
from rekey.verify.sums import SOURCE


@dataclass(frozen=True, slots=True)
class RecheckPolicy:
    """How long a difference is looked at before it counts.

    Attributes:
        delay_s: seconds between two observations of one difference; it counts when both are the same.
        limit_s: seconds after which a row that never stands still is reported as unsettled.
        chunk: at most this many differences are open at a time (bounds memory).
    """

    delay_s: float = 1.0
    limit_s: float = 600.0
    chunk: int = 4096


async def never(_source_key: EntityKey) -> bool:
    """Say no: the default of `in_flight` and `pending`."""
    return False


def partition_of(table: Table, rows: Sequence[Row]) -> Hashable | None:
    """Return what a page is counted with, apart from the account: its partition, None when it has several."""
    first, last = rows[0][PARTITION_KEY], rows[-1][PARTITION_KEY]
    return (table.name, first) if first == last else None


async def at_once(_rows: int, _partition: Hashable | None) -> None:
    """Do not wait: the default of `take`."""


@dataclass(frozen=True, kw_only=True)
class ReconcileContext:
    """Everything `count`, `sample`, `full` and `repair` need.

    Attributes:
        source: the source table.
        targets: the target tables in the mapper's order, the main one first.
        mapper: the mapping under verification.
        ids: names rows in reports.
        owner: a main target key → the source key the mapping table gives for it, or None.
        propagate: make the replicas of one source key equal what the authority says (repair only).
        folder: where temporary files may be put; a private folder is made inside and removed again.
        advance: told how many more rows were read.
        stop: raises Interrupted when the work shall end; called between pages and rounds.
        in_flight: tells whether the journal holds an intent for a source key: wait for it.
        pending: tells whether a difference on a source key is due to be mended by a later pass (capture
            "delta"): count it apart and do not wait.
        authority_is_target: True from cutover on: the source is read first, then the target; and copies of
            the source's Timestamp are not compared, since writing back gives the source row another one.
        concurrency: point reads, and scans that look for rows, under way at a time.
        scans: parts of tables that are summed up at a time.
        take: waits until so many rows of a partition (None: of several) may be read; called for every page.
        recheck: when a difference counts.
        clock: where time comes from and who waits; a `FakeClock` in tests.
    """

    source: Table
    targets: Sequence[Table]
    mapper: Mapper
    ids: SafeIds
    owner: Callable[[EntityKey], Awaitable[EntityKey | None]] = field(repr=False)
    propagate: Callable[[EntityKey], Awaitable[object]] = field(repr=False)
    folder: Path
    advance: Advance = field(default=lambda _rows: None, repr=False)
    stop: Callable[[], None] = field(default=lambda: None, repr=False)
    in_flight: Callable[[EntityKey], Awaitable[bool]] = field(default=never, repr=False)
    pending: Callable[[EntityKey], Awaitable[bool]] = field(default=never, repr=False)
    authority_is_target: bool = False
    concurrency: int = 16
    scans: int = 8
    take: Callable[[int, Hashable | None], Awaitable[None]] = field(default=at_once, repr=False)
    recheck: RecheckPolicy = field(default_factory=RecheckPolicy)
    clock: Clock = field(default_factory=SystemClock, repr=False)

    def now(self) -> str:
        """Return the clock's time, UTC, as the service writes it."""
        return format_ticks(self.clock.ticks())

    def seconds(self) -> float:
        """Return the clock's time in seconds, for measuring how long something takes."""
        return self.clock.ticks() / TICKS_PER_SECOND

    def table(self, number: int) -> Table:
        """Return the source (`SOURCE`) or, by its number, a target."""
        return self.source if number == SOURCE else self.targets[number]

    def whole(self, number: int) -> Table:
        """Return the source or a target to read all its rows: also those of other kinds that stand in it."""
        return whole(self.table(number))

    def label(self, number: int) -> str:
        """Return what the source (`SOURCE`) or a target is called in a report."""
        return self.source.name if number == SOURCE else self.mapper.labels[number]

    def not_compared(self, table: int) -> frozenset[str]:
        """Return the properties of target `table` that have no part in the comparison."""
        return self.mapper.timestamp_copies[table] if self.authority_is_target else frozenset()

    async def taken(self, table: Table, page: Page) -> None:
        """Wait until a page of a table may be read, as the rates say."""
        if page.rows:
            await self.take(len(page.rows), partition_of(table, page.rows))

    def source_id(self, key: EntityKey) -> str:
        """Return the short safe id of a source row."""
        return self.ids.short(self.source.name, key)

    def target_id(self, table: int, key: EntityKey) -> str:
        """Return the short safe id of a row of target `table`."""
        return self.ids.short(self.targets[table].name, key)
