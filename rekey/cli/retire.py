"""`rekey retire`: delete the source of a migration that is complete.

Rules kept here:

* The source's name is typed, as an option or as the answer to a question; nothing else stands for it.
"""

from __future__ import annotations

import click

from rekey.cli.project import open_project, open_session
from rekey.cli.shell import Shell, command
from rekey.errors import ExitCode
from rekey.phases import Phase


@command("retire", example="rekey retire 0001 --table Users")
@click.argument("script", required=False)
@click.option("--table", metavar="NAME", help="The source table's name, typed. Asked for on a terminal.")
def retire(shell: Shell, script: str | None, table: str | None) -> ExitCode:
    """Delete the source table of SCRIPT, for good.

    Only after `complete` and the retention period. A row that changed after the freeze is never deleted.
    """
    from rekey.runner import moves
    from rekey.runner.run import Options

    project = open_project(shell)
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
