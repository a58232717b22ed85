"""Rows that no kind takes and that the script drops: they count as nothing that is missing, nothing hides
behind them, and they are erased like all others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from rekey.model import Row, key_of
from rekey.phases import Phase
from rekey.protocol.rules import View
from rekey.runner.remaining import MANY
from rekey.state.store import State
from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.company import Company
from tests.worlds.dropping import ID, SCRIPT, STOCK, numbers
from tests.worlds.evidence import prove
from tests.worlds.kills import killed
from tests.worlds.projects import Project, project_of
from tests.worlds.small import ticket

WHY = ("--reason", "ticket 4711")
TO_CUTOVER = ("apply", "--to", "cutover", "--writers-stopped")
TO_COMPLETE = ("apply", "--to", "complete", "--writers-stopped", "--yes", ID)
DRAFT = ticket("2", "draft")


def begun(
    folder: Path, commands_on: CommandsOn, rows: Sequence[Row] = STOCK, script: str = SCRIPT
) -> Commands:
    return commands_on(project_of(folder, script, rows, name=f"{ID}.py"))


@pytest.fixture
def complete(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    rekey = begun(tmp_path, commands_on)
    rekey(*TO_CUTOVER)
    rekey(*TO_COMPLETE)
    rekey.project.clock.advance(60)
    return rekey


def write(project: Project, table: str, *rows: Row) -> None:
    for row in rows:
        asyncio.run(project.tables.table(table).upsert(row))


def delete(project: Project, table: str, row: Row) -> None:
    asyncio.run(project.tables.table(table).delete(key_of(row)))


def events(project: Project, name: str) -> list[dict[str, object]]:
    with State.open(project.config.state, read_only=True) as state:
        return [dict(one.details) for one in state.audit_events(ID, event=name)]


def proved(project: Project) -> None:
    with project.session() as session:
        prove(session.config, session.scripts[ID], session.state)


# --- status ------------------------------------------------------------------------------------------------


def test_status_says_how_many_rows_are_not_migrated_until_they_are_gone(complete: Commands) -> None:
    line = "not migrated 10 rows of Tickets that no kind takes: drafts that nobody filed"
    assert line in " ".join(complete("status").out.split())
    [status] = complete("status", "--json").json["migrations"]
    assert status["verification"]["not_migrated_rows"] == 10
    proved(complete.project)
    complete("retire", "--table", "Tickets", "--no-backup", "a test")
    assert "not migrated" not in complete("status").out


# --- retire ------------------------------------------------------------------------------------------------


def test_retire_needs_no_reason_for_rows_that_the_script_drops(complete: Commands) -> None:
    project = complete.project
    proved(project)
    said = complete("retire", "--table", "Tickets", "--no-backup", "a test")
    assert "10 rows of Tickets that no kind takes go with it" in said.err
    assert events(project, "retire-counted") == [
        {"source_rows": 30, "target_rows": 20, "rows_not_migrated": 10, "reason": ""}
    ]
    assert not asyncio.run(project.tables.table_exists("Tickets"))


def test_retire_asks_for_a_reason_where_a_migrated_row_is_missing(complete: Commands) -> None:
    project = complete.project
    proved(project)
    delete(project, "TicketsV2", {"PartitionKey": "eu", "RowKey": "open:0"})
    assert (
        "TicketsV2 holds 19 rows, Tickets 20"
        in complete("retire", "--table", "Tickets", "--no-backup", "a test", code=3).err
    )
    assert len(project.rows("Tickets")) == len(STOCK)


# --- rollback ----------------------------------------------------------------------------------------------


def test_a_rollback_counts_no_dropped_rows_among_those_that_it_would_delete(
    tmp_path: Path, commands_on: CommandsOn
) -> None:
    """They once had a kind, so that mapping rows name them, and the target holds fewer rows than they are."""
    filed = [ticket(str(number)) for number in range(MANY + 5)]
    rekey = begun(tmp_path, commands_on, filed)
    rekey("apply")
    drafts = [{**row, "Status": "draft"} for row in filed[:-2]]
    write(rekey.project, "Tickets", *drafts)
    rekey("apply")
    rekey(*TO_CUTOVER)
    rekey("rollback", "--writers-stopped")
    assert sorted(numbers(rekey.project).values()) == ["draft"] * (MANY + 3) + ["open"] * 2


def test_the_rows_of_a_table_may_all_lose_their_kind(tmp_path: Path, commands_on: CommandsOn) -> None:
    """The source is not empty, as a table that was deleted and created again is."""
    filed = [ticket(str(number)) for number in range(MANY + 1)]
    rekey = begun(tmp_path, commands_on, filed)
    rekey("apply")
    write(rekey.project, "Tickets", *[{**row, "Status": "draft"} for row in filed])
    rekey("apply")
    assert rekey.project.rows("TicketsV2") == rekey.project.rows("ByOwner") == []


def test_a_source_of_dropped_rows_alone_is_cut_over(tmp_path: Path, commands_on: CommandsOn) -> None:
    """The target is empty since nothing was to be migrated, not since it was lost."""
    rekey = begun(tmp_path, commands_on, [ticket(str(number), "draft") for number in range(MANY + 1)])
    rekey(*TO_CUTOVER)
    rekey("rollback", "--writers-stopped")
    assert len(numbers(rekey.project)) == MANY + 1


def test_a_repair_after_cutover_would_delete_no_dropped_row_and_asks_for_no_reason(tmp_path: Path) -> None:
    drafts = [ticket(str(number), "draft") for number in range(MANY + 1)]
    project = project_of(tmp_path, SCRIPT.replace('"delta"', '"dual-write"'), drafts, name=f"{ID}.py")
    with Company(project, ID) as company:
        company.client(View.NEW)
        company.apply(Phase.CUTOVER)
        assert not company.verify(repair=True).findings
    assert len(numbers(project)) == MANY + 1


def test_a_row_of_the_target_alone_is_not_hidden_by_a_dropped_row(
    tmp_path: Path, commands_on: CommandsOn
) -> None:
    """Its key's owner has a source row, which is no copy of it: dropping the target would lose the row."""
    rekey = begun(tmp_path, commands_on)
    rekey("apply")
    write(rekey.project, "Tickets", ticket("0", "draft"))
    rekey("apply")
    write(rekey.project, "TicketsV2", {**ticket("open:0"), "Number": "0"})
    said = rekey("rollback", "--to", "source", "--drop-targets", code=3)
    assert "1 row" in said.err
    assert "open:0" in {row["RowKey"] for row in rekey.project.rows("TicketsV2")}


# --- erasure -----------------------------------------------------------------------------------------------


def safe_id(rekey: Commands) -> str:
    """Return the id of DRAFT, as a plan names it."""
    return asyncio.run(rekey.project.mapping(ID)).rows.ids.short("Tickets", key_of(DRAFT))


@pytest.mark.parametrize("way", ["--old", "--id"])
def test_a_dropped_row_that_was_never_mapped_is_erased(complete: Commands, way: str) -> None:
    project = complete.project
    named = tuple(key_of(DRAFT)) if way == "--old" else (safe_id(complete),)
    erased = complete("erase", way, *named, *WHY, "--json").json
    assert (erased["source_rows"], erased["unknown"], erased["forward_rows"]) == (1, 0, 0)
    assert set(numbers(project)) == {row["RowKey"] for row in STOCK} - {"2"}
    assert complete("erase", way, *named, *WHY, "--json", code=1).json["unknown"] == 1


def test_the_erasure_of_a_dropped_row_that_was_cut_off_is_finished_by_the_next_one(
    complete: Commands,
) -> None:
    project = complete.project
    with killed(project, when=lambda call: (call.action, call.table) == ("delete", "Tickets")):
        complete("erase", "--old", *key_of(DRAFT), *WHY)
    assert "2" in numbers(project)
    complete("erase", "--old", *key_of(STOCK[0]), *WHY)
    assert numbers(project).keys() & {"0", "2"} == set()
    assert [len(event["rows"]) for event in events(project, "erasure-ended")] == [1, 1]  # type: ignore[arg-type]


def test_a_dropped_row_is_erased_by_its_id_after_the_mapping_was_emptied(complete: Commands) -> None:
    """What the mapping has forgotten says nothing about a row that it never knew."""
    project = complete.project
    project.clock.advance(400 * 86_400)
    complete("expire", "--confirm", ID)
    erased = complete("erase", "--id", safe_id(complete), *WHY, "--json").json
    assert (erased["source_rows"], erased["erased_before"]) == (1, [])
    assert "2" not in numbers(project)


def test_an_unknown_key_is_still_unknown(complete: Commands) -> None:
    assert complete("erase", "--old", "eu", "nobody", *WHY, "--json", code=1).json["unknown"] == 1
