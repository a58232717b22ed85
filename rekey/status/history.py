"""The migrations that were ever begun, from the state file alone: phase runs, audit events and kept scripts
stay there when a migration is rolled back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.core.plain import exclude, json_field
from rekey.declaration.migration import Declared
from rekey.phases import Phase, shown
from rekey.present.text import duration, labelled, moment
from rekey.state.applied import applied_phases
from rekey.state.audit import AuditEvent
from rekey.state.models import KeptScript, PhaseRun
from rekey.state.store import State


@dataclass(frozen=True, slots=True)
class Step:
    """A phase that was entered or rolled back; times are UTC, ISO 8601."""

    phase: str
    at: str
    ended_at: str | None
    # `done`, `taken back`, the error that stopped it; None, as `ended_at`: it was cut off, or is still at
    # work.
    outcome: str | None

    def as_text(self) -> str:
        """Return its outcome in words."""
        if self.outcome == "taken back":
            return f"{moment(self.at)} rolled back"
        if self.ended_at is None:
            return f"{moment(self.at)}; when it ended is not known"
        took = duration((ticks_of(self.ended_at) - ticks_of(self.at)) / TICKS_PER_SECOND)
        if self.outcome == "done":
            return f"{moment(self.at)} done, took {took}"
        return f"{moment(self.at)} stopped after {took} ({self.outcome})"


@dataclass(frozen=True, slots=True)
class Begun:
    """A migration that was begun."""

    script_id: str
    # When it was last begun; UTC, ISO 8601.
    begun_at: str
    source: str | None
    # None: not known, for migrations started before scripts were stored.
    targets: tuple[str, ...] | None
    # What its file is now: `as begun`, `edited`, `unreadable`, or `gone`.
    script: str
    # Applied now; `steps`: entered and rolled back, in order.
    phases: tuple[Phase, ...]
    steps: tuple[Step, ...]
    # Its script as it was begun.
    kept: KeptScript | None = field(metadata=exclude)
    file: str = field(metadata=exclude)
    # "", as `capture`, when its script is gone.
    group: str = field(metadata=json_field(omit_default=True))
    capture: str = field(metadata=exclude)

    def lines(self, command: Callable[[str], str]) -> list[str]:
        """Return the lines about it; `command` returns a command as it is to be typed here."""
        tables = f": {self.source} -> {', '.join(self.targets)}" if self.targets else ""
        lines = [self.script_id + tables, *labelled("begun", moment(self.begun_at))]
        if self.group:
            lines += labelled("group", self.group)
        script = f"{self.file} {_SCRIPT[self.script]}"
        if self.kept is not None and self.script != "as begun":
            script += f"; as it was: {command(f'show {self.script_id} --script')}"
        lines += labelled("script", script)
        for step in self.steps:
            lines += labelled(shown(step.phase, self.capture), step.as_text())
        if not self.phases:
            lines += labelled("", "no phase of it is applied now")
        return lines


_SCRIPT = {
    "as begun": "is as it was begun",
    "edited": "was edited since",
    "unreadable": "cannot be read",
    "gone": "is gone: renamed or deleted",
}


def steps(runs: Iterable[PhaseRun], events: Iterable[AuditEvent]) -> tuple[Step, ...]:
    """Return the phases of a migration that were entered and rolled back, in order."""
    entered = [Step(run.phase, run.started_at, run.finished_at, run.outcome) for run in runs]
    undone = (event for event in events if event.event == "phase-undone")
    back = [
        Step(str(audit_event.details["phase"]), audit_event.at, audit_event.at, "taken back")
        for audit_event in undone
    ]
    return tuple(sorted([*entered, *back], key=lambda step: step.at))


def begun(state: State, scripts: Mapping[str, Declared | None]) -> list[Begun]:
    """Return all migrations that were ever begun, in the order in which they were last begun. `scripts`:
    those in the project's folder, by id; None for one that cannot be read."""
    records = {migration.script_id: migration for migration in state.migrations()}
    kept = state.kept_scripts()
    ids, migrations = state.ledger_ids(), []
    for script_id in state.script_ids():
        runs, record = state.phase_runs(script_id), records.get(script_id)
        own = [
            kept_script
            for kept_script in kept
            if kept_script.script_id == script_id and (not record or kept_script.run_id == record.run_id)
        ]
        script = own[-1] if own else None
        known, now = script or record, scripts.get(script_id)
        there = "unreadable" if script_id in scripts else "gone"
        if now is not None:
            there = "edited" if known is not None and now.digest != known.digest else "as begun"
        begun_at = record.registered_at if record else script.begun_at if script else runs[-1].started_at
        migrations.append(
            Begun(
                script_id=script_id,
                begun_at=begun_at,
                source=known.source if known else None,
                targets=tuple(script.targets) if script else None,
                script=there,
                phases=tuple(applied_phases(ids, script_id)),
                steps=steps(runs, state.audit_events(script_id)),
                kept=script,
                file=f"{script_id}.py" if now is None else now.path.name,
                group="" if now is None else now.migration.group,
                capture="" if now is None else now.migration.capture,
            )
        )
    return sorted(migrations, key=lambda migration: migration.begun_at)
