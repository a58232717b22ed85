"""A plan as one HTML page: figures, plots, and what to know before applying. Pure. It holds no key, not even
for a plan that shows keys; estimates are called so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rekey.phases import shown
from rekey.plan.portrait import LENGTH_STEP
from rekey.plan.render import money_lines, requests_by_purpose
from rekey.plan.result import NOT_LOOKED_AT, Load, Plan, Portrait
from rekey.present.page import page
from rekey.present.plots import AFTER, BEFORE, Lane, Series, columns, heat, lines
from rekey.project.prices import amount_text

Shown = TypeVar("Shown", Portrait, Load)
_FILLS = ((1, 1), (2, 9), (10, 24), (25, 49), (50, 74), (75, 99), (100, 100))


def plan_page(plan: Plan) -> str:
    """Return the HTML page of a plan."""
    return page(
        "plan.html",
        plan=plan,
        not_looked_at=NOT_LOOKED_AT,
        plots={"sizes": partition_sizes, "largest": _largest, "lengths": _lengths, "fills": _fills},
        loads={"map": _load, "shares": _shares},
        requests=requests_by_purpose,
        shown=shown,
        money=money_lines,
        amount=amount_text,
    )


# --- plots --------------------------------------------------------------------------------------------------


def _series(
    shown: Sequence[Shown], values: Callable[[Shown], Sequence[float]], unit: str = ""
) -> list[Series]:
    """Return a series for each table, in the color of today's tables or of planned ones."""
    series = []
    for subject in shown:
        when, color = ("today", BEFORE) if subject.today else ("planned", AFTER)
        series.append(Series(f"{subject.table} {when}{unit}", values(subject), color))
    return series


def partition_sizes(portraits: Sequence[Portrait], names: Sequence[str]) -> str:
    """Return the plot that compares two tables by the number of partitions of each size, in rows."""
    labels = max((list(portrait.sizes) for portrait in portraits), key=len)
    series = [
        Series(name, [portrait.sizes.get(label, 0) for label in labels], color)
        for name, portrait, color in zip(names, portraits, (BEFORE, AFTER), strict=False)
    ]
    title = "Partitions by their number of rows"
    return columns(labels, series, title, "rows of a partition", values=True, narrow=True)


def _largest(portrait: Portrait) -> str:
    labels = [str(number + 1) for number in range(len(portrait.largest))]
    series = _series([portrait], lambda portrait: [rows for _, rows in portrait.largest])
    title = f"Largest partitions of {portrait.table}"
    return columns(labels, series, title, "the largest, the next, …", values=True, narrow=True)


def _lengths(source: Portrait, target: Portrait, key: str) -> str:
    lows = range(0, max([*source.lengths[key], *target.lengths[key]], default=0) + 1, LENGTH_STEP)

    def percentages(portrait: Portrait) -> list[float]:
        counts = [portrait.lengths[key].get(low, 0) for low in lows]
        return [round(100 * count / max(1, sum(counts)), 1) for count in counts]

    series = _series((source, target), percentages, ", %")
    labels = [f"{low} to {low + LENGTH_STEP - 1}" for low in lows]
    return columns(labels, series, f"Lengths of the {key}", "characters", narrow=True)


def _fills(portrait: Portrait) -> str:
    labels = [str(low) if low == high else f"{low} to {high}" for low, high in _FILLS]
    counts = [
        sum(count for rows, count in portrait.fills.items() if low <= rows <= high) for low, high in _FILLS
    ]
    title, series = f"Batches to {portrait.table} by their rows", _series([portrait], lambda _: counts)
    return columns(labels, series, title, "rows in a batch", values=True, narrow=True)


def _load(load: Load) -> str:
    lanes = [Lane(name, rows) for name, rows in load.lanes]
    if any(load.others_rows):
        more = "" if load.partitions_exact else "> "
        lanes.append(Lane(f"{more}{load.others:,} others", load.others_rows, is_total=True))
    return heat(lanes, _times(load), f"Load of {load.table} over time", BEFORE if load.today else AFTER)


def _times(load: Load) -> list[str]:
    """Return the beginnings of the columns for people: `2024-03-01 09:00` for `2024-03-01T09`."""
    return [at.replace("T", " ") + ":00" * ("T" in at) for at in load.times]


def _shares(loads: Sequence[Load]) -> str:
    series = _series(loads, lambda load: [round(100 * share, 1) for share in load.busiest])
    return lines(series, _times(loads[0]), "Share of the busiest partition over time")
