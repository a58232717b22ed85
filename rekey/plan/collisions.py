"""Finding target keys that two source rows map to, in bounded memory.

Rules kept here:

* Only digests go to disk: of the target key, with a random key that lives as long as the search, and the
  source row's safe id. Guesses of keys cannot be tested against files that a crash may leave there.
* Records with equal digests are a collision: by accident once in 10^18 tables of ten billion rows (128 bits).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from heapq import nsmallest
from itertools import chain
from pathlib import Path

from rekey.core import crockford
from rekey.core.spill import Spill
from rekey.mapping.ids import SHORT_CHARACTERS
from rekey.model import EntityKey
from rekey.plan.result import CollisionGroup, Collisions

FIRST_GROUPS = 20
FIRST_ROWS = 10
_TABLE_BYTES = 2
_KEY_BYTES = _TABLE_BYTES + 16
"""Of a record: the table's number and the digest of the target key. The source row's id follows them."""


class CollisionSearch(Spill[bytes]):
    """Takes every (target key, source row) and finds the keys that came more than once. A context manager."""

    def __init__(self, folder: Path | None = None) -> None:
        """Create the search; `folder` keeps temporary files, by default the system's.

        Raises MachineFailed when it cannot be used.
        """
        super().__init__(folder, lambda record: int.from_bytes(record[_TABLE_BYTES : _TABLE_BYTES + 8]))
        self._keyed = hashlib.blake2b(digest_size=16, key=secrets.token_bytes(32))

    def add(self, table: int, key: EntityKey, source: bytes) -> None:
        """Take one target row: its table's number, its key, its source row's 20-byte id."""
        partition = key.partition.encode("utf-8", "surrogatepass")
        row = key.row.encode("utf-8", "surrogatepass")
        hashed = self._keyed.copy()
        hashed.update(b"%d,%d,%b%b" % (table, len(partition), partition, row))
        self.put(table.to_bytes(_TABLE_BYTES) + hashed.digest() + source)

    def finish(self, tables: Sequence[str], *, exact: bool) -> Collisions:
        """Return all collisions. Raises MachineFailed when the disk fails.

        Args:
            tables: the tables' names by their numbers.
            exact: every source row was taken.
        """
        keys = rows = 0
        first: list[tuple[int, list[bytes], int]] = []
        met: dict[bytes, tuple[int, list[bytes]]] = {}
        for records in chain(self.groups(), [[]]):
            # A key with more rows than fit into a group continues in the next group: it is not counted yet.
            if met.keys().isdisjoint(record[:_KEY_BYTES] for record in records):
                for key, (count, sources) in met.items():
                    if count > 1:
                        keys += 1
                        rows += count
                        first.append((int.from_bytes(key[:_TABLE_BYTES]), sorted(sources), count))
                first = nsmallest(FIRST_GROUPS, first)
                met.clear()
            for record in records:
                key = record[:_KEY_BYTES]
                count, sources = met.get(key, (0, []))
                if count < FIRST_ROWS:
                    sources.append(record[_KEY_BYTES:])
                met[key] = count + 1, sources
        groups = [
            CollisionGroup(
                table=tables[number],
                rows=count,
                row_ids=tuple(crockford.encode(raw)[:SHORT_CHARACTERS] for raw in sources),
                sources=tuple(sources),
            )
            for number, sources, count in first
        ]
        return Collisions(keys, rows, exact, tuple(groups))
