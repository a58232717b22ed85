"""Claims and reservations of target keys, in the reverse rows of the mapping (ADR 0047). A write that creates
a row reserves its target key: until the authority has answered, the key passes to no other source key."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from rekey.client.steps import Draft, Request, State
from rekey.mapping.rows import Owner, Reservation, TargetKey
from rekey.mapping.store import StillOwns, remember
from rekey.model import EntityKey
from rekey.protocol.effects import side_by_side
from rekey.protocol.propagate import MAX_ROUNDS, Propagator
from rekey.protocol.rules import SOURCE, TARGET
from rekey.tables.base import Verb

# Attempts to release a reservation; one that stays expires.
RELEASES = 3


class Reservations:
    """Claims and reserves target keys for the writes of one client."""

    def __init__(self, replicas: Propagator, takes_effect_s: float) -> None:
        self._replicas = replicas
        self._mapping = replicas.mapping
        self._shared = replicas.mapper.shared
        self._takes_effect_s = takes_effect_s
        # Claims as last seen, by main target key. They save claims that would fail, and reads before a
        # deleted row is created again. Never trusted.
        self._owners: dict[EntityKey, Owner] = {}

    def seen_owner(self, main: EntityKey) -> EntityKey | None:
        """Return the owner of a main target key as this client last saw it, if it has."""
        owner = self._owners.get(main)
        return None if owner is None else owner.source

    async def owner(self, draft: Draft, main: EntityKey, *, claims: bool) -> Owner | None:
        source_key, target = draft.old_key, TargetKey(0, *main)
        seen = self._owners.get(main)
        is_own = seen is not None and seen.source == source_key
        reserves = 0 in self._shared and draft.operation.verb is Verb.INSERT
        owner: Owner | None
        if not claims or target in draft.pending.reserved or (is_own and not reserves):
            owner = await self._mapping.owner(main)
        else:
            read, claimed = await side_by_side(
                [self._mapping.owner(main), self._claim_early(draft, target, seen if is_own else None)]
            )
            owner = claimed or read
        if owner is not None and owner.source == source_key:
            remember(self._owners, main, owner)
        return owner

    def reserves_early(self, draft: Draft, expected: Iterable[TargetKey]) -> list[Awaitable[object]]:
        """Return the claims of index keys that may run together with the reads: those of a row that is
        certainly new. `expected`: where its replicas will be."""
        if draft.operation.verb is not Verb.INSERT:
            return []
        new = [target for target in sorted(expected) if target.table > 0 and target.table in self._shared]
        return [
            self._claim_early(draft, target, None) for target in new if target not in draft.pending.reserved
        ]

    async def reserve(self, draft: Draft, target: TargetKey, still_owns: StillOwns) -> None:
        """Claim and reserve a target key for a write that creates a row under it. Raises Collision: the key
        belongs to another row, or another write is creating one."""
        if target in draft.pending.reserved:
            return
        for _ in range(MAX_ROUNDS):
            owner = await self._claim_to_take(draft, target)
            if target in draft.pending.reserved:
                return
            # A key whose owner's row is deleted by the same call is reserved but stays the owner's: propagate
            # passes it on once both are written.
            keeps_owner = owner is not None and await self._is_deleted_with(draft, owner.source)
            if not keeps_owner:
                await self._mapping.require_free(draft.old_key, target, owner, still_owns)
            new_owner = owner.source if owner is not None and keeps_owner else draft.old_key
            reserved = self.reservation(draft.request, draft.old_key, owner and owner.reserved)
            claimed = await self._mapping.take(new_owner, target, owner, reserved)
            if claimed is not None:
                draft.pending.reserved[target] = claimed
                return
        raise self._mapping.kept_changing()

    async def release(self, request: Request, moved: State | None) -> None:
        """Release the write's reservations of target keys. `moved`: how far the replicas are of a row that
        took over a key from a row deleted by the same call; None if there is no such row."""
        targets = sorted(request.pending.reserved)
        await side_by_side(self._release(request, target, moved) for target in targets)

    def reservation(self, request: Request, key: EntityKey, present: Reservation | None) -> Reservation:
        """Return a write's reservation for `key`, merged with `present`, the mapping row's own."""
        own = Reservation(key, frozenset({request.write_id}), self._takes_effect_s)
        if present is None or present.key != key:
            return own
        writers = present.writers | own.writers
        return own._replace(writers=writers, seconds=max(present.seconds, self._takes_effect_s))

    async def _claim_early(self, draft: Draft, target: TargetKey, seen: Owner | None) -> Owner | None:
        """Try to claim a target key, on the condition of its claim as last `seen`; reserve it if another
        source key can have it. None when the claim is another one, or reserved for another source key."""
        shared = target.table in self._shared
        before = None if seen is None else seen.reserved
        if before is not None and before.key != draft.old_key:
            return None  # a row of that key may exist, also where the claim still names ours
        reserved = self.reservation(draft.request, draft.old_key, before) if shared else None
        claimed = await self._mapping.take(draft.old_key, target, seen, reserved)
        if claimed is not None and shared:
            draft.pending.reserved[target] = claimed
        return claimed

    async def _claim_to_take(self, draft: Draft, target: TargetKey) -> Owner | None:
        """Return the claim of a target key to reserve. One that was not read yet is read while it is tried to
        be made. Raises Collision as `MappingStore.unreserved`."""
        claims, own = draft.mapping.claims, draft.pending.reserved
        if target in claims:
            owner = claims.pop(target)
        else:
            owner, _ = await side_by_side(
                [self._mapping.owner(target.key, target.table), self._claim_early(draft, target, None)]
            )
        reserved = None if owner is None else owner.reserved
        if target in own or reserved is None or reserved.key == draft.old_key:
            return owner
        return await self._mapping.unreserved(draft.old_key, target)

    async def _release(self, request: Request, target: TargetKey, moved: State | None) -> None:
        owner: Owner | None = request.pending.reserved.pop(target)
        for _ in range(RELEASES):
            reserved = None if owner is None else owner.reserved
            if owner is None or reserved is None or request.write_id not in reserved.writers:
                return
            source_key = owner.source
            if source_key != reserved.key and moved is not None:
                if moved is not State.SETTLED:
                    return  # the row may exist, and the claim has not passed on to it
                if target.table > 0:  # propagate passes on main keys only
                    source_key = reserved.key
            released = await self._mapping.take(source_key, target, owner, reserved.without(request.write_id))
            if released is not None:
                if target.table == 0:
                    remember(self._owners, target.key, released)
                return
            owner = await self._mapping.owner(target.key, target.table)

    async def _is_deleted_with(self, draft: Draft, source_key: EntityKey) -> bool:
        deleted = source_key != draft.old_key and (
            (SOURCE, source_key) in draft.deleted_by_call
            or any(
                [
                    await self._replicas.is_owner(source_key, key)
                    for side, key in draft.deleted_by_call
                    if side == TARGET and key
                ]
            )
        )
        draft.pending.takes_over_key = draft.pending.takes_over_key or deleted
        return deleted
