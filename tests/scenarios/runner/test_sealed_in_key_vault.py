"""A sealed migration whose wrapping key is in Key Vault, and one who writes to its restricted store."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from rekey.errors import Moved
from rekey.mapping.rows import MAPPING_TABLE
from rekey.mapping.sealing import ROOT, Wrapped, data_key_row, new_data_key
from rekey.mapping.vault import KeyVaultWrappingKey
from rekey.model import EntityKey, content_of
from rekey.state.store import State
from tests.asserts.command_line import Commands, CommandsOn
from tests.fakes.key_vault import FIRST, OAEP, URL, Credential, Vault
from tests.scenarios.runner.test_previous_version import (
    DAY,
    PREVIOUS,
    assert_goes_to_its_end,
    assert_looked_up,
    left_by,
)
from tests.worlds.projects import USERS_SCRIPT, Project
from tests.worlds.small import user

SCRIPT = "0001_users"


def with_vault(project: Project, vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the project's wrapping key in a vault."""
    client = partial(KeyVaultWrappingKey, credential=Credential(), transport=vault, retry_total=0)
    monkeypatch.setattr("rekey.mapping.vault.KeyVaultWrappingKey", client)
    config = project.folder / "rekey.toml"
    text = config.read_text("utf-8").replace('file = "sealing.key"', f'key_vault = "{URL}"')
    config.write_text(text, "utf-8")


@pytest.fixture
def vault() -> Vault:
    return Vault()


@pytest.fixture
def rekey(vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands_on: CommandsOn) -> Commands:
    """A migration that begins with its wrapping key in Key Vault."""
    project = Project(tmp_path)
    with_vault(project, vault, monkeypatch)
    project.script(USERS_SCRIPT)
    asyncio.run(project.fill("Users", [user(f"user{number}@example.com") for number in range(9)]))
    project.clock.advance(3600)
    return commands_on(project)


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands_on: CommandsOn) -> Commands:
    """A migration that version 0.2.0 began with its wrapping key in Key Vault."""
    project = left_by("0.2.0", "vault", tmp_path, DAY)
    private = load_pem_private_key((PREVIOUS / "0.2.0" / "vault" / "vault.pem").read_bytes(), None)
    with_vault(project, Vault(private=private), monkeypatch)  # type: ignore[arg-type]
    return commands_on(project)


def plant(project: Project, vault: Vault, cohort: str) -> None:
    """Put a data key, or a root key, in place that the attacker made with the public half."""
    key = new_data_key(cohort)
    wrapped = Wrapped(f"{URL}/{FIRST}", vault.versions[FIRST].public_key().encrypt(key.key, OAEP))
    asyncio.run(project.restricted.table(MAPPING_TABLE).upsert(data_key_row(SCRIPT, key, wrapped)))


def vault_of(project: Project) -> Vault:
    private = load_pem_private_key((project.folder / "vault.pem").read_bytes(), None)
    return Vault(private=private)  # type: ignore[arg-type]


def events(project: Project, name: str) -> int:
    with State.open(project.config.state, read_only=True) as state:
        return len(state.audit_events(SCRIPT, event=name))


def test_it_is_applied_and_looked_up(rekey: Commands) -> None:
    rekey("apply")
    rekey("apply", "--to", "cutover", "--writers-stopped")
    assert_looked_up(rekey)
    assert events(rekey.project, "root-key") == 1


@pytest.mark.parametrize("cohort", [ROOT, "month"])
def test_runner_look_up_and_clients_refuse_a_planted_key(rekey: Commands, vault: Vault, cohort: str) -> None:
    rekey("apply")
    rows = rekey.project.restricted.dump(MAPPING_TABLE)
    [month] = {row["RowKey"] for row in rows if row["PartitionKey"] == f"{SCRIPT}.k"} - {ROOT}
    plant(rekey.project, vault, ROOT if cohort == ROOT else month)
    before = content_of(rekey.project.restricted.dump(MAPPING_TABLE)[0])
    asyncio.run(rekey.project.tables.table("Users").insert(user("late@example.com")))
    rekey.project.clock.advance(60)
    for words in (("apply",), ("apply", "--to", "cutover", "--writers-stopped")):
        assert "no proof" in rekey(*words, code=3).err
    asked = ("lookup", "--old", "eu", "user1@example.com", "--reason", "ticket 4711")
    assert "no proof" in rekey(*asked, code=3).err

    async def as_a_client() -> None:
        mapping = await rekey.project.mapping(SCRIPT)
        await mapping.fresh()

    with pytest.raises(Moved, match="no proof"):
        asyncio.run(as_a_client())
    assert content_of(rekey.project.restricted.dump(MAPPING_TABLE)[0]) == before


def test_an_earlier_versions_data_keys_are_proved_once_and_then_no_more(earlier: Commands) -> None:
    project = earlier.project
    with pytest.raises(Moved, match="no proof") as caught:
        asyncio.run(project.mapping(SCRIPT))
    assert "rekey apply 0001_users" in caught.value.hint
    said = earlier("apply").all
    assert "have a proof now" in said
    assert "have a proof now" not in earlier("apply").all
    assert (events(project, "root-key"), events(project, "data-keys-proved")) == (1, 1)
    plant(project, vault_of(project), "2020-01")
    row = {"DataKey": "2020-01-00000000"}

    async def learn() -> None:
        keyring = (await project.mapping(SCRIPT)).keyring
        await keyring.learn([row])

    earlier("apply")
    with pytest.raises(Moved, match="the data key 2020-01 of 0001_users has no proof"):
        asyncio.run(learn())
    earlier("apply", "--accept-data-keys")
    asyncio.run(learn())
    earlier("verify", "--mode", "full")
    assert_goes_to_its_end(earlier)


def test_a_root_key_that_did_not_seal_the_checkpoints_is_not_proved(earlier: Commands) -> None:
    """It was planted before the update, in the place of the migration's own."""
    plant(earlier.project, vault_of(earlier.project), ROOT)
    for words in (("apply",), ("apply", "--accept-data-keys")):
        assert "sealed by another run" in earlier(*words, code=None).err
    assert events(earlier.project, "data-keys-proved") == 0


@pytest.mark.parametrize("change", ["DELETE FROM segment", "UPDATE segment SET cursor_key = NULL"])
def test_without_a_sealed_checkpoint_no_root_key_is_trusted(earlier: Commands, change: str) -> None:
    """Any root key opens all of none: 0.2.0 had begun, and had copied nothing yet."""
    with closing(sqlite3.connect(earlier.project.config.state, isolation_level=None)) as connection:
        connection.execute(change)
    for _ in range(2):
        assert "no checkpoint to tell it from one that somebody planted" in earlier("apply", code=3).err
    assert (events(earlier.project, "root-key"), events(earlier.project, "data-keys-proved")) == (0, 0)
    assert "have a proof now" in earlier("apply", "--accept-data-keys").all


def test_without_the_state_file_data_keys_need_the_operators_word(earlier: Commands) -> None:
    (earlier.project.folder / "state.sqlite").unlink()
    for _ in range(2):
        assert "no proof" in earlier("apply", code=3).err
    assert "have a proof now" in earlier("apply", "--accept-data-keys").all


def test_another_root_key_is_refused(rekey: Commands, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Another project of the same wrapping key has a migration of the same name: its proof is right."""
    rekey("apply")
    project, other = rekey.project, Project(tmp_path_factory.mktemp("other"))
    (other.folder / "rekey.toml").write_text((project.folder / "rekey.toml").read_text("utf-8"), "utf-8")
    other.script(USERS_SCRIPT)
    asyncio.run(other.fill("Users", [user("else@example.com")]))
    with other.session() as session:
        session.begin(SCRIPT)
    at = EntityKey(f"{SCRIPT}.k", ROOT)
    theirs = asyncio.run(other.restricted.table(MAPPING_TABLE).get(at))
    assert theirs is not None
    asyncio.run(project.restricted.table(MAPPING_TABLE).upsert(content_of(theirs)))
    assert "is not the one that the audit log of this project records" in rekey("apply", code=3).err


def test_a_state_file_that_dropped_its_run_takes_over_one_that_another_has_begun(rekey: Commands) -> None:
    """The new run has a root key of its own: it was not replaced."""
    state = Path(rekey.project.config.state)
    rekey("apply")
    rekey("rollback", SCRIPT, "--to", "source", "--drop-targets")
    kept = state.read_bytes()
    state.unlink()
    rekey.project.clock.advance(60)
    rekey("apply")
    state.write_bytes(kept)
    rekey("apply")
    rekey("verify", "--mode", "full")
    assert events(rekey.project, "root-key") == 2


def test_data_keys_are_accepted_of_migrations_that_have_begun_and_others_begin(rekey: Commands) -> None:
    rekey("apply", "--accept-data-keys")
    rekey("apply", "--accept-data-keys", "--to", "cutover", "--writers-stopped")
    assert_looked_up(rekey)
