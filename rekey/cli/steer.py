"""`rekey pause`, `rekey resume`, `rekey throttle`: steer the runner that works with this state file.

Rules kept here:

* They use neither the service nor the state file, take no lock, and work while another process applies.
* A setting takes effect within a second, for all copying with this state file, and stays in force.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import click

from rekey.cli.shell import Shell, command, flag
from rekey.errors import ConfigurationError, ExitCode
from rekey.project.config import load_config
from rekey.runner import steering
from rekey.runner.steering import Steering


@command("pause", example="rekey pause")
def pause(shell: Shell) -> ExitCode:
    """Pause copying, from any terminal.

    Requests in flight are finished. Nothing new is sent until `rekey resume`, by this run or the next.
    """
    return _say(shell, lambda said: replace(said, paused=True))


@command("resume", example="rekey resume")
def resume(shell: Shell) -> ExitCode:
    """Continue copying after `rekey pause`."""
    return _say(shell, lambda said: replace(said, paused=False))


@command("throttle", example="rekey throttle 5000\nrekey throttle --partition 500\nrekey throttle --off")
@click.argument("rate", type=click.IntRange(min=1), required=False, metavar="[RATE]")
@click.option(
    "--partition", type=click.IntRange(min=1), metavar="RATE", help="Entities per second in one partition."
)
@flag("--off", help="Return to the limits of rekey.toml.")
def throttle(shell: Shell, rate: int | None, partition: int | None, off: bool) -> ExitCode:
    """Change how fast copying may be, while it runs.

    RATE is entities read and written per second. Without arguments the rates in force are shown.
    """
    if off and (rate is not None or partition is not None):
        raise click.UsageError("--off stands alone")

    def change(said: Steering) -> Steering:
        if off:
            return replace(said, entities_per_second=None, partition_entities_per_second=None)
        return replace(
            said,
            entities_per_second=rate or said.entities_per_second,
            partition_entities_per_second=partition or said.partition_entities_per_second,
        )

    return _say(shell, change, only_show=not off and rate is None and partition is None)


def _say(shell: Shell, change: Callable[[Steering], Steering], *, only_show: bool = False) -> ExitCode:
    config = load_config(shell.config_path)
    said = steering.read(config.state)
    if said is None and only_show:
        raise ConfigurationError(
            f"{steering.path_of(config.state)} cannot be understood",
            hint="`rekey resume` or `rekey throttle --off` writes it anew",
        )
    if not only_show:
        said = steering.say(config.state, change(said or steering.Steering()))
    shown = said or steering.Steering()
    return shell.emit({"steering": asdict(shown)}, shown.told())
