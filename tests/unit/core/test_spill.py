"""Records on disk: everything comes back, in bounded groups, and nothing stays behind."""

import stat
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rekey.core import spill as module
from rekey.core.spill import Spill, hash_of
from rekey.errors import MachineFailed


def by_first(record: list[Any]) -> int:
    return hash_of(str(record[0]))


def test_what_is_on_the_disk_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUFFERED_RECORDS", 1)
    with Spill(tmp_path, by_first) as spill:
        for _ in range(2):
            spill.put(["ann@mail.example", 1])
        [file] = spill._files.values()
        file._file.seek(0)
        content = file._file.read()
        first, second = content[: len(content) // 2], content[len(content) // 2 :]
        assert b"example" not in content
        assert first[16:] != second[16:]
        assert list(spill.groups()) == [[["ann@mail.example", 1]] * 2]


def test_like_records_come_back_together(tmp_path: Path) -> None:
    with Spill(tmp_path, by_first) as spill:
        for number in range(600):
            spill.put([number % 200, number])
        groups = list(spill.groups())
    where = {}
    for position, group in enumerate(groups):
        for first, _ in group:
            assert where.setdefault(first, position) == position
    assert sorted(record for group in groups for record in group) == sorted([n % 200, n] for n in range(600))


def test_groups_are_split_until_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded: no group is larger than allowed, and like records still meet."""
    monkeypatch.setattr(module, "GROUP_RECORDS", 10)
    with Spill(tmp_path, by_first) as spill:
        for number in range(3000):
            spill.put([number // 2])
        groups = list(spill.groups())
    assert max(map(len, groups)) <= 10
    counts = [Counter(record[0] for record in group) for group in groups]
    assert sum(map(len, counts)) == 1500


def test_records_that_cannot_be_split_come_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million records with one hash must not end in one group."""
    monkeypatch.setattr(module, "GROUP_RECORDS", 10)
    with Spill(tmp_path, by_first) as spill:
        for number in range(25):
            spill.put(["same", number])
        groups = list(spill.groups())
    assert [len(group) for group in groups] == [10, 10, 5]


def test_any_key_survives(tmp_path: Path) -> None:
    """Quotes, newlines, emoji and lone surrogates come back as they were."""
    records: list[list[Any]] = [["a\nb", 'c"d'], ["😀", ""], ["\ud800", "\udfff"], [None, 3]]
    with Spill(tmp_path, by_first) as spill:
        for record in records:
            spill.put(record)
        back = [record for group in spill.groups() for record in group]
    assert sorted(back, key=str) == sorted(records, key=str)


def test_folder_is_private_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else can look in, and nothing is left, even after an error."""
    monkeypatch.setattr(module, "BUFFERED_RECORDS", 1)
    with pytest.raises(RuntimeError), Spill(tmp_path / "made", by_first) as spill:
        [folder] = (tmp_path / "made").iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        spill.put([1])
        for file in folder.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        raise RuntimeError
    assert list((tmp_path / "made").iterdir()) == []


class FullDisk:
    """A file on a disk without room."""

    def seek(self, at: int) -> int:
        return at

    def write(self, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what to do; closing afterwards does not hide it."""

    def full_disk(**_: Any) -> FullDisk:
        return FullDisk()

    monkeypatch.setattr("tempfile.TemporaryFile", full_disk)
    monkeypatch.setattr(module, "BUFFERED_RECORDS", 1)
    with (
        pytest.raises(MachineFailed, match="No space left on device") as caught,
        Spill(tmp_path, by_first) as spill,
    ):
        spill.put(["someone@example.com"])
    assert "make room" in caught.value.hint
    assert "someone" not in str(caught.value)


def test_a_folder_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineFailed):
        Spill(tmp_path / "file", by_first)
