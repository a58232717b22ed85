"""Runners and clients as processes that are killed, stopped and continued; runners in containers, if wanted.

Rules kept here:

* Whatever was started is ended by `end`, stopped or not; a runner's workers end with it.
* Two runners of one migration have two homes: folders with the same configuration and scripts and a state
  file each. In namespaces of their own, both run with the same host name, the same process id (1) and the
  same path: the home is mounted over the first one's folder, as in two containers of one image.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from tests.worlds import late_client, late_command
from tests.worlds.forking import forked
from tests.worlds.late_client import Job

ROOT = Path(__file__).parents[2]
_IN_NAMESPACES = ("unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")
_MOUNTED = 'mount --bind "$0" "$1" && cd "$1" && shift && exec "$@"'
_END_SECONDS = 20.0


@cache
def namespaces_work() -> bool:
    """Tell whether this machine lets us start processes in namespaces of their own and mount there."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        Path(one, "there").touch()
        words = [*_IN_NAMESPACES, "sh", "-c", _MOUNTED, one, other, "test", "-e", "there"]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0


class Stoppable:
    """A process with its descendants; what it prints goes to a file."""

    def __init__(self, process: subprocess.Popen[bytes] | BaseProcess, printed: Path) -> None:
        """Take a process that was just started."""
        self._process, self._printed = process, printed
        printed.touch()
        self.started = time.monotonic()
        self.stopped: list[psutil.Process] = []

    @property
    def pid(self) -> int:
        """Its process id."""
        pid = self._process.pid
        assert pid is not None
        return pid

    @property
    def code(self) -> int | None:
        """Its exit code (negative: a signal); None while it runs or is stopped."""
        return self._process.exitcode if isinstance(self._process, BaseProcess) else self._process.poll()

    @property
    def alive(self) -> bool:
        """Whether it runs, or is stopped."""
        return self.code is None

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self.started

    def family(self) -> list[psutil.Process]:
        """Return it and its descendants, as they are now."""
        if not self.alive:
            return []
        try:
            first = psutil.Process(self.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """End it by SIGKILL, and what is below it."""
        family = self.family()
        for one in reversed(family):
            _signalled(one, signal.SIGKILL)
        psutil.wait_procs(family[1:], _END_SECONDS)
        if isinstance(self._process, BaseProcess):
            self._process.join(_END_SECONDS)
        else:
            self._process.wait(_END_SECONDS)

    def stop(self, processes: Sequence[psutil.Process] | None = None) -> None:
        """Let it (or some of it) stand still."""
        chosen = self.family() if processes is None else processes
        self.stopped += [one for one in chosen if _signalled(one, signal.SIGSTOP)]

    def go_on(self) -> None:
        """Continue what stands still."""
        for one in self.stopped:
            _signalled(one, signal.SIGCONT)
        self.stopped = []

    def said(self) -> str:
        """Return what it printed, spaces evened out."""
        return re.sub(r"\s+", " ", self._printed.read_text("utf-8", "replace"))

    def end(self) -> None:
        """End it if it runs. Idempotent."""
        if self.alive:
            self.kill()


def _signalled(process: psutil.Process, number: int) -> bool:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def _printing_to(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


def _be_rekey(words: Sequence[str], folder: str, environment: Mapping[str, str], printed: str) -> None:
    """Be `rekey WORDS`: what a process is forked for."""
    _printing_to(printed)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None
    sys.argv = ["rekey", *words]
    late_command.main()


def _be_client(job: Job, printed: str) -> None:
    """Be a client: what a process is forked for."""
    _printing_to(printed)
    os.environ.update(job.where.environment)
    if late_command.SIGNED in os.environ:
        late_command.shorten()
    sys.exit(asyncio.run(late_client.run(job)))


class Runner(Stoppable):
    """A command of rekey under way."""

    def __init__(
        self,
        words: Sequence[str],
        home: Path,
        printed: Path,
        environment: Mapping[str, str],
        *,
        over: Path | None = None,
    ) -> None:
        """Start `rekey WORDS` in a home; in namespaces of its own where that is mounted `over` a folder.

        It is forked (see `forking`), unless it needs namespaces or has workers.
        """
        self.words, self.home = tuple(words), home
        super().__init__(self._begun(over, printed, environment), printed)

    def _begun(
        self, over: Path | None, printed: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes] | BaseProcess:
        if over is None and "--executor" not in self.words:
            return forked(_be_rekey, self.words, str(self.home), dict(environment), str(printed))
        command = [sys.executable, "-m", late_command.__name__, *self.words]
        if over is not None:
            command = [*_IN_NAMESPACES, "sh", "-c", _MOUNTED, str(self.home), str(over), *command]
        with printed.open("wb") as file:
            return subprocess.Popen(
                command,
                cwd=self.home,
                env={**environment, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def __str__(self) -> str:
        return f"`rekey {' '.join(self.words)}` in {self.home.name}"

    def itself(self) -> list[psutil.Process]:
        """Return the command alone, without its workers."""
        family = self.family()
        workers = {one.pid for one in self.workers()}
        return [one for one in family if one.pid not in workers]

    def workers(self) -> list[psutil.Process]:
        """Return the processes that carry out its tasks."""
        return [one for one in self.family() if "spawn_main" in _words(one)]


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class Client(Stoppable):
    """A client process."""

    def __init__(self, job: Job, printed: Path) -> None:
        """Start it."""
        self.job = job
        super().__init__(forked(_be_client, job, str(printed), name=job.name), printed)


def environment_of(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of all processes: this one's without proxies, and more."""
    usual = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**usual, "COLUMNS": "200", **more}
