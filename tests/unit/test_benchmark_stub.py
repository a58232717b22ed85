"""The stub reads any key range of source and target, in order: who splits a table reads all of it."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from benchmarks.project import USERS
from benchmarks.shape import Mapped, Shape
from benchmarks.stub import Stub, parser
from rekey.model import EntityKey, KeyRange
from rekey.tables.wire import range_filters


def stub(rows: int) -> Stub:
    return Stub(parser().parse_args([str(rows), "--partitions", "4", "--target"]))


def read(of: Stub, table: str, within: KeyRange) -> list[tuple[str, str]]:
    """Return the keys that the pages of a range hold."""
    keys: list[tuple[str, str]] = []
    for one in range_filters(within):
        following: str | None = ""
        while following is not None:
            query = f"$filter={quote(one)}&$top=7{following}"
            _, headers, body = of.answer(f"GET /stub/{table}()?{query} HTTP/1.1".encode(), b"")
            keys += [(row["PartitionKey"], row["RowKey"]) for row in json.loads(body)["value"]]
            _, more, number = headers.partition(b"NextRowKey: ")
            following = f"&NextRowKey={number.decode().strip()}" if more else None
    return keys


def test_source_and_target_are_in_key_order_and_half_of_the_source_in_one_partition_if_asked() -> None:
    for shape in (Shape(1000), Shape(1000, huge=True), Mapped(Shape(1000))):
        keys = [shape.key(number) for number in range(shape.rows)]
        assert keys == sorted(set(keys))
        assert len(keys) == 1000
    huge = Shape(1000, huge=True)
    assert sum(huge.key(number)[0] == "tenant-100-huge" for number in range(huge.rows)) == 500


@pytest.mark.parametrize("table", [USERS.source, USERS.tables[0]])
@pytest.mark.parametrize("at", [0, 12, 24, 25, 60, 99])
def test_two_halves_of_a_table_are_the_table_wherever_it_is_split(table: str, at: int) -> None:
    of = stub(100)
    shape = of.shape if table == USERS.source else of.target
    everything = [shape.key(number) for number in range(100)]
    middle = EntityKey(*everything[at])
    assert read(of, table, KeyRange(None, middle)) == everything[: at + 1]
    assert read(of, table, KeyRange(middle, None)) == everything[at + 1 :]
