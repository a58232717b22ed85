"""`rekey import`: rows come back as they were, rows that are there are the operator's to decide about, and a
kill costs nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rekey.model import EntityKey, Row
from tests.asserts.command_line import Commands
from tests.fakes.faults import Call, Fault, FaultKind
from tests.fakes.memory import Mood
from tests.worlds.backups import canonical, contents, every_value, filled, small_parts
from tests.worlds.odd_rows import generic
from tests.worlds.projects import Project


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def exported(project: Project, rekey: Commands, out: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    small_parts(monkeypatch, rows=32)
    filled(project, generic(300))
    rekey("export", "Users", str(out))
    return project


@pytest.mark.parametrize("mood", [Mood.AZURITE, Mood.STORAGE])
@pytest.mark.parametrize("options", [("--plain",), ()], ids=["plain", "sealed"])
def test_every_value_and_key_of_the_contract_survives(
    project: Project, rekey: Commands, out: Path, options: tuple[str, ...], mood: Mood
) -> None:
    project.tables.mood = mood
    filled(project, every_value())
    rekey("export", "Users", str(out), *options)
    rekey("import", str(out), "Back", *options)
    assert canonical(contents(project, "Back")) == canonical(contents(project, "Users"))
    # The digest is of types and values: another export of what came back has the same.
    first = rekey("export", "Users", f"{out}2", "--plain", "--json").json
    again = rekey("export", "Back", f"{out}3", "--plain", "--json").json
    assert again["rows"] == first["rows"] > 40


def test_present_rows_are_left_and_those_that_differ_are_counted(
    exported: Project, rekey: Commands, out: Path
) -> None:
    changed, gone = changed_and_gone(exported)
    said = rekey("import", str(out), "Users", "--json", code=1).json
    assert (said["inserted"], said["unchanged"], said["replaced"], said["differing"]) == (20, 270, 0, 10)
    assert "10 rows of Users differ from the export" in said["what"]
    rows = {(row["PartitionKey"], row["RowKey"]): row for row in contents(exported, "Users")}
    assert len(rows) == 301
    assert [rows[place(row)]["Number"] for row in changed] == [4711] * 10
    assert {place(row) for row in gone} <= rows.keys()


def test_replace_makes_the_rows_those_of_the_export_and_leaves_others(
    exported: Project, rekey: Commands, out: Path
) -> None:
    before = canonical(contents(exported, "Users"))
    changed_and_gone(exported)
    said = rekey("import", str(out), "Users", "--replace", "--json").json
    assert (said["inserted"], said["unchanged"], said["replaced"], said["differing"]) == (20, 270, 10, 0)
    after = contents(exported, "Users")
    assert canonical(row for row in after if row["RowKey"] != "another") == before
    assert len(after) == len(before) + 1


def test_only_empty_refuses_before_the_first_write(exported: Project, rekey: Commands, out: Path) -> None:
    changed_and_gone(exported)
    before = exported.rows("Users")
    assert "holds rows" in rekey("import", str(out), "Users", "--only-empty", code=3).err
    assert exported.rows("Users") == before
    asyncio.run(exported.tables.create_table("Empty"))
    assert rekey("import", str(out), "Empty", "--only-empty", "--json").json["inserted"] == 300


def place(row: Row) -> tuple[str, str]:
    return row["PartitionKey"], row["RowKey"]


def changed_and_gone(project: Project) -> tuple[list[Row], list[Row]]:
    """Change ten rows, delete twenty and add one."""
    rows = contents(project, "Users")
    changed, gone = rows[:10], rows[100:120]

    async def change() -> None:
        table = project.tables.table("Users")
        for row in changed:
            await table.upsert({**row, "Number": 4711})
        for row in gone:
            await table.delete(EntityKey(*place(row)))
        await table.insert({"PartitionKey": "p", "RowKey": "another"})

    asyncio.run(change())
    return changed, gone


@pytest.mark.parametrize("number", [1, 2, 25, 60])
@pytest.mark.parametrize("kind", [FaultKind.BUSY, FaultKind.LOST_ANSWER])
def test_an_import_that_was_cut_off_is_finished_by_the_same_command(
    exported: Project,
    rekey: Commands,
    out: Path,
    number: int,
    kind: FaultKind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Failing:
        writes = 0

        def decide(self, call: Call) -> Fault | None:
            self.writes += call.writes
            return Fault(kind) if self.writes >= number else None

    with monkeypatch.context() as patched:
        patched.setattr(exported.tables, "faults", Failing())
        rekey("import", str(out), "Back", code=4)
    said = rekey("import", str(out), "Back", "--json").json
    assert (said["inserted"] + said["unchanged"] == 300 and said["unchanged"] > 0) or number < 3
    assert canonical(contents(exported, "Back")) == canonical(contents(exported, "Users"))


def test_an_export_in_the_clear_is_imported_only_as_such(
    project: Project, rekey: Commands, out: Path
) -> None:
    filled(project, generic(3))
    rekey("export", "Users", str(out), "--plain")
    assert "nothing proves who wrote it" in rekey("import", str(out), "Back", code=3).err
    assert rekey("import", str(out), "Back", "--plain", "--json").json["inserted"] == 3


def test_another_account_gets_the_rows(project: Project, rekey: Commands, out: Path) -> None:
    project.move_elsewhere()
    filled(project, generic(50))
    rekey("export", "Users", str(out))
    rekey("import", str(out), "Users@targets")
    assert canonical(contents(project, "Users@targets")) == canonical(contents(project, "Users"))


def test_a_key_that_was_replaced_opens_as_the_previous_one(
    exported: Project, rekey: Commands, out: Path
) -> None:
    key = exported.folder / "sealing.key"
    key.rename(exported.folder / "old.key")
    key.write_text("another key, of at least 32 bytes\n", "utf-8")
    said = rekey("import", str(out), "Back", code=3)
    assert "was encrypted with the wrapping key local:" in said.err
    configuration = exported.folder / "rekey.toml"
    text = configuration.read_text("utf-8")
    configuration.write_text(f'{text}[sealing.previous]\nfile = "old.key"\n', "utf-8")
    assert rekey("import", str(out), "Back", "--json").json["inserted"] == 300


def test_without_the_wrapping_key_an_encrypted_export_stays_closed(
    exported: Project, rekey: Commands, out: Path
) -> None:
    configuration = exported.folder / "rekey.toml"
    text = configuration.read_text("utf-8").replace('[sealing]\nfile = "sealing.key"\n', "")
    configuration.write_text(text, "utf-8")
    assert "is encrypted, and no wrapping key is configured" in rekey("import", str(out), "Back", code=2).err


def test_what_is_no_export_is_refused(exported: Project, rekey: Commands, out: Path, tmp_path: Path) -> None:
    assert "holds no export" in rekey("import", str(tmp_path / "nowhere"), "Back", code=2).err
    (out / "manifest.json").rename(out / "journal.jsonl")
    assert "is not complete" in rekey("import", str(out), "Back", code=3).err
    assert "not a table name" in rekey("import", str(out), "no-table", code=2).err
