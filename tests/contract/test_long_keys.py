"""Ranges of rows whose keys are as long as may be: exactly their rows, and no address that is refused.

A CJK character takes 9 bytes in an address. Azurite refuses 16 KiB of request line and headers with 431; the
service's front end has the same limit.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rekey.model import EVERYTHING, LAST_ROW, EntityKey, KeyRange, key_of
from rekey.tables.answers import Answer
from rekey.tables.base import Operation, Table, TableService, Verb
from rekey.tables.bulk import read_keys
from rekey.tables.split import find_middle
from rekey.tables.transport import Request, Transport
from rekey.tables.wire import MAX_ADDRESS_BYTES

PARTITIONS = ["漢" * 500, "漢" * 500 + "字" * 12, "漢" * 250 + "字", "'" * 512, "😀" * 250, "p"]
ROWS = ["字" * 507 + f"{number:05}" for number in range(4)] + ["😀" * 253 + "字", "'" * 512, "", "字" * 512]
KEYS = sorted([EntityKey(p, r) for p in PARTITIONS for r in ROWS], key=lambda key: key.order)
absent = [EntityKey(p, r) for p in ("漢" * 511, "😀" * 255) for r in ("字" * 511, "😀" * 256, LAST_ROW)]
bounds = st.none() | st.sampled_from(KEYS + absent)
rows = st.sampled_from([*ROWS, "字" * 511])
ranges = st.builds(KeyRange, bounds, bounds) | st.builds(
    lambda partition, low, high: KeyRange(EntityKey(partition, low), EntityKey(partition, high)),
    *(st.sampled_from(PARTITIONS[:2]), rows, rows),
)


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses below the endpoint that queries were sent to; none in memory."""
    found: list[str] = []
    send = Transport.send

    async def note(self: Transport, request: Request) -> Answer:
        if request.method == "GET":
            found.append(request.path)
        return await send(self, request)

    monkeypatch.setattr(Transport, "send", note)
    return found


@pytest.fixture
async def filled(table: Table) -> Table:
    """A table of rows with long keys."""
    for partition in PARTITIONS:
        keys = [{"PartitionKey": partition, "RowKey": row} for row in ROWS]
        await table.transact([Operation(Verb.INSERT, row) for row in keys])
    return table


# The table is only read, so one is enough for all examples.
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    within=st.builds(KeyRange, bounds, bounds), page_rows=st.sampled_from([1, 3, 1000]), delta=st.booleans()
)
async def test_pages_of_a_range_hold_exactly_its_rows(
    filled: Table, addresses: list[str], within: KeyRange, page_rows: int, delta: bool
) -> None:
    since = "2000-01-01T00:00:00.0000000Z" if delta else None
    pages = [page async for page in filled.scan(within, page_rows=page_rows, modified_from=since)]
    assert [key_of(row) for page in pages for row in page.rows] == [key for key in KEYS if key in within]
    assert max((len(page.rows) for page in pages), default=0) <= page_rows
    cursors = [page.cursor.order for page in pages if page.cursor is not None]
    assert cursors == sorted(cursors)
    assert max(map(len, addresses), default=0) <= MAX_ADDRESS_BYTES  # in memory there are none


async def test_a_partition_of_long_keys_is_resumed_split_and_looked_up(
    service: TableService, filled: Table, addresses: list[str]
) -> None:
    """What a copy that was cut off does, workers beside each other, and a batch that met rows."""
    at = KEYS.index(EntityKey(PARTITIONS[1], ROWS[1]))
    found = [key_of(row) async for page in filled.scan(KeyRange(KEYS[at]), page_rows=2) for row in page.rows]
    assert found == KEYS[at + 1 :]
    middle = await find_middle(filled, EVERYTHING)
    assert middle is not None and KEYS[0].order <= middle.order < KEYS[-1].order
    wanted = [key for key in KEYS if key.partition == PARTITIONS[0]]
    assert set(await read_keys(filled, [*wanted[1:], EntityKey(PARTITIONS[0], "字" * 511)])) == set(
        wanted[1:]
    )
    assert max(map(len, addresses), default=0) <= MAX_ADDRESS_BYTES  # in memory there are none
