"""Compares index rows with the main rows they are made of, once nothing follows the source any more. It is a
full verification in which the main target takes the part of the source."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rekey.core.concurrency import for_each
from rekey.core.safe_ids import SafeIds
from rekey.declaration.mapper import Mapper
from rekey.declaration.row_makers import TargetRow
from rekey.errors import Collision, ConditionFailed, RowExists, RowMissing, RowRefused, Unavailable
from rekey.mapping.rows import TargetKey, pointer_of
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.protocol.propagate import MAX_ROUNDS, version_of
from rekey.protocol.replicas import Rows, difference
from rekey.tables.base import Operation, Table, TableWrapper
from rekey.verify.context import MappedRows, RecheckPolicy, ReconcileContext
from rekey.verify.full import full
from rekey.verify.report import FullReport

# Seconds between two observations of a difference. There is no journal: an application writes its index rows
# after the main row.
RECHECK_S = 5.0


class MainRows(Mapper):
    """Maps main target rows to themselves and to their index rows."""

    def __init__(self, of: Mapper) -> None:
        self.__dict__.update(of.__dict__)
        self.drops = False  # what no kind takes is no row of the main target

    def map_all(
        self, rows: Sequence[Row], refused: Callable[[Row, RowRefused], object]
    ) -> Iterator[tuple[Row, list[TargetRow]]]:
        """As that of a mapper, but a refused row stands for itself all the same, so that it is not reported
        once more, as a row of the main target that nothing maps to."""
        for row in rows:
            target_rows = [TargetRow(0, content_of(row))]
            try:
                target_rows += self.index_rows(row)
            except RowRefused as refusal:
                refused(row, refusal)
            yield row, target_rows

    def _map(self, rows: Sequence[Row]) -> list[list[TargetRow]]:
        return [[TargetRow(0, content_of(row)), *self.index_rows(row)] for row in rows]


@dataclass(frozen=True, kw_only=True)
class IndexContext(ReconcileContext):
    """The context of a comparison of index rows with main rows."""

    def not_compared(self, table: int) -> frozenset[str]:
        return self.mapper.timestamp_copies[table] if table else frozenset()


def index_context(
    base: ReconcileContext, keep_removed: Callable[[int, Row, EntityKey | None], Awaitable[None]]
) -> IndexContext:
    """Return the context in which index rows are compared with main rows: tables, rates and stop conditions
    of `base`. `keep_removed`: as of that one; the source key of a removed row is not known."""
    mapper, (main, *indexes) = MainRows(base.mapper), base.targets
    mender = _Mender(mapper, [main, *indexes], base.ids)

    async def itself(main_key: EntityKey) -> EntityKey:
        return main_key

    async def keep(table: int, row: Row, _main_key: EntityKey | None) -> None:
        await keep_removed(table, row, None)

    return IndexContext(
        source=TableWrapper(main),
        targets=[main, *indexes],
        mapper=mapper,
        ids=base.ids,
        rows=MappedRows(owner=itself, propagate=mender.mend, keep_removed=keep),
        folder=base.folder,
        reads=base.reads,
        recheck=RecheckPolicy(delay_s=RECHECK_S),
        clock=base.clock,
        keys=base.keys,
        authority_is_target=True,  # so a repair deletes no main row
    )


async def compare_indexes(ctx: IndexContext, *, repair: bool = False) -> FullReport:
    """Compare all index rows with the main rows; `repair`: rewrite those that differ."""
    report = await full(ctx, repair=repair)
    return replace(report, tables=report.tables[1:])


@dataclass(frozen=True, slots=True)
class _Mender:
    """Rewrites the index rows of a main row, as the application does: no mapping, no journal."""

    mapper: Mapper
    tables: Sequence[Table]
    ids: SafeIds

    async def mend(self, main_key: EntityKey) -> None:
        """Make the index rows of a main row what that row says now.

        Raises:
            RowRefused: its index rows cannot be made of it.
            Collision: an index row of another main row is in the place of one of its own.
            Unavailable: the row kept changing.
        """
        for _ in range(MAX_ROUNDS):
            expected = self._expected(await self.tables[0].get(main_key))
            index_rows: Rows = {}
            for place in expected:
                row = await self.tables[place.table].get(place.key)
                if row is not None:
                    index_rows[place] = row
            # Index rows were read before the main row, and the main row is read again after the writes: every
            # write is conditional on a state that the main row still describes.
            before = await self.tables[0].get(main_key)
            if self._expected(before).keys() != expected.keys():
                continue
            expected = self._expected(before)
            for place, row in index_rows.items():
                other = pointer_of(row)
                if other != main_key and place in self._expected(await self.tables[0].get(other)):
                    name = self.tables[0].name
                    first, second = self.ids.short(name, other), self.ids.short(name, main_key)
                    raise Collision(self.tables[place.table].name, first, second)
            if await self._write(expected, index_rows) and version_of(before) == version_of(
                await self.tables[0].get(main_key)
            ):
                return
        raise Unavailable("a main row kept changing while its index rows were mended", hint="run it again")

    def _expected(self, row: Row | None) -> Rows:
        if row is None:
            return {}
        rows = self.mapper.index_rows(row)
        return {TargetKey(number, *key_of(index_row)): index_row for number, index_row in rows}

    async def _write(self, expected: Rows, actual: Rows) -> bool:
        done = True

        async def write(place: TargetKey, operation: Operation) -> None:
            nonlocal done
            try:
                await self.tables[place.table].write(operation)
            except (ConditionFailed, RowExists, RowMissing):
                done = False

        writes = difference(expected, actual, {})
        await for_each(writes, lambda change: write(*change), limit=4)
        return done
