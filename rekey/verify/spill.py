"""Records on disk, in groups that fit into memory.

Rules kept here:

* Memory is bounded: records are written to files by a hash of what they are joined on; a file with more than
  `GROUP_RECORDS` records is split again by further bits of the hash.
* Records hold keys. Files are made by `tempfile.TemporaryFile` in a private folder (mode 0700): where the
  system can, they never have a name, so not even SIGKILL leaves one behind. They are never logged.
* What is on the disk is encrypted with a key that only this object has: what is left of a file tells nothing.
* Records whose hashes are all equal cannot be split: they come in several groups, and whoever joins must
  stand that.
"""

from __future__ import annotations

import json
import tempfile
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, TypeAlias

import orjson
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rekey.errors import MachineFailed

Record: TypeAlias = list[Any]
"""JSON values only."""

GROUP_RECORDS = 20_000
"""A record and what is made of it in memory take about 1 KiB: a group stays near 20 MB."""
_BITS = 5
_FILES = 1 << _BITS
_DEEPEST = 5
_NONCE_BYTES = 12


@contextmanager
def private_folder(parent: Path) -> Iterator[Path]:
    """Make a folder that only this user can enter, and remove it with all it holds.

    Raises MachineFailed when it cannot be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        holder = tempfile.TemporaryDirectory(prefix="rekey-verify-", dir=parent)
    except OSError as error:
        raise disk_failed(error) from None
    with holder as name:
        yield Path(name)


def hash_of(text: str) -> int:
    """Return 64 bits of a hash by which records are spread over files."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


class Spill:
    """A heap of records that comes back in groups of records with like hashes."""

    def __init__(self, folder: Path, place: Callable[[Record], int], *, level: int = 0) -> None:
        """Take a private folder and the hash that says which records belong together."""
        self._folder = folder
        self._place = place
        self._level = level
        self._files: dict[int, IO[bytes]] = {}
        self._counts: dict[int, int] = {}
        self._cipher = AESGCM(AESGCM.generate_key(256))
        self.records = 0

    def put(self, record: Record) -> None:
        """Add a record. Raises MachineFailed when the disk is full."""
        slot = (self._place(record) >> (_BITS * self._level)) & (_FILES - 1)
        try:
            file = self._files.get(slot)
            if file is None:
                file = self._files[slot] = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 closed by close
            file.write(self._sealed(record))
        except OSError as error:
            raise disk_failed(error) from None
        self._counts[slot] = self._counts.get(slot, 0) + 1
        self.records += 1

    def groups(self) -> Iterator[list[Record]]:
        """Give all records back; those with equal hashes in one group unless they are too many for that."""
        for slot in sorted(self._files):
            file = self._files[slot]
            try:
                file.seek(0)  # also flushes what was written
                if self._counts[slot] <= GROUP_RECORDS:
                    yield [self._opened(line) for line in file]
                elif self._level >= _DEEPEST:
                    yield from self._slices(file)
                else:
                    yield from self._split(file)
            except OSError as error:
                raise disk_failed(error) from None

    def close(self) -> None:
        """Remove all files. Idempotent."""
        while self._files:
            file = self._files.popitem()[1]
            with suppress(OSError):  # what a full disk could not take is not wanted any more
                file.close()

    def _split(self, file: IO[bytes]) -> Iterator[list[Record]]:
        deeper = Spill(self._folder, self._place, level=self._level + 1)
        try:
            for line in file:
                deeper.put(self._opened(line))
            yield from deeper.groups()
        finally:
            deeper.close()

    def _slices(self, file: IO[bytes]) -> Iterator[list[Record]]:
        group: list[Record] = []
        for line in file:
            group.append(self._opened(line))
            if len(group) >= GROUP_RECORDS:
                yield group
                group = []
        if group:
            yield group

    def _sealed(self, record: Record) -> bytes:
        """Return a line. The key is of this object alone, so counting gives every record its own nonce."""
        nonce = self.records.to_bytes(_NONCE_BYTES)
        return b2a_base64(nonce + self._cipher.encrypt(nonce, encode_record(record), None))

    def _opened(self, line: bytes) -> Record:
        data = a2b_base64(line)
        return decode_record(self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], None))

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encode_record(record: Record) -> bytes:
    """Return a record as one line, without its end."""
    try:
        return orjson.dumps(record)
    except TypeError:  # a lone surrogate, which only the standard library writes (escaped)
        return json.dumps(record).encode("ascii")


def decode_record(line: bytes) -> Record:
    """Return the record of a line."""
    try:
        record: Record = orjson.loads(line)
    except orjson.JSONDecodeError:
        record = json.loads(line)
    return record


def disk_failed(error: OSError) -> MachineFailed:
    """Return the error to raise when a temporary file cannot be written or read."""
    return MachineFailed(
        f"a temporary file of the verification failed: {error.strerror or type(error).__name__}",
        kept="all tables; a verification changes none",
        hint="free space where temporary files go, then run `rekey verify` again",
    )
