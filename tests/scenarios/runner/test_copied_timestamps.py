"""Rollback where the target holds copies of the source's Timestamp: they follow the source again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

import pytest

from rekey.model import Row, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol import lease
from rekey.protocol.rules import View
from rekey.runner import commands
from rekey.runner.run import Options
from rekey.tables.base import Operation, Verb
from tests.worlds.company import company_at
from tests.worlds.kills import killed
from tests.worlds.projects import Project, applied
from tests.worlds.small import user

SCRIPT = '''\
"""Users under new keys, with the moment of their last write; an index by name has it, too."""
from rekey import Index, Migration, Target, keys, props

migration = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.opaque("RowKey", domain="user", secret="users"),
        properties=[props.copy("RowKey", to="Email"), props.copy("Timestamp", to="SeenAt")],
    ),
    indexes=[
        Index("ByName", partition_key=keys.prop("Nm"), row_key=keys.prop("RowKey"),
              properties=[props.copy("Timestamp", to="SeenAt")]),
    ],
    capture="delta",
)
'''
ID = "0001_users"
ROWS = [user(f"user-{number}") for number in range(6)]
LATER = {"SeenAt": "2024-02-03T04:05:06.0000000Z", "SeenAt@odata.type": "Edm.DateTime"}


def assert_stamped(project: Project) -> None:
    """Every row of both targets holds the Timestamp of its source row."""
    stamps = {row["RowKey"]: row["Timestamp"] for row in project.rows("Users")}
    seen = {row["Email"]: row["SeenAt"] for row in project.rows("UsersV2")}
    assert seen == stamps
    assert {row["RowKey"]: row["SeenAt"] for row in project.rows("ByName")} == stamps


def roll_back(project: Project) -> None:
    with project.session(Options(writers_stopped=True)) as session:
        commands.rollback(session, ID, to=ControlPhase.DUAL_WRITE, drop=None)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Cut over; of three rows the application has written the copied moment since, of one of them more."""
    project = applied(tmp_path, SCRIPT, ROWS, Phase.CUTOVER)
    project.clock.advance(60)
    table = project.tables.table("UsersV2")
    for number, row in enumerate(project.rows("UsersV2")[:3]):
        written: Row = {**content_of(row), **LATER} | ({"Level": 3} if number == 0 else {})
        asyncio.run(table.upsert(written))
    return project


def test_a_row_that_differs_in_the_copied_moment_alone_does_not_stop_a_rollback(project: Project) -> None:
    before = {key_of(row): row["Timestamp"] for row in project.rows("Users")}
    roll_back(project)
    rewritten = [row for row in project.rows("Users") if row["Timestamp"] != before[key_of(row)]]
    assert [row["Level"] for row in rewritten] == [3]
    assert_stamped(project)


@pytest.mark.parametrize("at", range(3, 9))
def test_a_rollback_goes_on_after_it_was_killed_between_source_and_target(project: Project, at: int) -> None:
    with (
        mock.patch.object(lease, "_PROCESS", "killed"),
        killed(project, at, lambda call: call.writes) as kill,
    ):
        roll_back(project)
    assert kill.happened
    if asyncio.run(phase(project)) is not ControlPhase.DUAL_WRITE:
        roll_back(project)
    assert_stamped(project)


async def phase(project: Project) -> ControlPhase | None:
    control = await project.store(ID).read()
    return None if control is None else control.phase


def test_after_a_rollback_under_writes_a_verification_finds_nothing(tmp_path: Path) -> None:
    with company_at(tmp_path, SCRIPT, ROWS) as company:
        new = company.client(View.NEW)
        old = company.client(View.OLD)
        assert not company.verify().findings
        company.apply(Phase.CUTOVER)
        company.live(60)
        for row in company.project.rows("UsersV2")[:3]:
            changed: Row = {**content_of(row), "Level": 4}
            company.do(new.write(Operation(Verb.INSERT_OR_REPLACE, changed)))
        company.do(old.write(Operation(Verb.MERGE, {**ROWS[5], "Level": 5}, "*")))
        company.rollback()
        assert not company.verify().findings
        assert_stamped(company.project)
