"""`rekey erase`: delete what a completed migration knows of some rows, and those rows of the source.

Rules kept here:

* A reason is required, as for a look-up. Answers name rows by safe id; no key is shown.
"""

from __future__ import annotations

import click

from rekey.cli.naming import Named, check_reason, naming, some
from rekey.cli.project import open_project, open_session
from rekey.cli.shell import Shell, command, flag
from rekey.declaration.migration import Declared
from rekey.errors import ExitCode, Findings
from rekey.phases import Phase
from rekey.present.text import wrapped
from rekey.runner.erase import erasure
from rekey.runner.erase.erasure import Asked, Done


@command(
    "erase",
    example='rekey erase 0001 --old eu someone@example.com --reason "ticket 4711"'
    '\nrekey erase 0001 --bulk asked.csv --reason "ticket 4712"',
)
@click.argument("script", required=False)
@naming
@flag("--listed-only", help="Do not search the whole mapping for rows left by interrupted runs.")
def erase(shell: Shell, script: str | None, named: Named, reason: str, listed_only: bool) -> ExitCode:
    """Erase rows from the mapping and from the source table.

    After this no one can tell which new key they got. Only after `complete`; a row of the source that changed
    after the freeze is never deleted. Rows of the target belong to the application: delete them there. The
    request and its reason are recorded first. Exit code 1 when a row is not known or could not be erased.
    """
    project = open_project(shell)
    declared = project.the_one(script, lambda applied: Phase.COMPLETE in applied)
    queries = named.queries(project.config, reason)
    with open_session(shell, project) as session:
        asked, done = erasure.erase(
            session,
            declared.script_id,
            queries,
            reason,
            by="bulk" if named.bulk is not None else queries[0].by,
            searched=not listed_only,
            refuse=lambda keys: check_reason(reason, keys),
        )
    erased_before = [{"row_id": row_id, "erased_on": on} for row_id, on in sorted(asked.erased.items())]
    document = {"script_id": declared.script_id, **done.as_json(), "unknown": len(asked.unknown)}
    document["erased_before"] = erased_before
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
        lines += wrapped(f"by safe id: {some(sorted(done.rows))}", first="  ", rest="  ")
    lines += [f"row {row_id} was erased on {on} before" for row_id, on in sorted(asked.erased.items())]
    text = "\n".join(lines)
    if not (done.changed or asked.unknown or done.unreadable):
        return shell.emit(document, text)
    shell.tell_before_error(document, text)
    raise _found(declared, asked, done)


def _found(declared: Declared, asked: Asked, done: Done) -> Findings:
    """Return the error for what was not erased; its hint is that of the first problem."""
    said, hints = [], []
    if done.changed:
        said.append(
            f"{len(done.changed):,} source rows were written although the source was to be quiet: they"
            f" were not deleted, and nothing else of them was erased: {some(done.changed)}"
        )
        hints.append(
            f"find out who wrote them to {declared.migration.source}, copy what is worth keeping to the"
            " target, delete them by hand, and run the same command again"
        )
    if done.unreadable:
        said.append(f"{done.unreadable:,} mapping rows cannot be opened; whom they name is unknown")
        hints.append("`rekey runbook wrapping-key` says what that means")
    if asked.unknown:
        said.append(f"{declared.script_id} knows no such row ({some(asked.unknown)})")
        hints.append("check the key character by character")
    kept = "everything as it was; that it was asked for is on record"
    if done.rows:
        kept = "the record; everything else that was asked for is erased"
    return Findings("; ".join(said), kept=kept, hint=hints[0])
