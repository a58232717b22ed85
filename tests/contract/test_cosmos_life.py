"""A whole life over HTTP with a target that is spoken to as to Cosmos DB: Azurite plays it, and says 429 to
every third request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

import pytest

from rekey.core.guarantees import COSMOS
from rekey.model import Row, content_of, key_of
from rekey.phases import Phase
from rekey.project.config import Config
from rekey.protocol.opening import joined
from rekey.rehearse.azurite import Azurite
from rekey.runner import commands
from rekey.runner.commands import Mode
from rekey.runner.run import Options
from rekey.tables.answers import Answer
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Accounts
from rekey.tables.credentials import credential_of
from rekey.tables.transport import Request, Transport
from rekey.verify.report import FullReport
from tests.declared import MOVE, named
from tests.given import IS_GIVEN
from tests.projects import COSMOS_ELSEWHERE, Project
from tests.worlds import user

T = TypeVar("T")
pytestmark = [
    pytest.mark.azurite,
    pytest.mark.skipif(IS_GIVEN, reason="an Azurite plays Cosmos DB here"),
]
STOPPED = Options(writers_stopped=True)
SCRIPT = "0001_cosmos"
ROWS = 230


@dataclass
class Real(Project):
    """A project whose accounts are an Azurite's."""

    azurite: Azurite | None = None

    def connect(self, config: Config) -> Accounts:
        """Open the accounts; that of the targets as of Cosmos DB."""
        assert self.azurite is not None and config.targets is not None
        tables, targets, restricted = (
            AzureTableService.open(
                account.endpoint,
                credential_of(account.name, account.key),
                guarantees=COSMOS if account is self.azurite.targets else None,
                elsewhere=account is self.azurite.targets,
            )
            for account in (self.azurite.tables, self.azurite.targets, self.azurite.restricted)
        )
        return joined(tables=tables, targets=targets, restricted=restricted)

    def on(self, work: Callable[[Accounts], Awaitable[T]]) -> T:
        """Do something on the accounts."""

        async def done() -> T:
            async with self.connect(self.config) as accounts:
                return await work(accounts)

        return asyncio.run(done())

    def all_rows(self, table: str) -> list[Row]:
        """Return what a table holds, by key."""

        async def read(accounts: Accounts) -> list[Row]:
            rows = [row async for page in accounts.tables.table(table).scan() for row in page.rows]
            return [content_of(row) for row in sorted(rows, key=lambda row: key_of(row).order)]

        return self.on(read)


@pytest.fixture
def asked(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests to the target's account; every third is answered with 429 and is not sent."""
    found: list[str] = []
    send = Transport.send

    async def throttled(self: Transport, request: Request) -> Answer:
        if self._endpoint == azurite.targets.endpoint:
            found.append(f"{request.method} {unquote(request.path)}")
            if len(found) % 3 == 0:
                body = b'{"odata.error":{"code":"TooManyRequests","message":{"lang":"en-us","value":"-"}}}'
                return Answer(429, {"x-ms-retry-after-ms": "1"}, body)
        return await send(self, request)

    monkeypatch.setattr(Transport, "send", throttled)
    return found


def test_a_life_with_429_and_what_was_never_seen_is_not_asked(
    azurite: Azurite, asked: list[str], tmp_path: Path, table_name: Callable[[str], str]
) -> None:
    """Of the target no range of keys is asked, no filter by Timestamp, no selection; no PATCH is sent."""
    name = table_name("Moved")
    there = f"{name}@targets"
    project = Real(tmp_path, azurite=azurite)
    project.move_elsewhere(COSMOS_ELSEWHERE)
    project.script(named(MOVE, name, there), f"{SCRIPT}.py")
    rows = [user(f"user{number:04}@example.com", f"p{number % 3}") for number in range(ROWS)]

    async def fill(accounts: Accounts) -> None:
        await accounts.tables.create_table(name)
        for row in rows:
            await accounts.tables.table(name).insert(row)

    async def change(accounts: Accounts) -> None:
        table = accounts.tables.table(there)
        await table.delete(key_of(rows[0]))
        await table.merge({**rows[1], "After": 1})
        await table.insert(user("new@example.com", "p1"))

    project.on(fill)
    with project.session(STOPPED) as session:
        commands.apply(session, SCRIPT, to=Phase.CUTOVER)
    assert project.all_rows(there) == project.all_rows(name)
    project.on(change)
    with project.session(STOPPED) as session:
        commands.rollback(session, SCRIPT, to=None, drop=None)
    assert project.all_rows(there) == project.all_rows(name)
    with project.session() as session:
        report = commands.verify(session, SCRIPT, mode=Mode.FULL, repair=False)
    assert isinstance(report, FullReport)
    assert not report.findings
    queries = {one.partition("?")[2] for one in asked if one.startswith(f"GET {name}()")}
    parameters = {one.partition("=")[0] for query in queries for one in query.split("&") if query}
    assert parameters <= {"$top", "NextPartitionKey", "NextRowKey"}
    assert {one.partition(" ")[0] for one in asked} == {"GET", "POST", "DELETE"}
    assert len(asked) > 20
