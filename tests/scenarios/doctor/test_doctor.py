"""`rekey doctor` on a project on disk with tables in memory: what it sees, what it leaves, what it says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rekey.cli.main import run
from rekey.cli.shell import Surroundings
from rekey.doctor.observe import see_account, see_state, see_tenant
from rekey.errors import CredentialRefused
from rekey.model import EntityKey
from rekey.project.config import Account
from rekey.project.entra import TenantCheck
from rekey.protocol.registry import ClientRow, Registry
from rekey.state.filelock import FileLock
from rekey.state.store import State
from rekey.tables.credentials import Credential, SharedKey
from rekey.tables.probe import ProbeResult
from tests.asserts.command_line import Commands, CommandsOn
from tests.fakes.faults import Call
from tests.fakes.issuer import TENANT, USER, Issuer, entra_of, listening_apart
from tests.worlds.observations import heard
from tests.worlds.projects import USERS_SCRIPT, Project
from tests.worlds.small import user

SECRET = "0123456789abcdef0123456789abcdef"
SAID = {"server": "Azurite-Table/3.35.0", "tls": "", "certificate_ends": None}


async def ask(_endpoint: str, _path: str, credential: Credential | None) -> ProbeResult:
    """Answer as an Azurite on the project's clock does."""
    return heard(403, "AuthorizationFailure", **SAID) if credential is None else heard(200, "", **SAID)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with a source of ten rows, and nothing that a finding would be due for."""
    project = Project(tmp_path)
    for path in (tmp_path / "users.secret", tmp_path / "rekey.toml"):
        path.chmod(0o600)
    project.script(USERS_SCRIPT)
    for path in (tmp_path / "migrations", tmp_path, *(tmp_path / "migrations").iterdir()):
        path.chmod(0o700)
    asyncio.run(project.fill("Users", [user(f"user{number}@example.com") for number in range(10)]))
    return project


@pytest.fixture
def rekey(project: Project, commands_on: CommandsOn) -> Commands:
    commands = commands_on(project)
    commands._surroundings = replace(commands._surroundings, ask=ask)
    return commands


def found(document: Any, severity: str = "") -> dict[str, str]:
    """Return what was seen, by code."""
    return {
        one["code"]: one["seen"]
        for one in document["findings"]
        if not severity or one["severity"] == severity
    }


def told(document: Any) -> str:
    """Return all facts."""
    return "\n".join(f"{one['about']}: {one['seen']}" for one in document["facts"])


def tables(project: Project) -> dict[str, list[Any]]:
    """Return all tables of both accounts with their rows."""
    return {
        f"{service is project.tables} {name}": service.dump(name)
        for service in (project.tables, project.restricted)
        for name in service._tables
    }


def calls(project: Project) -> list[Call]:
    """Collect all calls on both accounts from now on."""
    seen: list[Call] = []

    async def gate(call: Call) -> None:
        seen.append(call)

    project.tables.gate = project.restricted.gate = gate
    return seen


def test_a_project_on_azurite_has_notes_only(rekey: Commands) -> None:
    document = rekey("doctor", "--strict", "--json").json
    assert found(document, "error") == found(document, "warning") == {}
    assert {"same-account", "published-key", "azurite", "evidence-unsigned"} <= set(found(document))
    assert "[tables]: read: Users" in told(document)
    assert "scripts: 0001_users" in told(document)


@pytest.mark.parametrize("begun", [False, True])
def test_it_removes_what_it_writes(rekey: Commands, project: Project, begun: bool) -> None:
    """While there is no restricted store it makes a table of its own, and deletes it."""
    if begun:
        asyncio.run(project.restricted.create_table("rekeycontrol"))
    before, seen = tables(project), calls(project)
    document = rekey("doctor", "--json").json
    assert tables(project) == before
    where = "rekeycontrol" if begun else "rekeydoctor"
    assert f"[restricted]: a row was written to {where}" in told(document)
    written = {call.table for call in seen if call.writes or call.action in ("create_table", "delete_table")}
    assert len(written) == 1 and next(iter(written)).startswith(where)


def test_read_only_writes_nothing_and_says_that_it_did_not_try(rekey: Commands, project: Project) -> None:
    seen = calls(project)
    document = rekey("doctor", "--read-only", "--json").json
    assert "writing-not-tried" in found(document, "note")
    assert [call for call in seen if call.writes or call.action in ("create_table", "delete_table")] == []


def test_no_file_is_made_either(rekey: Commands, project: Project) -> None:
    before = sorted(project.folder.rglob("*"))
    rekey("doctor")
    assert sorted(project.folder.rglob("*")) == before


def refusing(*actions: str) -> Any:
    async def gate(call: Call) -> None:
        if call.action in actions:
            raise CredentialRefused(f"{call.action}: 403", code="AuthorizationPermissionMismatch", status=403)

    return gate


def test_a_store_that_takes_no_writes_is_an_error(rekey: Commands, project: Project) -> None:
    project.restricted.gate = refusing("insert", "create_table")
    document = rekey("doctor", "--json", code=1).json
    assert set(found(document, "error")) == {"restricted-unwritable"}
    rekey("apply", "0001_users", code=4)


def test_what_could_not_be_removed_is_named(rekey: Commands, project: Project) -> None:
    project.restricted.gate = refusing("delete_table")
    document = rekey("doctor", "--json", code=1).json
    [left] = [name for name in project.restricted._tables if name.startswith("rekeydoctor")]
    assert left in found(document, "error")["left-behind"].lower()
    project.restricted.gate = refusing()
    asyncio.run(project.restricted.create_table("rekeycontrol"))
    project.restricted.gate = refusing("delete")
    document = rekey("doctor", "--json", code=1).json
    assert "the row doctor." in found(document, "error")["left-behind"]


def test_tables_that_may_not_be_read_are_errors(rekey: Commands, project: Project) -> None:
    project.tables.gate = project.restricted.gate = refusing("table_exists")
    document = rekey("doctor", "--read-only", "--json", code=1).json
    assert set(found(document, "error")) == {"source-unreadable", "restricted-unreadable"}


def test_a_missing_source_is_a_warning(rekey: Commands, project: Project) -> None:
    project.script(
        USERS_SCRIPT.replace('"Users"', '"Nobody"').replace("UsersV2", "NobodyV2"), "0002_nobody.py"
    )
    assert found(rekey("doctor", "--json").json, "warning") == {
        "source-missing": "its source Nobody is not in this account"
    }
    assert rekey("doctor", "--strict", "--json", code=1).json["exit_code"] == 1


def test_migrations_in_the_store_are_told_in_numbers(rekey: Commands, project: Project) -> None:
    rekey("apply", "0001_users")
    client = ClientRow("a1", "billing", "old", "host", 7, "9.9.9", 2, lease_s=30, longest_s=30)

    async def write() -> None:
        await Registry(project.restricted, "0001_users").beat(client)
        journal = await project.journal("0001_users")
        keys = [EntityKey("eu", f"user{number}@example.com") for number in range(3)]
        await journal.begin("a1", 2, "source", keys)

    asyncio.run(write())
    said = rekey("doctor", "--json")
    assert "`dual_write`, epoch 2; clients: 1 live, 0 silent, 0 over; 3 intents" in told(said.json)
    assert set(found(said.json, "warning")) == {"client-version"}
    assert "@example.com" not in said.all
    project.clock.advance(3600)
    later = rekey("doctor", "--json").json
    assert "intents-without-clients" in found(later) and "client-version" not in found(later)


def test_a_row_of_the_store_that_cannot_be_read_is_an_error(rekey: Commands, project: Project) -> None:
    asyncio.run(project.restricted.create_table("rekeycontrol"))
    broken = {"PartitionKey": "0001_users", "RowKey": "control", "Format": 99}
    asyncio.run(project.restricted.table("rekeycontrol").upsert(broken))
    assert set(found(rekey("doctor", "--json", code=1).json, "error")) == {"control-unreadable"}


def test_a_broken_script_and_a_missing_secret_do_not_hide_the_rest(rekey: Commands, project: Project) -> None:
    (project.folder / "users.secret").unlink()
    document = rekey("doctor", "--json", code=1).json
    assert set(found(document, "error")) == {"secret-unresolved"}
    project.script("migration = 1", "0002_broken.py")
    document = rekey("doctor", "--json", code=1).json
    assert set(found(document, "error")) == {"scripts-broken"}
    assert "[restricted]: a row was written" in told(document)


def test_a_missing_key_of_one_account_does_not_hide_the_other(rekey: Commands, project: Project) -> None:
    config = project.folder / "rekey.toml"
    config.write_text(config.read_text("utf-8").replace("[restricted]", 'key_env = "NO_SUCH"\n[restricted]'))
    document = rekey("doctor", "--json", code=1).json
    assert set(found(document, "error")) == {"key-unusable"}
    assert "[restricted]: a row was written" in told(document)


def test_a_configuration_that_cannot_be_read_is_usage(rekey: Commands, project: Project) -> None:
    (project.folder / "rekey.toml").write_text("[tables]\n", "utf-8")
    rekey("doctor", code=2)


def test_no_secret_is_printed(rekey: Commands, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLES_KEY", "dGhpcyBpcyBhIGtleSBvZiBhbiBhY2NvdW50")
    config = project.folder / "rekey.toml"
    keyed = config.read_text("utf-8").replace("[restricted]", 'key_env = "TABLES_KEY"\n[restricted]', 1)
    config.write_text(keyed, "utf-8")
    (project.folder / "users.secret").chmod(0o644)
    for words in (["doctor", "-vv"], ["doctor", "--json", "-vv", "--debug"]):
        said = rekey(*words)
        assert SECRET not in said.all and "dGhpcyBp" not in said.all
    assert "file-open" in said.out


# --- the machine ------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "state" / "state.sqlite"
    State.open(path).close()
    yield path


def test_a_state_file_as_rekey_makes_it_is_closed_and_current(state: Path) -> None:
    seen = see_state(state)
    assert seen.file is not None and seen.folder is not None
    assert (seen.file.mode, seen.folder.mode) == (0o600, 0o700)
    assert seen.schema == seen.newest_schema > 0
    assert (seen.trouble, seen.broken_at, seen.held_by) == (None, None, "")
    assert seen.free_bytes


@pytest.mark.parametrize("there", ["project", "project/.rekey", "project/.rekey/state.sqlite"])
def test_an_unwritable_state_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    """Also before the first `apply`, which would have to make the file. (Root may write anything.)"""
    path, closed = tmp_path / "project/.rekey/state.sqlite", tmp_path / there
    path.parent.parent.mkdir()
    if closed != path.parent.parent:
        State.open(path).close()
    assert see_state(path).not_writable == ""
    may = os.access
    monkeypatch.setattr(os, "access", lambda one, mode: Path(one) != closed and may(one, mode))
    assert see_state(path).not_writable == str(closed)


def test_who_holds_the_lock_is_seen_while_he_does(state: Path) -> None:
    """The lock file stays, signed, when the lock is given back; that is no holder."""
    with FileLock(state):
        assert see_state(state).held_by.startswith("process ")
    assert see_state(state).held_by == ""
    with FileLock(state):
        pass  # looking took nothing


def test_a_damaged_state_file_is_told_and_a_missing_one_is_none(state: Path) -> None:
    state.write_bytes(b"not a database at all")
    assert see_state(state).trouble is not None
    missing = see_state(state.parent / "not" / "there.sqlite")
    assert (missing.file, missing.folder, missing.trouble) == (None, None, None)


# --- accounts in Azure, which answer here as the documentation says --------------------------------------


async def test_with_a_token_a_random_key_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The account says whether it takes keys at all. The key is random and never one that is configured."""
    tried: list[Credential | None] = []

    async def storage(_endpoint: str, _path: str, credential: Credential | None) -> ProbeResult:
        tried.append(credential)
        return heard(200, "") if credential is token else heard(403, "KeyBasedAuthenticationNotPermitted")

    token: Any = object()
    monkeypatch.setattr("rekey.doctor.observe.credential_of", lambda _account, _key: token)
    seen = await see_account("restricted", Account("https://contoso.table.core.windows.net"), storage)
    assert seen.made_up is not None and seen.made_up.code == "KeyBasedAuthenticationNotPermitted"
    assert [type(one) for one in tried] == [type(None), object, SharedKey]
    tried.clear()
    monkeypatch.setenv("CONTOSO_KEY", "MDEyMzQ1Njc4OWFiY2RlZg==")
    keyed = await see_account(
        "tables", Account("https://contoso.table.core.windows.net", "CONTOSO_KEY"), storage
    )
    assert keyed.made_up is None and len(tried) == 2


def test_a_command_asks_the_network_by_itself(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an Azurite on the configured port both accounts are unreachable, and all else is looked at."""
    config = project.folder / "rekey.toml"
    config.write_text(config.read_text("utf-8").replace(":10002", ":1"), "utf-8")
    monkeypatch.setenv("REKEY_CONFIG", str(config))
    assert run(["doctor"], Surroundings(project.connect, project.clock)) == 1
    said = capsys.readouterr().out
    assert said.count("unreachable") == 2 and "scripts: 0001_users" in said


# --- the tenant of the proxy ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_down", [False, True])
def test_the_tenants_signing_keys_are_tried(project: Project, rekey: Commands, is_down: bool) -> None:
    """Also where the network answers and the keys do not come."""
    asked: list[tuple[str, str, Credential | None]] = []

    async def answering(endpoint: str, path: str, credential: Credential | None) -> ProbeResult:
        asked.append((endpoint, path, credential))
        return await ask(endpoint, path, credential)

    rekey._surroundings = replace(rekey._surroundings, ask=answering)
    issuer = Issuer(is_down=is_down)
    with listening_apart(issuer) as authority:
        config = project.folder / "rekey.toml"
        config.write_text(config.read_text("utf-8") + ENTRA.format(authority=authority), "utf-8")
        document = rekey("doctor", "--json", code=1 if is_down else 0).json
    assert (authority, f"{TENANT}/discovery/v2.0/keys", None) in asked
    if is_down:
        assert (
            f"tenant {TENANT} cannot be had from {authority}" in found(document)["signing-keys-unreachable"]
        )
    else:
        assert f"[proxy.access.entra]: tenant {TENANT} has 1 signing key" in told(document)
    assert "[proxy.access.entra]: this machine's clock is right to the second" in told(document)


ENTRA = f"""
[proxy.access.entra]
tenant = "{TENANT}"
authority = "{{authority}}"
allow = [{{{{ object_id = "{USER}", view = "both", rights = "read" }}}}]
"""


async def test_keys_of_a_tenant_that_does_not_answer_are_not_tried(project: Project) -> None:
    """It would wait in vain once more."""

    async def silent(*_: object) -> ProbeResult:
        return ProbeResult(failure="ConnectionRefusedError")

    async def checked(*_: object) -> TenantCheck:
        raise AssertionError("tried")

    seen = await see_tenant(project.config, entra_of(), silent, checked)
    assert seen.check == TenantCheck(failure="ConnectionRefusedError")


def test_without_a_tenant_nobody_is_asked(rekey: Commands) -> None:
    assert "[proxy.access.entra]" not in told(rekey("doctor", "--json").json)
