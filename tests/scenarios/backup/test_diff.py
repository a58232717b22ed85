"""`rekey diff`: what differs is found, by kind, on tables of either account and on exports."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rekey.model import EntityKey
from tests.asserts.command_line import Commands
from tests.fakes.memory import Mood
from tests.worlds.backups import contents, every_value, filled, manifest_of, parts_of, small_parts
from tests.worlds.odd_rows import generic
from tests.worlds.projects import Project

ROWS = 200


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def world(project: Project, rekey: Commands, out: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A table, its export, and what was imported from that in another account."""
    small_parts(monkeypatch, rows=16)
    project.move_elsewhere()
    filled(project, generic(ROWS))
    rekey("export", "Users", str(out))
    rekey("import", str(out), "Users@targets")
    rekey("import", str(out), "Copied")
    return project


def spoil(project: Project, table: str = "Copied") -> None:
    """Change a row's value, another one's type, delete one, add one, and put one under another key."""

    async def change() -> None:
        rows, copied = contents(project, table), project.tables.table(table)
        await copied.upsert({**rows[0], "Number": 4711})
        await copied.upsert({**rows[1], "Long": 5, "Long@odata.type": "Edm.Int32"})
        await copied.delete(EntityKey(rows[2]["PartitionKey"], rows[2]["RowKey"]))
        await copied.insert({"PartitionKey": "p", "RowKey": "secret-row", "Number": 1})
        await copied.delete(EntityKey(rows[3]["PartitionKey"], rows[3]["RowKey"]))
        await copied.insert({**rows[3], "RowKey": "stray-row"})

    asyncio.run(change())


@pytest.mark.parametrize(
    "sides", [("Users", "Copied"), ("Users", "Users@targets"), ("OUT", "Copied"), ("Copied", "OUT")]
)
def test_equal_sides_are_clean_and_give_one_digest(
    world: Project, rekey: Commands, out: Path, sides: tuple[str, str]
) -> None:
    words = [str(out) if side == "OUT" else side for side in sides]
    said = rekey("diff", *words, "--json").json
    [table] = said["tables"]
    assert (table["expected_rows"], table["actual_rows"], said["by_kind"]) == (ROWS, ROWS, {})
    assert table["expected_digest"] == table["actual_digest"]
    assert "Every row and every property of 1 table is as the source says." in rekey("diff", *words).out


@pytest.mark.parametrize("first", ["Users", "OUT", "Users@targets"])
def test_what_differs_is_told_by_kind_and_without_keys(
    world: Project, rekey: Commands, out: Path, first: str
) -> None:
    spoil(world)
    first = str(out) if first == "OUT" else first
    said = rekey("diff", first, "Copied", "--json", code=1)
    assert said.json["by_kind"] == {"altered": 2, "extra": 1, "missing": 1, "wrong-key": 1}
    text = rekey("diff", first, "Copied", code=1)
    assert "Number (value)" in text.out and "Long (type)" in text.out
    assert "secret-row" not in said.all + text.all and "stray-row" not in said.all + text.all


def test_an_export_shows_what_has_changed_since(world: Project, rekey: Commands, out: Path) -> None:
    spoil(world, "Users")
    said = rekey("diff", "Users", str(out), code=1)
    assert f"Export is the export in {out}" in said.out
    assert "differences: 5" in said.out


def test_keys_are_shown_when_that_is_asked_for(world: Project, rekey: Commands) -> None:
    spoil(world)
    said = rekey("diff", "Users", "Copied", "--show-keys", code=1)
    assert "KEYS ARE SHOWN" in said.out and "'secret-row'" in said.out
    document = rekey("diff", "Users", "Copied", "--show-keys", "--json", code=1).json
    assert {"table": "Copied", "partition_key": "p", "row_key": "secret-row"}.items() <= {
        name: value
        for row in document["keys"]
        if row["row_key"] == "secret-row"
        for name, value in row.items()
    }.items()
    clean = rekey("diff", "Users", "Users@targets", "--show-keys")
    assert "KEYS ARE SHOWN" not in clean.out


def test_nothing_is_written(world: Project, rekey: Commands, out: Path) -> None:
    spoil(world)
    before = world.rows("Users"), world.rows("Copied"), parts_of(out), manifest_of(out)
    rekey("diff", "Users", "Copied", code=1)
    rekey("diff", str(out), "Copied", code=1)
    assert (world.rows("Users"), world.rows("Copied"), parts_of(out), manifest_of(out)) == before
    assert not (world.folder / "state.sqlite").exists()


@pytest.mark.parametrize("mood", [Mood.AZURITE, Mood.STORAGE])
def test_every_value_and_key_of_the_contract_survives_export_import_and_diff(
    project: Project, rekey: Commands, out: Path, mood: Mood
) -> None:
    project.tables.mood = mood
    filled(project, every_value())
    rekey("export", "Users", str(out))
    rekey("import", str(out), "Back")
    rekey("diff", "Users", "Back")
    rekey("diff", str(out), "Back")
    rekey("diff", str(out), "Users")


def test_rows_of_many_parts_are_found_by_key(world: Project, rekey: Commands, out: Path) -> None:
    """All rows of an empty table are missing: each is looked up in its part."""
    asyncio.run(world.tables.create_table("Empty"))
    assert rekey("diff", str(out), "Empty", "--json", code=1).json["by_kind"] == {"missing": ROWS}
    assert rekey("diff", "Empty", str(out), "--json", code=1).json["by_kind"] == {"extra": ROWS}


def test_two_exports_are_compared_as_well(world: Project, rekey: Commands, out: Path) -> None:
    spoil(world)
    rekey("export", "Copied", f"{out}2")
    assert rekey("diff", str(out), f"{out}2", "--json", code=1).json["by_kind"]["altered"] == 2
    said = rekey("diff", str(out), str(out))
    assert "Export2 is the export in" in said.out


def test_what_cannot_be_compared_is_usage(
    world: Project, rekey: Commands, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "are one table" in rekey("diff", "Users", "users", code=2).err
    assert "neither the name of a table nor" in rekey("diff", "Users", str(out / "nowhere"), code=2).err
    assert "write Users" in rekey("diff", "User", "Copied", code=2).err
    monkeypatch.chdir(out.parent)
    assert "write ./out for the export" in rekey("diff", "out", "Copied", code=2).err
    (out / "manifest.json").unlink()
    assert "holds no export" in rekey("diff", str(out), "Copied", code=2).err


def test_a_part_that_was_changed_ends_the_comparison(world: Project, rekey: Commands, out: Path) -> None:
    name = manifest_of(out)["parts"][1]["file"]
    (out / name).write_bytes(b"changed")
    assert f"{name}, part 2 of" in rekey("diff", str(out), "Copied", code=3).err
