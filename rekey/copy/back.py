"""The way back after cutover: copying the target's changes to the source (capture "delta").

Rules kept here:

* The authority is the main target: of all main keys that a source key ever had, the row under the one that it
  owns, as for `ReversePropagator`. As there, the replica (the source row) is read first, every write is
  conditional on the replica that was read, and a whole round follows an insert. Writers are stopped here, so
  after a replace or a delete the authority is not read again; the verification that follows finds writes that
  came in spite of that.
* Index tables are left to the application until the source is the authority again: they are no replicas here.
  Their keys are listed in the mapping before the source row is written all the same. The application may have
  written the rows itself; once the source row is as it should be, nothing differs that would lead to them.
* Nothing written after cutover is lost: a row goes back only if mapping it forward again gives exactly the
  target row. Where it does not (a property the mapping drops, a changed carrier of the old key), the way
  back is refused, before anything is written.
* A row written new in the target finds its old key in its own properties (a copied key); otherwise refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rekey.core.concurrency import for_each
from rekey.errors import RowRefused, Unavailable
from rekey.mapping.rows import TargetKey
from rekey.model import EntityKey, Row, key_of
from rekey.protocol.effects import apply_for_etags
from rekey.protocol.propagate import MAX_ROUNDS, Propagator
from rekey.protocol.replicas import difference, source_place, stands_for
from rekey.protocol.reverse import ReversePropagator
from rekey.tables.base import Verb
from rekey.tables.bulk import read_keys


class BackPropagator:
    """Makes source rows equal to what the main target says."""

    def __init__(self, propagator: Propagator) -> None:
        """Create it. `propagator` is the forward propagator, whose tables, mapping and mapper are used."""
        self.forward = propagator
        self._reverse = ReversePropagator(propagator)
        self.source = propagator.source
        self.mapper = propagator.mapper
        self.mapping = propagator.mapping

    async def owner_of(self, target_row: Row) -> EntityKey:
        """Return the old key of a main target row: from the mapping, for a new row from its own properties.

        Raises:
            RowRefused: a new row does not say what its old key is.
        """
        owner = await self.mapping.owner(key_of(target_row))
        if owner is not None:
            return owner.source
        try:
            return self.mapper.source_key(target_row)
        except RowRefused as refused:
            raise refused.for_row(self._reverse.target_id(key_of(target_row))) from None

    async def differing(self, target_rows: Sequence[Row], *, limit: int) -> list[Row]:
        """Return those main target rows that differ from what the source rows map to.

        The source rows are read in bulk under the old keys that the target rows themselves name; the
        comparison shows whether such a key is right, so the mapping need not be read.

        Args:
            target_rows: main target rows as read.
            limit: partitions of the source that are compared at a time.
        """
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
            found = await read_keys(self.source, list(rows))
            for source_key, row in rows.items():
                source_row = found.get(source_key)
                if source_row is None or not stands_for(self.mapper, source_row, row):
                    differing.append(row)

        await for_each(partitions.values(), compare, limit=limit)
        return differing

    async def check(self, target_row: Row) -> None:
        """Raise RowRefused when a main target row cannot go back; writes nothing."""
        source_key = await self.owner_of(target_row)
        self._reverse.expected_of(source_key, target_row, await self.source.get(source_key))

    async def claim_new(self, target_row: Row) -> EntityKey:
        """Claim the key of a row written new in the target in the mapping; return its old key.

        Raises:
            Unavailable: a mapping row kept changing.
        """
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
            RowRefused: the way back would lose something of the target row.
            Unavailable: the row changed in every one of `MAX_ROUNDS` rounds.
        """
        changed, place = False, source_place(source_key)
        for _ in range(MAX_ROUNDS):
            replica = await self.source.get(source_key)
            forward = await self.mapping.forward(source_key)
            authority = await self._reverse.authority(forward)
            expected = self._reverse.expected_of(source_key, authority, replica)
            if forward is not None and not expected.keys() - {place} <= forward.targets:
                await self.mapping.extend(source_key, forward, expected.keys() - {place})
                continue
            desired = {place: expected[place]} if expected else {}
            writes = difference(desired, {place: replica} if replica else {}, {})
            if not writes:
                return changed
            [(_, write)] = writes
            applied, _ = await apply_for_etags(self.source, [write])
            changed = changed or bool(applied)
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
