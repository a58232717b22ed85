"""Trying whether keys with odd characters arrive as they are: at addresses of rows, and in queries.

Rules kept here:

* What is tried stands in a partition of its own; rows that an interrupted probe left are taken over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rekey.errors import ServiceError
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row, key_of
from rekey.tables.base import Operation, Table, Verb

# The partition in which rows are tried. No application's: it holds every odd character.
PROBE_PARTITION = "rekey probe %25+'\u00e9."
# RowKeys by what they try.
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


async def probe_odd_keys(table: Table, partition: str = PROBE_PARTITION) -> Misread:
    """Write a row for each kind of odd key in one transaction, read it both ways, and delete them all.

    Rows that an interrupted probe left are taken over.

    Raises:
        ServiceError: the rows could not be written or deleted.
    """
    rows: list[Row] = [{PARTITION_KEY: partition, ROW_KEY: key} for key in ODD_KEYS.values()]
    await table.transact([Operation(Verb.INSERT_OR_REPLACE, row) for row in rows])
    keys = dict(zip(ODD_KEYS, map(key_of, rows), strict=True))
    try:
        addressed = await asyncio.gather(*(_arrives(table.at_address, key) for key in keys.values()))
        queried = await asyncio.gather(*(_arrives(table.by_query, key) for key in keys.values()))
    finally:
        await table.transact([Operation(Verb.DELETE, row, "*") for row in rows])
    wrong = [
        tuple(name for name, arrives in zip(keys, answers, strict=True) if not arrives)
        for answers in (addressed, queried)
    ]
    return Misread(*wrong)


async def _arrives(read: Callable[..., Awaitable[Row | None]], key: EntityKey) -> bool:
    """Tell whether the row of a key is read. A refusal is an answer, too: a changed address breaks the
    signature."""
    try:
        row = await read(key, select=(ROW_KEY,))
    except ServiceError:
        return False
    return row is not None and key_of(row) == key
