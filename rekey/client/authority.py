"""Step 3 of a write: the authority, which is the source in `dual_write` and the main target in `cutover`.

`SourceAuthority` and `TargetAuthority` say what is read, claimed and checked before, during and after the
write of the authority; `send.py` sends it.

Rules kept here (ADR 0017, ADR 0026):

* Before the authority is written: rows that the mapping refuses, and collisions, end the write; the main
  target key is claimed; replica rows whose keys are known are read.
* During that write: the forward row is extended, rows under older target keys are read. No row is written
  under a key before both its mapping rows are durable.
* A replica that cannot be read makes the write slow (propagate writes the replicas). It fails the write only
  where that row is needed to work the write out: the row of a view that is not the authority's, and a source
  row without which it is not known whether the way back loses anything.
* Afterwards (`is_settled`): the authority's row is still the one that was written; where keys come from
  content, no other writer listed a target key meanwhile; and the main target key of a row that may be new, or
  that comes from content, still belongs to the old key.

Where the source is the authority:

* The target rows of a write are worked out before anything is written: from the caller's row, or for a merge
  from the caller's row merged into the row that was read.
* The target rows of a mapping that reads the service's Timestamp cannot be foreseen: propagate writes them.

Where the main target is the authority:

* A row is written only if the source can express it (`inverse`), and if no other row of the main target
  stands for the same old key: otherwise it is refused before anything is written.
* The key of a new row is claimed before the authority is written, in the forward and in the reverse row: a
  reader finds the row of an old key through the mapping.
* Where keys come from content, one old key can have many main target keys, and no single condition covers
  them. A write that creates a row reserves its key in the forward row. The reservation is conditional on the
  forward row that was read before other rows of the old key were looked for: so no other write began to
  create one in between, and none begins while the reservation lasts. It is given up when the authority has
  answered; after an open outcome it ends by time. Every other write is sent on the condition that its row is
  there.
* Secondary rows in the partition of the main row are listed in the forward row first, then written in its
  transaction. Every write of that transaction is conditional on the row that was read, the main row's too,
  even if the caller asks for no condition: the secondary rows follow from the rows that were read.
* A target key passes to another old key only when both its row and the former owner's source row are gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from rekey.client.lease import Permit
from rekey.client.work import ROW_TOO_BUSY, ClientParts, State, Work, found
from rekey.errors import RekeyError, RowRefused, ServiceError, Unavailable
from rekey.mapping.rows import Forward, Owner, Reservation, TargetKey, pointer_of
from rekey.mapping.store import StillOwns
from rekey.model import TIMESTAMP, EntityKey, Row, etag_of, key_of
from rekey.protocol.effects import side_by_side
from rekey.protocol.operations import CREATES, FULL, MERGES, as_sent, is_conditional, row_after
from rekey.protocol.propagate import MAX_ROUNDS, Propagator, version_of
from rekey.protocol.replicas import SOURCE_TABLE, STAND_IN, Rows, source_place
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import SOURCE, TARGET, Side
from rekey.tables.base import Operation, Verb, rejected

V = TypeVar("V")

# Attempts to give up a reservation; one that stays ends by time.
_RELEASES = 3
# Most keys in each memory of mapping rows that a client has seen.
_REMEMBERED = 10_000


@dataclass(slots=True)
class Flow(ABC):
    """One call, an operation or a transaction, with all that its steps need.

    Attributes:
        works: one for each operation.
        client: the client that makes the call.
        authority: the side that decides.
        permit: the permit that the call runs under.
        deadline: when the call and its work after the answer must have ended, by the loop's clock.
        sent: whether a request to the authority may have been applied, or may yet be.
        named: the keys it writes, as its intents name them, as far as they are known.
        written: ETags of all rows that the authority's transaction has written, by key.
    """

    works: list[Work]
    client: ClientParts
    authority: Authority
    permit: Permit
    deadline: float
    sent: bool = False
    named: list[tuple[Side, EntityKey]] = field(default_factory=list, init=False)
    written: dict[EntityKey, str | None] = field(default_factory=dict, init=False)

    @abstractmethod
    async def prepare(self) -> bool:
        """Do everything that comes before the authority's write; see `intent.prepare`."""

    @abstractmethod
    def raced(self, error: RekeyError, work: Work, sent: Operation) -> bool:
        """Tell whether the authority refused only a condition that this client added."""

    async def begin(self, side: Side, keys: Iterable[EntityKey]) -> None:
        """Note that keys, as intents name them, are written by the call, and wait until nothing that was left
        of them is being settled."""
        new = [(side, key) for key in keys if (side, key) not in self.named]
        self.named += new
        self.client.begun.update(new)
        await self.client.let_settle(new)

    def end(self) -> None:
        """Note that the call's writes are no longer under way."""
        self.client.ends(self.named, (intent for work in self.works for intent in work.intents))

    def etags(self) -> list[str | None]:
        """Return the caller's ETags, None for deletes."""
        return [work.etag for work in self.works]

    async def after_propagate(self, work: Work) -> None:  # noqa: B027 - nothing, in the authority's own view
        """Read the new ETag of the view's row, after propagate has written the replicas."""


def check_one_partition(partitions: set[str]) -> None:
    """Refuse a transaction over several partitions of the authority. Raises RequestRejected."""
    if len(partitions) > 1:
        raise rejected(
            "CommandsInBatchActOnDifferentPartitions",
            "rows of one transaction lie in several partitions of the table that is written first",
            hint="while the migration runs, write these rows one by one or in the other view",
        )


class Authority(ABC):
    """The source or the main target, as the authority of dual writes."""

    side: Side

    def __init__(self, replicas: Propagator, takes_effect_s: float) -> None:
        """Create the authority.

        Args:
            replicas: propagates from it to its replicas.
            takes_effect_s: for how many seconds a request of a write can take effect after the write began.
        """
        self._takes_effect_s = takes_effect_s
        self.replicas = replicas
        self.table = replicas.table(SOURCE_TABLE if self.side == SOURCE else 0)
        self.mapper = replicas.mapper
        self.mapping = replicas.mapping
        # Claims that were seen, by main target key: saves claims that would fail, and reads before a row that
        # was deleted is created again. Never trusted.
        self._owners: dict[EntityKey, Owner] = {}

    # --- what differs -----------------------------------------------------------------------------------

    @abstractmethod
    async def prepare(self, work: Work) -> None:
        """Do the reads, checks and claims that must precede the authority's write (same view)."""

    @abstractmethod
    async def claim_main(self, work: Work, target: TargetKey) -> None:
        """Make the old key the owner of `target`, and list or reserve `target` where that must precede the
        row. Raises Collision, RowRefused, Unavailable."""

    @abstractmethod
    async def read_late(self, work: Work) -> None:
        """Read, during the authority's write, the rows that could not be read before it."""

    @abstractmethod
    def main_of(self, work: Work) -> EntityKey | None:
        """Return the main target key that the row stands under after the write, None if it is deleted."""

    @abstractmethod
    def own_mains(self, work: Work) -> set[EntityKey]:
        """Return the main target keys, as far as known, that the row has before and after the write."""

    @abstractmethod
    def followers(self, work: Work) -> set[TargetKey]:
        """Return the places where a replica row of this key may stand, as far as the mapping tells."""

    @abstractmethod
    def expect(self, work: Work, row: Row) -> None:
        """Work out the replicas' rows for `row`, the authority's row after the write. Raises RowRefused,
        Unavailable."""

    @abstractmethod
    def is_new(self, work: Work, target: TargetKey) -> bool:
        """Tell whether the row does not stand under a target key yet, as far as the row that was read tells.
        The write is sent on the condition of that row."""

    async def take_along(self, work: Work) -> None:  # noqa: B027 - what follows the source is written after it
        """Work out which secondary rows are written in the authority's transaction."""

    # --- what is the same -------------------------------------------------------------------------------

    async def while_writing(self, work: Work) -> None:
        """Extend the forward row and do the late reads. A failure makes the write slow."""
        try:
            await side_by_side([self._extend(work), self.read_late(work)])
        except (ServiceError, RowRefused):
            work.slow = True
        mains = work.main_keys
        for target, row in {**work.late, **work.early}.items():
            if target.table > 0 and row is not None and pointer_of(row) in mains:
                work.ours.add(target)

    async def is_settled(self, work: Work) -> bool:
        """Tell, after the replicas were written, whether no other writer came in between."""
        key, source_key, main = work.authority_key, work.source_key, self.main_of(work)
        if key is None or source_key is None:
            return False

        async def same_row() -> bool:
            return version_of(await self.table.get(key)) == work.etag

        checks = [same_row()]
        if self.mapper.content_derived:
            checks.append(self.same_list(work))
        mains = self.given_up(work)
        passes = self.mapper.content_derived or 0 in self.mapper.shared
        if main is not None and (work.given.verb in CREATES or passes):
            mains.add(main)
        checks += [self.replicas.is_owner(source_key, one) for one in sorted(mains)]
        return all(await side_by_side(checks))

    def given_up(self, work: Work) -> set[EntityKey]:
        """Return the main target keys whose rows, index rows included, this write has deleted: a new owner
        may have found an index row equal to its own, and left it alone, before it was deleted."""
        rows = {**work.late, **work.early}
        deleted = work.ours & rows.keys() - (work.expected or {}).keys()
        return {
            target.key if target.table == 0 else pointer_of(row)
            for target in deleted
            if target.table != SOURCE_TABLE and (row := rows[target]) is not None
        }

    async def same_list(self, work: Work) -> bool:
        """Tell whether the forward row is as it is known when it has been read: this write may extend it."""
        return _version(await self.mapping.forward(work.old_key)) == _version(work.forward)

    def bare(self, source_key: EntityKey) -> frozenset[TargetKey]:
        """Return the target keys that follow from the old key alone; empty where they depend on content."""
        return frozenset(TargetKey(number, *key) for number, key in self.mapper.target_keys(source_key) or ())

    async def read(self, work: Work, places: Iterable[TargetKey], *, early: bool) -> None:
        """Read replica rows that were not read yet; a replica that fails makes the write slow.

        Args:
            work: the key.
            places: the replica rows.
            early: whether this happens before the authority is written.
        """
        into = work.early if early else work.late
        missing = sorted(set(places) - work.early.keys() - work.late.keys())

        async def read_one(place: TargetKey) -> None:
            try:
                into[place] = await self.replicas.table(place.table).get(place.key)
            except ServiceError:
                work.slow = True

        if self.mapper.together:  # as `propagate` reads them
            await side_by_side(read_one(place) for place in missing if place.table == 0)
            missing = [place for place in missing if place.table]
        await side_by_side(read_one(place) for place in missing)

    async def read_before(self, work: Work) -> None:
        """Read the authority's row as it is before the write."""
        work.before = await self.table.get(found(work.authority_key))

    async def find_owner(self, work: Work, main: EntityKey, *, claims: bool) -> None:
        """Read which old key owns a main target key. With `claims`, try at the same time to claim it, unless
        this client has seen that it owns the key already."""
        source_key, target = work.old_key, TargetKey(0, *main)
        seen = self._owners.get(main)
        is_ours = seen is not None and seen.source == source_key
        reserves = 0 in self.mapper.shared and work.given.verb is Verb.INSERT
        if not claims or target in work.reserved or (is_ours and not reserves):
            owner = await self.mapping.owner(main)
        else:
            owner, claimed = await side_by_side(
                [self.mapping.owner(main), self._claim_early(work, target, seen if is_ours else None)]
            )
            owner = claimed or owner
        work.claims[target] = owner
        work.owner = None if owner is None else owner.source
        if owner is not None and work.owner == source_key:
            _remember(self._owners, main, owner)

    async def find_forward(self, work: Work) -> None:
        """Read the forward row of a key."""
        work.forward = await self.mapping.forward(work.old_key)

    async def note_owned(self, work: Work, places: Collection[TargetKey]) -> None:
        """Add to `work.ours` the main target keys among `places` that belong to this old key."""
        mains = sorted(place for place in places if place.table == 0 and place not in work.ours)

        async def note(place: TargetKey) -> None:
            if await self.replicas.is_owner(work.old_key, place.key):
                work.ours.add(place)

        await side_by_side(note(place) for place in mains)

    async def claim(self, work: Work) -> None:
        """Claim the row's main target key, and check whose index rows stand under its index keys.

        Raises:
            RowRefused: the row has more target keys than the mapping can list, or as `claim_main`.
            Collision: a key belongs to another row.
        """
        main, wanted = self.main_of(work), self.listed(work)
        if not wanted <= work.known:
            self.mapping.rows.require_fits(work.old_key, work.known | wanted)
        new = [
            target
            for target in sorted(work.expected or ())
            if target.table > 0 and target.table in self.mapper.shared and self.is_new(work, target)
        ]
        await side_by_side(
            [
                *([] if main is None else [self.claim_main(work, TargetKey(0, *main))]),
                *(self.reserve_key(work, target, self.replicas.still_owns) for target in new),
                self.read(work, new, early=True),
            ]
        )
        if not work.early.keys() >= {*new}:
            raise Unavailable(
                "whether another row has one of the row's index keys could not be read; nothing was written",
                status=503,
                hint="repeat the operation when the service is back",
            )
        for target in work.expected or ():
            row = work.early.get(target)
            if target.table > 0 and row is not None and pointer_of(row) not in self.own_mains(work):
                if not await self._leaves(work, pointer_of(row)):
                    await self.replicas.yield_or_collide(work.old_key, target, row)
                work.ours.add(target)

    async def _claim_early(self, work: Work, target: TargetKey, seen: Owner | None) -> Owner | None:
        """Try to claim a target key on the condition of its claim as last seen, None: there was none; reserve
        it if another source key can have it. None when the claim is another one."""
        shared = target.table in self.mapper.shared
        before = None if seen is None else seen.reserved
        reserved = self._reservation(work, work.old_key, before) if shared else None
        claimed = await self.mapping.take(work.old_key, target, seen, reserved)
        if claimed is not None and shared:
            work.reserved[target] = claimed
        return claimed

    def reserves_early(self, work: Work, expected: Iterable[TargetKey]) -> list[Awaitable[object]]:
        """Return the claims of index keys that are tried together with the reads: those of a row that is sure
        to be new. `expected`: where its replicas will stand."""
        if work.given.verb is not Verb.INSERT:
            return []
        new = [one for one in sorted(expected) if one.table > 0 and one.table in self.mapper.shared]
        return [self._claim_early(work, target, None) for target in new if target not in work.reserved]

    # --- reservations of target keys --------------------------------------------------------------------

    async def reserve_key(self, work: Work, target: TargetKey, still_owns: StillOwns) -> None:
        """Claim a target key for a write that creates a row under it: until the authority has answered, the
        key passes to no other source key.

        A key whose owner's row is deleted by the same call is reserved, and stays the owner's: propagate
        passes it on when both are written.

        Raises:
            Collision: the key belongs to another row, or another write is creating one.
        """
        if target in work.reserved:
            return
        for _ in range(MAX_ROUNDS):
            owner = await self._claim_to_take(work, target)
            if target in work.reserved:
                return
            keeps_owner = owner is not None and await self._is_deleted_with(work, owner.source)
            if not keeps_owner:
                await self.mapping.require_free(work.old_key, target, owner, still_owns)
            new_owner = owner.source if owner is not None and keeps_owner else work.old_key
            claimed = await self.mapping.take(
                new_owner, target, owner, self._reservation(work, work.old_key, owner and owner.reserved)
            )
            if claimed is not None:
                work.reserved[target] = claimed
                return
        raise self.mapping.kept_changing()

    async def _claim_to_take(self, work: Work, target: TargetKey) -> Owner | None:
        """Return the claim of a target key that is to be reserved; one that is not read yet is tried to be
        made at the same time. Raises Collision as `MappingStore.unreserved`."""
        if target in work.claims:
            owner = work.claims.pop(target)
        else:
            owner, _ = await side_by_side(
                [self.mapping.owner(target.key, target.table), self._claim_early(work, target, None)]
            )
        reserved = None if owner is None else owner.reserved
        if target in work.reserved or reserved is None or reserved.key == work.old_key:
            return owner
        return await self.mapping.unreserved(work.old_key, target)

    async def release(self, work: Work) -> None:
        """Give up the write's reservations: no request to the authority can take effect any more."""
        await side_by_side(self._release_key(work, target) for target in sorted(work.reserved))

    async def _release_key(self, work: Work, target: TargetKey) -> None:
        owner: Owner | None = work.reserved.pop(target)
        for _ in range(_RELEASES):
            reserved = None if owner is None else owner.reserved
            if owner is None or reserved is None or work.word not in reserved.writers:
                return
            if owner.source != reserved.key and work.state is not State.UNDECIDED:
                return  # the row is there, and the claim has not passed on to it: it stays reserved
            released = await self.mapping.take(owner.source, target, owner, reserved.without(work.word))
            if released is not None:
                if target.table == 0:
                    _remember(self._owners, target.key, released)
                return
            owner = await self.mapping.owner(target.key, target.table)

    def _reservation(self, work: Work, key: EntityKey, present: Reservation | None) -> Reservation:
        """Return the reservation of a mapping row by a write, for `key`. `present`: the one that it holds."""
        mine = Reservation(key, frozenset({work.word}), self._takes_effect_s)
        if present is None or present.key != key:
            return mine
        writers = present.writers | mine.writers
        return mine._replace(writers=writers, seconds=max(present.seconds, self._takes_effect_s))

    async def _is_deleted_with(self, work: Work, source_key: EntityKey) -> bool:
        """Tell whether the same call deletes the row of another source key."""
        deleted = source_key != work.old_key and (
            (SOURCE, source_key) in work.leaving
            or any(
                [
                    await self.replicas.is_owner(source_key, key)
                    for side, key in work.leaving
                    if side == TARGET and key
                ]
            )
        )
        work.moves = work.moves or deleted
        return deleted

    async def _leaves(self, work: Work, main: EntityKey) -> bool:
        """Tell whether the same call deletes the row that stands under a main target key."""
        leaves = (TARGET, main) in work.leaving
        if work.leaving and not leaves:
            leaves = (SOURCE, await self.replicas.owner_of(main)) in work.leaving
        work.moves = work.moves or leaves
        return leaves

    def given_before(self, work: Work, source_row: Row | None = None) -> Rows:
        """Return the replicas' rows by the authority's row as read; empty if the mapping refuses that row.

        Args:
            work: the key.
            source_row: the source row as read, where the source is a replica.
        """
        try:
            return self.replicas.expected_of(work.old_key, work.before, source_row)
        except RowRefused:
            return {}

    def listed(self, work: Work) -> set[TargetKey]:
        """Return the target keys that the forward row must list for this write."""
        main = self.main_of(work)
        mains = set[TargetKey]() if main is None else {TargetKey(0, *main)}
        return mains | {target for target in work.expected or () if target.table >= 0}

    def named_key(self, work: Work, row: Row) -> EntityKey:
        """Return the old key that a row of the main target names. Raises RowRefused."""
        try:
            return self.mapper.source_key(row)
        except RowRefused as refused:
            raise refused.for_row(self.replicas.target_id(work.key)) from None

    def passes_on(self, work: Work) -> bool:
        """Tell whether the same call deletes the row of the main target key's owner. Propagate passes the
        claim on when both are written: before that, the key belongs to the row that is there."""
        passes = (SOURCE, work.owner) in work.leaving
        work.moves = work.moves or passes
        return passes

    def key_taken(self, main: EntityKey) -> RowRefused:
        """Return the error for a row whose old key has another row in the main target."""
        return RowRefused(
            "key-taken",
            "target",
            "another row of the table stands for the same old key",
            cure="delete the other row first, or write this one in its place",
            row_id=self.replicas.target_id(main),
        )

    async def _extend(self, work: Work) -> None:
        missing = self.listed(work) - work.known
        if not missing:
            return
        after = await self.mapping.extend(work.old_key, work.forward, missing)
        work.forward = after or await self.mapping.forward(work.old_key)
        work.slow = work.slow or not missing <= work.known


class SourceAuthority(Authority):
    """The source as the authority (`dual_write`): main target and index tables follow."""

    side = SOURCE

    async def prepare(self, work: Work) -> None:
        operation = work.given
        work.source_key = work.authority_key = work.key
        work.sent = [operation]
        if operation.verb in FULL:
            self.expect(work, operation.row)
        elif operation.verb is Verb.DELETE:
            work.expected = {}
        bare = self.bare(work.key)
        reads: list[Awaitable[object]] = [
            self.find_forward(work),
            self.read(work, {*(work.expected or ()), *bare}, early=True),
            *self.reserves_early(work, work.expected or ()),
        ]
        exact = bool(self.mapper.shared) and operation.verb in FULL
        if operation.verb in MERGES or self.mapper.content_derived or work.reads_before or exact:
            # A merge is worked out on it; replica rows that are read late are compared with what it gives.
            reads.append(self.read_before(work))
        main = self.main_of(work)
        if operation.verb in MERGES:  # its row is not known yet, but the main key may follow from the old key
            main = next((place.key for place in bare if place.table == 0), None)
        if main is not None:  # a merge may find that its row is not there: it claims nothing for that
            reads.append(self.find_owner(work, main, claims=operation.verb is not Verb.MERGE))
        elif operation.verb is Verb.DELETE:
            reads.append(self.note_owned(work, bare))
        await side_by_side(reads)
        if operation.verb in MERGES:
            after = row_after(operation, work.before)
            work.sent = [as_sent(operation, work.before)]
            self.expect(work, after or {})
            known, main = main, self.main_of(work)
            reads = [self.read(work, work.expected or (), early=True)]
            if main not in (None, known):
                reads.append(self.find_owner(work, found(main), claims=True))
            await side_by_side(reads)
        if exact:
            # Only a row that reserved its keys may be created, or moved: so an upsert is sent as an insert or
            # as a replace.
            row_after(operation, work.before)
            work.sent = [as_sent(operation, work.before)]
        work.previous = self.given_before(work)
        if operation.verb is not Verb.DELETE:
            await self.claim(work)

    def is_new(self, work: Work, target: TargetKey) -> bool:
        return target not in self.given_before(work)

    async def claim_main(self, work: Work, target: TargetKey) -> None:
        if 0 in self.mapper.shared and self.is_new(work, target):
            await self.reserve_key(work, target, self.replicas.still_owns)
        elif work.owner != work.old_key and not self.passes_on(work):
            await self.mapping.claim_main(work.old_key, target, self.replicas.still_owns)
        work.ours.add(target)

    async def read_late(self, work: Work) -> None:
        older = work.known - set(work.expected or ())
        await side_by_side([self.read(work, older, early=False), self.note_owned(work, older)])

    def main_of(self, work: Work) -> EntityKey | None:
        return next((target.key for target in work.expected or () if target.table == 0), None)

    def own_mains(self, work: Work) -> set[EntityKey]:
        return {target.key for target in (*work.previous, *(work.expected or ())) if target.table == 0}

    def followers(self, work: Work) -> set[TargetKey]:
        return {*work.known, *self.bare(work.old_key)}

    def expect(self, work: Work, row: Row) -> None:
        timed = {**row, TIMESTAMP: STAND_IN} if self.mapper.needs_timestamp else row
        work.expected = self.replicas.expected_of(work.old_key, timed)
        work.slow = work.slow or self.mapper.needs_timestamp


class TargetAuthority(Authority):
    """The main target as the authority (`cutover`): source and index tables follow."""

    side = TARGET

    def __init__(self, reverse: ReversePropagator, takes_effect_s: float) -> None:
        super().__init__(reverse, takes_effect_s)
        self.reverse = reverse
        # Forward rows, as last seen, of rows that this client deleted: it may soon insert these rows again.
        # Never trusted: a reservation on one succeeds only if the forward row is unchanged.
        self._forwards: dict[EntityKey, Forward] = {}

    async def prepare(self, work: Work) -> None:
        operation = work.given
        work.authority_key = work.key
        work.sent = [operation]
        if operation.verb in FULL:
            await self._prepare_row(work, operation.row)
        elif operation.verb is Verb.DELETE:
            work.expected = {}  # a row without an owner has no replicas
            work.owner, _ = await side_by_side([self.replicas.owner_of(work.key), self.read_before(work)])
            work.source_key = work.owner
            if self.mapper.together and work.owner is not None:
                await self.find_forward(work)
                await self.take_along(work)
        else:
            # Who owns the key is not known yet, but it may have been seen before: then one trip is enough.
            seen = self._owners.get(work.key) if operation.verb is Verb.MERGE else None
            owner = None if seen is None else seen.source
            reads = [] if owner is None else self._reads_for(work, owner)
            await side_by_side([self.read_before(work), *reads])
            work.sent = [as_sent(operation, work.before)]
            await self._prepare_row(work, row_after(operation, work.before) or {}, owner)

    async def claim_main(self, work: Work, target: TargetKey) -> None:
        creates = any(one.verb is Verb.INSERT for one in work.sent)
        passes = work.owner != work.old_key and self.passes_on(work)
        if work.owner != work.old_key and not passes:
            if work.before is not None and self.reverse.named_by(work.before) == work.old_key:
                work.slow = True  # the key is passing on to this old key at this moment
            elif work.before is not None and work.owner is not None:
                raise RowRefused(
                    "not-reversible",
                    "target",
                    "its old key would change",
                    cure="leave the properties that hold a row's old key as they are until `complete`",
                    row_id=self.replicas.target_id(target.key),
                )
            elif not (creates and 0 in self.mapper.shared):
                await self.mapping.claim_main(work.old_key, target, self._keeps)
        shared = creates and 0 in self.mapper.shared
        listed = self._reserve if self.mapper.content_derived and creates else self._list
        await side_by_side(
            [*([self.reserve_key(work, target, self._keeps)] if shared else []), listed(work, target)]
        )

    def is_new(self, work: Work, target: TargetKey) -> bool:
        return target not in self.given_before(work, work.early.get(source_place(work.old_key)))

    async def take_along(self, work: Work) -> None:
        if not self.mapper.together:
            return
        places = await self._read_secondary(work, work.sent[0].key.partition)
        if work.sent[0] is work.given and not is_conditional(work.given):
            row_after(work.given, work.before)  # a row that is not there is the caller's answer
            work.sent = [as_sent(work.given, work.before)]
        for place in sorted(places):
            present, wanted = work.early[place], (work.expected or {}).get(place)
            if present is not None and pointer_of(present) in work.main_keys:
                work.ours.add(place)
            if wanted is not None and present is None:
                work.along.append((place, Operation(Verb.INSERT, wanted)))
            elif present is not None and place in work.ours:
                verb = Verb.DELETE if wanted is None else Verb.REPLACE
                work.along.append((place, Operation(verb, wanted or present, etag_of(present))))

    async def _read_secondary(self, work: Work, partition: str) -> set[TargetKey]:
        """Read the secondary rows of a key in a partition, before the authority is written; return where.
        Raises Unavailable."""
        listed = {*work.known, *(work.expected or ()), *self.bare(work.old_key), *self.given_before(work)}
        beside = {one for one in listed if one.table in self.mapper.together - {0}}
        places = {one for one in beside if one.partition == partition}
        await self.read(work, places, early=True)
        if not places <= work.early.keys():
            raise Unavailable(
                "the secondary rows of the row could not be read; nothing was written",
                status=503,
                hint="repeat the operation when the service is back",
            )
        return places

    async def read_late(self, work: Work) -> None:
        if work.source_key is None:
            return
        place = source_place(work.source_key)
        places, reads = self.followers(work) | _indexes(self.listed(work)), []
        if work.given.verb is Verb.DELETE:
            places |= _indexes(self.given_before(work))
            if work.forward is None:
                reads = [self.find_forward(work)]
        await side_by_side([self.read(work, places, early=False), *reads])
        work.ours.add(place)
        work.previous = self.given_before(work, work.early.get(place) or work.late.get(place))

    def main_of(self, work: Work) -> EntityKey | None:
        return work.authority_key if work.expected else None

    def own_mains(self, work: Work) -> set[EntityKey]:
        before = () if work.before is None else (key_of(work.before),)
        return {found(work.authority_key), *before}

    def followers(self, work: Work) -> set[TargetKey]:
        return {source_place(work.old_key), *_indexes(work.known | self.bare(work.old_key))}

    def expect(self, work: Work, row: Row) -> None:
        place = source_place(work.old_key)
        try:
            work.expected = self.reverse.expected_of(work.old_key, row, work.early.get(place))
        except RowRefused:
            if place in work.early:
                raise
            # Without the source row it cannot be told whether the way back loses anything.
            raise Unavailable(
                "the source row could not be read, so it is not known whether this row can be kept in step",
                hint="repeat the operation when the service is back",
            ) from None

    # --- one operation ----------------------------------------------------------------------------------

    async def _prepare_row(self, work: Work, row: Row, read_for: EntityKey | None = None) -> None:
        """Prepare a write that makes its row `row`. `read_for`: the old key whose rows are read already."""
        source_key = self.named_key(work, row)
        reads = [] if read_for == source_key else self._reads_for(work, source_key)
        if work.before is None:
            reads.append(self.read_before(work))
        if self.mapper.shared and work.given.verb is Verb.INSERT:
            with suppress(RowRefused):  # what it needs of a source row that is there is known after the reads
                expected = self.reverse.expected_of(source_key, row)
                reads += self.reserves_early(work, expected)
                new = _indexes(expected) - self.bare(source_key)
                reads.append(
                    self.read(work, (one for one in new if one.table in self.mapper.shared), early=True)
                )
        await side_by_side(reads)
        self.expect(work, row)
        place = source_place(source_key)
        # A row without its source row may be one whose key is passing on, or has passed on meanwhile.
        work.slow = work.slow or (work.given.verb not in CREATES and work.early.get(place) is None)
        work.ours.add(place)
        if self.mapper.together:
            await self._read_secondary(work, work.key.partition)
        creates = work.given.verb in (Verb.INSERT, Verb.INSERT_OR_REPLACE)
        if (self.mapper.content_derived and creates) or (self.mapper.shared and work.given.verb in FULL):
            # Raises RowExists for an insert over a row. Only a reserved key may get a new row: so an upsert
            # is sent as an insert or as a replace.
            row_after(work.given, work.before)
            work.sent = [as_sent(work.given, work.before)]
        if work.before is None and work.given.verb in CREATES:
            rows = work.others
            if rows is None:
                rows = await self.replicas.read(_others(work, work.known))
            for target, other in rows.items():
                if other is not None and await self.replicas.is_owner(source_key, target.key):
                    if (TARGET, target.key) not in work.leaving:
                        raise self.key_taken(work.key)
                    work.moves = True
        await self.claim(work)
        await self.take_along(work)

    def _reads_for(self, work: Work, source_key: EntityKey) -> list[Awaitable[object]]:
        """Return the reads of mapping and replica rows of a row that stands for an old key."""
        work.source_key = source_key
        bare = self.bare(source_key)
        return [
            self.find_owner(work, work.key, claims=True),
            self._find_forward(work, {TargetKey(0, *work.key), *bare}),
            self.read(work, {source_place(source_key), *_indexes(bare)}, early=True),
        ]

    async def _find_forward(self, work: Work, targets: set[TargetKey]) -> None:
        """Read the forward row; if the write may create a row, try at the same time to insert it."""
        if work.given.verb not in CREATES:
            await self.find_forward(work)
            return
        known = self._forwards.pop(work.old_key, None)
        if self.mapper.content_derived and known is not None and known.reserved is None:
            await self._reserve_on(work, known, targets)
            if work.forward is not None:
                return
        reserved = (
            self._reservation(work, found(work.authority_key), None) if self.mapper.content_derived else None
        )
        read, made = await side_by_side(
            [self.mapping.forward(work.old_key), self.mapping.reserve(work.old_key, None, targets, reserved)]
        )
        work.forward = made or read

    async def _list(self, work: Work, target: TargetKey) -> None:
        """List a main target key in the forward row before a row is written under it. Raises Unavailable."""
        for _ in range(MAX_ROUNDS):
            if self._listed_first(work, target) <= work.known:
                return
            after = await self.mapping.extend(work.old_key, work.forward, self.listed(work))
            work.forward = after or await self.mapping.forward(work.old_key)
        raise self.replicas.too_busy(work.old_key)

    def _listed_first(self, work: Work, target: TargetKey) -> set[TargetKey]:
        """Return what must be listed before the authority is written: what stands in its table."""
        return {target, *(one for one in self.listed(work) if one.table in self.mapper.together)}

    # --- reservations -----------------------------------------------------------------------------------

    async def release(self, work: Work) -> None:
        await side_by_side([super().release(work), self._release_forward(work)])

    async def _release_forward(self, work: Work) -> None:
        for _ in range(_RELEASES):
            reserved = None if work.forward is None else work.forward.reserved
            if reserved is None or work.word not in reserved.writers:
                break
            after = await self.mapping.reserve(work.old_key, work.forward, (), reserved.without(work.word))
            work.forward = after or await self.mapping.forward(work.old_key)
        if work.given.verb is Verb.DELETE and work.forward is not None:
            _remember(self._forwards, work.old_key, work.forward)

    async def _reserve_on(self, work: Work, known: Forward, targets: set[TargetKey]) -> None:
        """Reserve on a forward row as it was last seen, and read other rows of the old key at the same time.

        If the forward row is unchanged, no write has begun to create a row since: a row that is not found now
        will not appear.
        """

        # Each sets its own result, so that a reservation is known, and given up, when the other call fails.
        async def reserve() -> None:
            work.forward = await self.mapping.reserve(
                work.old_key, known, targets, self._reservation(work, found(work.authority_key), None)
            )

        async def look() -> None:
            work.others = await self.replicas.read(_others(work, known.targets))

        await side_by_side([reserve(), look()])
        if work.forward is None:
            work.others = None

    async def _reserve(self, work: Work, target: TargetKey) -> None:
        """Reserve the key of a new row, on the condition of the forward row that was read before other rows
        of the old key were looked for. Raises Unavailable while another key is reserved by another write."""
        reserved = None if work.forward is None else work.forward.reserved
        mine = reserved if reserved is not None and reserved.key == target.key else None
        if mine is not None and work.word in mine.writers and self._listed_first(work, target) <= work.known:
            return
        if reserved is not None and mine is None and not self._is_over(work, reserved):
            raise Unavailable(
                f"row {self.replicas.row_id(work.old_key)} is being written under another key by another"
                " write, or was when that was cut off; nothing was written",
                code=ROW_TOO_BUSY,
                status=503,
                hint="repeat the operation; a write that was cut off is over after its longest time",
            )
        forward = await self.mapping.reserve(
            work.old_key,
            work.forward,
            self.listed(work),
            self._reservation(work, found(work.authority_key), mine),
        )
        work.forward, work.outdated = forward or work.forward, forward is None

    def _is_over(self, work: Work, reserved: Reservation) -> bool:
        """Tell whether no other write of a reservation can take effect any more: only this write holds it, or
        it was seen unchanged for so long that even a delayed request has been applied or never will be."""
        at = self.mapping.rows.forward_key(work.old_key)
        return reserved.writers <= {work.word} or self.mapping.is_over(at, reserved)

    async def _keeps(self, source_key: EntityKey, target: TargetKey) -> bool:
        """Tell whether the owner of a main target key keeps it, because its row exists. If not, the owner is
        propagated before the key passes on: a source row without a main target row is removed."""
        if await self.table.get(target.key) is not None:
            return True
        await self.reverse.propagate(source_key)
        return False


def _others(work: Work, listed: Iterable[TargetKey]) -> list[TargetKey]:
    """Return the other main target keys that the row of an old key may stand under."""
    return sorted(one for one in listed if one.table == 0 and one.key != work.authority_key)


def _indexes(places: Iterable[TargetKey]) -> set[TargetKey]:
    return {one for one in places if one.table > 0}


def _remember(memory: dict[EntityKey, V], key: EntityKey, value: V) -> None:
    """Put a value into a memory of bounded size; a full one is cleared first."""
    if len(memory) >= _REMEMBERED:
        memory.clear()
    memory[key] = value


def _version(forward: Forward | None) -> str | None:
    return None if forward is None else forward.etag
