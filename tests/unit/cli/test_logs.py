"""What of the logs reaches standard error, at every verbosity; and what it is as JSON."""

from __future__ import annotations

import ast
import json
import logging
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rekey.cli.main import rekey, run
from rekey.cli.shell import Shell, command
from rekey.core import logs
from rekey.core.logs import EVENTS
from rekey.errors import ExitCode
from tests.asserts.every import every

ROOT = Path(__file__).parents[3]

KEY = "someone@example.com"
LIBRARIES = [
    "azure.core.pipeline.policies.http_logging_policy",
    "azure.identity",
    "aiohttp.client",
    "asyncio",
    "urllib3.connectionpool",
    "yoyo.migrations",
]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("verbosity", [logging.WARNING, logging.INFO, logging.DEBUG])
def test_library_text_is_not_logged(library: str, verbosity: int, capsys: pytest.CaptureFixture[str]) -> None:
    with logs.configured():
        logging.getLogger("rekey").setLevel(verbosity)
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger(library).log(level, "GET /Users(RowKey='%s')", KEY)
    assert KEY not in capsys.readouterr().err


def test_that_a_library_warned_is_said_with_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with logs.configured():
        logging.getLogger("azure.identity").warning("no credential for %s", KEY)
        logging.getLogger("azure.identity").info("of no interest")
    said = capsys.readouterr().err
    assert said == "WARNING azure.identity: (text withheld: it may hold keys)\n"


def test_our_own_records_are_shown_as_far_as_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    own = logging.getLogger("rekey.tables")
    with logs.configured():
        own.info("unasked")
        logging.getLogger("rekey").setLevel(logging.INFO)
        own.info("asked")
    own.warning("afterwards everything is as before")
    assert capsys.readouterr().err == "INFO rekey.tables: asked\n"


def test_of_an_exception_in_a_record_only_the_type_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with logs.configured():
        try:
            raise ValueError(KEY)
        except ValueError:
            logging.getLogger("rekey.tables").exception("it failed", stack_info=True)
    said = capsys.readouterr().err
    assert "ValueError" in said
    assert KEY not in said
    assert "Traceback" not in said


def test_a_record_that_cannot_be_formatted_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with logs.configured():
        logging.getLogger("rekey.tables").warning("%d rows", KEY)
    assert KEY not in capsys.readouterr().err


# --- as JSON ------------------------------------------------------------------------------------------------


def calls_of(path: Path, names: set[str]) -> Iterator[ast.Call]:
    """Yield the calls of methods of these names in a file of the package."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
            yield node


def test_every_record_and_every_note_has_a_name_that_is_listed_and_documented() -> None:
    used = set()
    for path in sorted((ROOT / "rekey").rglob("*.py")):
        for call in calls_of(path, {"debug", "info", "warning", "error", "exception"}):
            if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value).lower() == "_log":
                [extra] = [one.value for one in call.keywords if one.arg == "extra"]
                used |= set(re.findall(r"'event': '([\w-]+)'", ast.unparse(extra)))
                assert "event" in ast.unparse(extra) or ast.unparse(extra) == "_EVENT", ast.unparse(call)
        for call in calls_of(path, {"note", "json_line"}):
            used |= {
                one.value for one in call.args[:2] if isinstance(one, ast.Constant) and one.value in EVENTS
            }
    notes = tomllib.loads((ROOT / "rekey/status/notes.toml").read_text("utf-8"))
    used |= {texts.get("event", code) for code, texts in notes.items()}
    assert used <= set(EVENTS)
    page = (ROOT / "docs/reference/commands.md").read_text("utf-8")
    told = re.findall(r"^\| `([\w-]+)` \|", page[page.index("## Events") :], re.MULTILINE)
    assert told == list(EVENTS)
    assert len(set(EVENTS)) == len(EVENTS)


def lines_of(text: str) -> list[dict[str, Any]]:
    """Return the events of standard error; every line must be one."""
    return [json.loads(line) for line in text.splitlines()]


def test_stderr_is_json_events(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @command("chatter", example="rekey chatter")
    def chatter(shell: Shell) -> ExitCode:
        print(f"a script prints\n{KEY}")
        sys.stderr.write(KEY)
        logging.getLogger("azure.identity").warning("no credential for %s", KEY)
        logging.getLogger("rekey.runner").info("asked", extra={"event": "phase-begun"})
        logging.getLogger("rekey.tables").info("not asked for", extra={"event": "request-retried"})
        logging.getLogger("rekey.runner").debug("not asked for", extra={"event": "request"})
        shell.progress().note("look\nhere", "warning", rows=7)
        raise RuntimeError(KEY)

    monkeypatch.setitem(rekey.commands, "chatter", chatter)
    assert run(["chatter", "--log-format", "json", "--debug"]) == 4
    said = capsys.readouterr()
    events = lines_of(said.err)
    assert [one["event"] for one in events if one["event"] != "output-withheld"] == [
        *("library", "phase-begun", "warning", "error", "error")
    ]
    assert sum(one["event"] == "output-withheld" for one in events) == 2
    assert KEY not in said.err + said.out
    [noted] = [one for one in events if one["event"] == "warning"]
    assert (noted["text"], noted["rows"], noted["level"]) == ("look\nhere", 7, "warning")
    failed = next(one for one in events if one["event"] == "error")
    assert (failed["error"], failed["exit_code"]) == ("FaultOfRekey", 4)
    assert {"at", "level", "event", "text"} <= events[0].keys()
    assert every(one["event"] in EVENTS for one in events)


def test_an_error_of_the_command_line_is_an_event_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["apply", "--to", "nowhere", "--log-format", "json"]) == 2
    [event] = lines_of(capsys.readouterr().err)
    assert (event["event"], event["level"]) == ("error", "error")
    assert "nowhere" in event["text"]


def test_stderr_is_plain_again_after_a_command_with_json_logs(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stderr
    run(["apply", "--to", "nowhere", "--log-format", "json"])
    assert sys.stderr is before
    with logs.configured():
        logging.getLogger("rekey.tables").warning("said")
    assert "WARNING rekey.tables: said" in capsys.readouterr().err
