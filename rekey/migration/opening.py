"""What every process needs of a project before it works on a migration: accounts, secrets, the mapping.

Rules kept here:

* Whoever asks reads its own configuration; nothing here passes a secret on.
"""

from __future__ import annotations

from collections.abc import Mapping

from rekey.declaration.migration import Declared, Migration, required_secrets
from rekey.mapping.rows import MAPPING_TABLE
from rekey.mapping.store import MappingStore, open_mapping
from rekey.mapping.wrapping import WrappingKey
from rekey.project.config import Config, resolve_secret
from rekey.project.secrets_source import fingerprint
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Accounts
from rekey.tables.credentials import credential_for


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
