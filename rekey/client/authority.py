"""What a dual write does around the write of the authority, whichever side that is.

Rules kept here (DESIGN section 5, ADR 0017):

* Before the authority is written: rows that the mapping refuses, and collisions, end the write; the main
  target key is claimed; replica rows whose keys are known are read.
* Beside that write: the forward row is extended, rows under older target keys are read. No row is written
  under a key before both its mapping rows are durable.
* A replica that cannot be read makes the write slow, never fails it.
* Afterwards (`is_settled`): the authority's row is still the one that was written, no other writer listed a
  target key meanwhile, and the key that a new row stands under has not passed on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable

from rekey.client.work import Work
from rekey.errors import RowRefused, ServiceError
from rekey.mapping.rows import Forward, TargetKey, pointer_of
from rekey.model import EntityKey
from rekey.protocol.effects import side_by_side
from rekey.protocol.operations import CREATES
from rekey.protocol.propagate import Propagated, Propagator, version_of, yield_or_collide
from rekey.protocol.rules import Side
from rekey.tables.base import Table

ROW_TOO_BUSY = "RowTooBusy"
"""The code of a write that other writes of the same row kept from being done; to be repeated."""
_REMEMBERED = 10_000


class AuthoritySide(ABC):
    """One side as the authority of dual writes."""

    side: Side
    authority: Table

    def __init__(self, propagator: Propagator) -> None:
        """Take the forward propagator: it knows tables, mapping and mapper."""
        self.forward = propagator
        self.mapper = propagator.mapper
        self.mapping = propagator.mapping
        self._owners: dict[EntityKey, EntityKey] = {}

    # --- what differs from side to side -----------------------------------------------------------------

    @abstractmethod
    async def prepare(self, work: Work) -> None:
        """Read, check and claim what must be before the authority is written (same view)."""

    @abstractmethod
    async def claim(self, work: Work) -> None:
        """Make this key the owner of what it is about to be written under. Raises Collision, RowRefused."""

    @abstractmethod
    async def read_beside(self, work: Work) -> None:
        """Read beside the write of the authority what could not be read before."""

    @abstractmethod
    async def propagate(self, source_key: EntityKey) -> Propagated:
        """Make the replicas of a key equal what this side says."""

    @abstractmethod
    async def still_owns(self, source_key: EntityKey, target: TargetKey) -> bool:
        """Tell whether a key's row exists now, by this authority, and stands under or maps to `target`."""

    @abstractmethod
    def main_of(self, work: Work) -> EntityKey | None:
        """Return the main target key that the row stands under after the write, None if it is deleted."""

    @abstractmethod
    def followers(self, work: Work) -> set[TargetKey]:
        """Return the places where a replica row of this key may stand, as far as the mapping tells."""

    async def release(self, work: Work) -> None:  # noqa: B027 - the source needs no reservations
        """Give up what was reserved for the write: the authority has answered, nothing of it travels."""

    # --- what is the same on both -----------------------------------------------------------------------

    async def beside(self, work: Work) -> None:
        """Do what may be done beside the write of the authority. What fails makes the write slow."""
        try:
            await side_by_side([self._extend(work), self.read_beside(work)])
        except (ServiceError, RowRefused):
            work.slow = True
        mains = work.main_keys
        for target, row in {**work.late, **work.early}.items():
            if target.table > 0 and row is not None and pointer_of(row) in mains:
                work.ours.add(target)

    async def is_settled(self, work: Work) -> bool:
        """Tell, after the replicas were written, whether nobody came in between."""
        key, source_key, main = work.authority_key, work.source_key, self.main_of(work)
        if key is None or source_key is None:
            return False

        async def same_row() -> bool:
            return version_of(await self.authority.get(key)) == work.etag

        async def same_list() -> bool:
            return _version(await self.mapping.forward(source_key)) == _version(work.forward)

        checks = [same_row()]
        if self.mapper.content_derived:
            checks.append(same_list())
        if main is not None and (work.given.verb in CREATES or self.mapper.content_derived):
            checks.append(self.forward.is_owner(source_key, main))
        return all(await side_by_side(checks))

    def bare(self, source_key: EntityKey) -> frozenset[TargetKey]:
        """Return the target keys that follow from the old key alone; empty where content decides."""
        keys = self.mapper.target_keys(source_key) or ()
        return frozenset(TargetKey(number, *key) for number, key in keys)

    async def read(self, work: Work, places: Iterable[TargetKey], *, early: bool) -> None:
        """Read replica rows that were not read yet; a replica that fails makes the write slow.

        Args:
            work: the key.
            places: where.
            early: whether this happens before the authority is written.
        """
        into = work.early if early else work.late
        missing = sorted(set(places) - work.early.keys() - work.late.keys())

        async def read_one(place: TargetKey) -> None:
            try:
                into[place] = await self.forward.table(place.table).get(place.key)
            except ServiceError:
                work.slow = True

        await side_by_side(read_one(place) for place in missing)

    async def find_owner(self, work: Work, main: EntityKey, *, claims: bool) -> None:
        """Read who owns a main target key, and claim it beside that if nobody is known to."""
        source_key = old_key(work)
        if not claims or self._owners.get(main) == source_key:
            owner = await self.mapping.owner(main)
            work.owner = None if owner is None else owner.source
        else:
            found, claimed = await side_by_side(
                [self.mapping.owner(main), self.mapping.claim_absent(source_key, main)]
            )
            work.owner = source_key if claimed else None if found is None else found.source
        if work.owner == source_key:
            self._remember(main, source_key)

    async def find_forward(self, work: Work) -> None:
        """Read the forward row of a key."""
        work.forward = await self.mapping.forward(old_key(work))

    async def note_owned(self, work: Work, places: Collection[TargetKey]) -> None:
        """Note which main target keys belong to this key."""
        mains = sorted(place for place in places if place.table == 0 and place not in work.ours)

        async def note(place: TargetKey) -> None:
            if await self.forward.is_owner(old_key(work), place.key):
                work.ours.add(place)

        await side_by_side(note(place) for place in mains)

    async def check_indexes(self, work: Work) -> None:
        """Look at index rows of others where ours belong. Raises Collision."""
        for target in work.expected or ():
            row = work.early.get(target)
            if target.table > 0 and row is not None and pointer_of(row) not in work.main_keys:
                await yield_or_collide(self.mapping, self.still_owns, old_key(work), target, row)
                work.ours.add(target)

    def check_list(self, work: Work) -> None:
        """Refuse a row that fans out to more keys than the mapping can list. Raises RowRefused."""
        wanted = self.listed(work)
        if not wanted <= work.known:
            self.mapping.rows.require_fits(old_key(work), work.known | wanted)

    def listed(self, work: Work) -> set[TargetKey]:
        """Return the target keys that the forward row must list for this write."""
        return {target for target in work.expected or () if target.table >= 0}

    async def _extend(self, work: Work) -> None:
        missing = self.listed(work) - work.known
        if not missing:
            return
        source_key = old_key(work)
        after = await self.mapping.extend(source_key, work.forward, missing)
        work.forward = after or await self.mapping.forward(source_key)
        work.slow = work.slow or not missing <= work.known

    def _remember(self, main: EntityKey, source_key: EntityKey) -> None:
        """Remember an owner that was seen: its key is not claimed for nothing. It is never trusted."""
        if len(self._owners) >= _REMEMBERED:
            self._owners.clear()
        self._owners[main] = source_key


def old_key(work: Work) -> EntityKey:
    """Return the old key of a work, which is known by now."""
    if work.source_key is None:
        raise AssertionError("the old key is asked for before it was found")
    return work.source_key


def _version(forward: Forward | None) -> str | None:
    return None if forward is None else forward.etag
