"""The file lock: one runner at a time, gone with the process that held it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rekey.errors import ExitCode, Locked
from rekey.state.filelock import FileLock

HOLDER = """
import sys
from pathlib import Path
from rekey.state.filelock import FileLock
with FileLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_at_once_and_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    with holder(path) as other, pytest.raises(Locked) as refused:
        FileLock(path).acquire()
    assert f"pid {other.pid}" in refused.value.what
    assert "since 20" in refused.value.what
    assert refused.value.exit_code == ExitCode.REFUSED


def test_the_lock_goes_with_the_process_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    with holder(path) as other:
        other.kill()
        other.wait()
        with FileLock(path) as lock:
            assert lock.is_held


def test_a_holder_that_has_not_signed_yet_is_still_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    with holder(path):
        path.with_name("state.sqlite.lock").write_text("{", encoding="utf-8")
        with pytest.raises(Locked, match="Another rekey command is running"):
            FileLock(path).acquire()


def test_it_can_be_taken_again_after_release_and_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "state.sqlite"
    with FileLock(path) as lock:
        assert lock.is_held
    assert not lock.is_held
    lock.release()
    with lock, pytest.raises(Locked):
        FileLock(path).acquire()
    assert path.with_name("state.sqlite.lock").exists()
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_it_vouches_only_for_its_own_state_file_while_held(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "a")
    with pytest.raises(RuntimeError):
        lock.require(tmp_path / "a")
    with lock:
        lock.require(tmp_path / "a")
        with pytest.raises(RuntimeError):
            lock.require(tmp_path / "b")
        with pytest.raises(RuntimeError):
            lock.acquire()


def test_a_child_started_by_the_holder_does_not_inherit_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    lock = FileLock(path).acquire()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        lock.release()
        with FileLock(path) as again:
            assert again.is_held
            assert os.getpid() != child.pid
    finally:
        child.communicate(b"\n")
