"""`rekey expire`: shred the data keys of months whose retention is over, or of one month by its name."""

from __future__ import annotations

import click

from rekey.cli.naming import reason_option
from rekey.cli.project import open_project, open_session
from rekey.cli.shell import SCRIPT, Shell, command
from rekey.core.clock import format_ticks
from rekey.errors import ExitCode
from rekey.mapping.rows import WHOLE
from rekey.phases import Phase
from rekey.present.text import counted, moment
from rekey.runner.erase import expiry
from rekey.runner.refusals import refusal


@command(
    "expire",
    example="rekey expire 0001 --confirm 0001_users"
    '\nrekey expire 0001 --cohort 2024-05 --reason "ticket 4712"',
)
@SCRIPT
@click.option("--confirm", metavar="ID", help="The migration's id, typed. Asked for on a terminal.")
@click.option("--cohort", metavar="MONTH", help="Erase this month (2024-05) only.")
@reason_option(
    "--reason",
    "Why a month goes before its time; it is recorded. No name, no key: a ticket's number for example.",
)
def expire(
    shell: Shell, script: str | None, confirm: str | None, cohort: str | None, reason: str | None
) -> ExitCode:
    """Erase the part of a mapping whose retention is over.

    Retention is [gates] mapping_retention after `complete`, and after the end of the month in which a row was
    written. Of a sealed mapping the data keys of these months are deleted, without which no old key can be
    read; of a mapping in the clear all rows.
    """
    if confirm is not None and cohort is not None:
        raise click.UsageError("--confirm goes without --cohort")
    if reason is not None and cohort is None:
        raise click.UsageError("--reason goes with --cohort")
    project = open_project(shell)
    declared = project.the_one(script, Phase.COMPLETE)
    if cohort is None:
        if confirm is None:
            if not shell.is_terminal:
                raise click.UsageError(f"type the migration's id: --confirm {declared.script_id}")
            question = "This erases what `rekey status` says is over, for good. Type the migration's id"
            confirm = click.prompt(question, err=True)
        # A single month needs no id: its name is not typed by mistake.
        if confirm != declared.script_id:
            raise click.UsageError("the migration's id was typed differently; nothing was erased")
    with open_session(shell, project) as session:
        done = expiry.expire(session, declared.script_id, cohort, reason or "")
    document, text = {"script_id": declared.script_id, **done.as_json()}, _summary(declared.script_id, done)
    if not done.kept_rows:
        return shell.emit(document, text)
    shell.tell_before_error(document, text)
    raise refusal("mapping-rows-kept", rows=done.kept_rows, script=declared.script_id)


def _summary(script_id: str, done: expiry.Expired) -> str:
    lines = []
    if done.cohorts == (WHOLE,):
        lines.append(f"{script_id}: {done.deleted_rows:,} rows of the mapping are erased.")
    elif done.cohorts:
        names = ", ".join(done.cohorts)
        lines.append(f"{script_id}: shredded the data keys of {names}; nothing opens their rows.")
    if done.removed_rows:
        rows = counted(done.removed_rows, "row")
        lines.append(f"{script_id}: {rows} that a repair had removed cannot be restored any more.")
    if not lines:
        lines.append(f"{script_id}: there was nothing to erase.")
    if done.left:
        first = done.left[0]
        which = "the mapping" if first.name == WHOLE else f"cohort {first.name}"
        lines.append(f"Next is {which}, on {moment(format_ticks(first.over_at))}.")
    return "\n".join(lines)
