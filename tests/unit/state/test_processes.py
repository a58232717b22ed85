"""Whether a process runs: ended, killed and not yet collected by its parent, or its id used again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rekey.core.processes import is_running, started_at
from rekey.state.filelock import FileLock, has_ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="told by /proc")


def test_a_process_that_was_killed_does_not_run_although_its_parent_has_not_noticed() -> None:
    """In a container whose first process collects no children, it stays in the process table for ever."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = started_at(child.pid)
    assert started
    assert is_running(child.pid, started)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has collected it
    os.kill(child.pid, 0)
    assert not is_running(child.pid, started)
    assert started_at(child.pid) == ""
    child.communicate()
    assert not is_running(child.pid, started)


def test_another_process_with_the_same_id_is_not_taken_for_it() -> None:
    assert is_running(os.getpid(), started_at(os.getpid()))
    assert is_running(os.getpid(), ""), "a record of an earlier version does not say when it started"
    assert not is_running(os.getpid(), "1")


def test_a_process_of_another_user_runs() -> None:
    assert is_running(1, started_at(1))


def test_the_lock_file_tells_whether_its_last_holder_has_ended(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    assert not has_ended(state), "nobody has held it"
    lock = FileLock(state)
    with lock:
        assert not has_ended(state)
        record = json.loads(lock.path.read_text())
        for other in (
            {"started": "1"},
            {"started": "1", "boot": "another machine"},
            {"started": "1", "namespace": "pid:[1]"},
            {"started": "1", "boot": ""},
        ):
            lock.path.write_text(json.dumps(record | other))
            assert has_ended(state) is (set(other) == {"started"}), "from here nothing else can be told"
        lock.path.write_text('{"pid": 1}')
        assert not has_ended(state), "of an earlier version"
