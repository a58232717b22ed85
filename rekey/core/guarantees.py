"""What the services guarantee and refuse where they differ: Azure Table Storage, Cosmos DB for Table. Pure.

Rules kept here:

* Which service an account is, is decided once, by its endpoint (`guarantees_of`); everything else asks the
  value, never the endpoint and never the service's name.
* Of Cosmos DB only that is relied on which is recorded (tests/fixtures/service) or documented ("Frequently
  asked questions about Azure Cosmos DB for Table"): nothing here was tried on the service (docs/cosmos.md).
  What is not known is taken to be refused or not guaranteed.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from rekey.errors import RowRefused
from rekey.model import PARTITION_KEY, ROW_KEY, Row

_SECONDARY = "-secondary"
_COSMOS_HOSTS = (".table.cosmos.azure.com", ".table.cosmosdb.azure.com")
# Lower case. `Etag` is recorded to be lost without a word.
_RESERVED = frozenset({"id", "rid", "etag", "resourceid"})


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What a service guarantees and refuses.

    Attributes:
        service: its name.
        ordered: rows of a query come by key, a range of keys can be asked for, and the key of the last row
            of a page tells where the next begins. Otherwise a table is read from its beginning to its end.
        narrows: a query can ask for the rows written since a time, and for some properties of rows. (Cosmos
            DB answers a filter on Timestamp with no rows at all: azure-sdk-for-net #32468.)
        batch_bytes: most bytes of the operations of a transaction; 1 KiB less than the service takes, for
            the body around them.
        key_bytes: most bytes of a RowKey and of a PartitionKey, in UTF-8; no key may be empty. None: UTF-16
            units alone count (`rekey.core.limits`).
        merges_by_post: MERGE is sent as POST: PATCH is refused.
        signs_whole: requests are signed by Shared Key, as all SDKs do, not by Shared Key Lite.
        api_version: the version of the protocol that requests name.
    """

    service: str
    ordered: bool
    narrows: bool
    batch_bytes: int
    key_bytes: tuple[int, int] | None
    merges_by_post: bool
    signs_whole: bool
    api_version: str

    def check_row(self, row: Row, field: str) -> None:
        """Raise RowRefused for a row that this service refuses and Storage does not.

        Args:
            row: as it is to be written.
            field: where in the declaration, for the refusal.
        """
        if self.key_bytes is None:
            return
        for name, most in zip((ROW_KEY, PARTITION_KEY), self.key_bytes, strict=True):
            key = row[name]
            if not key:
                problem, cure = f"the {name} is empty", "put text before it, or fix the rows"
                raise self._refused("empty-key", field, problem, cure)
            if len(key) * 4 > most and len(key.encode("utf-8", "surrogatepass")) > most:
                cure = "shorten it, or use keys.hashed or keys.opaque"
                raise self._refused("key-too-long", field, f"the {name} is longer than {most} bytes", cure)
        for name in row:
            if name.lower() in _RESERVED:
                cure = f'rename or drop it: props.rename("{name}", …), props.drop("{name}")'
                raise self._refused("bad-property-name", field, f"a property is named {name}", cure)

    def _refused(self, code: str, field: str, problem: str, cure: str) -> RowRefused:
        return RowRefused(code, field, f"{problem}, which {self.service} refuses", cure=cure)


STORAGE = Guarantees(
    service="Azure Table Storage",
    ordered=True,
    narrows=True,
    batch_bytes=4 * 1024 * 1024 - 1024,
    key_bytes=None,
    merges_by_post=False,
    signs_whole=False,
    api_version="2020-12-06",  # the oldest that takes tokens; Azurite 3.35 knows it
)
COSMOS = Guarantees(
    service="Cosmos DB for Table",
    ordered=False,
    narrows=False,
    batch_bytes=2 * 1024 * 1024 - 1024,
    key_bytes=(255, 1024),
    merges_by_post=True,
    signs_whole=True,
    api_version="2019-02-02",  # that of the recordings
)


def guarantees_of(endpoint: str) -> Guarantees:
    """Return what the service of an account guarantees, by the account's endpoint."""
    return COSMOS if (urlsplit(endpoint).hostname or "").endswith(_COSMOS_HOSTS) else STORAGE


def account_in(table_url: str) -> str | None:
    """Return the account's endpoint when a URL is that of a table, as the portal shows it; None for
    the endpoint of an account.

    A table is a segment of the path below the account: below the host of a table service, or on an emulator
    below the account's name.
    """
    parts = urlsplit(table_url)
    _, _, domain = (parts.hostname or "").partition(".")
    segments = [one for one in parts.path.split("/") if one]
    own = 0 if ".table." in f".{domain}" else 1
    if len(segments) <= own or (own and parts.scheme != "http"):
        return None  # an https address of a gateway may have any path
    return "/".join([f"{parts.scheme}://{parts.netloc}", *segments[:own]])


def is_secondary(endpoint: str) -> bool:
    """Tell whether an endpoint is the read-only one of an account's secondary region.

    It has `ACCOUNT-secondary` in place of the account's name: in the host or, on an emulator, in the path. No
    account of Azure Storage has a hyphen in its name ("Storage account overview", Azure documentation);
    accounts of Cosmos DB may.
    """
    parts = urlsplit(endpoint.lower())
    name, _, domain = (parts.hostname or "").partition(".")
    in_path = parts.path.strip("/").partition("/")[0].endswith(_SECONDARY)
    in_host = name.endswith(_SECONDARY) and "table." in domain
    return in_path or (in_host and guarantees_of(endpoint) is STORAGE)
