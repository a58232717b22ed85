"""The ledger of clients that write the same rows at once, and the judge who looks for an order in it.

Rules kept here:

* A client process appends to a file of its own: "began" before it sends anything, what came of it afterwards.
  What began and has no end (the process was killed) is as open as a write that ended ambiguously.
* Each row is a register of its own, named in words of neither view. What clients were told of it must fit
  one row that changes at once (`tests.simulation.linearizable`): acknowledged writes took effect between
  beginning and end, failed ones never, open ones at any moment after their beginning or never.
* A read counts where its view's table was the authority all the time. So does the answer "there is (no) such
  row" to a write. Elsewhere a view may be behind, and says nothing.
* A condition held if the row was what its read saw. Contents are told apart by what was written, which no two
  writes have in common; that a condition failed says nothing, since the other view's ETag may move by itself.
* A transaction whose outcome is open took effect as a whole or not at all.
* An order is searched until one is found or all are tried, or until it takes too long: that is said, and
  counts as wrong.
"""

from __future__ import annotations

import json
import os
import sys
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.simulation.linearizable import (
    CONDITION,
    DONE,
    EXISTS,
    INITIAL,
    MISSING,
    OPEN,
    History,
    Operation,
    Refuses,
    Undecided,
)
from tests.simulation.linearizable import Content as Shown

Content = dict[str, Any]
"""What the application has in a row, without its key."""
State = Content | None
"""None: there is no such row."""
READ = "read"
ELSEWHERE = "elsewhere"
"""Why a row cannot be made in a view: it is there under another key."""
_NAMED = 4
_TOLD = 30
_FOREVER = 1 << 62
_ANSWERS = {"EntityAlreadyExists": EXISTS, "ResourceNotFound": MISSING, "EntityNotFound": MISSING}


@dataclass(frozen=True)
class Did:
    """One operation on one row, as its client saw it.

    Attributes:
        writer, number: which; one call has one number for each of its rows.
        row: which row.
        view: `old` or `new`.
        verb: `create`, `replace`, `merge`, `put` and `put-merge` (the upserts), `delete` or `read`.
        content: what it wrote.
        month: part of its key that stands in the content, in a view whose keys have it.
        expected: the content that the ETag of a conditional write belonged to; None for an unconditional one.
        batch: which transaction it belongs to, "" for none.
        began, ended: nanoseconds of the machine's monotonic clock.
        outcome: `acknowledged`, `failed` or `open`.
        why: the error's code.
        saw: what a read saw.
    """

    writer: str
    number: int
    row: str
    view: str
    verb: str
    content: Content = field(default_factory=dict)
    month: str | None = None
    expected: Content | None = None
    batch: str = ""
    began: int = 0
    ended: int | None = None
    outcome: str = "open"
    why: str = ""
    saw: State = None

    def __str__(self) -> str:
        what = f"saw {self.saw}" if self.verb == READ else f"{self.content or ''}"
        more = f" at {self.month}" if self.month else ""
        more += f" if {self.expected}" if self.expected is not None else ""
        more += f" in {self.batch}" if self.batch else ""
        why = f": {self.why}" if self.why else ""
        return f"{self.writer} {self.number} ({self.view}) {self.verb}{more} {what}{why}"


class Ledger:
    """Appends lines to one process's file, each by one write(2): a killed process leaves whole lines."""

    def __init__(self, path: Path, writer: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._writer = writer

    def note(self, what: str, **more: Any) -> None:
        """Write a line, e.g. `paused`."""
        line = {"what": what, "writer": self._writer, "at": time.monotonic_ns(), **more}
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of one file; the last may be cut off by a kill or be under way."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def did(paths: Iterable[Path]) -> list[Did]:
    """Return all operations in several ledgers, by the time they began."""
    found = []
    for path in paths:
        lines = lines_of(path)
        ends = {line["number"]: line for line in lines if "number" in line and line["what"] != "began"}
        for line in lines:
            if line["what"] == "began":
                end = ends.get(line["number"], {})
                found.append(
                    Did(
                        **{name: line[name] for name in _BEGUN},
                        began=line["at"],
                        ended=end.get("at"),
                        outcome=end.get("what", OPEN),
                        why=end.get("why", "" if end else "killed"),
                        saw=end.get("saw"),
                    )
                )
    return sorted(found, key=lambda one: one.began)


_BEGUN = ("writer", "number", "row", "view", "verb", "content", "month", "expected", "batch")


# --- when which view's table was the authority ------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """What the control row said at a moment: whose view's table is the authority, None while that moves."""

    at: int
    authority: str | None
    what: str


def steady(looks: Sequence[Look]) -> Callable[[Did], bool]:
    """Return what tells whether an operation's own view was the authority's all the time."""
    times = [look.at for look in looks]

    def tell(one: Did) -> bool:
        if one.ended is None:
            return False
        first, last = bisect_right(times, one.began) - 1, bisect_left(times, one.ended)
        if first < 0 or last >= len(times):
            return False
        during = looks[first : last + 1]
        return all(look.authority == one.view and look.what == during[0].what for look in during)

    return tell


def always(_one: Did) -> bool:
    """Tell of a table that is the authority whenever it is used."""
    return True


# --- judging ----------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """What the judge found: sentences, and how much there was to look at."""

    wrong: list[str] = field(default_factory=list)
    rows: int = 0
    reads: int = 0
    writes: Counter[str] = field(default_factory=Counter)
    why: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        told = ", ".join(f"{self.writes[one]} {one}" for one in ("acknowledged", "failed", "open"))
        more = f"; and {len(self.wrong) - _NAMED} more" if len(self.wrong) > _NAMED else ""
        found = "\n".join(self.wrong[:_NAMED]) + more if self.wrong else "an order was found for all of it"
        return f"{self.rows} rows, {told}, {self.reads} reads ({dict(self.why.most_common(6))}): {found}"


def judge(
    initial: Mapping[str, State],
    done: Iterable[Did],
    found: Mapping[str, State],
    counts: Callable[[Did], bool] = always,
) -> Verdict:
    """Look for an order of what clients did that explains their answers and what the authority's table holds.

    Args:
        initial: the rows before the first operation; a row that is not in it was not there.
        done: all operations, of all ledgers.
        found: the rows as the authority's table has them.
        counts: whether what an operation saw was the authority's.
    """
    verdict = Verdict()
    by_row: defaultdict[str, list[Did]] = defaultdict(list)
    for one in done:
        if one.verb != READ:
            verdict.writes[one.outcome] += 1
            if one.why:
                verdict.why[one.why] += 1
        if (kept := _counted(one, counts)) is not None:
            verdict.reads += one.verb == READ
            by_row[one.row].append(kept)
    registers = {
        row: _Register(initial.get(row), by_row[row], found.get(row))
        for row in sorted(initial.keys() | by_row.keys() | found.keys())
    }
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        for row, register in registers.items():
            verdict.rows += 1
            if not register.explained():
                verdict.wrong.append(f"row {row}: {register.told()}")
        if not verdict.wrong:
            verdict.wrong += _torn(registers)
    finally:
        sys.setrecursionlimit(limit)
    return verdict


def _counted(one: Did, counts: Callable[[Did], bool]) -> Did | None:
    """Return what an operation says for sure; None when that is nothing."""
    if one.verb == READ:
        return one if one.outcome == "acknowledged" and counts(one) else None
    if one.outcome == "failed":
        says = one.why in _ANSWERS and not one.batch and one.expected is None and counts(one)
        return one if says else None
    return one


def _torn(registers: Mapping[str, _Register]) -> list[str]:
    """Return which open transactions took effect in part."""
    wrong = []
    members: defaultdict[tuple[str, str], list[tuple[_Register, Did]]] = defaultdict(list)
    for register in registers.values():
        for one in register.operations:
            if one.batch and one.outcome == OPEN:
                members[one.writer, one.batch].append((register, one))
    for (writer, batch), parts in members.items():
        must = [one for register, one in parts if not register.without(one).explained()]
        must_not = [one for register, one in parts if not register.surely(one).explained()]
        if must and must_not:
            parted = f"{must[0].row} and not {must_not[0].row}"
            wrong.append(f"transaction {batch} of {writer} took effect in part: {parted}")
    return wrong


def _frozen(state: State) -> Shown:
    return None if state is None else tuple(sorted(state.items()))


def _thawed(content: Shown) -> State:
    return None if content is None else dict(content)  # type: ignore[call-overload]


class _Written(History):
    """A history in which contents are versions enough, since no two writes write the same."""

    most_steps = 400_000

    def _after(self, number: int, state: Any) -> list[Any]:
        return [self._versioned(number, state, after) for after in super()._after(number, state)]

    def _versioned(self, number: int, state: Any, after: Any) -> Any:
        if after == state:
            return after
        # A delete of what is not there changes nothing here, but this need not have been its moment: with a
        # version of its own it is not taken for a read, which might as well be where it fits first.
        nothing = after.content == state.content and self.operations[number].outcome == DONE
        return replace(after, version=number if nothing else INITIAL)


class _Register:
    """One row: what was there, what clients did to it, what is there now."""

    def __init__(self, initial: State, operations: Sequence[Did], found: State) -> None:
        self.initial, self.operations, self.found = initial, list(operations), found
        self.too_long = False

    def explained(self) -> bool:
        """Tell whether some order explains it."""
        history = _Written(
            _frozen(self.initial), [_operation(one) for one in self.operations], [_frozen(self.found)]
        )
        try:
            return history.is_linearizable()
        except Undecided:
            self.too_long = True
            return False

    def without(self, one: Did) -> _Register:
        """Return it as if an open operation never took effect."""
        return _Register(self.initial, [other for other in self.operations if other is not one], self.found)

    def surely(self, one: Did) -> _Register:
        """Return it as if an open operation had taken effect at some time."""
        then = replace(one, outcome="acknowledged", ended=_FOREVER)
        return _Register(
            self.initial, [then if other is one else other for other in self.operations], self.found
        )

    def told(self) -> str:
        """Return what is wrong, as far as that can be said, and the last operations."""
        writes = [one for one in self.operations if one.verb != READ and one.outcome == "acknowledged"]
        last = max(writes, key=lambda one: one.ended or 0, default=None)
        told = self.operations[-_TOLD:]
        if self.too_long:
            what = f"no order was found in {_Written.most_steps} steps"
        elif (culprit := self._misread()) is not None:
            what = f"no order explains what {culprit.writer} saw with {culprit.number}"
            at = self.operations.index(culprit)
            told = self.operations[max(0, at - _TOLD) : at + 3]
        elif self.found is None:
            what = "it is lost"
        elif last is None:
            what = "nobody wrote what is there"
        elif last.verb == "delete":
            what = "it is back although it was deleted, or was deleted and not written as it is"
        else:
            what = "what is there is not what was written last"
        begin = min((one.began for one in self.operations), default=0)
        lines = [
            f"  {(one.began - begin) / 1e9:8.3f} to {_moment(one.ended, begin)} {one.outcome:12} {one}"
            for one in told
        ]
        return "\n".join([f"{what}; at the beginning {self.initial}", *lines, f"  at the end {self.found}"])

    def _misread(self) -> Did | None:
        """Return the first answer that no order explains although one explains all that came before."""
        says = [one for one in self.operations if one.verb == READ or one.outcome == "failed"]
        writes = [one for one in self.operations if one not in says]
        if not _Register(self.initial, writes, self.found).explained():
            return None
        kept = writes
        for one in says:
            more = sorted([*kept, one], key=lambda each: each.began)
            if not _Register(self.initial, more, self.found).explained():
                return one
            kept = more
        return None


def _moment(ended: int | None, begin: int) -> str:
    return "       ?" if ended is None else f"{(ended - begin) / 1e9:8.3f}"


def _operation(one: Did) -> Operation:
    if one.verb == READ:
        return Operation(
            one.began, one.ended, str(one), saw=_frozen(one.saw), shows=lambda content: _in_view(one, content)
        )
    outcome = {"acknowledged": DONE, "failed": _ANSWERS.get(one.why, CONDITION)}.get(one.outcome, OPEN)
    ended = None if outcome == OPEN else one.ended
    return Operation(one.began, ended, str(one), outcome, lambda content: _acted(one, content))


def _in_view(one: Did, content: Shown) -> Shown:
    state = _thawed(content)
    return content if state is None or one.month is None or state.get("month") == one.month else None


def _acted(one: Did, content: Shown) -> Shown | Refuses:
    """Return what a write makes of a row, or why it cannot be."""
    here = _thawed(_in_view(one, content))
    elsewhere = here is None and content is not None
    if one.expected is not None and here is not None and here != one.expected:
        return Refuses(CONDITION)
    match one.verb:
        case "create":
            if here is not None:
                return Refuses(EXISTS)
            return Refuses(ELSEWHERE) if elsewhere else _frozen(one.content)
        case "replace" | "merge":
            if here is None:
                return Refuses(MISSING)
            return _frozen(one.content if one.verb == "replace" else {**here, **one.content})
        case "put" | "put-merge":
            if elsewhere:
                return Refuses(ELSEWHERE)
            return _frozen(one.content if one.verb == "put" else {**(here or {}), **one.content})
        case "delete":
            if here is None:
                # Deleting what is not there is a success to the SDK's callers, but not in a transaction.
                return Refuses(MISSING) if one.batch else content
            return None
    raise AssertionError(f"{one.verb} is no verb")
