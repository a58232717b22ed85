"""How the client processes of the dual-write tests open their clients."""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from azure.core.credentials import AccessToken, AzureNamedKeyCredential
from azure.data.tables import TableClient

from rekey import DualWriteTableClient, aio
from rekey.client.lease import LeaseSettings
from rekey.core.limits import is_in_target_account, own_name
from rekey.declaration.mapper import Mapper
from rekey.declaration.scripts import load_script
from rekey.model import Row
from rekey.rehearse.azurite import AzuriteAccount


@dataclass(frozen=True)
class Where:
    """What a client is given: accounts (behind the weather), script, secret, settings of its lease. It uses
    the SDK's own client at one of the `proxies`, if there are any, or at the account itself if `plain`; with
    an access `token`, if there is one, and then trusts the CA in the file `ca`."""

    tables: AzuriteAccount
    restricted: AzuriteAccount
    script: Path
    source: str
    target: str
    secrets: dict[str, bytes] = field(repr=False)
    config: Path
    environment: dict[str, str] = field(repr=False)
    settings: dict[str, float] = field(default_factory=dict)
    proxies: tuple[str, ...] = ()
    targets: AzuriteAccount | None = None
    plain: bool = False
    token: str = field(default="", repr=False)
    ca: str = ""


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
    if where.proxies or where.plain:
        with _plain(where, view, name) as client:
            yield _Awaitable(client)
        return
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


def _plain(where: Where, view: str, name: str) -> TableClient:
    """Return the SDK's own client. It does not try again by itself: the ledger has every attempt."""
    table = where.source if view == "old" else where.target
    account = where.targets if where.targets is not None and is_in_target_account(table) else where.tables
    endpoint = account.endpoint
    if where.proxies:
        endpoint = where.proxies[zlib.crc32(name.encode()) % len(where.proxies)]
    credential = _Token(where.token) if where.token else AzureNamedKeyCredential(account.name, account.key)
    return TableClient(
        endpoint,
        own_name(table),
        credential=credential,
        retry_total=0,
        retry_to_secondary=False,
        read_timeout=40,
        connection_verify=where.ca or True,
    )


class _Token:
    """A credential that has its token already."""

    def __init__(self, token: str) -> None:
        self._token = AccessToken(token, int(time.time()) + 3600)

    def get_token(self, *_scopes: str, **_: Any) -> AccessToken:
        return self._token


class _Awaitable:
    """A client without async that is awaited."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        async def called(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(call, *args, **kwargs)

        return called
