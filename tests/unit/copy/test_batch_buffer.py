"""Gathering: batches fill across windows, nothing waits for ever, no key stands twice in a batch."""

from __future__ import annotations

from rekey.copy.batches import BatchBuffer
from rekey.copy.map import CopyWindow, Write
from rekey.model import EntityKey
from rekey.tables.base import Verb
from tests.fakes.clock import FakeClock
from tests.fakes.memory import MemoryTableService


def held(windows: int = 2) -> BatchBuffer:
    return BatchBuffer(MemoryTableService(clock=FakeClock()).table("Users"), windows)


def writes(window: int, partition: str, *rows: str) -> list[Write]:
    of = CopyWindow(number=window)
    return [
        Write(
            Verb.INSERT, {"PartitionKey": partition, "RowKey": row}, source=EntityKey("old", row), window=of
        )
        for row in rows
    ]


def numbered(window: int, partition: str, begin: int, count: int) -> list[Write]:
    return writes(window, partition, *(f"{number:04}" for number in range(begin, begin + count)))


def test_a_partition_that_is_rare_in_every_window_still_fills_its_batches() -> None:
    buffer = held(windows=10)
    sent = []
    for window in range(1, 8):
        sent += buffer.add("rare", numbered(window, "rare", window * 30, 30))[0]
        buffer.add("much", numbered(window, "much", 0, 250))
    assert [len(batch) for batch in sent] == [100, 100]
    assert sum(map(len, buffer.release_all())) >= 10


def test_what_fills_no_batch_is_written_when_it_has_been_held_long_enough() -> None:
    buffer = held(windows=2)
    assert buffer.add("p", writes(1, "p", "a"))[0] == []
    assert list(buffer.release(newest=2)) == []
    assert [len(batch) for batch in buffer.release(newest=3)] == [1]
    assert list(buffer.release(newest=9)) == []


def test_a_window_that_was_overtaken_is_not_forgotten() -> None:
    """Its rows come behind those of a later window, and still leave when their own time has come."""
    buffer = held(windows=2)
    buffer.add("p", writes(2, "p", "b"))
    buffer.add("p", writes(1, "p", "a"))
    assert [len(batch) for batch in buffer.release(newest=3)] == [2]


def test_two_rows_that_want_one_key_never_stand_in_one_batch() -> None:
    buffer = held()
    buffer.add("p", writes(1, "p", "same", "other"))
    full, twice = buffer.add("p", writes(2, "p", "same", "more"))
    assert full == []
    assert [write.window.number for write in twice] == [2]
    [batch] = buffer.release_all()
    assert sorted(write.row["RowKey"] for write in batch) == ["more", "other", "same"]


def test_rows_that_were_held_leave_first() -> None:
    buffer = held()
    buffer.add("p", writes(1, "p", "z"))
    [batch], _ = buffer.add("p", numbered(2, "p", 0, 150))
    assert len(batch) == 100
    assert batch[0].row["RowKey"] == "z"
