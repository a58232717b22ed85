"""`rekey status`: where every migration stands, whether it is safe, what to do next. Reads only.

Rules kept here:

* It works while another process applies, and when the service cannot be reached (exit code 4 then): it shows
  what the state file says.
* What an operator on call needs comes first: migrations that are not safe, and of each whether it is safe and
  what to do now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from rekey.cli.project import Project, look, open_project
from rekey.cli.shell import Shell, command, flag
from rekey.core.plain import plain
from rekey.declaration.migration import Declared
from rekey.errors import ExitCode
from rekey.present.text import moment
from rekey.runner import steering
from rekey.state.store import State
from rekey.status.judge import Status
from rekey.status.tell import field, told


@command("status", example="rekey status\nrekey status 0001 --json")
@click.argument("scripts", nargs=-1, metavar="[SCRIPT]...")
@flag("--requests", help="Also show the requests sent, next to those estimated, by phase.")
def status(shell: Shell, scripts: tuple[str, ...], requests: bool) -> ExitCode:
    """Show where migrations stand, if that is safe, what is next.

    Reads only; works while `apply` runs. SCRIPT is an id, the beginning of one, or a path; without it all
    migrations are shown.
    """
    project = open_project(shell)
    chosen = project.choose_all(scripts) if scripts else list(project.scripts.values())
    said = steering.read(project.config.state) or steering.Steering()
    found = shell.do(_look(shell, project, chosen))
    code = ExitCode.SERVICE if any(one.facts.unreachable for one in found) else ExitCode.DONE
    document = {"migrations": plain(found), "steering": plain(said)}
    worst_first = sorted(found, key=lambda one: one.verdict.safe)
    document["lost"] = [one.script_id for one in project.lost]
    lines = [
        line
        for one in worst_first
        for line in [*told(one, shell.command, requests=requests, verbose=shell.verbose > 0), ""]
    ]
    for lost in () if scripts else project.lost:
        lines += [
            lost.script_id,
            *field("ATTENTION", _LOST.format(at=moment(lost.registered_at), **asdict(lost))),
        ]
        lines += [*field("next", f"put {lost.script_id}.py back, as it was, from version control"), ""]
    if not said.is_usual:
        how = f"{said.told()} (said {moment(said.said_at)} by {said.said_by})"
        lines = [*field("ATTENTION" if said.paused else "throttle", how), "", *lines]
    return shell.emit(document, "\n".join(lines), code)


_LOST = (
    "Not known: it was begun at {at} with source {source}, its script is gone, and the version of rekey that"
    " began it kept none. Every command that writes refuses it."
)


async def _look(shell: Shell, project: Project, chosen: Sequence[Declared]) -> list[Status]:
    async with shell.connect(project.config) as accounts:
        with State.open(project.config.state, read_only=True) as state:
            return [await look(project, declared, state, accounts, shell.clock) for declared in chosen]
