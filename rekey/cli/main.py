"""The command `rekey`: its commands, and what is told when one fails.

Rules kept here:

* The exit code says what happened (`rekey.errors.ExitCode`), also to whoever reads no text.
* With `--json` a failure is one JSON document on standard output, too; people find it on standard error.
* No traceback is ever printed by itself; what is printed of an unforeseen exception holds no text of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout

import click

from rekey.cli import signals
from rekey.cli.apply import apply
from rekey.cli.doctor import doctor
from rekey.cli.erase import erase
from rekey.cli.evidence import evidence
from rekey.cli.expire import expire
from rekey.cli.faults import FaultOfRekey, as_rekey_error, places
from rekey.cli.init import init
from rekey.cli.inspect import inspect
from rekey.cli.lookup import lookup
from rekey.cli.new import new
from rekey.cli.plan import plan
from rekey.cli.rehearse import rehearse
from rekey.cli.retire import retire
from rekey.cli.rollback import rollback
from rekey.cli.shell import WIDTH, Shell, Surroundings
from rekey.cli.status import status
from rekey.cli.steer import pause, resume, throttle
from rekey.cli.stress import stress
from rekey.cli.verify import verify
from rekey.core import logs
from rekey.core.distribution import installed_version
from rekey.errors import ExitCode, RekeyError


class _InOrder(click.Group):
    """Lists commands in the order in which a migration needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names as they were added."""
        return list(self.commands)


def _show_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        context.obj.say(f"rekey {installed_version()}")
        context.exit()


@click.group(
    cls=_InOrder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
    epilog="""\b
Example:
  rekey init
  rekey new users_opaque_ids --source Users --target UsersV2
  rekey plan
  rekey apply

Exit codes: 0 done; 1 findings; 2 usage or configuration; 3 refused by a gate, a lock or something that
moved; 4 the service, a credential or the machine failed; 130 interrupted, resumable.
""",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show it."
)
def rekey() -> None:
    """Change the keys of Azure tables: online, verified, and with a way back."""


for _command in (
    init,
    doctor,
    new,
    inspect,
    plan,
    apply,
    verify,
    status,
    pause,
    resume,
    throttle,
    rollback,
    retire,
    lookup,
    erase,
    expire,
    evidence,
    rehearse,
    stress,
):
    rekey.add_command(_command)


def run(arguments: Sequence[str] | None = None, surroundings: Surroundings | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: the words behind `rekey`; those of the process by default.
        surroundings: what a test puts in the place of accounts, clock and terminal.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    shell = Shell(surroundings or Surroundings())
    with redirect_stdout(shell.out), redirect_stderr(shell.err), logs.configured(), signals.interrupting():
        try:
            return _invoke(words, shell)
        except click.ClickException as error:
            return _usage(shell, error, words)
        except (Exception, KeyboardInterrupt, click.Abort) as error:  # noqa: BLE001 - told below, by its type
            return _failed(shell, error, words)


def _invoke(words: list[str], shell: Shell) -> int:
    try:
        with rekey.make_context("rekey", words, obj=shell) as context:
            return int(rekey.invoke(context) or 0)
    except click.exceptions.Exit as end:
        return end.exit_code


def _usage(shell: Shell, error: click.ClickException, words: Sequence[str]) -> int:
    """Tell what is wrong with the command line."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"`{context.command_path} --help` shows how" if context is not None else "`rekey --help` shows how"
    if "--json" in words:
        document = {
            "error": "UsageError",
            "what": error.format_message(),
            "kept": "",
            "next": hint,
            "exit_code": int(ExitCode.USAGE),
        }
        shell.json = True
        shell.emit(document, "")
    else:
        error.show(shell.err)
    return int(ExitCode.USAGE)


def _failed(shell: Shell, error: BaseException, words: Sequence[str]) -> int:
    """Tell what ended the command."""
    told: RekeyError = as_rekey_error(KeyboardInterrupt() if isinstance(error, click.Abort) else error)
    if shell.json or "--json" in words:
        shell.json = True
        shell.emit({**shell.so_far, **told.as_json()}, "")
    shell.note(f"rekey: {told}")
    if shell.debug and isinstance(told, FaultOfRekey):
        shell.note(places(error))
    return int(told.exit_code)
