"""Looking up is on record before anything is opened, limited in a minute, refused without the wrapping key;
and support teams ask for many keys at once."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rekey.errors import MachineFailed
from rekey.mapping.rows import MAPPING_TABLE
from rekey.model import Row, content_of
from rekey.state.store import State
from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.projects import POSTS_SCRIPT, USERS_SCRIPT, Project, applied
from tests.worlds.small import post, user

SCRIPT = "0001_users"
WHY = ("--reason", "ticket 4711")


def users() -> list[Row]:
    return [user(f"user{number:02}@example.com", f"p{number % 2}") for number in range(30)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project at the gate of cutover."""
    return applied(tmp_path, USERS_SCRIPT, users())


def events(project: Project, script_id: str = SCRIPT) -> list[Any]:
    with State.open(project.config.state, read_only=True) as state:
        return [one.details for one in state.audit_events(script_id) if one.event == "lookup"]


def asked_in(project: Project, *lines: str) -> str:
    path = project.folder / "asked.csv"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


def spoil(project: Project, direction: str = "f") -> None:
    """Alter every mapping row of a direction."""
    for row in project.restricted.dump(MAPPING_TABLE):
        if row["PartitionKey"].startswith(f"{SCRIPT}.{direction}."):
            altered = {**content_of(row), "Sealed0": "AAAA" + row["Sealed0"][4:]}
            asyncio.run(project.restricted.table(MAPPING_TABLE).replace(altered, etag="*"))


def test_it_is_on_record_before_a_row_is_opened(rekey: Commands, project: Project) -> None:
    """Shown by a row that cannot be opened: the record is there all the same."""
    spoil(project)
    said = rekey("lookup", "--old", "p0", "user02@example.com", *WHY, code=1)
    assert "altered, or belongs to another row" in said.err
    assert "example.com" not in said.all
    [event] = events(project)
    assert (event["by"], event["found"], event["reason"]) == ("old", True, "ticket 4711")
    assert "example" not in str(event)


def test_without_the_wrapping_key_it_is_refused(rekey: Commands, project: Project) -> None:
    (project.folder / "sealing.key").unlink()
    said = rekey("lookup", "--old", "p0", "user02@example.com", *WHY, code=2)
    assert "the wrapping key" in said.err
    assert events(project) == []
    (project.folder / "sealing.key").write_text("another wrapping key of more than 32 bytes", "utf-8")
    said = rekey("lookup", "--old", "p0", "user02@example.com", *WHY, code=3)
    assert "is sealed with the wrapping key local:" in said.err
    assert events(project) == []


def test_lookups_are_limited_across_processes(rekey: Commands, project: Project) -> None:
    config = project.folder / "rekey.toml"
    config.write_text(config.read_text("utf-8") + "[lookup]\nper_minute = 3\n", "utf-8")
    for number in range(3):
        rekey("lookup", "--old", f"p{number % 2}", f"user{number:02}@example.com", *WHY)
    said = rekey("lookup", "--old", "p1", "user03@example.com", *WHY, code=3)
    assert "3 look-ups in the last minute" in said.err
    assert "user03" not in said.all
    bulk = asked_in(project, "old_partition_key,old_row_key", "p0,user04@example.com")
    rekey("lookup", "--bulk", bulk, *WHY, code=3)
    assert len(events(project)) == 3


def test_the_minute_is_counted_in_the_audit_log(tmp_path: Path) -> None:
    now = datetime(2024, 5, 1, tzinfo=UTC)
    told = []
    for seconds in (0, 10, 20, 59, 61, 62):
        at = now + timedelta(seconds=seconds)
        with State.open(tmp_path / "state.sqlite", clock=lambda at=at: at) as state:  # type: ignore[misc]
            state.audit("another", None, {})
            told.append(state.audit_within("lookup", None, {}, most=2, seconds=60.0) is not None)
            assert state.check_chain() is None
    assert told == [True, True, False, False, True, False]


def test_look_ups_of_a_clock_that_was_ahead_do_not_count_until_it_is_there_again(tmp_path: Path) -> None:
    now = datetime(2024, 5, 1, tzinfo=UTC)
    told = []
    for days, seconds in ((400, 0), (400, 1), (400, 2), (0, 0), (0, 1), (0, 2)):
        at = now + timedelta(days=days, seconds=seconds)
        with State.open(tmp_path / "state.sqlite", clock=lambda at=at: at) as state:  # type: ignore[misc]
            told.append(state.audit_within("lookup", None, {}, most=2, seconds=60.0) is not None)
    assert told == [True, True, False, True, True, False]


def test_nothing_opens_unrecorded(rekey: Commands, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MachineFailed("the disk is full", hint="free space")

    monkeypatch.setattr(State, "audit_within", full)
    said = rekey("lookup", "--old", "p0", "user02@example.com", *WHY, code=4)
    assert "the disk is full" in said.err
    assert said.out == ""


def test_a_plain_lookup_reports_a_missing_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands_on: CommandsOn
) -> None:
    project = Project(tmp_path)
    project.script(POSTS_SCRIPT, "0001_posts.py")
    asyncio.run(project.fill("Posts", [post("first")]))
    (project.folder / "sealing.key").unlink()
    rekey = commands_on(project)
    rekey("apply")
    rekey("lookup", "--old", "blog", "first", "--reason", "it is about the first", code=0)
    rekey("lookup", "--new", "2024-01", "first", "--reason", "ticket of 2024-01", code=2)

    def full(*_: object, **__: object) -> None:
        raise MachineFailed("the disk is full", hint="free space")

    monkeypatch.setattr(State, "audit_within", full)
    said = rekey("lookup", "--old", "blog", "first", *WHY)
    assert "not recorded: the disk is full" in said.err
    assert "2024-01" in said.out


def test_the_beginning_of_an_id_opens_nothing(rekey: Commands, project: Project) -> None:
    """Else one look-up of one letter would open a part of the mapping."""
    for number in range(1, 12):
        said = rekey("lookup", "--id", "0123456789abcdef"[:number], *WHY, code=1)
        assert "the id that was given" in said.err
    old = ("--old", "p0", "user02@example.com")
    row_id = rekey("lookup", *old, *WHY, "--json").json["rows"][0]["row_id"]
    assert "the id that was given" in rekey("lookup", "--id", row_id[:11], *WHY, code=1).err


# --- many at once ------------------------------------------------------------------------------------------


def test_a_file_is_recorded_by_count_and_digest(rekey: Commands, project: Project) -> None:
    keys = [(row["PartitionKey"], row["RowKey"]) for row in users()]
    bulk = asked_in(project, "old_partition_key,old_row_key", *(f"{pk},{rk}" for pk, rk in keys))
    rows = rekey("lookup", "--bulk", bulk, *WHY, "--json").json["rows"]
    assert [(one["old"]["partition_key"], one["old"]["row_key"]) for one in rows] == keys
    new = [one["new"][0] for one in rows]
    back = asked_in(
        project, "new_partition_key,new_row_key", *(f"{o['partition_key']},{o['row_key']}" for o in new)
    )
    assert rekey("lookup", "--bulk", back, *WHY, "--json").json["rows"] == rows
    by_id = asked_in(project, "id", *(one["row_id"] for one in rows))
    assert rekey("lookup", "--bulk", by_id, *WHY, "--json").json["rows"] == rows
    found = events(project)
    assert [(one["by"], one["count"], one["found"]) for one in found] == [("bulk", 30, 30)] * 3
    assert len({one["digest"] for one in found}) == 2, "ids and old keys mean the same rows"
    assert found[0]["digest"] == found[2]["digest"]
    assert "example" not in str(found)


def test_answers_go_to_a_private_file(rekey: Commands, project: Project) -> None:
    bulk = asked_in(
        project,
        "old_partition_key,old_row_key",
        "p0,user02@example.com",
        '"p1","user03@example.com"',
        "p0,x@y",
    )
    out = project.folder / "answers.jsonl"
    said = rekey("lookup", "--bulk", bulk, "--out", str(out), *WHY, code=1)
    assert "has no such row" in said.err
    assert "2 found" in said.out
    assert "example.com" not in said.all
    assert "x@y" not in said.all
    assert out.stat().st_mode & 0o777 == 0o600
    answers = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [one["old"]["row_key"] for one in answers] == ["user02@example.com", "user03@example.com"]
    before = out.read_bytes()
    assert "cannot be written" in rekey("lookup", "--bulk", bulk, "--out", str(out), *WHY, code=2).err
    assert out.read_bytes() == before, "an answer is never overwritten"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("old_row_key", "user02@example.com"), "not the columns that are expected"),
        (("old_partition_key,old_row_key", "p0"), "not the columns that are expected"),
        (("id",), "asks for 0 keys"),
        (("id", *("3m9k",) * 4), "asks for 4 keys, and 1 to 3"),
        (("id", '"open'), "cannot be read"),
    ],
)
def test_bad_file_is_refused(rekey: Commands, project: Project, lines: tuple[str, ...], said: str) -> None:
    config = project.folder / "rekey.toml"
    config.write_text(config.read_text("utf-8") + "[lookup]\nbulk_keys = 3\n", "utf-8")
    printed = rekey("lookup", "--bulk", asked_in(project, *lines), *WHY, code=2)
    assert said in printed.err
    assert "example.com" not in printed.all
    assert events(project) == []


def test_a_reason_that_holds_one_of_many_keys_is_refused(rekey: Commands, project: Project) -> None:
    bulk = asked_in(project, "old_partition_key,old_row_key", "p0,someone-else", "p1,user03@example.com")
    rekey("lookup", "--bulk", bulk, "--reason", "about SOMEONE-ELSE", code=2)
    assert events(project) == []


@pytest.mark.parametrize(
    "words", [("--old", "p0", "user02@example.com"), ("--bulk", "")], ids=["one", "many"]
)
def test_another_state_file_is_refused(rekey: Commands, project: Project, words: tuple[str, ...]) -> None:
    """Its own would count the look-ups from zero, and have the only record of them."""
    if words[0] == "--bulk":
        words = ("--bulk", asked_in(project, "old_partition_key,old_row_key", "p0,user02@example.com"))
    config = project.folder / "rekey.toml"
    text = config.read_text("utf-8")
    config.write_text(text.replace("state.sqlite", "other.sqlite"), "utf-8")
    said = rekey("lookup", *words, *WHY, code=3)
    assert "other.sqlite does not know the run of 0001_users" in said.err
    assert "example.com" not in said.out
    config.write_text(text, "utf-8")
    assert events(project) == []
    rekey("lookup", *words, *WHY)
