"""Where a migration stands, whether it is safe and what comes next: one case for each state it can be in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rekey.core.clock import ticks_of
from rekey.core.processes import started_at
from rekey.declaration.migration import Declared, Migration
from rekey.mapping.rows import CONTROL_TABLE, JOURNAL_TABLE
from rekey.model import EntityKey
from rekey.phases import ORDER, ControlPhase, Phase
from rekey.present.text import moment
from rekey.project.config import Account, Config, Gates
from rekey.protocol import lease
from rekey.protocol.control import ControlRow
from rekey.protocol.journal import Journal
from rekey.protocol.lease import Holder
from rekey.protocol.registry import ClientRow, Registry
from rekey.state.audit import EVIDENCE_VERIFIED, AuditEvent
from rekey.state.filelock import FileLock
from rekey.state.models import WATERMARK, PhaseRun, Segment, Verification
from rekey.state.store import State
from rekey.status import tell
from rekey.status.facts import (
    RETURNED_AFTER,
    UNFOLLOWED,
    Abandoned,
    Facts,
    Intents,
    Lease,
    Sources,
    StateFacts,
    StoreFacts,
    Wait,
    _intents,
    read_facts,
    waits,
)
from rekey.status.judge import judge
from rekey.status.pulse import Pulse, write
from rekey.tables.base import Accounts
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.memory import MemoryTableService
from tests.worlds.small import SCRIPT, TICKETS_APART, USERS

NOW = "2024-01-02T00:00:00.0000000Z"
HOUR_AGO = "2024-01-01T23:00:00.0000000Z"
DECLARED = Declared(SCRIPT, Path("migrations/0001_users.py"), "", frozenset(), USERS, USERS.digest())
ACCOUNT = Account("http://127.0.0.1:1/x", None)
SPLIT = replace(
    DECLARED, migration=replace(TICKETS_APART, target=None, indexes=(), source="Users", capture="delta")
)
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


PROVED = AuditEvent(1, NOW, "me", EVIDENCE_VERIFIED, SCRIPT, {"signed": True, "exported": 1}, "", "")


def facts(phase: ControlPhase | None = None, last: Phase | None = None, **more: Any) -> Facts:
    state = StateFacts(applied=upto(last) if last else (), events=(PROVED,))
    store = StoreFacts(control=None if phase is None else control(phase))
    return changed(Facts(DECLARED, Gates(), ticks_of(NOW), state, store), **more)


def changed(known: Facts, **more: Any) -> Facts:
    """Return facts with other values; a name may be one of `StateFacts` or `StoreFacts`, too."""
    parts = {"state": known.state, "store": known.store}
    own = {
        part: {name: more.pop(name) for name in set(more) & {*value.__slots__}}
        for part, value in parts.items()
    }
    return replace(known, **{part: replace(value, **own[part]) for part, value in parts.items()}, **more)


def run_of(phase: Phase, started: str, finished: str | None, outcome: str | None) -> PhaseRun:
    return PhaseRun(1, SCRIPT, phase, started, finished, outcome, {})


class Situation(NamedTuple):
    known: Facts
    sentence: str
    command: str


D, C = ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER
SAFE = {
    "not begun": Situation(facts(), "Nothing has been written", "apply 0001_users"),
    "waiting for another": Situation(
        facts(waits_for=(Wait("0000_x", Phase.CUTOVER),)),
        "Nothing has been written",
        "apply 0000_x --to cutover",
    ),
    "prepared": Situation(
        facts(ControlPhase.SOURCE, Phase.PREPARE), "Users is the authority", "apply 0001_users"
    ),
    "backfill to come": Situation(facts(D, Phase.DUAL_WRITE), "UsersV2 is a copy", "apply 0001_users"),
    "at work": Situation(facts(D, Phase.DUAL_WRITE, lease=LIVE), "a copy", "status 0001_users"),
    "ready for cutover": Situation(
        facts(D, Phase.RECONCILE, verification=verified()),
        "a copy",
        "apply 0001_users --to cutover --writers-stopped",
    ),
    "verification too old": Situation(
        facts(D, Phase.RECONCILE, verification=verified(at="2023-12-31T00:00:00Z")),
        "a copy",
        "verify 0001_users --mode full",
    ),
    "verified before the way back": Situation(
        facts(D, Phase.RECONCILE, verification=verified(), facts={RETURNED_AFTER: "7"}),
        "a copy",
        "verify 0001_users --mode full",
    ),
    "verified without clients": Situation(
        facts(D, Phase.RECONCILE, verification=verified(), facts={UNFOLLOWED: "7"}),
        "a copy",
        "verify 0001_users --mode full",
    ),
    "rows differ": Situation(
        facts(D, Phase.BACKFILL, verification=verified(3)),
        "3 rows that differ: cutover stays closed",
        "verify 0001_users --mode full --repair",
    ),
    "rows were mended": Situation(
        facts(D, Phase.BACKFILL, verification=replace(verified(3), report={"repair": {}})),
        "a copy",
        "verify 0001_users --mode full",
    ),
    "a writer was at work at cutover": Situation(
        facts(
            D,
            Phase.RECONCILE,
            verification=verified(3),
            runs=(run_of(Phase.CUTOVER, HOUR_AGO, NOW, "WriterAtWork"),),
        ),
        "Users was still written during the last cutover",
        "apply 0001_users",
    ),
    "two rows share a key": Situation(
        facts(D, Phase.BACKFILL, runs=(run_of(Phase.RECONCILE, HOUR_AGO, NOW, "Collision"),)),
        "a copy",
        "plan 0001_users --exact --show-keys",
    ),
    "at work, paused": Situation(facts(D, Phase.DUAL_WRITE, lease=LIVE, paused=True), "a copy", "resume"),
    "freeze in progress": Situation(
        facts(ControlPhase.FREEZE, Phase.RECONCILE, lease=LIVE),
        "in progress: writes wait",
        "status 0001_users",
    ),
    "cut over": Situation(
        facts(C, Phase.CUTOVER), "rollback is possible", "apply 0001_users --to complete --yes 0001_users"
    ),
    "cut over without a way back": Situation(
        facts(C, Phase.CUTOVER, declared=replace(DECLARED, migration=replace(USERS, reverse=False))),
        "Rollback is not possible",
        "apply 0001_users --to complete --yes 0001_users",
    ),
    "complete": Situation(
        facts(ControlPhase.COMPLETE, Phase.COMPLETE),
        "rollback is no longer possible",
        "retire 0001_users --table Users --backup backup-0001_users",
    ),
    "complete, without evidence": Situation(
        facts(ControlPhase.COMPLETE, Phase.COMPLETE, events=()),
        "rollback is no longer possible",
        "evidence export evidence-0001_users 0001_users",
    ),
    "retired": Situation(facts(ControlPhase.RETIRED, Phase.RETIRE), "Users is deleted", ""),
    "edited": Situation(
        facts(D, Phase.RECONCILE, declared=replace(DECLARED, digest="other")),
        "the script was edited",
        "show 0001_users --script",
    ),
}
UNSAFE = {
    "freeze left behind by a cutover": Situation(
        facts(ControlPhase.FREEZE, Phase.RECONCILE),
        "A cutover was cut off and left the freeze behind",
        "apply 0001_users",
    ),
    "freeze left behind by a rollback": Situation(
        facts(ControlPhase.FREEZE, Phase.CUTOVER, control=control(ControlPhase.FREEZE, came_from=C)),
        "A rollback was cut off and left the freeze behind",
        "apply 0001_users",
    ),
    "lost": Situation(
        facts(None, Phase.RECONCILE), "the restricted store does not know it", "status 0001_users"
    ),
    "unreachable": Situation(
        facts(None, Phase.RECONCILE, unreachable="the store is down"),
        "Not known: the store is down",
        "status 0001_users",
    ),
}


@pytest.mark.parametrize("case", [*SAFE, *UNSAFE])
def test_each_state_has_a_verdict(case: str) -> None:
    known, sentence, command = {**SAFE, **UNSAFE}[case]
    status = judge(known)
    assert status.verdict.safe is (case in SAFE)
    assert sentence in status.verdict.sentence
    assert status.verdict.command == command
    assert status.as_json()["next"]["command"] == (f"rekey {command}" if command else "")


def test_after_cutover_the_way_back_is_named_and_without_one_it_is_not() -> None:
    assert "rekey rollback 0001_users --writers-stopped" in judge(facts(C, Phase.CUTOVER)).verdict.remark
    final = replace(DECLARED, migration=replace(USERS, reverse=False))
    assert judge(facts(C, Phase.CUTOVER, declared=final)).verdict.remark == ""


def test_the_retention_period_is_said_with_its_end() -> None:
    row = control(ControlPhase.COMPLETE, completed_at=HOUR_AGO)
    waiting = judge(facts(ControlPhase.COMPLETE, Phase.COMPLETE, control=row, gates=Gates(retention_s=7200)))
    assert waiting.retention_ends_at == "2024-01-02T01:00:00.0000000Z"
    assert "2024-01-02 01:00:00Z" in waiting.verdict.remark
    over = judge(facts(ControlPhase.COMPLETE, Phase.COMPLETE, control=row, gates=Gates(retention_s=60)))
    assert over.verdict.remark == "this deletes Users; first `rekey export Users backup-0001_users`"


def test_the_control_row_is_believed_before_the_ledger() -> None:
    """A runner that was killed between the two, or a state file that was lost."""
    assert judge(facts(C, Phase.RECONCILE)).stage == "cutover done"
    assert judge(facts(D, None)).stage == "following done"


def test_a_run_that_was_cut_off_is_told_from_one_at_work_and_one_that_stopped() -> None:
    open_run = run_of(Phase.BACKFILL, HOUR_AGO, None, None)
    cut = facts(D, Phase.DUAL_WRITE, runs=(open_run,))
    assert judge(cut).stage == f"following done; backfill was cut off; it began {moment(HOUR_AGO)}"
    assert (
        judge(changed(cut, lease=LIVE)).stage == f"following done; backfill at work since {moment(HOUR_AGO)}"
    )
    stopped = run_of(Phase.BACKFILL, HOUR_AGO, NOW, "Interrupted")
    told = judge(changed(cut, runs=(stopped,))).stage
    assert told == f"following done; backfill stopped {moment(NOW)} (on request)"


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


# --- the clients of capture "dual-write" ------------------------------------------------------------------

DUAL = replace(DECLARED, migration=replace(USERS, capture="dual-write"))
WEB = ClientRow(
    "c0ffee", "web", "old", "host-b", 12, "0.1", 3, 15.0, 30.0, ticks_of(NOW), counters={}, run_id="run"
)
SECOND = 10_000_000


def dual(phase: ControlPhase, last: Phase, *clients: ClientRow, **more: Any) -> Facts:
    intents = more.pop("intents", Intents(0, None))
    return facts(phase, last, declared=DUAL, clients=clients, intents=intents, **more)


def aged(seconds: float, **more: Any) -> ClientRow:
    """A client whose last beat was so long ago."""
    return replace(WEB, beat_at=ticks_of(NOW) - round(seconds * SECOND), **more)


def told(known: Facts) -> str:
    return "\n".join(tell.status_lines(judge(known), "rekey {}".format))


@pytest.mark.parametrize(("ago_s", "said"), [(300, True), (940, True), (960, False)])
def test_a_client_that_was_given_up_may_be_heard_of_while_its_signatures_hold(
    ago_s: float, said: bool
) -> None:
    """`complete` and rollbacks compare everything until then, and its intents are kept."""
    flat = " ".join(told(dual(D, Phase.RECONCILE, aged(ago_s))).split())
    assert "over, nothing of it can take effect any more" in flat
    assert ("unless it was suspended: then until" in flat) is said


def test_clients_are_shown_with_what_they_go_by_and_how_long_they_may_still_act() -> None:
    known = dual(
        D, Phase.RECONCILE, WEB, aged(20, name="batch", epoch=2), aged(300, name="old one"), aged(1, epoch=9)
    )
    text = told(known)
    assert "2 live, 1 silent, 1 over" in text
    assert "web: process 12 on host-b, old view, rekey 0.1; follows" in text
    flat = " ".join(text.split())
    assert "rekey 0.1; does not follow the last change of phase yet; silent, over at" in flat
    assert "2024-01-02 00:00:30Z at the latest" in flat
    assert "old one: process 12 on host-b, old view, rekey 0.1; over, nothing of it" in flat
    assert text.index("batch:") < text.index("web:"), "first whom somebody may have to look after"
    shown = judge(known).as_json()["clients"]
    assert [(one["name"], one["current"], one["standing"]) for one in shown] == [
        ("web", True, "live"),
        ("batch", False, "silent"),
        ("old one", True, "over"),
        ("web", True, "live"),
    ]
    assert shown[1]["over_at"] == "2024-01-02T00:00:30.0000000Z"


def test_an_epoch_of_another_run_is_behind() -> None:
    status = judge(dual(D, Phase.RECONCILE, replace(WEB, run_id="before", epoch=9), verification=verified()))
    assert [one.current for one in status.clients] == [False]
    assert status.verdict.command == "status 0001_users"
    assert "why web (process 12 on host-b) does not follow" in status.verdict.remark


def test_what_matters_comes_first_and_what_is_internal_only_where_it_is_asked_for() -> None:
    known = facts(
        D,
        Phase.BACKFILL,
        verification=verified(1),
        segments=(Segment(1, SCRIPT, "backfill", rows=1, done=True),),
    )
    labels = [line.split()[0] for line in told(known).splitlines()[1:] if line[2:3].strip()]
    assert labels[:3] == ["safe", "next", "stage"]
    text = " ".join(told(known).split())
    for word in ("epoch", "segment", "control row"):
        assert word not in text
    asked = " ".join(" ".join(tell.status_lines(judge(known), "rekey {}".format, verbose=True)).split())
    assert "control row `dual_write`, epoch 3" in asked and "1 of 1 segment done" in asked
    everybody = tell.status_lines(judge(dual(D, Phase.RECONCILE, WEB)), "rekey {}".format, verbose=True)
    assert "follows (epoch 3)" in " ".join(" ".join(everybody).split())


def worked(*sittings: tuple[str, str]) -> Verification:
    """Return a verification of these sittings, which ended with the last of them."""
    read = [
        {"table": "Users", "sitting": number, "begun_at": begin, "ended_at": end, "rows": 10}
        for number, (begin, end) in enumerate(sittings, 1)
    ]
    return replace(verified(at=sittings[-1][1]), started_at=sittings[0][0], report={"read": read})


TWO_DAYS = ("2023-12-29T12:00:00Z", "2023-12-31T12:00:00Z")  # begun three and a half days ago


@pytest.mark.parametrize(
    ("verification", "max_age_s", "opens"),
    [
        (worked(TWO_DAYS), None, True),
        (worked(TWO_DAYS), 24 * 3600, False),
        (worked((TWO_DAYS[0], "2023-12-29T13:00:00Z"), ("2023-12-31T11:00:00Z", TWO_DAYS[1])), None, False),
        (worked(("2024-01-01T22:30:00Z", "2024-01-01T23:59:00Z")), 3600, False),
        (worked(("2024-01-01T23:00:00Z", "2024-01-01T23:10:00Z")), None, True),
        (worked(("2023-12-31T20:00:00Z", "2023-12-31T21:00:00Z"), (HOUR_AGO, NOW)), None, False),
    ],
    ids=["two days", "the age is set", "cut off for long", "younger end", "minutes", "break"],
)
def test_a_verification_counts_for_a_day_or_twice_what_it_worked_unless_the_age_is_set(
    verification: Verification, max_age_s: float | None, opens: bool
) -> None:
    known = facts(
        D, Phase.RECONCILE, verification=verification, gates=Gates(verification_max_age_s=max_age_s)
    )
    assert (not judge(known).verification_closes) is opens
    text = " ".join(told(known).split())
    assert ("twice what it took" in text) is (opens and verification.started_at == TWO_DAYS[0])


def test_one_row_is_not_told_as_many() -> None:
    known = facts(
        D,
        Phase.BACKFILL,
        verification=verified(1),
        segments=(Segment(1, SCRIPT, "backfill", rows=1, done=True),),
    )
    text = " ".join(told(known).split())
    assert "copied 1 row " in text and "verified 1 row differs, 10 source rows compared" in text
    assert "found 1 row that differs: cutover stays closed" in text
    assert "1 write not settled yet" in told(dual(C, Phase.CUTOVER, WEB, intents=Intents(1, ticks_of(NOW))))


def test_many_clients_are_counted_and_only_some_are_listed() -> None:
    text = told(dual(D, Phase.RECONCILE, *(replace(WEB, name=f"web-{n}") for n in range(15))))
    assert "15 live" in text
    assert text.count("web-") == 12
    assert "and 3 more" in text


def test_without_clients_it_is_said_that_no_write_is_followed() -> None:
    known = dual(D, Phase.RECONCILE, aged(300), verification=verified())
    assert "No client of the application is registered" in judge(known).verdict.sentence
    assert "--writers-stopped" in judge(known).verdict.remark
    assert "none is registered" in told(dual(D, Phase.RECONCILE))
    assert "clients" not in told(facts(D, Phase.RECONCILE)), "there are none in capture delta"


def test_a_client_that_refuses_writes_needs_somebody_now_and_in_source_before_it_does() -> None:
    refusing = replace(WEB, refuses="digest-moved")
    now = judge(dual(D, Phase.RECONCILE, WEB, refusing, verification=verified()))
    assert (now.verdict.safe, now.verdict.command) == (False, "status 0001_users")
    assert "web (process 12 on host-b) refuses writes (`digest-moved`)" in now.verdict.sentence
    assert now.verdict.remark == "first deploy the script that the migration was begun with, unchanged"
    soon = judge(dual(ControlPhase.SOURCE, Phase.PREPARE, refusing))
    assert soon.verdict.safe
    assert "will refuse writes" in soon.verdict.sentence
    gone = judge(dual(C, Phase.CUTOVER, replace(WEB, refuses="control-gone")))
    assert "restart it" in gone.verdict.remark
    assert "refuses dual writes (`digest-moved`)" in " ".join(
        told(dual(D, Phase.RECONCILE, refusing)).split()
    )
    ended = judge(dual(D, Phase.RECONCILE, aged(300, refuses="digest-moved"), WEB))
    assert ended.verdict.safe, "it is over"


def test_the_journal_tells_how_far_replicas_are_behind() -> None:
    empty = judge(dual(D, Phase.RECONCILE, WEB))
    assert (empty.lag_s, empty.as_json()["journal"]) == (0.0, {"depth": 0, "oldest_at": None, "kept": 0})
    known = dual(C, Phase.CUTOVER, WEB, intents=Intents(1200, ticks_of(NOW) - 90 * SECOND))
    assert judge(known).lag_s == 90.0
    assert "1,200 writes not settled yet: replicas are behind by 90 s at most" in told(known)
    assert judge(known).as_json()["journal"] == {
        "depth": 1200,
        "oldest_at": "2024-01-01T23:58:30.0000000Z",
        "kept": 0,
    }
    assert judge(dual(ControlPhase.COMPLETE, Phase.COMPLETE, WEB)).lag_s is None


ABANDONED = Abandoned(3, 1, since=ticks_of(NOW) - 200 * SECOND, due_at=ticks_of(NOW) - 10 * SECOND)
"""Of a client that is gone; due since ten seconds."""


def left(abandoned: Abandoned, *clients: ClientRow, **more: Any) -> Facts:
    intents = Intents(abandoned.intents, abandoned.since, abandoned=abandoned)
    return dual(C, Phase.CUTOVER, *clients, intents=intents, **more)


def test_writes_that_dead_clients_left_are_told_with_who_finishes_them_and_when() -> None:
    known = left(ABANDONED, replace(WEB, client_id="b", name="reader"), WEB, aged(300, name="dead"))
    assert judge(known).verdict.safe, "somebody is about to finish them"
    text = " ".join(told(known).split())
    assert "3 writes of 1 client gone, the first of 2024-01-01 23:56:40Z" in text
    assert "reader (process 12 on host-b) finishes them now, or one of 1 more if it cannot" in text
    early = replace(ABANDONED, due_at=ticks_of(NOW) + 20 * SECOND)
    assert "finishes them from 2024-01-02 00:00:20Z on" in " ".join(told(left(early, WEB)).split())
    assert judge(known).as_json()["journal"]["abandoned"] == {
        "intents": 3,
        "clients": 1,
        "since": "2024-01-01T23:56:40.0000000Z",
        "due_at": "2024-01-01T23:59:50.0000000Z",
    }


def test_writes_that_nobody_finishes_need_attention_and_a_command() -> None:
    alone = judge(left(ABANDONED, aged(300, name="dead")))
    assert (alone.verdict.safe, alone.verdict.command) == (False, f"verify {SCRIPT} --mode sample")
    assert "3 writes of clients that are gone, the first of 2024-01-01 23:56:40Z" in alone.verdict.sentence
    assert "no live client is registered that would finish them" in alone.verdict.sentence
    early = judge(left(replace(ABANDONED, due_at=ticks_of(NOW) + 20 * SECOND), aged(30, name="dead")))
    assert early.verdict.remark.startswith("not before 2024-01-02 00:00:20Z")
    overdue = judge(left(replace(ABANDONED, due_at=ticks_of(NOW) - 91 * SECOND), WEB))
    assert (overdue.verdict.safe, overdue.verdict.command) == (False, f"verify {SCRIPT} --mode sample")
    assert "web (process 12 on host-b) should have finished them" in overdue.verdict.sentence
    unverified = Intents(3, ABANDONED.since, abandoned=ABANDONED)
    compares = judge(dual(D, Phase.RECONCILE, intents=unverified)).verdict
    assert (compares.safe, compares.command) == (False, f"verify {SCRIPT} --mode full"), "that settles, too"
    refusing = judge(left(ABANDONED, replace(WEB, refuses="digest-moved")))
    assert refusing.facts.settlers == (), "what refuses writes settles nothing"


def test_nobody_is_sent_after_writes_that_nothing_follows() -> None:
    """After a cutover without a way back the source follows no more; in a freeze the runner settles."""
    one_way = replace(DUAL, migration=replace(DUAL.migration, reverse=False))
    known = replace(left(ABANDONED, WEB), declared=one_way)
    assert (known.settlers, judge(known).verdict.safe) == ((), True)
    frozen = control(ControlPhase.FREEZE, came_from=D, frozen_at=HOUR_AGO)
    cut_off = judge(
        dual(ControlPhase.FREEZE, Phase.RECONCILE, WEB, control=frozen, intents=known.store.intents)
    )
    assert (cut_off.facts.settlers, cut_off.verdict.command) == ((), f"apply {SCRIPT}")


def test_writes_that_dead_clients_left_are_the_runners_while_it_works() -> None:
    at_work = left(ABANDONED, lease=LIVE)
    assert judge(at_work).verdict.safe
    assert "the runner that is at work finishes them" in " ".join(told(at_work).split())


async def test_intents_of_clients_that_do_not_beat_any_more_are_abandoned() -> None:
    """Not those of live clients, and not young ones of processes without a row."""
    clock = FakeClock()
    memory = MemoryTableService(clock=clock)
    await memory.create_table(JOURNAL_TABLE)
    journal = Journal(memory.table(JOURNAL_TABLE), SCRIPT, open_s=35.0, now=memory.clock.ticks)
    for client_id in ("live", "silent", "silent", "over", "ended"):
        await journal.begin(client_id, 1, "source", [EntityKey("p", "r")])
    [kept] = await journal.begin("over", 1, "source", [EntityKey("p", "r")])
    await journal.keep(kept.id, kept.etag)
    began = memory.clock.ticks()

    def row(client_id: str, at: int) -> ClientRow:
        return replace(WEB, client_id=client_id, beat_at=at)

    now = began + 20 * SECOND
    rows = [row("live", now), row("silent", began), row("over", began - 3600 * SECOND)]
    soon = await _intents(memory, SCRIPT, rows, now)
    assert (soon.depth, soon.kept) == (5, 1)
    assert (soon.abandoned.intents, soon.abandoned.clients) == (3, 2)
    assert soon.abandoned.due_at == began + 50 * SECOND
    later = await _intents(memory, SCRIPT, rows, began + 36 * SECOND)
    assert (later.abandoned.intents, later.abandoned.clients) == (5, 4)
    [intent] = [one async for page in journal.scan() for one in page if one.client_id == "ended"]
    clock.advance(60)
    assert await journal.claim(intent, "live", 1, 20.0)
    claimed = await _intents(memory, SCRIPT, rows, began + 100 * SECOND)
    assert claimed.oldest_at == began, "trying again makes nothing younger"
    assert claimed.abandoned.since == began


def test_a_killed_runner_is_told_at_once() -> None:
    killed = replace(LIVE, live=False, killed=True)
    text = " ".join(told(dual(D, Phase.DUAL_WRITE, WEB, lease=killed)).split())
    assert "process 4711 on host-a, was killed; its lease is free, the next command need not wait" in text
    assert "next rekey apply 0001_users" in text


def test_what_clients_have_counted_is_added_up_also_of_those_that_ended() -> None:
    counters = {"writes": 600, "replica_failures": 2, "matched": 7, "mismatched": 1, "ignored": 0}
    known = dual(C, Phase.CUTOVER, replace(WEB, counters=counters), aged(300, counters=counters))
    assert judge(known).as_json()["counted"]["writes"] == 1200
    text = " ".join(told(known).split())
    assert "1,200 writes, 4 replica failures; shadow reads: 14 matched, 2 mismatched, 0 ignored" in text


def test_a_freeze_says_whom_it_waits_for_and_until_when_at_most() -> None:
    frozen = control(ControlPhase.FREEZE, came_from=D, frozen_at="2024-01-01T23:59:59Z")
    known = dual(ControlPhase.FREEZE, Phase.RECONCILE, WEB, control=frozen, lease=LIVE)
    assert judge(known).verdict.remark == "look again in a few seconds"
    busy = changed(known, clients=(replace(WEB, epoch=2, in_flight=1), WEB))
    assert judge(busy).verdict.remark == "it waits for web (process 12 on host-b) to end what it has begun"
    silent = changed(known, clients=(WEB, aged(20, name="batch", epoch=2)))
    assert judge(silent).verdict.remark == (
        "batch (process 12 on host-b) is silent, and is waited for until 2024-01-02 00:00:30Z at most"
    )
    impatient = replace(silent, gates=Gates(freeze_timeout_s=10))
    assert "the freeze is aborted at 2024-01-02 00:00:09Z" in judge(impatient).verdict.remark
    times = {"frozen_at": HOUR_AGO, "updated_at": "2024-01-01T23:59:59Z"}
    back = replace(frozen, came_from=ControlPhase.CUTOVER, **times)
    going_back = replace(impatient, store=replace(impatient.store, control=back))
    assert "the freeze is aborted at 2024-01-02 00:00:09Z" in judge(going_back).verdict.remark
    over = changed(known, clients=(WEB, aged(300, epoch=2)))
    assert judge(over).verdict.remark == "look again in a few seconds"


@pytest.mark.parametrize(
    ("phase", "last", "sentence"),
    [
        (
            D,
            Phase.RECONCILE,
            "Users is the authority and rekey only reads it; TicketsClosed and TicketsOpen are copies.",
        ),
        (C, Phase.CUTOVER, "TicketsClosed and TicketsOpen are the authority, and rollback is possible"),
        (
            ControlPhase.RETIRED,
            Phase.RETIRE,
            "Users is deleted, TicketsClosed and TicketsOpen have taken over.",
        ),
    ],
)
def test_several_tables_are_spoken_of_as_several(phase: ControlPhase, last: Phase, sentence: str) -> None:
    known = facts(phase, last, declared=SPLIT, verification=verified())
    assert sentence in judge(known).verdict.sentence


def test_a_freeze_of_several_tables_says_that_they_are_the_authority() -> None:
    frozen = control(ControlPhase.FREEZE, came_from=C)
    sentence = judge(facts(ControlPhase.FREEZE, declared=SPLIT, control=frozen)).verdict.sentence
    assert "TicketsClosed and TicketsOpen are still the authority." in sentence


def test_rows_of_the_one_missing_table_of_several_are_not_said_to_be_held() -> None:
    verdict = judge(facts(C, Phase.CUTOVER, declared=SPLIT, missing=("TicketsOpen",))).verdict
    assert verdict.sentence.startswith(
        "TicketsOpen does not exist, and the application works on TicketsClosed and TicketsOpen:"
    )
    assert "Users may hold the only copy of its rows: drop nothing" in verdict.sentence


def test_commands_in_remarks_are_as_they_are_to_be_typed() -> None:
    lines = tell.status_lines(judge(facts(C, Phase.CUTOVER)), "rekey {} --config shop.toml".format)
    said = " ".join(" ".join(lines).split())
    assert "`rekey rollback 0001_users --writers-stopped --config shop.toml`" in said


def test_after_cutover_clients_keep_the_source_current_and_a_rollback_stops_no_writers() -> None:
    status = judge(dual(C, Phase.CUTOVER, WEB))
    assert "clients keep Users current" in status.verdict.sentence
    assert status.verdict.remark.endswith("`rekey rollback 0001_users`")


async def test_delta_reads_no_clients(memory: MemoryTableService, clock: FakeClock, tmp_path: Path) -> None:
    config = Config(tmp_path / "rekey.toml", ACCOUNT, ACCOUNT, tmp_path / "state", tmp_path)
    await Registry(memory, SCRIPT).beat(WEB)
    with State.open(config.state) as state:
        found = await read_facts(
            Sources(config, {SCRIPT: DUAL}, state, Accounts(memory, memory), clock), DUAL
        )
        assert [row.name for row in found.store.clients] == ["web"]
        assert found.store.intents == Intents(0, None), "no table yet"
        journal = memory.table(JOURNAL_TABLE)
        await memory.create_table(JOURNAL_TABLE)
        for seconds in (1, 2):
            clock.advance(seconds)
            await Journal(journal, SCRIPT).begin(f"{seconds}", 3, "source", [EntityKey("p", "r")])
        found = await read_facts(
            Sources(config, {SCRIPT: DUAL}, state, Accounts(memory, memory), clock), DUAL
        )
        assert found.store.intents.depth == 2
        await Registry(memory, SCRIPT).delete(WEB.client_id, {"writes": 5})
        gone = await read_facts(Sources(config, {SCRIPT: DUAL}, state, Accounts(memory, memory), clock), DUAL)
        assert (gone.store.clients, judge(gone).counted) == ((), {"writes": 5}), "what it did stays"
        assert found.now - (found.store.intents.oldest_at or 0) == 2 * SECOND
        delta = await read_facts(
            Sources(config, {SCRIPT: DECLARED}, state, Accounts(memory, memory), clock), DECLARED
        )
        assert (delta.store.clients, delta.store.intents) == ((), None)


@pytest.mark.skipif(sys.platform != "linux", reason="told by /proc")
async def test_a_killed_runner_is_idle(memory: MemoryTableService, clock: FakeClock, tmp_path: Path) -> None:
    """Its lease has not ended, its parent has not collected it, and it left its pulse: also where the store
    cannot be asked nobody is told to look again."""
    config = Config(tmp_path / "rekey.toml", ACCOUNT, ACCOUNT, tmp_path / "state", tmp_path)
    await memory.create_table(CONTROL_TABLE)
    runner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = Holder.current(lock="1:2")
    holder = replace(here, pid=runner.pid, process="runner", started=started_at(runner.pid))
    record = {"pid": runner.pid, "host": here.host, "since": NOW, "boot": here.boot}
    record |= {"namespace": here.namespace, "started": holder.started}
    await memory.table(CONTROL_TABLE).insert(lease.to_row(SCRIPT, "id", holder))

    async def at_work() -> tuple[bool, bool]:
        write(config.state, Pulse(clock.ticks(), SCRIPT))
        memory.faults = PlannedFaults()
        known = await read_facts(
            Sources(config, {SCRIPT: DUAL}, state, Accounts(memory, memory), clock), DUAL
        )
        assert known.store.lease.killed is not known.at_work
        memory.faults = PlannedFaults(Planned(Fault(FaultKind.NOT_SENT), times=100))
        away = await read_facts(Sources(config, {SCRIPT: DUAL}, state, Accounts(memory, memory), clock), DUAL)
        assert away.store.unreachable
        return known.at_work, away.at_work

    with State.open(config.state) as state:
        FileLock(config.state).path.write_text(json.dumps(record))
        assert await at_work() == (True, True)
        runner.kill()
        os.waitid(os.P_PID, runner.pid, os.WEXITED | os.WNOWAIT)
        assert await at_work() == (False, False)
        runner.communicate()
        assert await at_work() == (False, False)
