"""Designs side by side, on the same rows: as figures, as text, as a page. Pure.

Rules kept here:

* What is compared is what two plans say; nothing is weighed and no winner is named: that depends on needs.
* A design whose keys could not be tried (a secret is missing) shows what is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rekey.plan.result import Estimate, MigrationPlan, Money, Plan, Portrait, TableFill
from rekey.present.page import page
from rekey.present.plots import AFTER, BEFORE, Series, columns
from rekey.present.text import duration, report, size, table
from rekey.project.prices import amount_text

_COLOURS = (BEFORE, AFTER)
_UNKNOWN = "–"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that is compared: its section, what it is, and a text for each design."""

    section: str
    what: str
    values: tuple[str, ...]


def comparison(plan: Plan) -> list[Line]:
    """Return what differs and what does not, in the order in which people look."""
    plans = plan.migrations
    return [*_figures("Tables", _TABLES, plans), *_advice(plans), *_queries(plans), *_costs(plans)]


def comparison_json(plan: Plan) -> dict[str, Any]:
    """Return the comparison as JSON-able data, without keys."""
    return {
        "designs": [one.script_id for one in plan.migrations],
        "lines": [asdict(line) for line in comparison(plan)],
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
    return page(
        "compare.html",
        source=plan.migrations[0].basis.source,
        names=[one.script_id for one in plan.migrations],
        basis=_basis(plan),
        sections=_sections(plan),
        plots={"Tables": _sizes(plan.migrations)},
    )


def _sections(plan: Plan) -> dict[str, list[Line]]:
    sections: dict[str, list[Line]] = {}
    for line in comparison(plan):
        sections.setdefault(line.section, []).append(line)
    return sections


def _basis(plan: Plan) -> list[str]:
    inventory = plan.migrations[0].inventory
    return [] if inventory is None else [f"the same rows for each: {inventory.basis}"]


# --- figures ------------------------------------------------------------------------------------------------

Tell = Callable[[MigrationPlan], str]
"""What one design has to say; `_UNKNOWN` where its keys could not be tried."""


def _main(tell: Callable[[TableFill], str]) -> Tell:
    """Return what tells of the rows that go to the main target."""
    return lambda plan: tell(plan.fills[0]) if plan.fills else _UNKNOWN


def _portrait(tell: Callable[[Portrait], str]) -> Tell:
    """Return what tells of the keys of the main target."""
    return lambda plan: tell(plan.portraits[1]) if len(plan.portraits) > 1 else _UNKNOWN


def _estimate(tell: Callable[[Estimate], str]) -> Tell:
    return lambda plan: _UNKNOWN if plan.estimate is None else tell(plan.estimate)


def _money(tell: Callable[[Money], float]) -> Tell:
    return _estimate(
        lambda one: _UNKNOWN if one.money is None else amount_text(tell(one.money), one.money.currency)
    )


def _largest(portrait: Portrait) -> str:
    if not portrait.largest or not portrait.rows:
        return _UNKNOWN
    rows = portrait.largest[0][1]
    return f"{rows:,} rows, {100 * rows / portrait.rows:.1f} %"


_TABLES: dict[str, Tell] = {
    "main target": lambda plan: plan.basis.targets[0].table,
    "index tables": lambda plan: f"{len(plan.basis.targets) - 1}",
    "partitions": _main(lambda fill: f"{'' if fill.partitions_exact else '>= '}{fill.partitions:,}"),
    "largest partition": _portrait(_largest),
    "key bytes of a row": _portrait(lambda portrait: f"{portrait.key_bytes:.0f}"),
    "rows to write": lambda plan: f"{sum(fill.rows for fill in plan.fills):,}",
    "rows in a batch": _main(lambda fill: f"{fill.rows_per_batch:.1f}"),
    "rows refused": lambda plan: f"{sum(refused.rows for refused in plan.refused):,}",
    "keys that collide": lambda plan: _UNKNOWN if plan.collisions is None else f"{plan.collisions.keys:,}",
}
_COSTS: dict[str, Tell] = {
    "requests": _estimate(lambda one: f"{one.requests_total:,}"),
    "expected duration": _estimate(lambda one: duration(sum(each.at_limits_s for each in one.durations))),
    "stored beside the source": _estimate(
        lambda one: _UNKNOWN if one.storage is None else size(one.storage.added_bytes)
    ),
}
_AMOUNTS: dict[str, Tell] = {
    "money, batch billed as one": _money(lambda money: money.batch_as_one + money.storage),
    "money, batch billed by its rows": _money(lambda money: money.batch_each + money.storage),
}


def _figures(section: str, figures: dict[str, Tell], plans: Sequence[MigrationPlan]) -> Iterator[Line]:
    for what, tell in figures.items():
        yield Line(section, what, tuple(map(tell, plans)))


def _costs(plans: Sequence[MigrationPlan]) -> Iterator[Line]:
    priced = any(one.estimate is not None and one.estimate.money is not None for one in plans)
    return _figures("Cost", _COSTS | (_AMOUNTS if priced else {}), plans)


def _advice(plans: Sequence[MigrationPlan]) -> Iterator[Line]:
    given = [
        {
            one.code: "set aside" if one.waived is not None else one.severity.value
            for one in reversed(plan.advice)
            if not one.today
        }
        for plan in plans
    ]
    problems = [{one.code: one.severity.value for one in reversed(plan.problems)} for plan in plans]
    for found in (given, problems):
        for code in sorted({code for one in found for code in one}):
            yield Line("Advice", code, tuple(one.get(code, _UNKNOWN) for one in found))
    if not any([*given, *problems]):
        yield Line("Advice", "on planned keys", ("none",) * len(plans))


def _queries(plans: Sequence[MigrationPlan]) -> Iterator[Line]:
    answers = [{one.query.describe(): one.planned.describe() for one in plan.queries} for plan in plans]
    for query in dict.fromkeys(query for one in answers for query in one):
        yield Line("Queries", query, tuple(one.get(query, "not declared") for one in answers))


def _sizes(plans: Sequence[MigrationPlan]) -> str:
    """Return the plot of the main targets' partitions; "" when the keys of a design could not be tried."""
    portraits = [one.portraits[1] for one in plans if len(one.portraits) > 1]
    if len(portraits) != len(plans):
        return ""
    labels = max((list(one.sizes) for one in portraits), key=len)
    series = [
        Series(plan.script_id, [one.sizes.get(label, 0) for label in labels], colour)
        for plan, one, colour in zip(plans, portraits, _COLOURS, strict=False)
    ]
    return columns(labels, series, "Partitions by their number of rows", "rows of a partition", values=True)
