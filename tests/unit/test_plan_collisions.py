"""The collision search: exact, bounded in memory, and nothing readable on disk."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from rekey.core import spill
from rekey.errors import MachineFailed
from rekey.model import EntityKey
from rekey.plan import collisions
from rekey.plan.collisions import CollisionSearch
from tests.every import every

TABLES = ("UsersV2", "UsersByTag")


def source(number: int) -> bytes:
    return number.to_bytes(20, "big")


def test_every_key_taken_twice_is_found_and_nothing_else(tmp_path: Path) -> None:
    with CollisionSearch(tmp_path) as search:
        for number in range(5_000):
            search.add(0, EntityKey("p", f"r{number}"), source(number))
        for number in (17, 4_000):
            search.add(0, EntityKey("p", f"r{number}"), source(10_000 + number))
        search.add(0, EntityKey("p", "r17"), source(20_000))
        search.add(1, EntityKey("p", "r18"), source(18))  # another table: no collision
        search.add(0, EntityKey("pr", "5"), source(5))  # the same characters, cut elsewhere
        found = search.finish(TABLES, exact=True)
    assert (found.keys, found.rows) == (2, 5)
    assert [(group.rows, group.sources) for group in found.first] == [
        (3, (source(17), source(10_017), source(20_000))),
        (2, (source(4_000), source(14_000))),
    ]
    assert every(len(row_id) == 12 for group in found.first for row_id in group.row_ids)


def test_parts_that_are_too_large_are_spread_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "GROUP_RECORDS", 10)
    monkeypatch.setattr(spill, "BUFFERED_RECORDS", 100)
    with CollisionSearch(tmp_path) as search:
        for number in range(6_000):
            search.add(0, EntityKey("p", str(number // 2 if number < 100 else number)), source(number))
        found = search.finish(TABLES, exact=True)
    assert (found.keys, found.rows) == (50, 100)


def test_all_rows_on_one_key_are_counted_without_being_held(tmp_path: Path) -> None:
    with CollisionSearch(tmp_path) as search:
        for number in range(100_000):
            search.add(0, EntityKey("p", "same"), source(number))
        found = search.finish(TABLES, exact=True)
    assert (found.keys, found.rows, len(found.first[0].sources)) == (1, 100_000, collisions.FIRST_ROWS)


def test_memory_is_flat_from_30_000_to_120_000_rows(tmp_path: Path) -> None:
    peaks = []
    for rows in (30_000, 120_000):
        tracemalloc.start()
        with CollisionSearch(tmp_path) as search:
            for number in range(rows):
                search.add(0, EntityKey("p", f"r{number}"), source(number))
            assert search.finish(TABLES, exact=True).keys == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 20 * 1024 * 1024
    assert peaks[1] < peaks[0] + 8 * 1024 * 1024


def test_temporary_files_hold_no_key_and_are_gone_afterwards(tmp_path: Path) -> None:
    with CollisionSearch(tmp_path) as search:
        for number in range(6_000):
            search.add(0, EntityKey("anna@mail.example", f"r{number}"), source(number))
        files = [sealed._file for sealed in search._files.values()]
        for file in files:
            file.seek(0)
        held = [file.read() for file in files]
        assert len(held) == 32
        assert not any(b"anna@" in part for part in held), "four letters would come up by chance"
        assert search.finish(TABLES, exact=True).keys == 0
    assert not list(tmp_path.iterdir())


def test_few_rows_need_no_file(tmp_path: Path) -> None:
    with CollisionSearch(tmp_path) as search:
        for number in range(2_000):
            search.add(0, EntityKey("p", f"r{number % 1_999}"), source(number))
        assert search.finish(TABLES, exact=True).keys == 1
        assert not search._files


def test_a_disk_that_fails_is_the_machines_failure_and_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MachineFailed, match="Next: make room"):
        (tmp_path / "file").write_text("")
        CollisionSearch(tmp_path / "file")
