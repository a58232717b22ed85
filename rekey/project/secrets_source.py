"""Reads secrets from an environment variable, a file or Key Vault. No message, log or repr holds a secret; a
secret is recognized by its fingerprint."""

from __future__ import annotations

import hashlib
import hmac
import os
from contextlib import closing, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rekey.core import crockford
from rekey.errors import SecretMissing, reason_of
from rekey.project.keyvault import VaultObject, default_credential, split_url
from rekey.project.refusals import refusal

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

MINIMUM_BYTES = 16
FINGERPRINT_BYTES = 20
_FINGERPRINT_MESSAGE = b"rekey/fingerprint/v1"


class SecretKind(StrEnum):
    """The key of a `[secrets.NAME]` section that says where the secret is."""

    ENV = "env"
    FILE = "file"
    KEY_VAULT = "key_vault"


@dataclass(frozen=True, slots=True)
class SecretSource:
    """Where a secret is."""

    # Environment variable, file or Key Vault.
    kind: SecretKind
    # The variable's name, the file's absolute path, or the https URL of the Key Vault secret.
    where: str


def fingerprint(secret: bytes) -> str:
    """Return 32 characters that identify a secret: Crockford base32 of the first 160 bits of
    HMAC-SHA-256(secret, "rekey/fingerprint/v1"). Neither the secret nor a hash by `keys.opaque` can be
    derived from it."""
    digest = hmac.new(secret, _FINGERPRINT_MESSAGE, hashlib.sha256).digest()
    return crockford.encode(digest[:FINGERPRINT_BYTES])


def read_secret(name: str, source: SecretSource) -> bytes:
    """Return the secret's bytes. `name` is that in `[secrets.NAME]`, for messages.

    Raises:
        SecretMissing: absent, not readable, empty, or shorter than 16 bytes.
        ConfigurationError: Key Vault is used and the extra `keyvault` is not installed.
        CredentialRefused, EndpointDown, Unavailable: Key Vault could not be read.
    """
    what, setting = f"secret `{name}`", f"`[secrets.{name}]`"
    if source.kind is SecretKind.KEY_VAULT:
        return _long_enough(what, setting, from_key_vault(name, source.where))
    return read_local(what, setting, source)


def read_local(what: str, setting: str, source: SecretSource) -> bytes:
    """Return the bytes of a secret in an environment variable or a file.

    Args:
        what: the secret's name in messages: "secret `users`".
        setting: the section that says where it is, for messages.
        source: where it is; not in Key Vault.

    Raises:
        SecretMissing: absent, not readable, empty, or shorter than 16 bytes.
    """
    if source.kind is SecretKind.ENV:
        value = os.environ.get(source.where)
        if value is None:
            raise refusal("variable-not-set", secret=what, variable=source.where, setting=setting)
        secret = os.fsencode(value)
    else:
        try:
            content = Path(source.where).read_bytes()
        except OSError as error:
            text = f"{source.where} cannot be read ({reason_of(error)})"
            raise refusal("file-not-read", secret=what, said=text, setting=setting) from None
        # Editors and `echo` add a newline. Nothing else is ever trimmed.
        secret = content.removesuffix(b"\r\n" if content.endswith(b"\r\n") else b"\n")
    return _long_enough(what, setting, secret)


def _long_enough(what: str, setting: str, secret: bytes) -> bytes:
    if len(secret) < MINIMUM_BYTES:
        how = f"{'too short' if secret else 'empty'}: {len(secret)} bytes"
        raise refusal("secret-too-short", secret=what, how=how, least=MINIMUM_BYTES, setting=setting)
    return secret


def from_key_vault(
    name: str, url: str, *, credential: TokenCredential | None = None, **client_options: Any
) -> bytes:
    """Return the value of a Key Vault secret.

    Args:
        name: the name in `[secrets.NAME]`, for messages.
        url: `https://VAULT.vault.azure.net/secrets/SECRET` with or without a version.
        credential: `DefaultAzureCredential` when None.
        client_options: passed to `SecretClient` (a `transport`, for example).
    """
    described = VaultObject(
        what=f"secret `{name}`",
        kind="secret",
        setting=f"`[secrets.{name}]`",
        purpose="to give it",
        role="Key Vault Secrets User",
        absent=SecretMissing,
    )
    try:
        from azure.keyvault.secrets import SecretClient
    except ImportError:
        raise described.not_installed() from None
    vault, secret_name, version = split_url(url, "secrets")
    # Close only a credential that was made here, not the caller's.
    used = closing(default_credential()) if credential is None else nullcontext(credential)
    with used as identity, described.asked(), SecretClient(vault, identity, **client_options) as client:
        value = client.get_secret(secret_name, version).value
    return (value or "").encode()


def read_wrapping(source: SecretSource) -> bytes:
    """Return the wrapping key in an environment variable or a file.

    Raises:
        SecretMissing: absent, not readable, empty, or shorter than the minimum for secrets.
    """
    try:
        return read_local("the wrapping key", "`[sealing]`", source)
    except SecretMissing as error:
        raise refusal("wrapping-key-missing", what=error.what) from None
