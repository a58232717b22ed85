"""Where secrets come from: an environment variable, a file, or Key Vault. By name, never from a script.

Rules kept here:

* A secret is at least 16 bytes; an absent, empty or shorter one is `SecretMissing`, before anything is done.
* A file loses one trailing newline (editors and `echo` add it); nothing else is trimmed anywhere.
* No message, log or repr holds a secret. A secret is recognised by its fingerprint, from which neither the
  secret nor any hash that `keys.opaque` makes can be derived.
* Key Vault needs the extra `keyvault`; it is imported only when a secret comes from there.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
    ServiceRequestError,
)

from rekey import crockford
from rekey.errors import ConfigurationError, CredentialRefused, EndpointDown, SecretMissing, Unavailable

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

MINIMUM_BYTES = 16
FINGERPRINT_BYTES = 20
_FINGERPRINT_MESSAGE = b"rekey/fingerprint/v1"
_FORBIDDEN = 403


class SecretKind(StrEnum):
    """The key of a `[secrets.NAME]` section that says where the secret is."""

    ENV = "env"
    FILE = "file"
    KEY_VAULT = "key_vault"


@dataclass(frozen=True, slots=True)
class SecretSource:
    """Where one secret is.

    Attributes:
        kind: environment variable, file or Key Vault.
        where: the variable's name, the file's absolute path, or the https URL of the Key Vault secret.
    """

    kind: SecretKind
    where: str


def fingerprint(secret: bytes) -> str:
    """Return 32 characters by which a secret is recognised without being known.

    Crockford base32 of the first 160 bits of HMAC-SHA-256(secret, "rekey/fingerprint/v1").
    """
    digest = hmac.new(secret, _FINGERPRINT_MESSAGE, hashlib.sha256).digest()
    return crockford.encode(digest[:FINGERPRINT_BYTES])


def read_secret(name: str, source: SecretSource, *, environ: Mapping[str, str] | None = None) -> bytes:
    """Return the secret's bytes.

    Args:
        name: the name in `[secrets.NAME]`, for messages.
        source: where it is.
        environ: the environment, `os.environ` when None.

    Raises:
        SecretMissing: absent, not readable, empty, or shorter than 16 bytes.
        ConfigurationError: Key Vault is used and the extra `keyvault` is not installed.
        CredentialRefused, EndpointDown, Unavailable: Key Vault could not be read.
    """
    match source.kind:
        case SecretKind.ENV:
            secret = _from_env(name, source.where, os.environ if environ is None else environ)
        case SecretKind.FILE:
            secret = _from_file(name, Path(source.where))
        case SecretKind.KEY_VAULT:
            secret = from_key_vault(name, source.where)
    if len(secret) < MINIMUM_BYTES:
        raise SecretMissing(
            f"secret `{name}` is {'empty' if not secret else 'too short'}:"
            f" {len(secret)} bytes, and at least {MINIMUM_BYTES} are needed",
            hint="make one with `openssl rand -hex 32` and put it where"
            f" `[secrets.{name}]` says; keep it as long as the migrated tables are kept",
        )
    return secret


def warnings_for(name: str, source: SecretSource) -> list[str]:
    """Return what is doubtful about where a secret is; nothing here stops a command."""
    if source.kind is not SecretKind.FILE:
        return []
    return warnings_for_file(f"secret `{name}`", Path(source.where))


def warnings_for_file(what: str, path: Path) -> list[str]:
    """Return what is doubtful about a file that only its owner may open; `what` it is the file of."""
    if os.name != "posix":
        return []
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return []  # reading it will say so, with the cure
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        problem = f"the file of {what} is open to other users (mode {mode:04o})"
        return [f"{problem}; `chmod 600 {path}` closes it"]
    return []


def _from_env(name: str, variable: str, environ: Mapping[str, str]) -> bytes:
    value = environ.get(variable)
    if value is None:
        raise SecretMissing(
            f"secret `{name}`: the environment variable {variable} is not set",
            hint=f"set {variable}, or change `[secrets.{name}]` in the configuration",
        )
    return os.fsencode(value)


def _from_file(name: str, path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SecretMissing(
            f"secret `{name}`: the file {path} cannot be read ({type(error).__name__})",
            hint=f"put the secret there, readable by this user, or change `[secrets.{name}]`",
        ) from None
    for newline in (b"\r\n", b"\n"):
        if content.endswith(newline):
            return content.removesuffix(newline)
    return content


def from_key_vault(
    name: str,
    url: str,
    *,
    credential: TokenCredential | None = None,
    **client_options: Any,
) -> bytes:
    """Return the value of a Key Vault secret.

    Args:
        name: the name in `[secrets.NAME]`, for messages.
        url: `https://VAULT.vault.azure.net/secrets/SECRET` with or without a version.
        credential: `DefaultAzureCredential` when None.
        client_options: passed to `SecretClient` (a `transport`, for example).
    """
    try:
        from azure.keyvault.secrets import SecretClient
    except ImportError:
        raise ConfigurationError(
            f"secret `{name}` is in Key Vault, and the Key Vault client is not installed",
            hint="pip install 'rekey-tables[keyvault]'",
        ) from None
    vault, secret_name, version = split_key_vault_url(url)
    owned = None
    if credential is None:
        from azure.identity import DefaultAzureCredential

        credential = owned = DefaultAzureCredential()
    try:
        with SecretClient(vault, credential, **client_options) as client:
            value = client.get_secret(secret_name, version).value
    except AzureError as error:
        # what the service said is not copied: it may quote the request
        raise _key_vault_failed(name, error) from None
    finally:
        if owned is not None:
            owned.close()
    return (value or "").encode()


def split_key_vault_url(url: str, kind: str = "secrets") -> tuple[str, str, str | None]:
    """Split the URL of something in Key Vault into vault URL, name and version (or None).

    Args:
        url: of one of its secrets, or of one of its `kind`.
        kind: as the URL says it: `secrets` or `keys`.

    Raises:
        ValueError: it is not such a URL. The message does not repeat it.
    """
    parts = urlsplit(url)
    path = [piece for piece in parts.path.split("/") if piece]
    plain = not (parts.query or parts.fragment or parts.username or parts.password)
    if parts.scheme != "https" or not parts.hostname or not plain:
        raise ValueError(f"not the https URL of one of Key Vault's {kind}")
    if len(path) not in (2, 3) or path[0] != kind:
        raise ValueError(f"not the https URL of one of Key Vault's {kind}")
    return f"https://{parts.netloc}", path[1], path[2] if len(path) > 2 else None


def _key_vault_failed(name: str, error: AzureError) -> Exception:
    if isinstance(error, ResourceNotFoundError):
        return SecretMissing(
            f"secret `{name}`: Key Vault has no such secret or version",
            hint=f"check the URL in `[secrets.{name}]`",
        )
    status = (error.status_code or 0) if isinstance(error, HttpResponseError) else 0
    if isinstance(error, ClientAuthenticationError) or status == _FORBIDDEN:
        return CredentialRefused(
            f"secret `{name}`: Key Vault refused the credential, or there is none",
            code="KeyVaultRefused",
            status=status,
            hint="sign in (`az login`), or give this identity the role Key Vault Secrets User",
        )
    if isinstance(error, ServiceRequestError):
        return EndpointDown(
            f"secret `{name}`: the Key Vault could not be reached",
            code="KeyVaultUnreachable",
            hint=f"check the URL in `[secrets.{name}]` and the network",
        )
    return Unavailable(
        f"secret `{name}`: Key Vault answered with an error",
        code="KeyVaultFailed",
        status=status,
        hint="run the same command again",
    )
