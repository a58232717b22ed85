"""A project to measure: e-mail RowKeys in 200 partitions become opaque ids, on an Azurite of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from rekey import Migration, Target, keys, props
from rekey.copy.batches import pack
from rekey.core.concurrency import for_each
from rekey.model import Row
from rekey.rehearse.azurite import Azurite, AzuriteAccount
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Operation, Verb
from rekey.tables.credentials import SharedKey

PARTITIONS = 200
SCRIPT_ID = "0001_users"
SECRET = "benchmark-secret-0123456789abcdef"  # noqa: S105 - of made-up rows

SCRIPT = '''\
"""E-mail RowKeys to opaque ids."""
from rekey import Migration, Target, keys, props

migration = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.opaque("RowKey", domain="user", secret="users"),
        properties=[props.copy("RowKey", to="ContactEmail")],
    ),
    capture="delta",
)
'''
USERS = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.opaque("RowKey", domain="user", secret="users"),
        properties=[props.copy("RowKey", to="ContactEmail")],
    ),
    capture="delta",
)
"""The same declaration, for what runs without a project."""
_CONFIG = """\
[tables]
endpoint = "{tables}"
key_env = "BENCH_TABLES_KEY"
[restricted]
endpoint = "{restricted}"
key_env = "BENCH_RESTRICTED_KEY"
[secrets.users]
env = "BENCH_SECRET"
[sealing]
env = "BENCH_WRAPPING_KEY"
[gates]
margin = "1s"
"""


def rows(count: int) -> Iterator[Row]:
    """Yield made-up users of about 300 bytes, in key order."""
    per_partition = -(-count // PARTITIONS)
    for number in range(count):
        partition, row = divmod(number, per_partition)
        yield {
            "PartitionKey": f"tenant-{partition:03}",
            "RowKey": f"first.last-{row:06}@mail.example",
            "Name": f"First Last {number}",
            "Logins": number,
            "Visits": str(number * 10_000_000_000),
            "Visits@odata.type": "Edm.Int64",
            "Since": "2024-02-29T12:34:56.1234567Z",
            "Since@odata.type": "Edm.DateTime",
        }


def make(folder: Path, azurite: Azurite) -> dict[str, str]:
    """Write configuration and script; return the environment to run commands in."""
    (folder / "migrations").mkdir(parents=True)
    (folder / "migrations" / f"{SCRIPT_ID}.py").write_text(SCRIPT, "utf-8")
    config = _CONFIG.format(tables=azurite.tables.endpoint, restricted=azurite.restricted.endpoint)
    (folder / "rekey.toml").write_text(config, "utf-8")
    return {
        **os.environ,
        "BENCH_TABLES_KEY": azurite.tables.key,
        "BENCH_RESTRICTED_KEY": azurite.restricted.key,
        "BENCH_SECRET": SECRET,
        "BENCH_WRAPPING_KEY": SECRET * 2,
        "PYTHONPATH": python_path(),
    }


def python_path() -> str:
    """Return where a process in another folder finds the benchmarks."""
    return os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])


def fill(azurite: Azurite, count: int) -> None:
    """Put `count` rows into the source."""

    async def write() -> None:
        service = _open(azurite.tables)
        await service.create_table("Users")
        table = service.table("Users")
        operations = (Operation(Verb.INSERT, row) for row in rows(count))
        await for_each(pack(operations, table.encoded_size), table.transact, limit=8)
        await service.close()

    asyncio.run(write())


def count(azurite: Azurite, table: str, *, restricted: bool = False) -> int:
    """Return how many rows a table of the account of the tables, or of the restricted one, has."""

    async def read() -> int:
        service = _open(azurite.restricted if restricted else azurite.tables)
        found = sum([len(page.rows) async for page in service.table(table).scan()])
        await service.close()
        return found

    return asyncio.run(read())


def _open(account: AzuriteAccount) -> AzureTableService:
    return AzureTableService.open(account.endpoint, SharedKey.of(account.name, account.key))
