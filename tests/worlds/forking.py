"""Processes that are forked from a server which has everything imported: a second of processor for each start
would be most of what these tests take.

Rules kept here:

* Each is a process of its own, with its own id, folder, environment and streams; it is signalled, killed and
  waited for as any other. Nothing was done before it began, but imports.
* The command as it is installed, from nothing, is what test_installed.py, the README's example in
  test_runbooks.py, what is signalled in test_kills.py, test_traced.py and test_executors.py run; and
  whoever runs a command within another program.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    [
        *_MODULES,
        "tests.worlds.late_machines",
        "tests.acceptance.secondary_client",
    ]
)


def forked(
    target: Callable[..., None], *arguments: Any, name: str | None = None, daemon: bool = True
) -> BaseProcess:
    """Start a process that calls a function. A daemon ends with the tests, and may start no process."""
    process = _PROCESSES.Process(target=target, args=arguments, name=name, daemon=daemon)
    process.start()
    return process


class Forked:
    """`rekey WORDS` under way, with what tests use of `subprocess.Popen`."""

    def __init__(
        self,
        words: Sequence[str],
        folder: os.PathLike[str],
        environment: Mapping[str, str],
        output: IO[bytes] | None = None,
        program: str = "rekey.__main__",
    ) -> None:
        """Start it; what it prints goes to `output`, or is kept for `communicate`.
        `program`: the module whose `main` runs the words.
        """
        odd = {name for name, value in environment.items() if value != os.environ.get(name)}
        odd = {name for name in odd if name.startswith(("PYTHON", "LC_", "LANG"))}
        assert not odd, f"{odd} are for an interpreter that starts, and this one has"
        self._printed = () if output else (_Stream(), _Stream())
        streams = self._printed or (_Passed(output.fileno()), _Passed(output.fileno()))
        self._process = forked(rekey, tuple(words), os.fspath(folder), dict(environment), streams, program)

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

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code. Raises TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("rekey", timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Wait for its end; return what it printed. Raises TimeoutExpired."""
        self.wait(timeout)
        out, err = self._printed
        return out.read(), err.read()


class ForkedInstead:
    """Stands for the module `subprocess` where rekey starts `python -m` on itself with output to a file."""

    DEVNULL, STDOUT = subprocess.DEVNULL, subprocess.STDOUT
    TimeoutExpired = subprocess.TimeoutExpired

    @staticmethod
    def Popen(
        words: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdout: IO[bytes], **_: object
    ) -> Forked:
        """Start it; an interpreter that runs already takes no option from its environment."""
        _, option, program, *rest = words
        assert option == "-m" and program.partition(".")[0] == "rekey"
        taken = {name: value for name, value in env.items() if name != "PYTHONUNBUFFERED"}
        return Forked(rest, cwd, taken, stdout, "rekey.__main__" if program == "rekey" else program)


_IN_A_SHELL = """#!{python} -IS
import json, os, socket, sys
asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asked.connect({address!r})
socket.send_fds(asked, [json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()], [0, 1, 2])
sys.exit(int(asked.recv(16)))
"""
_MOST_BYTES = 2**17


@contextmanager
def rekey_for_a_shell(folder: Path) -> Iterator[Path]:
    """Yield a folder for the PATH of a shell: its `rekey` is forked, with the shell's streams."""
    program, address = folder / "rekey", str(folder / "socket")
    program.write_text(_IN_A_SHELL.format(python=sys.executable, address=address), "utf-8")
    program.chmod(0o700)

    def serve() -> None:
        while True:
            asked, _ = listening.accept()
            message, descriptors, _, _ = socket.recv_fds(asked, _MOST_BYTES, 3)
            if not message:
                asked.close()
                return
            # The commands of a pipe run at the same time.
            threading.Thread(target=_answer, args=(asked, message, descriptors)).start()

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen()
        server = threading.Thread(target=serve)
        server.start()
        try:
            yield folder
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ended:
                ended.connect(address)
            server.join()


def _answer(asked: socket.socket, message: bytes, descriptors: list[int]) -> None:
    """Run one command to its end, and tell its exit code as a shell does."""
    with asked:
        words, cwd, environment = json.loads(message)
        streams = [_Passed(one) for one in descriptors]
        process = forked(rekey, words, cwd, environment, streams, daemon=False)
        for descriptor in descriptors:
            os.close(descriptor)
        process.join()
        code = process.exitcode or 0
        asked.send(str(code if code >= 0 else 128 - code).encode())


class _Passed:
    """A descriptor for a forked process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __getstate__(self) -> Any:
        return DupFd(self._descriptor)

    def __setstate__(self, passed: Any) -> None:
        self._descriptor = passed.detach()

    def become(self, descriptor: int) -> None:
        """Let a descriptor of this process be this one."""
        os.dup2(self._descriptor, descriptor)
        os.close(self._descriptor)


class _Stream(_Passed):
    """A file without a name, which a forked process writes to."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = tempfile.TemporaryFile()  # noqa: SIM115 - closed once it was read
        super().__init__(self._file.fileno())

    def read(self) -> bytes:
        """Return all that was written; only once."""
        assert self._file is not None
        with self._file as file:
            file.seek(0)
            self._file = None
            return file.read()


def rekey(
    words: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    streams: Sequence[_Passed],
    program: str = "rekey.__main__",
) -> None:
    """Be `rekey WORDS` with the last streams of input, output and errors: what a process is started with."""
    for descriptor, stream in enumerate(streams, 3 - len(streams)):
        stream.become(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    time.tzset()
    tempfile.tempdir = None
    sys.argv = ["rekey", *words]
    sys.exit(importlib.import_module(program).main())
