"""Designs side by side, on the same rows: as figures, as text, as a page. Pure.

Rules kept here:

* What is compared is what two plans say; nothing is weighed and no winner is named: that depends on needs.
* A design whose keys could not be tried (a secret is missing) shows what is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rekey.inspect.render import size_text
from rekey.plan.render import aligned
from rekey.plan.result import MigrationPlan, Plan, Portrait
from rekey.present.page import escape, figure, page, table
from rekey.present.plots import AFTER, BEFORE, Series, columns, duration
from rekey.project.prices import amount_text

_COLOURS = (BEFORE, AFTER)


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that is compared: its section, what it is, and a text for each design."""

    section: str
    what: str
    values: tuple[str, ...]


def comparison(plan: Plan) -> list[Line]:
    """Return what differs and what does not, in the order in which people look."""
    plans = plan.migrations
    return [
        *_tables(plans),
        *_advice(plans),
        *_queries(plans),
        *_costs(plans),
    ]


def comparison_json(plan: Plan) -> dict[str, Any]:
    """Return the comparison as JSON-able data, without keys."""
    return {
        "designs": [one.script_id for one in plan.migrations],
        "lines": [
            {"section": line.section, "what": line.what, "values": list(line.values)}
            for line in comparison(plan)
        ],
    }


def comparison_text(plan: Plan) -> str:
    """Return the comparison as text of at most 100 columns, ending in a line break."""
    names = [one.script_id for one in plan.migrations]
    out = [f"{plan.migrations[0].basis.source}: {' | '.join(names)}", *_basis(plan), ""]
    section = ""
    block: list[Sequence[str]] = []
    for line in [*comparison(plan), Line("", "", ())]:
        if line.section != section and block:
            out += [section, *(f"  {row}" for row in aligned(("", *names), block)), ""]
            block = []
        section = line.section
        block.append((line.what, *line.values))
    return "\n".join(out).rstrip() + "\n"


def comparison_page(plan: Plan) -> str:
    """Return the comparison as one page that loads nothing."""
    names = [one.script_id for one in plan.migrations]
    title = " or ".join(names)
    basis = "".join(f'<p class="soft">{escape(line)}</p>' for line in _basis(plan))
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(plan.migrations[0].basis.source)}</p>", basis]
    lines = comparison(plan)
    for section in dict.fromkeys(line.section for line in lines):
        rows = [[escape(line.what), *map(escape, line.values)] for line in lines if line.section == section]
        parts += [f"<h2>{escape(section)}</h2>", *_plots(section, plan.migrations)]
        parts.append(table(("", *names), rows))
    parts.append('<p class="soft">This page holds no key.</p>')
    return page(title, parts)


def _basis(plan: Plan) -> list[str]:
    inventory = plan.migrations[0].inventory
    return [] if inventory is None else [f"the same rows for each: {inventory.basis}"]


def _tables(plans: Sequence[MigrationPlan]) -> Iterator[Line]:
    """The main target, then how many tables and rows there are in all."""
    main = [one.fills[0] if one.fills else None for one in plans]
    portraits = [one.portraits[1] if len(one.portraits) > 1 else None for one in plans]
    yield _line("Tables", "main target", [one.basis.targets[0].table for one in plans])
    yield _line("Tables", "index tables", [f"{len(one.basis.targets) - 1}" for one in plans])
    yield _line(
        "Tables",
        "partitions",
        [
            "–" if fill is None else f"{'' if fill.partitions_exact else '>= '}{fill.partitions:,}"
            for fill in main
        ],
    )
    yield _line("Tables", "largest partition", [_share(one) for one in portraits])
    yield _line("Tables", "key bytes of a row", [_key_bytes(one) for one in portraits])
    yield _line("Tables", "rows to write", [f"{sum(fill.rows for fill in one.fills):,}" for one in plans])
    yield _line(
        "Tables", "rows in a batch", ["–" if fill is None else f"{fill.rows_per_batch:.1f}" for fill in main]
    )
    yield _line(
        "Tables", "rows refused", [f"{sum(refused.rows for refused in one.refused):,}" for one in plans]
    )
    yield _line(
        "Tables",
        "keys that collide",
        ["–" if one.collisions is None else f"{one.collisions.keys:,}" for one in plans],
    )


def _share(portrait: Portrait | None) -> str:
    if portrait is None or not portrait.largest or not portrait.rows:
        return "–"
    rows = portrait.largest[0][1]
    return f"{rows:,} rows, {100 * rows / portrait.rows:.1f} %"


def _key_bytes(portrait: Portrait | None) -> str:
    return "–" if portrait is None else f"{portrait.key_bytes:.0f}"


def _advice(plans: Sequence[MigrationPlan]) -> Iterator[Line]:
    given = [
        {
            one.code: "set aside" if one.waived is not None else one.severity.value
            for one in reversed(plan.advice)
            if not one.today
        }
        for plan in plans
    ]
    codes = sorted({code for one in given for code in one})
    for code in codes:
        yield _line("Advice", code, [one.get(code, "–") for one in given])
    problems = [{one.code: one.severity.value for one in reversed(plan.problems)} for plan in plans]
    others = sorted({code for one in problems for code in one})
    for code in others:
        yield _line("Advice", code, [one.get(code, "–") for one in problems])
    if not codes and not others:
        yield _line("Advice", "on planned keys", ["none"] * len(plans))


def _queries(plans: Sequence[MigrationPlan]) -> Iterator[Line]:
    answers = [{one.query.describe(): one.planned.describe() for one in plan.queries} for plan in plans]
    for query in dict.fromkeys(query for one in answers for query in one):
        yield _line("Queries", query, [one.get(query, "not declared") for one in answers])


def _costs(plans: Sequence[MigrationPlan]) -> Iterator[Line]:
    costs = [one.estimate for one in plans]
    yield _line("Cost", "requests", ["–" if one is None else f"{one.requests_total:,}" for one in costs])
    yield _line(
        "Cost",
        "expected duration",
        ["–" if one is None else duration(sum(each.at_limits_s for each in one.durations)) for one in costs],
    )
    yield _line(
        "Cost",
        "stored beside the source",
        ["–" if one is None or one.storage is None else size_text(one.storage.added_bytes) for one in costs],
    )
    money = [None if one is None else one.money for one in costs]
    if not any(money):
        return
    yield _line(
        "Cost",
        "money, batch billed as one",
        ["–" if one is None else amount_text(one.batch_as_one + one.storage, one.currency) for one in money],
    )
    yield _line(
        "Cost",
        "money, batch billed by its rows",
        ["–" if one is None else amount_text(one.batch_each + one.storage, one.currency) for one in money],
    )


def _plots(section: str, plans: Sequence[MigrationPlan]) -> Iterator[str]:
    portraits = [one.portraits[1] for one in plans if len(one.portraits) > 1]
    if section != "Tables" or len(portraits) != len(plans):
        return
    labels = max((list(one.sizes) for one in portraits), key=len)
    series = [
        Series(plan.script_id, [one.sizes.get(label, 0) for label in labels], colour)
        for plan, one, colour in zip(plans, portraits, _COLOURS, strict=False)
    ]
    plot = columns(labels, series, "Partitions by their number of rows", "rows of a partition", values=True)
    yield figure(plot, "How many partitions have how many rows", "main target of each design")


def _line(section: str, what: str, values: Sequence[str]) -> Line:
    return Line(section, what, tuple(values))
