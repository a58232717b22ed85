"""Step 2 of a write: the reads, intents and claims that precede the authority's write (ADR 0017). `SameView`
writes in the authority's view; `CrossView` works out the caller's operation on the view's row and carries it
over to the authority's row."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rekey.client.dropped import NOT_OF_A_KIND, no_kind
from rekey.client.flow import Flow, check_one_partition
from rekey.client.parts import account_of, refused_by
from rekey.client.source_authority import SourceAuthority
from rekey.client.steps import Decided, Draft, Prepared, Request, known
from rekey.client.target_authority import TargetAuthority
from rekey.errors import (
    ConditionFailed,
    CredentialRefused,
    RekeyError,
    RequestRejected,
    RowExists,
    RowMissing,
    RowRefused,
    RowTooBusy,
    ServiceError,
    Unavailable,
)
from rekey.mapping.rows import TargetKey
from rekey.model import TIMESTAMP, TYPE_SUFFIX, EntityKey, Row, content_of, etag_of, key_of
from rekey.protocol.effects import side_by_side
from rekey.protocol.journal import Journal
from rekey.protocol.operations import CREATES, as_stored, is_conditional, is_lost_race, row_after
from rekey.protocol.replicas import STAND_IN, same_content, source_place
from rekey.protocol.rules import SOURCE, Side
from rekey.tables.answers import error_of
from rekey.tables.base import Operation, Verb
from rekey.tables.rules import check_batch

_LOST_RACES = (RowExists, RowMissing, ConditionFailed)
# Errors passed on to the caller, also when they follow from a read before the write.
_ANSWERS = (*_LOST_RACES, RequestRejected, RowTooBusy)
_CURE = (
    "write what the old table can express, or wait until the migration is complete; rows are created with"
    " their old keys in the properties that copy them"
)


def requests_of(operations: Sequence[Operation], journal: Journal, *, copied: bool) -> list[Request]:
    """Return one `Request` for each operation of a call, in its order.

    Args:
        journal: names each write (`Request.word`).
        copied: whether the backfill is done.

    Raises:
        RequestRejected: the service would refuse the call.
    """
    if len(operations) != 1:
        check_batch(operations)
    requests = []
    for index, operation in enumerate(operations):
        try:
            stored, is_foreseen = as_stored(operation)
        except RequestRejected as refused:
            refused.index = index if len(operations) > 1 else None
            raise
        requests.append(
            Request(
                index,
                stored,
                operation.key,
                journal.write_id(),
                foreseen=is_foreseen,
                reads_before=not copied,
            )
        )
    return requests


async def prepare(flow: Flow) -> list[Prepared] | None:
    """Do everything that comes before the authority's write; return None to prepare again from the start.
    Raises RekeyError, for the caller: nothing was written."""
    try:
        return await flow.prepare()
    except ServiceError as error:
        if isinstance(error, _ANSWERS):
            raise
        if isinstance(error, CredentialRefused):
            raise refused_by(error) from error
        which = account_of(error)
        raise Unavailable(
            f"nothing was written: the {which} account is unavailable ({error.code or type(error).__name__})",
            status=503,
            hint=f"repeat the operation; if it stays so, check the {which} account",
        ) from error


async def _begin(flow: Flow, side: Side, keys: Sequence[tuple[Request, EntityKey]]) -> None:
    """Write one intent for each key; they are durable when it returns."""
    client = flow.client
    begin = client.journal.begin
    intents = await begin(client.client_id, flow.permit.epoch, side, [key for _, key in keys])
    for (request, key), intent in zip(keys, intents, strict=True):
        request.pending.intents.append(intent)
        client.in_flight.begins(side, key)


async def _for_each(
    drafts: Sequence[Draft], call: Callable[[Draft], Awaitable[Any]], *first: Awaitable[None]
) -> list[Any]:
    """Await `first` and one call for each draft concurrently; raise the first error in this order. In a
    transaction the error of a call gets the index of its operation."""

    async def named(draft: Draft) -> Any:
        try:
            return await call(draft)
        except RekeyError as error:
            if len(drafts) > 1:
                error.index = draft.request.index
            raise

    return await side_by_side([*first, *(named(draft) for draft in drafts)])


def _drafts(flow: Flow) -> list[Draft]:
    return [Draft(request, needs_propagate=not request.foreseen) for request in flow.requests]


def _note_leaving(drafts: Sequence[Draft], rows: Sequence[tuple[Side, EntityKey]]) -> None:
    """Record for each operation which rows the others of the call delete. `rows`: theirs, in order."""
    for draft in drafts:
        draft.deleted_by_call = frozenset(
            row
            for other, row in zip(drafts, rows, strict=True)
            if other is not draft and other.operation.verb is Verb.DELETE
        )


def _prepared(drafts: Sequence[Draft]) -> list[Prepared] | None:
    if any(draft.mapping.outdated for draft in drafts):
        return None
    return [draft.prepared() for draft in drafts]


class SameView(Flow):
    """A write in the view whose table is the authority."""

    async def prepare(self) -> list[Prepared] | None:
        side, drafts = self.authority.side, _drafts(self)
        await self.begin(side, [draft.key for draft in drafts])
        _note_leaving(drafts, [(side, draft.key) for draft in drafts])
        first = []
        if not self.intents:
            first = [_begin(self, side, [(request, request.key) for request in self.requests])]
        await _for_each(drafts, self.authority.prepare, *first)
        return _prepared(drafts)

    def raced(self, error: RekeyError, writes: list[Prepared], failed: Prepared, sent: Operation) -> bool:
        if any(sent is operation for _, operation in failed.secondary_writes):
            return isinstance(error, _LOST_RACES)
        if error.index is None and len(writes) > 1:
            # The service did not say which operation failed: it may be one whose condition is ours.
            return any(is_lost_race(error, write.request.operation, write.sent[0]) for write in writes)
        return is_lost_race(error, failed.request.operation, sent)


class CrossView(Flow):
    """A write in the view whose table is a replica. The caller gets the ETag of the view's row."""

    authority: SourceAuthority | TargetAuthority

    async def prepare(self) -> list[Prepared] | None:
        drafts = _drafts(self)
        await _for_each(drafts, self.locate)
        await self.begin(SOURCE, [draft.old_key for draft in drafts])
        _note_leaving(drafts, [(SOURCE, draft.old_key) for draft in drafts])
        if self.authority.side == SOURCE:
            check_one_partition({draft.old_key.partition for draft in drafts})
        new = [
            (draft.request, draft.old_key)
            for draft in drafts
            if all(intent.key != draft.source_key for intent in draft.pending.intents)
        ]
        if new:
            await _begin(self, SOURCE, new)
        in_step = await _for_each(drafts, self._work_out)
        return _prepared(drafts) if all(in_step) else None

    def raced(self, error: RekeyError, writes: list[Prepared], failed: Prepared, sent: Operation) -> bool:  # noqa: ARG002
        return isinstance(error, _LOST_RACES)

    def etags(self) -> list[str | None]:
        # An unknown new ETag of the view's row is reported as one that no row will ever have.
        return [
            None
            if request.operation.verb is Verb.DELETE
            else request.pending.view_etag or f'W/"rekey-{secrets.token_hex(8)}"'
            for request in self.requests
        ]

    @abstractmethod
    async def locate(self, draft: Draft) -> None:
        """Find the place of the view's row and its old key. Raises RowMissing, RowRefused."""

    @abstractmethod
    async def read_authority(self, draft: Draft) -> None:
        """Read the authority's row, and the mapping rows of its old key."""

    @abstractmethod
    async def carry_over(self, draft: Draft, after: Row) -> None:
        """Work out the authority's write that makes the view's row `after`, and claim its keys. Raises
        RowRefused, Collision, Unavailable."""

    async def etag_after_propagate(self, decided: Decided) -> str | None:
        place = known(decided.write.place)
        wanted = decided.write.expected.get(place)
        if wanted is None:
            return None
        now = await self.authority.replicas.table(place.table).get(place.key)
        timed = self.authority.mapper.timestamp_copies[place.table] if place.table >= 0 else frozenset[str]()
        return etag_of(now) if now is not None and same_content(wanted, now, timed) else None

    async def _work_out(self, draft: Draft) -> bool:
        """Read both rows and work out the write; propagate and return False when they are out of step."""
        place = known(draft.place)
        # The authority is written on the condition of its row as read here, before the replicas: so the
        # replicas read below, the view's row among them, are older than that write.
        await self.read_authority(draft)
        replica_places = self.authority.replica_places(draft.old_key, draft.listed)
        await self.authority.read(draft, {place, *replica_places})
        if place not in draft.replicas.read:
            raise Unavailable("the row of this view could not be read; nothing was written", status=503)
        view_row = draft.replicas.read[place]
        previous = await self.authority.replicas.expected_of(draft.old_key, draft.before, view_row)
        shown = previous.get(place)
        in_step = same_content(shown, view_row) if shown and view_row else shown is view_row
        if not in_step:
            draft.pending.keep_intent = True
            try:
                done = await self.authority.replicas.propagate(draft.old_key)
            except BaseException:  # also when it is cut off at the deadline
                draft.pending.ambiguous = True
                raise
            self.client.counters.propagated += 1
            draft.pending.ambiguous = draft.pending.ambiguous or done.ambiguous
            # The caller's ETag was of a row that propagate may just have replaced.
            if is_conditional(draft.operation):
                raise error_of(412, "UpdateConditionNotSatisfied", "the row was changed meanwhile")
            return False
        draft.replicas.previous = previous
        after = row_after(draft.operation, view_row)
        if after is not None:
            await self.carry_over(draft, after)
        elif draft.before is not None:
            draft.replicas.expected = {}
            draft.sent = [Operation(Verb.DELETE, draft.before, etag_of(draft.before))]
            draft.authority_key = key_of(draft.before)
        if draft.sent:
            await self.authority.add_secondary_writes(draft)
        return True


class NewViewFirst(CrossView):
    """A write in the new view while the source is the authority (`dual_write`)."""

    authority: SourceAuthority

    async def locate(self, draft: Draft) -> None:
        place = draft.place = TargetKey(0, *draft.key)
        draft.source_key = await self._owner(place)
        if draft.operation.verb in CREATES and not await self._is_there(draft, place):
            draft.source_key = self.authority.named_key(draft, draft.operation.row)
        if draft.source_key is None:
            row_after(draft.operation, None)  # raises what the service answers for a missing row

    async def _owner(self, place: TargetKey) -> EntityKey | None:
        """Return the source key of the row under a main target key, also while it is passing on."""
        claim = await self.authority.mapping.owner(place.key)
        next_owner = await self.authority.replicas.next_owner(claim, place)
        return next_owner or (None if claim is None else claim.source)

    async def read_authority(self, draft: Draft) -> None:
        draft.authority_key = draft.old_key
        await side_by_side(
            [
                self.authority.read_before(draft),
                self.authority.find_forward(draft),
                self.authority.find_owner(draft, draft.key, claims=False),
            ]
        )

    async def carry_over(self, draft: Draft, after: Row) -> None:
        if draft.before is not None and draft.replicas.read.get(TargetKey(0, *draft.key)) is None:
            if (SOURCE, draft.old_key) not in draft.deleted_by_call:
                raise self.authority.key_taken(draft.key)
            draft.pending.takes_over_key = True
        try:
            desired = await self.authority.replicas.inverse(draft.old_key, after, draft.before, cure=_CURE)
        except RowRefused as refused:
            raise refused.for_row(self.authority.replicas.target_id(draft.key)) from None
        content = content_of(desired)
        if draft.before is None:
            draft.sent = [Operation(Verb.INSERT, content)]
        else:
            draft.sent = [Operation(Verb.REPLACE, content, etag_of(draft.before))]
        await self.authority.expect(draft, content)
        await self.authority.read(draft, draft.expected)
        await self.authority.claim(draft)

    async def _is_there(self, draft: Draft, place: TargetKey) -> bool:
        """Tell whether the write is about the row of the key's owner: the caller's row names that owner, or
        the owner has a row that maps to `place`."""
        if draft.source_key is None:
            return False
        try:
            if self.authority.mapper.source_key(draft.operation.row) == draft.source_key:
                return True
        except RowRefused:
            pass  # the row of a merge need not name its old key
        return await self.authority.replicas.still_owns(draft.source_key, place)


class OldViewAfter(CrossView):
    """A write in the old view while the main target is the authority (`cutover`)."""

    authority: TargetAuthority

    async def locate(self, draft: Draft) -> None:
        draft.source_key = draft.key
        draft.place = source_place(draft.key)

    async def read_authority(self, draft: Draft) -> None:
        await self.authority.find_forward(draft)
        draft.before = await self.authority.reverse.authority(draft.mapping.forward)

    async def carry_over(self, draft: Draft, after: Row) -> None:
        place, now = source_place(draft.key), draft.before
        timed = {**after, TIMESTAMP: (draft.replicas.read.get(place) or {}).get(TIMESTAMP, STAND_IN)}
        try:
            if self.authority.mapper.is_dropped(timed):
                raise no_kind(NOT_OF_A_KIND, "")
            main, *indexes = self.authority.mapper.map(timed)
            view_row = draft.replicas.read.get(place)
            await self.authority.require_reference(draft.old_key, main.row, now, view_row)
        except RowRefused as refused:
            raise refused.for_row(self.authority.replicas.row_id(draft.key)) from None
        row = dict(main.row)
        for name in self.authority.mapper.timestamp_copies[0]:
            # The new Timestamp is unknown until the write: the target row keeps its copy of the source's.
            for wire_name in (name, name + TYPE_SUFFIX):
                row.pop(wire_name, None)
                if now is not None and wire_name in now:
                    row[wire_name] = now[wire_name]
        draft.replicas.expected = {place: after}
        draft.replicas.expected |= {TargetKey(number, *key_of(index)): index for number, index in indexes}
        draft.replicas.own.add(place)
        key = draft.authority_key = key_of(row)
        if now is None:
            draft.sent = [Operation(Verb.INSERT, row)]
        elif key == key_of(now):
            draft.sent = [Operation(Verb.REPLACE, row, etag_of(now))]
        elif key.partition == key_of(now).partition:
            draft.sent = [Operation(Verb.DELETE, now, etag_of(now)), Operation(Verb.INSERT, row)]
            draft.before = None
        else:
            raise RowRefused(
                "key-moves",
                "target.partition_key",
                "the write would move its row to another partition of the new table, and no transaction"
                " spans partitions",
                cure="do this write in the new view, or delete the row and insert it again",
                row_id=self.authority.replicas.row_id(draft.key),
            )
        await side_by_side(
            [
                self.authority.read(draft, draft.replicas.expected),
                self.authority.find_owner(draft, key, claims=False),
            ]
        )
        await self.authority.claim(draft)
