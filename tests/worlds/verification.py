"""What verification scenarios share: a filled world, and the context to verify it with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from rekey.copy.pipeline import copy_segments
from rekey.copy.scan import WindowSize
from rekey.model import EntityKey, Row, key_of
from rekey.state.models import Segment
from rekey.verify.context import MappedRows, RecheckPolicy, ReconcileContext, RowReads
from rekey.verify.report import SampleReport
from rekey.verify.sample import sample
from tests.fakes.clock import FakeClock
from tests.worlds.small import World


async def filled(world: World, rows: Iterable[Row]) -> World:
    """Create the tables, fill the source and copy its rows, as backfill does."""
    await world.prepare(rows)
    everything = Segment(id=1, script_id="0001_users", purpose="backfill")
    async with world.copier.writer() as writer:
        await copy_segments(
            world.source, [everything], writer.copy, WindowSize(2_000, 1 << 24), writer=writer
        )
    return world


def context(world: World, folder: Path, **more: Any) -> ReconcileContext:
    """Return the context of a verification of a world. `more`: fields of it, or of its parts."""

    async def owner(target_key: EntityKey) -> EntityKey | None:
        found = await world.mapping.owner(target_key)
        return None if found is None else found.source

    rows = {"owner": owner, "propagate": world.propagator.propagate} | _pop_fields(more, MappedRows)
    return ReconcileContext(
        **{
            "source": world.source,
            "targets": world.propagator.targets,
            "mapper": world.mapper,
            "ids": world.mapping.rows.ids,
            "rows": MappedRows(**rows),
            "folder": folder,
            "reads": RowReads(**{"concurrency": 4} | _pop_fields(more, RowReads)),
            "recheck": RecheckPolicy(delay_s=1.0, limit_s=60.0, chunk=64),
            "clock": getattr(world.service, "clock", None) or FakeClock(),
            **more,
        }
    )


def _pop_fields(options: dict[str, Any], part: type[MappedRows | RowReads]) -> dict[str, Any]:
    """Take the options that are fields of a part of the context."""
    return {field.name: options.pop(field.name) for field in fields(part) if field.name in options}


async def sampled(ctx: ReconcileContext, n: int, seed: int) -> SampleReport:
    """Sample, whatever a full verification costs."""
    report = await sample(ctx, n, seed, lambda _: None, always=True)
    assert report is not None
    return report


def source_id(world: World, key: EntityKey) -> str:
    """Return the safe id of a source row."""
    return world.mapping.rows.ids.short(world.source.name, key)


def target_id(world: World, table: int, row: Row) -> str:
    """Return the safe id of a target row."""
    return world.mapping.rows.ids.short(world.targets[table].name, key_of(row))


def rows_of(world: World, table: int, source_key: EntityKey) -> list[Row]:
    """Return the rows that a source row gives in one target table."""
    [source] = [row for row in world.service.dump(world.source.name) if key_of(row) == source_key]
    return [row for number, row in world.mapper.map(source) if number == table]
