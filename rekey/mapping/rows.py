"""The rows of the mapping table: their keys and content, as pure functions.

Rules kept here:

* Forward: one row per source key; it lists every target key that source key ever had in this migration.
* Reverse: one row per main target key; it names the source key that owns it. Being inserted before the
  target row, it makes two sources of one target key a conflict before anything is written.
* Index rows need no reverse row: their pointer names the main row, which has one.
* A forward row can hold a reservation: the main key under which writers are making a row of this source key.
* Row keys are keyed digests (`SafeIds`), so any old key fits, whatever its length or characters, and rows
  spread evenly over 32 partitions a direction. The digest's first character is the partition.
* The content (which holds legacy keys) exists only in the restricted store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from rekey.crockford import ALPHABET
from rekey.declaration import MAIN_PARTITION_KEY, MAIN_ROW_KEY
from rekey.errors import RowRefused
from rekey.mapping.ids import SafeIds
from rekey.model import ETAG, PARTITION_KEY, ROW_KEY, EntityKey, Row

CONTROL_TABLE = "rekeycontrol"
JOURNAL_TABLE = "rekeyjournal"
MAPPING_TABLE = "rekeymap"

_CHUNK = 30_000
"""Characters of target list a property holds (a string property holds at most 32,768 UTF-16 units)."""
_MAX_CHUNKS = 15
"""Chunks a row holds within 1 MiB; beyond it the fan-out of one source row is refused."""


class TargetKey(NamedTuple):
    """A key in one of the migration's target tables (0 = main, 1.. = index tables)."""

    table: int
    partition: str
    row: str

    @property
    def key(self) -> EntityKey:
        """Return the key without the table."""
        return EntityKey(self.partition, self.row)


class Reservation(NamedTuple):
    """A main target key under which a row is being made.

    Attributes:
        key: the main target key.
        writers: words of the writes that are making it.
        seconds: how long after the forward row was last written any of them may still take effect.
    """

    key: EntityKey
    writers: frozenset[str]
    seconds: float

    def without(self, writer: str) -> Reservation | None:
        """Return what is left when a write has ended."""
        left = self.writers - {writer}
        return self._replace(writers=left) if left else None


class Forward(NamedTuple):
    """What a forward row says: the source key, all its target keys ever, the row's ETag, a reservation."""

    source: EntityKey
    targets: frozenset[TargetKey]
    etag: str
    reserved: Reservation | None = None


class Owner(NamedTuple):
    """What a reverse row says: the source key that owns a main target key, and the row's ETag."""

    source: EntityKey
    etag: str


class MappingRows:
    """Builds and reads the mapping rows of one migration."""

    def __init__(self, script_id: str, source: str, tables: Sequence[str], ids: SafeIds) -> None:
        """Take the migration's id, its source's name and its target tables' names (main first)."""
        self.script_id = script_id
        self.source = source
        self.tables = tuple(tables)
        self.ids = ids

    def forward_key(self, source_key: EntityKey) -> EntityKey:
        """Return where the forward row of a source key lives."""
        digest = self.ids.long(self.source, source_key)
        return EntityKey(f"{self.script_id}.f.{digest[0]}", digest)

    def reverse_key(self, target_key: EntityKey) -> EntityKey:
        """Return where the reverse row of a main target key lives."""
        digest = self.ids.long(self.tables[0], target_key)
        return EntityKey(f"{self.script_id}.r.{digest[0]}", digest)

    def forward_row(
        self, source_key: EntityKey, targets: Iterable[TargetKey], reserved: Reservation | None = None
    ) -> Row:
        """Return the forward row. Raises RowRefused when one row fans out to more keys than fit."""
        text = _listed(targets)
        chunks = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]
        if len(chunks) > _MAX_CHUNKS:
            raise RowRefused(
                "row-too-large",
                "indexes",
                "the row fans out to more target keys than one mapping row can list",
                cure="split the fan-out: index fewer values of this row",
                row_id=self.ids.short(self.source, source_key),
            )
        partition, row = self.forward_key(source_key)
        content: Row = {
            PARTITION_KEY: partition,
            ROW_KEY: row,
            "OldPartitionKey": source_key.partition,
            "OldRowKey": source_key.row,
        }
        content.update((f"Targets{number}", chunk) for number, chunk in enumerate(chunks))
        if reserved is not None:
            content["ReservedPartition"], content["ReservedRow"] = reserved.key
            content["ReservedBy"] = ",".join(sorted(reserved.writers))
            content["ReservedSeconds"] = reserved.seconds
        return content

    def reverse_row(self, source_key: EntityKey, target_key: EntityKey) -> Row:
        """Return the reverse row of a main target key."""
        partition, row = self.reverse_key(target_key)
        return {
            PARTITION_KEY: partition,
            ROW_KEY: row,
            "OldPartitionKey": source_key.partition,
            "OldRowKey": source_key.row,
            "NewPartitionKey": target_key.partition,
            "NewRowKey": target_key.row,
        }

    def partitions(self, direction: str) -> list[str]:
        """Return all partitions of a direction, `f` or `r`, in key order."""
        return [f"{self.script_id}.{direction}.{first}" for first in ALPHABET]


def _listed(targets: Iterable[TargetKey]) -> str:
    """Return target keys as JSON in ASCII, so that a character is a UTF-16 unit wherever the text is cut."""
    ordered = sorted(targets)
    listed = [tuple(target) for target in ordered]
    if all(target.partition.isascii() and target.row.isascii() for target in ordered):
        return orjson.dumps(listed).decode("ascii")
    return json.dumps(listed, separators=(",", ":"))


def read_targets(row: Row) -> frozenset[TargetKey]:
    """Return the target keys that a forward row lists; none of a reverse row."""
    chunks: list[str] = []
    while (chunk := row.get(f"Targets{len(chunks)}")) is not None:
        chunks.append(chunk)
    return frozenset(TargetKey(*item) for item in json.loads("".join(chunks) or "[]"))


def read_forward(row: Row) -> Forward:
    """Read a forward row."""
    return Forward(read_source(row), read_targets(row), row[ETAG], _read_reservation(row))


def _read_reservation(row: Row) -> Reservation | None:
    if "ReservedBy" not in row:
        return None
    key = EntityKey(row["ReservedPartition"], row["ReservedRow"])
    return Reservation(key, frozenset(row["ReservedBy"].split(",")), float(row["ReservedSeconds"]))


def read_owner(row: Row) -> Owner:
    """Read a reverse row."""
    return Owner(read_source(row), row[ETAG])


def read_source(row: Row) -> EntityKey:
    """Return the source key that a mapping row, of either direction, names."""
    return EntityKey(row["OldPartitionKey"], row["OldRowKey"])


def pointer_of(index_row: Row) -> EntityKey:
    """Return the main target key that an index row points to."""
    return EntityKey(index_row.get(MAIN_PARTITION_KEY, ""), index_row.get(MAIN_ROW_KEY, ""))
