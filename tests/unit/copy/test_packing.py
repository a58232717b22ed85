"""Packing: batches within the service's limits, nothing lost, nothing twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rekey.copy.batches import pack
from rekey.model import Row
from rekey.tables.base import MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, Operation, Verb


def insert(partition: str, row: str, size: int = 100) -> Operation:
    content: Row = {"PartitionKey": partition, "RowKey": row, "Size": size}
    return Operation(Verb.INSERT, content)


def size_of(operation: Operation) -> int:
    size: int = operation.row["Size"]
    return size


operations = st.lists(
    st.builds(
        insert,
        st.sampled_from(["a", "b", "c"]),
        st.text(max_size=5),
        st.sampled_from([1, 1000, MAX_BATCH_BYTES // 3]),
    ),
    max_size=300,
    unique_by=lambda operation: operation.key,
)


@given(operations)
def test_every_operation_is_in_exactly_one_batch_of_its_partition(given_operations: list[Operation]) -> None:
    batches = list(pack(given_operations, size_of))
    packed = [operation.key for batch in batches for operation in batch]
    assert sorted(packed) == sorted(operation.key for operation in given_operations)
    for batch in batches:
        assert len({operation.key.partition for operation in batch}) == 1
        assert len(batch) <= MAX_BATCH_OPERATIONS
        assert sum(map(size_of, batch)) <= MAX_BATCH_BYTES


def test_full_batches_hold_a_hundred_rows_however_partitions_are_interleaved() -> None:
    interleaved = [insert(f"p{number % 2}", f"{number:04}") for number in range(400)]
    assert [len(batch) for batch in pack(interleaved, size_of)] == [100, 100, 100, 100]


def test_rows_of_a_batch_are_in_the_order_of_the_service() -> None:
    # U+FF5E sorts after an emoji by UTF-16 code unit, before it by code point.
    keys = ["\uff5e", "\U0001f600", "a"]
    [batch] = pack([insert("p", key) for key in keys], size_of)
    assert [operation.key.row for operation in batch] == ["a", "\U0001f600", "\uff5e"]


def test_an_operation_that_alone_passes_the_limit_stands_alone() -> None:
    batches = list(pack([insert("p", "1"), insert("p", "2", MAX_BATCH_BYTES + 1), insert("p", "3")], size_of))
    assert [len(batch) for batch in batches] == [1, 1, 1]
