"""`rekey pause`, `resume`, `throttle` and `proceed`: steer the runner that works with this state file. They
use neither the service nor the state file, and take no lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import click

from rekey.cli.shell import SCRIPT, Shell, command, flag
from rekey.errors import ExitCode
from rekey.project.config import load_config
from rekey.runner import steering
from rekey.runner.refusals import refusal
from rekey.runner.steering import Steering
from rekey.status import pulse


@command("pause", example="rekey pause")
def pause(shell: Shell) -> ExitCode:
    """Pause copying, from any terminal.

    Requests in flight are finished. Nothing new is sent until `rekey resume`, by this run or the next.
    """
    return _say(shell, lambda setting: replace(setting, paused=True))


@command("resume", example="rekey resume")
def resume(shell: Shell) -> ExitCode:
    """Continue copying after `rekey pause`."""
    return _say(shell, lambda setting: replace(setting, paused=False), "Resumed; ")


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

    def change(setting: Steering) -> Steering:
        if off:
            return replace(setting, entities_per_second=None, partition_entities_per_second=None)
        return replace(
            setting,
            entities_per_second=rate or setting.entities_per_second,
            partition_entities_per_second=partition or setting.partition_entities_per_second,
        )

    return _say(shell, change, only_show=not off and rate is None and partition is None)


@command("proceed", example="rekey proceed\nrekey proceed 0001 --writers-stopped")
@SCRIPT
@flag("--writers-stopped", help="You confirm that no application writes; as of `rekey apply`.")
def proceed(shell: Shell, script: str | None, writers_stopped: bool) -> ExitCode:
    """Let `rekey apply --follow` cut over now.

    The gate of cutover is asked; where it refuses, the migration is followed as before. It counts once.
    """
    config = load_config(shell.config.path)
    runner = pulse.read(config.state, shell.clock.ticks())
    if runner is None or not runner.following:
        # A request to proceed that no run hears now must not wait for a later one.
        raise refusal("nobody-follows")
    if script is not None and not runner.script_id.startswith(script):
        raise click.UsageError(f"{script} is not followed, {runner.script_id} is")
    request = steering.proceed(config.state, runner.script_id, writers_stopped=writers_stopped)
    then = "it was told to cut over if its gate is open; `rekey status` says what came of it"
    if steering.is_paused(config.state):
        then = "it cuts over after `rekey resume`: it is paused"
    return shell.emit({"proceed": asdict(request)}, f"{runner.script_id}: {then}")


def _say(
    shell: Shell, change: Callable[[Steering], Steering], done: str = "", *, only_show: bool = False
) -> ExitCode:
    config = load_config(shell.config.path)
    setting = steering.read(config.state)
    if setting is None and only_show:
        raise refusal("not-understood", file=steering.path_of(config.state))
    if not only_show:
        setting = steering.say(config.state, change(setting or steering.Steering()))
    shown = setting or steering.Steering()
    return shell.emit({"steering": asdict(shown)}, done + shown.as_text())
