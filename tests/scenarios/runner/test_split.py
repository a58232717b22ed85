"""One table becomes several, a part of it each: what is read, and what is refused. The worked example's whole
life is in `test_example_lives.py`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rekey.errors import DeclarationError
from rekey.model import Row
from tests.asserts.command_line import Commands, CommandsOn
from tests.fakes.interference import noted
from tests.worlds.projects import Project

EXAMPLE = Path(__file__).parents[3] / "migrations" / "0009_logs_by_month.py"
MONTHS = [f"0009_logs_by_month-{month}" for month in ("202401", "202402", "202403")]


def line(day: str, number: int, service: str = "web", **more: object) -> Row:
    return {"PartitionKey": day, "RowKey": f"{number:05}", "Service": service, **more}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.script(EXAMPLE.read_text("utf-8"), EXAMPLE.name)
    days = ["2023-12-31", "2024-01-01", "2024-01-31", "2024-02-29", "2024-03-01", "2024-04-01", "all"]
    asyncio.run(project.fill("Logs", [line(day, number) for day in days for number in range(20)]))
    return project


@pytest.fixture
def rekey(project: Project, commands_on: CommandsOn) -> Commands:
    return commands_on(project)


def test_all_months_together_read_the_table_once(project: Project, rekey: Commands) -> None:
    rekey("apply", "--group", "logs", "--to", "backfill")
    read = noted(project.tables, lambda call: call.action == "page" and call.table == "Logs")
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
