"""Mapping source rows: computes a window's rows in each target, and the writes for these."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields

from rekey.errors import RowRefused
from rekey.mapping.rows import MappingRows, TargetKey, target_key
from rekey.model import EntityKey, Row, key_of
from rekey.protocol.propagate import Propagator
from rekey.tables.base import Operation, Verb

# Rows that are mapped, or packed, before other tasks run: a batch that may be sent must not wait for the
# mapping, because an allowance that is not used in time is lost.
TURN_ROWS = 100

# A window is nearly done when at most one in so many writes of its present stage is left.
_NEARLY = 10


@dataclass(slots=True)
class Copied:
    """Figures of copying: source rows read, target rows inserted, source rows handed to propagate, source
    rows for which propagate wrote something, batches sent to the mapping and the targets, and source rows
    that no kind takes, which have no target rows."""

    rows: int = 0
    inserted: int = 0
    propagated: int = 0
    changed: int = 0
    requests: int = 0
    not_migrated: int = 0

    def add(self, other: Copied) -> None:
        """Add another window's figures."""
        for figure in fields(self):
            setattr(self, figure.name, getattr(self, figure.name) + getattr(other, figure.name))


@dataclass(slots=True, eq=False)
class CopyWindow:
    """Rows read at once, while they are copied. It is durable when all writes of a stage are."""

    # Counts the windows of one writer, from 1.
    number: int = 0
    # By source key, the rows that the targets should have; empty once these are handed over.
    expected: dict[EntityKey, dict[TargetKey, Row]] = field(default_factory=dict)
    # By target key, the first source key that maps to it; empty once mapping rows are handed over.
    claimed: dict[TargetKey, EntityKey] = field(default_factory=dict)
    # Source keys whose rows clash with each other or with rows in the targets; left to propagate.
    unsettled: set[EntityKey] = field(default_factory=set)
    copied: Copied = field(default_factory=Copied)
    # Writes of the present stage that are not durable yet; one more until all are handed over.
    left: int = 0
    # Writes of the present stage.
    handed: int = 0
    # Done when `left` is 0.
    durable: asyncio.Future[None] | None = None
    # Stages that are handed over: 1 its mapping rows, 2 its target rows, too.
    packed: int = 0
    # Writes of all stages; `written`: those that are durable.
    writes: int = 0
    written: int = 0
    # Rows reported as progress: as large a part of all rows as is written.
    reported: int = 0

    @property
    def nearly_done(self) -> bool:
        return self.left * _NEARLY <= self.handed

    def begin(self) -> asyncio.Future[None]:
        """Begin a stage; return the future that is done once all its writes are handed over and durable."""
        self.durable = asyncio.get_running_loop().create_future()
        self.handed, self.left = 0, 1  # the stage itself, until all its writes are handed over
        return self.durable

    def wrote(self, count: int) -> None:
        self.left -= count
        self.written += count
        if not self.left and self.durable is not None and not self.durable.done():
            self.durable.set_result(None)

    def more(self) -> int:
        """Return how many rows, in proportion to what is written, were not reported as progress yet."""
        upto = self.copied.rows * min(self.written, self.writes) // max(1, self.writes)
        more, self.reported = upto - self.reported, upto
        return more


@dataclass(slots=True, kw_only=True)
class Write(Operation):
    """An insert for a source row that was read in a window."""

    source: EntityKey = field(repr=False)
    window: CopyWindow = field(repr=False)


async def map_window(propagator: Propagator, source_rows: Sequence[Row], window: CopyWindow) -> None:
    """Add the rows that source rows map to to a window. Raises RowRefused, which names a row by safe id."""
    map_all, expected, claim = propagator.mapper.map_all, window.expected, window.claimed.setdefault

    def refuse(source_row: Row, refused: RowRefused) -> None:
        raise refused.for_row(propagator.row_id(key_of(source_row))) from None

    for first in range(0, len(source_rows), TURN_ROWS):
        if first:
            await asyncio.sleep(0)
        for source_row, mapped in map_all(source_rows[first : first + TURN_ROWS], refuse):
            if not mapped:
                window.copied.not_migrated += 1
                continue
            source_key = key_of(source_row)
            expected[source_key] = targets = {}
            for table, row in mapped:
                target = target_key(table, row)
                targets[target] = row
                claimant = claim(target, source_key)
                if claimant != source_key:
                    # Two rows of one window want one key. One may be gone by now, so neither is written here:
                    # propagate rereads both and names collisions.
                    window.unsettled.update((source_key, claimant))


def mapping_writes(rows: MappingRows, window: CopyWindow) -> Iterator[Write]:
    """Yield the inserts of a window's mapping rows, without unsettled source keys."""
    copied = [item for item in window.expected.items() if item[0] not in window.unsettled]
    for first in range(0, len(copied), TURN_ROWS):
        for source_key, row in rows.rows_of(copied[first : first + TURN_ROWS]):
            yield Write(Verb.INSERT, row, source=source_key, window=window)


def target_writes(window: CopyWindow, tables: Collection[int]) -> Iterator[Write]:
    """Yield the inserts of a window for target tables, given by number, without unsettled source keys; those
    of one source row are consecutive."""
    insert, unsettled = Verb.INSERT, window.unsettled
    for source_key, targets in window.expected.items():
        if unsettled and source_key in unsettled:
            continue
        for target, row in targets.items():
            if target.table in tables:
                yield Write(insert, row, source=source_key, window=window)
