"""A mapping that is computed from keys instead of stored (`mapping="none"`): the mapper gives the one target
key of a source key, and its inverse gives the source key back. See README.md."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from rekey.declaration.mapper import Mapper
from rekey.errors import RowExists, RowMissing, RowRefused, TableMissing
from rekey.mapping.rows import Forward, Owner, Reservation, TargetKey, targets_of
from rekey.mapping.store import MappingStore, StillOwns
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row, key_of


@dataclass(eq=False, kw_only=True)
class ComputedMapping(MappingStore):
    """Answers as `MappingStore`, without a request. Its table holds no mapping rows: only the mark that the
    targets are this migration's (`begin`), and target rows that were removed (`RemovedRows`)."""

    mapper: Mapper

    is_stored: ClassVar[bool] = False

    # --- which rows are ours ---------------------------------------------------------------------------

    async def begin(self) -> None:
        """Mark that the targets were empty: rows in them under keys of the mapping are ours from now on."""
        at = self._mark
        try:
            await self.table.insert({PARTITION_KEY: at.partition, ROW_KEY: at.row})
        except RowExists:
            return

    async def disown(self) -> None:
        """Take the mark away, before the targets are dropped: what their names hold then is somebody's."""
        with suppress(RowMissing, TableMissing):
            await self.table.delete(self._mark)

    async def owns(self, table: int, row: Row) -> bool:
        # The key alone does not say so: somebody else's rows may have keys that the mapping gives, too.
        if await super().owns(table, row):
            try:
                return await self.table.get(self._mark) is not None
            except TableMissing:
                return False
        return False

    @property
    def _mark(self) -> EntityKey:
        return EntityKey(self.rows.passed_partition, "targets")

    # --- what keys say ---------------------------------------------------------------------------------

    def source_of(self, target_key: EntityKey) -> EntityKey | None:
        """Return the source key that maps to a main target key; None: none does."""
        try:
            return self.mapper.source_key({PARTITION_KEY: target_key.partition, ROW_KEY: target_key.row})
        except RowRefused:
            return None

    def target_of(self, source_key: EntityKey) -> EntityKey | None:
        """Return the main target key that a source key maps to; None: to none."""
        keys = self.mapper.target_keys(source_key) if self.mapper.migration.has(source_key) else None
        return keys[0][1] if keys else None

    def sources_of(self, rows: Iterable[Row]) -> list[EntityKey]:
        """Return the source keys that map to main target rows."""
        keys = (self.source_of(key_of(row)) for row in rows)
        return [key for key in keys if key is not None]

    async def forward(self, source_key: EntityKey) -> Forward | None:
        target = self.target_of(source_key)
        return None if target is None else Forward(source_key, frozenset({TargetKey(0, *target)}), "")

    async def owner(self, target_key: EntityKey, table: int = 0) -> Owner | None:
        source_key = None if table else self.source_of(target_key)
        return None if source_key is None else Owner(source_key, "")

    async def expired_on(self) -> str:
        return ""

    # --- claims: two source keys never have one target key, so each is its source key's already ----------

    async def claim(
        self,
        source_key: EntityKey,
        forward: Forward | None,
        targets: Iterable[TargetKey],
        still_owns: StillOwns,
    ) -> None:
        pass

    async def claim_main(self, source_key: EntityKey, target: TargetKey, still_owns: StillOwns) -> None:
        pass

    async def take(
        self,
        source_key: EntityKey,
        target: TargetKey,
        owner: Owner | None,  # noqa: ARG002
        reserved: Reservation | None = None,  # noqa: ARG002
    ) -> Owner | None:
        now = await self.owner(target.key, target.table)
        return now if now is not None and now.source == source_key else None

    async def reserve(
        self,
        source_key: EntityKey,
        forward: Forward | None,  # noqa: ARG002
        targets: Iterable[TargetKey],
        reserved: Reservation | None,  # noqa: ARG002
    ) -> Forward | None:
        now = await self.forward(source_key)
        return now if targets_of(now) >= frozenset(targets) else None

    async def passed(self, since: str) -> AsyncIterator[tuple[TargetKey, EntityKey, EntityKey]]:  # noqa: ARG002
        # No claim passes on. The mark is in the partition where records of that would be.
        records: tuple[tuple[TargetKey, EntityKey, EntityKey], ...] = ()
        for record in records:
            yield record
