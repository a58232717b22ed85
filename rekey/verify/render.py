"""Reports as text for the terminal. Pure."""

from __future__ import annotations

from rekey.core.joint import JointName, names_in, spoken
from rekey.next_steps import after_findings, next_step
from rekey.present.text import counted, table, wrapped
from rekey.verify.confidence import as_percent
from rekey.verify.report import (
    CountReport,
    DifferenceKind,
    Divergence,
    Findings,
    FullReport,
    Outcome,
    SampleReport,
)

# Divergences listed; the rest is counted. `--json` has up to 1,000.
SHOWN = 20
_PROPERTIES_SHOWN = 3
_DIGEST_SHOWN = 16
_KEPT = "Removed rows are kept for [gates] retention: `rekey restore-row ID`."
_NOT_KEPT = (
    "[gates] retention is 0: removed rows can be restored only once it is more, and until `rekey expire`"
    " deletes them."
)


def render(
    report: CountReport | SampleReport | FullReport, script: str, *, keeps_removed: bool = True
) -> str:
    """Return a report on a migration as text, without a newline at its end. `keeps_removed`: whether
    `[gates] retention` is more than 0."""
    if isinstance(report, FullReport):
        lines = full_lines(report)
        if report.repair is not None and report.repair.counts.keys() & {Outcome.DELETED, Outcome.MOVED}:
            lines += wrapped(_KEPT if keeps_removed else _NOT_KEPT)
        step = after_findings(script, report.source, report.as_json())
    else:
        lines = _count(report) if isinstance(report, CountReport) else _sample(report)
        step = next_step("name-rows", script=script)
    if report.findings:
        lines += [f"Next: `rekey {step.command}`", *wrapped(f"({step.remark})", first="  ")]
    return "\n".join(lines)


def full_lines(report: FullReport) -> list[str]:
    """Return the lines of a full report, without a next step."""
    rows = [
        (
            *(comparison.label, f"{comparison.expected_rows:,}", f"{comparison.actual_rows:,}"),
            *(comparison.expected_digest[:_DIGEST_SHOWN], comparison.actual_digest[:_DIGEST_SHOWN]),
            f"{comparison.differing_buckets:,}",
        )
        for comparison in report.tables
    ]
    head = ("table", "expected", "actual", "digest expected", "digest actual", "buckets differing")
    source_rows = counted(report.source_rows, "source row")
    source = _named(report.source)  # the main target, where index rows are compared with it
    lines = wrapped(f"full verification of {source}: {source_rows}{_not_migrated(report)}")
    lines += ["", *table(head, rows, right={1, 2, 5})]
    if any(table_read.sitting > 1 for table_read in report.read):  # the verification was cut off and resumed
        sittings = [
            (
                str(read.sitting),
                _named(read.table),
                f"{read.rows:,}",
                f"{read.begun_at[:19]}Z",
                f"{read.ended_at[:19]}Z",
            )
            for read in report.read
        ]
        lines += ["", *table(("sitting", "table", "rows", "read from", "to"), sittings, right={0, 2})]
    lines += ["", *_reread(report), *_findings(report.differences), ""]
    if report.unexplained:
        buckets = counted(report.unexplained, "bucket")
        lines += wrapped(f"Counts or digests of {buckets} differ, but no differing row was found.")
    if report.repair is not None:
        done = ", ".join(f"{outcome} {number:,}" for outcome, number in report.repair.counts.items())
        lines.append(f"repair: {done or 'nothing to do'}")
    elif not report.findings:
        lines += _meaning(report)
    return lines


def _named(table: str) -> str:
    """Return the name of a table, or of the folder of an export, in text for people."""
    return spoken(table) if isinstance(table, JointName) else table


def _reread(report: FullReport) -> list[str]:
    """Return what was reread because it differed on the first reading, and with what result."""
    number, findings = sum(comparison.reread_buckets for comparison in report.tables), report.differences
    if not number:
        return []
    buckets = f"{counted(number, 'bucket')} differed and {'was' if number == 1 else 'were'} read again"
    text = f"On the first reading {buckets}, {counted(findings.rechecked, 'row')} one by one"
    left = sum(comparison.differing_buckets for comparison in report.tables)
    if report.changed_between:
        text += ". Rows changed between the readings: the table shows the first."
    else:
        text += (
            f": {counted(left, 'bucket') if left else 'no bucket'} {'differs' if left < 2 else 'differ'} now."
        )
    return wrapped(text)


def _meaning(report: FullReport) -> list[str]:
    """Return the sentence that a report without findings allows."""
    names = {name for comparison in report.tables for name in names_in(comparison.table)}
    tables = counted(len(names), "table")
    if report.equal:
        return wrapped(f"Every row and every property of {tables} is as the source says.")
    if report.differences.pending:
        return wrapped(f"Every other row and property of {tables} is as the source says.")
    return wrapped(
        "No differing row was found, but rows changed while they were read. Compare again when fewer"
        " writes go on to see counts and digests agree."
    )


def _findings(findings: Findings) -> list[str]:
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in findings.counts.items())
    parts = [f"differences: {findings.stable:,}" + (f", {kinds}" if kinds else "")]
    parts[0] += f" ({findings.transient:,} resolved on recheck)"
    if findings.propagated:
        parts.append(f"repaired: {findings.propagated:,}")
    if findings.pending:
        parts.append(f"pending until the next pass: {findings.pending:,}")
    if findings.unsettled:
        parts.append(f"unsettled, kept changing: {findings.unsettled:,}")
    lines = wrapped("; ".join(parts))
    if findings.listed:
        rows = [
            (each.kind.value, each.table, each.row_id or "-", each.source_id or "none", _what(each))
            for each in findings.listed[:SHOWN]
        ]
        lines += ["", *table(("kind", "table", "row", "source row", "what"), rows)]
        lines += _more(findings.stable - len(rows))
    return lines


def _more(number: int) -> list[str]:
    return [f"... and {number:,} more"] if number else []


def _what(divergence: Divergence) -> str:
    match divergence.kind:
        case DifferenceKind.ALTERED:
            properties = divergence.properties
            shown = [f"{each.name} ({each.change.value})" for each in properties[:_PROPERTIES_SHOWN]]
            more = len(properties) - len(shown)
            return ", ".join(shown) + (f" and {more} more" if more else "")
        case DifferenceKind.WRONG_KEY:
            return f"is under the key of {divergence.stray_id}"
        case DifferenceKind.REFUSED:
            return divergence.code
        case DifferenceKind.EXTRA if divergence.source_id:
            return "its source row does not map to it"
        case DifferenceKind.EXTRA:
            return "no source row is known for it"
        case DifferenceKind.COLLISION:
            other = divergence.other_id
            return (
                f"source row {other} has the same target key" if other else "another source row has its key"
            )
    return "not in the target"


def _count(report: CountReport) -> list[str]:
    head = ("table", "expected", "actual", "partitions", "differing", "moving")
    rows = [
        (count.table, *(f"{getattr(count, counted):,}" for counted in head[1:])) for count in report.tables
    ]
    partitions = f"{report.source_rows:,} rows in {report.source_partitions:,} partitions"
    lines = wrapped(f"count of {report.source}: {partitions}{_not_migrated(report)}")
    lines += ["", *table(head, rows, right=range(1, 6))]
    if report.refused_rows:
        lines += ["", f"source rows that the mapping refuses: {report.refused_rows:,}"]
    differing = [
        (count.table, each.partition_id, f"{each.expected:,}", f"{each.actual:,}")
        for count in report.tables
        for each in count.listed
    ][:SHOWN]
    if differing:
        lines += ["", *table(("table", "partition", "expected", "actual"), differing, right={2, 3})]
    lines += _more(sum(count.differing for count in report.tables) - len(differing))
    if report.findings:
        return [*lines, ""]
    if any(count.moving for count in report.tables):
        return [
            *lines,
            "",
            "Counts changed while counting: rows are being written. No difference was seen twice.",
        ]
    return [*lines, "", "All counts agree. (A count sees no content: `--mode full` does.)"]


def _not_migrated(report: FullReport | CountReport) -> str:
    rows = report.not_migrated_rows
    return f", {rows:,} of them of no kind, which the script does not migrate" if rows else ""


def _sample(report: SampleReport) -> list[str]:
    percent = f"{report.confidence * 100:g} %"
    lines = wrapped(f"sample of {report.source}: {report.asked:,} rows per table, seed {report.seed}")
    lines.append("")
    for each in report.directions:
        figures = f"{each.wrong:,} of {each.checked:,} ({each.population:,} in all)"
        lines += wrapped(f"{each.table}: {figures}: at most {as_percent(each.at_most)} wrong at {percent}")
    return [*lines, "", *_findings(report.differences), *([""] if report.findings else ())]
