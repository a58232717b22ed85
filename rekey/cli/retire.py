"""`rekey retire`: delete the source of a completed migration, after its name was typed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from rekey.backup.folder import JOURNAL, MANIFEST, Export
from rekey.cli.backup import opened
from rekey.cli.naming import reason_option
from rekey.cli.project import Project, open_project, open_session
from rekey.cli.shell import FOLDER, SCRIPT, Shell, command
from rekey.declaration.migration import Declared
from rekey.errors import ExitCode
from rekey.phases import Phase
from rekey.runner import commands
from rekey.runner.refusals import refusal
from rekey.runner.run import Options

_MOVED = {"--subject": "erase", "--expired": "expire", "--cohort": "expire"}
_HIDDEN = {"--old": ("PK", "RK"), "--new": ("PK", "RK"), "--reason": ("TEXT",)}


class _Retire(click.Command):
    """Command that recognizes the options of versions before 0.2."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse an option that has become a command. Raises click.UsageError."""
        words = [part for word in args for part in (word.split("=", 1) if word[:2] == "--" else [word])]
        moved = next((word for word in words if word in _MOVED), None)
        if moved is not None:
            raise click.UsageError(f"{moved} is a command now; type: {_instead(moved, words)}", ctx)
        return super().parse_args(ctx, args)


def _instead(moved: str, words: Sequence[str]) -> str:
    """Return the present command line for an old one, with placeholders for keys and reason."""
    line, rest = ["rekey", _MOVED[moved]], iter(words)
    for word in rest:
        if word in _HIDDEN:
            line += [word, *_HIDDEN[word]]
            for _ in _HIDDEN[word]:
                next(rest, None)
        elif word not in ("--subject", "--expired"):
            line.append(shlex.quote(word))
    return " ".join(line)


def _opened(project: Project, declared: Declared, folder: Path) -> Export:
    """Open the backup of a migration's source. Raises Refused where there is none yet, and as `opened`."""
    if not (folder / MANIFEST).exists() and not (folder / JOURNAL).exists():
        raise refusal("backup-not-there", folder=folder, source=declared.migration.source)
    return opened(lambda: project.config, folder)


@command("retire", cls=_Retire, example="rekey retire 0001 --table Users --backup users.export")
@SCRIPT
@click.option("--table", metavar="NAME", help="The source table's name, typed. Asked for on a terminal.")
@reason_option("--reason", "Why the target holds fewer rows than the source; recorded. No name, no key.")
@click.option(
    "--backup",
    metavar="FOLDER",
    type=FOLDER,
    help="An export of the source: every row that is deleted must be in it as it is now.",
)
@reason_option("--no-backup", "Why none is needed; recorded. No name, no key.")
def retire(
    shell: Shell,
    script: str | None,
    table: str | None,
    reason: str | None,
    backup: Path | None,
    no_backup: str | None,
) -> ExitCode:
    """Delete the source table of a completed migration.

    Of a migration with `where=` the rows of its part are deleted, and the table stays. Asks for `complete`,
    for the end of the retention period, for signed evidence that was verified, and for a backup (`rekey
    export`) that holds every row of the source, from which `rekey restore` brings it back. A row that changed
    after the freeze is never deleted. Where the target holds fewer rows than the source, this asks for
    --reason.
    """
    if backup is not None and no_backup is not None:
        raise click.UsageError("--backup and --no-backup contradict each other")
    project = open_project(shell)
    declared = project.the_one(script, Phase.COMPLETE, Phase.RETIRE)
    if table is None:
        if not shell.is_terminal:
            raise click.UsageError("type the source table's name: --table NAME")
        deletes = "the source table" if declared.migration.where is None else "the rows of the part"
        question = f"This deletes {deletes} of {declared.script_id} for good. Type the source table's name"
        table = click.prompt(question, err=True)
    export = None if backup is None else _opened(project, declared, backup)
    options = Options(
        typed_table=table, reason=reason or "", backup=export, no_backup=(no_backup or "").strip()
    )
    with open_session(shell, project, options) as session:
        commands.retire(session, declared.script_id)
        last = session.state.phase_runs(declared.script_id)[-1]
    source, kept = declared.migration.source_label, ", ".join(declared.migration.table_names)
    document = {
        "script_id": declared.script_id,
        "deleted": declared.migration.source,
        "counters": dict(last.counters),
    }
    text = f"{declared.script_id}: {source} is deleted; the application works on {kept}"
    if indexes := declared.migration.index_labels:
        text += f", and maintains the rows of {', '.join(indexes)} itself"
    return shell.emit(document, f"{text}.")
