"""`rekey history` and `rekey show`: what was begun, and with which script, from the state file alone: they
help where a script was renamed or deleted."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import decode_source
from pathlib import Path

import click

from rekey.cli.shell import SCRIPTS, Shell, command, file_option, flag
from rekey.core.plain import plain
from rekey.declaration.migration import Declared
from rekey.declaration.scripts import file_of, load_script
from rekey.errors import DeclarationError, ExitCode
from rekey.project.config import load_config
from rekey.project.privatefiles import write_new
from rekey.runner.refusals import refusal
from rekey.state.store import State
from rekey.status.history import Begun, begun


@command("history", example="rekey history\nrekey history 0001 --json")
@SCRIPTS
def history(shell: Shell, scripts: tuple[str, ...]) -> ExitCode:
    """List the migrations that were begun, with phases and times.

    Reads the state file only: also those whose script was renamed or deleted, and those rolled back.
    """
    known = _begun(shell)
    chosen = [_named(known, name) for name in scripts] or known
    text = "\n".join(line for migration in chosen for line in [*migration.lines(shell.command), ""])
    return shell.emit({"migrations": plain(chosen)}, text or "No migration was begun.")


@command("show", example="rekey show 0001\nrekey show 0001 --script --out migrations/0001_users.py")
@click.argument("script")
@flag("--script", "wants_script", help="Print the script as it was when the migration began.")
@file_option("--out", help="Write that script to a new file, as it was, instead of printing it.")
def show(shell: Shell, script: str, wants_script: bool, out: Path | None) -> ExitCode:
    """Show one migration that was begun, or its script.

    Reads the state file only, which keeps each script as it was begun.
    """
    if out is not None and not wants_script:
        raise click.UsageError("--out goes with --script")
    migration = _named(_begun(shell), script)
    if not wants_script:
        return shell.emit(plain(migration), "\n".join(migration.lines(shell.command)))
    if migration.kept is None:
        raise refusal("no-script-kept", script=migration.script_id, day=migration.begun_at[:10])
    kept, script_id = migration.kept, migration.script_id
    document = {"script_id": script_id, "begun_at": kept.begun_at, "digest": kept.digest}
    if out is None:
        text = decode_source(kept.content)
        return shell.emit({**document, "script": text}, text)
    try:
        write_new(out, kept.content)
    except OSError as error:
        raise refusal("script-not-written", file=out, reason=type(error).__name__) from None
    return shell.emit({**document, "out": str(out)}, f"{script_id}: written to {out}, as it was begun")


def _begun(shell: Shell) -> list[Begun]:
    config = load_config(shell.config.path)
    scripts: dict[str, Declared | None] = {}
    with State.open(config.state, read_only=True) as state:
        for script_id in state.script_ids():
            path = config.migrations / f"{script_id}.py"
            if file_of(path).exists():
                scripts[script_id] = None
                with suppress(DeclarationError):
                    scripts[script_id] = load_script(path)
        return begun(state, scripts)


def _named(known: list[Begun], name: str) -> Begun:
    exact = [migration for migration in known if migration.script_id == name]
    matches = exact or [migration for migration in known if name and migration.script_id.startswith(name)]
    if len(matches) != 1:
        listed = ", ".join(migration.script_id for migration in matches or known) or "none"
        what = f"{name!r} fits more than one" if matches else f"no migration {name!r} was begun"
        raise click.UsageError(f"{what}; begun were: {listed}")
    return matches[0]
