"""The plan file: no keys, no silent edits, and a refusal that says what moved."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rekey import keys
from rekey.core.severity import Severity
from rekey.errors import ConfigurationError, ExitCode, Moved
from rekey.plan.plan import basis_advice, make_plan, take_basis
from rekey.plan.planfile import PlanFile, check_declared, check_plan, moved, read_plan, write_plan
from rekey.plan.result import Advice, Basis, Plan, TableState
from rekey.plan.subject import PlanOptions
from tests.fakes.memory import MemoryTableService
from tests.worlds.begun_migrations import declared_as
from tests.worlds.plans import fill, subject
from tests.worlds.small import USERS, user

SAMPLED = Basis(
    script_id="0001_users",
    declaration="d" * 64,
    secrets={"users": "f1"},
    source="Users",
    source_exists=True,
    exact=False,
    rows=10_000,
    inventory=None,
    targets=(TableState("UsersV2", False, False),),
)
EXACT = replace(SAMPLED, exact=True, inventory="a" * 40)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (replace(SAMPLED, declaration="e" * 64), "script declares something else"),
        (replace(SAMPLED, secrets={"users": "f2"}), "secret 'users' is another"),
        (replace(SAMPLED, secrets={}), "secret 'users' is another"),
        (replace(SAMPLED, source_exists=False, rows=0), "Users is gone"),
        (replace(SAMPLED, rows=21_000), "about 10,000 rows when planned and holds about 21,000"),
        (replace(SAMPLED, rows=4_000), "holds about 4,000 now"),
        (replace(SAMPLED, targets=(TableState("UsersV2", True, False),)), "UsersV2 exists now"),
    ],
)
def test_each_thing_that_moved_is_named(now: Basis, said: str) -> None:
    assert len(moved(SAMPLED, now)) == 1
    assert said in moved(SAMPLED, now)[0]


ADVISED = replace(SAMPLED, advice={"long-keys": Severity.WARNING, "one-partition": Severity.WARNING})


@pytest.mark.parametrize(
    ("advice", "said"),
    [
        (
            {"long-keys": Severity.WARNING},
            "advice of the plan that is given no more: one-partition (warning)",
        ),
        (
            {**ADVISED.advice, "personal-data": Severity.ERROR, "fan-out": Severity.WARNING},
            "advice that the plan did not have: fan-out (warning), personal-data (error)",
        ),
        (
            {**ADVISED.advice, "one-partition": Severity.ERROR},
            "the advice one-partition is an error now, a warning when planned",
        ),
    ],
)
def test_changed_advice_is_named(advice: dict[str, Severity], said: str) -> None:
    assert moved(ADVISED, ADVISED) == []
    assert moved(ADVISED, replace(ADVISED, advice=advice)) == [said]


async def test_a_plan_is_held_to_the_advice_that_it_gives(memory: MemoryTableService, tmp_path: Path) -> None:
    """Long keys come into a live table between plan and apply: neither script nor size moved."""
    options = PlanOptions()
    copied = replace(USERS, target=replace(USERS.target, row_key=keys.prop("RowKey")), mapping="plain")
    what = subject(replace(copied, waive={"personal-data": "made up"}))
    await fill(memory, "Users", [user(f"n{number}") for number in range(300)])
    plan = await make_plan([what], memory, options)
    write_plan(plan, tmp_path / "plan.json")
    check_plan(read_plan(tmp_path / "plan.json"), [await take_basis(what, memory, options)])
    assert "long-keys" not in plan.migrations[0].basis.advice
    for number in range(600):
        await memory.table("Users").insert(user(f"{number:03}-" + "long" * 60))
    with pytest.raises(Moved, match=r"advice that the plan did not have: long-keys \(warning\)"):
        check_plan(read_plan(tmp_path / "plan.json"), [await take_basis(what, memory, options)])


def test_notes_and_figures_move_no_plan_and_the_heaviest_of_a_code_counts() -> None:
    def given(code: str, severity: Severity, *, today: bool = False, evidence: str = "") -> Advice:
        return Advice(code, severity, "T", today, evidence, "", "")

    before = [given("a", Severity.WARNING), given("a", Severity.ERROR), given("b", Severity.NOTE)]
    after = [given("a", Severity.ERROR, evidence="other figures"), given("c", Severity.ERROR, today=True)]
    assert basis_advice(before) == basis_advice(after) == {"a": Severity.ERROR}


def test_a_target_that_got_rows_is_named() -> None:
    before = replace(SAMPLED, targets=(TableState("UsersV2", True, False),))
    after = replace(SAMPLED, targets=(TableState("UsersV2", True, True),))
    assert moved(before, after) == ["target table UsersV2 holds rows now"]


@pytest.mark.parametrize("rows", [10_000, 10_001, 19_000, 6_000])
def test_a_sampled_plan_stands_while_a_live_source_changes(rows: int) -> None:
    assert moved(SAMPLED, replace(SAMPLED, rows=rows)) == []


def test_a_small_table_may_grow_manyfold() -> None:
    assert moved(replace(SAMPLED, rows=3), replace(SAMPLED, rows=900)) == []


def test_an_exact_plan_falls_with_any_change_of_the_source() -> None:
    assert moved(EXACT, EXACT) == []
    [same_count] = moved(EXACT, replace(EXACT, inventory="b" * 40))
    assert "as many rows" in same_count and "without it" in same_count
    [more] = moved(EXACT, replace(EXACT, inventory="b" * 40, rows=10_001))
    assert "1 more" in more


def test_an_exact_plan_of_an_earlier_version_is_not_said_to_have_moved() -> None:
    """Its digest of the source is shorter, and made in another way."""
    [change] = moved(replace(EXACT, inventory="a" * 32), EXACT)
    assert "earlier version" in change and "inserted" not in change


def test_check_plan_raises_moved_with_everything_at_once() -> None:
    file = PlanFile("2024-01-01T00:00:00.0000000Z", False, 0, (SAMPLED,))
    check_plan(file, [SAMPLED])
    with pytest.raises(Moved) as caught:
        check_plan(file, [replace(SAMPLED, declaration="e" * 64, secrets={})])
    assert "0001_users: the script" in caught.value.what and "secret" in caught.value.what
    assert caught.value.exit_code == ExitCode.REFUSED


def test_a_plan_of_another_script_is_refused_also_once_that_has_begun() -> None:
    file = PlanFile("2024-01-01T00:00:00.0000000Z", False, 0, (SAMPLED,))
    here = declared_as("0001_users", USERS)
    check_declared(file, [replace(here, digest=SAMPLED.declaration)])
    with pytest.raises(Moved, match="0001_users: the script declares something else now"):
        check_declared(file, [replace(here, digest="e" * 64)])
    with pytest.raises(ConfigurationError, match="no plan for 0002"):
        check_declared(file, [declared_as("0002", USERS)])


async def test_a_written_plan_reads_back_without_keys(memory: MemoryTableService, tmp_path: Path) -> None:
    await fill(memory, "Users", [user("anna@mail.example"), user("ANNA@mail.example", "us")])
    options = PlanOptions(exact=True, show_keys=True)
    plan = await make_plan([subject(USERS)], memory, options)
    path = tmp_path / "plan.json"
    write_plan(plan, path)
    assert "mail.example" not in path.read_text().lower()
    file = read_plan(path)
    assert file.exact and file.errors == 0 and file.bases == (plan.migrations[0].basis,)
    check_plan(file, [await take_basis(subject(USERS), memory, options)])
    await memory.table("Users").merge({"PartitionKey": "us", "RowKey": "ANNA@mail.example", "X": 1})
    with pytest.raises(Moved, match="inserted, changed or deleted"):
        check_plan(file, [await take_basis(subject(USERS), memory, options)])
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("harm", ["edit", "cut", "format", "empty", "parts"])
async def test_a_modified_plan_file_is_refused(memory: MemoryTableService, tmp_path: Path, harm: str) -> None:
    await fill(memory, "Users", [user("anna@mail.example")])
    path = tmp_path / "plan.json"
    write_plan(await make_plan([subject(USERS)], memory, PlanOptions()), path)
    text = path.read_text()
    document = json.loads(text)
    path.write_text(
        {
            "edit": text.replace('"rows": 1', '"rows": 2'),
            "cut": text[: len(text) // 2],
            "format": json.dumps({**document, "format": "rekey/plan/v9"}),
            "empty": "[]",
            "parts": json.dumps({**document, "plan": {}}),
        }[harm]
    )
    with pytest.raises(ConfigurationError, match="cannot be used") as caught:
        read_plan(path)
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_path_that_cannot_be_read_or_written_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_plan(tmp_path / "none.json")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_plan(Plan("t", False, True, False), tmp_path / "no" / "plan.json")
