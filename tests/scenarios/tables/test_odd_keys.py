"""A migration whose rows have odd keys, on a service that decodes the addresses of rows twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rekey.errors import CredentialRefused, TableBeingDeleted
from rekey.model import EntityKey, Row, content_of, key_of
from tests.asserts.command_line import Commands
from tests.fakes.memory import MemoryTable, MemoryTableService, Mood
from tests.worlds.kills import killed
from tests.worlds.projects import USERS_SCRIPT, Project
from tests.worlds.small import user

# Two keys, of which decoding makes one, and one of which it makes a key that no row has.
ODD = ("ann%40example.com", "ann@example.com", "two%20words@example.com")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.tables.mood = Mood.DECODES_TWICE
    made.script(USERS_SCRIPT)
    asyncio.run(made.fill("Users", [user(name) for name in ODD]))
    return made


def names(rekey: Commands, table: str, email: str, name: str) -> dict[str, str]:
    return {row[email]: row[name] for row in rekey.project.rows(table)}


def test_rows_with_odd_keys_are_migrated_and_rolled_back(rekey: Commands) -> None:
    """Every row is read and written under its own key: none is taken for its look-alike, none for absent."""
    said = rekey("apply", "0")
    assert "addresses of rows are misread" in said.err and "%25, %2F" in said.err
    table = rekey.project.tables.table("Users")

    def change(number: int) -> None:
        for name in ODD:
            row: Row = {**user(name), "Nm": f"{name} {number}"}
            asyncio.run(table.upsert(row))

    change(1)
    rekey("apply", "0")
    rekey("verify", "0", "--mode", "full")
    changed = {name: f"{name} 1" for name in ODD}
    assert names(rekey, "UsersV2", "ContactEmail", "Name") == changed
    asyncio.run(table.delete(EntityKey("eu", ODD[0])))
    rekey("apply", "0", "--to", "cutover", "--writers-stopped")
    del changed[ODD[0]]
    assert names(rekey, "UsersV2", "ContactEmail", "Name") == changed
    target = rekey.project.tables.table("UsersV2")
    for row in rekey.project.rows("UsersV2"):
        asyncio.run(target.replace({**content_of(row), "Name": "new"}))
    rekey("rollback", "0", "--writers-stopped")
    assert names(rekey, "Users", "RowKey", "Nm") == dict.fromkeys(changed, "new")


def test_prepare_leaves_nothing_of_what_it_tried(rekey: Commands) -> None:
    rekey("apply", "0", "--to", "prepare")
    assert sorted(asyncio.run(rekey.project.tables.table_names())) == ["Users", "UsersV2"]
    assert rekey.project.rows("UsersV2") == []


@pytest.mark.parametrize("at", [1, 2, 5, 9])
def test_what_a_killed_prepare_has_left_is_removed_by_the_next(rekey: Commands, at: int) -> None:
    """Killed at any of its calls on the throw-away table; its last one may take effect."""
    project = rekey.project
    with killed(project, at + 1, lambda call: call.table.startswith("rekeyprobe")):
        rekey("apply", "0", "--to", "prepare")
    assert any(name.startswith("rekeyprobe") for name in asyncio.run(project.tables.table_names()))
    rekey("apply", "0", "--to", "prepare")
    assert sorted(asyncio.run(project.tables.table_names())) == ["Users", "UsersV2"]


def test_a_throw_away_table_that_is_being_deleted_is_not_waited_for(
    rekey: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, asked = MemoryTableService.create_table, list[str]()

    async def busy(service: MemoryTableService, name: str) -> bool:
        if name.startswith("rekeyprobe"):
            asked.append(name)
            if len(asked) == 1:
                raise TableBeingDeleted("create table: 409", code="TableBeingDeleted", status=409)
        return await create(service, name)

    monkeypatch.setattr(MemoryTableService, "create_table", busy)
    rekey("apply", "0", "--to", "prepare")
    assert len(set(asked)) == 2
    assert sorted(asyncio.run(rekey.project.tables.table_names())) == ["Users", "UsersV2"]


def test_misread_queries_stop_before_a_copy(rekey: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is absent could then not be told at all."""
    by_query = MemoryTable.by_query

    async def misread(table: MemoryTable, key: EntityKey, **more: object) -> Row | None:
        return await by_query(table, Mood.DECODES_TWICE.addressed(key), **more)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryTable, "by_query", misread)
    said = rekey("apply", "0", code=2)
    assert "return other rows than they ask for, or none, where keys have %25, %2F" in said.err
    assert "connect without it" in said.err
    assert rekey.project.rows("UsersV2") == []
    assert sorted(asyncio.run(rekey.project.tables.table_names())) == ["Users", "UsersV2"]


def test_a_credential_without_create_migrates(rekey: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    create = MemoryTableService.create_table

    async def refused(service: MemoryTableService, name: str) -> bool:
        if name.startswith("rekeyprobe"):
            raise CredentialRefused("create table: 403", code="AuthorizationPermissionMismatch", status=403)
        return await create(service, name)

    monkeypatch.setattr(MemoryTableService, "create_table", refused)
    assert "odd keys were not tried" in rekey("apply", "0").err
    assert {key_of(row).row for row in rekey.project.rows("Users")} == set(ODD)
    assert len(rekey.project.rows("UsersV2")) == len(ODD)
