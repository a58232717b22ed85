"""The throw-away tables of one account, and how checks write to them."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND, Clock, SystemClock, ticks_of
from rekey.errors import Ambiguous, ServiceError
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, KeyRange, Row
from rekey.project.config import Account, account_key
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Table, TableService
from rekey.tables.credentials import Credential, credential_of
from rekey.tables.requests import RetryPolicy
from rekey.tables.transport import Network, NoAnswer, NotSent, Request, Timeouts, Transport
from rekey.tables.wire import COMMON_HEADERS, loads, query_string

PREFIX = "rekeylive"
# Seconds after which a run is certainly over: it ends itself in less than half of that.
STALE_S = 3600
GONE = "gone"
_NAME = re.compile(rf"{PREFIX}(\d{{10}})[0-9a-f]{{6}}[A-Za-z0-9]*")
_TIMEOUTS, _LIST_S = Timeouts(read=20.0), 60.0
_RETRY = RetryPolicy(attempts=4, connect_attempts=2, max_wait=2.0)


def new_prefix(now: str) -> str:
    """Return the prefix of a run's table names, which contains the service's time `now`."""
    return f"{PREFIX}{ticks_of(now) // TICKS_PER_SECOND:010d}{secrets.token_hex(3)}"


def is_stale(name: str, now: str) -> bool:
    """Tell whether a table is of an earlier run that is certainly over."""
    match = _NAME.fullmatch(name)
    return match is not None and int(match[1]) < ticks_of(now) // TICKS_PER_SECOND - STALE_S


def opened(account: Account) -> AzureTableService:
    """Open an account's tables, with few and short retries."""
    return AzureTableService.open(
        account.endpoint, credential(account), retry=_RETRY, network=Network(_TIMEOUTS)
    )


@asynccontextmanager
async def sending(account: Account) -> AsyncIterator[Transport]:
    """Open a transport that sends requests to an account unchanged, once."""
    own = credential(account)
    transport = Transport(account.endpoint, own, Network(_TIMEOUTS, connections=2), agent="rekey")
    try:
        yield transport
    finally:
        await transport.close()


async def leftovers(account: Account, now: str) -> list[str]:
    """Return the tables of earlier runs that are certainly over, as far as the account lists tables."""
    wanted = [("$filter", f"TableName ge '{PREFIX}' and TableName lt '{PREFIX}~'")]
    names: list[str] = []
    after: str | None = ""
    with suppress(NotSent, NoAnswer, TimeoutError, ValueError, KeyError):
        async with asyncio.timeout(_LIST_S), sending(account) as transport:
            while after is not None:
                path = "Tables" + query_string(wanted + [("NextTableName", after)] * bool(after))
                answer = await transport.send(Request("GET", path, "list tables", COMMON_HEADERS))
                names += [table["TableName"] for table in loads(answer.body)["value"]]
                after = answer.headers.get("x-ms-continuation-NextTableName") or None
    return [name for name in names if is_stale(name, now)]


def credential(account: Account) -> Credential:
    """Return the configured credential of an account."""
    return credential_of(account.name, account_key(account))


async def outcome_of(call: Awaitable[object]) -> str:
    """Return the outcome of a call: `done`, `open` for an unknown one, or the service's status and code, with
    the index of an operation."""
    try:
        await call
    except Ambiguous:
        return "open"
    except ServiceError as error:
        named = "" if error.index is None else f" at {error.index}"
        return f"{error.status or type(error).__name__} {error.code}".strip() + named
    return "done"


@dataclass
class Stage:
    """An account to run checks on."""

    service: TableService  # its tables
    prefix: str  # of table names
    account: Account  # as configured
    clock: Clock = field(default_factory=SystemClock)  # waits
    names: list[str] = field(default_factory=list)  # the tables that were or are to be created
    left: list[str] = field(default_factory=list)  # those that could not be deleted

    async def new_table(self) -> Table:
        """Create a table."""
        name = f"{self.prefix}t{len(self.names)}"
        # Noted first: a table whose creation was interrupted is deleted too.
        self.names.append(name)
        await self.service.create_table(name)
        return self.service.table(name)

    async def clear(self) -> None:
        """Delete all noted tables; those that cannot be deleted are in `left`."""

        async def delete(name: str) -> None:
            try:
                await self.service.delete_table(name)
            except ServiceError:
                self.left.append(name)

        # Concurrently: an account that is gone is waited for once, not per table.
        await asyncio.gather(*map(delete, self.names))


@dataclass(frozen=True)
class Scene:
    """What one check uses: a table, and a partition of its own in it."""

    stage: Stage
    table: Table
    partition: str

    def row(self, name: str = "r", **properties: Any) -> Row:
        return {PARTITION_KEY: self.partition, ROW_KEY: name, **properties}

    async def get(self, name: str = "r") -> Row:
        """Return a row as read, {} without one."""
        return await self.table.get(EntityKey(self.partition, name)) or {}

    async def number(self, name: str = "r") -> str:
        """Return the property N of a row, `gone` without a row."""
        row = await self.get(name)
        return str(row.get("N")) if row else GONE

    @property
    def own(self) -> KeyRange:
        """The keys of the check's partition, except an empty RowKey."""
        return KeyRange.of_rows(self.partition)

    async def scan(self, **options: Any) -> list[Row]:
        return [row async for page in self.table.scan(self.own, **options) for row in page.rows]
