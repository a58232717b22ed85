"""The file lock on a state file: one runner at a time on this machine. It is taken before yoyo's lock and the
runner lease. `flock(2)` on POSIX; on Windows a locked byte after the content, which stays readable."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from rekey.core.processes import boot_id, is_running, process_namespace, started_at
from rekey.errors import RekeyError
from rekey.state import files
from rekey.state.audit import utc_now, utc_text
from rekey.state.refusals import refusal

if sys.platform == "win32":
    import msvcrt

    _LOCKED_BYTE = 1 << 30

    def try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def try_lock(descriptor: int) -> bool:
        """Lock an open file for this process alone, without waiting; tell whether that worked."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def has_ended(state_path: Path) -> bool:
    """Tell whether the process that last held the lock of a state file is known to have ended. Takes no lock;
    False where that cannot be told from here."""
    try:
        holder = json.loads(_lock_of(state_path).read_text("utf-8"))
        pid, here = int(holder["pid"]), (str(holder["boot"]), str(holder["namespace"]))
        started = str(holder["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return all(here) and here == (boot_id(), process_namespace()) and not is_running(pid, started)


def _lock_of(state_path: Path) -> Path:
    return state_path.with_name(state_path.name + ".lock")


class FileLock:
    """The lock `<state file>.lock`. Not re-entrant: a second one in the same process is refused too.

    The operating system releases it when the process dies, so a held lock means a live process, and none is
    ever broken because of its age.
    """

    def __init__(self, state_path: Path) -> None:
        self.state_path = Path(state_path).absolute()
        self.path = _lock_of(self.state_path)
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    @property
    def identity(self) -> str:
        """Device and inode of the locked file: equal for all processes that lock the same file. Raises
        RuntimeError when the lock is not held."""
        if self._descriptor is None:
            raise RuntimeError("the file lock on the state file must be held")
        stat = os.fstat(self._descriptor)
        return f"{stat.st_dev}:{stat.st_ino}"

    def acquire(self) -> FileLock:
        """Take the lock without waiting.

        Raises:
            Locked: another process (or another FileLock of this one) holds it; the error names pid and start.
            StateUnusable, MachineFailed: see `files.open_private`.
        """
        if self.is_held:
            raise RuntimeError("this lock is already held")
        descriptor = files.open_private(self.path, "lock file")
        try:
            if not try_lock(descriptor):
                raise self._locked(descriptor)
            # For `has_ended` and for another process's error message. A failure is ignored: the lock is the
            # kernel's, so a full disk must not stop it.
            pid = os.getpid()
            holder = {
                "pid": pid,
                "host": socket.gethostname(),
                "since": utc_text(utc_now()),
                "boot": boot_id(),
                "namespace": process_namespace(),
                "started": started_at(pid),
            }
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
                os.lseek(descriptor, 0, os.SEEK_SET)
                os.write(descriptor, json.dumps(holder).encode() + b"\n")
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return self

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._descriptor is not None:
            # The lock file stays: if it were removed, two processes could lock two files of the same name.
            os.close(self._descriptor)  # closing unlocks
            self._descriptor = None

    def require(self, state_path: Path) -> None:
        """Raise RuntimeError (a program fault) unless this lock is held, on that state file."""
        if not self.is_held or self.state_path != Path(state_path).absolute():
            raise RuntimeError("the file lock on the state file must be held")

    def __enter__(self) -> FileLock:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _locked(self, descriptor: int) -> RekeyError:
        who = ""
        try:
            os.lseek(descriptor, 0, os.SEEK_SET)
            holder = json.loads(os.read(descriptor, 4096))
            who = f" (pid {int(holder['pid'])} on {holder['host']}, since {holder['since']})"
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the holder has not written its name yet
        return refusal("already-running", who=who, path=self.state_path)
