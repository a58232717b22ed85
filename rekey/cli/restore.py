"""`rekey restore`: bring a retired source back from the backup that it was retired with."""

from __future__ import annotations

from pathlib import Path

import click

from rekey.cli.backup import opened
from rekey.cli.project import open_project, open_session
from rekey.cli.shell import FOLDER, SCRIPT, Shell, command
from rekey.errors import ExitCode
from rekey.phases import Phase
from rekey.runner.restore_source import restore_source


@command("restore", example="rekey restore users.export 0001")
@click.argument("folder", type=FOLDER)
@SCRIPT
def restore(shell: Shell, folder: Path, script: str | None) -> ExitCode:
    """Bring a retired source back from its backup in FOLDER.

    All of the backup is checked before the first row is written. Of a migration with `where=` the rows of its
    part come back. The migration stays retired: nothing follows the source. Refused when the source is there
    again with rows, or is the target of another migration by now. The same command continues after an
    interruption.
    """
    project = open_project(shell)
    declared = project.the_one(script, Phase.RETIRE)
    export = opened(lambda: project.config, folder)
    with open_session(shell, project) as session:
        done, erased = restore_source(session, declared.script_id, export)
    source, began_at = declared.migration.source_label, export.manifest.header.began_at
    document = {"script_id": declared.script_id, "table": declared.migration.source, "folder": str(folder)}
    text = [
        f"{declared.script_id}: {source} is back, from {folder}, exported at {began_at}",
        f"  inserted    {done.inserted:,}",
        f"  unchanged   {done.unchanged:,}",
        f"  differing   {done.differing:,}",
        *([f"  erased      {erased:,}, not written: they were erased after the export"] if erased else []),
    ]
    code = ExitCode.FINDINGS if done.differing else ExitCode.DONE
    return shell.emit({**document, **done.as_json(), "erased": erased}, "\n".join(text), code)
