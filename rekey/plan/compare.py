"""Designs side by side, on the same rows: as figures, as text, as a page. Pure.

Rules kept here:

* What is compared is what two plans say; nothing is weighed and no winner is named: that depends on needs.
* A design whose keys could not be tried (a secret is missing) shows what is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rekey.plan.page import partition_sizes
from rekey.plan.result import MigrationPlan, Plan
from rekey.present.page import page
from rekey.present.text import duration, report, size, table
from rekey.project.prices import amount_text

_UNKNOWN = "–"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that is compared: its section, what it is, and a text for each design."""

    section: str
    what: str
    values: tuple[str, ...]


def comparison_json(plan: Plan) -> dict[str, Any]:
    """Return the comparison as JSON-able data, without keys."""
    return {
        "designs": [one.script_id for one in plan.migrations],
        "lines": [asdict(line) for lines in _sections(plan).values() for line in lines],
    }


def comparison_text(plan: Plan) -> str:
    """Return the comparison as text, ending in a line break."""
    names = [one.script_id for one in plan.migrations]
    out = [f"{plan.migrations[0].basis.source}: {' | '.join(names)}", *_basis(plan)]
    for section, lines in _sections(plan).items():
        rows = [(line.what, *line.values) for line in lines]
        out += ["", section, *table(("", *names), rows, indent="  ")]
    return report(out)


def comparison_page(plan: Plan) -> str:
    """Return the comparison as one page that loads nothing."""
    portraits = [one.portraits[1] for one in plan.migrations if len(one.portraits) > 1]
    names = [one.script_id for one in plan.migrations]
    # Of a design whose keys could not be tried there is none to compare.
    sizes = partition_sizes(portraits, names) if len(portraits) == len(names) else ""
    return page(
        "compare.html",
        source=plan.migrations[0].basis.source,
        names=names,
        basis=_basis(plan),
        sections=_sections(plan),
        plots={"Tables": sizes},
    )


def _basis(plan: Plan) -> list[str]:
    inventory = plan.migrations[0].inventory
    return [] if inventory is None else [f"the same rows for each: {inventory.basis}"]


def _sections(plan: Plan) -> dict[str, list[Line]]:
    """Return what differs and what does not, in the order in which people look."""
    found = {
        "Tables": _lines("Tables", [_tables(one) for one in plan.migrations]),
        "Advice": [*_advice(plan)],
        "Queries": [*_queries(plan)],
        "Cost": _lines("Cost", [_costs(one) for one in plan.migrations]),
    }
    return {section: lines for section, lines in found.items() if lines}


Figures = dict[str, str | None]
"""What one design says, by what it is about; None where its keys could not be tried."""


def _lines(section: str, figures: list[Figures]) -> list[Line]:
    return [
        Line(section, what, tuple(one.get(what) or _UNKNOWN for one in figures))
        for what in max(figures, key=len)
    ]


def _tables(plan: MigrationPlan) -> Figures:
    main = plan.fills[0] if plan.fills else None
    keys = plan.portraits[1] if len(plan.portraits) > 1 else None
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
        "rows to write": f"{sum(fill.rows for fill in plan.fills):,}",
        "rows in a batch": None if main is None else f"{main.rows_per_batch:.1f}",
        "rows refused": f"{sum(refused.rows for refused in plan.refused):,}",
        "keys that collide": None if plan.collisions is None else f"{plan.collisions.keys:,}",
    }


def _costs(plan: MigrationPlan) -> Figures:
    """Return what a design costs; what it costs in money only where there are prices."""
    estimate = plan.estimate
    if estimate is None:
        return {"requests": None, "expected duration": None, "stored beside the source": None}
    found: Figures = {
        "requests": f"{estimate.requests_total:,}",
        "expected duration": duration(sum(one.at_limits_s for one in estimate.durations)),
        "stored beside the source": size(estimate.storage.added_bytes),
    }
    money = estimate.money
    if money is not None:
        as_one, each = money.batch_as_one + money.storage, money.batch_each + money.storage
        found["money, batch billed as one"] = amount_text(as_one, money.currency)
        found["money, batch billed by its rows"] = amount_text(each, money.currency)
    return found


def _advice(plan: Plan) -> Iterator[Line]:
    given = [
        {
            one.code: "set aside" if one.waived is not None else one.severity.value
            for one in reversed(migration.advice)
            if not one.today
        }
        for migration in plan.migrations
    ]
    problems = [{one.code: one.severity.value for one in reversed(each.problems)} for each in plan.migrations]
    for found in (given, problems):
        for code in sorted({code for one in found for code in one}):
            yield Line("Advice", code, tuple(one.get(code, _UNKNOWN) for one in found))
    if not any([*given, *problems]):
        yield Line("Advice", "on planned keys", ("none",) * len(plan.migrations))


def _queries(plan: Plan) -> Iterator[Line]:
    answers = [
        {one.query.describe(): one.planned.describe() for one in each.queries} for each in plan.migrations
    ]
    for query in dict.fromkeys(query for one in answers for query in one):
        yield Line("Queries", query, tuple(one.get(query, "not declared") for one in answers))
