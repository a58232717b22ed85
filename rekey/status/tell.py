"""Telling people where a migration stands: what `rekey status` prints. Pure.

Rules kept here:

* Labels stand in one column, one indent in. A command that is to be typed stands on a line of its own and is
  never wrapped.
* The last two lines of each migration are what somebody needs who was woken up: is it safe, what now.
"""

from __future__ import annotations

from collections.abc import Callable

from rekey.core.clock import format_ticks
from rekey.mapping.rows import WHOLE
from rekey.phases import ControlPhase
from rekey.present.text import duration, wrapped
from rekey.protocol.registry import Standing
from rekey.status.judge import Client, Status

_CLIENTS = 12
"""How many clients are listed for people."""
_FOLLOWING = (ControlPhase.SOURCE, ControlPhase.DUAL_WRITE, ControlPhase.FREEZE)
"""Where copying and comparing still say something."""
LABEL = 14


def field(label: str, text: str) -> list[str]:
    """Return a labelled text, indented."""
    return wrapped(text, first=f"  {label:<{LABEL}}")


def moment(text: str) -> str:
    """Return a time without its fraction: `2024-01-31 12:00:00Z`."""
    return text[:19].replace("T", " ") + "Z"


def told(status: Status, command: Callable[[str], str]) -> list[str]:
    """Return the lines about one migration.

    Args:
        status: what was judged.
        command: gives the words of a command as they are to be typed here.
    """
    facts = status.facts
    migration, control = facts.declared.migration, facts.control
    title = facts.declared.doc.partition("\n")[0]
    lines = wrapped(facts.script_id + (f": {title}" if title else ""))
    lines += field(
        "tables", f"{migration.source} -> {', '.join(migration.tables)} (capture {migration.capture})"
    )
    lines += field("stage", status.stage)
    if control is not None:
        lines += field("control row", f"`{control.phase}`, epoch {control.epoch}")
    if control is None or control.phase in _FOLLOWING:
        lines += _backfill(status) + _verification(status)
    if facts.is_delta and status.lag_s is not None:
        lines += field("lag", f"{duration(status.lag_s)}: changes since then come with the next pass")
    lines += _clients(status) + _journal(status) + _counted(status)
    lines += _spent(status)
    if status.retention_ends_at is not None:
        lines += field("retention", f"ends {moment(status.retention_ends_at)}")
    lines += _mapping(status)
    if facts.lease is not None:
        lease = facts.lease
        state = f"until {moment(lease.ends_at)} unless renewed" if lease.live else "gone; its lease is free"
        lines += field("runner", f"process {lease.pid} on {lease.host}, {state}")
    lines += field("safe" if status.safe else "ATTENTION", status.sentence)
    return [*lines, *next_lines(status, command)]


def _mapping(status: Status) -> list[str]:
    """Return for how long the mapping is kept, and what of it is erased."""
    facts = status.facts
    erased = [one for one in facts.cohorts if one.erased_on]
    kept = sorted((one for one in facts.cohorts if not one.erased_on), key=lambda one: one.over_at)
    if facts.due:
        names = ", ".join(one.name for one in kept if one.is_due(facts.now) and one.name != WHOLE)
        said = f"over: {names}" if names else "over"
        return field("mapping", f"{said}; `rekey expire {facts.script_id}` erases it")
    if kept:
        until = moment(format_ticks(kept[0].over_at))
        name = "" if kept[0].name == WHOLE else f"; cohort {kept[0].name}"
        name += f" is the first of {len(kept)}" if len(kept) > 1 else ""
        return field("mapping", f"kept until {until}{name}")
    return field("mapping", f"erased; last on {max(one.erased_on for one in erased)}") if erased else []


def _clients(status: Status) -> list[str]:
    """Return the clients, those first that may need attention."""
    if status.facts.is_delta or status.facts.unreachable:
        return []
    if not status.clients:
        return field("clients", "none is registered")
    numbers = [sum(one.standing is which for one in status.clients) for which in Standing]
    lines = field(
        "clients", ", ".join(f"{n} {which}" for n, which in zip(numbers, Standing, strict=True) if n)
    )

    def well(one: Client) -> bool:
        return one.current and one.standing is Standing.LIVE and not one.row.refuses

    ordered = sorted(status.clients, key=lambda one: (well(one), one.standing is Standing.OVER, one.row.name))
    for one in ordered[:_CLIENTS]:
        lines += field("", _client(one))
    if len(ordered) > _CLIENTS:
        lines += field("", f"and {len(ordered) - _CLIENTS} more: --json has them all")
    return lines


def _client(one: Client) -> str:

    row = one.row
    said = [f"{row.name}: process {row.pid} on {row.host}, {row.view} view, rekey {row.version}"]
    if one.standing is Standing.OVER:
        return f"{said[0]}; over, nothing of it can take effect any more"
    said.append(f"epoch {row.epoch}, {'current' if one.current else 'behind'}")
    if row.refuses:
        said.append(f"refuses dual writes (`{row.refuses}`)")
    if row.left:
        said.append(f"{row.left:,} keys to settle")
    state = "" if one.standing is Standing.LIVE else f"; silent, over at {moment(one.over_at)} at the latest"
    return "; ".join(said) + state


def _journal(status: Status) -> list[str]:
    intents = status.facts.intents
    if intents is None or (status.facts.control is None and not intents.depth):
        return []
    kept = f"; {intents.kept:,} are settled and kept: a client that was given up may still write"
    more = kept if intents.kept else ""
    if intents.oldest_at is None:
        return field("journal", f"empty: no write is in flight{more}")
    lag = "" if status.lag_s is None else f": replicas are behind by {duration(status.lag_s)} at most"
    return field("journal", f"{intents.depth:,} intents{lag}{more}")


def _counted(status: Status) -> list[str]:
    counted = status.counted
    if not counted:
        return []
    text = f"{counted.get('writes', 0):,} writes, {counted.get('replica_failures', 0):,} replica failures"
    compared = [f"{counted.get(name, 0):,} {name}" for name in ("matched", "mismatched", "ignored")]
    return field("counted", f"{text}; shadow reads: {', '.join(compared)}")


def _spent(status: Status) -> list[str]:
    """Return the requests that were sent, and those that were estimated."""
    cost = status.spent
    if cost is None or not cost.phases:
        return []
    estimated, sent = cost.requests
    apart = f" ({(sent - estimated) / estimated:+.1%})" if estimated else ""
    lines = field(
        "requests",
        f"{sent:,} sent, {estimated:,} estimated{apart}, in phases done;"
        f" {cost.estimated_whole:,} estimated for the whole",
    )
    for one in cost.phases:
        planned, actual = one.requests
        said = f"{one.phase}: {actual:,} sent, {planned:,} estimated"
        if one.expected_s is not None:
            said += f"; took {duration(one.took_s)}, {duration(one.expected_s)} expected"
        lines += field("", said if one.done else f"{said}; not done")
    return lines


def _backfill(status: Status) -> list[str]:
    copied = status.backfill
    if copied is None:
        return []
    text = f"{copied.rows:,} rows"
    if copied.estimated_rows:
        text += f" of about {copied.estimated_rows:,}"
    if copied.rate is not None:
        text += f", {copied.rate:,.0f} rows/s"
    if copied.seconds_left is not None:
        text += f", about {duration(copied.seconds_left)} left"
    return field("copied", f"{text}; {copied.segments_done} of {copied.segments} segments done")


def _verification(status: Status) -> list[str]:
    last, age = status.facts.verification, status.verification_age_s
    if last is None or age is None:
        return []
    text = (
        f"{last.divergences:,} rows differ, {last.rows_source:,} source rows compared,"
        f" {moment(last.finished_at)}, {duration(age)} ago"
    )
    limit = duration(status.facts.gates.verification_max_age_s)
    return field(
        "verified", f"{text}; good for cutover for {limit}" if not status.verification_closes else text
    )


def next_lines(status: Status, command: Callable[[str], str]) -> list[str]:
    """Return what to do next; `command` as in `told`."""
    if not status.command:
        return []
    lines = [f"  {'next':<{LABEL}}{command(status.command)}"]
    if status.remark:
        lines += wrapped(f"({status.remark})", first=" " * (LABEL + 2), rest=" " * (LABEL + 3))
    return lines
