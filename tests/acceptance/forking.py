"""Processes that are forked from a server which has everything imported: a second of processor for each start
would be most of what these tests take.

Rules kept here:

* Each is a process of its own, with its own id, folder, environment and streams; it is signalled, killed and
  waited for as any other. Nothing was done before it began, but imports.
* The command as it is installed, from nothing, is what test_cli_life.py, test_runbooks.py, test_rehearse.py,
  test_traced.py and test_executors.py run; and whoever runs a command within another program.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).parents[2]
_MODULES = sorted(
    ".".join(path.relative_to(_ROOT).with_suffix("").parts)
    for path in (_ROOT / "rekey").rglob("*.py")
    if path.stem not in ("__init__", "__main__")
)
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [*_MODULES, "tests.acceptance.dualwriting_client", "tests.acceptance.late_machines"]
)


def forked(target: Callable[..., None], *arguments: Any, name: str | None = None) -> BaseProcess:
    """Start a process that calls a function; it does not outlive the tests."""
    process = _PROCESSES.Process(target=target, args=arguments, name=name, daemon=True)
    process.start()
    return process


class Forked:
    """`rekey WORDS` under way, with what tests use of `subprocess.Popen`."""

    def __init__(
        self, words: Sequence[str], folder: os.PathLike[str], environment: Mapping[str, str]
    ) -> None:
        """Start it."""
        odd = {name for name, value in environment.items() if value != os.environ.get(name)}
        odd = {name for name in odd if name.startswith(("PYTHON", "LC_", "LANG"))}
        assert not odd, f"{odd} are for an interpreter that starts, and this one has"
        self._printed = _Stream(), _Stream()
        self._process = forked(rekey, tuple(words), os.fspath(folder), dict(environment), self._printed)

    @property
    def pid(self) -> int:
        """Its process id."""
        pid = self._process.pid
        assert pid is not None
        return pid

    @property
    def returncode(self) -> int | None:
        """Its exit code (negative: a signal); None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Wait for its end; return what it printed. Raises TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("rekey", timeout or 0.0)
        out, err = self._printed
        return out.read(), err.read()


class _Stream:
    """A file without a name, which a forked process writes to."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = tempfile.TemporaryFile()  # noqa: SIM115 - closed once it was read

    def __getstate__(self) -> Any:
        assert self._file is not None
        return DupFd(self._file.fileno())

    def __setstate__(self, passed: Any) -> None:
        self._descriptor: int = passed.detach()

    def become(self, descriptor: int) -> None:
        """Let a descriptor of this process be this file."""
        os.dup2(self._descriptor, descriptor)
        os.close(self._descriptor)

    def read(self) -> bytes:
        """Return all that was written; only once."""
        assert self._file is not None
        with self._file as file:
            file.seek(0)
            self._file = None
            return file.read()


def rekey(
    words: Sequence[str], folder: str, environment: Mapping[str, str], printed: tuple[_Stream, _Stream]
) -> None:
    """Be `rekey WORDS`: what a process is started with."""
    from rekey.cli.main import run

    for descriptor, stream in enumerate(printed, 1):
        stream.become(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    time.tzset()
    tempfile.tempdir = None
    sys.argv = ["rekey", *words]
    sys.exit(run())
