"""A plan and its advice as text for an operator. Pure.

Rules kept here:

* Problems and advice come last, where the eye rests. A text that blocks `apply` says so; waived advice is
  shown with its reason.
* An estimate carries `about`; a lower bound `at least`.
* Without `shows_keys` the text holds no key. With it the text says that it is for the operator's eyes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from rekey.core.severity import Severity
from rekey.model import EntityKey
from rekey.plan.estimate import ASSUMED_REQUEST_SECONDS
from rekey.plan.result import Advice, Estimate, MigrationPlan, Money, Plan
from rekey.present.text import KEYS_ARE_SHOWN, WIDTH, counted, duration, field, report, size, table
from rekey.present.text import wrapped as wrapped_text
from rekey.project.prices import amount_text

_SEVERITY = 8
_COLLISIONS_SHOWN = 5

_field = partial(field, width=14)
wrapped = partial(wrapped_text, break_long_words=True)  # a key may be wider than a line


def plan_text(plan: Plan) -> str:
    """Return a plan as text, ending in a line break."""
    lines = [KEYS_ARE_SHOWN, ""] if plan.shows_keys else []
    for migration in plan.migrations:
        lines += _migration(migration, plan)
    return report([*lines, *_verdict(plan)])


def _migration(migration: MigrationPlan, plan: Plan) -> Iterator[str]:
    yield from wrapped(migration.script_id + (f": {migration.title}" if migration.title else ""))
    yield "=" * min(WIDTH, max(len(migration.script_id), 20))
    yield from _field("declaration", f"sha256 {migration.basis.declaration[:16]}…")
    yield from _source(migration)
    for target in migration.basis.targets:
        state = "holds rows" if target.holds_rows else "exists" if target.exists else "will be made"
        yield from _field("target", f"{target.table} ({state})")
    yield ""
    if migration.estimate is not None and migration.mapped_rows:
        yield from _examples(migration, plan)
        yield from _requests(migration, migration.estimate)
        yield from _cost(migration.estimate)
        yield from _durations(migration.estimate)
    if migration.queries:
        yield "Queries"
        for one in migration.queries:
            yield from wrapped(one.query.describe(), first="  ", rest=" " * 10)
            yield from wrapped(one.today.describe(), first="    today    ")
            yield from wrapped(one.planned.describe(), first="    planned  ")
        yield ""
    yield from _problems(migration)
    if migration.advice:
        yield from advice_lines(migration.advice)
        yield ""


def _source(migration: MigrationPlan) -> Iterator[str]:
    inventory = migration.inventory
    if inventory is None:
        yield from _field("source", f"{migration.basis.source} (does not exist)")
        return
    about = "" if inventory.exact else "about " if inventory.rows.settled else "at least about "
    at_least = "" if inventory.exact else "at least "
    largest = f"the largest of {at_least}{inventory.largest_partition:,} rows"
    yield from _field("source", inventory.table)
    yield from _field("rows", f"{about}{inventory.rows.rows:,}")
    yield from _field("bytes", f"{'about ' if migration.sampled else about}{size(inventory.stored_bytes)}")
    yield from _field("partitions", f"{at_least}{inventory.partitions:,}, {largest}")
    yield from _field("basis", inventory.basis)
    if migration.sampled:
        yield from _field("", migration.sampled)


def _examples(migration: MigrationPlan, plan: Plan) -> Iterator[str]:
    yield "Example rows" + ("" if plan.ids_hold else " (safe ids hold for this plan only)")
    for example in migration.examples:
        old = f"  {_key(example.old_key)}" if example.old_key is not None else ""
        yield from wrapped(f"{example.row_id}{old}", first="  ", rest="      ")
        for new in example.new_keys:
            key = f"(PartitionKey of {new.partition_units}, RowKey of {new.row_units} characters)"
            if new.new_key is not None:
                key = _key(new.new_key)
            yield from wrapped(f"{new.table} {new.row_id}  {key}", first="    -> ")
    yield ""


def _requests(migration: MigrationPlan, estimate: Estimate) -> Iterator[str]:
    batches = []
    for fill in migration.fills:
        written = (fill.table, f"{fill.rows:,}", f"{fill.batches:,}", f"{fill.rows_per_batch:.1f}")
        if fill.with_main:
            written = (fill.table, f"{fill.rows:,}", "with main rows", "")
        at_least = "" if fill.partitions_exact else ">= "
        partitions = (f"{at_least}{fill.partitions:,}", f"{at_least}{fill.largest_partition:,}")
        batches.append((*written, *partitions))
    head = ("Target", "rows", "batches", "rows/batch", "partitions", "largest")
    yield from table(head, batches, right=range(1, 6))
    yield ""
    rows = [(phase, what, f"{count:,}", kinds) for phase, what, count, kinds in told_requests(estimate)]
    rows.append(("", "all", f"{estimate.requests_total:,}", ""))
    yield from table(("Phase", "requests", "count", "of kind"), rows, right={2})
    yield ""


def told_requests(estimate: Estimate) -> list[tuple[str, str, int, str]]:
    """Return phase, purpose, number and kinds of the requests; one line for each purpose in a phase."""
    told: dict[tuple[str, str], dict[str, int]] = {}
    for one in estimate.requests:
        told.setdefault((one.phase, one.what), {})[one.kind.value] = one.count
    return [(phase, what, sum(kinds.values()), ", ".join(kinds)) for (phase, what), kinds in told.items()]


def _cost(estimate: Estimate) -> Iterator[str]:
    storage, money = estimate.storage, estimate.money
    yield "Storage while both tables exist"
    yield from wrapped(
        f"source {size(storage.source_bytes)}, targets {size(storage.target_bytes)}, mapping"
        f" {size(storage.mapping_bytes)}: {size(storage.added_bytes)} more than now, for about"
        f" {storage.days:,.1f} days (expected duration and retention)",
        first="  ",
    )
    yield from ("", "Money")
    if money is None:
        missing = ", ".join(estimate.prices_missing)
        yield from wrapped(
            f"no prices: set {missing} under [prices] in rekey.toml. The Azure pricing page for Table"
            " Storage, or your bill, has them.",
            first="  ",
        )
    else:
        head = ("", "batch billed as one", "batch billed by its rows")
        yield from table(head, money_lines(money), right={1, 2}, indent="  ")
    yield ""


def money_lines(money: Money) -> list[tuple[str, str, str]]:
    """Return the items of the bill, with the amounts under both readings of how batches are billed."""
    amounts = (
        ("requests", money.batch_as_one, money.batch_each),
        ("storage", money.storage, money.storage),
        ("all", money.batch_as_one + money.storage, money.batch_each + money.storage),
    )
    return [
        (name, amount_text(as_one, money.currency), amount_text(by_rows, money.currency))
        for name, as_one, by_rows in amounts
    ]


def _durations(estimate: Estimate) -> Iterator[str]:
    rows = [
        (one.phase, _time(one.at_targets_s), _time(one.at_limits_s), one.at_limits_bound)
        for one in estimate.durations
    ]
    quickest = sum(one.at_targets_s for one in estimate.durations)
    likely = sum(one.at_limits_s for one in estimate.durations)
    rows.append(("all", _time(quickest), _time(likely), ""))
    yield from table(("Phase", "at best", "expected", "bound by"), rows, right={1, 2})
    yield from wrapped(
        "at best: at the service's targets (20,000 entities/s an account, 2,000/s a partition), beyond which"
        ' `entities_per_second = "auto"` may go; expected:'
        f" with the configured limits too, {ASSUMED_REQUEST_SECONDS * 1000:.0f} ms a request assumed. Changes"
        " meanwhile come on top.",
        first="  ",
    )
    yield ""


def _time(seconds: float) -> str:
    return "< 1 s" if seconds < 1 else duration(seconds)


def _problems(migration: MigrationPlan) -> Iterator[str]:
    collisions = migration.collisions
    if collisions is not None:
        where = f"in all {migration.mapped_rows:,} rows" if collisions.exact else "in the rows sampled"
        yield from _field("collisions", f"{collisions.keys:,} {where}")
        for group in collisions.first[:_COLLISIONS_SHOWN]:
            more = f" and {group.rows - len(group.row_ids):,} more" if group.rows > len(group.row_ids) else ""
            keys = ": " + ", ".join(map(_key, group.old_keys)) if group.old_keys else ""
            said = f"one key of {group.table}: rows {', '.join(group.row_ids)}{more}{keys}"
            yield from wrapped(said, first="  ", rest="    ")
        if len(collisions.first) > _COLLISIONS_SHOWN:
            yield f"  and {collisions.keys - _COLLISIONS_SHOWN:,} more"
        yield ""
    for problem in migration.problems:
        yield from _labelled(problem.severity, f"{problem.code}: {problem.message}")
        if problem.row_ids:
            more = ", …" if problem.rows > len(problem.row_ids) else ""
            yield from _labelled("", f"rows {', '.join(problem.row_ids)}{more}")
        yield from _labelled("", problem.cure, "cure: ")
    if migration.problems:
        yield ""
    for refused in migration.refused:
        if refused.old_keys:  # they were asked for
            yield f"Rows refused with {refused.code} ({refused.field})"
            for row_id, key in zip(refused.row_ids, refused.old_keys, strict=True):
                yield from wrapped(f"{row_id}  {_key(key)}", first="  ", rest="      ")
            yield ""


def advice_lines(found: Sequence[Advice], *, with_today: bool = False) -> Iterator[str]:
    """Yield advice in full, but one line each for advice on today's keys, which the migration replaces.

    Args:
        found: the advice.
        with_today: give advice on today's keys in full, too, because nothing is planned.
    """
    for one in found:
        if one.today and not with_today and one.waived is None:
            then = "; the planned keys answer this" if one.answered else "; the planned keys have it, too"
            yield from _labelled(one.severity, f"{one.code}: {one.where}, today: {one.evidence}{then}")
            continue
        label = one.severity if one.waived is None else "waived"
        yield from _labelled(label, f"{one.code}: {one.where}: {one.evidence}")
        yield from _labelled("", one.reason, "why: ")
        if one.waived is None:
            yield from _labelled("", one.cure, "cure: ")
        else:
            yield from _labelled("", one.waived, "set aside: ")


def _verdict(plan: Plan) -> Iterator[str]:
    counts = dict.fromkeys(Severity, 0)
    for migration in plan.migrations:
        for problem in migration.problems:
            counts[problem.severity] += 1
        for one in migration.advice:
            counts[Severity.NOTE if one.waived is not None else one.severity] += 1
    said = ", ".join(counted(number, severity) for severity, number in counts.items() if number)
    if not plan.migrations:
        yield "Nothing to plan: there is no migration script."
    elif counts[Severity.ERROR]:
        yield f"{said}. `rekey apply` would refuse or stop: mend the errors first."
    else:
        yield f"{said or 'No problems'}. Nothing was written; `rekey apply` begins."


def _labelled(label: str, text: str, begin: str = "") -> list[str]:
    """Return a text after a label; `begin` stands before its first line, the others are indented by it."""
    return wrapped(text, first=f"{label.upper():<{_SEVERITY}}{begin}")


def _key(key: EntityKey) -> str:
    return f"({key.partition!r}, {key.row!r})"
