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


def test_limits_of_account_and_partitions_are_enforced_and_change_under_way() -> None:
    now = [100.0]
    words = ["100", "--limits", "--account-rate", "1000,10:4000", "--partition-rate", "500"]
    of = Stub(parser().parse_args(words), lambda: now[0])

    def written(partitions: int, seconds: int) -> float:
        """Write ten rows a request, as often as is let through; return rows a second."""
        before = of.counts["written"]
        for _ in range(seconds * 500):
            for number in range(partitions):
                operations = b"".join(
                    b"Content-Transfer-Encoding: binary\r\n\r\nPOST http://stub/T HTTP/1.1\r\n\r\n"
                    b'{"PartitionKey": "p%d", "RowKey": "r"}\r\n' % number
                    for _ in range(10)
                )
                of.answer(b"POST /stub/$batch HTTP/1.1", operations)
            now[0] += 0.002
        return (of.counts["written"] - before) / seconds

    written(1, 1)  # what may come at once is used up
    assert written(1, 3) == pytest.approx(500, rel=0.1)
    assert written(4, 3) == pytest.approx(1_000, rel=0.2)
    now[0] = 110.0
    written(20, 1)
    assert written(20, 3) == pytest.approx(4_000, rel=0.1)
    assert of.counts["refused"] == sum(of.refused.values()) > 0
