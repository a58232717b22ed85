"""Kinds of rows that an inspection sees, and the script that `rekey new --from-inspect` writes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from rekey.inspect.inspect import inspect_table
from rekey.inspect.kinds import LEAST_ROWS, MOST_KINDS
from rekey.inspect.render import inspection_text
from rekey.model import PARTITION_KEY, ROW_KEY, Row
from tests.asserts.command_line import Commands, CommandsOn
from tests.fakes.memory import MemoryTableService
from tests.worlds.example_rows import posts, telemetry, users
from tests.worlds.kinds_of_rows import by_property, identity, people, sagas, tenants
from tests.worlds.plans import fill
from tests.worlds.projects import Project

Make = Callable[[], Iterable[Row]]
KINDS: dict[str, tuple[Make, dict[str, Callable[[Row], bool]]]] = {
    "identity": (
        identity,
        {
            "e": lambda row: row[PARTITION_KEY].startswith("E_"),
            "c": lambda row: row[ROW_KEY].startswith("C_"),
            "l": lambda row: row[ROW_KEY].startswith("L_"),
            "r": lambda row: row[ROW_KEY].startswith("R_"),
            "u": lambda row: row[ROW_KEY].startswith("U_"),
        },
    ),
    "sagas": (
        sagas,
        {"index": lambda row: row[ROW_KEY] == "", "other": lambda row: row[ROW_KEY] != ""},
    ),
    "properties": (
        by_property,
        {
            "OrderId": lambda row: "OrderId" in row,
            "UserId": lambda row: "UserId" in row,
            "Text": lambda row: "Text" in row,
        },
    ),
    "tenants": (
        tenants,
        {
            "comment": lambda row: row[ROW_KEY].startswith("comment:"),
            "doc": lambda row: row[ROW_KEY].startswith("doc:"),
        },
    ),
}


@pytest.mark.parametrize("name", KINDS)
async def test_kinds_are_seen_with_all_their_rows(memory: MemoryTableService, name: str) -> None:
    make, kinds = KINDS[name]
    rows = list(make())
    await fill(memory, "Table", rows)
    seen = (await inspect_table(memory.table("Table")))[0].kinds
    assert {kind.name: kind.rows for kind in seen} == {
        kind: sum(map(takes, rows)) for kind, takes in kinds.items()
    }


@pytest.mark.parametrize(
    "make", [people, lambda: posts(400, blogs=3), lambda: users(400), lambda: telemetry(400)]
)
async def test_nothing_is_said_of_kinds_where_rows_are_of_one(memory: MemoryTableService, make: Make) -> None:
    await fill(memory, "Table", make())
    inspection, _ = await inspect_table(memory.table("Table"))
    assert inspection.kinds == () and inspection.as_json()["kinds"] == []
    assert "kind" not in inspection_text(inspection)


def names_with(rest: Iterable[Row] = ()) -> Iterable[Row]:
    """Keys that begin with a first name which is frequent in a family of names."""
    for number in range(200):
        first = "nguyen" if number % 3 == 0 else f"{chr(97 + number % 26)}an"
        yield {PARTITION_KEY: "p", ROW_KEY: f"{first}_{number}", "Name": first}
    yield from rest


async def test_a_frequent_name_is_no_beginning_of_a_kind(memory: MemoryTableService) -> None:
    await fill(memory, "Table", names_with())
    inspection, _ = await inspect_table(memory.table("Table"))
    assert "nguyen" not in json.dumps(inspection.as_json()) + inspection_text(inspection)


async def test_rare_beginnings_among_kinds_are_counted_with_the_others(memory: MemoryTableService) -> None:
    rows = [{PARTITION_KEY: "p", ROW_KEY: f"order:{n}"} for n in range(40)]
    rows += [{PARTITION_KEY: "p", ROW_KEY: f"user:{n}"} for n in range(30)]
    rows += [{PARTITION_KEY: "p", ROW_KEY: f"secret:{n}"} for n in range(LEAST_ROWS - 1)]
    await fill(memory, "Table", rows)
    inspection, _ = await inspect_table(memory.table("Table"))
    assert [(kind.name, kind.rows) for kind in inspection.kinds] == [
        ("order", 40),
        ("user", 30),
        ("other", LEAST_ROWS - 1),
    ]
    assert "secret" not in inspection_text(inspection)


async def test_tables_with_very_many_beginnings_and_schemas_are_counted_in_bounded_memory(
    memory: MemoryTableService,
) -> None:
    rows: list[Row] = [{PARTITION_KEY: "p", ROW_KEY: f"user:{n:05}", "Name": "n"} for n in range(2_000)]
    letters = "abcdefghij"
    for n in range(5_000):
        word = "".join(letters[int(digit)] for digit in f"{n:05}")
        rows.append({PARTITION_KEY: "p", ROW_KEY: f"{word}:{n}", f"P{n}": 1})
    await fill(memory, "Table", rows)
    inspection, profile = await inspect_table(memory.table("Table"), exact=True)
    assert [(kind.name, kind.rows) for kind in inspection.kinds] == [("user", 2_000), ("other", 5_000)]
    assert len(profile.kinds._rows.counts) <= 2_000
    assert len(inspection.kinds) <= MOST_KINDS


# --- the script ---------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize("name", KINDS)
def test_a_script_for_the_kinds_loads_and_takes_the_rows_that_were_read(
    project: Project, commands_on: CommandsOn, name: str
) -> None:
    make, kinds = KINDS[name]
    rows = list(make())
    asyncio.run(project.fill("Table", rows))
    rekey = commands_on(project)
    written = rekey("new", "several", "--from-inspect", "Table", "--json").json
    assert set(written["kinds"]) == set(kinds)
    [script] = project.scripts.values()
    text = script.path.read_text("utf-8")
    keys = {row[key] for row in rows for key in (PARTITION_KEY, ROW_KEY) if len(row[key]) > 3}
    assert not [key for key in keys if key in text]
    planned = rekey("plan", "--json", code=None).json
    [migration] = planned["migrations"]
    by_kind = {kind["name"]: kind["rows"] for kind in migration["kinds"]}
    assert by_kind == {kind: sum(map(takes, rows)) for kind, takes in kinds.items()}
    problems = {problem["code"] for problem in migration["problems"] if problem["severity"] == "error"}
    assert problems <= {"nothing-changes"}


def test_a_table_of_one_kind_gets_the_plain_script(project: Project, commands_on: CommandsOn) -> None:
    asyncio.run(project.fill("Users", users(50)))
    rekey = commands_on(project)
    assert rekey("new", "users", "--from-inspect", "Users", "--json").json["kinds"] == []
    [script] = project.scripts.values()
    assert script.migration.source == "Users" and not script.migration.kinds


def test_the_report_says_how_to_get_the_script(project: Project, commands_on: CommandsOn) -> None:
    asyncio.run(project.fill("Table", identity()))
    rekey = commands_on(project)
    out = rekey("inspect", "Table").out
    assert "RowKey begins with U_" in out and "PartitionKey begins with E_" in out
    assert "rekey new NAME --from-inspect Table" in out
    kinds = rekey("inspect", "Table", "--json").json["kinds"]
    assert kinds[0]["partition_prefix"] == "E_" and kinds[1]["row_prefix"] == "C_"


@pytest.mark.parametrize("others", [("--source", "Users"), ("--each", "User*")])
def test_a_source_that_is_named_twice_is_usage(
    project: Project, commands_on: CommandsOn, others: tuple[str, str]
) -> None:
    commands: Commands = commands_on(project)
    assert "names" in commands("new", "users", "--from-inspect", "Users", *others, code=2).err


def test_a_table_that_is_not_there_gets_no_script(project: Project, commands_on: CommandsOn) -> None:
    assert (
        "there is no table Nobody" in commands_on(project)("new", "a", "--from-inspect", "Nobody", code=2).err
    )
    assert not list((project.folder / "migrations").glob("*.py"))
