"""What every process needs of a project before it works on a migration: accounts, secrets, the mapping.

Rules kept here:

* Whoever asks reads its own configuration; nothing here passes a secret on.
* https without a key uses the identity of whoever runs (`DefaultAzureCredential`); a shared key comes from
  an environment variable only; http, which is loopback, always needs a key (tokens are refused on http).
"""

from __future__ import annotations

from collections.abc import Mapping

from rekey.declaration.migration import Declared, Migration, required_secrets
from rekey.mapping.rows import MAPPING_TABLE
from rekey.mapping.store import MappingStore, open_mapping
from rekey.mapping.wrapping import WrappingKey
from rekey.project.config import Account, Config, account_key, resolve_secret
from rekey.project.secrets_source import fingerprint
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Accounts
from rekey.tables.credentials import Credential, SharedKey


def credential_for(account: Account, *, environ: Mapping[str, str] | None = None) -> Credential:
    """Return the credential of a configured account. Raises ConfigurationError.

    Whoever opens a service with it owns it: the service closes a token credential with itself.
    """
    key = account_key(account, environ=environ)
    if key is not None:
        return SharedKey.of(account.name, key)
    # A fifth of the time that a command takes to start: only who needs it pays for it.
    from azure.identity.aio import DefaultAzureCredential

    return DefaultAzureCredential()


def connect(config: Config) -> Accounts:
    """Return both accounts; the first request connects. Raises ConfigurationError."""
    return Accounts(
        AzureTableService.open(config.tables.endpoint, credential_for(config.tables)),
        AzureTableService.open(config.restricted.endpoint, credential_for(config.restricted)),
    )


def secrets_of(config: Config, migration: Migration) -> dict[str, bytes]:
    """Return the secrets a declaration needs, by name. Raises SecretMissing."""
    return {name: resolve_secret(config, name) for name in required_secrets(migration)}


def fingerprints_of(found: Mapping[str, bytes]) -> dict[str, str]:
    """Return the fingerprints of secrets, by name."""
    return {name: fingerprint(secret) for name, secret in found.items()}


async def mapping_of(
    accounts: Accounts, declared: Declared, id_key: bytes, wrapping: WrappingKey | None
) -> MappingStore:
    """Return the mapping store of a migration that has begun; see `open_mapping`."""
    table = accounts.restricted.table(MAPPING_TABLE)
    return await open_mapping(table, declared.script_id, declared.migration, id_key, wrapping)
