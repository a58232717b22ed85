"""What is late does not come back: requests that land long after they were sent, processes that stand still,
clocks that are wrong. Each on tables in memory, as one life that once lost or revived a row.

Soak: 7 of 9 pairs of wrong clocks.
Reason, and what `make test` covers: ahead then behind, and behind then ahead.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from rekey.client.parts import ClientParts
from rekey.client.reading import ClientFacts
from rekey.client.sdk.core import ClientCore
from rekey.core.clock import TICKS_PER_SECOND, Clock
from rekey.core.concurrency import cancel
from rekey.core.processes import boot_id
from rekey.errors import Ambiguous, GateClosed, Interrupted, Moved, ServiceError
from rekey.mapping.rows import MAPPING_TABLE
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol import lease
from rekey.protocol.control import ControlStore
from rekey.protocol.journal import JOURNAL_TABLE
from rekey.protocol.opening import OpenMigration, Prepared
from rekey.protocol.registry import Registry, is_current, refused_at
from rekey.protocol.rules import View
from rekey.runner import commands
from rekey.runner.clients import RUNNER
from rekey.runner.run import OPEN_S, WRITING_S, Options, StopFlag
from rekey.state.store import State
from rekey.tables.base import SIGNED_S, Operation, Verb
from tests.fakes.faults import Call, Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.memory import open_gate
from tests.simulation.dual_people import options_for
from tests.soaking import others_in_soak
from tests.worlds.company import QUICK, Client, Company, application, as_application, company
from tests.worlds.dual_write import delete, upsert
from tests.worlds.projects import USERS_SCRIPT, Project
from tests.worlds.small import Killed, contents, user

MARGIN_S = 60
OVER_S = 51
"""After which a client that gives no sign is given up: lease, longest operation, 5 s and a second."""
FIRST = key_of(user("user000@example.com"))
STRAY = {**user(FIRST.row), "Nm": "stray"}
STOPPED = Options(writers_stopped=True)
FIVE_MINUTES = 300
DELETED_S = 45
"""After which a deleted table's name can be used again."""
DAY = 86_400


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Company]:
    with company(
        tmp_path, USERS_SCRIPT, [user(f"user{number:03}@example.com") for number in range(20)]
    ) as made:
        yield made


def source(ours: Company) -> dict[EntityKey, Row]:
    return contents(ours.project.rows("Users"))


async def leave_intent(ours: Company, key: EntityKey, client_id: str = "0dead", epoch: int = 2) -> None:
    journal = await ours.project.journal(ours.script_id)
    await journal.begin(client_id, epoch, "source", [key])


# --- what the runner writes to replicas -------------------------------------------------------------------


def test_a_delayed_insert_of_the_sweeper_is_undone_after_a_delete(users: Company) -> None:
    """Its first attempt was left open and repeated with success: the row may come back when it lands."""
    users.client()
    users.apply()
    late = key_of(user("late@example.com"))
    users.do(leave_intent(users, late))
    users.do(users.project.tables.table("Users").insert({**user(late.row, late.partition), "Nm": "late"}))
    users.live(36)
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


def test_an_interrupted_repair_leaves_an_intent_for_what_it_sent(users: Company) -> None:
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

    accounts = users.project.tables, users.project.restricted
    for account in accounts:
        account.gate = gate
    with suppress(Killed), mock.patch.object(lease, "_PROCESS", "killed"):
        users.verify(repair=True)
    for account in accounts:
        account.gate = open_gate
    users.do(users.clients[0].write(delete(key_of(user(gone["ContactEmail"])))))
    users.do(users.project.tables.table("UsersV2").insert(sent[0].row))
    users.live(OPEN_S + MARGIN_S)
    with pytest.raises(GateClosed):
        users.apply(Phase.CUTOVER)
    assert not users.verify().findings, "what the repair had begun is settled, and no row differs"
    users.apply(Phase.CUTOVER)
    assert gone["ContactEmail"] not in {row["ContactEmail"] for row in users.project.rows("UsersV2")}
    users.assert_in_step()


def test_a_write_whose_announcement_expired_is_not_sent(users: Company) -> None:
    """The runner stood still after it had announced a key."""
    users.client()
    users.apply()
    gone = users.project.rows("UsersV2")[0]
    users.do(users.project.tables.table("UsersV2").delete(key_of(gone)))
    still = False

    async def gate(call: Call) -> None:
        nonlocal still
        await asyncio.sleep(0)
        if not application.get() and not still and call.table == JOURNAL_TABLE and call.writes:
            still = True
            users.project.clock.advance(WRITING_S + 1)

    users.project.restricted.gate = gate
    with pytest.raises(ServiceError, match="could not be written in time"):
        users.verify(repair=True)
    assert len(users.project.rows("UsersV2")) == 19
    users.verify(repair=True)
    assert len(users.project.rows("UsersV2")) == 20


def killed_elsewhere(ours: Company) -> None:
    """Let a runner of another machine be killed in the middle of its work, and its lease end."""
    with mock.patch.object(lease, "boot_id", lambda: "another"), ours.killing_the_runner(8):
        ours.apply()
    ours.live(lease.DURATION_S + lease.SAFETY_S + 1)


@pytest.mark.parametrize("by", ["the runner", "a client that went on", "a client that ended"])
def test_intents_are_kept_while_an_earlier_runner_may_still_send(users: Company, by: str) -> None:
    """Whatever it was about to write for them may still be sent, until the service refuses what it signed."""
    client = users.client()
    users.apply()
    names = {"the runner": RUNNER, "a client that went on": client.lease.client_id}
    users.do(leave_intent(users, FIRST, names.get(by, "0dead")))
    killed_elsewhere(users)
    users.apply()
    [kept] = users.intents
    assert kept["Settled"]
    users.live(SIGNED_S + MARGIN_S)
    users.apply()
    assert users.intents == []


def test_an_intent_of_a_live_client_is_not_kept(users: Company) -> None:
    """It beats, so it does not stand still with something in its hands."""
    client = users.client()
    users.apply()
    users.do(leave_intent(users, FIRST, client.lease.client_id))
    users.live(2 * OVER_S)
    users.apply()
    assert users.intents == []


# --- a client that stands still --------------------------------------------------------------------------


def stray(ours: Company) -> None:
    """Change a row of the source past the clients."""
    ours.do(ours.project.tables.table("Users").upsert(STRAY))


class Standing:
    """A write of a client that stands still between its permit and the network."""

    def __init__(self, ours: Company, client: Client | OfTheSdk, *operations: Operation) -> None:
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
        ours.held.append(self.writing)

    def go_on(self) -> None:
        """Let it go on: the request goes out as it was signed."""

        async def end() -> None:
            self.goes_on.set()
            await asyncio.wait([self.writing])

        self.ours.do(end())


def test_a_delayed_write_to_the_old_authority_does_not_win(users: Company) -> None:
    """It was about to be sent when its process was stopped; meanwhile it was given up and all cut over."""
    users.apply()
    stopped = users.client(name="stopped")
    other = users.client(name="other")
    users.do(stopped.write(upsert({**user(FIRST.row), "Nm": "before"})))
    held = Standing(users, stopped, upsert(STRAY))
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


def test_a_write_answered_late_is_announced_again(users: Company) -> None:
    """Nothing has moved meanwhile, so it is done; but its intent may have been settled before it landed."""
    users.client()
    users.apply()
    stopped = users.client(name="stopped")
    held = Standing(users, stopped, upsert({**user(FIRST.row), "Nm": "late"}))
    users.live(OVER_S)
    users.apply()
    assert [row.get("Settled") for row in users.intents] == [True]
    held.go_on()
    assert held.writing.exception() is None
    assert [row.get("Settled") for row in users.intents].count(None) == 1
    users.live(OVER_S)
    users.apply()
    assert source(users)[FIRST]["Nm"] == "late"
    users.assert_in_step()


def test_a_write_answered_after_its_migration_is_ambiguous(users: Company) -> None:
    """Where a client does not know any more which table is the authority, nothing is done."""
    users.apply()
    stopped = users.client(name="stopped")
    held = Standing(users, stopped, upsert({**user(FIRST.row), "Nm": "late"}))
    users.live(OVER_S)
    users.rollback(ControlPhase.SOURCE, drop=True)
    held.go_on()
    with pytest.raises(ServiceError, match="may have been applied"):
        held.writing.result()


def test_a_delayed_write_of_a_killed_client_does_not_win(users: Company) -> None:
    """Its request reached the service, and nobody is left who could say so: its intent was kept for that."""
    users.apply()
    stopped = users.client(name="stopped")
    other = users.client(name="other")
    held = Standing(users, stopped, upsert(STRAY))
    users.live(OVER_S)
    users.verify()
    users.apply(Phase.CUTOVER)
    users.do(other.write(upsert({**user(FIRST.row), "Nm": "acknowledged"})))
    stray(users)
    held.writing.cancel()
    users.do(stopped.die())
    users.rollback()
    assert source(users)[FIRST]["Nm"] == "acknowledged"
    users.assert_in_step()


def test_an_intent_is_kept_until_signed_requests_expire(users: Company) -> None:
    users.apply()
    users.client()
    stopped = users.client(name="stopped")
    Standing(users, stopped, upsert(STRAY))
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


def test_rollback_and_complete_refuse_known_differences(users: Company) -> None:
    """It would make the truth of what only the source has, with exit code 0."""
    users.client()
    users.apply(Phase.CUTOVER)
    stray(users)
    assert users.verify().findings
    with pytest.raises(GateClosed, match=r"found 1 rows? that differ"):
        users.rollback()
    assert users.phase is ControlPhase.CUTOVER
    users.client(View.NEW)
    users.do(users.clients.pop(0).close())
    with pytest.raises(GateClosed, match=r"found 1 rows? that differ"):
        users.apply(Phase.COMPLETE)
    users.verify(repair=True)
    assert not users.verify().findings
    users.rollback()
    assert source(users)[FIRST]["Nm"] != "stray"


def test_rollback_compares_all_while_a_client_may_still_send(users: Company) -> None:
    """Nobody has verified since its last request landed."""
    users.client()
    users.apply()
    users.do(users.client(name="killed").die())
    users.live(OVER_S)
    assert not users.verify().findings
    users.apply(Phase.CUTOVER)
    stray(users)
    with pytest.raises(GateClosed, match=r"found 1 rows? that differ"):
        users.rollback()
    assert users.phase is ControlPhase.CUTOVER


def test_cutover_refuses_after_a_client_was_given_up_before_dual_writes(users: Company) -> None:
    """Before them it wrote without an intent: only a verification that begins later finds what it sent."""
    stopped = users.client(name="stopped")
    users.client()
    Standing(users, stopped, upsert(STRAY))
    users.live(OVER_S)
    users.apply()
    with pytest.raises(GateClosed, match="a client was given up when dual writes began"):
        users.apply(Phase.CUTOVER)
    stray(users)
    users.live(SIGNED_S)
    assert users.verify(repair=True).findings
    assert not users.verify().findings
    users.apply(Phase.CUTOVER)
    users.assert_in_step()


class OfTheSdk:
    """A client as the SDK's own use it, by the clock of the project."""

    def __init__(self, ours: Company) -> None:
        project, self.name = ours.project, "sdk"
        prepared = Prepared.of(project.config, project.scripts[ours.script_id])
        facts = ClientFacts(
            ours.script_id, prepared.declared.digest, prepared.fingerprints, View.OLD, self.name
        )
        options = options_for(prepared, facts, QUICK, 0.0)
        self.core = ClientCore(options, lambda: project.connect(project.config))
        self.lease = ours.do(self.core.open())
        self.lease.monotonic = project.clock.monotonic

    async def write(self, *operations: Operation) -> list[str | None]:
        with as_application(self.name):
            return await self.core.write(operations)


def held_from_before_the_migration(ours: Company) -> tuple[OfTheSdk, Standing]:
    """Return a client and its write, which began before there was a migration and stands while one begins."""
    ours.client()
    stopped = OfTheSdk(ours)
    held = Standing(ours, stopped, upsert({**user(FIRST.row), "Nm": "late"}))
    ours.live(OVER_S)
    ours.apply()
    return stopped, held


def test_a_delayed_write_from_before_the_migration_is_announced(users: Company) -> None:
    """When it began there was no migration, so it has no intent; it ends when its row is copied."""
    stopped, held = held_from_before_the_migration(users)
    assert users.phase is ControlPhase.DUAL_WRITE
    on_the_clock = partial(ClientParts, sleep=users.project.clock.sleep)
    with mock.patch("rekey.client.sdk.core.ClientParts", on_the_clock):
        held.go_on()
    with pytest.raises(ServiceError, match="may have been applied"):
        held.writing.result()
    assert [row["Client"] for row in users.intents] == [stopped.lease.client_id]
    users.do(stopped.core.close())
    users.live(OVER_S)
    users.apply()
    assert source(users)[FIRST]["Nm"] == "late"
    users.assert_in_step()


def test_an_applied_write_is_not_reported_as_refused(users: Company) -> None:
    """The mapping is sealed with another key. A refusal says that nothing was written, and this was."""
    _, held = held_from_before_the_migration(users)
    moved = mock.AsyncMock(side_effect=Moved("the mapping is sealed with another key"))
    with mock.patch.object(OpenMigration, "mapping", moved):
        held.go_on()
    with pytest.raises(ServiceError, match="may have been applied"):
        held.writing.result()
    assert source(users)[FIRST]["Nm"] == "late"


def test_a_client_that_acknowledged_dual_writes_is_not_waited_for(users: Company) -> None:
    """What it wrote from then on has an intent."""
    slow, killed = users.client(), users.client(name="killed")

    async def acknowledged() -> bool:
        control = await ControlStore(users.project.restricted, users.script_id).read()
        rows = await Registry(users.project.restricted, users.script_id).list()
        row = next(one for one in rows if one.name == "killed")
        following = control is not None and control.phase is ControlPhase.DUAL_WRITE
        return following and is_current(row, control.run_id, control.epoch)

    async def keeps_the_move_waiting() -> None:
        async with slow.lease.operation(writes=True):
            while not await acknowledged() and not users.stopping:
                await users.project.clock.sleep(1)
            await killed.die()
            await users.project.clock.sleep(OVER_S)

    users.apply(Phase.PREPARE)
    users.live(3)
    users.writes(keeps_the_move_waiting())
    users.apply()
    assert killed.dead
    assert not users.verify().findings
    users.apply(Phase.CUTOVER)
    assert users.phase is ControlPhase.CUTOVER


# --- capture "delta", and taking back ---------------------------------------------------------------------


class Delta:
    """A migration of capture "delta" whose runner is killed when it first sends a batch to a table."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder)
        self.script_id = self.project.script(USERS_SCRIPT)
        rows = [user(f"user{number:03}@example.com", f"p{number % 2}") for number in range(20)]
        asyncio.run(self.project.fill("Users", rows))
        self.landed = False

    def first(self, action: str, table: str, then: Callable[[Call], None] = lambda _call: None) -> list[Call]:
        """Do something at the first such call. Returns a list that will hold it."""
        sent: list[Call] = []

        async def gate(call: Call) -> None:
            if not sent and call.action == action and call.table == table:
                sent.append(call)
                then(call)

        self._gates(gate)
        return sent

    def killed_at_first_batch_to(self, table: str) -> Call:
        """Kill it there; return what it had sent."""

        async def gate(call: Call) -> None:
            await note(call)
            if sent:
                raise Killed

        sent = self.first("transact", table)
        note = self.project.tables.gate
        self._gates(gate)
        with suppress(Killed), mock.patch.object(lease, "_PROCESS", "killed"):
            self.apply()
        return sent[0]

    def stopped_with_a_batch_left_open(self, table: str) -> Call:
        """Stop it in order when the answer to its first batch to a table is lost; return that batch."""
        stop = StopFlag()
        sent = self.first("transact", table, lambda _call: stop.request())
        self.project.tables.faults = PlannedFaults(Planned(Fault(FaultKind.LOST_REQUEST), "transact", table))
        with pytest.raises(Interrupted), self.project.session(STOPPED, stop) as session:
            commands.apply(session, self.script_id)
        self.project.tables.last_open = None  # the next process knows nothing of it
        return sent[0]

    def lands_after(self, seconds: float, service: str, call: Call) -> None:
        """Let what was sent take effect so many seconds from now, at whatever is going on then."""
        due = self.project.clock.ticks() + round(seconds * TICKS_PER_SECOND)
        account = getattr(self.project, service)
        sent = False

        async def gate(_call: Call) -> None:
            nonlocal sent
            if not sent and self.project.clock.ticks() >= due:
                sent = True
                with suppress(ServiceError):
                    await account.table(call.table)._run(call.action, call.operations)
                    self.landed = True

        self._gates(gate)

    def pass_time(self, seconds: float, service: str = "tables") -> None:
        self.project.clock.advance(seconds)
        asyncio.run(getattr(self.project, service).server_time())

    def delete_sources_of(self, sent: Call) -> None:
        """Delete the source rows of a batch."""
        late = {operation.row["ContactEmail"] for operation in sent.operations}
        for row in self.project.rows("Users"):
            if row["RowKey"] in late:
                asyncio.run(self.project.tables.table("Users").delete(key_of(row)))

    def assert_half_in_step(self) -> None:
        """Half of the rows are left, in the source and in the target."""
        names = {row["RowKey"] for row in self.project.rows("Users")}
        assert {row["ContactEmail"] for row in self.project.rows("UsersV2")} == names
        assert len(names) == 10

    def apply(self, to: Phase | None = None, options: Options = STOPPED) -> None:
        with self.project.session(options) as session:
            commands.apply(session, self.script_id, to=to)

    def rollback(self) -> None:
        with self.project.session(Options(writers_stopped=True, drop_targets=True)) as session:
            commands.rollback(session, self.script_id, to=ControlPhase.SOURCE, drop=True)

    def _gates(self, gate: Callable[[Call], Awaitable[None]]) -> None:
        self.project.tables.gate = self.project.restricted.gate = gate


@pytest.mark.parametrize(
    ("machine", "over_s", "lands_s"),
    [("this", 0, MARGIN_S - 1), ("another", lease.DURATION_S + lease.SAFETY_S, SIGNED_S)],
)
def test_cutover_awaits_a_killed_copy(tmp_path: Path, machine: str, over_s: float, lands_s: float) -> None:
    """Of a process of another machine nobody knows that it is dead: when its lease is over it may still send
    what it has signed."""
    delta = Delta(tmp_path)
    boot = boot_id() if machine == "this" else machine
    with mock.patch.object(lease, "boot_id", lambda: boot):
        sent = delta.killed_at_first_batch_to("UsersV2")
    delta.project.clock.advance(over_s)
    delta.lands_after(lands_s, "tables", sent)
    # All that it had sent is deleted now, or the service would refuse it as a whole.
    delta.delete_sources_of(sent)
    delta.apply(Phase.CUTOVER)
    delta.pass_time(lands_s)
    delta.assert_half_in_step()
    assert delta.landed, "nobody refused it"


def test_the_next_runner_awaits_an_unknown_outcome(tmp_path: Path) -> None:
    """It gives its lease back, so it has to say so. What it had repeated with success is there, until it is
    swept; then the first attempt can land."""
    delta = Delta(tmp_path)
    sent = delta.stopped_with_a_batch_left_open("UsersV2")
    delta.lands_after(MARGIN_S - 1, "tables", sent)
    delta.delete_sources_of(sent)
    delta.apply(Phase.CUTOVER)
    delta.pass_time(MARGIN_S)
    delta.assert_half_in_step()


def test_cutover_awaits_the_last_passs_unknown_outcome(tmp_path: Path) -> None:
    delta = Delta(tmp_path)
    delta.apply()
    new = user("new@example.com", "p0")
    asyncio.run(delta.project.tables.table("Users").insert(new))
    sent = delta.first("insert", "UsersV2", lambda call: delta.lands_after(MARGIN_S - 1, "tables", call))
    delta.project.tables.faults = PlannedFaults(Planned(Fault(FaultKind.LOST_REQUEST), "insert", "UsersV2"))
    delta.apply(Phase.CUTOVER)
    [made] = [row for row in delta.project.rows("UsersV2") if row["ContactEmail"] == new["RowKey"]]
    asyncio.run(delta.project.tables.table("UsersV2").delete(key_of(made)))
    delta.pass_time(MARGIN_S)
    assert sent
    assert new["RowKey"] not in {row["ContactEmail"] for row in delta.project.rows("UsersV2")}


def test_rollback_awaits_its_unknown_outcome(tmp_path: Path) -> None:
    """A row missing in the source is put back; the first attempt was left open, the second one answered."""
    delta = Delta(tmp_path)
    delta.apply(Phase.CUTOVER)
    source, target = delta.project.tables.table("Users"), delta.project.tables.table("UsersV2")
    [row] = [one for one in delta.project.rows("UsersV2") if one["ContactEmail"] == FIRST.row]
    asyncio.run(target.merge({**content_of(row), "Name": "new"}))
    asyncio.run(source.delete(EntityKey("p0", FIRST.row)))
    sent = delta.first("insert", "Users", lambda call: delta.lands_after(MARGIN_S - 1, "tables", call))
    delta.project.tables.faults = PlannedFaults(Planned(Fault(FaultKind.LOST_REQUEST), "insert", "Users"))
    with delta.project.session(STOPPED) as session:
        commands.rollback(session, delta.script_id, to=None, drop=None)
    asyncio.run(source.delete(EntityKey("p0", FIRST.row)))
    delta.pass_time(MARGIN_S)
    assert sent
    assert FIRST.row not in {one["RowKey"] for one in delta.project.rows("Users")}


def test_a_delayed_mapping_batch_leaves_nothing_after_a_drop(tmp_path: Path) -> None:
    delta = Delta(tmp_path)
    sent = delta.killed_at_first_batch_to(MAPPING_TABLE)
    delta.lands_after(MARGIN_S - 1, "restricted", sent)
    delta.rollback()
    delta.pass_time(MARGIN_S, "restricted")
    assert delta.project.restricted.dump(MAPPING_TABLE) == []
    delta.apply()
    assert len(delta.project.rows("UsersV2")) == 20


@pytest.mark.parametrize("again", [True, False], ids=["taken back again", "applied at once"])
def test_delayed_deletes_of_a_rollback_spare_the_next_run(tmp_path: Path, again: bool) -> None:
    """The next run writes the same mapping rows."""
    delta = Delta(tmp_path)
    delta.apply()
    mapping = delta.project.restricted.dump(MAPPING_TABLE)
    sent = delta.first("transact", MAPPING_TABLE)
    delta.project.restricted.faults = PlannedFaults(
        Planned(Fault(FaultKind.LOST_REQUEST), "transact", MAPPING_TABLE)
    )
    with pytest.raises(Ambiguous):
        delta.rollback()
    assert {one.verb for one in sent[0].operations} == {Verb.DELETE}
    delta.project.restricted.last_open = None  # the next process knows nothing of it
    delta.project.clock.advance(DELETED_S)
    delta.lands_after(MARGIN_S - DELETED_S - 1, "restricted", sent[0])
    if again:
        delta.rollback()
    delta.apply()
    delta.pass_time(MARGIN_S, "restricted")
    assert len(delta.project.restricted.dump(MAPPING_TABLE)) == len(mapping)


# --- wrong clocks -----------------------------------------------------------------------------------------


class Wrong:
    """A machine's clock that somebody has set."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self.monotonic, self.sleep = clock.monotonic, clock.sleep

    def ticks(self) -> int:
        return self._clock.ticks() + round(self._seconds * TICKS_PER_SECOND)


@pytest.mark.parametrize(
    ("before", "after"),
    others_in_soak(
        itertools.product([-FIVE_MINUTES, 0, FIVE_MINUTES], repeat=2),
        kept=[(-FIVE_MINUTES, FIVE_MINUTES), (FIVE_MINUTES, -FIVE_MINUTES)],
    ),
)
def test_verification_order_needs_no_clock(users: Company, before: float, after: float) -> None:
    users.client()
    users.apply(Phase.CUTOVER)
    users.project.machine = Wrong(users.project.clock, before)
    users.rollback()
    users.project.machine = Wrong(users.project.clock, after)
    with pytest.raises(GateClosed, match="nothing has been verified in full since the rollback"):
        users.apply(Phase.CUTOVER)
    assert not users.verify().findings
    users.apply(Phase.CUTOVER)
    assert users.phase is ControlPhase.CUTOVER


def test_the_age_of_a_verification_needs_no_machine_clock(users: Company) -> None:
    users.client()
    users.apply()
    users.do(users.clients.pop().close())
    users.project.clock.advance(2 * DAY)
    users.client()
    users.project.machine = Wrong(users.project.clock, -2 * DAY)
    with pytest.raises(GateClosed, match="which is too old"):
        users.apply(Phase.CUTOVER)


# --- the end ----------------------------------------------------------------------------------------------


def cut_over_for_the_new_view(ours: Company) -> None:
    """Cut over, with an intent for a row that the source cannot express any more."""
    ours.client()
    ours.apply(Phase.CUTOVER)
    ours.do(ours.clients.pop().close())
    ours.client(View.NEW)
    row = ours.project.rows("UsersV2")[0]
    ours.do(leave_intent(ours, key_of(user(row["ContactEmail"])), epoch=5))
    stranger = {**content_of(row), "ContactEmail": "somebody.else@example.com"}
    ours.do(ours.project.tables.table("UsersV2").replace(stranger))


def test_complete_gives_up_an_intent_the_source_cannot_express(users: Company) -> None:
    """It is given up, and that is on record: the row stays as the target has it."""
    cut_over_for_the_new_view(users)
    users.apply(Phase.COMPLETE)
    assert users.phase is ControlPhase.COMPLETE
    assert users.intents == []
    with State.open(users.project.config.state, read_only=True) as state:
        [given_up] = [one for one in state.audit_events() if one.event == "intent-given-up"]
    assert given_up.details["error"] == "RowRefused"
    assert "example.com" not in str(given_up.details)


def test_complete_refuses_an_old_intent_the_source_cannot_express(users: Company) -> None:
    """An intent that was there long enough to be settled is not given up without a word."""
    cut_over_for_the_new_view(users)
    users.live(OVER_S)
    with pytest.raises(GateClosed, match="1 intents of the journal cannot be settled"):
        users.apply(Phase.COMPLETE)
    assert users.phase is ControlPhase.CUTOVER
    assert len(users.intents) == 1
