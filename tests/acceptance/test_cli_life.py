"""The installed command on Azurite: a whole life, signals and a second runner, as separate processes.

Soak: a second signal.
Reason, and what `make test` covers: the same in `test_kills.py` with a forked command, which looks at the
rows as well.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from rekey.declaration.mapper import Mapper
from rekey.declaration.scripts import load_script
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.rehearse.azurite import Azurite
from rekey.tables.base import Operation, Verb
from tests.acceptance.forking import rekey_for_a_shell
from tests.conftest import open_account
from tests.worlds.small import SECRET, user

pytestmark = pytest.mark.azurite

COMMAND = str(Path(sys.executable).parent / "rekey")
PATIENCE_S = 60


class Project:
    """A folder, two accounts of an Azurite, and the installed command."""

    def __init__(self, folder: Path, programs: Path, azurite: Azurite, name: Callable[[str], str]) -> None:
        """Take a folder, and where a `rekey` is for commands that nobody signals (see `forking`)."""
        self.folder, self._quick = folder, str(programs / "rekey")
        self.azurite = azurite
        self.source, self.target = name("Users"), name("UsersV2")
        self.name = name("users")  # the restricted store is shared: a script id of our own
        self.script_id = f"0001_{self.name}"
        self._started: list[subprocess.Popen[str]] = []
        self.environment = {
            **os.environ,
            "TABLES_KEY": azurite.tables.key,
            "RESTRICTED_KEY": azurite.restricted.key,
            "USERS_SECRET": SECRET.decode("ascii"),
        }
        self.said = ""

    def rekey(self, *words: str, code: int = 0) -> str:
        """Run the command, require its exit code and return standard output."""
        ended = subprocess.run(
            [self._quick, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        self.said += ended.stdout + ended.stderr
        assert ended.returncode == code, f"{words}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start the command and leave it running."""
        running = subprocess.Popen(
            [COMMAND, *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(running)
        return running

    def end_all(self) -> None:
        """End what a failed test left running."""
        for running in self._started:
            running.kill()
            running.communicate()

    def ended(self, running: subprocess.Popen[str], code: int) -> str:
        """Wait for the end of a started command, require its exit code and return standard error."""
        out, err = running.communicate(timeout=PATIENCE_S)
        self.said += out + err
        assert running.returncode == code, out + err
        return err

    def configure(self, **limits: int) -> None:
        """Point the configuration that `init` wrote to the accounts."""
        path = self.folder / "rekey.toml"
        text = path.read_text("utf-8")
        local = 'endpoint = "http://127.0.0.1:10002/devstoreaccount1"'
        for account, variable in (
            (self.azurite.tables, "TABLES_KEY"),
            (self.azurite.restricted, "RESTRICTED_KEY"),
        ):
            text = text.replace(local, f'endpoint = "{account.endpoint}"\nkey_env = "{variable}"', 1)
        text = text.replace('retention = "30d"', 'retention = "0s"')
        text = text.replace('margin = "60s"', 'margin = "1s"')  # nothing holds requests back here
        if "[secrets.users]\nenv" not in text:
            text += '\n[secrets.users]\nenv = "USERS_SECRET"\n'
        for name, value in limits.items():
            text, found = re.subn(rf"^(# )?{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
            assert found == 1
        path.write_text(text, "utf-8")

    def edit_script(self) -> None:
        """Make the template's RowKey an opaque id."""
        path = self.script
        text = path.read_text("utf-8")
        old = 'row_key=keys.prop("RowKey"),\n        #'
        assert old in text
        new = 'row_key=keys.opaque("RowKey", domain="user", secret="users"),\n        #'
        path.write_text(text.replace(old, new), "utf-8")

    @property
    def script(self) -> Path:
        return self.folder / "migrations" / f"{self.script_id}.py"

    def fill(self, count: int) -> None:
        """Create the source and insert rows."""

        async def insert() -> None:
            async with open_account(self.azurite.tables) as service:
                await service.create_table(self.source)
                for start in range(0, count, 100):
                    rows = [user(f"user{start + n}@example.com", f"p{start}") for n in range(100)]
                    await service.table(self.source).transact([Operation(Verb.INSERT, row) for row in rows])

        asyncio.run(insert())

    def rows(self, table: str) -> dict[EntityKey, Row]:
        """Return what a table holds."""

        async def read() -> dict[EntityKey, Row]:
            async with open_account(self.azurite.tables) as service:
                pages = [page.rows async for page in service.table(table).scan()]
            return {key_of(row): content_of(row) for rows in pages for row in rows}

        return asyncio.run(read())

    def has_rows(self, name: str) -> bool:
        """Tell whether there is a table, with rows in it."""

        async def look() -> bool:
            async with open_account(self.azurite.tables) as service:
                return await service.table_exists(name)

        return asyncio.run(look()) and bool(self.rows(name))

    def expected(self) -> dict[EntityKey, Row]:
        """Return what the target should hold, from what the source holds."""
        mapper = Mapper(load_script(self.script).migration, {"users": SECRET})
        mapped = (mapper.map(row)[0].row for row in self.rows(self.source).values())
        return {key_of(row): row for row in mapped}

    def copied(self) -> int:
        """Return how many rows are checkpointed just now."""
        # Not by the program's own reader: cursors are sealed, and it opens them.
        path = self.folder / ".rekey/state.sqlite"
        with (
            suppress(sqlite3.OperationalError),
            closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as state,
        ):
            found = state.execute("SELECT SUM(row_count) FROM segment WHERE purpose = 'backfill'").fetchone()
            return int(found[0] or 0)
        return 0

    def wait_until_copied(self, rows: int, running: subprocess.Popen[str]) -> None:
        """Wait until a running command has checkpointed so many rows."""
        patience = time.monotonic() + PATIENCE_S
        while self.copied() < rows:
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < patience
            time.sleep(0.05)

    def status(self) -> dict[str, Any]:
        """Return what `rekey status` says."""
        [one] = json.loads(self.rekey("status", "--json"))["migrations"]
        assert isinstance(one, dict)
        return one


@pytest.fixture
def project(tmp_path: Path, azurite: Azurite, table_name: Callable[[str], str]) -> Iterator[Project]:
    folder = tmp_path / "project"
    folder.mkdir()
    with rekey_for_a_shell(tmp_path) as programs:
        made = Project(folder, programs, azurite, table_name)
        made.rekey("init")
        made.rekey("new", made.name, "--source", made.source, "--target", made.target)
        made.edit_script()
        yield made
        made.end_all()


def test_a_whole_life_from_init_to_retired(project: Project) -> None:
    project.configure()
    project.fill(300)
    project.rekey("plan", "--exact", "--out", "plan.json", "-vv")
    project.rekey("apply", "--plan", "plan.json", "-vv")
    assert project.rows(project.target) == project.expected()
    project.rekey("verify", "-vv")
    project.rekey("apply", "--to", "cutover", code=3)
    project.rekey("apply", "--to", "cutover", "--writers-stopped")
    project.rekey("rollback", "--writers-stopped")
    project.rekey("apply", "--to", "complete", "--writers-stopped", "--yes", project.script_id)
    assert project.rows(project.target) == project.expected()
    kept = project.rows(project.target)
    project.rekey("evidence", "keygen")
    with (project.folder / "rekey.toml").open("a", encoding="utf-8") as file:
        file.write('[evidence]\nkey_file = "evidence.pem"\n')
    project.rekey("evidence", "export", "evidence")
    project.rekey("evidence", "verify", "evidence")
    project.rekey("retire", "--table", project.source)
    assert project.rows(project.target) == kept
    assert project.status()["control"]["phase"] == "retired"
    assert "@example.com" not in project.said
    for secret in (project.azurite.tables.key, project.azurite.restricted.key, SECRET.decode("ascii")):
        assert secret not in project.said


def test_signals_checkpoint_a_second_runner_is_refused_and_all_ends_the_same(project: Project) -> None:
    project.configure(window_rows=20, entities_per_second=25)
    project.fill(600)
    first = project.start("apply", "--skip-row-check")
    project.wait_until_copied(20, first)
    assert json.loads(project.rekey("apply", "--json", code=3))["error"] == "Locked"
    status = project.status()
    assert (status["runner"]["pid"], status["runner"]["live"]) == (first.pid, True)
    assert "backfill at work since" in status["stage"]
    first.send_signal(signal.SIGINT)
    assert "run the same command again" in project.ended(first, 130)
    after_first = project.copied()
    assert 20 <= after_first < 600

    second = project.start("apply")
    project.wait_until_copied(after_first + 20, second)
    second.send_signal(signal.SIGTERM)
    assert "run the same command again" in project.ended(second, 130)
    assert after_first < project.copied() < 600

    third = project.start("apply")
    project.wait_until_copied(project.copied() + 1, third)
    third.send_signal(signal.SIGKILL)
    third.communicate()
    assert "was cut off" in project.status()["stage"]

    project.configure(window_rows=400, entities_per_second=100_000)
    project.rekey("apply")
    assert project.rows(project.target) == project.expected()
    assert "Traceback" not in project.said
    assert "@example.com" not in project.said


@pytest.mark.soak
def test_a_second_signal_ends_at_once(project: Project) -> None:
    project.configure(window_rows=400, entities_per_second=20)
    project.fill(400)
    running = project.start("apply", "--skip-row-check")
    patience = time.monotonic() + PATIENCE_S
    while not project.has_rows(project.target):
        assert time.monotonic() < patience
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    stderr = running.stderr
    assert stderr is not None
    while "Ctrl-C again stops immediately" not in stderr.readline():
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=PATIENCE_S) == 130
