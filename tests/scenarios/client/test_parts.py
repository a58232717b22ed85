"""Clients of a migration of a part of a table: rows beside the part pass in the old view, in every phase, and
are refused in the new view."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace as changed
from pathlib import Path

import pytest

from rekey import rows
from rekey.client.sdk.calls import Read
from rekey.client.shadow import Shadow
from rekey.declaration.scripts import load_script
from rekey.errors import RowRefused, WritesRefused
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from tests.fakes.memory import MemoryTableService
from tests.worlds.dual_write import (
    TAGGED,
    DualWorld,
    delete,
    insert,
    key_row,
    memory_world,
    merge,
    replace,
    upsert,
)
from tests.worlds.parts_of_a_table import FREE, NORTH, SOUTH, Parts, row
from tests.worlds.small import user

PART = changed(
    TAGGED,
    where=rows.partition_key(equals="eu"),
    target=changed(TAGGED.target, properties=[*TAGGED.target.properties[:2]]),
)
BY_ROWS = changed(PART, where=rows.row_key(prefix="a"))
PHASES = [phase for phase in ControlPhase if phase is not ControlPhase.FREEZE]
FOLLOWED = [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER]


def person(name: str, partition: str = "eu", **more: object) -> Row:
    row = user(f"{name}@example.com", partition, **more)
    del row["Ssn"]
    return row


async def world_of(memory: MemoryTableService, phase: ControlPhase = ControlPhase.DUAL_WRITE) -> DualWorld:
    world = await memory_world(PART, memory).prepare(
        [person("ann"), person("ann", "us"), person("bob", "us")]
    )
    world.permits.move(phase)
    return world


@pytest.mark.parametrize("phase", [*PHASES, ControlPhase.FREEZE])
async def test_rows_beside_the_part_are_written_in_the_old_view_in_every_phase(
    memory: MemoryTableService, phase: ControlPhase
) -> None:
    world = await world_of(memory, phase)
    before = {name: memory.dump(name) for name in PART.tables}
    mapping = memory.dump("rekeymap")
    old = world.writer(View.OLD)
    [etag] = await old.write([insert(person("new", "us"))])
    assert etag == world.etag("Users", EntityKey("us", "new@example.com"))
    await old.write([replace(person("new", "us", Age=2), etag)])
    await old.write([merge(person("ann", "us", Age=3)), delete(EntityKey("us", "bob@example.com"))])
    await old.write([upsert(person("eve", "asia"))])
    assert {key: row.get("Age") for key, row in world.rows("Users").items()} == {
        ("asia", "eve@example.com"): None,
        ("eu", "ann@example.com"): None,
        ("us", "ann@example.com"): 3,
        ("us", "new@example.com"): 2,
    }
    assert {name: memory.dump(name) for name in PART.tables} == before
    assert memory.dump("rekeymap") == mapping
    assert world.intents == 0


@pytest.mark.parametrize("phase", FOLLOWED)
async def test_rows_of_the_part_are_followed_as_ever(memory: MemoryTableService, phase: ControlPhase) -> None:
    world = await world_of(memory, phase)
    old = world.writer(View.OLD)
    await old.write([replace(person("ann", Age=7))])
    await old.write([insert(person("cid"))])
    [main] = [row for row in memory.dump("UsersV2") if row["ContactEmail"] == "cid@example.com"]
    await world.writer(View.NEW).write([merge({**key_row(key_of(main)), "Age": 8})])
    await world.assert_quiet()
    assert len(memory.dump("UsersV2")) == 2
    assert world.rows("Users")[EntityKey("eu", "cid@example.com")]["Age"] == 8


@pytest.mark.parametrize("phase", FOLLOWED)
@pytest.mark.parametrize("verb", [insert, upsert])
async def test_a_row_beside_the_part_is_refused_in_the_new_view(
    memory: MemoryTableService, phase: ControlPhase, verb: object
) -> None:
    world = await world_of(memory, phase)
    before = {name: memory.dump(name) for name in (*PART.tables, "Users")}
    row = {**content_of(world.mapper.map(person("new"))[0].row), "PartitionKey": "us"}
    with pytest.raises(RowRefused) as refused:
        await world.writer(View.NEW).write([verb(row)])  # type: ignore[operator]
    assert refused.value.code == "outside-part"
    assert "old table" in refused.value.cure
    await world.assert_quiet()
    assert {name: memory.dump(name) for name in (*PART.tables, "Users")} == before


@pytest.mark.parametrize("phase", FOLLOWED)
async def test_a_transaction_on_rows_of_the_part_and_beside_it_is_refused(
    memory: MemoryTableService, phase: ControlPhase
) -> None:
    world = await memory_world(BY_ROWS, memory).prepare([person("ann"), person("bob")])
    world.permits.move(phase)
    before = world.rows("Users")
    old = world.writer(View.OLD)
    with pytest.raises(WritesRefused) as refused:
        await old.write([replace(person("ann", Age=1)), replace(person("bob", Age=1))])
    assert refused.value.code == "mixed-parts"
    assert world.rows("Users") == before
    await old.write([replace(person("ann", Age=1))])
    await old.write([replace(person("bob", Age=1)), insert(person("cid"))])
    await world.assert_quiet()
    assert len(memory.dump("UsersV2")) == 1


async def test_before_writes_are_followed_a_transaction_may_mix_parts(
    memory: MemoryTableService,
) -> None:
    world = await memory_world(BY_ROWS, memory).prepare([person("ann"), person("bob")])
    world.permits.move(ControlPhase.SOURCE)
    await world.writer(View.OLD).write([replace(person("ann", Age=1)), replace(person("bob", Age=1))])
    assert [row["Age"] for row in memory.dump("Users")] == [1, 1]


async def test_shadow_reads_leave_rows_beside_the_part_alone(memory: MemoryTableService) -> None:
    world = await world_of(memory)
    writer = world.writer(View.OLD)
    shadow = Shadow(writer.client, 1.0)
    for each in memory.dump("Users"):
        shadow.offer(key_of(each), each)
    shadow.offer(EntityKey("us", "nobody@example.com"), None)
    await shadow.idle()
    await shadow.close()
    assert (world.counters.matched, world.counters.mismatched, world.counters.ignored) == (1, 0, 0)


def test_the_example_says_its_part() -> None:
    path = Path(__file__).parents[3] / "migrations/0007_invoices_of_a_tenant.py"
    migration = load_script(path).migration
    assert migration.source_label == "part of Invoices (PartitionKey is a certain one)"
    assert migration.has(EntityKey("contoso", "1"))
    assert not migration.has(EntityKey("contosp", "1"))


async def test_a_transaction_without_operations_is_on_no_row_beside_the_part(
    memory: MemoryTableService,
) -> None:
    """In a freeze writes wait, those of rows beside the part do not."""
    world = await world_of(memory, ControlPhase.FREEZE)
    with pytest.raises(WritesRefused):
        await world.writer(View.OLD).write([])


async def test_each_row_that_a_router_read_is_compared_once_by_the_client_of_its_part(
    memory: MemoryTableService, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count()
    parts = await Parts.create(memory, lambda name: f"{name}{next(numbers)}")
    compared = defaultdict[str, list[EntityKey]](list)

    def script_of(shadow: Shadow) -> str:
        return shadow.client.journal.script_id

    def offer(shadow: Shadow, key: EntityKey, _row: Row | None, *, whole: bool) -> None:
        assert whole
        compared[script_of(shadow)].append(key)

    def offer_page(shadow: Shadow, rows: Sequence[Row], *, whole: bool) -> None:
        assert whole
        compared[script_of(shadow)] += [key_of(row) for row in rows]

    monkeypatch.setattr(Shadow, "offer", offer)
    monkeypatch.setattr(Shadow, "offer_page", offer_page)
    for tenant in (NORTH, SOUTH):
        await parts.begin(tenant, ControlPhase.DUAL_WRITE)
    carrier = parts.carrier(NORTH, SOUTH)
    await carrier.open()
    page = [{**row(tenant, key), "odata.etag": "W/1"} for tenant in (NORTH, SOUTH, FREE) for key in "12"]
    carrier.shadow(Read(None), 200, json.dumps({"value": page}).encode())
    carrier.shadow(Read(EntityKey(SOUTH, "3")), 404, b"{}")
    carrier.shadow(Read(None), 200, b"<feed/>")
    await carrier.close()
    north, south = (declared.script_id for declared in parts.declared(NORTH, SOUTH))
    assert dict(compared) == {
        north: [EntityKey(NORTH, "1"), EntityKey(NORTH, "2")],
        south: [EntityKey(SOUTH, "1"), EntityKey(SOUTH, "2"), EntityKey(SOUTH, "3")],
    }
