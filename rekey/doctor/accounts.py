"""The accounts: reachable, encrypted, whose service it is, which credentials it takes. Pure.

Rules kept here:

* What only the control plane knows (roles, whether shared keys are allowed) is never claimed from answers of
  the data plane, but for one: a service that refuses a key because keys are switched off says so.
* A refusal of the list of tables is no fault with a token: a role on single tables has no right to it.
* http on other machines than this one is refused by the configuration, before anything here is reached.
"""

from __future__ import annotations

from collections.abc import Iterator

from rekey.core.clock import TICKS_PER_SECOND, format_ticks
from rekey.core.severity import Severity
from rekey.doctor.finding import Code, Examined, Fact, Finding
from rekey.doctor.observed import AccountSeen, Observed
from rekey.doctor.service import Kind, azurite_version, kind_of
from rekey.tables.probe import BAD_CERTIFICATE, NO_TOKEN, Heard

KEYS_OFF = "KeyBasedAuthenticationNotPermitted"
CERTIFICATE_DAYS = 14
_OLD_TLS = frozenset({"SSLv3", "TLSv1", "TLSv1.1"})
_NO_ROLE = frozenset({"AuthorizationPermissionMismatch", "InsufficientAccountPermissions"})
"""Codes of a 403 with which the service knows who asks, and that who asks may not do this."""
_DAY_TICKS = 86_400 * TICKS_PER_SECOND


def check(observed: Observed) -> Examined:
    """Judge both accounts."""
    findings: list[Finding] = []
    facts: list[Fact] = []
    for account in observed.accounts:
        findings += [*_reached(account), *_connection(account), *_credential(account), *_kind(account)]
        findings += [*_shared_keys(account), *_scope(account)]
        facts += _facts(account)
    return Examined("accounts", tuple(findings), tuple(facts))


def keys_are_off(account: AccountSeen) -> bool:
    """Tell whether the account has said that it takes no shared key."""
    return account.made_up is not None and account.made_up.code == KEYS_OFF


def is_refused(account: AccountSeen) -> bool:
    """Tell whether the account does not take its credential at all."""
    listing = account.listing
    if listing is None:
        return False
    if listing.failure == NO_TOKEN or listing.status == 401:
        return True
    return listing.status == 403 and not (account.uses_token and listing.code in _NO_ROLE)


def is_failing(account: AccountSeen) -> bool:
    """Tell whether the account answers, and with nothing but errors of its own."""
    return _said(account) >= 500 or _said(account) in (404, 429)


def _facts(account: AccountSeen) -> Iterator[Fact]:
    heard, kind = account.anonymous, kind_of(account)
    how = heard.tls or ("https" if account.is_https else "http, on this machine only")
    version = f" {azurite_version(account)}" if kind is Kind.AZURITE else ""
    yield Fact(f"[{account.section}]", f"{account.endpoint}: {kind}{version}, {how}")
    if heard.certificate_ends is not None:
        yield Fact(
            f"[{account.section}]", f"its certificate ends {format_ticks(heard.certificate_ends)[:10]}"
        )
    if keys_are_off(account):
        yield Fact(f"[{account.section}]", "shared keys are switched off")


def _reached(account: AccountSeen) -> Iterator[Finding]:
    heard, section = account.anonymous, f"[{account.section}]"
    if heard.failure == BAD_CERTIFICATE:
        yield Finding(
            Code.CERTIFICATE_REFUSED,
            Severity.ERROR,
            section,
            f"the certificate of {account.endpoint} is not trusted",
            "whoever answers cannot prove to be the service; nothing was sent to it",
            "check the host's name, this machine's clock and its certificate authorities; behind a proxy that"
            " opens TLS, its authority must be trusted here",
        )
    elif not heard.answered or (is_failing(account) and _said(account) != 404):
        yield Finding(
            Code.UNREACHABLE,
            Severity.ERROR,
            section,
            f"{account.endpoint} does not answer as it must ({heard.failure or _said(account)})",
            "nothing else can be checked of this account, and no command can work on it",
            "check the name, the network, HTTPS_PROXY and NO_PROXY, and the account's firewall; a local"
            " Azurite must be running",
        )
    elif account.listing is not None and account.listing.status == 404:
        yield Finding(
            Code.ACCOUNT_UNKNOWN,
            Severity.ERROR,
            section,
            f"{account.endpoint} answers, and knows no account {account.name} ({account.listing.code})",
            "no command can work on it",
            "check the account's name in the endpoint; an Azurite knows the accounts of AZURITE_ACCOUNTS",
        )
    if heard.accepted:
        yield Finding(
            Code.ANONYMOUS_ACCEPTED,
            Severity.ERROR,
            section,
            f"{account.endpoint} lists its tables for who has no credential",
            "everybody who reaches the endpoint may read",
            "find out who answers there: no table service does that; a proxy may add a credential of its own",
        )


def _said(account: AccountSeen) -> int:
    return 0 if account.listing is None else account.listing.status


def _connection(account: AccountSeen) -> Iterator[Finding]:
    heard, section = account.anonymous, f"[{account.section}]"
    if heard.tls in _OLD_TLS:
        yield Finding(
            Code.TLS_OLD,
            Severity.WARNING,
            section,
            f"the connection is {heard.tls}",
            "it can be broken into by whoever is on the way",
            "allow TLS 1.2 and newer only; a proxy on the way may be what is old",
            f"az storage account update --name {account.name} --min-tls-version TLS1_2",
        )
    ends = heard.certificate_ends
    if ends is not None and ends - heard.received_at < CERTIFICATE_DAYS * _DAY_TICKS:
        yield Finding(
            Code.CERTIFICATE_ENDS,
            Severity.WARNING,
            section,
            f"its certificate ends {format_ticks(ends)[:10]}",
            "from then on nothing connects, in the middle of a migration as well",
            "renew it if it is yours (a proxy's, an own domain's); Azure renews its own in time",
        )


def _credential(account: AccountSeen) -> Iterator[Finding]:
    listing = account.listing
    if listing is None or not is_refused(account):
        return
    said = listing.failure or f"{listing.status} {listing.code}".strip()
    if account.uses_token:
        cure = "run `az login`, or give the process a managed identity of the account's tenant"
    else:
        cure = "put the account's present key where `key_env` says; a renewed key ends the old one"
    if listing.code == "AuthorizationFailure" and account.is_https:
        cure += "; or let this machine through the account's firewall, which answers the same"
    if keys_are_off(account) or listing.code == KEYS_OFF:
        cure = "this account takes no shared keys: remove `key_env` and use a token"
    yield Finding(
        Code.CREDENTIAL_REFUSED,
        Severity.ERROR,
        f"[{account.section}]",
        f"the account refuses the configured credential ({said})",
        "no command can read or write it",
        cure,
    )


def _kind(account: AccountSeen) -> Iterator[Finding]:
    section = f"[{account.section}]"
    match kind_of(account):
        case Kind.AZURITE:
            yield Finding(
                Code.AZURITE,
                Severity.NOTE,
                section,
                f"this is Azurite: it says so itself ({account.anonymous.server})",
                "it has no roles and no throttling, does not check several limits, deletes tables at once,"
                " and when it is killed it loses what it was sent in the last seconds",
                "nothing, for a rehearsal; what it cannot show, the account in Azure will",
            )
        case Kind.COSMOS:
            yield Finding(
                Code.COSMOS,
                Severity.ERROR,
                section,
                "this is Cosmos DB for Table: its host says so",
                "it returns rows in no order, and rekey goes on behind the last key it read: rows could be"
                " passed over. It also takes RowKeys of 255 bytes at most, batches of 2 MB, tokens of another"
                " kind, and answers 429 instead of 503",
                "do not migrate it with this version; rekey is made for, and tested against, Table storage",
            )
        case Kind.UNKNOWN:
            yield Finding(
                Code.SERVICE_UNKNOWN,
                Severity.WARNING,
                section,
                f"what answers says neither Azure Table Storage nor Azurite ({_server(account.anonymous)})",
                "something between may change requests and answers, or it imitates the service: order of"
                " rows, ETags and conditions are then not known to be kept",
                "ask whoever runs what is in between; rehearse on it before a migration",
            )
        case Kind.STORAGE | Kind.SILENT:
            return


def _server(heard: Heard) -> str:
    return f"Server: {heard.server[:60]}" if heard.server else "no header `Server`"


def _shared_keys(account: AccountSeen) -> Iterator[Finding]:
    if kind_of(account) is not Kind.STORAGE or not account.is_https:
        return
    section, show = f"[{account.section}]", f"az storage account show --name {account.name}"
    if account.key_env is not None and account.listing is not None and account.listing.accepted:
        yield Finding(
            Code.SHARED_KEY_ACCEPTED,
            Severity.WARNING if account.section == "restricted" else Severity.NOTE,
            section,
            "the account takes shared keys: the configured one was accepted",
            "who has a key, or may list keys (Owner and Contributor may), reads everything",
            "use a token, then switch shared keys off; look first that nobody else needs them",
            f"az storage account update --name {account.name} --allow-shared-key-access false",
        )
    elif account.uses_token and not keys_are_off(account):
        yield Finding(
            Code.SHARED_KEY_UNKNOWN,
            Severity.NOTE,
            section,
            "whether shared keys are switched off cannot be seen from here",
            "a request with a key made up for it was refused for its signature, which says neither; who has a"
            " key reads everything, whatever roles say",
            "look with the command; anything but `false` means that keys are taken",
            f"{show} --query allowSharedKeyAccess",
        )


def _scope(account: AccountSeen) -> Iterator[Finding]:
    if kind_of(account) is not Kind.STORAGE or not account.uses_token:
        return
    section = f"[{account.section}]"
    if account.section == "tables" and account.listing is not None and account.listing.accepted:
        yield Finding(
            Code.ACCOUNT_WIDE,
            Severity.NOTE,
            section,
            "this identity may list all tables: its role is on the account or above, not on single tables",
            "whatever runs as it reads every table of the account; the runner makes tables and needs that, an"
            " application does not",
            "give the application an identity of its own, with roles on the tables it uses",
        )
    path = f"/storageAccounts/{account.name}"
    yield Finding(
        Code.ROLES_NOT_VISIBLE,
        Severity.NOTE,
        section,
        "who else has which role on this account cannot be seen from here",
        "tables answer for who asks; roles, firewall and the least TLS version are kept by the control plane",
        "look who is in the list; on the restricted account only the runner and the application's clients"
        " belong there",
        f"az role assignment list --all --query \"[?contains(scope, '{path}') ||"
        " !contains(scope, '/storageAccounts/')].[principalName, roleDefinitionName, scope]\" --output table",
    )
