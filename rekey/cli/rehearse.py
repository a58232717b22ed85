"""`rekey rehearse`: the whole life of a migration on an Azurite of its own, with a kill and a rollback. A
script given as a path needs no configuration, so that CI can rehearse what is checked in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from rekey.backup.folder import Export
from rekey.backup.restore import check_export
from rekey.cli.backup import opened
from rekey.cli.project import open_project
from rekey.cli.shell import FOLDER, SCRIPT, Shell, command, flag
from rekey.declaration.scripts import file_of
from rekey.errors import ExitCode
from rekey.model import Row
from rekey.phases import Phase
from rekey.project.config import load_config
from rekey.rehearse.rehearsal import DEMO
from rekey.rehearse.rehearsal import rehearse as rehearsed
from rekey.rehearse.report import Briefly, WithOutput

_INTRODUCTION = """\
A whole migration, on a local Azurite: e-mail addresses in the RowKeys of `Users` become opaque ids in
`UsersV2`, while an application goes on writing. Every command below is run for real; lines with ✓ are what
was read back from the tables afterwards and compared row by row."""

ROWS = 2000


@dataclass(frozen=True, slots=True)
class ExportedRows:
    """The rows of an export that was checked, for a rehearsal."""

    export: Export
    assumptions: tuple[str, ...] = ()

    @property
    def described(self) -> str:
        header = self.export.manifest.header
        return f"from {self.export.folder.name}, an export of {header.table} begun at {header.began_at}"

    def rows(self) -> Iterator[Row]:
        """Yield the rows. Raises Refused when a part has changed."""
        for number in range(len(self.export.parts)):
            yield from self.export.rows(self.export.parts, number)


@command(
    "rehearse",
    example="rekey rehearse 0001\nrekey rehearse migrations/0001_users.py --rows 20000"
    "\nrekey rehearse 0001 --data users.export\nrekey rehearse --demo",
)
@SCRIPT
@click.option("--rows", type=click.IntRange(1), help=f"How many rows to make up.  [default: {ROWS}]")
@click.option(
    "--data",
    metavar="FILE|FOLDER",
    type=click.Path(path_type=Path),
    help="Use these rows: an export that `rekey export` wrote; or JSON as `az storage entity query -o json`"
    " prints it, JSON Lines, or CSV with EDM types in its header:"
    " PartitionKey,RowKey,Age:Edm.Int32,Joined:Edm.DateTime.",
)
@click.option("--seed", type=int, help="For all made-up rows.  [default: 0]")
@click.option(
    "--folder",
    metavar="FOLDER",
    type=FOLDER,
    help="Where the rehearsal makes its own folder; among temporary files by default.",
)
@flag("--keep", help="Keep that folder, to look at.")
@flag("--demo", help="Rehearse an example that is part of rekey, and show what every command prints.")
def rehearse(
    shell: Shell,
    script: str | None,
    rows: int | None,
    data: Path | None,
    seed: int | None,
    folder: Path | None,
    keep: bool,
    demo: bool,
) -> ExitCode:
    """Run the whole life of a migration on a local Azurite.

    Plans, applies, is killed, continues, verifies, cuts over, goes back, cuts over again, completes and
    retires, while an application writes; after each step an independent reader compares both sides. Touches
    none of your accounts. A SCRIPT given as a path needs no configuration. Exit code 1 when something was not
    as it must be.
    """
    if data is not None and rows is not None:
        raise click.UsageError("--rows is for rows that are made up; --data gives them")
    out = shell.note if shell.options.json else shell.say
    if demo:
        if script is not None or data is not None:
            raise click.UsageError("--demo has a script and rows of its own: leave SCRIPT and --data out")
        path = DEMO
        out(_INTRODUCTION)
    elif script is not None and script.endswith(".py"):
        path = Path(script)
        if not file_of(path).is_file():
            raise click.UsageError(f"there is no file {script}")
    else:
        declared = open_project(shell).the_one(script, before=Phase.PREPARE)
        path = declared.path.with_name(f"{declared.script_id}.py")
    source = _exported(shell, data) if data is not None and data.is_dir() else data
    narrator = (WithOutput if demo else Briefly)(out)
    report = rehearsed(
        path, rows=rows or ROWS, data=source, seed=seed or 0, narrator=narrator, folder=folder, keep=keep
    )
    code = ExitCode.DONE if report.passed else ExitCode.FINDINGS
    text = f"\n{report.text()}"
    if demo and report.passed:
        text += "\n\nNext: `rekey init`, then `rekey rehearse YOUR_SCRIPT.py`."
    return shell.emit(report.as_json(), text, code)


def _exported(shell: Shell, folder: Path) -> ExportedRows:
    """Return the rows of the export in a folder, all of which are checked first."""
    export = opened(lambda: load_config(shell.config.path), folder)
    with shell.progress().task(f"check {folder.name}", total=export.manifest.rows) as advance:
        shell.do(check_export(export, advance, lambda: None))
    return ExportedRows(export)
