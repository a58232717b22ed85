"""`rekey serve` and `rekey apply --serve` as processes on Azurite: one document, however it is
asked for, while a migration runs and when it does not."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rekey.rehearse.azurite import Azurite
from tests.acceptance.test_cli_services import configure
from tests.conftest import open_account
from tests.worlds.forking import Forked
from tests.worlds.projects import USERS_SCRIPT
from tests.worlds.small import SECRET, user

pytestmark = pytest.mark.azurite
LONG_S = 120
ROWS = 200
SAID = "said.txt"


@pytest.fixture
def project(
    tmp_path: Path, azurite: Azurite, table_name: Callable[[str], str]
) -> tuple[Path, dict[str, str]]:
    """A project, and the environment of its commands."""
    source, target = table_name("Users"), table_name("UsersV2")
    (tmp_path / "migrations").mkdir()
    script = USERS_SCRIPT.replace('"UsersV2"', f'"{target}"').replace('source="Users"', f'source="{source}"')
    (tmp_path / "migrations" / f"{table_name('users')}.py").write_text(script, "utf-8")
    configure(tmp_path, azurite.tables.endpoint, azurite.restricted.endpoint)

    async def fill() -> None:
        async with open_account(azurite.tables) as service:
            await service.create_table(source)
            await asyncio.gather(
                *(service.table(source).insert(user(f"user{number}@example.com")) for number in range(ROWS))
            )

    asyncio.run(fill())
    keys = {"TABLES_KEY": azurite.tables.key, "RESTRICTED_KEY": azurite.restricted.key}
    secrets = {"USERS_SECRET": SECRET.decode(), "WRAPPING_KEY": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"}
    return tmp_path, {**os.environ, **keys, **secrets, "REKEY_CONFIG": str(tmp_path / "rekey.toml")}


@contextmanager
def started(folder: Path, environ: dict[str, str], *words: str) -> Iterator[tuple[Forked, str]]:
    """Run a command that serves; yield its process and the address that it tells."""
    with (folder / SAID).open("wb") as said:
        running = Forked(words, folder, environ, said)
    try:
        until = time.monotonic() + LONG_S
        while (found := re.search(r"serving (http://\S+)", (folder / SAID).read_text("utf-8"))) is None:
            assert running.poll() is None and time.monotonic() < until, (folder / SAID).read_text("utf-8")
            time.sleep(0.05)
        yield running, found[1]
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(LONG_S)


def asked(url: str) -> Any:
    """Return what is answered; JSON is decoded."""
    with urllib.request.urlopen(url, timeout=LONG_S) as answer:  # noqa: S310 - our own address
        text = answer.read().decode()
    return json.loads(text) if answer.headers["Content-Type"] == "application/json" else text


def progressed(url: str) -> Iterator[dict[str, Any]]:
    """Return the documents of the stream."""
    with urllib.request.urlopen(f"{url}progress/stream", timeout=LONG_S) as stream:  # noqa: S310 - our own
        event = b""
        for line in stream:
            if line.startswith(b"event: "):
                event = line.strip()
            elif line.startswith(b"data: ") and event == b"event: progress":
                yield json.loads(line.removeprefix(b"data: "))


def test_apply_is_watched_while_it_runs(project: tuple[Path, dict[str, str]]) -> None:
    folder, environ = project
    with (folder / "rekey.toml").open("a", encoding="utf-8") as config:
        config.write("[limits]\nwindow_rows = 40\nentities_per_second = 80\n")  # the copy takes some seconds
    with started(folder, environ, "apply", "--serve", "127.0.0.1:0") as (running, url):
        copying = next(
            one
            for document in progressed(url)
            for one in document["migrations"]
            if one["phase"]["name"] == "backfill" and one["work"] and one["work"]["rows"]
        )
        page = asked(url)
        running.wait(LONG_S)
    printed = (folder / SAID).read_text("utf-8")
    assert 0 < copying["work"]["rows"] <= ROWS
    assert copying["runner"]["live"] and copying["next"]["remark"] == "a runner is at work; look again"
    assert "<title>rekey</title>" in page
    assert running.returncode == 0, printed
    assert "Stopped before cutover." in printed
    with pytest.raises(OSError, match="refused"):
        asked(url)


def test_what_is_served_is_what_status_tells(project: tuple[Path, dict[str, str]]) -> None:
    folder, environ = project
    applied = Forked(("apply",), folder, environ)
    applied.communicate(LONG_S)
    assert applied.returncode == 0
    with started(folder, environ, "serve", "--address", "127.0.0.1:0") as (running, url):
        served = next(progressed(url))
        metrics = asked(f"{url}metrics")
        assert asked(f"{url}health/readiness") == "ready\n"
        said, _ = Forked(("status", "--json"), folder, environ).communicate(LONG_S)
        running.send_signal(signal.SIGINT)
        running.wait(LONG_S)
    told = json.loads(said)
    assert served.keys() == told.keys()
    [ours], [theirs] = served["migrations"], told["migrations"]
    timed = {"verification", "lag_s", "checkpoint", "watermark"}
    assert {k: v for k, v in ours.items() if k not in timed} == {
        k: v for k, v in theirs.items() if k not in timed
    }
    assert f'rekey_safe{{migration="{ours["script_id"]}"}} 1.0' in metrics
    assert running.returncode == 0
    for text in (metrics, json.dumps(served)):
        assert "@example.com" not in text
