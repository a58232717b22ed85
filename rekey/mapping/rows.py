"""The rows of the mapping table: their keys and content, how long they are kept, and the tombstones of erased
ones. Forward: one row per source key. Reverse: one row per main target key. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.core.crockford import ALPHABET, encode_ids
from rekey.core.safe_ids import SHORT_CHARACTERS, SafeIds
from rekey.declaration.targets import named_main
from rekey.errors import Erased, RowRefused
from rekey.mapping.sealing import FORWARD, REVERSE, DataKey, Sealer, binary, derived, unreadable
from rekey.model import ETAG, PARTITION_KEY, ROW_KEY, EntityKey, KeyRange, Row

CONTROL_TABLE = "rekeycontrol"
# The row key of the runner lease in `rekeycontrol`.
LEASE_ROW_KEY = "runner"
JOURNAL_TABLE = "rekeyjournal"
MAPPING_TABLE = "rekeymap"

_make = tuple.__new__
# Characters of the target list in one property (a string property holds at most 32,768 UTF-16 units).
_CHUNK = 30_000
# Chunks that fit in one row of at most 1 MiB; a source row that fans out to more is refused.
_MAX_CHUNKS = 15

# The only cohort of a mapping in the clear, which is erased as a whole: nothing is written to it after
# `complete`, so the retention of all of it ends at one moment. Its tombstone is where sealed migrations have
# data keys.
WHOLE = "all"
# The property of that tombstone that says that nothing of the content is left.
DONE = "Done"
ERASED_ON = "ErasedOn"
PROOF = "Proof"
_COHORT = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MONTHS = 12
_DAY_CHARACTERS = 10


class TargetKey(NamedTuple):
    """A key in one of the migration's target tables (0 = main, 1.. = index tables)."""

    table: int
    partition: str
    row: str

    @property
    def key(self) -> EntityKey:
        return EntityKey(self.partition, self.row)


def target_key(table: int, row: Row) -> TargetKey:
    """Return the key of a row of a target table."""
    # `tuple.__new__`, as in `rekey.model.key_of`, saves the constructor's call for every row.
    return _make(TargetKey, (table, row[PARTITION_KEY], row[ROW_KEY]))


class Reservation(NamedTuple):
    """A row that is being created, as recorded in the mapping row of its key."""

    # In a forward row, the main target key that the row is created under; in a reverse row, the source key
    # whose row is created under the target key.
    key: EntityKey
    # The ids (`Journal.write_id`) of the writes that are creating it.
    writers: frozenset[str]
    # How long after it joined the reservation each of them may still take effect.
    seconds: float

    def without(self, writer: str) -> Reservation | None:
        """Return the reservation without a write that has ended; None when that was the last."""
        left = self.writers - {writer}
        return self._replace(writers=left) if left else None


class Forward(NamedTuple):
    """Content of a forward row: the source key, all its target keys ever, the row's ETag, a reservation."""

    source: EntityKey
    targets: frozenset[TargetKey]
    etag: str
    reserved: Reservation | None = None


class Owner(NamedTuple):
    """Content of a reverse row: the source key that owns a target key, the row's ETag, a reservation."""

    source: EntityKey
    etag: str
    reserved: Reservation | None = None

    @property
    def claimants(self) -> tuple[EntityKey, ...]:
        """The source keys that the claim names: the owner, and one whose row replaces the owner's row in one
        transaction, until the claim has passed on to it."""
        return tuple(dict.fromkeys((self.source, *(() if self.reserved is None else (self.reserved.key,)))))


@dataclass(eq=False)
class MappingRows:
    """Builds and reads the mapping rows of one migration."""

    script_id: str
    # The name of its source.
    source: str
    # The names of its target tables, main first.
    tables: Sequence[str]
    # Computes its safe ids.
    ids: SafeIds
    # Seals and opens its rows; None for rows in the clear.
    sealer: Sealer | None = None
    tombstones: Tombstones = field(default_factory=lambda: Tombstones(MAPPING_TABLE))

    def name_of(self, table: int) -> str:
        """Return the name of a table by its number: of a target, or -1 for the source."""
        return self.source if table < 0 else self.tables[table]

    def forward_key(self, source_key: EntityKey) -> EntityKey:
        """Return the key of a source key's forward row in the mapping table."""
        return self._key("f", self.ids.long(self.source, source_key))

    def reverse_key(self, target_key: EntityKey, table: int = 0) -> EntityKey:
        """Return the key of a target key's reverse row in the mapping table. `table`: its table's number.

        Every main target key has a reverse row. A key of an index or of secondary rows, whose pointer names
        the main row, has one only if a client created the row, and another source key might have the same
        (`Mapper.shared`).
        """
        return self._key("i" if table else "r", self.ids.long(self.tables[table], target_key))

    def _key(self, direction: str, digest: str) -> EntityKey:
        # A keyed digest: any key fits, of any length and characters, and rows spread evenly over the 32
        # partitions, one for each first character.
        return _make(EntityKey, (f"{self.script_id}.{direction}.{digest[0]}", digest))

    def require_fits(self, source_key: EntityKey, targets: Iterable[TargetKey]) -> bytes:
        """Return target keys as the JSON text of a forward row. Raises RowRefused: one row fans out to more
        keys than fit."""
        text = _json([tuple(target) for target in sorted(targets)])
        if len(text) > _CHUNK * _MAX_CHUNKS:
            raise RowRefused(
                "row-too-large",
                "indexes",
                "the row fans out to more target keys than one mapping row can list",
                cure="split the fan-out: index fewer values of this row",
                row_id=self.ids.short(self.source, source_key),
            )
        return text

    def rows_of(
        self, copied: Sequence[tuple[EntityKey, Collection[TargetKey]]]
    ) -> Iterator[tuple[EntityKey, Row]]:
        """Yield the mapping rows of source rows that were copied, each with its source key: the same as
        `forward_row` and `reverse_row`, in less time, and fastest for about fifty source rows
        (`encode_ids`). Raises RowRefused as `require_fits`."""
        mains = [[target.key for target in targets if target.table == 0] for _, targets in copied]
        raw, source, main = self.ids.raw, self.source, self.tables[0]
        digests: list[bytes] = []
        for (source_key, _), target_keys in zip(copied, mains, strict=True):
            digests += (raw(source, source_key), *[raw(main, target_key) for target_key in target_keys])
        ids = iter(encode_ids(digests))
        for (source_key, targets), target_keys in zip(copied, mains, strict=True):
            yield source_key, self.forward_row(source_key, targets, key=self._key("f", next(ids)))
            for target_key in target_keys:
                yield source_key, self.reverse_row(source_key, target_key, key=self._key("r", next(ids)))

    def forward_row(
        self,
        source_key: EntityKey,
        targets: Iterable[TargetKey],
        reserved: Reservation | None = None,
        *,
        key: EntityKey | None = None,
    ) -> Row:
        """Return the forward row. `key`: its key, where known. Raises RowRefused as `require_fits`."""
        key, text = key or self.forward_key(source_key), self.require_fits(source_key, targets)
        if self.sealer is not None:
            return self._sealed_row(self.sealer, FORWARD, key, source_key, text, reserved)
        chunks = enumerate(range(0, len(text), _CHUNK))
        listed = {f"Targets{number}": text[at : at + _CHUNK].decode("ascii") for number, at in chunks}
        return self._clear_row(key, source_key, listed, reserved)

    def reverse_row(
        self,
        source_key: EntityKey,
        target_key: EntityKey,
        table: int = 0,
        reserved: Reservation | None = None,
        *,
        key: EntityKey | None = None,
    ) -> Row:
        """Return the reverse row of a target key. `table`: the number of its table; `key`: as above."""
        key = key or self.reverse_key(target_key, table)
        if self.sealer is not None:
            text = _json(tuple(target_key))
            return self._sealed_row(self.sealer, REVERSE, key, source_key, text, reserved)
        named = {"NewPartitionKey": target_key.partition, "NewRowKey": target_key.row}
        return self._clear_row(key, source_key, named, reserved)

    @staticmethod
    def _sealed_row(
        sealer: Sealer,
        purpose: str,
        key: EntityKey,
        source_key: EntityKey,
        named: bytes,
        reserved: Reservation | None,
    ) -> Row:
        parts = [_json(tuple(source_key)), named]
        if reserved is not None:
            parts.append(_json([list(reserved.key), sorted(reserved.writers), reserved.seconds]))
        plain = b"[%b]" % b",".join(parts)
        sealed = sealer.seal(purpose, MAPPING_TABLE, key, plain, lane=key.row[0])
        return {PARTITION_KEY: key.partition, ROW_KEY: key.row, **sealed}

    @staticmethod
    def _clear_row(key: EntityKey, source_key: EntityKey, named: Row, reserved: Reservation | None) -> Row:
        content = {PARTITION_KEY: key.partition, ROW_KEY: key.row}
        content["OldPartitionKey"], content["OldRowKey"] = source_key
        return content | named | ({} if reserved is None else _plain(reserved))

    @property
    def passed_partition(self) -> str:
        # Records of claims that passed to another source key.
        return f"{self.script_id}.t"

    def passed_row(self, target: TargetKey, former: EntityKey) -> Row:
        """Return the record of a claim that passes on from `former`. It names only mapping rows, no key."""
        reverse, forward = self.reverse_key(target.key, target.table), self.forward_key(former)
        return {
            PARTITION_KEY: self.passed_partition,
            ROW_KEY: f"{reverse.row}.{forward.row}",
            "Reverse": reverse.partition,
            "Forward": forward.partition,
        }

    def passed_range(self, target: TargetKey) -> KeyRange:
        """Return the range of the records of a target key's claim."""
        row = self.reverse_key(target.key, target.table).row
        partition = self.passed_partition
        return KeyRange(EntityKey(partition, f"{row}."), EntityKey(partition, f"{row}/"))

    def read_passed(self, row: Row) -> tuple[EntityKey, EntityKey]:
        """Return the keys of a passed claim's reverse row, and of its former owner's forward row."""
        reverse, _, forward = str(row[ROW_KEY]).partition(".")
        return EntityKey(row["Reverse"], reverse), EntityKey(row["Forward"], forward)

    def partitions(self, direction: str) -> list[str]:
        """Return a direction's partitions in key order: `f` forward, `r` reverse, `i` reverse of index
        keys."""
        return [f"{self.script_id}.{direction}.{first}" for first in ALPHABET]

    @property
    def all_partitions(self) -> list[str]:
        """All partitions of mapping rows, those whose rows name target keys first."""
        directions = [partition for direction in ("i", "r", "f") for partition in self.partitions(direction)]
        return [self.passed_partition, *directions]

    # --- reading; raises SealedUnreadable for a sealed row that cannot be opened, Erased for a tombstone --

    def read_forward(self, row: Row) -> Forward:
        source, targets, reserved = self._content(row)
        return Forward(source, targets, row[ETAG], reserved)

    def read_listing(self, row: Row) -> tuple[EntityKey, frozenset[TargetKey]]:
        """Return the source key of a mapping row and the target keys it lists; a reverse row lists none."""
        source, targets, _ = self._content(row)
        return source, targets

    def read_owner(self, row: Row) -> Owner:
        source, _, reserved = self._content(row)
        return Owner(source, row[ETAG], reserved)

    def named(self, row: Row) -> tuple[EntityKey, ...]:
        is_forward = str(row[PARTITION_KEY]).startswith(f"{self.script_id}.f.")
        return (self.read_source(row),) if is_forward else self.read_owner(row).claimants

    def read_source(self, row: Row) -> EntityKey:
        return self._content(row)[0]

    def _content(self, row: Row) -> tuple[EntityKey, frozenset[TargetKey], Reservation | None]:
        """Return the source key of a row, of a forward row also the target keys, and the reservation."""
        self.tombstones.refuse(row)
        if self.sealer is None:
            chunks: list[str] = []
            while (chunk := row.get(f"Targets{len(chunks)}")) is not None:
                chunks.append(chunk)
            source = EntityKey(row["OldPartitionKey"], row["OldRowKey"])
            reserved = None
            if "ReservedBy" in row:
                key = EntityKey(row["ReservedPartition"], row["ReservedRow"])
                writers = frozenset(row["ReservedBy"].split(","))
                reserved = Reservation(key, writers, float(row["ReservedSeconds"]))
            return source, _target_keys(json.loads("".join(chunks))) if chunks else frozenset(), reserved
        is_forward = str(row[PARTITION_KEY]).startswith(f"{self.script_id}.f.")
        purpose = FORWARD if is_forward else REVERSE
        opened = json.loads(self.sealer.unseal(purpose, MAPPING_TABLE, row, lane=row[ROW_KEY][:1]))
        reserved = None
        if len(opened) > 2:
            key, writers, seconds = opened[2]
            reserved = Reservation(EntityKey(*key), frozenset(writers), float(seconds))
        return EntityKey(*opened[0]), _target_keys(opened[1]) if is_forward else frozenset(), reserved


def _plain(reserved: Reservation) -> Row:
    return {
        "ReservedPartition": reserved.key.partition,
        "ReservedRow": reserved.key.row,
        "ReservedBy": ",".join(sorted(reserved.writers)),
        "ReservedSeconds": reserved.seconds,
    }


def _json(value: Any) -> bytes:
    """Return compact JSON in ASCII: there a character is one UTF-16 unit, wherever the text is cut."""
    try:
        text = orjson.dumps(value)
    except TypeError:  # a lone surrogate
        text = b""
    return text if text and text.isascii() else json.dumps(value, separators=(",", ":")).encode("ascii")


def _target_keys(listed: Iterable[Iterable[Any]]) -> frozenset[TargetKey]:
    return frozenset(TargetKey(*item) for item in listed)


def targets_of(forward: Forward | None) -> frozenset[TargetKey]:
    """Return the target keys that a forward row lists; none without a row."""
    return forward.targets if forward else frozenset()


def pointer_of(index_row: Row) -> EntityKey:
    """Return the main target key that an index row points to; of empty texts where `named_main` gives
    none."""
    return named_main(index_row) or EntityKey("", "")


# --- retention ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cohort:
    """A cohort of a completed migration."""

    # Its month, `2024-05`; `all` for a mapping in the clear.
    name: str
    # The day on which it was shredded, or all of `all` was erased; "" when it was not.
    erased_on: str
    # When its retention ends, in ticks of the service's clock.
    over_at: int

    def is_due(self, now: int) -> bool:
        """Tell whether its retention is over at `now` (ticks) and it is not shredded or erased yet."""
        return not self.erased_on and now >= self.over_at


def over_at(name: str, completed_at: str, keep_s: float) -> int:
    """Return when a cohort's retention ends, in ticks of the service's clock: it runs from the end of the
    cohort or from `complete`, whichever is later, since the protocol needs the mapping until then. Raises
    ValueError: `name` is not the name of a cohort.

    Args:
        name: the cohort.
        completed_at: when the migration was completed, the service's time.
        keep_s: the retention in seconds.
    """
    since = ticks_of(completed_at)
    if name != WHOLE:
        match = _COHORT.fullmatch(name)
        if match is None:
            raise ValueError("a cohort is a month: 2024-05")
        months = int(match[1]) * _MONTHS + int(match[2])
        end = ticks_of(f"{months // _MONTHS:04}-{months % _MONTHS + 1:02}-01T00:00:00Z")
        since = max(since, end)
    return since + round(keep_s * TICKS_PER_SECOND)


def cohorts(rows: Iterable[Row], *, sealed: bool, completed_at: str, keep_s: float) -> tuple[Cohort, ...]:
    """Return the cohorts of a completed migration, oldest first.

    Args:
        rows: the rows in the partition of its data keys; none is opened.
        sealed: whether its mapping is sealed.
        completed_at, keep_s: as in `over_at`.
    """
    named = {str(row[ROW_KEY]): row for row in rows}
    if sealed:
        named = {name: row for name, row in named.items() if _COHORT.fullmatch(name)}
    else:
        whole = named.get(WHOLE, {})
        named = {WHOLE: whole if whole.get(DONE, False) else {}}
    return tuple(
        Cohort(name, str(row.get(ERASED_ON, "")), over_at(name, completed_at, keep_s))
        for name, row in sorted(named.items())
    )


# --- tombstones --------------------------------------------------------------------------------------------


def is_tombstone(row: Row) -> bool:
    """Tell whether a row of the mapping table is a tombstone."""
    return ERASED_ON in row


def day_of(moment: str) -> str:
    """Return the day of a moment of the service's time, in the form that tombstones hold: `2026-11-22`."""
    return moment[:_DAY_CHARACTERS]


class Tombstones:
    """Makes and reads tombstones: an erased row's key and day. Nothing links the rows of one subject."""

    def __init__(self, table: str, root: DataKey | None = None) -> None:
        """Create it from the mapping table's name and the root key; None for a mapping in the clear."""
        self._table = table
        self._key = None if root is None else derived(root, "tombstones", salt=b"")

    def make(self, key: EntityKey, on: str) -> Row:
        """Return the tombstone for the row under a key; `on` is the day."""
        row: Row = {PARTITION_KEY: key.partition, ROW_KEY: key.row, ERASED_ON: on}
        # Bound to its place and the day under a key from the root key: write access to the restricted store
        # is not enough to fake an erasure. A mapping in the clear has no such key.
        if self._key is None:
            return row
        return row | binary(PROOF, self._proof(self._key, key, on))

    def read(self, row: Row) -> str:
        """Return the day of a tombstone. Raises SealedUnreadable: rekey did not write it: the day is
        malformed, or the proof is wrong."""
        key, on = EntityKey(row[PARTITION_KEY], row[ROW_KEY]), str(row[ERASED_ON])
        right = _DAY.fullmatch(on) is not None
        if right and self._key is not None:
            try:
                proof = base64.b64decode(str(row.get(PROOF, "")), validate=True)
            except binascii.Error:
                proof = b""
            right = hmac.compare_digest(proof, self._proof(self._key, key, on))
        if not right:
            raise unreadable(self._table, key, "it says that it was erased, and that is not by rekey")
        return on

    def refuse(self, row: Row) -> None:
        """Raise Erased for a tombstone, SealedUnreadable for one that rekey did not write."""
        # A tombstone is neither a row nor its absence, so that no key is claimed in its place and no erased
        # row comes back.
        if is_tombstone(row):
            raise Erased(f"row {str(row[ROW_KEY])[:SHORT_CHARACTERS]}", self.read(row))

    def _proof(self, secret: bytes, key: EntityKey, on: str) -> bytes:
        message = "\0".join(("rekey/erased/v1", self._table, key.partition, key.row, on))
        return hmac.new(secret, message.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
