"""Groups of migrations that cut over together, judged as one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rekey.declaration.migration import Declared
from rekey.phases import ControlPhase
from rekey.present.text import typed, wrapped
from rekey.status.judge import Status


@dataclass(frozen=True, slots=True)
class Group:
    """A group as one: as safe as its worst member, with the next command of the member that is least far. As
    JSON its members have the order of the fields."""

    name: str
    # Ids of its scripts, in the order in which they are applied.
    members: tuple[str, ...]
    # How many of them are how far.
    stage: str
    safe: bool
    # Which side is the authority; where it is not safe, the sentence of the worst member.
    sentence: str
    next: dict[str, str]

    def lines(self, command: Callable[[str], str]) -> list[str]:
        """Return the lines about a group; `command` returns a command as it is to be typed here."""
        lines = wrapped(f"group {self.name}: {', '.join(self.members)}")
        lines += wrapped(typed(self.sentence, command), first=f"  {'safe' if self.safe else 'ATTENTION':<14}")
        if self.next["command"]:
            lines.append(f"  {'next':<14}{command(self.next['command'].removeprefix('rekey '))}")
        if self.next["remark"]:
            remark = typed(self.next["remark"], command)
            lines += wrapped(f"({remark})", first=" " * 16, rest=" " * 17)
        return [*lines, *wrapped(self.stage, first=f"  {'stage':<14}")]


_BEFORE = "The sources are the authority; what there is of the targets is a copy."
# Sentences about safe groups, by the phase of their control rows.
_SIDES = {
    None: _BEFORE,
    ControlPhase.SOURCE: _BEFORE,
    ControlPhase.DUAL_WRITE: _BEFORE,
    ControlPhase.FREEZE: "Writes to all of them wait while the authority moves.",
    ControlPhase.CUTOVER: "The targets are the authority of all of them.",
    ControlPhase.COMPLETE: "The targets are the authority of all of them, and rollback is not possible.",
    ControlPhase.RETIRED: "The targets are the authority of all of them, and rollback is not possible.",
}


def groups_of(statuses: Iterable[Status], scripts: Iterable[Declared]) -> list[Group]:
    """Return the groups of which all members are among the statuses, each judged as one."""
    members: dict[str, list[str]] = {}
    for script in scripts:
        if script.migration.group:
            members.setdefault(script.migration.group, []).append(script.script_id)
    seen = {status.facts.script_id: status for status in statuses}
    whole = {name: ids for name, ids in members.items() if seen.keys() >= set(ids)}
    return [_judged(name, [seen[script_id] for script_id in ids]) for name, ids in whole.items()]


def _judged(name: str, statuses: Sequence[Status]) -> Group:
    worst = min(statuses, key=lambda status: (status.verdict.safe, len(status.facts.phases)))
    safe, control = worst.verdict.safe, worst.facts.store.control
    sentence = _SIDES[None if control is None else control.phase]
    stages = Counter(status.facts.last_done for status in statuses)
    return Group(
        name,
        tuple(status.facts.script_id for status in statuses),
        ", ".join(f"{stage}: {number} of {len(statuses)}" for stage, number in stages.items()),
        safe,
        sentence if safe else f"{worst.facts.script_id}: {worst.verdict.sentence}",
        worst.next,
    )
