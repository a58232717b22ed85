"""The source as the authority (`dual_write`): main target and index tables are its replicas."""

from __future__ import annotations

from collections.abc import Awaitable

from rekey.client.authority import Authority
from rekey.client.steps import Draft, During, Prepared, known
from rekey.mapping.rows import TargetKey, targets_of
from rekey.model import TIMESTAMP, EntityKey, Row
from rekey.protocol.effects import side_by_side
from rekey.protocol.operations import FULL, MERGES, as_sent, row_after
from rekey.protocol.replicas import STAND_IN
from rekey.protocol.rules import SOURCE
from rekey.tables.base import Verb


class SourceAuthority(Authority):
    """The source as the authority. A write's target rows are worked out before anything is written: from the
    caller's row, or for a merge from that row merged into the row that was read."""

    side = SOURCE

    async def prepare(self, draft: Draft) -> None:
        operation = draft.operation
        draft.source_key = draft.authority_key = draft.key
        draft.sent = [operation]
        if operation.verb in FULL:
            await self.expect(draft, operation.row)
        elif operation.verb is Verb.DELETE:
            draft.replicas.expected = {}
        derivable = self.derivable_keys(draft.key)
        reads: list[Awaitable[object]] = [
            self.find_forward(draft),
            self.read(draft, {*draft.expected, *derivable}),
            *self.reservations.reserves_early(draft, draft.expected),
        ]
        # Only a row that reserved its keys may be created or moved, so an upsert is sent as an insert or a
        # replace.
        exact = bool(self.mapper.shared) and operation.verb in FULL
        derived = self.mapper.content_derived or self.mapper.drops
        if operation.verb in MERGES or derived or draft.request.reads_before or exact:
            # A merge is worked out on it; replica rows read late are compared with what it gives; and a row
            # without replicas shows by itself alone that a lost write was not done.
            reads.append(self.read_before(draft))
        main = self.main_of(draft)
        if operation.verb in MERGES:  # its row is not known yet, but the main key may follow from the old key
            main = next((place.key for place in derivable if place.table == 0), None)
        if main is not None:  # a plain merge may find no row, and must not have claimed a key for it
            reads.append(self.find_owner(draft, main, claims=operation.verb is not Verb.MERGE))
        elif operation.verb is Verb.DELETE:
            reads.append(self.add_owned(draft.key, derivable, draft.replicas.own))
        await side_by_side(reads)
        if operation.verb in MERGES:
            after = row_after(operation, draft.before)
            draft.sent = [as_sent(operation, draft.before)]
            await self.expect(draft, after or {})
            known_main, main = main, self.main_of(draft)
            reads = [self.read(draft, draft.expected)]
            if main not in (None, known_main):
                reads.append(self.find_owner(draft, known(main), claims=True))
            await side_by_side(reads)
        if exact:
            row_after(operation, draft.before)  # raises what the service would answer
            draft.sent = [as_sent(operation, draft.before)]
        draft.replicas.previous = await self.rows_before(draft)
        if operation.verb is not Verb.DELETE:
            await self.claim(draft)

    async def is_new(self, draft: Draft, target: TargetKey) -> bool:
        return target not in await self.rows_before(draft)

    async def claim_main(self, draft: Draft, target: TargetKey) -> None:
        if 0 in self.mapper.shared and await self.is_new(draft, target):
            await self.reservations.reserve(draft, target, self.replicas.still_owns)
        elif draft.mapping.owner != draft.old_key and not self.passes_on(draft):
            await self.mapping.claim_main(draft.old_key, target, self.replicas.still_owns)
        draft.replicas.own.add(target)

    async def read_during(self, write: Prepared, during: During) -> None:
        older = targets_of(write.forward) - write.expected.keys()
        await side_by_side(
            [self.read_during_write(write, during, older), self.add_owned(write.old_key, older, during.own)]
        )

    def main_of(self, write: Draft | Prepared) -> EntityKey | None:
        return next((target.key for target in write.expected if target.table == 0), None)

    def own_mains(self, draft: Draft) -> set[EntityKey]:
        places = (*draft.replicas.previous, *draft.expected)
        return {target.key for target in places if target.table == 0}

    def replica_places(self, source_key: EntityKey, listed: frozenset[TargetKey]) -> set[TargetKey]:
        return {*listed, *self.derivable_keys(source_key)}

    async def expect(self, draft: Draft, row: Row) -> None:
        # The service sets a new Timestamp, unknown until the write: propagate writes the rows that copy it.
        timed = {**row, TIMESTAMP: STAND_IN} if self.mapper.needs_timestamp else row
        draft.replicas.expected = await self.replicas.expected_of(draft.old_key, timed)
        draft.needs_propagate = draft.needs_propagate or self.mapper.needs_timestamp
