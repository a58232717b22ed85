"""The same tests on both implementations of the table interface."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rekey.tables.base import Table, TableService
from tests.fakeclock import FakeClock
from tests.memory import MemoryTableService


@pytest.fixture(params=["memory", pytest.param("azurite", marks=pytest.mark.azurite)])
def service(request: pytest.FixtureRequest) -> TableService:
    """The tables of one account: in memory, then on Azurite."""
    if request.param == "memory":
        return MemoryTableService(clock=FakeClock())
    found: TableService = request.getfixturevalue("tables_service")
    return found


@pytest.fixture
async def table(service: TableService, table_name: Callable[[str], str]) -> Table:
    """A new, empty table."""
    name = table_name("Rows")
    assert await service.create_table(name)
    return service.table(name)
