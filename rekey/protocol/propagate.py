"""propagate(k): make the replicas of one source key equal what the authority says now. The rules (ADR 0017)
were each found by searching all interleavings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from rekey.declaration.mapper import Mapper
from rekey.declaration.old_references import NOTHING_LOOKED_UP
from rekey.errors import Ambiguous, Collision, RekeyError, RowRefused, ServiceError, Unavailable
from rekey.mapping.removed import RemovedRows
from rekey.mapping.rows import Forward, Owner, TargetKey, pointer_of, targets_of
from rekey.mapping.store import MappingStore
from rekey.model import ETAG, EntityKey, Row, etag_of, key_of
from rekey.protocol.effects import Outcome, apply_for_etags, in_turns
from rekey.protocol.references import OldReferences
from rekey.protocol.replicas import (
    CURE,
    SOURCE_TABLE,
    Rows,
    Writes,
    difference,
    inverse,
    pointed,
    source_place,
    stands_for,
    transactions,
    with_main,
)
from rekey.tables.allowance import while_also
from rekey.tables.base import Operation, Table, Verb
from rekey.tables.sent import Overhead, overhead

# Rounds after which a row that keeps changing is given up for now; nothing is lost by that.
MAX_ROUNDS = 100
# How many propagates of other keys may be nested, each waiting for the next one: fewer than fill the stack.
_MAX_NESTED = 200


@dataclass(frozen=True, slots=True)
class Propagated:
    """The result of one propagate: how many replica rows were inserted, replaced and deleted.

    `ambiguous`: a write has an unknown outcome. The replicas are as they should be now, but a request in
    flight may change them: propagate again once it cannot take effect any more.
    """

    inserted: int = 0
    replaced: int = 0
    deleted: int = 0
    ambiguous: bool = False

    @property
    def changed(self) -> bool:
        return bool(self.inserted or self.replaced or self.deleted)


class Announced(Protocol):
    """The announcement of one key in the journal: its replicas are about to be written."""

    def check(self) -> None:
        """Raise Unavailable when the announced time is over."""

    async def end(self) -> None:
        """End the announcement: the replicas match the authority, and no outcome is unknown."""


# Announces that the replicas of a source key are about to be written.
Announce = Callable[[EntityKey], Awaitable[Announced]]


class Tally:
    """Counts the writes of one propagate over all its rounds, and holds the announcements of its key and of
    the other keys that it leads to."""

    def __init__(
        self, source_key: EntityKey, announce: Announce | None, announce_others: Announce | None
    ) -> None:
        self.counts = dict.fromkeys((Verb.INSERT, Verb.REPLACE, Verb.DELETE), 0)
        self.ambiguous = False
        # Main target keys that a propagated key lists and has no row under: whose are they now?
        self.given_up: set[EntityKey] = set()
        self._announce, self._announce_others = announce, announce_others
        self.source_key = source_key
        self.nested = 0
        self._announced: dict[EntityKey, Announced] = {}

    async def begin(self, source_key: EntityKey) -> None:
        """Announce a key before its first write, unless the caller has."""
        announce = self._announce if source_key == self.source_key else self._announce_others
        if announce is not None and source_key not in self._announced:
            self._announced[source_key] = await announce(source_key)

    def check(self) -> None:
        """Raise Unavailable when the time of an announcement is over: nothing may be written any more."""
        for announced in self._announced.values():
            announced.check()

    def add(self, operation: Operation, outcome: Outcome) -> None:
        self.counts[operation.verb] += bool(outcome)
        self.ambiguous = self.ambiguous or outcome is Outcome.UNKNOWN

    async def result(self) -> Propagated:
        """End the announcements and return what was done."""
        # With an unknown outcome the announcements stay: the keys are found again in the journal.
        for announced in () if self.ambiguous else self._announced.values():
            await announced.end()
        counts = self.counts
        return Propagated(counts[Verb.INSERT], counts[Verb.REPLACE], counts[Verb.DELETE], self.ambiguous)


def needs_another_round(writes: Sequence[Operation]) -> bool:
    """Tell whether a whole round must follow these writes, all of them done: one was an insert."""
    # Absence has no version: before the insert a row may have come and gone, and its target key may have
    # passed to another owner.
    return any(write.verb is Verb.INSERT for write in writes)


@dataclass(eq=False, repr=False)
class Propagator:
    """Propagates from the source, as the authority, to the main target and its index tables."""

    source: Table
    # The replicas: main first, then index tables.
    targets: Sequence[Table]
    mapper: Mapper
    mapping: MappingStore
    # How many replica rows of one key are read or written at the same time.
    width: int = 1
    # Announces keys before their replicas are written; None where the caller has done that.
    announce: Announce | None = None
    # Announces the other keys that a propagate leads to; None: as `announce`. A request of this process that
    # takes effect late, or is never answered, is found by the key that it wrote.
    announce_others: Announce | None = None
    # By table number, the properties that are not compared.
    ignoring: Mapping[int, frozenset[str]] = field(default_factory=dict)
    # Looks up what main target rows do not say of their source rows.
    references: OldReferences = field(default_factory=lambda: OldReferences({}))

    def tally(self, source_key: EntityKey, *, announced: bool = True) -> Tally:
        others = self.announce_others or self.announce
        return Tally(source_key, self.announce if announced else others, others)

    async def propagate(self, source_key: EntityKey, *, announced: bool = True) -> Propagated:
        """Make all replicas of `source_key` equal what the authority says now. `announced`: if there is no
        `announce`, whether the caller has announced this key itself.

        Raises:
            Collision: a target key it maps to belongs to another source row.
            RowRefused: the mapping cannot be applied to the authority's row; names it by safe id.
            Unavailable: the row changed in every one of `MAX_ROUNDS` rounds.
            Ambiguous: as one of the above, or as `ServiceError`, while the outcome of a write is unknown.
        """
        tally = self.tally(source_key, announced=announced)
        try:
            with overhead(Overhead.CHANGES):
                await self._propagate_all(source_key, tally)
        except RekeyError as error:
            if not tally.ambiguous:
                raise
            # Even if this request certainly changed nothing, the outcome of an earlier one is unknown, and
            # the caller must know.
            code = error.code if isinstance(error, ServiceError) else ""
            raise Ambiguous("the outcome of a write to a replica is unknown", code=code) from error
        return await tally.result()

    async def _propagate_all(self, source_key: EntityKey, tally: Tally) -> None:
        """Propagate a source key, and the rows that its former target keys have passed to."""
        refused: Collision | RowRefused | None = None
        try:
            await self._propagate_key(source_key, tally)
        except (Collision, RowRefused) as error:
            refused = error  # raised at the end: an earlier round may have deleted what another row needs
        # A key that was given up may have passed to another source row, which may have found an index row
        # equal to its own and left it alone, before a delete removed it: here, or in an earlier propagate
        # that was cut off. That row gives up more where something was deleted for it, too.
        deletes = {source_key: tally.counts[Verb.DELETE]}
        while tally.given_up:
            former = min(tally.given_up)
            tally.given_up.remove(former)
            owner = await self._holder_of(former)
            if owner is None or deletes.get(owner) == tally.counts[Verb.DELETE]:
                continue
            # A new owner that cannot be propagated is reported where it is written or verified.
            with suppress(RowRefused, Collision):
                await self._propagate_key(owner, tally)
            deletes[owner] = tally.counts[Verb.DELETE]
        if refused is not None:
            raise refused

    async def propagate_moved(self, row: Row) -> Propagated:
        """Propagate a source row that may have been copied under an older target key: its forward row lists
        other keys than those that it maps to. Raises as `propagate`."""
        source_key = key_of(row)
        forward = await self.mapping.forward(source_key)
        if forward is None or forward.targets == (await self.expected_of(source_key, row)).keys():
            return Propagated()
        return await self.propagate(source_key)

    async def _propagate_other(
        self, source_key: EntityKey, tally: Tally, blocked_keys: Sequence[TargetKey] = ()
    ) -> None:
        """Propagate a key that another one waits for. Arguments as of `_propagate_key`. Raises Unavailable:
        too many wait for one another; the last of them can be propagated by itself."""
        if tally.nested >= _MAX_NESTED:
            raise self.too_busy(source_key)
        tally.nested += 1
        try:
            await self._propagate_key(source_key, tally, blocked_keys)
        finally:
            tally.nested -= 1

    async def _propagate_key(
        self, source_key: EntityKey, tally: Tally, blocked_keys: Sequence[TargetKey] = ()
    ) -> None:
        """Propagate one source key, and those that its keys are passing on to.

        Args:
            tally: counts the writes, and collects the keys that are given up.
            blocked_keys: secondary keys that other rows wait for, the newest last: only the transaction of
                its partition is sent, and only on the condition of a main row that was read.
        """
        deletes = tally.counts[Verb.DELETE]
        try:
            given_up = await self._make_equal(source_key, tally, blocked_keys)
        except (Collision, RowRefused):
            # Not left to a later propagate of this key, which may stay refused for long. What it still has is
            # not known, so all of its keys are followed.
            listed = targets_of(await self.mapping.forward(source_key))
            self._note_given_up(source_key, tally, deletes, _mains(listed))
            raise
        self._note_given_up(source_key, tally, deletes, given_up)

    def _note_given_up(
        self, source_key: EntityKey, tally: Tally, deletes: int, mains: set[EntityKey]
    ) -> None:
        """Record the main keys whose owners are propagated next. `deletes`: as counted before this key."""
        # What an earlier propagate deleted for another key, that key's own announcement leads to.
        if source_key == tally.source_key or tally.counts[Verb.DELETE] > deletes:
            tally.given_up |= mains

    async def _make_equal(
        self, source_key: EntityKey, tally: Tally, blocked_keys: Sequence[TargetKey]
    ) -> set[EntityKey]:
        """Propagate as `_propagate_key`; return the main keys that are given up."""
        for _ in range(MAX_ROUNDS):
            forward = await self.mapping.forward(source_key)
            if forward is None and not await self._lists(source_key):
                return set()
            listed = targets_of(forward)
            # The replicas before the authority: the other way round, a slow propagator overwrites newer rows.
            current = await self._read_replicas(source_key, listed)
            if self.mapper.co_located and not await self._is_listed_as(source_key, forward):
                continue
            authority = await self._authority(source_key)
            expected = await self.expected_of(source_key, authority, current.get(source_place(source_key)))
            unlisted = await self._unlisted(source_key, expected, listed, authority)
            try:
                if unlisted:
                    # Before a row is written under the keys. A new round follows, so that replicas are read
                    # before the authority.
                    await self._claim(source_key, forward, unlisted, tally)
                    continue
                current = await self._owned(source_key, expected, current, listed, tally, blocked_keys)
            except Collision:
                # The row may be gone since it was read, and its key another row's.
                if version_of(await self._authority(source_key)) == version_of(authority):
                    raise
                continue
            main = self._main_of(expected, current, authority)
            writes = difference(expected, current, self.ignoring)
            writes += await self._former_secondary(source_key, main, writes, listed)
            writes = with_main(writes, main, self.mapper.co_located)
            given_up = _mains(listed - expected.keys()) - (set() if main is None else {key_of(main)})
            if blocked_keys:
                # Not announced: a delayed write must be harmless here.
                writes = [write for write in writes if write[0].partition == blocked_keys[-1].partition]
                if not any(place.table == 0 and operation.etag for place, operation in writes):
                    return given_up
            elif writes:
                await tally.begin(source_key)
            if authority is None and not self.mapping.is_stored:
                await self._keep_removed(source_key, writes)
            if await self.apply_all(writes, tally) and await self._is_last(source_key, writes, authority):
                return given_up
        raise self.too_busy(source_key)

    async def _keep_removed(self, source_key: EntityKey, writes: Writes) -> None:
        """Keep main rows, of target or source, about to be deleted because the authority's row is gone."""
        # No mapping row says that it is a replica: somebody else may have written it under this key.
        removed = RemovedRows(self.mapping)
        for place, operation in writes:
            if place.table in (SOURCE_TABLE, 0) and operation.verb is Verb.DELETE:
                await removed.keep(place.table, operation.row, source_key)

    async def expected_of(
        self, source_key: EntityKey, authority: Row | None, _source_row: Row | None = None
    ) -> Rows:
        """Return the replicas' rows as they should be when the authority's row is `authority` (None: there is
        none). `_source_row`: the source row as read, where the source is a replica: it keeps what the mapping
        drops. Only what neither row holds is looked up, in the mappings of other migrations. Raises
        RowRefused, with the row's safe id: the mapping cannot be applied to the row."""
        if authority is None:
            return {}
        try:
            mapped = self.mapper.map(authority)
        except RowRefused as refused:
            raise refused.for_row(self.row_id(source_key)) from None
        return {TargetKey(table, *key_of(row)): row for table, row in mapped}

    async def inverse(
        self, source_key: EntityKey, target_row: Row, source_row: Row | None, *, cure: str = CURE
    ) -> Row:
        """Return the source row that a main target row stands for, as `replicas.inverse`, with what has to be
        looked up for it. Raises RowRefused, ServiceError."""
        needs_values = source_row is None or not stands_for(self.mapper, source_row, target_row)
        old_values = NOTHING_LOOKED_UP
        if self.mapper.looks_up and needs_values:
            old_values = await self.references.of(self.mapper, target_row, source_key, source_row)
        return inverse(self.mapper, source_key, target_row, source_row, cure=cure, old_values=old_values)

    async def still_owns(self, source_key: EntityKey, target: TargetKey) -> bool:
        """Tell whether the authority now has a row of a source key that is under or maps to `target`."""
        return target in await self.expected_of(source_key, await self._authority(source_key))

    def row_id(self, source_key: EntityKey) -> str:
        """Return the safe id of a source row."""
        return self.mapping.rows.ids.short(self.mapping.rows.source, source_key)

    def target_id(self, target_key: EntityKey) -> str:
        """Return the safe id of a main target row."""
        return self.mapping.rows.ids.short(self.targets[0].name, target_key)

    def table(self, number: int) -> Table:
        """Return a replica's table by its number."""
        return self.source if number == SOURCE_TABLE else self.targets[number]

    async def read(self, targets: Sequence[TargetKey]) -> dict[TargetKey, Row | None]:
        """Read replica rows, `width` at a time."""
        gets = [partial(self.table(target.table).get, target.key) for target in targets]
        return dict(zip(targets, await in_turns(gets, self.width), strict=True))

    async def apply_all(self, writes: Writes, tally: Tally) -> bool:
        """Send conditional writes, `width` requests at a time; True if all are done. Raises ServiceError."""

        async def apply(group: Writes) -> bool:
            operations = [operation for _, operation in group]
            outcome, _ = await apply_for_etags(self.table(group[0][0].table), operations)
            for operation in operations:
                tally.add(operation, outcome)
            return bool(outcome)

        groups = transactions(writes, self.mapper.co_located)
        with while_also(tally.check):
            return all(await in_turns([partial(apply, group) for group in groups], self.width))

    def too_busy(self, source_key: EntityKey) -> Unavailable:
        return Unavailable(
            f"row {self.row_id(source_key)} changed in every one of {MAX_ROUNDS} attempts to propagate it",
            hint="run the same command again when the row changes less often",
        )

    async def is_owner(self, source_key: EntityKey, target_key: EntityKey) -> bool:
        """Tell whether a main target key belongs to a source key."""
        return await self.owner_of(target_key) == source_key

    async def owner_of(self, target_key: EntityKey) -> EntityKey | None:
        """Return the source key that a main target key belongs to."""
        owner = await self.mapping.owner(target_key)
        return None if owner is None else owner.source

    async def yield_or_collide(self, source_key: EntityKey, target: TargetKey, index_row: Row) -> None:
        """Raise Collision when `index_row`, found in our row's place, belongs to a source row that still
        maps there; otherwise it is a leftover of another main row and may be replaced."""
        owner = await self.owner_of(pointer_of(index_row))
        if owner is not None and owner != source_key and await self.still_owns(owner, target):
            raise self.mapping.collision(target, owner, source_key)

    async def _authority(self, source_key: EntityKey) -> Row | None:
        return await self.source.get(source_key)

    def _main_of(self, expected: Rows, current: Rows, _authority: Row | None) -> Row | None:
        """Return the main target row as it was read; None if there is none, or another one is expected."""
        return next((row for place, row in current.items() if place.table == 0 and place in expected), None)

    async def _is_last(self, source_key: EntityKey, writes: Writes, authority: Row | None) -> bool:
        """Tell whether a round whose writes are all done is the last."""
        if not writes:
            return True
        if needs_another_round([operation for _, operation in writes]):
            return False
        # An ETag that held shows that the replica did not change, not that the authority did not: another
        # writer may have found the replica equal to its own row and left it alone.
        return version_of(await self._authority(source_key)) == version_of(authority)

    async def _read_replicas(self, _source_key: EntityKey, listed: frozenset[TargetKey]) -> Rows:
        """Return the rows found where replicas of a key may be; `listed`: what its forward row lists."""
        secondary = {
            target for target in listed if target.table in self.mapper.co_located and target.table > 0
        }
        for _ in range(MAX_ROUNDS):
            # Main rows first: while a main row's ETag holds, its secondary rows are those read after it.
            rows = await self.read(sorted(listed - secondary)) | await self.read(sorted(secondary))
            alone = {
                TargetKey(0, *main)
                for place in secondary
                for main in pointed([rows[place]], place.partition)
                if TargetKey(0, *main) in listed and rows[TargetKey(0, *main)] is None
            }
            # A main row that is still missing is gone, and what points to it is a leftover, or gone as well.
            if not any((await self.read(sorted(alone))).values()):
                break
        return {target: row for target, row in rows.items() if row is not None}

    async def _lists(self, _source_key: EntityKey) -> bool:
        """Tell whether a key without a forward row is propagated, which gives it its mapping rows."""
        return True

    async def _is_listed_as(self, source_key: EntityKey, forward: Forward | None) -> bool:
        """Tell whether the forward row is unchanged since it was read: otherwise a main row read later may
        have a secondary row that it did not list."""
        now = await self.mapping.forward(source_key)
        return (now and now.etag) == (forward and forward.etag)

    async def _holder_of(self, main: EntityKey) -> EntityKey | None:
        """Return the source key that a main target key belongs to, whoever has claimed it."""
        return await self.owner_of(main)

    async def _claim(
        self, source_key: EntityKey, forward: Forward | None, targets: set[TargetKey], _tally: Tally
    ) -> None:
        await self.mapping.claim(source_key, forward, targets, self.still_owns)

    async def _unlisted(
        self, source_key: EntityKey, expected: Rows, listed: frozenset[TargetKey], _authority: Row | None
    ) -> set[TargetKey]:
        """Return the target keys that this source key has not claimed, or no longer owns."""
        unlisted = {target for target in expected if target.table != SOURCE_TABLE} - listed
        for target in sorted(expected.keys() & listed):
            # A listed key may have another owner by now: the claim can pass on while our row is gone.
            if target.table == 0 and not await self.is_owner(source_key, target.key):
                unlisted.add(target)
        return unlisted

    async def _owned(
        self,
        source_key: EntityKey,
        expected: Rows,
        current: Rows,
        listed: frozenset[TargetKey],
        tally: Tally,
        blocked_keys: Sequence[TargetKey],
    ) -> Rows:
        """Return `current` without the rows that belong to another source row by now."""
        # A main row belongs to its reverse row's owner, an index row to the main row that it points to. Each
        # owner is read once: a main row and its secondary rows pass on together.
        own = dict(current)
        main_keys = {target.key for target in listed if target.table == 0}
        pointers = {pointer_of(row) for target, row in current.items() if target.table > 0} & main_keys
        pointers |= {target.key for target in current.keys() - expected.keys() if target.table == 0}
        claims = {pointer: await self.mapping.owner(pointer) for pointer in sorted(pointers)}
        owners = {pointer: await self._row_owner(source_key, pointer, claims[pointer]) for pointer in claims}
        for target in sorted(current.keys() - expected.keys()):
            if target.table == 0 and owners[target.key] == source_key:
                # Before the rows that point to it: they are the next owner's then.
                next_owner = await self._pass_on(target, claims[target.key], tally)
                owners[target.key] = next_owner or source_key
        for target, row in current.items():
            if target.table == 0:
                mine = target in expected or owners[target.key] == source_key
            elif target.table == SOURCE_TABLE or owners.get(pointer_of(row)) == source_key:
                mine = True
            elif target in expected:
                await self.yield_or_collide(source_key, target, row)
                mine = True
                passes_on = target.table in self.mapper.co_located and target not in blocked_keys
                if passes_on and (owner := await self.owner_of(pointer_of(row))) is not None:
                    # Its main row may be unchanged: both change together, before the key passes on.
                    await self._propagate_other(owner, tally, [*blocked_keys, target])
            else:
                mine = await self._is_unowned(target, owners.get(pointer_of(row)))
            if not mine:
                del own[target]
        return own

    async def _row_owner(
        self, source_key: EntityKey, main: EntityKey, claim: Owner | None
    ) -> EntityKey | None:
        """Return whose row is under a main key that `source_key` lists. `claim`: the key's claim."""
        if claim is None or claim.source == source_key:
            return claim and claim.source
        # A claimant that does not list the key has no row there: its write failed, or is yet to come.
        is_listed = TargetKey(0, *main) in targets_of(await self.mapping.forward(claim.source))
        return claim.source if is_listed else source_key

    async def next_owner(self, claim: Owner | None, target: TargetKey) -> EntityKey | None:
        """Return the source key that a target key is passing on to: its row exists and maps to the key, and
        the claim is reserved for it. None if there is no such row."""
        for claimant in () if claim is None else claim.claimants[1:]:
            with suppress(RowRefused):  # reported where that row is written or verified
                if await self.still_owns(claimant, target):
                    return claimant
        return None

    async def _pass_on(self, target: TargetKey, claim: Owner | None, tally: Tally) -> EntityKey | None:
        """Pass a main row on to the source key that its key is passing on to, and return that; None if there
        is no such key. Deleted first and created again, the row would be missing for a moment."""
        next_owner = await self.next_owner(claim, target)
        if next_owner is not None:
            with suppress(RowRefused, Collision):  # reported where that row is written or verified
                await self._propagate_other(next_owner, tally)
                return next_owner
        return None

    async def _is_unowned(self, target: TargetKey, owner: EntityKey | None) -> bool:
        """Tell whether a row of an index table has no owner any more: the main key that it points to has
        passed on to another source key, `owner`, which does not list the index key."""
        # What is listed as well belongs to the owner, which deletes it. Secondary rows: `_former_secondary`.
        if owner is None or target.table in self.mapper.co_located:
            return False
        return target not in targets_of(await self.mapping.forward(owner))

    async def _former_secondary(
        self, source_key: EntityKey, present: Row | None, writes: Writes, listed: frozenset[TargetKey]
    ) -> Writes:
        """Return the deletions of secondary rows that former owners of a main key have left beside its row:
        beside `present`, or a main row that is replaced or deleted. So they go in one transaction with it."""
        mains = {place for place, operation in writes if place.table == 0 and operation.etag}
        mains |= set() if present is None else {TargetKey(0, *key_of(present))}
        if not (mains and self.mapper.co_located and 0 in self.mapper.shared):
            return []
        deletes: Writes = []
        for main in sorted(mains):
            places = {
                target
                for former in await self.mapping.former_owners(main)
                if former.source != source_key
                for target in former.targets - listed
                if target.table in self.mapper.co_located - {0} and target.partition == main.partition
            }
            # Read after the main row, whose ETag is a condition of the transaction.
            rows = await self.read(sorted(places))
            deletes += [
                (place, Operation(Verb.DELETE, row, etag_of(row)))
                for place, row in rows.items()
                if row is not None and pointer_of(row) == main.key
            ]
        return deletes


def _mains(targets: Iterable[TargetKey]) -> set[EntityKey]:
    return {target.key for target in targets if target.table == 0}


def version_of(row: Row | None) -> str | None:
    """Return a read row's ETag; None when there is no row."""
    return None if row is None else row[ETAG]
