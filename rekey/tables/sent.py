"""Counting the requests that are sent, by what the service does for them. Each attempt counts: the service
works for each, and may bill it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum


class RequestKind(StrEnum):
    """What a request asks of the service."""

    # A page of a query.
    SCAN = "scan"
    # One row, by both keys.
    READ = "read"
    # One row inserted or changed.
    WRITE = "write"
    # One row deleted.
    DELETE = "delete"
    # A transaction of up to 100 operations of one partition.
    BATCH = "batch"
    # Tables created, deleted, listed; also used to read the service's clock.
    TABLE = "table"


# The name under which the operations of batches are counted: it is not settled everywhere whether a batch or
# its operations are billed.
OPERATIONS = "operations"


class Overhead(StrEnum):
    """Why a request was sent beyond those of an undisturbed run, which are estimated."""

    # For a row that changed or differed meanwhile: it is reread, repaired, or settled.
    CHANGES = "changes"
    # Sent again, because it was refused or not answered before.
    RETRIES = "retries"
    # By a phase or a comparison that was carried out again.
    REPEATS = "repeats"
    # Before anything is copied, to check whether odd keys arrive unchanged.
    PROBES = "probes"
    # By a rollback.
    ROLLBACK = "way_back"


# All names under which requests are counted: by kind, and by kind under the reason: `scan`, `changes.scan`.
COUNTED = frozenset(
    f"{prefix}{name}"
    for prefix in ("", *(f"{reason}." for reason in Overhead))
    for name in (*RequestKind, OPERATIONS)
)
_TALLY: ContextVar[Counter[str] | None] = ContextVar("tally", default=None)
_OVERHEAD: ContextVar[Overhead | None] = ContextVar("overhead", default=None)


@contextmanager
def tallied() -> Iterator[Counter[str]]:
    """Count the requests that are sent within the context, by kind."""
    # The context variable travels with the asyncio task and those it starts, so that pieces of work that
    # share a connection are counted separately.
    tally = Counter[str]()
    token = _TALLY.set(tally)
    try:
        yield tally
    finally:
        _TALLY.reset(token)


@contextmanager
def overhead(why: Overhead) -> Iterator[None]:
    """Count the requests that are sent within the context under a reason; the outermost one counts."""
    token = _OVERHEAD.set(_OVERHEAD.get() or why)
    try:
        yield
    finally:
        _OVERHEAD.reset(token)


@dataclass(slots=True)
class Sent:
    """The requests sent to one account since it was opened, by kind."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, number: int = 1) -> None:
        """Count a request by its kind; or the operations of a batch, once however often the batch is sent."""
        if (why := _OVERHEAD.get()) is not None:
            name = f"{why}.{name}"
        self.counts[name] += number
        if (tally := _TALLY.get()) is not None:
            tally[name] += number


def kind_of(method: str, path: str) -> RequestKind:
    """Return the kind of an HTTP request, by its method and its path below the endpoint."""
    resource = path.partition("?")[0]
    if resource == "$batch":
        return RequestKind.BATCH
    if resource == "Tables" or resource.startswith("Tables("):
        return RequestKind.TABLE
    if method == "GET":
        return RequestKind.SCAN if resource.endswith("()") else RequestKind.READ
    return RequestKind.DELETE if method == "DELETE" else RequestKind.WRITE


def since(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return what was counted after `before`, without zeros."""
    more = {name: number - before.get(name, 0) for name, number in sorted(now.items())}
    return {name: number for name, number in more.items() if number > 0}


def requests_in(counts: Mapping[str, int]) -> int:
    """Return how many requests there are in counts: all but operations of batches."""
    return sum(number for name, number in counts.items() if not name.endswith(OPERATIONS))


def apart(counts: Mapping[str, int]) -> tuple[Counter[str], Counter[str]]:
    """Return the counts of an undisturbed run, by kind, and how many requests of overhead, by reason."""
    undisturbed, extra = Counter[str](), Counter[str]()
    for name, number in counts.items():
        why, _, kind = name.rpartition(".")
        if not why:
            undisturbed[name] += number
        elif kind != OPERATIONS:
            extra[why] += number
    return undisturbed, extra
