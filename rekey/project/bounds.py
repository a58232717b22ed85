"""Bounds of the work, as the sections [limits] and [gates] of rekey.toml give them.

Rules kept here:

* The service's targets (`rekey.core.limits`) count where nothing else is said and it is the service.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rekey.core.limits import ACCOUNT_TARGET, PARTITION_TARGET


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what runs at a time. Rates in entities a second, None for no limit."""

    concurrency: int = 32
    window_rows: int = 8192
    window_bytes: int = 16 * 1024**2
    entities_per_second: int | None = None
    scans: int = 8
    partition_entities_per_second: int | None = None

    def with_targets(self) -> Limits:
        """Return these limits with the service's documented targets where no rate is given."""
        return replace(
            self,
            entities_per_second=self.entities_per_second or ACCOUNT_TARGET,
            partition_entities_per_second=self.partition_entities_per_second or PARTITION_TARGET,
        )


@dataclass(frozen=True, slots=True)
class Gates:
    """What the gates ask for, in seconds."""

    verification_max_age_s: float = 24 * 3600
    retention_s: float = 30 * 86400
    margin_s: float = 60
    clients_timeout_s: float = 120
    freeze_timeout_s: float = 60
    mapping_retention_s: float = 400 * 86400
