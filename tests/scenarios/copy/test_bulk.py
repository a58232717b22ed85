"""Bulk inserts tell what was in the way and never overwrite; bulk reads find what is there."""

from __future__ import annotations

import pytest

from rekey.model import EntityKey, Row, content_of, key_of
from rekey.tables.base import Operation, Verb
from rekey.tables.bulk import insert_absent, read_keys
from tests.asserts.every import every
from tests.fakes.memory import MemoryTable, MemoryTableService


def row(number: int, note: str = "") -> Row:
    return {"PartitionKey": "p", "RowKey": f"{number:05}", "Note": note}


@pytest.fixture
async def table(memory: MemoryTableService) -> MemoryTable:
    await memory.create_table("Things")
    return memory.table("Things")


async def test_bulk_insert_keeps_existing_rows(memory: MemoryTableService, table: MemoryTable) -> None:
    for number in (3, 50, 99):
        await table.insert(row(number, "first"))
    batch = [Operation(Verb.INSERT, row(number, "second")) for number in range(100)]
    present = await insert_absent(table, batch)
    assert {key.row for key in present} == {"00003", "00050", "00099"}
    assert every(found["Note"] == "first" for found in present.values())
    notes = [content_of(found)["Note"] for found in memory.dump("Things")]
    assert len(notes) == 100
    assert notes.count("first") == 3


async def test_a_single_row_that_exists_is_returned(table: MemoryTable) -> None:
    await table.insert(row(1, "first"))
    present = await insert_absent(table, [Operation(Verb.INSERT, row(1, "second"))])
    assert [found["Note"] for found in present.values()] == ["first"]


@pytest.mark.parametrize("step", [1, 3, 500], ids=["close together", "near", "far apart"])
async def test_keys_are_found_however_far_apart_they_lie(table: MemoryTable, step: int) -> None:
    for number in range(3000):
        await table.insert(row(number))
    asked = [EntityKey("p", f"{number:05}") for number in range(0, 2800, step)][:100]
    absent = EntityKey("p", "00000a")
    found = await read_keys(table, [*asked, absent])
    assert set(found) == set(asked)
    assert every(key_of(content) == key for key, content in found.items())
