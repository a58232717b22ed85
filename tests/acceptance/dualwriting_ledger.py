"""The ledger of what client processes wrote, and the judge who compares it with the tables.

Rules kept here:

* A client process appends to a file of its own: "tried" before it sends, and what came of it afterwards. What
  was tried and has no answer (the process was killed) is as open as a write that ended ambiguously.
* A row of one writer at a time has an exact answer: the set of contents that its history allows. An
  acknowledged write took effect, a failed one did not, an open one did or did not, or does within `LATE_S`,
  after what was written meanwhile. What is in the table must be one of the set; when the set runs empty, an
  answer was given that could not be.
* Of a row that several write at once each writer has a property of its own (a history of its own again), and
  all share a counter that is only raised conditionally: as many raises as were acknowledged must be in it,
  and no two acknowledged raises may have given the same number.
* Contents are the application's, in words of neither view: both views' rows are translated before.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

Content = dict[str, Any]
"""What the application has in a row, without its key."""
State = Content | None
"""None: there is no such row."""
Outcome = Literal["acknowledged", "failed", "open"]
Verb = Literal["create", "replace", "merge", "put", "put-merge", "delete"]
"""`put` and `put-merge` are the upserts."""
COUNTER = "counter"
NAMED = 5
LATE_S = 2.0
"""For so long after a client gave a write up it may yet take effect: it was sent, and waits on its way."""


@dataclass(frozen=True)
class Entry:
    """One write of one row.

    Attributes:
        writer: the process that wrote.
        row: which row, in words of neither view.
        verb: what it did.
        content: what it wrote; {} for a delete.
        expected: the content that the ETag of a conditional write belonged to; None for an unconditional one.
        began, ended: nanoseconds of the machine's monotonic clock, which all its processes share.
        outcome: what the client said.
        why: the error's code, for a write that failed or stayed open.
    """

    writer: str
    row: str
    verb: Verb
    content: Content
    expected: Content | None
    began: int
    ended: int | None
    outcome: Outcome
    why: str = ""

    def after(self, state: State) -> tuple[bool, State]:
        """Tell whether the write can take effect on a state, and what it leaves behind."""
        if self.expected is not None and state != self.expected:
            return False, state
        match self.verb:
            case "create":
                return state is None, dict(self.content)
            case "replace":
                return state is not None, dict(self.content)
            case "merge":
                return state is not None, {**(state or {}), **self.content}
            case "put":
                return True, dict(self.content)
            case "put-merge":
                return True, {**(state or {}), **self.content}
            case "delete":
                # Deleting what is not there is a success to the SDK's callers.
                return True, None


# --- writing and reading ----------------------------------------------------------------------------------


class Ledger:
    """Appends lines to one process's file, each by one write(2): a killed process leaves whole lines."""

    def __init__(self, path: Path, writer: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._writer = writer
        self._number = 0

    def note(self, what: str, **more: Any) -> None:
        """Write a line that is no write of a row, e.g. `paused`."""
        self._line({"what": what, "writer": self._writer, "at": time.monotonic_ns(), **more})

    def tried(self, verb: Verb, row: str, content: Content, expected: Content | None = None) -> int:
        """Write down that a write is about to be sent; returns its number."""
        self._number += 1
        self._line(
            {
                "what": "tried",
                "writer": self._writer,
                "number": self._number,
                "at": time.monotonic_ns(),
                "verb": verb,
                "row": row,
                "content": content,
                "expected": expected,
            }
        )
        return self._number

    def ended(self, number: int, outcome: Outcome, why: str = "") -> None:
        """Write down what came of it."""
        self._line(
            {"what": outcome, "number": number, "at": time.monotonic_ns(), **({"why": why} if why else {})}
        )

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _line(self, fields: Mapping[str, Any]) -> None:
        os.write(self._file, json.dumps(fields, separators=(",", ":")).encode() + b"\n")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of one file; the last may be cut off by a kill or be under way."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def entries_of(paths: Iterable[Path]) -> list[Entry]:
    """Return all writes in several files, by the time they began."""
    return sorted((entry for path in paths for entry in _entries(lines_of(path))), key=lambda one: one.began)


def _entries(lines: list[dict[str, Any]]) -> Iterator[Entry]:
    ends = {line["number"]: line for line in lines if line["what"] in ("acknowledged", "failed", "open")}
    for line in lines:
        if line["what"] == "tried":
            end = ends.get(line["number"], {})
            yield Entry(
                writer=line["writer"],
                row=line["row"],
                verb=line["verb"],
                content=line["content"],
                expected=line["expected"],
                began=line["at"],
                ended=end.get("at"),
                outcome=end.get("what", "open"),
                why=end.get("why", "" if end else "killed"),
            )


# --- judging ----------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """What the judge found: sentences, and how much there was to look at."""

    wrong: list[str] = field(default_factory=list)
    rows: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    why: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        told = ", ".join(f"{self.outcomes[one]} {one}" for one in ("acknowledged", "failed", "open"))
        more = f"; and {len(self.wrong) - NAMED} more" if len(self.wrong) > NAMED else ""
        found = "; ".join(self.wrong[:NAMED]) + more if self.wrong else "all of it is there"
        return f"{self.rows} rows, {told} ({dict(self.why.most_common(6))}): {found}"


def judge(initial: Mapping[str, State], entries: Iterable[Entry], found: Mapping[str, State]) -> Verdict:
    """Compare what the tables hold with what the ledgers allow.

    Args:
        initial: the rows before the first entry; a row that is not in it was not there.
        entries: all writes, of all files.
        found: the rows as they are.
    """
    verdict = Verdict()
    histories: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        histories[entry.row].append(entry)
        verdict.outcomes[entry.outcome] += 1
        if entry.why:
            verdict.why[entry.why] += 1
    for row in sorted(initial.keys() | histories.keys() | found.keys()):
        verdict.rows += 1
        history = sorted(histories[row], key=lambda one: one.began)
        look = _shared if row.endswith(f"#{COUNTER}") else _of_one_writer
        wrong = look(initial.get(row), history, found.get(row))
        if wrong:
            verdict.wrong.append(f"row {row}: {wrong}")
    return verdict


def possible(initial: State, history: Iterable[Entry]) -> tuple[list[State], str]:
    """Return the states that a history of one writer at a time allows.

    When an answer was given that could not be: none, and what was said.
    """
    states: list[State] = [initial]
    before: Entry | None = None
    given_up: list[Entry] = []
    for entry in history:
        if before is not None and (before.ended or 0) > entry.began:
            return (
                [],
                f"{before.writer} and {entry.writer} wrote it at once: the test is wrong, not the tables",
            )
        before = entry
        then: list[State] = []
        for state in states:
            can, after = entry.after(state)
            if entry.outcome == "acknowledged" and can:
                _add(then, after)
            elif entry.outcome == "failed":
                # Why it failed is not asked: a refusal (a freeze, a closed view) fails on any state.
                _add(then, state)
            elif entry.outcome == "open":
                _add(then, state)
                if can:
                    _add(then, after)
        if not then:
            return [], f"{_told(entry)} was acknowledged on {_states(states)}"
        given_up = [one for one in given_up if entry.began < (one.ended or one.began) + LATE_S * 1e9]
        for late in given_up:
            for can, after in [late.after(state) for state in then]:
                if can:
                    _add(then, after)
        if entry.outcome == "open":
            given_up.append(entry)
        states = then
    return states, ""


def _of_one_writer(initial: State, history: list[Entry], found: State) -> str:
    states, impossible = possible(initial, history)
    if impossible:
        return impossible
    if found in states:
        return ""
    last = next((one for one in reversed(history) if one.outcome == "acknowledged"), None)
    told = f"after {_told(last)}" if last else "never written"
    if found is None:
        return f"is lost ({told}; it must be {_states(states)})"
    told = f"{told}; {_course(history)}"
    if states == [None]:
        return f"is back although it was deleted ({told}; found {found})"
    return f"holds {found}, and must hold {_states(states)} ({told})"


def _shared(initial: State, history: list[Entry], found: State) -> str:
    """Judge a counter that several writers raise, each time by one and conditionally on what was read."""
    begin = (initial or {}).get(COUNTER, 0)
    raised = [entry.content[COUNTER] for entry in history if entry.outcome == "acknowledged"]
    maybe = sum(entry.outcome == "open" for entry in history)
    twice = [number for number, times in Counter(raised).items() if times > 1]
    if twice:
        return f"two acknowledged conditional writes gave the same number {twice[0]}"
    if found is None:
        return "is lost, although nobody deletes it"
    now = found[COUNTER]
    if not begin + len(raised) <= now <= begin + len(raised) + maybe:
        return f"counts {now - begin}; {len(raised)} raises were acknowledged, {maybe} are open"
    return ""


def _add(states: list[State], state: State) -> None:
    if state not in states:
        states.append(state)


def _told(entry: Entry) -> str:
    return f"{entry.verb} of {entry.content} by {entry.writer}"


def _course(history: list[Entry]) -> str:
    """The last writes of a row, with the seconds from the first of them on."""
    last = history[-12:]
    lines = (
        f"{(one.began - last[0].began) / 1e9:.2f}-{(one.ended or one.began) / 1e9 - last[0].began / 1e9:.2f}"
        f" {_told(one)}{'' if one.expected is None else ' if unchanged'}: {one.outcome} {one.why}".rstrip()
        for one in last
    )
    return "its last writes: " + "; ".join(lines)


def _states(states: list[State]) -> str:
    return " or ".join("absent" if state is None else str(state) for state in states[:4])
