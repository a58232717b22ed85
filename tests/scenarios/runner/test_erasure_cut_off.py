"""An erasure that is cut off anywhere is ended by the next one, and told until then.

Soak: 30 of 36 kills at a write; a kill at every third effect.
Reason, and what `make test` covers: before each write if sealed, behind it if in the clear; every way to
name a subject in `tests/scenarios/runner/test_erasure.py`; every ninth effect.
"""

from __future__ import annotations

import shlex
from itertools import product
from pathlib import Path

import pytest

from rekey.mapping.rows import MAPPING_TABLE
from tests.asserts.command_line import Commands
from tests.fakes.faults import Call
from tests.soaking import others_in_soak
from tests.worlds.erasure import (
    SCRIPTS,
    WHY,
    Lives,
    by_id,
    by_new,
    by_old,
    erasures,
    subject,
    tombstones,
)
from tests.worlds.kills import killed, replaces_mapping
from tests.worlds.projects import USERS_SCRIPT


@pytest.fixture
def users(lives: Lives) -> Commands:
    return lives.completed(USERS_SCRIPT)


@pytest.mark.parametrize(
    ("mapping", "way", "before", "at"),
    others_in_soak(
        product(["sealed", "plain"], ["old", "new", "id"], [True, False], [1, 2, 3]),
        kept=[
            *product(["sealed"], ["old"], [True], [1, 2, 3]),
            *product(["plain"], ["new"], [False], [1, 2, 3]),
        ],
    ),
)
def test_cut_off_at_any_write_the_command_resumes(
    mapping: str, way: str, before: bool, at: int, lives: Lives
) -> None:
    """By its new key the subject cannot be found any more once the reverse row is gone: the record leads."""
    rekey = lives.completed(SCRIPTS[mapping])
    row, project = subject(rekey), rekey.project
    named = {"old": by_old(row), "new": by_new(rekey, row), "id": by_id(rekey, row)}[way]
    writes = 0

    def is_reached(call: Call) -> bool:
        nonlocal writes
        after = writes == at
        writes += call.writes and call.table in ("Users", MAPPING_TABLE)
        return writes == at if before else after

    with killed(project, when=is_reached):
        rekey("erase", *named, *WHY)
    assert len(tombstones(project)) == max(0, at - (2 if before else 1))
    ends_as_it_should(rekey, named)


@pytest.mark.parametrize("every", others_in_soak([3, 9], kept=[9]))
def test_cut_off_before_any_effect_the_command_resumes(tmp_path: Path, lives: Lives, every: int) -> None:
    """Also between what a session does around it: the lease, the journal, the clients, the record."""
    at, effects = 1, 0
    while effects >= at - every:
        rekey = lives.completed(USERS_SCRIPT, tmp_path / str(at))
        named = by_new(rekey, subject(rekey))
        with killed(rekey.project, at) as kill:
            rekey("erase", *named, *WHY)
        effects = kill.calls
        ends_as_it_should(rekey, named)
        at += every
    assert at > 20


def ends_as_it_should(rekey: Commands, named: tuple[str, ...]) -> None:
    """Run the same command again; the subject is erased, and every erasure that was begun is ended."""
    rekey("erase", *named, *WHY)
    assert len(tombstones(rekey.project)) == 2
    assert len(rekey.project.rows("Users")) == 11
    events = erasures(rekey.project)
    ended = {one.details["begun"] for one in events if one.event == "erasure-ended"}
    assert ended == {one.seq for one in events if one.event == "erasure-begun"}
    assert sum(one.details.get("forward_rows", 0) for one in events) == 1


def test_what_was_cut_off_is_ended_by_the_next_erasure_of_anybody(users: Commands) -> None:
    project, row = users.project, subject(users)

    def replaces_forward(call: Call) -> bool:
        return call.action == "replace" and any(".f." in one.row["PartitionKey"] for one in call.operations)

    with killed(project, when=replaces_forward):
        users("erase", *by_old(row), *WHY)
    assert len(tombstones(project, "f.")) == 0 and len(tombstones(project, "r.")) == 1
    told = users("status").out
    assert "ATTENTION" in told and "an erasure that was begun on" in told
    said = users("erase", "--old", "part1", "somebody01@mail.example", *WHY)
    assert "cut off is done now" in said.err
    assert len(tombstones(project)) == 4
    assert "ATTENTION" not in users("status").out


def test_status_names_the_command_that_ends_what_was_cut_off(users: Commands) -> None:
    project, row = users.project, subject(users)
    with killed(project, when=replaces_mapping):
        users("erase", *by_old(row), *WHY)
    command = users("status", "--json").json["migrations"][0]["next"]["command"]
    users(*shlex.split(command)[1:])
    assert len(tombstones(project)) == 2


def test_an_erasure_of_what_was_erased_before_is_told_when_it_is_cut_off(users: Commands) -> None:
    project, named = users.project, by_id(users, subject(users))
    users("erase", *named, *WHY)
    with killed(project, when=lambda _: [one.event for one in erasures(project)].count("erasure-begun") == 2):
        users("erase", *named, *WHY)
    told = users("status", "--json").json["migrations"][0]
    assert "an erasure that was begun on" in str(told)
    users(*shlex.split(told["next"]["command"])[1:])
    assert "ATTENTION" not in users("status").out
