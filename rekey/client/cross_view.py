"""Writes in the view that is not the authority's.

Rules kept here (DESIGN section 4, ADR 0017):

* The authority's row is read first, then the view's. The view's row must be what the authority's row gives;
  otherwise propagate, and a caller that named a version is told that its condition failed.
* The operation is worked out on the view's row, then carried over to the authority's row. What mapping it
  would not give back exactly is refused before anything is written.
* The authority is written on the condition of the row that was read; so nothing moved in between, and the
  replicas, the view's row among them, were read before that write.
* The ETag the caller gets is the one of the view's row.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Sequence

from rekey.client.authority import old_key
from rekey.client.flow import Flow
from rekey.client.source_side import SourceSide
from rekey.client.target_side import TargetSide
from rekey.client.work import Work
from rekey.errors import ConditionFailed, RekeyError, RowExists, RowMissing, RowRefused, Unavailable
from rekey.mapping.rows import TargetKey
from rekey.model import TIMESTAMP, TYPE_SUFFIX, EntityKey, Row, content_of, etag_of, key_of
from rekey.protocol.effects import side_by_side
from rekey.protocol.inverse import STAND_IN, inverse
from rekey.protocol.operations import CREATES, is_conditional, row_after
from rekey.protocol.replicas import same_content
from rekey.protocol.reverse import source_place
from rekey.protocol.rules import SOURCE
from rekey.tables.base import Operation, Verb


def no_version() -> str:
    """Return an ETag that no row will ever have."""
    return f'W/"rekey-{secrets.token_hex(8)}"'


class CrossView(Flow):
    """The view's table is a replica."""

    side: SourceSide | TargetSide

    async def prepare(self) -> bool:
        await self.for_each_work([self.named(work, self.locate) for work in self.works])
        self.check_partitions([old_key(work) for work in self.works])
        new = [
            (work, old_key(work))
            for work in self.works
            if all(intent.key != work.source_key for intent in work.intents)
        ]
        if new:
            await self.for_each_work([self.begin(SOURCE, new)])
        in_step: list[bool] = []

        async def look(work: Work) -> None:
            in_step.append(await self._look(work))

        await self.for_each_work([self.named(work, look) for work in self.works])
        return all(in_step) and not self.is_outdated

    def raced(self, error: RekeyError, work: Work, sent: Operation) -> bool:  # noqa: ARG002
        return isinstance(error, RowExists | RowMissing | ConditionFailed)

    def etags(self) -> list[str | None]:
        return [
            None if work.given.verb is Verb.DELETE else work.view_etag or no_version() for work in self.works
        ]

    @abstractmethod
    async def locate(self, work: Work) -> None:
        """Find the old key of a view's row. Raises RowMissing, RowRefused."""

    def check_partitions(self, source_keys: Sequence[EntityKey]) -> None:
        """Refuse early what cannot be one transaction. Raises RequestRejected."""

    @abstractmethod
    async def read_authority(self, work: Work) -> None:
        """Read the authority's row, and what the mapping lists for it."""

    @abstractmethod
    def places(self, work: Work) -> set[TargetKey]:
        """Return the places where replica rows may stand, the view's row among them."""

    @abstractmethod
    def shown(self, work: Work, view_row: Row | None) -> Row | None:
        """Return the view's row as the authority's row gives it."""

    @abstractmethod
    async def carry_over(self, work: Work, after: Row) -> None:
        """Work out what is sent to the authority for a view's row, and claim for it. Raises RowRefused."""

    async def after_propagate(self, work: Work) -> None:
        wanted = None if work.place is None else (work.expected or {}).get(work.place)
        if work.place is None or wanted is None:
            return
        now = await self.side.forward.table(work.place.table).get(work.place.key)
        timed = frozenset[str]()
        if work.place.table >= 0:
            timed = self.side.mapper.timestamp_copies[work.place.table]
        if now is not None and same_content(wanted, now, timed):
            work.view_etag = etag_of(now)

    async def _look(self, work: Work) -> bool:
        """Read both rows and work out the write; False when they were out of step."""
        await self.read_authority(work)
        await self.side.read(work, self.places(work), early=True)
        if work.place is None or work.place not in work.early:
            raise Unavailable("the row of this view could not be read; nothing was written", status=503)
        view_row = work.early[work.place]
        shown = self.shown(work, view_row)
        in_step = same_content(shown, view_row) if shown and view_row else shown is view_row
        if not in_step:
            await self._bring_in_step(work)
            return False
        after = row_after(work.given, view_row)
        if after is not None:
            await self.carry_over(work, after)
        elif work.before is not None:
            work.expected = {}
            work.sent = [Operation(Verb.DELETE, work.before, etag_of(work.before))]
            work.authority_key = key_of(work.before)
        return True

    async def _bring_in_step(self, work: Work) -> None:
        try:
            done = await self.side.propagate(old_key(work))
        except RekeyError:
            work.open = True
            raise
        self._counters.propagated += 1
        work.open = work.open or done.open
        if is_conditional(work.given):
            raise ConditionFailed(
                "the row was changed meanwhile (UpdateConditionNotSatisfied)",
                code="UpdateConditionNotSatisfied",
                status=412,
            )


class NewViewFirst(CrossView):
    """A write in the new view while the source is the authority (`dual_write`)."""

    side: SourceSide

    async def locate(self, work: Work) -> None:
        place = work.place = TargetKey(0, *work.key)
        owner = await self.side.mapping.owner(work.key)
        work.source_key = None if owner is None else owner.source
        if work.given.verb in CREATES and not await self._is_there(work, place):
            work.source_key = self._named_key(work)
        if work.source_key is None:
            row_after(work.given, None)  # there is no such row: the service's own answer

    def check_partitions(self, source_keys: Sequence[EntityKey]) -> None:
        self.check_one_partition({key.partition for key in source_keys})

    async def read_authority(self, work: Work) -> None:
        source_key = work.authority_key = old_key(work)

        async def read_before() -> None:
            work.before = await self.side.authority.get(source_key)

        await side_by_side(
            [read_before(), self.side.find_forward(work), self.side.find_owner(work, work.key, claims=False)]
        )

    def places(self, work: Work) -> set[TargetKey]:
        return {TargetKey(0, *work.key), *work.known, *self.side.bare(old_key(work))}

    def shown(self, work: Work, view_row: Row | None) -> Row | None:  # noqa: ARG002
        return self.side.forward.expected_of(old_key(work), work.before).get(TargetKey(0, *work.key))

    async def carry_over(self, work: Work, after: Row) -> None:
        source_key = old_key(work)
        row_id = self.side.mapping.rows.ids.short(self.side.forward.targets[0].name, work.key)
        if work.before is not None and work.early.get(TargetKey(0, *work.key)) is None:
            raise RowRefused(
                "key-taken",
                "target",
                "another row of the table stands for the same old key",
                cure="delete the other row first, or write this one in its place",
                row_id=row_id,
            )
        try:
            desired = inverse(self.side.mapper, source_key, after, work.before, cure=_CURE)
        except RowRefused as refused:
            raise refused.for_row(row_id) from None
        content = content_of(desired)
        if work.before is None:
            work.sent = [Operation(Verb.INSERT, content)]
        else:
            work.sent = [Operation(Verb.REPLACE, content, etag_of(work.before))]
        self.side.expect(work, content)
        await self.side.read(work, work.expected or (), early=True)
        await self.side.claim(work)

    async def _is_there(self, work: Work, place: TargetKey) -> bool:
        """Tell whether the key's owner has a row there: then that is the row which is written."""
        if work.source_key is None:
            return False
        try:
            if self.side.mapper.source_key(work.given.row) == work.source_key:
                return True
        except RowRefused:
            pass  # a merge need not say it
        return await self.side.still_owns(work.source_key, place)

    def _named_key(self, work: Work) -> EntityKey:
        """Return the old key that a new row names. Raises RowRefused."""
        try:
            return self.side.mapper.source_key(work.given.row)
        except RowRefused as refused:
            ids, main = self.side.mapping.rows.ids, self.side.forward.targets[0].name
            raise refused.for_row(ids.short(main, work.key)) from None


class OldViewAfter(CrossView):
    """A write in the old view while the main target is the authority (`cutover`)."""

    side: TargetSide

    async def locate(self, work: Work) -> None:
        work.source_key = work.key
        work.place = source_place(work.key)

    async def read_authority(self, work: Work) -> None:
        await self.side.find_forward(work)
        work.before = await self.side.reverse.authority(work.forward)

    def places(self, work: Work) -> set[TargetKey]:
        return self.side.followers(work)

    def shown(self, work: Work, view_row: Row | None) -> Row | None:
        expected = self.side.reverse.expected_of(work.key, work.before, view_row)
        return expected.get(source_place(work.key))

    async def carry_over(self, work: Work, after: Row) -> None:
        view_row, now = work.early.get(source_place(work.key)), work.before
        timed = {**after, TIMESTAMP: (view_row or {}).get(TIMESTAMP, STAND_IN)}
        try:
            main, *indexes = self.side.mapper.map(timed)
        except RowRefused as refused:
            raise refused.for_row(self.side.forward.row_id(work.key)) from None
        row = self._keep_timestamps(main.row, now)
        work.expected = {source_place(work.key): after}
        work.expected |= {TargetKey(number, *key_of(index)): index for number, index in indexes}
        work.ours.add(source_place(work.key))
        key = work.authority_key = key_of(row)
        if now is None:
            work.sent = [Operation(Verb.INSERT, row)]
        elif key == key_of(now):
            work.sent = [Operation(Verb.REPLACE, row, etag_of(now))]
        else:
            self._check_move(work, key, key_of(now))
            work.sent = [Operation(Verb.DELETE, now, etag_of(now)), Operation(Verb.INSERT, row)]
            work.before = None
        reads = [self.side.read(work, work.expected, early=True)]
        reads.append(self.side.find_owner(work, key, claims=False))
        await side_by_side(reads)
        await self.side.claim(work)

    def _check_move(self, work: Work, then: EntityKey, now: EntityKey) -> None:
        if then.partition != now.partition:
            raise RowRefused(
                "key-moves",
                "target.partition_key",
                "the write would move its row to another partition of the new table, and no transaction"
                " spans partitions",
                cure="do this write in the new view, or delete the row and insert it again",
                row_id=self.side.forward.row_id(work.key),
            )

    def _keep_timestamps(self, row: Row, now: Row | None) -> Row:
        """Keep what the target row says of the source's Timestamp: nobody can foresee a new one."""
        kept = dict(row)
        for name in self.side.mapper.timestamp_copies[0]:
            for wire_name in (name, name + TYPE_SUFFIX):
                kept.pop(wire_name, None)
                if now is not None and wire_name in now:
                    kept[wire_name] = now[wire_name]
        return kept


_CURE = (
    "write what the old table can express, or wait until the migration is complete; rows are created with"
    " their old keys in the properties that copy them"
)
