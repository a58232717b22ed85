"""The audit chain shows every change behind its back, and the database refuses to make one."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rekey.state import audit
from rekey.state.store import State


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A state file with four events."""
    file = tmp_path / "state.sqlite"
    with State.open(file) as state:
        for number in range(4):
            state.audit(f"event.{number}", "0001_users" if number % 2 else None, {"n": number, "é": (1, 2)})
    yield file


def tamper(path: Path, *statements: str) -> None:
    """Change the file as somebody would who removes the triggers first."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER audit_event_is_never_changed")
        connection.execute("DROP TRIGGER audit_event_is_never_removed")
        for statement in statements:
            connection.execute(statement)


def broken_at(path: Path) -> int | None:
    with State.open(path) as state:
        return state.check_chain()


def test_an_untouched_chain_holds_and_can_be_recomputed_by_anybody(path: Path) -> None:
    with State.open(path) as state:
        events = state.audit_events()
    assert [event.seq for event in events] == [1, 2, 3, 4]
    prev = "0" * 64
    for event in events:
        content = {
            "format": 2,
            "host": event.host,
            "command": event.command,
            "actor": event.actor,
            "at": event.at,
            "details": event.details,
            "event": event.event,
            "prev": prev,
            "script_id": event.script_id,
            "seq": event.seq,
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        prev = hashlib.sha256(text.encode()).hexdigest()
        assert event.hash == prev
    assert broken_at(path) is None


@pytest.mark.parametrize(
    ("statement", "seq"),
    [
        ("UPDATE audit_event SET details = '{\"n\": 7}' WHERE seq = 2", 2),
        ("UPDATE audit_event SET actor = 'somebody' WHERE seq = 3", 3),
        ("UPDATE audit_event SET at = '2020' WHERE seq = 1", 1),
        ("UPDATE audit_event SET script_id = NULL WHERE seq = 4", 4),
        ("DELETE FROM audit_event WHERE seq = 2", 2),
        ("DELETE FROM audit_event WHERE seq = 1", 1),
        ("UPDATE audit_event SET hash = prev WHERE seq = 3", 3),
    ],
)
def test_the_first_broken_link_is_found(path: Path, statement: str, seq: int) -> None:
    tamper(path, statement)
    assert broken_at(path) == seq


def test_the_database_refuses_to_change_or_remove_an_event(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in ("UPDATE audit_event SET actor = 'x'", "DELETE FROM audit_event"):
            with pytest.raises(sqlite3.IntegrityError, match="only ever added"):
                connection.execute(statement)


def test_events_of_one_migration_can_be_asked_for(path: Path) -> None:
    with State.open(path) as state:
        assert [event.event for event in state.audit_events("0001_users")] == ["event.1", "event.3"]


def test_details_that_are_no_plain_json_are_refused(path: Path) -> None:
    with State.open(path) as state:
        with pytest.raises(ValueError, match="nan"):
            state.audit("x", None, {"rate": float("nan")})
        assert len(state.audit_events()) == 4


def test_a_user_without_a_name_is_named_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under an arbitrary user id."""

    def nameless() -> str:
        raise OSError("no name")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert audit.current_actor() == f"uid-{os.getuid()}"
