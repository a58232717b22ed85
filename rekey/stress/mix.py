"""The mix of operations that a stress test sends: inserts, or what the file of `--mix FILE` declares. Pure.

Rules kept here:

* A mistake in the file is an error that names line, section, key and cure, as in `rekey.toml`: nothing is
  written before the file is right, and a misspelled key never means its default.
* Shares in the file are weights: they need not add up to 100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from rekey.core.plain import UNTOLD
from rekey.project.sections import Section

ROW_BYTES = 1024
"""The service's targets are stated for rows of this size."""


class OperationKind(StrEnum):
    """The kinds of operations that a mix consists of."""

    POINT_READ = "point_read"
    RANGE_QUERY = "range_query"
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    BATCH = "batch"

    @property
    def label(self) -> str:
        """Return its name for people."""
        return self.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Mix:
    """Operations that a stress test sends.

    Attributes:
        shares: share of each kind in all operations; they add up to 1, and none is 0.
        top: rows that a range query asks for (`$top`).
        batch_rows: rows that an entity group transaction inserts.
        rows: rows that the test table is loaded with before anything is measured.
        partitions: partitions of the test table, with equally many rows; None: a table or a script has them.
        row_bytes: size of a row as the service stores it.
        processes: processes that generate the load.
        by_row: rates count rows, as the service's targets do; else operations.
    """

    shares: Mapping[OperationKind, float]
    top: int = 50
    batch_rows: int = 20
    rows: int = 20_000
    partitions: int | None = None
    row_bytes: int = ROW_BYTES
    processes: int = 1
    by_row: bool = field(default=False, metadata=UNTOLD)

    def entities_of(self, kind: OperationKind) -> int:
        """Return how many entities an operation reads or writes; a range query: at most."""
        return {OperationKind.RANGE_QUERY: self.top, OperationKind.BATCH: self.batch_rows}.get(kind, 1)

    def entities(self, rates: Mapping[OperationKind, float]) -> float:
        """Return the entities that so many operations of each kind read or write, at most."""
        return sum(rate * self.entities_of(kind) for kind, rate in rates.items())

    @property
    def operations(self) -> Mapping[OperationKind, float]:
        """Return the operations of each kind in a rate of 1."""
        rows = self.entities(self.shares) if self.by_row else 1.0
        return {kind: share / rows for kind, share in self.shares.items()}


def inserts(batch_rows: int) -> Mix:
    """Return the mix that only inserts new rows, so many in a request."""
    kind = OperationKind.INSERT if batch_rows == 1 else OperationKind.BATCH
    return Mix({kind: 1.0}, batch_rows=batch_rows, rows=0, by_row=True)


class _Setting(NamedTuple):
    """A key of the file: where it is, how it is read, and between which bounds."""

    section: str
    key: str
    default: int
    least: int
    most: int
    read: Callable[[Section, str], int] = Section.count


_SETTINGS = {
    "top": _Setting("range_query", "top", 50, 1, 1_000),
    "batch_rows": _Setting("batch", "rows", 20, 1, 100),
    "rows": _Setting("rows", "count", 20_000, 1, 1_000_000),
    "partitions": _Setting("rows", "partitions", 1, 1, 1_000_000),
    # The rest of a row is one text: it has 64 KiB at most.
    "row_bytes": _Setting("rows", "size", ROW_BYTES, 128, 60 * 1024, Section.size),
    "processes": _Setting("load", "processes", 1, 1, 64),
}


def read_mix(document: Section, *, spread_given: bool) -> Mix:
    """Check a file and return its mix.

    Args:
        document: the file, parsed.
        spread_given: TABLE or a script has the distribution of rows over partitions.

    Raises:
        ConfigurationError: an unknown or missing key, a value of the wrong type or out of range.
    """
    document.allow("mix", *dict.fromkeys(one.section for one in _SETTINGS.values()))
    mix = document.section("mix")
    if not mix.content:
        document.fail("mix", "is missing", "add a section [mix] with shares, for example point_read = 60")
    mix.allow(*OperationKind)
    weights = {kind: mix.amount(kind) for kind in OperationKind if kind in mix.content}
    if not (total := sum(weights.values())):
        mix.fail("", "has no share above 0", "write for example point_read = 60")
    found: dict[str, int] = {}
    for name, (where, key, default, least, most, read) in _SETTINGS.items():
        section = document.section(where)
        section.allow(*(one.key for one in _SETTINGS.values() if one.section == where))
        found[name] = value = read(section, key) if key in section.content else default
        most = found["rows"] if name == "partitions" else most
        if not least <= value <= most:
            unit = " bytes" if key == "size" else ""
            section.fail(key, f"is not between {least:,} and {most:,}{unit}", "write an amount in that range")
    rows = document.section("rows")
    if spread_given == ("partitions" in rows.content):
        rows.fail(
            "partitions",
            *(
                ("TABLE or --design has the distribution of rows", "remove it, or give --mix alone")
                if spread_given
                else ("is missing", "write for example partitions = 20 in [rows]; or give TABLE or --design")
            ),
        )
    shares = {kind: weight / total for kind, weight in weights.items() if weight}
    return Mix(shares, **found | ({"partitions": None} if spread_given else {}))  # type: ignore[arg-type]
