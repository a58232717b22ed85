"""Prices, as the section [prices] of rekey.toml gives them, and what requests and bytes cost by them. Pure.

Rules kept here:

* No price is built in: they differ by region, redundancy and contract, and change. The Azure pricing page
  "Azure Table Storage pricing" and the operator's bill have them. A price that is missing is named.
* Requests are priced for 10,000, storage for a GB and month. A GB is 2^30 bytes and a month 30 days.
* Whether a batch is billed as one transaction or as one for each operation in it is not settled everywhere:
  the cost is given both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from rekey.tables.sent import OPERATIONS, Kind

REQUESTS = 10_000
GB = 1 << 30
DAYS_OF_A_MONTH = 30.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in one currency; None where none was given.

    Attributes:
        currency: how amounts are labelled.
        scan: of 10,000 pages of queries.
        read: of 10,000 rows read by both keys.
        write: of 10,000 rows written; also of batches, and of tables made and listed.
        delete: of 10,000 deletes.
        storage: of a GB and month.
    """

    currency: str | None = None
    scan: float | None = None
    read: float | None = None
    write: float | None = None
    delete: float | None = None
    storage: float | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the keys of `[prices]` that are not set."""
        return tuple(one.name for one in fields(self) if getattr(self, one.name) is None)

    def requests(self, counts: Mapping[str, int], *, batch_each: bool) -> float | None:
        """Return what requests cost, None when a price is missing.

        Args:
            counts: by kind, as `rekey.tables.sent` counts them.
            batch_each: a batch costs as much as its operations would one by one; else as much as one write.
        """
        if self.missing:
            return None
        batches = counts.get(OPERATIONS, 0) if batch_each else counts.get(Kind.BATCH, 0)
        writes = counts.get(Kind.WRITE, 0) + counts.get(Kind.TABLE, 0) + batches
        total = (
            (self.scan or 0.0) * counts.get(Kind.SCAN, 0)
            + (self.read or 0.0) * counts.get(Kind.READ, 0)
            + (self.write or 0.0) * writes
            + (self.delete or 0.0) * counts.get(Kind.DELETE, 0)
        )
        return total / REQUESTS

    def stored(self, size: int, days: float = DAYS_OF_A_MONTH) -> float | None:
        """Return what storing `size` bytes for some days costs, None without a price."""
        return None if self.storage is None else self.storage * size / GB * days / DAYS_OF_A_MONTH


def amount_text(amount: float, currency: str) -> str:
    """Return an amount for people, never rounded to nothing: `12.40 USD`, `0.0031 USD`, `< 0.0001 USD`."""
    if 0 < amount < 0.0001:
        return f"< 0.0001 {currency}"
    return f"{amount:,.2f} {currency}" if amount >= 1 or not amount else f"{amount:.4f} {currency}"
