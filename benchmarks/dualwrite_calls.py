"""The calls of one client, timed one by one: `python -m benchmarks.dualwrite_calls KIND SCRIPT VIEW CALLS`.

KIND `plain` is the SDK's own client on a table that no migration knows, `proxied` the same on the table
SCRIPT, through the proxy at $BENCH_PROXY. Prints the median seconds by verb.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import UpdateMode
from azure.data.tables.aio import TableClient

from benchmarks.sdk_loop import opaque
from rekey.aio import DualWriteTableClient

_CONFIG = "far.toml"
_WARM = 3
_PLAIN = "Plain"
_MONTH = "2024-03"


def entity(kind: str, view: str, number: int, value: str) -> dict[str, Any]:
    """Return a whole row as one view has it."""
    name = f"row-{number:04}"
    if kind == "content_derived":
        content = {"Month": _MONTH, "Tags": "azure,keys", "Title": value}
        if view == "new":
            return {"PartitionKey": _MONTH, "RowKey": name, "Blog": "blog", **content}
        return {"PartitionKey": "blog", "RowKey": name, **content}
    email = f"{name}@mail.example"
    if view == "new":
        new_id = opaque(os.environ["BENCH_SECRET"].encode(), email)
        return {"PartitionKey": "tenant", "RowKey": new_id, "ContactEmail": email, "Name": value}
    return {"PartitionKey": "tenant", "RowKey": email, "Name": value}


def _endpoint() -> str:
    return str(tomllib.loads(Path(_CONFIG).read_text("utf-8"))["tables"]["endpoint"])


async def timed(client: Any, kind: str, view: str, calls: int) -> dict[str, float]:
    """Make the calls; the first few of each kind only warm the connections."""
    partial = "Title" if kind == "content_derived" else "Name"

    async def insert(number: int) -> None:
        await client.create_entity(entity(kind, view, number, "inserted"))

    async def replace(number: int) -> None:
        await client.update_entity(entity(kind, view, number, "replaced"), mode=UpdateMode.REPLACE)

    async def merge(number: int) -> None:
        row = entity(kind, view, number, "")
        part = {"PartitionKey": row["PartitionKey"], "RowKey": row["RowKey"], partial: "merged"}
        await client.update_entity(part, mode=UpdateMode.MERGE)

    async def delete(number: int) -> None:
        row = entity(kind, view, number, "")
        await client.delete_entity(row["PartitionKey"], row["RowKey"])

    steps: tuple[Callable[[int], Awaitable[None]], ...] = (insert, replace, merge, delete)
    taken = {}
    for step in steps:
        seconds = []
        for number in range(_WARM + calls):
            began = time.perf_counter()
            await step(number)
            seconds.append(time.perf_counter() - began)
        taken[step.__name__] = statistics.median(seconds[_WARM:])
    return taken


async def main(kind: str, script_id: str, view: str, calls: int) -> dict[str, float]:
    """Open the client and time it."""
    if kind == "plain":
        endpoint = _endpoint()
        credential = AzureNamedKeyCredential("tables", os.environ["BENCH_TABLES_KEY"])
        async with TableClient(endpoint, _PLAIN, credential=credential) as client:
            await client.create_table()
            return await timed(client, kind, "old", calls)
    if kind == "proxied":
        credential = AzureNamedKeyCredential("tables", os.environ["BENCH_TABLES_KEY"])
        async with TableClient(os.environ["BENCH_PROXY"], script_id, credential=credential) as client:
            return await timed(client, kind, view, calls)
    async with DualWriteTableClient.from_config(_CONFIG, script_id, view=view) as client:
        return await timed(client, kind, view, calls)


if __name__ == "__main__":
    said_kind, said_script, said_view, said_calls = sys.argv[1:]
    print(json.dumps(asyncio.run(main(said_kind, said_script, said_view, int(said_calls)))))
