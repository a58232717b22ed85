"""The mapping table of one migration: looking keys up, and claiming target keys.

Rules kept here:

* A target key is claimed before a row is written under it: the reverse row first, the forward row second,
  so nothing ever exists in a target that the mapping does not account for.
* A target key has one owner. A second claimant is a collision, unless the owner's source row is gone or maps
  elsewhere by now (an old row deleted, a new one written under a key that maps alike): then the claim passes
  over, conditionally on the reverse row that was read.
* With a keyring, rows are sealed: the present data key is there before a row is made, and the data keys of
  rows that were read are there before they are opened.
* What was erased is told (`Erased`), never taken for absent: every write here is an insert-if-absent or
  conditional on a row that was read, so none goes over a tombstone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass

from rekey.errors import (
    Ambiguous,
    Collision,
    ConditionFailed,
    Erased,
    RowExists,
    RowMissing,
    TableMissing,
    Unavailable,
)
from rekey.mapping.keyring import Keyring
from rekey.mapping.rows import (
    WHOLE,
    Forward,
    MappingRows,
    Owner,
    Reservation,
    TargetKey,
    is_tombstone,
    pointer_of,
)
from rekey.mapping.sealing import key_partition, within
from rekey.model import EntityKey, KeyRange, Row, key_of
from rekey.tables.base import Page, Table

_MAX_ROUNDS = 50

StillOwns = Callable[[EntityKey, TargetKey], Awaitable[bool]]
"""Tells whether a source key's row exists now and maps to a target key."""


@dataclass(eq=False)
class MappingStore:
    """Reads and extends the mapping rows of one migration.

    Attributes:
        table: the restricted mapping table.
        rows: builds and reads its rows.
        keyring: of sealed ones; None for a mapping in the clear.
    """

    table: Table
    rows: MappingRows
    keyring: Keyring | None = None

    async def fresh(self) -> None:
        """Have what rows are sealed with that are about to be made."""
        if self.keyring is not None:
            await self.keyring.fresh()

    async def learn(self, rows: Iterable[Row]) -> None:
        """Have what rows are opened with that were read."""
        if self.keyring is not None:
            await self.keyring.learn(rows)

    async def forward(self, source_key: EntityKey) -> Forward | None:
        """Return the forward row of a source key, None when it was never copied. Raises Erased."""
        row = await self.table.get(self.rows.forward_key(source_key))
        if row is None:
            return None
        await self.learn((row,))
        return self.rows.read_forward(row)

    async def owner(self, target_key: EntityKey) -> Owner | None:
        """Return the owner of a main target key, None when it is not claimed. Raises Erased."""
        row = await self.table.get(self.rows.reverse_key(target_key))
        if row is None:
            return None
        await self.learn((row,))
        return self.rows.read_owner(row)

    async def owns(self, table: int, row: Row) -> bool:
        """Tell whether this migration wrote a row of its target table with that number (0: main)."""
        try:
            return await self.owner(pointer_of(row) if table else key_of(row)) is not None
        except Erased:
            return True
        except TableMissing:
            return False

    async def expired_on(self) -> str:
        """Return the day on which a mapping in the clear expired, "" when it has not begun to.

        Raises:
            SealedUnreadable: what says so is not by rekey.
        """
        if self.keyring is not None:
            return ""
        row = await self.table.get(EntityKey(key_partition(self.rows.script_id), WHOLE))
        return "" if row is None or not is_tombstone(row) else self.rows.tombstones.read(row)

    async def claim(
        self,
        source_key: EntityKey,
        forward: Forward | None,
        targets: Iterable[TargetKey],
        still_owns: StillOwns,
    ) -> None:
        """Claim target keys for a source key: reverse rows first, then the forward row.

        The caller reads the forward row again afterwards: another writer may have extended it meanwhile.

        Args:
            source_key: the claimant.
            forward: its forward row as read, None when there was none.
            targets: the target keys it is about to be written under.
            still_owns: asked about the present owner of a key that is taken.

        Raises:
            Collision: a main target key belongs to another source row that exists and maps to it.
            RowRefused: more target keys than one forward row can list.
        """
        wanted = frozenset(targets)
        for target in sorted(wanted):
            if target.table == 0:
                await self.claim_main(source_key, target, still_owns)
        await self.extend(source_key, forward, wanted)

    async def extend(
        self, source_key: EntityKey, forward: Forward | None, targets: Iterable[TargetKey]
    ) -> Forward | None:
        """List target keys in the forward row of a source key; what it reserves stays. As `reserve`."""
        return await self.reserve(source_key, forward, targets, forward.reserved if forward else None)

    async def reserve(
        self,
        source_key: EntityKey,
        forward: Forward | None,
        targets: Iterable[TargetKey],
        reserved: Reservation | None,
    ) -> Forward | None:
        """List target keys in the forward row of a source key, and say what it reserves.

        Args:
            source_key: whose forward row.
            forward: the row as read, None when there was none.
            targets: the target keys to add.
            reserved: what the row reserves from now on.

        Returns:
            The forward row as written; None when another writer changed the row meanwhile, or that is not
            known: the caller reads what it says now.

        Raises:
            RowRefused: more target keys than one forward row can list.
        """
        listed = frozenset(targets) | (forward.targets if forward else frozenset())
        await self.fresh()
        row = self.rows.forward_row(source_key, listed, reserved)
        try:
            if forward is None:
                etag = await self.table.insert(row)
            else:
                etag = await self.table.replace(row, etag=forward.etag)
        except (RowExists, RowMissing, ConditionFailed, Ambiguous):
            return None
        return Forward(source_key, listed, etag, reserved)

    async def claim_absent(self, source_key: EntityKey, target_key: EntityKey) -> bool:
        """Claim a main target key that has no owner; False when it has one, or when that is not known."""
        await self.fresh()
        try:
            await self.table.insert(self.rows.reverse_row(source_key, target_key))
        except (RowExists, Ambiguous):
            return False
        return True

    async def claim_main(self, source_key: EntityKey, target: TargetKey, still_owns: StillOwns) -> None:
        """Make a source key the owner of a main target key. Raises Collision."""
        await self.fresh()
        row = self.rows.reverse_row(source_key, target.key)
        for _ in range(_MAX_ROUNDS):
            owner = await self.owner(target.key)
            try:
                if owner is None:
                    await self.table.insert(row)
                elif owner.source != source_key:
                    if await still_owns(owner.source, target):
                        raise self.collision(target, owner.source, source_key)
                    await self.table.replace(row, etag=owner.etag)
                return
            except (RowExists, RowMissing, ConditionFailed, Ambiguous):
                continue
        raise Unavailable(
            "a mapping row kept changing while it was claimed",
            hint="run the same command again; if it stays so, look for a second writer of the mapping table",
        )

    def collision(self, target: TargetKey, first: EntityKey, second: EntityKey) -> Collision:
        """Return the error that names two source rows of one target key by their safe ids."""
        ids, source = self.rows.ids, self.rows.source
        return Collision(self.rows.tables[target.table], ids.short(source, first), ids.short(source, second))

    async def scan(self, direction: str) -> AsyncIterator[Page]:
        """Iterate over all mapping rows of a direction: `f` (forward) or `r` (reverse)."""
        for partition in self.rows.partitions(direction):
            async for page in self.table.scan(within(partition)):
                await self.learn(page.rows)
                yield page

    async def lookup(self, direction: str, prefix: str) -> list[Row]:
        """Return the mapping rows of a direction whose digest starts with `prefix` (a safe id)."""
        if not prefix:
            return []
        partition = f"{self.rows.script_id}.{direction}.{prefix[0]}"
        bounds = KeyRange(EntityKey(partition, prefix[:-1]), EntityKey(partition, prefix + "\uffff"))
        pages = self.table.scan(bounds)
        return [row async for page in pages for row in page.rows if row["RowKey"].startswith(prefix)]
