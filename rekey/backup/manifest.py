"""The manifest of an export: where it came from, its parts, and what proves that they belong to it. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rekey.mapping.sealing import DataKey, SealedKeys, derived
from rekey.model import EntityKey, KeyRange, Row

FORMAT = "rekey/export/v1"
NOT_A_SNAPSHOT = (
    "Not a snapshot: rows were read one page after the other. A row that was written meanwhile is here as it"
    " was, or as it became."
)
# Of the files of parts, in the clear and sealed.
SUFFIXES = (".jsonl.gz", ".sealed")
_NAME_CHARACTERS = 20
_DIGEST, _RANGE = "digest", "range"


def canonical(value: Any) -> bytes:
    """Return a JSON value as the bytes that proofs cover."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


class Cover:
    """How keys and rows stand in the files of an export: sealed with its data key, or in the clear."""

    def __init__(self, export: str, key: DataKey | None) -> None:
        """Create it for the export of an id. `key`: its data key; None: in the clear."""
        self._keys = None if key is None else SealedKeys(export, derived(key, "export", salt=b""))
        self._proof_key = None if key is None else derived(key, "manifest", salt=b"")

    @property
    def is_sealed(self) -> bool:
        return self._keys is not None

    def file(self, sha256: str) -> str:
        """Return the name of the file with a SHA-256. It follows from the content, so that no other part is
        ever overwritten."""
        return sha256[:_NAME_CHARACTERS] + SUFFIXES[self.is_sealed]

    def seal(self, what: str, data: bytes) -> bytes:
        """Return data as it is stored. `what` it is must be the same when it is opened."""
        return data if self._keys is None else self._keys.seal(what, data)

    def unseal(self, what: str, data: bytes) -> bytes:
        """Return data that `seal` stored. Raises ValueError when it is not that."""
        return data if self._keys is None else self._keys.unseal(what, data)

    def member(self, what: str, value: Any) -> Any:
        """Return a JSON value as it stands in the manifest."""
        if self._keys is None:
            return value
        return base64.b64encode(self.seal(what, canonical(value))).decode("ascii")

    def value(self, what: str, member: Any) -> Any:
        """Return the value of what `member` returned. Raises ValueError when it is not that."""
        if self._keys is None:
            return member
        return json.loads(self.unseal(what, base64.b64decode(str(member), validate=True)))

    def proof(self, document: dict[str, Any]) -> str:
        """Return what proves a document unchanged: a MAC under the data key; in the clear a checksum only."""
        data = canonical(document)
        if self._proof_key is None:
            return hashlib.sha256(data).hexdigest()
        return hmac.new(self._proof_key, data, hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class Part:
    """One file of an export: the rows of a key range, in service order."""

    within: KeyRange = field(repr=False)
    rows: int
    # Rows with a Timestamp at or after the beginning of the export.
    changed: int
    # Of the JSON Lines, before compression.
    bytes: int
    # Of the file.
    stored: int
    sha256: str

    def as_json(self, cover: Cover) -> dict[str, Any]:
        figures = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "within"}
        return {
            "file": cover.file(self.sha256),
            **figures,
            "within": cover.member(_RANGE, _ends(self.within)),
        }

    @classmethod
    def from_json(cls, document: Any, cover: Cover) -> Part:
        """Return a part. Raises ValueError, KeyError or TypeError for anything else."""
        after, upto = cover.value(_RANGE, document["within"])
        figures = {name: int(document[name]) for name in ("rows", "changed", "bytes", "stored")}
        sha256 = bytes.fromhex(document["sha256"])
        part = cls(KeyRange(_key(after), _key(upto)), sha256=sha256.hex(), **figures)
        is_same = document == {**part.as_json(cover), "within": document["within"]}
        if not is_same or min(figures.values()) < 0 or len(sha256) != hashlib.sha256().digest_size:
            raise ValueError("not a part")
        return part


def part_of(within: KeyRange) -> str:
    """Return what the rows of a range are sealed as, so that no part stands in for another."""
    return f"part {canonical(_ends(within)).decode('ascii')}"


@dataclass(frozen=True, slots=True)
class Header:
    """Where an export comes from. It is known when the export begins."""

    # Unique.
    export: str
    table: str
    # The endpoint of the table's account.
    account: str
    # The service's time before the first row was read.
    began_at: str
    # The version of rekey.
    rekey: str
    # The wrapped data key (`mapping.sealing.data_key_row`); None: in the clear.
    key: Row | None = field(default=None, repr=False)

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, document: Any) -> Header:
        """Return a header. Raises ValueError, KeyError or TypeError for anything else."""
        if document["format"] != FORMAT or not isinstance(document["key"], dict | None):
            raise ValueError("not an export of this format")
        members = {each.name: document[each.name] for each in fields(cls)}
        if not all(isinstance(text, str) for name, text in members.items() if name != "key"):
            raise ValueError("not a header")
        return cls(**members)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete export: every key is in the range of exactly one part."""

    header: Header
    parts: tuple[Part, ...]
    ended_at: str
    # The content digest of the table, as a verification computes it.
    digest: str

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def changed(self) -> int:
        """How many rows were read with a Timestamp at or after the beginning."""
        return sum(part.changed for part in self.parts)

    def as_json(self, cover: Cover) -> dict[str, Any]:
        document = {
            **self.header.as_json(),
            "ended_at": self.ended_at,
            "about": NOT_A_SNAPSHOT,
            "left_out": ["odata.etag", "Timestamp"],
            "rows": self.rows,
            "changed": self.changed,
            "digest": cover.member(_DIGEST, self.digest),
            "parts": [part.as_json(cover) for part in self.parts],
        }
        return {**document, "proof": cover.proof(document)}

    @classmethod
    def from_json(cls, document: Any, cover: Cover) -> Manifest:
        """Return a manifest. Raises ValueError, KeyError or TypeError for anything else, and for one whose
        proof is wrong."""
        proved = {name: member for name, member in document.items() if name != "proof"}
        if not hmac.compare_digest(str(document["proof"]), cover.proof(proved)):
            raise ValueError("not as it was written")
        parts = tuple(Part.from_json(part, cover) for part in document["parts"])
        digest = str(cover.value(_DIGEST, document["digest"]))
        return cls(Header.from_json(document), parts, str(document["ended_at"]), digest)


def uncovered(parts: Iterable[Part]) -> list[KeyRange]:
    """Return the ranges of keys that parts in service order leave open. Raises ValueError when parts overlap,
    or are not in order."""
    return left_open([part.within for part in parts])


def left_open(covered: Iterable[KeyRange], *, is_ordered: bool = True) -> list[KeyRange]:
    """Return the ranges of keys that others leave open. Raises ValueError when these overlap, or are not in
    service order although they should be."""
    if not is_ordered:
        covered = sorted(covered, key=lambda within: _lower(within.after))
    ranges: list[KeyRange] = []
    end: EntityKey | None = None
    at_last = False
    for within in covered:
        after, upto = within.after, within.upto
        if at_last or _lower(after) < _lower(end) or _upper(upto) <= _lower(after):
            raise ValueError("ranges overlap, or are not in order")
        if after != end:
            ranges.append(KeyRange(end, after))
        end, at_last = upto, upto is None
    return ranges if at_last else [*ranges, KeyRange(end, None)]


def in_order(parts: Iterable[Part]) -> list[Part]:
    """Return parts in service order."""
    return sorted(parts, key=lambda part: _lower(part.within.after))


def _lower(key: EntityKey | None) -> tuple[Any, ...]:
    """Return where a range begins, for comparing; None: before all keys."""
    return (0,) if key is None else (1, key.order)


def _upper(key: EntityKey | None) -> tuple[Any, ...]:
    """Return where a range ends, for comparing; None: after all keys."""
    return (2,) if key is None else (1, key.order)


def _ends(within: KeyRange) -> Sequence[Any]:
    return [None if key is None else list(key) for key in (within.after, within.upto)]


def _key(pair: Any) -> EntityKey | None:
    if pair is None:
        return None
    partition, row = pair
    if not isinstance(partition, str) or not isinstance(row, str):
        raise ValueError("not a key")
    return EntityKey(partition, row)
