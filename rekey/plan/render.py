"""A plan as text for an operator.

Rules kept here:

* At most 100 columns; figures right-aligned under each other; what is wrong comes last, where the eye rests.
* An estimate carries `about`; a lower bound `at least`.
* Without `shows_keys` the text holds no key. With it the text says that it is for the operator's eyes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rekey.core.severity import Severity
from rekey.inspect.render import size_text
from rekey.model import EntityKey
from rekey.plan.advice.render import advice_lines, query_lines
from rekey.plan.estimate import ASSUMED_REQUEST_SECONDS
from rekey.plan.result import CollisionGroup, Estimate, Example, MigrationPlan, Money, NewKey, Plan, Problem
from rekey.project.prices import amount_text

WIDTH = 100
_LABEL = 14
_COLLISIONS_SHOWN = 5


def plan_text(plan: Plan) -> str:
    """Return a plan as text of at most 100 columns, ending in a line break."""
    lines: list[str] = []
    if plan.shows_keys:
        lines += ["KEYS ARE SHOWN. For the operator's eyes only: do not store or send this text.", ""]
    for migration in plan.migrations:
        lines += _migration(migration, plan)
    lines += _verdict(plan)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _migration(migration: MigrationPlan, plan: Plan) -> Iterator[str]:
    yield from _wrapped(migration.script_id + (f": {migration.title}" if migration.title else ""))
    yield "=" * min(WIDTH, max(len(migration.script_id), 20))
    yield _field("declaration", f"sha256 {migration.basis.declaration[:16]}…")
    yield from _source(migration)
    for target in migration.basis.targets:
        state = "holds rows" if target.holds_rows else "exists" if target.exists else "will be made"
        yield _field("target", f"{target.table} ({state})")
    yield ""
    if migration.estimate is not None and migration.mapped_rows:
        yield from _examples(migration.examples, plan)
        yield from _batches(migration)
        yield from _requests(migration)
        yield from _durations(migration)
    if migration.queries:
        yield "Queries"
        yield from (f"  {line}" if line else line for line in query_lines(migration.queries))
        yield ""
    yield from _problems(migration)
    if migration.advice:
        yield from advice_lines(migration.advice)
        yield ""


def _source(migration: MigrationPlan) -> Iterator[str]:
    inventory = migration.inventory
    if inventory is None:
        yield _field("source", f"{migration.basis.source} (does not exist)")
        return
    about = "" if inventory.exact else "about " if inventory.rows.settled else "at least about "
    yield _field("source", inventory.table)
    yield _field("rows", f"{about}{inventory.rows.rows:,}")
    yield _field("bytes", f"{about}{size_text(inventory.stored_bytes)}")
    at_least = "" if inventory.exact else "at least "
    largest = f"the largest of {at_least}{inventory.largest_partition:,} rows"
    yield _field("partitions", f"{at_least}{inventory.partitions:,}, {largest}")
    yield from _wrapped(inventory.basis, first=f"{'basis':<{_LABEL}}", rest=" " * _LABEL)


def _examples(examples: Sequence[Example], plan: Plan) -> Iterator[str]:
    yield "Example rows" + ("" if plan.ids_hold else " (safe ids hold for this plan only)")
    for example in examples:
        old = f"  {_key(example.old_key)}" if example.old_key is not None else ""
        yield from _wrapped(f"{example.row_id}{old}", first="  ", rest="      ")
        for new in example.new_keys:
            yield from _wrapped(f"-> {_new_key(new)}", first="    ", rest="       ")
    yield ""


def _new_key(new: NewKey) -> str:
    if new.new_key is not None:
        return f"{new.table} {new.row_id}  {_key(new.new_key)}"
    lengths = f"PartitionKey of {new.partition_units}, RowKey of {new.row_units} characters"
    return f"{new.table} {new.row_id}  ({lengths})"


def _batches(migration: MigrationPlan) -> Iterator[str]:
    rows = [
        (
            fill.table,
            f"{fill.rows:,}",
            f"{fill.batches:,}",
            f"{fill.rows_per_batch:.1f}",
            f"{at_least}{fill.partitions:,}",
            f"{at_least}{fill.largest_partition:,}",
        )
        for fill in migration.fills
        for at_least in ("" if fill.partitions_exact else ">= ",)
    ]
    yield from _table(
        ("Target", "rows", "batches", "rows/batch", "partitions", "largest"), rows, ["", *[">"] * 5]
    )
    yield ""


def _requests(migration: MigrationPlan) -> Iterator[str]:
    estimate = migration.estimate
    if estimate is None:
        return
    rows = [(phase, what, f"{count:,}", kinds) for phase, what, count, kinds in told_requests(estimate)]
    rows.append(("", "all", f"{estimate.requests_total:,}", ""))
    yield from _table(("Phase", "requests", "count", "of kind"), rows, ["", "", ">", ""])
    yield ""
    yield from _cost(estimate)


def told_requests(estimate: Estimate) -> list[tuple[str, str, int, str]]:
    """Return phase, purpose, number and kinds of the requests; what serves one purpose in one line."""
    lines: dict[tuple[str, str], dict[str, int]] = {}
    for one in estimate.requests:
        lines.setdefault((one.phase, one.what), {})[one.kind.value] = one.count
    return [
        (phase, what, sum(kinds.values()), ", ".join(kinds) if len(kinds) > 1 else next(iter(kinds)))
        for (phase, what), kinds in lines.items()
    ]


def _cost(estimate: Estimate) -> Iterator[str]:
    storage = estimate.storage
    if storage is None:
        return
    yield "Storage while both tables exist"
    parts = (
        f"source {size_text(storage.source_bytes)}, targets {size_text(storage.target_bytes)}, mapping"
        f" {size_text(storage.mapping_bytes)}: {size_text(storage.added_bytes)} more than now, for about"
        f" {storage.days:,.1f} days (expected duration and retention)"
    )
    yield from _wrapped(parts, first="  ", rest="  ")
    yield ""
    yield "Money"
    money = estimate.money
    if money is None:
        missing = ", ".join(estimate.prices_missing)
        yield from _wrapped(
            f"no prices: set {missing} under [prices] in rekey.toml. The Azure pricing page for Table"
            " Storage, or your bill, has them.",
            first="  ",
            rest="  ",
        )
    else:
        rows = [
            (f"{name}", *(amount_text(amount, money.currency) for amount in amounts))
            for name, amounts in money_lines(money)
        ]
        head = ("", "batch billed as one", "batch billed by its rows")
        yield from (f"  {line}" for line in _table(head, rows, ["", ">", ">"]))
    yield ""


def money_lines(money: Money) -> list[tuple[str, tuple[float, float]]]:
    """Return what is paid for, with the amounts under both readings of how batches are billed."""
    return [
        ("requests", (money.batch_as_one, money.batch_each)),
        ("storage", (money.storage, money.storage)),
        ("all", (money.batch_as_one + money.storage, money.batch_each + money.storage)),
    ]


def _durations(migration: MigrationPlan) -> Iterator[str]:
    estimate = migration.estimate
    if estimate is None:
        return
    rows = [
        (one.phase, _time(one.at_targets_s), _time(one.at_limits_s), one.at_limits_bound)
        for one in estimate.durations
    ]
    quickest = sum(one.at_targets_s for one in estimate.durations)
    likely = sum(one.at_limits_s for one in estimate.durations)
    rows.append(("all", _time(quickest), _time(likely), ""))
    yield from _table(("Phase", "at best", "expected", "bound by"), rows, ["", ">", ">", ""])
    milliseconds = f"{ASSUMED_REQUEST_SECONDS * 1000:.0f} ms"
    yield from _wrapped(
        "at best: at the service's targets (20,000 entities/s an account, 2,000/s a partition); expected:"
        f" with the configured limits too, {milliseconds} a request assumed. Changes meanwhile come on top.",
        first="  ",
        rest="  ",
    )
    yield ""


def _problems(migration: MigrationPlan) -> Iterator[str]:
    collisions = migration.collisions
    if collisions is not None:
        where = f"in all {migration.mapped_rows:,} rows" if collisions.exact else "in the rows sampled"
        yield _field("collisions", f"{collisions.keys:,} {where}")
        for group in collisions.first[:_COLLISIONS_SHOWN]:
            yield from _wrapped(_collision(group), first="  ", rest="    ")
        if len(collisions.first) > _COLLISIONS_SHOWN:
            yield f"  and {collisions.keys - _COLLISIONS_SHOWN:,} more"
        yield ""
    for problem in migration.problems:
        yield from _problem(problem)
    if migration.problems:
        yield ""
    yield from _refused_keys(migration)


def _refused_keys(migration: MigrationPlan) -> Iterator[str]:
    """The keys of rows that cannot be mapped, when they were asked for."""
    for refused in migration.refused:
        if refused.old_keys:
            yield f"Rows refused with {refused.code} ({refused.field})"
            for row_id, key in zip(refused.row_ids, refused.old_keys, strict=True):
                yield from _wrapped(f"{row_id}  {_key(key)}", first="  ", rest="      ")
            yield ""


def _collision(group: CollisionGroup) -> str:
    more = f" and {group.rows - len(group.row_ids):,} more" if group.rows > len(group.row_ids) else ""
    text = f"one key of {group.table}: rows {', '.join(group.row_ids)}{more}"
    if group.old_keys:
        text += ": " + ", ".join(map(_key, group.old_keys))
    return text


def _problem(problem: Problem) -> Iterator[str]:
    label = f"{problem.severity.upper():<8}"
    yield from _wrapped(f"{problem.code}: {problem.message}", first=label, rest=" " * 8)
    if problem.row_ids:
        more = ", …" if problem.rows > len(problem.row_ids) else ""
        yield from _wrapped(f"rows {', '.join(problem.row_ids)}{more}", first=" " * 8, rest=" " * 8)
    yield from _wrapped(f"cure: {problem.cure}", first=" " * 8, rest=" " * 14)


def _verdict(plan: Plan) -> Iterator[str]:
    counts = dict.fromkeys(Severity, 0)
    for migration in plan.migrations:
        for problem in migration.problems:
            counts[problem.severity] += 1
        for one in migration.advice:
            counts[Severity.NOTE if one.waived is not None else one.severity] += 1
    errors = counts[Severity.ERROR]
    said = ", ".join(
        f"{number} {severity}{'' if number == 1 else 's'}" for severity, number in counts.items() if number
    )
    if not plan.migrations:
        yield "Nothing to plan: there is no migration script."
    elif errors:
        yield f"{said}. `rekey apply` would refuse or stop: mend the errors first."
    else:
        yield f"{said or 'No problems'}. Nothing was written; `rekey apply` begins."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], align: Sequence[str]) -> Iterator[str]:
    widths = [max(len(line[column]) for line in [head, *rows]) for column in range(len(head))]
    for line in [head, *rows]:
        cells = (
            f"{cell:{side or '<'}{width}}" for cell, side, width in zip(line, align, widths, strict=True)
        )
        yield from _clipped("  ".join(cells))


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table of texts whose cells are wrapped, two columns narrower than other text."""
    first = min(34, max(len(line[0]) for line in [head, *rows]))
    rest = (WIDTH - 2 - first) // (len(head) - 1) - 2
    widths = [first, *([rest] * (len(head) - 1))]
    lines = []
    for line in [head, *rows]:
        cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(line, widths, strict=True)]
        for part in range(max(map(len, cells))):
            parts = (cell[part] if part < len(cell) else "" for cell in cells)
            lines.append("  ".join(f"{one:<{width}}" for one, width in zip(parts, widths, strict=True)))
    return [line.rstrip() for line in lines]


def _clipped(line: str) -> Iterator[str]:
    line = line.rstrip()
    if len(line) <= WIDTH:
        yield line
    else:
        yield from _wrapped(line, rest="    ")


def _field(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def _wrapped(text: str, *, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _key(key: EntityKey) -> str:
    return f"({key.partition!r}, {key.row!r})"


def _time(seconds: float) -> str:
    if seconds < 1:
        return "< 1 s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02d} h"
