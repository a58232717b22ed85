"""How the client processes of the dual-write tests open their clients."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rekey import DualWriteTableClient, aio
from rekey.client.lease import LeaseSettings
from rekey.declaration.mapper import Mapper
from rekey.declaration.scripts import load_script
from rekey.model import Row
from rekey.rehearse.azurite import AzuriteAccount


@dataclass(frozen=True)
class Where:
    """What a client is given: accounts (behind the proxy), the script, the secret, settings of its lease."""

    tables: AzuriteAccount
    restricted: AzuriteAccount
    script: Path
    source: str
    target: str
    secrets: dict[str, bytes] = field(repr=False)
    config: Path
    environment: dict[str, str] = field(repr=False)
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
    """Open a client of one view as an application does; one without async looks as if it had it."""
    os.environ.update(where.environment)
    settings = LeaseSettings(**where.settings)
    path, script_id = where.config, where.script.stem
    if sync:
        with DualWriteTableClient.from_config(
            path, script_id, view=view, name=name, settings=settings
        ) as client:
            yield _Awaitable(client)
        return
    async with aio.DualWriteTableClient.from_config(
        path, script_id, view=view, name=name, settings=settings
    ) as client:
        yield client


class _Awaitable:
    """Calls a client without async where it is awaited: its process has one task, which may be held up."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        async def called(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        return called
