"""The observations as values: the checks' only input. Pure.

Rules kept here:

* No value holds a key, a secret or anything from which one can be computed. Kept are: of a secret, its length
  and the number of its different bytes; of two keys, whether they are equal.
* What could not be observed is None or the error that says why, never a value that looks like an observation.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rekey.errors import RekeyError
from rekey.project.config import AZURITE_ACCOUNT, Account
from rekey.tables.probe import NO_TOKEN, Heard

KEYS_OFF = "KeyBasedAuthenticationNotPermitted"
# Codes of a 403 by which the service says that it knows the identity, which has no right to the request.
_NO_ROLE = frozenset({"AuthorizationPermissionMismatch", "InsufficientAccountPermissions"})


# --- files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A file or a folder on this machine.

    Attributes:
        path: as configured.
        mode: permission bits, None where the system has none of this kind.
        owner, group: their names, or numbers when they have no names.
        ours: it belongs to this process's user, or to root.
    """

    path: str
    mode: int | None = None
    owner: str = ""
    group: str = ""
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
        # With an access control list the group's bits are the list's mask: access that it grants shows there.
        mode = self.mode or 0
        return [f"group {self.group}"] * bool(mode & group) + ["everybody"] * bool(mode & everybody)

    @property
    def described(self) -> str:
        """Mode, owner and group as text: `mode 0640, of alice:staff`."""
        return f"mode {self.mode or 0:04o}, of {self.owner}:{self.group}"


# --- configuration --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SecretSeen:
    """One secret of the configuration: `[secrets.NAME]`, or the wrapping key of `[sealing]`.

    Attributes:
        name: NAME; `sealing` for the wrapping key.
        file: the file it is in, None when it is elsewhere or cannot be looked at.
        length, distinct: the number of its bytes, and of its different bytes; 0 when it could not be read.
        trouble: why it could not be read.
    """

    name: str
    file: FileSeen | None = None
    length: int = 0
    distinct: int = 0
    trouble: RekeyError | None = None


@dataclass(frozen=True, slots=True)
class ConfigurationSeen:
    """`rekey.toml`, and the secrets and keys that it names.

    Attributes:
        file: the configuration file.
        same_account: the section that names the same account as `[restricted]`; "" for none.
        same_key: the section of another account that has the same shared key; "" for none.
        secrets: the secrets, ordered by name.
        wrapping: the wrapping key of sealed mappings, None when none is configured, or it stays in Key Vault.
        evidence_file: the key file that signs evidence, None when there is none.
        evidence_configured: a key is configured, in a file or in Key Vault.
        evidence_trouble: why that key cannot be used.
    """

    file: FileSeen
    same_account: str = ""
    same_key: str = ""
    secrets: tuple[SecretSeen, ...] = ()
    wrapping: SecretSeen | None = None
    evidence_file: FileSeen | None = None
    evidence_configured: bool = True
    evidence_trouble: RekeyError | None = None


# --- accounts -------------------------------------------------------------------------------------------


class Kind(StrEnum):
    """The kind of service that answers at an account's endpoint."""

    STORAGE = "Azure Table Storage"
    AZURITE = "Azurite"
    UNKNOWN = "an unknown service"
    SILENT = "no answer"


@dataclass(frozen=True, slots=True)
class AccountSeen:
    """One account of the configuration, and its answers to requests for the list of tables.

    Attributes:
        section: `tables`, `targets` or `restricted`.
        account: as configured.
        anonymous: the answer to a request without a credential.
        trouble: why there is no credential for it.
        listing: the answer to a request with its own credential; None when none was sent.
        made_up: the answer to a request signed with a random key; None when none was sent.
    """

    section: str
    account: Account
    anonymous: Heard
    trouble: RekeyError | None = None
    listing: Heard | None = None
    made_up: Heard | None = None

    @property
    def has_published_key(self) -> bool:
        """Whether its key is the published one that every Azurite has."""
        account = self.account
        return account.key_env is None and not account.is_https and account.name == AZURITE_ACCOUNT

    @property
    def uses_token(self) -> bool:
        """Whether requests to it carry a token of this process's identity instead of a shared key."""
        return self.account.is_https and self.account.key_env is None

    @property
    def kind(self) -> Kind:
        """The kind of service that answered.

        Azurite names itself in the header `Server` of every answer. Azure Storage does so only once it knows
        who asks: an answer to a request without a valid credential comes from the server in front, with a
        code of the service (recordings of azure-data-tables, `test_new_invalid_key`). An answer with any
        other `Server` is of an unknown service: of a proxy in between, or of an imitation.
        """
        server = self.anonymous.server.lower()
        if not self.anonymous.answered:
            return Kind.SILENT
        if server.startswith("azurite"):
            return Kind.AZURITE
        in_front = server.startswith("microsoft-httpapi") and bool(self.anonymous.code)
        return Kind.STORAGE if in_front or server.startswith("windows-azure-table") else Kind.UNKNOWN

    @property
    def azurite_version(self) -> str:
        """The version in `Server: Azurite-Table/3.35.0`, "" when it is not there."""
        return self.anonymous.server.partition("/")[2].strip()

    @property
    def status(self) -> int:
        """The HTTP status of `listing`, 0 when there is no answer."""
        return 0 if self.listing is None else self.listing.status

    @property
    def takes_no_keys(self) -> bool:
        """Whether the account has answered that shared keys are switched off."""
        return self.made_up is not None and self.made_up.code == KEYS_OFF

    @property
    def is_refused(self) -> bool:
        """Whether no token could be had, or the account refuses the credential as such.

        A token whose identity lacks a role is not refused in this sense.
        """
        if self.listing is None:
            return False
        if self.listing.failure == NO_TOKEN or self.status == 401:
            return True
        return self.status == 403 and not (self.uses_token and self.listing.code in _NO_ROLE)

    @property
    def is_failing(self) -> bool:
        """Whether the answer to its credential is an error of the service: 404, 429, or 500 and above."""
        return self.status >= 500 or self.status in (404, 429)

    @property
    def is_usable(self) -> bool:
        """Whether further requests make sense: the account answers, and is neither refusing nor failing."""
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
    """The outcome of writing a row to the restricted account and removing it.

    Attributes:
        where: the table it was tried in; "" when it was not tried.
        trouble: the error of writing or removing it (or its table); None when both succeeded.
        left: the row or table that could not be removed again, "" when nothing was left.
    """

    where: str = ""
    trouble: RekeyError | None = None
    left: str = ""


@dataclass(frozen=True, slots=True)
class Crossing:
    """What the credential of another account may read of the restricted account.

    Attributes:
        tried: whether it was tried.
        read: names of the tables that could be read, and `the list of tables`.
        same_identity: this process's identity opens both accounts: trying would show nothing.
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
        packages: rekey and what it requires, as far as installed: distribution name to version.
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
        siblings: SQLite's files (`-wal`, `-shm`) and the lock file next to it, those that exist.
        folder: its folder, None while there is none.
        free_bytes: on its disk, None when unknown.
        file_system: its type, "" when unknown.
        not_writable: the file or folder that this user cannot write to; "" for none.
        held_by: the process that holds the lock, "" when it is free or this is unknown.
        trouble: why it cannot be opened.
        schema, newest_schema: schema version of the file, 0 while there is none; and of this program.
        broken_at: number of the first audit event that breaks the chain, None when the chain holds.
    """

    path: str
    file: FileSeen | None = None
    siblings: tuple[FileSeen, ...] = ()
    folder: FileSeen | None = None
    free_bytes: int | None = None
    file_system: str = ""
    not_writable: str = ""
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
        elsewhere: whether a table of it is in the account of `[targets]`.
        unresolved: names of secrets it needs that cannot be read, with the error of each.
        unsealed: why the wrapping key that it needs cannot be used, None when it can or none is needed.
        sealed: whether its mapping is sealed.
        shredded: cohorts that the audit log says were shredded.
        group: its group, "" without one.
    """

    script_id: str
    source: str
    unresolved: Mapping[str, RekeyError] = field(default_factory=dict)
    unsealed: RekeyError | None = None
    sealed: bool = False
    shredded: frozenset[str] = frozenset()
    elsewhere: bool = False
    group: str = ""


@dataclass(frozen=True, slots=True)
class MigrationsSeen:
    """The scripts of the project.

    Attributes:
        folder: where they are, None when there is no such folder.
        files: all `.py` files of the folder, helper modules (`_*.py`) included.
        scripts: the scripts; none when one of them does not load.
        named_secrets: names of the secrets that the scripts need.
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
        script_id: its id.
        phase, epoch: of its control row; "" and 0 when it has none.
        live, silent, over: the numbers of its clients, by the age of their last beat.
        versions: the versions of rekey that its clients use, without those that are over.
        intents: the number of its intents in the journal.
        due: cohorts of its mapping whose keeping time is over and that are still there.
        returned: cohorts that were shredded according to the audit log, and whose data key is there again.
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
        sources: outcome of reading each source table, of those that were tried.
        store: outcome of reading each table of the restricted store.
        stored: the project's migrations as found in the restricted store.
        targets: the account of targets, None where none is configured.
        crossings: what the credential of each other account may read of the restricted one, by its section.
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
    targets: AccountSeen | None = None
    crossings: Mapping[str, Crossing] = field(default_factory=dict)

    @property
    def accounts(self) -> tuple[AccountSeen, ...]:
        """All accounts, the restricted one last."""
        return self.tables, *(() if self.targets is None else (self.targets,)), self.restricted
