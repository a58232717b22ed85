"""Mappings with one row for each source row, which rekey does not have (ADR 0065): what does a search find?

Where keys follow from keys alone, and no two source keys have one target key, the other row can be computed:
the forward row from its source key, the reverse row from the target row, which names its source key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from rekey.copy import sweep, write
from rekey.copy.map import CopyWindow, Write, mapping_writes
from rekey.declaration.mapper import Mapper
from rekey.errors import RowRefused
from rekey.mapping.rows import Forward, MappingRows, Owner, TargetKey, targets_of
from rekey.mapping.store import MappingStore
from rekey.model import EntityKey, key_of
from rekey.protocol.propagate import Propagator
from rekey.protocol.reverse import ReversePropagator
from rekey.tables.base import Table
from tests.simulation.dual_small import DualWorld
from tests.simulation.small import SmallWorld


@dataclass(eq=False, kw_only=True)
class ReverseOnly(MappingStore):
    """Stores claims: a source key whose target key is claimed has a forward row."""

    mapper: Mapper

    async def forward(self, source_key: EntityKey) -> Forward | None:
        [(_, target)] = self.mapper.target_keys(source_key) or ()
        owner = await self.owner(target)
        if owner is None or owner.source != source_key:
            return None
        return Forward(source_key, frozenset({TargetKey(0, *target)}), owner.etag)

    async def reserve(
        self, source_key: EntityKey, forward: Forward | None, targets: Iterable[TargetKey], _: object
    ) -> Forward | None:
        for target in targets if forward is None else ():
            await self.take(source_key, target, None)
        return await self.forward(source_key)


@dataclass(eq=False, kw_only=True)
class ForwardOnly(MappingStore):
    """Stores which target key a source key has; whose a target key is, its row says."""

    mapper: Mapper
    main: Table

    async def owner(self, target_key: EntityKey, table: int = 0) -> Owner | None:
        row = await self.main.get(target_key)
        try:
            return None if row is None else Owner(self.mapper.source_key(row), "")
        except RowRefused:
            return None

    async def take(self, source_key: EntityKey, *_: object) -> Owner | None:
        return Owner(source_key, "")

    async def claim_main(self, *_: object) -> None:
        pass


@contextmanager
def reverse_only() -> Iterator[None]:
    """Write, sweep and read reverse rows alone."""

    async def gone(table: Table, mapping: MappingStore, *_: object, **__: object) -> AsyncIterator[Any]:
        present = {key_of(row) async for page in table.scan() for row in page.rows}
        async for page in mapping.scan("r"):
            if missing := [key for row in page.rows if (key := mapping.rows.read_source(row)) not in present]:
                yield missing

    def mapping_of(world: SmallWorld) -> MappingStore:
        return ReverseOnly(world.mapping.table, world.mapping.rows, mapper=world.mapper)

    with _with_mapping(mapping_of, ".r."), mock.patch.object(sweep, "gone", gone):
        yield


@contextmanager
def forward_only() -> Iterator[None]:
    """Write and read forward rows alone; what a source key owns, its forward row lists."""

    async def is_owner(self: Propagator, source_key: EntityKey, target_key: EntityKey) -> bool:
        return TargetKey(0, *target_key) in targets_of(await self.mapping.forward(source_key))

    def mapping_of(world: SmallWorld) -> MappingStore:
        main = world.targets[0]
        return ForwardOnly(world.mapping.table, world.mapping.rows, mapper=world.mapper, main=main)

    with (
        _with_mapping(mapping_of, ".f."),
        mock.patch.object(Propagator, "is_owner", is_owner),
        mock.patch.object(SmallWorld, "broken", lambda _: ""),  # it asks for reverse rows
    ):
        yield


@contextmanager
def older_sweeper() -> Iterator[None]:
    """Let a version sweep the journal that knows both mapping rows, and writes none again that is gone."""
    swept = DualWorld.sweep

    async def lists_nothing(_self: ReversePropagator, _source_key: EntityKey) -> bool:
        return False

    async def sweep_by_both(self: DualWorld) -> Any:
        with (
            mock.patch.object(self, "mapping", MappingStore(self.mapping.table, self.mapping.rows)),
            mock.patch.object(ReversePropagator, "_lists", lists_nothing),
        ):
            return await swept(self)

    with mock.patch.object(DualWorld, "sweep", sweep_by_both):
        yield


@contextmanager
def _with_mapping(mapping_of: Callable[[SmallWorld], MappingStore], direction: str) -> Iterator[None]:
    begin = SmallWorld.__init__

    def begun(self: SmallWorld, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        self.mapping = mapping_of(self)

    def some_writes(rows: MappingRows, window: CopyWindow) -> Iterator[Write]:
        for each in mapping_writes(rows, window):
            if direction in each.row["PartitionKey"]:
                yield each

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(SmallWorld, "__init__", begun))
        stack.enter_context(mock.patch.object(write, "mapping_writes", some_writes))
        yield
