"""Copying a window of source rows: map, claim in the mapping table, write the targets.

Rules kept here:

* scan → map → pack → write: all mapping rows of a window are durable before its first target row, so
  nothing exists in a target that the mapping does not account for.
* Only inserts-if-absent: a row that is there already is never overwritten from a scan, because what was
  scanned may be older than what stands there.
* What the inserts meet decides: the same content under the same owner is done already; anything else is
  handed to propagate(k), which reads both sides afresh and names collisions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rekey.backfill.packing import pack
from rekey.backfill.throttle import Throttle
from rekey.concurrency import for_each
from rekey.dualwrite.propagate import Propagator, same_content
from rekey.errors import RowRefused
from rekey.mapping.rows import MappingRows, TargetKey, read_forward, read_source
from rekey.model import EntityKey, Row, key_of
from rekey.tables.base import Operation, Table, Verb
from rekey.tables.bulk import insert_absent, read_keys

Examine = Callable[[dict[EntityKey, Row]], None]
"""Told of the rows that stood where a batch was to be inserted."""


@dataclass(slots=True)
class Copied:
    """What copying did: source rows looked at, target rows inserted, rows handed to propagate, and rows
    that propagate changed."""

    rows: int = 0
    inserted: int = 0
    propagated: int = 0
    changed: int = 0
    requests: int = 0

    def add(self, other: Copied) -> None:
        """Add another window's figures to these."""
        self.rows += other.rows
        self.inserted += other.inserted
        self.propagated += other.propagated
        self.changed += other.changed
        self.requests += other.requests


@dataclass(slots=True)
class _Window:
    """One window's rows, mapped: what each source key's rows in the targets should be."""

    expected: dict[EntityKey, dict[TargetKey, Row]] = field(default_factory=dict)
    claimed: dict[TargetKey, EntityKey] = field(default_factory=dict)
    unsettled: set[EntityKey] = field(default_factory=set)
    """Source keys that met something unexpected: propagate(k) settles them."""


class Copier:
    """Copies windows of source rows of one migration."""

    def __init__(self, propagator: Propagator, concurrency: int, throttle: Throttle | None = None) -> None:
        """Take the propagator (it knows the tables and the mapping), how many requests may be under way at
        once, and what keeps target writes under a rate."""
        self.propagator = propagator
        self.rows: MappingRows = propagator.mapping.rows
        self.concurrency = concurrency
        self.throttle = throttle or Throttle(None)

    async def copy(self, source_rows: Sequence[Row]) -> Copied:
        """Copy rows as they were scanned; returns when all of it is durable.

        Raises:
            RowRefused: the mapping cannot key a row; names it by safe id. Rows of other windows are kept.
            Collision: two source rows map to one target key.
        """
        window = self._map(source_rows)
        copied = Copied(rows=len(source_rows))
        await self._write_mapping(window, copied)
        await self._write_targets(window, copied)

        async def settle(source_key: EntityKey) -> None:
            outcome = await self.propagator.propagate(source_key)
            copied.changed += outcome.changed

        copied.propagated = len(window.unsettled)
        await for_each(sorted(window.unsettled), settle, limit=self.concurrency)
        return copied

    async def copy_changed(self, source_rows: Sequence[Row]) -> Copied:
        """Copy rows of which many are there already: what stands in the targets as it should is passed over.

        Only where keys depend on nothing but the old keys: there a row's target keys never change, so a
        target row that is equal leaves nothing else to look at.
        """
        if self.propagator.mapper.content_derived:
            return await self.copy(source_rows)
        rest = await self._not_there(source_rows)
        copied = await self.copy(rest)
        copied.rows = len(source_rows)
        return copied

    async def _not_there(self, source_rows: Sequence[Row]) -> list[Row]:
        """Return the source rows of which some target row is absent or differs."""
        window = self._map(source_rows)
        differing: set[EntityKey] = set()
        for number, table in enumerate(self.propagator.targets):
            wanted: defaultdict[str, dict[EntityKey, tuple[EntityKey, Row]]] = defaultdict(dict)
            for source_key, targets in window.expected.items():
                for target, row in targets.items():
                    if target.table == number:
                        wanted[target.partition][target.key] = (source_key, row)

            async def compare(rows: dict[EntityKey, tuple[EntityKey, Row]], table: Table = table) -> None:
                found = await read_keys(table, list(rows))
                for key, (source_key, row) in rows.items():
                    if key not in found or not same_content(row, found[key]):
                        differing.add(source_key)

            await for_each(wanted.values(), compare, limit=self.concurrency)
        # Two source rows that want one target key: not to be judged here.
        differing |= window.unsettled
        return [row for row in source_rows if key_of(row) in differing]

    def _map(self, source_rows: Iterable[Row]) -> _Window:
        window = _Window()
        map_row = self.propagator.mapper.map
        for source_row in source_rows:
            source_key = key_of(source_row)
            try:
                mapped = map_row(source_row)
            except RowRefused as refused:
                raise refused.for_row(self.propagator.row_id(source_key)) from None
            targets = {TargetKey(table, *key_of(row)): row for table, row in mapped}
            window.expected[source_key] = targets
            for target in targets:
                if window.claimed.setdefault(target, source_key) != source_key:
                    # Two rows of one window want one key. One may be gone by now: propagate looks.
                    window.unsettled.update((source_key, window.claimed[target]))
        return window

    async def _write_mapping(self, window: _Window, copied: Copied) -> None:
        table = self.propagator.mapping.table
        operations: list[Operation] = []
        asked: dict[EntityKey, EntityKey] = {}
        for source_key, targets in window.expected.items():
            if source_key in window.unsettled:
                continue
            rows = [self.rows.forward_row(source_key, targets)]
            rows += [self.rows.reverse_row(source_key, t.key) for t in targets if t.table == 0]
            for row in rows:
                asked[key_of(row)] = source_key
                operations.append(Operation(Verb.INSERT, row))

        def examine(present: dict[EntityKey, Row]) -> None:
            for mapping_key, row in present.items():
                source_key = asked[mapping_key]
                if read_source(row) != source_key or (
                    "Targets0" in row and read_forward(row).targets != window.expected[source_key].keys()
                ):
                    window.unsettled.add(source_key)

        await self._insert(table, operations, examine, copied)

    async def _write_targets(self, window: _Window, copied: Copied) -> None:
        for number, table in enumerate(self.propagator.targets):
            wanted = {
                target.key: (source_key, row)
                for source_key, targets in window.expected.items()
                if source_key not in window.unsettled
                for target, row in targets.items()
                if target.table == number
            }

            def examine(
                present: dict[EntityKey, Row], wanted: dict[EntityKey, tuple[EntityKey, Row]] = wanted
            ) -> None:
                copied.inserted -= len(present)
                for key, row in present.items():
                    source_key, expected = wanted[key]
                    # The pointer is part of an index row's content, so another owner's row differs.
                    if not same_content(row, expected):
                        window.unsettled.add(source_key)

            operations = [Operation(Verb.INSERT, row) for _, row in wanted.values()]
            copied.inserted += len(operations)
            await self._insert(table, operations, examine, copied, self.throttle)

    async def _insert(
        self,
        table: Table,
        operations: Iterable[Operation],
        examine: Examine,
        copied: Copied,
        throttle: Throttle | None = None,
    ) -> None:
        async def write(batch: list[Operation]) -> None:
            if throttle is not None:
                await throttle.take(len(batch))
            copied.requests += 1
            present = await insert_absent(table, batch)
            if present:
                examine(present)

        await for_each(pack(operations, table.encoded_size), write, limit=self.concurrency)
