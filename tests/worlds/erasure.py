"""Completed migrations of which something is erased: commands, and what stands in the restricted store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekey.core.limits import TARGET_ACCOUNT_SUFFIX
from rekey.mapping.rows import ERASED_ON, MAPPING_TABLE
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.state.audit import AuditEvent
from rekey.state.store import State
from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.projects import POSTS_SCRIPT, USERS_SCRIPT, Project, lived
from tests.worlds.small import post, user

SCRIPT = "0001_subject"
WHY = ("--reason", "ticket 4711")
MONTH = "2024-01"
SEALED_POSTS = POSTS_SCRIPT.replace('capture="delta",', 'capture="delta", mapping="sealed",')
PLAIN_USERS = USERS_SCRIPT.replace('capture="delta",', 'capture="delta", mapping="plain",')
SCRIPTS = {
    "sealed": USERS_SCRIPT,
    "plain": PLAIN_USERS,
    "sealed, with an index": SEALED_POSTS,
    "plain, with an index": POSTS_SCRIPT,
}
QUICK_SCRIPTS = USERS_SCRIPT, POSTS_SCRIPT
"""Those of every run: sealed and in the clear, without an index and with one."""


def rows_of(script: str) -> list[Row]:
    """Return source rows for one of the scripts; the subject of erasures is the first."""
    if 'source="Posts"' in script:
        return [post(f"somebody-{number:02}", tags=f"a,b{number}") for number in range(12)]
    return [user(f"somebody{number:02}@mail.example", f"part{number % 3}") for number in range(12)]


class Lives:
    """Makes projects of one migration, whose rows are copied under the data key of a month."""

    def __init__(self, folder: Path, commands_on: CommandsOn, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._commands_on, self._monkeypatch = folder, commands_on, monkeypatch

    def begun(self, script: str, folder: Path | None = None, *, month: str = MONTH) -> Commands:
        """Return the commands of a project that is before cutover."""
        return self.lived((month, script), begin, folder, month=month)

    def completed(self, script: str, folder: Path | None = None) -> Commands:
        """Return the commands of a project that is complete, since a minute ago."""

        def live(rekey: Commands, script: str) -> None:
            begin(rekey, script)
            complete(rekey)

        return self.lived(("complete", script), live, folder)

    def lived(
        self,
        life: tuple[str, str],
        live: Callable[[Commands, str], None],
        folder: Path | None = None,
        *,
        month: str = MONTH,
    ) -> Commands:
        """Return the commands of a project that has lived so far. `life`: its name, and its script."""
        self.seal_in(month)
        project = lived(life, folder or self._folder, lambda made: live(self._commands_on(made), life[1]))
        return self._commands_on(project)

    def seal_in(self, month: str) -> None:
        """Let rows be sealed under the data key of a month from now on."""
        self._monkeypatch.setattr("rekey.mapping.store.cohort_of", lambda _moment: month)


def begin(rekey: Commands, script: str) -> None:
    """Copy the rows of a script."""
    project = rekey.project
    if TARGET_ACCOUNT_SUFFIX in script:
        project.move_elsewhere()
    project.script(script, f"{SCRIPT}.py")
    source = project.scripts[SCRIPT].migration.source
    asyncio.run(project.fill(source, rows_of(script)))
    rekey("apply")


def complete(rekey: Commands) -> None:
    """Complete the migration, and let a minute pass."""
    rekey("apply", "--to", "cutover", "--writers-stopped")
    rekey("apply", "--to", "complete", "--yes", SCRIPT)
    rekey.project.clock.advance(60)


def subject(rekey: Commands) -> Row:
    """Return the source row whose mapping is erased."""
    return rows_of((rekey.project.folder / "migrations" / f"{SCRIPT}.py").read_text("utf-8"))[0]


def by_old(row: Row) -> tuple[str, str, str]:
    """Return how a row is named by its old key."""
    return ("--old", row["PartitionKey"], row["RowKey"])


def by_new(rekey: Commands, row: Row) -> tuple[str, str, str]:
    """Return how a row is named by its key in the main target."""
    found = rekey("lookup", *by_old(row), *WHY, "--json").json["rows"][0]
    main = rekey.project.scripts[SCRIPT].migration.tables[0]
    [key] = [one for one in found["new"] if one["table"] == main]
    return ("--new", key["partition_key"], key["row_key"])


def by_id(rekey: Commands, row: Row) -> tuple[str, str]:
    """Return how a row is named by its safe id."""
    return ("--id", rekey("lookup", *by_old(row), *WHY, "--json").json["rows"][0]["row_id"])


def mapping(project: Project, direction: str = "") -> dict[EntityKey, Row]:
    """Return the mapping rows of a direction (`f`, `r`, `k`) or of all, by key."""
    return {
        key_of(row): content_of(row)
        for row in project.restricted.dump(MAPPING_TABLE)
        if row["PartitionKey"].startswith(f"{SCRIPT}.{direction}")
    }


def tombstones(project: Project, direction: str = "") -> dict[EntityKey, Row]:
    """Return the tombstones among them."""
    return {key: row for key, row in mapping(project, direction).items() if ERASED_ON in row}


def put(project: Project, row: Row) -> None:
    """Write a mapping row, as somebody does who has got into the restricted store."""
    asyncio.run(project.restricted.table(MAPPING_TABLE).upsert(row))


def erasures(project: Project) -> list[AuditEvent]:
    """Return the events of erasures, in order."""
    with State.open(project.config.state, read_only=True) as state:
        assert state.check_chain() is None
        return [one for one in state.audit_events(SCRIPT) if one.event.startswith("erasure")]


def state_bytes(project: Project) -> bytes:
    """Return everything that stands in the state file and beside it."""
    state = project.config.state
    return b"".join(path.read_bytes() for path in sorted(state.parent.glob(f"{state.name}*")))


def configured(project: Project, **gates: Any) -> None:
    """Set gates of the configuration."""
    path = project.folder / "rekey.toml"
    lines = "".join(f'{name} = "{value}"\n' for name, value in gates.items())
    path.write_text(path.read_text("utf-8").replace("[gates]\n", f"[gates]\n{lines}"), "utf-8")


def many_look_ups(project: Project) -> None:
    """Let as many look-ups be made in a minute as a test needs."""
    with (project.folder / "rekey.toml").open("a", encoding="utf-8") as file:
        file.write("[lookup]\nper_minute = 500\n")
