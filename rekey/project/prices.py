"""The prices in `[prices]`, and what requests and bytes cost by them. Pure. No price is built in: they differ
by region, redundancy and contract ("Azure Table Storage pricing")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from rekey.tables.sent import OPERATIONS, RequestKind

REQUESTS = 10_000
GB = 1 << 30
DAYS_OF_A_MONTH = 30.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in one currency; None if not given."""

    # Label of amounts.
    currency: str | None = None
    # Per 10,000 pages of queries.
    scan: float | None = None
    # Per 10,000 point reads.
    read: float | None = None
    # Per 10,000 rows written; also batches, and tables created and listed.
    write: float | None = None
    # Per 10,000 deletes.
    delete: float | None = None
    # Per GB (2^30 bytes) and month (30 days).
    storage: float | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """The keys of `[prices]` that are not set."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is None)

    def requests(self, counts: Mapping[str, int], *, batch_each: bool) -> float | None:
        """Return what requests cost, None when a price is missing.

        Args:
            counts: by kind, as `rekey.tables.sent` counts them.
            batch_each: whether a batch is billed as its operations one by one or as one write; this is not
                settled everywhere, so callers show both.
        """
        if self.missing:
            return None
        batches = counts.get(OPERATIONS, 0) if batch_each else counts.get(RequestKind.BATCH, 0)
        writes = counts.get(RequestKind.WRITE, 0) + counts.get(RequestKind.TABLE, 0) + batches
        total = (
            (self.scan or 0.0) * counts.get(RequestKind.SCAN, 0)
            + (self.read or 0.0) * counts.get(RequestKind.READ, 0)
            + (self.write or 0.0) * writes
            + (self.delete or 0.0) * counts.get(RequestKind.DELETE, 0)
        )
        return total / REQUESTS

    def stored(self, size: int, days: float = DAYS_OF_A_MONTH) -> float | None:
        """Return what storing `size` bytes for some days costs, None without a price."""
        return None if self.storage is None else self.storage * size / GB * days / DAYS_OF_A_MONTH


def amount_text(amount: float, currency: str) -> str:
    """Return an amount for people, never rounded to zero: `12.40 USD`, `0.0031 USD`, `< 0.0001 USD`."""
    if 0 < amount < 0.0001:
        return f"< 0.0001 {currency}"
    return f"{amount:,.2f} {currency}" if amount >= 1 or not amount else f"{amount:.4f} {currency}"
