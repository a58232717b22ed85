"""What writes cost, beside the plain client's.

    python -m benchmarks.dualwrite_cost KIND SCRIPT VIEW ACKNOWLEDGE BLOCKS

Rules kept here:

* Both clients are open in one process, and write in turns, in short blocks: a machine whose speed drifts
  slows both. A ratio is that of a block to the two plain ones around it; the median of all blocks is told.
* A block of ours ends when what follows its answers has ended; for the rate, when all are answered.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import UpdateMode
from azure.data.tables.aio import TableClient

from benchmarks.dualwrite_calls import _CONFIG, _PLAIN, _endpoint, entity
from rekey.aio import DualWriteTableClient

WRITERS = 32
# Rows of one's own: the timed calls insert and delete those before.
_ROWS = range(1_000, 1_000 + WRITERS)
# Writes of each writer in a block.
_PLAINLY, _OURS = 4, 2
# Seconds in which what follows an answer ends, on a line of 30 ms.
_FOLLOWS_S = 0.2
BLOCKS = 12


async def block(client: Any, kind: str, view: str, each: int, follows_s: float) -> tuple[float, float]:
    """Let all writers replace a row of theirs; return milliseconds of processor for each write, and writes a
    second."""

    async def write(number: int) -> None:
        for turn in range(each):
            await client.update_entity(entity(kind, view, number, f"{turn}"), mode=UpdateMode.REPLACE)

    began, began_cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(write(number) for number in _ROWS))
    seconds = time.perf_counter() - began
    await asyncio.sleep(follows_s)
    writes = WRITERS * each
    return 1000 * (time.process_time() - began_cpu) / writes, writes / seconds


async def main(kind: str, script_id: str, view: str, acknowledge: str, blocks: int) -> dict[str, float]:
    """Open both clients and let them write in turns."""
    credential = AzureNamedKeyCredential("tables", os.environ["BENCH_TABLES_KEY"])
    async with (
        TableClient(_endpoint(), _PLAIN, credential=credential) as plain,
        DualWriteTableClient.from_config(_CONFIG, script_id, view=view, acknowledge=acknowledge) as ours,
    ):
        for number in _ROWS:
            await plain.upsert_entity(entity(kind, "old", number, ""))
            await ours.upsert_entity(entity(kind, view, number, ""))
        await block(ours, kind, view, _OURS, _FOLLOWS_S)  # connects
        plainly = [await block(plain, kind, "old", _PLAINLY, 0)]
        taken = []
        for _ in range(blocks):
            taken.append(await block(ours, kind, view, _OURS, _FOLLOWS_S))
            plainly.append(await block(plain, kind, "old", _PLAINLY, 0))
    around = [
        (before[0] / 2 + after[0] / 2, before[1] / 2 + after[1] / 2) for before, after in pairwise(plainly)
    ]
    pairs = list(zip(taken, around, strict=True))
    return {
        "cpu_ms_per_write": round(statistics.median(cpu for cpu, _ in taken), 2),
        "plain_cpu_ms_per_write": round(statistics.median(cpu for cpu, _ in plainly), 2),
        "cpu_times_plain": round(statistics.median(one[0] / other[0] for one, other in pairs), 2),
        "writes_per_second": round(statistics.median(rate for _, rate in taken), 1),
        "plain_writes_per_second": round(statistics.median(rate for _, rate in plainly), 1),
        "rate_times_plain": round(statistics.median(one[1] / other[1] for one, other in pairs), 2),
    }


if __name__ == "__main__":
    said_kind, said_script, said_view, said_acknowledge, said_blocks = sys.argv[1:]
    done = asyncio.run(main(said_kind, said_script, said_view, said_acknowledge, int(said_blocks)))
    print(json.dumps(done))
