"""`rekey restore-row`: bring a row back that `rekey verify --repair` removed."""

from __future__ import annotations

from dataclasses import asdict

import click

from rekey.cli.naming import reason_option
from rekey.cli.project import open_project, open_session
from rekey.cli.shell import SCRIPT, Shell, command
from rekey.errors import ExitCode
from rekey.phases import Phase
from rekey.runner.restore import restore


@command("restore-row", example='rekey restore-row 3m9k2v7c0q1x 0001 --reason "ticket 4711"')
@click.argument("row_id", metavar="ID")
@SCRIPT
@reason_option("--reason", "Why; it is recorded. No name, no key.")
def restore_row(shell: Shell, row_id: str, script: str | None, reason: str | None) -> ExitCode:
    """Bring a row of a target back that a repair removed.

    ID is the row's safe id, as the report of the repair names it. Removed rows are kept for [gates]
    retention. Refused when the id is not known, when its time is over, or when a row stands at its key.
    """
    project = open_project(shell)
    declared = project.the_one(script, Phase.DUAL_WRITE)
    with open_session(shell, project) as session:
        done = restore(session, declared.script_id, row_id, reason or "")
    text = f"row {done.row_id} of {done.table} is restored; it was removed at {done.removed_at}"
    if done.verify_again:
        verify = shell.command(f"verify {declared.script_id} --mode full")
        text += (
            "\nCutover asks for a new full verification, which reports this row unless a source row gives it:"
        )
        text += f" `{verify}`"
    if done.moved_by:
        text += f"\n{done.moved_by} has moved the rows on: the application does not read it there"
    return shell.emit({"script_id": declared.script_id, **asdict(done)}, f"{declared.script_id}: {text}")
