"""Finding target keys that two source rows map to, in bounded memory.

Rules kept here:

* Only digests go to disk: the target key under a random key that lives as long as the search, and the
  source row's safe id. Nobody can test guesses of keys against what a crash may leave behind.
* Records are spread over files by their digest; a file that is still too large is spread again. Memory holds
  one part of about 2 MB and the write buffers, whatever the size of the table.
* Records with equal digests are a collision: by accident once in 10^18 tables of ten billion rows (128 bits).
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rekey.core import crockford
from rekey.errors import MachineFailed
from rekey.mapping.ids import DIGEST_BYTES, SHORT_CHARACTERS
from rekey.model import EntityKey

FIRST_GROUPS = 20
FIRST_ROWS = 10
_KEY_BYTES = 16
_RECORD_BYTES = 1 + _KEY_BYTES + DIGEST_BYTES
_BUFFER_BYTES = 4 * 1024 * 1024
_PART_BYTES = 2 * 1024 * 1024
_DEEPEST = 4
"""Digest bytes to spread by; a part that is large even so consists of few different digests."""


@dataclass(frozen=True, slots=True)
class Group:
    """One target key and the source rows that map to it: table number, rows, the first rows' raw ids."""

    table: int
    rows: int
    sources: tuple[bytes, ...]

    @property
    def row_ids(self) -> tuple[str, ...]:
        """Return the safe ids of the first rows."""
        return tuple(crockford.encode(raw)[:SHORT_CHARACTERS] for raw in self.sources)


@dataclass(frozen=True, slots=True)
class Found:
    """All collisions: target keys, source rows on them, and the first groups in the order of their ids."""

    keys: int
    rows: int
    first: tuple[Group, ...]


class CollisionSearch:
    """Takes every (target key, source row) and tells which keys came more than once. A context manager."""

    def __init__(self, folder: Path | None = None) -> None:
        """Take the folder to keep temporary files in; the system's by default.

        Raises MachineFailed when it cannot be used.
        """
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="rekey-plan-", dir=folder)
        except OSError as error:
            raise _disk_failed(error) from None
        self._secret = secrets.token_bytes(32)
        self._parts = _Parts(Path(self._folder.name), at=1)

    def __enter__(self) -> CollisionSearch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def add(self, table: int, key: EntityKey, source: bytes) -> None:
        """Take one target row: its table's number (0 to 255), its key, its source row's 20-byte id."""
        partition = key.partition.encode("utf-8", "surrogatepass")
        row = key.row.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(
            b"%d,%d,%b%b" % (table, len(partition), partition, row),
            digest_size=_KEY_BYTES,
            key=self._secret,
        ).digest()
        self._parts.add(bytes((table,)) + digest + source)

    def finish(self) -> Found:
        """Return all collisions. Raises MachineFailed when the disk fails."""
        keys = rows = 0
        first: list[Group] = []
        for group in self._parts.groups():
            keys += 1
            rows += group.rows
            first.append(group)
            if len(first) > 50 * FIRST_GROUPS:
                first = _first(first)
        return Found(keys, rows, tuple(_first(first)))


class _Parts:
    """Records spread over 256 files by one byte of theirs; in memory as long as they are few."""

    def __init__(self, folder: Path, at: int) -> None:
        self._folder = folder
        self._at = at
        self._buffers = [bytearray() for _ in range(256)]
        self._buffered = 0
        self._on_disk = False

    def add(self, record: bytes) -> None:
        self._buffers[record[self._at]] += record
        self._buffered += _RECORD_BYTES
        if self._buffered >= _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        self._on_disk = True
        try:
            for number, buffer in enumerate(self._buffers):
                if buffer:
                    with (self._folder / f"{number:03d}").open("ab") as part:
                        part.write(buffer)
                    buffer.clear()
        except OSError as error:
            raise _disk_failed(error) from None
        self._buffered = 0

    def groups(self) -> Iterator[Group]:
        """Yield every digest that came more than once; the files are removed on the way."""
        if not self._on_disk:
            for buffer in self._buffers:
                yield from _repeated(_cut(buffer))
            return
        self.flush()
        for number in range(256):
            path = self._folder / f"{number:03d}"
            if not path.exists():
                continue
            if path.stat().st_size > _PART_BYTES and self._at < _DEEPEST:
                yield from self._spread(path)
            else:
                yield from _repeated(_records(path))
            path.unlink(missing_ok=True)

    def _spread(self, path: Path) -> Iterator[Group]:
        folder = path.with_suffix(".parts")
        folder.mkdir()
        deeper = _Parts(folder, self._at + 1)
        for record in _records(path):
            deeper.add(record)
        path.unlink()
        yield from deeper.groups()


def _repeated(records: Iterable[bytes]) -> Iterator[Group]:
    """Yield the groups of one part; what came once is remembered, no more than a part holds."""
    once: dict[bytes, bytes] = {}
    more: dict[bytes, tuple[int, list[bytes]]] = {}
    end = 1 + _KEY_BYTES
    for record in records:
        digest, source = record[:end], record[end:]
        before = once.setdefault(digest, source)
        if before is source:
            continue
        count, sources = more.get(digest, (1, [before]))
        if len(sources) < FIRST_ROWS:
            sources.append(source)
        more[digest] = count + 1, sources
    for digest, (count, sources) in more.items():
        yield Group(digest[0], count, tuple(sorted(sources)))


def _records(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as part:
            while chunk := part.read(_RECORD_BYTES * 4096):
                yield from _cut(chunk)
    except OSError as error:
        raise _disk_failed(error) from None


def _cut(records: bytes | bytearray) -> Iterator[bytes]:
    for at in range(0, len(records), _RECORD_BYTES):
        yield bytes(records[at : at + _RECORD_BYTES])


def _first(groups: list[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: (group.table, group.sources))[:FIRST_GROUPS]


def _disk_failed(error: OSError) -> MachineFailed:
    return MachineFailed(
        f"a temporary file of the plan cannot be written or read ({error.strerror or 'I/O error'})",
        kept="everything: a plan changes nothing",
        hint="make room (about 40 bytes per row and target table), or point TMPDIR to another disk",
    )
