"""The wrapping key that the configuration names, opened.

Rules kept here:

* A wrapping key out of an environment variable or a file is read at once: an absent one is told before
  anything is done. One in Key Vault is asked when it is first needed.
* No message holds anything of it.
"""

from __future__ import annotations

from rekey.declaration.migration import Migration
from rekey.errors import SecretMissing
from rekey.mapping.vault import KeyVaultWrappingKey
from rekey.mapping.wrapping import LocalWrappingKey, WrappingKey, WrappingKeys
from rekey.project.config import Config
from rekey.project.secrets_source import SecretKind, SecretSource, read_local


def open_wrapping(config: Config) -> WrappingKey:
    """Return the wrapping key of a configuration.

    Raises:
        SecretMissing: none is configured, or it is absent or shorter than 32 bytes.
        ConfigurationError: it is in Key Vault, and the extra `keyvault` is not installed.
    """
    source = config.sealing.key
    if source is None:
        raise SecretMissing(
            "the mapping is sealed, and no wrapping key is configured",
            hint=f"`openssl rand -hex 32 > sealing.key && chmod 600 sealing.key`, then add [sealing] with"
            f' file = "sealing.key" to {config.path}; or say mapping="plain" in the script before it begins',
        )
    before = config.sealing.previous
    return WrappingKeys(_opened(source), None if before is None else _opened(before))


def wrapping_for(config: Config, migration: Migration) -> WrappingKey | None:
    """Return what the mapping of a migration is sealed with, None for one in the clear. Raises as
    `open_wrapping`."""
    return open_wrapping(config) if migration.is_sealed else None


def _opened(source: SecretSource) -> WrappingKey:
    if source.kind is SecretKind.KEY_VAULT:
        return KeyVaultWrappingKey(source.where)
    return LocalWrappingKey(read_wrapping(source))


def read_wrapping(source: SecretSource) -> bytes:
    """Return a wrapping key that is in an environment variable or a file.

    Raises:
        SecretMissing: absent, not readable, empty, or shorter than any secret may be.
    """
    try:
        return read_local("the wrapping key", "`[sealing]`", source)
    except SecretMissing as error:
        raise SecretMissing(
            error.what,
            kept="everything; nothing was opened and nothing was changed",
            hint="put it where [sealing] says; a wrapping key that is lost cannot be made again, and the"
            " runbook on the wrapping key says what that means",
        ) from None
