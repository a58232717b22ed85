"""The main target as the authority of dual writes (`cutover`): source and index tables follow.

Rules kept here:

* A row is written only if the source can express it (`inverse`), and if no other row of the main target
  stands for the same old key: otherwise it is refused before anything is written.
* A new row is claimed before the authority is written, forward and reverse: whoever looks for the row of an
  old key looks where the mapping says.
* Where keys come from content, one old key can have many main keys, and no condition spans them. Whoever
  makes a row reserves its key in the forward row, on the condition of the forward row that was read before
  other rows of the old key were looked for: nobody else began to make one in between, and while it lasts
  nobody else begins. It is given up when the authority has answered; where that stayed open it ends by time.
  Every other write is sent on the condition that its row is there.
* A target key passes to another old key only when its row is gone and the former owner's source row too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rekey.client.authority import ROW_TOO_BUSY, AuthoritySide, old_key
from rekey.client.leftovers import MARGIN_S
from rekey.client.work import Work
from rekey.errors import RowRefused, Unavailable
from rekey.mapping.rows import Forward, Reservation, TargetKey
from rekey.model import EntityKey, Row
from rekey.protocol.effects import side_by_side
from rekey.protocol.operations import CREATES, FULL, as_sent, row_after
from rekey.protocol.propagate import MAX_ROUNDS, Propagated
from rekey.protocol.replicas import Rows
from rekey.protocol.reverse import ReversePropagator, source_place
from rekey.protocol.rules import TARGET
from rekey.tables.base import Verb

_RELEASES = 3
"""How often a reservation is tried to be given up; what stays ends by time."""
_SEEN = 10_000
"""Keys of which a client remembers what it saw of their forward rows."""
_OTHER_ROW = "delete the other row first, or write this one in its place"


class TargetSide(AuthoritySide):
    """Dual writes whose authority is the main target."""

    side = TARGET

    def __init__(self, reverse: ReversePropagator, longest_operation_s: float) -> None:
        super().__init__(reverse.forward)
        self._longest = longest_operation_s
        self._seen: dict[EntityKey, tuple[Reservation, float]] = {}
        """Reservations of others, and since when they are known, in seconds of the loop's clock."""
        self._forwards: dict[EntityKey, Forward] = {}
        """Forward rows of rows that this client deleted, as last seen: it may make them anew at once. Never
        trusted: what is written on one holds only if it still stands."""
        self.reverse = reverse
        self.authority = reverse.main

    async def prepare(self, work: Work) -> None:
        operation = work.given
        work.authority_key = work.key
        work.sent = [operation]
        if operation.verb in FULL:
            await self._prepare_row(work, operation.row)
        elif operation.verb is Verb.DELETE:
            await self._prepare_delete(work)
        else:
            work.before = await self.authority.get(work.key)
            work.sent = [as_sent(operation, work.before)]
            await self._prepare_row(work, row_after(operation, work.before) or {})

    async def claim(self, work: Work) -> None:
        source_key, main = old_key(work), self.main_of(work)
        self.check_list(work)
        if main is not None:
            target = TargetKey(0, *main)
            if work.owner != source_key:
                if work.before is not None and work.owner is not None:
                    raise self._refused(work, "not-reversible", "its old key would change", cure="")
                await self.mapping.claim_main(source_key, target, self._keeps)
            if self.mapper.content_derived and any(one.verb is Verb.INSERT for one in work.sent):
                await self._reserve(work, target)
            else:
                await self._list(work, target)
        await self.check_indexes(work)

    async def read_beside(self, work: Work) -> None:
        if work.source_key is None:
            return
        source_key = work.source_key
        places = {source_place(source_key), *self.listed(work), *self._indexes(self.bare(source_key))}
        places |= self._indexes(work.known)
        if work.given.verb is Verb.DELETE:
            places |= self._indexes(self._expected_before(work, None))
            reads = [self.read(work, places, early=False)]
            if work.forward is None:
                reads.append(self.find_forward(work))
            await side_by_side(reads)
        else:
            await self.read(work, places, early=False)
        work.ours.add(source_place(source_key))
        work.previous = self._expected_before(work, work.read_row(source_place(source_key)))

    async def propagate(self, source_key: EntityKey) -> Propagated:
        return await self.reverse.propagate(source_key)

    async def still_owns(self, source_key: EntityKey, target: TargetKey) -> bool:
        return await self.reverse.still_owns(source_key, target)

    def main_of(self, work: Work) -> EntityKey | None:
        return work.authority_key if work.expected else None

    def followers(self, work: Work) -> set[TargetKey]:
        source_key = old_key(work)
        listed = work.known | self.bare(source_key)
        return {source_place(source_key), *self._indexes(listed)}

    def listed(self, work: Work) -> set[TargetKey]:
        main = self.main_of(work)
        indexes = super().listed(work)
        return indexes if main is None else {TargetKey(0, *main), *indexes}

    def expect(self, work: Work, row: Row) -> None:
        """Work out the replicas' rows for the main target row as it will be. Raises RowRefused."""
        place = source_place(old_key(work))
        try:
            work.expected = self.reverse.expected_of(old_key(work), row, work.early.get(place))
        except RowRefused:
            if place in work.early:
                raise
            # Without the source row nobody can tell whether the way back loses anything.
            raise Unavailable(
                "the source row could not be read, so it is not known whether this row can be kept in step",
                hint="repeat the operation when the service is back",
            ) from None

    # --- one operation ----------------------------------------------------------------------------------

    async def _prepare_row(self, work: Work, row: Row) -> None:
        source_key = work.source_key = self._old_key(work, row)
        bare = self.bare(source_key)
        reads = [
            self.find_owner(work, work.key, claims=True),
            self._find_forward(work, {TargetKey(0, *work.key), *bare}),
            self.read(work, {source_place(source_key), *self._indexes(bare)}, early=True),
        ]
        if work.before is None:
            reads.append(self._read_before(work))
        await side_by_side(reads)
        self.expect(work, row)
        work.ours.add(source_place(source_key))
        if self.mapper.content_derived and work.given.verb in (Verb.INSERT, Verb.INSERT_OR_REPLACE):
            # Only what is reserved may make a row: an upsert is sent as one thing or the other.
            row_after(work.given, work.before)
            work.sent = [as_sent(work.given, work.before)]
        if work.before is None and work.given.verb in CREATES:
            await self._check_not_taken(work)
        await self.claim(work)

    async def _prepare_delete(self, work: Work) -> None:
        """Find whose row it is; a row that nobody owns has nothing that follows it."""
        work.expected = {}

        async def read_owner() -> None:
            owner = await self.mapping.owner(work.key)
            work.owner = None if owner is None else owner.source

        await side_by_side([read_owner(), self._read_before(work)])
        work.source_key = work.owner

    async def _read_before(self, work: Work) -> None:
        work.before = await self.authority.get(work.key)

    async def _find_forward(self, work: Work, targets: set[TargetKey]) -> None:
        """Read the forward row; beside that write it for a row that may be new."""
        source_key = old_key(work)
        if work.given.verb not in CREATES:
            work.forward = await self.mapping.forward(source_key)
            return
        known = self._forwards.pop(source_key, None)
        if self.mapper.content_derived and known is not None and known.reserved is None:
            await self._reserve_on(work, known, targets)
            if work.forward is not None:
                return
        reserved = self._reservation(work, None) if self.mapper.content_derived else None
        found, made = await side_by_side(
            [
                self.mapping.forward(source_key),
                self.mapping.reserve(source_key, None, targets, reserved),
            ]
        )
        work.forward = made or found

    async def _check_not_taken(self, work: Work) -> None:
        """Refuse a new row whose old key has a row in the main target already."""
        rows = work.others
        if rows is None:
            rows = await self.forward.read(self._others(work, work.known))
        for target, row in rows.items():
            if row is not None and await self.forward.is_owner(old_key(work), target.key):
                raise self._refused(
                    work, "key-taken", "another row of the table stands for the same old key", cure=_OTHER_ROW
                )

    async def _list(self, work: Work, target: TargetKey) -> None:
        """List a main target key in the forward row before a row is written under it."""
        source_key = old_key(work)
        for _ in range(MAX_ROUNDS):
            if target in work.known:
                return
            after = await self.mapping.extend(source_key, work.forward, self.listed(work))
            work.forward = after or await self.mapping.forward(source_key)
        raise self.forward.too_busy(source_key)

    # --- reservations -----------------------------------------------------------------------------------

    async def release(self, work: Work) -> None:
        for _ in range(_RELEASES):
            reserved = None if work.forward is None else work.forward.reserved
            if reserved is None or work.word not in reserved.writers:
                break
            source_key, rest = old_key(work), reserved.without(work.word)
            after = await self.mapping.reserve(source_key, work.forward, (), rest)
            work.forward = after or await self.mapping.forward(source_key)
        if work.given.verb is Verb.DELETE and work.forward is not None:
            if len(self._forwards) >= _SEEN:
                self._forwards.clear()
            self._forwards[old_key(work)] = work.forward

    async def _reserve_on(self, work: Work, known: Forward, targets: set[TargetKey]) -> None:
        """Reserve on a forward row as it was last seen, and look for other rows beside that.

        If it still stands, nobody has begun to make a row since: a row that is not found now will not come.
        """

        async def reserve() -> None:
            work.forward = await self.mapping.reserve(
                old_key(work), known, targets, self._reservation(work, None)
            )

        async def look() -> None:
            work.others = await self.forward.read(self._others(work, known.targets))

        await side_by_side([reserve(), look()])
        if work.forward is None:
            work.others = None

    @staticmethod
    def _others(work: Work, listed: Iterable[TargetKey]) -> list[TargetKey]:
        """Return the other main target keys that the row of an old key may stand under."""
        return sorted(one for one in listed if one.table == 0 and one.key != work.authority_key)

    async def _reserve(self, work: Work, target: TargetKey) -> None:
        """Reserve the key that a new row will stand under, on the condition of the forward row that was read
        before other rows of the old key were looked for. Raises Unavailable."""
        source_key = old_key(work)
        reserved = None if work.forward is None else work.forward.reserved
        if reserved is not None and reserved.key == target.key:
            if work.word in reserved.writers and target in work.known:
                return
        elif reserved is not None and not self._is_over(source_key, reserved, work.word):
            raise Unavailable(
                f"row {self.forward.row_id(source_key)} is being written under another key by another write,"
                " or was when that was cut off; nothing was written",
                code=ROW_TOO_BUSY,
                status=503,
                hint="repeat the operation; a write that was cut off is over after its longest time",
            )
        mine = self._reservation(work, reserved if reserved and reserved.key == target.key else None)
        forward = await self.mapping.reserve(source_key, work.forward, self.listed(work), mine)
        work.forward, work.outdated = forward or work.forward, forward is None

    def _reservation(self, work: Work, others: Reservation | None) -> Reservation:
        key = work.authority_key
        if key is None:
            raise AssertionError("a reservation is made before the key is known")
        if others is None:
            return Reservation(key, frozenset({work.word}), self._longest)
        return Reservation(key, others.writers | {work.word}, max(others.seconds, self._longest))

    def _is_over(self, source_key: EntityKey, reserved: Reservation, word: str) -> bool:
        """Tell whether nothing of a reservation can take effect any more: only this write holds it, or it has
        been seen for so long, unchanged, that even a request that was held up has landed or never will."""
        if reserved.writers <= {word}:
            return True
        now = asyncio.get_running_loop().time()
        seen, since = self._seen.get(source_key, (reserved, now))
        if seen != reserved:
            since = now
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        self._seen[source_key] = (reserved, since)
        return now - since > reserved.seconds + MARGIN_S

    async def _keeps(self, source_key: EntityKey, target: TargetKey) -> bool:
        """Tell whether the owner of a main target key keeps it. Before it passes on, the owner's source row,
        for which no row stands any more, is removed."""
        if await self.authority.get(target.key) is not None:
            return True
        await self.reverse.propagate(source_key)
        return False

    # --- small parts ------------------------------------------------------------------------------------

    def _old_key(self, work: Work, row: Row) -> EntityKey:
        try:
            return self.mapper.source_key(row)
        except RowRefused as refused:
            raise refused.for_row(self.reverse.target_id(work.key)) from None

    def _expected_before(self, work: Work, source_row: Row | None) -> Rows:
        try:
            return self.reverse.expected_of(old_key(work), work.before, source_row)
        except RowRefused:
            return {}

    def _refused(self, work: Work, code: str, problem: str, *, cure: str) -> RowRefused:
        cure = cure or "leave the properties that hold a row's old key as they are until `complete`"
        row_id = self.reverse.target_id(work.authority_key or work.key)
        return RowRefused(code, "target", problem, cure=cure, row_id=row_id)

    @staticmethod
    def _indexes(places: Iterable[TargetKey]) -> set[TargetKey]:
        return {one for one in places if one.table > 0}
