"""The main target as the authority (`cutover`): source and index tables are its replicas."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from contextlib import suppress
from functools import partial

from rekey.client.authority import Authority, index_places
from rekey.client.reservations import RELEASES
from rekey.client.steps import Draft, During, Prepared, Request, State, known
from rekey.errors import Collision, RowRefused, RowTooBusy, Unavailable
from rekey.mapping.rows import Forward, Reservation, TargetKey, pointer_of, targets_of
from rekey.mapping.store import remember
from rekey.model import EntityKey, Row, etag_of, key_of
from rekey.protocol.effects import side_by_side
from rekey.protocol.operations import CREATES, FULL, as_sent, is_conditional, row_after
from rekey.protocol.propagate import MAX_ROUNDS
from rekey.protocol.replicas import source_place
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import TARGET
from rekey.tables.base import Operation, Verb


class TargetAuthority(Authority):
    """The main target as the authority.

    A row is written only if the source can express it (`inverse`), and if no other row of the main target has
    the same old key. A new row's key is claimed first, in the forward and in the reverse row, since readers
    find the row of an old key through the mapping.
    """

    side = TARGET

    def __init__(self, reverse: ReversePropagator, takes_effect_s: float) -> None:
        super().__init__(reverse, takes_effect_s)
        self.reverse = reverse
        # Forward rows, as last seen, of rows that this client deleted and may soon insert again. Never
        # trusted: a reservation on one succeeds only if the forward row is unchanged.
        self._forwards: dict[EntityKey, Forward] = {}

    async def prepare(self, draft: Draft) -> None:
        operation = draft.operation
        draft.authority_key = draft.key
        draft.sent = [operation]
        if operation.verb in FULL:
            await self._prepare_row(draft, operation.row)
        elif operation.verb is Verb.DELETE:
            draft.replicas.expected = {}  # a row without an owner has no replicas
            owner, _ = await side_by_side([self.replicas.owner_of(draft.key), self.read_before(draft)])
            named = self.reverse.named_by(draft.before)
            draft.source_key = owner = await self._holder_now(draft.before, named, owner)
            if self.mapper.co_located and owner is not None:
                await self.find_forward(draft)
                await self.add_secondary_writes(draft)
        else:
            # The owner of the key is not known yet, but may have been seen before: then one round trip is
            # enough.
            owner = self.reservations.seen_owner(draft.key) if operation.verb is Verb.MERGE else None
            reads = [] if owner is None else self._reads_for(draft, owner)
            await side_by_side([self.read_before(draft), *reads])
            draft.sent = [as_sent(operation, draft.before)]
            await self._prepare_row(draft, row_after(operation, draft.before) or {}, owner)

    async def claim_main(self, draft: Draft, target: TargetKey) -> None:
        old_key, before = draft.old_key, draft.before
        named = self.reverse.named_by(before)
        if named != old_key:
            draft.mapping.owner = await self._holder_now(before, named, draft.mapping.owner)
        owner = draft.mapping.owner
        creates = any(operation.verb is Verb.INSERT for operation in draft.sent)
        shared = creates and 0 in self.mapper.shared
        keeps_key = partial(self._keeps_key, draft)
        if owner != old_key and not self.passes_on(draft):
            if named == old_key:
                draft.needs_propagate = True  # the key is just passing on to this old key
            elif before is not None and owner is not None:
                raise RowRefused(
                    "not-reversible",
                    "target",
                    "its old key would change",
                    cure="leave the properties that hold a row's old key as they are until `complete`",
                    row_id=self.replicas.target_id(target.key),
                )
            elif not shared:
                await self.mapping.claim_main(old_key, target, keeps_key)
        listed = self._reserve if self.mapper.content_derived and creates else self._list
        reserves = [self.reservations.reserve(draft, target, keeps_key)] if shared else []
        try:
            await side_by_side([*reserves, listed(draft, target)])
        except Collision:
            if not draft.mapping.outdated and not self._is_row_of(draft, await self.table.get(target.key)):
                raise
            # Another write has created the same row meanwhile, and the claim is still passing on to it.
            draft.mapping.outdated = True

    async def is_new(self, draft: Draft, target: TargetKey) -> bool:
        source_row = draft.replicas.read.get(source_place(draft.old_key))
        return target not in await self.rows_before(draft, source_row)

    async def add_secondary_writes(self, draft: Draft) -> None:
        if not self.mapper.co_located:
            return
        places = await self._read_secondary(draft, draft.sent[0].key.partition)
        # The secondary rows follow from the rows that were read, so the main row's write is conditional on
        # the row as read, even if the caller asks for no condition.
        if draft.sent[0] is draft.operation and not is_conditional(draft.operation):
            row_after(draft.operation, draft.before)  # raises what the service answers for a missing row
            draft.sent = [as_sent(draft.operation, draft.before)]
        for place in sorted(places):
            present, wanted = draft.replicas.read[place], draft.expected.get(place)
            if present is not None and pointer_of(present) in draft.main_keys:
                draft.replicas.own.add(place)
            if wanted is not None and present is None:
                draft.secondary_writes.append((place, Operation(Verb.INSERT, wanted)))
            elif present is not None and place in draft.replicas.own:
                verb = Verb.DELETE if wanted is None else Verb.REPLACE
                draft.secondary_writes.append((place, Operation(verb, wanted or present, etag_of(present))))

    async def _read_secondary(self, draft: Draft, partition: str) -> set[TargetKey]:
        """Read the secondary rows of a key in a partition, before the authority is written; return where they
        are. Raises Unavailable."""
        places = {
            *draft.listed,
            *draft.expected,
            *self.derivable_keys(draft.old_key),
            *await self.rows_before(draft),
        }
        beside = self.mapper.co_located - {0}
        places = {place for place in places if place.table in beside and place.partition == partition}
        await self.read(draft, places)
        if not places <= draft.replicas.read.keys():
            raise Unavailable(
                "the secondary rows of the row could not be read; nothing was written",
                status=503,
                hint="repeat the operation when the service is back",
            )
        return places

    async def read_during(self, write: Prepared, during: During) -> None:
        if write.source_key is None:
            return
        place, listed = source_place(write.source_key), targets_of(write.forward)
        places = self.replica_places(write.source_key, listed) | index_places(self.keys_to_list(write))
        reads: list[Awaitable[None]] = []
        if write.request.operation.verb is Verb.DELETE:
            if len(self.mapper.tables) > 1:
                places |= index_places(await self.rows_before(write))
            if write.forward is None:
                reads = [self._find_forward_during(write, during)]
        await side_by_side([self.read_during_write(write, during, places), *reads])
        during.own.add(place)
        source_row = write.replicas.read.get(place) or during.read.get(place)
        if source_row is not None and self.mapper.is_dropped(source_row):
            during.needs_propagate = True  # it is no replica of the row that is written
        during.previous = await self.rows_before(write, source_row)

    async def _find_forward_during(self, write: Prepared, during: During) -> None:
        during.forward = await self.mapping.forward(write.old_key)

    def main_of(self, write: Draft | Prepared) -> EntityKey | None:
        return write.authority_key if write.expected else None

    def own_mains(self, draft: Draft) -> set[EntityKey]:
        before = () if draft.before is None else (key_of(draft.before),)
        return {known(draft.authority_key), *before}

    def replica_places(self, source_key: EntityKey, listed: frozenset[TargetKey]) -> set[TargetKey]:
        return {source_place(source_key), *index_places(listed | self.derivable_keys(source_key))}

    async def expect(self, draft: Draft, row: Row) -> None:
        place = source_place(draft.old_key)
        source_row, is_read = draft.replicas.read.get(place), place in draft.replicas.read
        if self.mapper.drops and draft.operation.verb in CREATES and not is_read:
            raise _unread()  # a row that no kind takes may be there, and would never follow the new row
        try:
            draft.replicas.expected = await self.reverse.expected_of(draft.old_key, row, source_row)
        except RowRefused:
            if is_read:
                raise
            raise _unread() from None  # it is unknown whether a rollback would lose anything

    async def require_reference(
        self, source_key: EntityKey, row: Row, before: Row | None, source_row: Row | None
    ) -> bool:
        """Require that what the row's references took the place of can be looked up, unless they are those of
        the old key's row `before`; return whether they are, so that the write must be on the condition of
        that row. `source_row`: the source row as read.

        Raises:
            RowRefused: an old reference is not known (`no-old-reference`).
        """
        # The source row may hold what cannot be looked up, but not for long: another write may change the
        # reference, or delete the row, and its replica may follow at any moment. As long as the main row that
        # holds a reference is unchanged, the source row holds what that was made of.
        if not self.mapper.looks_up:
            return False
        try:
            if not self.mapper.changes_reference(row, before):
                return before is not None and self.mapper.changes_reference(row, None)
            rest = None if source_row is None else self.mapper.without_old_references(source_row)
            await self.reverse.inverse(source_key, row, rest)
        except RowRefused as refused:
            raise refused.for_row(self.replicas.target_id(key_of(row))) from None
        return False

    # --- one operation ----------------------------------------------------------------------------------

    async def _prepare_row(self, draft: Draft, row: Row, read_for: EntityKey | None = None) -> None:
        """Prepare a write that makes its row `row`. `read_for`: the old key whose rows are read already."""
        source_key, verb = self.named_key(draft, row), draft.operation.verb
        reads = [] if read_for == source_key else self._reads_for(draft, source_key)
        if draft.before is None:
            reads.append(self.read_before(draft))
        if self.mapper.shared and verb is Verb.INSERT:
            with suppress(RowRefused):  # an existing source row may be needed: known after the reads
                expected = await self.reverse.expected_of(source_key, row)
                reads += self.reservations.reserves_early(draft, expected)
                new = index_places(expected) - self.derivable_keys(source_key)
                reads.append(self.read(draft, {place for place in new if place.table in self.mapper.shared}))
        await side_by_side(reads)
        await self.expect(draft, row)
        place = source_place(source_key)
        before = draft.before if self.reverse.named_by(draft.before) == source_key else None
        rests_on_row = await self.require_reference(source_key, row, before, draft.replicas.read.get(place))
        if rests_on_row and not is_conditional(draft.operation):
            row_after(draft.operation, draft.before)
            draft.sent = [as_sent(draft.operation, draft.before)]
        # The key of a row without its source row may be passing on, or have passed on meanwhile.
        draft.needs_propagate = draft.needs_propagate or (
            verb not in CREATES and draft.replicas.read.get(place) is None
        )
        draft.replicas.own.add(place)
        if self.mapper.co_located:
            await self._read_secondary(draft, draft.key.partition)
        creates = verb in (Verb.INSERT, Verb.INSERT_OR_REPLACE)
        if (self.mapper.content_derived and creates) or (self.mapper.shared and verb in FULL):
            # Raises RowExists for an insert over a row. Only a reserved key may get a new row, so an upsert
            # is sent as an insert or a replace.
            row_after(draft.operation, draft.before)
            draft.sent = [as_sent(draft.operation, draft.before)]
        if draft.before is None and verb in CREATES:
            rows = draft.mapping.others
            if rows is None:
                rows = await self.replicas.read(_others(draft, draft.listed))
            for target, other in rows.items():
                if other is not None and await self.replicas.is_owner(source_key, target.key):
                    if (TARGET, target.key) not in draft.deleted_by_call:
                        raise self.key_taken(draft.key)
                    draft.pending.takes_over_key = True
        await self.claim(draft)
        await self.add_secondary_writes(draft)

    def _reads_for(self, draft: Draft, source_key: EntityKey) -> list[Awaitable[object]]:
        """Return the reads of the mapping and replica rows of an old key."""
        draft.source_key = source_key
        derivable = self.derivable_keys(source_key)
        return [
            self.find_owner(draft, draft.key, claims=True),
            self._find_forward(draft, {TargetKey(0, *draft.key), *derivable}),
            self.read(draft, {source_place(source_key), *index_places(derivable)}),
        ]

    async def _find_forward(self, draft: Draft, targets: set[TargetKey]) -> None:
        """Read the forward row; if the write may create a row, try to insert it at the same time."""
        if draft.operation.verb not in CREATES:
            await self.find_forward(draft)
            return
        seen = self._forwards.pop(draft.old_key, None)
        if self.mapper.content_derived and seen is not None and seen.reserved is None:
            await self._reserve_on(draft, seen, targets)
            if draft.mapping.forward is not None:
                return
        reserved = self._forward_reservation(draft, None) if self.mapper.content_derived else None
        read, written = await side_by_side(
            [
                self.mapping.forward(draft.old_key),
                self._write_forward(draft, None, targets, reserved),
            ]
        )
        draft.mapping.forward = written or read

    async def _list(self, draft: Draft, target: TargetKey) -> None:
        """List a main target key in the forward row before a row is written under it. Raises Unavailable."""
        for _ in range(MAX_ROUNDS):
            if self._listed_first(draft, target) <= draft.listed:
                return
            after = await self.mapping.extend(draft.old_key, draft.mapping.forward, self.keys_to_list(draft))
            draft.mapping.forward = after or await self.mapping.forward(draft.old_key)
        raise self.replicas.too_busy(draft.old_key)

    def _listed_first(self, draft: Draft, target: TargetKey) -> set[TargetKey]:
        """Return what must be listed before the authority is written: the keys in its table."""
        return {
            target,
            *(place for place in self.keys_to_list(draft) if place.table in self.mapper.co_located),
        }

    # --- reservations in the forward row ----------------------------------------------------------------

    async def release(self, request: Request, forward: Forward | None, moved: State | None) -> None:
        rows = dict(request.pending.reserved_forward)
        if forward is not None:
            rows[forward.source] = forward
        await side_by_side(
            [
                super().release(request, forward, moved),
                *(self._release_forward(request, key, row) for key, row in sorted(rows.items())),
            ]
        )

    async def _release_forward(
        self, request: Request, source_key: EntityKey, forward: Forward | None
    ) -> None:
        left = forward or await self.mapping.forward(source_key)
        for _ in range(RELEASES):
            reserved = None if left is None else left.reserved
            if left is None or reserved is None or request.write_id not in reserved.writers:
                break
            after = await self.mapping.reserve(source_key, left, (), reserved.without(request.write_id))
            left = after or await self.mapping.forward(source_key)
        if request.operation.verb is Verb.DELETE and left is not None:
            remember(self._forwards, source_key, left)

    async def _write_forward(
        self,
        draft: Draft,
        forward: Forward | None,
        targets: Iterable[TargetKey],
        reserved: Reservation | None,
    ) -> Forward | None:
        """Write the forward row as `MappingStore.reserve`, and record what is reserved there."""
        if reserved is not None:  # also where the answer is lost
            draft.pending.reserved_forward[draft.old_key] = None
        written = await self.mapping.reserve(draft.old_key, forward, targets, reserved)
        if reserved is not None:
            draft.pending.reserved_forward[draft.old_key] = written
        return written

    def _forward_reservation(self, draft: Draft, present: Reservation | None) -> Reservation:
        return self.reservations.reservation(draft.request, known(draft.authority_key), present)

    async def _reserve_on(self, draft: Draft, seen: Forward, targets: set[TargetKey]) -> None:
        """Reserve on a forward row as last seen, and read other rows of the old key at the same time. If it
        is unchanged, no write has begun to create a row since: a row that is missing now will not appear."""

        # Each sets its own result, so that a reservation is known, and released, when the other call fails.
        async def reserve() -> None:
            draft.mapping.forward = await self._write_forward(
                draft, seen, targets, self._forward_reservation(draft, None)
            )

        async def read_others() -> None:
            draft.mapping.others = await self.replicas.read(_others(draft, seen.targets))

        await side_by_side([reserve(), read_others()])
        if draft.mapping.forward is None:
            draft.mapping.others = None

    async def _reserve(self, draft: Draft, target: TargetKey) -> None:
        """Reserve a new row's key in the forward row. Raises RowTooBusy while another write reserves
        another."""
        # Where keys come from content, one old key can have many main target keys, and no single condition
        # covers them. So this is conditional on the forward row as read before other rows of the old key were
        # looked for: no other write began to create one in between, and none begins while the reservation
        # lasts. It is released when the authority has answered; after an unknown outcome it expires. Every
        # other write is conditional on its row being there.
        forward, write_id = draft.mapping.forward, draft.request.write_id
        reserved = None if forward is None else forward.reserved
        own = reserved if reserved is not None and reserved.key == target.key else None
        if own is not None and write_id in own.writers and self._listed_first(draft, target) <= draft.listed:
            return
        if reserved is not None and own is None and not self._is_over(draft, reserved):
            raise RowTooBusy(
                f"row {self.replicas.row_id(draft.old_key)} is being written under another key by another"
                " write, or was when that was cut off",
                hint="repeat the operation; a write that was cut off is over after its longest time",
            )
        written = await self._write_forward(
            draft, forward, self.keys_to_list(draft), self._forward_reservation(draft, own)
        )
        draft.mapping.forward = written or forward
        draft.mapping.outdated |= written is None  # `_keeps_key`, beside this, may have found that too

    def _is_over(self, draft: Draft, reserved: Reservation) -> bool:
        """Tell whether no other write of a reservation can take effect: only this write holds it, or it was
        seen unchanged for so long that even a delayed request has been applied or never will be."""
        at = self.mapping.rows.forward_key(draft.old_key)
        return reserved.writers <= {draft.request.write_id} or self.mapping.is_over(at, reserved)

    async def _holder_now(
        self, before: Row | None, named: EntityKey | None, owner: EntityKey | None
    ) -> EntityKey | None:
        """Return whose row `before` is. `named`: the old key in it; `owner`: that of its key's claim."""
        # The claim was read concurrently with the row, so it may be older: since then another old key may
        # have taken the target key and written this row.
        return owner if before is None or named in (None, owner) else await self.reverse.holder(before)

    async def _keeps_key(self, draft: Draft, source_key: EntityKey, target: TargetKey) -> bool:
        """Tell whether the owner of a main target key keeps it, because its row exists. If not, propagate the
        owner first, which removes its source row."""
        row = await self.table.get(target.key)
        if row is None:
            await self.reverse.propagate(source_key, announced=False)
        elif self._is_row_of(draft, row):
            # Not the owner's row but ours, which another write has created since the claim was read. Noted
            # here: it may be deleted before it is read again.
            draft.mapping.outdated = True
        return row is not None

    def _is_row_of(self, draft: Draft, row: Row | None) -> bool:
        return row is not None and self.reverse.named_by(row) == draft.old_key


def _unread() -> Unavailable:
    return Unavailable(
        "the source row could not be read, so it is not known whether this row can be kept in step",
        status=503,
        hint="repeat the operation when the service is back",
    )


def _others(draft: Draft, listed: Iterable[TargetKey]) -> list[TargetKey]:
    return sorted(place for place in listed if place.table == 0 and place.key != draft.authority_key)
