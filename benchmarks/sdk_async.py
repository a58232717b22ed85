"""The copy written by hand with Python's asynchronous SDK: 32 transactions at a time. Target rows only.

Pages are read while transactions are under way; rows wait until they fill a transaction of their partition.
"""

from __future__ import annotations

import asyncio
import os
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables.aio import TableServiceClient

from benchmarks.phases import Phases
from benchmarks.sdk_loop import BATCH, PAGE, opaque

UNDER_WAY = 32


async def copy(endpoint: str, key: str, secret: bytes) -> None:
    """Copy the whole source."""
    credential = AzureNamedKeyCredential(endpoint.rsplit("/", 1)[-1], key)
    async with TableServiceClient(endpoint, credential=credential) as tables:
        source, target = tables.get_table_client("Users"), await tables.create_table("UsersV2")
        under_way: set[asyncio.Task[Any]] = set()

        async def send(operations: list[tuple[str, dict[str, Any]]]) -> None:
            while len(under_way) >= UNDER_WAY:
                done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                under_way.difference_update(done)
                for one in done:
                    one.result()
            under_way.add(asyncio.ensure_future(target.submit_transaction(operations)))

        partitions: defaultdict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        async for page in source.list_entities(results_per_page=PAGE).by_page():
            async for entity in page:
                new = {**entity, "RowKey": opaque(secret, entity["RowKey"]), "ContactEmail": entity["RowKey"]}
                operations = partitions[entity["PartitionKey"]]
                operations.append(("create", new))
                if len(operations) == BATCH:
                    await send(partitions.pop(entity["PartitionKey"]))
        for operations in partitions.values():
            await send(operations)
        await asyncio.gather(*under_way)


def main() -> None:
    """Copy, and write down what start and copy took."""
    phases = Phases()
    config = tomllib.loads(Path("rekey.toml").read_text("utf-8"))
    phases.ended("start")
    endpoint = config["tables"]["endpoint"]
    asyncio.run(copy(endpoint, os.environ["BENCH_TABLES_KEY"], os.environ["BENCH_SECRET"].encode()))
    phases.ended("copy")
    phases.write()


if __name__ == "__main__":
    main()
