"""Where a migration stands, whether it is safe and what comes next: one case for each state it can be in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rekey.config import Gates
from rekey.declaration import Declared, Migration
from rekey.phases import ORDER, ControlPhase, Phase
from rekey.runner.capture import WATERMARK
from rekey.runner.control import ControlRow
from rekey.runner.facts import Facts, Lease, Wait, waits
from rekey.runner.status import judge
from rekey.state.models import PhaseRun, Segment, Verification
from rekey.tables.clock import ticks_of
from tests.worlds import SCRIPT, USERS

NOW = "2024-01-02T00:00:00.0000000Z"
HOUR_AGO = "2024-01-01T23:00:00.0000000Z"
DECLARED = Declared(SCRIPT, Path("migrations/0001_users.py"), "", frozenset(), USERS, USERS.digest())
LIVE = Lease("host-a", 4711, "2024-01-02T00:01:00.0000000Z", live=True)


def control(phase: ControlPhase, **more: Any) -> ControlRow:
    made = ControlRow(
        SCRIPT, phase, 3, "run", DECLARED.digest, "Users", ("UsersV2",), {}, bytes(32), updated_at=HOUR_AGO
    )
    return replace(made, **more)


def verified(divergences: int = 0, at: str = HOUR_AGO) -> Verification:
    return Verification("full", at, at, "digest", 10, 10, divergences, 0)


def upto(phase: Phase) -> tuple[Phase, ...]:
    return ORDER[: ORDER.index(phase) + 1]


def facts(phase: ControlPhase | None = None, last: Phase | None = None, **more: Any) -> Facts:
    made = Facts(
        declared=DECLARED,
        known=phase is not None,
        applied=upto(last) if last else (),
        control=None if phase is None else control(phase),
        lease=None,
        runs=(),
        segments=(),
        facts={},
        verification=None,
        gates=Gates(),
        now=ticks_of(NOW),
    )
    return replace(made, **more)


def run_of(phase: Phase, started: str, finished: str | None, outcome: str | None) -> PhaseRun:
    return PhaseRun(1, SCRIPT, phase, started, finished, outcome, {})


D, C = ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER
CASES = [
    pytest.param(facts(), True, "Nothing has been written", "apply 0001_users", id="not begun"),
    pytest.param(
        facts(waits_for=(Wait("0000_x", Phase.CUTOVER),)),
        True,
        "Nothing has been written",
        "apply 0000_x --to cutover",
        id="waiting for another",
    ),
    pytest.param(
        facts(ControlPhase.SOURCE, Phase.PREPARE),
        True,
        "Users is the authority",
        "apply 0001_users",
        id="prepared",
    ),
    pytest.param(
        facts(D, Phase.DUAL_WRITE), True, "UsersV2 is a copy", "apply 0001_users", id="backfill to come"
    ),
    pytest.param(facts(D, Phase.DUAL_WRITE, lease=LIVE), True, "a copy", "status 0001_users", id="at work"),
    pytest.param(
        facts(D, Phase.RECONCILE, verification=verified()),
        True,
        "a copy",
        "apply 0001_users --to cutover --writers-stopped",
        id="ready for cutover",
    ),
    pytest.param(
        facts(D, Phase.RECONCILE, verification=verified(at="2023-12-31T00:00:00Z")),
        True,
        "a copy",
        "verify 0001_users --mode full",
        id="verification too old",
    ),
    pytest.param(
        facts(D, Phase.BACKFILL, verification=verified(3)),
        True,
        "3 rows that differ: cutover stays closed",
        "verify 0001_users --mode full --repair",
        id="rows differ",
    ),
    pytest.param(
        facts(D, Phase.BACKFILL, verification=replace(verified(3), report={"repair": {}})),
        True,
        "a copy",
        "verify 0001_users --mode full",
        id="rows were mended",
    ),
    pytest.param(
        facts(ControlPhase.FREEZE, Phase.RECONCILE, lease=LIVE),
        True,
        "under way: writes wait",
        "status 0001_users",
        id="freeze under way",
    ),
    pytest.param(
        facts(ControlPhase.FREEZE, Phase.RECONCILE),
        False,
        "A cutover was cut off and left the freeze behind",
        "apply 0001_users",
        id="freeze left behind by a cutover",
    ),
    pytest.param(
        facts(ControlPhase.FREEZE, Phase.CUTOVER, control=control(ControlPhase.FREEZE, came_from=C)),
        False,
        "A rollback was cut off and left the freeze behind",
        "apply 0001_users",
        id="freeze left behind by a rollback",
    ),
    pytest.param(
        facts(C, Phase.CUTOVER), True, "there is a way back", "apply 0001_users --to complete", id="cut over"
    ),
    pytest.param(
        facts(C, Phase.CUTOVER, declared=replace(DECLARED, migration=replace(USERS, reverse=False))),
        True,
        "There is no way back",
        "apply 0001_users --to complete",
        id="cut over without a way back",
    ),
    pytest.param(
        facts(ControlPhase.COMPLETE, Phase.COMPLETE),
        True,
        "no way back any more",
        "retire 0001_users --table Users",
        id="complete",
    ),
    pytest.param(facts(ControlPhase.RETIRED, Phase.RETIRE), True, "Users is deleted", "", id="retired"),
    pytest.param(
        facts(None, Phase.RECONCILE),
        False,
        "the restricted store does not know it",
        "status 0001_users",
        id="lost",
    ),
    pytest.param(
        facts(None, Phase.RECONCILE, unreachable="the store is down"),
        False,
        "Not known: the store is down",
        "status 0001_users",
        id="unreachable",
    ),
    pytest.param(
        facts(D, Phase.RECONCILE, declared=replace(DECLARED, digest="other")),
        True,
        "the script was edited",
        "status 0001_users",
        id="edited",
    ),
]


@pytest.mark.parametrize(("known", "safe", "sentence", "command"), CASES)
def test_each_state_says_if_it_is_safe_and_what_comes_next(
    known: Facts, safe: bool, sentence: str, command: str
) -> None:
    status = judge(known)
    assert status.safe is safe
    assert sentence in status.sentence
    assert status.command == command
    assert status.as_json()["next"]["command"] == (f"rekey {command}" if command else "")


def test_after_cutover_the_way_back_is_named_and_without_one_it_is_not() -> None:
    assert "rekey rollback 0001_users --writers-stopped" in judge(facts(C, Phase.CUTOVER)).remark
    final = replace(DECLARED, migration=replace(USERS, reverse=False))
    assert judge(facts(C, Phase.CUTOVER, declared=final)).remark == ""


def test_the_retention_period_is_said_with_its_end() -> None:
    row = control(ControlPhase.COMPLETE, completed_at=HOUR_AGO)
    waiting = judge(facts(ControlPhase.COMPLETE, Phase.COMPLETE, control=row, gates=Gates(retention_s=7200)))
    assert waiting.retention_ends_at == "2024-01-02T01:00:00.0000000Z"
    assert waiting.retention_ends_at in waiting.remark
    over = judge(facts(ControlPhase.COMPLETE, Phase.COMPLETE, control=row, gates=Gates(retention_s=60)))
    assert over.remark == "this deletes Users"


def test_the_control_row_is_believed_before_the_ledger() -> None:
    """A runner that was killed between the two, or a state file that was lost."""
    assert judge(facts(C, Phase.RECONCILE)).stage == "cutover done"
    assert judge(facts(D, None)).stage == "dual_write done"


def test_a_run_that_was_cut_off_is_told_from_one_at_work_and_one_that_stopped() -> None:
    open_run = run_of(Phase.BACKFILL, HOUR_AGO, None, None)
    cut = facts(D, Phase.DUAL_WRITE, runs=(open_run,))
    assert judge(cut).stage == f"dual_write done; backfill was cut off; it began {HOUR_AGO}"
    assert judge(replace(cut, lease=LIVE)).stage == f"dual_write done; backfill at work since {HOUR_AGO}"
    stopped = run_of(Phase.BACKFILL, HOUR_AGO, NOW, "Interrupted")
    assert (
        judge(replace(cut, runs=(stopped,))).stage == f"dual_write done; backfill stopped {NOW} (Interrupted)"
    )


def test_a_backfill_at_work_has_rate_and_end() -> None:
    segments = (
        Segment(1, SCRIPT, "backfill", rows=3600, done=True),
        Segment(2, SCRIPT, "backfill", rows=3600),
    )
    known = facts(
        D,
        Phase.DUAL_WRITE,
        lease=LIVE,
        runs=(run_of(Phase.BACKFILL, HOUR_AGO, None, None),),
        segments=segments,
        facts={"estimated_rows": "10800"},
    )
    copied = judge(known).backfill
    assert copied is not None
    assert (copied.rows, copied.segments_done, copied.segments) == (7200, 1, 2)
    assert (copied.rate, copied.seconds_left) == (2.0, 1800.0)


def test_no_rate_is_made_up_when_nobody_knows_how_long_a_killed_run_worked() -> None:
    known = facts(
        D,
        Phase.DUAL_WRITE,
        runs=(run_of(Phase.BACKFILL, HOUR_AGO, None, None),),
        segments=(Segment(1, SCRIPT, "backfill", rows=3600),),
    )
    copied = judge(known).backfill
    assert copied is not None
    assert (copied.rate, copied.seconds_left) == (None, None)


def test_the_lag_is_said_while_the_targets_follow() -> None:
    following = judge(facts(D, Phase.RECONCILE, facts={WATERMARK: HOUR_AGO}))
    assert following.lag_s == 3600
    assert judge(facts(C, Phase.CUTOVER, facts={WATERMARK: HOUR_AGO})).lag_s is None


def test_a_chained_script_waits_for_what_the_ledger_waits_for() -> None:
    """It starts from a table that the first one fills: that one must be complete."""
    migration = Migration(
        source="UsersV2", target=replace(USERS.target, table="UsersV3"), capture="delta", reverse=False
    )
    second = Declared("0002_more", Path("0002_more.py"), "", frozenset({SCRIPT}), migration, "digest")
    scripts = {SCRIPT: DECLARED, "0002_more": second}
    assert waits(second, scripts, [f"{SCRIPT}.cutover"]) == (Wait(SCRIPT, Phase.COMPLETE),)
    entries = [f"{SCRIPT}.{phase}" for phase in upto(Phase.COMPLETE)]
    assert waits(second, scripts, entries) == ()
    assert waits(second, scripts, ["0002_more.prepare"]) == ()
