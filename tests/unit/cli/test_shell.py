"""Output, help and the common options."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from rekey.cli.main import COMMON_OPTIONS, options_last, rekey, run
from rekey.cli.progress import Bars, Lines
from rekey.cli.shell import CommonOptions, Shell, command
from rekey.errors import ExitCode
from rekey.present.text import NARROWEST, WIDEST, WIDTH, duration, fitted, labelled, table
from rekey.state.store import State

COMMANDS = [
    f"{name} {below}".strip()
    for name in rekey.list_commands(click.Context(rekey))
    for one in [rekey.get_command(click.Context(rekey), name)]
    for below in (one.commands if isinstance(one, click.Group) else [""])
]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_example_common_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*name.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert f"  rekey {name}" in said
    for option in ("--config", "--json", "--verbose", "--no-progress", "--debug"):
        assert option in said
    assert max(len(line) for line in said.splitlines()) <= WIDTH


@pytest.mark.parametrize("name", COMMANDS)
def test_options_of_every_command_may_stand_before_it(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--config", "no such file", "--json", "-vv", "--log-format=text", "--no-progress", "--debug"]
    assert options_last([*options, *name.split(), "x"]) == [*name.split(), *options, "x"]
    assert run([*options, *name.split(), "--help"]) == 0
    assert f"Usage: rekey {name} " in capsys.readouterr().out


def test_the_options_that_may_stand_before_a_command_are_those_of_every_command() -> None:
    status = rekey.get_command(click.Context(rekey), "status")
    found = {
        name: not (one.is_flag or one.count)
        for one in status.params
        if isinstance(one, click.Option) and not one.expose_value and "--help" not in one.opts
        for name in (*one.opts, *one.secondary_opts)
    }
    assert {**found, "-vv": False} == COMMON_OPTIONS


@pytest.mark.parametrize(
    "words", [["--json"], ["--config", "x"], ["--json", "--version"], ["--nonsense", "plan"]]
)
def test_options_without_a_command_stay_what_they_are(words: list[str]) -> None:
    assert options_last(words) == [one for one in words if one in ("--version", "--nonsense", "plan")]


def test_a_similar_command_is_named_though_no_command_is_imported() -> None:
    """In a process of its own: others have imported commands."""
    program = "import sys; from rekey.cli.main import run; sys.exit(run(['aply']))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.splitlines()[0]) == (
        2,
        "rekey: No such command 'aply'. Did you mean 'apply'?",
    )


def test_a_configuration_above_that_another_user_owns_is_not_taken_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REKEY_CONFIG", raising=False)
    (tmp_path / "migrations").mkdir()
    (tmp_path / "rekey.toml").write_text("not TOML", "utf-8")
    monkeypatch.chdir(tmp_path / "migrations")
    assert run(["status"]) == ExitCode.USAGE
    assert "is not valid TOML" in capsys.readouterr().err, "it is found and read"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert run(["status"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "belongs to another user" in said and f"--config {tmp_path}/rekey.toml" in said


def test_help_of_all_and_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    said = capsys.readouterr().out
    assert [name for name in COMMANDS if f"  {name.split()[0]} " not in said] == []
    assert not any(line.endswith("...") for line in said.splitlines()[1:])  # no summary is cut off
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rekey ")


@pytest.mark.parametrize(
    "words", [[], ["frobnicate"], ["plan", "--frobnicate"], ["apply", "--to", "nowhere"]]
)
def test_a_wrong_command_line_exits_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert capsys.readouterr().out == ""


def test_a_wrong_command_line_with_json_is_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["apply", "--json", "--to", "nowhere"]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["error"] == "UsageError"
    assert json.loads(said.out)["exit_code"] == 2


def test_an_error_with_json_is_one_json_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--json", "--config", str(tmp_path / "none.toml")]) == 2
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document["error"] == "ConfigurationError"
    assert document["next"] in said.err


def test_the_configuration_may_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REKEY_CONFIG", str(tmp_path / "other.toml"))
    assert run(["plan"]) == 2
    assert "other.toml" in capsys.readouterr().err


def test_a_fault_hides_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @command("break", example="rekey break")
    def broken(_shell: Shell) -> ExitCode:
        raise RuntimeError("someone@example.com")

    monkeypatch.setitem(rekey.commands, "break", broken)
    assert run(["break"]) == 4
    said = capsys.readouterr()
    assert "fault of rekey" in said.err
    assert " in broken" not in said.err
    assert run(["break", "--debug", "--json"]) == 4
    with_debug = capsys.readouterr()
    assert " in broken" in with_debug.err
    assert json.loads(with_debug.out)["error"] == "FaultOfRekey"
    assert "someone@example.com" not in said.err + with_debug.err + with_debug.out
    assert "Traceback" not in with_debug.err


def test_scripts_print_to_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @command("chatter", example="rekey chatter")
    def chatter(shell: Shell) -> ExitCode:
        print("from a script")
        shell.emit({"exit_code": 0}, "")
        return ExitCode.DONE

    monkeypatch.setitem(rekey.commands, "chatter", chatter)
    assert run(["chatter", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"exit_code": 0}
    assert said.err == "from a script\n"


def test_an_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @command("wait", example="rekey wait")
    def wait(_shell: Shell) -> ExitCode:
        raise KeyboardInterrupt

    monkeypatch.setitem(rekey.commands, "wait", wait)
    assert run(["wait", "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["exit_code"] == 130


def test_characters_that_the_stream_cannot_show_are_escaped() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Shell(stdout=stream).emit({}, "caf\u00e9 \ud800 \U0001f600")
    assert raw.getvalue() == b"caf\\xe9 \\ud800 \\U0001f600\n"


def test_a_reader_that_went_away_does_not_change_the_exit_code() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        ended = subprocess.run(
            [sys.executable, "-m", "rekey", "init", "--help"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert b"Traceback" not in ended.stderr
    program = (
        "from rekey.cli.shell import Shell\n"
        "shell = Shell()\n"
        "shell.emit({}, 'x' * 200_000)\n"
        "shell.emit({}, 'more')\n"
    )
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        ended = subprocess.run(
            [sys.executable, "-c", program], stdout=pipe, stderr=subprocess.PIPE, check=False
        )
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no file that is always full")
def test_a_full_disk_under_the_output_does_not_change_the_exit_code() -> None:
    """What standard error cannot take is lost; a result that standard output cannot take is an error."""

    def ended(full: str, *words: str) -> tuple[int, bytes]:
        with Path("/dev/full").open("wb", buffering=0) as disk:
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, full: disk}
            done = subprocess.run([sys.executable, "-m", "rekey", *words], check=False, **streams)
        return done.returncode, done.stderr or b""

    assert ended("stderr", "nothing")[0] == ExitCode.USAGE
    assert ended("stdout", "nothing", "--json")[0] == ExitCode.USAGE
    assert ended("stderr", "--version")[0] == ExitCode.DONE
    for words in (("runbook", "resume"), ("runbook", "resume", "--json")):
        code, said = ended("stdout", *words)
        assert code == ExitCode.SERVICE
        assert b"this machine failed: ENOSPC" in said
        assert b"Traceback" not in said


def test_next_steps_carry_config(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @command("name", example="rekey name")
    def name(shell: Shell) -> ExitCode:
        shell.emit({}, shell.command("apply 0001"))
        return ExitCode.DONE

    monkeypatch.setitem(rekey.commands, "name", name)
    monkeypatch.setenv("REKEY_CONFIG", "from-environment.toml")
    run(["name"])
    run(["name", "--config", "my keys.toml"])
    assert capsys.readouterr().out == "rekey apply 0001\nrekey apply 0001 --config 'my keys.toml'\n"


def test_bars_are_drawn_on_a_terminal_only_and_not_when_unwanted() -> None:
    assert isinstance(Shell(stderr=Terminal()).progress(), Bars)
    assert isinstance(Shell(stderr=Terminal(), options=CommonOptions(bars=False)).progress(), Lines)
    assert isinstance(Shell(stderr=io.StringIO()).progress(), Lines)
    assert isinstance(Shell(stderr=Terminal(), options=CommonOptions(json=True)).progress(), Lines)


def test_a_bar_shows_rows_rate_and_expected_end() -> None:
    screen = Terminal()
    with Bars(screen).task("backfill", total=1000) as advance:
        advance(400)
        advance(600)
    shown = screen.getvalue()
    assert "backfill: 100%" in shown
    assert "1.00k/1.00k" in shown
    assert "rows/s" in shown


def test_help_needs_no_heavy_module() -> None:
    program = (
        "import sys; from rekey.cli.main import run; run(['--help']); heavy = {'azure', 'sqlalchemy', 'yoyo',"
        " 'aiohttp', 'jinja2', 'asyncio', 'email', 'cryptography'}; print(*sorted(heavy & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == ""


def test_a_command_that_ends_leaves_no_cycles_to_be_looked_for() -> None:
    """Otherwise a tenth of a second of each command goes into what ends with its process."""
    program = (
        "import gc, sys; from rekey.__main__ import main; sys.argv = ['rekey', '--version']; main();"
        " print(gc.get_freeze_count() > 10 * len(gc.get_objects()))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "True"


def test_what_looks_needs_nothing_of_what_works(tmp_path: Path) -> None:
    """`rekey status` is asked again and again: it does not wait for modules that copy, plan or compare, nor
    for those that write the state file."""
    state = tmp_path / "state.sqlite"
    State.open(state).close()
    program = (
        "import sys, rekey.cli.status, rekey.cli.history, rekey.protocol.opening\n"
        "from pathlib import Path\n"
        "from rekey.state.store import State\n"
        "from rekey.status import judge, tell\n"
        "with State.open(Path(sys.argv[1]), read_only=True) as state:\n"
        "    state.ledger_ids()\n"
        "working = ('copy.pipeline', 'copy.delta', 'plan', 'verify', 'inspect', 'runner.session')\n"
        "other = ('aiohttp', 'azure.core', 'urllib.request', 'rekey.client', 'sqlalchemy', 'yoyo')\n"
        "print(*(name for name in (*other, *(f'rekey.{one}' for one in working)) if name in sys.modules))"
    )
    words = [sys.executable, "-c", program, str(state)]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == ""


def test_what_reads_the_state_file_alone_needs_nothing_of_the_service() -> None:
    program = (
        "import sys, rekey.cli.history; heavy = {'azure', 'sqlalchemy', 'yoyo', 'aiohttp', 'asyncio',"
        " 'email', 'cryptography'}; print(*sorted(heavy & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.42, "0.4 s"), (12, "12 s"), (180, "3 min"), (7300, "2 h"), (86400 * 30, "30 d")]
)
def test_durations_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_field_is_wrapped_within_the_width() -> None:
    lines = labelled("safe", "word " * 60)
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) > 1
    assert {line[:16] for line in lines[1:]} == {" " * 16}


def test_help_of_all_repeats_the_first_line_of_each_commands_help(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    said = capsys.readouterr().out
    context = click.Context(rekey)
    commands = [rekey.get_command(context, name) for name in rekey.list_commands(context)]
    summaries = [one.get_short_help_str(WIDTH) for one in commands if one is not None]
    assert summaries
    assert [text for text in summaries if text not in said] == []


def test_the_group_lists_commands_in_the_order_of_a_migration() -> None:
    context = click.Context(rekey)
    names = rekey.list_commands(context)
    assert names.index("plan") < names.index("apply") < names.index("verify") < names.index("retire")


# --- width and colour of a terminal ------------------------------------------------------------------------


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> Terminal:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    return screen


@pytest.mark.parametrize("columns", [20, 50, 300])
def test_lines_follow_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Between 40 and 140 columns; what is no terminal has 100."""
    screen = on_a_terminal(monkeypatch, columns)
    assert run(["runbook"]) == 0
    longest = max(map(len, screen.getvalue().splitlines()))
    assert longest <= min(WIDEST, max(NARROWEST, columns))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    run(["runbook"])
    assert isinstance(sys.stdout, io.StringIO)
    assert max(map(len, sys.stdout.getvalue().splitlines())) > 80


def test_what_weighs_has_a_colour_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless NO_COLOR is set; a control character of the text itself stays escaped."""
    text = "ERROR   \x1b[2Jgone\nan ERROR within\n  ATTENTION  lost\n"
    for name in ("", "NO_COLOR"):
        screen = on_a_terminal(monkeypatch)
        monkeypatch.setenv(name, "1") if name else None
        Shell(stdout=screen).say(text)
        red = "" if name else "\x1b[31m"
        end = "" if name else "\x1b[0m"
        assert screen.getvalue() == (
            f"{red}ERROR{end}   \\x1b[2Jgone\nan ERROR within\n  {red}ATTENTION{end}  lost\n"
        )
    file = io.StringIO()
    Shell(stdout=file).say(text)
    assert "\x1b" not in file.getvalue()


def test_a_narrow_terminal_breaks_no_table() -> None:
    with fitted(1):
        assert table(["a"] * 12, [["a long text"] * 12])
