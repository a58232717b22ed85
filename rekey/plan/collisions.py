"""Finding target keys that two source rows map to, in bounded memory.

Rules kept here:

* Only digests go to disk: the target key under a random key that lives as long as the search, and the
  source row's safe id. Guesses of keys cannot be tested against what a crash may leave there.
* Records with equal digests are a collision: by accident once in 10^18 tables of ten billion rows (128 bits).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rekey.core import crockford
from rekey.core.spill import Spill
from rekey.mapping.ids import SHORT_CHARACTERS
from rekey.model import EntityKey

FIRST_GROUPS = 20
FIRST_ROWS = 10


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


class CollisionSearch(Spill[tuple[int, bytes, bytes]]):
    """Takes every (target key, source row) and tells which keys came more than once. A context manager."""

    def __init__(self, folder: Path | None = None) -> None:
        """Take the folder to keep temporary files in; the system's by default.

        Raises MachineFailed when it cannot be used.
        """
        super().__init__(folder, lambda record: int.from_bytes(record[1][:8]))
        self._secret = secrets.token_bytes(32)

    def add(self, table: int, key: EntityKey, source: bytes) -> None:
        """Take one target row: its table's number, its key, its source row's 20-byte id."""
        partition = key.partition.encode("utf-8", "surrogatepass")
        row = key.row.encode("utf-8", "surrogatepass")
        content = b"%d,%d,%b%b" % (table, len(partition), partition, row)
        self.put((table, hashlib.blake2b(content, digest_size=16, key=self._secret).digest(), source))

    def finish(self) -> Found:
        """Return all collisions. Raises MachineFailed when the disk fails."""
        keys = rows = 0
        first: list[Group] = []
        for group in self._repeated():
            keys += 1
            rows += group.rows
            first.append(group)
            if len(first) > 50 * FIRST_GROUPS:
                first = _first(first)
        return Found(keys, rows, tuple(_first(first)))

    def _repeated(self) -> Iterator[Group]:
        met: dict[tuple[int, bytes], tuple[int, list[bytes]]] = {}
        for records in chain(self.groups(), [[]]):
            # More rows of one key than fit into a group go on in the next one: then it is not counted yet.
            if met.keys().isdisjoint(record[:2] for record in records):
                for (table, _), (count, sources) in met.items():
                    if count > 1:
                        yield Group(table, count, tuple(sorted(sources)))
                met.clear()
            for table, digest, source in records:
                count, sources = met.get((table, digest), (0, []))
                if count < FIRST_ROWS:
                    sources.append(source)
                met[table, digest] = count + 1, sources


def _first(groups: list[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: (group.table, group.sources))[:FIRST_GROUPS]
