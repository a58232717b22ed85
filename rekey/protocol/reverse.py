"""propagate(k) with the sides exchanged: source and index rows follow the main target.

Rules kept here:

* The same as in `propagate`: replicas are read before the authority, every write is conditional on what was
  read, after the last write the authority is read again, after an insert a whole round follows, and an index
  key is listed in the mapping before a row is written under it.
* The main target row of a source key is, of all main keys it ever had, the one that it owns and that exists.
  So the list of those keys is part of what the authority says: it is read again whenever the authority is,
  behind the replicas. With an older list a row that moved meanwhile looks deleted, and so would its replicas.
* Only what the mapping knows is touched: a source row whose key was never claimed is nobody's replica.
* A target row goes back only if nothing of it is lost (`inverse`).
"""

from __future__ import annotations

from rekey.errors import RowRefused
from rekey.mapping.rows import Forward, TargetKey, pointer_of
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.protocol.inverse import inverse
from rekey.protocol.propagate import (
    MAX_ROUNDS,
    Propagated,
    Propagator,
    Tally,
    needs_another_round,
    version_of,
    yield_or_collide,
)
from rekey.protocol.replicas import SOURCE_TABLE, Rows, difference


class ReversePropagator:
    """Propagates from the main target, as the authority, to the source and the index tables."""

    def __init__(self, forward: Propagator) -> None:
        """Take the forward propagator: tables, mapping and mapper are the same."""
        self.forward = forward
        self.source = forward.source
        self.main = forward.targets[0]
        self.mapper = forward.mapper
        self.mapping = forward.mapping
        self.ignoring = dict(enumerate(forward.mapper.timestamp_copies))

    async def propagate(self, source_key: EntityKey) -> Propagated:
        """Make the source row of a key, and its index rows, equal what the main target says now.

        Raises:
            Collision: an index key it maps to belongs to another row.
            RowRefused: the target row cannot be expressed in the source; names it by safe id.
            Unavailable: the row changed in every one of `MAX_ROUNDS` rounds.
        """
        tally = Tally(source_key, self.forward.announce)
        for _ in range(MAX_ROUNDS):
            forward = await self.mapping.forward(source_key)
            if forward is None:
                return await tally.result()
            found = await self._read_replicas(source_key, forward)
            authority = await self._authority_now(source_key)
            expected = self.expected_of(source_key, authority, found.get(source_place(source_key)))
            unlisted = {one for one in expected if one.table > 0} - forward.targets
            if unlisted:
                await self.mapping.extend(source_key, forward, unlisted)
                continue
            found = await self._owned(source_key, expected, found, forward)
            writes = difference(expected, found, self.ignoring)
            if not await self.forward.apply_all(writes, tally):
                continue
            if not writes:
                return await tally.result()
            if not needs_another_round([operation for _, operation in writes]):
                now = await self._authority_now(source_key)
                if version_of(now) == version_of(authority):
                    return await tally.result()
        raise self.forward.too_busy(source_key)

    async def authority(self, forward: Forward | None) -> Row | None:
        """Return the main target row of a source key, None when there is none.

        Raises:
            RowRefused: two rows of the target claim the same old key.
        """
        if forward is None:
            return None
        mains = sorted(one for one in forward.targets if one.table == 0)
        rows = await self.forward.read(mains)
        present = [row for one, row in rows.items() if row is not None and await self._owns(forward, one)]
        if len(present) > 1:
            first, second = (self.target_id(key_of(row)) for row in present[:2])
            raise RowRefused(
                "not-reversible",
                "target",
                f"rows {first} and {second} of the target claim the same old key",
                cure="delete the one that is stale, then run the same command again",
                row_id=self.forward.row_id(forward.source),
            )
        return present[0] if present else None

    def expected_of(self, source_key: EntityKey, authority: Row | None, source_row: Row | None) -> Rows:
        """Return the replicas' rows as they should be when the main target row is `authority`.

        Args:
            source_key: the old key.
            authority: the main target row.
            source_row: the source row as it is: it keeps what the mapping takes away.

        Raises:
            RowRefused: the target row cannot be expressed in the source; names it by safe id.
        """
        if authority is None:
            return {}
        try:
            desired = inverse(self.mapper, source_key, authority, source_row)
            mapped = self.mapper.map(desired)[1:]
        except RowRefused as refused:
            raise refused.for_row(self.target_id(key_of(authority))) from None
        rows = {TargetKey(number, *key_of(row)): row for number, row in mapped}
        return {source_place(source_key): content_of(desired), **rows}

    async def still_owns(self, source_key: EntityKey, target: TargetKey) -> bool:
        """Tell whether a source key has a main target row now, and that stands under or maps to `target`."""
        authority = await self._authority_now(source_key)
        if authority is None or target.table == 0:
            return authority is not None and key_of(authority) == target.key
        return target in self.expected_of(source_key, authority, await self.source.get(source_key))

    def target_id(self, target_key: EntityKey) -> str:
        """Return the safe id of a main target row."""
        return self.mapping.rows.ids.short(self.main.name, target_key)

    async def _authority_now(self, source_key: EntityKey) -> Row | None:
        """Return the main target row of a source key by what the mapping lists now."""
        return await self.authority(await self.mapping.forward(source_key))

    async def _owns(self, forward: Forward, target: TargetKey) -> bool:
        return await self.forward.is_owner(forward.source, target.key)

    async def _read_replicas(self, source_key: EntityKey, forward: Forward) -> Rows:
        indexes = sorted(one for one in forward.targets if one.table > 0)
        rows = await self.forward.read([source_place(source_key), *indexes])
        return {target: row for target, row in rows.items() if row is not None}

    async def _owned(self, source_key: EntityKey, expected: Rows, found: Rows, forward: Forward) -> Rows:
        """Leave out index rows that belong to another source row by now."""
        own = dict(found)
        main_keys = {target.key for target in forward.targets if target.table == 0}
        for target, row in found.items():
            if target.table == SOURCE_TABLE or pointer_of(row) in main_keys:
                continue
            if target in expected:
                await yield_or_collide(self.mapping, self.still_owns, source_key, target, row)
            else:
                del own[target]
        return own


def source_place(source_key: EntityKey) -> TargetKey:
    """Return how the source row of a key is named where it is a replica."""
    return TargetKey(SOURCE_TABLE, *source_key)
