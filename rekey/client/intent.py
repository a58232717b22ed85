"""Step 2 of a write: the reads, intents and claims that must precede the write of the authority.

Rules kept here (ADR 0017):

* Nothing is sent to the authority before the intents and the claims are durable.
* When a condition fails that this client added (to a merge, to a write across views), that is no answer to
  the caller: the write is worked out anew from the rows as they are now.

In the view that is not the authority's:

* The authority's row is read first, then the view's. The view's row must be the one that the authority's row
  gives; otherwise propagate runs, and a caller that named an ETag is told that its condition failed.
* The operation is worked out on the view's row, then carried over to the authority's row. A row that mapping
  would not give back exactly is refused before anything is written.
* The authority is written on the condition of its row as read (its ETag, or its absence): so the row did not
  change in between, and the replicas, the view's row among them, were read before that write.
* The ETag the caller gets is the one of the view's row.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rekey.client.authority import Flow, SourceAuthority, TargetAuthority, check_one_partition
from rekey.client.work import ROW_TOO_BUSY, IntentRef, Work, account_of, found, refused_by
from rekey.errors import (
    ConditionFailed,
    CredentialRefused,
    RekeyError,
    RequestRejected,
    RowExists,
    RowMissing,
    RowRefused,
    ServiceError,
    Unavailable,
)
from rekey.mapping.rows import TargetKey
from rekey.model import TIMESTAMP, TYPE_SUFFIX, EntityKey, Row, content_of, etag_of, key_of
from rekey.protocol.effects import side_by_side
from rekey.protocol.journal import Journal
from rekey.protocol.operations import CREATES, as_stored, is_conditional, is_lost_race, row_after
from rekey.protocol.replicas import STAND_IN, inverse, same_content, source_place
from rekey.protocol.rules import SOURCE, Side
from rekey.tables.answers import error_of
from rekey.tables.base import Operation, Verb
from rekey.tables.rules import check_batch

_LOST_RACES = (RowExists, RowMissing, ConditionFailed)
# Service errors that answer the caller, also when they follow from a read before the write.
_ANSWERS = (*_LOST_RACES, RequestRejected)
_CURE = (
    "write what the old table can express, or wait until the migration is complete; rows are created with"
    " their old keys in the properties that copy them"
)


def works_of(operations: Sequence[Operation], journal: Journal, *, copied: bool) -> list[Work]:
    """Return one `Work` for each operation of a call, in its order.

    Args:
        operations: as the caller gave them.
        journal: gives each write its name (`Work.word`).
        copied: whether the backfill is done.

    Raises:
        RequestRejected: the service would refuse the call.
    """
    if len(operations) != 1:
        check_batch(operations)
    works = []
    for index, one in enumerate(operations):
        try:
            given, is_foreseen = as_stored(one)
            works.append(
                Work(
                    index,
                    given,
                    one.key,
                    journal.word(),
                    reads_before=not copied,
                    foreseen=is_foreseen,
                    slow=not is_foreseen,
                )
            )
        except RequestRejected as refused:
            refused.index = index if len(operations) > 1 else None
            raise
    return works


async def prepare(flow: Flow) -> bool:
    """Do everything that comes before the authority's write; return False to begin again.

    Raises:
        RekeyError: the answer to the caller; nothing was written.
    """
    try:
        return await flow.prepare()
    except ServiceError as error:
        if isinstance(error, _ANSWERS) or error.code == ROW_TOO_BUSY:
            raise
        if isinstance(error, CredentialRefused):
            raise refused_by(error) from error
        which = account_of(error)
        raise Unavailable(
            "nothing was written: what must be known or kept before a write could not be read or written in"
            f" the {which} account ({error.code or type(error).__name__})",
            status=503,
            hint=f"repeat the operation; if it stays so, look at the {which} account",
        ) from error


async def _begin(flow: Flow, side: Side, keys: Sequence[tuple[Work, EntityKey]]) -> None:
    """Write one intent for each key; they are durable when it returns."""
    client = flow.client
    ids = await client.journal.begin(client.client_id, flow.permit.epoch, side, [key for _, key in keys])
    for (work, key), intent_id in zip(keys, ids, strict=True):
        work.intents.append(IntentRef(intent_id, side, key))
        client.begins(side, key)


async def _for_each(flow: Flow, call: Callable[[Work], Awaitable[Any]], *first: Awaitable[None]) -> list[Any]:
    """Await `first` and one call for each key, all at the same time; raise the first error in this order. In
    a transaction the error of a call gets the index of its operation."""

    async def named(work: Work) -> Any:
        try:
            return await call(work)
        except RekeyError as error:
            if len(flow.works) > 1:
                error.index = work.index
            raise

    return await side_by_side([*first, *(named(work) for work in flow.works)])


def _note_leaving(works: Sequence[Work], rows: Sequence[tuple[Side, EntityKey]]) -> None:
    """Note for each operation of a call which rows the others delete. `rows`: theirs, in order."""
    for work in works:
        work.leaving = frozenset(
            row
            for other, row in zip(works, rows, strict=True)
            if other is not work and other.given.verb is Verb.DELETE
        )


class SameView(Flow):
    """A write in a view whose table is the authority."""

    async def prepare(self) -> bool:
        side, keys = self.authority.side, [(work, work.key) for work in self.works]
        await self.begin(side, [key for _, key in keys])
        _note_leaving(self.works, [(side, key) for _, key in keys])
        first = [] if self.works[0].intents else [_begin(self, side, keys)]
        await _for_each(self, self.authority.prepare, *first)
        return not any(work.outdated for work in self.works)

    def raced(self, error: RekeyError, work: Work, sent: Operation) -> bool:
        if any(sent is operation for _, operation in work.along):
            return isinstance(error, _LOST_RACES)
        if error.index is None and len(self.works) > 1:
            # The service did not say which operation failed: it may be one whose condition is ours.
            return any(is_lost_race(error, one.given, one.sent[0]) for one in self.works)
        return is_lost_race(error, work.given, sent)


class CrossView(Flow):
    """A write in a view whose table is a replica."""

    authority: SourceAuthority | TargetAuthority

    async def prepare(self) -> bool:
        await _for_each(self, self.locate)
        await self.begin(SOURCE, [work.old_key for work in self.works])
        _note_leaving(self.works, [(SOURCE, work.old_key) for work in self.works])
        if self.authority.side == SOURCE:
            check_one_partition({work.old_key.partition for work in self.works})
        new = [
            (work, work.old_key)
            for work in self.works
            if all(intent.key != work.source_key for intent in work.intents)
        ]
        if new:
            await _begin(self, SOURCE, new)
        in_step = await _for_each(self, self._look)
        return all(in_step) and not any(work.outdated for work in self.works)

    def raced(self, error: RekeyError, work: Work, sent: Operation) -> bool:  # noqa: ARG002
        return isinstance(error, _LOST_RACES)

    def etags(self) -> list[str | None]:
        # Where the new ETag of the view's row is not known, one that no row will ever have.
        return [
            None if work.given.verb is Verb.DELETE else work.view_etag or f'W/"rekey-{secrets.token_hex(8)}"'
            for work in self.works
        ]

    @abstractmethod
    async def locate(self, work: Work) -> None:
        """Find the place of the view's row and its old key. Raises RowMissing, RowRefused."""

    @abstractmethod
    async def read_authority(self, work: Work) -> None:
        """Read the authority's row, and the mapping rows of its old key."""

    @abstractmethod
    async def carry_over(self, work: Work, after: Row) -> None:
        """Work out the authority's write that makes the view's row `after`, and claim its keys. Raises
        RowRefused, Collision, Unavailable."""

    async def after_propagate(self, work: Work) -> None:
        place = found(work.place)
        wanted = (work.expected or {}).get(place)
        if wanted is None:
            return
        now = await self.authority.replicas.table(place.table).get(place.key)
        timed = self.authority.mapper.timestamp_copies[place.table] if place.table >= 0 else frozenset[str]()
        if now is not None and same_content(wanted, now, timed):
            work.view_etag = etag_of(now)

    async def _look(self, work: Work) -> bool:
        """Read both rows and work out the write; propagate and return False when they are out of step."""
        place = found(work.place)
        await self.read_authority(work)
        await self.authority.read(work, {place, *self.authority.followers(work)}, early=True)
        if place not in work.early:
            raise Unavailable("the row of this view could not be read; nothing was written", status=503)
        view_row = work.early[place]
        shown = self.authority.replicas.expected_of(work.old_key, work.before, view_row).get(place)
        in_step = same_content(shown, view_row) if shown and view_row else shown is view_row
        if not in_step:
            work.lingers = True
            try:
                done = await self.authority.replicas.propagate(work.old_key)
            except RekeyError:
                work.open = True
                raise
            self.client.counters.propagated += 1
            work.open = work.open or done.open
            if is_conditional(work.given):
                raise error_of(412, "UpdateConditionNotSatisfied", "the row was changed meanwhile")
            return False
        after = row_after(work.given, view_row)
        if after is not None:
            await self.carry_over(work, after)
        elif work.before is not None:
            work.expected = {}
            work.sent = [Operation(Verb.DELETE, work.before, etag_of(work.before))]
            work.authority_key = key_of(work.before)
        if work.sent:
            await self.authority.take_along(work)
        return True


class NewViewFirst(CrossView):
    """A write in the new view while the source is the authority (`dual_write`)."""

    authority: SourceAuthority

    async def locate(self, work: Work) -> None:
        place = work.place = TargetKey(0, *work.key)
        work.source_key = await self.authority.replicas.owner_of(work.key)
        if work.given.verb in CREATES and not await self._is_there(work, place):
            work.source_key = self.authority.named_key(work, work.given.row)
        if work.source_key is None:
            row_after(work.given, None)  # raises what the service answers for a missing row

    async def read_authority(self, work: Work) -> None:
        work.authority_key = work.old_key
        await side_by_side(
            [
                self.authority.read_before(work),
                self.authority.find_forward(work),
                self.authority.find_owner(work, work.key, claims=False),
            ]
        )

    async def carry_over(self, work: Work, after: Row) -> None:
        if work.before is not None and work.early.get(TargetKey(0, *work.key)) is None:
            if (SOURCE, work.old_key) not in work.leaving:
                raise self.authority.key_taken(work.key)
            work.moves = True
        try:
            desired = inverse(self.authority.mapper, work.old_key, after, work.before, cure=_CURE)
        except RowRefused as refused:
            raise refused.for_row(self.authority.replicas.target_id(work.key)) from None
        content = content_of(desired)
        if work.before is None:
            work.sent = [Operation(Verb.INSERT, content)]
        else:
            work.sent = [Operation(Verb.REPLACE, content, etag_of(work.before))]
        self.authority.expect(work, content)
        await self.authority.read(work, work.expected or (), early=True)
        await self.authority.claim(work)

    async def _is_there(self, work: Work, place: TargetKey) -> bool:
        """Tell whether the write is about the row of the key's owner: the given row names that owner, or the
        owner has a row that maps to `place`."""
        if work.source_key is None:
            return False
        try:
            if self.authority.mapper.source_key(work.given.row) == work.source_key:
                return True
        except RowRefused:
            pass  # the row of a merge need not name its old key
        return await self.authority.replicas.still_owns(work.source_key, place)


class OldViewAfter(CrossView):
    """A write in the old view while the main target is the authority (`cutover`)."""

    authority: TargetAuthority

    async def locate(self, work: Work) -> None:
        work.source_key = work.key
        work.place = source_place(work.key)

    async def read_authority(self, work: Work) -> None:
        await self.authority.find_forward(work)
        work.before = await self.authority.reverse.authority(work.forward)

    async def carry_over(self, work: Work, after: Row) -> None:
        place, now = source_place(work.key), work.before
        timed = {**after, TIMESTAMP: (work.early.get(place) or {}).get(TIMESTAMP, STAND_IN)}
        try:
            main, *indexes = self.authority.mapper.map(timed)
        except RowRefused as refused:
            raise refused.for_row(self.authority.replicas.row_id(work.key)) from None
        row = dict(main.row)
        for name in self.authority.mapper.timestamp_copies[0]:
            # A new Timestamp cannot be foreseen: the target row keeps its copy of the source's.
            for wire_name in (name, name + TYPE_SUFFIX):
                row.pop(wire_name, None)
                if now is not None and wire_name in now:
                    row[wire_name] = now[wire_name]
        work.expected = {place: after}
        work.expected |= {TargetKey(number, *key_of(index)): index for number, index in indexes}
        work.ours.add(place)
        key = work.authority_key = key_of(row)
        if now is None:
            work.sent = [Operation(Verb.INSERT, row)]
        elif key == key_of(now):
            work.sent = [Operation(Verb.REPLACE, row, etag_of(now))]
        elif key.partition == key_of(now).partition:
            work.sent = [Operation(Verb.DELETE, now, etag_of(now)), Operation(Verb.INSERT, row)]
            work.before = None
        else:
            raise RowRefused(
                "key-moves",
                "target.partition_key",
                "the write would move its row to another partition of the new table, and no transaction"
                " spans partitions",
                cure="do this write in the new view, or delete the row and insert it again",
                row_id=self.authority.replicas.row_id(work.key),
            )
        await side_by_side(
            [
                self.authority.read(work, work.expected, early=True),
                self.authority.find_owner(work, key, claims=False),
            ]
        )
        await self.authority.claim(work)
