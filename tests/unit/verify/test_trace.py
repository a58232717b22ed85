"""Which pages have to be read again: those with a row that has no equal one on the other side, no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from rekey.errors import MachineFailed
from rekey.model import EntityKey, KeyRange
from rekey.verify import trace as module
from rekey.verify.bucket_digests import SOURCE
from rekey.verify.trace import Trace, group_of

FIRST, SECOND, THIRD = (KeyRange(None, EntityKey("p", f"{number}")) for number in range(3))


def digest(number: int) -> bytes:
    return number.to_bytes(16)


def noted(trace: Trace, table: int, within: KeyRange, rows: dict[int, int]) -> None:
    """Note a page with rows of some buckets, by their numbers."""
    trace.begin_page(table, within, len(rows))
    for number, bucket in rows.items():
        trace.note(bucket, digest(number))


def filled(trace: Trace) -> None:
    """Row 3 is missing, row 4 is extra, all others are equal."""
    noted(trace, SOURCE, FIRST, {1: 10, 2: 20})
    noted(trace, SOURCE, SECOND, {3: 30})
    noted(trace, 0, THIRD, {1: 10, 2: 20, 4: 9_000})


@pytest.mark.parametrize("held", [400_000, 1])
def test_unmatched_rows_name_their_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """In memory or on the disk."""
    monkeypatch.setattr(module, "BUFFERED_ROWS", held)
    with Trace(tmp_path) as trace:
        filled(trace)
        found = trace.left_over({30, 9_000})
        assert found == {1: {digest(3): group_of(30)}, 2: {digest(4): group_of(9_000)}}
        assert [trace.page(number) for number in found] == [(SOURCE, SECOND), (0, THIRD)]
        assert trace.left_over(()) == {}
    assert list(tmp_path.iterdir()) == []


def test_rows_that_are_expected_twice_and_there_once_are_all_told(tmp_path: Path) -> None:
    with Trace(tmp_path) as trace:
        noted(trace, SOURCE, FIRST, {1: 10})
        noted(trace, SOURCE, SECOND, {1: 10})
        noted(trace, 0, THIRD, {1: 10})
        found = trace.left_over({10})
        assert found is not None and set(found) == {0, 1, 2}


def test_a_page_with_a_refused_row_is_told_without_a_digest(tmp_path: Path) -> None:
    with Trace(tmp_path) as trace:
        noted(trace, SOURCE, FIRST, {})
        trace.note_refused()
        assert trace.left_over(()) == {0: {}}


def test_of_too_many_none_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    with Trace(tmp_path) as trace:
        filled(trace)
        assert trace.left_over({30, 9_000}) is not None
        noted(trace, 0, THIRD, {5: 30})
        assert trace.left_over({30, 9_000}) is None


def test_spilled_data_is_opaque_and_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Trace(tmp_path) as trace:
        trace.begin_page(SOURCE, KeyRange(None, EntityKey("p", "ann@mail.example")), 1)
        trace._file._file.seek(0)
        assert b"ann@mail" not in trace._file._file.read()

    def full_disk(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full_disk)
    with pytest.raises(MachineFailed, match="No space left"):
        Trace(tmp_path)
