"""The context of a verification: the tables, the mapping, and how to find the owner of a row.

Rules kept here:

* The functions of this package depend on one frozen value and on nothing else around them: no configuration,
  no state file, no clock of their own. They behave alike in a phase, a command and a test.
* A write for which a client has an intent in the journal explains a difference. A caller with a journal
  passes `in_flight`; without one a difference counts once it stood still for a whole delay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rekey.core.clock import TICKS_PER_SECOND, Clock, SystemClock, format_ticks
from rekey.core.progress import Advance
from rekey.core.safe_ids import SafeIds
from rekey.declaration.mapper import Mapper
from rekey.model import PARTITION_KEY, EntityKey, Row
from rekey.tables.base import Page, Table
from rekey.tables.kinds import whole
from rekey.verify.report import LISTED
from rekey.verify.sums import SOURCE


@dataclass(frozen=True, slots=True)
class RecheckPolicy:
    """How long a difference is observed before it counts.

    Attributes:
        delay_s: seconds between two observations of one difference; it counts when both are the same.
        limit_s: seconds after which a row that never stands still is reported as unsettled.
        collision_s: seconds after which replicas that collide, and stand still, count although the journal
            announces a write: longer than a write is in flight.
        chunk: at most this many candidates are open at a time (bounds memory).
    """

    delay_s: float = 1.0
    limit_s: float = 600.0
    collision_s: float = 30.0
    chunk: int = 4096


async def never(_source_key: EntityKey) -> bool:
    """Return False: the default of `in_flight` and `pending`."""
    return False


async def keep_nothing(_table: int, _row: Row, _source_key: EntityKey | None) -> None:
    """Keep nothing: the default of `keep_removed`."""


# Tables and keys of rows, by safe id.
Keys = dict[str, tuple[str, EntityKey]]
# A divergence names three rows at most, and the first `LISTED` divergences are listed.
_MOST_KEYS = 3 * LISTED


def partition_of(table: Table, rows: Sequence[Row]) -> Hashable | None:
    """Return the table and partition whose rate a page counts against, None when it has several."""
    first, last = rows[0][PARTITION_KEY], rows[-1][PARTITION_KEY]
    return (table.name, first) if first == last else None


async def at_once(_table: str, _rows: int, _partition: Hashable | None) -> None:
    """Return without waiting: the default of `take`."""


@dataclass(frozen=True, kw_only=True)
class ReconcileContext:
    """Everything `count`, `sample`, `full` and `repair` need.

    Attributes:
        source: the source table.
        targets: the target tables in the mapper's order, the main one first.
        mapper: maps source rows to target rows.
        ids: makes the safe ids that name rows in reports.
        owner: returns the source key that owns a main target key by the mapping table, or None.
        propagate: makes the replicas of one source key equal what the authority says (for repair and
            `brings`).
        keep_removed: keeps a target row (by table number, with the source key it belongs to, if known) before
            repair removes it.
        keys: takes the keys of rows that reports name; None: they are not asked for.
        folder: where temporary files may be put; a private folder is made inside and removed again.
        advance: called with how many more rows were read, also with 0.
        stop: raises Interrupted when the work shall end; called between pages and rounds.
        in_flight: tells whether the journal holds an intent for a source key; then a difference does not
            count yet.
        pending: tells whether a difference on a source key is due to be mended by a later pass (capture
            "delta"); it is counted apart and not waited for.
        brings: propagate the source keys of all rows that differ before they are observed (capture "delta":
            nothing else writes to the targets).
        authority_is_target: True from cutover on: the source is read first, then the target; and copies of
            the source's Timestamp are not compared, since writing back gives the source row another one.
        concurrency: how many point reads, and scans that look for rows, are under way at a time.
        scans: how many parts of tables are summed up at a time.
        ahead: whether a part's next page is fetched while one is worked on: not where rates hold, since a
            partition would be asked for a page that its rate has no room for.
        take: waits until so many rows of a table and a partition (None: of several) may be read; called for
            every page.
        recheck: when a difference counts.
        clock: tells the time and waits; a `FakeClock` in tests.
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
    keep_removed: Callable[[int, Row, EntityKey | None], Awaitable[None]] = field(
        default=keep_nothing, repr=False
    )
    keys: Keys | None = field(default=None, repr=False)
    brings: bool = False
    authority_is_target: bool = False
    concurrency: int = 16
    scans: int = 8
    ahead: bool = True
    take: Callable[[str, int, Hashable | None], Awaitable[None]] = field(default=at_once, repr=False)
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

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of all tables, the source (`SOURCE`) first."""
        return SOURCE, *range(len(self.targets))

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
        """Count a page of a table that was read against the rates, and wait until they allow for it."""
        if page.rows:
            await self.take(table.name, len(page.rows), partition_of(table, page.rows))

    def source_id(self, key: EntityKey) -> str:
        """Return the short safe id of a source row."""
        return self._named(self.source.name, key)

    def target_id(self, table: int, key: EntityKey) -> str:
        """Return the short safe id of a row of target `table`."""
        return self._named(self.targets[table].name, key)

    def _named(self, table: str, key: EntityKey) -> str:
        row_id = self.ids.short(table, key)
        if self.keys is not None and len(self.keys) < _MOST_KEYS:
            self.keys[row_id] = (table, key)
        return row_id
