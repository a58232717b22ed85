"""What an export from before an erasure still holds of somebody is not written back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rekey.mapping.rows import MAPPING_TABLE
from rekey.state.store import State
from tests.asserts.command_line import Commands, CommandsOn
from tests.scenarios.runner.test_chain import SECOND, go_on, next_of
from tests.worlds.backups import contents
from tests.worlds.dropping import SCRIPT as TICKETS
from tests.worlds.dropping import STOCK
from tests.worlds.erasure import (
    PLAIN_USERS,
    QUICK_SCRIPTS,
    SCRIPT,
    WHY,
    Lives,
    by_old,
    subject,
    tombstones,
)
from tests.worlds.evidence import prove
from tests.worlds.kills import killed
from tests.worlds.projects import INVERTED_SCRIPT, POSTS_SCRIPT, USERS_SCRIPT, project_of

MEMBERS = """\
from rekey import Migration, Target, keys, props

migration = Migration(
    source="Members",
    target=Target(
        "Users", partition_key=keys.keep(), row_key=keys.keep(), properties=[props.drop("Ssn")]
    ),
    capture="delta", reverse=False,
    waive={"personal-data": "made-up addresses"},
)
"""


def backup(rekey: Commands, table: str) -> str:
    folder = rekey.project.folder / f"{table}.export"
    rekey("export", table, str(folder))
    return str(folder)


def source_of(rekey: Commands) -> str:
    return rekey.project.scripts[SCRIPT].migration.source


@pytest.mark.parametrize("script", [*QUICK_SCRIPTS, INVERTED_SCRIPT], ids=["sealed", "plain", "none"])
@pytest.mark.parametrize("table", ["", "Back"], ids=["its own table", "another table"])
def test_an_import_leaves_out_the_source_row_of_an_erased_subject(
    lives: Lives, script: str, table: str
) -> None:
    rekey = lives.completed(script)
    source = source_of(rekey)
    folder = backup(rekey, source)
    rekey("erase", *by_old(subject(rekey)), "--with-targets", *WHY)
    left = contents(rekey.project, source)
    said = rekey("import", folder, table or source, "--json").json
    assert (said["erased"], said["differing"]) == (1, 0)
    assert contents(rekey.project, table or source) == left
    assert "erased      1, not written" in rekey("import", folder, table or source).out


@pytest.mark.parametrize(
    "script", [POSTS_SCRIPT, USERS_SCRIPT, INVERTED_SCRIPT], ids=["with an index", "without", "none"]
)
def test_an_import_leaves_out_the_target_rows_of_an_erased_subject(lives: Lives, script: str) -> None:
    rekey = lives.completed(script)
    tables = rekey.project.scripts[SCRIPT].migration.tables
    folders = {table: backup(rekey, table) for table in tables}
    before = {table: contents(rekey.project, table) for table in tables}
    rekey("erase", *by_old(subject(rekey)), "--with-targets", *WHY)
    for table, folder in folders.items():
        left = contents(rekey.project, table)
        gone = len(before[table]) - len(left)
        assert rekey("import", folder, table, "--json").json["erased"] == gone > 0
        assert contents(rekey.project, table) == left


def test_an_import_knows_of_erasures_by_the_mapping_alone(lives: Lives) -> None:
    rekey = lives.completed(USERS_SCRIPT)
    folder = backup(rekey, "Users")
    rekey("erase", *by_old(subject(rekey)), *WHY)
    rekey.project.config.state.unlink()
    assert rekey("import", folder, "Users", "--json").json["erased"] == 1


def test_without_the_wrapping_key_nothing_is_imported_after_an_erasure(lives: Lives) -> None:
    """Nobody can tell which of the rows are erased."""
    rekey = lives.completed(USERS_SCRIPT)
    folder = str(rekey.project.folder / "plain")
    rekey("export", "Users", folder, "--plain")
    config = rekey.project.folder / "rekey.toml"
    config.write_text(config.read_text("utf-8").replace('[sealing]\nfile = "sealing.key"\n', ""), "utf-8")
    rekey("import", folder, "Back", "--plain")
    config.write_text(f'{config.read_text("utf-8")}[sealing]\nfile = "sealing.key"\n', "utf-8")
    rekey("erase", *by_old(subject(rekey)), *WHY)
    config.write_text(config.read_text("utf-8").replace('[sealing]\nfile = "sealing.key"\n', ""), "utf-8")
    assert "no wrapping key is configured" in rekey("import", folder, "Back2", "--plain", code=2).err
    assert not asyncio.run(rekey.project.tables.table_exists("Back2"))


def test_a_tombstone_that_rekey_did_not_write_keeps_no_row_out(lives: Lives) -> None:
    rekey = lives.completed(USERS_SCRIPT)
    folder = backup(rekey, "Users")
    rekey("erase", *by_old(subject(rekey)), *WHY)
    mapping = rekey.project.restricted.table(MAPPING_TABLE)
    [(key, stone)] = tombstones(rekey.project, "f").items()
    other = key.row[:-1] + ("1" if key.row.endswith("0") else "0")
    asyncio.run(mapping.upsert({**stone, "PartitionKey": key.partition, "RowKey": other}))
    assert "that is not by rekey" in rekey("import", folder, "Users", code=1).err


@pytest.mark.parametrize("script", [USERS_SCRIPT, PLAIN_USERS], ids=["sealed", "plain"])
def test_a_restored_source_lacks_who_was_erased_since_and_the_audit_log_says_how_many(
    lives: Lives, script: str
) -> None:
    rekey = lives.completed(script)
    folder = backup(rekey, "Users")
    retire(rekey, folder)
    rekey("erase", *by_old(subject(rekey)), *WHY)
    said = rekey("restore", folder, "--json").json
    assert (said["inserted"], said["erased"]) == (11, 1)
    assert subject(rekey)["RowKey"] not in json.dumps(contents(rekey.project, "Users"))
    with State.open(rekey.project.config.state, read_only=True) as state:
        [event] = state.audit_events(event="source-restored")
    assert (event.details["inserted"], event.details["erased"]) == (11, 1)


def test_a_row_that_no_kind_takes_stays_erased(tmp_path: Path, commands_on: CommandsOn) -> None:
    """The mapping knows nothing of it: the audit log does."""
    rekey = commands_on(project_of(tmp_path / "project", TICKETS, STOCK, name="0001_tickets.py"))
    draft = next(row for row in STOCK if row["Status"] == "draft")
    folder = backup(rekey, "Tickets")
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", "0001_tickets")
    rekey.project.clock.advance(60)
    rekey("erase", *by_old(draft), *WHY)
    left = contents(rekey.project, "Tickets")
    assert len(left) == len(STOCK) - 1
    assert rekey("import", folder, "Tickets", "--json").json["erased"] == 1
    assert contents(rekey.project, "Tickets") == left


def restored(rekey: Commands) -> str:
    """Retire the source, and restore it; return the folder of the backup."""
    folder = backup(rekey, "Users")
    retire(rekey, folder)
    rekey("restore", folder)
    rekey.project.clock.advance(60)
    return folder


@pytest.mark.parametrize(
    "script", [USERS_SCRIPT, PLAIN_USERS, INVERTED_SCRIPT], ids=["sealed", "plain", "none"]
)
def test_a_row_of_a_restored_source_is_erased(lives: Lives, script: str) -> None:
    rekey = lives.completed(script)
    restored(rekey)
    said = rekey("erase", *by_old(subject(rekey)), "--with-targets", *WHY, "--json").json
    assert (said["source_rows"], said["source_rows_gone"]) == (1, 0)
    left = contents(rekey.project, "Users")
    assert len(left) == 11 and subject(rekey)["RowKey"] not in json.dumps(left)


def test_a_row_of_no_kind_of_a_restored_source_is_erased(tmp_path: Path, commands_on: CommandsOn) -> None:
    rekey = commands_on(project_of(tmp_path / "project", TICKETS, STOCK, name="0001_tickets.py"))
    draft = next(row for row in STOCK if row["Status"] == "draft")
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", "0001_tickets")
    rekey.project.clock.advance(60)
    folder = backup(rekey, "Tickets")
    retire(rekey, folder, "Tickets")
    rekey("restore", folder)
    rekey("erase", *by_old(draft), *WHY)
    assert draft["RowKey"] not in {row["RowKey"] for row in contents(rekey.project, "Tickets")}


def test_a_restored_row_that_somebody_wrote_since_is_left_and_reported(lives: Lives) -> None:
    rekey = lives.completed(PLAIN_USERS)
    restored(rekey)
    asyncio.run(rekey.project.tables.table("Users").upsert({**subject(rekey), "Nm": "in use again"}))
    said = rekey("erase", *by_old(subject(rekey)), *WHY, code=1)
    assert "source rows were written although the source was to be quiet" in said.err
    assert "in use again" in json.dumps(contents(rekey.project, "Users")) and not tombstones(rekey.project)


def test_a_row_of_a_restoration_that_was_cut_off_is_not_taken_for_gone(lives: Lives) -> None:
    """When its last row was written is not known."""
    rekey = lives.completed(PLAIN_USERS)
    folder = backup(rekey, "Users")
    retire(rekey, folder)
    with killed(rekey.project, at=2, when=lambda call: call.writes and call.table == "Users"):
        rekey("restore", folder)
    assert subject(rekey)["RowKey"] in json.dumps(contents(rekey.project, "Users"))
    rekey("erase", *by_old(subject(rekey)), *WHY, code=1)
    assert not tombstones(rekey.project)
    rekey("restore", folder)
    rekey.project.clock.advance(60)
    rekey("erase", *by_old(subject(rekey)), *WHY)
    assert subject(rekey)["RowKey"] not in json.dumps(contents(rekey.project, "Users"))


def test_a_table_that_another_migration_fills_since_it_was_restored_is_not_touched(lives: Lives) -> None:
    rekey = lives.completed(PLAIN_USERS)
    restored(rekey)
    project = rekey.project
    asyncio.run(project.tables.delete_table("Users"))
    project.clock.advance(60)
    asyncio.run(project.fill("Members", [subject(rekey)]))
    project.script(MEMBERS, "0002_members.py")
    rekey("apply", "0002", "--to", "complete", "--writers-stopped", "--yes", "0002_members")
    project.clock.advance(60)
    rekey("erase", SCRIPT, *by_old(subject(rekey)), *WHY)
    assert len(contents(project, "Users")) == 1


def test_a_restored_source_lacks_who_was_erased_from_the_migration_that_filled_it(lives: Lives) -> None:
    rekey = lives.completed(PLAIN_USERS)
    go_on(rekey, SECOND, next_of(2))
    rekey.project.clock.advance(60)
    folder = backup(rekey, "UsersV2")
    rekey("erase", SCRIPT, *by_old(subject(rekey)), "--with-targets", *WHY)
    left = contents(rekey.project, "UsersV2")
    retire(rekey, folder, "UsersV2", SECOND)
    said = rekey("restore", folder, SECOND, "--json").json
    assert (said["inserted"], said["erased"]) == (11, 1)
    assert contents(rekey.project, "UsersV2") == left


def retire(rekey: Commands, folder: str, source: str = "Users", script_id: str = "") -> None:
    with rekey.project.session() as session:
        declared = session.scripts[script_id or next(iter(session.scripts))]
        prove(session.config, declared, session.state)
    rekey.project.clock.advance(60)
    rekey("retire", declared.script_id, "--table", source, "--backup", folder)
    rekey.project.clock.advance(60)
