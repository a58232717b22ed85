"""Rows that a repair removed from a target (or, after cutover, the source): kept in the mapping table for a
while, so that they can be restored. They are sealed if the mapping is: shredding a month's data key takes its
removed rows along."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.core.safe_ids import SHORT_CHARACTERS
from rekey.errors import Ambiguous, ConditionFailed, RowMissing
from rekey.mapping.rows import MAPPING_TABLE
from rekey.mapping.sealing import DATA_KEY, binary, cohort_in, unreadable
from rekey.mapping.store import MappingStore
from rekey.model import (
    PARTITION_KEY,
    ROW_KEY,
    TIMESTAMP,
    EntityKey,
    KeyRange,
    Row,
    content_of,
    etag_of,
    key_of,
)

# The purpose that removed rows are sealed for.
REMOVED = "removed"
_PARTS = "Parts"
_CONTENT = "Content"
# Bytes of JSON in one row of the mapping table: padded and sealed they fit in its 1 MiB.
_PART_BYTES = 480 * 1024
_PROPERTY_BYTES = 60_000
_VERSION_CHARACTERS = 6
# How often a part is sent whose answer is lost.
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Kept:
    """A removed row that is kept, unopened."""

    # The safe id of the row, and after a `-` that of the version that was removed.
    name: str
    # When it was removed, by the service's clock.
    at: str
    # The number of rows that hold it.
    parts: int
    # The key of the first of them.
    first: EntityKey = field(repr=False)


@dataclass(frozen=True, slots=True)
class Removed:
    """A removed row, opened."""

    # The number of the target that it was in; -1: the source.
    table: int
    # The source key that it belonged to by the mapping; None when unknown.
    source: EntityKey | None = field(repr=False)
    row: Row = field(repr=False)


@dataclass(frozen=True)
class RemovedRows:
    """The removed rows of one migration."""

    mapping: MappingStore

    @property
    def partition(self) -> str:
        return f"{self.mapping.rows.script_id}.x"

    async def keep(self, table: int, row: Row, source: EntityKey | None) -> None:
        """Keep a row that is about to be removed.

        Args:
            table: the number of its target; -1: it is a row of the source.
            source: the source key that it belongs to, if known.
        """
        # Before the row is deleted: a copy of a row that was not deleted does no harm, a deleted row without
        # its copy would be lost.
        await self.mapping.fresh()
        rows, key = self.mapping.rows, key_of(row)
        plain = json.dumps([table, source, content_of(row)], separators=(",", ":")).encode("ascii")
        parts = [plain[at : at + _PART_BYTES] for at in range(0, len(plain), _PART_BYTES)]
        version = rows.ids.long(etag_of(row), key)[:_VERSION_CHARACTERS]
        name = f"{rows.ids.long(rows.name_of(table), key)}-{version}"
        # The first part is written last and deleted last: where it exists, the others do.
        for number, part in reversed(list(enumerate(parts))):
            at = EntityKey(self.partition, f"{name}-{number:03}")
            content: Row = {PARTITION_KEY: at.partition, ROW_KEY: at.row, _PARTS: len(parts)}
            # The same version again, after an interrupted repair: kept from now on.
            await self._upsert(content | self._sealed(at, part))

    async def _upsert(self, row: Row) -> None:
        """Write a part. Sent again where the answer was lost: both attempts write the same."""
        for _ in range(_ATTEMPTS - 1):
            with suppress(Ambiguous):
                await self.mapping.table.upsert(row)
                return
        await self.mapping.table.upsert(row)

    async def all(self) -> list[Kept]:
        """Return all removed rows that are kept, unopened."""
        return [_kept(row) for row in await self._rows() if row[ROW_KEY].endswith("-000")]

    async def find(self, name: str) -> list[Kept]:
        """Return the removed rows of a name, or, without its version, of a row's safe id."""
        row_id, _, version = name.strip().lower().partition("-")
        if len(row_id) < SHORT_CHARACTERS:
            return []
        matches = []
        for kept in await self.all():
            long, its_version, _ = kept.first.row.split("-")
            if long.startswith(row_id) and version in ("", its_version):
                matches.append(kept)
        return matches

    async def open(self, kept: Kept) -> Removed:
        """Open a removed row.

        Raises:
            SealedUnreadable: it cannot be opened, or a part of it is gone.
            Erased: its data key was shredded.
        """
        content = b""
        for number in range(kept.parts):
            at = EntityKey(self.partition, f"{kept.first.row[:-3]}{number:03}")
            row = await self.mapping.row_at(at)
            if row is None:
                raise unreadable(MAPPING_TABLE, at, "a part of a removed row is gone")
            content += self._opened(row)
        table, source, removed = json.loads(content)
        return Removed(table, EntityKey(*source) if source else None, removed)

    async def delete(self, kept: Kept) -> None:
        for number in reversed(range(kept.parts)):
            with suppress(RowMissing):
                at = EntityKey(self.partition, f"{kept.first.row[:-3]}{number:03}")
                await self.mapping.table.delete(at)

    async def expire(self, now: int, keep_s: float, cohorts: Iterable[str] = ()) -> int:
        """Delete the removed rows whose time is over; return how many.

        Args:
            now: the service's time in ticks.
            keep_s: how long removed rows are kept, in seconds.
            cohorts: months whose data keys were shredded: nothing opens their removed rows.
        """
        gone, shredded = 0, frozenset(cohorts)
        for row in await self._rows():
            if is_over(row[TIMESTAMP], now, keep_s) or cohort_in(str(row.get(DATA_KEY, ""))) in shredded:
                with suppress(RowMissing, ConditionFailed):
                    await self.mapping.table.delete(key_of(row), etag=etag_of(row))
                    gone += row[ROW_KEY].endswith("-000")
        return gone

    async def forget(self) -> None:
        for row in await self._rows():
            with suppress(RowMissing):
                await self.mapping.table.delete(key_of(row))

    async def _rows(self) -> list[Row]:
        pages = self.mapping.table.scan(KeyRange.of_rows(self.partition), select=[_PARTS, DATA_KEY])
        return [row async for page in pages for row in page.rows]

    def _sealed(self, at: EntityKey, part: bytes) -> Row:
        if self.mapping.rows.sealer is not None:
            return self.mapping.rows.sealer.seal(REMOVED, MAPPING_TABLE, at, part)
        content: Row = {}
        for number, start in enumerate(range(0, len(part), _PROPERTY_BYTES)):
            content |= binary(f"{_CONTENT}{number}", part[start : start + _PROPERTY_BYTES])
        return content

    def _opened(self, row: Row) -> bytes:
        if self.mapping.rows.sealer is not None:
            return self.mapping.rows.sealer.unseal(REMOVED, MAPPING_TABLE, row)
        parts: list[Any] = []
        while (text := row.get(f"{_CONTENT}{len(parts)}")) is not None:
            parts.append(base64.b64decode(text))
        return b"".join(parts)


def is_over(at: str, now: int, keep_s: float) -> bool:
    """Tell whether a row removed at a time is no longer kept at `now`, in ticks of the service."""
    return now >= ticks_of(at) + round(keep_s * TICKS_PER_SECOND)


def _kept(row: Row) -> Kept:
    long, version, _ = row[ROW_KEY].split("-")
    return Kept(f"{long[:SHORT_CHARACTERS]}-{version}", row[TIMESTAMP], int(row[_PARTS]), key_of(row))
