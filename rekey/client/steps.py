"""The steps of a dual write, one type for each: `Request`, `Prepared`, `Decided`, `Followed`. A retry starts
again from the `Request`; what must outlive an attempt is in `Pending`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import TypeVar

from rekey.mapping.rows import Forward, Owner, TargetKey, targets_of
from rekey.model import EntityKey, Row
from rekey.protocol.journal import IntentRef
from rekey.protocol.replicas import Rows, Seen, Writes
from rekey.protocol.rules import Side
from rekey.tables.base import Operation, Verb

K = TypeVar("K")


@dataclass(slots=True)
class Pending:
    """The intents, reservations and open requests that all attempts of one write have left."""

    intents: list[IntentRef] = field(default_factory=list)
    # Target keys that it has reserved, with their claims as written.
    reserved: dict[TargetKey, Owner] = field(default_factory=dict)
    # Old keys whose forward rows hold its reservation, with these rows as written; None where the answer was
    # lost.
    reserved_forward: dict[EntityKey, Forward | None] = field(default_factory=dict)
    # The row takes a key from a row that the same call deletes, so propagate writes the call's replicas.
    takes_over_key: bool = False
    # Whether a request for it may yet take effect.
    ambiguous: bool = False
    # Retain the intent for a while after completion: the row it deleted had no replica, or the one it created
    # had one, or its replica was out of step. So another write of the row is unfinished, and may look in the
    # journal for who changed the row since (`rekey.client.send`).
    keep_intent: bool = False
    # In a view that is not the authority's, the new ETag of the view's row, if known.
    view_etag: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One operation of a call."""

    # Its position in the call.
    index: int
    # The operation as the caller requested it, with its row as the service will store it.
    operation: Operation
    # The key it addresses, in the view.
    key: EntityKey
    # Its id in reservations, the same in all attempts.
    write_id: str
    # Whether the stored form of its values is known; if not, propagate writes the replicas.
    foreseen: bool
    # Read the authority's row before the write even if no step needs it: until the backfill is done there may
    # be no replica that shows its former content.
    reads_before: bool
    pending: Pending = field(default_factory=Pending)


@dataclass(slots=True)
class MappingReads:
    """The mapping rows of one key, as an attempt has read or written them."""

    forward: Forward | None = None
    # The old key that owns the main target key.
    owner: EntityKey | None = None
    # Claims of target keys to reserve, None where there was none.
    claims: dict[TargetKey, Owner | None] = field(default_factory=dict)
    # Rows under other main target keys of the old key, if read while the key was reserved.
    others: Mapping[TargetKey, Row | None] | None = None
    # Whether the forward row changed after it was read: the write is prepared again.
    outdated: bool = False


@dataclass(slots=True)
class ReplicaReads:
    """The replica rows of one key, as an attempt reads and works them out; attributes as `ReplicaRows`."""

    expected: Rows | None = None
    previous: Rows = field(default_factory=dict)
    read: dict[TargetKey, Row | None] = field(default_factory=dict)
    own: set[TargetKey] = field(default_factory=set)


@dataclass(slots=True)
class Draft:
    """A write that is being prepared, in one attempt. Reads that run at the same time fill it."""

    request: Request
    # Sides and keys of the rows that other operations of the same call delete.
    deleted_by_call: frozenset[tuple[Side, EntityKey | None]] = frozenset()
    # The old key of the row, as soon as it is known.
    source_key: EntityKey | None = None
    # The row's key in the authority, after the write.
    authority_key: EntityKey | None = None
    # In a view that is not the authority's, the place of the view's row.
    place: TargetKey | None = None
    # The authority's row as read; None if there is none, or it was not read.
    before: Row | None = None
    mapping: MappingReads = field(default_factory=MappingReads)
    replicas: ReplicaReads = field(default_factory=ReplicaReads)
    # The operations that are sent to the authority: the given one, or its equivalent there.
    sent: Sequence[Operation] = ()
    # Writes of secondary rows in the authority's transaction.
    secondary_writes: Writes = field(default_factory=list)
    # Whether propagate has to write the replicas instead of conditional writes.
    needs_propagate: bool = False

    @property
    def operation(self) -> Operation:
        return self.request.operation

    @property
    def key(self) -> EntityKey:
        return self.request.key

    @property
    def pending(self) -> Pending:
        return self.request.pending

    @property
    def old_key(self) -> EntityKey:
        """The old key of the row, for steps in which it is known."""
        return known(self.source_key)

    @property
    def listed(self) -> frozenset[TargetKey]:
        """The target keys that the forward row lists."""
        return targets_of(self.mapping.forward)

    @property
    def expected(self) -> Rows:
        """The replicas' rows after the write; empty while unknown."""
        return self.replicas.expected or {}

    @property
    def main_keys(self) -> set[EntityKey]:
        """All main target keys of this key, old and new."""
        return main_keys(self.listed, self.expected, self.replicas.read)

    def prepared(self) -> Prepared:
        return Prepared(
            self.request,
            self.source_key,
            self.authority_key,
            self.place,
            self.before,
            self.mapping.forward,
            ReplicaRows(
                self.replicas.expected,
                self.replicas.previous,
                self.replicas.read,
                frozenset(self.replicas.own),
            ),
            tuple(self.sent),
            tuple(self.secondary_writes),
            self.needs_propagate,
        )


@dataclass(frozen=True, slots=True)
class ReplicaRows:
    """The replica rows of one key before its authority is written."""

    # The rows after the write; None where only propagate can tell.
    expected: Rows | None
    # The rows as they should be before the write, as far as known.
    previous: Rows
    # The rows as read, certainly before the write.
    read: Seen
    # Places whose rows belong to this key.
    own: frozenset[TargetKey]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A write whose intents and claims are durable; fields as in `Draft`. `forward`: as read or extended."""

    request: Request
    source_key: EntityKey | None
    authority_key: EntityKey | None
    place: TargetKey | None
    before: Row | None
    forward: Forward | None
    replicas: ReplicaRows
    sent: tuple[Operation, ...]
    secondary_writes: tuple[tuple[TargetKey, Operation], ...]
    needs_propagate: bool

    @property
    def old_key(self) -> EntityKey:
        return known(self.source_key)

    @property
    def expected(self) -> Rows:
        return self.replicas.expected or {}

    @property
    def is_delete(self) -> bool:
        return self.sent[-1].verb is Verb.DELETE


@dataclass(slots=True)
class During:
    """What is read, and listed, while the authority is being written. Complete when it has answered."""

    # The forward row, as read or as extended.
    forward: Forward | None
    # Replica rows, possibly newer than the write.
    read: dict[TargetKey, Row | None]
    # Places whose rows belong to this key, those of the step before included.
    own: set[TargetKey]
    # The replicas' rows as they should be before the write, as far as known.
    previous: Rows
    # Whether propagate has to write the replicas.
    needs_propagate: bool

    def main_keys(self, write: Prepared) -> set[EntityKey]:
        """Return all main target keys of the write's key, old and new."""
        return main_keys(targets_of(self.forward), write.expected, write.replicas.read)

    @staticmethod
    def of(write: Prepared) -> During:
        return During(
            write.forward, {}, set(write.replicas.own), write.replicas.previous, write.needs_propagate
        )


@dataclass(frozen=True, slots=True)
class Decided:
    """A write that the authority has done."""

    write: Prepared
    during: During
    # The authority's new ETag, None for a delete.
    etag: str | None
    # The old key of the row; None for a deleted row that had no owner.
    source_key: EntityKey | None

    @property
    def pending(self) -> Pending:
        return self.write.request.pending

    @property
    def old_key(self) -> EntityKey:
        return known(self.source_key)

    @property
    def read(self) -> dict[TargetKey, Row | None]:
        """All replica rows that were read; of two reads of one row the first."""
        return {**self.during.read, **self.write.replicas.read}


class State(Enum):
    """How far the replicas of a key are."""

    # Their conditional writes are done; the recheck of the authority is due.
    WRITTEN = "written"
    # They are known to match the authority.
    SETTLED = "settled"
    # They are not known to match the authority: the intent stays.
    UNSETTLED = "unsettled"


@dataclass(frozen=True, slots=True)
class Followed:
    """A write whose replicas were written, as far as possible. `reread`: some replica row was absent, not
    this key's or not read, so nothing was written in its place and it must be read again."""

    decided: Decided
    state: State
    reread: bool = False


def known(key: K | None) -> K:
    """Return a key, or a place, that an earlier step has determined."""
    if key is None:
        raise AssertionError("a key is asked for before it is known")
    return key


def main_keys(*places: Iterable[TargetKey]) -> set[EntityKey]:
    """Return the keys of those places that are in the main target."""
    return {target.key for target in chain(*places) if target.table == 0}
