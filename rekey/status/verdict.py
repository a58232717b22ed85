"""Whether a migration is safe right now, and what to do next: one sentence and one command for every state.

Rules kept here:

* The sentence says what is at risk before it says anything else; whoever reads it may have been woken up.
* Only one command is named, the one that is right now; what else there is, is a remark.
* A client that refuses writes is somebody's error right now, whatever else is well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.control import ControlRow
from rekey.protocol.registry import ClientRow, Standing, over_at, standing
from rekey.state.audit import SUBJECTS
from rekey.status.facts import Facts


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether it is safe, what that means, the next command's words, and what to add to them."""

    safe: bool
    sentence: str
    command: str
    remark: str = ""


def verdict(facts: Facts, closed: str) -> Verdict:
    """Say whether it is safe and what comes next.

    Args:
        facts: what is known.
        closed: why the last full verification keeps the gate before cutover closed, "" when it opens it.
    """
    doubtful = _doubtful(facts)
    if doubtful is not None:
        return doubtful
    if facts.control is None:
        return _not_begun(facts)
    found = _by_phase(facts, facts.control, closed)
    return _with_clients(facts, facts.control.phase, found)


def _by_phase(facts: Facts, control: ControlRow, closed: str) -> Verdict:
    match control.phase:
        case ControlPhase.SOURCE:
            return _in_source(facts)
        case ControlPhase.DUAL_WRITE:
            return _in_dual_write(facts, closed)
        case ControlPhase.FREEZE:
            return _in_freeze(facts, control)
        case ControlPhase.CUTOVER:
            return _in_cutover(facts)
        case ControlPhase.COMPLETE:
            return _erasing(facts) or _in_complete(facts)
        case ControlPhase.RETIRED:
            return _erasing(facts) or _in_retired(facts)


def _doubtful(facts: Facts) -> Verdict | None:
    """Return what to say when it cannot be known, or does not fit together."""
    name, control = facts.script_id, facts.control
    if facts.unreachable:
        return Verdict(
            False,
            f"Not known: {facts.unreachable}; what is shown is what the state file says.",
            f"status {name}",
            "first mend the connection or the credential",
        )
    if control is None and facts.applied:
        return Verdict(
            False,
            "Not known: the state file says it is begun, the restricted store does not know it.",
            f"status {name}",
            "first check [restricted] endpoint; apply nothing before the store is found (runbooks/resume.md)",
        )
    if (
        control is not None
        and control.digest != facts.declared.digest
        and control.phase is not ControlPhase.RETIRED
    ):
        return Verdict(
            control.phase is not ControlPhase.FREEZE,
            "Nothing is lost, but the script was edited after the first phase: every command refuses it.",
            f"status {name}",
            f"first put {facts.declared.path.name} back as it was",
        )
    return None


def _with_clients(facts: Facts, phase: ControlPhase, found: Verdict) -> Verdict:
    """Add what the clients of the application make of it, in capture "dual-write"."""
    if facts.is_delta or phase in (ControlPhase.COMPLETE, ControlPhase.RETIRED):
        return found
    refusing = facts.clients_refusing
    if refusing:
        when = "will refuse writes" if phase is ControlPhase.SOURCE else "refuses writes"
        return replace(
            found,
            safe=found.safe and phase is ControlPhase.SOURCE,
            sentence=f"{found.sentence} But {_named(refusing)} {when} (`{refusing[0].refuses}`).",
            command=f"status {facts.script_id}",
            remark=f"first {_REMEDIES.get(refusing[0].refuses, _RESTART)}",
        )
    if phase is not ControlPhase.SOURCE and not facts.live_clients:
        sentence = f"{found.sentence} No client of the application is registered: no write is followed."
        return replace(found, sentence=sentence)
    return found


_RESTART = "see what that client logs, and restart it"
_REMEDIES = {
    "digest-moved": "deploy the script that the migration was begun with, unchanged",
    "secret-moved": "give it the secrets that the migration was begun with",
}


def _named(rows: Sequence[ClientRow]) -> str:
    """Return who the first one is, and how many more there are."""
    first = rows[0]
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"{first.name} (process {first.pid} on {first.host}){more}"


def _not_begun(facts: Facts) -> Verdict:
    name = facts.script_id
    safe = f"Nothing has been written; the application works on {facts.source} as always."
    if facts.waits_for:
        first = facts.waits_for[0]
        return Verdict(True, safe, f"apply {first.script_id} --to {first.phase}", f"{name} waits for that")
    if facts.at_work:
        return Verdict(True, safe, f"status {name}", "a runner begins it just now; look again")
    return Verdict(True, safe, f"apply {name}", f"first read what it will do: rekey plan {name}")


def _in_source(facts: Facts) -> Verdict:
    name = facts.script_id
    sentence = f"{facts.source} is the authority; nothing is copied yet that anybody reads."
    if facts.at_work:
        return Verdict(True, sentence, f"status {name}", "a runner is at work; look again")
    return Verdict(True, sentence, f"apply {name}")


def _in_dual_write(facts: Facts, closed: str) -> Verdict:
    name = facts.script_id
    safe = f"{facts.source} is the authority and rekey only reads it; {facts.target} is a copy."
    if facts.at_work:
        return Verdict(True, safe, f"status {name}", "a runner is at work; look again")
    last = facts.verification
    if last is not None and last.divergences and last.report.get("repair") is not None:
        return Verdict(True, safe, f"verify {name} --mode full", "the last one mended rows; this proves it")
    if last is not None and last.divergences:
        return Verdict(
            True,
            f"{safe} But {closed}: cutover stays closed.",
            f"verify {name} --mode full --repair",
            "it mends the rows and names them; then verify again (runbooks/divergences.md)",
        )
    if Phase.RECONCILE not in facts.phases:
        return Verdict(
            True, safe, f"apply {name}", "it goes on behind its last checkpoint" if facts.segments else ""
        )
    if closed:
        return Verdict(True, safe, f"verify {name} --mode full", f"{closed}, and cutover asks for one")
    words = f"apply {name} --to cutover"
    if facts.is_delta:
        return Verdict(True, safe, f"{words} --writers-stopped", "first stop the application's writers")
    behind = facts.clients_behind
    if behind:
        return Verdict(True, safe, f"status {name}", f"first see why {_named(behind)} does not follow")
    if not facts.live_clients:
        return Verdict(
            True, safe, words, "first start the application's clients; --writers-stopped goes without"
        )
    return Verdict(True, safe, words)


def _in_freeze(facts: Facts, control: ControlRow) -> Verdict:
    name = facts.script_id
    back = control.came_from is ControlPhase.CUTOVER
    authority = facts.target if back else facts.source
    what = "rollback" if back else "cutover"
    if facts.at_work:
        return Verdict(
            True,
            f"A {what} is under way: writes wait, nothing is lost; {authority} is still the authority.",
            f"status {name}",
            _waiting(facts, control) or "look again in a few seconds",
        )
    return Verdict(
        False,
        f"A {what} was cut off and left the freeze behind: writes wait until it is left. Nothing is lost;"
        f" {authority} is still the authority.",
        f"apply {name}",
        "it goes back to where the freeze came from, and changes no row for that",
    )


def _waiting(facts: Facts, control: ControlRow) -> str:
    """Return which clients a freeze waits for, and until when at most; "" when it waits for none."""
    behind = facts.clients_behind
    if not behind:
        return ""
    silent = [row for row in behind if standing(row, facts.now) is not Standing.LIVE]
    if not silent:
        return f"it waits for {_named(behind)} to end what it has begun"
    over = max(over_at(row) for row in silent)
    said = f"{_named(silent)} is silent, and is waited for until {format_ticks(over)} at most"
    frozen = control.frozen_at
    if frozen is not None:
        left = ticks_of(frozen) + round(facts.gates.freeze_timeout_s * TICKS_PER_SECOND)
        if left < over:
            return f"{said}; the freeze is given up at {format_ticks(left)}, and writes go on then"
    return said


def _in_cutover(facts: Facts) -> Verdict:
    name, source, target = facts.script_id, facts.source, facts.target
    if not facts.declared.migration.reverse:
        sentence = f"{target} is the authority. There is no way back (reverse=False)."
        rollback = ""
    else:
        follows = (
            f"what is written now is in {target} only, until a rollback copies it to {source}"
            if facts.is_delta
            else f"clients keep {source} current"
        )
        sentence = f"{target} is the authority, and there is a way back: {follows}."
        stopped = " --writers-stopped" if facts.is_delta else ""
        rollback = f"or go back, which `complete` ends: rekey rollback {name}{stopped}"
    if facts.at_work:
        return Verdict(True, sentence, f"status {name}", "a runner is at work; look again")
    return Verdict(True, sentence, f"apply {name} --to complete", rollback)


def _in_complete(facts: Facts) -> Verdict:
    source, target, ends = facts.source, facts.target, facts.retention_ends_at
    waiting = ""
    if ends is not None and facts.now < ends:
        waiting = f"not before {format_ticks(ends)}, when the retention period ends"
    sentence = f"{target} is the authority; {source} is no longer written and is no way back any more."
    if not facts.proved:
        name = facts.script_id
        export = f"evidence export evidence-{name} {name}"
        return Verdict(True, sentence, export, "then verify it; `retire` asks for that")
    return Verdict(
        True,
        sentence,
        f"retire {facts.script_id} --table {source}",
        waiting or f"this deletes {source}",
    )


def _in_retired(facts: Facts) -> Verdict:
    sentence = f"{facts.source} is deleted, {facts.target} has taken over."
    if not facts.due:
        return Verdict(True, sentence, "")
    command = f"expire {facts.script_id} --confirm {facts.script_id}"
    return Verdict(True, sentence, command, "what the mapping knows is kept longer than it should be")


def _erasing(facts: Facts) -> Verdict | None:
    """Return what to say of an erasure that was cut off, None when there is none."""
    if not facts.erasing or facts.at_work:
        return None
    first, name = facts.erasing[0], facts.script_id
    command = f"expire {name} --confirm {name}"
    if first.details["kind"] == SUBJECTS:
        named = first.details["rows"] or [first.details.get("unknown", ["?"])[0]]
        command = f"erase {name} --id {named[0]} --reason 'goes on'"
    sentence = (
        f"{facts.target} is the authority; but an erasure that was begun on {first.at[:10]} was cut off."
    )
    return Verdict(False, sentence, command, "it ends what was begun, all that was meant then")
