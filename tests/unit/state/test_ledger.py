"""The ledger: yoyo carries out phases in order, each once, and stays out of the way otherwise."""

from __future__ import annotations

import logging
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from yoyo.exceptions import BadMigration

from rekey.declaration.migration import Declared
from rekey.declaration.scripts import load_scripts
from rekey.errors import GateClosed, Locked, MachineFailed, Refused, RekeyError, StateUnusable
from rekey.phases import ORDER, Phase
from rekey.state.applied import applied_phases, handover
from rekey.state.backend import StateBackend
from rekey.state.filelock import FileLock
from rekey.state.ledger import Ledger, Step
from rekey.state.store import State
from tests.worlds.scripts import filling


def script(name: str, *depends: str, source: str = "", targets: Sequence[str] = ()) -> Declared:
    return filling(name, source or f"{name}Old", *(targets or (f"{name}New",)), depends=depends)


USERS = filling("0001_users", "Users", "UsersV2", "UsersByTag")


class Recorder:
    """Steps that note what was asked of them, and do what a test wants at one of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.at: dict[str, Callable[[], None]] = {}

    def run(self, script_id: str, phase: Phase) -> None:
        self._note(f"+{script_id}.{phase}")

    def undo(self, script_id: str, phase: Phase) -> None:
        self._note(f"-{script_id}.{phase}")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.at.get(call, lambda: None)()

    def raises(self, call: str, error: BaseException) -> None:
        def fail() -> None:
            raise error

        self.at[call] = fail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


@pytest.fixture
def lock(path: Path) -> Iterator[FileLock]:
    with FileLock(path) as held:
        yield held


@pytest.fixture
def steps() -> Recorder:
    return Recorder()


@pytest.fixture
def open_ledger(path: Path, lock: FileLock, steps: Recorder) -> Callable[..., Ledger]:
    def opened(*scripts: Declared, run: Step = steps.run, undo: Step = steps.undo) -> Ledger:
        return Ledger(path, scripts or (USERS,), run=run, undo=undo, lock=lock)

    return opened


OpenLedger = Callable[..., Ledger]


def test_phases_run_once_in_order_up_to_the_target(open_ledger: OpenLedger, steps: Recorder) -> None:
    ledger = open_ledger()
    assert ledger.applied("0001_users") == []
    ran = ledger.apply("0001_users", Phase.BACKFILL)
    assert ran == [Phase.PREPARE, Phase.DUAL_WRITE, Phase.BACKFILL]
    assert steps.calls == ["+0001_users.prepare", "+0001_users.dual_write", "+0001_users.backfill"]
    assert ledger.apply("0001_users", Phase.BACKFILL) == []
    assert ledger.apply("0001_users", Phase.RECONCILE) == [Phase.RECONCILE]
    assert ledger.applied("0001_users") == list(ORDER[:4])


def test_what_is_applied_is_still_applied_for_the_next_process(open_ledger: OpenLedger, path: Path) -> None:
    open_ledger().apply("0001_users", Phase.DUAL_WRITE)
    assert open_ledger().applied("0001_users") == [Phase.PREPARE, Phase.DUAL_WRITE]
    with State.open(path, read_only=True) as state:
        assert applied_phases(state.ledger_ids(), "0001_users") == [Phase.PREPARE, Phase.DUAL_WRITE]


def test_a_failed_step_raises_its_error_and_marks_nothing(open_ledger: OpenLedger, steps: Recorder) -> None:
    closed = GateClosed("cutover", ["no verification"], hint="verify")
    steps.raises("+0001_users.backfill", closed)
    ledger = open_ledger()
    with pytest.raises(GateClosed) as caught:
        ledger.apply("0001_users", Phase.RECONCILE)
    assert caught.value is closed
    assert ledger.applied("0001_users") == [Phase.PREPARE, Phase.DUAL_WRITE]
    steps.at.clear()
    steps.calls.clear()
    assert ledger.apply("0001_users", Phase.RECONCILE) == [Phase.BACKFILL, Phase.RECONCILE]
    assert steps.calls == ["+0001_users.backfill", "+0001_users.reconcile"]


def test_an_interruption_releases_the_lock(open_ledger: OpenLedger, steps: Recorder, path: Path) -> None:
    steps.raises("+0001_users.dual_write", KeyboardInterrupt())
    ledger = open_ledger()
    with pytest.raises(KeyboardInterrupt):
        ledger.apply("0001_users", Phase.BACKFILL)

    def lock_rows() -> None:
        rows = sqlite3.connect(path)
        seen.extend(rows.execute("SELECT pid FROM yoyo_lock"))
        rows.close()

    seen: list[tuple[int]] = []
    steps.at = {"+0001_users.dual_write": lock_rows}
    ledger.apply("0001_users", Phase.DUAL_WRITE)
    assert len(seen) == 1, "yoyo's own lock is held while a step runs"


def test_a_disk_that_is_full_when_the_lock_is_taken_is_told_as_such_and_at_once(
    open_ledger: OpenLedger, steps: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """yoyo takes it for a lock, waits, and leaves a transaction open in which nobody can write any more."""
    ledger = open_ledger()
    ledger.apply("0001_users", Phase.PREPARE)
    execute, tries = StateBackend.execute, []

    def full(self: StateBackend, sql: str, params: Any = None) -> Any:
        if "INSERT INTO" in sql and "yoyo_lock" in sql:
            tries.append(sql)
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"
            raise error
        return execute(self, sql, params)

    with monkeypatch.context() as patched:
        patched.setattr(StateBackend, "execute", full)
        with pytest.raises(MachineFailed, match="no space is left"):
            ledger.apply("0001_users", Phase.DUAL_WRITE)
    assert (len(tries), steps.calls) == (1, ["+0001_users.prepare"])
    ledger.apply("0001_users", Phase.DUAL_WRITE)


def test_a_ledger_that_plain_yoyo_has_locked_is_left_alone(
    open_ledger: OpenLedger, steps: Recorder, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no file lock; only its row shows it."""
    ledger = open_ledger()
    execute = StateBackend.execute

    def breaking(self: StateBackend, sql: str, params: Any = None) -> Any:
        done = execute(self, sql, params)
        if "DELETE FROM" in sql and "yoyo_lock" in sql and not params:
            execute(self, "INSERT INTO yoyo_lock (locked, pid) VALUES (1, 4711)")
        return done

    monkeypatch.setattr(StateBackend, "execute", breaking)
    with pytest.raises(Locked, match="locked by another process"):
        ledger.apply("0001_users", Phase.PREPARE)
    assert steps.calls == []


@pytest.mark.parametrize(
    "error", [sqlite3.OperationalError("x"), sqlite3.IntegrityError("x"), BadMigration("x")], ids=repr
)
def test_database_errors_never_leak(open_ledger: OpenLedger, steps: Recorder, error: Exception) -> None:
    """yoyo would undo earlier steps after the first kind, and go on to the next phase after the second."""
    steps.raises("+0001_users.backfill", error)
    ledger = open_ledger()
    with pytest.raises(MachineFailed):
        ledger.apply("0001_users", Phase.RECONCILE)
    assert steps.calls == ["+0001_users.prepare", "+0001_users.dual_write", "+0001_users.backfill"]
    assert ledger.applied("0001_users") == [Phase.PREPARE, Phase.DUAL_WRITE]


def test_rollback_takes_phases_back_last_first(open_ledger: OpenLedger, steps: Recorder) -> None:
    ledger = open_ledger()
    ledger.apply("0001_users", Phase.CUTOVER)
    steps.calls.clear()
    assert ledger.rollback("0001_users", Phase.DUAL_WRITE) == [Phase.CUTOVER, Phase.RECONCILE, Phase.BACKFILL]
    assert steps.calls == ["-0001_users.cutover", "-0001_users.reconcile", "-0001_users.backfill"]
    assert ledger.applied("0001_users") == [Phase.PREPARE, Phase.DUAL_WRITE]
    ledger.rollback("0001_users", None)
    assert ledger.applied("0001_users") == []
    assert ledger.apply("0001_users", Phase.PREPARE) == [Phase.PREPARE], "a new start is a whole start"


def test_a_failed_rollback_keeps_the_remaining_phases(open_ledger: OpenLedger, steps: Recorder) -> None:
    ledger = open_ledger()
    ledger.apply("0001_users", Phase.RECONCILE)
    steps.raises("-0001_users.backfill", RekeyError("no"))
    with pytest.raises(RekeyError, match="no"):
        ledger.rollback("0001_users", None)
    assert ledger.applied("0001_users") == [Phase.PREPARE, Phase.DUAL_WRITE, Phase.BACKFILL]


def test_there_is_no_way_back_from_complete(open_ledger: OpenLedger, steps: Recorder) -> None:
    ledger = open_ledger()
    ledger.apply("0001_users", Phase.COMPLETE)
    steps.calls.clear()
    with pytest.raises(Refused, match="complete"):
        ledger.rollback("0001_users", None)
    assert steps.calls == []


def test_a_script_waits_for_cutover_of_its_dependency(open_ledger: OpenLedger, steps: Recorder) -> None:
    ledger = open_ledger(script("a"), script("b", "a"))
    ledger.apply("a", Phase.RECONCILE)
    with pytest.raises(GateClosed, match="b waits for `cutover` of a"):
        ledger.apply("b", Phase.PREPARE)
    ledger.apply("a", Phase.CUTOVER)
    ledger.apply("b", Phase.PREPARE)
    assert steps.calls[-1] == "+b.prepare"


def test_a_script_that_starts_from_the_others_target_waits_for_complete(open_ledger: OpenLedger) -> None:
    first, second = script("a", targets=("Main", "Tags")), script("b", "a", source="TAGS")
    assert handover(first, second) is Phase.COMPLETE
    ledger = open_ledger(first, second)
    ledger.apply("a", Phase.CUTOVER)
    with pytest.raises(GateClosed, match="b waits for `complete` of a"):
        ledger.apply("b", Phase.PREPARE)


def test_a_script_on_which_another_one_builds_is_not_taken_back(open_ledger: OpenLedger) -> None:
    ledger = open_ledger(script("a"), script("b", "a"))
    ledger.apply("a", Phase.CUTOVER)
    ledger.apply("b", Phase.PREPARE)
    with pytest.raises(Refused, match="b builds on a"):
        ledger.rollback("a", Phase.RECONCILE)
    ledger.rollback("b", None)
    assert ledger.rollback("a", Phase.RECONCILE) == [Phase.CUTOVER]


def test_the_shipped_scripts_can_be_carried_out_in_order(open_ledger: OpenLedger) -> None:
    folder = Path(__file__).parents[3] / "migrations"
    scripts = load_scripts(folder)
    ledger = open_ledger(*scripts)
    for entry in scripts:
        assert ledger.apply(entry.script_id, Phase.COMPLETE) == list(ORDER[:6])


def test_opening_a_second_time_keeps_the_order_between_scripts(open_ledger: OpenLedger) -> None:
    """yoyo finds dependencies in a table of the whole process, in which the second opening is the newer."""
    first = open_ledger(script("a"), script("b", "a"))
    open_ledger(script("a"), script("b", "a"))
    with pytest.raises(GateClosed):
        first.apply("b", Phase.PREPARE)


def test_phases_can_be_noted_without_being_carried_out(open_ledger: OpenLedger, steps: Recorder) -> None:
    ledger = open_ledger()
    ledger.align("0001_users", [Phase.DUAL_WRITE, Phase.PREPARE])
    ledger.align("0001_users", [Phase.PREPARE, Phase.DUAL_WRITE])
    assert ledger.applied("0001_users") == [Phase.PREPARE, Phase.DUAL_WRITE]
    ledger.align("0001_users", [Phase.PREPARE])
    assert ledger.applied("0001_users") == [Phase.PREPARE]
    assert steps.calls == []


def test_a_ledger_with_a_gap_is_refused(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    ledger.align("0001_users", [Phase.PREPARE, Phase.BACKFILL])
    with pytest.raises(StateUnusable, match="gap"):
        ledger.apply("0001_users", Phase.RECONCILE)


def test_a_step_can_write_state_meanwhile(open_ledger: OpenLedger, path: Path, lock: FileLock) -> None:
    """One file holds both; whoever works in a step must not wait for yoyo, who waits for the step."""
    with State.open(path, lock=lock) as state:

        def run(script_id: str, phase: Phase) -> None:
            state.audit("phase", script_id, {"phase": phase})

        open_ledger(run=run).apply("0001_users", Phase.BACKFILL)
        assert [event.details["phase"] for event in state.audit_events()] == list(ORDER[:3])


def test_yoyo_prints_and_logs_nothing(
    open_ledger: OpenLedger, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        ledger = open_ledger()
        ledger.apply("0001_users", Phase.CUTOVER)
        ledger.rollback("0001_users", None)
    assert caplog.records == []
    assert capsys.readouterr() == ("", "")


def test_the_file_lock_must_be_held(open_ledger: OpenLedger, lock: FileLock) -> None:
    ledger = open_ledger()
    lock.release()
    with pytest.raises(RuntimeError, match="file lock"):
        ledger.apply("0001_users", Phase.PREPARE)


def test_a_live_lock_is_named(open_ledger: OpenLedger, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only reachable when somebody works on the file without the file lock, with yoyo's own command say."""
    ledger = open_ledger()
    ledger.applied("0001_users")
    with StateBackend(path) as other:
        other.begin_exclusive_use()
        monkeypatch.setattr(StateBackend, "begin_exclusive_use", lambda self: None)
        monkeypatch.setattr("yoyo.backends.base.time.sleep", lambda seconds: None)
        monkeypatch.setattr("yoyo.backends.base.time.time", iter(range(0, 10_000, 60)).__next__)
        with other.lock(), pytest.raises(Locked):
            ledger.apply("0001_users", Phase.PREPARE)


KILLED = """
import os, signal, sys
from pathlib import Path
from rekey.phases import Phase
from rekey.state.filelock import FileLock
from rekey.state.ledger import Ledger
from tests.worlds.scripts import filling

def run(script_id, phase):
    if phase is Phase.BACKFILL:
        os.kill(os.getpid(), signal.SIGKILL)

path = Path(sys.argv[1])
users = filling("0001_users", "Users", "UsersV2")
with FileLock(path) as lock:
    Ledger(path, [users], run=run, undo=run, lock=lock).apply("0001_users", Phase.RECONCILE)
"""


def test_a_phase_in_which_the_process_was_killed_is_entered_again(path: Path, steps: Recorder) -> None:
    """SIGKILL leaves yoyo's lock row behind; the file lock shows that nobody is there any more."""
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    with FileLock(path) as lock:
        ledger = Ledger(path, [USERS], run=steps.run, undo=steps.undo, lock=lock)
        assert ledger.applied("0001_users") == [Phase.PREPARE, Phase.DUAL_WRITE]
        assert ledger.apply("0001_users", Phase.RECONCILE) == [Phase.BACKFILL, Phase.RECONCILE]
    assert steps.calls == ["+0001_users.backfill", "+0001_users.reconcile"]
