"""The mix of operations that a stress test sends: inserts, or the contents of `--mix FILE`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rekey.core.plain import exclude
from rekey.project.sections import Section


class OperationKind(StrEnum):
    """The kinds of operations in a mix."""

    POINT_READ = "point_read"
    RANGE_QUERY = "range_query"
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    BATCH = "batch"

    @property
    def label(self) -> str:
        return self.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Mix:
    """The operations of a stress test."""

    # Share of each kind in all operations; they add up to 1, and none is 0.
    shares: Mapping[OperationKind, float]
    # Rows that a range query asks for (`$top`).
    top: int = 50
    # Rows that an entity group transaction inserts.
    batch_rows: int = 20
    # Rows loaded into the test table before anything is measured.
    rows: int = 20_000
    # Partitions of the test table, with equally many rows; None: those of a table or a script.
    partitions: int | None = None
    # Processes that generate the load.
    processes: int = 1
    # Rates count rows, like the service's targets; else operations.
    by_row: bool = field(default=False, metadata=exclude)

    def entities_of(self, kind: OperationKind) -> int:
        """Return how many entities an operation reads or writes; a range query: at most."""
        return {OperationKind.RANGE_QUERY: self.top, OperationKind.BATCH: self.batch_rows}.get(kind, 1)

    def entities(self, rates: Mapping[OperationKind, float]) -> float:
        """Return the entities per second that operations at these rates read or write, at most."""
        return sum(rate * self.entities_of(kind) for kind, rate in rates.items())

    @property
    def operations(self) -> Mapping[OperationKind, float]:
        """The operations of each kind in a rate of 1."""
        rows = self.entities(self.shares) if self.by_row else 1.0
        return {kind: share / rows for kind, share in self.shares.items()}


def inserts(batch_rows: int) -> Mix:
    """Return the mix that only inserts new rows, `batch_rows` in each request."""
    kind = OperationKind.INSERT if batch_rows == 1 else OperationKind.BATCH
    return Mix({kind: 1.0}, batch_rows=batch_rows, rows=0, by_row=True)


# Section, key, default and maximum of the other fields of `Mix`.
_SETTINGS = {
    "top": ("range_query", "top", 50, 1_000),
    "batch_rows": ("batch", "rows", 20, 100),
    "rows": ("rows", "count", 20_000, 1_000_000),
    "partitions": ("rows", "partitions", 1, 1_000_000),
    "processes": ("load", "processes", 1, 64),
}


def read_mix(document: Section, *, spread_given: bool) -> Mix:
    """Check a file and return its mix. Shares are weights that need not add up to 100. `spread_given`: TABLE
    or a script has the distribution of rows over partitions.

    Raises:
        ConfigurationError: an unknown or missing key, a value of the wrong type or out of range.
    """
    document.allow("mix", *dict.fromkeys(where for where, *_ in _SETTINGS.values()))
    mix = document.section("mix")
    if not mix.content:
        document.fail("mix", "is missing", "add a section [mix] with shares, for example point_read = 60")
    mix.allow(*OperationKind)
    weights = {kind: mix.amount(kind) for kind in OperationKind if kind in mix.content}
    if not (total := sum(weights.values())):
        mix.fail("", "has no share above 0", "write for example point_read = 60")
    settings: dict[str, Any] = {}
    for name, (where, key, default, most) in _SETTINGS.items():
        section = document.section(where)
        section.allow(*(known for table, known, *_ in _SETTINGS.values() if table == where))
        settings[name] = section.count(key) if key in section.content else default
        most = settings["rows"] if name == "partitions" else most
        if settings[name] > most:
            section.fail(key, f"is more than {most:,}", "write a smaller number")
    rows = document.section("rows")
    if spread_given:
        settings["partitions"] = None
        if "partitions" in rows.content:
            rows.fail("partitions", "TABLE or --design has them", "remove it, or give --mix alone")
    elif "partitions" not in rows.content:
        rows.fail("partitions", "is missing", "write for example partitions = 20; or give TABLE or --design")
    return Mix({kind: weight / total for kind, weight in weights.items() if weight}, **settings)
