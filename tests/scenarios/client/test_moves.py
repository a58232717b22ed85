"""The runner and the clients of capture "dual-write" at each move: who is waited for, named, given up.

Soak: 6 of 7 moments of a kill.
Reason, and what `make test` covers: one moment; another in `test_lifecycle.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekey.errors import ConfigurationError, Findings, GateClosed, Refused
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.model import EntityKey, Row, content_of, etag_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.rules import View
from rekey.runner.clients import wait_until_heard
from rekey.runner.commands import Mode
from rekey.runner.phases import cutover
from rekey.runner.run import Options, Run
from tests.fakes.faults import Call
from tests.fakes.memory import Gate, instant_gate
from tests.soaking import others_in_soak
from tests.worlds.company import Client, Company, application, company
from tests.worlds.projects import POSTS_SCRIPT, USERS_SCRIPT
from tests.worlds.small import post, user

STOPPED = Options(writers_stopped=True)
FIRST = EntityKey("p0", "user000@example.com")
LONGEST_S = 30 + 5 + 1
"""After which nothing of a write is under way: the usual longest operation, the margin, and a little."""


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Company]:
    rows = [user(f"user{number:03}@example.com", f"p{number % 3}") for number in range(30)]
    with company(tmp_path, USERS_SCRIPT, rows) as made:
        yield made


def counters(ours: Company, phase: Phase) -> dict[str, int]:
    """What the last run of a phase counted."""
    with ours.session() as session:
        runs = [run for run in session.state.phase_runs(ours.script_id) if run.phase == phase]
        return dict(runs[-1].counters)


def seconds(ours: Company) -> float:
    return ours.project.clock.ticks() / 10_000_000


def place(key: EntityKey) -> Row:
    return {"PartitionKey": key.partition, "RowKey": key.row}


class HangingOperation:
    """An operation that a client never comes to the end of, though it lives."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._operation = client.lease.operation(writes=True)
        client.company.do(self._operation.__aenter__())

    def end(self) -> None:
        self._client.company.do(self._operation.__aexit__(None, None, None))


def half_write(ours: Company, client_id: str, key: EntityKey, name: str) -> None:
    """Do what a client does that dies between the authority and the replicas."""

    async def work() -> None:
        journal = await ours.project.journal(ours.script_id)
        await journal.begin(client_id, 2, "source", [key])
        await ours.project.tables.table("Users").merge(
            {"PartitionKey": key.partition, "RowKey": key.row, "Nm": name}
        )

    ours.do(work())


def at_freeze(ours: Company, act: Gate) -> None:
    """Do something once, with the first call of the runner that sees the freeze."""
    begun = False

    async def gate(call: Call) -> None:
        nonlocal begun
        await asyncio.sleep(0)
        frozen = call.table == "rekeycontrol" and any(
            operation.row.get("Phase") == "freeze" for operation in call.operations
        )
        if frozen and not begun:
            begun = True
            await act(call)

    ours.project.restricted.gate = gate


# --- freezes ------------------------------------------------------------------------------------------------


def test_with_ten_live_clients_a_freeze_takes_less_than_five_seconds(users: Company) -> None:
    for _ in range(10):
        users.client()
    users.apply()
    users.apply(Phase.CUTOVER)
    counted = counters(users, Phase.CUTOVER)
    assert counted["clients"] == 10
    assert 0 < counted["freeze_ms"] <= counted["followed_ms"] < 5000


def test_a_client_that_went_silent_is_waited_for_before_the_freeze_not_in_it(users: Company) -> None:
    users.client()
    silent = users.client(name="silent")
    users.apply()
    began = seconds(users)
    users.do(silent.die())
    users.apply(Phase.CUTOVER)
    assert seconds(users) - began > silent.lease.settings.lease_s + LONGEST_S - 5
    assert counters(users, Phase.CUTOVER)["freeze_ms"] < 5000


def test_a_beat_in_the_freezes_second_is_no_proof(users: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service tells whole seconds: it beats, dies, and the command asks, all within one of them."""
    users.client()
    silent = users.client(name="silent")
    users.apply()

    async def heard(run: Run, control: ControlRow) -> int:
        await users.project.clock.sleep(1.4 - seconds(users) % 1)
        await silent.lease.poll()
        await silent.die()
        await users.project.clock.sleep(0.1)
        return await wait_until_heard(run, control)

    monkeypatch.setattr(cutover, "wait_until_heard", heard)
    users.apply(Phase.CUTOVER)
    assert counters(users, Phase.CUTOVER)["freeze_ms"] < 5000


def test_cutover_goes_on_when_a_client_goes_silent_in_the_freeze(users: Company) -> None:
    users.client()
    silent = users.client(name="silent")
    users.apply()

    async def die(_call: Call) -> None:
        await silent.die()

    at_freeze(users, die)
    users.apply(Phase.CUTOVER)
    assert users.phase is ControlPhase.CUTOVER
    longest = silent.lease.settings.lease_s + LONGEST_S
    assert 30_000 < counters(users, Phase.CUTOVER)["freeze_ms"] <= (longest + 2) * 1000


def test_a_freeze_that_a_client_does_not_acknowledge_is_given_up_and_the_client_named(users: Company) -> None:
    users.client()
    hanging = users.client(name="hanging")
    users.apply()
    hang: list[HangingOperation] = []

    async def begin(_call: Call) -> None:
        operation = hanging.lease.operation(writes=True)
        await operation.__aenter__()
        hang.append(operation)  # type: ignore[arg-type]

    at_freeze(users, begin)
    with pytest.raises(Refused, match="hanging") as refused:
        users.apply(Phase.CUTOVER)
    assert "back in `dual_write`" in refused.value.kept
    assert "app-0" not in refused.value.what
    assert users.phase is ControlPhase.DUAL_WRITE
    users.do(hang[0].__aexit__(None, None, None))  # type: ignore[attr-defined]
    users.apply(Phase.CUTOVER)
    assert users.phase is ControlPhase.CUTOVER


def test_a_freeze_that_cannot_be_drained_is_given_up_with_nothing_lost(users: Company) -> None:
    users.client()
    users.apply()

    async def collide(_call: Call) -> None:
        journal = await users.project.journal(users.script_id)
        await journal.begin("0dead", 2, "source", [EntityKey("p0", "nobody")])
        users.project.restricted.gate = again

    async def again(call: Call) -> None:
        """Somebody who touches the intent whenever the journal is read: it never grows old."""
        await asyncio.sleep(0)
        if call.table == JOURNAL_TABLE and call.action == "page":
            [intent] = users.intents
            token = application.set("somebody")
            users.project.restricted.gate = instant_gate
            await users.project.restricted.table(JOURNAL_TABLE).upsert(content_of(intent))
            users.project.restricted.gate = again
            application.reset(token)

    at_freeze(users, collide)
    with pytest.raises(Refused, match="still holds 1 intents") as refused:
        users.apply(Phase.CUTOVER)
    assert "back in `dual_write`" in refused.value.kept
    assert users.phase is ControlPhase.DUAL_WRITE
    users.project.restricted.gate = instant_gate
    users.apply(Phase.CUTOVER)
    assert users.phase is ControlPhase.CUTOVER
    assert users.intents == []


def test_an_intent_that_cannot_be_settled_closes_the_gate_before_anything_is_frozen(tmp_path: Path) -> None:
    ours = company(tmp_path, POSTS_SCRIPT, [post("one"), post("two")])
    ours.client()
    ours.apply()
    journal = ours.do(ours.project.journal(ours.script_id))
    key = EntityKey("blog", "two")
    ours.do(journal.begin("0dead", 2, "source", [key]))
    ours.do(ours.project.tables.table("Posts").merge({**place(key), "Month": "a/b"}))
    ours.live(LONGEST_S)
    with pytest.raises(GateClosed, match="1 intents of the journal cannot be settled"):
        ours.apply(Phase.CUTOVER)
    assert ours.phase is ControlPhase.DUAL_WRITE
    ours.close()


def test_a_freeze_that_a_killed_runner_left_behind_is_left_first(users: Company) -> None:
    client = users.client()
    users.apply()
    store = ControlStore(users.project.restricted, users.script_id)
    users.do(store.move(ControlPhase.DUAL_WRITE, ControlPhase.FREEZE))
    users.live(3)
    users.apply()
    assert users.phase is ControlPhase.DUAL_WRITE
    users.apply(Phase.CUTOVER)
    users.do(store.move(ControlPhase.CUTOVER, ControlPhase.FREEZE))
    users.apply()
    assert users.phase is ControlPhase.CUTOVER
    assert client.lease.control is not None


# --- moves --------------------------------------------------------------------------------------------------


def test_nothing_is_copied_before_every_client_follows(users: Company) -> None:
    """The control row had moved, the waiting was cut off: the ledger counts the phase, a client is behind."""
    client = users.client(name="slow")
    with users.session() as session:
        session.begin(users.script_id)
        session.ledger.apply(users.script_id, Phase.PREPARE)
    users.live(3)
    hang = HangingOperation(client)
    store = ControlStore(users.project.restricted, users.script_id)
    users.do(store.move(ControlPhase.SOURCE, ControlPhase.DUAL_WRITE))
    with pytest.raises(Refused, match=r"after 120 s 1 client .* slow .* 1 operations in flight"):
        users.apply()
    assert users.project.rows("UsersV2") == []
    hang.end()
    users.apply()
    assert len(users.project.rows("UsersV2")) == 30


def test_a_client_that_hangs_holds_up_the_move_and_is_named(users: Company) -> None:
    client = users.client(name="slow")
    with users.session() as session:
        session.begin(users.script_id)
    users.live(3)
    hang = HangingOperation(client)
    with pytest.raises(Refused, match="slow"):
        users.apply()
    assert users.phase is ControlPhase.DUAL_WRITE, "moved once all were current, then waited for"
    hang.end()
    users.apply()


def test_a_client_of_another_declaration_is_named_before_it_would_begin_to_refuse(users: Company) -> None:
    users.client()
    stale = users.client(name="stale", digest="0" * 64)
    with users.session() as session:
        session.begin(users.script_id)
        session.ledger.apply(users.script_id, Phase.PREPARE)
    users.live(3)
    with pytest.raises(GateClosed, match=r"another declaration .* stale .*digest-moved"):
        users.apply()
    assert users.phase is ControlPhase.SOURCE
    users.do(stale.close())
    users.apply()
    users.client(name="stale", digest="0" * 64)
    users.live(3)
    with pytest.raises(GateClosed, match=r"before `cutover`.*stale"):
        users.apply(Phase.CUTOVER)
    assert users.phase is ControlPhase.DUAL_WRITE


def test_without_any_client_the_operator_says_that_nobody_writes(users: Company) -> None:
    done = users.apply()
    assert any("no client of the application is registered" in ask for ask in done.asks)
    with pytest.raises(GateClosed, match="--writers-stopped"):
        users.apply(Phase.CUTOVER)
    users.apply(Phase.CUTOVER, STOPPED)
    assert users.phase is ControlPhase.CUTOVER


def test_without_clients_the_freeze_finds_later_writes(users: Company) -> None:
    users.apply()
    users.do(users.project.tables.table("Users").merge({**place(FIRST), "Nm": "nobody followed this"}))
    with pytest.raises(Findings, match="under freeze found 1 rows") as found:
        users.apply(Phase.CUTOVER, STOPPED)
    assert "back in `dual_write`" in found.value.kept
    assert users.phase is ControlPhase.DUAL_WRITE
    assert users.verify(repair=True).findings
    assert not users.verify().findings
    users.apply(Phase.CUTOVER, STOPPED)
    users.assert_in_step()


def test_what_was_verified_without_clients_opens_no_gate_for_those_that_came_later(users: Company) -> None:
    users.apply()
    users.do(users.project.tables.table("Users").merge({**place(FIRST), "Nm": "nobody followed this"}))
    users.client()
    with pytest.raises(GateClosed, match="no client of the application was registered"):
        users.apply(Phase.CUTOVER)
    with pytest.raises(Findings, match="under freeze found 1 rows"):
        users.apply(Phase.CUTOVER, STOPPED)
    assert users.verify(repair=True).findings
    assert not users.verify().findings
    users.apply(Phase.CUTOVER)


def test_without_clients_the_way_back_brings_nothing_that_was_not_followed(users: Company) -> None:
    users.apply(Phase.CUTOVER, STOPPED)
    row = users.project.rows("UsersV2")[0]
    users.do(users.project.tables.table("UsersV2").replace({**content_of(row), "Name": "not followed"}))
    with pytest.raises(Findings, match="under freeze found 1 rows"):
        users.rollback()
    assert users.phase is ControlPhase.CUTOVER
    assert users.verify(repair=True).findings
    with pytest.raises(GateClosed, match=r"found 1 rows? that differ"):
        users.rollback()
    assert not users.verify().findings
    users.rollback()
    assert "not followed" in [row["Nm"] for row in users.project.rows("Users")]


# --- intents of the dead ------------------------------------------------------------------------------------


def test_apply_at_the_gate_settles_what_a_dead_client_left_once_it_is_old_enough(users: Company) -> None:
    users.client()
    users.apply()
    half_write(users, "0dead", FIRST, "late")
    assert users.apply().caught_up == 0, "its requests may still be under way"
    users.live(LONGEST_S)
    assert users.apply().caught_up == 1
    assert users.intents == []
    users.assert_in_step()


def test_verification_waits_for_what_the_journal_announces(users: Company) -> None:
    users.client()
    users.apply()
    half_write(users, "0dead", FIRST, "late")
    report = users.verify()
    assert (report.findings, report.differences.transient) == (False, 1)
    users.assert_in_step()
    half_write(users, "0dead", FIRST, "later")
    assert not users.verify(Mode.SAMPLE).findings
    users.assert_in_step()


def test_a_difference_that_nobody_announced_is_found_at_once(users: Company) -> None:
    users.client()
    users.apply()
    users.do(users.project.tables.table("Users").merge({**place(FIRST), "Nm": "x"}))
    began = seconds(users)
    assert users.verify().findings
    assert seconds(users) - began < LONGEST_S
    with pytest.raises(GateClosed, match=r"1 rows? that differ"):
        users.apply(Phase.CUTOVER)


def test_after_cutover_what_a_dead_client_left_goes_back_to_the_source(users: Company) -> None:
    users.client()
    users.apply(Phase.CUTOVER)
    target = users.project.rows("UsersV2")[0]

    async def work() -> None:
        journal = await users.project.journal(users.script_id)
        await journal.begin("0dead", 4, "target", [key_of(target)])
        table = users.project.tables.table("UsersV2")
        await table.replace({**content_of(target), "Name": "new"}, etag=etag_of(target))

    users.do(work())
    users.live(LONGEST_S)
    assert users.apply().caught_up == 1
    emails = {row["RowKey"]: row["Nm"] for row in users.project.rows("Users")}
    assert emails[target["ContactEmail"]] == "new"


def test_repair_after_cutover_changes_only_the_source(users: Company) -> None:
    users.client()
    users.apply(Phase.CUTOVER)
    changed, deleted = users.project.rows("UsersV2")[:2]
    stranger = {"PartitionKey": "p0", "RowKey": "0" * 32, "Name": "nobody knows my old key"}

    async def go_round() -> None:
        table = users.project.tables.table("UsersV2")
        await table.replace({**content_of(changed), "Name": "new"}, etag=etag_of(changed))
        await table.delete(key_of(deleted))
        await table.insert(stranger)

    users.do(go_round())
    before = users.project.rows("UsersV2")
    report = users.verify(repair=True)
    assert dict(report.repair.counts) == {"propagated": 2, "refused": 1}
    assert users.project.rows("UsersV2") == before, "the target is the authority"
    emails = {row["RowKey"]: row["Nm"] for row in users.project.rows("Users")}
    assert emails[changed["ContactEmail"]] == "new"
    assert deleted["ContactEmail"] not in emails


# --- ends ---------------------------------------------------------------------------------------------------


def test_complete_waits_for_the_last_client_of_the_old_view(users: Company) -> None:
    old = users.client(name="version-1")
    users.apply(Phase.CUTOVER)
    users.client(View.NEW, "version-2")
    with pytest.raises(GateClosed, match="version-1") as closed:
        users.apply(Phase.COMPLETE)
    assert "version-2" not in closed.value.what
    users.do(old.close())
    users.apply(Phase.COMPLETE)
    assert users.phase is ControlPhase.COMPLETE


def test_complete_is_not_done_before_the_last_write_of_before_has_ended(users: Company) -> None:
    users.apply(Phase.CUTOVER, STOPPED)
    client = users.client(View.NEW, "slow")
    users.live(3)
    hang = HangingOperation(client)
    with pytest.raises(Refused, match="slow"):
        users.apply(Phase.COMPLETE)
    hang.end()
    done = users.apply()
    assert done.next_phase is Phase.RETIRE


def test_retire_deletes_what_was_written_until_complete_and_nothing_that_came_later(users: Company) -> None:
    users.apply(Phase.CUTOVER, STOPPED)
    source = users.project.tables.table("Users")
    users.live(10)
    users.do(source.merge({**place(FIRST), "Nm": "as a replica, after the freeze"}))
    users.apply(Phase.COMPLETE)
    users.live(60)
    users.do(source.merge({**place(FIRST), "Nm": "by a stranger"}))
    with pytest.raises(Findings, match="1 source rows changed after `complete`"):
        users.retire()
    assert [row["Nm"] for row in users.project.rows("Users")] == ["by a stranger"]
    users.do(source.delete(FIRST))
    users.retire()
    assert users.phase is ControlPhase.RETIRED


def test_without_the_moment_of_quiet_retire_allows_what_a_client_may_have_taken(users: Company) -> None:
    users.apply(Phase.CUTOVER, STOPPED)
    store = ControlStore(users.project.restricted, users.script_id)
    users.do(store.move(ControlPhase.CUTOVER, ControlPhase.COMPLETE))
    users.live(20)
    users.do(users.project.tables.table("Users").merge({**place(FIRST), "Nm": "the last write of a client"}))
    users.live(60)
    users.retire()
    assert users.phase is ControlPhase.RETIRED


def test_what_the_journal_still_announces_keeps_the_source(users: Company) -> None:
    users.apply(Phase.COMPLETE, STOPPED)
    journal = users.do(users.project.journal(users.script_id))
    users.do(journal.begin("0dead", 4, "source", [FIRST]))
    with pytest.raises(GateClosed, match="the journal holds intents"):
        users.retire()
    users.live(LONGEST_S)
    assert users.apply().caught_up == 1
    users.retire()


def test_after_complete_there_is_nothing_to_compare(users: Company) -> None:
    users.apply(Phase.COMPLETE, STOPPED)
    with pytest.raises(Refused, match="nothing follows UsersV2"):
        users.verify()


# --- ways back ----------------------------------------------------------------------------------------------


def test_without_a_way_back_rollback_from_cutover_is_refused_and_the_end_is_open(tmp_path: Path) -> None:
    ours = company(
        tmp_path, USERS_SCRIPT.replace("capture=", "reverse=False, capture="), [user("a@x.example")]
    )
    ours.apply(Phase.CUTOVER, STOPPED)
    with pytest.raises(GateClosed, match="reverse=False"):
        ours.rollback()
    with pytest.raises(Refused, match="nothing follows"):
        ours.verify()
    assert ours.phase is ControlPhase.CUTOVER
    ours.apply()
    ours.apply(Phase.COMPLETE)
    ours.close()


def test_index_tables_that_nobody_could_follow_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    ours = company(tmp_path, POSTS_SCRIPT.replace("capture=", "reverse=False, capture="), [post("one")])
    with pytest.raises(ConfigurationError, match="PostsByTag"):
        ours.apply()
    assert ours.control is None
    ours.close()


def test_back_to_source_forgets_the_journal_with_the_tables_and_clients_go_on(users: Company) -> None:
    client = users.client()
    users.apply()
    journal = users.do(users.project.journal(users.script_id))
    users.do(journal.begin("0dead", 2, "source", [FIRST]))
    users.rollback(ControlPhase.SOURCE, drop=True)
    assert users.control is None
    assert users.intents == []
    users.live(3)
    assert client.lease.current() is not None, "it has seen `source` last, so it writes on as before"
    users.live(60)
    users.apply()
    users.live(3)
    assert client.lease.control.phase is ControlPhase.DUAL_WRITE


def test_no_table_is_dropped_before_every_client_has_let_go_of_it_even_after_a_kill(users: Company) -> None:
    client = users.client(name="slow")
    users.apply()
    hang = HangingOperation(client)
    store = ControlStore(users.project.restricted, users.script_id)
    users.do(store.move(ControlPhase.DUAL_WRITE, ControlPhase.SOURCE))
    with pytest.raises(Refused, match="slow"):
        users.rollback(ControlPhase.SOURCE, drop=True)
    assert len(users.project.rows("UsersV2")) == 30
    hang.end()
    users.rollback(ControlPhase.SOURCE, drop=True)
    assert users.control is None


def test_targets_that_are_kept_are_closed_to_the_new_view_until_they_are_copied_again(users: Company) -> None:
    users.client()
    users.apply()
    assert users.control.copied
    users.rollback(ControlPhase.SOURCE, drop=False)
    assert not users.control.copied


# --- kills --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", others_in_soak([25, 110, 150, 185, 220, 260, 300], kept=[260]))
def test_killed_before_any_effect_the_next_run_ends_in_the_same_state(users: Company, at: int) -> None:
    """The application lives on; the runner's next effect, on either account, is its last."""
    users.client(View.NEW)
    with users.killing_the_runner(at):
        users.apply(Phase.CUTOVER)
        users.rollback()
        users.verify()
        users.apply(Phase.COMPLETE)
    users.live(120)
    if users.phase is not ControlPhase.CUTOVER:
        users.apply()
    if users.phase is ControlPhase.DUAL_WRITE:
        users.verify()
    # How many effects a life has depends on how its clients and its runner meet: a late kill may miss it.
    if users.phase is not ControlPhase.COMPLETE:
        users.apply(Phase.CUTOVER)
        assert not users.verify().findings
    users.apply(Phase.COMPLETE)
    users.assert_in_step()
    assert users.intents == []
