"""An application's mix of operations, as `--mix FILE` says it. Pure.

Rules kept here:

* A mistake is an error that names line, section, key and cure, as in `rekey.toml`: nothing is written before
  the file is right, and a typing error never means "default".
* Shares are weights: they need not add up to 100.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from rekey.project.sections import Bytes, Section

_MOST_TOP, _MOST_BATCH = 1000, 100
_MOST_PROCESSES = 64
_MOST_ROWS = 1_000_000
_LEAST_BYTES, _MOST_BYTES = 128, 60 * 1024
"""The rows' filling is one text: it may have 64 KiB at most."""


class OperationKind(StrEnum):
    """The kinds of operations that a mix consists of."""

    POINT_READ = "point_read"
    RANGE_QUERY = "range_query"
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class _Shares:
    """[mix]: a weight for each kind."""

    point_read: float | None = None
    range_query: float | None = None
    insert: float | None = None
    update: float | None = None
    delete: float | None = None
    batch: float | None = None


@dataclass(frozen=True, slots=True)
class _RangeQuery:
    top: int = 50


@dataclass(frozen=True, slots=True)
class _Batch:
    rows: int = 20


@dataclass(frozen=True, slots=True)
class _Rows:
    count: int = 20_000
    partitions: int | None = None
    size: Bytes = 1024


@dataclass(frozen=True, slots=True)
class _Load:
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Mix:
    """What an application does with its table.

    Attributes:
        shares: of all operations, by kind; they add up to 1, and none is 0.
        top: rows that a range query asks for (`$top`).
        batch_rows: rows that an entity group transaction inserts.
        rows: rows that the test table is loaded with before anything is measured.
        partitions: partitions of the test table, with equally many rows; None: TABLE or a script says.
        row_bytes: size of a row as the service stores it.
        processes: processes that generate the load.
    """

    shares: Mapping[OperationKind, float]
    top: int = 50
    batch_rows: int = 20
    rows: int = 20_000
    partitions: int | None = None
    row_bytes: int = 1024
    processes: int = 1

    def entities_of(self, kind: OperationKind) -> int:
        """Return how many entities an operation reads or writes; a range query: at most."""
        return {OperationKind.RANGE_QUERY: self.top, OperationKind.BATCH: self.batch_rows}.get(kind, 1)

    @property
    def entities(self) -> float:
        """Return how many entities an operation reads or writes on average."""
        return sum(share * self.entities_of(kind) for kind, share in self.shares.items())


def read_mix(document: Section, *, spread_given: bool) -> Mix:
    """Check a file and return its mix.

    Args:
        document: the file, parsed.
        spread_given: TABLE or a script says how rows are spread over partitions.

    Raises:
        ConfigurationError: an unknown or missing key, a value of the wrong type or out of range.
    """
    document.allow("mix", "range_query", "batch", "rows", "load")
    section = document.section("mix")
    if not section.content:
        document.fail("mix", "is missing", "add a section [mix] with shares, for example point_read = 60")
    weights = section.read(_Shares)
    found = {OperationKind(one.name): getattr(weights, one.name) or 0.0 for one in fields(weights)}
    total = sum(found.values())
    if not total:
        section.fail("", "has no share above 0", "write for example point_read = 60")
    top = document.section("range_query").read(_RangeQuery).top
    batch = document.section("batch").read(_Batch).rows
    rows, load = document.section("rows").read(_Rows), document.section("load").read(_Load)
    for name, key, value, least, most in (
        ("range_query", "top", top, 1, _MOST_TOP),
        ("batch", "rows", batch, 1, _MOST_BATCH),
        ("rows", "count", rows.count, 1, _MOST_ROWS),
        ("rows", "size", rows.size, _LEAST_BYTES, _MOST_BYTES),
        ("rows", "partitions", rows.partitions or 1, 1, rows.count),
        ("load", "processes", load.processes, 1, _MOST_PROCESSES),
    ):
        if not least <= value <= most:
            unit = " bytes" if key == "size" else ""
            document.section(name).fail(
                key, f"is not between {least:,} and {most:,}{unit}", "write an amount in that range"
            )
    if spread_given and rows.partitions is not None:
        document.section("rows").fail(
            "partitions",
            "TABLE or --design says how rows are spread over partitions",
            "remove it, or give --mix alone",
        )
    if not spread_given and rows.partitions is None:
        document.section("rows").fail(
            "partitions",
            "is missing",
            "write for example partitions = 20 in [rows]; or give TABLE or --design, whose distribution is"
            " taken then",
        )
    shares = {kind: weight / total for kind, weight in found.items() if weight}
    return Mix(shares, top, batch, rows.count, rows.partitions, rows.size, load.processes)
