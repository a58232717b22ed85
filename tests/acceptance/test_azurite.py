"""`rekey azurite`: an Azurite for trying things, that outlives the command, is known again, and stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import TableServiceClient

from rekey.project.config import AZURITE_ACCOUNT, AZURITE_KEY, default_config
from rekey.rehearse import azurite as launcher
from tests.worlds.azurite_projects import command, unused_port

pytestmark = pytest.mark.azurite


@pytest.fixture
def port() -> Iterator[int]:
    """A port of one's own: the usual one may be somebody's."""
    port = unused_port()
    yield port
    launcher.stop_in_background(port)


def rekey(*words: str | int, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `rekey azurite`. What runs on keeps none of its streams open: this would wait for that."""
    return subprocess.run(
        [command(), "azurite", *map(str, words)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def answers(port: int) -> bool:
    """Tell whether a table service answers there."""
    try:
        urlopen(f"http://127.0.0.1:{port}/devstoreaccount1/Tables", timeout=5).close()
    except HTTPError as refused:
        return "Azurite" in refused.headers["Server"]  # nothing was signed
    except OSError:
        return False
    return True


def node_at(port: int) -> psutil.Process:
    [found] = [one for one in psutil.process_iter(["cmdline"]) if str(port) in (one.info["cmdline"] or [])]
    return found


def test_it_answers_when_the_command_ends_and_is_gone_when_it_was_stopped(port: int) -> None:
    started = rekey("--port", port)
    assert started.returncode == 0, started.stderr
    assert answers(port)
    assert port in launcher.running_in_background()
    assert (
        f"Azurite {launcher.pinned_version()} runs at http://127.0.0.1:{port}/devstoreaccount1"
        in started.stdout
    )
    assert started.stdout.endswith(f"\n  rekey azurite --stop --port {port}\n")
    again = rekey("--port", port, "--json")
    assert json.loads(again.stdout)["started"] is False
    assert "ran already" in rekey("--port", port).stdout

    stopped = rekey("--stop", "--port", port)
    assert (stopped.returncode, stopped.stdout.endswith(": stopped; its tables are gone\n")) == (0, True)
    assert not answers(port) and port not in launcher.running_in_background()
    assert json.loads(rekey("--stop", "--port", port, "--json").stdout)["stopped"] is False
    assert not list(launcher._own_folder().glob(f"*-{port}.*")), "nothing is left behind"


def test_whoever_comes_second_waits_until_it_answers(port: int) -> None:
    words = [command(), "azurite", "--port", str(port), "--json"]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = []
    for one in running:
        out, _ = one.communicate(timeout=120)
        said.append(json.loads(out)["started"])
        assert answers(port)
    assert sorted(said) == [False, False, True]


def test_it_is_the_account_that_a_new_project_names_whatever_the_surroundings_say(port: int) -> None:
    assert f'endpoint = "{launcher.endpoint_at(launcher.USUAL_PORT)}"' in default_config()
    started = rekey("--port", port, AZURITE_ACCOUNTS="another:a2V5")
    assert started.returncode == 0, started.stderr
    usual = AzureNamedKeyCredential(AZURITE_ACCOUNT, AZURITE_KEY)
    with TableServiceClient(launcher.endpoint_at(port), credential=usual) as account:
        assert list(account.list_tables()) == []


def test_one_that_was_killed_is_not_taken_for_running_and_nobody_else_is_stopped(port: int) -> None:
    """The id of a process that is gone may be another's by now."""
    rekey("--port", port)
    node = node_at(port)
    node.send_signal(signal.SIGKILL)
    node.wait(10)
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        lock = launcher._file_of(port, "lock")
        lock.write_text(f"{bystander.pid}\n")
        assert "no Azurite of `rekey azurite` runs" in rekey("--stop", "--port", port).stdout
        assert bystander.poll() is None
        assert rekey("--port", port).stdout.startswith("Azurite "), "another one is started"
        assert answers(port)
    finally:
        bystander.kill()
        bystander.wait()


def test_one_that_does_not_listen_to_signals_is_stopped_all_the_same(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_STOP_SECONDS", 0.0)
    rekey("--port", port)
    node = node_at(port)
    node.suspend()  # it hears SIGINT when it goes on, SIGKILL at once
    assert launcher.stop_in_background(port)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(node.pid) and node.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_port_of_another_program_is_told_with_what_to_do(port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        refused = rekey("--port", port)
    assert refused.returncode == 2
    assert f"another program has port {port}" in refused.stderr
    assert "say another port with --port" in refused.stderr
    assert rekey("--port", port).returncode == 0, "then it is free"


def test_it_says_that_it_installs(tmp_path: Path) -> None:
    """With neither Azurite nor anything to install it with: what is said before comes at once."""
    (tmp_path / "node").write_text("#!/bin/sh\necho v22.1.0\n")
    (tmp_path / "npm").write_text("#!/bin/sh\nexit 7\n")
    for name in ("node", "npm"):
        (tmp_path / name).chmod(0o755)
    failed = rekey(REKEY_AZURITE_DIR=str(tmp_path / "own"), PATH=f"{tmp_path}:/bin")
    assert failed.returncode == 4
    assert failed.stderr.startswith("Azurite is installed, which takes about a minute, once\n")
    assert "the installation of Azurite failed" in failed.stderr
