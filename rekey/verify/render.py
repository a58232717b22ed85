"""Reports as text for the terminal.

Rules kept here:

* Lines have at most `WIDTH` columns; names that are longer are cut with an ellipsis.
* At most `SHOWN` divergences are listed, the rest is counted: "and N more". `--json` has up to 1,000.
* The last line says what it means, and what to do next when there is something to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rekey.verify.confidence import as_percent
from rekey.verify.report import (
    CountReport,
    Divergence,
    Findings,
    FullReport,
    Kind,
    RepairReport,
    SampleReport,
)

WIDTH = 100
SHOWN = 20
_PROPERTIES_SHOWN = 3
_DIGEST_SHOWN = 16


def render(report: CountReport | SampleReport | FullReport) -> str:
    """Return a report as text, without a newline at its end."""
    if isinstance(report, CountReport):
        lines = _count(report)
    elif isinstance(report, SampleReport):
        lines = _sample(report)
    else:
        lines = _full(report)
    return "\n".join(_cut(line, WIDTH) for line in lines)


def _full(report: FullReport) -> list[str]:
    lines = [f"full verification of {report.source}: {report.source_rows:,} source rows", ""]
    lines += _table(
        ("table", "expected", "actual", "digest expected", "digest actual", "buckets differing"),
        [
            (
                table.table,
                f"{table.expected_rows:,}",
                f"{table.actual_rows:,}",
                table.expected_digest[:_DIGEST_SHOWN],
                table.actual_digest[:_DIGEST_SHOWN],
                f"{table.differing_buckets:,}",
            )
            for table in report.tables
        ],
        right={1, 2, 5},
    )
    lines += _sittings(report)
    lines += _findings(report.found)
    if report.repair is not None:
        lines += _repair(report.repair)
    elif not report.findings:
        lines += ["", _all_is_well(report)]
    else:
        lines += [
            "",
            "Next: `rekey verify --mode full --repair`, then verify again; runbooks/divergences.md.",
        ]
    return lines


def _sittings(report: FullReport) -> list[str]:
    """Say what was read when, of a verification that was cut off and went on."""
    if max((one.sitting for one in report.read), default=1) == 1:
        return []
    return [
        "",
        *_table(
            ("sitting", "table", "rows", "read from", "to"),
            [
                (
                    f"{one.sitting}",
                    one.table,
                    f"{one.rows:,}",
                    one.begun_at[:19] + "Z",
                    one.ended_at[:19] + "Z",
                )
                for one in report.read
            ],
            right={0, 2},
        ),
    ]


def _findings(found: Findings) -> list[str]:
    lines = ["", _summary(found)]
    if found.listed:
        lines += [
            "",
            *_table(
                ("kind", "table", "row", "source row", "what"),
                [
                    (each.kind.value, each.table, each.row_id or "-", each.source_id or "none", _what(each))
                    for each in found.listed[:SHOWN]
                ],
            ),
        ]
        more = found.stable - min(len(found.listed), SHOWN)
        if more:
            lines.append(f"... and {more:,} more")
    return lines


def _summary(found: Findings) -> str:
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in found.counts.items())
    parts = [f"stable divergences: {found.stable:,}" + (f" ({kinds})" if kinds else "")]
    parts.append(f"transient: {found.transient:,}")
    if found.pending:
        parts.append(f"pending (the next pass brings them): {found.pending:,}")
    if found.unsettled:
        parts.append(f"unsettled (written all the time, verify again): {found.unsettled:,}")
    if found.unchecked:
        parts.append(f"not looked at: {found.unchecked:,}")
    return "; ".join(parts)


def _what(divergence: Divergence) -> str:
    if divergence.kind is Kind.ALTERED:
        shown = [f"{each.name} ({each.change.value})" for each in divergence.properties[:_PROPERTIES_SHOWN]]
        more = len(divergence.properties) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")
    if divergence.kind is Kind.WRONG_KEY:
        return f"stands at {divergence.stray_id}"
    if divergence.kind is Kind.REFUSED:
        return divergence.code
    if divergence.kind is Kind.EXTRA:
        return "its source row does not give it" if divergence.source_id else "no source row is known for it"
    if divergence.kind is Kind.COLLISION:
        return "another source row has the same target key"
    return "not in the target"


def _repair(repair: RepairReport) -> list[str]:
    done = ", ".join(f"{outcome} {number:,}" for outcome, number in repair.counts.items())
    return ["", f"repair: {done or 'nothing to do'}", "Next: `rekey verify --mode full` to prove it."]


def _count(report: CountReport) -> list[str]:
    lines = [
        f"count of {report.source}: {report.source_rows:,} rows in {report.source_partitions:,} partitions",
        "",
        *_table(
            ("table", "expected", "actual", "partitions", "differing", "moving"),
            [
                (
                    table.table,
                    f"{table.expected:,}",
                    f"{table.actual:,}",
                    f"{table.partitions:,}",
                    f"{table.differing:,}",
                    f"{table.moving:,}",
                )
                for table in report.tables
            ],
            right={1, 2, 3, 4, 5},
        ),
    ]
    if report.refused_rows:
        lines += ["", f"source rows that the mapping refuses: {report.refused_rows:,}"]
    differences = [
        (table.table, each.partition_id, f"{each.expected:,}", f"{each.actual:,}")
        for table in report.tables
        for each in table.listed
    ]
    if differences:
        shown = _table(("table", "partition", "expected", "actual"), differences[:SHOWN], right={2, 3})
        lines += ["", *shown]
    more = sum(table.differing for table in report.tables) - min(len(differences), SHOWN)
    if more:
        lines.append(f"... and {more:,} more")
    if report.findings:
        lines += ["", "Next: `rekey verify --mode full` names the rows."]
    elif any(table.moving for table in report.tables):
        lines += ["", "Counts moved while counting: rows are being written. None differed twice alike."]
    else:
        lines += ["", "All counts agree. (A count sees no content: `--mode full` does.)"]
    return lines


def _sample(report: SampleReport) -> list[str]:
    percent = f"{report.confidence * 100:g} %"
    lines = [f"sample of {report.source}: {report.asked:,} rows per table, seed {report.seed}", ""]
    lines += [
        f"{each.table}: {each.wrong:,} of {each.checked:,} ({each.population:,} in all):"
        f" at most {as_percent(each.at_most)} wrong at {percent}"
        for each in report.directions
    ]
    lines += _findings(report.found)
    if report.findings:
        lines += ["", "Next: `rekey verify --mode full` finds all of them."]
    return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> list[str]:
    """Return aligned columns; the widest give way until a line fits."""
    numeric = set(right)
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH:
        widest = max(range(len(widths)), key=lambda column: widths[column])
        widths[widest] -= 1
    lines = []
    for row in (head, *rows):
        cells = [
            _cut(cell, width).rjust(width) if column in numeric else _cut(cell, width).ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _all_is_well(report: FullReport) -> str:
    tables = "1 table" if len(report.tables) == 1 else f"{len(report.tables)} tables"
    if report.found.pending:
        return f"Every other row and property of {tables} is as the source says."
    return f"Every row and every property of {tables} is as the source says."
