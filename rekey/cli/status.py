"""`rekey status`: where every migration stands, whether it is safe, what to do next. Works while another
process applies; when the service cannot be reached it shows what the state file says (exit code 4)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import click

from rekey.cli.project import Project, open_project
from rekey.cli.shell import GROUP, Shell, command, flag
from rekey.core.clock import Clock, format_ticks
from rekey.core.plain import plain
from rekey.declaration.migration import Declared
from rekey.errors import ExitCode
from rekey.present.text import labelled, moment
from rekey.runner import steering
from rekey.runner.status import read_status
from rekey.state.store import State
from rekey.status.facts import Sources
from rekey.status.groups import Group, groups_of
from rekey.status.judge import Status
from rekey.status.tell import document as progress_document
from rekey.status.tell import line, status_lines
from rekey.tables.base import Accounts

# How often `--watch` reads, and after how long it prints what has not changed.
_WATCH_S, _AT_LEAST_S = 2.0, 30.0


@command("status", example="rekey status\nrekey status 0001 --json\nrekey status 0001 --watch")
@click.argument("scripts", nargs=-1, metavar="[SCRIPT]...")
@flag("--requests", help="Also show the requests sent, next to those estimated, by phase.")
@GROUP
@flag("--watch", help="Print a line (with --json a document) whenever something has changed, until Ctrl-C.")
def status(
    shell: Shell, scripts: tuple[str, ...], requests: bool, group: str | None, watch: bool
) -> ExitCode:
    """Show where migrations stand, if that is safe, what is next.

    Reads only; works while `apply` runs. SCRIPT is an id, the beginning of one, or a path; without it all
    migrations are shown.
    """
    if watch and requests:
        raise click.UsageError("--watch prints a line for each migration: leave out --requests")
    project = open_project(shell)
    chosen = project.choose_all(scripts) if group is None else project.choose_group(group, *scripts)
    if watch:
        with suppress(KeyboardInterrupt):  # the usual end of watching
            shell.do(_watch(shell, project, chosen))
        return ExitCode.DONE

    async def once() -> Seen:
        async with shell.connect(project.config) as accounts:
            return await read_statuses(project, chosen, accounts, shell.clock)

    seen = shell.do(once())
    lines = [line for group in seen.groups for line in [*group.lines(shell.command), ""]]
    verbose = shell.options.verbose > 0
    for status in sorted(seen.statuses, key=lambda status: status.verdict.safe):
        lines += [*status_lines(status, shell.command, requests=requests, verbose=verbose), ""]
    for script_id, error in () if scripts or group else project.broken.items():
        if script_id not in project.scripts:
            what = f"Its script cannot be used: {error.what}. Nothing is known of it."
            lines += [script_id, *labelled("ATTENTION", what), *labelled("next", error.hint), ""]
    for lost in () if scripts or group else project.lost:
        what = _LOST.format(at=moment(lost.registered_at), **asdict(lost))
        lines += [lost.script_id, *labelled("ATTENTION", what)]
        lines += [*labelled("next", f"put {lost.script_id}.py back, as it was, from version control"), ""]
    if not seen.setting.is_usual:
        how = f"{seen.setting.as_text()} (said {moment(seen.setting.said_at)} by {seen.setting.said_by})"
        lines = [*labelled("ATTENTION" if seen.setting.paused else "throttle", how), "", *lines]
    return shell.emit(seen.document, "\n".join(lines), seen.code)


_LOST = (
    "Not known: it was begun at {at} with source {source}, its script is gone, and the version of rekey that"
    " began it kept none. Every command that writes refuses it."
)


async def _watch(shell: Shell, project: Project, chosen: Sequence[Declared]) -> None:
    """Print what has changed until the user ends it; after `_AT_LEAST_S` also what has not."""
    printed, at = [""], 0.0
    async with shell.connect(project.config) as accounts:
        while True:
            now = shell.clock
            seen = await read_statuses(project, chosen, accounts, now)
            lines = [line(status) for status in seen.statuses]
            if lines != printed or now.monotonic() - at >= _AT_LEAST_S:
                printed, at = lines, now.monotonic()
                time = moment(format_ticks(now.ticks()))
                shell.emit_line(seen.document, "\n".join(f"{time}  {text}" for text in lines))
            await now.sleep(_WATCH_S)


@dataclass(frozen=True)
class Seen:
    """The migrations read at one time."""

    statuses: Sequence[Status]
    # What the operator has set.
    setting: steering.Steering
    # Ids of migrations that began and whose scripts are gone.
    lost: Sequence[str]
    at: int
    # Those whose members were all read.
    groups: Sequence[Group] = ()

    @property
    def code(self) -> ExitCode:
        """How a command that shows this ends."""
        unreachable = any(status.facts.store.unreachable for status in self.statuses)
        return ExitCode.SERVICE if unreachable else ExitCode.DONE

    @property
    def document(self) -> dict[str, Any]:
        whole = progress_document(self.statuses, plain(self.setting), self.at)
        more = {"groups": plain(list(self.groups)), "lost": list(self.lost)}
        return {"exit_code": int(self.code), **whole, **more}


async def read_statuses(
    project: Project, chosen: Sequence[Declared], accounts: Accounts, clock: Clock
) -> Seen:
    """Read migrations once; a service that cannot be asked is part of the statuses. Raises StateUnusable."""
    with State.open(project.config.state, read_only=True) as state:
        sources = Sources(project.config, project.scripts, state, accounts, clock)
        statuses = [await read_status(sources, script) for script in chosen]
    setting = steering.read(project.config.state) or steering.Steering()
    groups = groups_of(statuses, project.scripts.values())
    return Seen(statuses, setting, [record.script_id for record in project.lost], clock.ticks(), groups)
