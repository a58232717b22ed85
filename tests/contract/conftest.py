"""The same tests on both implementations of the table interface: in memory in each mood; on Azurite, also
through a gateway that decodes the addresses of rows twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from rekey.tables.base import Table, TableService
from tests.fakes.clock import FakeClock
from tests.fakes.gateway import DecodingGateway
from tests.fakes.given_account import open_account
from tests.fakes.memory import MemoryTableService, Mood


@pytest.fixture(
    params=[
        *Mood,
        *(pytest.param(through, marks=pytest.mark.azurite) for through in (None, DecodingGateway)),
    ],
    ids=[*(f"memory-{mood.value}" for mood in Mood), "azurite", "azurite-decodes-twice"],
)
async def service(request: pytest.FixtureRequest) -> AsyncIterator[TableService]:
    """The tables of one account."""
    if isinstance(request.param, Mood):
        yield MemoryTableService(clock=FakeClock(), mood=request.param)
        return
    if request.param is DecodingGateway:
        async with (
            DecodingGateway(request.getfixturevalue("azurite").tables) as gateway,
            open_account(gateway.account) as found,
        ):
            yield found
        return
    async with open_account(request.getfixturevalue("azurite").tables) as found:
        yield found


@pytest.fixture
async def table(service: TableService, table_name: Callable[[str], str]) -> Table:
    """A new, empty table."""
    name = table_name("Rows")
    assert await service.create_table(name)
    return service.table(name)
