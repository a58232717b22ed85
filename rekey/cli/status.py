"""`rekey status`: where every migration stands, whether it is safe, what to do next. Reads only.

Rules kept here:

* It works while another process applies, and when the service cannot be reached (exit code 4 then): it shows
  what the state file says.
* The last two lines of each migration are what an operator on call needs: is it safe, what to do now.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from rekey.cli.project import Project, open_project
from rekey.cli.shell import Shell, command
from rekey.core.plain import plain
from rekey.declaration.migration import Declared
from rekey.errors import ExitCode
from rekey.runner import steering
from rekey.state.store import State
from rekey.status.facts import look_at
from rekey.status.judge import Status, judge
from rekey.status.tell import field, moment, told


@command("status", example="rekey status\nrekey status 0001 --json")
@click.argument("scripts", nargs=-1, metavar="[SCRIPT]...")
def status(shell: Shell, scripts: tuple[str, ...]) -> ExitCode:
    """Show where migrations stand, if that is safe, what is next.

    Reads only; works while `apply` runs. SCRIPT is an id, the beginning of one, or a path; without it all
    migrations are shown.
    """
    project = open_project(shell)
    chosen = project.choose_all(scripts) if scripts else list(project.scripts.values())
    said = steering.read(project.config.state) or steering.Steering()
    found = shell.do(_look(shell, project, chosen, said.paused))
    code = ExitCode.SERVICE if any(one.facts.unreachable for one in found) else ExitCode.DONE
    document = {"migrations": plain(found), "steering": plain(said)}
    lines = [line for one in found for line in [*told(one, shell.command), ""]]
    if not said.is_usual:
        how = f"{said.told()} (said {moment(said.said_at)} by {said.said_by})"
        lines = [*field("ATTENTION" if said.paused else "throttle", how), "", *lines]
    return shell.emit(document, "\n".join(lines), code)


async def _look(shell: Shell, project: Project, chosen: Sequence[Declared], paused: bool) -> list[Status]:
    config, scripts, clock = project.config, project.scripts, shell.clock
    async with shell.connect(config) as accounts:
        with State.open(config.state, read_only=True) as state:
            restricted = accounts.restricted
            return [
                judge(await look_at(declared, scripts, config, state, restricted, clock, paused=paused))
                for declared in chosen
            ]
