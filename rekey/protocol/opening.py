"""Opening a migration: accounts, secrets, mapper, mapping and control row, put together in one place for
commands, workers and clients.

Rules kept here:

* Each process reads its own configuration; nothing here passes a secret on.
* Secrets are read when they are first needed, once. A plan gets the errors about the missing ones; for every
  other caller the first is raised.
* A wrapping key in an environment variable or a file is read when it is opened: a missing one is reported
  before anything is done. Key Vault is asked when its key is first needed. No message holds any part of a
  wrapping key.
* https without a key uses the identity of the process (`DefaultAzureCredential`); a shared key comes from
  an environment variable only; http, which is loopback, always needs a key (tokens are refused on http).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Declared, required_secrets
from rekey.errors import Moved, RekeyError, SecretMissing
from rekey.mapping.ids import SafeIds
from rekey.mapping.rows import MAPPING_TABLE, MappingRows, is_tombstone
from rekey.mapping.sealing import LocalWrappingKey, WrappingKey, WrappingKeys, ids_key
from rekey.mapping.store import Keyring, MappingStore, data_key_rows
from rekey.mapping.vault import KeyVaultWrappingKey
from rekey.next_steps import next_step
from rekey.project.config import Config, account_key, resolve_secret
from rekey.project.secrets_source import SecretKind, SecretSource, fingerprint, read_local
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.propagate import Propagator
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Accounts, Table
from rekey.tables.credentials import credential_of
from rekey.tables.kinds import by_number


@dataclass
class Prepared:
    """A declaration with its secrets and the wrapping key of its mapping; nothing is connected.

    Attributes:
        declared: the declaration.
        secret: returns the secret of this name, or raises SecretMissing.
        wrapping_key: returns the wrapping key, or raises SecretMissing.
    """

    declared: Declared
    secret: Callable[[str], bytes]
    wrapping_key: Callable[[], WrappingKey | None]

    @classmethod
    def of(cls, config: Config, declared: Declared) -> Prepared:
        """Prepare a migration of a project."""
        return cls(declared, lambda name: resolve_secret(config, name), lambda: open_wrapping(config))

    @cached_property
    def _read(self) -> tuple[dict[str, bytes], dict[str, SecretMissing]]:
        found: dict[str, bytes] = {}
        missing: dict[str, SecretMissing] = {}
        for name in required_secrets(self.declared.migration):
            try:
                found[name] = self.secret(name)
            except SecretMissing as error:
                missing[name] = error
        return found, missing

    @property
    def missing(self) -> tuple[SecretMissing, ...]:
        """The errors about the secrets that are missing."""
        return tuple(self._read[1].values())

    @property
    def secrets(self) -> Mapping[str, bytes]:
        """The secrets of the declaration, by name. Raises SecretMissing."""
        found, missing = self._read
        for error in missing.values():
            raise error
        return found

    @cached_property
    def mapper(self) -> Mapper:
        """The mapper of the declaration. Raises SecretMissing."""
        return Mapper(self.declared.migration, self.secrets)

    def require(self) -> None:
        """Raise SecretMissing when a secret, or the wrapping key of a sealed mapping, is missing."""
        self.secrets  # noqa: B018 - raises
        self.wrapping  # noqa: B018 - raises

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of the secrets that were found, by name."""
        return {name: fingerprint(secret) for name, secret in self._read[0].items()}

    @cached_property
    def wrapping(self) -> WrappingKey | None:
        """The wrapping key of the mapping, None for a mapping in the clear. Raises SecretMissing."""
        return self.wrapping_key() if self.declared.migration.is_sealed else None


@dataclass(frozen=True, slots=True)
class OpenMigration:
    """A migration and its accounts.

    Attributes:
        prepared: its declaration and secrets.
        accounts: the account of its tables, and the restricted account.
        control: its control row.
    """

    prepared: Prepared
    accounts: Accounts
    control: ControlStore

    async def mapping(self, row: ControlRow) -> MappingStore:
        """Return the mapping of a migration that has begun. `row` is its control row.

        Raises:
            SecretMissing: the mapping is sealed, and there is no wrapping key.
            Moved, SealedUnreadable: the data keys cannot be opened.
        """
        table = self.accounts.restricted.table(MAPPING_TABLE)
        script_id, migration = self.prepared.declared.script_id, self.prepared.declared.migration
        of = script_id, migration.source, migration.tables
        if self.prepared.wrapping is None:
            return MappingStore(table, MappingRows(*of, SafeIds(row.id_key)))
        keyring = Keyring(table, script_id, self.prepared.wrapping)
        await keyring.open()
        ids = SafeIds(ids_key(keyring.root, row.id_key))
        return MappingStore(table, MappingRows(*of, ids, keyring.sealer, keyring.tombstones), keyring)

    def propagator(
        self, mapping: MappingStore, table: Callable[[str], Table], *, width: int = 1
    ) -> Propagator:
        """Return propagate(k) with the source as the authority.

        Args:
            mapping: the mapping of the migration.
            table: returns a handle of the table of this name: one that repeats open writes, or one that does
                not.
            width: how many rows of one key are read or written at a time.
        """
        migration = self.prepared.declared.migration
        targets = by_number(migration.tables, migration.secondary, table)
        return Propagator(table(migration.source), targets, self.prepared.mapper, mapping, width)


def open_migration(prepared: Prepared, accounts: Accounts) -> OpenMigration:
    """Open a migration; no request is sent yet."""
    control = ControlStore(accounts.restricted, prepared.declared.script_id)
    return OpenMigration(prepared, accounts, control)


async def secrets_refused(migration: OpenMigration, row: ControlRow | None) -> RekeyError | None:
    """Return why commands that map rows refuse a migration: a secret or the wrapping key is missing, or not
    the one that it began with; None when nothing is wrong. No data key is opened; Key Vault is asked for
    secrets.

    Args:
        migration: the migration.
        row: its control row, None if it has not begun.

    Raises:
        ServiceError: the data keys cannot be read.
    """
    prepared, script_id = migration.prepared, migration.prepared.declared.script_id
    rows = []
    if row is not None and prepared.declared.migration.is_sealed:
        rows = await data_key_rows(migration.accounts.restricted.table(MAPPING_TABLE), script_id)
    try:
        prepared.require()
        if row is not None:
            require_same_secrets(script_id, row.fingerprints, prepared.fingerprints)
        for one in rows:
            if isinstance(prepared.wrapping, WrappingKeys) and not is_tombstone(one):
                prepared.wrapping.require(str(one.get("WrappedBy", "?")))
    except RekeyError as error:
        return error
    return None


def require_same_secrets(script_id: str, began: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse secrets that changed since a migration began, by their fingerprints. Raises Moved."""
    changed = [f"`{name}`" for name in sorted({*now, *began}) if now.get(name) != began.get(name)]
    if changed:
        raise Moved(
            f"the secret {', '.join(changed)} is not the one that {script_id} started with",
            kept="everything done so far; nothing was written with the other secret",
            hint="configure the secret of the start; to change it:"
            f" {next_step('begin-anew', script=script_id)}",
        )


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


def _opened(source: SecretSource) -> WrappingKey:
    if source.kind is SecretKind.KEY_VAULT:
        return KeyVaultWrappingKey(source.where)
    return LocalWrappingKey(read_wrapping(source))


def read_wrapping(source: SecretSource) -> bytes:
    """Return the wrapping key that an environment variable or a file holds.

    Raises:
        SecretMissing: absent, not readable, empty, or shorter than the minimum for secrets.
    """
    try:
        return read_local("the wrapping key", "`[sealing]`", source)
    except SecretMissing as error:
        raise SecretMissing(
            error.what,
            kept="everything; nothing was opened and nothing was changed",
            hint="put it where [sealing] says; before the first migration `openssl rand -hex 32` makes one;"
            " afterwards one that is lost cannot be made again: `rekey runbook wrapping-key` says what that"
            " means",
        ) from None


def connect(config: Config) -> Accounts:
    """Return both accounts; a connection is made by the first request. Raises ConfigurationError."""
    tables, restricted = (
        AzureTableService.open(account.endpoint, credential_of(account.name, account_key(account)))
        for account in (config.tables, config.restricted)
    )
    return Accounts(tables, restricted)
