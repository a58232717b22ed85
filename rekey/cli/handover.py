"""`rekey handover`: let the application maintain its index tables after `complete`."""

from __future__ import annotations

import click

from rekey.cli.project import open_project, open_session, status_of
from rekey.cli.shell import SCRIPT, Shell, command
from rekey.core.plain import plain
from rekey.errors import ExitCode
from rekey.phases import Phase
from rekey.present.text import wrapped
from rekey.runner.handover import hand_over
from rekey.runner.refusals import refusal
from rekey.runner.run import Options
from rekey.status.tell import verdict_lines


@command("handover", example="rekey handover 0001 --yes 0001_orders")
@SCRIPT
@click.option("--yes", metavar="NAME", help="The migration's name, typed. Asked for on a terminal.")
def handover(shell: Shell, script: str | None, yes: str | None) -> ExitCode:
    """Hand index tables over to the application.

    In capture "dual-write" clients maintain index tables and secondary rows after `complete`, too, until this
    says that the application does, in every instance. Asks for `complete` and for a clean and recent full
    verification. Rollback is not possible.
    """
    project = open_project(shell)
    declared = project.the_one(script, Phase.COMPLETE, Phase.RETIRE)
    name, kept = declared.script_id, ", ".join(declared.migration.index_labels)
    if not kept:
        raise refusal("nothing-to-hand-over", script=name)
    if yes is not None and yes != name:
        raise click.UsageError(f"--yes {yes}: it names {name} here")
    if yes is None:
        if not shell.is_terminal:
            raise refusal("hand-over-not-typed", name=name, rows=kept)
        question = f"From now on nobody but the application maintains {kept}. Type the name of {name}"
        if click.prompt(question, err=True) != name:
            raise click.UsageError("the migration's name was typed differently")
    with open_session(shell, project, Options()) as session:
        counters = hand_over(session, name)
        status = status_of(session, declared)
    document = {
        "script_id": name,
        "handed_over": plain(declared.migration.index_labels),
        "counters": dict(counters),
        "next": status.next,
    }
    text = f"{name}: the application maintains {kept} from now on; rekey's clients do not any more."
    return shell.emit(document, "\n".join([*wrapped(text), *verdict_lines(status, shell.command)]))
