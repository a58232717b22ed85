"""Judging what was observed: a generator of findings and facts for each family of checks. Pure.

Rules kept here:

* What only the control plane knows (roles, whether shared keys are allowed) is never claimed from answers of
  the data plane, but for one: a service that refuses a key because keys are switched off says so.
* A refusal of the list of tables is no fault with a token: a role on single tables has no right to it.
* Only what was tried is claimed. A test that could not be made is told as not made.
* The credential of `[tables]` must open nothing of the restricted account. One account for both sections
  protects the old keys from no one; on Azurite it costs nothing and is a note.
* Of a file's mode only what lets in others than the owner is said. Root reads everything and is never
  mentioned.
* A secret that a script needs is judged with the scripts; with the configuration those that no script names.
* What is wanted of packages comes from the installed distribution itself, so that it is said once.
* The state file holds source keys (cursors) and the record of what was done: others must not read or change
  it. A lock that is held is no fault: another command works.
* Of the restricted store numbers only: no key, no name of a client's rows. Whether a migration is safe and
  what comes next is said by `rekey status`, what a script declares is judged by `rekey plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from packaging.requirements import Requirement

from rekey.core.clock import TICKS_PER_SECOND, format_ticks
from rekey.core.severity import Severity
from rekey.doctor.observed import (
    KEYS_OFF,
    AccountSeen,
    ConfigurationSeen,
    FileSeen,
    Kind,
    MigrationSeen,
    Observed,
    Reading,
    SecretSeen,
)
from rekey.doctor.report import Fact, Finding, Report, Told, found, listed
from rekey.errors import RekeyError
from rekey.mapping.retention import WHOLE
from rekey.phases import ControlPhase
from rekey.tables.probe import BAD_CERTIFICATE, Heard
from rekey.tables.wire import API_VERSION


def examine(observed: Observed) -> Report:
    """Return what all checks say, by family, in the order in which one would mend what is found."""
    families: dict[str, Callable[[Observed], Iterator[Told]]] = {
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


def _unusable(code: str, about: str, error: RekeyError, **values: str) -> Finding:
    """Return the finding for what failed with an error, whose hint is the remedy."""
    return found(code, about, error.what, do=error.hint, **values)


# --- configuration -------------------------------------------------------------------------------------

GOOD_BYTES = 32
FEW_DISTINCT = 8
"""32 hexadecimal digits drawn by chance have about 14 different ones, and practically never fewer than 8."""


def _configuration(observed: Observed) -> Iterator[Told]:
    seen, file = observed.configuration, observed.configuration.file
    yield Fact("file", file.path)
    if seen.same_account:
        azurite = observed.restricted.kind is Kind.AZURITE
        yield found(
            "same-account",
            "[restricted]",
            "it is the same account as [tables]",
            severity=Severity.NOTE if azurite else None,
            on_azurite="; on Azurite it does not matter" if azurite else "",
        )
    elif seen.same_key:
        azurite = observed.tables.has_published_key
        severity = Severity.NOTE if azurite else None
        yield found("same-key", "[restricted]", "both accounts have the same shared key", severity=severity)
    for account in observed.accounts:
        yield from _account_key(account)
    if file.writers:
        said = f"others may change {file.path} ({file.described})"
        yield found("config-writable", "rekey.toml", said, path=file.path)
    for secret in seen.secrets:
        yield from _secret(secret, named=secret.name in observed.migrations.named_secrets)
    if seen.wrapping is not None:
        harm = "who has this key and reads the restricted store finds every old key"
        do = "make one by chance, name this one under [sealing.previous], and run `rekey apply`"
        yield from _guessable_or_open(seen.wrapping, "[sealing]", harm, do)
    yield from _evidence(seen)


def _account_key(seen: AccountSeen) -> Iterator[Finding]:
    section, account = f"[{seen.section}]", seen.account
    if seen.trouble is not None:
        yield _unusable("key-unusable", section, seen.trouble)
    elif account.is_https and account.key_env is not None:
        said = f"a shared key out of {account.key_env} is used where a token would do"
        yield found("key-where-token", section, said, section=section)
    elif seen.has_published_key:
        yield found("published-key", section, "the key of this account is the one that every Azurite has")


def _secret(secret: SecretSeen, *, named: bool) -> Iterator[Finding]:
    about = f"[secrets.{secret.name}]"
    if secret.trouble is not None and not named:
        do = secret.trouble.hint or "mend it, or remove the section"
        yield found("secret-unreadable", about, secret.trouble.what, do=do)
    if secret.trouble is None and secret.length < GOOD_BYTES:
        yield found("secret-short", about, f"it has {secret.length} bytes; 16 is the least that is taken")
    harm = "who has the secret can compute the id of every old key that can be guessed"
    do = (
        "make one by chance before the migration begins; one that has begun must keep its secret, and its"
        " ids count as guessable"
    )
    yield from _guessable_or_open(secret, about, harm, do)


def _guessable_or_open(secret: SecretSeen, about: str, harm: str, do: str) -> Iterator[Finding]:
    if secret.trouble is None and secret.distinct < FEW_DISTINCT:
        said = f"it has {secret.distinct} different bytes: a pattern, not chance"
        yield found("secret-guessable", about, said, harm=harm, do=do)
    yield from _open_file(secret.file, about, harm)


def _evidence(seen: ConfigurationSeen) -> Iterator[Finding]:
    if seen.evidence_trouble is not None:
        yield _unusable("evidence-key-unusable", "[evidence]", seen.evidence_trouble)
    if not seen.evidence_configured:
        said = "no key is configured: checkpoints and evidence are not signed"
        yield found("evidence-unsigned", "[evidence]", said)
    yield from _open_file(seen.evidence_file, "[evidence]", "who has this key can sign another history")


def _open_file(file: FileSeen | None, about: str, harm: str, code: str = "file") -> Iterator[Finding]:
    """Judge a file that only its owner may read.

    Args:
        file: None: there is none to judge.
        about: what it is.
        harm: why it matters who reads it.
        code: begins the codes of findings.
    """
    if file is None or file.mode is None:
        return
    may = [
        f"{verb} by {listed(others)}"
        for verb, others in (("read", file.readers), ("written", file.writers))
        if others
    ]
    if may:
        said = f"{file.path} may be {' and '.join(may)} ({file.described})"
        severity = Severity.ERROR if file.writers else None
        yield found(f"{code}-open", about, said, severity=severity, harm=harm, path=file.path)
    if not file.ours:
        said = f"{file.path} belongs to another user ({file.described})"
        yield found(f"{code}-foreign", about, said, harm=harm)


# --- accounts ------------------------------------------------------------------------------------------

CERTIFICATE_DAYS = 14
_OLD_TLS = frozenset({"SSLv3", "TLSv1", "TLSv1.1"})
_DAY_TICKS = 86_400 * TICKS_PER_SECOND


def _accounts(observed: Observed) -> Iterator[Told]:
    """Judge accounts: reachable, encrypted, whose service it is, which credentials they take."""
    for account in observed.accounts:
        for judge in (_reached, _connection, _credential, _kind, _shared_keys, _scope):
            yield from judge(account, f"[{account.section}]")


def _reached(seen: AccountSeen, section: str) -> Iterator[Told]:
    heard, endpoint = seen.anonymous, seen.account.endpoint
    if heard.failure == BAD_CERTIFICATE:
        yield found("certificate-refused", section, f"the certificate of {endpoint} is not trusted")
    elif seen.listing is not None and seen.status == 404:
        said = f"{endpoint} answers, and knows no account {seen.account.name} ({seen.listing.code})"
        yield found("account-unknown", section, said)
    elif not heard.answered or seen.is_failing:
        said = f"{endpoint} does not answer as it must ({heard.failure or seen.status})"
        yield found("unreachable", section, said)
    if heard.accepted:
        yield found("anonymous-accepted", section, f"{endpoint} lists its tables for who has no credential")


def _connection(seen: AccountSeen, section: str) -> Iterator[Told]:
    heard = seen.anonymous
    how = heard.tls or ("https" if seen.account.is_https else "http, on this machine only")
    version = f" {seen.azurite_version}" if seen.kind is Kind.AZURITE else ""
    yield Fact(section, f"{seen.account.endpoint}: {seen.kind}{version}, {how}")
    if heard.tls in _OLD_TLS:
        yield found("tls-old", section, f"the connection is {heard.tls}", name=seen.account.name)
    if (ends := heard.certificate_ends) is not None:
        said = f"its certificate ends {format_ticks(ends)[:10]}"
        yield Fact(section, said)
        if ends - heard.received_at < CERTIFICATE_DAYS * _DAY_TICKS:
            yield found("certificate-ends", section, said)
    if seen.takes_no_keys:
        yield Fact(section, "shared keys are switched off")


def _credential(seen: AccountSeen, section: str) -> Iterator[Told]:
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
    said = f"the account refuses the configured credential ({answer})"
    yield found("credential-refused", section, said, do=do)


def _kind(seen: AccountSeen, section: str) -> Iterator[Told]:
    server = seen.anonymous.server
    match seen.kind:
        case Kind.AZURITE:
            yield found("azurite", section, f"this is Azurite: it says so itself ({server})")
        case Kind.COSMOS:
            yield found("cosmos", section, "this is Cosmos DB for Table: its host says so")
        case Kind.UNKNOWN:
            said = f"Server: {server[:60]}" if server else "no header `Server`"
            said = f"what answers says neither Azure Table Storage nor Azurite ({said})"
            yield found("service-unknown", section, said)
        case Kind.STORAGE | Kind.SILENT:
            return


def _shared_keys(seen: AccountSeen, section: str) -> Iterator[Told]:
    if seen.kind is not Kind.STORAGE or not seen.account.is_https:
        return
    name = seen.account.name
    if seen.account.key_env is not None and seen.listing is not None and seen.listing.accepted:
        said = "the account takes shared keys: the configured one was accepted"
        severity = None if seen.section == "restricted" else Severity.NOTE
        yield found("shared-key-accepted", section, said, severity=severity, name=name)
    elif seen.uses_token and not seen.takes_no_keys:
        said = "whether shared keys are switched off cannot be seen from here"
        yield found("shared-key-unknown", section, said, name=name)


def _scope(seen: AccountSeen, section: str) -> Iterator[Told]:
    if seen.kind is not Kind.STORAGE or not seen.uses_token:
        return
    if seen.section == "tables" and seen.listing is not None and seen.listing.accepted:
        said = "this identity may list all tables: its role is on the account or above, not on single tables"
        yield found("account-wide", section, said)
    said = "who else has which role on this account cannot be seen from here"
    yield found("roles-not-visible", section, said, name=seen.account.name)


# --- access --------------------------------------------------------------------------------------------


def _access(observed: Observed) -> Iterator[Told]:
    yield from _sources(observed)
    closed = [
        name
        for name, reading in observed.store.tables.items()
        if reading in (Reading.REFUSED, Reading.FAILED)
    ]
    if closed:
        yield found("restricted-unreadable", "[restricted]", f"{listed(closed)} cannot be read")
    yield from _writing(observed)
    yield from _crossing(observed)


def _sources(observed: Observed) -> Iterator[Told]:
    scripts, sources = observed.migrations.scripts, observed.sources
    read = [one.source for one in scripts if sources.get(one.source) is Reading.READ]
    if read:
        yield Fact("[tables]", f"read: {listed(read)}")
    retired = {one.script_id for one in observed.store.migrations if one.phase == ControlPhase.RETIRED}
    for script in scripts:
        reading = sources.get(script.source)
        if reading in (Reading.REFUSED, Reading.FAILED):
            said = f"its source {script.source} cannot be read ({reading})"
            yield found("source-unreadable", script.script_id, said)
        if reading is Reading.MISSING and script.script_id not in retired:
            said = f"its source {script.source} is not in this account"
            yield found("source-missing", script.script_id, said)


def _writing(observed: Observed) -> Iterator[Told]:
    writing, trouble = observed.writing, observed.writing.trouble
    if trouble is not None:
        said = f"a row could not be written and removed in {writing.where}: {trouble.what}"
        cure = {"do": trouble.hint} if trouble.hint else {}
        yield found("restricted-unwritable", "[restricted]", said, **cure)
    elif writing.where:
        yield Fact("[restricted]", f"a row was written to {writing.where} and removed")
    elif observed.restricted.listing is not None:
        yield found("writing-not-tried", "[restricted]", "whether it can be written was not tried")
    if writing.left:
        said = f"{writing.left} was written by this check and could not be removed"
        yield found("left-behind", "[restricted]", said)


def _crossing(observed: Observed) -> Iterator[Told]:
    crossing = observed.crossing
    if crossing.read:
        azurite = observed.tables.has_published_key and observed.restricted.has_published_key
        said = f"the credential of [tables] reads {listed(crossing.read)} of the restricted account"
        yield found("restricted-open", "[restricted]", said, severity=Severity.NOTE if azurite else None)
    elif crossing.same_identity:
        said = "one identity opens both accounts: what the application's own identity may read is not known"
        yield found("same-identity", "[restricted]", said)
    elif crossing.tried:
        yield Fact("[restricted]", "the credential of [tables] reads nothing here")


# --- clock ---------------------------------------------------------------------------------------------

WARNING_S = 30.0
ERROR_S = 600.0
"""The service refuses signatures that are 15 minutes off."""


def ahead_s(heard: Heard) -> float | None:
    """Return how many seconds this machine is ahead of the service, 0.0 when both can be right.

    Negative when it is slow. The service's clock stood in [date, date + 1 s) at some moment
    between sending and receiving.
    """
    if heard.date is None or not heard.answered:
        return None
    least = heard.sent_at - (heard.date + TICKS_PER_SECOND)
    most = heard.received_at - heard.date
    nearest = 0 if least <= 0 <= most else min(least, most, key=abs)
    return nearest / TICKS_PER_SECOND


def _clock(observed: Observed) -> Iterator[Told]:
    for account in observed.accounts:
        off, section = ahead_s(account.anonymous), f"[{account.section}]"
        if off is None:
            continue
        said = "this machine's clock is right to the second"
        if off:
            said = f"this machine's clock is {abs(off):,.1f} s {'ahead' if off > 0 else 'behind'}, at least"
        yield Fact(section, said)
        if abs(off) >= WARNING_S:
            yield found("clock-off", section, said, severity=Severity.ERROR if abs(off) >= ERROR_S else None)


# --- versions ------------------------------------------------------------------------------------------

TESTED_PYTHON = ((3, 11), (3, 14))
TESTED_AZURITE = "3.35"
_SHOWN = ("azure-data-tables", "azure-core", "aiohttp", "yoyo-migrations", "sqlalchemy")


def is_unmet(requirement: Requirement, packages: Mapping[str, str]) -> bool:
    """Tell whether an installed package is outside what is wanted. A requirement of an extra never counts."""
    have = packages.get(requirement.name.lower())
    if have is None or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
        return False
    return not requirement.specifier.contains(have, prereleases=True)


def _versions(observed: Observed) -> Iterator[Told]:
    seen = observed.versions
    python = ".".join(map(str, seen.python))
    yield Fact("rekey", f"{seen.rekey or 'unknown'} on Python {python}")
    shown = ", ".join(f"{name} {seen.packages[name]}" for name in _SHOWN if name in seen.packages)
    yield Fact("packages", f"{shown}, SQLite {seen.sqlite}")
    oldest, newest = TESTED_PYTHON
    if not oldest <= seen.python[:2] <= newest:
        range_ = {"oldest": "{}.{}".format(*oldest), "newest": "{}.{}".format(*newest)}
        yield found("python-untested", "Python", f"this is Python {python}", **range_)
    for wanted in map(Requirement, seen.wanted):
        if is_unmet(wanted, seen.packages):
            installed = f"{wanted.name} {seen.packages[wanted.name.lower()]} is installed"
            yield found("package-outside", wanted.name, f"{installed}; rekey asks for {wanted.specifier}")
    for account in observed.accounts:
        yield from _service_version(account, f"[{account.section}]")


def _service_version(seen: AccountSeen, section: str) -> Iterator[Told]:
    azurite, api = seen.kind is Kind.AZURITE, seen.anonymous.api_version
    if api and api < API_VERSION:
        said = f"the service answers with API version {api}"
        do = "find out what answers there; Azure speaks newer versions"
        if azurite:
            do = "renew it: `npx azurite@3.35.0 --skipApiVersionCheck`"
        yield found("api-version-old", section, said, spoken=API_VERSION, do=do)
    if azurite and not f"{seen.azurite_version}.".startswith(f"{TESTED_AZURITE}."):
        said = f"this is Azurite {seen.azurite_version}"
        yield found("azurite-untested", section, said, tested=TESTED_AZURITE)


# --- state ---------------------------------------------------------------------------------------------

LOW_BYTES = 1024**3
FULL_BYTES = 100 * 1024**2
NETWORK = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "glusterfs", "lustre", "ncpfs"}
    | {"nfs", "nfs4", "smb2", "smb3", "smbfs", "virtiofs", "vboxsf"}
)
"""Types of file systems whose locks may not reach other machines. (A blobfuse mount says `fuse.blobfuse`.)"""


def _state(observed: Observed) -> Iterator[Told]:
    seen, about = observed.state, "state file"
    if seen.file is None:
        yield Fact(about, f"{seen.path}: there is none yet; the first `apply` makes it")
    elif seen.trouble is None:
        yield Fact(about, f"{seen.path}: schema {seen.schema}, {seen.file.described}")
    yield from _state_access(observed)
    yield from _disk(observed)
    if seen.trouble is not None:
        yield _unusable("state-unusable", about, seen.trouble)
    if seen.held_by:
        yield found("lock-held", about, f"{seen.held_by} works with it now")
    if 0 < seen.schema < seen.newest_schema:
        said = f"its schema is {seen.schema}; this program has {seen.newest_schema}"
        yield found("schema-older", about, said)
    if seen.broken_at is not None:
        yield found("audit-broken", about, f"the chain of audit events breaks at event {seen.broken_at}")


def _state_access(observed: Observed) -> Iterator[Told]:
    harm = "it holds old keys where a scan goes on, and the log of what was done"
    for file in (observed.state.file, *observed.state.siblings):
        yield from _open_file(file, "state file", harm, "state")
    folder = observed.state.folder
    if folder is not None and folder.writers:
        yield found(
            "state-open",
            "state folder",
            f"others may put files into {folder.path} ({folder.described})",
            why="who may write the folder may put another state file in the place of this one",
            do="let only its owner write it, or keep the state in a folder of its own",
            command=f"chmod go-w {folder.path}",
        )


def _disk(observed: Observed) -> Iterator[Told]:
    free, system = observed.state.free_bytes, observed.state.file_system
    if free is not None:
        yield Fact("disk", f"{free / 1024**3:,.1f} GiB free, file system {system or 'unknown'}")
        if free < LOW_BYTES:
            said = f"{free / 1024**2:,.0f} MiB are free where the state file is"
            yield found("disk-low", "disk", said, severity=Severity.ERROR if free < FULL_BYTES else None)
    if system in NETWORK or system.startswith("fuse.blobfuse"):
        yield found("network-file-system", "disk", f"the state file is on a network file system ({system})")


# --- migrations ----------------------------------------------------------------------------------------


def _migrations(observed: Observed) -> Iterator[Told]:
    seen = observed.migrations
    if seen.trouble is not None:
        yield _unusable("scripts-broken", "scripts", seen.trouble)
    elif seen.scripts:
        yield Fact("scripts", listed([one.script_id for one in seen.scripts]))
    else:
        yield found("no-scripts", "scripts", "there is no migration script")
    writable = [file for file in (seen.folder, *seen.files) if file is not None and file.writers]
    if writable:
        first = writable[0]
        said = f"others may change {first.path} ({first.described})"
        if len(writable) > 1:
            said += f", and {len(writable) - 1} more"
        yield found("scripts-writable", "scripts", said, path=(seen.folder or first).path)
    for script in seen.scripts:
        for name, trouble in script.unresolved.items():
            yield _unusable("secret-unresolved", script.script_id, trouble, secret=name)
    for script in seen.scripts:
        if script.unsealed is not None:
            yield _unusable("wrapping-key-missing", script.script_id, script.unsealed)


# --- restricted store ----------------------------------------------------------------------------------


def _store(observed: Observed) -> Iterator[Told]:
    tables, migrations = observed.store.tables, observed.store.migrations
    there = [name for name, reading in tables.items() if reading is Reading.READ]
    gone = [name for name, reading in tables.items() if reading is Reading.MISSING]
    if tables:
        yield Fact("tables", f"{listed(there)} are there" if there else "none yet; `apply` makes them")
    begun = [one.script_id for one in migrations if one.phase not in ("", ControlPhase.SOURCE)]
    if begun and gone:
        said = f"{listed(gone)} gone, although {listed(begun)} is under way"
        yield found("store-incomplete", "tables", said, script=begun[0])
    for one in migrations:
        if one.trouble is not None:
            yield _unusable("control-unreadable", one.script_id, one.trouble)
        else:
            yield from _migration(one, observed.versions.rekey)


def _migration(one: MigrationSeen, version: str) -> Iterator[Told]:
    script = one.script_id
    said = "not begun"
    if one.phase:
        clients = f"{one.live} live, {one.silent} silent, {one.over} over"
        said = f"`{one.phase}`, epoch {one.epoch}; clients: {clients}; {one.intents:,} intents"
    yield Fact(script, said)
    others = sorted(set(one.versions) - {version})
    if others and version:
        said = f"clients of the application run rekey {listed(others)}; here it is {version}"
        yield found("client-version", script, said)
    if one.silent:
        said = f"{one.silent} client{'s are' if one.silent > 1 else ' is'} silent"
        yield found("clients-silent", script, said, script=script)
    if one.intents and not one.live + one.silent:
        said = f"{one.intents:,} intents are in the journal, and no client is there"
        yield found("intents-without-clients", script, said, script=script)
    if one.due:
        months = "" if one.due == (WHOLE,) else f" of {listed(one.due)}"
        said = f"the mapping{months} is kept longer than [gates] mapping_retention says"
        yield found("mapping-over", script, said, script=script)
    if one.returned:
        said = f"the data key of {listed(one.returned)} was shredded, as the audit log says, and stands there"
        yield found("data-key-returned", script, said, script=script, month=one.returned[0])
