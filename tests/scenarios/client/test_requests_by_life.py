"""Requests are counted for each life of a migration; what came on top of an undisturbed run stands apart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rekey.model import PARTITION_KEY, ROW_KEY, Row
from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.example_rows import users
from tests.worlds.plans import fill
from tests.worlds.projects import Project

SCRIPT = Path(__file__).parents[3] / "migrations" / "0001_users_opaque_ids.py"
ROWS = 500
OPENING = 15


@pytest.fixture
def rekey(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    project = Project(tmp_path)
    project.script(SCRIPT.read_text("utf-8"), SCRIPT.name)
    config = tmp_path / "rekey.toml"
    config.write_text(config.read_text("utf-8").replace("window_rows = 50\n", ""), "utf-8")
    asyncio.run(fill(project.tables, "Users", users(ROWS)))
    project.clock.advance(3600)
    return commands_on(project)


def requests(rekey: Commands) -> dict[str, Any]:
    [migration] = rekey("status", "--json").json["migrations"]
    found: dict[str, Any] = migration["requests"]
    return found


def by_phase(rekey: Commands) -> dict[str, int]:
    return {one["phase"]: one["sent"] for one in requests(rekey)["phases"]}


def comparable(found: dict[str, Any]) -> bool:
    """Each command that the estimate does not know (it begins in the middle) costs locks and control row."""
    estimated, sent = found["estimated_of_phases_done"], found["sent_in_phases_done"]
    return abs(estimated - sent) <= 0.05 * sent + OPENING


def change(rekey: Commands, *, of: int) -> None:
    """The application changes rows of the source."""

    async def write() -> None:
        table = rekey.project.tables.table("Users")
        for row in list(rekey.project.rows("Users"))[:of]:
            changed: Row = {PARTITION_KEY: row[PARTITION_KEY], ROW_KEY: row[ROW_KEY], "Changed": True}
            await table.merge(changed)

    asyncio.run(write())
    rekey.project.clock.advance(60)


@pytest.mark.parametrize("targets", ["--drop-targets", "--keep-targets"])
def test_request_counts_restart_after_a_rollback_to_source(rekey: Commands, targets: str) -> None:
    rekey("apply", "0")
    rekey("verify", "0", "--mode", "full")
    assert "backfill" in by_phase(rekey)
    rekey("rollback", "0", "--to", "source", targets)
    rekey.project.clock.advance(60)
    rekey("apply", "0", "--to", "dual_write")
    found = requests(rekey)
    assert [one["phase"] for one in found["phases"]] == ["prepare", "dual_write"]
    assert comparable(found)
    assert set(found["on_top"]) == {"probes"}, "verification and way back were of the life before"
    rekey("apply", "0")
    assert comparable(requests(rekey))


def test_phases_carried_out_again_and_the_way_back_are_no_part_of_what_is_compared(rekey: Commands) -> None:
    rekey("apply", "0")
    before = by_phase(rekey)
    assert set(requests(rekey)["on_top"]) == {"probes"}
    rekey("apply", "0", "--to", "cutover", "--writers-stopped")
    first = by_phase(rekey)["cutover"]
    rekey("rollback", "0", "--writers-stopped")
    way_back = requests(rekey)["on_top"]["way_back"]
    assert way_back > 10
    rekey("verify", "0", "--mode", "full")
    verified = requests(rekey)["on_top"]["repeats"]
    rekey("apply", "0")
    repeated = requests(rekey)["on_top"]["repeats"]
    rekey("apply", "0", "--to", "cutover", "--writers-stopped")
    rekey("apply", "0", "--to", "complete", "--yes", SCRIPT.stem)
    found = requests(rekey)
    assert comparable(found) and by_phase(rekey)["cutover"] == first
    assert before.items() <= by_phase(rekey).items()
    assert found["on_top"]["way_back"] == way_back
    assert 0 < verified < repeated <= found["on_top"]["repeats"] - first / 2
    said = rekey("status", "--requests").out
    assert f"{way_back:,} for rollback" in " ".join(said.split())


def test_rows_that_change_meanwhile_are_counted_apart(rekey: Commands) -> None:
    rekey("apply", "0", "--to", "backfill")
    change(rekey, of=40)
    rekey("apply", "0")
    found = requests(rekey)
    assert comparable(found)
    assert found["on_top"]["changes"] > 40
    [reconcile] = [one for one in found["phases"] if one["phase"] == "reconcile"]
    assert abs(reconcile["sent"] - reconcile["estimated"]) <= OPENING


def test_the_rate_of_the_copy_is_that_of_this_life(rekey: Commands) -> None:
    rekey("apply", "0")
    rekey("rollback", "0", "--to", "source", "--drop-targets")
    rekey.project.clock.advance(60)
    rekey("apply", "0", "--to", "dual_write")
    [migration] = rekey("status", "--json").json["migrations"]
    assert migration["backfill"] is None
