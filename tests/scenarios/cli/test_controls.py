"""No command sends a control character of somebody else to the terminal: keys, names, hosts and titles that
would clear the screen or turn a line around are printed with those characters spelled out."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import sys
from pathlib import Path

import click
import pytest

from rekey.cli.main import rekey as group
from rekey.cli.main import run
from rekey.cli.progress import Bars
from rekey.cli.shell import Shell, Surroundings, command
from rekey.errors import ConfigurationError, ExitCode, one_line, visible
from rekey.present.page import shown
from rekey.protocol.registry import ClientRow, Registry
from tests.asserts.command_line import Commands, CommandsOn
from tests.unit.cli.test_shell import Terminal
from tests.worlds.evidence import exported, rows, with_key
from tests.worlds.projects import USERS_SCRIPT, Project, lived
from tests.worlds.scripts import under_writes

RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
CLEAN = "everything holds"
HOSTILE = f"\x1b[2J\x1b[H\x9b1A\u202e\u2066\x7f\r{CLEAN}"
KEY = f"\u202e\u2066{CLEAN}\u200f"
"""What the service takes in a key: C0 and C1 controls it refuses."""


@pytest.fixture
def rekey(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    """A migration between backfill and cutover whose title, keys and clients are hostile."""

    def live(project: Project) -> None:
        project.script(under_writes(USERS_SCRIPT).replace('"""', f'"""{HOSTILE}', 1))
        hostile = {"PartitionKey": KEY, "RowKey": f"{KEY}@mail.example", "Nm": HOSTILE, "Ssn": "x"}
        asyncio.run(project.fill("Users", [*rows(9), hostile]))
        with_key(project.folder)
        commands_on(project)("apply", "0001")
        client = ClientRow("c0ffee", f"web{HOSTILE}", "old", f"host{HOSTILE}", 12, "0.1", 3, 15.0, 30.0)
        asyncio.run(Registry(project.restricted, "0001_users").beat(client))

    return commands_on(lived(__name__, tmp_path, live))


LOOKUP = ("lookup", "0001", "--old", KEY, f"{KEY}@mail.example", "--reason", "ticket 4711")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("status",), ("web\\x1b[2J\\x1b[H\\x9b1A\\u202e", "host\\x1b[2J")),
        (("plan",), ("\\x1b[2J",)),
        (("plan", "--exact", "--show-keys"), ("\\u202e",)),
        (("inspect", "Users", "--exact", "--show-keys"), (f"\\u202e\\u2066{CLEAN}\\u200f",)),
        (LOOKUP, (f"\\u202e\\u2066{CLEAN}\\u200f@mail.example",)),
        (("verify", "0001"), ()),
        (("pause",), ()),
        (("apply", "0001", "--to", "cutover"), ()),
        (("rollback", "0001"), ()),
        (("evidence", "export", f"out{HOSTILE}"), ("out\\x1b[2J",)),
        (("evidence", "keygen", f"key{HOSTILE}"), ("key\\x1b[2J",)),
        (("evidence", "verify", f"none{HOSTILE}"), ("none\\x1b[2J",)),
        (("new", f"n{HOSTILE}", "--source", "Users", "--target", "More"), ("\\x1b[2J",)),
        (("inspect", f"T{HOSTILE}"), ()),
        (("init", f"folder{HOSTILE}"), ()),
        (("retire", "0001", "--table", f"T{HOSTILE}"), ()),
        (("throttle", f"1{HOSTILE}"), ("\\x1b[2J",)),
        (("rehearse", f"s{HOSTILE}.py"), ("\\x9b1A",)),
        (("stress", "--endpoint", f"e{HOSTILE}"), ()),
        (("status", f"0001{HOSTILE}"), ("\\x1b[2J",)),
        (("status", "--config", f"none{HOSTILE}.toml"), ("none\\x1b[2J",)),
        ((f"frobnicate{HOSTILE}",), ("\\x1b[2J",)),
        (("plan", f"--{HOSTILE}"), ("\\x1b[2J",)),
        (("--help",), ()),
        (("--version",), ()),
    ],
    ids=lambda words: " ".join(words).partition(HOSTILE)[0] if isinstance(words, tuple) else None,
)
def test_what_is_printed_holds_no_control_of_others(
    rekey: Commands, words: tuple[str, ...], shown: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(rekey.project.folder)
    said = rekey(*words, code=None)
    assert not RAW.search(said.all)
    assert not [one for one in shown if one not in said.all]
    if not words[0].startswith("--"):
        as_json = rekey(*words, "--json", code=None)
        assert not RAW.search(as_json.all)
        assert isinstance(as_json.json, dict)


def test_a_client_is_still_itself_in_json(rekey: Commands) -> None:
    [client] = rekey("status", "--json").json["migrations"][0]["clients"]
    assert client["name"] == f"web{HOSTILE}"


def test_whoever_prints_prints_through_the_edge(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script's `print`, what a library writes, a log record, a question, and the error at the end."""

    @command("hostile", example="rekey hostile")
    def hostile(shell: Shell) -> ExitCode:
        print(HOSTILE)
        sys.stderr.writelines([HOSTILE, "\n"])
        click.echo(HOSTILE)
        logging.getLogger("rekey.tables").warning("%s\nINFO all is well", HOSTILE)
        shell.progress().note(HOSTILE)
        assert not hasattr(sys.stdout, "buffer")
        with pytest.raises(click.Abort):
            click.prompt(HOSTILE, err=True)
        raise ConfigurationError(f"{HOSTILE}\nNext: nothing", kept=HOSTILE, hint="look")

    monkeypatch.setitem(group.commands, "hostile", hostile)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run(["hostile"], Surroundings(is_terminal=True)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert not RAW.search(said.err)
    assert said.err.count("\\x9b1A") == 8, "each of them; click takes some sequences out itself"
    assert "\\nINFO all is well" in said.err
    lines = said.err.splitlines()
    assert [line for line in lines if line.startswith(("INFO", "Next:"))] == ["Next: look"]


def test_a_bar_keeps_its_own_sequences_and_none_of_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # or the bar is cut off at that width
    screen = Terminal()
    bars = Bars(screen)
    with bars.task(f"read {HOSTILE}\n{CLEAN}", total=2) as advance:
        bars.note(HOSTILE)
        advance(2)
    shown = screen.getvalue()
    assert "\r" in shown
    assert not RAW.search(shown.replace("\r", "").replace("\x1b[A", ""))
    assert f"\\r{CLEAN}\\n{CLEAN}: 100%" in shown


def test_controls_are_spelled_out_once_and_text_in_any_language_stays() -> None:
    assert visible("a\tb\nc") == "a\\tb\nc"
    assert one_line("a\nb") == "a\\nb"
    every = "".join(map(chr, range(0x3000))) + "\ud800"
    assert not RAW.search(visible(every))
    assert visible(visible(every)) == visible(every)
    text = 'שלום مرحبا नमस्ते 你好 café \U0001f600 \\ " → ✓'
    assert visible(text) == text
    json.loads(visible(json.dumps({HOSTILE: [HOSTILE]}, indent=2)))


def test_pages_show_controls_spelled_out(rekey: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(HOSTILE) == f"\\x1b[2J\\x1b[H\\x9b1A\\u202e\\u2066\\x7f\\r{CLEAN}"
    monkeypatch.chdir(rekey.project.folder)
    rekey("plan", "--html", "plan.html")
    monkeypatch.setattr("rekey.state.audit.socket.gethostname", lambda: f"host{HOSTILE}")
    for page in ("plan.html", f"{exported(rekey).name}/data/report.html"):
        text = Path(page).read_text("utf-8")
        assert "\\x1b[2J" in text
        assert not RAW.search(text)
