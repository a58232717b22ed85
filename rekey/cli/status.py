"""`rekey status`: where every migration stands, whether it is safe, what to do next. Reads only.

Rules kept here:

* It works while another process applies, and when the service cannot be reached (exit code 4 then): it shows
  what the state file says.
* The last two lines of each migration are what an operator on call needs: is it safe, what to do now.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import click

from rekey.cli.project import Project, open_project
from rekey.cli.shell import Shell, command, flag
from rekey.core.clock import format_ticks
from rekey.core.plain import plain
from rekey.declaration.migration import Declared
from rekey.errors import ExitCode
from rekey.runner import steering
from rekey.state.store import State
from rekey.status.facts import look_at
from rekey.status.judge import Status, judge
from rekey.status.progress import document as progress_document
from rekey.status.progress import line
from rekey.status.tell import field, moment, told

_WATCH_S, _AT_LEAST_S = 2.0, 30.0
"""How often `--watch` looks, and after how long it prints what has not changed."""


@command("status", example="rekey status\nrekey status 0001 --json\nrekey status 0001 --watch")
@click.argument("scripts", nargs=-1, metavar="[SCRIPT]...")
@flag("--watch", help="Print a line (with --json a document) whenever something has changed, until Ctrl-C.")
def status(shell: Shell, scripts: tuple[str, ...], watch: bool) -> ExitCode:
    """Show where migrations stand, if that is safe, what is next.

    Reads only; works while `apply` runs. SCRIPT is an id, the beginning of one, or a path; without it all
    migrations are shown.
    """
    project = open_project(shell)
    chosen = project.choose_all(scripts) if scripts else list(project.scripts.values())
    if watch:
        with suppress(KeyboardInterrupt):  # the usual end of watching
            shell.do(_watch(shell, project, chosen))
        return ExitCode.DONE
    found = shell.do(_look(shell, project, chosen))
    said = steering.read(project.config.state) or steering.Steering()
    code = ExitCode.SERVICE if any(one.facts.unreachable for one in found) else ExitCode.DONE
    document = progress_document(found, plain(said), shell.clock.ticks())
    lines = [line for one in found for line in [*told(one, shell.command), ""]]
    if not said.is_usual:
        how = f"{said.told()} (said {moment(said.said_at)} by {said.said_by})"
        lines = [*field("ATTENTION" if said.paused else "throttle", how), "", *lines]
    return shell.emit(document, "\n".join(lines), code)


async def _watch(shell: Shell, project: Project, chosen: Sequence[Declared]) -> None:
    """Print what has changed until the user ends it; at the latest after `_AT_LEAST_S` the same again."""
    printed, at = [""], 0.0
    while True:
        found, now = await _look(shell, project, chosen), shell.clock
        lines = [line(one) for one in found]
        if lines != printed or now.rising() - at >= _AT_LEAST_S:
            printed, at = lines, now.rising()
            said = steering.read(project.config.state) or steering.Steering()
            document = progress_document(found, plain(said), now.ticks())
            time = moment(format_ticks(now.ticks()))
            shell.emit_line(document, "\n".join(f"{time}  {one}" for one in lines))
        await now.sleep(_WATCH_S)


async def _look(shell: Shell, project: Project, chosen: Sequence[Declared]) -> list[Status]:
    config, scripts = project.config, project.scripts
    async with shell.connect(config) as accounts:
        with State.open(config.state, read_only=True) as state:
            return [
                judge(await look_at(declared, scripts, config, state, accounts.restricted, shell.clock))
                for declared in chosen
            ]
