"""The context of a verification: tables, mapping, and access to the migration's rows. The functions of this
package depend on it alone, so that they behave alike in a phase, a command and a test."""

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
from rekey.verify.bucket_digests import SOURCE
from rekey.verify.report import LISTED


@dataclass(frozen=True, slots=True)
class RecheckPolicy:
    """How long a difference is observed before it counts."""

    # Seconds between two observations; a difference counts when both are the same.
    delay_s: float = 1.0
    # Seconds after which a row that keeps changing is reported as unsettled.
    limit_s: float = 600.0
    # Seconds after which colliding, unchanging replicas count although the journal announces a write: longer
    # than a write is in flight.
    collision_s: float = 30.0
    # Most candidates observed at a time (bounds memory).
    chunk: int = 4096


async def never(*_asked: object) -> bool:
    """Return False: the default of `in_flight` and `pending`."""
    return False


async def keep_nothing(_table: int, _row: Row, _source_key: EntityKey | None) -> None:
    """Do nothing: the default of `keep_removed`."""


# Table and key of a row, by safe id.
Keys = dict[str, tuple[str, EntityKey]]
# A divergence names at most three rows.
_MOST_KEYS = 3 * LISTED


def partition_of(table: Table, rows: Sequence[Row]) -> Hashable | None:
    """Return the table and partition whose rate a page counts against; None: it has several."""
    first, last = rows[0][PARTITION_KEY], rows[-1][PARTITION_KEY]
    return (table.name, first) if first == last else None


async def read_at_once(_table: str, _rows: int, _partition: Hashable | None) -> None:
    """Return without waiting: the default of `RowReads.wait`."""


@dataclass(frozen=True, kw_only=True)
class MappedRows:
    """What the migration knows about a source key, and does for it."""

    # Returns the source key that owns a main target key by the mapping table, or None.
    owner: Callable[[EntityKey], Awaitable[EntityKey | None]] = field(repr=False)
    # Makes the replicas of one source key equal to the authority.
    propagate: Callable[[EntityKey], Awaitable[object]] = field(repr=False)
    # Tells whether the journal holds an intent for a source key: then a difference does not count yet.
    in_flight: Callable[[EntityKey], Awaitable[bool]] = field(default=never, repr=False)
    # Tells whether a later pass is due to repair a difference of a source key at a target key, given with its
    # table number (capture "delta"): it is counted separately and not waited for.
    pending: Callable[[EntityKey, int, EntityKey], Awaitable[bool]] = field(default=never, repr=False)
    # Stores a target row (table number, row, source key if known) before repair removes it.
    keep_removed: Callable[[int, Row, EntityKey | None], Awaitable[None]] = field(
        default=keep_nothing, repr=False
    )


@dataclass(frozen=True, kw_only=True)
class RowReads:
    """How tables are read: limits, rates, and what is called meanwhile."""

    # Point reads, and scans for rows, in flight at a time.
    concurrency: int = 16
    # Parts of tables read at a time for their digests.
    scans: int = 8
    # Fetch a part's next page while one is worked on. Off under rate limits, where a page would be requested
    # before the partition's rate allows for it.
    prefetch: bool = True
    # Waits until the rates allow for so many more rows of a table and a partition (None: of several); called
    # for every page.
    wait: Callable[[str, int, Hashable | None], Awaitable[None]] = field(default=read_at_once, repr=False)
    # Called with how many more rows were read, also with 0.
    advance: Advance = field(default=lambda _rows: None, repr=False)
    # Raises Interrupted when the work must end; called between pages and rounds.
    stop: Callable[[], None] = field(default=lambda: None, repr=False)


@dataclass(frozen=True, kw_only=True)
class ReconcileContext:
    """Everything `count`, `sample`, `full` and `repair` need."""

    source: Table
    # In the mapper's order, the main one first.
    targets: Sequence[Table]
    mapper: Mapper
    ids: SafeIds
    rows: MappedRows
    # Where a private folder for temporary files is created.
    folder: Path
    reads: RowReads = field(default_factory=RowReads)
    recheck: RecheckPolicy = field(default_factory=RecheckPolicy)
    clock: Clock = field(default_factory=SystemClock, repr=False)
    # Receives the keys of rows that reports name; None: not requested.
    keys: Keys | None = field(default=None, repr=False)
    # Propagate the source keys of all differing rows before they are observed (capture "delta": nothing else
    # writes to the targets).
    propagate_first: bool = False
    # True from cutover on: the source is read first, then the target. Copies of the source's Timestamp are
    # not compared, since writing back gives the source row another one.
    authority_is_target: bool = False

    def now(self) -> str:
        """Return the clock's time, UTC, as the service writes it."""
        return format_ticks(self.clock.ticks())

    def seconds(self) -> float:
        """Return the clock's time in seconds, for durations."""
        return self.clock.ticks() / TICKS_PER_SECOND

    def table(self, number: int) -> Table:
        return self.source if number == SOURCE else self.targets[number]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of all tables, the source (`SOURCE`) first."""
        return SOURCE, *range(len(self.targets))

    def whole(self, number: int) -> Table:
        """Return the source or a target with rows of all kinds that it holds."""
        return whole(self.table(number))

    def label(self, number: int) -> str:
        """Return what the source (`SOURCE`) or a target is called in a report."""
        return self.source.name if number == SOURCE else self.mapper.labels[number]

    def not_compared(self, table: int) -> frozenset[str]:
        """Return the properties of target `table` that are not compared."""
        return self.mapper.timestamp_copies[table] if self.authority_is_target else frozenset()

    async def count_page(self, table: Table, page: Page) -> None:
        """Count a page against the rates, and wait until they allow for it."""
        if page.rows:
            await self.reads.wait(table.name, len(page.rows), partition_of(table, page.rows))

    def source_id(self, key: EntityKey) -> str:
        return self._row_id(self.source.name, key)

    def target_id(self, table: int, key: EntityKey) -> str:
        return self._row_id(self.targets[table].name, key)

    def _row_id(self, table: str, key: EntityKey) -> str:
        row_id = self.ids.short(table, key)
        if self.keys is not None and len(self.keys) < _MOST_KEYS:
            self.keys[row_id] = (table, key)
        return row_id
