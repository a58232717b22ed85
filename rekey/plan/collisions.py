"""Finds target keys that two source rows map to, in bounded memory: records with a digest of the target key
go to sealed temporary files (`rekey.core.spill`). With 128 bits equal digests are equal keys."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Sequence
from heapq import nsmallest
from itertools import chain
from pathlib import Path

from rekey.core import spill
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row
from rekey.plan.result import CollisionGroup, Collisions

FIRST_GROUPS = 20
FIRST_ROWS = 10
_TABLE_BYTES = 2
# A record takes less memory than others: a group stays near 20 MB. Up to 1.6 million rows are distributed
# once.
GROUP_RECORDS = 50_000
# Of a record: the table's number and the digest of the target key. The source row's key follows them.
_KEY_BYTES = _TABLE_BYTES + 16


class CollisionSearch(spill.Spill[bytes]):
    """Takes every target key with its source row and finds repeated keys. A context manager."""

    def __init__(self, folder: Path | None = None, *, most_bytes: float = math.inf) -> None:
        """`folder`: for temporary files, by default the system's; with more than `most_bytes` of them `take`
        and `finish` raise OverBound. Raises MachineFailed if unusable."""
        super().__init__(
            folder,
            lambda record: int.from_bytes(record[_TABLE_BYTES:_KEY_BYTES]),
            most=GROUP_RECORDS,
            most_bytes=most_bytes,
        )
        # Keyed at random, so that what a crash leaves on disk tells nothing.
        self._keyed = hashlib.blake2b(digest_size=16, key=secrets.token_bytes(32))

    def take(self, table: int, rows: Sequence[Row], sources: Sequence[Row]) -> list[bytes]:
        """Take rows of the target table with a number, and the source row of each; return for each a digest
        of its key, which means nothing outside this search. Raises MachineFailed when the disk is full."""
        begin, copy = table.to_bytes(_TABLE_BYTES), self._keyed.copy
        waiting, slots = self._waiting, len(self._waiting)
        digests = []
        for target, source in zip(rows, sources, strict=True):
            partition = target[PARTITION_KEY]
            hashed = copy()
            # The length first, so that no two keys give the same text.
            hashed.update(f"{len(partition)},{partition}{target[ROW_KEY]}".encode("utf-8", "surrogatepass"))
            old = f"{source[PARTITION_KEY]}\0{source[ROW_KEY]}".encode("utf-8", "surrogatepass")
            digest = hashed.digest()
            digests.append(digest)
            # Inlined `put`: a call for each row would take as long as the digest.
            waiting[digest[-1] % slots].append(begin + digest + old)
        before = self.records // spill.BUFFERED_RECORDS
        self.records += len(digests)
        if self.records // spill.BUFFERED_RECORDS > before:
            self._write()
        return digests

    def needed_bytes(self, rows: float) -> int:
        """Return the bytes of temporary files that so many target rows like these take."""
        waiting = [record for records in self._waiting for record in records]
        if written := self.records - len(waiting):
            return spill.bytes_on_disk(rows, self.file_bytes / written)
        mean = sum(map(len, waiting)) / len(waiting) if waiting else 0.0
        return spill.bytes_on_disk(rows, mean + spill.RECORD_BYTES)

    def finish(
        self, tables: Sequence[str], name: Callable[[EntityKey], str], *, exact: bool, show_keys: bool = False
    ) -> Collisions:
        """Return all collisions. Raises MachineFailed when the disk fails.

        Args:
            tables: the tables' names by their numbers.
            name: returns the safe id of a source row.
            exact: every source row was taken.
            show_keys: keep the keys of the first rows, for the operator's eyes only.
        """
        keys = rows = 0
        first: list[tuple[int, list[bytes], int]] = []
        met: dict[bytes, tuple[int, list[bytes]]] = {}
        for records in chain(self.groups(), [[]]):
            group_keys = {record[:_KEY_BYTES] for record in records}
            # A key with more rows than fit into a group continues in the next group: it is not counted yet.
            if met.keys().isdisjoint(group_keys):
                for key, (count, sources) in met.items():
                    if count > 1:
                        keys += 1
                        rows += count
                        first.append((int.from_bytes(key[:_TABLE_BYTES]), sorted(sources), count))
                first = nsmallest(FIRST_GROUPS, first)
                met.clear()
                if len(group_keys) == len(records):
                    # Equal digests are equal keys, and these all come in one group, or fill groups. The
                    # memory of this one is freed before the next is read.
                    del records, group_keys
                    continue
            for record in records:
                key = record[:_KEY_BYTES]
                count, sources = met.get(key, (0, []))
                if count < FIRST_ROWS:
                    sources.append(record[_KEY_BYTES:])
                met[key] = count + 1, sources
        groups = []
        for number, sources, count in first:
            named = sorted((name(key), key) for key in map(_source_key, sources))
            ids, old_keys = zip(*named, strict=True)
            groups.append(CollisionGroup(tables[number], count, ids, old_keys if show_keys else None))
        return Collisions(keys, rows, exact, tuple(groups))


def _source_key(old: bytes) -> EntityKey:
    partition, _, row = old.decode("utf-8", "surrogatepass").partition("\0")
    return EntityKey(partition, row)
