"""The same tests on all implementations of the table interface: in memory, in memory through a joint table,
and on Azurite. Tests of values and keys run as well where addresses of rows are decoded twice: in memory, and
behind a gateway on Azurite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from rekey.tables.base import Table, TableService
from tests.fakes.clock import FakeClock
from tests.fakes.gateway import DecodingGateway
from tests.fakes.given_account import open_account
from tests.fakes.joint import JointTableService
from tests.fakes.memory import MemoryTableService, Mood

JOINT = JointTableService
USUAL = (
    Mood.AZURITE,
    Mood.STORAGE,
    pytest.param(JOINT, id="joint"),
    pytest.param(None, marks=pytest.mark.azurite, id="azurite"),
)
DECODING = (
    Mood.DECODES_TWICE,
    pytest.param(DecodingGateway, marks=pytest.mark.azurite, id="azurite-decodes-twice"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the tables: addresses differ only for keys that hold a percent sign."""
    if "service" in metafunc.fixturenames:
        decoding = DECODING if metafunc.module.__name__.endswith("test_values") else ()
        metafunc.parametrize("service", [*USUAL, *decoding], indirect=True, ids=_id_of)


def _id_of(service: object) -> str | None:
    return f"memory-{service.value}" if isinstance(service, Mood) else None


@pytest.fixture
async def service(request: pytest.FixtureRequest) -> AsyncIterator[TableService]:
    """The tables of one account."""
    if isinstance(request.param, Mood):
        yield MemoryTableService(clock=FakeClock(), mood=request.param)
        return
    if request.param is JOINT:
        decodes = request.module.__name__.endswith("test_values")
        mood = Mood.DECODES_TWICE if decodes else Mood.STORAGE
        yield await JointTableService(clock=FakeClock(), mood=mood).fill()
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
