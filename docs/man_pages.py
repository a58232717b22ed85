"""Write the man pages of all commands, made from their help: `make man`.

Rules kept here:

* A page says what `--help` says, in the order of manual pages; nothing is written by hand.
* Pages are the same for the same version: no date of the day on which they were made.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from rekey.cli.main import rekey
from rekey.core.distribution import VERSION


def escaped(text: str) -> str:
    """Return text as roff prints it unchanged: backslashes, typed hyphens, lines that begin with a dot."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text as roff; those marked with `\\b` keep their lines."""
    for one in re.split(r"\n\s*\n", cleandoc(text)):
        kept = one.removeprefix("\b\n")
        if kept == one:
            yield f".PP\n{escaped(' '.join(one.split()))}\n"
        else:
            yield f".PP\n.nf\n{escaped(kept.rstrip())}\n.fi\n"


def page(context: click.Context) -> str:
    """Return the manual page of the command of a context."""
    command, name = context.command, context.command_path
    does = short_help(command)
    title = name.replace(" ", "-")
    parts = [
        f'.TH {escaped(title.upper())} 1 "" "rekey {VERSION}" "rekey"\n',
        f".SH NAME\n{escaped(title)} \\- {escaped(does)}\n",
        f".SH SYNOPSIS\n.B {escaped(name)}\n{escaped(' '.join(command.collect_usage_pieces(context)))}\n",
        ".SH DESCRIPTION\n",
        *paragraphs(command.help or does),
    ]
    if records := options(context):
        parts += [".SH OPTIONS\n", *(f".TP\n.B {escaped(opts)}\n{escaped(does)}\n" for opts, does in records)]
    if isinstance(command, click.Group):
        parts += [".SH COMMANDS\n"]
        for one in command.list_commands(context):
            does = short_help(command.get_command(context, one))
            parts += [f".TP\n.BR {escaped(f'{title}-{one}')} (1)\n{escaped(does)}\n"]
    parts += [".SH NOTES\n", *paragraphs(command.epilog or "")]
    return "".join(parts)


def options(context: click.Context) -> list[tuple[str, str]]:
    """Return the options of a command, each with what it does."""
    found = [one for one in context.command.get_params(context) if isinstance(one, click.Option)]
    return [record for one in found if (record := one.get_help_record(context))]


def contexts(command: click.Command = rekey, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield the context of a command, and of all commands below it."""
    context = click.Context(command, parent=parent, info_name=command.name, **command.context_settings)
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from contexts(below, context)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of the page of each command."""
    for context in contexts():
        yield f"{context.command_path.replace(' ', '-')}.1", page(context)


def short_help(command: click.Command | None) -> str:
    """Return what a command does, in a line."""
    return "" if command is None else command.get_short_help_str(limit=1000)


def main(folder: Path) -> None:
    """Write all pages into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (folder / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
