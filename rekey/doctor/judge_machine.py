"""What is judged of this machine: configuration, secrets, versions, state file, scripts. Pure.

Rules kept here:

* Of a file's mode only what lets in others than the owner is said. Root reads everything and is never
  mentioned. With an access control list the group's bits are its mask, so that a list that lets others in
  shows.
* One account for both sections protects the old keys from no one. On Azurite it costs nothing and is a note.
* A secret that a script needs is judged with the scripts; with the configuration those that no script names.
* What is wanted of packages comes from the installed distribution itself, so that it is said once.
* The state file holds source keys (cursors) and the record of what was done: others must not read or change
  it. A lock that is held is no fault: another command works.
* What a script declares is not judged; `rekey plan` does that.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping

from packaging.requirements import Requirement

from rekey.core.severity import Severity
from rekey.doctor.finding import Code, Fact, Finding, Told, error, listed, note, unusable, warning
from rekey.doctor.observed import AccountSeen, ConfigurationSeen, FileSeen, Kind, Observed, SecretSeen
from rekey.tables.wire import API_VERSION

# --- files ---------------------------------------------------------------------------------------------


_FILE_CODES = (Code.FILE_OPEN, Code.FILE_FOREIGN)


def others_who_read(file: FileSeen) -> list[str]:
    """Return who besides the owner may read: `group staff`, `everybody`."""
    return _others(file, stat.S_IRGRP, stat.S_IROTH)


def others_who_write(file: FileSeen) -> list[str]:
    """Return who besides the owner may write."""
    return _others(file, stat.S_IWGRP, stat.S_IWOTH)


def described(file: FileSeen) -> str:
    """Return mode and owner as one looks at them: `mode 0640, of alice:staff`."""
    return f"mode {file.mode or 0:04o}, of {file.owner}:{file.group}"


def doors(
    file: FileSeen | None,
    what: str,
    *,
    why: str,
    codes: tuple[Code, Code] = _FILE_CODES,
) -> list[Finding]:
    """Return what is to be said of a file that only its owner may read.

    Args:
        file: as seen; None: there is none to judge.
        what: what it is, e.g. "the file of secret `users`".
        why: why it matters who reads it.
        codes: for a file that others may open, and for one that belongs to another user.
    """
    if file is None or file.mode is None:
        return []
    found: list[Finding] = []
    readers, writers = others_who_read(file), others_who_write(file)
    if readers or writers:
        said = [f"read by {listed(readers)}"] * bool(readers) + [f"written by {listed(writers)}"] * bool(
            writers
        )
        found.append(
            Finding(
                Severity.ERROR if writers else Severity.WARNING,
                codes[0],
                what,
                f"{file.path} may be {' and '.join(said)} ({described(file)})",
                why,
                "close it; if others had access to the machine, treat what it holds as known",
                f"chmod 600 {file.path}",
            )
        )
    if not file.ours:
        found.append(
            warning(
                codes[1],
                what,
                f"{file.path} belongs to another user ({described(file)})",
                why,
                "run rekey as its owner, or give it to the user who runs rekey",
            )
        )
    return found


def _others(file: FileSeen, group: int, everybody: int) -> list[str]:
    mode = file.mode or 0
    return [f"group {file.group}"] * bool(mode & group) + ["everybody"] * bool(mode & everybody)


# --- configuration -------------------------------------------------------------------------------------


GOOD_BYTES = 32
FEW_DISTINCT = 8
"""32 hexadecimal digits drawn by chance have about 14 different ones, and practically never fewer than 8."""
_MAKE_SECRET = "openssl rand -hex 32"  # noqa: S105 - a command
_WHY_WRAPPING = "who has this key and reads the restricted store finds every old key"
_WHY_SECRET = "who has the secret can compute the id of every old key that can be guessed"  # noqa: S105


def _configuration(observed: Observed) -> Iterator[Told]:
    yield Fact("file", observed.configuration.file.path)
    yield from _accounts_apart(observed)
    for account in observed.accounts:
        yield from _key_of(account)
    yield from _config_file(observed.configuration.file)
    for secret in observed.configuration.secrets:
        yield from _secret(secret, named=secret.name in observed.migrations.named_secrets)
    yield from _wrapping(observed.configuration.wrapping)
    yield from _evidence(observed.configuration)


def _accounts_apart(observed: Observed) -> Iterator[Finding]:
    seen = observed.configuration
    if seen.same_account:
        azurite = observed.restricted.kind is Kind.AZURITE
        yield Finding(
            Severity.NOTE if azurite else Severity.WARNING,
            Code.SAME_ACCOUNT,
            "[restricted]",
            "it is the same account as [tables]",
            "who may read the tables of the application may also read which old key became which id",
            "an account of its own for the restricted store, which only the runner and the application's"
            " clients may open" + ("; on Azurite it does not matter" if azurite else ""),
        )
    if seen.same_key and not seen.same_account:
        azurite = observed.tables.published_key
        yield Finding(
            Severity.NOTE if azurite else Severity.WARNING,
            Code.SAME_KEY,
            "[restricted]",
            "both accounts have the same shared key",
            "who has the key of the application's tables opens the restricted store with it",
            "give each account a key of its own, or no key at all: tokens",
        )


def _key_of(account: AccountSeen) -> Iterator[Finding]:
    section = f"[{account.section}]"
    if account.trouble is not None:
        why = "no request can be signed; every command that reads the account fails"
        yield from unusable(Code.KEY_UNUSABLE, section, account.trouble, why)
    elif account.is_https and account.key_env is not None:
        yield warning(
            Code.KEY_WHERE_TOKEN,
            section,
            f"a shared key out of {account.key_env} is used where a token would do",
            "a shared key opens the whole account, names no user in its logs, and bypasses every role",
            f"remove `key_env` from {section}, run `az login` or use a managed identity, and give it the role"
            " Storage Table Data Contributor",
        )
    elif account.published_key:
        yield note(
            Code.PUBLISHED_KEY,
            section,
            "the key of this account is the one that every Azurite has",
            "it protects nothing: any process on this machine reads these tables",
            "nothing, for rehearsals on made-up rows; for an export of real rows use `rekey rehearse`, whose"
            " Azurite has random keys",
        )


def _config_file(file: FileSeen) -> Iterator[Finding]:
    if others_who_write(file):
        yield warning(
            Code.CONFIG_WRITABLE,
            "rekey.toml",
            f"others may change {file.path} ({described(file)})",
            "who changes an endpoint in it sends the old keys where he likes",
            "let only its owner write it",
            f"chmod go-w {file.path}",
        )


def _secret(secret: SecretSeen, *, named: bool) -> Iterator[Finding]:
    about = f"[secrets.{secret.name}]"
    if secret.trouble is not None and not named:
        yield warning(
            Code.SECRET_UNREADABLE,
            about,
            secret.trouble.what,
            "no script names it today; one that does would be refused",
            secret.trouble.cure or "mend it, or remove the section",
        )
    if secret.trouble is None and secret.length < GOOD_BYTES:
        yield note(
            Code.SECRET_SHORT,
            about,
            f"it has {secret.length} bytes; 16 is the least that is taken",
            _WHY_SECRET,
            "make the next one longer; the secret of a migration that has begun must stay",
            _MAKE_SECRET,
        )
    remedy = (
        "make one by chance before the migration begins; one that has begun must keep its secret, and its"
        " ids count as guessable"
    )
    yield from _kept(secret, about, _WHY_SECRET, remedy)


def _wrapping(key: SecretSeen | None) -> Iterator[Finding]:
    remedy = "make one by chance, name this one under [sealing.previous], and run `rekey apply`"
    if key is not None:
        yield from _kept(key, "[sealing]", _WHY_WRAPPING, remedy)


def _kept(secret: SecretSeen, about: str, why: str, remedy: str) -> Iterator[Finding]:
    """Judge whether a secret can be guessed, and who may read its file."""
    if secret.trouble is None and secret.distinct < FEW_DISTINCT:
        seen = f"it has {secret.distinct} different bytes: a pattern, not chance"
        yield warning(
            Code.SECRET_GUESSABLE, about, seen, why + "; a pattern is tried first", remedy, _MAKE_SECRET
        )
    yield from doors(secret.file, about, why=why)


def _evidence(seen: ConfigurationSeen) -> Iterator[Finding]:
    why = "`apply` begins nothing without the key that is to sign its checkpoints"
    yield from unusable(Code.EVIDENCE_KEY_UNUSABLE, "[evidence]", seen.evidence_trouble, why)
    if not seen.evidence_configured:
        yield note(
            Code.EVIDENCE_UNSIGNED,
            "[evidence]",
            "no key is configured: checkpoints and evidence are not signed",
            "without a signature it cannot be told afterwards that the log was not written again; `retire`"
            " asks for signed evidence",
            "make a key before the migration begins",
            "rekey evidence keygen",
        )
    yield from doors(seen.evidence_file, "[evidence]", why="who has this key can sign another history")


# --- versions ------------------------------------------------------------------------------------------


TESTED_PYTHON = ((3, 11), (3, 14))
TESTED_AZURITE = "3.35"
_SHOWN = ("azure-data-tables", "azure-core", "aiohttp", "yoyo-migrations", "sqlalchemy")


def _versions(observed: Observed) -> Iterator[Told]:
    seen = observed.versions
    shown = ", ".join(f"{name} {seen.packages[name]}" for name in _SHOWN if name in seen.packages)
    yield Fact("rekey", f"{seen.rekey or 'unknown'} on Python {'.'.join(map(str, seen.python))}")
    yield Fact("packages", f"{shown}, SQLite {seen.sqlite}")


def is_unmet(requirement: Requirement, packages: Mapping[str, str]) -> bool:
    """Tell whether an installed package is outside what is wanted. A requirement of an extra never counts."""
    have = packages.get(requirement.name.lower())
    if have is None or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
        return False
    return not requirement.specifier.contains(have, prereleases=True)


def _python(observed: Observed) -> Iterator[Told]:
    seen = observed.versions
    oldest, newest = TESTED_PYTHON
    if not oldest <= seen.python[:2] <= newest:
        yield warning(
            Code.PYTHON_UNTESTED,
            "Python",
            f"this is Python {'.'.join(map(str, seen.python))}",
            f"rekey is tested on {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}",
            "use one of those for a migration of real tables",
        )


def _packages(observed: Observed) -> Iterator[Told]:
    installed = observed.versions.packages
    for wanted in map(Requirement, observed.versions.wanted):
        if is_unmet(wanted, installed):
            name, version = wanted.name, installed[wanted.name.lower()]
            yield warning(
                Code.PACKAGE_OUTSIDE,
                name,
                f"{name} {version} is installed; rekey asks for {wanted.specifier}",
                "rekey is not tested with it, and rests on how it behaves",
                "install rekey again in an environment of its own",
            )


def _services(observed: Observed) -> Iterator[Told]:
    for account in observed.accounts:
        heard, section = account.anonymous, f"[{account.section}]"
        if heard.api_version and heard.api_version < API_VERSION:
            yield error(
                Code.API_VERSION_OLD,
                section,
                f"the service answers with API version {heard.api_version}",
                f"rekey speaks {API_VERSION}, the first that takes tokens",
                "renew it: `npx azurite@3.35.0 --skipApiVersionCheck`"
                if account.kind is Kind.AZURITE
                else "find out what answers there; Azure speaks newer versions",
            )
        is_tested = f"{account.azurite_version}.".startswith(f"{TESTED_AZURITE}.")
        if account.kind is Kind.AZURITE and not is_tested:
            yield note(
                Code.AZURITE_UNTESTED,
                section,
                f"this is Azurite {account.azurite_version}",
                f"rekey is tested on {TESTED_AZURITE}; others differ in what they check and how they answer",
                f"use {TESTED_AZURITE} for rehearsals, as `rekey rehearse` does",
            )


# --- state ---------------------------------------------------------------------------------------------


LOW_BYTES = 1024**3
FULL_BYTES = 100 * 1024**2
NETWORK = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "glusterfs", "lustre", "ncpfs"}
    | {"nfs", "nfs4", "smb2", "smb3", "smbfs", "virtiofs", "vboxsf"}
)
"""Types of file systems whose locks may not reach other machines. (A blobfuse mount says `fuse.blobfuse`.)"""
_WHY = "it holds old keys where a scan goes on, and the log of what was done"


def _state(observed: Observed) -> Iterator[Told]:
    seen = observed.state
    if seen.file is None:
        yield Fact("state file", f"{seen.path}: there is none yet; the first `apply` makes it")
    elif seen.trouble is None:
        yield Fact("state file", f"{seen.path}: schema {seen.schema}, {described(seen.file)}")
    if seen.free_bytes is not None:
        yield Fact(
            "disk", f"{seen.free_bytes / 1024**3:,.1f} GiB free, file system {seen.file_system or 'unknown'}"
        )


def _state_open(observed: Observed) -> Iterator[Told]:
    seen = observed.state
    codes = (Code.STATE_OPEN, Code.STATE_FOREIGN)
    for file in (seen.file, *seen.siblings):
        yield from doors(file, "state file", why=_WHY, codes=codes)
    folder = seen.folder
    if folder is not None and folder.mode is not None and others_who_write(folder):
        yield warning(
            Code.STATE_OPEN,
            "state folder",
            f"others may put files into {folder.path} ({described(folder)})",
            "who may write the folder may put another state file in the place of this one",
            "let only its owner write it, or keep the state in a folder of its own",
            f"chmod go-w {folder.path}",
        )


def _disk(observed: Observed) -> Iterator[Told]:
    seen = observed.state
    free = seen.free_bytes
    if free is not None and free < LOW_BYTES:
        yield Finding(
            Severity.ERROR if free < FULL_BYTES else Severity.WARNING,
            Code.DISK_LOW,
            "disk",
            f"{free / 1024**2:,.0f} MiB are free where the state file is",
            "a full disk stops a run at its last checkpoint; verification spills to disk as well",
            "free space there, or move the state: [state] path",
        )
    if seen.file_system in NETWORK or seen.file_system.startswith("fuse.blobfuse"):
        yield warning(
            Code.NETWORK_FILE_SYSTEM,
            "disk",
            f"the state file is on a network file system ({seen.file_system})",
            "SQLite's write-ahead log needs memory shared by its users, and the lock may not reach other"
            " machines; the file can be damaged. Only progress would be lost, not data",
            "keep the state on a disk of this machine: [state] path",
        )


def _state_usable(observed: Observed) -> Iterator[Told]:
    seen = observed.state
    why = "no command that works on a migration can begin"
    yield from unusable(Code.STATE_UNUSABLE, "state file", seen.trouble, why)
    if seen.held_by:
        yield note(
            Code.LOCK_HELD,
            "state file",
            f"{seen.held_by} works with it now",
            "another runner is refused until it ends",
            "nothing; `rekey status` shows how far it is",
            "rekey status",
        )
    if 0 < seen.schema < seen.newest_schema:
        yield note(
            Code.SCHEMA_OLDER,
            "state file",
            f"its schema is {seen.schema}; this program has {seen.newest_schema}",
            "the next command that writes brings it up to date, and an older rekey does not open it then",
            "nothing, unless you mean to go back to the older rekey: then keep a copy of the file",
        )
    if seen.broken_at is not None:
        yield error(
            Code.AUDIT_BROKEN,
            "state file",
            f"the chain of audit events breaks at event {seen.broken_at}",
            "an event was changed or removed; evidence of these migrations proves nothing from there on",
            "find out who wrote to the file; compare with checkpoints that others keep",
        )


# --- migrations ----------------------------------------------------------------------------------------


def _scripts(observed: Observed) -> Iterator[Told]:
    seen = observed.migrations
    if seen.scripts:
        yield Fact("scripts", listed([one.script_id for one in seen.scripts]))
    if seen.trouble is not None:
        why = "no command that works on a migration can begin; their sources and secrets were not looked at"
        yield from unusable(Code.SCRIPTS_BROKEN, "scripts", seen.trouble, why)
    elif not seen.scripts:
        yield note(
            Code.NO_SCRIPTS,
            "scripts",
            "there is no migration script",
            "sources and secrets could not be looked at",
            "write one, then look again",
            "rekey new NAME --source TABLE --target TABLE",
        )


def _script_files(observed: Observed) -> Iterator[Told]:
    seen = observed.migrations
    open_ones = [file for file in (seen.folder, *seen.files) if file is not None and others_who_write(file)]
    if open_ones:
        first = open_ones[0]
        more = f", and {len(open_ones) - 1} more" if len(open_ones) > 1 else ""
        yield warning(
            Code.SCRIPTS_WRITABLE,
            "scripts",
            f"others may change {first.path} ({described(first)}){more}",
            "scripts are Python: who changes one runs what he likes, with both credentials",
            "let only their owner write the folder and the scripts",
            f"chmod -R go-w {seen.folder.path if seen.folder is not None else first.path}",
        )


def _script_secrets(observed: Observed) -> Iterator[Told]:
    for script in observed.migrations.scripts:
        for name, trouble in script.unresolved.items():
            why = f"the script makes keys with `{name}`; without it nothing can be planned or copied"
            yield from unusable(Code.SECRET_UNRESOLVED, script.script_id, trouble, why)


def _script_sealing(observed: Observed) -> Iterator[Told]:
    why = "the script's mapping is sealed; without the wrapping key nothing can be copied or looked up"
    for script in observed.migrations.scripts:
        yield from unusable(Code.WRAPPING_KEY_MISSING, script.script_id, script.unsealed, why)


CONFIGURATION = (_configuration,)
VERSIONS = (_versions, _python, _packages, _services)
STATE = (_state, _state_open, _disk, _state_usable)
MIGRATIONS = (_scripts, _script_files, _script_secrets, _script_sealing)
