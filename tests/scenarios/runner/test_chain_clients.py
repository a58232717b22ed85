"""A chain in capture "dual-write": clients of the first migration write its new table, which is the source of
the next one, and do not follow that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from rekey.errors import GateClosed, WritesRefused
from rekey.mapping.rows import CONTROL_TABLE
from rekey.phases import ControlPhase, Phase
from rekey.protocol.registry import SAFETY_S
from rekey.protocol.rules import View
from rekey.runner.commands import Mode
from rekey.runner.run import Options
from rekey.tables.base import SIGNED_S, Operation, Verb
from tests.fakes.faults import Call
from tests.scenarios.runner.test_chain import SECOND, next_of
from tests.worlds.company import QUICK, Client, Company, company
from tests.worlds.erasure import PLAIN_USERS, SCRIPT
from tests.worlds.scripts import under_writes
from tests.worlds.small import user

OVER_S = QUICK.lease_s + QUICK.longest_operation_s + SAFETY_S


@pytest.fixture
def first(tmp_path: Path) -> Iterator[Company]:
    """Users → UsersV2, in `cutover`."""
    with company(tmp_path, PLAIN_USERS, [user(f"user{number}@example.com") for number in range(4)]) as made:
        made.client(View.OLD, "first-version")
        made.apply(Phase.CUTOVER)
        yield made


@pytest.fixture
def second(first: Company) -> Company:
    """UsersV2 → UsersV3."""
    first.project.script(under_writes(next_of(2)), f"{SECOND}.py")
    return Company(first.project, SECOND, first.loop)


def completed(first: Company) -> Client:
    """Complete the first migration; return its client that goes on."""
    goes_on = first.client(View.NEW, "second-version")
    first.do(first.clients[0].close())
    first.clients[0].dead = True
    first.apply(Phase.COMPLETE)
    return goes_on


def rename(first: Company, client: Client, name: str) -> None:
    row = first.project.rows("UsersV2")[0]
    change = {"PartitionKey": row["PartitionKey"], "RowKey": row["RowKey"], "Name": name}
    first.do(client.write(Operation(Verb.MERGE, change, "*")))


def end(client: Client) -> None:
    client.company.do(client.close())
    client.dead = True


@pytest.mark.parametrize("to", [Phase.CUTOVER, Phase.COMPLETE])
def test_clients_that_write_the_source_as_the_new_table_of_the_one_before_close_the_gate(
    first: Company, second: Company, to: Phase
) -> None:
    goes_on = completed(first)
    follows = second.client(View.OLD, "third-version")
    with pytest.raises(GateClosed) as closed:
        second.apply()
    said = str(closed.value)
    assert f"clients of {SCRIPT}, which has filled UsersV2" in said and "second-version (new view" in said
    assert f'migration="{SECOND}"' in said and "third-version" not in said
    assert second.phase is ControlPhase.SOURCE
    rename(first, goes_on, "before the second migration began")
    end(goes_on)
    second.apply()
    if to is Phase.COMPLETE:
        second.apply(Phase.CUTOVER)
    late = first.client(View.NEW, "started-late")
    with pytest.raises(GateClosed, match=r"started-late \(new view"):
        second.apply(to)
    end(late)
    end(follows)
    second.client(View.NEW, "fourth-version")
    second.apply(to)
    names = {row["Name"] for row in first.project.rows("UsersV3")}
    assert "before the second migration began" in names


def test_a_verification_waits_for_writes_of_a_killed_client_of_the_one_before(
    first: Company, second: Company
) -> None:
    """What it had signed may reach the source, and no intent announces it."""
    goes_on = completed(first)
    first.do(goes_on.die())
    second.client(View.OLD, "third-version")
    with pytest.raises(GateClosed, match=r"second-version \(new view"):
        second.apply()
    first.live(OVER_S + 1)
    second.apply()
    with pytest.raises(GateClosed, match="a client was given up when dual writes began"):
        second.apply(Phase.CUTOVER)
    first.live(SIGNED_S)
    assert not second.verify(Mode.FULL).findings
    second.apply(Phase.CUTOVER)


def test_clients_of_the_one_before_do_not_close_capture_delta(first: Company, second: Company) -> None:
    """The operator says that the writers are stopped."""
    goes_on = completed(first)
    first.project.script(next_of(2), f"{SECOND}.py")
    second.apply()
    assert second.phase is ControlPhase.DUAL_WRITE
    end(goes_on)


def refused(first: Company, client: Client) -> str:
    """Return with what code a client refuses to change a row of the first migration's new table, and to read
    ("" for not)."""
    with pytest.raises(WritesRefused) as error:
        rename(first, client, "lost")
    assert f"{SECOND} migrates on what {SCRIPT} has filled" in str(error.value)
    assert "lost" not in {row["Name"] for row in first.project.rows("UsersV2")}
    return error.value.code


@pytest.mark.parametrize("to", [None, Phase.CUTOVER, Phase.COMPLETE])
def test_a_client_of_the_one_before_that_starts_late_refuses_to_write(
    first: Company, second: Company, to: Phase | None
) -> None:
    end(completed(first))
    follows = second.client(View.OLD, "third-version")
    second.apply()
    if to is not None:
        second.apply(Phase.CUTOVER)
        end(follows)
        second.client(View.NEW, "fourth-version")
        second.apply(to)
    late = first.client(View.NEW, "started-late")
    assert refused(first, late) == "migrated-again"
    reads_too = to is not None
    assert late.lease.problem is None
    with pytest.raises(WritesRefused, match="migrates on") if reads_too else nullcontext():
        first.do(reads(late))
    assert [client.refuses for client in first.status().facts.live_clients] == ["migrated-again"]


async def reads(client: Client) -> None:
    async with client.lease.operation(writes=False):
        pass


def test_a_client_registers_before_it_looks_whether_the_next_one_has_begun(first: Company) -> None:
    """The gates find it, or it finds the next migration: also when it was suspended, and its row was over."""
    client = completed(first)
    restricted, sent = first.project.restricted, list[object]()
    before = restricted.gate

    async def gate(call: Call) -> None:
        if call.table == CONTROL_TABLE:
            sent.append(call.action)
        await before(call)

    restricted.gate = gate
    first.do(client.lease.poll())
    restricted.gate = before
    assert sent == [Verb.INSERT_OR_REPLACE, "get", "page"]


def test_a_client_of_the_one_before_writes_again_when_the_next_one_is_rolled_back(
    first: Company, second: Company
) -> None:
    end(completed(first))
    follows = second.client(View.OLD, "third-version")
    second.apply()
    late = first.client(View.NEW, "started-late")
    assert refused(first, late) == "migrated-again"
    end(follows)
    second.rollback(ControlPhase.SOURCE, drop=True)
    first.do(late.lease.poll())
    rename(first, late, "written again")
    assert "written again" in {row["Name"] for row in first.project.rows("UsersV2")}


def test_a_client_of_the_one_before_writes_until_capture_delta_cuts_over(
    first: Company, second: Company
) -> None:
    goes_on = completed(first)
    first.project.script(next_of(2), f"{SECOND}.py")
    second.apply()
    rename(first, goes_on, "during the copy")
    assert not second.verify().findings
    second.apply(Phase.CUTOVER, Options(writers_stopped=True))
    first.do(goes_on.lease.poll())
    assert refused(first, goes_on) == "migrated-again"
    assert "during the copy" in {row["Name"] for row in first.project.rows("UsersV3")}
