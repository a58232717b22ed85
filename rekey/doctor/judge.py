"""Judging what was observed: accounts, access, clock and restricted store here, this machine next door. Pure.

Rules kept here:

* What only the control plane knows (roles, whether shared keys are allowed) is never claimed from answers of
  the data plane, but for one: a service that refuses a key because keys are switched off says so.
* A refusal of the list of tables is no fault with a token: a role on single tables has no right to it.
* Only what was tried is claimed. A test that could not be made is told as not made.
* The credential of `[tables]` must open nothing of the restricted account.
* Of the restricted store numbers only: no key, no name of a client's rows. Whether a migration is safe and
  what comes next is said by `rekey status`, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rekey.core.clock import TICKS_PER_SECOND, format_ticks
from rekey.core.severity import Severity
from rekey.doctor import judge_machine
from rekey.doctor.finding import (
    Code,
    Examined,
    Fact,
    Finding,
    Report,
    Told,
    error,
    listed,
    note,
    unusable,
    warning,
)
from rekey.doctor.observed import KEYS_OFF, AccountSeen, Kind, MigrationSeen, Observed, Reading
from rekey.mapping.rows import WHOLE
from rekey.phases import ControlPhase
from rekey.tables.probe import BAD_CERTIFICATE, Heard

# --- accounts ------------------------------------------------------------------------------------------


CERTIFICATE_DAYS = 14
_OLD_TLS = frozenset({"SSLv3", "TLSv1", "TLSv1.1"})
_DAY_TICKS = 86_400 * TICKS_PER_SECOND


def _accounts(observed: Observed) -> Iterator[Told]:
    """The accounts: reachable, encrypted, whose service it is, which credentials they take."""
    for account in observed.accounts:
        for judge in (_described, _reached, _connection, _credential, _kind, _shared_keys, _scope):
            yield from judge(account)


def _described(account: AccountSeen) -> Iterator[Told]:
    heard, section = account.anonymous, f"[{account.section}]"
    how = heard.tls or ("https" if account.is_https else "http, on this machine only")
    version = f" {account.azurite_version}" if account.kind is Kind.AZURITE else ""
    yield Fact(section, f"{account.endpoint}: {account.kind}{version}, {how}")
    if heard.certificate_ends is not None:
        yield Fact(section, f"its certificate ends {format_ticks(heard.certificate_ends)[:10]}")
    if account.takes_no_keys:
        yield Fact(section, "shared keys are switched off")


def _reached(account: AccountSeen) -> Iterator[Told]:
    heard, section = account.anonymous, f"[{account.section}]"
    if heard.failure == BAD_CERTIFICATE:
        yield error(
            Code.CERTIFICATE_REFUSED,
            section,
            f"the certificate of {account.endpoint} is not trusted",
            "the server cannot prove to be the service; nothing was sent to it",
            "check the host's name, this machine's clock and its certificate authorities; behind a proxy that"
            " opens TLS, its authority must be trusted here",
        )
    elif not heard.answered or (account.is_failing and account.status != 404):
        yield error(
            Code.UNREACHABLE,
            section,
            f"{account.endpoint} does not answer as it must ({heard.failure or account.status})",
            "nothing else can be checked of this account, and no command can work on it",
            "check the name, the network, HTTPS_PROXY and NO_PROXY, and the account's firewall; a local"
            " Azurite must be running",
        )
    elif account.listing is not None and account.listing.status == 404:
        yield error(
            Code.ACCOUNT_UNKNOWN,
            section,
            f"{account.endpoint} answers, and knows no account {account.name} ({account.listing.code})",
            "no command can work on it",
            "check the account's name in the endpoint; an Azurite knows the accounts of AZURITE_ACCOUNTS",
        )
    if heard.accepted:
        yield error(
            Code.ANONYMOUS_ACCEPTED,
            section,
            f"{account.endpoint} lists its tables for who has no credential",
            "everybody who reaches the endpoint may read",
            "find out who answers there: no table service does that; a proxy may add a credential of its own",
        )


def _connection(account: AccountSeen) -> Iterator[Told]:
    heard, section = account.anonymous, f"[{account.section}]"
    if heard.tls in _OLD_TLS:
        yield warning(
            Code.TLS_OLD,
            section,
            f"the connection is {heard.tls}",
            "it can be broken into on the way",
            "allow TLS 1.2 and newer only; a proxy on the way may be what is old",
            f"az storage account update --name {account.name} --min-tls-version TLS1_2",
        )
    ends = heard.certificate_ends
    if ends is not None and ends - heard.received_at < CERTIFICATE_DAYS * _DAY_TICKS:
        yield warning(
            Code.CERTIFICATE_ENDS,
            section,
            f"its certificate ends {format_ticks(ends)[:10]}",
            "from then on nothing connects, in the middle of a migration as well",
            "renew it if it is yours (a proxy's, an own domain's); Azure renews its own in time",
        )


def _credential(account: AccountSeen) -> Iterator[Told]:
    listing = account.listing
    if listing is None or not account.is_refused:
        return
    said = listing.failure or f"{listing.status} {listing.code}".strip()
    if account.uses_token:
        cure = "run `az login`, or give the process a managed identity of the account's tenant"
    else:
        cure = "put the account's present key where `key_env` says; a renewed key ends the old one"
    if listing.code == "AuthorizationFailure" and account.is_https:
        cure += "; or let this machine through the account's firewall, which answers the same"
    if account.takes_no_keys or listing.code == KEYS_OFF:
        cure = "this account takes no shared keys: remove `key_env` and use a token"
    yield error(
        Code.CREDENTIAL_REFUSED,
        f"[{account.section}]",
        f"the account refuses the configured credential ({said})",
        "no command can read or write it",
        cure,
    )


def _kind(account: AccountSeen) -> Iterator[Told]:
    section = f"[{account.section}]"
    match account.kind:
        case Kind.AZURITE:
            yield note(
                Code.AZURITE,
                section,
                f"this is Azurite: it says so itself ({account.anonymous.server})",
                "it has no roles and no throttling, does not check several limits, deletes tables at once,"
                " and when it is killed it loses what it was sent in the last seconds",
                "nothing, for a rehearsal; what it cannot show, the account in Azure will",
            )
        case Kind.COSMOS:
            yield error(
                Code.COSMOS,
                section,
                "this is Cosmos DB for Table: its host says so",
                "it returns rows in no order, and rekey goes on after the last key it read: rows could be"
                " passed over. It also takes RowKeys of 255 bytes at most, batches of 2 MB, tokens of another"
                " kind, and answers 429 instead of 503",
                "do not migrate it with this version; rekey is made for, and tested against, Table storage",
            )
        case Kind.UNKNOWN:
            server = account.anonymous.server[:60]
            said = f"Server: {server}" if server else "no header `Server`"
            yield warning(
                Code.SERVICE_UNKNOWN,
                section,
                f"what answers says neither Azure Table Storage nor Azurite ({said})",
                "something between may change requests and answers, or it imitates the service: order of"
                " rows, ETags and conditions are then not known to be kept",
                "ask its operator what is in between; rehearse on it before a migration",
            )
        case Kind.STORAGE | Kind.SILENT:
            return


def _shared_keys(account: AccountSeen) -> Iterator[Told]:
    if account.kind is not Kind.STORAGE or not account.is_https:
        return
    section, show = f"[{account.section}]", f"az storage account show --name {account.name}"
    if account.key_env is not None and account.listing is not None and account.listing.accepted:
        yield Finding(
            Severity.WARNING if account.section == "restricted" else Severity.NOTE,
            Code.SHARED_KEY_ACCEPTED,
            section,
            "the account takes shared keys: the configured one was accepted",
            "who has a key, or may list keys (Owner and Contributor may), reads everything",
            "use a token, then switch shared keys off; look first that nothing else needs them",
            f"az storage account update --name {account.name} --allow-shared-key-access false",
        )
    elif account.uses_token and not account.takes_no_keys:
        yield note(
            Code.SHARED_KEY_UNKNOWN,
            section,
            "whether shared keys are switched off cannot be seen from here",
            "a request with a key made up for it was refused for its signature, which says neither; who has a"
            " key reads everything, in spite of all roles",
            "look with the command; anything but `false` means that keys are taken",
            f"{show} --query allowSharedKeyAccess",
        )


def _scope(account: AccountSeen) -> Iterator[Told]:
    if account.kind is not Kind.STORAGE or not account.uses_token:
        return
    section = f"[{account.section}]"
    if account.section == "tables" and account.listing is not None and account.listing.accepted:
        yield note(
            Code.ACCOUNT_WIDE,
            section,
            "this identity may list all tables: its role is on the account or above, not on single tables",
            "each process that runs as it reads every table of the account; the runner makes tables and needs"
            " that, an application does not",
            "give the application an identity of its own, with roles on the tables it uses",
        )
    path = f"/storageAccounts/{account.name}"
    yield note(
        Code.ROLES_NOT_VISIBLE,
        section,
        "who else has which role on this account cannot be seen from here",
        "tables answer for who asks; roles, firewall and the least TLS version are kept by the control plane",
        "look who is in the list; on the restricted account only the runner and the application's clients"
        " belong there",
        f"az role assignment list --all --query \"[?contains(scope, '{path}') ||"
        " !contains(scope, '/storageAccounts/')].[principalName, roleDefinitionName, scope]\" --output table",
    )


# --- access --------------------------------------------------------------------------------------------


_ROLE = "the role Storage Table Data Contributor on the account (new roles take up to 30 minutes)"


def _access(observed: Observed) -> Iterator[Told]:
    read = [one.source for one in observed.migrations.scripts if one.reading is Reading.READ]
    if read:
        yield Fact("[tables]", f"read: {listed(read)}")
    if observed.writing.where and observed.writing.trouble is None:
        yield Fact("[restricted]", f"a row was written to {observed.writing.where} and removed")
    if observed.crossing.tried and not observed.crossing.read:
        yield Fact("[restricted]", "the credential of [tables] reads nothing here")


def _sources(observed: Observed) -> Iterator[Told]:
    known: dict[str, MigrationSeen] = {one.script_id: one for one in observed.store.migrations}
    for script in observed.migrations.scripts:
        begun = known.get(script.script_id)
        if script.reading in (Reading.REFUSED, Reading.FAILED):
            yield error(
                Code.SOURCE_UNREADABLE,
                script.script_id,
                f"its source {script.source} cannot be read ({script.reading})",
                "neither `plan` nor `apply` can begin",
                f"give the identity that runs rekey {_ROLE}; Reader is enough for `plan`",
            )
        if script.reading is Reading.MISSING and (begun is None or begun.phase != ControlPhase.RETIRED):
            yield warning(
                Code.SOURCE_MISSING,
                script.script_id,
                f"its source {script.source} is not in this account",
                "there is nothing to migrate; a new table made under this name would be migrated instead",
                "check the name in the script, and [tables] endpoint",
            )


def _store_readable(observed: Observed) -> Iterator[Told]:
    closed = [
        name
        for name, reading in observed.store.tables.items()
        if reading in (Reading.REFUSED, Reading.FAILED)
    ]
    if closed:
        yield error(
            Code.RESTRICTED_UNREADABLE,
            "[restricted]",
            f"{listed(closed)} cannot be read",
            "no command knows where a migration stands, and clients of the application refuse to write",
            f"give the identity that runs rekey, and the application's clients, {_ROLE}",
        )


def _writing(observed: Observed) -> Iterator[Told]:
    writing = observed.writing
    if writing.trouble is not None:
        yield error(
            Code.RESTRICTED_UNWRITABLE,
            "[restricted]",
            f"a row could not be written and removed in {writing.where}: {writing.trouble.what}",
            "`apply` keeps phase, mapping and leases there, and cannot begin",
            writing.trouble.cure or f"give the identity that runs rekey {_ROLE}",
        )
    elif not writing.where and observed.restricted.listing is not None:
        yield note(
            Code.WRITING_NOT_TRIED,
            "[restricted]",
            "whether it can be written was not tried",
            "`apply` needs to make tables and to write rows there",
            "run `rekey doctor` without `--read-only`, with the identity that will run `apply`",
        )
    if writing.left:
        yield error(
            Code.LEFT_BEHIND,
            "[restricted]",
            f"{writing.left} was written by this check and could not be removed",
            "it does no harm, but nothing of a check should stay",
            "delete it by hand",
        )


def _crossing(observed: Observed) -> Iterator[Told]:
    crossing = observed.crossing
    if crossing.read:
        azurite = observed.tables.published_key and observed.restricted.published_key
        yield Finding(
            Severity.NOTE if azurite else Severity.ERROR,
            Code.RESTRICTED_OPEN,
            "[restricted]",
            f"the credential of [tables] reads {listed(crossing.read)} of the restricted account",
            "who may open the application's tables reads which old key became which id",
            "renew the keys of the restricted account, give it none in common, and take the role of the"
            " application's identity away",
        )
    elif crossing.same_identity:
        yield note(
            Code.SAME_IDENTITY,
            "[restricted]",
            "one identity opens both accounts: what the application's own identity may read is not known",
            'the runner needs both; an application in capture "delta" needs nothing of this account',
            "run `rekey doctor --read-only` as the application's identity: `restricted-unreadable` is then"
            " what you want to see",
        )


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
        told = "this machine's clock is right to the second"
        if off:
            told = f"this machine's clock is {abs(off):,.1f} s {'ahead' if off > 0 else 'behind'}, at least"
        yield Fact(section, told)
        if abs(off) >= WARNING_S:
            yield Finding(
                Severity.ERROR if abs(off) >= ERROR_S else Severity.WARNING,
                Code.CLOCK_OFF,
                section,
                told,
                "the service refuses signatures that are 15 minutes off, and tokens seem expired or not yet"
                " valid; audit events, checkpoints and verifications carry this machine's time. Phases,"
                " leases, delta passes and retention go by the service's clock and are not touched",
                "have this machine's time kept (NTP), then look again",
            )


# --- restricted store ----------------------------------------------------------------------------------


def _store(observed: Observed) -> Iterator[Told]:
    seen = observed.store
    there = [name for name, reading in seen.tables.items() if reading is Reading.READ]
    if seen.tables:
        yield Fact("tables", f"{listed(there)} are there" if there else "none yet; `apply` makes them")
    for one in seen.migrations:
        if one.trouble is None and one.phase:
            clients = f"{one.live} live, {one.silent} silent, {one.over} over"
            yield Fact(
                one.script_id,
                f"`{one.phase}`, epoch {one.epoch}; clients: {clients}; {one.intents:,} intents",
            )
        elif one.trouble is None:
            yield Fact(one.script_id, "not begun")


def _store_tables(observed: Observed) -> Iterator[Told]:
    seen = observed.store
    begun = [one.script_id for one in seen.migrations if one.phase not in ("", ControlPhase.SOURCE)]
    gone = [name for name, reading in seen.tables.items() if reading is Reading.MISSING]
    if begun and gone:
        yield error(
            Code.STORE_INCOMPLETE,
            "tables",
            f"{listed(gone)} gone, although {listed(begun)} is under way",
            "the mapping says which old key became which new one, the journal which writes are open; neither"
            " can be made again from the tables alone",
            "find out who deleted it; do not apply before. The runbook on resuming says what can be had back",
            f"rekey status {begun[0]}",
        )


def _migrations_stored(observed: Observed) -> Iterator[Told]:
    for one in observed.store.migrations:
        yield from _migration(one, observed.versions.rekey)
        if one.trouble is None:
            yield from _mapping_kept(one)


def _migration(one: MigrationSeen, version: str) -> Iterator[Finding]:
    if one.trouble is not None:
        why = "neither the runner nor the application's clients know what to do"
        yield from unusable(Code.CONTROL_UNREADABLE, one.script_id, one.trouble, why)
        return
    others = sorted({other for other in one.versions if version and other != version})
    if others:
        yield warning(
            Code.CLIENT_VERSION,
            one.script_id,
            f"clients of the application run rekey {listed(others)}; here it is {version}",
            "runner and clients follow one protocol together; only one version of it is tested at a time",
            "bring the application and this machine to one version before the next move",
        )
    if one.silent:
        yield note(
            Code.CLIENTS_SILENT,
            one.script_id,
            f"{one.silent} client{'s are' if one.silent > 1 else ' is'} silent",
            "a move waits until nothing of it can take effect any more",
            "nothing, if it was stopped on purpose; otherwise look after its process",
            f"rekey status {one.script_id}",
        )
    if one.intents and not one.live + one.silent:
        yield note(
            Code.INTENTS_WITHOUT_CLIENTS,
            one.script_id,
            f"{one.intents:,} intents are in the journal, and no client is there",
            "writes were cut off before their replicas were brought up to date",
            "let the runner settle them",
            f"rekey apply {one.script_id}",
        )


def _mapping_kept(one: MigrationSeen) -> Iterator[Finding]:
    """Judge how long the mapping is kept, and whether what was shredded stays so."""
    if one.due:
        months = "" if one.due == (WHOLE,) else f" of {listed(one.due)}"
        yield warning(
            Code.MAPPING_OVER,
            one.script_id,
            f"the mapping{months} is kept longer than [gates] mapping_retention says",
            "who may open it can still find out which old key became which id",
            "erase what is over",
            f"rekey expire {one.script_id} --confirm {one.script_id}",
        )
    if one.returned:
        yield error(
            Code.DATA_KEY_RETURNED,
            one.script_id,
            f"the data key of {listed(one.returned)} was shredded, as the audit log says, and stands there",
            "an old copy was put into the restricted store: what was erased can be opened again",
            "find out who, and shred it again",
            f"rekey expire {one.script_id} --cohort {one.returned[0]} --reason 'put back'",
        )


# --- all of them -----------------------------------------------------------------------------------------

FAMILIES: dict[str, tuple[Callable[[Observed], Iterator[Told]], ...]] = {
    "configuration": judge_machine.CONFIGURATION,
    "accounts": (_accounts,),
    "access": (_access, _sources, _store_readable, _writing, _crossing),
    "clock": (_clock,),
    "versions": judge_machine.VERSIONS,
    "state": judge_machine.STATE,
    "migrations": judge_machine.MIGRATIONS,
    "restricted store": (_store, _store_tables, _migrations_stored),
}
"""In the order in which one would mend what is found."""


def examine(observed: Observed) -> Report:
    """Return what all checks say, by family."""
    examined = []
    for family, judges in FAMILIES.items():
        told = [one for judge in judges for one in judge(observed)]
        findings = tuple(one for one in told if isinstance(one, Finding))
        examined.append(Examined(family, findings, tuple(one for one in told if isinstance(one, Fact))))
    return Report(tuple(examined))
