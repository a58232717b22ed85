"""What all commands share: options, output, and the replacements that tests use for accounts and clock.
Azure, sqlalchemy and yoyo are imported only by commands that need them, so that `rekey --help` is quick."""

from __future__ import annotations

import functools
import io
import json
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

import click

from rekey.cli import signals
from rekey.core import logs
from rekey.errors import ExitCode, visible
from rekey.phases import FOLLOWING, Phase
from rekey.present.text import WIDTH, typed
from rekey.project.refusals import refusal

if TYPE_CHECKING:
    from rekey.core.clock import Clock
    from rekey.core.progress import Progress
    from rekey.doctor.observe import Ask
    from rekey.project.config import Config
    from rekey.tables.base import Accounts, Silence

T = TypeVar("T")

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
# An option without a value.
flag = functools.partial(click.option, is_flag=True)
# An option that takes the path of a file.
file_option = functools.partial(click.option, metavar="FILE", type=FILE)
CONFIG_VARIABLE = "REKEY_CONFIG"
# Environment variable by which a shell's script asks for completions, e.g. `bash_complete`.
COMPLETE_VARIABLE = "_REKEY_COMPLETE"
DEFAULT_CONFIG_PATH = "rekey.toml"
_COLOURS = {
    **dict.fromkeys(("ERROR", "ATTENTION", "rekey:"), "red"),
    "WARNING": "yellow",
    **dict.fromkeys(("NOTE", "WAIVED"), "cyan"),
    "safe": "green",
    **dict.fromkeys(("next", "Next:"), "blue"),
}
_COLOURED = re.compile(rf"^( *)({'|'.join(_COLOURS)})(?= |$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a command gets from outside; tests replace it. None: the real one."""

    connect: Callable[[Config], Accounts] | None = None
    clock: Clock | None = None
    # Whether a user can answer questions; None: whether standard input is a terminal.
    is_terminal: bool | None = None
    # Sends the single requests of `rekey doctor`.
    ask: Ask | None = None


@dataclass(slots=True)
class ConfigChoice:
    """The configuration file that a call works with."""

    path: Path = Path(DEFAULT_CONFIG_PATH)
    # It was found in a folder above the current one.
    is_above: bool = False
    # Given on the command line: commands named in messages must give it, too.
    is_named: bool = False


@dataclass(slots=True)
class CommonOptions:
    """The options of every command."""

    json: bool = False
    # Draw progress bars when standard error is a terminal.
    bars: bool = True
    debug: bool = False
    verbose: int = 0
    log_json: bool = False


@dataclass
class Shell:
    """One call of `rekey`: its common options and its output streams.

    Results go to standard output, with `--json` as one JSON document and nothing else; progress, notes and
    errors go to standard error.
    """

    surroundings: Surroundings = field(default_factory=Surroundings)
    # The streams as they were when the call began; only their edges `out` and `err` write to them.
    stdout: TextIO = field(default_factory=lambda: sys.stdout)
    stderr: TextIO = field(default_factory=lambda: sys.stderr)
    config: ConfigChoice = field(default_factory=ConfigChoice)
    options: CommonOptions = field(default_factory=CommonOptions)
    # Members of the JSON document that are printed also when the command fails.
    so_far: dict[str, Any] = field(default_factory=dict)
    # Connected last.
    accounts: Accounts | None = None
    display: Progress | None = None
    # Makes rekey's loggers log as JSON to a stream.
    log_to: Callable[[TextIO], None] = lambda _stream: None
    out: TextIO = field(init=False)
    err: TextIO = field(init=False)

    def __post_init__(self) -> None:
        self.out = cast("TextIO", Edge(self.stdout))
        self.err = cast("TextIO", Edge(self.stderr, may_lose=True))
        self._log = self.err

    def emit(self, document: dict[str, Any], text: str, code: ExitCode = ExitCode.DONE) -> ExitCode:
        """Print the result, with `--json` the document, else the text; return the exit code."""
        whole = {"exit_code": int(code), **document}
        _print(self.out, json.dumps(whole, indent=2, default=str) if self.options.json else text)
        return code

    def emit_line(self, document: dict[str, Any], text: str) -> None:
        """Print one of several results: the document on one line with `--json`, else the text."""
        _print(self.out, json.dumps(document, default=str) if self.options.json else text)

    def say(self, text: str) -> None:
        """Print text for people to standard output, before the result; nothing with `--json`."""
        if not self.options.json:
            _print(self.out, text)

    def tell_before_error(self, document: dict[str, Any], text: str) -> None:
        """Report what was done before an error about the rest is raised; arguments as for `emit`."""
        self.so_far.update(document)
        if text:
            self.say(text)

    def note(self, text: str, event: str = "note", **figures: object) -> None:
        """Print one sentence to standard error, or log it as an event (`rekey.core.logs.EVENTS`)."""
        if self.options.log_json:
            level = event if event in ("warning", "error") else "info"
            text = logs.json_line(event, text, level, **figures)
        _print(self._log, text)

    def log_as_json(self) -> None:
        """Log events as JSON from now on. The text of anything else on standard error is withheld."""
        self.options.log_json = True
        self.err = cast("TextIO", Withheld(self.note))
        self.log_to(self._log)
        sys.stderr = self.err

    @property
    def is_terminal(self) -> bool:
        """Whether a user can answer questions."""
        if self.surroundings.is_terminal is not None:
            return self.surroundings.is_terminal
        return sys.stdin is not None and sys.stdin.isatty()

    @property
    def columns(self) -> int:
        """Columns of results: those of the terminal; elsewhere `WIDTH`."""
        return shutil.get_terminal_size().columns if self.stdout.isatty() else WIDTH

    @property
    def has_project(self) -> bool:
        """Whether there is a configuration; one named on the command line counts, existing or not."""
        return self.config.is_named or self.config.path.exists()

    @property
    def clock(self) -> Clock:
        from rekey.core.clock import SystemClock

        return self.surroundings.clock or SystemClock()

    def connect(self, config: Config) -> Accounts:
        """Connect both accounts. Raises ConfigurationError."""
        from rekey.protocol.opening import connect

        self.accounts = (self.surroundings.connect or connect)(config)
        return self.accounts

    @property
    def ask(self) -> Ask:
        """The function that sends a single request to an account."""
        from rekey.tables.probe import ask

        return self.surroundings.ask or functools.partial(ask, clock=self.clock)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result."""
        import asyncio  # not imported for `--help`: it takes a tenth of a command's start-up time

        from rekey.core.progress import ticking

        progress = self.progress()
        every_s = progress.ticks_every_s
        return asyncio.run(work if every_s is None else ticking(work, progress.tick, every_s))

    def progress(self) -> Progress:
        """Return the display of progress: bars on a terminal, else lines."""
        if self.display is None:
            from rekey.cli.progress import Bars, Lines

            clock = self.clock
            if (
                self.options.bars
                and not self.options.json
                and not self.options.log_json
                and self.stderr.isatty()
            ):
                self.display = Bars(self.stderr, clock, self.silences)
            else:
                self.display = Lines(self.note, clock, self.silences, of_passes=self.options.bars)
        return self.display

    def silences(self) -> Sequence[Silence]:
        """Return the connected accounts that do not answer."""
        return () if self.accounts is None else self.accounts.silences()

    def command(self, words: str) -> str:
        """Return a command line of rekey as it is to be typed here, with `--config` if this call has it."""
        text = f" --config {shlex.quote(str(self.config.path))}" if self.config.is_named else ""
        return f"rekey {words}{text}"

    def typed_here(self, text: str) -> str:
        """Return a text with its quoted command lines as `command` makes them."""
        return typed(text, self.command)


class Edge:
    """A stream for people that escapes control characters, so that no name can overwrite earlier output, and
    characters that its encoding lacks. Only progress bars bypass it."""

    def __init__(self, stream: TextIO, *, may_lose: bool = False) -> None:
        """`may_lose`: text that cannot be written (a full disk) is lost without an error, so that the work
        goes on, and the exit code says how it ended."""
        self._stream = stream
        self._may_lose = may_lose
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._coloured = stream.isatty() and not plain

    def write(self, text: str) -> int:
        """Write text; a closed pipe (the reader has ended) is no error. Raises OSError."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        shown = visible(text).encode(encoding, "backslashreplace").decode(encoding)
        # After escaping. `NO_COLOR`: https://no-color.org
        if self._coloured:
            shown = _COLOURED.sub(lambda match: match[1] + click.style(match[2], _COLOURS[match[2]]), shown)
        with self._writing():
            self._stream.write(shown)
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        self.write("".join(texts))

    def flush(self) -> None:
        with self._writing():
            self._stream.flush()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            _silence(self._stream)
        except OSError:
            if not self._may_lose:
                raise

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stream, except `buffer`: bytes written there would bypass the edge."""
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self._stream, name)


class Withheld(io.TextIOBase):
    """What standard error is while events are logged as JSON: tells that something was printed, not what."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note

    def write(self, text: str) -> int:
        if text.strip():
            self._note(logs.WITHHELD, "output-withheld")
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:  # type: ignore[override]  # text, not bytes
        self.write("".join(texts))


def _print(edge: TextIO, text: str) -> None:
    edge.write(text if text.endswith("\n") else text + "\n")
    edge.flush()


def _silence(stream: TextIO) -> None:
    """Redirect a stream without a reader to the null device, buffered text included."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, stream.fileno())
    finally:
        os.close(devnull)


# --- options of every command --------------------------------------------------------------------------


def _set_config(context: click.Context, parameter: click.Parameter, value: str) -> None:
    shell: Shell = context.obj
    shell.config.path = Path(value)
    source = context.get_parameter_source(parameter.name or "")
    shell.config.is_named = source is click.core.ParameterSource.COMMANDLINE
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise refusal("no-current-folder") from None
    if source is click.core.ParameterSource.DEFAULT and not shell.config.path.exists():
        above = _config_above(here)
        shell.config.path, shell.config.is_above = above or shell.config.path, above is not None


def _config_above(folder: Path) -> Path | None:
    """Return the configuration of the project that a folder is in, None where it is in none. Raises
    ConfigurationError when the nearest one is another user's."""
    for above in folder.parents:
        path = above / DEFAULT_CONFIG_PATH
        try:
            owner = path.stat().st_uid
        except OSError:
            continue
        # Scripts and hooks of a project are executed: another user's file is not taken unasked, as in git
        # (CVE-2022-24765).
        if os.name == "posix" and owner != os.geteuid():
            raise refusal("config-of-another", path=path)
        return path
    return None


def _set(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    setattr(context.obj.options, parameter.name or "", value)


def _set_verbosity(context: click.Context, _parameter: click.Parameter, value: int) -> None:
    context.obj.options.verbose = value
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(max(value, context.obj.options.log_json), 2)]
    logging.getLogger("rekey").setLevel(level)
    # While a service is down many requests are retried; that it is down is an event of its own.
    logging.getLogger("rekey.tables").setLevel(level if value else logging.WARNING)


def _set_log_format(context: click.Context, _parameter: click.Parameter, value: str) -> None:
    if value == "json":
        context.obj.log_as_json()


_common = functools.partial(click.option, expose_value=False, callback=_set)
_COMMON = (
    _common(
        "--config",
        metavar="FILE",
        default=DEFAULT_CONFIG_PATH,
        show_default=True,
        envvar=CONFIG_VARIABLE,
        show_envvar=True,
        callback=_set_config,
        help="The configuration.",
    ),
    _common("--json", is_flag=True, help="Print one JSON document on standard output, also for an error."),
    _common(
        "-v",
        "--verbose",
        count=True,
        callback=_set_verbosity,
        help="Say more on standard error; -vv says most. No keys at any level.",
    ),
    _common(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        is_eager=True,  # before an error of another option
        callback=_set_log_format,
        help="json: standard error has one event a line, as JSON.",
    ),
    _common(
        "--progress/--no-progress",
        "bars",
        default=True,
        help="Tell progress on standard error: bars on a terminal, else a line every so often.",
    ),
    _common(
        "--debug",
        is_flag=True,
        help="After a fault of rekey, show where it was (no values); after one of a script, its text.",
    ),
)


class PhaseChoice(click.Choice[str]):
    """A phase by its id, or by the name that people know."""

    def __init__(self, phases: Iterable[str]) -> None:
        names = [[str(phase), FOLLOWING] if phase == Phase.DUAL_WRITE else [str(phase)] for phase in phases]
        super().__init__([name for aliases in names for name in aliases])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        phase = super().convert(value, param, ctx)
        return str(Phase.DUAL_WRITE) if phase == FOLLOWING else phase


SCRIPT = click.argument("script", required=False)
SCRIPTS = click.argument("scripts", nargs=-1, metavar="[SCRIPT]...")
HTML = file_option("--html", help="Write a page with plots that loads nothing. It never holds keys.")
GROUP = click.option(
    "--group", metavar="NAME", help='All scripts with group="NAME", in place of SCRIPT, as one.'
)
EXECUTOR = click.option(
    "--executor",
    metavar="MODULE:CALLABLE",
    help="Let workers copy and compare: what returns a concurrent.futures.Executor, for example"
    " rekey.executors:processes.",
)


def recorded(context: click.Context) -> str:
    """Return the command as the audit log records it: the typed options, with a value only where it is one of
    a list or a number. Texts may hold keys and are left out."""
    words = [context.command_path]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if not isinstance(parameter, click.Option) or not parameter.name:
            continue
        if context.get_parameter_source(parameter.name) is not click.core.ParameterSource.COMMANDLINE:
            continue
        if parameter.is_flag:
            words.append((parameter.opts if value else parameter.secondary_opts or parameter.opts)[0])
        elif isinstance(parameter.type, click.Choice | click.types.IntParamType):
            words.append(f"{parameter.opts[0]}={value}")
        else:
            words.append(f"{parameter.opts[0]}=…")
    return " ".join(words)


def command(
    name: str, *, example: str, cls: type[click.Command] = click.Command
) -> Callable[[Callable[..., ExitCode]], click.Command]:
    """Make a function a command with the common options and an example (command lines) at the end of its
    help.

    The function takes the `Shell` first and returns the exit code. `cls`: click's class for it.
    """

    def decorate(function: Callable[..., ExitCode]) -> click.Command:
        @functools.wraps(function)
        def body(shell: Shell, /, **arguments: Any) -> ExitCode:
            from rekey.state.audit import COMMAND

            token = COMMAND.set(recorded(click.get_current_context()))
            try:
                # What a script or a library prints must not get into the JSON document.
                with redirect_stdout(shell.err), signals.interrupting():
                    return function(shell, **arguments)
            finally:
                COMMAND.reset(token)

        wrapped: Callable[..., Any] = click.pass_obj(body)
        for option in reversed(_COMMON):
            wrapped = option(wrapped)
        lines = "\n".join(f"  {line}" for line in example.splitlines())
        return click.command(name, cls, epilog=f"\b\nExample:\n{lines}")(wrapped)

    return decorate
