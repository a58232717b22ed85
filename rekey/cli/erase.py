"""`rekey erase`: delete what a completed migration knows of some rows, those rows of the source and, with
`--with-targets`, their rows of the targets. Answers name rows by safe id."""

from __future__ import annotations

from collections.abc import Mapping

import click

from rekey.cli.naming import Named, check_reason, naming
from rekey.cli.project import open_project, open_session
from rekey.cli.shell import SCRIPT, Shell, command, flag
from rekey.declaration.migration import Declared
from rekey.errors import ExitCode, Findings
from rekey.phases import Phase
from rekey.present.text import counted, shortened, wrapped
from rekey.runner.erase import erasure
from rekey.runner.erase.erasure import Done, Request, Scope, Subjects
from rekey.runner.refusals import refusal

_CHOICE = "`--with-targets` erases them, too; `rekey lookup` shows their keys before"


@command(
    "erase",
    example='rekey erase 0001 --old eu someone@example.com --reason "ticket 4711"'
    '\nrekey erase 0001 --bulk asked.csv --with-targets --reason "ticket 4712"',
)
@SCRIPT
@naming
@flag("--with-targets", help="Erase their rows of the target and of index tables, too.")
@flag("--listed-only", help="Do not search mapping and index tables for rows that no mapping row lists.")
def erase(
    shell: Shell, script: str | None, named: Named, reason: str, with_targets: bool, listed_only: bool
) -> ExitCode:
    """Erase rows from the mapping and from the source table.

    After this no one can tell which new key they got: their rows of the targets stand unless --with-targets
    is given, and how many these are is said first. Only after `complete`; a row of the source that changed
    after the freeze is never deleted, nor a row of a target that changes meanwhile. The request and its
    reason are recorded first. Exit code 1 when a row is not known or could not be erased.
    """
    project = open_project(shell)
    declared = project.the_one(script, Phase.COMPLETE)
    queries = named.queries(project.config, reason)

    def tell(targets: Mapping[str, int]) -> None:
        if not targets:
            return
        rows = ", ".join(f"{counted(number, 'row')} of {table}" for table, number in targets.items())
        stay = f"They stay, and after this no one can look up whose they are. {_CHOICE}"
        after = "They are erased, too" if with_targets else stay
        shell.note(f"{declared.script_id}: the targets hold of what is named: {rows}. {after}")
        # Afterwards nobody can look up whose target rows they are.
        asks = not with_targets and shell.is_terminal
        if asks and not click.confirm("Erase the rest all the same?", err=True):
            raise refusal("erase-not-confirmed", script=declared.script_id, hint=_CHOICE)

    with open_session(shell, project) as session:
        by = "bulk" if named.bulk is not None else queries[0].by
        request = Request(queries, by, reason, Scope(not listed_only, with_targets))
        subjects, done = erasure.erase(
            session, declared.script_id, request, refuse=lambda keys: check_reason(reason, keys), tell=tell
        )
    erased_before = [{"row_id": row_id, "erased_on": on} for row_id, on in sorted(subjects.erased.items())]
    document = {"script_id": declared.script_id, **done.as_json(), "unknown": len(subjects.unknown)}
    document |= {"erased_before": erased_before, "targets": dict(subjects.targets)}
    lines = []
    if done.rows:
        counts = [
            f"forward rows {done.forward_rows:,}",
            f"reverse rows {done.reverse_rows:,}",
            f"rows of {declared.migration.source} {done.source_rows:,}",
        ]
        if done.source_rows_gone:
            counts.append(f"gone from there already {done.source_rows_gone:,}")
        counts += [f"rows of {table} {number:,}" for table, number in sorted(done.target_rows.items())]
        if done.removed_rows:
            counts.append(f"rows that a repair had removed {done.removed_rows:,}")
        lines.append(f"{declared.script_id}: erased on {done.on}: {', '.join(counts)}")
        lines += wrapped(f"by safe id: {shortened(sorted(done.rows))}", first="  ", rest="  ")
    stays = "; what it has in the targets cannot be found any more" if with_targets else ""
    lines += [
        f"row {row_id} was erased on {on} before{stays}" for row_id, on in sorted(subjects.erased.items())
    ]
    text = "\n".join(lines)
    if not (done.changed or done.targets_changed or subjects.unknown or done.unreadable):
        return shell.emit(document, text)
    shell.tell_before_error(document, text)
    raise _incomplete(declared, subjects, done)


def _incomplete(declared: Declared, subjects: Subjects, done: Done) -> Findings:
    """Return the error for what was not erased; its hint is that of the first problem."""
    findings, hints = [], []
    if done.changed:
        findings.append(
            f"{len(done.changed):,} source rows were written although the source was to be quiet: they"
            f" were not deleted, and nothing else of them was erased: {shortened(done.changed)}"
        )
        hints.append(
            f"find out who wrote them to {declared.migration.source}, copy what is worth keeping to the"
            " target, delete them by hand, and run the same command again"
        )
    if done.targets_changed:
        findings.append(
            f"target rows of {counted(len(done.targets_changed), 'row')} changed after they were found: they"
            f" were not deleted, nor the mapping rows that lead to them: "
            f"{shortened(sorted(done.targets_changed))}"
        )
        hints.append("run the same command again: it looks at them as they are then")
    if done.unreadable:
        findings.append(f"{done.unreadable:,} mapping rows cannot be opened; whom they name is unknown")
        hints.append("`rekey runbook wrapping-key` says what that means")
    if subjects.unknown:
        findings.append(f"{declared.script_id} has no such row ({shortened(subjects.unknown)})")
        hints.append("check the key character by character")
    kept = "everything as it was; that it was asked for is on record"
    if done.targets_changed:
        kept = "the record, those target rows, and the mapping rows by which they are found again"
    elif done.rows:
        kept = "the record; everything else that was asked for is erased"
    return Findings("; ".join(findings), kept=kept, hint=hints[0])
