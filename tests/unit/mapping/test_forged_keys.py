"""Who can write to the restricted store and has the public half of the wrapping key cannot plant a data key.

Every attack here wraps with the public half, as anyone can, and makes the row's own check right.
"""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from rekey.errors import ConfigurationError, CredentialRefused, Moved
from rekey.mapping.rows import MAPPING_TABLE
from rekey.mapping.sealing import (
    ROOT,
    DataKey,
    LocalWrappingKey,
    Wrapped,
    WrappingKey,
    WrappingKeys,
    cohort_of,
    data_key_row,
    new_data_key,
)
from rekey.mapping.store import Keyring
from rekey.mapping.vault import KeyVaultWrappingKey
from rekey.model import EntityKey, Row, content_of
from rekey.state.audit import utc_now
from rekey.tables.base import Table
from tests.fakes.key_vault import FIRST, OAEP, SECOND, URL, Credential, Vault
from tests.fakes.memory import MemoryTableService

SCRIPT = "0001_users"
MONTH = cohort_of(utc_now())
LOCAL = LocalWrappingKey(b"w" * 32)


def wrapping(vault: Vault) -> KeyVaultWrappingKey:
    return KeyVaultWrappingKey(URL, credential=Credential(), transport=vault, retry_total=0)


def planted(vault: Vault, cohort: str, proof: bytes = b"") -> tuple[DataKey, Row]:
    """A key that the attacker knows, wrapped with the public half, and its row."""
    key = new_data_key(cohort)
    wrapped = Wrapped(f"{URL}/{FIRST}", vault.versions[FIRST].public_key().encrypt(key.key, OAEP))
    return key, data_key_row(SCRIPT, key, wrapped, proof)


async def table_of(memory: MemoryTableService) -> Table:
    await memory.create_table(MAPPING_TABLE)
    return memory.table(MAPPING_TABLE)


async def begun(table: Table, key: WrappingKey, script_id: str = SCRIPT) -> Keyring:
    keyring = Keyring(table, script_id, key)
    await keyring.begin()
    return keyring


def row_of(memory: MemoryTableService, cohort: str, script_id: str = SCRIPT) -> Row:
    at = f"{script_id}.k", cohort
    rows = memory.dump(MAPPING_TABLE)
    return content_of(next(row for row in rows if (row["PartitionKey"], row["RowKey"]) == at))


@pytest.mark.parametrize(
    "proof", [b"", b"x" * 32, b"x" * 256], ids=["no proof", "as a MAC", "as a signature"]
)
async def test_a_data_key_planted_early_is_not_used(memory: MemoryTableService, proof: bytes) -> None:
    table, vault = await table_of(memory), Vault()
    key = wrapping(vault)
    keyring = await begun(table, key)
    await table.insert(planted(vault, MONTH, proof)[1])
    for reader in (keyring, Keyring(table, SCRIPT, key)):
        await reader.open()
        with pytest.raises(Moved, match="planted"):
            await reader.fresh()


async def test_a_planted_data_key_opens_no_forged_row(memory: MemoryTableService) -> None:
    table, vault = await table_of(memory), Vault()
    keyring = await begun(table, wrapping(vault))
    forged, row = planted(vault, "2024-05")
    await table.insert(row)
    with pytest.raises(Moved, match="no proof"):
        await keyring.learn([{"PartitionKey": "p", "RowKey": "r", "DataKey": forged.name}])
    assert not any(path.endswith("/unwrapkey") for path in vault.asked), "nothing of it is decrypted"


async def test_a_planted_root_key_is_refused_at_any_stage(memory: MemoryTableService) -> None:
    table, vault = await table_of(memory), Vault()
    for proof in (b"", b"x" * 256):
        await table.upsert(planted(vault, ROOT, proof)[1])
        for work in (Keyring.begin, Keyring.open):
            with pytest.raises(Moved, match="planted"):
                await work(Keyring(table, SCRIPT, wrapping(vault)))


async def test_a_root_key_signed_by_another_rsa_key_is_refused(memory: MemoryTableService) -> None:
    """Its signature is right, and is checked with what Key Vault says, not with what the row says."""
    table, vault = await table_of(memory), Vault()
    theirs = Vault(private=rsa.generate_private_key(65537, 2048))
    await begun(table, wrapping(theirs))
    with pytest.raises(Moved, match="its proof is not by the wrapping key"):
        await Keyring(table, SCRIPT, wrapping(vault)).open()


@pytest.mark.parametrize(
    "changed",
    [
        {"RowKey": "2024-05"},
        {"Name": f"{MONTH}-00000000"},
        {"WrappedBy": f"{URL}/{SECOND}"},
        {"Proof": ""},
        {"of": "0002_users"},
    ],
    ids=["another month", "another name", "another version", "without proof", "another migration"],
)
async def test_a_data_key_in_another_place_is_refused(memory: MemoryTableService, changed: Row) -> None:
    table, vault = await table_of(memory), Vault()
    key = wrapping(vault)
    for script_id in (SCRIPT, "0002_users"):
        await (await begun(table, key, script_id)).fresh()
    vault.rotate()
    row = row_of(memory, MONTH, changed.pop("of", SCRIPT)) | {"PartitionKey": f"{SCRIPT}.k"} | changed
    await table.upsert(row)
    fresh = Keyring(table, SCRIPT, key)
    await fresh.open()
    with pytest.raises(Moved, match="planted"):
        await fresh.learn([{"DataKey": f"{row['RowKey']}-00000000"}])


@pytest.mark.parametrize("of", [SCRIPT, "0002_users"], ids=["a data key's", "another migration's"])
async def test_another_row_is_refused_as_the_root_key(memory: MemoryTableService, of: str) -> None:
    table, vault = await table_of(memory), Vault()
    key = wrapping(vault)
    for script_id in (SCRIPT, "0002_users"):
        await (await begun(table, key, script_id)).fresh()
    row = row_of(memory, MONTH if of == SCRIPT else ROOT, of)
    await table.upsert(row | {"PartitionKey": f"{SCRIPT}.k", "RowKey": ROOT})
    with pytest.raises(Moved, match="planted"):
        await Keyring(table, SCRIPT, key).open()


@pytest.mark.parametrize(
    "by",
    [
        f"{URL}/../../secrets/users/{FIRST}",
        f"{URL}/{FIRST}?x=",
        f"{URL}/{FIRST}/",
        f"{URL}/",
        f"{URL}/{FIRST}\n",
        FIRST,
        f"https://acme.vault.azure.net.evil.example/keys/mapping/{FIRST}",
        f"https://evil.example@acme.vault.azure.net/keys/mapping/{FIRST}",
    ],
)
async def test_a_row_sends_no_request_to_another_address(memory: MemoryTableService, by: str) -> None:
    table, vault = await table_of(memory), Vault()
    await begun(table, wrapping(vault))
    await table.upsert({**row_of(memory, ROOT), "WrappedBy": by})
    vault.asked.clear()
    with pytest.raises(Moved, match=r"\[sealing\] names"):
        await Keyring(table, SCRIPT, WrappingKeys(wrapping(vault))).open()
    assert vault.asked == []


async def test_a_disabled_version_of_the_wrapping_key_is_reported(memory: MemoryTableService) -> None:
    table, vault = await table_of(memory), Vault()
    await begun(table, wrapping(vault))
    vault.disabled.add(FIRST)
    with pytest.raises(ConfigurationError, match="disabled in Key Vault") as caught:
        await Keyring(table, SCRIPT, wrapping(vault)).open()
    assert "--enabled true" in caught.value.hint


async def test_a_key_that_may_not_sign_begins_nothing_but_reads(memory: MemoryTableService) -> None:
    table, vault = await table_of(memory), Vault()
    vault.operations.remove("sign")
    with pytest.raises(CredentialRefused, match="refused to sign") as caught:
        await begun(table, wrapping(vault))
    assert "--ops wrapKey unwrapKey sign" in caught.value.hint
    assert memory.dump(MAPPING_TABLE) == []
    vault.operations.append("sign")
    await begun(table, wrapping(vault))
    vault.operations.remove("sign")
    client = Keyring(table, SCRIPT, wrapping(vault))
    await client.open()
    await client.fresh()


async def test_a_short_key_is_refused() -> None:
    vault = Vault(private=rsa.generate_private_key(65537, 1024))  # noqa: S505 - refused
    with pytest.raises(ConfigurationError, match="2048 bits"):
        wrapping(vault).wrap(bytes(32))


@pytest.mark.parametrize("to_vault", [True, False])
async def test_a_planted_key_is_refused_during_rewrapping(memory: MemoryTableService, to_vault: bool) -> None:
    """From a local key to Key Vault, and back: also while the vault's key is the previous one."""
    table, vault = await table_of(memory), Vault()
    there = wrapping(vault)
    before, after = (LOCAL, there) if to_vault else (there, LOCAL)
    keyring = await begun(table, before)
    await keyring.fresh()
    both = Keyring(table, SCRIPT, WrappingKeys(after, before))
    await both.open()
    forged, row = planted(vault, "2024-05")
    await table.insert(row)
    with pytest.raises(Moved, match="no proof"):
        await both.learn([{"DataKey": forged.name}])
    await table.delete(EntityKey(f"{SCRIPT}.k", "2024-05"), etag="*")
    assert await both.rewrap() == 2
    last = Keyring(table, SCRIPT, after)
    await last.open()
    await last.fresh()
    assert last.root == keyring.root
    assert last.sealer.knows(row_of(memory, MONTH)["Name"])
