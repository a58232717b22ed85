"""Files that are written whole or not at all: durable, private, and never written through somebody's link."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rekey.cli.main import run
from rekey.errors import ConfigurationError, ExitCode
from rekey.plan.planfile import write_output
from rekey.project.privatefiles import write_new, write_private, write_whole
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


@contextmanager
def full_disk() -> Iterator[None]:
    """Let the kernel take no more than eight bytes of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("write", [write_private, write_new])
def test_a_new_file_that_a_full_disk_cut_off_is_removed(
    tmp_path: Path, write: Callable[[Path, bytes], None]
) -> None:
    path = tmp_path / "sealing.key"
    with full_disk(), pytest.raises(OSError, match="large"):
        write(path, b"x" * 64)
    assert not path.exists()
    write(path, b"x" * 64)
    with full_disk(), pytest.raises(FileExistsError):
        write(path, b"y" * 64)
    assert path.read_bytes() == b"x" * 64


@pytest.mark.parametrize(
    ("command", "made"),
    [
        (["init"], {"migrations"}),
        (["new", "users"], {"migrations"}),
        (["evidence", "keygen", "evidence.pem"], set[str]()),
    ],
)
def test_a_command_that_a_full_disk_cut_off_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], made: set[str]
) -> None:
    """A script that was cut off made every later command refuse, an empty key was kept as if it were one."""
    monkeypatch.chdir(tmp_path)
    if command[0] == "new":
        assert run(["init"]) == ExitCode.DONE
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with full_disk():
        assert run(command) == ExitCode.USAGE
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} <= made
    assert run(command) == ExitCode.DONE
