"""Records on disk in groups that fit into memory, for joins and counts over tables of any size."""

from __future__ import annotations

import math
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import IO, Generic, Self, TypeVar

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rekey.errors import MachineFailed

Record = TypeVar("Record")

# Records per group. A record with what is made of it takes about 1 KiB of memory, a group about 20 MB.
GROUP_RECORDS = 20_000
# Records buffered in memory over all files. Fewer than this need no file.
BUFFERED_RECORDS = 4_096
# Bytes that a short record takes on disk besides its own: in the pickle, and its share of what seals a piece.
RECORD_BYTES = 4
_BITS = 5
_FILES = 1 << _BITS
_DEEPEST = 5
_NONCE_BYTES, _LENGTH_BYTES = 12, 4


def hash_of(text: str) -> int:
    """Return a 64-bit hash of a text, by which records are spread over files."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


class SealedFile:
    """A temporary file of byte strings, encrypted with a key that only this object has, so that remains on
    the disk are unreadable. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        """Create the file in a folder."""
        # Records hold keys. Where the system supports it the file never has a name, so that not even SIGKILL
        # leaves it.
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 closed by `close`
        self._cipher = AESGCM(AESGCM.generate_key(256))
        self._pieces = 0
        # The bytes of the file.
        self.end = 0

    def append(self, piece: bytes) -> int:
        """Append a piece and return its offset."""
        # Only this object uses the key, so a counter gives unique nonces.
        nonce = self._pieces.to_bytes(_NONCE_BYTES)
        self._pieces += 1
        sealed = self._cipher.encrypt(nonce, piece, None)
        at = self._file.seek(self.end)
        self.end += self._file.write(len(sealed).to_bytes(_LENGTH_BYTES) + nonce + sealed)
        return at

    def read(self, at: int) -> bytes:
        """Return the piece at an offset, b"" at the end of the file."""
        self._file.seek(at)
        length = self._file.read(_LENGTH_BYTES)
        if not length:
            return b""
        nonce, sealed = self._file.read(_NONCE_BYTES), self._file.read(int.from_bytes(length))
        return self._cipher.decrypt(nonce, sealed, None)

    def pieces(self) -> Iterator[bytes]:
        """Yield all pieces in order."""
        at = 0
        while piece := self.read(at):
            at = self._file.tell()
            yield piece

    def close(self) -> None:
        """Close the file, which deletes it."""
        with suppress(OSError):  # data that a full disk refused is no longer needed
            self._file.close()


class OverBound(Exception):
    """Temporary files exceed the bytes allowed."""


def free_bytes() -> int | None:
    """Return the bytes free where temporary files go; None: unknown."""
    with suppress(OSError):
        return shutil.disk_usage(tempfile.gettempdir()).free
    return None


def bytes_on_disk(records: float, record_bytes: float) -> int:
    """Return the bytes of files that so many records take. `record_bytes`: of one on disk. One file at a time
    is spread over further files."""
    return 0 if records < BUFFERED_RECORDS else round(records * record_bytes * (1 + 1 / _FILES))


class Spill(Generic[Record]):
    """Records that are read back in groups, those of equal hash together. A context manager."""

    def __init__(
        self,
        parent: Path | None,
        place: Callable[[Record], int],
        *,
        level: int = 0,
        most: int | None = None,
        most_bytes: float = math.inf,
    ) -> None:
        """Create a private folder (mode 0700) for the files.

        Args:
            parent: the folder to make it in; None: the system's folder for temporary files.
            place: returns the hash of a record; records that are joined have the same.
            level: how many times these records were spread before.
            most: records per group; None: `GROUP_RECORDS`.
            most_bytes: bytes of all files, above which `OverBound` is raised.

        Raises:
            MachineFailed: the folder cannot be made.
        """
        try:
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            self._folder = tempfile.TemporaryDirectory(prefix="rekey-", dir=parent)
        except OSError as error:
            raise disk_failed(error) from None
        self._place, self._level = place, level
        self._most = GROUP_RECORDS if most is None else most
        self._most_bytes = most_bytes
        self._files: dict[int, SealedFile] = {}
        self._waiting: list[list[Record]] = [[] for _ in range(_FILES)]
        # Records in each file.
        self._written = [0] * _FILES
        self.records = 0

    @property
    def file_bytes(self) -> int:
        return sum(file.end for file in self._files.values())

    def put(self, record: Record) -> None:
        """Add a record. Raises MachineFailed when the disk is full, and OverBound."""
        slot = self._place(record) >> _BITS * self._level & _FILES - 1
        self._waiting[slot].append(record)
        self.records += 1
        if self.records % BUFFERED_RECORDS == 0:
            self._write()

    def groups(self) -> Iterator[list[Record]]:
        """Yield all records in groups. Records of equal hash are in one group, unless they exceed the group
        size: then they come in several groups, one after the other."""
        try:
            for slot, (written, waiting) in enumerate(zip(self._written, self._waiting, strict=True)):
                count = written + len(waiting)
                if count <= self._most:
                    if count:
                        yield list(self._read(slot))
                # Too many for a group: spread them again by further bits of the hash.
                elif self._level < _DEEPEST:
                    folder, level = Path(self._folder.name), self._level + 1
                    left = self._most_bytes - self.file_bytes
                    with Spill(folder, self._place, level=level, most=self._most, most_bytes=left) as deeper:
                        for record in self._read(slot):
                            deeper.put(record)
                        yield from deeper.groups()
                else:
                    records = self._read(slot)
                    while group := list(islice(records, self._most)):
                        yield group
        except OSError as error:
            raise disk_failed(error) from None

    def _write(self) -> None:
        try:
            for slot, records in enumerate(self._waiting):
                if records:
                    if slot not in self._files:
                        self._files[slot] = SealedFile(Path(self._folder.name))
                    self._files[slot].append(pickle.dumps(records))
                    self._written[slot] += len(records)
                    records.clear()
        except OSError as error:
            raise disk_failed(error) from None
        if self.file_bytes > self._most_bytes:
            raise OverBound

    def _read(self, slot: int) -> Iterator[Record]:
        if file := self._files.get(slot):
            for piece in file.pieces():
                yield from pickle.loads(piece)  # noqa: S301 sealed by us
        yield from self._waiting[slot]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._files:
            self._files.popitem()[1].close()
        self._folder.cleanup()


def disk_failed(error: OSError) -> MachineFailed:
    """Return the error for a temporary file that cannot be written or read."""
    return MachineFailed(
        f"a temporary file cannot be written or read ({error.strerror or 'I/O error'})",
        kept="all tables; nothing in them was changed",
        hint="make room where temporary files go, or point TMPDIR to another disk, then run the command anew",
    )
