"""Full verification finds every planted divergence, names it by safe id, and repair mends it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rekey.core import spill
from rekey.errors import Collision, ExitCode
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.present.text import WIDTH
from rekey.tables.base import Operation, Table
from rekey.tables.split import find_middle
from rekey.verify.full import full
from rekey.verify.render import render
from rekey.verify.report import Change, DifferenceKind, Outcome, PropertyDifference, exit_code
from rekey.verify.trace import Trace
from tests.asserts.every import every
from tests.fakes.clock import FakeClock
from tests.fakes.memory import MemoryTable, MemoryTableService
from tests.scenarios.verify.test_resumed import small_pages
from tests.worlds.small import LOWERED, POSTS, USERS, World, post, user
from tests.worlds.verification import context, filled, rows_of, source_id, target_id

ANN = EntityKey("eu", "ann@example.com")
HELLO = EntityKey("blog", "post-007")
WRONG = "somewhere-else@example.com"
SEEN = {"Seen@odata.type": "Edm.DateTime", "Seen": "2024-05-06T07:08:09.1234567Z"}


def users() -> list[Row]:
    others = [user(f"u{number:03}@example.com", Age=number, **SEEN) for number in range(40)]
    return [*others, user(ANN.row, Age=5, **SEEN)]


def posts() -> list[Row]:
    return [
        post(f"post-{number:03}", f"2024-{number % 12 + 1:02}", f"t{number % 3},x") for number in range(30)
    ]


@dataclass(frozen=True)
class Plant:
    """One divergence: how it is planted in a target table, and what must be found."""

    plant: Callable[[World, int, Row], Awaitable[Any]]
    kind: DifferenceKind
    properties: tuple[PropertyDifference, ...] = ()
    outcome: Outcome = Outcome.PROPAGATED


async def missing(world: World, table: int, row: Row) -> None:
    await world.targets[table].delete(EntityKey(row["PartitionKey"], row["RowKey"]))


async def extra(world: World, table: int, row: Row) -> None:
    await world.targets[table].insert(
        {"PartitionKey": row["PartitionKey"], "RowKey": WRONG, "Name": "nobody"}
    )


async def one_character(world: World, table: int, row: Row) -> None:
    text = "Name" if table == 0 and "Name" in row else "Title"
    await world.targets[table].replace({**row, text: row[text][:-1] + "#"})


async def wider(world: World, table: int, row: Row) -> None:
    await world.targets[table].replace({**row, "Age@odata.type": "Edm.Int64", "Age": str(row["Age"])})


async def off_by_100_ns(world: World, table: int, row: Row) -> None:
    await world.targets[table].replace({**row, "Seen": "2024-05-06T07:08:09.1234568Z"})


async def property_gone(world: World, table: int, row: Row) -> None:
    await world.targets[table].replace({name: row[name] for name in row if not name.startswith("Age")})


async def property_more(world: World, table: int, row: Row) -> None:
    await world.targets[table].replace({**row, "More": "x"})


async def wrong_key(world: World, table: int, row: Row) -> None:
    await missing(world, table, row)
    await world.targets[table].insert({**row, "RowKey": WRONG})


def change(name: str, how: Change) -> tuple[PropertyDifference, ...]:
    return (PropertyDifference(name, how),)


PLANTS = {
    "missing": Plant(missing, DifferenceKind.MISSING),
    "extra": Plant(extra, DifferenceKind.EXTRA, outcome=Outcome.DELETED),
    "one character": Plant(one_character, DifferenceKind.ALTERED, change("Name", Change.VALUE)),
    "Int32 to Int64": Plant(wider, DifferenceKind.ALTERED, change("Age", Change.TYPE)),
    "off by 100 ns": Plant(off_by_100_ns, DifferenceKind.ALTERED, change("Seen", Change.VALUE)),
    "property gone": Plant(property_gone, DifferenceKind.ALTERED, change("Age", Change.MISSING)),
    "property more": Plant(property_more, DifferenceKind.ALTERED, change("More", Change.EXTRA)),
    "wrong key": Plant(wrong_key, DifferenceKind.WRONG_KEY, outcome=Outcome.MOVED),
}
INDEX_PLANTS = {
    "missing": Plant(missing, DifferenceKind.MISSING),
    "extra": Plant(extra, DifferenceKind.EXTRA, outcome=Outcome.DELETED),
    "one character": Plant(one_character, DifferenceKind.ALTERED, change("Title", Change.VALUE)),
    "wrong key": Plant(wrong_key, DifferenceKind.WRONG_KEY, outcome=Outcome.MOVED),
}


async def check_plant(world: World, table: int, source_key: EntityKey, plant: Plant, folder: Path) -> None:
    row = rows_of(world, table, source_key)[0]
    await plant.plant(world, table, row)
    ctx = context(world, folder)
    report = await full(ctx)
    assert exit_code(report) == ExitCode.FINDINGS
    [found] = report.differences.listed
    assert (found.kind, found.table) == (plant.kind, world.targets[table].name)
    assert found.properties == plant.properties
    stray = target_id(world, table, {**row, "RowKey": WRONG})
    if plant.kind is DifferenceKind.EXTRA:
        assert (found.row_id, found.source_id) == (stray, "")
    else:
        assert (found.row_id, found.source_id) == (target_id(world, table, row), source_id(world, source_key))
        assert found.stray_id == (stray if plant.kind is DifferenceKind.WRONG_KEY else "")
    for text in (render(report, "0001_users"), json.dumps(report.as_json()), repr(report)):
        assert found.row_id in text
        assert "example.com" not in text
        assert "post-007" not in text
    assert every(len(line) <= WIDTH for line in render(report, "0001_users").splitlines())

    repaired = (await full(ctx, repair=True)).repair
    assert [each.outcome for each in repaired.repairs] == [plant.outcome]
    after = await full(ctx)
    assert exit_code(after) == ExitCode.DONE
    world.assert_in_step()
    assert list(folder.iterdir()) == []


@pytest.fixture
def memory(clock: FakeClock) -> MemoryTableService:
    """Tables in memory."""
    return MemoryTableService(clock=clock)


@pytest.mark.parametrize("name", PLANTS)
async def test_divergence_is_repaired(memory: MemoryTableService, tmp_path: Path, name: str) -> None:
    world = await filled(World(memory, USERS), users())
    await check_plant(world, 0, ANN, PLANTS[name], tmp_path)


@pytest.mark.parametrize("table", [0, 1], ids=["main", "index"])
@pytest.mark.parametrize("name", INDEX_PLANTS)
async def test_a_planted_divergence_in_tables_with_fan_out_is_found_named_and_mended(
    memory: MemoryTableService, tmp_path: Path, name: str, table: int
) -> None:
    world = await filled(World(memory, POSTS), posts())
    await check_plant(world, table, HELLO, INDEX_PLANTS[name], tmp_path)


async def test_tables_in_step_have_equal_digests(memory: MemoryTableService, tmp_path: Path) -> None:
    world = await filled(World(memory, POSTS), posts())
    report = await full(context(world, tmp_path))
    assert exit_code(report) == ExitCode.DONE
    assert [table.expected_digest for table in report.tables] == [
        table.actual_digest for table in report.tables
    ]
    assert report.tables[0].actual_digest != report.tables[1].actual_digest
    assert report.target_rows == sum(len(rows) for rows in world.actual().values())
    assert "as the source says" in render(report, "0001_users")


async def test_all_plants_at_once_are_told_apart(memory: MemoryTableService, tmp_path: Path) -> None:
    world = await filled(World(memory, USERS), users())
    keys = [EntityKey("eu", f"u{number:03}@example.com") for number in range(len(PLANTS))]
    for key, plant in zip(keys, PLANTS.values(), strict=True):
        row = rows_of(world, 0, key)[0]
        if plant.plant is wrong_key:
            row["PartitionKey"], row["RowKey"] = row["PartitionKey"], row["RowKey"]
            await missing(world, 0, row)
            await world.targets[0].insert({**row, "RowKey": "other"})
        else:
            await plant.plant(world, 0, row)
    report = await full(context(world, tmp_path), repair=True)
    assert report.differences.counts == {"altered": 5, "extra": 1, "missing": 1, "wrong-key": 1}
    assert not (await full(context(world, tmp_path))).findings
    world.assert_in_step()


async def test_an_orphaned_target_row_is_removed(memory: MemoryTableService, tmp_path: Path) -> None:
    """The mapping table still knows who owned the row."""
    world = await filled(World(memory, POSTS), posts())
    await world.source.delete(HELLO)
    report = await full(context(world, tmp_path), repair=True)
    assert report.differences.counts == {"extra": 3}
    assert {each.source_id for each in report.differences.listed} == {source_id(world, HELLO)}
    world.assert_in_step()


async def test_an_unclaimed_index_row_is_removed(memory: MemoryTableService, tmp_path: Path) -> None:
    """Its pointer names an owner that does not give it: propagating the owner does not touch it."""
    world = await filled(World(memory, POSTS), posts())
    row = rows_of(world, 1, HELLO)[0]
    await world.targets[1].insert({**row, "PartitionKey": "never-a-tag"})
    report = await full(context(world, tmp_path), repair=True)
    [found] = report.differences.listed
    assert (found.kind, found.source_id) == (DifferenceKind.EXTRA, source_id(world, HELLO))
    assert report.repair.counts == {"deleted": 1}
    world.assert_in_step()


@pytest.mark.parametrize("lost", ["delete", "replace"])
async def test_a_repair_that_changed_nothing_is_not_counted_as_done(
    memory: MemoryTableService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The service answers that it is done; the request reached no row, or another one."""
    world = await filled(World(memory, USERS), [user("a@example.com"), user("b@example.com")])
    if lost == "delete":
        await world.targets[0].insert({"PartitionKey": "eu", "RowKey": "foreign"})
    else:
        [target] = rows_of(world, 0, key_of(user("b@example.com")))
        await world.targets[0].merge({**target, "Name": "changed by hand"})
    write = MemoryTable.write_at_address

    async def lose(table: MemoryTable, operation: Operation) -> str:
        is_lost = operation.verb == lost and table.name == "UsersV2"
        return 'W/"lost"' if is_lost else await write(table, operation)

    monkeypatch.setattr(MemoryTable, "write_at_address", lose)
    report = await full(context(world, tmp_path), repair=True)
    assert report.repair.counts == {"unconfirmed": 1}
    assert (await full(context(world, tmp_path))).findings


async def test_colliding_source_rows_overwrite_nothing(memory: MemoryTableService, tmp_path: Path) -> None:
    world = await filled(World(memory, LOWERED), [user("Ann"), user("Bob")])
    await world.source.insert(user("ANN"))
    before = world.actual()
    report = await full(context(world, tmp_path), repair=True)
    [found] = report.differences.listed
    assert (found.kind, found.source_id) == (
        DifferenceKind.COLLISION,
        source_id(world, EntityKey("eu", "ANN")),
    )
    assert report.repair.counts == {"refused": 1}
    assert world.actual() == before


async def test_many_colliding_rows_are_each_named_once(memory: MemoryTableService, tmp_path: Path) -> None:
    """More source rows than are looked at together: all but the one that stands there are named."""
    names = [f"{'aBcDeF'[: number % 6]}{number % 6}" for number in range(6)]
    spellings = sorted(
        {"".join(c.upper() if mask >> i & 1 else c for i, c in enumerate("abcdef")) for mask in range(40)}
    )
    world = await World(memory, LOWERED).prepare([user(name) for name in (*spellings, *names)])
    await world.propagator.propagate(EntityKey("eu", spellings[20]))
    for name in names:
        await world.propagator.propagate(EntityKey("eu", name))
    report = await full(context(world, tmp_path))
    collided = [each.source_id for each in report.differences.listed if each.kind is DifferenceKind.COLLISION]
    assert sorted(collided) == sorted(
        source_id(world, EntityKey("eu", name)) for name in spellings if name != spellings[20]
    )


async def test_rows_the_mapping_refuses_are_findings(memory: MemoryTableService, tmp_path: Path) -> None:
    """A source row without the property that keys it has no target row and must not be forgotten."""
    world = await filled(World(memory, POSTS), posts())
    row = post("keyless")
    del row["Month"]
    await world.source.insert(row)
    report = await full(context(world, tmp_path), repair=True)
    [found] = report.differences.listed
    assert (found.kind, found.code) == (DifferenceKind.REFUSED, "missing-property")
    assert found.source_id == source_id(world, EntityKey("blog", "keyless"))
    assert report.refused_rows == 1
    assert report.repair.counts == {"refused": 1}
    assert "missing-property" in render(report, "0001_users")


async def test_many_differences_go_through_bounded_groups(
    memory: MemoryTableService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With groups of ten records everything is still found, listed up to a bound and counted."""
    monkeypatch.setattr(spill, "GROUP_RECORDS", 10)
    rows = [user(f"u{number:03}@example.com") for number in range(300)]
    world = await filled(World(memory, USERS), rows)
    for row in memory.dump("UsersV2")[:150]:
        await world.targets[0].delete(EntityKey(row["PartitionKey"], row["RowKey"]))
    for row in memory.dump("UsersV2")[:50]:
        await world.targets[0].replace({**content_of(row), "Name": "changed"})
    report = await full(context(world, tmp_path))
    assert report.differences.counts == {"altered": 50, "missing": 150}
    assert "... and 180 more" in render(report, "0001_users")
    await full(context(world, tmp_path), repair=True)
    world.assert_in_step()


async def test_equal_rows_are_not_paired_by_guess(memory: MemoryTableService, tmp_path: Path) -> None:
    """Two missing rows and one stray with the same content: nobody can say whose it is."""
    rows = [post(f"post-{number}", tags="") for number in range(4)]
    for row in rows:
        row["Title"] = "same"
    world = await filled(World(memory, POSTS), rows)
    first, second = (rows_of(world, 0, EntityKey("blog", f"post-{number}"))[0] for number in (1, 2))
    await missing(world, 0, first)
    await missing(world, 0, second)
    await world.targets[0].insert({**first, "RowKey": WRONG})
    report = await full(context(world, tmp_path), repair=True)
    assert report.differences.counts == {"extra": 1, "missing": 2}
    world.assert_in_step()


async def test_a_stray_row_with_an_owner_is_no_wrong_key(memory: MemoryTableService, tmp_path: Path) -> None:
    """One row is missing and one is too many with the same content, but the mapping knows better."""
    rows = [post(f"post-{number}", tags="", Title="same") for number in range(4)]
    world = await filled(World(memory, POSTS), rows)
    await missing(world, 0, rows_of(world, 0, EntityKey("blog", "post-1"))[0])
    await world.source.delete(EntityKey("blog", "post-2"))
    report = await full(context(world, tmp_path), repair=True)
    assert {(each.kind, each.source_id) for each in report.differences.listed} == {
        (DifferenceKind.MISSING, source_id(world, EntityKey("blog", "post-1"))),
        (DifferenceKind.EXTRA, source_id(world, EntityKey("blog", "post-2"))),
    }
    world.assert_in_step()


async def test_a_refused_row_does_not_block_repairs(memory: MemoryTableService, tmp_path: Path) -> None:
    """One row that cannot be mended does not keep the rest from being mended."""
    world = await filled(World(memory, USERS), users())
    for row in memory.dump("UsersV2")[:5]:
        await world.targets[0].delete(EntityKey(row["PartitionKey"], row["RowKey"]))
    refused: list[EntityKey] = []

    async def propagate(source_key: EntityKey) -> object:
        if not refused:
            refused.append(source_key)
            raise Collision("UsersV2", "first", "second")
        return await world.propagator.propagate(source_key)

    report = await full(context(world, tmp_path, propagate=propagate), repair=True)
    assert report.repair.counts == {"propagated": 4, "refused": 1}
    [left] = (await full(context(world, tmp_path))).differences.listed
    assert left.source_id == source_id(world, refused[0])


async def test_a_copied_timestamp_is_not_compared(memory: MemoryTableService, tmp_path: Path) -> None:
    """Writing back gives the source row a new Timestamp; everything else is still compared."""
    from rekey import Migration, Target, keys, props

    stamped = Migration(
        source="Users",
        target=Target(
            "UsersV2",
            partition_key=keys.prop("PartitionKey"),
            row_key=keys.join("-", keys.literal("u"), keys.prop("RowKey")),
            properties=[props.copy("Timestamp", to="Changed"), props.copy("RowKey", to="OldRowKey")],
        ),
        capture="delta",
    )
    world = await filled(World(memory, stamped), users())
    world.service.clock.advance(5)  # type: ignore[attr-defined]
    for row in memory.dump("Users"):
        await world.source.replace(content_of(row))
    assert (await full(context(world, tmp_path))).differences.counts == {"altered": 41}
    after_cutover = context(world, tmp_path, authority_is_target=True)
    report = await full(after_cutover)
    assert not report.findings
    assert report.tables[0].not_compared == ("Changed",)
    row = content_of(memory.dump("UsersV2")[0])
    await world.targets[0].replace({**row, "Nm": "changed"})
    [found] = (await full(after_cutover)).differences.listed
    assert [each.name for each in found.properties] == ["Nm"]


async def test_a_comparison_that_brings_finds_all_that_differs_on_many_pages(
    memory: MemoryTableService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read by several readers, which divide what is left: equal sums prove what was brought."""
    divided: list[str] = []

    async def middle(table: Table, *of: Any, **how: Any) -> EntityKey | None:
        divided.append(table.name)
        return await find_middle(table, *of, **how)

    monkeypatch.setattr("rekey.tables.parallel.find_middle", middle)
    monkeypatch.setattr("rekey.verify.first_pass.LEAST_ROWS", 20)
    small_pages(monkeypatch, 10)
    world = await filled(World(memory, USERS), [user(f"u{number:04}@example.com") for number in range(600)])
    for number in range(0, 600, 100):
        source = EntityKey("eu", f"u{number:04}@example.com")
        [row] = rows_of(world, 0, source)
        match number // 100 % 3:
            case 0:
                await world.targets[0].delete(key_of(row))
            case 1:
                await world.targets[0].replace({**row, "Planted": 1})
            case 2:
                await world.source.delete(source)
    report = await full(context(world, tmp_path, propagate_first=True))
    assert divided
    assert report.differences.propagated == 6
    assert report.equal
    assert not report.findings
    world.assert_in_step()
    assert not (await full(context(world, tmp_path))).findings


async def test_a_row_that_changes_between_its_two_readings_is_looked_at(
    memory: MemoryTableService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not found again by what it held; nothing in the source points to it, whose row is gone."""
    world = await filled(World(memory, USERS), users())
    [row] = rows_of(world, 0, ANN)
    await world.source.delete(ANN)
    left_over = Trace.left_over

    def changing(self: Trace, differing: Any) -> Any:
        found = left_over(self, differing)
        memory.rows("UsersV2").put(key_of(row).order, {**row, "Age": 99}, memory.clock.ticks())
        return found

    monkeypatch.setattr(Trace, "left_over", changing)
    report = await full(context(world, tmp_path, propagate_first=True))
    assert report.differences.propagated == 1
    world.assert_in_step()
