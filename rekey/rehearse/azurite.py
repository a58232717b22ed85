"""An Azurite of one's own: own port, own folder, own accounts.

Rules kept here:

* Nothing is shared with another run on the machine: the port is free, the folder new, the accounts' keys
  random. Nothing is ever deleted by listing.
* Azurite is started without telemetry and without its check of API versions, and ended by SIGINT (it does
  not save on SIGTERM), by SIGKILL only when that does not help.
* It ends with the process that started it, also when that is killed: it watches its standard input.
* A terminal's Ctrl-C does not reach it: the program that uses it still wants to checkpoint.
"""

from __future__ import annotations

import base64
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from rekey.errors import MachineFailed
from rekey.rehearse.node import find_azurite, find_node

_HOST = "127.0.0.1"
_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_ATTEMPTS = 5
_READY = "successfully started"
_END_WITH_PARENT = """\
process.stdin.on("end", () => process.kill(process.pid, "SIGINT"));
process.stdin.on("error", () => process.kill(process.pid, "SIGINT"));
process.stdin.resume();
process.stdin.unref();
process.once("SIGINT", () => setTimeout(() => process.exit(0), 2000).unref());
"""
# The timer is for connections that a client keeps open: older Node.js waits for them before it ends.


@dataclass(frozen=True, slots=True)
class AzuriteAccount:
    """One account of a running Azurite. The key is random and ends with it; a repr does not show it.

    Attributes:
        name: the account's name.
        endpoint: e.g. `http://127.0.0.1:43210/tables`.
        key: the shared key, base64.
    """

    name: str
    endpoint: str
    key: str = field(repr=False)


class Azurite:
    """Start an Azurite table service and end it again.

    >>> with Azurite() as azurite:
    ...     print(azurite.tables.endpoint)

    Args:
        keep_on_disk: let Azurite save its tables (every 5 seconds) in its temporary folder instead of
            holding them in memory alone; slower, for data that does not fit in memory twice.
    """

    def __init__(self, *, keep_on_disk: bool = False) -> None:
        self._keep_on_disk = keep_on_disk
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._port = 0
        self._keys = {name: _random_key() for name in ("tables", "restricted")}

    @property
    def tables(self) -> AzuriteAccount:
        """The account for source and target tables."""
        return self._account("tables")

    @property
    def restricted(self) -> AzuriteAccount:
        """The account for the restricted store."""
        return self._account("restricted")

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1."""
        return self._port

    @property
    def pid(self) -> int:
        """The process id. Raises MachineFailed when it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise MachineFailed("Azurite is not running", hint="start it again")
        return self._process.pid

    def start(self) -> None:
        """Start Azurite and return when it answers. Raises ConfigurationError, MachineFailed."""
        node = find_node()
        entry = find_azurite(node)
        self._folder = tempfile.TemporaryDirectory(prefix="rekey-azurite-")
        try:
            self._start_on_a_free_port(node.program, entry)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End Azurite and remove its folder. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

    def __enter__(self) -> Azurite:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Azurite(port={self._port})"

    def _account(self, name: str) -> AzuriteAccount:
        return AzuriteAccount(name, f"http://{_HOST}:{self._port}/{name}", self._keys[name])

    def _start_on_a_free_port(self, program: str, entry: Path) -> None:
        # Between choosing a port and Azurite taking it, another process may: then choose again.
        said = ""
        for _ in range(_ATTEMPTS):
            self._port = _free_port()
            self._process = self._launch(program, entry)
            said = _wait_until_ready(self._process, self._log)
            if not said:
                return
            _end(self._process)
            if "EADDRINUSE" not in said:
                break
        raise MachineFailed(
            f"Azurite did not start: {said[-500:].strip()}",
            hint="run `node --version` and check memory and disk space, then repeat",
        )

    @property
    def _home(self) -> Path:
        if self._folder is None:
            raise MachineFailed("Azurite is not running", hint="start it again")
        return Path(self._folder.name)

    @property
    def _log(self) -> Path:
        return self._home / "azurite.log"

    def _launch(self, program: str, entry: Path) -> subprocess.Popen[str]:
        preload = self._home / "end-with-parent.cjs"
        preload.write_text(_END_WITH_PARENT, "utf-8")
        kept = ["--location", str(self._home)] if self._keep_on_disk else ["--inMemoryPersistence"]
        command = [
            *(program, "--require", str(preload), str(entry)),
            *("--tableHost", _HOST, "--tablePort", str(self._port), "--tableKeepAliveTimeout", "60"),
            *("--silent", "--disableTelemetry", "--skipApiVersionCheck", *kept),
        ]
        accounts = ";".join(f"{name}:{key}" for name, key in self._keys.items())
        with self._log.open("w") as log:
            return subprocess.Popen(  # noqa: S603 - node and Azurite as found, no shell
                command,
                cwd=self._home,
                env={**os.environ, "AZURITE_ACCOUNTS": accounts},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )


def _random_key() -> str:
    return base64.b64encode(secrets.token_bytes(64)).decode("ascii")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[str], log: Path) -> str:
    """Return "" when Azurite has said that it runs, else what it said instead."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        said = log.read_text("utf-8", "replace")
        if _READY in said:
            return ""
        if process.poll() is not None:
            return log.read_text("utf-8", "replace") or f"it ended with code {process.returncode}"
        time.sleep(0.05)
    return f"no answer within {_START_SECONDS:.0f} seconds"


def _end(process: subprocess.Popen[str]) -> None:
    """End a process that was started here: SIGINT, then SIGKILL."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
