"""The file lock on a state file: one runner at a time on this machine.

Rules kept here:

* The operating system holds the lock and lets it go when the process dies, however it dies: a lock that is
  held means a live process, so nothing is ever broken by age.
* The lock file stays: removing it would let two processes lock two files of the same name.
* It is taken before yoyo's lock and before the runner lease, and held until both are given back.

`flock(2)` on POSIX, a locked byte far after the content on Windows, so that others can read who holds it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from rekey.errors import Locked
from rekey.state import files
from rekey.state.audit import utc_now, utc_text

if sys.platform == "win32":
    import msvcrt

    _LOCKED_BYTE = 1 << 30

    def _try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class FileLock:
    """The lock `<state file>.lock`. Not re-entrant: a second one in the same process is refused too."""

    def __init__(self, state_path: Path) -> None:
        """Take the path of the state file; nothing is opened yet."""
        self.state_path = Path(state_path).absolute()
        self.path = self.state_path.with_name(self.state_path.name + ".lock")
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Tell whether this object holds the lock."""
        return self._descriptor is not None

    @property
    def identity(self) -> str:
        """Which file the held lock is really on: device and inode, the same for all who meet at it."""
        if self._descriptor is None:
            raise RuntimeError("the file lock on the state file must be held")
        found = os.fstat(self._descriptor)
        return f"{found.st_dev}:{found.st_ino}"

    def acquire(self) -> FileLock:
        """Take the lock without waiting.

        Raises:
            Locked: another process (or another FileLock of this one) holds it; names pid and start.
            StateUnusable, MachineFailed: see `files.open_private`.
        """
        if self.held:
            raise RuntimeError("this lock is already held")
        descriptor = files.open_private(self.path, "lock file")
        try:
            if not _try_lock(descriptor):
                raise self._locked(descriptor)
            # Written for the message that another process shows. Best effort: the lock is the kernel's, so a
            # full disk does not stop it.
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": utc_text(utc_now())}
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
        """Give the lock back. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)  # closing is what unlocks
            self._descriptor = None

    def require(self, state_path: Path) -> None:
        """Check that this lock is held, on that state file. Raises RuntimeError: a fault of the program."""
        if not self.held or self.state_path != Path(state_path).absolute():
            raise RuntimeError("the file lock on the state file must be held")

    def __enter__(self) -> FileLock:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _locked(self, descriptor: int) -> Locked:
        who = "another process"
        try:
            os.lseek(descriptor, 0, os.SEEK_SET)
            holder = json.loads(os.read(descriptor, 4096))
            who = f"process {int(holder['pid'])} on {holder['host']}, since {holder['since']},"
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the holder has not signed yet
        return Locked(
            f"{who} holds the state file {self.state_path}",
            kept="everything: this command did nothing",
            hint="wait until that command ends, or stop it with Ctrl-C: it checkpoints and can be resumed",
        )
