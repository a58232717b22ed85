"""A dual-write client that is closed at an awkward moment: nothing of it goes on afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rekey.client.reading import ClientFacts, LeaseSettings
from rekey.client.sdk.core import ClientCore
from rekey.declaration.scripts import load_script
from rekey.errors import WritesRefused
from rekey.mapping.rows import CONTROL_TABLE
from rekey.mapping.sealing import WrappingKey
from rekey.protocol.opening import Prepared
from rekey.protocol.registry import Registry
from rekey.tables.base import Accounts
from tests.fakes.faults import Call
from tests.fakes.memory import MemoryTableService
from tests.simulation.dual_people import options_for
from tests.worlds.projects import POSTS_SCRIPT
from tests.worlds.scripts import under_writes

SCRIPT = "0001_posts"


def no_key() -> WrappingKey:
    """Give no wrapping key: the mapping is in the clear."""
    raise AssertionError


def core_of(folder: Path, memory: MemoryTableService) -> ClientCore:
    """Return a client of the old view that has not begun."""
    path = folder / f"{SCRIPT}.py"
    path.write_text(under_writes(POSTS_SCRIPT))
    declared = load_script(path)
    facts = ClientFacts(SCRIPT, declared.digest, {}, "old", "web")
    options = options_for(Prepared(declared, {}.__getitem__, no_key), facts, LeaseSettings(poll_s=0.01), 0.0)
    return ClientCore(options, lambda: Accounts(memory, memory))


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


async def test_a_client_that_was_closed_before_it_began_never_registers(tmp_path: Path) -> None:
    memory = MemoryTableService()
    await memory.create_table(CONTROL_TABLE)
    core = core_of(tmp_path, memory)
    await core.close()
    with pytest.raises(WritesRefused, match="closed"):
        await core.open()
    assert memory.dump(CONTROL_TABLE) == []
