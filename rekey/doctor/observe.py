"""Observes everything that the checks judge: the I/O of doctor. What cannot be observed is returned as its
error, and the rest is still observed. Nothing is written on this machine or to the application's accounts."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TypeAlias, TypeVar

from packaging.requirements import Requirement

from rekey.core.clock import ticks_of
from rekey.core.distribution import DISTRIBUTION
from rekey.core.limits import is_in_target_account
from rekey.core.processes import is_running
from rekey.declaration.migration import required_secrets
from rekey.declaration.scripts import load_scripts
from rekey.doctor.observed import (
    AccountSeen,
    ConfigurationSeen,
    Crossing,
    FileSeen,
    MigrationSeen,
    MigrationsSeen,
    Observed,
    Reading,
    ScriptSeen,
    SecretSeen,
    ServiceKind,
    StateSeen,
    TenantSeen,
    VersionsSeen,
    Writing,
)
from rekey.errors import ConfigurationError, CredentialRefused, RekeyError, ServiceError
from rekey.evidence.signing import open_signer
from rekey.mapping.rows import CONTROL_TABLE, JOURNAL_TABLE, MAPPING_TABLE, Cohort
from rekey.mapping.store import cohorts_kept
from rekey.model import PARTITION_KEY, ROW_KEY, key_of
from rekey.project.config import Account, Config, Gates, account_key, resolve_secret
from rekey.project.entra import Entra, TenantCheck
from rekey.project.secrets_source import SecretKind, SecretSource, read_wrapping
from rekey.protocol.control import ControlStore
from rekey.protocol.journal import intents_of
from rekey.protocol.opening import open_wrapping
from rekey.protocol.registry import Registry, Standing, standing
from rekey.state.applied import SCHEMA_FOLDER, schema_version
from rekey.state.audit import erasures
from rekey.state.files import sqlite_version
from rekey.state.store import State
from rekey.tables.base import Accounts, TableService
from rekey.tables.credentials import Credential, SharedKey, credential_of
from rekey.tables.probe import ProbeResult

T = TypeVar("T")
STORE = (CONTROL_TABLE, JOURNAL_TABLE, MAPPING_TABLE)
_LIST = "Tables?$top=1"
_MADE_UP_BYTES = 64
_SIBLINGS = ("-wal", "-shm", ".lock")
_MOUNTS = Path("/proc/self/mountinfo")

# Sends one GET request: endpoint, path below it, credential or None; see `rekey.tables.probe.ask`.
Ask: TypeAlias = "Callable[[str, str, Credential | None], Awaitable[ProbeResult]]"
# Tries a tenant's signing keys, see `rekey.proxy.tenant_check`.
CheckTenant: TypeAlias = Callable[[Config, Entra], Awaitable[TenantCheck]]


async def observe(
    config: Config,
    *,
    connect: Callable[[Config], Accounts],
    ask: Ask,
    check_tenant: CheckTenant,
    writes: bool = True,
) -> Observed:
    """Observe machine, accounts and restricted store. An account that does not answer gets no further
    requests: each would wait in vain.

    Args:
        config: the configuration.
        connect: connects the accounts of a configuration.
        ask: sends one request.
        check_tenant: tries a tenant's signing keys.
        writes: also try to write to the restricted account.
    """
    configuration = see_configuration(config)
    if (entra := config.proxy.access.entra) is not None:
        configuration = replace(configuration, tenant=await see_tenant(config, entra, ask, check_tenant))
    migrations = see_migrations(config, configuration.secrets)
    seen = {section: await see_account(section, account, ask) for section, account in config.accounts.items()}
    tables, targets, restricted = seen["tables"], seen.get("targets"), seen["restricted"]
    sources: dict[str, Reading] = {}
    for holder in (tables, targets):
        if holder is None or not holder.is_usable:
            continue
        # Without the other accounts, so that only this one can fail.
        own, is_targets = holder.account, holder is targets
        alone = replace(config, tables=own, targets=own if is_targets else None, restricted=own)
        async with connect(alone) as accounts:
            for script in migrations.scripts:
                if is_in_target_account(script.source) == is_targets:
                    sources[script.source] = await _read_table(accounts.tables, script.source)
    store: dict[str, Reading] = {}
    stored: tuple[MigrationSeen, ...] = ()
    writing = Writing()
    if restricted.is_usable:
        async with connect(replace(config, tables=config.restricted, targets=None)) as accounts:
            service = accounts.restricted
            store = {name: await _read_table(service, name) for name in STORE}
            has_control = store[CONTROL_TABLE] is Reading.READ
            if has_control:
                has_journal = store[JOURNAL_TABLE] is Reading.READ
                see = partial(see_migration, service, gates=config.gates, has_journal=has_journal)
                stored = tuple([await see(script) for script in migrations.scripts])
            if writes:
                writing = await _try_writing(service, has_control=has_control)
    crossings = {
        section: await _try_crossing(account_seen, restricted, ask)
        for section, account_seen in seen.items()
        if not account_seen.account.is_same_as(config.restricted)
    }
    return Observed(
        configuration=configuration,
        tables=tables,
        restricted=restricted,
        versions=see_versions(),
        state=see_state(config.state),
        migrations=migrations,
        sources=sources,
        store=store,
        stored=stored,
        writing=writing,
        targets=targets,
        crossings=crossings,
    )


def _tried(call: Callable[..., T], *arguments: object) -> tuple[T | None, RekeyError | None]:
    """Return the result of a call and None, or None and the RekeyError that it raised."""
    try:
        return call(*arguments), None
    except RekeyError as error:
        return None, error


# --- configuration --------------------------------------------------------------------------------------


def see_configuration(config: Config) -> ConfigurationSeen:
    """Observe the configuration file, its secrets, wrapping key and evidence key. May ask Key Vault."""
    keys = {section: _tried(account_key, account)[0] for section, account in config.accounts.items()}
    own = keys.pop("restricted")
    same = [key for key in keys if config.accounts[key].is_same_as(config.restricted)]
    alike = [section for section, key in keys.items() if key is not None and key == own]
    wrapping, evidence = config.sealing.key, config.evidence
    leaves = wrapping is not None and wrapping.kind is not SecretKind.KEY_VAULT
    secrets = sorted(config.secrets.items())
    return ConfigurationSeen(
        file=see_file(config.path) or FileSeen(str(config.path)),
        same_account=same[0] if same else "",
        same_key=alike[0] if alike else "",
        secrets=tuple(_see_secret(name, source, resolve_secret, config, name) for name, source in secrets),
        wrapping=_see_secret("sealing", wrapping, read_wrapping, wrapping) if wrapping and leaves else None,
        evidence_file=None if evidence.key_file is None else see_file(evidence.key_file),
        evidence_configured=evidence.key_file is not None or evidence.key_vault is not None,
        evidence_trouble=_tried(open_signer, config)[1],
    )


async def see_tenant(config: Config, entra: Entra, ask: Ask, check_tenant: CheckTenant) -> TenantSeen:
    """Ask for a tenant's signing keys, and try them."""
    heard = await ask(entra.authority, entra.keys_url.removeprefix(f"{entra.authority}/"), None)
    check = await check_tenant(config, entra) if heard.answered else TenantCheck(failure=heard.failure)
    return TenantSeen(entra, heard, check)


def _see_secret(
    name: str, source: SecretSource, read: Callable[..., bytes], *arguments: object
) -> SecretSeen:
    file = see_file(Path(source.where)) if source.kind is SecretKind.FILE else None
    secret, trouble = _tried(read, *arguments)
    return SecretSeen(name, file, len(secret or b""), len(set(secret or b"")), trouble)


def see_file(path: Path) -> FileSeen | None:
    """Return a file's or folder's mode, owner and group; None when it is missing or cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return None
    if sys.platform == "win32":
        return FileSeen(str(path))

    def named(name: Callable[[], str], number: int) -> str:
        try:
            return name()
        except KeyError:
            return str(number)

    return FileSeen(
        str(path),
        mode=status.st_mode & 0o7777,
        owner=named(path.owner, status.st_uid),
        group=named(path.group, status.st_gid),
        ours=status.st_uid in (0, os.geteuid()),
    )


# --- state ----------------------------------------------------------------------------------------------


def see_state(path: Path) -> StateSeen:
    """Observe the state file, its folder, disk and lock, and read a copy of its content."""
    existing = next(folder for folder in (path.parent, *path.parents, Path(path.anchor)) if folder.exists())
    siblings = (see_file(path.with_name(path.name + suffix)) for suffix in _SIBLINGS)
    free: int | None = None
    with suppress(OSError):
        free = shutil.disk_usage(existing).free
    seen = StateSeen(
        path=str(path),
        file=see_file(path),
        siblings=tuple(sibling for sibling in siblings if sibling is not None),
        folder=see_file(path.parent),
        free_bytes=free,
        file_system=file_system_of(existing),
        not_writable=next(
            (str(place) for place in (existing, path) if place.exists() and not _is_writable(place)), ""
        ),
        held_by=_held_by(path.with_name(path.name + ".lock")),
        newest_schema=schema_version(path.stem for path in SCHEMA_FOLDER.glob("*.sql")),
    )
    try:
        with State.open(path, read_only=True) as state:
            return replace(seen, schema=state.schema_version, broken_at=state.check_chain())
    except RekeyError as error:
        return replace(seen, trouble=error)


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK | (os.X_OK if path.is_dir() else 0))


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system of an existing path, "" if unknown. `mounts` is the system's table
    of mounts (`/proc/self/mountinfo`, see proc(5)), read when None."""
    if mounts is None:
        try:
            mounts = _MOUNTS.read_text("utf-8", "replace")
        except OSError:
            return ""
    where = str(path.resolve())
    file_system, longest = "", -1
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split(" ")
        if len(words) < 5 or not rest:
            continue
        # The table escapes spaces and some other characters in octal: \040.
        point = words[4].encode("latin-1", "replace").decode("unicode_escape", "replace")
        if (where == point or where.startswith(point.rstrip("/") + "/")) and len(point) >= longest:
            file_system, longest = rest.split(" ")[0], len(point)
    return file_system


def _held_by(lock: Path) -> str:
    """Return the holder of the lock file as text; "" when the lock is free, or this cannot be determined
    here. The lock is tested by a shared lock that is released at once, and only if the process named in the
    file still exists."""
    try:
        holder = json.loads(lock.read_text("utf-8"))
        pid, host, since = int(holder["pid"]), str(holder["host"]), str(holder["since"])
        started = str(holder.get("started", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    # The lock of another machine is not visible here.
    if sys.platform == "win32" or host != socket.gethostname() or not is_running(pid, started):
        return ""
    import fcntl  # not available on Windows

    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return f"process {pid}, since {since[:19].replace('T', ' ')}Z,"
    except OSError:
        return ""
    return ""


# --- versions and scripts -------------------------------------------------------------------------------


def see_versions() -> VersionsSeen:
    """Return the installed versions, and the requirements of rekey's own distribution."""
    try:
        wanted = tuple(requires(DISTRIBUTION) or ())
    except PackageNotFoundError:
        wanted = ()
    packages = {}
    for name in {DISTRIBUTION, *(Requirement(requirement).name.lower() for requirement in wanted)}:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    return VersionsSeen(
        python=sys.version_info[:3],
        rekey=packages.get(DISTRIBUTION, ""),
        packages=packages,
        wanted=wanted,
        sqlite=sqlite_version(),
    )


def see_migrations(config: Config, configured: Sequence[SecretSeen]) -> MigrationsSeen:
    """Load the scripts, which executes them, and try their secrets; `configured` ones were tried before."""
    folder = see_file(config.migrations)
    paths = sorted(config.migrations.glob("*.py")) if folder is not None else ()
    files = tuple(seen for seen in map(see_file, paths) if seen is not None)
    declared, trouble = _tried(load_scripts, config.migrations)
    if declared is None:
        return MigrationsSeen(folder, files, trouble=trouble)
    named = {script.script_id: required_secrets(script.migration) for script in declared}
    named_secrets = frozenset(name for names in named.values() for name in names)
    troubles = {secret.name: secret.trouble for secret in configured}
    troubles |= {name: _tried(resolve_secret, config, name)[1] for name in named_secrets - troubles.keys()}
    shredded: dict[str, frozenset[str]] = {}
    # `see_state` reports faults of the state file.
    with suppress(RekeyError), State.open(config.state, read_only=True) as state:
        shredded = {
            script_id: frozenset(erasures(state.audit_events(script_id)).cohorts) for script_id in named
        }
    scripts = [
        ScriptSeen(
            script.script_id,
            script.migration.source,
            unresolved={name: error for name in named[script.script_id] if (error := troubles[name])},
            unsealed=_tried(open_wrapping, config)[1] if script.migration.is_sealed else None,
            sealed=script.migration.is_sealed,
            keeps_mapping=script.migration.inverse is None,
            shredded=shredded.get(script.script_id, frozenset()),
            in_target_account=script.migration.uses_target_account,
            group=script.migration.group,
        )
        for script in declared
    ]
    return MigrationsSeen(folder, files, tuple(scripts), named_secrets)


# --- accounts -------------------------------------------------------------------------------------------


async def see_account(section: str, account: Account, ask: Ask) -> AccountSeen:
    """Ask an account for its tables: without a credential, with its own and, if that is a token on Azure
    Storage, with a random key."""
    seen = AccountSeen(section, account, anonymous=await ask(account.endpoint, _LIST, None))
    try:
        account_key(account)
    except ConfigurationError as error:
        return replace(seen, trouble=error)
    if not seen.anonymous.answered:
        return seen
    async with _own_credential(account) as own:
        seen = replace(seen, listing=await ask(account.endpoint, _LIST, own))
    if seen.uses_token and seen.kind is ServiceKind.STORAGE:
        made_up = SharedKey(account.name, secrets.token_bytes(_MADE_UP_BYTES))
        seen = replace(seen, made_up=await ask(account.endpoint, _LIST, made_up))
    return seen


@asynccontextmanager
async def _own_credential(account: Account) -> AsyncIterator[Credential]:
    credential = credential_of(account.name, account_key(account))
    try:
        yield credential
    finally:
        if (close := getattr(credential, "close", None)) is not None:
            await close()


async def _try_crossing(tables: AccountSeen, restricted: AccountSeen, ask: Ask) -> Crossing:
    """Try to read the restricted account with the credential of an application's account. A shared key is
    tried under the names of both accounts: names are no secret."""
    if tables.trouble is not None or not restricted.anonymous.answered:
        return Crossing()
    if tables.uses_token and restricted.uses_token:
        return Crossing(same_identity=True)
    key, endpoint = account_key(tables.account), restricted.account.endpoint
    if key is None and not restricted.account.is_https:
        return Crossing()  # a token is never sent over http
    read: list[str] = []
    async with _own_credential(tables.account) as own:
        for credential in [own] if key is None else [own, SharedKey.of(restricted.account.name, key)]:
            if (await ask(endpoint, _LIST, credential)).accepted:
                read.append("the list of tables")
            for name in STORE:
                heard = await ask(endpoint, f"{name}()?$top=1&$select=Epoch", credential)
                if heard.accepted or heard.code == "TableNotFound":
                    read.append(name)
    return Crossing(tried=True, read=tuple(dict.fromkeys(read)))


# --- tables ---------------------------------------------------------------------------------------------


async def _read_table(service: TableService, name: str) -> Reading:
    """Try to read a table, and return the outcome."""
    try:
        return Reading.READ if await service.table_exists(name) else Reading.MISSING
    except CredentialRefused:
        return Reading.REFUSED
    except ServiceError:
        return Reading.FAILED


async def see_migration(
    service: TableService, script: ScriptSeen, *, gates: Gates, has_journal: bool = True
) -> MigrationSeen:
    """Return what the restricted store has about one migration, in numbers."""
    script_id = script.script_id
    try:
        control = await ControlStore(service, script_id, script.group).read()
        clients = await Registry(service, script_id).list()
        now = ticks_of(await service.server_time())
        intents = 0
        if has_journal:
            # Counting needs the PartitionKeys only.
            pages = service.table(JOURNAL_TABLE).scan(intents_of(script_id), select=[PARTITION_KEY])
            intents = sum([len(page.rows) async for page in pages])
        ended_at = None if control is None else control.ended_at
        keep_s = gates.mapping_retention_s
        kept: tuple[Cohort, ...] = ()
        if script.keeps_mapping:
            kept = await cohorts_kept(service, script_id, ended_at, sealed=script.sealed, keep_s=keep_s)
    except RekeyError as error:
        return MigrationSeen(script_id, trouble=error)
    standings = [standing(client, now) for client in clients]
    counts = Counter(standings)
    pairs = zip(clients, standings, strict=True)
    versions = {client_row.version for client_row, stands in pairs if stands is not Standing.OVER}
    return MigrationSeen(
        script_id,
        phase="" if control is None else str(control.phase),
        epoch=0 if control is None else control.epoch,
        live=counts[Standing.LIVE],
        silent=counts[Standing.SILENT],
        over=counts[Standing.OVER],
        versions=tuple(sorted(versions)),
        intents=intents,
        due=tuple(cohort.name for cohort in kept if cohort.is_due(now)),
        returned=tuple(
            cohort.name for cohort in kept if not cohort.erased_on and cohort.name in script.shredded
        ),
    )


async def _try_writing(service: TableService, *, has_control: bool) -> Writing:
    """Write a row to the restricted account, remove it, and return the outcome. While `rekeycontrol` does not
    exist, in a table created for it."""
    if has_control:
        return await _try_row(service, CONTROL_TABLE)
    name = f"rekeydoctor{secrets.token_hex(8)}"
    try:
        await service.create_table(name)
    except RekeyError as error:
        return Writing(name, error)
    writing = Writing(name)
    try:
        tried = await _try_row(service, name)
        writing = replace(tried, left="")  # a row that was not removed is deleted with its table
    finally:
        try:
            await service.delete_table(name)
        except RekeyError as error:
            writing = Writing(name, writing.trouble or error, left=f"table {name}")
    return writing


async def _try_row(service: TableService, name: str) -> Writing:
    # No script id contains a dot, so the row is never taken for a migration's.
    row = {PARTITION_KEY: f"doctor.{secrets.token_hex(8)}", ROW_KEY: "doctor"}
    table, left = service.table(name), ""
    try:
        await table.insert(row)
        left = f"the row {row[PARTITION_KEY]} of {name}"
        await table.delete(key_of(row))
    except RekeyError as error:
        return Writing(name, error, left)
    return Writing(name)
