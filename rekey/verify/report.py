"""Reports of a verification: divergences, counts, digests and repairs, as frozen values. They name rows by
safe id and hold no key and no value of a row. Names and words in the JSON are stable: scripts may match them;
fields have its order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeAlias

from rekey.core.joint import spoken
from rekey.core.plain import exclude, json_field, members, plain
from rekey.errors import ExitCode

# A report lists at most this many divergences; all are counted.
LISTED = 1000


class DifferenceKind(StrEnum):
    """How a row differs."""

    # The target row that a source row maps to is not there.
    MISSING = "missing"
    # A target row to which no source row maps.
    EXTRA = "extra"
    # A target row whose content is not what its source row maps to.
    ALTERED = "altered"
    # The target row that a source row maps to is missing, and its content is under another key.
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

    name: str = field(metadata=json_field("property"))
    change: Change


@dataclass(frozen=True, slots=True)
class Divergence:
    """A stable difference of one row. JSON omits empty members."""

    kind: DifferenceKind
    table: str
    # Safe id of the target row; "" for `refused`, whose `table` is the source.
    row_id: str = field(metadata=json_field("row", omit_default=True))
    # Safe id of the source row; "" when nothing maps to the row (a foreign row).
    source_id: str = field(metadata=json_field("source_row", omit_default=True))
    # For `altered`.
    properties: tuple[PropertyDifference, ...] = field(default=(), metadata=json_field(omit_default=True))
    # For `wrong-key`, the safe id of the row under the wrong key.
    stray_id: str = field(default="", metadata=json_field("stray_row", omit_default=True))
    # For `refused`.
    code: str = field(default="", metadata=json_field(omit_default=True))
    # For `collision`, the safe id of the source row that holds the target key.
    other_id: str = field(default="", metadata=json_field("other_source_row", omit_default=True))


class Outcome(StrEnum):
    """The outcome of repairing one divergence."""

    # The replicas of its source key were made equal to what the authority says.
    PROPAGATED = "propagated"
    # The row was written under its right key, and the row under the wrong key deleted.
    MOVED = "moved"
    # The row, to which nothing maps, was deleted.
    DELETED = "deleted"
    # Another writer repaired or deleted the row first.
    GONE = "gone"
    # The service reported success, and the row still differs: it changed meanwhile, or the request was
    # misread in transit. Verify again.
    UNCONFIRMED = "unconfirmed"
    # The row changed during the repair and was left as it is. Verify again.
    CHANGED = "changed"
    # The mapping or a collision forbids the repair, or the row belongs to the authority and cannot be
    # mapped back. Fix the row, then verify again.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Repair:
    """One divergence and the outcome of its repair."""

    divergence: Divergence = field(metadata=json_field(flat=True))
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RepairReport:
    """All repairs of one run by outcome. `repairs` lists at most `LISTED`."""

    counts: Mapping[str, int]
    repairs: tuple[Repair, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """Stable divergences by kind, and counts of the differences that were not stable."""

    counts: Mapping[str, int] = field(default_factory=dict, metadata=json_field("by_kind"))
    # The first `LISTED` stable ones.
    listed: tuple[Divergence, ...] = field(default=(), metadata=exclude)
    # Gone on recheck.
    transient: int = 0
    # Rows read one by one because they differed when the tables were read.
    rechecked: int = 0
    # Rows that kept changing for `RecheckPolicy.limit_s`.
    unsettled: int = 0
    # Always 0; readers of the JSON expect it.
    unchecked: int = 0
    # Left to a later delta pass, so not findings.
    pending: int = 0
    # Of `extra`: main rows where the main target is the authority and their old keys are not known, so that
    # no repair deletes them.
    foreign: int = field(default=0, metadata=json_field(omit_default=True))
    # Repaired by the comparison itself, and equal when compared again.
    propagated: int = field(default=0, metadata=json_field("brought", omit_default=True))

    @property
    def stable(self) -> int:
        return sum(self.counts.values())

    @property
    def any(self) -> bool:
        """True when there is a stable divergence or an unsettled row: a finding."""
        return bool(self.stable or self.unsettled)

    def as_json(self) -> dict[str, Any]:
        listed = {"divergences": plain(self.listed), "not_listed": self.stable - len(self.listed)}
        return {"stable": self.stable, **members(self), **listed}


def all_findings(each: Sequence[Findings]) -> Findings:
    """Return the findings of several comparisons of different rows as those of one."""
    counts, others = Counter[str](), Counter[str]()
    for findings in each:
        counts.update(findings.counts)
        others.update({name: getattr(findings, name) for name in _NUMBERS})
    listed = tuple(divergence for findings in each for divergence in findings.listed)[:LISTED]
    return Findings(dict(sorted(counts.items())), listed, **others)


def stored_findings(stored: Mapping[str, Any]) -> Findings:
    """Return findings from their fields, as `asdict` gives them and JSON keeps them. Raises KeyError,
    TypeError, ValueError or AttributeError for others."""
    counts = {DifferenceKind(kind).value: int(rows) for kind, rows in stored["counts"].items()}
    listed = []
    for each in stored["listed"]:
        properties = tuple(
            PropertyDifference(str(difference["name"]), Change(difference["change"]))
            for difference in each["properties"]
        )
        listed.append(Divergence(**{**each, "kind": DifferenceKind(each["kind"]), "properties": properties}))
    return Findings(counts, tuple(listed), **{name: int(stored[name]) for name in _NUMBERS})


_NUMBERS = tuple(each.name for each in fields(Findings) if each.name not in ("counts", "listed"))


def all_repairs(each: Sequence[RepairReport]) -> RepairReport | None:
    """Return the repairs of several comparisons as those of one; None: none repaired."""
    counts = sum((Counter(report.counts) for report in each), Counter[str]())
    repairs = tuple(repair for report in each for repair in report.repairs)[:LISTED]
    return RepairReport(dict(sorted(counts.items())), repairs) if each else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportBase:
    """The fields that reports of all modes have."""

    mode: str = field(init=False)
    started_at: str
    finished_at: str
    source: str

    def as_json(self) -> dict[str, Any]:
        return members(self)


@dataclass(frozen=True, slots=True)
class TableComparison:
    """One target table: the rows that source rows map to, and the rows it holds."""

    table: str
    # Rows that the source rows map to; `actual_rows`: rows it holds.
    expected_rows: int
    actual_rows: int
    # Content digests (`bucket_digests.py`). Rows that differed on the first reading count as last read.
    expected_digest: str
    actual_digest: str
    differing_buckets: int
    # Copies of the source's Timestamp, from cutover on.
    not_compared: tuple[str, ...]
    # Of rows that share a table with other kinds, the beginnings of their keys; "" for the main target's
    # rows.
    row_keys_begin: str = field(default="", metadata=json_field(omit_default=True))
    partition_keys_begin: str = field(default="", metadata=json_field(omit_default=True))
    # What the keys of this migration's rows meet, where others fill the table too (`Condition.as_json`).
    keys: Mapping[str, Any] | None = field(default=None, metadata=json_field(omit_default=True))
    # Buckets that differed on the first reading; `differing_buckets`: that differ now.
    reread_buckets: int = field(default=0, metadata=json_field(omit_default=True))

    @property
    def label(self) -> str:
        """What the rows are called in texts."""
        return label_of(self.table, self.partition_keys_begin, self.row_keys_begin)


def label_of(table: str, *begin: str) -> str:
    """Return what rows of a table are called in texts, as `Migration.labels`."""
    return " ".join([spoken(table), *filter(None, begin)])


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
    """A full verification: every row and every property, both directions."""

    mode: str = field(default="full", init=False)
    source_rows: int
    # "" when the source has too few rows (`reported_digest`).
    source_digest: str = ""
    refused_rows: int
    # Rows that no kind takes and that the script does not migrate.
    not_migrated_rows: int = field(default=0, metadata=json_field(omit_default=True))
    tables: tuple[TableComparison, ...]
    # More than one sitting: it was cut off and resumed.
    read: tuple[TableRead, ...] = ()
    # Seconds of work of all sittings, without pauses, in a migration.
    took_s: float = field(default=0.0, metadata=json_field(omit_default=True))
    differences: Findings = field(metadata=json_field(flat=True))
    # Rows changed between two readings of a repairing comparison: counts and digests are those of the first.
    changed_between: bool = field(default=False, metadata=json_field(omit_default=True))
    # What repairs follow is in the main target.
    authority_is_target: bool = field(default=False, metadata=json_field(omit_default=True))
    repair: RepairReport | None = None

    @property
    def findings(self) -> bool:
        """True when a row differs, could not be settled, or digests differ that no row explains."""
        return self.differences.any or self.unexplained > 0

    def as_json(self) -> dict[str, Any]:
        return members(self) | ({"unexplained": self.unexplained} if self.unexplained else {})

    @property
    def unexplained(self) -> int:
        """How many buckets differ although no differing, pending or changed row explains it.
        Then the comparison itself cannot be relied on."""
        explained = self.differences.any or self.differences.pending or self.changed_between
        return 0 if explained else sum(table.differing_buckets for table in self.tables)

    @property
    def equal(self) -> bool:
        """True when the digests of every table are those of the rows that source rows map to."""
        return not any(table.differing_buckets for table in self.tables)

    @property
    def target_rows(self) -> int:
        """The number of rows of all target tables."""
        return sum(table.actual_rows for table in self.tables)

    @property
    def digest(self) -> str:
        """The content digest of the main target table."""
        return self.tables[0].actual_digest


@dataclass(frozen=True, slots=True)
class PartitionDifference:
    """One partition of a target table whose number of rows is not the one that source rows map to."""

    partition_id: str = field(metadata=json_field("partition"))
    expected: int
    actual: int


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """One partition of the source and its number of rows."""

    partition_id: str = field(metadata=json_field("partition"))
    rows: int


@dataclass(frozen=True, slots=True)
class TableCount:
    """The counts of one target table."""

    table: str
    expected: int
    actual: int
    partitions: int
    # Partitions whose counts differ, by the same numbers in both passes.
    differing: int
    # Partitions whose counts differed in one pass only, or by other numbers in each: rows came or went while
    # counting.
    moving: int
    # The largest of `differing`, at most `LISTED`.
    listed: tuple[PartitionDifference, ...] = field(metadata=json_field("differences"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CountReport(ReportBase):
    """A verification by count: rows of both sides, per partition and in total."""

    mode: str = field(default="count", init=False)
    source_rows: int
    source_partitions: int
    refused_rows: int
    # As in `FullReport`.
    not_migrated_rows: int = field(default=0, metadata=json_field(omit_default=True))
    largest: tuple[PartitionSize, ...] = field(metadata=json_field("largest_source_partitions"))
    tables: tuple[TableCount, ...]
    passes: int

    @property
    def findings(self) -> bool:
        """True when a source row was refused, or counts of a partition differ in both passes."""
        return self.refused_rows > 0 or any(table.differing for table in self.tables)


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a sample: rows of one table looked up on the other side."""

    table: str
    # Rows the table had, without drawn rows that were deleted meanwhile.
    population: int
    # Rows drawn that still existed when checked.
    checked: int
    # Checked rows with a stable divergence.
    wrong: int
    # With the report's confidence, no larger share of the table's rows is wrong, 0 to 1.
    at_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReport(ReportBase):
    """A verification by sample: random rows in both directions, and the confidence that they give."""

    mode: str = field(default="sample", init=False)
    seed: int
    asked: int
    confidence: float
    directions: tuple[Direction, ...]
    differences: Findings = field(metadata=json_field(flat=True))

    @property
    def findings(self) -> bool:
        """True when a row has a stable divergence, or could not be settled."""
        return self.differences.any


Report: TypeAlias = CountReport | SampleReport | FullReport


def exit_code(report: Report) -> ExitCode:
    """Return the exit code of the command for a report."""
    return ExitCode.FINDINGS if report.findings else ExitCode.DONE
