"""Judges the observations: one generator of findings and facts for each family of checks. Only what was tried
is claimed; what could not be tried is reported as such. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from packaging.requirements import Requirement
from packaging.version import InvalidVersion

from rekey.core.clock import TICKS_PER_SECOND, format_ticks
from rekey.core.severity import Severity
from rekey.doctor.observed import (
    KEYS_OFF,
    AccountSeen,
    Crossing,
    FileSeen,
    MigrationSeen,
    Observed,
    Reading,
    SecretSeen,
    ServiceKind,
    StateSeen,
    TenantSeen,
)
from rekey.doctor.report import Fact, Finding, Report, Result, finding, listed
from rekey.errors import RekeyError
from rekey.mapping.rows import WHOLE
from rekey.phases import ControlPhase
from rekey.present.text import counted
from rekey.tables.probe import BAD_CERTIFICATE, ProbeResult
from rekey.tables.wire import API_VERSION


def examine(observed: Observed) -> Report:
    """Return the findings and facts of all checks, by family, in the order in which to fix findings."""
    families: dict[str, Callable[[Observed], Iterator[Result]]] = {
        "configuration": _configuration,
        "accounts": _accounts,
        "access": _access,
        "clock": _clock,
        "versions": _versions,
        "state": _state,
        "migrations": _migrations,
        "restricted store": _store,
    }
    return Report({family: tuple(judge(observed)) for family, judge in families.items()})


def _unusable(code: str, about: str, error: RekeyError, **values: object) -> Finding:
    """Return the finding for something that failed with an error; the error's hint is the remedy."""
    return finding(code, about, seen=error.what, do=error.hint, **values)


# --- configuration -------------------------------------------------------------------------------------

GOOD_BYTES = 32
# 32 random hexadecimal digits have about 14 distinct ones, and practically never fewer than 8.
FEW_DISTINCT = 8


def _configuration(observed: Observed) -> Iterator[Result]:
    seen, file = observed.configuration, observed.configuration.file
    yield Fact("file", file.path)
    # One account for both sections protects the old keys from no one.
    if seen.same_account:
        azurite = observed.restricted.kind is ServiceKind.AZURITE
        but = "; on Azurite it does not matter" if azurite else ""
        severity = Severity.NOTE if azurite else None
        yield finding("same-account", "[restricted]", severity, on_azurite=but, section=seen.same_account)
    elif seen.same_key:
        severity = Severity.NOTE if observed.tables.has_published_key else None
        yield finding("same-key", "[restricted]", severity, section=seen.same_key)
    for account in observed.accounts:
        yield from _account_key(account, f"[{account.section}]")
    if file.writers:
        yield finding("config-writable", "rekey.toml", path=file.path, described=file.described)
    for secret in seen.secrets:
        yield from _secret(secret, named=secret.name in observed.migrations.named_secrets)
    if seen.wrapping is not None:
        harm = "anyone with this key who reads the restricted store finds every old key"
        do = "generate one at random, name this one under [sealing.previous], and run `rekey apply`"
        yield from _guessable_or_open(seen.wrapping, "[sealing]", harm, do)
    if seen.evidence_trouble is not None:
        yield _unusable("evidence-key-unusable", "[evidence]", seen.evidence_trouble)
    if not seen.evidence_configured:
        yield finding("evidence-unsigned", "[evidence]")
    yield from _open_file(seen.evidence_file, "[evidence]", "anyone with this key can sign another history")


def _account_key(seen: AccountSeen, section: str) -> Iterator[Finding]:
    if seen.trouble is not None:
        yield _unusable("key-unusable", section, seen.trouble)
    elif seen.account.is_https and seen.account.key_env is not None:
        yield finding("key-where-token", section, key_env=seen.account.key_env, section=section)
    elif seen.has_published_key:
        yield finding("published-key", section)


def _secret(secret: SecretSeen, *, named: bool) -> Iterator[Finding]:
    about = f"[secrets.{secret.name}]"
    # A secret that a script names is reported with the script.
    if secret.trouble is not None and not named:
        do = secret.trouble.hint or "fix it, or remove the section"
        yield finding("secret-unreadable", about, seen=secret.trouble.what, do=do)
    if secret.trouble is None and secret.length < GOOD_BYTES:
        yield finding("secret-short", about, length=secret.length)
    harm = "anyone with the secret can compute the id of every old key that can be guessed"
    do = (
        "generate one at random before the migration begins; one that has begun must keep its secret, and"
        " its ids count as guessable"
    )
    yield from _guessable_or_open(secret, about, harm, do)


def _guessable_or_open(secret: SecretSeen, about: str, harm: str, do: str) -> Iterator[Finding]:
    if secret.trouble is None and secret.distinct < FEW_DISTINCT:
        yield finding("secret-guessable", about, distinct=secret.distinct, harm=harm, do=do)
    yield from _open_file(secret.file, about, harm)


def _open_file(file: FileSeen | None, about: str, harm: str, kind: str = "file") -> Iterator[Finding]:
    """Judge a file that only its owner may read. Root can read everything and is not mentioned.

    Args:
        file: the file; None: nothing to judge.
        about: the subject of the finding.
        harm: why access by others matters.
        kind: prefix of the findings' codes, `file` or `state`.
    """
    if file is None or file.mode is None:
        return
    texts = {"path": file.path, "described": file.described, "harm": harm}
    access = {"read": file.readers, "written": file.writers}
    may = " and ".join(f"{verb} by {listed(others)}" for verb, others in access.items() if others)
    if may:
        yield finding(f"{kind}-open", about, Severity.ERROR if file.writers else None, access=may, **texts)
    if not file.ours:
        yield finding(f"{kind}-foreign", about, **texts)


# --- accounts ------------------------------------------------------------------------------------------

CERTIFICATE_DAYS = 14
_OLD_TLS = frozenset({"SSLv3", "TLSv1", "TLSv1.1"})
_DAY_TICKS = 86_400 * TICKS_PER_SECOND


def _accounts(observed: Observed) -> Iterator[Result]:
    for account in observed.accounts:
        for judge in (_reached, _connection, _credential, _kind, _roles):
            yield from judge(account, f"[{account.section}]")


def _reached(seen: AccountSeen, section: str) -> Iterator[Result]:
    heard, endpoint = seen.anonymous, seen.account.endpoint
    if heard.failure == BAD_CERTIFICATE:
        yield finding("certificate-refused", section, endpoint=endpoint)
    elif seen.listing is not None and seen.status == 404:
        texts = {"endpoint": endpoint, "name": seen.account.name, "answer": seen.listing.code}
        yield finding("account-unknown", section, **texts)
    elif not heard.answered or seen.is_failing:
        yield finding("unreachable", section, endpoint=endpoint, answer=heard.failure or seen.status)
    if heard.accepted:
        yield finding("anonymous-accepted", section, endpoint=endpoint)


def _connection(seen: AccountSeen, section: str) -> Iterator[Result]:
    heard = seen.anonymous
    how = heard.tls or ("https" if seen.account.is_https else "http, on this machine only")
    version = f" {seen.azurite_version}" if seen.kind is ServiceKind.AZURITE else ""
    yield Fact(section, f"{seen.account.endpoint}: {seen.kind}{version}, {how}")
    if heard.tls in _OLD_TLS:
        yield finding("tls-old", section, tls=heard.tls, name=seen.account.name)
    if heard.certificate_ends is not None:
        day = format_ticks(heard.certificate_ends)[:10]
        yield Fact(section, f"its certificate ends {day}")
        if heard.certificate_ends - heard.received_at < CERTIFICATE_DAYS * _DAY_TICKS:
            yield finding("certificate-ends", section, day=day)
    if seen.takes_no_keys:
        yield Fact(section, "shared keys are switched off")


def _credential(seen: AccountSeen, section: str) -> Iterator[Result]:
    listing = seen.listing
    if listing is None or not seen.is_refused:
        return
    if seen.takes_no_keys or listing.code == KEYS_OFF:
        do = "this account takes no shared keys: remove `key_env` and use a token"
    else:
        do = "put the account's present key where `key_env` says; a renewed key ends the old one"
        if seen.uses_token:
            do = "run `az login`, or give the process a managed identity of the account's tenant"
        if listing.code == "AuthorizationFailure" and seen.account.is_https:
            do += "; or let this machine through the account's firewall, which answers the same"
    answer = listing.failure or f"{listing.status} {listing.code}".strip()
    yield finding("credential-refused", section, answer=answer, do=do)


def _kind(seen: AccountSeen, section: str) -> Iterator[Result]:
    server = seen.anonymous.server
    if seen.kind is ServiceKind.AZURITE:
        yield finding("azurite", section, answer=server)
    elif seen.kind is ServiceKind.UNKNOWN:
        answer = f"Server: {server[:60]}" if server else "no header `Server`"
        yield finding("service-unknown", section, answer=answer)


def _roles(seen: AccountSeen, section: str) -> Iterator[Result]:
    if seen.kind is not ServiceKind.STORAGE or not seen.account.is_https:
        return
    name, accepted = seen.account.name, seen.listing is not None and seen.listing.accepted
    if not seen.uses_token:
        if accepted:
            severity = None if seen.section == "restricted" else Severity.NOTE
            yield finding("shared-key-accepted", section, severity, name=name)
        return
    # Only the control plane knows this, unless the service has said that keys are switched off.
    if not seen.takes_no_keys:
        yield finding("shared-key-unknown", section, name=name)
    if seen.section != "restricted" and accepted:
        yield finding("account-wide", section)
    yield finding("roles-not-visible", section, name=name)


# --- access --------------------------------------------------------------------------------------------


def _access(observed: Observed) -> Iterator[Result]:
    yield from _sources(observed)
    if observed.configuration.tenant is not None:
        yield from _tenant(observed.configuration.tenant)
    refused = (Reading.REFUSED, Reading.FAILED)
    if closed := [name for name, reading in observed.store.items() if reading in refused]:
        yield finding("restricted-unreadable", "[restricted]", tables=listed(closed))
    writing, trouble = observed.writing, observed.writing.trouble
    if trouble is not None:
        cure = {"do": trouble.hint} if trouble.hint else {}
        texts = {"table": writing.where, "problem": trouble.what}
        yield finding("restricted-unwritable", "[restricted]", **texts, **cure)
    elif writing.where:
        yield Fact("[restricted]", f"a row was written to {writing.where} and removed")
    elif observed.restricted.listing is not None:
        yield finding("writing-not-tried", "[restricted]")
    if writing.left:
        yield finding("left-behind", "[restricted]", left=writing.left)
    for account in observed.accounts:
        crossing = observed.crossings.get(account.section, Crossing())
        if crossing.read:
            azurite = account.has_published_key and observed.restricted.has_published_key
            texts = {"read": listed(crossing.read), "section": account.section}
            yield finding("restricted-open", "[restricted]", Severity.NOTE if azurite else None, **texts)
        elif crossing.same_identity and account is observed.tables:
            yield finding("same-identity", "[restricted]")
        elif crossing.tried:
            yield Fact("[restricted]", f"the credential of [{account.section}] reads nothing here")


def _tenant(seen: TenantSeen) -> Iterator[Result]:
    entra, check, section = seen.entra, seen.check, "[proxy.access.entra]"
    if check.failure:
        texts = {"tenant": entra.tenant, "authority": entra.authority, "answer": check.failure}
        yield finding("signing-keys-unreachable", section, **texts)
        return
    yield Fact(section, f"tenant {entra.tenant} has {counted(check.keys, 'signing key')}")
    if check.own:
        yield finding("own-token-refused", section, problem=check.own)
    elif check.own is not None:
        yield Fact(section, "a token of this process's own identity is verified")


def _sources(observed: Observed) -> Iterator[Result]:
    scripts, sources = observed.migrations.scripts, observed.sources
    if read := [script.source for script in scripts if sources.get(script.source) is Reading.READ]:
        yield Fact("[tables]", f"read: {listed(read)}")
    for script in scripts:
        if script.in_target_account and observed.targets is None:
            yield finding("targets-missing", script.script_id)
    retired = {
        migration.script_id for migration in observed.stored if migration.phase == ControlPhase.RETIRED
    }
    for script in scripts:
        reading = sources.get(script.source)
        if reading in (Reading.REFUSED, Reading.FAILED):
            yield finding("source-unreadable", script.script_id, source=script.source, reading=reading)
        if reading is Reading.MISSING and script.script_id not in retired:
            yield finding("source-missing", script.script_id, source=script.source)


# --- clock ---------------------------------------------------------------------------------------------

WARNING_S = 30.0
# The service refuses signatures 15 minutes off.
ERROR_S = 600.0


def ahead_s(heard: ProbeResult) -> float | None:
    """Return how many seconds this machine's clock is at least ahead of the service's; negative when behind,
    0.0 when both can be right, None if unknown. `Date` has whole seconds: the service's clock was in [date,
    date + 1 s) at some moment between sending and receiving."""
    if heard.date is None or not heard.answered:
        return None
    least = heard.sent_at - (heard.date + TICKS_PER_SECOND)
    most = heard.received_at - heard.date
    nearest = 0 if least <= 0 <= most else min(least, most, key=abs)
    return nearest / TICKS_PER_SECOND


def _clock(observed: Observed) -> Iterator[Result]:
    heard = {f"[{account.section}]": account.anonymous for account in observed.accounts}
    if (tenant := observed.configuration.tenant) is not None:
        heard["[proxy.access.entra]"] = tenant.heard  # which sets the times of tokens
    for section, result in heard.items():
        ahead = ahead_s(result)
        if ahead is None:
            continue
        off = "right to the second"
        if ahead:
            off = f"{abs(ahead):,.1f} s {'ahead' if ahead > 0 else 'behind'}, at least"
        yield Fact(section, f"this machine's clock is {off}")
        if abs(ahead) >= WARNING_S:
            yield finding("clock-off", section, Severity.ERROR if abs(ahead) >= ERROR_S else None, off=off)


# --- versions ------------------------------------------------------------------------------------------

TESTED_PYTHON = ((3, 11), (3, 14))
TESTED_AZURITE = "3.35"
_SHOWN = ("azure-data-tables", "azure-core", "httptools", "yoyo-migrations", "sqlalchemy")


def is_unmet(requirement: Requirement, packages: Mapping[str, str]) -> bool:
    """Tell whether an installed package does not meet a requirement. False for a package that is not
    installed, and for the requirement of an extra."""
    have = packages.get(requirement.name.lower())
    if have is None or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
        return False
    try:
        return not requirement.specifier.contains(have, prereleases=True)
    except InvalidVersion:  # before packaging 26
        return True


def _versions(observed: Observed) -> Iterator[Result]:
    seen = observed.versions
    python = ".".join(map(str, seen.python))
    yield Fact("rekey", f"{seen.rekey or 'unknown'} on Python {python}")
    shown = ", ".join(f"{name} {seen.packages[name]}" for name in _SHOWN if name in seen.packages)
    yield Fact("packages", f"{shown}, SQLite {seen.sqlite}")
    oldest, newest = TESTED_PYTHON
    if not oldest <= seen.python[:2] <= newest:
        tested = {"oldest": "{}.{}".format(*oldest), "newest": "{}.{}".format(*newest)}
        yield finding("python-untested", "Python", python=python, **tested)
    for wanted in map(Requirement, seen.wanted):
        if is_unmet(wanted, seen.packages):
            texts = {"version": seen.packages[wanted.name.lower()], "wanted": wanted.specifier}
            yield finding("package-outside", wanted.name, package=wanted.name, **texts)
    for account in observed.accounts:
        section, api = f"[{account.section}]", account.anonymous.api_version
        azurite = account.kind is ServiceKind.AZURITE
        if api and api < API_VERSION:
            do = "find out what answers there; Azure speaks newer versions"
            if azurite:
                do = "renew it: `npx azurite@3.35.0 --skipApiVersionCheck`"
            yield finding("api-version-old", section, version=api, spoken=API_VERSION, do=do)
        version = account.azurite_version
        if azurite and not f"{version}.".startswith(f"{TESTED_AZURITE}."):
            yield finding("azurite-untested", section, version=version, tested=TESTED_AZURITE)


# --- state ---------------------------------------------------------------------------------------------

LOW_BYTES = 1024**3
FULL_BYTES = 100 * 1024**2
# File systems whose locks may not reach other machines (a blobfuse mount is `fuse.blobfuse`).
NETWORK = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "glusterfs", "lustre", "ncpfs"}
    | {"nfs", "nfs4", "smb2", "smb3", "smbfs", "virtiofs", "vboxsf"}
)


def _state(observed: Observed) -> Iterator[Result]:
    seen, about = observed.state, "state file"
    if seen.file is None:
        yield Fact(about, f"{seen.path}: there is none yet; the first `apply` makes it")
    elif seen.trouble is None:
        yield Fact(about, f"{seen.path}: schema {seen.schema}, {seen.file.described}")
    if seen.not_writable:
        yield finding("state-not-writable", about, path=seen.not_writable)
    yield from _state_access(seen)
    if seen.free_bytes is not None:
        system = seen.file_system or "unknown"
        yield Fact("disk", f"{seen.free_bytes / 1024**3:,.1f} GiB free, file system {system}")
        if seen.free_bytes < LOW_BYTES:
            severity = Severity.ERROR if seen.free_bytes < FULL_BYTES else None
            yield finding("disk-low", "disk", severity, mebibytes=seen.free_bytes / 1024**2)
    if seen.file_system in NETWORK or seen.file_system.startswith("fuse.blobfuse"):
        yield finding("network-file-system", "disk", system=seen.file_system)
    if seen.trouble is not None:
        yield _unusable("state-unusable", about, seen.trouble)
    if seen.held_by:
        yield finding("lock-held", about, holder=seen.held_by)
    if 0 < seen.schema < seen.newest_schema:
        yield finding("schema-older", about, schema=seen.schema, newest=seen.newest_schema)
    if seen.broken_at is not None:
        yield finding("audit-broken", about, event=seen.broken_at)


def _state_access(seen: StateSeen) -> Iterator[Result]:
    harm = "it holds old keys where a scan goes on, and the log of what was done"
    for file in (seen.file, *seen.siblings):
        yield from _open_file(file, "state file", harm, "state")
    if (folder := seen.folder) is not None and folder.writers:
        yield finding(
            "state-open",
            "state folder",
            seen=f"others may put files into {folder.path} ({folder.described})",
            why="anyone who may write to the folder can put another state file in place of this one",
            do="let only its owner write it, or keep the state in a folder of its own",
            command=f"chmod go-w {folder.path}",
        )


# --- migrations ----------------------------------------------------------------------------------------


def _migrations(observed: Observed) -> Iterator[Result]:
    seen = observed.migrations
    if seen.trouble is not None:
        yield _unusable("scripts-broken", "scripts", seen.trouble)
    elif seen.scripts:
        yield Fact("scripts", listed([script.script_id for script in seen.scripts]))
    else:
        yield finding("no-scripts", "scripts")
    if writable := [file for file in (seen.folder, *seen.files) if file is not None and file.writers]:
        first, folder = writable[0], seen.folder or writable[0]
        more = f", and {len(writable) - 1} more" if len(writable) > 1 else ""
        texts = {"path": first.path, "described": first.described, "more": more}
        yield finding("scripts-writable", "scripts", **texts, folder=folder.path)
    for script in seen.scripts:
        for name, trouble in script.unresolved.items():
            yield _unusable("secret-unresolved", script.script_id, trouble, secret=name)
    for script in seen.scripts:
        if script.unsealed is not None:
            yield _unusable("wrapping-key-missing", script.script_id, script.unsealed)


# --- restricted store ----------------------------------------------------------------------------------


def _store(observed: Observed) -> Iterator[Result]:
    tables, migrations = observed.store, observed.stored
    there = [name for name, reading in tables.items() if reading is Reading.READ]
    gone = [name for name, reading in tables.items() if reading is Reading.MISSING]
    if tables:
        yield Fact("tables", f"{listed(there)} are there" if there else "none yet; `apply` makes them")
    begun = [
        migration.script_id for migration in migrations if migration.phase not in ("", ControlPhase.SOURCE)
    ]
    if begun and gone:
        texts = {"tables": listed(gone), "scripts": listed(begun), "script": begun[0]}
        yield finding("store-incomplete", "tables", **texts)
    for migration in migrations:
        if migration.trouble is not None:
            yield _unusable("control-unreadable", migration.script_id, migration.trouble)
        else:
            yield from _migration(migration, migration.script_id, observed.versions.rekey)


def _migration(seen: MigrationSeen, script: str, version: str) -> Iterator[Result]:
    text = "not begun"
    if seen.phase:
        clients = f"{seen.live} live, {seen.silent} silent, {seen.over} over"
        text = f"`{seen.phase}`, epoch {seen.epoch}; clients: {clients}; {seen.intents:,} intents"
    yield Fact(script, text)
    others = sorted(set(seen.versions) - {version})
    if others and version:
        yield finding("client-version", script, others=listed(others), version=version)
    if seen.silent:
        clients = f"{seen.silent} client{'s are' if seen.silent > 1 else ' is'}"
        yield finding("clients-silent", script, clients=clients, script=script)
    if seen.intents and not seen.live + seen.silent:
        yield finding("intents-without-clients", script, intents=seen.intents, script=script)
    if seen.due:
        months = "" if seen.due == (WHOLE,) else f" of {listed(seen.due)}"
        yield finding("mapping-over", script, months=months, script=script)
    if seen.returned:
        text = listed(seen.returned)
        yield finding("data-key-returned", script, months=text, script=script, first=seen.returned[0])
