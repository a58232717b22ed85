"""propagate(k) with the sides exchanged: source and index rows follow the main target, by the same rules."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from rekey.declaration.row_makers import TargetRow
from rekey.errors import Collision, RowRefused
from rekey.mapping.rows import Forward, Owner, TargetKey
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.protocol.propagate import Propagated, Propagator, Tally
from rekey.protocol.replicas import Rows, same_content, source_place
from rekey.protocol.rules import SOURCE, Side


class ReversePropagator(Propagator):
    """Propagates from the main target, as the authority, to the source and the index tables."""

    def __init__(self, forward: Propagator) -> None:
        """Create it with the tables, mapping, mapper and announcements of the forward propagator."""
        super().__init__(forward.source, forward.targets, forward.mapper, forward.mapping, forward.width)
        self.forward = forward
        self.ignoring = dict(enumerate(forward.mapper.timestamp_copies))
        self.references = forward.references

    def tally(self, source_key: EntityKey, *, announced: bool = True) -> Tally:
        """Return the forward propagator's tally: its `announce` is set later, when a session has begun."""
        return self.forward.tally(source_key, announced=announced)

    async def settle(self, authority: Side, side: Side, key: EntityKey) -> Propagated:
        """Make the replicas of a key equal what the authority, source or main target, says now.

        Args:
            authority: which side decides now.
            side: which table `key` is a key of.
            key: a source key or a main target key.

        Raises:
            ServiceError, Findings: the key could not be propagated.
        """
        if side != SOURCE:
            # A main target key without an owner never had a row: claims come first.
            owner = await self.owner_of(key)
            if owner is None:
                return Propagated()
            key = owner
        return await (self.forward if authority == SOURCE else self).propagate(key)

    async def authority(self, forward: Forward | None) -> Row | None:
        """Return the main target row of the source key of a forward row: of all main keys it ever had, the
        one that it owns and that exists; None when there is none. Raises RowRefused: two rows of the target
        claim the same old key."""
        if forward is None:
            return None
        rows = await self.read(sorted(target for target in forward.targets if target.table == 0))
        # A claim comes before the forward row that lists its key. Somebody deleted one that is missing, and a
        # propagate writes it again, for the key that the row names: a former owner lists it as well.
        present = [
            row
            for row in rows.values()
            if row is not None and await self.holder(row) in (forward.source, None)
        ]
        if len(present) > 1:
            first, second = (self.target_id(key_of(row)) for row in present[:2])
            raise RowRefused(
                "not-reversible",
                "target",
                f"rows {first} and {second} of the target claim the same old key",
                cure="delete the one that is stale, then run the same command again",
                row_id=self.row_id(forward.source),
            )
        return present[0] if present else None

    def named_by(self, row: Row | None) -> EntityKey | None:
        """Return the old key that a main target row names, None where it does not say or is not there."""
        try:
            return None if row is None else self.mapper.source_key(row)
        except RowRefused:
            return None

    async def holder(self, row: Row) -> EntityKey | None:
        """Return the old key that a main target row, as read before, belongs to; None where the mapping does
        not know it."""
        target = TargetKey(0, *key_of(row))
        owner, named = await self.owner_of(target.key), self.named_by(row)
        if named is None or named == owner:
            return owner
        # A row that names another old key than its key's owner, or whose key has none, belongs to that one if
        # its forward row lists the key: a transaction has deleted one row and created the other (ADR 0017).
        # The claim passes on when the new owner is propagated, after the former one's source row is gone.
        forward = await self.mapping.forward(named)
        # Not listed: something other than a client changed the property, which is reported on rollback.
        return named if forward is not None and target in forward.targets else owner

    async def expected_of(
        self, source_key: EntityKey, authority: Row | None, source_row: Row | None = None
    ) -> Rows:
        if authority is None:
            # Its absence says nothing about a source row that no kind takes: that never had a main row, or
            # lost it when a property changed. Such a row stays.
            stays = source_row is not None and self.mapper.is_dropped(source_row)
            return {source_place(source_key): content_of(source_row)} if stays and source_row else {}
        try:
            desired = await self.inverse(source_key, authority, source_row)
            mapped = self.mapper.map(desired)[1:]
        except RowRefused as refused:
            raise refused.for_row(self.target_id(key_of(authority))) from None
        rows = {TargetKey(number, *key_of(row)): row for number, row in mapped}
        return {source_place(source_key): content_of(desired), **rows}

    async def still_owns(self, source_key: EntityKey, target: TargetKey) -> bool:
        authority = await self._authority(source_key)
        if authority is None or target.table == 0:
            return authority is not None and key_of(authority) == target.key
        return target in await self.expected_of(source_key, authority, await self.source.get(source_key))

    async def _holder_of(self, main: EntityKey) -> EntityKey | None:
        row = await self.table(0).get(main)
        return await self.owner_of(main) if row is None else await self.holder(row)

    async def _row_owner(
        self, source_key: EntityKey, main: EntityKey, claim: Owner | None
    ) -> EntityKey | None:
        # The row itself says whose it is, also while its claim is passing on.
        row = await self.table(0).get(main)
        return await super()._row_owner(source_key, main, claim) if row is None else await self.holder(row)

    async def _unlisted(
        self, source_key: EntityKey, expected: Rows, listed: frozenset[TargetKey], authority: Row | None
    ) -> set[TargetKey]:
        unlisted = await super()._unlisted(source_key, expected, listed, authority)
        if authority is not None and not await self.is_owner(source_key, key_of(authority)):
            unlisted.add(TargetKey(0, *key_of(authority)))
        return unlisted

    async def _claim(
        self, source_key: EntityKey, forward: Forward | None, targets: set[TargetKey], tally: Tally
    ) -> None:
        for target in sorted(targets):
            owner = await self.owner_of(target.key) if target.table == 0 else None
            if owner is not None and owner != source_key:
                # Its source row is removed before its key passes on: afterwards nothing would lead to that
                # row.
                await self._propagate_other(owner, tally)
        with suppress(Collision):  # the row is the former owner's again: the next round sees it
            await super()._claim(source_key, forward, targets, tally)

    async def _lists(self, source_key: EntityKey) -> bool:
        # Not a source row that was written past the client. It is a replica, and somebody deleted its forward
        # row, where the row that it maps to is there and its own: by the claim, or by its content where that
        # is missing as well.
        mains: Sequence[TargetRow] = ()
        if (row := await self.source.get(source_key)) is not None:
            with suppress(RowRefused):
                mains = self.mapper.map(row)[:1]
        for _, main in mains:
            target = TargetKey(0, *key_of(main))
            there, owner = await self.table(0).get(target.key), await self.owner_of(target.key)
            if there is None or owner not in (source_key, None):
                continue
            if owner == source_key or same_content(main, there, self.ignoring[0]):
                await self.mapping.claim(source_key, None, {target}, self.still_owns)
                return True
        return False

    def _main_of(self, _expected: Rows, _current: Rows, authority: Row | None) -> Row | None:
        return authority

    async def _authority(self, source_key: EntityKey) -> Row | None:
        """Return the main target row of a source key, of those keys that its forward row lists now."""
        # The list of keys is part of what the authority says, so it is reread with it, after the replicas:
        # with an older list a row that moved meanwhile looks deleted, and its replicas would be deleted.
        return await self.authority(await self.mapping.forward(source_key))

    async def _read_replicas(self, source_key: EntityKey, listed: frozenset[TargetKey]) -> Rows:
        indexes = (target for target in listed if target.table > 0)
        return await super()._read_replicas(source_key, frozenset({source_place(source_key), *indexes}))
