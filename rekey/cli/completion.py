"""`rekey completion`: shell completion of commands and options, with click's own scripts."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from rekey.cli.shell import COMPLETE_VARIABLE, Shell, command
from rekey.errors import ExitCode


@command("completion", example="rekey completion bash > ~/.local/share/bash-completion/completions/rekey")
@click.argument("name", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: Shell, name: str) -> ExitCode:
    """Print the script that completes commands, options and files.

    SHELL is bash, zsh or fish. The script asks the installed rekey, so it need not be made again after an
    update. To try it: eval "$(rekey completion bash)".
    """
    group = click.get_current_context().find_root().command
    completing = get_completion_class(name)
    assert completing is not None  # noqa: S101 - the three above are click's own
    script = completing(group, {}, "rekey", COMPLETE_VARIABLE).source()
    return shell.emit({"shell": name, "script": script}, script)


def complete(shell: Shell, group: click.Group, asked: str) -> ExitCode:
    """Print the completions of the words that a shell's script put into the environment. `asked`: the value
    of `COMPLETE_VARIABLE`. Raises click.UsageError when no script that this command prints asks so."""
    completing = get_completion_class(asked.removesuffix("_complete"))
    if completing is None:
        raise click.UsageError(f"{COMPLETE_VARIABLE} is set to what no shell asks: unset it")
    shell.say(completing(group, {"obj": shell}, "rekey", COMPLETE_VARIABLE).complete())
    return ExitCode.DONE
