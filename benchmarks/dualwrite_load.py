"""A client under load: `python -m benchmarks.dualwrite_load KIND SCRIPT VIEW WRITERS SECONDS`.

So many tasks of one process write rows of their own, one write after the other. Prints what came of it:
writes, failed ones, writes per second, milliseconds of processor for each, and the longest write.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from typing import Any

from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import AzureError
from azure.data.tables import UpdateMode
from azure.data.tables.aio import TableClient

from benchmarks.dualwrite_calls import _CONFIG, _PLAIN, _endpoint, entity
from rekey.aio import DualWriteTableClient


async def load(client: Any, kind: str, view: str, writers: int, seconds: float) -> dict[str, Any]:
    """Write for so long."""
    failed: Counter[str] = Counter()
    taken: list[float] = []

    async def write(number: int) -> None:
        row = entity(kind, view, number, "inserted")
        await client.upsert_entity(row, mode=UpdateMode.REPLACE)
        while (began := time.perf_counter()) < until:
            row = entity(kind, view, number, f"replaced {len(taken)}")
            try:
                await client.update_entity(row, mode=UpdateMode.REPLACE)
            except AzureError as error:
                failed[str(getattr(error, "code", type(error).__name__))] += 1
            taken.append(time.perf_counter() - began)

    await write_one(client, kind, view)  # connects and registers
    until = time.perf_counter() + seconds
    began, began_cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(write(number) for number in range(writers)))
    return {
        "writes": len(taken),
        "failed": dict(failed),
        "writes_per_second": round(len(taken) / (time.perf_counter() - began), 1),
        "cpu_ms_per_write": round(1000 * (time.process_time() - began_cpu) / len(taken), 2),
        "longest_s": round(max(taken), 2),
    }


async def write_one(client: Any, kind: str, view: str) -> None:
    """Write a row."""
    await client.upsert_entity(entity(kind, view, 9_999, "first"), mode=UpdateMode.REPLACE)


async def main(kind: str, script_id: str, view: str, writers: int, seconds: float) -> dict[str, Any]:
    """Open the client and put it under load."""
    if kind == "plain":
        credential = AzureNamedKeyCredential("tables", os.environ["BENCH_TABLES_KEY"])
        async with TableClient(_endpoint(), _PLAIN, credential=credential) as client:
            return await load(client, kind, "old", writers, seconds)
    async with DualWriteTableClient.from_config(_CONFIG, script_id, view=view) as client:
        return await load(client, kind, view, writers, seconds)


if __name__ == "__main__":
    said_kind, said_script, said_view, said_writers, said_seconds = sys.argv[1:]
    done = asyncio.run(main(said_kind, said_script, said_view, int(said_writers), float(said_seconds)))
    print(json.dumps(done))
