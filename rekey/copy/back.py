"""Rollback after cutover with capture "delta": copies the target's changes back to the source. As in
`ReversePropagator` the main target is the authority, the replica (the source row) is read first, and every
write is conditional on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from rekey.core.concurrency import for_each
from rekey.errors import RowRefused, Unavailable
from rekey.mapping.removed import RemovedRows
from rekey.mapping.rows import TargetKey
from rekey.model import EntityKey, Row, key_of
from rekey.protocol.effects import apply_for_etags
from rekey.protocol.propagate import MAX_ROUNDS, Propagator
from rekey.protocol.replicas import SOURCE_TABLE, copies_timestamp, difference, source_place, stands_for
from rekey.protocol.reverse import ReversePropagator
from rekey.tables.base import Verb
from rekey.tables.bulk import read_keys


class BackPropagator:
    """Makes source rows equal to what the main target says."""

    def __init__(self, propagator: Propagator, keeps: Callable[[Row], bool] = lambda _row: False) -> None:
        """Create it on a forward propagator, whose tables, mapping and mapper are used. `keeps`: tells of a
        source row that is about to be deleted whether it is kept as a removed row first."""
        self.forward = propagator
        self._keeps = keeps
        self._reverse = ReversePropagator(propagator)
        self.source = propagator.source
        self.mapper = propagator.mapper
        self.mapping = propagator.mapping

    async def owner_of(self, target_row: Row) -> EntityKey:
        """Return the old key of a main target row: from the mapping, for a new row from its own properties.
        Raises RowRefused: a new row does not say what its old key is."""
        owner = await self.mapping.owner(key_of(target_row))
        if owner is not None:
            return owner.source
        try:
            return self.mapper.source_key(target_row)
        except RowRefused as refused:
            raise refused.for_row(self._reverse.target_id(key_of(target_row))) from None

    async def differing(self, target_rows: Sequence[Row], *, limit: int) -> list[Row]:
        """Return those main target rows that differ from what the source rows map to, also in a copy of the
        source's Timestamp alone. `limit`: partitions of the source that are compared at a time."""
        # Source rows are read in bulk under the old keys that the target rows name. The comparison shows
        # whether such a key is right, so the mapping need not be read.
        differing: list[Row] = []
        partitions: defaultdict[str, dict[EntityKey, Row]] = defaultdict(dict)
        for row in target_rows:
            try:
                source_key = self.mapper.source_key(row)
            except RowRefused:
                differing.append(row)
                continue
            if partitions[source_key.partition].setdefault(source_key, row) is not row:
                differing.append(row)

        async def compare(rows: dict[EntityKey, Row]) -> None:
            source_rows = await read_keys(self.source, list(rows))
            for source_key, row in rows.items():
                source_row = source_rows.get(source_key)
                if (
                    source_row is None
                    or not stands_for(self.mapper, source_row, row)
                    or not copies_timestamp(self.mapper, source_row, row)
                ):
                    differing.append(row)

        await for_each(partitions.values(), compare, limit=limit)
        return differing

    async def check(self, target_row: Row) -> None:
        """Raise RowRefused when a main target row cannot be copied back; writes nothing."""
        source_key = await self.owner_of(target_row)
        # Only a row that maps forward again to exactly the target row is copied back: otherwise something
        # written after cutover would be lost.
        await self._reverse.expected_of(source_key, target_row, await self.source.get(source_key))

    async def claim_new(self, target_row: Row) -> EntityKey:
        """Claim the key of a row created in the target; return its old key. Raises Unavailable if it stays
        busy."""
        source_key = await self.owner_of(target_row)
        target = TargetKey(0, *key_of(target_row))
        for _ in range(MAX_ROUNDS):
            forward = await self.mapping.forward(source_key)
            owner = await self.mapping.owner(target.key)
            if forward is not None and target in forward.targets and owner is not None:
                return source_key
            await self.mapping.claim(source_key, forward, {target}, self._exists)
        raise Unavailable("a mapping row kept changing", hint="run the same command again")

    async def propagate(self, source_key: EntityKey) -> bool:
        """Make the source row of a key equal what the main target says; return whether it was written.

        Raises:
            RowRefused: copying back would lose something of the target row.
            Unavailable: the row changed in every one of `MAX_ROUNDS` rounds.
        """
        changed, place = False, source_place(source_key)
        for _ in range(MAX_ROUNDS):
            replica = await self.source.get(source_key)
            forward = await self.mapping.forward(source_key)
            authority = await self._reverse.authority(forward)
            expected = await self._reverse.expected_of(source_key, authority, replica)
            # Index rows are the application's until the source is the authority again, but they are listed:
            # once the source row is right, no difference would lead to those that the application wrote
            # itself.
            if forward is not None and not expected.keys() - {place} <= forward.targets:
                await self.mapping.extend(source_key, forward, expected.keys() - {place})
                continue
            desired = {place: expected[place]} if expected else {}
            writes = difference(desired, {place: replica} if replica else {}, {})
            if not writes:
                return changed
            [(_, write)] = writes
            if write.verb is Verb.DELETE and self._keeps(write.row):
                await RemovedRows(self.mapping).keep(SOURCE_TABLE, write.row, source_key)
            applied, _ = await apply_for_etags(self.source, [write])
            changed = changed or bool(applied)
            # Writers are stopped, so the authority is not reread after a replace or a delete; the
            # verification that follows finds writes that happened anyway.
            if applied and write.verb is not Verb.INSERT:
                return True
        raise Unavailable(
            f"row {self.forward.row_id(source_key)} changed in every one of {MAX_ROUNDS} attempts to copy it"
            " back",
            hint="stop the writers and run the same command again",
        )

    async def _exists(self, source_key: EntityKey, target: TargetKey) -> bool:
        authority = await self._reverse.authority(await self.mapping.forward(source_key))
        return authority is not None and key_of(authority) == target.key
