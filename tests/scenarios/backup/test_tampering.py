"""What was done to an export is found before the first row is written, and named."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekey.backup.manifest import Cover, Manifest, Part, uncovered
from rekey.model import EntityKey, KeyRange
from tests.asserts.command_line import Commands
from tests.worlds.backups import filled, manifest_of, parts_of, small_parts
from tests.worlds.odd_rows import generic
from tests.worlds.projects import Project

Harm = Callable[[Path, Path], None]


def parts(folder: Path) -> list[Path]:
    """Return the files of the parts, in the order of the manifest."""
    return [folder / part["file"] for part in manifest_of(folder)["parts"]]


def changed_part(folder: Path, _other: Path) -> None:
    path = parts(folder)[2]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncated_part(folder: Path, _other: Path) -> None:
    path = parts(folder)[2]
    path.write_bytes(path.read_bytes()[:-1])


def longer_part(folder: Path, _other: Path) -> None:
    path = parts(folder)[2]
    path.write_bytes(path.read_bytes() + b"\0")


def missing_part(folder: Path, _other: Path) -> None:
    parts(folder)[2].unlink()


def folder_for_a_part(folder: Path, _other: Path) -> None:
    path = parts(folder)[2]
    path.unlink()
    path.mkdir()


def pipe_for_a_part(folder: Path, _other: Path) -> None:
    path = parts(folder)[2]
    path.unlink()
    os.mkfifo(path)


def exchanged_parts(folder: Path, _other: Path) -> None:
    first, second = parts(folder)[2:4]
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])


def part_of_another(folder: Path, other: Path) -> None:
    parts(folder)[2].write_bytes(parts(other)[2].read_bytes())


def manifest_of_another(folder: Path, other: Path) -> None:
    (folder / "manifest.json").write_bytes((other / "manifest.json").read_bytes())


def edited(change: Callable[[dict[str, Any]], None]) -> Harm:
    """Return the harm of a manifest that was edited."""

    def edit(folder: Path, _other: Path) -> None:
        document = manifest_of(folder)
        change(document)
        (folder / "manifest.json").write_text(json.dumps(document), "utf-8")

    return edit


def bytes_of_manifest(data: bytes) -> Harm:
    return lambda folder, _other: (folder / "manifest.json").write_bytes(data) and None


HARMS: dict[str, tuple[Harm, str]] = {
    "a changed part": (changed_part, "part 3 of 6, is not what was exported: its SHA-256 differs"),
    "a truncated part": (truncated_part, "part 3 of 6, has "),
    "a longer part": (longer_part, "part 3 of 6, has "),
    "a missing part": (missing_part, "part 3 of 6, is missing"),
    "a folder for a part": (folder_for_a_part, "part 3 of 6, is missing"),
    "a pipe for a part": (pipe_for_a_part, "part 3 of 6, is missing"),
    "exchanged parts": (exchanged_parts, "part 3 of 6, holds another part of the export"),
    "a part of another export": (part_of_another, "part 3 of 6, "),
    "the manifest of another export": (manifest_of_another, "is that of another export"),
    "a manifest without a part": (edited(lambda it: it["parts"].pop(2)), "manifest.json in"),
    "a manifest without the last part": (edited(lambda it: it["parts"].pop()), "manifest.json in"),
    "reordered parts": (edited(lambda it: it["parts"].reverse()), "manifest.json in"),
    "another count": (edited(lambda it: it["parts"][2].update(rows=1)), "manifest.json in"),
    "another digest": (edited(lambda it: it.update(digest="0" * 64)), "manifest.json in"),
    "another table": (edited(lambda it: it.update(table="Others")), "manifest.json in"),
    "a manifest without a proof": (edited(lambda it: it.pop("proof")), "manifest.json in"),
    "a manifest of another format": (edited(lambda it: it.update(format="v2")), "manifest.json in"),
    "a manifest that is cut off": (bytes_of_manifest(b'{"format": "rekey/export/v1", '), "manifest.json in"),
    "a manifest that is no object": (bytes_of_manifest(b"[]"), "manifest.json in"),
    "a manifest that is nested too deep": (bytes_of_manifest(b"[" * 100_000), "manifest.json in"),
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("options", [("--plain",), ()], ids=["plain", "sealed"])
def test_what_was_done_to_an_export_is_refused_and_named(
    project: Project,
    rekey: Commands,
    tmp_path: Path,
    options: tuple[str, ...],
    harm: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_parts(monkeypatch, rows=16)
    folder, other = exports(project, rekey, tmp_path, options)
    act, message = HARMS[harm]
    act(folder, other)
    said = rekey("import", str(folder), "Back", *options, code=3)
    assert message in said.err
    assert "Nothing was written." in said.err
    assert not project.tables._tables.keys() & {"back"}, "nothing was created"


@pytest.mark.parametrize("name", ["manifest.json", "a part"])
def test_a_file_that_may_not_be_read_is_named(
    project: Project, rekey: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder, _ = exports(project, rekey, tmp_path, ())
    unreadable = folder / name if name == "manifest.json" else parts(folder)[0]
    read_bytes = Path.read_bytes

    def read(path: Path) -> bytes:
        if path == unreadable:
            raise PermissionError(13, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    said = rekey("import", str(folder), "Back", code=2)
    assert f"{unreadable.name} cannot be read (" in said.err
    assert "ermission" in said.err


def exports(project: Project, rekey: Commands, tmp_path: Path, options: tuple[str, ...]) -> tuple[Path, Path]:
    """Export two tables of the same keys; return the folders."""
    filled(project, generic(100))
    filled(project, generic(100, seed=1), "Others")
    folders = tmp_path / "out", tmp_path / "other"
    rekey("export", "Users", str(folders[0]), *options)
    rekey("export", "Others", str(folders[1]), *options)
    return folders


# --- where somebody also made the proof again (in the clear: anybody can) --------------------------------


def forged(change: Callable[[Path, dict[str, Any]], None]) -> Callable[[Path], None]:
    """Return the harm of an export in the clear whose manifest was made to fit."""

    def forge(folder: Path) -> None:
        document = manifest_of(folder)
        change(folder, document)
        del document["proof"]
        document["proof"] = Cover("", None).proof(document)
        (folder / "manifest.json").write_text(json.dumps(document), "utf-8")

    return forge


def rewrite(folder: Path, part: dict[str, Any], lines: bytes, size: int | None = None) -> None:
    """Give a part other lines, with the figures that fit."""
    import hashlib

    data = zlib.compress(lines, 1, 31)
    sha256 = hashlib.sha256(data).hexdigest()
    part.update(bytes=len(lines) if size is None else size, stored=len(data), sha256=sha256)
    part["file"] = Cover("", None).file(sha256)
    (folder / part["file"]).write_bytes(data)


def lines_of(folder: Path, part: dict[str, Any]) -> list[bytes]:
    return zlib.decompress((folder / part["file"]).read_bytes(), 31).splitlines(keepends=True)


def with_lines(change: Callable[[list[bytes]], list[bytes]], size: int | None = None) -> Any:
    def harm(folder: Path, document: dict[str, Any]) -> None:
        part = document["parts"][2]
        rewrite(folder, part, b"".join(change(lines_of(folder, part))), size)

    return forged(harm)


def with_range(change: Callable[[list[dict[str, Any]]], object]) -> Any:
    return forged(lambda _folder, document: change(document["parts"]) and None)


FORGERIES = {
    "a row fewer": (with_lines(lambda lines: lines[1:]), "it has more or fewer rows than it had"),
    "a row twice": (with_lines(lambda lines: [*lines[1:], lines[-1]]), "its rows are not in order"),
    "rows in another order": (with_lines(lambda lines: lines[::-1]), "its rows are not in order"),
    "no JSON": (with_lines(lambda lines: [b"{", *lines[1:]]), "a line is no row"),
    "no row": (with_lines(lambda lines: [b"[]\n", *lines[1:]]), "a line is no row"),
    "a row without a key": (with_lines(lambda lines: [b'{"RowKey":""}\n', *lines[1:]]), "a line is no row"),
    "another value": (
        with_lines(lambda lines: [lines[0].replace(b'"Flag":', b'"Flog":'), *lines[1:]]),
        "do not give the digest",
    ),
    "more bytes than it says": (with_lines(lambda lines: lines, 10), "it has more or fewer bytes"),
    "a size beyond all parts": (with_lines(lambda lines: lines, 1 << 40), "it is larger than any part"),
    "rows without end": (
        with_range(lambda parts: parts[2].update(rows=float("inf"))),
        "manifest.json in",
    ),
    "rows of another range": (
        with_range(lambda parts: parts[2].update(within=[parts[2]["within"][0], ["", ""]])),
        "leaves keys out, or names them twice",
    ),
    "a part that is left out": (with_range(lambda parts: parts.pop(3)), "leaves keys out"),
    "the last part left out": (with_range(lambda parts: parts.pop()), "leaves keys out"),
    "a part twice": (with_range(lambda parts: parts.insert(3, parts[2])), "names them twice"),
    "no part": (with_range(lambda parts: parts.clear()), "leaves keys out"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_an_export_in_the_clear_that_was_made_to_fit_must_still_be_whole(
    project: Project, rekey: Commands, tmp_path: Path, forgery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_parts(monkeypatch, rows=16)
    folder, _ = exports(project, rekey, tmp_path, ("--plain",))
    act, message = FORGERIES[forgery]
    act(folder)
    assert message in rekey("import", str(folder), "Back", "--plain", code=3).err
    assert not project.tables._tables.keys() & {"back"}, "nothing was created"


def test_a_sealed_part_does_not_stand_in_for_another(
    project: Project, rekey: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for somebody who could make the proof again: parts are sealed for their range."""
    small_parts(monkeypatch, rows=16)
    folder, _ = exports(project, rekey, tmp_path, ())
    monkeypatch.setattr(Cover, "proof", lambda _self, _document: "0")
    document = manifest_of(folder)
    first, second = document["parts"][2:4]
    for name in ("file", "sha256", "stored", "bytes", "rows"):
        first[name] = second[name]
    document["proof"] = "0"
    (folder / "manifest.json").write_text(json.dumps(document), "utf-8")
    assert "it was not sealed for this part" in rekey("import", str(folder), "Back", code=3).err


def test_a_data_key_that_was_changed_is_named(project: Project, rekey: Commands, tmp_path: Path) -> None:
    folder, other = exports(project, rekey, tmp_path, ())
    document = manifest_of(folder)
    document["key"] = manifest_of(other)["key"]
    (folder / "manifest.json").write_text(json.dumps(document), "utf-8")
    assert "the data key in" in rekey("import", str(folder), "Back", code=3).err


def test_a_part_that_changes_after_the_check_is_not_written(
    project: Project, rekey: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_parts(monkeypatch, rows=16)
    folder, _ = exports(project, rekey, tmp_path, ())
    create = project.tables.create_table

    async def create_and_change(name: str) -> bool:
        changed_part(folder, folder)
        return await create(name)

    monkeypatch.setattr(project.tables, "create_table", create_and_change)
    said = rekey("import", str(folder), "Back", code=3)
    assert "its SHA-256 differs" in said.err
    assert "it changed after it was checked" in said.err and "Nothing was written" not in said.err


# --- ranges -------------------------------------------------------------------------------------------------


def part(after: str | None, upto: str | None) -> Part:
    ends = [None if text is None else EntityKey(text, "") for text in (after, upto)]
    return Part(KeyRange(*ends), 0, 0, 0, 0, "")


@pytest.mark.parametrize(
    ("ranges", "gaps"),
    [
        ([], [(None, None)]),
        ([(None, None)], []),
        ([(None, "b"), ("b", None)], []),
        ([(None, "b")], [("b", None)]),
        ([("b", None)], [(None, "b")]),
        ([(None, "b"), ("c", "d"), ("d", "e")], [("b", "c"), ("e", None)]),
        ([(None, "\U0001f600"), ("\U0001f600", "\ufffd"), ("\ufffd", None)], []),
    ],
)
def test_ranges_that_parts_leave_open_are_known(
    ranges: list[tuple[str | None, str | None]], gaps: list[tuple[str | None, str | None]]
) -> None:
    found = uncovered([part(*ends) for ends in ranges])
    assert found == [part(*ends).within for ends in gaps]


@pytest.mark.parametrize(
    "ranges",
    [
        [(None, "b"), ("a", None)],
        [("b", None), (None, "b")],
        [(None, None), (None, None)],
        [(None, None), ("b", None)],
        [(None, "b"), ("b", "b")],
        [(None, "b"), ("c", "b")],
    ],
)
def test_parts_that_overlap_or_are_not_in_order_are_refused(
    ranges: list[tuple[str | None, str | None]],
) -> None:
    with pytest.raises(ValueError, match="overlap"):
        uncovered([part(*ends) for ends in ranges])


def test_the_manifest_says_what_it_is_read_back_as(project: Project, rekey: Commands, tmp_path: Path) -> None:
    folder, _ = exports(project, rekey, tmp_path, ("--plain",))
    cover = Cover("", None)
    manifest = Manifest.from_json(manifest_of(folder), cover)
    assert manifest.as_json(cover) == manifest_of(folder)
    assert len(parts_of(folder)) == len(manifest.parts)
