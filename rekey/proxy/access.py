"""Decides what a request may do, by its credential (ADR 0040). Source: "Authorize with Shared Key" in the
Azure documentation. Pure."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import StrEnum

from rekey.errors import RequestRejected
from rekey.model import EntityKey
from rekey.project.entra import Entra, Rights, View
from rekey.proxy import sas
from rekey.proxy.parse import OPERATIONS
from rekey.proxy.sas import NEVER, Within, refused, unauthenticated
from rekey.proxy.tokens import CHALLENGED, Principal
from rekey.tables.base import rejected

# Seconds that a request's date may be from now, as for the service.
WINDOW_S = 15 * 60.0
# What a principal may do, in the letters of an account SAS, as with the roles Storage Table Data Reader and
# Storage Table Data Contributor. Neither reaches the service's properties.
RIGHTS = {Rights.READ: frozenset("rl"), Rights.WRITE: frozenset("rlaudc")}


class CredentialKind(StrEnum):
    """The type of a request's credential."""

    KEY = "key"
    ACCOUNT_SAS = "account SAS"
    TABLE_SAS = "table SAS"
    # A token that the account judges.
    TOKEN = "token"  # noqa: S105 - the kind, not one
    # A token that was verified here.
    PRINCIPAL = "principal"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for."""

    # As sent.
    method: str
    path: str = field(repr=False)
    # Of the query, decoded, by their names as sent.
    parameters: Mapping[str, str] = field(repr=False)
    # By their names in lower case.
    headers: Mapping[str, str] = field(repr=False)
    # The client's address.
    peer: str
    # Whether it came over TLS.
    secure: bool
    # The table that it names, or None.
    table: str | None
    # The type of resource: service `s`, container `c` or object `o`.
    resource: str
    # What it needs on it, in the letters of an account SAS; see `needs`.
    rights: frozenset[str]
    # Of the rows that it writes, or of the one that it reads; None while unknown.
    keys: Sequence[EntityKey] | None = field(default=None, repr=False)
    # Whether its caller adds `Granted.within` to the query, see `sas.confined`.
    confines: bool = False
    # The stored access policies of the table that its signature names: the terms of each, as parameters, by
    # its id; None: not read yet.
    policies: Mapping[str, Mapping[str, str]] | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Whose requests are granted."""

    # The name that applications sign with: that of the account.
    account: str
    # The keys of applications, by their names in the configuration.
    keys: Mapping[str, bytes] = field(repr=False)
    # Whether bearer tokens are forwarded.
    tokens: bool = False
    # Whose tokens are verified here; None: nobody's.
    entra: Entra | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """A request that may be carried out."""

    # The name of the key that it was signed with, or that of the principal's entry; "" for a token.
    name: str
    kind: CredentialKind
    # The rows that a query must be confined to; None: all.
    within: Within | None = None
    # The header that authorizes it upstream. It is unverified: whatever is done for such a request is done
    # with this token, and nothing with the proxy's own rights. "" for other credentials.
    token: str = field(default="", repr=False)
    # The tables of a migration that it may use.
    view: View = View.BOTH


class TokenUnverified(Exception):
    """The request shows a token that must be verified first."""

    def __init__(self, token: str) -> None:
        super().__init__()  # its text would be shown
        self.token = token


class PolicyUnread(Exception):
    """A verified signature by the key `name` needs the stored access policies of `table`."""

    def __init__(self, name: str, table: str) -> None:
        super().__init__()
        self.name, self.table = name, table


def needs(kind: str, method: str, comp: str, *, conditional: bool) -> tuple[str, frozenset[str]]:
    """Return the type of resource and the rights on it that an operation needs. No signature reaches a
    table's stored access policies.

    Args:
        kind: of resource; of a `batch` while its operations are unknown.
        method: of the operation, after `X-HTTP-Method`.
        comp: the addressed part of the resource.
        conditional: whether it has an If-Match, without which an update also inserts.
    """
    operation = OPERATIONS.get(kind, {}).get(method, "s" + NEVER)
    resource, rights = operation[0], frozenset(operation[1:])
    if rights == {"u"}:
        return resource, rights if conditional else rights | {"a"}
    return (resource, rights) if kind == "service" or not comp else ("c", frozenset(NEVER))


def judge(asked: Asked, access: Access, now: float, principal: Principal | None = None) -> Granted:
    """Return whose request it is and what it is confined to, at `now` (seconds since 1970). A batch is judged
    before it is read, without rights, and again with its operations' table, rights and keys. So is an insert
    when `within` is set. `principal`: whose token it shows, once that is verified.

    Raises:
        RequestRejected: it is refused, with the service's status and code, repeating nothing of the request.
        PolicyUnread: it must be judged again, with policies.
        TokenUnverified: it must be judged again, with the principal.
    """
    query, shown = asked.parameters, asked.headers.get("authorization")
    # Exactly one credential, so that two readers cannot disagree on whose request it is.
    if shown is not None and "sig" in query:
        raise _malformed()
    if shown is None and "sig" in query:
        return _by_sas(asked, access, now, sas.read(query))
    if shown is None:
        raise _without_credential(asked, access)
    scheme = shown.partition(" ")[0]
    if scheme == "Bearer":
        return _by_token(asked, access, shown, principal)
    if scheme not in ("SharedKey", "SharedKeyLite"):
        raise _malformed()
    return _by_key(asked, access, now, shown)


def _by_key(asked: Asked, access: Access, now: float, shown: str) -> Granted:
    headers, (scheme, _, value) = asked.headers, shown.partition(" ")
    account, _, signature = value.partition(":")
    date = headers.get("x-ms-date") or headers.get("date", "")
    try:
        moment = parsedate_to_datetime(date).timestamp() if date.endswith("GMT") else None
    except (ValueError, TypeError, OverflowError):
        moment = None
    if moment is None or abs(moment - now) > WINDOW_S:
        raise unauthenticated("The date of the request is missing, or too far from now.")
    signed = [date]
    if scheme == "SharedKey":
        signed = [asked.method, headers.get("content-md5", ""), headers.get("content-type", ""), date]
    # Signed as sent, before anything is decoded.
    comp = f"?comp={asked.parameters['comp']}" if "comp" in asked.parameters else ""
    text = "\n".join([*signed, f"/{access.account}{asked.path}{comp}"])
    name = _signer(access, text, signature) if account == access.account else None
    if name is None:
        raise unauthenticated("The signature, or the account that it names, is not valid.")
    return Granted(name, CredentialKind.KEY)


def _by_sas(asked: Asked, access: Access, now: float, signed: sas.Signed) -> Granted:
    name = _signer(access, signed.text(access.account), signed.parameters["sig"])
    if name is None:
        raise unauthenticated("The signature is not valid.")
    if "si" in signed.parameters:
        if asked.policies is None:
            raise PolicyUnread(name, signed.parameters["tn"])
        signed = signed.under(asked.policies)
    if not signed.of_account and asked.table is None and asked.rights:
        raise refused()
    signed.check(now, asked.peer, asked.table, asked.resource, asked.rights, secure=asked.secure)
    within = signed.within
    if within is not None and asked.rights:
        is_query = asked.keys is None and asked.rights == {"r"} and asked.confines
        # Keys that are not known yet are not in the range.
        if not is_query and not (asked.keys and all(map(within.holds, asked.keys))):
            raise refused()
    kind = CredentialKind.ACCOUNT_SAS if signed.of_account else CredentialKind.TABLE_SAS
    return Granted(name, kind, within)


def _by_token(asked: Asked, access: Access, shown: str, principal: Principal | None) -> Granted:
    if not access.tokens and access.entra is None:
        raise unauthenticated("Bearer tokens are not taken here.")
    if not asked.secure:
        raise unauthenticated("Bearer tokens are taken over https only.")
    if len(shown.split()) != 2:
        raise _malformed()
    if access.entra is None:
        return Granted("", CredentialKind.TOKEN, token=shown)
    if principal is None:
        raise TokenUnverified(shown.split()[1])
    return _by_principal(asked, principal, access.entra)


def _by_principal(asked: Asked, principal: Principal, entra: Entra) -> Granted:
    entry = next((entry for entry in entra.allow if principal.is_named_by(entry)), None)
    is_of_service = asked.resource not in ("c", "o")
    if entry is None or (asked.rights and is_of_service) or not asked.rights <= RIGHTS[entry.rights]:
        raise refused("AuthorizationPermissionMismatch", "using this permission")
    return Granted(entry.name, CredentialKind.PRINCIPAL, view=entry.view)


def _without_credential(asked: Asked, access: Access) -> RequestRejected:
    if access.entra is None or not asked.secure:
        return unauthenticated("It shows no credential.")
    # Some SDKs send a first request without a token, to be told the tenant.
    return rejected("NoAuthenticationInformation", CHALLENGED, status=401)


def _signer(access: Access, text: str, signature: str) -> str | None:
    """Return the name of the key that signed a text, or None."""
    presented, signed = signature.encode("utf-8", "surrogatepass"), text.encode("utf-8", "surrogatepass")
    for name, key in access.keys.items():
        # In constant time.
        if hmac.compare_digest(base64.b64encode(hmac.digest(key, signed, "sha256")), presented):
            return name
    return None


def _malformed() -> RequestRejected:
    what = "The authentication information was not provided in the correct format"
    return rejected("InvalidAuthenticationInfo", what)
