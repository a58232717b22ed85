"""The collision search: exact, bounded in memory, and nothing readable on disk."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import pytest

from rekey.core import spill
from rekey.core.spill import OverBound
from rekey.errors import MachineFailed
from rekey.model import EntityKey, Row
from rekey.plan import collisions
from rekey.plan.collisions import CollisionSearch
from rekey.plan.result import Collisions
from tests.asserts.every import every

TABLES = ("UsersV2", "UsersByTag")


Numbered = tuple[str, str, int]
"""Both keys of a target row, and the number of the source row that it comes from."""


def take(search: CollisionSearch, table: int, rows: Iterable[Numbered]) -> None:
    made = [({"PartitionKey": key, "RowKey": row}, source(number)) for key, row, number in rows]
    for start in range(0, len(made), 1000):
        targets, sources = zip(*made[start : start + 1000], strict=True)
        search.take(table, targets, sources)


def source(number: int) -> Row:
    return {"PartitionKey": "old", "RowKey": f"{number:08}"}


def name(key: EntityKey) -> str:
    return f"id of {key.row}"


def ended(search: CollisionSearch, *, show_keys: bool = False) -> Collisions:
    return search.finish(TABLES, name, exact=True, show_keys=show_keys)


@pytest.mark.parametrize("key", [8, 60, 200])
def test_the_disk_that_rows_need_is_known_from_few_of_them(tmp_path: Path, key: int) -> None:
    old: Row = {"PartitionKey": "p" * key, "RowKey": "r" * key}
    rows = [({"PartitionKey": "p", "RowKey": f"{number}"}, old) for number in range(40_000)]
    with CollisionSearch(tmp_path) as few, CollisionSearch(tmp_path) as search:
        few.take(0, *zip(*rows[:1000], strict=True))
        expected = few.needed_bytes(len(rows))
        assert few.file_bytes == 0
        for start in range(0, len(rows), 1000):
            search.take(0, *zip(*rows[start : start + 1000], strict=True))
        written = search.records - sum(map(len, search._waiting))
        assert search.file_bytes * len(rows) / written == pytest.approx(expected / (1 + 1 / 32), rel=0.03)
        assert search.needed_bytes(len(rows)) == pytest.approx(expected, rel=0.03)


def test_files_stay_within_their_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collisions, "GROUP_RECORDS", 500)
    most = 200_000

    def used() -> int:
        return sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())

    with CollisionSearch(tmp_path, most_bytes=most) as search, pytest.raises(OverBound):
        for start in range(0, 100_000, 4096):
            take(search, 0, (("p", f"r{number}", number) for number in range(start, start + 4096)))
            assert used() <= most + 32 * 8192
    with CollisionSearch(tmp_path, most_bytes=2 * most) as search:
        # All in one group: spread again and again, it would need a multiple.
        take(search, 0, (("p", "r", number) for number in range(8192)))
        with pytest.raises(OverBound):
            ended(search)


def test_every_key_taken_twice_is_found_and_nothing_else(tmp_path: Path) -> None:
    with CollisionSearch(tmp_path) as search:
        take(search, 0, (("p", f"r{number}", number) for number in range(5_000)))
        take(search, 0, (("p", f"r{number}", 10_000 + number) for number in (17, 4_000)))
        take(search, 0, [("p", "r17", 20_000)])
        take(search, 1, [("p", "r18", 18)])  # another table: no collision
        take(search, 0, [("pr", "5", 5)])  # the same characters, cut elsewhere
        found = ended(search)
    assert (found.keys, found.rows) == (2, 5)
    assert [(group.table, group.rows, group.row_ids, group.old_keys) for group in found.first] == [
        ("UsersV2", 3, ("id of 00000017", "id of 00010017", "id of 00020000"), None),
        ("UsersV2", 2, ("id of 00004000", "id of 00014000"), None),
    ]


def test_keys_are_kept_only_when_they_are_asked_for(tmp_path: Path) -> None:
    with CollisionSearch(tmp_path) as search:
        take(search, 0, [("p", "r", 2), ("p", "r", 1)])
        [group] = ended(search, show_keys=True).first
    assert group.old_keys == (EntityKey("old", "00000001"), EntityKey("old", "00000002"))


def test_parts_that_are_too_large_are_spread_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collisions, "GROUP_RECORDS", 10)
    monkeypatch.setattr(spill, "BUFFERED_RECORDS", 100)
    with CollisionSearch(tmp_path) as search:
        take(search, 0, (("p", str(n // 2 if n < 100 else n), n) for n in range(6_000)))
        found = ended(search)
    assert (found.keys, found.rows) == (50, 100)


def test_all_rows_on_one_key_are_counted_without_being_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collisions, "GROUP_RECORDS", 1_000)
    monkeypatch.setattr(spill, "BUFFERED_RECORDS", 100)
    with CollisionSearch(tmp_path) as search:
        take(search, 0, (("p", "same", number) for number in range(2_000)))
        found = ended(search)
    assert (found.keys, found.rows, len(found.first[0].row_ids)) == (1, 2_000, collisions.FIRST_ROWS)


def test_memory_is_flat_from_2_000_to_16_000_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collisions, "GROUP_RECORDS", collisions.GROUP_RECORDS // 10)
    monkeypatch.setattr(spill, "BUFFERED_RECORDS", spill.BUFFERED_RECORDS // 10)
    peaks = []
    for rows in (2_000, 16_000):
        tracemalloc.start()
        with CollisionSearch(tmp_path) as search:
            for start in range(0, rows, 1000):
                take(search, 0, (("p", f"r{number}", number) for number in range(start, start + 1000)))
            assert ended(search).keys == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.25 * peaks[0], peaks


def test_temporary_files_hold_no_key_and_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[IO[bytes]] = []
    make = tempfile.TemporaryFile

    def made_file(**how: Any) -> IO[bytes]:
        files.append(make(**how))
        return files[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", made_file)
    with CollisionSearch(tmp_path) as search:
        anna: Row = {"PartitionKey": "anna@mail.example", "RowKey": "anna@"}
        for number in range(6):
            made: list[Row] = [{"PartitionKey": "p", "RowKey": f"{number} {n}"} for n in range(1_000)]
            search.take(0, made, [anna] * 1_000)
        for file in files:
            file.seek(0)
        held = [file.read() for file in files]
        assert len(held) == 32
        assert not any(b"anna@" in part for part in held), "four letters would come up by chance"
        assert ended(search).keys == 0
    assert not list(tmp_path.iterdir()) and every(file.closed for file in files)


def test_few_rows_need_no_file(tmp_path: Path) -> None:
    with CollisionSearch(tmp_path) as search:
        take(search, 0, (("p", f"r{number % 1_999}", number) for number in range(2_000)))
        assert ended(search).keys == 1
        assert not search._files


def test_a_disk_that_fails_is_the_machines_failure_and_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MachineFailed, match="Next: make room"):
        (tmp_path / "file").write_text("")
        CollisionSearch(tmp_path / "file")
