"""What was observed, as values: the checks' only input. Pure.

Rules kept here:

* No value holds a key, a secret or anything that one can be computed from: of a secret its length and how
  many different bytes it has; of two keys whether they are the same.
* What could not be observed is None or the error that says why, never a value that looks like an observation.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rekey.errors import RekeyError
from rekey.plan.advice.service import is_cosmos
from rekey.project.config import AZURITE_ACCOUNT, Account
from rekey.tables.probe import NO_TOKEN, Heard

KEYS_OFF = "KeyBasedAuthenticationNotPermitted"
_NO_ROLE = frozenset({"AuthorizationPermissionMismatch", "InsufficientAccountPermissions"})
"""Codes of a 403 with which the service knows who asks, and that this identity may not do it."""


# --- files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A file or a folder on this machine.

    Attributes:
        path: as configured.
        mode: permission bits, None where the system has none of this kind.
        owner, group: their names, or numbers when they have no names.
        ours: it belongs to the user who asks, or to root.
    """

    path: str
    mode: int | None = None
    owner: str = ""
    group: str = ""
    ours: bool = True

    @property
    def readers(self) -> list[str]:
        """Who besides the owner may read: `group staff`, `everybody`."""
        return self._others(stat.S_IRGRP, stat.S_IROTH)

    @property
    def writers(self) -> list[str]:
        """Who besides the owner may write."""
        return self._others(stat.S_IWGRP, stat.S_IWOTH)

    def _others(self, group: int, everybody: int) -> list[str]:
        # With an access control list the group's bits are its mask: a list that lets others in shows.
        mode = self.mode or 0
        return [f"group {self.group}"] * bool(mode & group) + ["everybody"] * bool(mode & everybody)

    @property
    def described(self) -> str:
        """Mode and owner as one looks at them: `mode 0640, of alice:staff`."""
        return f"mode {self.mode or 0:04o}, of {self.owner}:{self.group}"


# --- configuration --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SecretSeen:
    """One `[secrets.NAME]`.

    Attributes:
        name: the name.
        file: the file it is in, None when it is elsewhere or cannot be looked at.
        length, distinct: its bytes, and how many of them differ; 0 when it could not be read.
        trouble: why it could not be read.
    """

    name: str
    file: FileSeen | None = None
    length: int = 0
    distinct: int = 0
    trouble: RekeyError | None = None


@dataclass(frozen=True, slots=True)
class ConfigurationSeen:
    """`rekey.toml` and what it points to.

    Attributes:
        file: the configuration file.
        same_account: both sections name one account.
        same_key: both accounts have one shared key.
        secrets: by order of name.
        wrapping: the wrapping key of sealed mappings, None when none is configured, or it stays in Key Vault.
        evidence_file: the key file that signs evidence, None when there is none.
        evidence_configured: a key is configured, in a file or in Key Vault.
        evidence_trouble: why it cannot be used.
    """

    file: FileSeen
    same_account: bool = False
    same_key: bool = False
    secrets: tuple[SecretSeen, ...] = ()
    wrapping: SecretSeen | None = None
    evidence_file: FileSeen | None = None
    evidence_configured: bool = True
    evidence_trouble: RekeyError | None = None


# --- accounts -------------------------------------------------------------------------------------------


class Kind(StrEnum):
    """A service that speaks the protocol of tables."""

    STORAGE = "Azure Table Storage"
    AZURITE = "Azurite"
    COSMOS = "Cosmos DB for Table"
    UNKNOWN = "an unknown service"
    SILENT = "no answer"


@dataclass(frozen=True, slots=True)
class AccountSeen:
    """One account of the configuration, and what it answered.

    Attributes:
        section: `tables` or `restricted`.
        account: as configured.
        anonymous: what it answered to a request without a credential.
        trouble: why there is no credential for it.
        listing: what it answered when asked for all tables with its credential; None when not asked.
        made_up: what it answered to a request signed with a key made up for it; None when not asked.
    """

    section: str
    account: Account
    anonymous: Heard
    trouble: RekeyError | None = None
    listing: Heard | None = None
    made_up: Heard | None = None

    @property
    def has_published_key(self) -> bool:
        """Tell whether its key is the one that every Azurite has."""
        account = self.account
        return account.key_env is None and not account.is_https and account.name == AZURITE_ACCOUNT

    @property
    def uses_token(self) -> bool:
        """Tell whether it is asked in the name of the user who runs the command."""
        return self.account.is_https and self.account.key_env is None

    @property
    def kind(self) -> Kind:
        """Which service it is.

        Azurite and Azure Storage say who they are in the header `Server` of every answer, refusals included.
        Cosmos DB for Table is told by its host, which no other service has. What says nothing known is
        unknown: something in between, or something that imitates one of them.
        """
        server = self.anonymous.server.lower()
        if is_cosmos(self.account.endpoint):
            return Kind.COSMOS
        if not self.anonymous.answered:
            return Kind.SILENT
        if server.startswith("azurite"):
            return Kind.AZURITE
        return Kind.STORAGE if server.startswith("windows-azure-table") else Kind.UNKNOWN

    @property
    def azurite_version(self) -> str:
        """The version in `Server: Azurite-Table/3.35.0`, "" when it is not there."""
        return self.anonymous.server.partition("/")[2].strip()

    @property
    def status(self) -> int:
        """The status of the answer to its credential, 0 when there is none."""
        return 0 if self.listing is None else self.listing.status

    @property
    def takes_no_keys(self) -> bool:
        """Tell whether the account has said that it takes no shared key."""
        return self.made_up is not None and self.made_up.code == KEYS_OFF

    @property
    def is_refused(self) -> bool:
        """Tell whether the account does not take its credential at all."""
        if self.listing is None:
            return False
        if self.listing.failure == NO_TOKEN or self.status == 401:
            return True
        return self.status == 403 and not (self.uses_token and self.listing.code in _NO_ROLE)

    @property
    def is_failing(self) -> bool:
        """Tell whether the account answers, and with nothing but errors of its own."""
        return self.status >= 500 or self.status in (404, 429)

    @property
    def is_usable(self) -> bool:
        """Tell whether asking the account for more makes sense."""
        return self.status > 0 and not (self.is_refused or self.is_failing)


# --- access ---------------------------------------------------------------------------------------------


class Reading(StrEnum):
    """What came of reading a table."""

    READ = "read"
    MISSING = "missing"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Writing:
    """What came of writing a row to the restricted account and removing it.

    Attributes:
        where: the table it was tried in; "" when it was not tried.
        trouble: why it could not be written.
        left: what could not be removed again, "" when nothing was left.
    """

    where: str = ""
    trouble: RekeyError | None = None
    left: str = ""


@dataclass(frozen=True, slots=True)
class Crossing:
    """What the credential of `[tables]` may read of the restricted account.

    Attributes:
        tried: it could be tried at all.
        read: what could be read: tables, or the list of them.
        same_identity: both accounts are opened by one identity, which tells nothing.
    """

    tried: bool = False
    read: tuple[str, ...] = ()
    same_identity: bool = False


# --- machine --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VersionsSeen:
    """Versions on this machine.

    Attributes:
        python: three numbers.
        rekey: its own, "" where it is not installed.
        packages: distribution name to version.
        wanted: requirements as the distribution states them: `yoyo-migrations<10,>=9`.
        sqlite: of SQLite.
    """

    python: tuple[int, int, int]
    rekey: str
    packages: Mapping[str, str]
    wanted: tuple[str, ...]
    sqlite: str


@dataclass(frozen=True, slots=True)
class StateSeen:
    """The state file and where it is.

    Attributes:
        path: as configured.
        file: the file, None while there is none.
        siblings: files of SQLite and the lock next to it, as far as they exist.
        folder: its folder, None while there is none.
        free_bytes: on its disk, None when unknown.
        file_system: its type, "" when unknown.
        held_by: who holds the lock, "" when it is free.
        trouble: why it cannot be opened.
        schema, newest_schema: of the file, and of this program.
        broken_at: where the chain of audit events breaks, None when it holds.
    """

    path: str
    file: FileSeen | None = None
    siblings: tuple[FileSeen, ...] = ()
    folder: FileSeen | None = None
    free_bytes: int | None = None
    file_system: str = ""
    held_by: str = ""
    trouble: RekeyError | None = None
    schema: int = 0
    newest_schema: int = 0
    broken_at: int | None = None


# --- migrations and the restricted store ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScriptSeen:
    """One migration script.

    Attributes:
        script_id: its id.
        source: the table it migrates.
        unresolved: secrets it names that cannot be had, with the trouble of each.
        unsealed: why the wrapping key that it needs cannot be used, None when it can or none is needed.
        sealed: whether its mapping is.
        shredded: cohorts that the audit log says were shredded.
    """

    script_id: str
    source: str
    unresolved: Mapping[str, RekeyError] = field(default_factory=dict)
    unsealed: RekeyError | None = None
    sealed: bool = False
    shredded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MigrationsSeen:
    """The scripts of the project.

    Attributes:
        folder: where they are, None when there is no such folder.
        files: the script files.
        scripts: those that load.
        named_secrets: every secret that a script names.
        trouble: why they do not load.
    """

    folder: FileSeen | None
    files: tuple[FileSeen, ...] = ()
    scripts: tuple[ScriptSeen, ...] = ()
    named_secrets: frozenset[str] = frozenset()
    trouble: RekeyError | None = None


@dataclass(frozen=True, slots=True)
class MigrationSeen:
    """One migration in the restricted store, in numbers.

    Attributes:
        script_id: which.
        phase, epoch: of its control row; "" and 0 when it has none.
        live, silent, over: its clients, by what their last beat says.
        versions: of rekey, of clients that are not over.
        intents: in the journal.
        due: cohorts of its mapping that are kept longer than configured.
        returned: cohorts that were shredded, as the audit log says, and whose data key stands there.
        trouble: why its rows cannot be read.
    """

    script_id: str
    phase: str = ""
    epoch: int = 0
    live: int = 0
    silent: int = 0
    over: int = 0
    versions: tuple[str, ...] = ()
    intents: int = 0
    due: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    trouble: RekeyError | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that was observed.

    Attributes:
        sources: what came of reading each source, as far as it was tried.
        store: what came of reading each table of the restricted store.
        stored: the project's migrations in it.
    """

    configuration: ConfigurationSeen
    tables: AccountSeen
    restricted: AccountSeen
    versions: VersionsSeen
    state: StateSeen
    migrations: MigrationsSeen
    sources: Mapping[str, Reading] = field(default_factory=dict)
    store: Mapping[str, Reading] = field(default_factory=dict)
    stored: tuple[MigrationSeen, ...] = ()
    writing: Writing = field(default_factory=Writing)
    crossing: Crossing = field(default_factory=Crossing)

    @property
    def accounts(self) -> tuple[AccountSeen, AccountSeen]:
        """Both accounts."""
        return self.tables, self.restricted
