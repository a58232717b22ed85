"""What the backfill sent and never heard of may arrive late: the sweep waits until nothing can any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest

from rekey.core.clock import TICKS_PER_SECOND
from rekey.model import key_of
from rekey.protocol import lease
from rekey.tables.base import Operation
from tests.fakes.faults import Call, Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.memory import open_gate
from tests.worlds.company import Company, application, as_application, company
from tests.worlds.dual_write import delete
from tests.worlds.projects import USERS_SCRIPT
from tests.worlds.small import Killed, user

MARGIN_S = 60
"""`[gates] margin`, as it is when nobody says otherwise."""


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Company]:
    with company(
        tmp_path, USERS_SCRIPT, [user(f"user{number:03}@example.com") for number in range(20)]
    ) as made:
        yield made


def seconds(ours: Company) -> float:
    """The time by the company's clock."""
    return ours.project.clock.ticks() / TICKS_PER_SECOND


def killed_at_its_first_copy(ours: Company) -> Operation:
    """Kill the runner when it is about to send the first rows; return one of them, which is on its way."""
    sent: list[Operation] = []

    async def gate(call: Call) -> None:
        await asyncio.sleep(0)
        if application.get():
            return
        if not sent and call.writes and call.table == "UsersV2":
            sent.extend(call.operations)
        if sent:
            raise Killed  # and it does nothing more: its lease stays

    ours.project.tables.gate = ours.project.restricted.gate = gate
    with suppress(Killed), mock.patch.object(lease, "_PROCESS", "killed"):
        ours.apply()
    ours.project.tables.gate = ours.project.restricted.gate = open_gate
    return sent[0]


def test_a_delayed_copy_does_not_bring_back_a_deleted_row(users: Company) -> None:
    late = killed_at_its_first_copy(users)
    client = users.client()
    old = next(row for row in users.project.rows("Users") if key_of(users.mapper.map(row)[0].row) == late.key)

    async def arrive() -> None:
        with as_application("the network"):
            await users.project.clock.sleep(MARGIN_S - 1)
            await users.project.tables.table("UsersV2").insert(late.row)

    async def begin() -> asyncio.Task[None]:
        await client.write(delete(key_of(old)))
        return asyncio.ensure_future(arrive())

    arrival = users.do(begin())
    users.apply()
    users.live(MARGIN_S)
    assert arrival.done()
    arrival.result()
    users.assert_in_step()
    assert late.key not in {key_of(row) for row in users.project.rows("UsersV2")}


def test_a_copy_that_was_not_answered_is_waited_for_also_when_its_repetition_was(users: Company) -> None:
    lost = Planned(Fault(FaultKind.LOST_ANSWER), "transact", "UsersV2")
    users.project.tables.faults = PlannedFaults(lost)
    began = seconds(users)
    users.apply()
    assert lost.seen
    assert MARGIN_S <= seconds(users) - began < MARGIN_S + 30


def test_where_every_copy_was_answered_nothing_is_waited_for(users: Company) -> None:
    began = seconds(users)
    users.apply()
    assert seconds(users) - began < MARGIN_S
