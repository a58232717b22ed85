"""Advice in plans and before the first write: what blocks, what is waived and kept, and no false alarm.

Soak: examples read exactly.
Reason, and what `make test` covers: the same examples, sampled.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from rekey import query
from rekey.declaration.scripts import load_scripts
from rekey.errors import ExitCode
from rekey.plan.page import plan_page
from rekey.plan.plan import make_plan
from rekey.plan.planfile import read_plan, write_plan
from rekey.plan.render import plan_text
from rekey.plan.subject import PlanOptions
from rekey.present.text import WIDTH
from rekey.state.models import PLAN_FACT
from tests.asserts.command_line import Commands
from tests.asserts.documents import ROOT
from tests.fakes.clock import FakeClock
from tests.fakes.memory import MemoryTableService
from tests.worlds.advice import planned
from tests.worlds.example_rows import GENERATORS
from tests.worlds.plans import fill, plan_one, subject
from tests.worlds.projects import USERS_SCRIPT, Project
from tests.worlds.small import LOWERED, USERS, user

EXAMPLES = {one.script_id: one.migration for one in load_scripts(ROOT / "migrations")}
MAILS_STAY = USERS_SCRIPT.replace(
    'row_key=keys.opaque(keys.prop("RowKey"), domain="user", secret="users")', 'row_key=keys.prop("RowKey")'
)
FOLDED = replace(LOWERED, waive={})


@pytest.mark.parametrize("script_id", EXAMPLES)
@pytest.mark.parametrize(
    "exact", [pytest.param(True, marks=pytest.mark.soak), False], ids=["exact", "sampled"]
)
async def test_examples_raise_no_alarm(memory: MemoryTableService, script_id: str, exact: bool) -> None:
    what = EXAMPLES[script_id]
    await fill(memory, what.source, GENERATORS[what.source](1_200))
    plan = await plan_one(memory, subject(what, script_id), exact=exact)
    assert planned([one for one in plan.advice if one.waived is None]) == set()
    assert [one.code for one in plan.advice if not one.answered and one.waived is None] == []
    assert plan.errors == ()


async def test_a_blocking_advice_is_a_plan_error(memory: MemoryTableService, tmp_path: Path) -> None:
    await fill(memory, "Users", [user(f"u{n}@mail.example") for n in range(40)])
    plan = await make_plan([subject(FOLDED)], memory, PlanOptions(exact=True), clock=FakeClock())
    [migration] = plan.migrations
    assert plan.exit_code == ExitCode.FINDINGS
    assert [one.code for one in migration.errors] == ["personal-data"]
    assert 'waive={"personal-data"' in migration.errors[0].cure
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json").errors == 1
    assert "mail.example" not in (tmp_path / "plan.json").read_text("utf-8")


async def test_queries_are_rated_in_text_and_json(memory: MemoryTableService) -> None:
    asked = [query.point("PartitionKey", "RowKey"), query.range("Joined", within=["PartitionKey"])]
    what = replace(USERS, queries=asked, waive={"random-order": "a report that may take its time"})
    await fill(memory, "Users", [user(f"u{n:04}@mail.example") for n in range(2_500)])
    plan = await make_plan([subject(what)], memory, PlanOptions(exact=True), clock=FakeClock())
    [migration] = plan.as_json()["migrations"]
    point, ranged = migration["queries"]
    assert point["today"] == {"access": "point", "requests": 1, "table": "Users"}
    assert point["planned"] == {"access": "point", "requests": 1, "table": "UsersV2"}
    assert ranged["planned"] == {"access": "partition range", "requests": 3, "table": "UsersV2"}
    text = plan_text(plan)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "  range(Joined, within PartitionKey)\n" in text
    assert "WAIVED  random-order: UsersV2 RowKey" in text
    assert "set aside: a report that may take its time" in text
    [waived] = [one for one in migration["advice"] if "waived" in one]
    assert (waived["code"], waived["blocks"]) == ("random-order", False)


async def test_a_large_table_is_counted_from_a_part_of_its_rows(memory: MemoryTableService) -> None:
    """Advice comes from a bounded sample, and every output says so."""
    await fill(memory, "Users", [user(f"u{n:05}@mail.example", f"p{n % 9}") for n in range(6_000)])
    plan = await make_plan([subject(FOLDED)], memory, PlanOptions(exact=True), clock=FakeClock())
    [migration] = plan.migrations
    [found] = [one for one in migration.advice if not one.today]
    assert "3,000 keys of 3,000 looked at" in found.evidence
    assert (migration.mapping.mapped_rows, migration.mapping.sampled_rows) == (6_000, 3_000)
    [told] = plan.as_json()["migrations"]
    assert (told["mapped_rows"], told["rows_looked_at"]) == (6_000, 3_000)
    assert "from 3,000 of 6,000 rows" in plan_text(plan)
    assert "from 3,000 of 6,000 rows" in plan_page(plan)


async def test_conditions_on_every_row_cover_unsampled_rows(memory: MemoryTableService) -> None:
    """Of 6,001 rows every other one is looked at: not one of two that collide."""
    rows = [user(f"u{n:05}@mail.example", "p") for n in range(5_998)]
    folds = user("U00001@mail.example", "o")
    again = {**folds, "RowKey": folds["RowKey"].lower()}
    where = {1: folds}
    await fill(memory, "Users", [*rows, folds, again, user("a", "n")])
    in_order = sorted(memory.dump("Users"), key=lambda row: (row["PartitionKey"], row["RowKey"]))
    assert [in_order[place]["RowKey"] for place in where] == [row["RowKey"] for row in where.values()]
    plan = await plan_one(memory, subject(FOLDED), exact=True)
    assert plan.mapping.sampled_rows == 3_001
    assert plan.mapping.collisions is not None and (
        plan.mapping.collisions.keys,
        plan.mapping.collisions.rows,
    ) == (1, 2)


# --- at the command line -----------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    asyncio.run(made.fill("Users", [user(f"user{number}@example.com") for number in range(30)]))
    return made


def test_apply_refuses_before_any_write_and_names_the_cure(rekey: Commands, project: Project) -> None:
    project.script(MAILS_STAY)
    assert "personal-data: UsersV2 RowKey" in rekey("plan", code=1).out
    said = rekey("apply", code=1)
    assert "personal-data: UsersV2 RowKey: 30 keys of 30" in said.err
    assert 'waive={"personal-data": "the reason"}' in said.err
    assert "@example.com" not in said.all
    assert not asyncio.run(project.tables.table_exists("UsersV2"))


def test_a_waiver_lets_apply_begin_and_is_recorded(rekey: Commands, project: Project) -> None:
    reason = "addresses of machines"
    project.script(
        MAILS_STAY.replace('capture="delta"', f'capture="delta", waive={{"personal-data": "{reason}"}}')
    )
    assert f"set aside: {reason}" in rekey("plan").out
    rekey("apply", "--to", "prepare")
    with project.session() as session:
        kept = session.state.get_fact("0001_users", PLAN_FACT)
    assert kept is not None and reason in kept


def test_an_unknown_code_is_refused_with_the_one_that_was_meant(rekey: Commands, project: Project) -> None:
    project.script(MAILS_STAY.replace('capture="delta"', 'capture="delta", waive={"personaldata": "x"}'))
    said = rekey("plan", code=2)
    assert "did you mean personal-data?" in said.err


def test_inspect_advises_on_todays_keys_and_refuses_nothing(rekey: Commands) -> None:
    said = rekey("inspect", "Users")
    assert "ERROR   personal-data: Users RowKey: 30 keys of 30 looked at (100 %)" in said.out
    assert "cure: put keys.opaque" in said.out
    [found] = rekey("inspect", "Users", "--json").json["advice"]
    assert (found["code"], found["keys"], found["blocks"]) == ("personal-data", "today", False)
    assert "@example.com" not in json.dumps(found)
