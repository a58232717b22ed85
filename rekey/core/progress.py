"""How far work has come and what it is waiting for, independent of how that is displayed; reporting changes
nothing. Labels, notes and waits hold no key: terminals, logs and files show them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from rekey.core.clock import TICKS_PER_SECOND, Clock, SystemClock, format_ticks
from rekey.core.concurrency import cancel
from rekey.core.eta import Eta, Lane, Samples, estimate, rate_of, recent

T = TypeVar("T")
# Called with the number of rows done since the last call.
Advance = Callable[[int], None]

# Seconds after which a wait is reported.
REPORT_AFTER_S = 2.0
_SAMPLE_S, _SAMPLE_SHARE = 0.5, 0.05


class Holds(StrEnum):
    """What limits the rate of requests."""

    PAUSE = "pause"
    REFUSALS = "refusals"
    ACCOUNT = "account"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class Held:
    """What limits the rate of requests, and how much."""

    # A pause; the service, which refuses requests or answers slowly; the rate limit of the account or of
    # partitions.
    by: Holds
    entities_per_second: int = 0
    # How many partitions are at their limit.
    partitions: int = 0


def no_lanes() -> Sequence[Lane]:
    """Return no partitions: none has a rate limit."""
    return ()


@dataclass(eq=False)
class Work:
    """A pass over rows and its progress.

    Attributes:
        began_at: when it began, in ticks.
    """

    # What it does; holds no key.
    label: str
    # Rows in all, None if unknown.
    total: int | None
    clock: Clock
    # Rows done, including those of earlier runs.
    rows: int = 0
    # Returns the largest partitions with a rate limit, and their rows left.
    lanes: Callable[[], Sequence[Lane]] = no_lanes

    def __post_init__(self) -> None:
        self.began_at = self.clock.ticks()
        self._samples = [(self.clock.monotonic(), self.rows)]

    def advance(self, rows: int) -> None:
        """Add to the rows done."""
        self.rows += rows
        if self.clock.monotonic() - self._samples[-1][0] >= _SAMPLE_S:
            self._samples = _thinned(self.samples)

    @property
    def samples(self) -> list[tuple[float, int]]:
        """Rows done over time; the last sample is now."""
        return [*self._samples, (self.clock.monotonic(), self.rows)]

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return self.clock.monotonic() - self._samples[0][0]

    @property
    def rate(self) -> float | None:
        """Rows per second, recently."""
        return rate_of(recent(self.samples))

    @property
    def eta(self) -> Eta | None:
        """Estimated time remaining."""
        return estimate(self.samples, self.total, self.lanes())


def _thinned(samples: Samples) -> list[tuple[float, int]]:
    """Return samples spaced in proportion to their age: a day takes no more memory than an hour."""
    now, kept = samples[-1][0], [samples[0]]
    for at in range(1, len(samples) - 1):
        span = samples[at + 1][0] - kept[-1][0]
        if span >= max(_SAMPLE_S, _SAMPLE_SHARE * (now - samples[at][0])):
            kept.append(samples[at])
    return [*kept, samples[-1]]


@dataclass(eq=False)
class Wait:
    """A wait of the runner."""

    what: str  # what for; holds no key
    since: int  # when it began, in ticks
    until: int | None  # when it ends at the latest, in ticks; None if unknown
    progress: Progress = field(repr=False)
    reported: bool = False

    def update(self, what: str = "") -> None:
        """Report the wait, once, when it has taken `REPORT_AFTER_S`. `what`: if that has changed."""
        self.what = what or self.what
        waited = (self.progress.clock.ticks() - self.since) / TICKS_PER_SECOND
        if not self.reported and waited >= REPORT_AFTER_S:
            self.report()

    def report(self) -> None:
        """Report what is waited for, since when and until when."""
        self.reported = True
        until = "" if self.until is None else f", until {moment(self.until)} at most"
        self.progress.note(
            f"waiting for {self.what}, since {moment(self.since)}{until}",
            "wait",
            since=format_ticks(self.since),
            until=None if self.until is None else format_ticks(self.until),
        )


def moment(ticks: int) -> str:
    """Return the UTC time of day: `12:00:00Z`."""
    return f"{format_ticks(ticks)[11:19]}Z"


class Progress:
    """What engines report to. Records progress and shows nothing; displays extend it.

    Attributes:
        clock: tells the time.
        work: the current pass, None between passes.
        waits: the current waits.
    """

    # Seconds between calls of `tick` during work; None: never.
    ticks_every_s: float | None = None

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.work: Work | None = None
        self.waits: list[Wait] = []

    @contextmanager
    def task(
        self,
        label: str,
        *,
        total: int | None = None,
        done: int = 0,
        lanes: Callable[[], Sequence[Lane]] = no_lanes,
    ) -> Iterator[Advance]:
        """Begin a pass; yields the function to call as rows are done.

        Args:
            label: what it does; holds no key.
            total: rows in all; None: unknown.
            done: rows done before.
            lanes: see `Work`.
        """
        before, work = self.work, Work(label, total, self.clock, done, lanes)
        self.work = work
        try:
            with self.shown(work) as show:

                def advance(rows: int) -> None:
                    work.advance(rows)
                    show(rows)

                yield advance
        finally:
            self.work = before

    def expect(self, rows: int) -> None:
        """Set the total of the current pass, if it was not known when it began."""
        if self.work is not None:
            self.work.total = rows

    @contextmanager
    def waiting(self, what: str, at_most_s: float | None = None) -> Iterator[Wait]:
        """Begin a wait of at most `at_most_s` seconds (None: unknown). Call `update` on the result now and
        then, so that it is reported. `what` holds no key."""
        now = self.clock.ticks()
        until = None if at_most_s is None else now + round(at_most_s * TICKS_PER_SECOND)
        wait = Wait(what, now, until, self)
        self.waits.append(wait)
        try:
            yield wait
        finally:
            self.waits.remove(wait)

    @contextmanager
    def shown(self, work: Work) -> Iterator[Advance]:  # noqa: ARG002 - displays use it
        """Display a pass while it runs."""
        yield lambda _rows: None

    def note(self, text: str, event: str = "note", **figures: object) -> None:
        """Show a sentence to the operator; it holds no key.

        Args:
            text: the sentence.
            event: the event's name in logs (`rekey.core.logs.EVENTS`).
            figures: further members in logs.
        """

    def tick(self) -> None:
        """Redraw what changes by itself: time, waits, silence of the service. Must not raise."""


class Interruptible(Progress):
    """Progress of work that writes nothing and may therefore be ended at any advance."""

    def __init__(self, inner: Progress, check: Callable[[], None]) -> None:
        """Create it. `inner` shows the progress; `check` raises when the work must end."""
        super().__init__(inner.clock)
        self._inner = inner
        self._check = check

    @contextmanager
    def task(self, label: str, **more: Any) -> Iterator[Advance]:
        """Begin a pass; its advance raises when the work must end."""
        with self._inner.task(label, **more) as inner:

            def advance(rows: int) -> None:
                self._check()
                inner(rows)

            yield advance

    def expect(self, rows: int) -> None:
        self._inner.expect(rows)

    def note(self, text: str, event: str = "note", **figures: object) -> None:
        self._inner.note(text, event, **figures)


async def ticking(work: Coroutine[Any, Any, T], tick: Callable[[], None], every_s: float) -> T:
    """Await work and call `tick` every `every_s` seconds of real time meanwhile."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(every_s)
            tick()

    beating = asyncio.create_task(beat())
    try:
        return await work
    finally:
        await cancel([beating])
