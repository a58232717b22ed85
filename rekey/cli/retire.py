"""`rekey retire`: delete what a completed migration leaves: the source, and what the mapping knows.

Rules kept here:

* The source's name is typed, as an option or as the answer to a question; nothing else stands for it. So is
  the migration's id where months are shredded because they are over.
* One thing at a time: the source, subjects, what is over, or a cohort by its name.
* Erasing subjects asks for a reason, as a look-up does. Answers name rows by safe id; no key is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rekey.cli.asking import keys_in, naming, queries_of, refuse_telling, require_one, require_reason
from rekey.cli.project import Project, open_project, open_session
from rekey.cli.shell import Shell, command
from rekey.cli.text import moment
from rekey.errors import ExitCode, Findings
from rekey.phases import Phase
from rekey.present.text import wrapped

if TYPE_CHECKING:
    from rekey.declaration.migration import Declared
    from rekey.runner.erase.erasure import Asked, Done
    from rekey.runner.erase.expiry import Expired

_NAMED = 20


@command(
    "retire",
    example="rekey retire 0001 --table Users"
    '\nrekey retire 0001 --subject --old eu someone@example.com --reason "ticket 4711"'
    "\nrekey retire 0001 --expired --confirm 0001_users"
    '\nrekey retire 0001 --cohort 2024-05 --reason "ticket 4712"',
)
@click.argument("script", required=False)
@click.option("--table", metavar="NAME", help="The source table's name, typed. Asked for on a terminal.")
@click.option("--subject", is_flag=True, help="Erase what the mapping knows of a row, and its source row.")
@naming
@click.option(
    "--listed-only", is_flag=True, help="Do not search the whole mapping for rows left by cut-off runs."
)
@click.option("--expired", is_flag=True, help="Shred what is kept longer than [gates] mapping_retention.")
@click.option("--confirm", metavar="ID", help="The migration's id, typed. Asked for on a terminal.")
@click.option("--cohort", metavar="MONTH", help="Shred the data key of this month's mapping rows.")
@click.option(
    "--reason", metavar="TEXT", help="Why; it is recorded. No name, no key: a ticket's number for example."
)
def retire(
    shell: Shell,
    script: str | None,
    table: str | None,
    subject: bool,
    old: tuple[str, str] | None,
    new: tuple[str, str] | None,
    safe_id: str | None,
    bulk: Path | None,
    listed_only: bool,
    expired: bool,
    confirm: str | None,
    cohort: str | None,
    reason: str | None,
) -> ExitCode:
    """Delete the source, or what the mapping knows, for good.

    The source goes only after `complete` and the retention period; a row that changed after the freeze is
    never deleted. The mapping goes by subject (an erasure request), or by month when it is kept long enough.
    """
    named = (old, new, safe_id, bulk)
    _require_one_thing(
        subject=subject,
        expired=expired,
        cohort=cohort is not None,
        of_source=table is not None,
        of_subject=any(one is not None for one in named) or listed_only,
        of_expired=confirm is not None,
        of_reason=reason is not None,
    )
    project = open_project(shell)
    if not (subject or expired or cohort):
        return _retire_source(shell, project, script, table)
    declared = project.the_one(script, lambda applied: Phase.COMPLETE in applied)
    if subject:
        require_one(*named)
        reason = require_reason(reason)
        queries = queries_of(project.config, *named)
        refuse_telling(reason, keys_in(queries))
        by = "bulk" if bulk is not None else queries[0].by
        return _erase(shell, project, declared, queries, reason, by=by, searched=not listed_only)
    if expired:
        _require_confirmed(shell, declared, confirm)
    if reason is not None:
        refuse_telling(require_reason(reason), ())
    return _shred(shell, project, declared, cohort, reason or "")


def _require_one_thing(
    *,
    subject: bool,
    expired: bool,
    cohort: bool,
    of_source: bool,
    of_subject: bool,
    of_expired: bool,
    of_reason: bool,
) -> None:
    """Refuse options that do not belong together. Raises click.UsageError."""
    if subject + expired + cohort + of_source > 1:
        raise click.UsageError("one thing at a time: --table, --subject, --expired or --cohort")
    if of_subject and not subject:
        raise click.UsageError("--old, --new, --id, --bulk and --listed-only belong to --subject")
    if of_expired and not expired:
        raise click.UsageError("--confirm belongs to --expired")
    if of_reason and not (subject or cohort):
        raise click.UsageError("--reason belongs to --subject and --cohort")


def _require_confirmed(shell: Shell, declared: Declared, confirm: str | None) -> None:
    """Have the migration's id typed. Raises click.UsageError."""
    if confirm is None:
        if not shell.is_terminal:
            raise click.UsageError(f"type the migration's id: --confirm {declared.script_id}")
        question = "This erases what `rekey status` says is over, for good. Type the migration's id"
        confirm = click.prompt(question, err=True)
    if confirm != declared.script_id:
        raise click.UsageError("the migration's id was typed differently; nothing was erased")


# --- the source -------------------------------------------------------------------------------------------


def _retire_source(shell: Shell, project: Project, script: str | None, table: str | None) -> ExitCode:
    from rekey.runner import commands as moves
    from rekey.runner.run import Options

    declared = project.the_one(
        script, lambda applied: Phase.COMPLETE in applied and Phase.RETIRE not in applied
    )
    source = declared.migration.source
    if table is None:
        if not shell.is_terminal:
            raise click.UsageError("type the source table's name: --table NAME")
        question = f"This deletes the source table of {declared.script_id} for good. Type its name"
        table = click.prompt(question, err=True)
    with open_session(shell, project, Options(typed_table=table)) as session:
        moves.retire(session, declared.script_id)
        last = session.state.phase_runs(declared.script_id)[-1]
    kept = ", ".join(declared.migration.tables)
    shell.emit(
        {
            "exit_code": int(ExitCode.DONE),
            "script_id": declared.script_id,
            "deleted": source,
            "counters": dict(last.counters),
        },
        f"{declared.script_id}: {source} is deleted; the application works on {kept}.",
    )
    return ExitCode.DONE


# --- subjects ---------------------------------------------------------------------------------------------


def _erase(
    shell: Shell,
    project: Project,
    declared: Declared,
    queries: Sequence[Any],
    reason: str,
    *,
    by: str,
    searched: bool,
) -> ExitCode:
    from rekey.runner.erase import erasure

    with open_session(shell, project) as session:
        asked, done = erasure.erase(
            session,
            declared.script_id,
            queries,
            reason,
            by=by,
            searched=searched,
            refuse=lambda keys: refuse_telling(reason, keys),
        )
    document = {"script_id": declared.script_id, **done.as_json(), "unknown": len(asked.unknown)}
    document["erased_before"] = [
        {"row_id": row_id, "erased_on": on} for row_id, on in sorted(asked.erased.items())
    ]
    text = "\n".join(_told(declared, asked, done))
    if not (done.changed or asked.unknown or done.unreadable):
        shell.emit({"exit_code": int(ExitCode.DONE), **document}, text)
        return ExitCode.DONE
    shell.so_far.update(document)
    if text:
        shell.say(text)
    raise _found(declared, asked, done)


def _told(declared: Declared, asked: Asked, done: Done) -> list[str]:
    lines = []
    if done.rows:
        counts = [
            f"forward rows {done.forward_rows:,}",
            f"reverse rows {done.reverse_rows:,}",
            f"rows of {declared.migration.source} {done.source_rows:,}",
        ]
        if done.source_rows_gone:
            counts.append(f"gone from there already {done.source_rows_gone:,}")
        lines.append(f"{declared.script_id}: erased on {done.on}: {', '.join(counts)}")
        lines += wrapped(f"by safe id: {_some(sorted(done.rows))}", first="  ", rest="  ")
    lines += [f"row {row_id} was erased on {on} before" for row_id, on in sorted(asked.erased.items())]
    return lines


def _found(declared: Declared, asked: Asked, done: Done) -> Findings:
    """Return the error for what was not erased; the first of these decides what to do next."""
    said, hints = [], []
    if done.changed:
        said.append(
            f"{len(done.changed):,} source rows were written although the source was to be quiet: they"
            f" were not deleted, and nothing else of them was erased: {_some(done.changed)}"
        )
        hints.append(
            f"find out who wrote them to {declared.migration.source}, copy what is worth keeping to the"
            " target, delete them by hand, and run the same command again"
        )
    if done.unreadable:
        said.append(f"{done.unreadable:,} mapping rows cannot be opened; nobody knows whom they name")
        hints.append("the runbook on the wrapping key says what that means")
    if asked.unknown:
        said.append(f"{declared.script_id} knows no such row ({_some(asked.unknown)})")
        hints.append("check the key character by character")
    kept = "everything as it was; that it was asked for is on record"
    if done.rows:
        kept = "the record; everything else that was asked for is erased"
    return Findings("; ".join(said), kept=kept, hint=hints[0])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")


# --- cohorts ----------------------------------------------------------------------------------------------


def _shred(shell: Shell, project: Project, declared: Declared, cohort: str | None, reason: str) -> ExitCode:
    from rekey.runner.erase import expiry

    with open_session(shell, project) as session:
        if cohort is None:
            done = expiry.expire(session, declared.script_id)
        else:
            done = expiry.shred(session, declared.script_id, cohort, reason)
    document = {"script_id": declared.script_id, **done.as_json()}
    text = "\n".join(_expired(declared, done))
    if not done.kept_rows:
        shell.emit({"exit_code": int(ExitCode.DONE), **document}, text)
        return ExitCode.DONE
    shell.so_far.update(document)
    shell.say(text)
    raise Findings(
        f"{done.kept_rows:,} mapping rows of {declared.script_id} were written too late to be over, or"
        " changed while they were deleted",
        kept="those rows",
        hint="after `complete` nobody writes to the mapping: find out who did; the same command takes them"
        " when they are over",
    )


def _expired(declared: Declared, done: Expired) -> list[str]:
    from rekey.core.clock import format_ticks
    from rekey.mapping.retention import WHOLE

    name = declared.script_id
    lines = []
    if done.cohorts == (WHOLE,):
        lines.append(f"{name}: {done.deleted_rows:,} rows of the mapping are erased.")
    elif done.cohorts:
        lines.append(
            f"{name}: shredded the data keys of {', '.join(done.cohorts)}; nothing opens their rows."
        )
    else:
        lines.append(f"{name}: nothing was to be erased.")
    if done.left:
        first = done.left[0]
        which = "the mapping" if first.name == WHOLE else f"cohort {first.name}"
        lines.append(f"Next is {which}, on {moment(format_ticks(first.over_at))}.")
    return lines
