"""Two designs of one migration side by side, on the same rows: as JSON, as text, as a page. Pure. Nothing is
weighed and no winner is named: that depends on needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rekey.plan.page import partition_sizes
from rekey.plan.render import money_lines
from rekey.plan.result import MigrationPlan, Plan
from rekey.present.page import page
from rekey.present.text import duration, report, size, table

# Figures of one design as text, by name; None where its keys could not be tried.
Figures = dict[str, str | None]
# The compared figures: by name, a text for each design.
Lines = dict[str, tuple[str, ...]]


def comparison_json(plan: Plan) -> dict[str, Any]:
    """Return the comparison as JSON-able data, without keys."""
    return {
        "designs": [migration.script_id for migration in plan.migrations],
        "lines": [
            {"section": section, "what": what, "values": list(values)}
            for section, lines in _sections(plan).items()
            for what, values in lines.items()
        ],
    }


def comparison_text(plan: Plan) -> str:
    """Return the comparison as text, ending in a line break."""
    names = [migration.script_id for migration in plan.migrations]
    out = [f"{plan.migrations[0].basis.source}: {' | '.join(names)}", *_basis(plan)]
    for section, lines in _sections(plan).items():
        rows = [(what, *values) for what, values in lines.items()]
        out += ["", section, *table(("", *names), rows, indent="  ")]
    return report(out)


def comparison_page(plan: Plan) -> str:
    """Return the comparison as one page that loads nothing."""
    portraits = [
        migration.figures.portraits[1]
        for migration in plan.migrations
        if len(migration.figures.portraits) > 1
    ]
    names = [migration.script_id for migration in plan.migrations]
    return page(
        "compare.html",
        source=plan.migrations[0].basis.source,
        names=names,
        basis=_basis(plan),
        sections=_sections(plan),
        # A design whose keys could not be tried has no portrait to compare.
        plots={"Tables": partition_sizes(portraits, names) if len(portraits) == len(names) else ""},
    )


def _basis(plan: Plan) -> list[str]:
    first = plan.migrations[0]
    basis = [] if first.inventory is None else [f"the same rows for each: {first.inventory.basis}"]
    return [*basis, *filter(None, [first.sampled])]


def _sections(plan: Plan) -> dict[str, Lines]:
    """Return the compared figures, equal or not, by section in display order; no empty section."""
    tables, costs, problems, advice, queries = (
        [figures(migration) for migration in plan.migrations]
        for figures in (_tables, _costs, _problems, _advice, _queries)
    )
    advised = _lines(advice, sorted({code for codes in advice for code in codes}))
    advised |= _lines(problems, sorted({code for problem in problems for code in problem}))
    asked = dict.fromkeys(query for answers in queries for query in answers)
    most = max(costs, key=len)  # with money, if any design has prices
    sections = {
        "Tables": _lines(tables, tables[0]),
        "Advice": advised or {"on planned keys": ("none",) * len(plan.migrations)},
        "Queries": _lines(queries, asked, unknown="not declared"),
        "Cost": _lines(costs, most),
    }
    return {section: lines for section, lines in sections.items() if lines}


def _lines(designs: Sequence[Figures], names: Iterable[str], *, unknown: str = "–") -> Lines:
    return {what: tuple(str(design.get(what) or unknown) for design in designs) for what in names}


def _problems(plan: MigrationPlan) -> Figures:
    return {problem.code: problem.severity for problem in reversed(plan.problems)}


def _queries(plan: MigrationPlan) -> Figures:
    return {query.query.describe(): query.planned.describe() for query in plan.queries}


def _advice(plan: MigrationPlan) -> Figures:
    planned = [advice for advice in reversed(plan.advice) if not advice.today]
    return {advice.code: advice.severity if advice.waived is None else "set aside" for advice in planned}


def _tables(plan: MigrationPlan) -> Figures:
    main = plan.mapping.fills[0] if plan.mapping.fills else None
    keys = plan.figures.portraits[1] if len(plan.figures.portraits) > 1 else None
    largest = None
    if keys is not None and keys.largest:
        rows = keys.largest[0][1]
        largest = f"{rows:,} rows, {100 * rows / keys.rows:.1f} %"
    at_least = "" if main is None or main.partitions_exact else ">= "
    return {
        "main target": plan.basis.targets[0].table,
        "index tables": f"{len(plan.basis.targets) - 1}",
        "partitions": None if main is None else f"{at_least}{main.partitions:,}",
        "largest partition": largest,
        "key bytes of a row": None if keys is None else f"{keys.key_bytes:.0f}",
        "rows to write": f"{sum(fill.rows for fill in plan.mapping.fills):,}",
        "rows in a batch": None if main is None else f"{main.rows_per_batch:.1f}",
        "rows refused": f"{sum(refused.rows for refused in plan.mapping.refused):,}",
        "keys that collide": None if plan.mapping.collisions is None else f"{plan.mapping.collisions.keys:,}",
    }


def _costs(plan: MigrationPlan) -> Figures:
    estimate = plan.estimate
    if estimate is None:
        return {"requests": None, "expected duration": None, "stored next to the source": None}
    figures: Figures = {
        "requests": f"{estimate.requests_total:,}",
        "expected duration": duration(sum(part.at_limits_s for part in estimate.durations)),
        "stored next to the source": size(estimate.storage.added_bytes),
    }
    if estimate.money is not None:
        *_, (_, as_one, by_rows) = money_lines(estimate.money)
        figures |= {"cost, batch billed as one": as_one, "cost, batch billed by its rows": by_rows}
    return figures
