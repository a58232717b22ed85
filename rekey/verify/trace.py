"""Records from which page each row of the first pass came, so that only pages with differing rows are reread.
Each row takes 20 bytes; they go to a sealed file without a name (`rekey.core.spill`) in groups of buckets."""

from __future__ import annotations

import pickle
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from types import TracebackType

from rekey.core.spill import SealedFile, disk_failed
from rekey.model import KeyRange
from rekey.verify.bucket_digests import SOURCE
from rekey.verify.digest import BUCKETS, DIGEST_BYTES

GROUPS = 512
_SHIFT = (BUCKETS // GROUPS).bit_length() - 1
# Rows in memory before they are written: 8 MB.
BUFFERED_ROWS = 400_000
# Rows without an equal one that are worth propagating one by one, at about a dozen requests each.
MOST = 10_000
_NOTE = Struct(f">{DIGEST_BYTES}sI")


def group_of(bucket: int) -> int:
    """Return the group that a bucket is in."""
    return bucket >> _SHIFT


class Trace:
    """The digests of all rows of one comparison, by page. A context manager."""

    def __init__(self, folder: Path) -> None:
        """Create the file in a folder. Raises MachineFailed when that fails."""
        try:
            self._file = SealedFile(folder)
        except OSError as error:
            raise disk_failed(error) from None
        self._pages, self._from_source = array("Q"), bytearray()
        self._waiting = [bytearray() for _ in range(GROUPS)]
        self._written: defaultdict[int, list[int]] = defaultdict(list)
        self._buffered, self._place = 0, b""
        self._refused: set[int] = set()

    def begin_page(self, table: int, within: KeyRange, rows: int) -> None:
        """Begin a page: the next `rows` rows noted are in the range `within` of a table (`SOURCE`, or a
        target's number). Raises MachineFailed when the disk is full."""
        try:
            if self._buffered >= BUFFERED_ROWS:
                for group, waiting in enumerate(self._waiting):
                    if waiting:
                        self._written[group].append(self._file.append(bytes(waiting)))
                        waiting.clear()
                self._buffered = 0
            self._place = len(self._pages).to_bytes(_NOTE.size - DIGEST_BYTES)
            self._pages.append(self._file.append(pickle.dumps((table, within))))
        except OSError as error:
            raise disk_failed(error) from None
        self._from_source.append(table == SOURCE)
        self._buffered += rows

    def note(self, bucket: int, digest: bytes) -> None:
        """Note a row of the present page by its bucket and its digest."""
        waiting = self._waiting[bucket >> _SHIFT]
        waiting += digest
        waiting += self._place

    def note_refused(self) -> None:
        """Note that the mapping refuses a row of the present page."""
        self._refused.add(len(self._pages) - 1)

    def page(self, number: int) -> tuple[int, KeyRange]:
        """Return the table and the range of a page. Raises MachineFailed when it cannot be read."""
        try:
            table, within = pickle.loads(self._file.read(self._pages[number]))  # noqa: S301 sealed by us
        except OSError as error:
            raise disk_failed(error) from None
        return table, within

    def left_over(self, differing: Iterable[int]) -> dict[int, dict[bytes, int]] | None:
        """Return, by page, the digests that the two sides do not hold equally often, each with its group; and
        pages with refused rows. None: there are more than `MOST`. `differing`: the buckets whose digests
        differ. Raises MachineFailed."""
        by_page: defaultdict[int, dict[bytes, int]] = defaultdict(dict)
        for page in self._refused:
            by_page[page] = {}
        left = 0
        for group in sorted({group_of(bucket) for bucket in differing}):
            expected, actual = Counter[bytes](), Counter[bytes]()
            for digest, page in self._notes(group):
                (expected if self._from_source[page] else actual)[digest] += 1
            odd = {digest for digest, _ in expected.items() ^ actual.items()}
            for digest, page in self._notes(group) if odd else ():
                if digest in odd:
                    by_page[page][digest] = group
                    left += 1
                    if left > MOST:
                        return None
        return by_page

    def _notes(self, group: int) -> Iterator[tuple[bytes, int]]:
        try:
            for at in self._written[group]:
                yield from _NOTE.iter_unpack(self._file.read(at))
        except OSError as error:
            raise disk_failed(error) from None
        yield from _NOTE.iter_unpack(self._waiting[group])

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._file.close()
