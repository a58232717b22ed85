"""One table becomes several, a part of it each: the whole life of the worked example, whose months cut over
together, with writes on both sides and back and forth. Days of no month stay as they were, ETags included."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rekey.errors import DeclarationError
from rekey.model import EntityKey, Row, content_of, key_of
from tests.asserts.command_line import Commands, CommandsOn
from tests.fakes.faults import Call
from tests.worlds.evidence import with_key
from tests.worlds.projects import Project

EXAMPLE = Path(__file__).parents[3] / "migrations" / "0009_logs_by_month.py"
MONTHS = {f"0009_logs_by_month-{month}": month for month in ("202401", "202402", "202403")}


def line(day: str, number: int, service: str = "web", **more: object) -> Row:
    return {"PartitionKey": day, "RowKey": f"{number:05}", "Service": service, **more}


def stock() -> list[Row]:
    days = ["2023-12-31", "2024-01-01", "2024-01-31", "2024-02-29", "2024-03-01", "2024-04-01", "all"]
    return [line(day, number, ("web", "api")[number % 2]) for day in days for number in range(20)]


def month_of(row: Row) -> str:
    return str(row["PartitionKey"])[:7].replace("-", "")


def others(project: Project) -> list[Row]:
    """The rows of no month, with ETag and Timestamp."""
    return [row for row in project.rows("Logs") if month_of(row) not in MONTHS.values()]


def independently(row: Row) -> Row:
    content, day = content_of(row), row["PartitionKey"]
    return {**content, "PartitionKey": f"{row['Service']}_{day}", "Day": day}


def compare(project: Project) -> int:
    """Require that each month's table holds what the second implementation makes of it; return all rows."""
    count = 0
    for month in MONTHS.values():
        wanted = [independently(row) for row in project.rows("Logs") if month_of(row) == month]
        held = [content_of(row) for row in project.rows(f"Logs{month}")]
        assert sorted(held, key=key_of) == sorted(wanted, key=key_of)
        count += len(wanted)
    return count


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.script(EXAMPLE.read_text("utf-8"), EXAMPLE.name)
    asyncio.run(project.fill("Logs", stock()))
    return project


@pytest.fixture
def rekey(project: Project, commands_on: CommandsOn) -> Commands:
    return commands_on(project)


def test_months_live_their_life_together(project: Project, rekey: Commands) -> None:
    untouched, tables = others(project), project.tables.table

    def write(table: str, *rows: Row) -> None:
        for row in rows:
            asyncio.run(tables(table).upsert(row))

    rekey("plan", "--exact")
    rekey("apply", "--group", "logs")
    assert compare(project) == 80
    write("Logs", line("2024-01-15", 1), line("2024-02-29", 3, "api", Level=2))
    asyncio.run(tables("Logs").delete(EntityKey("2024-03-01", "00004")))
    rekey("apply", "--group", "logs")
    for script_id in MONTHS:
        rekey("verify", script_id, "--mode", "full")
    rekey("apply", "--group", "logs", "--to", "cutover", "--writers-stopped")
    assert compare(project) == 80
    write("Logs202402", independently(line("2024-02-10", 77)))
    asyncio.run(tables("Logs202401").delete(EntityKey("web_2024-01-01", "00002")))
    rekey("rollback", "--group", "logs", "--writers-stopped")
    assert compare(project) == 80
    assert "00077" in [row["RowKey"] for row in project.rows("Logs") if row["PartitionKey"] == "2024-02-10"]
    rekey("apply", "--group", "logs", "--to", "cutover", "--writers-stopped")
    rekey("apply", "--group", "logs", "--to", "complete", "--writers-stopped", "--yes", "logs")
    assert compare(project) == 80
    assert others(project) == untouched
    with_key(project.folder)
    for script_id, month in MONTHS.items():
        bundle = str(project.folder / month)
        rekey("evidence", "export", bundle, script_id)
        rekey("evidence", "verify", bundle)
        rekey("retire", script_id, "--table", "Logs", "--no-backup", "a test")
        assert month not in map(month_of, project.rows("Logs"))
    assert project.rows("Logs") == untouched
    assert sum(len(project.rows(f"Logs{month}")) for month in MONTHS.values()) == 80


def test_all_months_together_read_the_table_once(project: Project, rekey: Commands) -> None:
    read = list[str]()

    async def count(call: Call) -> None:
        if call.action == "page" and call.table == "Logs":
            read.append(str(call))

    rekey("apply", "--group", "logs", "--to", "backfill")
    project.tables.gate = count
    for script_id in MONTHS:
        rekey("verify", script_id, "--mode", "full")
    assert len(read) == len(MONTHS)


MANY = """from rekey import Migration, Target, for_each_part, keys, rows
migrations = for_each_part(PARTS, lambda name: Migration(
    source="Logs", WHERE target=Target(f"Logs{name}", partition_key=keys.keep(), row_key=keys.prop("RowKey")),
    capture="delta", group="logs",
))
"""
WHERE = "where=rows.partition_key(prefix=name),"


@pytest.mark.parametrize(
    ("parts", "where", "said"),
    [
        ('"202401"', WHERE, "it is not a list of names of parts"),
        ("[]", WHERE, "no part is named"),
        ('["2024-01"]', WHERE, "'2024-01' is no name of a part"),
        ('["a", "A"]', WHERE, "A is named twice"),
        ('["1"]', "", "the migration for 1 is of the whole table"),
        ('["1", "12"]', WHERE, "may migrate the same rows"),
    ],
    ids=["no list", "none", "no name", "twice", "no part", "overlap"],
)
def test_parts_that_cannot_be_told_apart_are_refused(
    tmp_path: Path, parts: str, where: str, said: str
) -> None:
    project = Project(tmp_path)
    text = MANY.replace("PARTS", parts).replace("WHERE", where)
    project.script(text, "0001_logs.py")
    with pytest.raises(DeclarationError) as told:
        _ = project.scripts
    assert said in str(told.value) and "Next:" in str(told.value)
