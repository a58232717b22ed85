"""What a plan estimates is what the runner sends: within 5 % on the worked examples; status shows both.

Soak: samples; many windows of all examples.
Reason, and what `make test` covers: 38,000 rows each; all examples with one window, one with many, samples in
`tests/scenarios/plan/test_plan.py`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from rekey.errors import ServiceError
from rekey.model import Row
from rekey.phases import Phase
from rekey.plan.estimate import SPLIT_REQUESTS
from rekey.state.store import State
from rekey.tables.sent import RequestKind
from tests.asserts.command_line import Commands
from tests.worlds.example_rows import posts, registrations, telemetry, users
from tests.worlds.plans import fill

MIGRATIONS = Path(__file__).parents[3] / "migrations"
EXAMPLES = [
    pytest.param("0001_users_opaque_ids", "Users", users, id="users"),
    pytest.param("0002_posts_by_month", "Posts", posts, id="posts"),
    pytest.param("0003_telemetry_by_device_day", "Telemetry", telemetry, id="telemetry"),
    pytest.param("0004_race_registrations", "Registrations", registrations, id="registrations"),
]
Make = Callable[[int], Iterable[Row]]


def given(
    rekey: Commands, script: str, table: str, rows: Iterable[Row], *, window: int | None = None
) -> None:
    """A project with one worked example, its table filled an hour ago, and the usual limits."""
    project = rekey.project
    project.script((MIGRATIONS / f"{script}.py").read_text("utf-8"), f"{script}.py")
    config = project.folder / "rekey.toml"
    line = "" if window is None else f"window_rows = {window}\n"
    config.write_text(config.read_text("utf-8").replace("window_rows = 50\n", line), "utf-8")
    asyncio.run(fill(project.tables, table, rows))
    project.clock.advance(3600)


def applied_to_the_end(rekey: Commands) -> dict[str, Any]:
    """Apply up to `complete` and return what status says of requests."""
    rekey("apply", "0")
    rekey("apply", "0", "--to", "cutover", "--writers-stopped")
    [path] = (rekey.project.folder / "migrations").glob("*.py")
    rekey("apply", "0", "--to", "complete", "--yes", path.stem)
    [migration] = rekey("status", "--json").json["migrations"]
    requests: dict[str, Any] = migration["requests"]
    return requests


def of_kind(requests: dict[str, Any], which: str) -> Counter[str]:
    """Requests of all phases by kind."""
    total: Counter[str] = Counter()
    for phase in requests["phases"]:
        total.update(phase[which])
    return total


@pytest.mark.parametrize(
    ("script", "table", "make", "count", "window"),
    [
        *(pytest.param(*one.values, 900, None, id=f"few-{one.id}") for one in EXAMPLES),
        pytest.param(*EXAMPLES[0].values, 1_500, 200, id="many windows-users"),
        *(
            pytest.param(*one.values, 4_500, 500, id=f"many windows-{one.id}", marks=pytest.mark.soak)
            for one in EXAMPLES[1:]
        ),
    ],
)
def test_the_worked_examples_send_what_was_estimated(
    rekey: Commands, script: str, table: str, make: Make, count: int, window: int | None
) -> None:
    given(rekey, script, table, make(count), window=window)
    requests = applied_to_the_end(rekey)
    estimated, sent = requests["estimated_of_phases_done"], requests["sent_in_phases_done"]
    assert abs(estimated - sent) <= 0.05 * sent
    assert [phase["phase"] for phase in requests["phases"]] == list(Phase)[: list(Phase).index(Phase.RETIRE)]
    by_kind, actual = of_kind(requests, "estimated_by_kind"), of_kind(requests, "sent_by_kind")
    for kind in (RequestKind.SCAN, RequestKind.BATCH):
        # Whether a copy of many windows splits what it reads is not known before.
        assert abs(by_kind[kind] - actual[kind]) <= max(SPLIT_REQUESTS, 0.1 * actual[kind]), kind
    # Every row is written once for each table and twice for the mapping, whatever batches it comes in.
    mine = by_kind["operations"] + by_kind[RequestKind.WRITE]
    assert abs(mine - actual["operations"] - actual[RequestKind.WRITE]) <= 12


@pytest.mark.soak
@pytest.mark.parametrize(("script", "table", "make"), EXAMPLES)
def test_a_sample_estimates_nearly_the_same(rekey: Commands, script: str, table: str, make: Make) -> None:
    """Few rows a page and a short head: most of the table is not read."""
    given(rekey, script, table, make(38_000))
    [sampled] = rekey("plan", "--json").json["migrations"]
    [exact] = rekey("plan", "--exact", "--json").json["migrations"]
    assert not sampled["inventory"]["exact"]
    few, all_of_it = (one["estimate"]["requests_total"] for one in (sampled, exact))
    assert abs(few - all_of_it) <= 0.1 * all_of_it


def test_status_tells_both_in_words_as_soon_as_there_is_something_to_tell(rekey: Commands) -> None:
    given(rekey, "0001_users_opaque_ids", "Users", users(500))
    assert "estimated" not in rekey("status", "--requests").out
    rekey("apply", "0", "--to", "dual_write")
    assert "prepare:" in rekey("status", "--requests").out
    rekey("apply", "0")
    assert "estimated" not in rekey("status").out, "only where it is asked for"
    said = rekey("status", "--requests").out
    assert "in phases done" in said and "estimated for the whole" in said
    assert "backfill:" in said and "expected" in said


def test_requests_of_a_phase_that_failed_are_kept_and_added(rekey: Commands) -> None:
    given(rekey, "0001_users_opaque_ids", "Users", users(500))
    rekey("apply", "0", "--to", "dual_write")
    [migration] = rekey("status", "--json").json["migrations"]
    before = {one["phase"]: one["sent"] for one in migration["requests"]["phases"]}
    assert "backfill" not in before
    tables = rekey.project.tables
    seen = 0

    async def refuse(call: Any) -> None:
        nonlocal seen
        seen += call.action == "transact"
        if seen == 3:
            raise ServiceError("the service says no", code="No", status=400)

    tables.gate = refuse
    rekey("apply", "0", code=4)
    [cut_off] = rekey("status", "--json").json["migrations"]
    [backfill] = [one for one in cut_off["requests"]["phases"] if one["phase"] == "backfill"]
    assert not backfill["done"] and backfill["sent"] > 64, "the mapping was written before"
    seen = 100
    rekey("apply", "0")
    [done] = rekey("status", "--json").json["migrations"]
    [again] = [one for one in done["requests"]["phases"] if one["phase"] == "backfill"]
    assert again["done"] and again["sent"] > backfill["sent"] + 60


def test_a_run_that_was_killed_keeps_what_it_had_counted_at_its_last_checkpoint(rekey: Commands) -> None:
    class Killed(BaseException):
        """No handler runs."""

    given(rekey, "0001_users_opaque_ids", "Users", users(2_000), window=200)
    rekey("apply", "0", "--to", "dual_write")
    checkpoints = 0

    original = State.count_phase

    def count(self: State, run: int, requests: Any) -> None:
        nonlocal checkpoints
        original(self, run, requests)
        checkpoints += 1
        if checkpoints == 5:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(State, "count_phase", count)
        with pytest.raises(Killed), rekey.project.session() as session:
            from rekey.runner import commands

            commands.apply(session, "0001_users_opaque_ids")
    with State.open(rekey.project.folder / "state.sqlite", read_only=True) as state:
        last = state.phase_runs("0001_users_opaque_ids")[-1]
    assert last.phase == "backfill" and last.outcome is None and last.finished_at is None
    assert last.requests["batch"] > 5 and last.requests["scan"] > 5


def test_without_the_row_check_it_is_not_reckoned_with(rekey: Commands) -> None:
    given(rekey, "0001_users_opaque_ids", "Users", users(500))
    rekey("apply", "0", "--to", "prepare", "--skip-row-check")
    [migration] = rekey("status", "--json").json["migrations"]
    [prepare] = migration["requests"]["phases"]
    [plan] = rekey("plan", "--json").json["migrations"]
    with_check = plan["estimate"]["requests"]
    assert any(one["what"].startswith("try every row") for one in with_check)
    assert prepare["estimated"] < sum(one["count"] for one in with_check if one["phase"] == "prepare")
