"""The state of a dual write: each of its keys, and what was asked, read and sent for it.

Rules kept here:

* Rows read before the authority is written and rows read during that write are kept apart: only the first are
  surely older than the write.
* `begin_again` forgets all that another attempt must not rely on; intents stay, they are durable.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, StrEnum
from itertools import count
from typing import TypeVar

from rekey.client.lease import ClientLease, Permit
from rekey.core.limits import ELSEWHERE
from rekey.errors import CredentialRefused, ServiceError
from rekey.mapping.rows import CONTROL_TABLE, JOURNAL_TABLE, MAPPING_TABLE, Forward, Owner, TargetKey
from rekey.model import EntityKey, Row
from rekey.protocol.journal import Journal
from rekey.protocol.propagate import Propagator
from rekey.protocol.replicas import Rows, Writes
from rekey.protocol.rules import Side, View
from rekey.tables.base import Operation, Table

K = TypeVar("K")

LONGEST_OPERATION_S = 30.0
LATE_S = 7.0
# The code of a write that failed because of other writes of the same row; the caller may repeat it.
ROW_TOO_BUSY = "RowTooBusy"
# Most keys of a transaction whose replicas are written at the same time.
WIDTH = 32


class Acknowledge(StrEnum):
    """When the caller of a write has its answer, in the view whose table is the authority."""

    # When its replicas are current, or known to be left to a durable intent.
    BOTH = "both"
    # When intent and authority are durable: the replicas follow at once, after the answer.
    AUTHORITY = "authority"


@dataclass(slots=True)
class Counters:
    """What one client has done since it started; changed by its own tasks only.

    Attributes:
        writes: write operations that were acknowledged to the caller; a transaction counts each of its own.
        fast: keys whose replicas were current by conditional writes alone, without propagate.
        propagated: keys that propagate made current.
        replica_failures: attempts to make replicas current that failed.
        refused: attempts that failed because the credential was refused; part of `replica_failures`.
        left: keys whose replicas were not current when the caller had its answer or its error, with an
            intent left in the journal.
        matched, mismatched, ignored: shadow reads that agreed, disagreed, or could not be judged.
    """

    writes: int = 0
    fast: int = 0
    propagated: int = 0
    replica_failures: int = 0
    refused: int = 0
    left: int = 0
    matched: int = 0
    mismatched: int = 0
    ignored: int = 0


@dataclass(eq=False, repr=False)
class ClientParts:
    """The tables, mapping, journal and lease of one client of a migration.

    Attributes:
        view: how the client addresses its rows.
        client_id: names its partition of the journal.
        propagator: the tables, the mapping and the mapper.
        journal: the migration's journal.
        permits: its lease.
        run_id: the run of the migration that they are made for; under a permit of another run nothing is
            done.
        counters: the client's counters.
        decided: intents of writes of this client that the authority has answered, so that at most their
            replicas follow, with the moment of that answer.
        moments: counts moments.
        begun: calls that write a key, from their beginning to the answer: sides and keys, counted.
        writing: what is being written now, from its intent to the answer: sides and keys, counted.
        settling: what earlier writes left, and is being settled now: sides and keys as intents name them, by
            what ends with it.
        acknowledge: when the caller of a write has its answer.
        longest_operation_s: after how many seconds an operation ends, successful or not.
        late_s: for how many seconds a request that was not answered may take effect after that is known.
        sleep: waits, between two attempts at a leftover among others.
    """

    view: View
    client_id: str
    _: KW_ONLY
    propagator: Propagator
    journal: Journal
    permits: ClientLease
    run_id: str = ""
    counters: Counters
    decided: dict[EntityKey, int] = field(default_factory=dict)
    moments: Iterator[int] = field(default_factory=count)
    begun: Counter[tuple[Side, EntityKey]] = field(default_factory=Counter)
    writing: Counter[tuple[Side, EntityKey]] = field(default_factory=Counter)
    settling: dict[asyncio.Future[None], set[tuple[Side, EntityKey]]] = field(default_factory=dict)
    acknowledge: Acknowledge = Acknowledge.BOTH
    longest_operation_s: float = LONGEST_OPERATION_S
    late_s: float = LATE_S
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    @property
    def table(self) -> Table:
        """The table that the view addresses."""
        return self.propagator.source if self.view is View.OLD else self.propagator.targets[0]

    async def wait_out(self) -> None:
        """Wait until nothing that was sent so far, and not answered, can take effect any more."""
        await self.sleep(self.late_s)

    def begins(self, side: Side, key: EntityKey) -> None:
        """Note that a write of a key is under way."""
        self.writing[side, key] += 1

    def ends(self, begun: Iterable[tuple[Side, EntityKey]], intents: Iterable[IntentRef]) -> None:
        """Note that a call is over. `begun`: the keys that it was to write; `intents`: all that it began."""
        announced = [(one.side, one.key) for one in intents]
        for counted, keys in ((self.begun, begun), (self.writing, announced)):
            for key in keys:
                counted[key] -= 1
                if not counted[key]:
                    del counted[key]

    @contextmanager
    def settles(self, intents: Iterable[IntentRef]) -> Iterator[None]:
        """Note that the replicas of an earlier write's key are being settled. `intents`: that write's."""
        over = asyncio.get_running_loop().create_future()
        self.settling[over] = {(intent.side, intent.key) for intent in intents}
        try:
            yield
        finally:
            del self.settling[over]
            over.set_result(None)

    async def let_settle(self, keys: Collection[tuple[Side, EntityKey]]) -> None:
        """Wait until the replicas of no key are being settled: a write tells by them whether it was applied
        if its answer is lost, and settling them would take over what it has just written."""
        while running := [over for over, settled in self.settling.items() if not settled.isdisjoint(keys)]:
            await asyncio.wait(running)

    def is_writing(self, intents: Iterable[IntentRef], *, begun: bool = False) -> bool:
        """Tell whether one other write of a key is under way (`begun`: also before its intent): then its
        replicas are left to that write, which tells by them whether it was applied if its answer is lost.
        Many tell nothing by them anyway."""
        counted = self.begun if begun else self.writing
        return any(counted[intent.side, intent.key] == 1 for intent in intents)

    def current(self) -> Permit | None:
        """Return what `ClientLease.current` does, None also for a permit of another run."""
        permit = self.permits.current()
        return permit if permit is not None and permit.run_id == self.run_id else None


def account_of(error: ServiceError) -> str:
    """Return which account an error is of, `restricted`, `targets` or `tables`, by the table it names."""
    if any(name in error.what for name in (CONTROL_TABLE, JOURNAL_TABLE, MAPPING_TABLE)):
        return "restricted"
    return "targets" if ELSEWHERE in error.what else "tables"


def refused_by(error: CredentialRefused) -> CredentialRefused:
    """Return the refusal of a credential with the account that refused it, and what to do there."""
    which = account_of(error)
    return CredentialRefused(
        f"the {which} account refused the credential of this client: {error.what}",
        code=error.code,
        status=error.status,
        index=error.index,
        hint=f"give the client a credential of the {which} account that reads and writes every table of the"
        " migration: the account's key, a SAS for the account, or the role Storage Table Data Contributor;"
        " a SAS for one table is not enough",
    )


class State(Enum):
    """How far the replicas of a key are."""

    # The authority has not answered.
    UNDECIDED = "undecided"
    # The authority is written; the writes of the replicas have not ended.
    DECIDED = "decided"
    # The conditional writes of the replicas are done; the last look at the authority is due.
    FOLLOWED = "followed"
    # The replicas are known to be what the authority says.
    SETTLED = "settled"
    # The replicas are not known to be what the authority says: the intent stays.
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class IntentRef:
    """An intent that this process wrote: its id in the journal, and what it is about."""

    id: EntityKey
    side: Side
    key: EntityKey


@dataclass(slots=True)
class Work:
    """One operation, and all that is known for its key.

    Attributes:
        index: its position in the call.
        given: the operation as the caller gave it, with its row as the service will store it.
        key: the key it addresses, in the view.
        foreseen: whether it is known how the service stores its values; if not, propagate writes the replicas
            of what it has stored.
        reads_before: whether the authority's row is read before the write although no step needs it: before
            the backfill is done nothing else tells how it was.
        leaving: sides and keys of the rows that other operations of the same call delete.
        moves: whether the row takes a key from one of those: then propagate writes the replicas of the call.
        word: names this write in reservations, the same in all attempts.
        source_key: the old key of the row, as soon as it is known.
        sent: the operations that are sent to the authority: the given one, or what stands for it there.
        along: secondary rows that are written in the authority's transaction: their places and operations.
        before: the authority's row as read before the write; None if there is none, or it was not read.
        owner: the old key that owns the main target key, as read or as claimed.
        forward: the forward row as read, or as extended.
        expected: the replicas' rows after the write; None while unknown.
        early: replica rows read before the authority is written.
        late: replica rows read during that write.
        previous: the replicas' rows as expected before the write, as far as known.
        ours: places whose rows belong to this key.
        authority_key: the row's key in the authority, after the write.
        etag: the authority's new ETag, None for a delete.
        place: in a view that is not the authority's, the place of the view's row.
        view_etag: the new ETag of that row.
        slow: whether propagate has to write the replicas instead of conditional writes.
        look_again: whether some replica row was absent, not this key's or not read, so that nothing was
            written in its place.
        state: how far its replicas are.
        open: whether a request for it may yet take effect.
        intents: its intents, and what they are about.
        lingers: whether its intent stays for a while when all is done, because the row that it deleted had no
            replica, or the one that it created had one, or the replica of its row was out of step: another
            write of the row is unfinished, and looks in the journal for who changed the row since
            (`rekey.client.send`).
        others: rows under other main target keys of its old key, if read while the key was reserved.
        claims: claims of target keys as they were read, None where there was none.
        reserved: target keys that this write has reserved, with their claims as written; they stay reserved
            in further attempts.
        outdated: whether the forward row changed after it was read: the write is worked out anew.
    """

    index: int
    given: Operation
    key: EntityKey
    word: str
    foreseen: bool = True
    source_key: EntityKey | None = None
    sent: Sequence[Operation] = ()
    along: Writes = field(default_factory=list)
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
    lingers: bool = False
    reads_before: bool = False
    leaving: frozenset[tuple[Side, EntityKey | None]] = frozenset()
    moves: bool = False
    others: Mapping[TargetKey, Row | None] | None = None
    claims: dict[TargetKey, Owner | None] = field(default_factory=dict)
    reserved: dict[TargetKey, Owner] = field(default_factory=dict)
    outdated: bool = False

    def begin_again(self) -> None:
        """Forget what was read: another writer came in between."""
        self.sent, self.before, self.forward, self.expected = (), None, None, None
        self.along = []
        self.early, self.late, self.previous, self.ours = {}, {}, {}, set()
        self.owner, self.authority_key, self.look_again = None, None, False
        self.slow = not self.foreseen
        self.outdated, self.others, self.claims = False, None, {}

    @property
    def old_key(self) -> EntityKey:
        """The old key of the row, for steps in which it is known."""
        return found(self.source_key)

    @property
    def known(self) -> frozenset[TargetKey]:
        """The target keys that the forward row lists."""
        return self.forward.targets if self.forward else frozenset()

    @property
    def main_keys(self) -> set[EntityKey]:
        """All main target keys of this key, old and new."""
        places = (*self.known, *(self.expected or ()), *self.early)
        return {target.key for target in places if target.table == 0}


def found(key: K | None) -> K:
    """Return a key, or a place, that an earlier step has found."""
    if key is None:
        raise AssertionError("a key is asked for before it was found")
    return key
