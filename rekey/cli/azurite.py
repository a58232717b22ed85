"""`rekey azurite`: the pinned Azurite in the background, for trying things. It needs no project."""

from __future__ import annotations

import click

from rekey.cli.shell import Shell, command, flag
from rekey.errors import ExitCode
from rekey.rehearse import azurite as launcher


@command("azurite", example="rekey azurite\nrekey azurite --stop")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(1, 65_535),
    default=launcher.USUAL_PORT,
    show_default=True,
    help="Where it listens on this machine; the same port stops it.",
)
@flag("--stop", help="Stop it; its tables are gone then.")
def azurite(shell: Shell, port: int, stop: bool) -> ExitCode:
    """Start a local Azurite to try things on, or stop it.

    It runs in the background until it is stopped, keeps its tables in memory, and is the account that a new
    rekey.toml names. What it needs is installed once, Node.js included where the machine has none.
    """
    endpoint = launcher.endpoint_at(port)
    if stop:
        was_running = launcher.stop_in_background(port)
        text = "stopped; its tables are gone" if was_running else "no Azurite of `rekey azurite` runs"
        return shell.emit({"endpoint": endpoint, "stopped": was_running}, f"{endpoint}: {text}")
    if launcher.installed_azurite() is None:
        shell.note("Azurite is installed, which takes about a minute, once")
    started = launcher.start_in_background(port)
    words = "azurite --stop" + (f" --port {port}" if port != launcher.USUAL_PORT else "")
    runs = f"Azurite {launcher.pinned_version()} {'runs' if started else 'ran already'} at {endpoint}"
    text = f"{runs}\n\nNext: when you are done with it and its tables:\n  rekey {words}"
    return shell.emit({"endpoint": endpoint, "started": started}, text)
