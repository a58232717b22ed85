"""Reports of a verification: divergences, counts, digests and repairs, as frozen values without keys.

Rules kept here:

* Rows are named by safe id and properties by name; no value here holds a key or a value of a row.
* `as_json` gives everything that is needed to judge a verification and to repeat it: the tables compared,
  counts, digests, the seed of a sample. Fields are declared in the order in which JSON shows them; their
  names and the words for kinds, changes and outcomes are stable: scripts may match them.
* `findings` decides the exit code: a stable difference, or a row that could not be settled, is a finding; a
  transient difference is counted and is no finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from rekey.core.plain import UNTOLD, members, plain, told
from rekey.errors import ExitCode

# A report lists at most this many divergences; all are counted.
LISTED = 1000


class Kind(StrEnum):
    """The kind of a divergence."""

    # The target row that a source row maps to is not there.
    MISSING = "missing"
    # A target row to which no source row maps.
    EXTRA = "extra"
    # A target row whose content is not what its source row maps to.
    ALTERED = "altered"
    # The target row that a source row maps to is not there, but its content is, under another key.
    WRONG_KEY = "wrong-key"
    # Several source rows map to the same target key.
    COLLISION = "collision"
    # A source row that the mapping cannot key.
    REFUSED = "refused"


class Change(StrEnum):
    """How one property differs."""

    VALUE = "value"
    TYPE = "type"
    MISSING = "missing"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class PropertyDifference:
    """One property of an altered row: its name and how it differs, never its values."""

    name: str = field(metadata=told("property"))
    change: Change


@dataclass(frozen=True, slots=True)
class Divergence:
    """A stable difference of one row. JSON leaves empty members out.

    Attributes:
        kind: what is wrong with the row.
        table: the target table (for `refused` the source table).
        row_id: safe id of the target row ("" for `refused`).
        source_id: safe id of the source row; "" when nothing maps to the row (a foreign row).
        properties: for `altered`, the properties that differ.
        stray_id: for `wrong-key`, the safe id of the row under the wrong key.
        other_id: for `collision`, the safe id of the source row that holds the target key.
        code: for `refused`, the refusal's stable code.
    """

    kind: Kind
    table: str
    row_id: str = field(metadata=told("row", if_any=True))
    source_id: str = field(metadata=told("source_row", if_any=True))
    properties: tuple[PropertyDifference, ...] = field(default=(), metadata=told(if_any=True))
    stray_id: str = field(default="", metadata=told("stray_row", if_any=True))
    code: str = field(default="", metadata=told(if_any=True))
    other_id: str = field(default="", metadata=told("other_source_row", if_any=True))


class Outcome(StrEnum):
    """The outcome of repairing one divergence."""

    # The replicas of its source key were made equal to what the authority says.
    PROPAGATED = "propagated"
    # The row was written under its right key, and the row under the wrong key deleted.
    MOVED = "moved"
    # The row, to which nothing maps, was deleted.
    DELETED = "deleted"
    # The row was mended, or deleted, before the repair came to it.
    GONE = "gone"
    # The service answered that it was done, and the row still differs: it changed meanwhile, or the request
    # was misread on the way. Verify again.
    UNCONFIRMED = "unconfirmed"
    # The row changed during the repair and was left alone: verify again.
    CHANGED = "changed"
    # The mapping or a collision forbids the repair, or the row is one of the authority that cannot be taken
    # back: mend the row, then verify again.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Repair:
    """One divergence and the outcome of its repair."""

    divergence: Divergence = field(metadata=told(flat=True))
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RepairReport:
    """All repairs of one run: how many of each outcome. `repairs` lists at most `LISTED` of them."""

    counts: Mapping[str, int]
    repairs: tuple[Repair, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """Stable divergences by kind, and counts of the differences that were not stable.

    Attributes:
        counts: how many stable divergences there are of each kind.
        listed: the first `LISTED` of them.
        transient: differences that were gone on recheck.
        rechecked: rows that were read by themselves because they differed when the tables were read.
        unsettled: rows that neither became equal nor stood still within the time allowed.
        unchecked: differences not looked at: always 0, kept because readers of the JSON ask for it.
        pending: differences that a later delta pass is due to mend; not findings.
        brought: differences that the comparison mended itself, by propagating; equal when compared again.
    """

    counts: Mapping[str, int] = field(default_factory=dict, metadata=told("by_kind"))
    listed: tuple[Divergence, ...] = field(default=(), metadata=UNTOLD)
    transient: int = 0
    rechecked: int = 0
    unsettled: int = 0
    unchecked: int = 0
    pending: int = 0
    brought: int = field(default=0, metadata=told(if_any=True))

    @property
    def stable(self) -> int:
        """The number of stable divergences."""
        return sum(self.counts.values())

    @property
    def any(self) -> bool:
        """True when there is a stable divergence or an unsettled row."""
        return bool(self.stable or self.unsettled)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        listed = {"divergences": plain(self.listed), "not_listed": self.stable - len(self.listed)}
        return {"stable": self.stable, **members(self), **listed}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportBase:
    """The fields that reports of all modes have."""

    mode: str = field(init=False)
    started_at: str
    finished_at: str
    source: str

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object without keys."""
        return members(self)


@dataclass(frozen=True, slots=True)
class TableComparison:
    """One target table: the rows that source rows map to, and the rows it holds.

    Attributes:
        table: its name.
        expected_rows, actual_rows: how many rows the source rows map to; how many rows there are.
        expected_digest, actual_digest: content digests (`rekey.verify.sums`).
            Rows that differed when they were first read count as they were read last.
        differing_buckets: how many buckets' sums differ.
        reread_buckets: how many buckets' sums differed on the first reading, and were read again.
        not_compared: properties left out: copies of the source's Timestamp, from cutover on.
        row_keys_begin, partition_keys_begin: of rows that share a table with other kinds, the beginnings of
            their keys that tell them apart; "" for the main target's rows, and where no table is shared.
    """

    table: str
    expected_rows: int
    actual_rows: int
    expected_digest: str
    actual_digest: str
    differing_buckets: int
    not_compared: tuple[str, ...]
    row_keys_begin: str = field(default="", metadata=told(if_any=True))
    partition_keys_begin: str = field(default="", metadata=told(if_any=True))
    reread_buckets: int = field(default=0, metadata=told(if_any=True))

    @property
    def label(self) -> str:
        """What the rows are called where people read."""
        return label_of(self.table, self.partition_keys_begin, self.row_keys_begin)


def label_of(table: str, *begin: str) -> str:
    """Return what rows of a table are called where people read, as `Migration.labels`."""
    return " ".join([table, *filter(None, begin)])


@dataclass(frozen=True, slots=True)
class TableRead:
    """When the rows of one table were read in one sitting, from its first page to its last."""

    table: str
    sitting: int
    begun_at: str
    ended_at: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FullReport(ReportBase):
    """A full verification: every row and every property, both directions.

    Attributes:
        source_digest: content digest of the source as it is; "" when it has too few rows (`told_digest`).
        read: how many rows were read when; a verification that was cut off has more than one sitting.
        changed_between: rows changed between two readings of a comparison that brings: counts and digests are
            those of the first one.
    """

    mode: str = field(default="full", init=False)
    source_rows: int
    source_digest: str = ""
    refused_rows: int
    tables: tuple[TableComparison, ...]
    read: tuple[TableRead, ...] = ()
    found: Findings = field(metadata=told(flat=True))
    changed_between: bool = field(default=False, metadata=told(if_any=True))
    repair: RepairReport | None = None

    @property
    def findings(self) -> bool:
        """True when a row differs, could not be settled, or sums differ that no row explains."""
        return self.found.any or self.unexplained > 0

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object without keys."""
        return members(self) | ({"unexplained": self.unexplained} if self.unexplained else {})

    @property
    def unexplained(self) -> int:
        """How many buckets differ although no row was found that does, or is pending or changed meanwhile."""
        explained = self.found.any or self.found.pending or self.changed_between
        return 0 if explained else sum(table.differing_buckets for table in self.tables)

    @property
    def equal(self) -> bool:
        """True when the sums of every table are those of the rows that source rows map to."""
        return not any(table.differing_buckets for table in self.tables)

    @property
    def target_rows(self) -> int:
        """The number of rows of all target tables together."""
        return sum(table.actual_rows for table in self.tables)

    @property
    def digest(self) -> str:
        """The content digest of the main target table as it is."""
        return self.tables[0].actual_digest


@dataclass(frozen=True, slots=True)
class PartitionDifference:
    """One partition of a target table whose number of rows is not the one that source rows map to."""

    partition_id: str = field(metadata=told("partition"))
    expected: int
    actual: int


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """One partition of the source and its number of rows."""

    partition_id: str = field(metadata=told("partition"))
    rows: int


@dataclass(frozen=True, slots=True)
class TableCount:
    """The counts of one target table.

    Attributes:
        expected, actual: how many rows the source rows map to; how many rows there are.
        partitions: how many partitions there are on either side.
        differing: partitions whose counts differ, by the same numbers in both passes.
        moving: partitions whose counts differed in one pass only, or by other numbers in each: rows came or
            went while counting.
        listed: the differing partitions with the largest differences, at most `LISTED`.
    """

    table: str
    expected: int
    actual: int
    partitions: int
    differing: int
    moving: int
    listed: tuple[PartitionDifference, ...] = field(metadata=told("differences"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CountReport(ReportBase):
    """A verification by count: rows of both sides, per partition and in total."""

    mode: str = field(default="count", init=False)
    source_rows: int
    source_partitions: int
    refused_rows: int
    largest: tuple[PartitionSize, ...] = field(metadata=told("largest_source_partitions"))
    tables: tuple[TableCount, ...]
    passes: int

    @property
    def findings(self) -> bool:
        """True when a source row was refused, or counts of a partition differ in both passes."""
        return self.refused_rows > 0 or any(table.differing for table in self.tables)


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a sample: rows of one table looked up on the other side.

    Attributes:
        table: the table whose rows were drawn.
        population: rows the table had, without drawn rows that were deleted meanwhile.
        checked: rows drawn and still there when looked at.
        wrong: checked rows with a stable divergence.
        at_most: with the report's confidence, no larger share of the table's rows is wrong, 0 to 1.
    """

    table: str
    population: int
    checked: int
    wrong: int
    at_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReport(ReportBase):
    """A verification by sample: random rows in both directions, and the confidence that they give."""

    mode: str = field(default="sample", init=False)
    seed: int
    asked: int
    confidence: float
    directions: tuple[Direction, ...]
    found: Findings = field(metadata=told(flat=True))

    @property
    def findings(self) -> bool:
        """True when a row has a stable divergence, or could not be settled."""
        return self.found.any


Report: TypeAlias = CountReport | SampleReport | FullReport


def exit_code(report: Report) -> ExitCode:
    """Return the exit code of the command for a report: 0, or 1 when there are findings."""
    return ExitCode.FINDINGS if report.findings else ExitCode.DONE
