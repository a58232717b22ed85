"""Whether a migration is safe right now, and what to do next: one sentence and one command for every state.

Rules kept here:

* The sentence says what is at risk before it says anything else; whoever reads it may have been woken up.
* Only one command is named, the one that is right now; what else there is, is a remark.
"""

from __future__ import annotations

from dataclasses import dataclass

from rekey.phases import ControlPhase, Phase
from rekey.runner.control import ControlRow
from rekey.runner.facts import Facts
from rekey.tables.clock import TICKS_PER_SECOND, format_ticks, ticks_of


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
    match facts.control.phase:
        case ControlPhase.SOURCE:
            return _in_source(facts)
        case ControlPhase.DUAL_WRITE:
            return _in_dual_write(facts, closed)
        case ControlPhase.FREEZE:
            return _in_freeze(facts, facts.control)
        case ControlPhase.CUTOVER:
            return _in_cutover(facts)
        case ControlPhase.COMPLETE:
            return _in_complete(facts, facts.control)
        case ControlPhase.RETIRED:
            return Verdict(True, f"{facts.source} is deleted, {facts.target} has taken over.", "")


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
            "look again in a few seconds",
        )
    return Verdict(
        False,
        f"A {what} was cut off and left the freeze behind: writes wait until it is left. Nothing is lost;"
        f" {authority} is still the authority.",
        f"apply {name}",
        "it goes back to where the freeze came from, and changes no row for that",
    )


def _in_cutover(facts: Facts) -> Verdict:
    name, source, target = facts.script_id, facts.source, facts.target
    if not facts.declared.migration.reverse:
        sentence = f"{target} is the authority. There is no way back (reverse=False)."
        rollback = ""
    else:
        sentence = (
            f"{target} is the authority, and there is a way back: what is written now is in {target} only,"
            f" until a rollback copies it to {source}."
        )
        stopped = " --writers-stopped" if facts.is_delta else ""
        rollback = f"or go back, which `complete` ends: rekey rollback {name}{stopped}"
    if facts.at_work:
        return Verdict(True, sentence, f"status {name}", "a runner is at work; look again")
    return Verdict(True, sentence, f"apply {name} --to complete", rollback)


def _in_complete(facts: Facts, control: ControlRow) -> Verdict:
    source, target = facts.source, facts.target
    since = ticks_of(control.completed_at or control.updated_at)
    ends = since + round(facts.gates.retention_s * TICKS_PER_SECOND)
    waiting = f"not before {format_ticks(ends)}, when the retention period ends" if facts.now < ends else ""
    return Verdict(
        True,
        f"{target} is the authority; {source} is no longer written and is no way back any more.",
        f"retire {facts.script_id} --table {source}",
        waiting or f"this deletes {source}",
    )
