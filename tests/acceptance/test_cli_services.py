"""What the commands say when a service, a credential or a file is not as it must be; on Azurite."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rekey.cli.main import run
from rekey.rehearse.azurite import Azurite
from tests.conftest import open_account
from tests.worlds.projects import USERS_SCRIPT
from tests.worlds.small import SECRET, user

pytestmark = pytest.mark.azurite

CONFIG = """\
[tables]
endpoint = "{tables}"
key_env = "TABLES_KEY"
[restricted]
endpoint = "{restricted}"
key_env = "RESTRICTED_KEY"
[state]
path = "state.sqlite"
[secrets.users]
env = "USERS_SECRET"
[sealing]
env = "WRAPPING_KEY"
"""


@pytest.fixture
def folder(
    tmp_path: Path, azurite: Azurite, table_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A project with five rows that a plan has no objection to."""
    source, target = table_name("Users"), table_name("UsersV2")
    (tmp_path / "migrations").mkdir()
    script = USERS_SCRIPT.replace('"UsersV2"', f'"{target}"').replace('source="Users"', f'source="{source}"')
    (tmp_path / "migrations" / f"{table_name('users')}.py").write_text(script, "utf-8")
    configure(tmp_path, azurite.tables.endpoint, azurite.restricted.endpoint)
    monkeypatch.setenv("REKEY_CONFIG", str(tmp_path / "rekey.toml"))
    monkeypatch.setenv("TABLES_KEY", azurite.tables.key)
    monkeypatch.setenv("RESTRICTED_KEY", azurite.restricted.key)
    monkeypatch.setenv("USERS_SECRET", SECRET.decode("ascii"))
    monkeypatch.setenv("WRAPPING_KEY", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")

    async def fill() -> None:
        async with open_account(azurite.tables) as service:
            await service.create_table(source)
            for number in range(5):
                await service.table(source).insert(user(f"user{number}@example.com"))

    asyncio.run(fill())
    return tmp_path


def configure(folder: Path, tables: str, restricted: str) -> None:
    (folder / "rekey.toml").write_text(CONFIG.format(tables=tables, restricted=restricted), "utf-8")


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def error_of(capsys: pytest.CaptureFixture[str], words: list[str], code: int) -> dict[str, str]:
    """Run a command with --json at the highest verbosity; return its error, which shows no key."""
    assert run([*words, "--json", "-vv"]) == code
    said = capsys.readouterr()
    assert "@example.com" not in said.out + said.err
    assert "Traceback" not in said.err
    error: dict[str, str] = json.loads(said.out)
    assert error["next"]
    return error


@pytest.mark.parametrize(("command", "variable"), [("plan", "TABLES_KEY"), ("apply", "RESTRICTED_KEY")])
def test_a_wrong_credential_exits_4(
    folder: Path,
    command: str,
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = base64.b64encode(b"x" * 64).decode("ascii")
    monkeypatch.setenv(variable, wrong)
    error = error_of(capsys, [command], 4)
    assert error["error"] == "CredentialRefused"
    assert wrong not in json.dumps(error)


def test_an_endpoint_that_is_down_exits_4_and_status_still_tells_what_it_knows(
    folder: Path, azurite: Azurite, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/devstoreaccount1"
    configure(folder, nowhere, azurite.restricted.endpoint)
    assert error_of(capsys, ["plan"], 4)["error"] == "EndpointDown"
    configure(folder, azurite.tables.endpoint, nowhere)
    assert run(["status", "--json"]) == 4
    [status] = json.loads(capsys.readouterr().out)["migrations"]
    assert f"no connection to {nowhere}" in status["unreachable"]
    assert status["safe"] is False


def test_a_server_that_is_gone_is_told_after_two_seconds_with_its_host_and_until_when_it_is_tried(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    configure(folder, f"http://127.0.0.1:{port}/tables", f"http://127.0.0.1:{port}/restricted")
    assert run(["status", "--log-format", "json"]) == 4
    [told] = [one for one in map(json.loads, capsys.readouterr().err.splitlines()) if one["event"] == "wait"]
    assert told["text"].startswith(f"waiting for 127.0.0.1:{port}, where nothing answers, since ")
    assert told["since"] < told["at"] < told["until"]
