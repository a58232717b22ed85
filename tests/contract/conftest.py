"""The same tests on both implementations of the table interface; in memory like Azurite and like Storage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rekey.tables.base import Table, TableService
from tests.fakeclock import FakeClock
from tests.memory import MemoryTableService, Mood


@pytest.fixture(
    params=[*Mood, pytest.param(None, marks=pytest.mark.azurite)],
    ids=lambda mood: "azurite" if mood is None else f"memory-{mood.value}",
)
def service(request: pytest.FixtureRequest) -> TableService:
    """The tables of one account: in memory, in each mood, then on Azurite."""
    if request.param is not None:
        return MemoryTableService(clock=FakeClock(), mood=request.param)
    found: TableService = request.getfixturevalue("tables_service")
    return found


@pytest.fixture
async def table(service: TableService, table_name: Callable[[str], str]) -> Table:
    """A new, empty table."""
    name = table_name("Rows")
    assert await service.create_table(name)
    return service.table(name)
