"""`rekey rollback`: roll a migration back, without losing what was written since."""

from __future__ import annotations

import click

from rekey.cli.naming import reason_option
from rekey.cli.project import open_project, open_session, status_of
from rekey.cli.shell import GROUP, SCRIPT, PhaseChoice, Shell, command, flag
from rekey.core.plain import plain
from rekey.declaration.migration import Declared, Migration
from rekey.errors import ExitCode
from rekey.phases import ControlPhase, Phase
from rekey.present.text import counted, labelled, wrapped
from rekey.runner import commands
from rekey.runner.run import Counters, Options
from rekey.status.tell import verdict_lines


@command(
    "rollback",
    example="rekey rollback 0001 --writers-stopped\nrekey rollback 0001 --to source --drop-targets\n"
    "rekey rollback --group billing --writers-stopped",
)
@SCRIPT
@click.option(
    "--to",
    type=PhaseChoice([ControlPhase.DUAL_WRITE, ControlPhase.SOURCE]),
    help='How far: `dual_write` (`following` in capture "delta") keeps the copy following; `source` ends the'
    " migration. By default the first from cutover, the second from anything before.",
)
@flag("--drop-targets", help="On the way to `source`: drop the target tables and what is known of them.")
@flag("--keep-targets", help="On the way to `source`: keep the target tables and what is known of them.")
@flag("--writers-stopped", help='You confirm that no application writes (capture "delta", from cutover).')
@reason_option(
    "--reason", "Why rows may go that are not on the side which is kept; recorded. No name, no key."
)
@GROUP
def rollback(
    shell: Shell,
    script: str | None,
    to: str | None,
    drop_targets: bool,
    keep_targets: bool,
    writers_stopped: bool,
    reason: str | None,
    group: str | None,
) -> ExitCode:
    """Roll a migration back.

    After cutover, what has been written to the target is first copied back to the source and compared; then
    the source is the authority again. In capture "dual-write" the source is current already, and writes wait
    for seconds. After `complete` rollback is not possible. Targets are dropped only if the source has a row
    for each of theirs.
    """
    if drop_targets and keep_targets:
        raise click.UsageError("--drop-targets and --keep-targets contradict each other")
    if to == ControlPhase.DUAL_WRITE and (drop_targets or keep_targets):
        both = "--drop-targets and --keep-targets"
        raise click.UsageError(f"{both} go with --to source: `dual_write` keeps the targets")
    project = open_project(shell)
    if group is None:
        chosen = [project.the_one(script, Phase.PREPARE, Phase.COMPLETE)]
    else:
        chosen = project.choose_group(group, script)
    options = Options(writers_stopped=writers_stopped, drop_targets=drop_targets, reason=reason or "")
    with open_session(shell, project, options) as session:
        goal = ControlPhase(to) if to else None
        # Never assumed.
        drop = drop_targets if drop_targets or keep_targets else None
        if group is None:
            only = chosen[0].script_id
            undone = {only: commands.rollback(session, only, to=goal, drop=drop)}
        else:
            undone = commands.rollback_group(session, group, to=goal, drop=drop)
        lines, documents = [], []
        for declared in chosen:
            phases, status = undone.get(declared.script_id, []), status_of(session, declared)
            counters = session.rolled_back.get((declared.script_id, Phase.CUTOVER), {})
            taken = ", ".join(map(declared.migration.shown, phases)) or "nothing: it was there already"
            lines += wrapped(f"{declared.script_id}: rolled back: {taken}", rest="  ")
            if Phase.CUTOVER in phases:
                lines += labelled("rows", _rows_back(declared, counters))
            if Phase.PREPARE in phases:
                lines += labelled("targets", _targets_left(declared.migration, dropped=drop_targets))
            lines += verdict_lines(status, shell.command)
            document = {"script_id": declared.script_id, "undone": plain(phases), "counters": dict(counters)}
            documents.append(document | {"status": status.as_json()})
    whole = documents[0] if group is None else {"group": group, "migrations": documents}
    return shell.emit(whole, "\n".join(lines))


def _targets_left(migration: Migration, *, dropped: bool) -> str:
    if not dropped:
        return f"{', '.join(migration.table_names)} kept as before"
    shared = [name for name in migration.table_names if name in migration.filled_keys]
    own = [name for name in migration.table_names if name not in shared]
    became = [f"{', '.join(own)} dropped"] if own else []
    became += [f"its rows deleted from {', '.join(shared)}, which others fill too"] if shared else []
    return f"{'; '.join(became)}, and what was known of the keys"


def _rows_back(declared: Declared, counters: Counters) -> str:
    source = declared.migration.source
    if not counters:
        return f"none had to come back: what was written to the target since cutover is in {source} already"
    copied, deleted = counters["rows_copied_back"], counters["rows_deleted_in_source"]
    return f"{counted(copied, 'row')} came back to {source}, {counted(deleted, 'row')} deleted there"
