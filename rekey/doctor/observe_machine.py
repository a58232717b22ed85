"""Observing this machine: files, disk, lock, versions, scripts, secrets. The edge: it writes nothing.

Rules kept here:

* Of a secret only its length and the number of its different bytes leave this module.
* The lock is looked at, not taken: only while the process that signed it still runs is it asked of the system
  whether it is held, by a shared lock that is given back at once.
* What cannot be looked at is told as a `Trouble`; nothing here ends the command.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distributions, requires
from pathlib import Path

from rekey.core.distribution import DISTRIBUTION
from rekey.declaration.migration import required_secrets
from rekey.declaration.scripts import load_scripts
from rekey.doctor.observed import (
    ConfigurationSeen,
    FileSeen,
    MigrationsSeen,
    ScriptSeen,
    SecretSeen,
    StateSeen,
    Trouble,
    VersionsSeen,
)
from rekey.errors import RekeyError
from rekey.evidence.signing import open_signer
from rekey.migration.opening import open_wrapping, read_wrapping
from rekey.project.config import Config, account_key, resolve_secret
from rekey.project.secrets_source import SecretKind
from rekey.protocol.lease import process_exists
from rekey.state.backend import SCHEMA_FOLDER, schema_version, sqlite_version
from rekey.state.erasures import erasures
from rekey.state.store import State

_BESIDE = ("-wal", "-shm", ".lock")
_MOUNTS = Path("/proc/self/mountinfo")


def trouble_of(error: RekeyError) -> Trouble:
    """Return what an error says, as a value."""
    return Trouble(error.what, error.hint)


# --- configuration --------------------------------------------------------------------------------------


def see_configuration(config: Config) -> ConfigurationSeen:
    """Look at the configuration file, its secrets and the key of evidence. May ask Key Vault."""
    trouble, configured = None, config.evidence.key_file is not None or config.evidence.key_vault is not None
    try:
        open_signer(config)
    except RekeyError as error:
        trouble = trouble_of(error)
    return ConfigurationSeen(
        file=see_file(config.path) or FileSeen(str(config.path)),
        same_account=config.tables.is_same_as(config.restricted),
        same_key=_same_key(config),
        secrets=tuple(_secret(config, name) for name in sorted(config.secrets)),
        wrapping=_wrapping(config),
        evidence_file=None if config.evidence.key_file is None else see_file(config.evidence.key_file),
        evidence_configured=configured,
        evidence_trouble=trouble,
    )


def _same_key(config: Config) -> bool:
    try:
        keys = [account_key(account) for account in (config.tables, config.restricted)]
    except RekeyError:
        return False
    return keys[0] is not None and keys[0] == keys[1]


def _wrapping(config: Config) -> SecretSeen | None:
    source = config.sealing.key
    if source is None or source.kind is SecretKind.KEY_VAULT:
        return None
    file = see_file(Path(source.where)) if source.kind is SecretKind.FILE else None
    try:
        secret = read_wrapping(source)
    except RekeyError as error:
        return SecretSeen("sealing", file, trouble=trouble_of(error))
    return SecretSeen("sealing", file, length=len(secret), distinct=len(set(secret)))


def _unsealed(config: Config) -> Trouble | None:
    """Return why sealed mappings cannot be opened, None when nothing is known against it."""
    try:
        open_wrapping(config)
    except RekeyError as error:
        return trouble_of(error)
    return None


def _secret(config: Config, name: str) -> SecretSeen:
    source = config.secrets[name]
    file = see_file(Path(source.where)) if source.kind is SecretKind.FILE else None
    try:
        secret = resolve_secret(config, name)
    except RekeyError as error:
        return SecretSeen(name, file, trouble=trouble_of(error))
    return SecretSeen(name, file, length=len(secret), distinct=len(set(secret)))


# --- files ----------------------------------------------------------------------------------------------


def see_file(path: Path) -> FileSeen | None:
    """Return who may do what with a file or folder, None when there is none (or it cannot be looked at)."""
    try:
        status = path.stat()
    except OSError:
        return None
    if sys.platform == "win32":
        return FileSeen(str(path))
    return FileSeen(
        str(path),
        mode=status.st_mode & 0o7777,
        owner=_user(status.st_uid),
        group=_group(status.st_gid),
        ours=status.st_uid in (0, os.geteuid()),
    )


if sys.platform == "win32":

    def _is_locked(_path: Path, _pid: int) -> bool:
        return False  # asking would be taking
else:
    import fcntl
    import grp
    import pwd

    def _user(number: int) -> str:
        try:
            return pwd.getpwuid(number).pw_name
        except KeyError:
            return str(number)

    def _group(number: int) -> str:
        try:
            return grp.getgrgid(number).gr_name
        except KeyError:
            return str(number)

    def _is_locked(path: Path, pid: int) -> bool:
        """Tell whether the process that signed a lock file still holds the lock on it."""
        if not process_exists(pid):
            return False
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False


# --- state ----------------------------------------------------------------------------------------------


def see_state(path: Path) -> StateSeen:
    """Look at the state file and its surroundings, and read it as it is at this moment."""
    existing = next(one for one in (path.parent, *path.parents, Path(path.anchor)) if one.exists())
    beside = (see_file(path.with_name(path.name + suffix)) for suffix in _BESIDE)
    trouble, broken_at, schema = None, None, 0
    try:
        with State.open(path, read_only=True) as state:
            schema, broken_at = state.schema_version, state.check_chain()
    except RekeyError as error:
        trouble = trouble_of(error)
    return StateSeen(
        path=str(path),
        file=see_file(path),
        beside=tuple(one for one in beside if one is not None),
        folder=see_file(path.parent),
        free_bytes=_free(existing),
        file_system=file_system_of(existing),
        held_by=_held_by(path.with_name(path.name + ".lock")),
        trouble=trouble,
        schema=schema,
        newest_schema=schema_version(one.stem for one in SCHEMA_FOLDER.glob("*.sql")),
        broken_at=broken_at,
    )


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system that a path is on, "" where that is not told.

    Args:
        path: it exists.
        mounts: the system's table of mounts (`/proc/self/mountinfo`, see proc(5)), read when None.
    """
    if mounts is None:
        try:
            mounts = _MOUNTS.read_text("utf-8", "replace")
        except OSError:
            return ""
    where = str(path.resolve())
    found, longest = "", -1
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split(" ")
        if len(words) < 5 or not rest:
            continue
        # the table writes a space as \040, and so on
        point = words[4].encode("latin-1", "replace").decode("unicode_escape", "replace")
        if (where == point or where.startswith(point.rstrip("/") + "/")) and len(point) >= longest:
            found, longest = rest.split(" ")[0], len(point)
    return found


def _held_by(lock: Path) -> str:
    """Return who holds the lock file, "" when nobody does."""
    try:
        holder = json.loads(lock.read_text("utf-8"))
        pid, host, since = int(holder["pid"]), str(holder["host"]), str(holder["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if host != socket.gethostname():
        return ""  # a lock of another machine does not reach this one, or cannot be told from here
    return f"process {pid}, since {since[:19].replace('T', ' ')}Z," if _is_locked(lock, pid) else ""


# --- versions -------------------------------------------------------------------------------------------


def see_versions() -> VersionsSeen:
    """Look at what is installed."""
    try:
        wanted = tuple(requires(DISTRIBUTION) or ())
    except PackageNotFoundError:
        wanted = ()
    packages = {one.metadata["Name"].lower(): one.version for one in distributions() if one.metadata["Name"]}
    return VersionsSeen(
        python=sys.version_info[:3],
        rekey=packages.get(DISTRIBUTION, ""),
        packages=packages,
        wanted=wanted,
        sqlite=sqlite_version(),
    )


# --- scripts --------------------------------------------------------------------------------------------


def see_migrations(config: Config, configured: Sequence[SecretSeen]) -> MigrationsSeen:
    """Load the scripts and look at their secrets. Executes scripts, as every command does.

    Args:
        config: the configuration.
        configured: its secrets, as looked at; none is read again.
    """
    folder = see_file(config.migrations)
    files = tuple(
        seen
        for path in (sorted(config.migrations.glob("*.py")) if folder is not None else ())
        if (seen := see_file(path)) is not None
    )
    try:
        declared = load_scripts(config.migrations)
    except RekeyError as error:
        return MigrationsSeen(folder, files, trouble=trouble_of(error))
    troubles = {secret.name: secret.trouble for secret in configured}
    shredded = _shredded(config, [one.script_id for one in declared])
    named = {one.script_id: required_secrets(one.migration) for one in declared}
    return MigrationsSeen(
        folder,
        files,
        tuple(
            ScriptSeen(
                one.script_id,
                one.migration.source,
                unresolved=_unresolved(config, troubles, named[one.script_id]),
                unsealed=_unsealed(config) if one.migration.is_sealed else None,
                sealed=one.migration.is_sealed,
                shredded=shredded.get(one.script_id, frozenset()),
            )
            for one in declared
        ),
        frozenset(name for names in named.values() for name in names),
    )


def _shredded(config: Config, script_ids: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the cohorts that the audit log says were shredded, by script; none where it cannot be read."""
    try:
        with State.open(config.state, read_only=True) as state:
            return {one: frozenset(erasures(state.audit_events(one)).cohorts) for one in script_ids}
    except RekeyError:
        return {}  # what is wrong with the state file is found by those who look at it


def _unresolved(
    config: Config, troubles: Mapping[str, Trouble | None], names: Sequence[str]
) -> dict[str, Trouble]:
    missing = Trouble("", f"add a section [secrets.NAME] with env, file or key_vault to {config.path}")
    found: dict[str, Trouble] = {}
    for name in names:
        trouble = troubles.get(name, replace(missing, what=f"secret `{name}` is not configured"))
        if trouble is not None:
            found[name] = trouble
    return found
