"""Data keys are wrapped by a key in Key Vault. Key Vault is a small fake of its wire calls in this process.

It challenges, gives the public key, and unwraps as the service's REST reference describes (`keys/get-key`,
`keys/unwrap-key`). It was not tried on the real service.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rekey.errors import ConfigurationError, CredentialRefused, EndpointDown, Moved, Unavailable
from rekey.mapping.rows import MAPPING_TABLE
from rekey.mapping.sealing import Wrapped
from rekey.mapping.store import Keyring
from rekey.mapping.vault import KeyVaultWrappingKey
from rekey.project.config import load_config
from rekey.protocol.opening import open_wrapping
from tests.fakes.key_vault import FIRST, SAID, SECOND, URL, Credential, Vault
from tests.fakes.memory import MemoryTableService

DATA_KEY = bytes(range(32))


def wrapping(vault: Vault, url: str = URL) -> KeyVaultWrappingKey:
    return KeyVaultWrappingKey(url, credential=Credential(), transport=vault, retry_total=0)


def test_what_it_wraps_it_unwraps_and_says_by_which_version() -> None:
    vault = Vault()
    key = wrapping(vault)
    wrapped = key.wrap(DATA_KEY)
    assert wrapped.by == f"{URL}/{FIRST}"
    assert DATA_KEY not in wrapped.data
    assert key.unwrap(wrapped) == DATA_KEY
    assert vault.asked[-1] == f"POST /keys/mapping/{FIRST}/unwrapkey"
    assert key.name == URL
    assert key.is_remote


def test_after_a_rotation_old_data_keys_are_unwrapped_by_the_version_that_wrapped_them() -> None:
    vault = Vault()
    old = wrapping(vault).wrap(DATA_KEY)
    vault.rotate()
    key = wrapping(vault)
    assert key.wrap(DATA_KEY).by == f"{URL}/{SECOND}"
    assert key.wraps(old.by)
    assert key.unwrap(old) == DATA_KEY


def test_only_the_configured_key_is_asked_whatever_a_row_says() -> None:
    vault = Vault()
    for by in ("https://evil.example/keys/mapping/1", f"{URL}2/{FIRST}", "local:3m9k"):
        with pytest.raises(Moved, match=r"\[sealing\] names"):
            wrapping(vault).unwrap(Wrapped(by, b"x"))
    assert vault.asked == []


def test_what_it_did_not_wrap_is_refused() -> None:
    vault = Vault()
    with pytest.raises(Moved, match="does not unwrap") as caught:
        wrapping(vault).unwrap(Wrapped(f"{URL}/{FIRST}", bytes(256)))
    assert SAID not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, ConfigurationError), (403, CredentialRefused), (503, Unavailable), (0, EndpointDown)],
)
def test_what_key_vault_refuses_becomes_an_error_with_what_to_do(status: int, error: type[Exception]) -> None:
    for work in (
        lambda: wrapping(Vault(status)).wrap(DATA_KEY),
        lambda: wrapping(Vault(status)).unwrap(Wrapped(f"{URL}/{FIRST}", b"x")),
    ):
        with pytest.raises(error) as caught:
            work()
        assert caught.value.hint  # type: ignore[attr-defined]
        assert SAID not in str(caught.value)


def test_a_key_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not an RSA key"):
        wrapping(Vault(kty="oct")).wrap(DATA_KEY)


async def test_a_keyring_asks_key_vault_once_for_each_data_key(memory: MemoryTableService) -> None:
    await memory.create_table(MAPPING_TABLE)
    table, vault = memory.table(MAPPING_TABLE), Vault()
    before = Keyring(table, "0001", wrapping(vault))
    await before.begin()
    await before.fresh()
    vault.asked.clear()
    after = Keyring(table, "0001", wrapping(vault))
    await after.open()
    for _ in range(3):
        await after.fresh()
    assert after.root == before.root
    assert sum(path.endswith("/unwrapkey") for path in vault.asked) == 2


def test_the_configuration_names_a_key_and_not_a_secret(tmp_path: Path) -> None:
    config = tmp_path / "rekey.toml"
    account = '[{0}]\nendpoint = "https://a.table.core.windows.net"\n'
    both = account.format("tables") + account.format("restricted")
    config.write_text(f'{both}[sealing]\nkey_vault = "{URL}"\n', "utf-8")
    assert open_wrapping(load_config(config)).name == URL
    config.write_text(f'{both}[sealing]\nkey_vault = "https://a.vault.azure.net/secrets/x"\n', "utf-8")
    with pytest.raises(ConfigurationError, match="not the https URL of a Key Vault key"):
        load_config(config)


def test_without_the_extra_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.keyvault.keys", None)
    with pytest.raises(ConfigurationError, match="not installed") as caught:
        KeyVaultWrappingKey(URL, credential=Credential())
    assert "rekey-tables[keyvault]" in caught.value.hint
