"""Opening a migration for commands, workers and clients: accounts, secrets, mapper, mapping and control row.
Each process reads its own configuration; nothing here passes a secret on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from urllib.parse import urlsplit

from rekey.core.limits import TARGET_ACCOUNT_SUFFIX
from rekey.core.safe_ids import SafeIds
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Declared, required_secrets
from rekey.errors import (
    ConfigurationError,
    Moved,
    Refused,
    RekeyError,
    SealedUnreadable,
    SecretMissing,
    TableMissing,
)
from rekey.mapping.computed import ComputedMapping
from rekey.mapping.rows import MAPPING_TABLE, MappingRows, is_tombstone
from rekey.mapping.sealing import ROOT, LocalWrappingKey, WrappingKey, WrappingKeys, ids_key
from rekey.mapping.store import Keyring, MappingStore, data_key_rows, root_key_gone
from rekey.model import ROW_KEY
from rekey.next_steps import next_step
from rekey.project.config import Config, account_key, is_same_account, resolve_secret
from rekey.project.secrets_source import SecretKind, SecretSource, fingerprint, read_wrapping
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.propagate import Propagator
from rekey.protocol.references import OldReferences, ReferredMapping
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Accounts, Table, TableService, TwoAccounts
from rekey.tables.credentials import credential_of
from rekey.tables.kinds import by_number
from rekey.tables.part import parts_of


@dataclass
class Prepared:
    """A declaration with its secrets and the wrapping key of its mapping; nothing is connected."""

    declared: Declared
    # Returns the secret of this name, or raises SecretMissing. Read once, when first needed.
    secret: Callable[[str], bytes]
    # Returns the wrapping key, or raises SecretMissing.
    wrapping_key: Callable[[], WrappingKey | None]
    # The endpoint of the target account, "" for none.
    targets: str = ""
    # The endpoint of `[tables]`, "" where it is not known.
    tables: str = ""

    @classmethod
    def of(cls, config: Config, declared: Declared) -> Prepared:
        """Prepare a migration of a project. Raises ConfigurationError: it has a table in the target account,
        and there is no section `[targets]`."""
        if config.targets is None and declared.migration.uses_target_account:
            lines = declared.content.decode("utf-8", "replace").split("\n")
            line = next(
                (number for number, text in enumerate(lines, 1) if TARGET_ACCOUNT_SUFFIX in text), None
            )
            place = declared.path if line is None else f"{declared.path}, line {line}"
            raise ConfigurationError(
                f"{place}: {declared.script_id} has a table in the account of [targets], and {config.path}"
                " names none",
                kept="Nothing was changed.",
                hint='add [targets] with endpoint = "https://ACCOUNT.table.core.windows.net"; or, before the'
                f" migration begins, take {TARGET_ACCOUNT_SUFFIX} out of the script",
            )
        targets = "" if config.targets is None else config.targets.endpoint
        return cls(
            declared,
            lambda name: resolve_secret(config, name),
            lambda: open_wrapping(config),
            targets,
            config.tables.endpoint,
        )

    @property
    def target_account(self) -> str:
        """The endpoint of the target account, if the migration has a table there; else ""."""
        return self.targets if self.declared.migration.uses_target_account else ""

    def endpoints(self, config: Config) -> str:
        """Return the endpoints of the migration's accounts, as its record in the state file has them."""
        return " ".join(filter(None, (config.endpoints, self.target_account)))

    def require_place(self, row: ControlRow) -> None:
        """Raise Moved for a target account other than that which a migration began with."""
        if self.target_account and not is_same_account(self.target_account, row.target_account):
            raise Moved(
                f"the account of [targets] is not the one that {self.declared.script_id} began with",
                kept="everything done so far; nothing was written to the other account",
                hint=f"name {row.target_account} there; to move the table to another account instead:"
                f" {next_step('begin-anew', script=self.declared.script_id)}",
            )

    @cached_property
    def _read(self) -> tuple[dict[str, bytes], dict[str, SecretMissing]]:
        secrets: dict[str, bytes] = {}
        missing: dict[str, SecretMissing] = {}
        for name in required_secrets(self.declared.migration):
            try:
                secrets[name] = self.secret(name)
            except SecretMissing as error:
                missing[name] = error
        return secrets, missing

    @property
    def missing(self) -> tuple[SecretMissing, ...]:
        """The errors about the missing secrets. A plan reports all of them."""
        return tuple(self._read[1].values())

    @property
    def secrets(self) -> Mapping[str, bytes]:
        """The secrets of the declaration, by name. Raises SecretMissing."""
        for error in self.missing:
            raise error
        return self._read[0]

    @property
    def known_secrets(self) -> Mapping[str, bytes]:
        """The secrets of the declaration that were found, by name."""
        return self._read[0]

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


def nothing_recorded(_script_id: str) -> Mapping[str, str]:
    """Return no shredded cohort: clients have no audit log."""
    return {}


@dataclass(frozen=True, slots=True)
class OpenMigration:
    """A migration and its accounts."""

    prepared: Prepared
    accounts: Accounts
    control: ControlStore
    # Returns the cohorts of a migration that the audit log says were shredded, with their days; none where
    # there is no audit log.
    shredded: Callable[[str], Mapping[str, str]] = nothing_recorded

    async def mapping(self, row: ControlRow, *, may_lack_root: bool = False) -> MappingStore:
        """Return the mapping of a migration that has begun.

        Args:
            row: its control row.
            may_lack_root: the root key may be gone (`Keyring.go_without`).

        Raises:
            SecretMissing: the mapping is sealed, and there is no wrapping key.
            Moved: its targets are in another account.
            Moved, SealedUnreadable: the data keys cannot be opened.
        """
        self.prepared.require_place(row)
        table = self.accounts.restricted.table(MAPPING_TABLE)
        script_id, migration = self.prepared.declared.script_id, self.prepared.declared.migration
        of = script_id, migration.source, migration.tables
        if migration.inverse is not None:
            rows = MappingRows(*of, SafeIds(row.id_key))
            return ComputedMapping(table, rows, mapper=self.prepared.mapper)
        if self.prepared.wrapping is None:
            return MappingStore(table, MappingRows(*of, SafeIds(row.id_key)))
        keyring = Keyring(table, script_id, self.prepared.wrapping)
        try:
            await keyring.open()
        except SealedUnreadable:
            if not may_lack_root:
                raise
            keyring.go_without()
        ids = SafeIds(ids_key(keyring.root, row.id_key))
        return MappingStore(table, MappingRows(*of, ids, keyring.sealer, keyring.tombstones), keyring)

    def propagator(
        self, mapping: MappingStore, table: Callable[[str], Table], *, width: int = 1
    ) -> Propagator:
        """Return propagate(k) with the source as the authority.

        Args:
            table: returns a handle of the table of this name, which resends writes with unknown outcomes, or
                not.
            width: how many rows of one key are read or written at a time.
        """
        migration = self.prepared.declared.migration
        opened = parts_of(migration.key_spaces, table)
        targets = by_number(migration.tables, migration.beginnings, opened)
        return Propagator(
            opened(migration.source),
            targets,
            self.prepared.mapper,
            mapping,
            width,
            references=self.old_references,
        )

    @property
    def old_references(self) -> OldReferences:
        """Look-ups of old keys in the mappings of the migrations that this one refers to."""
        looked_up_in = self.prepared.declared.migration.looked_up_in
        return OldReferences({via: self._referred(declared) for via, declared in looked_up_in.items()})

    def _referred(self, declared: Declared) -> ReferredMapping:
        opened = open_migration(replace(self.prepared, declared=declared), self.accounts)
        migration, tables = declared.migration, self.accounts.tables

        def target() -> Table | None:
            if migration.uses_target_account and not isinstance(tables, TwoAccounts):
                return None
            handles = parts_of(migration.key_spaces, tables.table)
            return by_number(migration.tables, migration.beginnings, handles)[0]

        async def mapping(row: ControlRow) -> MappingStore:
            store = await opened.mapping(row)
            if store.keyring is not None:
                store.keyring.gone = self.shredded(declared.script_id)
            return store

        return ReferredMapping(
            migration.source, opened.control, mapping, lambda: opened.prepared.mapper, target
        )


def open_migration(
    prepared: Prepared,
    accounts: Accounts,
    shredded: Callable[[str], Mapping[str, str]] = nothing_recorded,
) -> OpenMigration:
    """Open a migration; no request is sent yet. `shredded`: as in `OpenMigration`."""
    declared = prepared.declared
    control = ControlStore(accounts.restricted, declared.script_id, declared.migration.group)
    return OpenMigration(prepared, accounts, control, shredded)


async def secrets_refused(migration: OpenMigration, row: ControlRow | None) -> RekeyError | None:
    """Return why commands that map rows refuse a migration: a secret or the wrapping key is missing, or these
    or the target account are not those that it began with; None when nothing is wrong. No data key is opened;
    Key Vault is asked for secrets. `row`: the control row, None if the migration has not begun. Raises
    ServiceError: the data keys cannot be read."""
    prepared, script_id = migration.prepared, migration.prepared.declared.script_id
    rows = []
    is_sealed = prepared.declared.migration.is_sealed
    if row is not None and is_sealed:
        with suppress(TableMissing):
            rows = await data_key_rows(migration.accounts.restricted.table(MAPPING_TABLE), script_id)
    try:
        prepared.require()
        if row is not None:
            prepared.require_place(row)
            require_same_secrets(script_id, row.fingerprints, prepared.fingerprints)
        for key_row in rows:
            if isinstance(prepared.wrapping, WrappingKeys) and not is_tombstone(key_row):
                prepared.wrapping.require(str(key_row.get("WrappedBy", "?")))
    except RekeyError as error:
        return error
    if row is None or not is_sealed or any(key_row[ROW_KEY] == ROOT for key_row in rows):
        return None
    return root_key_gone()


def is_ours(prepared: Prepared, row: ControlRow, run_id: str | None) -> bool:
    """Tell whether a control row is of this project's migration, not of another project's with the same id:
    by the run in the state file (`run_id`, None for none) or, without one, by the account and the tables."""
    if run_id == row.run_id:
        return True
    if row.tables_endpoint and prepared.tables and not _is_same_home(row.tables_endpoint, prepared.tables):
        return False
    migration = prepared.declared.migration
    tables = [name.lower() for name in (migration.source, *migration.table_names)]
    same_tables = tables == [name.lower() for name in dict.fromkeys((row.source, *row.targets))]
    return same_tables or row.digest == prepared.declared.digest


def _is_same_home(first: str, second: str) -> bool:
    """Tell whether two endpoints are of one account."""
    if first.startswith("https:") and second.startswith("https:"):
        return is_same_account(first, second)
    # An emulator has another host for every machine and container that uses it: only the account's name
    # counts.
    return urlsplit(first).path.strip("/") == urlsplit(second).path.strip("/")


def require_same_migration(prepared: Prepared, row: ControlRow, run_id: str | None) -> None:
    """Refuse a control row of another project's migration, then a declaration that changed since it began.
    Call it before anything else: secrets, keys and tables of another declaration mean nothing. Arguments as
    of `is_ours`.

    Raises:
        Refused: the row is another project's.
        Moved: the declaration changed.
    """
    declared = prepared.declared
    if not is_ours(prepared, row, run_id):
        raise Refused(
            name_taken(declared.script_id, row),
            kept="everything; nothing was changed",
            hint=NAME_TAKEN_CURE.format(file=declared.path.name),
        )
    require_same_digest(declared.script_id, row.digest, declared.digest)


NAME_TAKEN_CURE = (
    "give {file} another name, or this project a [restricted] account of its own; if it is this project's"
    " migration, whose state file was lost and whose script was edited since, put the script back as it was"
)


def name_taken(script_id: str, row: ControlRow) -> str:
    """Return the message that a control row of this id is of another project's migration, and of which."""
    account = f" in {row.tables_endpoint}" if row.tables_endpoint else ""
    tables = f"{row.source} -> {', '.join(row.targets)}{account}"
    return f"another project's migration {script_id} is in this restricted store: {tables}, in `{row.phase}`"


def require_same_digest(script_id: str, began: str, now: str) -> None:
    """Refuse a declaration that changed since a migration began, by its digest. Raises Moved."""
    if began != now:
        raise Moved(
            f"the script {script_id} was edited after its first phase: digest {now[:12]},"
            f" started with {began[:12]}",
            kept="everything done so far; nothing was written with the edited script",
            hint=f"`rekey show {script_id} --script` prints the script that it began with: put that back;"
            f" to change it: {next_step('begin-anew', script=script_id)}",
        )


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
    """Return the wrapping key of a configuration. Key Vault is asked when the key is first needed; a variable
    or a file is read now, so that a missing one is reported before anything is done.

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
        from rekey.mapping.vault import KeyVaultWrappingKey  # imports the errors of the Azure SDK

        return KeyVaultWrappingKey(source.where)
    return LocalWrappingKey(read_wrapping(source))


def connect(config: Config) -> Accounts:
    """Return the accounts; the first request connects. Raises ConfigurationError."""
    # https without a key uses the identity of the process (`DefaultAzureCredential`); http, which is
    # loopback, always needs a key.
    opened = {
        section: AzureTableService.open(
            account.endpoint,
            credential_of(account.name, account_key(account)),
            is_target_account=section == "targets",
        )
        for section, account in config.accounts.items()
    }
    return joined(**opened)


def joined(
    *, tables: TableService, targets: TableService | None = None, restricted: TableService
) -> Accounts:
    """Return accounts that were opened one by one; None: there is no target account."""
    return Accounts(tables if targets is None else TwoAccounts(tables, targets), restricted)
