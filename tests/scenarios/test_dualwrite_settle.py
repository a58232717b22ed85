"""A client lets go of an epoch while its application goes on writing at full speed."""

from __future__ import annotations

import asyncio

from rekey.tables.memory import MemoryTableService
from tests.dualwriting import insert, memory_world
from tests.worlds import USERS, user


async def test_settling_does_not_wait_for_writes_that_began_after_it() -> None:
    """Under steady load there is always something under way: waiting until there is nothing would never end,
    no epoch would be acknowledged, and no phase could be moved."""
    world = await memory_world(USERS, MemoryTableService()).prepare()
    writer = world.writer()
    stopped = asyncio.Event()

    async def write_on(name: str) -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            await writer.write([insert(user(f"{name}.{number}@example.com"))])

    application = [asyncio.ensure_future(write_on(name)) for name in ("ann", "bob", "eve")]
    await asyncio.sleep(0.01)
    await asyncio.wait_for(writer.settle(), timeout=10)
    still_writing = not any(one.done() for one in application)
    stopped.set()
    await asyncio.gather(*application)
    assert still_writing
    await world.assert_quiet()
