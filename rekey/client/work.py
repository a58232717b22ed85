"""One key on its way through a dual write: what was asked, what was read, what was sent.

Rules kept here:

* What was read before the authority is written and what was read beside that are kept apart: only the first
  is surely older than the write.
* What another try must not rely on is forgotten together (`begin_again`); intents are not, they stay durable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rekey.mapping.rows import Forward, TargetKey
from rekey.model import EntityKey, Row
from rekey.protocol.replicas import Rows
from rekey.protocol.rules import Side
from rekey.tables.base import Operation


class State(Enum):
    """How far the replicas of a key are."""

    UNDECIDED = "undecided"
    """The authority has not answered."""
    DECIDED = "decided"
    """The authority is written; what follows has not ended."""
    FOLLOWED = "followed"
    """The replicas were written on their conditions; a look at the authority is due."""
    SETTLED = "settled"
    """The replicas are known to be what the authority says."""
    LEFT = "left"
    """Not known to be: the intent stays."""


@dataclass(slots=True)
class Work:
    """One operation, and all that was learned for its key.

    Attributes:
        index: its position in the call.
        given: the operation as the caller gave it, as stored.
        key: the key it addresses, in the view.
        source_key: the old key of the row, as soon as it is known.
        sent: what is sent to the authority: the operation itself, or what it comes to there.
        before: the authority's row as read, if it was.
        owner: who owns the main target key, as read or as claimed.
        forward: the forward row as read, or as extended.
        expected: the replicas' rows after the write; None while unknown.
        early: replica rows read before the authority is written.
        late: replica rows read beside that.
        previous: the replicas' rows as expected before the write, as far as known.
        ours: places whose rows belong to this key.
        authority_key: where the row stands in the authority afterwards.
        etag: the authority's new ETag, None for a delete.
        place: in a view that is not the authority's, the place of the view's row.
        view_etag: the new ETag of that row.
        slow: conditional writes will not do; propagate has to.
        look_again: some replica row was not there, or not read, and nothing was written in its place.
        state: how far its replicas are.
        open: a request for it may still travel.
        intents: its intents, and what they are about.
        word: names this write where it reserves a key, over all its tries.
        others: rows under other main keys of its old key, where they were read while the key was reserved.
        outdated: what the mapping says has changed since it was read: to be worked out anew.
    """

    index: int
    given: Operation
    key: EntityKey
    source_key: EntityKey | None = None
    sent: Sequence[Operation] = ()
    before: Row | None = None
    owner: EntityKey | None = None
    forward: Forward | None = None
    expected: Rows | None = None
    early: dict[TargetKey, Row | None] = field(default_factory=dict)
    late: dict[TargetKey, Row | None] = field(default_factory=dict)
    previous: Rows = field(default_factory=dict)
    ours: set[TargetKey] = field(default_factory=set)
    authority_key: EntityKey | None = None
    etag: str | None = None
    place: TargetKey | None = None
    view_etag: str | None = None
    slow: bool = False
    look_again: bool = False
    state: State = State.UNDECIDED
    open: bool = False
    intents: list[IntentRef] = field(default_factory=list)
    word: str = ""
    others: Mapping[TargetKey, Row | None] | None = None
    outdated: bool = False

    def begin_again(self) -> None:
        """Forget what was read: another writer came in between."""
        self.sent, self.before, self.forward, self.expected = (), None, None, None
        self.early, self.late, self.previous, self.ours = {}, {}, {}, set()
        self.owner, self.authority_key, self.slow, self.look_again = None, None, False, False
        self.outdated, self.others = False, None

    @property
    def known(self) -> frozenset[TargetKey]:
        """The target keys that the forward row lists."""
        return self.forward.targets if self.forward else frozenset()

    @property
    def main_keys(self) -> set[EntityKey]:
        """All main target keys of this key, old and new."""
        places = (*self.known, *(self.expected or ()), *self.early)
        return {target.key for target in places if target.table == 0}

    def read_row(self, place: TargetKey) -> Row | None:
        """Return a replica row as it was read, None when it was not there or not read."""
        return self.early.get(place) or self.late.get(place)


@dataclass(frozen=True, slots=True)
class IntentRef:
    """An intent that this process wrote: its id in the journal, and what it is about."""

    id: EntityKey
    side: Side
    key: EntityKey
