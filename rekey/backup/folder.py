"""The folder of an export on disk: a file for each part and, when all are there, the manifest. Until then a
journal lists the parts that are complete."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from rekey.backup.manifest import SUFFIXES, Cover, Header, Manifest, Part, in_order, part_of, uncovered
from rekey.backup.parts import Unreadable, compressed, decompressed, rows_of
from rekey.backup.refusals import refusal
from rekey.errors import Moved, RekeyError, reason_of
from rekey.mapping.sealing import ROOT, DataKey, WrappingKey, new_data_key, read_data_key, wrap_data_key
from rekey.model import KeyRange, Row
from rekey.project.config import is_same_account
from rekey.project.privatefiles import write_whole
from rekey.state.filelock import FileLock

MANIFEST, JOURNAL = "manifest.json", "journal.jsonl"
# What a manifest or a journal raises that is not one.
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)


@dataclass(eq=False)
class Files:
    """The parts of an export, in a folder."""

    folder: Path
    cover: Cover

    def rows(self, parts: Sequence[Part], number: int) -> list[Row]:
        """Return the rows of a part, as they are written to a table.

        Args:
            parts: those of the export.
            number: of the part, from 0.

        Raises:
            Refused: the file is missing, or is not what was exported.
        """
        part = parts[number]
        name, place = self.cover.file(part.sha256), f"part {number + 1} of {len(parts)}"
        path = self.folder / name
        if not path.is_file():  # a pipe would be waited for
            raise refusal("part-missing", file=name, place=place)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise refusal("file-not-read", path=path, reason=reason_of(error)) from None
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != part.sha256:
            if other := next((self.cover.file(sha256) for other in parts if other.sha256 == sha256), ""):
                raise refusal("part-exchanged", file=name, place=place, other=other)
            if len(data) != part.stored:
                raise refusal("part-truncated", file=name, place=place, size=len(data), stored=part.stored)
            raise refusal("part-changed", file=name, place=place)
        try:
            lines = decompressed(self.cover.unseal(part_of(part.within), data), part.bytes)
            return rows_of(lines, part.within, part.rows)
        except ValueError as error:
            problem = str(error) if isinstance(error, Unreadable) else "it was not sealed for this part"
            raise refusal("part-unreadable", file=name, place=place, problem=problem) from None

    def write(self, within: KeyRange, lines: bytes, rows: int, changed: int) -> Part:
        """Write the lines of a part, durably."""
        data = self.cover.seal(part_of(within), compressed(lines))
        part = Part(within, rows, changed, len(lines), len(data), hashlib.sha256(data).hexdigest())
        write_whole(self.folder / self.cover.file(part.sha256), data)
        return part


# --- an export that is complete -----------------------------------------------------------------------------


@dataclass(eq=False)
class Export(Files):
    """An export that is complete."""

    manifest: Manifest

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.manifest.parts


def open_export(folder: Path, wrapping: Callable[[], WrappingKey]) -> Export:
    """Open an export and check its manifest; its parts are checked as they are read.

    Args:
        folder: its folder.
        wrapping: returns the wrapping key, or raises SecretMissing; called if the export is sealed.

    Raises:
        ConfigurationError: there is no export.
        Refused: it is not complete, not as it was exported, or sealed with another key.
    """
    try:
        text = (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if (folder / JOURNAL).exists():
            raise refusal("export-not-complete", folder=folder) from None
        raise refusal("no-export", folder=folder) from None
    except OSError as error:
        raise refusal("file-not-read", path=folder / MANIFEST, reason=reason_of(error)) from None
    try:
        document = json.loads(text)
        header = Header.from_json(document)
        files = Files(folder, _cover(folder, header, wrapping))
        manifest = Manifest.from_json(document, files.cover)
    except _MALFORMED:
        raise refusal("manifest-changed", folder=folder) from None
    try:
        gaps = uncovered(manifest.parts)
    except ValueError:
        gaps = [KeyRange()]
    if gaps:
        raise refusal("parts-not-whole", folder=folder)
    names = {files.cover.file(part.sha256) for part in manifest.parts}
    there = {path.name for path in _part_files(folder)}
    if there and not names & there:
        raise refusal("manifest-of-another", folder=folder, parts=len(names))
    return Export(folder, files.cover, manifest)


def _cover(folder: Path, header: Header, wrapping: Callable[[], WrappingKey]) -> Cover:
    """Return the cover of an export's files. Raises Refused, SecretMissing."""
    if header.key is None:
        return Cover(header.export, None)
    key, by = wrapping(), str(header.key.get("WrappedBy", ""))
    try:
        return Cover(header.export, read_data_key(header.export, header.key, key))
    except Moved:
        try:
            key.is_public(by)
        except Moved:
            raise refusal("other-wrapping-key", folder=folder, by=by, configured=key.name) from None
        raise refusal("key-changed", folder=folder, by=by) from None


# --- an export that is being written ------------------------------------------------------------------------


class Unfinished(Files):
    """An export that is being written."""

    def __init__(self, folder: Path, cover: Cover, header: Header, parts: Sequence[Part]) -> None:
        super().__init__(folder, cover)
        self.header, self.parts = header, list(parts)
        self._lock = Lock()

    def keep(self, within: KeyRange, lines: bytes, rows: int, changed: int) -> None:
        """Write a part, and record that it is complete. May be called by several threads."""
        part = self.write(within, lines, rows, changed)
        with self._lock:
            with (self.folder / JOURNAL).open("ab") as journal:
                journal.write(_line(part.as_json(self.cover)))
                journal.flush()
                os.fsync(journal.fileno())
            self.parts.append(part)

    def verified_rows(self) -> Iterator[list[Row]]:
        """Yield the rows of each part that is complete, as it is on disk. What is not as it was written is
        written again."""
        parts, self.parts = in_order(self.parts), []
        for number, part in enumerate(parts):
            try:
                rows = self.rows(parts, number)
            except RekeyError:
                continue
            self.parts.append(part)
            yield rows
        self.write_journal()

    @property
    def rest(self) -> list[KeyRange]:
        """The ranges of keys that are to be read."""
        return uncovered(in_order(self.parts))

    def finish(self, ended_at: str, digest: str) -> Export:
        """Write the manifest, and remove what is not part of the export."""
        if self.rest:
            raise RuntimeError("the parts of an export must cover all keys")
        manifest = Manifest(self.header, tuple(in_order(self.parts)), ended_at, digest)
        document = manifest.as_json(self.cover)
        write_whole(self.folder / MANIFEST, json.dumps(document, indent=1).encode("ascii") + b"\n")
        names = {self.cover.file(part.sha256) for part in manifest.parts}
        for path in [*_part_files(self.folder), *self.folder.glob(".rekey-*"), self.folder / JOURNAL]:
            if path.name not in names:
                path.unlink(missing_ok=True)
        return Export(self.folder, self.cover, manifest)

    def write_journal(self) -> None:
        """Write the journal as a whole."""
        lines = [self.header.as_json(), *(part.as_json(self.cover) for part in self.parts)]
        write_whole(self.folder / JOURNAL, b"".join(map(_line, lines)))


def _part_files(folder: Path) -> list[Path]:
    """Return the files of a folder that are named like parts, of whichever export."""
    return [path for path in folder.iterdir() if path.name.endswith(SUFFIXES)]


def _line(document: object) -> bytes:
    return json.dumps(document).encode("ascii") + b"\n"


@contextmanager
def unfinished(folder: Path, begun: Header, wrapping: WrappingKey | None) -> Iterator[Unfinished]:
    """Begin an export, or continue the one that was begun in a folder, locked against other commands.

    Args:
        folder: the export's folder.
        begun: the header of an export that begins now, without its key.
        wrapping: the wrapping key; None: in the clear.

    Raises:
        Refused: the folder holds something else, or an export that is complete.
        Locked: another command writes this export.
    """
    _require_free(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise refusal("folder-not-written", folder=folder, reason=reason_of(error)) from None
    lock = FileLock(folder / JOURNAL)
    with lock:
        _require_free(folder)  # another command may have completed it
        if (folder / JOURNAL).exists():
            yield _continued(folder, begun, wrapping)
        else:
            yield _begun(folder, begun, wrapping)
        lock.path.unlink(missing_ok=True)  # only now: the export is complete


def _require_free(folder: Path) -> None:
    if (folder / MANIFEST).exists():
        try:
            header = Header.from_json(json.loads((folder / MANIFEST).read_bytes()))
        except _MALFORMED:
            raise refusal("folder-in-use", folder=folder) from None
        raise refusal("export-complete", folder=folder, table=header.table, began_at=header.began_at)
    own = {JOURNAL, f"{JOURNAL}.lock"}
    if folder.is_file() or (
        folder.is_dir()
        and not (folder / JOURNAL).exists()
        # A killed process may have been writing the first journal.
        and not {path.name for path in folder.iterdir() if not path.name.startswith(".rekey-")} <= own
    ):
        raise refusal("folder-in-use", folder=folder)


def _begun(folder: Path, header: Header, wrapping: WrappingKey | None) -> Unfinished:
    key: DataKey | None = None
    if wrapping is not None:
        key = new_data_key(ROOT)
        header = replace(header, key=wrap_data_key(header.export, key, wrapping, None))
    export = Unfinished(folder, Cover(header.export, key), header, ())
    export.write_journal()
    return export


def _continued(folder: Path, begun: Header, wrapping: WrappingKey | None) -> Unfinished:
    lines = (folder / JOURNAL).read_bytes().splitlines()
    try:
        header = Header.from_json(json.loads(lines[0]))
    except (*_MALFORMED, IndexError):
        raise refusal("journal-unreadable", folder=folder) from None
    if header.table != begun.table or not is_same_account(header.account, begun.account):
        raise refusal("export-of-another", folder=folder, table=header.table, account=header.account)
    if header.key is not None and wrapping is None:
        raise refusal("export-is-encrypted", folder=folder)
    if header.key is None and wrapping is not None:
        raise refusal("export-is-plain", folder=folder)
    cover, parts = Cover(header.export, None), list[Part]()
    if wrapping is not None:
        present = wrapping
        cover = _cover(folder, header, lambda: present)
    for line in lines[1:]:
        try:
            parts.append(Part.from_json(json.loads(line), cover))
        except _MALFORMED:
            continue  # a killed process was writing it
    try:
        uncovered(in_order(parts))
    except ValueError:
        raise refusal("journal-unreadable", folder=folder) from None
    return Unfinished(folder, cover, header, parts)
