"""`rekey apply`: run migrations up to the next gate, or through it. What was done is reported also when an
error ends it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from rekey.cli.project import Project, open_project, open_session, status_of
from rekey.cli.shell import EXECUTOR, GROUP, SCRIPTS, PhaseChoice, Shell, command, file_option, flag
from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.core.plain import plain
from rekey.declaration.migration import Declared
from rekey.errors import ExitCode, GateClosed, in_words
from rekey.next_steps import apply_to
from rekey.phases import GATED, Phase
from rekey.plan.plan import take_basis
from rekey.plan.planfile import PlanFile, check_declared, check_plan, read_plan
from rekey.plan.subject import PlanOptions, subject_of
from rekey.present.text import LABEL, duration, wrapped
from rekey.project.sections import seconds_of
from rekey.runner import commands
from rekey.runner.commands import Applied
from rekey.runner.refusals import refusal
from rekey.runner.run import Options
from rekey.runner.session import Session
from rekey.state.models import PhaseRun
from rekey.status.facts import Wait, waits
from rekey.status.groups import groups_of
from rekey.status.judge import Status
from rekey.status.tell import next_lines

# Counters keep the names that earlier versions stored.
_WORDS = {"rows_brought": "rows repaired"}
_OF_A_RUN = ("phase", "outcome", "started_at", "finished_at", "counters")


@dataclass
class _Result:
    """What was done to one migration."""

    declared: Declared
    runs: list[PhaseRun] = field(default_factory=list)
    applied: Applied | None = None
    waits: tuple[Wait, ...] = ()
    status: Status | None = None

    def as_json(self) -> dict[str, Any]:
        done = self.applied
        return {
            "script_id": self.declared.script_id,
            "phases": [{name: getattr(run, name) for name in _OF_A_RUN} for run in self.runs],
            "caught_up": done.caught_up if done else 0,
            "waits_for": plain(self.waits),
            "next_phase": plain(done.next_phase) if done else None,
            "asks": list(done.asks) if done else [],
            "stop_seconds": round(done.stop_s, 1) if done and done.stop_s is not None else None,
            "next": self.status.next if self.status else None,
        }

    def ran(self, shell: Shell, run: PhaseRun, *, titled: bool = False) -> None:
        """Print the line of a phase that has ended, after the title if it is the first one; `titled`: also
        after lines of others."""
        took = ""
        if run.finished_at is not None:
            took = duration((ticks_of(run.finished_at) - ticks_of(run.started_at)) / TICKS_PER_SECOND)
        words = {name: _WORDS.get(name, name.replace("_", " ")) for name in run.counters}
        counters = ", ".join(f"{words[name]} {count:,}" for name, count in run.counters.items())
        outcome = counters if run.outcome == "done" else f"stopped ({in_words(run.outcome)})"
        line = f"  {self.declared.migration.shown(run.phase):<{LABEL}}{took:>7}  {outcome}".rstrip()
        shell.say("\n".join([*([] if self.runs and not titled else self._title()), line]))
        self.runs.append(run)

    def _title(self) -> list[str]:
        title = self.declared.doc.partition("\n")[0]
        return wrapped(self.declared.script_id + (f": {title}" if title else ""))

    def as_text(self, shell: Shell) -> str:
        """Return the text about this migration after its phases, followed by an empty line."""
        lines = [] if self.runs else self._title()
        if self.waits:
            waits = ", ".join(f"`{wait.phase}` of {wait.script_id}" for wait in self.waits)
            lines.append(f"  waits for {waits}")
        applied = self.applied
        if applied is not None and not self.runs:
            lines.append(f"  nothing left to do before the gate; {applied.caught_up:,} rows caught up")
        if applied is not None and applied.next_phase is None:
            lines.append("  all phases are done")
        elif applied is not None:
            asks = " Still required:" if applied.asks else ""
            before = self.declared.migration.shown(str(applied.next_phase))
            lines.append(f"  Stopped before {before}.{asks}")
            lines += [*_listed(applied.asks, shell), *_stop(applied.stop_s)]
            lines += next_lines(self.status, shell.command) if self.status else []
        return "\n".join([*lines, ""])


def _listed(asks: Iterable[str], shell: Shell) -> list[str]:
    return [line for ask in asks for line in wrapped(shell.typed_here(ask), first="    - ")]


def _stop(stop_s: float | None, more: str = "") -> list[str]:
    """Return the estimated write downtime as a line; none where it is not known."""
    if stop_s is None:
        return []
    text = f"estimated write downtime: about {duration(stop_s)}"
    return wrapped(text + more, first="  ")


def _seconds(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    seconds = None if text is None else seconds_of(text)
    if text is not None and seconds is None:
        raise click.BadParameter("write for example 60s, 10m or 1h")
    return seconds


@command(
    "apply",
    example="rekey apply 0001\nrekey apply 0001 --to cutover --writers-stopped\n"
    "rekey apply 0001 --to complete --yes 0001_users\n"
    "rekey apply 0001 --executor rekey.executors:processes\n"
    "rekey apply 0001 --follow\n"
    "rekey apply --group billing --to cutover --writers-stopped",
)
@SCRIPTS
@click.option(
    "--to",
    type=PhaseChoice([phase for phase in Phase if phase is not Phase.RETIRE]),
    help="Continue through gates, up to this phase. By default `apply` stops before cutover.",
)
@flag(
    "--follow",
    help="Stay before the gate of cutover, keep the targets up to date and compare them, and cut over when"
    " `rekey proceed` says so, or in the window of [follow].",
)
@flag(
    "--writers-stopped",
    help='You confirm that no application writes: for cutover in capture "delta", or with no client running.',
)
@click.option(
    "--stop-at-most",
    metavar="DURATION",
    callback=_seconds,
    help="Refuse to cut over when the estimated write downtime is longer than this, for example 60s or"
    ' 10m (capture "delta").',
)
@click.option(
    "--yes",
    metavar="NAME",
    multiple=True,
    help="For --to complete, after which no rollback is possible: the migration's name, or the group's. Asked"
    " for on a terminal.",
)
@file_option(
    "--plan", "plan_path", help="Refuse when script, secrets or tables are not as this plan file says."
)
@flag(
    "--skip-row-check",
    help="Do not try every source row before the first write; a row that cannot be mapped stops it later.",
)
@flag(
    "--accept-data-keys",
    help="You confirm that data keys without a proof were made by clients of a version before 0.3 (a wrapping"
    " key in Key Vault): they get one.",
)
@GROUP
@EXECUTOR
@click.option(
    "--serve", metavar="ADDRESS", help="Serve progress meanwhile on HOST:PORT, as `rekey serve` does."
)
def apply(
    shell: Shell,
    scripts: tuple[str, ...],
    to: str | None,
    follow: bool,
    writers_stopped: bool,
    stop_at_most: float | None,
    yes: tuple[str, ...],
    plan_path: Path | None,
    skip_row_check: bool,
    accept_data_keys: bool,
    group: str | None,
    executor: str | None,
    serve: str | None,
) -> ExitCode:
    """Run migrations up to the next gate.

    Prepares, copies, and compares everything, then stops before `cutover` and says what that asks for. Run
    again, it continues where it stopped; at the gate it brings the targets up to date. With --follow it stays
    there and keeps them so until it is told to cut over. The scripts of a --group pass gates together or not
    at all. Ctrl-C stops at a checkpoint (exit code 130).
    """
    goal = Phase(to) if to else None
    project = open_project(shell)
    chosen = project.choose_pending(scripts, group)
    if goal in GATED and not scripts and group is None and len(chosen) > 1:
        listed = ", ".join(script.script_id for script in chosen)
        raise click.UsageError(f"--to {goal} goes through a gate: say which script; pending are {listed}")
    if stop_at_most is not None and {script.migration.capture for script in chosen} == {"dual-write"}:
        waits = 'in capture "dual-write" writes wait for seconds ([gates] freeze_timeout)'
        raise click.UsageError(f'--stop-at-most goes with capture "delta": {waits}')
    if follow and group is not None:
        then = f"bring a group to its gate, then `rekey {apply_to(chosen[0].cli_selector, Phase.CUTOVER)}`"
        raise click.UsageError(f"--follow follows one migration that has no group: {then}")
    if follow:
        _check_follow(project, chosen, goal, writers_stopped=writers_stopped)
    _confirm(shell, project, chosen if goal is Phase.COMPLETE else None, yes, group)
    results: list[_Result] = []
    options = Options(
        writers_stopped=writers_stopped,
        stop_at_most_s=stop_at_most,
        executor=executor or "",
        follow=follow,
        accept_data_keys=accept_data_keys,
    )
    with _served(shell, project, chosen, serve), open_session(shell, project, options) as session:
        if plan_path is not None:
            _hold_to_plan(session, chosen, plan_path)
        if group is not None:
            return _apply_group(shell, session, chosen, goal, check_rows=not skip_row_check)
        for declared in chosen:
            result = _Result(declared)
            results.append(result)
            session.caller.phase_ended = partial(result.ran, shell)
            try:
                _apply_one(session, result, goal, named=bool(scripts), check_rows=not skip_row_check)
            except Exception:
                shell.so_far["migrations"] = [result.as_json() for result in results]
                if result.runs:
                    shell.say(result.as_text(shell))
                raise
            shell.say(result.as_text(shell))
    if results and not shell.options.json:
        return ExitCode.DONE
    document = {"migrations": [result.as_json() for result in results]}
    return shell.emit(document, "Nothing to apply: every migration is complete.")


def _apply_group(
    shell: Shell, session: Session, chosen: Sequence[Declared], goal: Phase | None, *, check_rows: bool
) -> ExitCode:
    group, results = chosen[0].migration.group, {script.script_id: _Result(script) for script in chosen}
    last = ""

    def ran(run: PhaseRun) -> None:
        nonlocal last
        results[run.script_id].ran(shell, run, titled=last != run.script_id)
        last = run.script_id

    session.caller.phase_ended = ran
    for declared in chosen:
        session.resume_needed(declared.script_id)
    ledger_ids = session.state.ledger_ids()
    for declared in chosen:
        _require_no_wait(declared, waits(declared, session.scripts, ledger_ids))
    try:
        for applied in commands.apply_group(session, group, to=goal, check_rows=check_rows):
            results[applied.script_id].applied = applied
    finally:
        shell.so_far["migrations"] = [result.as_json() for result in results.values()]
    for result in results.values():
        result.status = status_of(session, result.declared)
    [judged] = groups_of([result.status for result in results.values() if result.status], chosen)
    stops = [
        result.applied.stop_s
        for result in results.values()
        if result.applied and result.applied.stop_s is not None
    ]
    asks = {ask: None for result in results.values() if result.applied for ask in result.applied.asks}
    lines = [*judged.lines(shell.command), *(_stop(stops[0], ", once for all") if stops else [])]
    lines += ["  the next gate asks for:", *_listed(asks, shell)] if asks else []
    document = {"group": plain(judged), "migrations": [result.as_json() for result in results.values()]}
    return shell.emit(document, "\n".join(lines))


def _confirm(
    shell: Shell,
    project: Project,
    completed: Sequence[Declared] | None,
    yes: Sequence[str],
    group: str | None,
) -> None:
    """Require the typed name of every migration whose rollback is about to end, or of their group.
    `completed`: None without `--to complete`. Raises click.UsageError, ConfigurationError."""
    ending = completed or ()
    names = [group] if group and ending else [declared.script_id for declared in ending]
    applied = {} if completed is None else project.applied()
    ended = [script_id for script_id, phases in applied.items() if Phase.COMPLETE in phases]
    # The same command again, after its answer was lost, names what is complete by now.
    if strange := [name for name in yes if name not in (*names, *ended)]:
        meant = f"it names {', '.join(names)} here" if names else "it goes with --to complete"
        raise click.UsageError(f"--yes {strange[0]}: {meant}")
    for name in names:
        if name in yes or name in ended or all(script.script_id in ended for script in ending):
            continue
        meant = f"--group {group}" if group else name
        if not shell.is_terminal:
            raise refusal("name-not-typed", name=name, command=shell.command(apply_to(meant, Phase.COMPLETE)))
        question = f"`complete` makes rollback of {name} impossible. Type its name"
        if click.prompt(question, err=True) != name:
            raise click.UsageError("the migration's name was typed differently")


def _check_follow(
    project: Project, chosen: Sequence[Declared], goal: Phase | None, *, writers_stopped: bool
) -> None:
    if goal is not None:
        text = "--follow cuts over when it is told to"
        raise click.UsageError(f"{text}, --to {goal} at once: give one of them")
    if len(chosen) != 1:
        listed = ", ".join(script.script_id for script in chosen) or "none is left to apply"
        raise click.UsageError(f"--follow follows one migration: say which script; {listed}")
    if writers_stopped and project.config.follow.window is None:
        raise click.UsageError(
            "--follow follows writers that are at work: `rekey proceed --writers-stopped` confirms that they"
            " are stopped, when they are; here it is for the window of [follow], and there is none"
        )


def _served(
    shell: Shell, project: Project, chosen: Sequence[Declared], address: str | None
) -> AbstractContextManager[None]:
    """Return the context in which progress is served; its modules are imported only here."""
    if address is None:
        return nullcontext()
    from rekey.cli.serve import served

    return served(shell, project, chosen, address)


def _hold_to_plan(session: Session, chosen: Sequence[Declared], path: Path) -> None:
    """Compare a plan file with script, secrets and tables of migrations that have not begun, and with the
    script of the others.

    Raises:
        Findings: the plan lists errors.
        Moved, ConfigurationError: see `check_plan`.
    """
    file: PlanFile = read_plan(path)
    if file.errors:
        raise refusal("plan-has-errors", made_at=file.made_at, errors=file.errors)
    options = PlanOptions.of(session.config, exact=file.exact)
    fresh = [script for script in chosen if not session.ledger.applied(script.script_id)]
    check_declared(file, chosen)
    bases = []
    for declared in fresh:
        migration = session.opened(declared.script_id)
        subject = session.do(subject_of(migration, session.state.migration(declared.script_id)))
        bases.append(session.do(take_basis(subject, session.accounts.tables, options)))
    check_plan(file, bases)


def _require_no_wait(declared: Declared, waiting: Sequence[Wait]) -> None:
    if waiting:
        reasons = [f"{declared.script_id} waits for `{wait.phase}` of {wait.script_id}" for wait in waiting]
        first = apply_to(waiting[0].cli_selector or waiting[0].script_id, waiting[0].phase)
        raise GateClosed(Phase.PREPARE, reasons, hint=f"`rekey {first}` first")


def _apply_one(
    session: Session, result: _Result, goal: Phase | None, *, named: bool, check_rows: bool
) -> None:
    declared, state = result.declared, session.state
    session.resume_needed(declared.script_id)
    result.waits = waits(declared, session.scripts, state.ledger_ids())
    if named:
        _require_no_wait(declared, result.waits)
    # No failure without SCRIPT: the others are still brought to their gates.
    if result.waits:
        return
    result.applied = commands.apply(session, declared.script_id, to=goal, check_rows=check_rows)
    result.status = status_of(session, declared)
