"""Shared access signatures of an account and of a table: parsed, verified, and what they allow. Whatever is
not understood is refused. Pure.

Sources: "Create an account SAS", "Create a service SAS" in the Azure documentation, azure-data-tables
(Python, JavaScript), and recorded responses of the service for codes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeAlias
from urllib.parse import unquote
from xml.etree.ElementTree import fromstring

from rekey.errors import RequestRejected
from rekey.model import EntityKey
from rekey.tables.base import rejected
from rekey.tables.wire import escape, quoted

# A right that no signature grants, e.g. to read or change a table's stored access policies.
NEVER = "!"
_ACCOUNT, _TABLE = frozenset({"ss", "srt"}), frozenset({"tn", "spk", "srk", "epk", "erk", "si"})
_COMMON = frozenset({"sv", "sig", "sp", "st", "se", "sip", "spr", "ses"})
_DELEGATED = frozenset({"skoid", "sktid", "skt", "ske", "sks", "skv", "saoid", "suoid", "scid", "sduoid"})
# Parameters that are used here and not forwarded.
NAMES = _ACCOUNT | _TABLE | _COMMON | _DELEGATED
_LETTERS = {"ss": "bqtf", "srt": "sco", "account": "rwdxylacuptfi", "table": "raud"}
_VERSION = re.compile(r"20[0-9]{2}-[01][0-9]-[0-3][0-9]", re.ASCII)
# First versions that sign address and protocol, and an account's encryption scope.
_BOUND, _SCOPED = "2015-04-05", "2020-12-06"
_OLDEST = {"account": "2015-04-05", "table": "2012-02-12"}
_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d{1,7})?)?(?:Z|[+-]\d\d:\d\d)?)?", re.ASCII)
# Partition and row of either end of a key range.
_BOUNDS = (("spk", "srk"), ("epk", "erk"))
_PROTOCOLS = {"": (True, False), "https,http": (True, False), "https": (True,)}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# The service gives such a key to the identity that asks for it alone.
_DELEGATED_TEXT = (
    "A signature by a user delegation key cannot be verified here: only its owner gets that key."
    " Use a token, or a signature by a key of [proxy.access.keys]."
)
_TOKEN = re.compile(r"'(?:[^']++|'')*'|[()']")
Address: TypeAlias = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Within:
    """The rows that a table's signature is for, both ends included; None: unbounded."""

    # Partition and row; a row of None is any row of the partition.
    first: tuple[str, str | None] | None
    last: tuple[str, str | None] | None

    def holds(self, key: EntityKey) -> bool:
        """Tell whether a key is in the range, in the service's order."""
        if self.first is not None and key.order < EntityKey(self.first[0], self.first[1] or "").order:
            return False
        if self.last is None:
            return True
        partition, row = self.last
        return key.order <= EntityKey(partition, key.row if row is None else row).order

    def filter(self) -> str:
        bounds = ((self.first, "gt", "ge"), (self.last, "lt", "le"))
        return " and ".join(_beyond(*bound, *words) for bound, *words in bounds if bound is not None)


def _beyond(partition: str, row: str | None, beyond: str, upto: str) -> str:
    if row is None:
        return f"(PartitionKey {upto} {quoted(partition)})"
    within = f"(PartitionKey eq {quoted(partition)} and RowKey {upto} {quoted(row)})"
    return f"(PartitionKey {beyond} {quoted(partition)} or {within})"


@dataclass(frozen=True, slots=True)
class Signed:
    """A parsed shared access signature."""

    of_account: bool  # whether it is an account's; else a table's
    parameters: Mapping[str, str]

    def text(self, account: str) -> str:
        """Return the text that the account's key signs."""
        parameters, version = self.parameters, self.parameters["sv"]
        if self.of_account:
            names = ["sp", "ss", "srt", "st", "se", "sip", "spr", "sv"]
            names += ["ses"] if version >= _SCOPED else []
            return "\n".join([account, *(parameters.get(name, "") for name in names), ""])
        resource = f"/{account}/{parameters['tn'].lower()}"
        resource = f"/table{resource}" if version >= "2015-02-21" else resource
        bound = ["sip", "spr"] if version >= _BOUND else []
        names = ["sp", "st", "se", "resource", "si", *bound, "sv", "spk", "srk", "epk", "erk"]
        return "\n".join({**parameters, "resource": resource}.get(name, "") for name in names)

    def under(self, policies: Mapping[str, Mapping[str, str]]) -> Signed:
        """Return it with the terms of its stored access policy, by id in `policies`. Raises RequestRejected
        when there is no such policy, or when it repeats a term of the signature."""
        terms = policies.get(self.parameters["si"])
        if terms is None or terms.keys() & self.parameters.keys():
            raise unauthenticated("Its stored access policy is not there, or says what the signature says.")
        return _readable(Signed(self.of_account, {**self.parameters, **terms}))

    @property
    def within(self) -> Within | None:
        """The key range; None: all rows."""
        first, last = (
            (self.parameters[partition], self.parameters.get(row)) if partition in self.parameters else None
            for partition, row in _BOUNDS
        )
        return None if first is None and last is None else Within(first, last)

    def check(
        self, now: float, peer: str, table: str | None, resource: str, rights: frozenset[str], *, secure: bool
    ) -> None:
        """Raise RequestRejected for what a verified signature does not allow. Arguments as in `Asked`."""
        if not {"sp", "se"} <= self.parameters.keys():
            raise unauthenticated("The signature is not whole.")
        if now >= _seconds(self.parameters["se"]) or (
            "st" in self.parameters and now < _seconds(self.parameters["st"])
        ):
            raise unauthenticated("The signature is not valid at this time.")
        if secure not in _PROTOCOLS[self.parameters.get("spr", "")]:
            raise refused("AuthorizationProtocolMismatch", "using this protocol")
        if not _is_from(peer, self.parameters.get("sip", "")):
            raise refused("AuthorizationSourceIPMismatch", "using this source IP")
        if self.of_account and "t" not in self.parameters["ss"]:
            raise refused("AuthorizationServiceMismatch", "using this service")
        if resource not in (self.parameters["srt"] if self.of_account else "o"):
            raise refused("AuthorizationResourceTypeMismatch", "using this resource type")
        if not self.of_account and table is not None and table.lower() != self.parameters["tn"].lower():
            raise refused()
        allowed = set(self.parameters["sp"])
        if self.of_account and "w" in allowed:
            allowed.add("c")  # write includes create
        if not rights <= allowed:
            raise refused("AuthorizationPermissionMismatch", "using this permission")


def read(parameters: Mapping[str, str]) -> Signed:
    """Return the signature in the decoded parameters of a query. Raises RequestRejected."""
    # Empty parameters are signed like absent ones, so they must mean the same.
    terms = {name: value for name, value in parameters.items() if value and name in NAMES}
    of_account = bool(_ACCOUNT & terms.keys())
    form = "account" if of_account else "table"
    needed = {"sv", "sig", *(_ACCOUNT if of_account else {"tn"}), *(() if "si" in terms else ("sp", "se"))}
    version = terms.get("sv", "")
    unsigned = set() if of_account and version >= _SCOPED else {"ses"}
    unsigned |= {"sip", "spr"} if version < _BOUND else set()
    lone = any(row in terms and partition not in terms for partition, row in _BOUNDS)
    for is_wrong, why in (
        (_DELEGATED & terms.keys(), _DELEGATED_TEXT),
        (of_account and _TABLE & terms.keys(), "The signature is of an account and of a table at once."),
        (not needed <= terms.keys(), "The signature is not whole."),
        # Else one value could look like two fields of the signed text.
        (any(map(_CONTROL.search, terms.values())), "The signature is not whole."),
        (not _VERSION.fullmatch(version), "The signature is of an unknown version."),
        (version < _OLDEST[form], "The signature is of an unknown version."),
        (unsigned & terms.keys(), "The signature does not cover a parameter."),
        (terms.get("spr", "") not in _PROTOCOLS, "The signature names an unknown protocol."),
        (lone, "The signature bounds rows without their partition."),
    ):
        if is_wrong:
            raise unauthenticated(why)
    return _readable(Signed(of_account, terms))


def _readable(signed: Signed) -> Signed:
    """Return a signature if its times and rights are understood. Raises RequestRejected."""
    parameters = signed.parameters
    for name in {"st", "se"} & parameters.keys():
        try:
            _seconds(parameters[name])
        except ValueError:
            raise unauthenticated("A time of the signature is malformed.") from None
    form = "account" if signed.of_account else "table"
    letters = {"sp": _LETTERS[form], **{name: _LETTERS[name] for name in _ACCOUNT if signed.of_account}}
    if not all(set(parameters.get(name, "")) <= set(known) for name, known in letters.items()):
        raise unauthenticated("The signature names unknown rights.")
    return signed


_TERMS = {"st": "Start", "se": "Expiry", "sp": "Permission"}


def policies_in(acl: bytes) -> dict[str, dict[str, str]]:
    """Return the terms of each policy in a response to Get Table ACL, by its id. Raises ParseError."""
    return {
        identifier.findtext("Id", ""): {
            name: value
            for name, term in _TERMS.items()
            if (value := identifier.findtext(f"AccessPolicy/{term}"))
        }
        for identifier in fromstring(acl).iter("SignedIdentifier")  # noqa: S314 - from the account itself
    }


def confined(query: str, within: Within) -> str:
    """Return a query of rows, as sent, restricted to a range. Raises RequestRejected for an unbalanced
    filter, which could end the parentheses around it."""
    rest, condition = [], ""
    for part in query.split("&") if query else ():
        name, _, value = part.replace("+", " ").partition("=")
        if unquote(name) == "$filter":
            condition = unquote(value)
        else:
            rest.append(part)
    depth = 0
    for token in _TOKEN.findall(condition):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth < 0 or token == "'":  # noqa: S105 - a quotation mark
            break
    else:
        if depth == 0:
            both = f"({within.filter()}) and ({condition})" if condition.strip() else within.filter()
            return "&".join([*rest, f"$filter={escape(both)}"])
    raise rejected("InvalidInput", "the filter is not whole")


def unauthenticated(why: str) -> RequestRejected:
    """Return the error for a credential. `why`: a sentence without a value of the request."""
    return rejected("AuthenticationFailed", f"Server failed to authenticate the request. {why}", status=403)


def refused(code: str = "AuthorizationFailure", using: str = "") -> RequestRejected:
    """Return the error for what a credential does not allow, in the service's words."""
    what = "This request is not authorized to perform this operation"
    return rejected(code, f"{what} {using}.".replace(" .", "."), status=403)


def _seconds(text: str) -> float:
    """Return a time as seconds since 1970, in UTC without an offset. Raises ValueError."""
    if not _TIME.fullmatch(text):
        raise ValueError
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _is_from(peer: str, allowed: str) -> bool:
    """Tell whether an address is allowed; "" allows all."""
    if not allowed:
        return True
    try:
        first, _, last = allowed.partition("-")
        here, low, high = _address(peer), _address(first), _address(last or first)
    except ValueError:
        return False
    return here.version == low.version == high.version and int(low) <= int(here) <= int(high)


def _address(text: str) -> Address:
    address = ip_address(text.strip())
    return getattr(address, "ipv4_mapped", None) or address
