"""What a dual-write client has done since it started, as plain numbers that rise."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """Counts of one client; changed by its own tasks only.

    Attributes:
        writes: write operations that were acknowledged to the caller; a transaction counts each of its own.
        fast: keys whose replicas were current by conditional writes alone, without propagate.
        propagated: keys that propagate made current.
        replica_failures: attempts to make replicas current that failed.
        left: keys whose replicas were not current when the caller had its answer or its error, with an
            intent left in the journal.
        matched, mismatched, ignored: shadow reads that agreed, disagreed, or could not be judged.
    """

    writes: int = 0
    fast: int = 0
    propagated: int = 0
    replica_failures: int = 0
    left: int = 0
    matched: int = 0
    mismatched: int = 0
    ignored: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)
