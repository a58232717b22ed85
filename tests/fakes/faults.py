"""Faults for the in-memory service: what may go wrong with one call, chosen by a seed or by a plan.

Rules kept here:

* A fault is a value. It says whether the call was applied and what the caller gets to see; the in-memory
  service carries it out.
* A seeded source of faults is deterministic: the same seed and the same sequence of calls give the same
  faults, at any time and in any process.
* An error inside a transaction names an operation and rolls all of them back, as the service does.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from rekey.errors import Ambiguous, EndpointDown, ServiceError, Unavailable
from rekey.tables.base import Operation


@dataclass(frozen=True, slots=True)
class Call:
    """One call on the in-memory service, as faults and gates see it.

    Attributes:
        action: `get`, `insert`, `replace`, `merge`, `insert_or_replace`, `insert_or_merge`, `delete`,
            `transact`, `page` (one page of a scan), `create_table`, `delete_table`, `table_exists`,
            `server_time`.
        table: the table's name, "" for `server_time`.
        operations: the writes of the call; empty for reads and table calls.
        number: counts the calls of one service from 1.
        read: the partition that a read is about, None for other calls and for reads of several.
    """

    action: str
    table: str
    operations: tuple[Operation, ...]
    number: int
    read: str | None = None

    @property
    def writes(self) -> bool:
        """Tell whether the call writes rows."""
        return bool(self.operations)


class FaultKind(StrEnum):
    """What goes wrong."""

    NOT_SENT = "not-sent"
    """No connection: nothing was applied. EndpointDown."""
    BUSY = "busy"
    """503 ServerBusy until retries ended: nothing was applied. Unavailable."""
    TIMED_OUT = "timed-out"
    """500 OperationTimedOut although the call was applied. Unavailable."""
    LOST_ANSWER = "lost-answer"
    """The call was applied, the connection broke before the answer. Ambiguous."""
    LOST_REQUEST = "lost-request"
    """The connection broke and the call was not applied. Ambiguous."""
    INSIDE_BATCH = "inside-batch"
    """One operation of a transaction answers 503: all are rolled back. Unavailable with its index."""
    EMPTY_PAGE = "empty-page"
    """A page of a scan comes back empty although more rows follow."""
    SHORT_PAGE = "short-page"
    """A page of a scan ends early (the service's 5 seconds), with a cursor."""
    SLOW = "slow"
    """Nothing fails; the answer takes `seconds` of the clock, before the effect."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `seconds` of latency pass on the clock before it; `index` is for INSIDE_BATCH."""

    kind: FaultKind
    seconds: float = 0.0
    index: int = 0

    @property
    def applied(self) -> bool:
        """Tell whether the call takes effect in spite of the fault."""
        return self.kind not in (
            FaultKind.NOT_SENT,
            FaultKind.BUSY,
            FaultKind.LOST_REQUEST,
            FaultKind.INSIDE_BATCH,
        )

    def error(self) -> ServiceError | None:
        """Return the error that the caller gets, None when it gets its answer."""
        match self.kind:
            case FaultKind.NOT_SENT:
                return EndpointDown("no connection to the endpoint", code="ConnectError")
            case FaultKind.BUSY:
                return Unavailable("the service is busy (ServerBusy)", code="ServerBusy", status=503)
            case FaultKind.TIMED_OUT:
                return Unavailable(
                    "the service timed out (OperationTimedOut)", code="OperationTimedOut", status=500
                )
            case FaultKind.LOST_ANSWER | FaultKind.LOST_REQUEST:
                return Ambiguous("the connection broke before the answer", code="ConnectionLost")
            case FaultKind.INSIDE_BATCH:
                return Unavailable(
                    "the service is busy (ServerBusy)", code="ServerBusy", status=503, index=self.index
                )
        return None


class Faults(Protocol):
    """A source of faults."""

    def decide(self, call: Call) -> Fault | None:
        """Return what goes wrong with a call, None when nothing does."""


class NoFaults:
    """Nothing goes wrong."""

    def decide(self, call: Call) -> Fault | None:
        """Return None."""
        return None


_WRITE_KINDS = (
    FaultKind.NOT_SENT,
    FaultKind.BUSY,
    FaultKind.TIMED_OUT,
    FaultKind.LOST_ANSWER,
    FaultKind.LOST_REQUEST,
)
_READ_KINDS = (FaultKind.NOT_SENT, FaultKind.BUSY)
_PAGE_KINDS = (*_READ_KINDS, FaultKind.EMPTY_PAGE, FaultKind.SHORT_PAGE)


class SeededFaults:
    """Faults at a given rate, the same for the same seed.

    Args:
        seed: any integer.
        rate: the share of calls that fail, 0 to 1.
        slow_rate: the share of the other calls that are slow.
        slow_seconds: the longest latency of a slow call, on the service's clock.
        kinds: the kinds to choose from; by default all that fit the call.
    """

    def __init__(
        self,
        seed: int,
        *,
        rate: float = 0.05,
        slow_rate: float = 0.0,
        slow_seconds: float = 2.0,
        kinds: Iterable[FaultKind] | None = None,
    ) -> None:
        self._random = random.Random(seed)
        self._rate = rate
        self._slow_rate = slow_rate
        self._slow_seconds = slow_seconds
        self._kinds = None if kinds is None else frozenset(kinds)

    def decide(self, call: Call) -> Fault | None:
        """Draw for one call. Three numbers are always drawn, which keeps seeds comparable."""
        fails, which, how_long = self._random.random(), self._random.random(), self._random.random()
        kinds = self._fitting(call)
        if kinds and fails < self._rate:
            kind = kinds[int(which * len(kinds))]
            return Fault(kind, index=int(how_long * len(call.operations)))
        if fails > 1.0 - self._slow_rate:
            return Fault(FaultKind.SLOW, seconds=how_long * self._slow_seconds)
        return None

    def _fitting(self, call: Call) -> list[FaultKind]:
        if call.action == "page":
            kinds = list(_PAGE_KINDS)
        elif not call.writes:
            kinds = list(_READ_KINDS)
        else:
            kinds = list(_WRITE_KINDS)
            if call.action == "transact":
                kinds.append(FaultKind.INSIDE_BATCH)
        return kinds if self._kinds is None else [kind for kind in kinds if kind in self._kinds]


@dataclass(slots=True)
class Planned:
    """One entry of a fault plan: the `nth` call (from 1) that matches `action` and `table` gets `fault`.

    `action` and `table` "" match everything; `times` consecutive matching calls are hit.
    """

    fault: Fault
    action: str = ""
    table: str = ""
    nth: int = 1
    times: int = 1
    seen: int = 0

    def matches(self, call: Call) -> bool:
        """Tell whether the entry is about this call, counting it when it is."""
        if self.action not in ("", call.action) or self.table.lower() not in ("", call.table.lower()):
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


class PlannedFaults:
    """Faults by plan: "the third insert into X is applied, and its answer lost".

    >>> plan = PlannedFaults(Planned(Fault(FaultKind.LOST_ANSWER), action="insert", table="X", nth=3))
    """

    def __init__(self, *entries: Planned) -> None:
        self._entries = list(entries)

    def add(self, entry: Planned) -> None:
        """Add an entry, which counts calls from now on."""
        self._entries.append(entry)

    def decide(self, call: Call) -> Fault | None:
        """Return the fault of the first matching entry. Every entry counts every call it is about."""
        hits = [entry.fault for entry in self._entries if entry.matches(call)]
        return hits[0] if hits else None
