"""A plan as one page for people: figures, plots, and what to know before applying. Pure.

Rules kept here:

* It says nothing that the plan does not say, and holds no key, not even of a plan that shows them: partitions
  and rows are named by safe id.
* Before and after stand side by side, on the same axes.
* What was counted on a sample is said to be so, beside the plot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rekey.core.severity import Severity
from rekey.inspect.render import size_text
from rekey.plan.portrait import LENGTH_STEP
from rekey.plan.render import money_lines, told_requests
from rekey.plan.result import Advice, Estimate, Load, MigrationPlan, Plan, Portrait
from rekey.present.page import escape, figure, page, table, tiles, verdict
from rekey.present.plots import AFTER, BEFORE, Lane, Series, columns, duration, heat, lines
from rekey.project.prices import amount_text

_FILLS = ((1, 1), (2, 9), (10, 24), (25, 49), (50, 74), (75, 99), (100, 100))


def plan_page(plan: Plan) -> str:
    """Return the page of a plan."""
    ids = [one.script_id for one in plan.migrations]
    title = f"Plan of {ids[0]}" if len(ids) == 1 else "Plan"
    made = f"made {plan.made_at[:19].replace('T', ' ')} UTC by rekey plan; nothing was written"
    parts = [f"<h1>{escape(title)}</h1>", f'<p class="soft">{escape(made)}</p>']
    for migration in plan.migrations:
        if len(ids) > 1:
            parts.append(f"<h1>{escape(migration.script_id)}</h1>")
        parts += _migration(migration)
    parts.append(
        '<p class="soft">This page holds no key. Partitions and rows have safe ids'
        + ("." if plan.ids_hold else ", which hold for this page only.")
        + "</p>"
    )
    return page(title, parts)


def _migration(plan: MigrationPlan) -> Iterator[str]:
    if plan.title:
        yield f"<p>{escape(plan.title)}</p>"
    names = ", ".join(target.table for target in plan.basis.targets)
    yield f'<p class="soft">{escape(plan.basis.source)} → {escape(names)}</p>'
    yield _verdict(plan)
    yield _tiles(plan)
    yield from pictures(plan)
    yield _queries(plan)
    yield _advice(plan)
    yield _costs(plan)
    if plan.inventory is not None:
        yield f'<p class="soft">Basis: {escape(plan.inventory.basis)}.</p>'


def _verdict(plan: MigrationPlan) -> str:
    errors = plan.errors
    if errors:
        said = "; ".join(one.message for one in errors)
        return verdict(False, f"rekey apply would refuse: {len(errors)} to mend first.", said)
    warned = sum(one.severity is Severity.WARNING for one in plan.problems) + sum(
        one.severity is Severity.WARNING and one.waived is None and not one.today for one in plan.advice
    )
    more = f"{warned} warning{'' if warned == 1 else 's'} below." if warned else "No warnings."
    return verdict(True, "Nothing stands in the way.", more)


def _tiles(plan: MigrationPlan) -> str:
    inventory, estimate = plan.inventory, plan.estimate
    if inventory is None or estimate is None:
        return ""
    about = "" if inventory.exact else "about "
    figures = [
        (f"{about}{inventory.rows.rows:,}", "rows of the source"),
        (f"{sum(fill.rows for fill in plan.fills):,}", "rows to write"),
        (f"{estimate.requests_total:,}", "requests in all phases"),
        (duration(sum(one.at_limits_s for one in estimate.durations)), "expected; changes come on top"),
    ]
    if estimate.storage is not None:
        figures.append((size_text(estimate.storage.added_bytes), "stored beside the source"))
    if estimate.money is not None:
        money = estimate.money
        least = amount_text(money.batch_as_one + money.storage, money.currency)
        figures.append((least, "with a batch billed as one"))
    return tiles(figures)


# --- plots --------------------------------------------------------------------------------------------------


def pictures(plan: MigrationPlan) -> Iterator[str]:
    """Yield the plots of one migration, as markup."""
    if not plan.portraits:
        return
    source, *targets = plan.portraits
    looked = f"in {source.rows:,} rows looked at"
    yield "<h2>Partitions</h2>"
    for target in targets[:1]:
        yield figure(
            _sizes(source, target),
            "How many partitions have how many rows",
            f"{source.table} today, {target.table} planned; {looked}",
        )
    yield '<div class="side">'
    yield figure(_largest(source, BEFORE), f"Largest partitions of {source.table}", "today")
    yield from (
        figure(_largest(target, AFTER), f"Largest partitions of {target.table}", "planned")
        for target in targets
    )
    yield "</div>"
    yield from _load(plan.loads)
    yield "<h2>Keys</h2>"
    yield '<div class="side">'
    for target in targets[:1]:
        for key in ("PartitionKey", "RowKey"):
            yield figure(_lengths(source, target, key), f"Length of the {key}", "in UTF-16 units")
    yield "</div>"
    yield "<h2>Batches</h2>"
    yield "<p>A batch holds up to 100 rows of one partition. Full ones are quick and cheap; a row alone is a"
    yield " request of its own.</p>"
    yield '<div class="side">'
    for target in targets:
        fill = next((one for one in plan.fills if one.table == target.table), None)
        mean = f"{fill.rows_per_batch:.1f} rows on average" if fill is not None else ""
        yield figure(_fills(target), f"Batches to {target.table}", mean)
    yield "</div>"


def _sizes(source: Portrait, target: Portrait) -> str:
    labels = list(source.sizes if len(source.sizes) > len(target.sizes) else target.sizes)
    series = [
        Series(name, [sizes.get(label, 0) for label in labels], colour)
        for name, sizes, colour in (
            (f"{source.table} today", source.sizes, BEFORE),
            (f"{target.table} planned", target.sizes, AFTER),
        )
    ]
    return columns(labels, series, "Partitions by their number of rows", "rows of a partition", values=True)


def _largest(portrait: Portrait, colour: str) -> str:
    labels = [str(number + 1) for number in range(len(portrait.largest))]
    series = [Series("rows", [rows for _, rows in portrait.largest], colour)]
    return columns(
        labels,
        series,
        f"Largest partitions of {portrait.table}",
        "the largest, the next, …",
        values=True,
        narrow=True,
    )


def _lengths(source: Portrait, target: Portrait, key: str) -> str:
    before, after = source.lengths[key], target.lengths[key]
    longest = max([*before, *after], default=0)
    lows = range(0, longest + 1, LENGTH_STEP)
    series = [
        Series(name, _percentages([lengths.get(low, 0) for low in lows]), colour)
        for name, lengths, colour in (
            (f"{source.table} today, %", before, BEFORE),
            (f"{target.table} planned, %", after, AFTER),
        )
    ]
    labels = [f"{low} to {low + LENGTH_STEP - 1}" for low in lows]
    return columns(labels, series, f"Lengths of the {key}", "characters", narrow=True)


def _percentages(counts: Sequence[int]) -> list[float]:
    total = sum(counts)
    return [round(100 * count / total, 1) if total else 0.0 for count in counts]


def _fills(portrait: Portrait) -> str:
    labels = [str(low) if low == high else f"{low} to {high}" for low, high in _FILLS]
    counts = [
        sum(count for rows, count in portrait.fills.items() if low <= rows <= high) for low, high in _FILLS
    ]
    series = [Series("batches", counts, AFTER)]
    return columns(
        labels,
        series,
        f"Batches to {portrait.table} by their rows",
        "rows in a batch",
        values=True,
        narrow=True,
    )


def _load(loads: Sequence[Load]) -> Iterator[str]:
    """Yield load over time: a map for each table, then how much goes to one partition at a time."""
    if not loads:
        return
    yield "<h2>Load over time</h2>"
    yield "<p>Rows by the moment in the planned keys: a lane is a partition, a column a stretch of time, and"
    yield " the stronger a cell the more rows. One strong lane from end to end is a partition that takes all"
    yield " writes for ever.</p>"
    for load in loads:
        colour = BEFORE if load.today else AFTER
        lanes = [Lane(name, rows) for name, rows in load.lanes]
        if load.others:
            lanes.append(Lane(f"{load.others:,} others", load.others_rows, sums=True))
        when = "today" if load.today else "planned"
        yield figure(heat(lanes, load.times, f"Load of {load.table} over time", colour), load.table, when)
    series = [
        Series(
            f"{load.table} {'today' if load.today else 'planned'}",
            [round(100 * share, 1) for share in load.busiest],
            BEFORE if load.today else AFTER,
        )
        for load in loads
    ]
    yield figure(
        lines(series, loads[0].times, "Share of the busiest partition over time"),
        "Share of the rows that goes to one partition",
        "of each stretch of time",
    )


# --- tables -------------------------------------------------------------------------------------------------


def _queries(plan: MigrationPlan) -> str:
    rows = [
        [escape(one.query.describe()), escape(one.today.describe()), escape(one.planned.describe())]
        for one in plan.queries
    ]
    return f"<h2>Queries</h2>{table(('query', 'today', 'planned'), rows)}" if rows else ""


def _advice(plan: MigrationPlan) -> str:
    rows = [
        [_severity(one.severity), f"<code>{escape(one.code)}</code>", escape(one.message), escape(one.cure)]
        for one in plan.problems
    ]
    rows += [_advice_row(one) for one in plan.advice]
    if not rows:
        return ""
    return f"<h2>What to know</h2>{table(('', 'code', 'what', 'what to do'), rows)}"


def _advice_row(one: Advice) -> list[str]:
    if one.today:
        done = "the planned keys answer this" if one.answered else "the planned keys have it, too"
        what = f"{one.where}, today: {one.evidence}"
    else:
        done = f"set aside: {one.waived}" if one.waived is not None else one.cure
        what = f"{one.where}: {one.evidence}"
    return [_severity(one.severity), f"<code>{escape(one.code)}</code>", escape(what), escape(done)]


def _severity(severity: Severity) -> str:
    kind = {Severity.ERROR: "bad", Severity.WARNING: "mild", Severity.NOTE: "soft"}[severity]
    return f'<span class="{kind}">{escape(severity.value)}</span>'


def _costs(plan: MigrationPlan) -> str:
    estimate = plan.estimate
    if estimate is None:
        return ""
    requests = [
        [escape(phase), escape(what), f"{count:,}", escape(kinds)]
        for phase, what, count, kinds in told_requests(estimate)
    ]
    requests.append(["", "all", f"{estimate.requests_total:,}", ""])
    times = [
        [
            escape(one.phase),
            duration(one.at_targets_s),
            duration(one.at_limits_s),
            escape(one.at_limits_bound),
        ]
        for one in estimate.durations
    ]
    return "".join(
        (
            "<h2>Time</h2>",
            table(("phase", "at best", "expected", "bound by"), times, numbers=(1, 2)),
            "<h2>Requests</h2>",
            table(("phase", "for", "requests", "of kind"), requests, numbers=(2,), total=True),
            _storage(estimate),
            _money(estimate),
        )
    )


def _storage(estimate: Estimate) -> str:
    storage = estimate.storage
    if storage is None:
        return ""
    rows = [
        ["source, there anyway", size_text(storage.source_bytes)],
        ["targets", size_text(storage.target_bytes)],
        ["mapping, in the restricted account", size_text(storage.mapping_bytes)],
        ["more than now", size_text(storage.added_bytes)],
    ]
    said = f"For about {storage.days:,.1f} days: the expected duration, and the retention period."
    return f"<h2>Storage while both tables exist</h2><p>{escape(said)}</p>" + table(
        ("what", "bytes"), rows, numbers=(1,), total=True
    )


def _money(estimate: Estimate) -> str:
    money = estimate.money
    if money is None:
        missing = ", ".join(estimate.prices_missing)
        return (
            f"<h2>Money</h2><p>No prices: set {escape(missing)} under <code>[prices]</code> in"
            " <code>rekey.toml</code>.</p>"
        )
    rows = [
        [escape(name), *(escape(amount_text(amount, money.currency)) for amount in amounts)]
        for name, amounts in money_lines(money)
    ]
    head = ("for", "a batch billed as one", "a batch billed by its rows")
    return "<h2>Money</h2>" + table(head, rows, numbers=(1, 2), total=True)
