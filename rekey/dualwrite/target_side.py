"""The main target as the authority of dual writes (`cutover`): source and index tables follow.

Rules kept here:

* A row is written only if the source can express it (`inverse`), and if no other row of the main target
  stands for the same old key: otherwise it is refused before anything is written.
* A new row is claimed before the authority is written, forward and reverse: whoever looks for the row of an
  old key looks where the mapping says.
* A target key passes to another old key only when its row is gone and the former owner's source row too.
"""

from __future__ import annotations

from collections.abc import Iterable

from rekey.dualwrite.effects import side_by_side
from rekey.dualwrite.operations import CREATES, FULL, merge_as_sent, row_after
from rekey.dualwrite.propagate import MAX_ROUNDS, Propagated
from rekey.dualwrite.replicas import Rows
from rekey.dualwrite.reverse import ReversePropagator, source_place
from rekey.dualwrite.rules import TARGET
from rekey.dualwrite.sides import AuthoritySide, old_key
from rekey.dualwrite.work import Work
from rekey.errors import RowRefused, Unavailable
from rekey.mapping.rows import Forward, TargetKey
from rekey.model import EntityKey, Row
from rekey.tables.base import Verb

_OTHER_ROW = "delete the other row first, or write this one in its place"


class TargetSide(AuthoritySide):
    """Dual writes whose authority is the main target."""

    side = TARGET

    def __init__(self, reverse: ReversePropagator) -> None:
        super().__init__(reverse.forward)
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
            work.sent = [merge_as_sent(operation, work.before)]
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
        found, etag = await side_by_side(
            [self.mapping.forward(source_key), self.mapping.extend(source_key, None, targets)]
        )
        work.forward = found if etag is None else Forward(source_key, frozenset(targets), etag)

    async def _check_not_taken(self, work: Work) -> None:
        """Refuse a new row whose old key has a row in the main target already."""
        others = {one for one in work.known if one.table == 0 and one.key != work.authority_key}
        rows = await self.forward.read(sorted(others))
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
            etag = await self.mapping.extend(source_key, work.forward, self.listed(work))
            if etag is None:
                work.forward = await self.mapping.forward(source_key)
            else:
                work.forward = Forward(source_key, work.known | self.listed(work), etag)
        raise self.forward.too_busy(source_key)

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
