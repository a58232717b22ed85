"""Secrets are found where the configuration says, are long enough, and never shown. Key Vault is a fake."""

from __future__ import annotations

import hashlib
import hmac
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError

from rekey.core.crockford import ALPHABET
from rekey.errors import ConfigurationError, CredentialRefused, EndpointDown, SecretMissing, Unavailable
from rekey.project.keyvault import split_url
from rekey.project.secrets_source import SecretKind, SecretSource, fingerprint, from_key_vault, read_secret
from tests.fakes.key_vault import SAID, Credential, FakeVault

SECRET = "a secret of some length"
URL = "https://acme.vault.azure.net/secrets/users"


IN_ENV = SecretSource(SecretKind.ENV, "V")


@pytest.mark.parametrize("value", [SECRET.encode(), f" {SECRET}\n".encode(), b"\xff" * 16])
def test_a_variable_gives_its_exact_bytes(value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("V", os.fsdecode(value))  # bytes that are no UTF-8 arrive as lone surrogates
    assert read_secret("users", IN_ENV) == value


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"0123456789abcdef", b"0123456789abcdef"),
        (b"0123456789abcdef\n", b"0123456789abcdef"),
        (b"0123456789abcdef\r\n", b"0123456789abcdef"),
        (b"0123456789abcdef\n\n", b"0123456789abcdef\n"),
        (b" 0123456789abcdef ", b" 0123456789abcdef "),
        (bytes(range(16)), bytes(range(16))),
    ],
)
def test_a_file_loses_one_newline_and_nothing_else(tmp_path: Path, content: bytes, secret: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    assert read_secret("users", SecretSource(SecretKind.FILE, str(path))) == secret


@pytest.mark.parametrize("value", [None, "", "x" * 15])
def test_a_missing_or_short_variable_is_missing(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("V", raising=False)
    if value is not None:
        monkeypatch.setenv("V", value)
    with pytest.raises(SecretMissing, match="`users`") as error:
        read_secret("users", IN_ENV)
    assert error.value.hint
    assert "xxx" not in str(error.value)


def test_an_absent_empty_or_short_file_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    source = SecretSource(SecretKind.FILE, str(path))
    with pytest.raises(SecretMissing, match="cannot be read"):
        read_secret("users", source)
    for content in (b"", b"\n", b"0123456789abcde\n"):
        path.write_bytes(content)
        with pytest.raises(SecretMissing, match="at least 16"):
            read_secret("users", source)


def test_the_fingerprint_is_what_is_documented_and_not_what_keys_are_made_of() -> None:
    digest = hmac.new(SECRET.encode(), b"rekey/fingerprint/v1", hashlib.sha256).digest()
    number = int.from_bytes(digest[:20], "big")
    expected = "".join(ALPHABET[number >> shift & 31] for shift in range(155, -1, -5))
    assert fingerprint(SECRET.encode()) == expected
    assert fingerprint(b"another secret, long enough") != expected


class Refusing:
    """No identity is available, as `DefaultAzureCredential` says it."""

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        raise ClientAuthenticationError(message="no credential for alice@example.com")


class Vault(FakeVault):
    """Holds one secret."""

    def __init__(self, status: int = 200, value: str | None = SECRET) -> None:
        super().__init__(status)
        self.value = value

    def answer(self, path: str, content: dict[str, str]) -> dict[str, Any]:
        assert path.startswith("/secrets/users")
        assert content == {}
        return {"id": URL + "/v1", "value": self.value}


def from_vault(vault: Vault, url: str = URL, credential: Any = None) -> bytes:
    return from_key_vault("users", url, credential=credential or Credential(), transport=vault, retry_total=0)


def test_key_vault_gives_the_secret_of_the_url() -> None:
    vault = Vault()
    assert from_vault(vault) == SECRET.encode()
    from_vault(vault, URL + "/0123456789")
    assert vault.asked == ["GET /secrets/users", "GET /secrets/users/0123456789"]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, SecretMissing),
        (403, CredentialRefused),
        (401, CredentialRefused),
        (500, Unavailable),
        (0, EndpointDown),
    ],
)
def test_a_key_vault_refusal_names_an_action_only(status: int, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        from_vault(Vault(status))
    assert caught.value.hint  # type: ignore[attr-defined]
    assert SAID not in str(caught.value)


def test_no_identity_for_key_vault_is_a_refused_credential() -> None:
    with pytest.raises(CredentialRefused) as error:
        from_vault(Vault(), credential=Refusing())
    assert "alice" not in str(error.value)


def test_a_key_vault_secret_without_a_value_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    vault = Vault(value=None)
    monkeypatch.setattr("rekey.project.secrets_source.from_key_vault", lambda *_: from_vault(vault))
    with pytest.raises(SecretMissing, match="is empty"):
        read_secret("users", SecretSource(SecretKind.KEY_VAULT, URL))


def test_without_the_extra_key_vault_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.keyvault.secrets", None)
    with pytest.raises(ConfigurationError, match="not installed") as error:
        read_secret("users", SecretSource(SecretKind.KEY_VAULT, URL))
    assert "rekey-tables[keyvault]" in error.value.hint


@pytest.mark.parametrize(
    "url",
    ["", "x", "http://a/secrets/b", "https://a/secrets", "https://a/secrets/b/c/d", "https:///secrets/b"],
)
def test_only_the_url_of_a_secret_is_taken_for_one(url: str) -> None:
    with pytest.raises(ValueError, match="not the https URL"):
        split_url(url, "secrets")
    assert split_url(URL + "/v", "secrets") == ("https://acme.vault.azure.net", "users", "v")
