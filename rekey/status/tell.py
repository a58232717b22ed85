"""The status of a migration as text, and the progress document (`progress.schema.json`) of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from rekey.core.clock import format_ticks
from rekey.core.plain import plain
from rekey.mapping.rows import WHOLE
from rekey.phases import ControlPhase
from rekey.present.text import LABEL, counted, differing, duration, labelled, moment, typed, wrapped
from rekey.project.config import LEAST_MAX_AGE_S
from rekey.protocol.registry import Standing
from rekey.status.facts import Abandoned, Facts
from rekey.status.judge import Client, Status
from rekey.status.progress import how_far
from rekey.tables.sent import Overhead

# Within one version of the schema members are only added.
FORMAT = "rekey/progress/v1"
# How many clients are listed for people.
_CLIENTS = 12
# Control phases in which the state of the copy and of the comparison still matters.
_FOLLOWING = (ControlPhase.SOURCE, ControlPhase.DUAL_WRITE, ControlPhase.FREEZE)
_OVERHEAD = {
    Overhead.CHANGES: "for rows that changed or were there",
    Overhead.RETRIES: "sent again",
    Overhead.REPEATS: "for phases and comparisons carried out again",
    Overhead.PROBES: "to try odd keys",
    Overhead.ROLLBACK: "for rollback",
}
# Labels and texts.
_Fields: TypeAlias = Iterator[tuple[str, str]]


def status_lines(
    status: Status, command: Callable[[str], str], *, requests: bool = False, verbose: bool = False
) -> list[str]:
    """Return the lines about one migration.

    Args:
        status: the status as judged.
        command: returns a command as it is to be typed here, from its words after `rekey`.
        requests: also the requests sent and estimated, by phase.
        verbose: also internals: control row, epochs, segments.
    """
    title = status.facts.declared.doc.partition("\n")[0]
    lines = wrapped(status.facts.script_id + (f": {title}" if title else ""))
    lines += verdict_lines(status, command)
    parts = [_stage(status, verbose), _copied(status, verbose), _followed(status, verbose)]
    parts += [_comparing(status), _not_migrated(status), _indexes(status), _kept(status)]
    for label, text in chain(*parts, _spent(status) if requests else []):
        lines += labelled(label, typed(text, command))
    return lines


def verdict_lines(status: Status, command: Callable[[str], str]) -> list[str]:
    """Return the lines about safety and the next command; `command` as in `status_lines`."""
    verdict = status.verdict
    lines = labelled("safe" if verdict.safe else "ATTENTION", typed(verdict.sentence, command))
    return [*lines, *next_lines(status, command)]


def _stage(status: Status, verbose: bool) -> _Fields:
    migration, control = status.facts.declared.migration, status.facts.store.control
    yield "stage", status.stage
    names, capture = ", ".join(migration.table_names), migration.capture
    yield "tables", f"{migration.source_label} -> {names} (capture {capture})"
    if verbose and control is not None:
        yield "control row", f"`{control.phase}`, epoch {control.epoch}"


def _copied(status: Status, verbose: bool) -> _Fields:
    """Yield the progress of the copy and the last verification, in the phases of `_FOLLOWING`."""
    control, copied, last = status.facts.store.control, status.backfill, status.facts.state.verification
    if control is not None and control.phase not in _FOLLOWING:
        return
    if copied is not None:
        text = counted(copied.rows, "row")
        if copied.estimated_rows:
            text += f" of about {copied.estimated_rows:,}"
        if copied.rate is not None:
            text += f", {copied.rate:,.0f} rows/s"
        if copied.seconds_left is not None:
            text += f", about {duration(copied.seconds_left)} left"
        if verbose:
            text += f"; {copied.segments_done} of {counted(copied.segments, 'segment')} done"
        yield "copied", text
    age_s, max_age_s = status.verification_age_s, status.verification_max_age_s
    if last is not None and age_s is not None and max_age_s is not None:
        text = f"{differing(last.divergences)}, {counted(last.rows_source, 'source row')} compared,"
        text += f" {moment(last.finished_at)}, its oldest rows {duration(age_s)} ago"
        if not status.verification_closes:
            text += f"; good for cutover until they are {duration(max_age_s)} old"
            is_set = status.facts.gates.verification_max_age_s is not None
            text += "" if is_set or max_age_s <= LEAST_MAX_AGE_S else ", twice what it took"
        yield "verified", text


def _comparing(status: Status) -> _Fields:
    if rows := status.differing_so_far:
        yield "comparing", f"{differing(rows)} so far; the full verification is not done"


def _not_migrated(status: Status) -> _Fields:
    """Yield how many rows the script drops, as the last verification counted them, while they are there."""
    drop, control = status.facts.declared.migration.dropped, status.facts.store.control
    is_there = control is not None and control.phase is not ControlPhase.RETIRED
    if drop is not None and status.not_migrated_rows and is_there:
        rows = counted(status.not_migrated_rows, "row")
        yield "not migrated", f"{rows} of {status.facts.source} that no kind takes: {drop.reason}"


def _followed(status: Status, verbose: bool) -> _Fields:
    """Yield how the replicas follow the application's writes: lag, clients, journal, counters."""
    facts, intents, counters = status.facts, status.facts.store.intents, status.counted
    lag = None if status.lag_s is None else duration(status.lag_s)
    if facts.is_delta and lag is not None:
        yield "lag", f"{lag}: changes since then come with the next pass"
    if (how := status.progress.following) is not None:
        text = f"since {moment(how.since)}" + ("" if how.at_work else ", until it was cut off")
        if how.window is not None:
            opens, closes = moment(how.window.opens_at), moment(how.window.closes_at)
            text += f"; cuts over by itself from {opens} to {closes}"
        if how.refused:
            text += f"; its last cutover was refused: {'; '.join(how.refused)}"
        yield "followed", text
    if not facts.is_delta and not facts.store.unreachable:
        yield from _clients(status.clients, verbose)
    if intents is not None and (facts.store.control is not None or intents.depth):
        text = "empty: no write is in flight"
        if intents.oldest_at is not None:
            behind = "" if lag is None else f": replicas are behind by {lag} at most"
            text = f"{counted(intents.depth, 'write')} not settled yet{behind}"
        if intents.kept:
            text += f"; {intents.kept:,} settled and kept: a client that was given up may still write"
        yield "journal", text
        if intents.abandoned is not None and (facts.clients_settle or facts.at_work):
            yield "abandoned", _abandoned(facts, intents.abandoned)
    if counters:
        writes = counted(counters.get("writes", 0), "write")
        failures = counted(counters.get("replica_failures", 0), "replica failure")
        reads = (f"{counters.get(name, 0):,} {name}" for name in ("matched", "mismatched", "ignored"))
        yield "counted", f"{writes}, {failures}; shadow reads: {', '.join(reads)}"


def _abandoned(facts: Facts, left: Abandoned) -> str:
    """Return what dead clients left unfinished, since when, and who finishes it when."""
    whose = counted(left.clients, "client")
    text = (
        f"{counted(left.intents, 'write')} of {whose} gone, the first of {moment(format_ticks(left.since))}"
    )
    if facts.at_work:
        return f"{text}; the runner that is at work finishes them"
    when = "now" if facts.now >= left.due_at else f"from {moment(format_ticks(left.due_at))} on"
    if not facts.settlers:
        return f"{text}; no live client finishes them; the next command can {when}"
    first = facts.settlers[0]
    others = len(facts.settlers) - 1
    more = f", or one of {others:,} more if it cannot" if others else ""
    return f"{text}; {first.name} (process {first.pid} on {first.host}) finishes them {when}{more}"


def _indexes(status: Status) -> _Fields:
    facts, indexes = status.facts, status.facts.indexes
    if indexes is None:
        return
    listed = ", ".join(indexes.tables)
    if indexes.maintained_by == "rekey":
        by = "rekey" if facts.is_delta else "rekey's clients"
        until = "`rekey handover`" if not facts.is_delta else "cutover"
        yield "indexes", f"{listed}: maintained by {by}, until {until}"
        return
    text = f"{listed}: maintained by the application"
    text += "" if indexes.since is None else f" since {moment(indexes.since)}"
    if indexes.compared_at is not None and indexes.differing is not None:
        compared = "all equal" if not indexes.differing else f"{counted(indexes.differing, 'row')} differed"
        text += f"; compared {moment(indexes.compared_at)}: {compared}"
    else:
        text += f"; `rekey verify {facts.script_id}` compares them with the main rows"
    yield "indexes", text


def _clients(clients: Sequence[Client], verbose: bool) -> _Fields:
    """Yield the clients; those that may need attention come first."""
    if not clients:
        yield "clients", "none is registered"
        return
    numbers = [(sum(client.standing is which for client in clients), which) for which in Standing]
    yield "clients", ", ".join(f"{number} {which}" for number, which in numbers if number)

    def order(client: Client) -> tuple[bool, bool, str]:
        well = client.current and client.standing is Standing.LIVE and not client.row.refuses
        return well, client.standing is Standing.OVER, client.row.name

    for client in sorted(clients, key=order)[:_CLIENTS]:
        row = client.row
        text = f"{row.name}: process {row.pid} on {row.host}, {row.view} view, rekey {row.version}"
        if client.standing is Standing.OVER:
            text += "; over, nothing of it can take effect any more"
            if client.heard_of_until:
                text = f"{text} unless it was suspended: then until {moment(client.heard_of_until)}"
            yield "", text
            continue
        text += f"; {'follows' if client.current else 'does not follow the last change of phase yet'}"
        if verbose:
            text += f" (epoch {row.epoch})"
        if row.refuses:
            text += f"; refuses dual writes (`{row.refuses}`)"
        if row.counters.get("refused"):
            text += "; its credential is refused on tables that follow: its log says which"
        if row.left:
            text += f"; {counted(row.left, 'key')} to settle"
        if client.standing is not Standing.LIVE:
            text += f"; silent, over at {moment(client.over_at)} at the latest"
        yield "", text
    if len(clients) > _CLIENTS:
        yield "", f"and {len(clients) - _CLIENTS} more: --json has them all"


def _spent(status: Status) -> _Fields:
    cost = status.spent
    if cost is None or not cost.phases:
        return
    estimated, sent = cost.estimated_of_phases_done, cost.sent_in_phases_done
    apart = f" ({(sent - estimated) / estimated:+.1%})" if estimated else ""
    whole = f"{cost.estimated_whole:,} estimated for the whole"
    yield "requests", f"{sent:,} sent, {estimated:,} estimated{apart}, in phases done; {whole}"
    if cost.overhead:
        overhead = (f"{number:,} {_OVERHEAD[Overhead(why)]}" for why, number in cost.overhead.items())
        yield "", f"on top of that: {', '.join(overhead)}"
    for phase_cost in cost.phases:
        phase = status.facts.declared.migration.shown(phase_cost.phase)
        text = f"{phase}: {phase_cost.sent:,} sent, {phase_cost.estimated:,} estimated"
        if phase_cost.expected_s is not None:
            text += f"; took {duration(phase_cost.took_s)}, {duration(phase_cost.expected_s)} expected"
        yield "", text if phase_cost.done else f"{text}; not done"


def _kept(status: Status) -> _Fields:
    """Yield how long source and mapping are kept, what of the mapping is erased, and which runner works."""
    facts, lease = status.facts, status.facts.store.lease
    if status.retention_ends_at is not None:
        yield "retention", f"ends {moment(status.retention_ends_at)}"
    erased = [cohort.erased_on for cohort in facts.store.cohorts if cohort.erased_on]
    kept = [cohort for cohort in facts.store.cohorts if not cohort.erased_on]
    kept.sort(key=lambda cohort: cohort.over_at)
    if facts.due:
        names = ", ".join(cohort.name for cohort in kept if cohort.is_due(facts.now) and cohort.name != WHOLE)
        over = f"over: {names}" if names else "over"
        others = ", ".join(facts.store.needed_by)
        then = f"`rekey expire {facts.script_id}` erases it"
        yield "mapping", f"{over}; {f'it stays for a rollback of {others}' if others else then}"
    elif kept:
        name = "" if kept[0].name == WHOLE else f"; cohort {kept[0].name}"
        name += f" is the first of {len(kept)}" if len(kept) > 1 else ""
        yield "mapping", f"kept until {moment(format_ticks(kept[0].over_at))}{name}"
    elif erased:
        yield "mapping", f"erased; last on {max(erased)}"
    if lease is not None:
        state = f"until {moment(lease.ends_at)} unless renewed" if lease.live else "gone; its lease is free"
        if lease.killed:
            state = "was killed; its lease is free, the next command need not wait"
        yield "runner", f"process {lease.pid} on {lease.host}, {state}"


def next_lines(status: Status, command: Callable[[str], str]) -> list[str]:
    """Return the lines about the next command and its remark; `command` as in `status_lines`."""
    verdict = status.verdict
    if not verdict.command:
        return []
    # A command that is to be typed stands on a line of its own and is never wrapped.
    lines = [f"  {'next':<{LABEL}}{command(verdict.command)}"]
    if verdict.remark:
        lines += wrapped(
            f"({typed(verdict.remark, command)})", first=" " * (LABEL + 2), rest=" " * (LABEL + 3)
        )
    return lines


def line(status: Status) -> str:
    """Return one line about a migration, for those who watch it."""
    now, facts = status.progress, status.facts
    since = "" if now.phase.since is None else f" since {now.phase.since[11:19]}Z"
    state = now.phase.state.replace("-", " ")
    phase = "not begun"
    if now.phase.name is not None:
        phase = f"`{facts.declared.migration.shown(now.phase.name)}` {state}"
    parts = [f"{facts.script_id}: {phase}{since}"]
    if (work := now.work) is not None:
        parts.append(f"{work.label}: {how_far(work.rows, work.estimated_rows, work.rate, work.eta)}")
    if rows := status.differing_so_far:
        parts.append(f"{differing(rows)} so far")
    if status.lag_s is not None:
        parts.append(f"lag {duration(status.lag_s)}")
    parts += [held_back.text for held_back in now.held_back]
    parts.append("safe" if status.verdict.safe else f"ATTENTION: {status.verdict.sentence}")
    return "; ".join(parts)


def document(statuses: Iterable[Status], steering: Mapping[str, Any], as_of: int) -> dict[str, Any]:
    """Return the progress document. `steering`: the operator's settings as JSON; `as_of`: now, in ticks."""
    return {
        "format": FORMAT,
        "as_of": format_ticks(as_of),
        "migrations": plain(list(statuses)),
        "steering": dict(steering),
    }
