"""The command `rekey`: its commands, and the report of a failure as a `RekeyError` with an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rekey import errors
from rekey.cli.shell import COMPLETE_VARIABLE, Shell, Surroundings
from rekey.core import logs
from rekey.core.collector import patient_collector
from rekey.core.distribution import DISTRIBUTION
from rekey.core.texts import table
from rekey.phases import Phase
from rekey.present.text import WIDTH, fitted

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Values of environment variables with at least so many characters are kept out of what a script says.
_TELLING = 8
_PACKAGE = Path(__file__).parent.parent
_WORDS = table(Path(__file__).with_name("words.toml"))
# Errors of the system that say: the disk or this machine has failed. A file system with errors becomes
# read-only while a command runs.
_OF_MACHINE = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    }
)
# The first line of each command's help, in the order in which a migration needs them.
_COMMANDS: dict[str, str] = _WORDS["commands"]
# What to type in place of commands and options that other tools have.
_MEANT: dict[str, str] = {
    **{word: meant["type"] for meant in _WORDS["meant"] for word in meant["words"]},
    **{str(phase): f"a phase is carried out by `rekey apply --to {phase}`" for phase in list(Phase)[:-1]},
}
# Commands that change nothing.
_READ_ONLY = frozenset({"plan", "inspect", "status", "history"})
_CHECKPOINT = "everything up to the last checkpoint"
# The options of every command, and whether each takes a value.
COMMON_OPTIONS = {
    **dict.fromkeys(("--config", "--log-format"), True),
    **dict.fromkeys(("--json", "--verbose", "-v", "-vv", "--progress", "--no-progress", "--debug"), False),
}
# Modules of commands that have no module of the same name.
_MODULES = {"pause": "steer", "resume": "steer", "throttle": "steer", "proceed": "steer", "show": "history"}
_MODULES |= dict.fromkeys(("export", "import"), "backup")


class _Commands(click.Group):
    """Group that imports a command when it is needed: `rekey --help` imports none, a command only itself."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command. Raises click.UsageError, which names similar commands."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand:
            # click compares only with the commands that are imported.
            names = () if args[0] in _MEANT else _COMMANDS
            raise click.exceptions.NoSuchCommand(args[0], possibilities=names, ctx=ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *(name for name in super().list_commands(ctx) if name not in _COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS and cmd_name not in self.commands:
            module = _MODULES.get(cmd_name, cmd_name.replace("-", "_"))
            name = cmd_name.replace("-", "_") + "_" * iskeyword(cmd_name)
            self.add_command(getattr(import_module(f"rekey.cli.{module}"), name))
        return super().get_command(ctx, cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin so; importing every command would keep TAB waiting."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=does) for name, does in _COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS.get(name, "")) for name in self.list_commands(ctx)])


class FaultOfRekey(errors.RekeyError):
    """An unforeseen exception ended the command: a fault of rekey. Its type and place are shown, never its
    text, which may quote keys."""

    exit_code = errors.ExitCode.SERVICE


@click.group(
    cls=_Commands,
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
@click.version_option(
    package_name=DISTRIBUTION, prog_name="rekey", message="%(prog)s %(version)s", help="Show the version."
)
def rekey() -> None:
    """Change the keys of Azure tables: online, verified, and with rollback."""


def run(arguments: Sequence[str] | None = None, surroundings: Surroundings | None = None) -> int:
    """Run one command and return its exit code. `arguments`: the words after `rekey`, by default those of the
    process; `surroundings`: replacements of accounts, clock and terminal, for tests."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    shell = Shell(surroundings or Surroundings())
    with (
        redirect_stdout(shell.out),
        redirect_stderr(shell.err),
        logs.configured() as shell.log_to,
        fitted(shell.columns),
        # Looking for reference cycles in imports would take a sixth of the start-up time.
        patient_collector(),
    ):
        try:
            if asked := os.environ.get(COMPLETE_VARIABLE):
                from rekey.cli.completion import complete

                return complete(shell, rekey, asked)
            with rekey.make_context("rekey", options_last(words), obj=shell) as context:
                return int(rekey.invoke(context) or 0)
        except click.exceptions.Exit as end:
            return end.exit_code
        except click.ClickException as error:
            return _usage(shell, error, words)
        except (Exception, KeyboardInterrupt, click.Abort) as error:  # noqa: BLE001 - told below, by its type
            return _failed(shell, error, words)


def options_last(words: Sequence[str]) -> list[str]:
    """Return the words with the common options that stand before the command moved behind its name."""
    moved: list[str] = []
    rest = list(words)
    while rest and (name := rest[0].partition("=")[0]) in COMMON_OPTIONS:
        count = 2 if COMMON_OPTIONS[name] and name == rest[0] else 1
        moved, rest = [*moved, *rest[:count]], rest[count:]
    if not rest or rest[0].startswith("-"):
        return rest
    named = 2 if rest[0] == "evidence" else 1  # the only group of commands
    return [*rest[:named], *moved, *rest[named:]]


def _usage(shell: Shell, error: click.ClickException, words: Sequence[str]) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and "--json" not in words:
        shell.note(error.format_message(), "error")
        return errors.ExitCode.USAGE
    context = error.ctx if isinstance(error, click.UsageError) else None
    named = options_last(words)[:1]
    path = (
        context.command_path
        if context
        else " ".join(["rekey", *(word for word in named if word in _COMMANDS)])
    )
    hint = f"`{path} --help` shows how"
    if isinstance(error, click.exceptions.NoSuchCommand):
        hint = _MEANT.get(error.command_name, hint)
    elif isinstance(error, click.NoSuchOption) and not error.possibilities:
        hint = _MEANT.get(error.option_name, hint)
    what = " ".join(error.format_message().split())  # click puts choices on separate lines
    what = re.sub(r"is not a valid integer( range)?\.", "is not a whole number.", what)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        what = "a command is missing"
    usage_error = errors.ConfigurationError(what, kept="Nothing was started.", hint=hint)
    if "--json" not in words:
        shell.note(f"rekey: {usage_error}", "error", **usage_error.as_json())
        return errors.ExitCode.USAGE
    shell.options.json = True
    with suppress(OSError):
        shell.emit({**usage_error.as_json(), "error": "UsageError"}, "")
    return errors.ExitCode.USAGE


def _failed(shell: Shell, error: BaseException, words: Sequence[str]) -> int:
    failure = as_rekey_error(KeyboardInterrupt() if isinstance(error, click.Abort) else error)
    name = next(iter(options_last(words)), "")
    if name in _READ_ONLY and failure.kept.startswith(_CHECKPOINT):
        failure.kept = f"{name} writes nothing."
    failure.hint = shell.typed_here(failure.hint)
    if shell.options.json or "--json" in words:
        shell.options.json = True
        with suppress(OSError):  # standard output may be what failed; standard error has the same text
            shell.emit({**shell.so_far, **failure.as_json()}, "")
    shell.note(f"rekey: {failure}", "error", **failure.as_json())
    if shell.options.debug and isinstance(failure, FaultOfRekey):
        shell.note(places(error), "error")
    if shell.options.debug and isinstance(failure, errors.DeclarationError) and failure.fault:
        # Raised before any row is read, so it holds no key.
        shell.note(f"the script's own text: {without_variables(failure.fault)}", "error")
    return int(failure.exit_code)


# --- faults ---


def without_variables(text: str) -> str:
    """Return a text without the values of environment variables: secrets come from there."""
    for value in sorted(os.environ.values(), key=len, reverse=True):
        if len(value) >= _TELLING:
            text = text.replace(value, "…")
    return text


def as_rekey_error(error: BaseException) -> errors.RekeyError:
    """Return the RekeyError by which any exception that ended a command is reported."""
    known = error.subgroup(errors.RekeyError) if isinstance(error, BaseExceptionGroup) else error
    while isinstance(known, BaseExceptionGroup):
        known = known.exceptions[0]
    if isinstance(known, errors.RekeyError):
        if isinstance(known, errors.ServiceError) and not known.kept:
            # The tables layer knows one request only; what the command keeps is the same for all requests.
            known.kept = f"{_CHECKPOINT}; nothing is half done"
        known.kept = known.kept or "Nothing was changed."
        known.hint = known.hint or "run the same command again; if it fails again, report it with this text"
        return known
    if isinstance(error, KeyboardInterrupt):
        kept, hint = "Nothing was changed.", "run the same command again"
        return errors.Interrupted("stopped by a signal", kept=kept, hint=hint)
    kept = _CHECKPOINT
    if isinstance(error, MemoryError):
        hint = "lower [limits] window_rows and concurrency, then run the same command again"
        return errors.MachineFailed("this machine has no memory left", kept=kept, hint=hint)
    if isinstance(error, OSError) and error.errno in _OF_MACHINE:
        hint = "fix that (space on the disk, quota, open files), then run the same command again"
        what = f"this machine failed: {errno.errorcode[error.errno]}"
        return errors.MachineFailed(what, kept=kept, hint=hint)
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    innermost = (ours or frames)[-1:]
    place = "".join(f"{_short(frame.filename)}:{frame.lineno}" for frame in innermost) or "an unknown place"
    hint = "run the same command again with --debug and report what it prints; it holds no keys"
    return FaultOfRekey(f"{type(error).__name__} at {place}: this is a fault of rekey", kept=kept, hint=hint)


def places(error: BaseException) -> str:
    """Return the stacks of an exception and of its causes: types, files, lines and functions, no values."""
    return "\n".join(_places(error, set()))


def _places(error: BaseException, seen: set[int]) -> Iterator[str]:
    if id(error) in seen:
        return
    seen.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield from _places(cause, seen)
        yield "which led to"
    yield type(error).__name__
    for frame in traceback.extract_tb(error.__traceback__):
        yield f"  {_short(frame.filename)}:{frame.lineno} in {frame.name}"
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _places(inner, seen)


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(_PACKAGE.parent)) if path.is_relative_to(_PACKAGE) else path.name
