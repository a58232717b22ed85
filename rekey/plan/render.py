"""A plan and its advice as text for an operator: what matters comes first and fits on one screen. Pure.
Without `shows_keys` it holds no key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial

from rekey.core.severity import Severity
from rekey.model import EntityKey
from rekey.phases import shown
from rekey.plan.estimate import ASSUMED_REQUEST_SECONDS, DAY_S
from rekey.plan.result import NOT_LOOKED_AT, Advice, Estimate, GroupPlan, MigrationPlan, Money, Plan, Problem
from rekey.present.text import KEYS_ARE_SHOWN, counted, duration, field, report, size, table, underlined
from rekey.present.text import wrapped as wrapped_text
from rekey.project.prices import Prices, amount_text

_SEVERITY = 8
_COLLISIONS_SHOWN = 5
# From so many bytes of temporary files on, the plan says how many.
LARGE_FILES = 1024**3

_field = partial(field, width=12)
wrapped = partial(wrapped_text, break_long_words=True)  # a key may be wider than a line


def plan_text(plan: Plan, *, requests: bool = False) -> str:
    """Return a plan as text, ending in a line break. `requests`: list those of each phase, and durations."""
    lines = [*wrapped(KEYS_ARE_SHOWN), ""] if plan.shows_keys else []
    for migration in plan.migrations:
        lines += _migration(migration, plan, requests=requests)
    for group in plan.groups:
        lines += [*underlined(f"Group {group.name}"), *_group(group, plan), ""]
    return report([*lines, *_verdict(plan)])


def _migration(migration: MigrationPlan, plan: Plan, *, requests: bool) -> Iterator[str]:
    yield from underlined(migration.script_id + (f": {migration.title}" if migration.title else ""))
    errors = [problem for problem in migration.problems if problem.severity is Severity.ERROR]
    yield from _findings(errors, [advice for advice in migration.advice if advice.blocks])
    yield from _source(migration, plan)
    for number, (name, rows, when) in enumerate(migration.kinds):
        yield from _field("" if number else "kinds", f"{name}: {rows}, {when}")
    fills = {fill.table: fill.describe() for fill in migration.mapping.fills}
    for target in migration.basis.targets:
        missing = "not looked at" if plan.offline else "will be made"
        state = "holds rows" if target.holds_rows else "exists" if target.exists else missing
        filled = f": {fills.pop(target.table)}" if target.table in fills else ""
        yield from _field("target", f"{target.table} ({state}){filled}")
    for name, filled in fills.items():  # rows of other kinds in a target table
        yield from _field("", f"{name}: {filled}")
    if migration.estimate is not None and migration.mapping.mapped_rows:
        yield from _cost(migration.estimate, migration.capture, listed=requests)
    yield from _collisions(migration)
    yield ""
    if migration.estimate is not None and requests:
        yield from _requests(migration.estimate, migration.capture)
        yield from _durations(migration.estimate, migration.capture)
    if plan.shows_keys:
        yield from _examples(migration, plan)
    if migration.queries:
        yield "Queries"
        for query in migration.queries:
            yield from wrapped(query.query.describe(), first="  ", rest=" " * 10)
            yield from wrapped(query.today.describe(), first="    today    ")
            yield from wrapped(query.planned.describe(), first="    planned  ")
        yield ""
    others = [problem for problem in migration.problems if problem not in errors]
    yield from _findings(others, [advice for advice in migration.advice if not advice.blocks])
    for refused in migration.mapping.refused:
        if refused.old_keys:  # they were asked for
            yield f"Rows refused with {refused.code} ({refused.field})"
            for row_id, key in zip(refused.row_ids, refused.old_keys, strict=True):
                yield from wrapped(f"{row_id}  {_key(key)}", first="  ", rest="      ")
            yield ""


def _group(group: GroupPlan, plan: Plan) -> Iterator[str]:
    yield from _field("scripts", ", ".join(group.members))
    yield from _field("takes", f"about {_time(group.at_limits_s)} for all, one after the other")
    stop = f"writers stop once, for about {_time(group.stop_s)}"
    yield from _field("stop", f"{stop}; excludes changes made during the copy")
    yield from _field("requests", f"about {group.requests:,} in all")
    if group.money is not None:
        currency = next(
            migration.estimate.money.currency
            for migration in plan.migrations
            if migration.estimate and migration.estimate.money
        )
        yield from _field("cost", f"{amount_text(group.money, currency)} with a batch billed as one")


def _error(error: float) -> str:
    """Return twice a relative standard error, from a tenth on, as text: most estimates are no further off."""
    return f" (± {200 * error:.0f} %)" if error >= 0.05 else ""


def _source(migration: MigrationPlan, plan: Plan) -> Iterator[str]:
    inventory = migration.inventory
    if inventory is None:
        state = "not looked at" if plan.offline else "does not exist"
        yield from _field("source", f"{migration.basis.source} ({state})")
        yield from _part(migration)
        return
    about = "" if inventory.exact else "about " if inventory.rows.settled else "very roughly "
    at_least = "" if inventory.exact else "at least "
    stored = f"{'about ' if migration.sampled else about}{size(inventory.stored_bytes)}"
    partitions = f"{at_least}{counted(inventory.partitions, 'partition')}"
    largest = f"the largest of {at_least}{counted(inventory.largest_partition, 'row')}"
    rows = f"{about}{counted(inventory.rows.rows, 'row')}{_error(inventory.rows.error)}"
    yield from _field("source", f"{inventory.table}: {rows}, {stored}, {partitions}, {largest}")
    yield from _part(migration)
    yield from _field("basis", inventory.basis)
    if migration.sampled:
        yield from _field("", migration.sampled)


def _part(migration: MigrationPlan) -> Iterator[str]:
    if part := migration.basis.part:
        yield from _field("part", f"only rows whose {part}; all others of {migration.basis.source} stay")


def _cost(estimate: Estimate, capture: str, *, listed: bool) -> Iterator[str]:
    storage, money = estimate.storage, estimate.money
    longest = max(estimate.durations, key=lambda phase: phase.at_limits_s)
    quickest = sum(phase.at_targets_s for phase in estimate.durations)
    likely = estimate.likely_s
    takes = _time(likely)
    if likely >= 1:
        takes = f"about {takes}, at best {_time(quickest)}"
        takes += f"; most of it {longest.phase}, bound by {longest.at_limits_bound}"
    yield from _field("takes", f"{takes}. Excludes changes made during the copy")
    where = "" if listed else " (--requests lists them)"
    yield from _field("requests", f"about {estimate.requests_total:,} in all phases{where}")
    yield from _field(
        "storage",
        f"{size(storage.added_bytes)} more than now (targets {size(storage.target_bytes)}, mapping"
        f" {size(storage.mapping_bytes)}), for about {duration(storage.days * 86_400)}",
    )
    if money is None:
        names = estimate.prices_missing
        missing = f" ({', '.join(names)})" if len(names) < len(fields(Prices)) else ""
        yield from _field("cost", f"not estimated; set [prices]{missing} in rekey.toml")
    else:
        *_, (_, as_one, by_rows) = money_lines(money)
        yield from _field("cost", f"{as_one} with a batch billed as one, {by_rows} by its rows")
    yield from _size(estimate, capture)


def _size(estimate: Estimate, capture: str) -> Iterator[str]:
    """Yield what matters for large tables alone."""
    long = [phase for phase in estimate.durations if phase.at_limits_s >= DAY_S]
    for number, phase in enumerate(long):
        text = f"{shown(phase.phase, capture)} {_time(phase.at_limits_s)}, bound by {phase.at_limits_bound}"
        yield from _field("" if number else "long phases", text)
    if long:
        mapping = f"{estimate.mapping_rows:,} rows, two for each source row"
        yield from _field("mapping", mapping if estimate.mapping_rows else "no rows: the keys say it")
    for other in estimate.other_accounts:
        what = "target tables" if other.section == "targets" else "the mapping"
        times = f"{_time(other.at_limits_s)} in place of {_time(estimate.likely_s)}"
        yield from _field("faster", f"{times} with {what} in another account ([{other.section}])")
    if (needed := estimate.disk.needed_bytes) >= LARGE_FILES:
        yield from _field("disk", f"about {size(needed)} of temporary files on this machine (TMPDIR)")


def _collisions(migration: MigrationPlan) -> Iterator[str]:
    collisions, rows = migration.mapping.collisions, migration.mapping.mapped_rows
    if collisions is None:
        return
    where = f"in {'all ' if rows != 1 else ''}{counted(rows, 'row')}"
    yield from _field(
        "collisions", f"{collisions.keys:,} {where if collisions.exact else 'in the rows sampled'}"
    )
    for group in collisions.first[:_COLLISIONS_SHOWN]:
        more = f" and {group.rows - len(group.row_ids):,} more" if group.rows > len(group.row_ids) else ""
        keys = ": " + ", ".join(map(_key, group.old_keys)) if group.old_keys else ""
        text = f"one key of {group.table}: rows {', '.join(group.row_ids)}{more}{keys}"
        yield from wrapped(text, first="  ", rest="    ")
    if len(collisions.first) > _COLLISIONS_SHOWN:
        yield f"  and {collisions.keys - _COLLISIONS_SHOWN:,} more"


def _examples(migration: MigrationPlan, plan: Plan) -> Iterator[str]:
    yield "Example rows" + ("" if plan.ids_hold else " (row ids are valid for this plan only)")
    for example in migration.mapping.examples:
        old = f"  {_key(example.old_key)}" if example.old_key is not None else ""
        yield from wrapped(f"{example.row_id}{old}", first="  ", rest="      ")
        for new in example.new_keys:
            key = "" if new.new_key is None else f"  {_key(new.new_key)}"
            yield from wrapped(f"{new.table} {new.row_id}{key}", first="    -> ")
    yield ""


def _requests(estimate: Estimate, capture: str) -> Iterator[str]:
    lines = requests_by_purpose(estimate, capture)
    rows = [(phase, what, f"{count:,}", kinds) for phase, what, count, kinds in lines]
    rows.append(("", "all", f"{estimate.requests_total:,}", ""))
    yield from table(("Phase", "requests", "count", "of kind"), rows, right={2})
    yield ""


def requests_by_purpose(estimate: Estimate, capture: str) -> list[tuple[str, str, int, str]]:
    """Return phase, purpose, number and kinds of the requests; one line for each purpose in a phase."""
    by_purpose: dict[tuple[str, str], dict[str, int]] = {}
    for request in estimate.requests:
        by_purpose.setdefault((request.phase, request.what), {})[request.kind.value] = request.count
    return [
        (shown(phase, capture), what, sum(kinds.values()), ", ".join(kinds))
        for (phase, what), kinds in by_purpose.items()
    ]


def money_lines(money: Money) -> list[tuple[str, str, str]]:
    """Return the items of the bill, with the amounts under both readings of how batches are billed."""
    amounts = (
        ("requests", money.batch_as_one, money.batch_each),
        ("storage", money.storage, money.storage),
        ("all", money.batch_as_one + money.storage, money.batch_each + money.storage),
    )
    text = partial(amount_text, currency=money.currency)
    return [(name, text(as_one), text(by_rows)) for name, as_one, by_rows in amounts]


def _durations(estimate: Estimate, capture: str) -> Iterator[str]:
    rows = [
        (
            shown(phase.phase, capture),
            _time(phase.at_targets_s),
            _time(phase.at_limits_s),
            phase.at_limits_bound,
        )
        for phase in estimate.durations
    ]
    quickest = sum(phase.at_targets_s for phase in estimate.durations)
    likely = sum(phase.at_limits_s for phase in estimate.durations)
    rows.append(("all", _time(quickest), _time(likely), ""))
    yield from table(("Phase", "at best", "expected", "bound by"), rows, right={1, 2})
    yield from wrapped(
        "at best: at the service's targets (20,000 entities/s an account, 2,000/s a partition), beyond which"
        ' `entities_per_second = "auto"` may go: general-purpose v2 accounts are documented with 40,000'
        " requests/s in many regions; expected:"
        f" with the configured limits too, {ASSUMED_REQUEST_SECONDS * 1000:.0f} ms a request assumed."
        " Excludes changes made during the copy.",
        first="  ",
    )
    yield ""


def _time(seconds: float) -> str:
    return "< 1 s" if seconds < 1 else duration(seconds)


def _findings(problems: Sequence[Problem], advice: Sequence[Advice]) -> Iterator[str]:
    for problem in problems:
        yield from _labelled(problem.severity, f"{problem.code}: {problem.message}")
        if problem.row_ids:
            more = ", …" if problem.rows > len(problem.row_ids) else ""
            yield from _labelled("", f"rows {', '.join(problem.row_ids)}{more}")
        yield from _labelled("", problem.cure, "cure: ")
    yield from advice_lines(advice)
    if problems or advice:
        yield ""


def advice_lines(found_advice: Sequence[Advice], *, with_today: bool = False) -> Iterator[str]:
    """Yield advice in full, but one line each for advice on today's keys, which the migration replaces.
    `with_today`: that in full, too, because nothing is planned."""
    for advice in found_advice:
        if advice.today and not with_today and advice.waived is None:
            then = (
                "; the planned keys fix this"
                if advice.answered
                else "; the planned keys still have this problem"
            )
            yield from _labelled(
                advice.severity, f"{advice.code}: {advice.where}, today: {advice.evidence}{then}"
            )
            continue
        label = advice.severity if advice.waived is None else "waived"
        yield from _labelled(label, f"{advice.code}: {advice.where}: {advice.evidence}")
        yield from _labelled("", advice.reason, "why: ")
        if advice.waived is None:
            yield from _labelled("", advice.cure, "cure: ")
        else:
            yield from _labelled("", advice.waived, "set aside: ")


def _verdict(plan: Plan) -> Iterator[str]:
    severities = [problem.severity for migration in plan.migrations for problem in migration.problems]
    for migration in plan.migrations:
        severities += [
            Severity.NOTE if advice.waived is not None else advice.severity for advice in migration.advice
        ]
    text = ", ".join(
        counted(severities.count(severity), severity) for severity in Severity if severity in severities
    )
    if not plan.migrations:
        yield "Nothing to plan: there is no migration script."
    elif plan.exit_code:
        what = "it" if severities.count(Severity.ERROR) == 1 else "the errors"
        yield from wrapped(f"{text}. `rekey apply` would refuse or stop: fix {what} first.")
    else:
        then = "`rekey plan` asks the account" if plan.offline else "`rekey apply` begins"
        yield from wrapped(f"{text or 'No problems'}. Nothing was written; {then}.")
    if plan.offline:
        yield from wrapped("; ".join(NOT_LOOKED_AT) + ".", first="Not looked at: ", rest="  ")


def _labelled(label: str, text: str, begin: str = "") -> list[str]:
    """Return a text after a label; `begin` stands before its first line, the others are indented by it."""
    return wrapped(text, first=f"{label.upper():<{_SEVERITY}}{begin}")


def _key(key: EntityKey) -> str:
    return f"({key.partition!r}, {key.row!r})"
