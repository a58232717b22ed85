"""What is late does not come back: requests that land long after they were sent, processes that stand still,
clocks that are wrong. Each on tables in memory, as one life that once lost or revived a row."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest

from rekey.core.clock import TICKS_PER_SECOND, Clock
from rekey.core.concurrency import cancel
from rekey.errors import GateClosed, ServiceError
from rekey.mapping.rows import MAPPING_TABLE
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol import lease
from rekey.protocol.registry import Registry, refused_at
from rekey.protocol.rules import View
from rekey.runner import commands
from rekey.runner.run import OPEN_S, Options
from rekey.tables.base import SIGNED_S, Operation
from rekey.tables.faults import Call, Fault, FaultKind, Planned, PlannedFaults
from tests.company import Client, Company, application, company
from tests.dualwriting import delete, upsert
from tests.projects import USERS_SCRIPT, Project
from tests.worlds import Killed, contents, user

MARGIN_S = 60
OVER_S = 51
"""After which a client that gives no sign is given up: lease, longest operation, 5 s and a second."""
FIRST = key_of(user("user000@example.com"))
STOPPED = Options(writers_stopped=True)
FIVE_MINUTES = 300


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Company]:
    made = company(tmp_path, USERS_SCRIPT, [user(f"user{number:03}@example.com") for number in range(20)])
    yield made
    made.close()


def source(ours: Company) -> dict[EntityKey, Row]:
    return contents(ours.project.rows("Users"))


def half_write(ours: Company, key: EntityKey, name: str) -> None:
    """Do what a client does that dies between the authority and the replicas, and let its time pass."""

    async def work() -> None:
        journal = await ours.project.journal(ours.script_id)
        await journal.begin("0dead", 2, "source", [key])
        await ours.project.tables.table("Users").insert({**user(key.row, key.partition), "Nm": name})

    ours.do(work())
    ours.live(36)


# --- what the runner writes to replicas -------------------------------------------------------------------


def test_an_insert_of_the_sweeper_that_lands_after_a_later_delete_is_taken_back(users: Company) -> None:
    """Its first attempt was left open and repeated with success: the row may come back when it lands."""
    users.client()
    users.apply()
    late = key_of(user("late@example.com"))
    half_write(users, late, "late")
    lost = Planned(Fault(FaultKind.LOST_REQUEST), "insert", "UsersV2")
    users.project.tables.faults = PlannedFaults(lost)
    users.apply()
    assert lost.seen
    [sent] = [row for row in users.project.rows("UsersV2") if row["ContactEmail"] == late.row]
    users.do(users.clients[0].write(delete(late)))
    users.do(users.project.tables.table("UsersV2").insert(content_of(sent)))
    users.live(MARGIN_S + 1)
    users.apply()
    users.assert_in_step()
    assert users.intents == []


def test_a_repair_that_is_cut_off_leaves_an_intent_for_what_it_had_sent(users: Company) -> None:
    users.client()
    users.apply()
    gone = users.project.rows("UsersV2")[0]
    users.do(users.project.tables.table("UsersV2").delete(key_of(gone)))
    sent: list[Operation] = []

    async def gate(call: Call) -> None:
        await asyncio.sleep(0)
        if not application.get() and call.table == "UsersV2" and call.writes:
            sent.extend(call.operations)
        if sent and not application.get():
            raise Killed

    async def calm(_call: Call) -> None:
        await asyncio.sleep(0)

    accounts = users.project.tables, users.project.restricted
    for account in accounts:
        account.gate = gate
    with suppress(Killed), mock.patch.object(lease, "_PROCESS", "killed"):
        users.verify(repair=True)
    for account in accounts:
        account.gate = calm
    users.do(users.clients[0].write(delete(key_of(user(gone["ContactEmail"])))))
    users.do(users.project.tables.table("UsersV2").insert(sent[0].row))
    users.live(OPEN_S + MARGIN_S)
    users.apply(Phase.CUTOVER)
    assert gone["ContactEmail"] not in {row["ContactEmail"] for row in users.project.rows("UsersV2")}
    users.assert_in_step()


# --- a client that stands still --------------------------------------------------------------------------


class Standing:
    """A write of a client that stands still between its permit and the network."""

    def __init__(self, ours: Company, client: Client, *operations: Operation) -> None:
        self.ours, self.client = ours, client
        self.goes_on = asyncio.Event()
        self.reached = False

        async def gate(call: Call) -> None:
            await asyncio.sleep(0)
            if application.get() == client.name and call.writes and call.table == "Users":
                self.reached = True
                await self.goes_on.wait()

        ours.project.tables.gate = gate

        async def begin() -> asyncio.Task[list[str | None]]:
            writing = asyncio.ensure_future(client.write(*operations))
            while not self.reached:
                await asyncio.sleep(0)
            await cancel(client.lease._tasks.values())
            client.lease._tasks.clear()
            return writing

        # No timer of it fires while it stands still.
        with mock.patch("asyncio.timeout_at", lambda _when: asyncio.timeout(None)):
            self.writing = ours.do(begin())

    def go_on(self) -> None:
        """Let it go on: the request goes out as it was signed."""

        async def end() -> None:
            self.goes_on.set()
            await asyncio.wait([self.writing])

        self.ours.do(end())


def test_a_write_that_lands_in_the_old_authority_does_not_become_the_truth(users: Company) -> None:
    """It was about to be sent when its process was stopped; meanwhile it was given up and all cut over."""
    users.apply()
    stopped = users.client(name="stopped")
    other = users.client(name="other")
    users.do(stopped.write(upsert({**user(FIRST.row), "Nm": "before"})))
    held = Standing(users, stopped, upsert({**user(FIRST.row), "Nm": "stray"}))
    users.live(OVER_S)
    users.verify()
    users.apply(Phase.CUTOVER)
    users.do(other.write(upsert({**user(FIRST.row), "Nm": "acknowledged"})))
    held.go_on()
    with pytest.raises(ServiceError, match="may have been applied"):
        held.writing.result()
    users.live(OPEN_S + 6)
    users.rollback()
    assert source(users)[FIRST]["Nm"] == "acknowledged"
    users.assert_in_step()


def test_a_write_of_a_client_that_was_killed_after_all_does_not_become_the_truth(users: Company) -> None:
    """Its request reached the service, and nobody is left who could say so: its intent was kept for that."""
    users.apply()
    stopped = users.client(name="stopped")
    other = users.client(name="other")
    held = Standing(users, stopped, upsert({**user(FIRST.row), "Nm": "stray"}))
    users.live(OVER_S)
    users.verify()
    users.apply(Phase.CUTOVER)
    users.do(other.write(upsert({**user(FIRST.row), "Nm": "acknowledged"})))
    users.do(users.project.tables.table("Users").upsert({**user(FIRST.row), "Nm": "stray"}))
    held.writing.cancel()
    users.do(stopped.die())
    users.rollback()
    assert source(users)[FIRST]["Nm"] == "acknowledged"
    users.assert_in_step()


def test_an_intent_is_kept_until_the_service_refuses_what_its_client_had_signed(users: Company) -> None:
    users.apply()
    users.client()
    stopped = users.client(name="stopped")
    held = Standing(users, stopped, upsert({**user(FIRST.row), "Nm": "stray"}))
    users.live(OVER_S)
    users.apply()
    [kept] = users.intents
    assert kept["Settled"]
    row = next(
        one
        for one in users.do(Registry(users.project.restricted, users.script_id).list())
        if one.name == "stopped"
    )
    assert refused_at(row) - row.beat_at == round((15 + 30 + 5 + SIGNED_S) * TICKS_PER_SECOND)
    users.live(SIGNED_S)
    users.apply()
    assert users.intents == []
    held.writing.cancel()
    stopped.dead = True


def test_no_way_back_is_gone_with_rows_that_are_known_to_differ(users: Company) -> None:
    """It would make the truth of what only the source has, with exit code 0."""
    users.client()
    users.apply(Phase.CUTOVER)
    users.do(users.project.tables.table("Users").upsert({**user(FIRST.row), "Nm": "stray"}))
    assert users.verify().findings
    with pytest.raises(GateClosed, match="found 1 rows that differ"):
        users.rollback()
    assert users.phase is ControlPhase.CUTOVER
    users.client(View.NEW)
    users.do(users.clients.pop(0).close())
    with pytest.raises(GateClosed, match="found 1 rows that differ"):
        users.apply(Phase.COMPLETE)
    users.verify(repair=True)
    assert not users.verify().findings
    users.rollback()
    assert source(users)[FIRST]["Nm"] != "stray"


def test_a_client_given_up_as_dual_writes_begin_may_be_heard_of_and_is_waited_for(users: Company) -> None:
    """Before them it wrote without an intent: only a verification that begins later finds what it sent."""
    stopped = users.client(name="stopped")
    users.client()
    held = Standing(users, stopped, upsert({**user(FIRST.row), "Nm": "stray"}))
    users.live(OVER_S)
    users.apply()
    with pytest.raises(GateClosed, match="a client was given up when dual writes began"):
        users.apply(Phase.CUTOVER)
    users.do(users.project.tables.table("Users").upsert({**user(FIRST.row), "Nm": "stray"}))
    users.live(SIGNED_S)
    assert users.verify(repair=True).findings
    assert not users.verify().findings
    users.apply(Phase.CUTOVER)
    users.assert_in_step()
    held.writing.cancel()
    stopped.dead = True


# --- capture "delta", and taking back ---------------------------------------------------------------------


class Delta:
    """A migration of capture "delta" whose runner is killed when it first sends a batch to a table."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder)
        self.script_id = self.project.script(USERS_SCRIPT)
        rows = [user(f"user{number:03}@example.com") for number in range(20)]
        asyncio.run(self.project.fill("Users", rows))

    def killed_at_first_batch_to(self, table: str) -> Call:
        """Kill it there; return what it had sent."""
        sent: list[Call] = []

        async def gate(call: Call) -> None:
            if not sent and call.action == "transact" and call.table == table:
                sent.append(call)
            if sent:
                raise Killed

        self._gates(gate)
        with suppress(Killed), mock.patch.object(lease, "_PROCESS", "killed"):
            self.apply()
        return sent[0]

    def lands_after(self, seconds: float, service: str, call: Call) -> None:
        """Let what was sent take effect so many seconds from now, at whatever is going on then."""
        due = self.project.clock.ticks() + round(seconds * TICKS_PER_SECOND)
        account = getattr(self.project, service)
        landed = False

        async def gate(_call: Call) -> None:
            nonlocal landed
            if not landed and self.project.clock.ticks() >= due:
                landed = True
                with suppress(ServiceError):
                    await account.table(call.table)._run(call.action, call.operations)

        self._gates(gate)

    def apply(self, to: Phase | None = None, options: Options = STOPPED) -> None:
        with self.project.session(options) as session:
            commands.apply(session, self.script_id, to=to)

    def rollback(self) -> None:
        with self.project.session(Options(writers_stopped=True, drop_targets=True)) as session:
            commands.rollback(session, self.script_id, to=ControlPhase.SOURCE, drop=True)

    def _gates(self, gate: Callable[[Call], Awaitable[None]]) -> None:
        self.project.tables.gate = self.project.restricted.gate = gate


def test_what_a_killed_copy_had_sent_lands_before_the_last_pass_of_a_cutover(tmp_path: Path) -> None:
    delta = Delta(tmp_path)
    sent = delta.killed_at_first_batch_to("UsersV2")
    delta.lands_after(MARGIN_S - 1, "tables", sent)
    late = next(
        row for row in delta.project.rows("Users") if row["RowKey"] == sent.operations[0].row["ContactEmail"]
    )
    asyncio.run(delta.project.tables.table("Users").delete(key_of(late)))
    delta.apply(Phase.CUTOVER)
    delta.project.clock.advance(MARGIN_S)
    asyncio.run(delta.project.tables.server_time())
    assert late["RowKey"] not in {row["ContactEmail"] for row in delta.project.rows("UsersV2")}


def test_a_mapping_batch_that_lands_after_all_was_dropped_leaves_nothing(tmp_path: Path) -> None:
    delta = Delta(tmp_path)
    sent = delta.killed_at_first_batch_to(MAPPING_TABLE)
    delta.lands_after(MARGIN_S - 1, "restricted", sent)
    delta.rollback()
    delta.project.clock.advance(MARGIN_S)
    asyncio.run(delta.project.restricted.server_time())
    assert delta.project.restricted.dump(MAPPING_TABLE) == []
    delta.apply()
    assert len(delta.project.rows("UsersV2")) == 20


# --- wrong clocks -----------------------------------------------------------------------------------------


class Wrong:
    """A machine's clock that somebody has set."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self.rising, self.sleep = clock.rising, clock.sleep

    def ticks(self) -> int:
        return self._clock.ticks() + round(self._seconds * TICKS_PER_SECOND)


@pytest.mark.parametrize("before", [-FIVE_MINUTES, 0, FIVE_MINUTES])
@pytest.mark.parametrize("after", [-FIVE_MINUTES, 0, FIVE_MINUTES])
def test_what_was_verified_since_a_way_back_is_told_by_its_place_not_by_a_clock(
    users: Company, before: float, after: float
) -> None:
    users.client()
    users.apply(Phase.CUTOVER)
    users.project.machine = Wrong(users.project.clock, before)
    users.rollback()
    users.project.machine = Wrong(users.project.clock, after)
    with pytest.raises(GateClosed, match="nothing has been verified in full since the way back"):
        users.apply(Phase.CUTOVER)
    assert not users.verify().findings
    users.apply(Phase.CUTOVER)
    assert users.phase is ControlPhase.CUTOVER


# --- the end ----------------------------------------------------------------------------------------------


def test_complete_ends_with_an_intent_that_the_source_can_no_longer_express(users: Company) -> None:
    users.client()
    users.apply(Phase.CUTOVER)
    users.do(users.clients.pop().close())
    users.client(View.NEW)
    row = users.project.rows("UsersV2")[0]

    async def left_open() -> None:
        journal = await users.project.journal(users.script_id)
        key = key_of(user(row["ContactEmail"]))
        await journal.begin("0dead", 5, "source", [key])
        stranger = {**content_of(row), "ContactEmail": "somebody.else@example.com"}
        await users.project.tables.table("UsersV2").replace(stranger)

    users.do(left_open())
    users.apply(Phase.COMPLETE)
    assert users.phase is ControlPhase.COMPLETE
    assert users.intents == []
