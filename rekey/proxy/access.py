"""Who may do what: judges a request by the credential that it shows. Pure.

Rules kept here:

* A request is granted only by a credential that was verified: a signature with one of the configured keys. A
  bearer token, where the configuration takes them, is verified by the account, to which it is passed on.
* A request shows exactly one credential. None, two, or the same parameter twice: it is refused.
* Signatures are compared in constant time, as the text that was sent.
* What a signature with a key covers (verb, date, path, `comp`) is taken as it was sent, before anything is
  decoded; its date is at most 15 minutes from now.
* A key range is enforced or the request is refused: keys that are not known yet are not in it.
* A refusal has the service's status and code, and repeats nothing of the request (ADR 0040).
* Source: "Authorize with Shared Key" in the Azure documentation.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import StrEnum

from rekey.errors import RequestRejected
from rekey.model import EntityKey
from rekey.proxy import sas
from rekey.proxy.parse import OPERATIONS
from rekey.proxy.sas import NEVER, Within, refused, unauthenticated
from rekey.tables.base import rejected

# How far a request's date may be from now, as for the service.
WINDOW_S = 15 * 60.0


class CredentialKind(StrEnum):
    """What a request shows."""

    KEY = "key"
    ACCOUNT_SAS = "account SAS"
    TABLE_SAS = "table SAS"
    TOKEN = "token"  # noqa: S105 - the kind, not one


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for.

    Attributes:
        method, path: as sent.
        parameters: of the query, decoded, by their names as sent.
        headers: by their names in lower case.
        peer: the address that the connection is from.
        secure: whether it came over TLS.
        table: the table that it names; None where it names none.
        resource: the type of resource that it is about: service `s`, container `c` or object `o`.
        rights: what it needs on it, as an account SAS names rights; see `needs`.
        keys: of the rows that it writes, or of the one that it reads; None while they are not known.
        policies: the stored access policies of the table that its signature names: the terms of each, as
            parameters, by its id; None: they were not read.
        confines: whether its caller adds `Granted.within` to the query, see `sas.confined`.
    """

    method: str
    path: str = field(repr=False)
    parameters: Mapping[str, str] = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    peer: str
    secure: bool
    table: str | None
    resource: str
    rights: frozenset[str]
    keys: Sequence[EntityKey] | None = field(default=None, repr=False)
    confines: bool = False
    policies: Mapping[str, Mapping[str, str]] | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Whom requests are granted to.

    Attributes:
        account: the name that applications sign with: that of the account.
        keys: the keys of applications, by what the configuration calls them.
        tokens: whether bearer tokens are passed on.
    """

    account: str
    keys: Mapping[str, bytes] = field(repr=False)
    tokens: bool = False


@dataclass(frozen=True, slots=True)
class Granted:
    """A request that may be carried out.

    Attributes:
        name: what the configuration calls the key that it was signed with; "" for a token.
        kind: what it showed.
        within: the rows that a query must be confined to; None: all.
        token: the header that authorises it upstream. Nothing verified it: whatever is done for such a
            request is done with this token, and nothing with the proxy's own rights. "" for other kinds.
    """

    name: str
    kind: CredentialKind
    within: Within | None = None
    token: str = field(default="", repr=False)


class PolicyUnread(Exception):
    """A signature, verified with the key `name`, names a stored access policy of the table `table`, which was
    not read yet."""

    def __init__(self, name: str, table: str) -> None:
        super().__init__()
        self.name, self.table = name, table


def needs(kind: str, method: str, comp: str, *, conditional: bool) -> tuple[str, frozenset[str]]:
    """Return the type of resource and the rights on it that an operation needs.

    Args:
        kind: `service`, `tables`, `table`, `rows`, `row`, or `batch` while its operations are not known.
        method: of the operation, after `X-HTTP-Method`.
        comp: the part of the resource that is meant.
        conditional: whether it has an If-Match, without which an update inserts as well.

    The stored access policies of a table are out of reach of any signature.
    """
    found = OPERATIONS.get(kind, {}).get(method, "s" + NEVER)
    resource, rights = found[0], frozenset(found[1:])
    if rights == {"u"}:
        return resource, rights if conditional else rights | {"a"}
    return (resource, rights) if kind == "service" or not comp else ("c", frozenset(NEVER))


def judge(asked: Asked, access: Access, now: float) -> Granted:
    """Return to whom, and within what, a request is granted.

    A batch is judged twice: before it is read, with no rights (whose is it?), and with its operations' table,
    rights and keys. So is an insert where `within` is given.

    Args:
        asked: the request.
        access: whom requests are granted to.
        now: seconds since 1970.

    Raises:
        RequestRejected: it is refused; with the service's status and code.
        PolicyUnread: it is to be judged again, with policies.
    """
    said, shown = asked.parameters, asked.headers.get("authorization")
    if shown is not None and "sig" in said:
        raise _malformed()
    if shown is None and "sig" in said:
        return _by_sas(asked, access, now, sas.read(said))
    if shown is None:
        raise unauthenticated("It shows no credential.")
    scheme = shown.partition(" ")[0]
    if scheme == "Bearer":
        return _by_token(asked, access, shown)
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
    comp = f"?comp={asked.parameters['comp']}" if "comp" in asked.parameters else ""
    text = "\n".join([*signed, f"/{access.account}{asked.path}{comp}"])
    name = _signer(access, text, signature) if account == access.account else None
    if name is None:
        raise unauthenticated("The signature, or the account that it names, is not valid.")
    return Granted(name, CredentialKind.KEY)


def _by_sas(asked: Asked, access: Access, now: float, signed: sas.Signed) -> Granted:
    name = _signer(access, signed.text(access.account), signed.said["sig"])
    if name is None:
        raise unauthenticated("The signature is not valid.")
    if "si" in signed.said:
        if asked.policies is None:
            raise PolicyUnread(name, signed.said["tn"])
        signed = signed.under(asked.policies)
    if not signed.of_account and asked.table is None and asked.rights:
        raise refused()
    signed.check(now, asked.peer, asked.table, asked.resource, asked.rights, secure=asked.secure)
    within = signed.within
    if within is not None and asked.rights:
        is_query = asked.keys is None and asked.rights == {"r"} and asked.confines
        if not is_query and not (asked.keys and all(map(within.holds, asked.keys))):
            raise refused()
    kind = CredentialKind.ACCOUNT_SAS if signed.of_account else CredentialKind.TABLE_SAS
    return Granted(name, kind, within)


def _by_token(asked: Asked, access: Access, shown: str) -> Granted:
    if not access.tokens:
        raise unauthenticated("Bearer tokens are not taken here.")
    if not asked.secure:
        raise unauthenticated("Bearer tokens are taken over https only.")
    if len(shown.split()) != 2:
        raise _malformed()
    return Granted("", CredentialKind.TOKEN, token=shown)


def _signer(access: Access, text: str, signature: str) -> str | None:
    """Return the name of the key by which a text is signed; None: by none."""
    given, signed = signature.encode("utf-8", "surrogatepass"), text.encode("utf-8", "surrogatepass")
    for name, key in access.keys.items():
        if hmac.compare_digest(base64.b64encode(hmac.digest(key, signed, "sha256")), given):
            return name
    return None


def _malformed() -> RequestRejected:
    what = "The authentication information was not provided in the correct format"
    return rejected("InvalidAuthenticationInfo", what)
