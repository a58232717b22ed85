"""How the client processes of the dual-write tests open their clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rekey.mapper import Mapper
from rekey.model import Row
from rekey.rehearse.azurite import AzuriteAccount
from rekey.scripts import load_script


@dataclass(frozen=True)
class Where:
    """What a client is given: accounts (behind the proxy), the script, the secret, settings of its lease."""

    tables: AzuriteAccount
    restricted: AzuriteAccount
    script: Path
    source: str
    target: str
    secrets: dict[str, bytes] = field(repr=False)
    settings: dict[str, float] = field(default_factory=dict)


def mapper_of(where: Where) -> Callable[[Row], tuple[str, str]]:
    """Return what an application of the new version knows: the new key of a row."""
    mapper = Mapper(load_script(where.script).migration, where.secrets)

    def new_key(row: Row) -> tuple[str, str]:
        made = mapper.map(row)[0].row
        return made["PartitionKey"], made["RowKey"]

    return new_key


@asynccontextmanager
async def open_client(where: Where, view: str, *, sync: bool, name: str) -> AsyncIterator[Any]:
    from azure.core.credentials import AzureNamedKeyCredential
    from azure.data.tables.aio import TableClient

    credential = AzureNamedKeyCredential(where.tables.name, where.tables.key)
    async with TableClient(where.tables.endpoint, where.source, credential=credential) as client:
        yield client
