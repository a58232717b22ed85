"""propagate(k): make the replicas of one source key equal what the authority says now.

Rules kept here (DESIGN section 5; each was found by searching all interleavings):

* In every round the replicas are read first, then the authority. The other way round, a slow propagator
  overwrites newer rows.
* Every write is conditional on what was read: replace and delete on the ETag, insert on absence.
* It stops only after a round in which it wrote nothing by insert-if-absent: absence is no version, so a row
  may have come and gone (and the authority moved on) between the reading and the insert.
* A target key is claimed in the mapping before a row is written under it, and after a claim the round starts
  again, because the replicas must be read before the authority.
* Only rows that the source key owns are touched: a main row by its reverse row, an index row by its pointer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rekey.declaration import MAIN_PARTITION_KEY, MAIN_ROW_KEY
from rekey.edm import canonical_content
from rekey.errors import Ambiguous, ConditionFailed, RowExists, RowMissing, RowRefused, Unavailable
from rekey.mapper import Mapper
from rekey.mapping.rows import TargetKey
from rekey.mapping.store import MappingStore
from rekey.model import EntityKey, Row, etag_of, key_of
from rekey.tables.base import Operation, Table, Verb

MAX_ROUNDS = 100
"""A row that changes this often while it is propagated is given up for now; nothing is lost by it."""


@dataclass(frozen=True, slots=True)
class Propagated:
    """What one call of propagate did: rows inserted, replaced and deleted in the targets."""

    inserted: int = 0
    replaced: int = 0
    deleted: int = 0

    @property
    def changed(self) -> bool:
        """Tell whether anything was written."""
        return bool(self.inserted or self.replaced or self.deleted)


def same_content(one: Row, other: Row) -> bool:
    """Compare two rows' custom properties as (name, EDM type, canonical text)."""
    return canonical_content(one) == canonical_content(other)


def difference(expected: dict[TargetKey, Row], found: dict[TargetKey, Row]) -> list[tuple[int, Operation]]:
    """Return the conditional writes, each with its table, that turn `found` into `expected`."""
    writes: list[tuple[int, Operation]] = []
    for target, row in expected.items():
        present = found.get(target)
        if present is None:
            writes.append((target.table, Operation(Verb.INSERT, row)))
        elif not same_content(row, present):
            writes.append((target.table, Operation(Verb.REPLACE, row, etag_of(present))))
    for target, present in found.items():
        if target not in expected:
            writes.append((target.table, Operation(Verb.DELETE, present, etag_of(present))))
    return writes


async def apply_one(table: Table, operation: Operation) -> bool:
    """Apply one conditional operation; False when its condition did not hold (any more), or when nobody can
    tell: the next round reads what is there."""
    try:
        if operation.verb is Verb.INSERT:
            await table.insert(operation.row)
        elif operation.verb is Verb.DELETE:
            await table.delete(operation.key, etag=operation.etag or "*")
        else:
            await table.replace(operation.row, etag=operation.etag or "*")
    except (RowExists, RowMissing, ConditionFailed, Ambiguous):
        return False
    return True


class Propagator:
    """Propagates from the source, as the authority, to the main target and its index tables."""

    def __init__(
        self, source: Table, targets: Sequence[Table], mapper: Mapper, mapping: MappingStore
    ) -> None:
        """Take the authority, the replicas (main first, then index tables), the mapping and its store."""
        self.source = source
        self.targets = tuple(targets)
        self.mapper = mapper
        self.mapping = mapping

    async def propagate(self, source_key: EntityKey) -> Propagated:
        """Make all replicas of `source_key` equal what the source says now.

        Raises:
            Collision: a target key it maps to belongs to another source row.
            RowRefused: the mapping cannot key the source row; names it by safe id.
            Unavailable: the row changed in every one of `MAX_ROUNDS` rounds.
        """
        counts = dict.fromkeys((Verb.INSERT, Verb.REPLACE, Verb.DELETE), 0)
        for _ in range(MAX_ROUNDS):
            forward = await self.mapping.forward(source_key)
            known = forward.targets if forward else frozenset[TargetKey]()
            found = await self._read_replicas(known)
            expected = await self._expected(source_key)
            unclaimed = await self._unclaimed(source_key, expected, known)
            if unclaimed:
                await self.mapping.claim(source_key, forward, unclaimed, self.still_owns)
                continue
            found = await self._owned(source_key, expected, found, known)
            writes = difference(expected, found)
            settled = True
            for table, operation in writes:
                applied = await apply_one(self.targets[table], operation)
                counts[operation.verb] += applied
                settled = settled and applied and operation.verb is not Verb.INSERT
            if settled:
                return Propagated(counts[Verb.INSERT], counts[Verb.REPLACE], counts[Verb.DELETE])
        raise Unavailable(
            f"row {self.row_id(source_key)} changed in every one of {MAX_ROUNDS} attempts to propagate it",
            hint="run the same command again when the row is less busy",
        )

    async def still_owns(self, source_key: EntityKey, target: TargetKey) -> bool:
        """Tell whether a source row exists now and maps to `target`."""
        return target in await self._expected(source_key)

    def row_id(self, source_key: EntityKey) -> str:
        """Return the safe id of a source row."""
        return self.mapping.rows.ids.short(self.mapping.rows.source, source_key)

    async def _expected(self, source_key: EntityKey) -> dict[TargetKey, Row]:
        """Read the authority and map it: the replicas' rows as they should be."""
        authority = await self.source.get(source_key)
        if authority is None:
            return {}
        try:
            mapped = self.mapper.map(authority)
        except RowRefused as refused:
            raise refused.for_row(self.row_id(source_key)) from None
        return {TargetKey(table, *key_of(row)): row for table, row in mapped}

    async def _read_replicas(self, targets: frozenset[TargetKey]) -> dict[TargetKey, Row]:
        found: dict[TargetKey, Row] = {}
        for target in sorted(targets):
            row = await self.targets[target.table].get(target.key)
            if row is not None:
                found[target] = row
        return found

    async def _unclaimed(
        self, source_key: EntityKey, expected: dict[TargetKey, Row], known: frozenset[TargetKey]
    ) -> set[TargetKey]:
        """Return the expected target keys that this source key does not (or no longer) hold."""
        unclaimed = set(expected.keys() - known)
        for target in expected.keys() & known:
            # Listed once is not owned for ever: the claim may have passed over while our row was gone.
            if target.table == 0 and not await self._is_owner(source_key, target):
                unclaimed.add(target)
        return unclaimed

    async def _is_owner(self, source_key: EntityKey, target: TargetKey) -> bool:
        owner = await self.mapping.owner(target.key)
        return owner is not None and owner.source == source_key

    async def _owned(
        self,
        source_key: EntityKey,
        expected: dict[TargetKey, Row],
        found: dict[TargetKey, Row],
        known: frozenset[TargetKey],
    ) -> dict[TargetKey, Row]:
        """Leave out rows under this key's old target keys that belong to another source row by now."""
        own = dict(found)
        main_keys = {target.key for target in known if target.table == 0}
        for target, row in found.items():
            if target.table == 0:
                mine = target in expected or await self._is_owner(source_key, target)
            else:
                pointer = EntityKey(row.get(MAIN_PARTITION_KEY, ""), row.get(MAIN_ROW_KEY, ""))
                mine = pointer in main_keys
                if not mine and target in expected:
                    await self._yield_or_collide(source_key, target, pointer)
                    mine = True
            if not mine:
                del own[target]
        return own

    async def _yield_or_collide(self, source_key: EntityKey, target: TargetKey, pointer: EntityKey) -> None:
        """An index row of another main row stands where ours belongs: a collision while that row's source
        still maps there; otherwise it is a leftover and may be replaced."""
        owner = await self.mapping.owner(pointer)
        if owner is not None and owner.source != source_key and await self.still_owns(owner.source, target):
            raise self.mapping.collision(target, owner.source, source_key)
