"""`rekey runbook`: what to do at each step, and when something goes wrong. Pages are in the package."""

from __future__ import annotations

import re
from pathlib import Path

import click

from rekey.cli.shell import Shell, command
from rekey.errors import ExitCode
from rekey.present.text import report, table

_FOLDER = Path(__file__).parent.parent / "runbooks"
_ROW = re.compile(r"^\| \[[^]]+\]\(([\w-]+)\.md\) \| (.+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^]]+)\]\((?:([\w-]+)\.md|\.\./([^)#]+))?(?:#[\w-]*)?\)")


@command("runbook", example="rekey runbook\nrekey runbook resume")
@click.argument("name", required=False)
def runbook(shell: Shell, name: str | None) -> ExitCode:
    """Show what to do at a step, or when something goes wrong.

    Without NAME it lists them all, and when each is of use.
    """
    runbooks = dict(_ROW.findall(_page("README")))
    if name is None:
        following = f"`{shell.command('runbook NAME')}` shows one"
        text = report([*table(("runbook", "when"), runbooks.items()), "", following])
        listed = [{"name": runbook, "when": when} for runbook, when in runbooks.items()]
        return shell.emit({"runbooks": listed}, text)
    if name not in runbooks:
        raise click.UsageError(f"there is no runbook {name!r}; there are: {', '.join(runbooks)}")
    return shell.emit({"runbook": name, "text": _page(name)}, _LINK.sub(_link_text, _page(name)))


def _page(name: str) -> str:
    return (_FOLDER / f"{name}.md").read_text("utf-8")


def _link_text(link: re.Match[str]) -> str:
    """Return a link as text: another runbook by the command that shows it."""
    text, other, document = link.groups()
    if document is not None:
        return f"{text} ({document}, in the repository of rekey)"
    return text if other is None else f"{text} (`rekey runbook {other}`)"
