"""Digests of tables: sums of row digests by bucket. Those of parts add up to those of the table in any order,
so a comparison can be resumed and distributed."""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from rekey.errors import StateUnusable
from rekey.model import EVERYTHING, EntityKey, KeyRange, Row
from rekey.verify.digest import BUCKETS, DIGEST_BYTES, Digester, bucket_of, buckets_of

# The number of the source table; targets are 0, 1, ...
SOURCE = -1

# A report has no content digest of a source table with fewer rows.
FEW = 100

COUNT_BYTES = 8
_STEP = DIGEST_BYTES + COUNT_BYTES
_MASK = (1 << 8 * DIGEST_BYTES) - 1
_HEADER = b"rekey/table/v1\0"


class BucketDigests:
    """Sums (modulo 2^128) of row digests, and row counts, of all buckets of one table or of a part of it.
    They hold no keys."""

    __slots__ = ("counts", "digests")

    def __init__(self) -> None:
        # By bucket; those without rows may be absent.
        self.digests: dict[int, int] = defaultdict(int)
        self.counts: dict[int, int] = defaultdict(int)

    def adder(
        self, digester: Digester, note: Callable[[int, bytes], None] | None = None
    ) -> Callable[[Sequence[Row]], None]:
        """Return a function that adds rows by their digests; `note` is given bucket and digest of each."""
        digests, counts, from_bytes = self.digests, self.counts, int.from_bytes

        def add(rows: Sequence[Row]) -> None:
            for bucket, digest in zip(buckets_of(rows), digester.digests(rows), strict=True):
                # May exceed 128 bits: reduced when packed or compared.
                digests[bucket] += from_bytes(digest)
                counts[bucket] += 1
                if note is not None:
                    note(bucket, digest)

        return add

    def change(self, key: EntityKey, digest: bytes, by: int) -> None:
        """Add a row by its key and digest (`by` 1), or take one out again (-1)."""
        bucket = bucket_of(*key)
        self.digests[bucket] += by * int.from_bytes(digest)
        self.counts[bucket] += by

    def clear(self, buckets: Iterable[int]) -> None:
        """Take all rows out of some buckets."""
        for bucket in buckets:
            self.digests.pop(bucket, None)
            self.counts.pop(bucket, None)

    def merge(self, other: BucketDigests) -> None:
        """Add the digests of another part of the same table."""
        for bucket, digest in other.digests.items():
            self.digests[bucket] += digest
            self.counts[bucket] += other.counts[bucket]

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    def differing(self, other: BucketDigests) -> frozenset[int]:
        """Return the buckets whose rows differ."""
        return frozenset(
            bucket
            for bucket in self.digests.keys() | other.digests.keys()
            if self.counts[bucket] != other.counts[bucket]
            or (self.digests[bucket] - other.digests[bucket]) & _MASK
        )

    def packed(self) -> bytes:
        """Return all buckets, each as sum (16 bytes) and count (8 bytes), big-endian."""
        packed = bytearray(BUCKETS * _STEP)
        for bucket, digest in self.digests.items():
            place, entry = bucket * _STEP, (digest & _MASK) << 8 * COUNT_BYTES | self.counts[bucket]
            packed[place : place + _STEP] = entry.to_bytes(_STEP)
        return bytes(packed)

    def content_digest(self) -> str:
        """Return the table's content digest, 64 hexadecimal digits: SHA-256 over `rekey/table/v1` ‖ 0 ‖
        `packed`. Equal digests mean equal tables: no time and no ETag goes in."""
        return hashlib.sha256(_HEADER + self.packed()).hexdigest()

    def as_json(self) -> str:
        """Return the packed digests, compressed, in base64."""
        return base64.b64encode(zlib.compress(self.packed(), level=1)).decode("ascii")

    @classmethod
    def from_json(cls, text: str) -> BucketDigests:
        """Return stored digests. Raises StateUnusable or ValueError for others."""
        data = base64.b64decode(text, validate=True)
        if len(data) == BUCKETS * _STEP:  # as version 0.2 stored them
            return cls.from_packed(data)
        try:
            return cls.from_packed(zlib.decompress(data))
        except zlib.error:
            raise digests_unusable() from None

    @classmethod
    def from_packed(cls, data: bytes) -> BucketDigests:
        """Return the digests that `packed` packed. Raises StateUnusable when the length is wrong."""
        if len(data) != BUCKETS * _STEP:
            raise digests_unusable()
        buckets = cls()
        # A packed digest is two words of 8 bytes, a count one.
        words = struct.unpack(f">{BUCKETS * _STEP // COUNT_BYTES}Q", data)
        for bucket, (high, low, count) in enumerate(zip(words[0::3], words[1::3], words[2::3], strict=True)):
            if high or low or count:
                buckets.digests[bucket], buckets.counts[bucket] = high << 64 | low, count
        return buckets


class Read(NamedTuple):
    """The rows read of one table (`SOURCE`, or a target's number) in one sitting, that is, by one command
    without a break."""

    table: int
    sitting: int
    begun_at: str
    ended_at: str
    rows: int


# By sitting and table.
Reads: TypeAlias = dict[tuple[int, int], Read]


def rows_in(reads: Reads) -> int:
    """Return how many rows were read."""
    return sum(read.rows for read in reads.values())


def readings(reads: Reads) -> Iterator[tuple[int, str, str]]:
    """Yield sitting, begin and end of each table's reading."""
    return ((read.sitting, read.begun_at, read.ended_at) for read in reads.values())


def all_reads(reads: Reads, others: Reads) -> Reads:
    """Return when rows were read that were read in two groups."""
    both = {**reads, **others}
    for place in reads.keys() & others.keys():
        mine, theirs = reads[place], others[place]
        begun_at, ended_at = min(mine.begun_at, theirs.begun_at), max(mine.ended_at, theirs.ended_at)
        both[place] = Read(mine.table, mine.sitting, begun_at, ended_at, mine.rows + theirs.rows)
    return dict(sorted(both.items()))


@dataclass(slots=True)
class Part:
    """A key range of one table and how far it has been read."""

    table: int
    within: KeyRange = field(repr=False)
    # Everything in the range up to and including this key is in the digests.
    cursor: EntityKey | None = field(default=None, repr=False)
    done: bool = False

    @property
    def rest(self) -> KeyRange:
        """The part of the range that is still to be read."""
        return self.within if self.cursor is None else self.within.behind(self.cursor)


@dataclass(slots=True)
class Partial:
    """The digests of a comparison so far, and the key ranges still to be read."""

    # The key ranges, each with its cursor.
    parts: list[Part] = field(repr=False)
    # By target: of the rows that the source rows map to; `actual`: of the rows it holds.
    expected: list[BucketDigests] = field(repr=False)
    actual: list[BucketDigests] = field(repr=False)
    source_rows: int = 0
    # Source rows that the mapping refused.
    refused: int = 0
    # Source rows that no kind takes and that are not migrated.
    not_migrated: int = field(default=0, kw_only=True)
    # Of the source rows as they are.
    source: BucketDigests = field(default_factory=BucketDigests, repr=False)
    begun_at: str = ""
    # The number of the present sitting; 0 before the first.
    sitting: int = 0
    reads: Reads = field(default_factory=dict)

    def begin_sitting(self, now: str) -> None:
        """Begin another sitting at the time `now`, UTC."""
        self.begun_at = self.begun_at or now
        self.sitting += 1

    def was_read(self, table: int, rows: int, now: str) -> None:
        """Count rows of a table as read in the present sitting at the time `now`, UTC."""
        before = self.reads.get((self.sitting, table))
        began, rows = (before.begun_at, before.rows + rows) if before else (now, rows)
        self.reads[self.sitting, table] = Read(table, self.sitting, began, now, rows)

    def merge(self, other: Partial) -> None:
        """Add the digests and counts of other ranges of the same tables, and when they were read."""
        for mine, theirs in zip(
            (*self.expected, *self.actual, self.source),
            (*other.expected, *other.actual, other.source),
            strict=True,
        ):
            mine.merge(theirs)
        self.source_rows += other.source_rows
        self.refused += other.refused
        self.not_migrated += other.not_migrated
        self.reads = all_reads(self.reads, other.reads)

    @classmethod
    def fresh(cls, targets: int, read: Iterable[int] | None = None) -> Partial:
        """Return a comparison with so many targets, nothing read, each table in one part. `read`: the targets
        to read, where rows of several are in one table; None: all."""
        parts = [Part(table, EVERYTHING) for table in (SOURCE, *(range(targets) if read is None else read))]
        expected, actual = [[BucketDigests() for _ in range(targets)] for _side in range(2)]
        return cls(parts, expected, actual)

    def as_state(self) -> dict[str, Any]:
        """Return a JSON-able value to resume from. It holds keys: for the state file only."""
        return {
            "buckets": BUCKETS,
            "parts": [
                [part.table, part.within.after, part.within.upto, part.cursor, part.done]
                for part in self.parts
            ],
            "expected": [digests.as_json() for digests in self.expected],
            "actual": [digests.as_json() for digests in self.actual],
            "source": self.source.as_json(),
            "source_rows": self.source_rows,
            "refused": self.refused,
            "not_migrated": self.not_migrated,
            "begun_at": self.begun_at,
            "sitting": self.sitting,
            "reads": [list(read) for read in self.reads.values()],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], *, targets: int) -> Partial:
        """Return a comparison from what `as_state` gave. Raises StateUnusable for that of another one."""
        try:
            if state["buckets"] != BUCKETS or len(state["expected"]) != targets:
                raise digests_unusable()
            parts = [
                Part(int(table), KeyRange(_key(after), _key(upto)), _key(cursor), bool(done))
                for table, after, upto, cursor, done in state["parts"]
            ]
            return cls(
                parts,
                [BucketDigests.from_json(text) for text in state["expected"]],
                [BucketDigests.from_json(text) for text in state["actual"]],
                int(state["source_rows"]),
                int(state["refused"]),
                BucketDigests.from_json(state["source"]),
                str(state["begun_at"]),
                int(state["sitting"]),
                {(read[1], read[0]): Read(*read) for read in state["reads"]},
                not_migrated=int(state.get("not_migrated", 0)),
            )
        except (KeyError, TypeError, ValueError):
            raise digests_unusable() from None


def reported_digest(digests: BucketDigests) -> str:
    """Return the content digest of a table whose keys must stay secret; "" below `FEW` rows: somebody who
    knows all of a table but one e-mail address could guess it by computing digests."""
    return digests.content_digest() if digests.rows >= FEW else ""


def _key(pair: Sequence[str] | None) -> EntityKey | None:
    return None if pair is None else EntityKey(pair[0], pair[1])


def digests_unusable() -> StateUnusable:
    """Return the error for stored digests that are not those of this verification."""
    return StateUnusable(
        "the stored digests of an earlier verification cannot be read, or are of another one",
        kept="all tables; a verification changes none",
        hint="run `rekey verify --mode full` from its beginning",
    )
