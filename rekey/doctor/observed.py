"""The observations as values, the checks' only input. No value holds a key, a secret, or anything from which
one can be computed. What could not be observed is None or the error that says why. Pure."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rekey.errors import RekeyError
from rekey.project.config import AZURITE_ACCOUNT, Account
from rekey.project.entra import Entra, TenantCheck
from rekey.tables.probe import NO_TOKEN, ProbeResult

KEYS_OFF = "KeyBasedAuthenticationNotPermitted"
# 403 codes for an identity that the service knows but that lacks the right.
_NO_ROLE = frozenset({"AuthorizationPermissionMismatch", "InsufficientAccountPermissions"})


# --- files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A file or folder on this machine."""

    # As configured.
    path: str
    # Permission bits, None on systems without them.
    mode: int | None = None
    # Their names, or numbers.
    owner: str = ""
    group: str = ""
    # Whether it belongs to this process's user, or to root.
    ours: bool = True

    @property
    def readers(self) -> list[str]:
        """Others than the owner who may read: `group staff`, `everybody`."""
        return self._others(stat.S_IRGRP, stat.S_IROTH)

    @property
    def writers(self) -> list[str]:
        """Others than the owner who may write."""
        return self._others(stat.S_IWGRP, stat.S_IWOTH)

    def _others(self, group: int, everybody: int) -> list[str]:
        # With an access control list the group's bits are its mask, so they show access that it grants.
        mode = self.mode or 0
        return [f"group {self.group}"] * bool(mode & group) + ["everybody"] * bool(mode & everybody)

    @property
    def described(self) -> str:
        """Mode, owner and group as text: `mode 0640, of alice:staff`."""
        return f"mode {self.mode or 0:04o}, of {self.owner}:{self.group}"


# --- configuration --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SecretSeen:
    """A secret of the configuration: `[secrets.NAME]`, or the wrapping key of `[sealing]`."""

    # NAME; `sealing` for the wrapping key.
    name: str
    # The file it is in, None when it is elsewhere or cannot be read.
    file: FileSeen | None = None
    # Number of bytes, and of different ones; 0 if unread.
    length: int = 0
    distinct: int = 0
    # Why it could not be read.
    trouble: RekeyError | None = None


@dataclass(frozen=True, slots=True)
class TenantSeen:
    """The tenant of `[proxy.access.entra]`."""

    entra: Entra
    # The response to a request for its signing keys.
    heard: ProbeResult
    check: TenantCheck


@dataclass(frozen=True, slots=True)
class ConfigurationSeen:
    """`rekey.toml`, and the secrets and keys that it names."""

    file: FileSeen
    # The section that names the same account as `[restricted]`; "" for none.
    same_account: str = ""
    # The section of another account with the same shared key; "" for none.
    same_key: str = ""
    secrets: tuple[SecretSeen, ...] = ()
    # The wrapping key of sealed mappings, None without one or if it stays in Key Vault.
    wrapping: SecretSeen | None = None
    evidence_file: FileSeen | None = None
    # Whether a key is configured, in a file or in Key Vault.
    evidence_configured: bool = True
    evidence_trouble: RekeyError | None = None
    # Whose tokens the proxy verifies; None: nobody's.
    tenant: TenantSeen | None = None


# --- accounts -------------------------------------------------------------------------------------------


class ServiceKind(StrEnum):
    """The kind of service at an account's endpoint."""

    STORAGE = "Azure Table Storage"
    AZURITE = "Azurite"
    UNKNOWN = "an unknown service"
    SILENT = "no answer"


@dataclass(frozen=True, slots=True)
class AccountSeen:
    """An account of the configuration, and its responses to requests for the list of tables."""

    # `tables`, `targets` or `restricted`.
    section: str
    # As configured.
    account: Account
    # The response without a credential.
    anonymous: ProbeResult
    # Why there is no credential for it.
    trouble: RekeyError | None = None
    # The response with its own credential; None if not sent.
    listing: ProbeResult | None = None
    # The response to a request signed with a random key; None if not sent.
    made_up: ProbeResult | None = None

    @property
    def has_published_key(self) -> bool:
        """Whether its key is the published one of every Azurite."""
        account = self.account
        return account.key_env is None and not account.is_https and account.name == AZURITE_ACCOUNT

    @property
    def uses_token(self) -> bool:
        """Whether requests carry a token of this process's identity instead of a shared key."""
        return self.account.is_https and self.account.key_env is None

    @property
    def kind(self) -> ServiceKind:
        """The kind of service that answered.

        Azurite always names itself in `Server`. Azure Storage does so only for a known caller: without a
        valid credential the server in front answers, with a code of the service (recordings of
        azure-data-tables, `test_new_invalid_key`). Any other `Server` is a proxy in between, or an imitation.
        """
        server = self.anonymous.server.lower()
        if not self.anonymous.answered:
            return ServiceKind.SILENT
        if server.startswith("azurite"):
            return ServiceKind.AZURITE
        in_front = server.startswith("microsoft-httpapi") and bool(self.anonymous.code)
        return (
            ServiceKind.STORAGE
            if in_front or server.startswith("windows-azure-table")
            else ServiceKind.UNKNOWN
        )

    @property
    def azurite_version(self) -> str:
        """The version in `Server: Azurite-Table/3.35.0`, "" if missing."""
        return self.anonymous.server.partition("/")[2].strip()

    @property
    def status(self) -> int:
        """The HTTP status of `listing`, 0 without a response."""
        return 0 if self.listing is None else self.listing.status

    @property
    def takes_no_keys(self) -> bool:
        """Whether the account has said that shared keys are switched off."""
        return self.made_up is not None and self.made_up.code == KEYS_OFF

    @property
    def is_refused(self) -> bool:
        """Whether there was no token, or the account refuses the credential as such. A token that lacks a
        role is not refused: roles on single tables do not include the list."""
        if self.listing is None:
            return False
        if self.listing.failure == NO_TOKEN or self.status == 401:
            return True
        return self.status == 403 and not (self.uses_token and self.listing.code in _NO_ROLE)

    @property
    def is_failing(self) -> bool:
        """Whether the response to its credential is an error of the service: 404, 429, or 500 and above."""
        return self.status >= 500 or self.status in (404, 429)

    @property
    def is_usable(self) -> bool:
        """Whether further requests make sense."""
        return self.status > 0 and not (self.is_refused or self.is_failing)


# --- access ---------------------------------------------------------------------------------------------


class Reading(StrEnum):
    """The outcome of reading a table."""

    READ = "read"
    MISSING = "missing"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Writing:
    """The outcome of writing a row to the restricted account and removing it."""

    where: str = ""  # the table it was tried in; "" if not tried
    trouble: RekeyError | None = None  # the error of writing or removing it (or its table), if any
    left: str = ""  # the row or table that could not be removed, "" if none


@dataclass(frozen=True, slots=True)
class Crossing:
    """What the credential of another account may read of the restricted account."""

    tried: bool = False
    # Names of the tables that could be read, and `the list of tables`.
    read: tuple[str, ...] = ()
    # This process's identity opens both accounts, so trying would show nothing.
    same_identity: bool = False


# --- machine --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VersionsSeen:
    """Versions on this machine."""

    python: tuple[int, int, int]
    # Its own, "" if not installed.
    rekey: str
    # rekey and its installed requirements: distribution name to version.
    packages: Mapping[str, str]
    # Requirements of the distribution: `yoyo-migrations<10,>=9`.
    wanted: tuple[str, ...]
    sqlite: str


@dataclass(frozen=True, slots=True)
class StateSeen:
    """The state file and its surroundings."""

    path: str
    file: FileSeen | None = None
    # The existing ones of SQLite's files (`-wal`, `-shm`) and the lock file.
    siblings: tuple[FileSeen, ...] = ()
    folder: FileSeen | None = None
    # On its disk, None if unknown.
    free_bytes: int | None = None
    # Its type, "" if unknown.
    file_system: str = ""
    # The file or folder that this user cannot write to; "" for none.
    not_writable: str = ""
    # The process that holds the lock, "" if free or unknown.
    held_by: str = ""
    # Why it cannot be opened.
    trouble: RekeyError | None = None
    # Schema version of the file (0 without), and of this program.
    schema: int = 0
    newest_schema: int = 0
    # Number of the first audit event that breaks the chain, or None.
    broken_at: int | None = None


# --- migrations and the restricted store ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScriptSeen:
    """A migration script."""

    script_id: str
    source: str
    # Secrets it needs that cannot be read, with their errors.
    unresolved: Mapping[str, RekeyError] = field(default_factory=dict)
    # Why the wrapping key that it needs cannot be used, if so.
    unsealed: RekeyError | None = None
    sealed: bool = False
    keeps_mapping: bool = True
    # Cohorts that were shredded according to the audit log.
    shredded: frozenset[str] = frozenset()
    # Whether it has a table in the target account.
    in_target_account: bool = False
    group: str = ""


@dataclass(frozen=True, slots=True)
class MigrationsSeen:
    """The scripts of the project."""

    folder: FileSeen | None
    # All `.py` files of the folder, including helper modules (`_*.py`).
    files: tuple[FileSeen, ...] = ()
    # Empty when one of them does not load.
    scripts: tuple[ScriptSeen, ...] = ()
    # Names of the secrets that the scripts need.
    named_secrets: frozenset[str] = frozenset()
    # Why they do not load.
    trouble: RekeyError | None = None


@dataclass(frozen=True, slots=True)
class MigrationSeen:
    """A migration in the restricted store, in numbers."""

    script_id: str
    # Of its control row; "" and 0 without one.
    phase: str = ""
    epoch: int = 0
    # Numbers of clients, by the age of their last heartbeat.
    live: int = 0
    silent: int = 0
    over: int = 0
    # The versions of rekey that its clients use, without those that are over.
    versions: tuple[str, ...] = ()
    # Number of its intents in the journal.
    intents: int = 0
    # Cohorts of its mapping that still exist after their retention.
    due: tuple[str, ...] = ()
    # Cohorts that were shredded according to the audit log, but whose data key exists again.
    returned: tuple[str, ...] = ()
    # Why its rows cannot be read.
    trouble: RekeyError | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that was observed."""

    configuration: ConfigurationSeen
    tables: AccountSeen
    restricted: AccountSeen
    versions: VersionsSeen
    state: StateSeen
    migrations: MigrationsSeen
    # Outcome of reading each source table that was tried.
    sources: Mapping[str, Reading] = field(default_factory=dict)
    # Outcome of reading each table of the restricted store.
    store: Mapping[str, Reading] = field(default_factory=dict)
    # The project's migrations in the restricted store.
    stored: tuple[MigrationSeen, ...] = ()
    writing: Writing = field(default_factory=Writing)
    # The target account, if configured.
    targets: AccountSeen | None = None
    # What the credential of each other account may read of the restricted one, by section.
    crossings: Mapping[str, Crossing] = field(default_factory=dict)

    @property
    def accounts(self) -> tuple[AccountSeen, ...]:
        """All accounts, the restricted one last."""
        return self.tables, *(() if self.targets is None else (self.targets,)), self.restricted
