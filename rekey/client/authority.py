"""Step 3 of a write: what each authority (the source, or the main target after cutover) reads, claims and
checks around its write. `send.py` sends the write. ADR 0017 and ADR 0026 give the rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable

from rekey.client.reservations import Reservations
from rekey.client.steps import Decided, Draft, During, Prepared, Request, State, known
from rekey.errors import RekeyError, RowRefused, ServiceError, Unavailable
from rekey.mapping.rows import Forward, TargetKey, pointer_of, targets_of
from rekey.model import EntityKey, Row
from rekey.protocol.effects import side_by_side
from rekey.protocol.operations import CREATES
from rekey.protocol.propagate import Propagator, version_of
from rekey.protocol.replicas import SOURCE_TABLE, Rows
from rekey.protocol.rules import SOURCE, TARGET, Side


class Authority(ABC):
    """The source or the main target, as the authority of dual writes."""

    side: Side

    def __init__(self, replicas: Propagator, takes_effect_s: float) -> None:
        """Create the authority.

        Args:
            replicas: propagates from it to its replicas.
            takes_effect_s: seconds after its start within which a write's requests take effect, or not at
                all.
        """
        self.replicas = replicas
        self.table = replicas.table(SOURCE_TABLE if self.side == SOURCE else 0)
        self.mapper = replicas.mapper
        self.mapping = replicas.mapping
        self.reservations = Reservations(replicas, takes_effect_s)

    # --- what differs -----------------------------------------------------------------------------------

    @abstractmethod
    async def prepare(self, draft: Draft) -> None:
        """Do the reads, checks and claims that must precede the authority's write (same view)."""

    @abstractmethod
    async def claim_main(self, draft: Draft, target: TargetKey) -> None:
        """Make the old key the owner of `target`, and list or reserve `target` where that must precede the
        row. Raises Collision, RowRefused, Unavailable."""

    @abstractmethod
    async def read_during(self, write: Prepared, during: During) -> None:
        """Read, during the authority's write, the rows that could not be read before it."""

    @abstractmethod
    def main_of(self, write: Draft | Prepared) -> EntityKey | None:
        """Return the main target key of the row after the write, None if it is deleted."""

    @abstractmethod
    def own_mains(self, draft: Draft) -> set[EntityKey]:
        """Return the main target keys, as far as known, of the row before and after the write."""

    @abstractmethod
    def replica_places(self, source_key: EntityKey, listed: frozenset[TargetKey]) -> set[TargetKey]:
        """Return where replica rows of an old key may be. `listed`: the targets in its forward row."""

    @abstractmethod
    async def expect(self, draft: Draft, row: Row) -> None:
        """Compute the replicas' rows for the authority's `row` after the write. Raises RowRefused,
        Unavailable."""

    @abstractmethod
    async def is_new(self, draft: Draft, target: TargetKey) -> bool:
        """Tell whether the write puts a new row under a target key, by the authority's row as read."""

    async def add_secondary_writes(self, draft: Draft) -> None:  # noqa: B027 - replicas of the source are written after it
        """Compute which secondary rows are written in the authority's transaction."""

    # --- what is the same -------------------------------------------------------------------------------

    async def while_writing(self, write: Prepared, during: During) -> None:
        """Extend the forward row and do the reads during the write. A failure only makes the write slow: it
        says nothing of the authority's request beside it."""
        try:
            await side_by_side([self._extend(write, during), self.read_during(write, during)])
        except RekeyError:
            during.needs_propagate = True
        mains = during.main_keys(write)
        for target, row in {**during.read, **write.replicas.read}.items():
            if target.table > 0 and row is not None and pointer_of(row) in mains:
                during.own.add(target)

    async def is_settled(self, decided: Decided) -> bool:
        """Tell, after the replicas were written, whether no other writer came in between."""
        write, source_key = decided.write, decided.source_key
        key, main = write.authority_key, self.main_of(write)
        if key is None or source_key is None:
            return False

        async def same_row() -> bool:
            return version_of(await self.table.get(key)) == decided.etag

        # The authority's row must still be the one that was written; where keys come from content, no other
        # writer may have listed a target key; and a main key that is new, or comes from content, must still
        # belong to this old key.
        checks = [same_row()]
        if self.mapper.content_derived:
            checks.append(self.same_list(decided))
        mains = self.given_up(decided)
        passes = self.mapper.content_derived or 0 in self.mapper.shared
        if main is not None and (write.request.operation.verb in CREATES or passes):
            mains.add(main)
        checks += [self.replicas.is_owner(source_key, target_key) for target_key in sorted(mains)]
        return all(await side_by_side(checks))

    def given_up(self, decided: Decided) -> set[EntityKey]:
        """Return the main target keys whose rows, index rows included, this write has deleted."""
        # A new owner may have found an index row equal to its own, and left it alone, before it was deleted.
        rows = decided.read
        deleted = decided.during.own & rows.keys() - decided.write.expected.keys()
        return {
            target.key if target.table == 0 else pointer_of(row)
            for target in deleted
            if target.table != SOURCE_TABLE and (row := rows[target]) is not None
        }

    async def same_list(self, decided: Decided) -> bool:
        """Tell whether the forward row is unchanged, apart from what this write added to it."""
        return _version(await self.mapping.forward(decided.old_key)) == _version(decided.during.forward)

    def derivable_keys(self, source_key: EntityKey) -> frozenset[TargetKey]:
        """Return the target keys that follow from the old key alone; empty where they depend on content."""
        return frozenset(TargetKey(number, *key) for number, key in self.mapper.target_keys(source_key) or ())

    async def read(self, draft: Draft, places: Iterable[TargetKey]) -> None:
        """Read replica rows before the authority is written; a failed read makes the write slow."""
        if not await self._read(set(places) - draft.replicas.read.keys(), draft.replicas.read):
            draft.needs_propagate = True

    async def read_during_write(self, write: Prepared, during: During, places: Iterable[TargetKey]) -> None:
        """Read replica rows while the authority is written; a failed read makes the write slow."""
        missing = set(places) - write.replicas.read.keys() - during.read.keys()
        if not await self._read(missing, during.read):
            during.needs_propagate = True

    async def _read(self, places: Collection[TargetKey], into: dict[TargetKey, Row | None]) -> bool:
        """Read replica rows into `into`; return whether all could be read."""
        failed = []

        async def read_place(place: TargetKey) -> None:
            try:
                into[place] = await self.replicas.table(place.table).get(place.key)
            except ServiceError:
                failed.append(place)

        missing = sorted(places)
        if self.mapper.co_located:  # main rows first, as in `propagate`
            await side_by_side(read_place(place) for place in missing if place.table == 0)
            missing = [place for place in missing if place.table]
        await side_by_side(read_place(place) for place in missing)
        return not failed

    async def read_before(self, draft: Draft) -> None:
        draft.before = await self.table.get(known(draft.authority_key))

    async def find_owner(self, draft: Draft, main: EntityKey, *, claims: bool) -> None:
        """Read which old key owns a main target key. With `claims`, try to claim it at the same time, unless
        this client has already seen that the key is its own."""
        owner = await self.reservations.owner(draft, main, claims=claims)
        draft.mapping.claims[TargetKey(0, *main)] = owner
        draft.mapping.owner = None if owner is None else owner.source

    async def find_forward(self, draft: Draft) -> None:
        draft.mapping.forward = await self.mapping.forward(draft.old_key)

    async def add_owned(
        self, source_key: EntityKey, places: Collection[TargetKey], own: set[TargetKey]
    ) -> None:
        """Add to `own` the main target keys among `places` that belong to an old key."""
        mains = sorted(place for place in places if place.table == 0 and place not in own)

        async def note(place: TargetKey) -> None:
            if await self.replicas.is_owner(source_key, place.key):
                own.add(place)

        await side_by_side(note(place) for place in mains)

    async def claim(self, draft: Draft) -> None:
        """Claim the row's main target key, and check who owns the rows under its index keys.

        Raises:
            RowRefused: the row has more target keys than the mapping can list, or as `claim_main`.
            Collision: a key belongs to another row.
        """
        main, wanted = self.main_of(draft), self.keys_to_list(draft)
        if not wanted <= draft.listed:
            self.mapping.rows.require_fits(draft.old_key, draft.listed | wanted)
        new = [
            target
            for target in sorted(draft.expected)
            if target.table > 0 and target.table in self.mapper.shared and await self.is_new(draft, target)
        ]
        reserve = self.reservations.reserve
        await side_by_side(
            [
                *([] if main is None else [self.claim_main(draft, TargetKey(0, *main))]),
                *(reserve(draft, target, self.replicas.still_owns) for target in new),
                self.read(draft, new),
            ]
        )
        if not draft.replicas.read.keys() >= {*new}:
            raise Unavailable(
                "whether another row has one of the row's index keys could not be read; nothing was written",
                status=503,
                hint="repeat the operation when the service is back",
            )
        for target in draft.expected:
            row = draft.replicas.read.get(target)
            if target.table > 0 and row is not None and pointer_of(row) not in self.own_mains(draft):
                if not await self._is_deleted_by_call(draft, pointer_of(row)):
                    await self.replicas.yield_or_collide(draft.old_key, target, row)
                draft.replicas.own.add(target)

    async def release(self, request: Request, forward: Forward | None, moved: State | None) -> None:  # noqa: ARG002
        """Release the write's reservations. Called once no request to the authority can take effect any more.

        Args:
            forward: the forward row as the authority's write left it, None if there was no write.
            moved: as `Reservations.release`.
        """
        await self.reservations.release(request, moved)

    async def _is_deleted_by_call(self, draft: Draft, main: EntityKey) -> bool:
        """Tell whether the same call deletes the row under a main target key."""
        leaves = (TARGET, main) in draft.deleted_by_call
        if draft.deleted_by_call and not leaves:
            leaves = (SOURCE, await self.replicas.owner_of(main)) in draft.deleted_by_call
        draft.pending.takes_over_key = draft.pending.takes_over_key or leaves
        return leaves

    async def rows_before(self, write: Draft | Prepared, source_row: Row | None = None) -> Rows:
        """Return the replicas' rows that follow from the authority's row as read; empty if the mapping
        refuses that row. `source_row`: the source row as read, where the source is a replica."""
        try:
            return await self.replicas.expected_of(write.old_key, write.before, source_row)
        except RowRefused:
            return {}

    def keys_to_list(self, write: Draft | Prepared) -> set[TargetKey]:
        """Return the target keys that the forward row must list for this write."""
        main = self.main_of(write)
        mains = set[TargetKey]() if main is None else {TargetKey(0, *main)}
        return mains | {target for target in write.expected if target.table >= 0}

    def named_key(self, draft: Draft, row: Row) -> EntityKey:
        """Return the old key named by a row of the main target. Raises RowRefused."""
        try:
            return self.mapper.source_key(row)
        except RowRefused as refused:
            raise refused.for_row(self.replicas.target_id(draft.key)) from None

    def passes_on(self, draft: Draft) -> bool:
        """Tell whether the same call deletes the row of the main target key's owner."""
        # The claim stays with the row that is there until both rows are written; propagate passes it on then.
        passes = (SOURCE, draft.mapping.owner) in draft.deleted_by_call
        draft.pending.takes_over_key = draft.pending.takes_over_key or passes
        return passes

    def key_taken(self, main: EntityKey) -> RowRefused:
        """Return the error for a row whose old key already has another row in the main target."""
        return RowRefused(
            "key-taken",
            "target",
            "another row of the table stands for the same old key",
            cure="delete the other row first, or write this one in its place",
            row_id=self.replicas.target_id(main),
        )

    async def _extend(self, write: Prepared, during: During) -> None:
        """List the write's target keys in the forward row."""
        # No row may exist under a key before both of its mapping rows are durable.
        missing = self.keys_to_list(write) - targets_of(write.forward)
        if not missing:
            return
        after = await self.mapping.extend(write.old_key, write.forward, missing)
        during.forward = after or await self.mapping.forward(write.old_key)
        during.needs_propagate = during.needs_propagate or not missing <= targets_of(during.forward)


def index_places(places: Iterable[TargetKey]) -> set[TargetKey]:
    """Return those places that are index or secondary rows."""
    return {place for place in places if place.table > 0}


def _version(forward: Forward | None) -> str | None:
    return None if forward is None else forward.etag
