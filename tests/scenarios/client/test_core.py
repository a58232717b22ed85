"""A dual-write client that is closed at an awkward moment: nothing of it goes on afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

import pytest

from rekey.client.reading import ClientFacts, LeaseSettings
from rekey.client.sdk.core import ClientCore
from rekey.client.sdk.guard import PartGuard
from rekey.client.sdk.leased import Leased
from rekey.core.concurrency import cancel
from rekey.declaration.scripts import load_script
from rekey.errors import WritesRefused
from rekey.mapping.rows import CONTROL_TABLE
from rekey.mapping.sealing import WrappingKey
from rekey.model import EntityKey, key_of
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.opening import Prepared
from rekey.protocol.registry import Registry
from rekey.protocol.rules import View
from rekey.tables.base import Accounts
from tests.fakes.faults import Call
from tests.fakes.memory import MemoryTableService
from tests.simulation.dual_people import options_for
from tests.worlds.dual_write import insert
from tests.worlds.projects import POSTS_SCRIPT
from tests.worlds.scripts import under_writes

SCRIPT = "0001_posts"
ClientT = TypeVar("ClientT", bound=Leased)
both_kinds = pytest.mark.parametrize("kind", [ClientCore, PartGuard])


def no_key() -> WrappingKey:
    """Give no wrapping key: the mapping is in the clear."""
    raise AssertionError


def core_of(
    folder: Path,
    memory: MemoryTableService,
    script: str = POSTS_SCRIPT,
    kind: type[ClientT] = ClientCore,  # type: ignore[assignment]
) -> ClientT:
    """Return a client of the old view that has not begun."""
    path = folder / f"{SCRIPT}.py"
    path.write_text(under_writes(script))
    declared = load_script(path)
    facts = ClientFacts(SCRIPT, declared.digest, {}, "old", "web")
    options = options_for(Prepared(declared, {}.__getitem__, no_key), facts, LeaseSettings(poll_s=0.01), 0.0)
    return kind(options, lambda: Accounts(memory, memory))


async def test_a_client_that_is_closed_while_it_registers_does_not_go_on_beating(tmp_path: Path) -> None:
    memory = MemoryTableService()
    await memory.create_table(CONTROL_TABLE)
    core = core_of(tmp_path, memory)
    registering, go = asyncio.Event(), asyncio.Event()

    async def gate(call: Call) -> None:
        if call.writes and call.table == CONTROL_TABLE:
            registering.set()
            await go.wait()
        await asyncio.sleep(0)

    memory.gate = gate
    opening = asyncio.ensure_future(core.open())
    await registering.wait()
    closing = asyncio.ensure_future(core.close())
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(opening, closing)
    assert await Registry(memory, SCRIPT).list() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing beats any more"
    await core.close()
    assert await Registry(memory, SCRIPT).list() == []


@both_kinds
async def test_a_client_whose_lease_cannot_begin_closes_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Leased]
) -> None:
    memory = MemoryTableService()
    await memory.create_table(CONTROL_TABLE)
    closed: list[str] = []
    begins = asyncio.Event()

    async def gate(call: Call) -> None:
        await asyncio.sleep(0)
        if call.table == CONTROL_TABLE and not begins.is_set():
            begins.set()
            await asyncio.Event().wait()

    async def close(_accounts: Accounts) -> None:
        closed.append("closed")

    memory.gate = gate
    monkeypatch.setattr(Accounts, "close", close)
    client = core_of(tmp_path, memory, kind=kind)
    opening = asyncio.ensure_future(client.open())
    await begins.wait()
    await cancel([opening])
    assert closed == ["closed"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await client.open()
    await client.close()
    assert closed == ["closed", "closed"]
    assert memory.dump(CONTROL_TABLE) == []


@both_kinds
async def test_a_client_that_was_closed_before_it_began_never_registers(
    tmp_path: Path, kind: type[Leased]
) -> None:
    memory = MemoryTableService()
    await memory.create_table(CONTROL_TABLE)
    core = core_of(tmp_path, memory, kind=kind)
    await core.close()
    with pytest.raises(WritesRefused, match="closed"):
        await core.open()
    assert memory.dump(CONTROL_TABLE) == []


PART = POSTS_SCRIPT.replace("keys, props", "keys, props, rows").replace(
    "capture=", 'where=rows.partition_key(equals="blog"), capture='
)
OTHERS, OURS = EntityKey("news", "1"), EntityKey("blog", "1")


async def begun(
    folder: Path,
    memory: MemoryTableService,
    phase: ControlPhase = ControlPhase.COMPLETE,
    digest: str = "",
    *,
    script: str = PART,
) -> ClientCore:
    """Return a client of the old view of a migration, of a part by default, that is in a phase."""
    core = core_of(folder, memory, script)
    declared = core.options.declared
    await memory.create_table(CONTROL_TABLE)
    await memory.create_table("Posts")
    await ControlStore(memory, SCRIPT).create(
        ControlRow(
            script_id=SCRIPT,
            phase=phase,
            epoch=5,
            run_id="run",
            digest=digest or declared.digest,
            source="Posts",
            targets=("PostsV2", "PostsByTag"),
            fingerprints={},
            id_key=bytes(32),
            came_from=ControlPhase.DUAL_WRITE if phase is ControlPhase.FREEZE else None,
        )
    )
    return core


async def test_rows_beside_a_part_are_read_and_written_in_the_old_view_after_complete(
    tmp_path: Path, memory: MemoryTableService
) -> None:
    core = await begun(tmp_path, memory)
    await core.write([insert({"PartitionKey": "news", "RowKey": "1"})])
    async with core.reading(OTHERS):
        pass
    for key in (OURS, None):
        with pytest.raises(WritesRefused, match="old keys"):
            async with core.reading(key):
                pass
    with pytest.raises(WritesRefused, match="old keys"):
        await core.write([insert({"PartitionKey": "blog", "RowKey": "1"})])
    assert [key_of(row) for row in memory.dump("Posts")] == [OTHERS]
    await core.close()


async def test_a_client_with_another_script_reads_and_writes_nothing_beside_its_part(
    tmp_path: Path, memory: MemoryTableService
) -> None:
    """The row may be in the part of the migration, whose rows here are no longer current."""
    core = await begun(tmp_path, memory, digest="of another script")
    with pytest.raises(WritesRefused, match="another declaration"):
        await core.write([insert({"PartitionKey": "news", "RowKey": "1"})])
    with pytest.raises(WritesRefused, match="another declaration"):
        async with core.reading(OTHERS):
            pass
    assert memory.dump("Posts") == []
    await core.close()


async def test_rows_beside_a_part_are_written_during_a_freeze(
    tmp_path: Path, memory: MemoryTableService
) -> None:
    core = await begun(tmp_path, memory, ControlPhase.FREEZE)
    async with asyncio.timeout(LeaseSettings().freeze_wait_s / 2):
        await core.write([insert({"PartitionKey": "news", "RowKey": "1"})])
    assert [key_of(row) for row in memory.dump("Posts")] == [OTHERS]
    await core.close()


async def test_an_index_table_that_others_fill_too_is_written_under_own_keys_alone(
    tmp_path: Path, memory: MemoryTableService
) -> None:
    shared = POSTS_SCRIPT.replace(
        "partition_key=keys.item(),", 'partition_key=keys.literal("T:") + keys.item(), shared=True,'
    )
    core = await begun(tmp_path, memory, script=shared)
    core.table = core.options.table = "PostsByTag"
    core.options.is_index, core.options.view = True, View.NEW
    await memory.create_table("PostsByTag")
    await core.write([insert({"PartitionKey": "T:a", "RowKey": "1"})])
    with pytest.raises(WritesRefused) as refused:
        await core.write([insert({"PartitionKey": "a", "RowKey": "1"})])
    assert refused.value.code == "others-row"
    assert [key_of(row) for row in memory.dump("PostsByTag")] == [EntityKey("T:a", "1")]
    await core.close()
