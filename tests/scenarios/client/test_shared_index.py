"""Index rows of two kinds in one index table: told apart by their keys wherever the table is read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rekey import Index, Migration, Target, keys, props
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from rekey.verify.count import count
from rekey.verify.full import full
from tests.asserts.command_line import CommandsOn
from tests.fakes.memory import MemoryTableService
from tests.worlds.dual_write import delete, insert, memory_world, merge, replace
from tests.worlds.evidence import exported, with_key
from tests.worlds.projects import Project
from tests.worlds.small import World
from tests.worlds.verification import context, filled, sampled

INDEX = "UsersIndex"


def look_up(kind: str, name: str, *, by_partition: bool = True) -> Index:
    """Return index rows by the words of a property, told apart by PartitionKey or RowKey."""
    words = keys.literal(kind) + keys.item()
    return Index(
        INDEX,
        each=keys.split(keys.prop(name, default=""), ","),
        partition_key=words if by_partition else keys.prop("PartitionKey"),
        row_key=keys.prop("RowKey") if by_partition else keys.join(":", words, "RowKey"),
    )


def users(*indexes: Index) -> Migration:
    """Return a migration of users with look-up rows by e-mail and by role."""
    return Migration(
        source="Users",
        target=Target(
            "UsersV2",
            partition_key=keys.keep(),
            row_key=keys.literal("u-") + keys.prop("RowKey"),
            properties=[props.copy("RowKey", to="Old")],
        ),
        indexes=indexes,
        capture="dual-write",
    )


BY_PARTITION = users(look_up("E_", "Mails"), look_up("R_", "Roles"))
BY_ROW = users(look_up("E_", "Mails", by_partition=False), look_up("R_", "Roles", by_partition=False))
KEYS = (
    'partition_key=keys.literal(kind) + keys.item(), row_key=keys.prop("RowKey")',
    'partition_key=keys.keep(), row_key=keys.join(":", keys.literal(kind) + keys.item(), "RowKey")',
)
SCRIPT = """\"\"\"Users under new keys, with look-up rows of two kinds.\"\"\"
from rekey import Index, Migration, Target, keys, props
__depends__ = set()
def look_up(kind, name):
    return Index("UsersIndex", each=keys.split(keys.prop(name, default=""), ","), KEYS)
migration = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.keep(),
        row_key=keys.literal("u-") + keys.prop("RowKey"),
        properties=[props.copy("RowKey", to="Old")],
    ),
    indexes=[look_up("E_", "Mails"), look_up("R_", "Roles")],
    capture="delta",
)
"""
both = pytest.mark.parametrize("migration", [BY_PARTITION, BY_ROW], ids=["by PartitionKey", "by RowKey"])


def person(name: str, mails: str, roles: str) -> Row:
    """Return a row of the source."""
    return {"PartitionKey": "eu", "RowKey": name, "Mails": mails, "Roles": roles}


PEOPLE = [person(f"p{n:02}", f"a{n}@x,b{n}@x", "admin" if n % 3 else "admin,owner") for n in range(20)]


@both
async def test_verification_tells_kinds_apart_and_reads_their_table_once(
    migration: Migration, memory: MemoryTableService, tmp_path: Path
) -> None:
    world = await filled(World(memory, migration), PEOPLE)
    world.assert_in_step()
    ctx = context(world, tmp_path)
    report = await full(ctx)
    assert not report.findings
    expected = [("UsersV2", 20), (f"{INDEX} E_", 40), (f"{INDEX} R_", 27)]
    assert [(one.label, one.actual_rows) for one in report.tables] == expected
    assert len(report.read) == 3, "source, target and index table"
    assert [(one.table, one.actual) for one in (await count(ctx)).tables] == expected
    drawn = await sampled(ctx, 10, seed=1)
    assert [(one.table, one.population) for one in drawn.directions] == [("Users", 20), *expected]


@both
async def test_every_difference_of_either_kind_is_found_and_repaired(
    migration: Migration, memory: MemoryTableService, tmp_path: Path
) -> None:
    world = await filled(World(memory, migration), PEOPLE)
    table = memory.table(INDEX)
    rows = {key_of(row): content_of(row) for row in memory.dump(INDEX)}

    def of(kind: str) -> list[EntityKey]:
        return [key for key in rows if kind in (key.partition[:2], key.row[:2])]

    await table.delete(of("E_")[0])
    await table.delete(of("R_")[0])
    await table.replace({**rows[of("R_")[1]], "MainRowKey": "u-nobody"})
    await table.insert({**rows[of("E_")[1]], "RowKey": f"{of('E_')[1].row}-stray", "MainRowKey": "u-nobody"})
    await table.insert({"PartitionKey": "X_", "RowKey": "X_", "A": 1})
    ctx = context(world, tmp_path)
    report = await full(ctx)
    by_label = {one.label: (one.expected_rows, one.actual_rows) for one in report.tables}
    assert by_label == {"UsersV2": (20, 20), f"{INDEX} E_": (40, 41), f"{INDEX} R_": (27, 26)}
    assert len(report.differences.listed) == 5
    await full(ctx, repair=True)
    world.assert_in_step()
    assert not (await full(ctx)).findings


@both
@pytest.mark.parametrize("kind", ["E_", "R_"])
@pytest.mark.parametrize("what", ["missing", "altered", "extra"])
async def test_a_difference_of_one_kind_alone_is_found_and_repaired(
    migration: Migration, memory: MemoryTableService, tmp_path: Path, kind: str, what: str
) -> None:
    """Nothing else leads to the index table."""
    world = await filled(World(memory, migration), PEOPLE)
    table = memory.table(INDEX)
    row = next(row for row in memory.dump(INDEX) if kind in (row["PartitionKey"][:2], row["RowKey"][:2]))
    if what == "missing":
        await table.delete(key_of(row))
    elif what == "altered":
        await table.merge({**content_of(row), "More": 1})
    else:
        await table.insert({**content_of(row), "RowKey": f"{row['RowKey']}-stray", "MainRowKey": "u-nobody"})
    ctx = context(world, tmp_path)
    report = await full(ctx, repair=True)
    assert report.differences.counts == {what: 1}
    assert [one.label for one in report.tables if one.differing_buckets] == [f"{INDEX} {kind}"]
    world.assert_in_step()
    assert not (await full(ctx)).findings


@both
@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_writes_in_both_views_keep_both_kinds_in_step(
    migration: Migration, phase: ControlPhase, memory: MemoryTableService
) -> None:
    world = await memory_world(migration, memory).prepare(PEOPLE[:3])
    world.permits.move(phase)
    old, new = world.writer(View.OLD), world.writer(View.NEW, "c2")
    await old.write([insert(person("new", "n@x", "owner"))])
    await old.write([replace(person("p01", "a1@x,c1@x", ""))])
    await new.write([merge({"PartitionKey": "eu", "RowKey": "u-p02", "Roles": "owner,guest"})])
    await old.write([delete(EntityKey("eu", "p00"))])
    await world.assert_quiet()
    kinds = sorted(key[0][:2] if migration is BY_PARTITION else key[1][:2] for key in world.rows(INDEX))
    assert kinds == ["E_"] * 5 + ["R_"] * 3


@both
def test_a_life_with_rollback_and_evidence(
    migration: Migration, tmp_path: Path, commands_on: CommandsOn
) -> None:
    project = Project(tmp_path)
    project.script(SCRIPT.replace("KEYS", KEYS[migration is BY_ROW]), "0001_users.py")
    with_key(project.folder)
    asyncio.run(project.fill("Users", PEOPLE))
    rekey = commands_on(project)
    [plan] = rekey("plan", "--exact", "--json").json["migrations"]
    assert [one["rows"] for one in plan["targets"]] == [20, 40, 27]
    for _ in range(2):
        rekey("apply", "--to", "cutover", "--writers-stopped")
        assert (len(project.rows("UsersV2")), len(project.rows(INDEX))) == (20, 67)
        rekey("rollback", "--writers-stopped")
        rekey("verify")
    bundle = str(exported(rekey, "0001_users"))
    said = rekey("evidence", "recompute", bundle, "--mapping", "--json").json
    assert [one["equal"] for one in said["digests"]] == [True] * 7
    rekey("rollback", "--to", "source", "--drop-targets", "--writers-stopped")
    assert project.rows("Users")
