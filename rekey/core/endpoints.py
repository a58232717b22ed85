"""Recognizes endpoints that cannot be an account's: Cosmos DB, a table, a secondary region. Pure."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

_SECONDARY = "-secondary"
# The Table API (`ACCOUNT.table.cosmos.azure.com`, also .cn and .us), an account's own endpoint
# (`ACCOUNT.documents.azure.com`), the Table endpoint of its emulator (Azurite's has an account's name as the
# path), and the key that only connection strings of Cosmos DB have.
_COSMOS = re.compile(
    r"(?:^|//|@)[^/;@?#\s]+\.(?:cosmos|cosmosdb|documents)\.azure\.[a-z]+(?=[:/;?#\s]|$)"
    r"|//(?:localhost|127\.0\.0\.1|\[::1\]):8902/?(?=[;?#\s]|$)"
    r"|(?:^|;)\s*accountendpoint\s*=",
    re.ASCII | re.IGNORECASE,
)
# Hosts whose first label is an account's name: of each cloud, of DNS zones, of private links, and Azurite's.
_OF_THE_SERVICE = re.compile(
    r"(?P<name>[a-z0-9]{3,24})(?:\.privatelink)?(?:\.z[0-9]+)?\.table\."
    r"(?P<cloud>core\.windows\.net|storage\.azure\.net|core\.chinacloudapi\.cn|core\.usgovcloudapi\.net"
    r"|core\.cloudapi\.de|localhost)",
    re.ASCII,
)
_EMULATED = "localhost"
# Names of accounts are unique in a cloud, with and without a DNS zone.
_CLOUDS = {"storage.azure.net": "core.windows.net"}
# The published account of Azurite, which no account in a cloud has.
_EMULATOR_ACCOUNT = "devstoreaccount1"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
# Why an account of Cosmos DB is refused, and the cure.
COSMOS_REFUSED = (
    "is of Azure Cosmos DB, which rekey does not support",
    "name an account of Azure Table Storage; Microsoft's data migration tool copies tables to Cosmos DB",
)


def is_cosmos(text: str) -> bool:
    """Tell whether an endpoint or a connection string is of Cosmos DB, in any cloud or on its emulator."""
    return _COSMOS.search(text) is not None


def endpoint_problem(endpoint: str) -> tuple[str, str] | None:
    """Return why an endpoint cannot be an account's, and the cure; None when it can."""
    if is_cosmos(endpoint):
        # First, because the advice for the other mistakes would lead back to Cosmos DB.
        return COSMOS_REFUSED
    if (account := account_in(endpoint)) is not None:
        return "is the URL of a table", f"name the endpoint of its account: {account}"
    if is_secondary(endpoint):
        # It is read-only and may lag by minutes: a copy of it would miss the latest writes.
        return (
            "is the read-only endpoint of the account's secondary region, which lags behind the account",
            f"leave out `{_SECONDARY}`: name the account's primary endpoint",
        )
    return None


def account_in(table_url: str) -> str | None:
    """Return the account's endpoint in a table's URL, as the portal shows it; None without a table.

    A table is a path segment below the host or, on an emulator, below the account's name.
    """
    parts = urlsplit(table_url)
    _, _, domain = (parts.hostname or "").partition(".")
    segments = [segment for segment in parts.path.split("/") if segment]
    own = 0 if ".table." in f".{domain}" else 1
    if len(segments) <= own or (own and (parts.scheme != "http" or len(segments) > 2)):
        return None  # the address of a gateway may have any path
    return "/".join([f"{parts.scheme}://{parts.netloc}", *segments[:own]])


def are_other_accounts(endpoint: str, other: str) -> bool:
    """Tell whether two endpoints are certainly of different accounts. False also where that cannot be told:
    nobody knows what is behind a gateway, a custom domain or a forwarded port."""
    accounts = _account(endpoint), _account(other)
    if None not in accounts:
        return accounts[0] != accounts[1]
    first, second = urlsplit(endpoint.lower()), urlsplit(other.lower())
    names = [parts.path.strip("/").partition("/")[0] for parts in (first, second)]
    return _place(first) == _place(second) and all(names) and names[0] != names[1]


def _account(endpoint: str) -> tuple[str, str] | None:
    """Return an account's name, and the cloud or emulator that it is in; None where an endpoint does not
    say."""
    parts = urlsplit(endpoint.lower())
    if (match := _OF_THE_SERVICE.fullmatch(parts.hostname or "")) is not None:
        return match["name"], _CLOUDS.get(match["cloud"], match["cloud"])
    name = parts.path.strip("/").partition("/")[0]
    return (name, _EMULATED) if name == _EMULATOR_ACCOUNT else None


def _place(parts: SplitResult) -> tuple[str, int]:
    host = parts.hostname or ""
    port = parts.port or {"https": 443}.get(parts.scheme, 80)
    return ("localhost" if host in _LOOPBACK else host), port


def is_secondary(endpoint: str) -> bool:
    """Tell whether an endpoint is the read-only one of an account's secondary region.

    It has `ACCOUNT-secondary` in place of the account's name, in the host or, on an emulator, in the path. No
    storage account has a hyphen in its name ("Storage account overview", Azure documentation).
    """
    parts = urlsplit(endpoint.lower())
    name, _, domain = (parts.hostname or "").partition(".")
    in_path = parts.path.strip("/").partition("/")[0].endswith(_SECONDARY)
    return in_path or (name.endswith(_SECONDARY) and "table." in domain)
