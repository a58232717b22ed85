"""What a verification found: frozen values without keys.

Rules kept here:

* A report names rows by safe id and properties by name; it holds no key and no value of a row.
* `as_json` gives everything that is needed to judge and to recompute: what was compared, counts, digests,
  sums on request, the seed of a sample. Field names and the words for kinds are stable.
* `findings` decides the exit code: a difference that stood still, or a row that could not be settled, is a
  finding; one that went away by itself is counted and is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rekey.errors import ExitCode
from rekey.verify.divergence import Findings, RepairReport


@dataclass(frozen=True, slots=True)
class TableComparison:
    """One target table: what the source gives and what it holds.

    Attributes:
        table: its name.
        expected_rows, actual_rows: rows that the source's rows give; rows that are there.
        expected_digest, actual_digest: content digests (`rekey.verify.sums`).
        differing_buckets: buckets whose sums differ; more than 0 without a stable divergence when rows
            changed while they were being read.
        not_compared: properties left out: copies of the source's Timestamp, after cutover.
        expected_sums, actual_sums: packed sums in base64, from which the digests can be recomputed.
    """

    table: str
    expected_rows: int
    actual_rows: int
    expected_digest: str
    actual_digest: str
    differing_buckets: int
    not_compared: tuple[str, ...]
    expected_sums: str = field(repr=False)
    actual_sums: str = field(repr=False)

    def as_json(self, *, sums: bool = False) -> dict[str, Any]:
        """Return a JSON object, with all sums (about 1 MB) when asked."""
        members: dict[str, Any] = {
            "table": self.table,
            "expected_rows": self.expected_rows,
            "actual_rows": self.actual_rows,
            "expected_digest": self.expected_digest,
            "actual_digest": self.actual_digest,
            "differing_buckets": self.differing_buckets,
            "not_compared": list(self.not_compared),
        }
        if sums:
            members |= {"expected_sums": self.expected_sums, "actual_sums": self.actual_sums}
        return members


@dataclass(frozen=True, slots=True)
class TableRead:
    """When rows of one table were read: in one sitting, from its first page to its last."""

    table: str
    sitting: int
    begun_at: str
    ended_at: str
    rows: int

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "table": self.table,
            "sitting": self.sitting,
            "begun_at": self.begun_at,
            "ended_at": self.ended_at,
            "rows": self.rows,
        }


@dataclass(frozen=True, slots=True)
class FullReport:
    """A full verification: every row and every property, both directions."""

    started_at: str
    finished_at: str
    source: str
    source_rows: int
    refused_rows: int
    tables: tuple[TableComparison, ...]
    found: Findings
    repair: RepairReport | None = None
    source_digest: str = ""
    """The content digest of the source as it is; "" when it has too few rows for one to be told."""
    read: tuple[TableRead, ...] = ()
    """What was read when: a verification that was cut off has more than one sitting."""

    mode = "full"

    @property
    def findings(self) -> bool:
        """True when the exit code must say so."""
        return self.found.any

    @property
    def target_rows(self) -> int:
        """Rows of all target tables together."""
        return sum(table.actual_rows for table in self.tables)

    @property
    def digest(self) -> str:
        """The content digest of the main target table as it is."""
        return self.tables[0].actual_digest

    def as_json(self, *, sums: bool = False) -> dict[str, Any]:
        """Return a JSON object without keys."""
        return {
            "mode": self.mode,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "source": self.source,
            "source_rows": self.source_rows,
            "source_digest": self.source_digest,
            "refused_rows": self.refused_rows,
            "tables": [table.as_json(sums=sums) for table in self.tables],
            "read": [one.as_json() for one in self.read],
            **self.found.as_json(),
            "repair": None if self.repair is None else self.repair.as_json(),
        }


@dataclass(frozen=True, slots=True)
class PartitionDifference:
    """One partition of a target table that holds another number of rows than the source gives."""

    partition_id: str
    expected: int
    actual: int

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {"partition": self.partition_id, "expected": self.expected, "actual": self.actual}


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """One partition of the source and its number of rows."""

    partition_id: str
    rows: int

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {"partition": self.partition_id, "rows": self.rows}


@dataclass(frozen=True, slots=True)
class TableCount:
    """The counts of one target table.

    Attributes:
        expected, actual: rows the source gives; rows that are there.
        partitions: partitions that either side knows.
        differing: partitions whose counts differ and stood still over two passes.
        moving: partitions whose counts differed in one pass only: rows came or went while counting.
        listed: those that differ most, at most `LISTED`.
    """

    table: str
    expected: int
    actual: int
    partitions: int
    differing: int
    moving: int
    listed: tuple[PartitionDifference, ...]

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "table": self.table,
            "expected": self.expected,
            "actual": self.actual,
            "partitions": self.partitions,
            "differing": self.differing,
            "moving": self.moving,
            "differences": [difference.as_json() for difference in self.listed],
        }


@dataclass(frozen=True, slots=True)
class CountReport:
    """Rows of both sides, per partition and in total."""

    started_at: str
    finished_at: str
    source: str
    source_rows: int
    source_partitions: int
    refused_rows: int
    largest: tuple[PartitionSize, ...]
    tables: tuple[TableCount, ...]
    passes: int

    mode = "count"

    @property
    def findings(self) -> bool:
        """True when the exit code must say so."""
        return self.refused_rows > 0 or any(table.differing for table in self.tables)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object without keys."""
        return {
            "mode": self.mode,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "source": self.source,
            "source_rows": self.source_rows,
            "source_partitions": self.source_partitions,
            "refused_rows": self.refused_rows,
            "largest_source_partitions": [size.as_json() for size in self.largest],
            "tables": [table.as_json() for table in self.tables],
            "passes": self.passes,
        }


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a sample: rows of one table looked up on the other side.

    Attributes:
        table: where the rows were drawn.
        population: rows the table had.
        checked: rows drawn and still there when looked at.
        wrong: rows with a stable divergence.
        at_most: with the given confidence, no larger share of the table's rows is wrong.
    """

    table: str
    population: int
    checked: int
    wrong: int
    at_most: float

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "table": self.table,
            "population": self.population,
            "checked": self.checked,
            "wrong": self.wrong,
            "at_most": self.at_most,
        }


@dataclass(frozen=True, slots=True)
class SampleReport:
    """Random rows in both directions, drawn by a seed, and the confidence they buy."""

    started_at: str
    finished_at: str
    source: str
    seed: int
    asked: int
    confidence: float
    directions: tuple[Direction, ...]
    found: Findings

    mode = "sample"

    @property
    def findings(self) -> bool:
        """True when the exit code must say so."""
        return self.found.any

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object without keys."""
        return {
            "mode": self.mode,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "source": self.source,
            "seed": self.seed,
            "asked": self.asked,
            "confidence": self.confidence,
            "directions": [direction.as_json() for direction in self.directions],
            **self.found.as_json(),
        }


Report: TypeAlias = CountReport | SampleReport | FullReport


def exit_code(report: Report) -> ExitCode:
    """Return the exit code a report asks for: 0, or 1 when there are findings."""
    return ExitCode.FINDINGS if report.findings else ExitCode.DONE
