"""Carriers of the requests to a table that several migrations move or fill, and accounts for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rekey.client.sdk.filters import keys_asked
from rekey.client.sdk.router import Carrier
from rekey.errors import WritesRefused
from rekey.model import EntityKey
from rekey.tables.base import Operation, TableService


class LeftOpen:
    """An account that its clients leave open."""

    def __init__(self, service: TableService) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    async def close(self) -> None:
        return


def no_wrapping_key() -> None:
    raise AssertionError("these mappings are in the clear")


@asynccontextmanager
async def closed_after(carrier: Carrier) -> AsyncIterator[Carrier]:
    """Close a carrier at the end."""
    try:
        yield carrier
    finally:
        await carrier.close()


async def refused(carrier: Carrier, *operations: Operation) -> str:
    """Return the code with which a write is refused."""
    with pytest.raises(WritesRefused) as caught:
        await carrier.write(operations)
    assert caught.value.hint
    return caught.value.code


async def reads(carrier: Carrier, key: EntityKey | None = None, condition: str = "") -> str:
    """Return "" when a read may be done, otherwise the code of its refusal."""
    try:
        async with carrier.reading(key, keys_asked(condition)):
            return ""
    except WritesRefused as refused:
        return refused.code
