"""Linearizability of what clients saw of one row: could one row that changes at once have answered so?

Rules kept here (Wing and Gong's search, with a memo):

* Each operation that was answered took effect at one moment between its beginning and its end. One whose
  outcome nobody knows took effect at one moment after its beginning, or never.
* A row has a content (None: there is none) and a version, the operation that wrote it last. An operation on a
  condition names the read that it took its ETag from.
* A read of the table that follows (`replica`) may be behind what other reads saw, but not behind anything
  that was acknowledged before it began. Versions of such a table count writes of its own: what it says of
  a condition is compared by content.
* It is searched until an order is found, all are tried, or `most_steps` were made: to try all takes time that
  grows exponentially where many outcomes are unknown. A history that is given up is `Undecided`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

EXISTS = "exists"
MISSING = "missing"
CONDITION = "condition"
DONE = "done"
OPEN = "open"
"""Nobody knows what became of it."""

Content = Hashable
"""What a row holds; None when there is none."""

INITIAL = -1
"""The version of what was there at the beginning."""


class Refuses(str):
    """What a write meets in a content that it cannot be applied to: EXISTS or MISSING."""

    __slots__ = ()


@dataclass(frozen=True)
class Operation:
    """One operation as its client saw it.

    Attributes:
        began, ended: moments, all different; `ended` is None where the outcome is OPEN.
        text: for a reader.
        outcome: DONE, EXISTS, MISSING, CONDITION or OPEN.
        act: what a write makes of a content, or `Refuses`; None for a read.
        saw, shows: of a read, what it saw, and what of a content it can see.
        basis: of a write on a condition, which operation read the ETag.
        replica: whether a read was of the table that follows.
        lags: whether such a read may be behind what was acknowledged: a write of that table failed, which
            fails no caller.
        spurious: whether its condition may fail although nothing changed (the other view's ETag).
    """

    began: int
    ended: int | None
    text: str
    outcome: str = DONE
    act: Callable[[Content], Content | Refuses] | None = None
    saw: Content = None
    shows: Callable[[Content], Content] = lambda content: content
    basis: int | None = None
    replica: bool = False
    lags: bool = False
    spurious: bool = False


@dataclass(frozen=True)
class _State:
    """The row, and what reads whose ETags are still to be used saw of it."""

    content: Content
    version: int = INITIAL
    read: tuple[tuple[int, int, Content], ...] = ()
    """Of each read: which, the version it saw, the content it saw."""


class Undecided(Exception):
    """No order was found in as many steps as are made at most."""


class History:
    """What clients saw of one row."""

    most_steps: ClassVar[int] = 50_000
    """Some seconds."""

    def __init__(self, initial: Content, operations: Sequence[Operation], final: Sequence[Content]) -> None:
        """Take the row at the beginning, the operations, and what it may be at the end: one of `final`."""
        self.initial = initial
        self.operations = tuple(operations)
        self.final = tuple(final)
        self._bases = {one.basis for one in self.operations}
        self._open = frozenset(number for number, one in enumerate(self.operations) if one.outcome == OPEN)
        self._failed: dict[tuple[frozenset[int], _State], list[frozenset[int]]] = {}
        self._steps = 0

    @cached_property
    def _before(self) -> list[frozenset[int]]:
        """Of each operation: which must have taken effect before it."""
        return [
            frozenset(
                number
                for number, other in enumerate(self.operations)
                if other.ended is not None and other.ended < one.began and not _may_lag(other, one)
            )
            for one in self.operations
        ]

    @cached_property
    def _order(self) -> list[int]:
        """In which order operations are tried: as they ended, since that is how most of them happened."""
        ended = {number: one.ended for number, one in enumerate(self.operations)}
        return sorted(ended, key=lambda number: (ended[number] is None, ended[number]))

    def is_linearizable(self) -> bool:
        """Tell whether some order explains every answer and the end. Raises Undecided."""
        return self._search(frozenset(), _State(self.initial))

    def __str__(self) -> str:
        lines = [
            f"{one.began:>4} to {'?' if one.ended is None else one.ended:<4} {one.text}: {one.outcome}"
            for one in sorted(self.operations, key=lambda one: one.began)
        ]
        return "\n".join([f"at the beginning {self.initial}", *lines, f"at the end {list(self.final)}"])

    def _search(self, done: frozenset[int], state: _State) -> bool:
        self._steps += 1
        if self._steps > self.most_steps:
            raise Undecided
        tried = self._failed.setdefault((done - self._open, state), [])
        used = done & self._open
        if any(before <= used for before in tried):
            return False  # with fewer of those that need not have happened it was no better
        rest = [number for number in self._order if number not in done]
        # What nobody knows the outcome of may have had none.
        if state.content in self.final and self._open.issuperset(rest):
            return True
        for number in rest:
            if self._before[number] <= done:
                for after in self._after(number, state):
                    if after == state and number in self._open:
                        continue
                    if self._search(done | {number}, after):
                        return True
                    if after == state and number not in self._bases:
                        # It fits here and changes nothing: to try it later as well would change nothing.
                        tried.append(used)
                        return False
        tried.append(used)
        return False

    def _after(self, number: int, state: _State) -> list[_State]:
        """Return the states that an operation can leave, none when its answer cannot be from this state."""
        one = self.operations[number]
        if one.act is None:
            if one.saw != one.shows(state.content):
                return []
            seen = ((number, state.version, state.content),) if number in self._bases else ()
            return [_State(state.content, state.version, state.read + seen)]
        holds = one.basis is None or self._holds(one.basis, state)
        result = one.act(state.content)
        unchanged = [state]
        if one.outcome == CONDITION:
            return unchanged if one.spurious or not holds else []
        if one.outcome in (EXISTS, MISSING):
            return unchanged if isinstance(result, Refuses) and result == one.outcome else []
        if isinstance(result, Refuses) or not holds:
            return [] if one.outcome == DONE else unchanged
        return [_State(result, number, state.read)]

    def _holds(self, basis: int, state: _State) -> bool:
        for number, version, content in state.read:
            if number == basis:
                same = content == state.content
                return same if self.operations[basis].replica else version == state.version
        return False


def _may_lag(earlier: Operation, later: Operation) -> bool:
    """A replica's read may miss what another read saw before, as long as nobody was told it is done."""
    if later.act is not None or not later.replica:
        return False
    return later.lags or (earlier.act is None and not earlier.replica)
