"""Commands on a migration with secondary rows: each tells the kinds apart, and drops their table once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rekey.model import EntityKey, Row
from tests.asserts.command_line import Commands, CommandsOn
from tests.scenarios.runner.test_secondary_life import RACES_SCRIPT, SCRIPT, TABLE
from tests.worlds.evidence import exported, with_key
from tests.worlds.projects import Project, applied
from tests.worlds.small import racer

WHY = ("--reason", "ticket 4711")
APART = RACES_SCRIPT.replace(
    'Index("RacesByKey", partition_key=keys.prop("PartitionKey")',
    'Index("RacesByKey", partition_key=keys.prop("Name")',
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.script(RACES_SCRIPT, f"{SCRIPT}.py")
    asyncio.run(made.fill("Races", races(1_200)))
    return made


@pytest.fixture
def at_gate(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    """The commands of such a project at the gate of cutover, with fewer rows."""
    return commands_on(applied(tmp_path, RACES_SCRIPT, races(120), name=f"{SCRIPT}.py"))


def races(count: int) -> list[Row]:
    return [racer(f"{n:04}", 20 + n % 50, race=f"r{n % 3}") for n in range(count)]


def test_the_plan_packs_both_kinds_into_the_same_batches(rekey: Commands) -> None:
    [plan] = rekey("plan", "--exact", "--json").json["migrations"]
    main, secondary = plan["targets"]
    assert (main["table"], main["rows"], main["secondary_rows"]) == (TABLE, 1_200, 1_200)
    assert (secondary["table"], secondary["rows"]) == (f"{TABLE} AGE:", 1_200)
    assert main["batches"] == 25, "24 full ones, and what no window was left to fill"
    assert secondary["with_main"]
    assert "rows-apart" not in [one["code"] for one in plan["problems"]]
    text = rekey("plan", "--exact").out
    assert "RacesByKey AGE:" in text
    assert "with the main rows" in text


def test_the_plan_says_where_no_transaction_is_possible(rekey: Commands, project: Project) -> None:
    assert APART != RACES_SCRIPT
    project.script(APART, f"{SCRIPT}.py")
    [plan] = rekey("plan", "--json").json["migrations"]
    [problem] = [one for one in plan["problems"] if one["code"] == "rows-apart"]
    assert problem["severity"] == "warning"
    assert "no transaction spans partitions" in problem["message"]


def test_a_script_with_ambiguous_row_kinds_is_refused(rekey: Commands, project: Project) -> None:
    project.script(RACES_SCRIPT.replace('"AGE:"', '"BIB:"'), f"{SCRIPT}.py")
    said = rekey("plan", code=2)
    assert "index[RacesByKey BIB:].row_key" in said.err
    assert "give the index a table of its own" in said.err
    assert project.tables.sent.counts.total() == 1_201  # what the test wrote


def test_a_row_is_looked_up_by_either_of_its_keys(at_gate: Commands) -> None:
    expected = {("RacesByKey", "r1", "BIB:0001__John"), ("RacesByKey", "r1", "AGE:021__0001")}
    for key in ("BIB:0001__John", "AGE:021__0001"):
        [found] = at_gate("lookup", "--new", "r1", key, *WHY, "--json").json["rows"]
        assert found["old"] == {"partition_key": "r1", "row_key": "0001"}
        assert {(one["table"], one["partition_key"], one["row_key"]) for one in found["new"]} == expected


def test_evidence_tells_both_kinds_and_is_computed_again(at_gate: Commands) -> None:
    with_key(at_gate.project.folder)
    folder = str(exported(at_gate, SCRIPT))

    def equal() -> dict[str, bool]:
        said = at_gate("evidence", "recompute", folder, "--mapping", "--json", code=None).json
        return {f"{one['what']} {one['table']}": one["equal"] for one in said["digests"]}

    names = [
        "source Races",
        *(f"{what} RacesByKey{kind}" for kind in ("", " AGE:") for what in ("expected", "target")),
    ]
    assert equal() == dict.fromkeys(names, True)
    asyncio.run(at_gate.project.tables.table(TABLE).delete(EntityKey("r1", "AGE:021__0001")))
    assert equal() == {**dict.fromkeys(names, True), "target RacesByKey AGE:": False}


def test_targets_that_are_dropped_are_dropped_once(at_gate: Commands) -> None:
    at_gate("rollback", "--to", "source", "--drop-targets", "--writers-stopped")
    assert not asyncio.run(at_gate.project.tables.table_exists(TABLE))
