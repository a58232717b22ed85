"""Checks whether keys with odd characters arrive unchanged: at addresses of rows, and in queries."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rekey.errors import RequestRejected, ServiceError, Unavailable
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row, key_of
from rekey.tables.base import Operation, Table, Verb

_PARTITION = "probe"
# Seconds for which an odd address is tried: something on the way may cut the connection each time.
_MOST_S = 5.0
# RowKeys by what they test.
ODD_KEYS = {
    "%25": "a%25b",
    "%2F": "a%2Fb",
    "spaces": " a  b ",
    "+": "a+b",
    "quotes": "it's",
    "characters outside ASCII": "\u00e9 e\u0301 \u6f22 \U0001f600",
    "dots": "..a..",
}


@dataclass(frozen=True, slots=True)
class Misread:
    """What is not read as it was written: names of `ODD_KEYS`."""

    at_addresses: tuple[str, ...]
    in_queries: tuple[str, ...]


async def probe_odd_keys(table: Table, partition: str = _PARTITION) -> Misread:
    """Write a row for each odd key in one transaction, read it both ways, and delete them all. Rows of an
    interrupted probe are replaced. Raises ServiceError: the rows could not be written, queried or deleted."""
    rows: list[Row] = [{PARTITION_KEY: partition, ROW_KEY: key} for key in ODD_KEYS.values()]
    await table.transact([Operation(Verb.INSERT_OR_REPLACE, row) for row in rows])
    keys = dict(zip(ODD_KEYS, map(key_of, rows), strict=True))
    try:
        addressed = await asyncio.gather(*(_arrives(table, key) for key in keys.values()))
        queried = await asyncio.gather(*(_is_found(table, key) for key in keys.values()))
    finally:
        await table.transact([Operation(Verb.DELETE, row, "*") for row in rows])
    wrong = [
        tuple(name for name, arrives in zip(keys, answers, strict=True) if not arrives)
        for answers in (addressed, queried)
    ]
    return Misread(*wrong)


async def _arrives(table: Table, key: EntityKey) -> bool:
    """Tell whether the row of a key is read at its address, as far as there is an answer."""
    try:
        async with asyncio.timeout(_MOST_S):
            row = await table.at_address(key, select=(ROW_KEY,))
    except (Unavailable, TimeoutError):
        return True  # busy, or not reached: unknown
    except ServiceError:
        # A refusal is an answer: an address that was changed does not fit its signature.
        return False
    return row is not None and key_of(row) == key


async def _is_found(table: Table, key: EntityKey) -> bool:
    """Tell whether a query for a key returns its row; a refused one does not."""
    try:
        row = await table.by_query(key, select=(ROW_KEY,))
    except RequestRejected:
        return False
    return row is not None and key_of(row) == key
