"""The source as the authority of dual writes (`dual_write`): main target and index tables follow.

Rules kept here:

* What a write gives in the targets is worked out before anything is written: from the caller's row, or for a
  merge from the row that was read.
* A mapping that reads the service's Timestamp cannot foresee its rows: they are left to propagate.
"""

from __future__ import annotations

from rekey.client.authority import AuthoritySide, old_key
from rekey.client.work import Work
from rekey.errors import RowRefused
from rekey.mapping.rows import TargetKey
from rekey.model import TIMESTAMP, EntityKey, Row
from rekey.protocol.effects import side_by_side
from rekey.protocol.inverse import STAND_IN
from rekey.protocol.operations import FULL, MERGES, as_sent, row_after
from rekey.protocol.propagate import Propagated, Propagator
from rekey.protocol.rules import SOURCE
from rekey.tables.base import Verb


class SourceSide(AuthoritySide):
    """Dual writes whose authority is the source."""

    side = SOURCE

    def __init__(self, propagator: Propagator) -> None:
        super().__init__(propagator)
        self.authority = propagator.source

    async def prepare(self, work: Work) -> None:
        operation = work.given
        work.source_key = work.authority_key = work.key
        work.sent = [operation]
        if operation.verb in FULL:
            self.expect(work, operation.row)
        elif operation.verb is Verb.DELETE:
            work.expected = {}
        bare = self.bare(work.key)
        places = {*(work.expected or ()), *bare}
        reads = [self.find_forward(work), self.read(work, places, early=True), self._read_before(work)]
        main = self.main_of(work)
        if main is not None:
            reads.append(self.find_owner(work, main, claims=True))
        elif operation.verb is Verb.DELETE:
            reads.append(self.note_owned(work, bare))
        await side_by_side(reads)
        if operation.verb in MERGES:
            await self._prepare_merge(work)
        work.previous = self._previous(work)
        if operation.verb is not Verb.DELETE:
            await self.claim(work)

    async def claim(self, work: Work) -> None:
        source_key, main = old_key(work), self.main_of(work)
        self.check_list(work)
        if main is not None:
            target = TargetKey(0, *main)
            if work.owner != source_key:
                await self.mapping.claim_main(source_key, target, self.still_owns)
            work.ours.add(target)
        await self.check_indexes(work)

    async def read_beside(self, work: Work) -> None:
        older = work.known - set(work.expected or ())
        await side_by_side([self.read(work, older, early=False), self.note_owned(work, older)])

    async def propagate(self, source_key: EntityKey) -> Propagated:
        return await self.forward.propagate(source_key)

    async def still_owns(self, source_key: EntityKey, target: TargetKey) -> bool:
        return await self.forward.still_owns(source_key, target)

    def main_of(self, work: Work) -> EntityKey | None:
        mains = [target.key for target in work.expected or () if target.table == 0]
        return mains[0] if mains else None

    def followers(self, work: Work) -> set[TargetKey]:
        return {*work.known, *self.bare(old_key(work))}

    def expect(self, work: Work, row: Row) -> None:
        """Work out the replicas' rows for the source row as it will be. Raises RowRefused."""
        timed = {**row, TIMESTAMP: STAND_IN} if self.mapper.needs_timestamp else row
        work.expected = self.forward.expected_of(old_key(work), timed)
        if self.mapper.needs_timestamp:
            work.slow = True

    async def _read_before(self, work: Work) -> None:
        """Read the authority's row where the write depends on it: for a merge, and to know older rows by."""
        if work.given.verb in MERGES or self.mapper.content_derived:
            work.before = await self.authority.get(work.key)

    async def _prepare_merge(self, work: Work) -> None:
        after = row_after(work.given, work.before)
        work.sent = [as_sent(work.given, work.before)]
        self.expect(work, after or {})
        main = self.main_of(work)
        reads = [self.read(work, work.expected or (), early=True)]
        if main is not None:
            reads.append(self.find_owner(work, main, claims=True))
        await side_by_side(reads)

    def _previous(self, work: Work) -> dict[TargetKey, Row]:
        """Return the replicas' rows as they were to be before; nothing if that cannot be told."""
        try:
            return self.forward.expected_of(old_key(work), work.before)
        except RowRefused:
            return {}
