"""`rekey retire` asks for a backup that holds every row it deletes; `rekey restore` brings them back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rekey.client.reading import LeaseSettings
from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import EntityKey, key_of
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow, ControlStore
from rekey.state.store import State
from tests.asserts.command_line import Commands, CommandsOn
from tests.scenarios.runner.test_part_life import PART, TENANT, beside, invoice, part_of
from tests.worlds.backups import contents, parts_of
from tests.worlds.evidence import exported, prove, with_key
from tests.worlds.projects import USERS_SCRIPT, Project, lived, project_of
from tests.worlds.small import user

RETIRE = ("retire", "0001", "--table", "Users")
ROWS = 130


@pytest.fixture
def complete(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    """A migration that is complete, and whose evidence was verified."""

    def live(project: Project) -> None:
        project.script(USERS_SCRIPT)
        asyncio.run(project.fill("Users", [user(f"user{number}@example.com") for number in range(ROWS)]))
        rekey = commands_on(project)
        rekey("apply", "--to", "complete", "--writers-stopped", "--yes", "0001_users")
        prove_all(project)

    rekey = commands_on(lived(__name__, tmp_path, live))
    rekey.project.clock.advance(60)
    return rekey


def prove_all(project: Project) -> None:
    with project.session() as session:
        [declared] = session.scripts.values()
        prove(session.config, declared, session.state)


def backup(rekey: Commands, table: str = "Users", *words: str, name: str = "backup") -> str:
    folder = rekey.project.folder / name
    rekey("export", table, str(folder), *words)
    return str(folder)


def control(project: Project) -> ControlRow:
    row = asyncio.run(ControlStore(project.restricted, "0001_invoices").read())
    assert row is not None
    return row


def events(rekey: Commands, name: str) -> list[dict[str, Any]]:
    with State.open(rekey.project.config.state, read_only=True) as state:
        return [dict(event.details) for event in state.audit_events(event=name)]


def manifest_id(folder: str) -> str:
    document: dict[str, str] = json.loads((Path(folder) / "manifest.json").read_text("utf-8"))
    return document["export"]


# --- the gate ----------------------------------------------------------------------------------------------


def test_without_a_backup_it_is_refused_and_the_commands_that_are_told_retire(
    complete: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(complete.project.folder)
    said = " ".join(complete(*RETIRE, code=3).err.split())
    assert "`rekey export Users backup-0001_users`, then add --backup backup-0001_users" in said
    assert len(complete.project.rows("Users")) == ROWS
    told = complete("status", "--json").json["migrations"][0]["next"]["command"]
    assert told == "rekey retire 0001_users --table Users --backup backup-0001_users"
    words = told.split()[1:]
    assert "`rekey export Users backup-0001_users`" in " ".join(complete(*words, code=3).err.split())
    complete("export", "Users", "backup-0001_users")
    assert "Users is deleted" in complete(*words).out
    assert not asyncio.run(complete.project.tables.table_exists("Users"))


@pytest.mark.parametrize("plainly", [(), ("--plain",)], ids=["sealed", "plain"])
def test_evidence_names_the_backup(complete: Commands, plainly: tuple[str, ...]) -> None:
    folder = backup(complete, "Users", *plainly)
    complete(*RETIRE, "--backup", folder)
    [event] = events(complete, "retire-backup")
    manifest = json.loads((Path(folder) / "manifest.json").read_text("utf-8"))
    assert (event["rows_compared"], event["rows_lacking"]) == (ROWS, 0)
    assert event["backup"]["export"] == manifest["export"]
    assert event["backup"]["encrypted"] is not bool(plainly)
    assert len(event["backup"]["digest"]) == len(event["backup"]["manifest_sha256"]) == 64
    with_key(complete.project.folder)
    bundle = exported(complete)
    assert event["backup"]["digest"] in (bundle / "data/audit/events.jsonl").read_text("utf-8")
    assert event["backup"]["digest"] in (bundle / "data/report.html").read_text("utf-8")


def test_evidence_names_the_reason_for_no_backup(complete: Commands) -> None:
    complete(*RETIRE, "--no-backup", "ticket 4711")
    with_key(complete.project.folder)
    assert "none: ticket 4711" in (exported(complete) / "data/report.html").read_text("utf-8")


def test_the_reason_for_no_backup_is_recorded(complete: Commands) -> None:
    complete(*RETIRE, "--no-backup", "copied by the storage team, ticket 4711")
    assert events(complete, "retire-backup") == [
        {"backup": None, "reason": "copied by the storage team, ticket 4711"}
    ]
    assert not asyncio.run(complete.project.tables.table_exists("Users"))


@pytest.mark.parametrize("text", ["", "  ", "for somebody@mail.example"])
def test_a_reason_that_is_none_or_names_somebody_is_refused(complete: Commands, text: str) -> None:
    complete(*RETIRE, "--no-backup", text, code=2)
    assert len(complete.project.rows("Users")) == ROWS


def test_a_backup_that_lacks_a_row_or_holds_another_content_is_refused(complete: Commands) -> None:
    """The rows are named by ids that `rekey lookup` knows, never by keys."""
    users = complete.project.tables.table("Users")
    asyncio.run(users.delete(EntityKey("eu", "user3@example.com")))
    folder = backup(complete)
    asyncio.run(users.insert(user("user3@example.com")))
    said = complete(*RETIRE, "--backup", folder, code=3).err
    assert "1 row of Users are not in the export" in " ".join(said.split())
    assert "example" not in said
    assert events(complete, "retire-backup")[-1]["rows_lacking"] == 1
    assert len(complete.project.rows("Users")) == ROWS


def test_an_export_of_another_table_is_refused(complete: Commands) -> None:
    folder = backup(complete, "UsersV2")
    said = complete(*RETIRE, "--backup", folder, code=3).err
    assert f"{ROWS} rows of Users are not in the export" in " ".join(said.split())
    assert len(complete.project.rows("Users")) == ROWS


def test_a_backup_with_a_changed_part_is_refused(complete: Commands) -> None:
    folder = backup(complete)
    part = Path(folder) / next(iter(parts_of(Path(folder))))
    part.write_bytes(part.read_bytes()[:-1])
    assert part.name in complete(*RETIRE, "--backup", folder, code=3).err
    assert len(complete.project.rows("Users")) == ROWS


def test_an_export_that_is_not_complete_is_refused(complete: Commands) -> None:
    folder = Path(backup(complete))
    (folder / "manifest.json").rename(folder / "journal.jsonl")
    assert "is not complete" in complete(*RETIRE, "--backup", str(folder), code=3).err
    assert len(complete.project.rows("Users")) == ROWS


def retired(rekey: Commands, folder: str) -> None:
    """Retire the source, and let the deletion of its table end."""
    rekey(*RETIRE, "--backup", folder)
    rekey.project.clock.advance(60)


# --- back from it ------------------------------------------------------------------------------------------


def test_a_retired_source_is_restored_from_its_backup(complete: Commands) -> None:
    before = contents(complete.project, "Users")
    folder = backup(complete)
    retired(complete, folder)
    said = complete("restore", folder)
    assert f"Users is back, from {folder}" in said.out
    assert contents(complete.project, "Users") == before
    [event] = events(complete, "source-restored")
    assert (event["inserted"], event["differing"]) == (ROWS, 0)
    assert complete("status", "--json").json["migrations"][0]["control"]["phase"] == "retired"


def test_a_restoration_that_was_cut_off_is_continued(complete: Commands) -> None:
    folder = backup(complete)
    before = contents(complete.project, "Users")
    retired(complete, folder)
    with State.open(complete.project.config.state) as state:
        state.set_fact("0001_users", "restoring", manifest_id(folder))
    asyncio.run(complete.project.fill("Users", before[:40]))
    done = complete("restore", folder, "--json").json
    assert (done["inserted"], done["unchanged"]) == (ROWS - 40, 40)
    assert contents(complete.project, "Users") == before


def test_a_restoration_that_is_done_says_so_when_it_is_repeated(complete: Commands) -> None:
    folder = backup(complete)
    retired(complete, folder)
    complete("restore", folder)
    said = complete("restore", folder, code=3).err
    assert "Users holds rows already: 0001_users was restored from this backup" in said
    assert "Next: there is nothing left to do" in said


def test_rows_that_somebody_wrote_since_keep_it_from_being_restored(complete: Commands) -> None:
    folder = backup(complete)
    retired(complete, folder)
    asyncio.run(complete.project.fill("Users", [user("later@example.com")]))
    assert "Users holds rows already" in complete("restore", folder, code=3).err
    assert len(complete.project.rows("Users")) == 1


def test_only_a_retired_source_is_restored_and_only_from_its_backup(complete: Commands) -> None:
    folder, other = backup(complete), backup(complete, name="other")
    assert "its source was not deleted" in complete("restore", folder, "0001", code=3).err
    retired(complete, folder)
    assert "is not the backup" in complete("restore", other, code=3).err
    assert not asyncio.run(complete.project.tables.table_exists("Users"))


# --- of a part of a table ----------------------------------------------------------------------------------


def test_of_a_part_the_rows_of_the_part_are_compared_and_restored(
    tmp_path: Path, commands_on: CommandsOn
) -> None:
    """The export is of the whole table; what was done to other rows since does not matter, and stays done."""
    rows = [invoice(number, tenant) for tenant in (TENANT, "other") for number in range(30)]
    rekey = commands_on(project_of(tmp_path, PART, rows, name="0001_invoices.py"))
    project = rekey.project
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", "0001_invoices")
    prove_all(project)
    before, folder = part_of(contents(project, "Invoices")), backup(rekey, "Invoices")
    for row in beside(project)[:5]:
        asyncio.run(project.tables.table("Invoices").delete(key_of(row)))
    untouched = beside(project)
    rekey("retire", "--table", "Invoices", "--backup", folder)
    assert project.rows("Invoices") == untouched
    assert not control(project).restored
    rekey("restore", folder)
    assert part_of(contents(project, "Invoices")) == before
    assert beside(project) == untouched
    # Clients are told before the first row is written, and once.
    restored = control(project)
    assert (restored.phase, restored.restored) == (ControlPhase.RETIRED, True)
    rekey("restore", folder, code=3)
    assert control(project) == restored
    # A client that follows the part as a guard is in no registry, and trusts what it read until then.
    [told_at] = [row["Timestamp"] for row in project.restricted.dump(CONTROL_TABLE) if "Restored" in row]
    first = min(row["Timestamp"] for row in part_of(project.rows("Invoices")))
    assert ticks_of(first) - ticks_of(told_at) > LeaseSettings().lease_s * TICKS_PER_SECOND


def test_a_part_that_was_half_deleted_is_retired_with_the_same_backup(
    tmp_path: Path, commands_on: CommandsOn
) -> None:
    rows = [invoice(number, TENANT) for number in range(30)]
    rekey = commands_on(project_of(tmp_path, PART, rows, name="0001_invoices.py"))
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", "0001_invoices")
    prove_all(rekey.project)
    folder = backup(rekey, "Invoices")
    late = invoice(2, TENANT, Late=True)
    asyncio.run(rekey.project.tables.table("Invoices").replace(late))
    again = ("retire", "--table", "Invoices", "--backup")
    assert "with other content" in rekey(*again, folder, code=3).err
    newer = backup(rekey, "Invoices", name="newer")
    rekey(*again, newer, code=1)
    assert len(rekey.project.rows("Invoices")) == 1
    asyncio.run(
        rekey.project.tables.table("Invoices").delete(EntityKey(late["PartitionKey"], late["RowKey"]))
    )
    rekey(*again, newer)
