"""The steps of a dual write, one type for each: `Request`, `Prepared`, `Decided`, `Followed`.

Another attempt starts again from the `Request`. What must outlive an attempt is in `Held`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import TypeVar

from rekey.mapping.rows import Forward, Owner, TargetKey
from rekey.model import EntityKey, Row
from rekey.protocol.replicas import Rows, Seen, Writes
from rekey.protocol.rules import Side
from rekey.tables.base import Operation, Verb

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class IntentRef:
    """An intent that this process wrote: its id in the journal, and what it is about."""

    id: EntityKey
    side: Side
    key: EntityKey


@dataclass(slots=True)
class Held:
    """What all attempts of one write have left behind in the journal, the mapping and the tables.

    Attributes:
        intents: its intents.
        reserved: target keys that it has reserved, with their claims as written.
        reserved_forward: old keys in whose forward rows it has reserved, with these rows as written; None
            where the answer was lost.
        moves: whether the row takes a key from a row that the same call deletes: then propagate writes the
            replicas of the call.
        ambiguous: whether a request for it may yet take effect.
        keep_intent: whether its intent is kept for a while when the write is done, because the row that it
            deleted had no replica, or the one that it created had one, or the replica of its row was out of
            step: another write of the row is unfinished, and looks in the journal for who changed the row
            since (`rekey.client.send`).
        view_etag: in a view that is not the authority's, the new ETag of the view's row, if known.
    """

    intents: list[IntentRef] = field(default_factory=list)
    reserved: dict[TargetKey, Owner] = field(default_factory=dict)
    reserved_forward: dict[EntityKey, Forward | None] = field(default_factory=dict)
    moves: bool = False
    ambiguous: bool = False
    keep_intent: bool = False
    view_etag: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One operation of a call.

    Attributes:
        index: its position in the call.
        given: the operation as the caller gave it, with its row as the service will store it.
        key: the key it addresses, in the view.
        word: names this write in reservations, the same in all attempts.
        foreseen: whether it is known how the service stores its values; if not, propagate writes the replicas
            of what it has stored.
        reads_before: whether the authority's row is read before the write although no step needs it: before
            the backfill is done nothing else tells how it was.
        held: what its attempts have left behind.
    """

    index: int
    given: Operation
    key: EntityKey
    word: str
    foreseen: bool
    reads_before: bool
    held: Held = field(default_factory=Held)


@dataclass(slots=True)
class MappingReads:
    """The mapping rows of one key, as an attempt has read or written them.

    Attributes:
        forward: the forward row.
        owner: the old key that owns the main target key.
        claims: claims of target keys that are to be reserved, None where there was none.
        others: rows under other main target keys of the old key, if read while the key was reserved.
        outdated: whether the forward row changed after it was read: the write is prepared again.
    """

    forward: Forward | None = None
    owner: EntityKey | None = None
    claims: dict[TargetKey, Owner | None] = field(default_factory=dict)
    others: Mapping[TargetKey, Row | None] | None = None
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
    """A write that is being prepared, in one attempt. Reads that run at the same time fill it.

    Attributes:
        request: what was asked.
        leaving: sides and keys of the rows that other operations of the same call delete.
        source_key: the old key of the row, as soon as it is known.
        authority_key: the row's key in the authority, after the write.
        place: in a view that is not the authority's, the place of the view's row.
        before: the authority's row as read; None if there is none, or it was not read.
        mapping: the mapping rows as read.
        replicas: the replica rows as read, and as they should be.
        sent: the operations that are sent to the authority: the given one, or what stands for it there.
        along: secondary rows that are written in the authority's transaction: their places and operations.
        slow: whether propagate has to write the replicas instead of conditional writes.
    """

    request: Request
    leaving: frozenset[tuple[Side, EntityKey | None]] = frozenset()
    source_key: EntityKey | None = None
    authority_key: EntityKey | None = None
    place: TargetKey | None = None
    before: Row | None = None
    mapping: MappingReads = field(default_factory=MappingReads)
    replicas: ReplicaReads = field(default_factory=ReplicaReads)
    sent: Sequence[Operation] = ()
    along: Writes = field(default_factory=list)
    slow: bool = False

    @property
    def given(self) -> Operation:
        """The operation as the caller gave it."""
        return self.request.given

    @property
    def key(self) -> EntityKey:
        """The key it addresses, in the view."""
        return self.request.key

    @property
    def held(self) -> Held:
        """What the attempts of the write have left behind."""
        return self.request.held

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
        """Return the write as it is to be sent."""
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
            tuple(self.along),
            self.slow,
        )


@dataclass(frozen=True, slots=True)
class ReplicaRows:
    """The replica rows of one key before its authority is written.

    Attributes:
        expected: the rows after the write; None where only propagate can tell.
        previous: the rows as they should be before the write, as far as known.
        read: the rows as read. They are surely older than the write.
        own: places whose rows belong to this key.
    """

    expected: Rows | None
    previous: Rows
    read: Seen
    own: frozenset[TargetKey]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A write whose intents and claims are durable; attributes as `Draft`, and:

    Attributes:
        forward: the forward row of its key, as read or as extended.
        replicas: the replica rows of its key.
    """

    request: Request
    source_key: EntityKey | None
    authority_key: EntityKey | None
    place: TargetKey | None
    before: Row | None
    forward: Forward | None
    replicas: ReplicaRows
    sent: tuple[Operation, ...]
    along: tuple[tuple[TargetKey, Operation], ...]
    slow: bool

    @property
    def old_key(self) -> EntityKey:
        """The old key of the row, for steps in which it is known."""
        return known(self.source_key)

    @property
    def expected(self) -> Rows:
        """The replicas' rows after the write; empty where they are not known."""
        return self.replicas.expected or {}

    @property
    def is_delete(self) -> bool:
        """Whether the authority's row is deleted."""
        return self.sent[-1].verb is Verb.DELETE


@dataclass(slots=True)
class During:
    """What is read, and listed, while the authority is being written. Complete when it has answered.

    Attributes:
        forward: the forward row, as read or as extended.
        read: replica rows. They may be newer than the write.
        own: places whose rows belong to this key, those of the step before included.
        previous: the replicas' rows as they should be before the write, as far as known.
        slow: whether propagate has to write the replicas.
    """

    forward: Forward | None
    read: dict[TargetKey, Row | None]
    own: set[TargetKey]
    previous: Rows
    slow: bool

    def main_keys(self, write: Prepared) -> set[EntityKey]:
        """Return all main target keys of the write's key, old and new."""
        return main_keys(targets_of(self.forward), write.expected, write.replicas.read)

    @staticmethod
    def of(write: Prepared) -> During:
        """Return the step as it begins."""
        return During(write.forward, {}, set(write.replicas.own), write.replicas.previous, write.slow)


@dataclass(frozen=True, slots=True)
class Decided:
    """A write that the authority has done.

    Attributes:
        write: as it was sent.
        during: what was read meanwhile.
        etag: the authority's new ETag, None for a delete.
        source_key: the old key of the row; None for a deleted row that had no owner.
    """

    write: Prepared
    during: During
    etag: str | None
    source_key: EntityKey | None

    @property
    def held(self) -> Held:
        """What the attempts of the write have left behind."""
        return self.write.request.held

    @property
    def old_key(self) -> EntityKey:
        """The old key of the row, for steps in which it is known."""
        return known(self.source_key)

    @property
    def read(self) -> dict[TargetKey, Row | None]:
        """All replica rows that were read; of two reads of one row the first."""
        return {**self.during.read, **self.write.replicas.read}


class State(Enum):
    """How far the replicas of a key are."""

    # Their conditional writes are done; the recheck of the authority is due.
    WRITTEN = "written"
    # They are known to be what the authority says.
    SETTLED = "settled"
    # They are not known to be what the authority says: the intent stays.
    UNSETTLED = "unsettled"


@dataclass(frozen=True, slots=True)
class Followed:
    """A write whose replicas were written, as far as they could be.

    Attributes:
        decided: the step before.
        state: how far the replicas are.
        reread: whether some replica row was absent, not this key's or not read, so that nothing was written
            in its place, and it has to be read again.
    """

    decided: Decided
    state: State
    reread: bool = False


def known(key: K | None) -> K:
    """Return a key, or a place, that an earlier step has determined."""
    if key is None:
        raise AssertionError("a key is asked for before it is known")
    return key


def targets_of(forward: Forward | None) -> frozenset[TargetKey]:
    """Return the target keys that a forward row lists."""
    return forward.targets if forward else frozenset()


def main_keys(*places: Iterable[TargetKey]) -> set[EntityKey]:
    """Return the keys of those places that are in the main target."""
    return {target.key for target in chain(*places) if target.table == 0}
