"""The throw-away tables of one account, and how checks write to them.

Rules kept here:

* A table is noted before it is made, and every noted table is deleted when the stage is left, however that
  happens. One whose making was cut off is deleted, too.
* Names hold the service's time at which the run began. What is removed of an earlier run has such a name, and
  began more than `STALE_S` before this run: longer than any run lasts.
* Rows are made up, and each check has a partition of its own.
"""

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
from rekey.tables.transport import NoAnswer, NotSent, Request, Timeouts, Transport
from rekey.tables.wire import COMMON_HEADERS, loads, query_string

PREFIX = "rekeylive"
# Seconds after which a run is surely over: it ends itself after less than half of that.
STALE_S = 3600
GONE = "gone"
_NAME = re.compile(rf"{PREFIX}(\d{{10}})[0-9a-f]{{6}}[A-Za-z0-9]*")
_TIMEOUTS, _LIST_S = Timeouts(read=20.0), 60.0
_RETRY = RetryPolicy(attempts=4, connect_attempts=2, max_wait=2.0)


def new_prefix(now: str) -> str:
    """Return what the names of a run's tables begin with. `now`: the service's time."""
    return f"{PREFIX}{ticks_of(now) // TICKS_PER_SECOND:010d}{secrets.token_hex(3)}"


def is_stale(name: str, now: str) -> bool:
    """Tell whether a table is of an earlier run that is surely over."""
    found = _NAME.fullmatch(name)
    return found is not None and int(found[1]) < ticks_of(now) // TICKS_PER_SECOND - STALE_S


def opened(account: Account) -> AzureTableService:
    """Open an account's tables, with few and short repetitions."""
    return AzureTableService.open(account.endpoint, credential(account), retry=_RETRY, timeouts=_TIMEOUTS)


@asynccontextmanager
async def sending(account: Account) -> AsyncIterator[Transport]:
    """Open what sends requests to an account as they are, once."""
    own = credential(account)
    transport = Transport(account.endpoint, own, timeouts=_TIMEOUTS, connections=2, agent="rekey")
    try:
        yield transport
    finally:
        await transport.close()


async def leftovers(account: Account, now: str) -> list[str]:
    """Return the tables of earlier runs that are surely over, as far as the list of tables is given."""
    wanted = [("$filter", f"TableName ge '{PREFIX}' and TableName lt '{PREFIX}~'")]
    found: list[str] = []
    after: str | None = ""
    with suppress(NotSent, NoAnswer, TimeoutError, ValueError, KeyError):
        async with asyncio.timeout(_LIST_S), sending(account) as transport:
            while after is not None:
                path = "Tables" + query_string(wanted + [("NextTableName", after)] * bool(after))
                answer = await transport.send(Request("GET", path, "list tables", COMMON_HEADERS))
                found += [one["TableName"] for one in loads(answer.body)["value"]]
                after = answer.headers.get("x-ms-continuation-NextTableName") or None
    return [name for name in found if is_stale(name, now)]


def credential(account: Account) -> Credential:
    """Return the configured credential of an account."""
    return credential_of(account.name, account_key(account))


async def told(call: Awaitable[object]) -> str:
    """Return how a call ended: `done`, `open` if that is not known, or the service's status and code, with
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
    """One account on which checks are made.

    Attributes:
        service: its tables.
        prefix: what names of tables begin with.
        account: as configured.
        clock: waits.
        names: the tables that were made, or were about to be.
        left: those that could not be deleted.
    """

    service: TableService
    prefix: str
    account: Account
    clock: Clock = field(default_factory=SystemClock)
    names: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    async def new_table(self) -> Table:
        """Make a table."""
        name = f"{self.prefix}t{len(self.names)}"
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

        # At once: an account that is gone by now is waited for once, not for each table.
        await asyncio.gather(*map(delete, self.names))


@dataclass(frozen=True)
class Scene:
    """What one check works with: a table, and a partition of its own in it."""

    stage: Stage
    table: Table
    partition: str

    def row(self, name: str = "r", **properties: Any) -> Row:
        """Return a row of the check's partition."""
        return {PARTITION_KEY: self.partition, ROW_KEY: name, **properties}

    async def get(self, name: str = "r") -> Row:
        """Return a row as read, {} when there is none."""
        return await self.table.get(EntityKey(self.partition, name)) or {}

    async def number(self, name: str = "r") -> str:
        """Return the property N of a row, `gone` when there is no row."""
        found = await self.get(name)
        return str(found.get("N")) if found else GONE

    @property
    def own(self) -> KeyRange:
        """The keys of the check's partition; not that with an empty RowKey."""
        return KeyRange.of_rows(self.partition)

    async def scan(self, **options: Any) -> list[Row]:
        """Return the rows of the partition as a scan returns them."""
        return [row async for page in self.table.scan(self.own, **options) for row in page.rows]
