"""Files that are replaced whole: durable, private, and never written through somebody's link."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rekey.errors import ConfigurationError
from rekey.plan.planfile import write_output
from rekey.project.privatefiles import write_whole
from rekey.stress.run import Notes


def test_a_file_is_replaced_whole_and_its_owner_alone_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("before")
    path.chmod(0o644)
    write_whole(path, b"after")
    assert path.read_bytes() == b"after"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "plan.json"
    elsewhere.write_text("kept")
    path.symlink_to(elsewhere)
    write_whole(path, b"after")
    assert elsewhere.read_text() == "kept"
    assert not path.is_symlink() and path.read_bytes() == b"after"


def test_no_link_waits_at_the_temporary_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that can be guessed, with the process id or `.new`, are not used; each time it is another."""
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "state.sqlite.stress"
    elsewhere.write_text("kept")
    links = [tmp_path / f".{path.name}.{os.getpid()}", tmp_path / f"{path.name}.new"]
    for link in links:
        link.symlink_to(elsewhere)
    used: list[Path] = []
    replace = Path.replace

    def note(self: Path, target: Path) -> Path:
        used.append(self)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", note)
    write_output("text", path, option="--out")
    Notes(tmp_path / "state.sqlite").add("rekeystress0123456789abcdef", "https://a")
    write_whole(path, b"")
    assert elsewhere.read_text() == "kept" and all(link.is_symlink() for link in links)
    assert len({one.name for one in used}) == 3
    assert {one.parent for one in used} == {tmp_path}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "plan.json"
    path.write_text("before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigurationError, match="No space left on device"):
        write_output("after", path, option="--out")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
