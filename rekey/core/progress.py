"""How far the work is, what it waits for, and telling the operator: without knowing how it is shown.

Rules kept here:

* A label, a note or the subject of a wait holds no key: a terminal, a log and a file show them.
* Reporting changes nothing, except that `Interruptible` may end work that writes nothing.
* Times are taken from a clock object. How far a pass came is kept in a few samples, closer together the more
  recent they are: the pace of a day takes no more memory than that of an hour.
* A wait is told once it takes more than two seconds: what for, since when, until when.
"""

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
# Function that is called with the number of rows done since the last call.
Advance = Callable[[int], None]

# A wait that takes longer is told.
TOLD_AFTER_S = 2.0
_SAMPLE_S, _SAMPLE_SHARE = 0.5, 0.05


class Holds(StrEnum):
    """What holds requests back."""

    PAUSE = "pause"
    REFUSALS = "refusals"
    ACCOUNT = "account"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class Held:
    """What holds requests back.

    Attributes:
        by: a pause; the service, which refuses requests or answers slowly; the rate of the account;
            that of partitions.
        entities_per_second: the rate; 0 in a pause.
        partitions: how many partitions are at their rate.
    """

    by: Holds
    entities_per_second: int = 0
    partitions: int = 0


def no_lanes() -> Sequence[Lane]:
    """Return no partition: none has a rate."""
    return ()


@dataclass(eq=False)
class Work:
    """A pass over rows, as far as it has come.

    Attributes:
        label: what it does; holds no key.
        total: how many rows it goes over, None where not known.
        clock: tells the time.
        rows: rows done, those of earlier runs included.
        lanes: returns the largest partitions that have a rate, with what is left of them.
        began_at: when it began; ticks.
    """

    label: str
    total: int | None
    clock: Clock
    rows: int = 0
    lanes: Callable[[], Sequence[Lane]] = no_lanes

    def __post_init__(self) -> None:
        self.began_at = self.clock.ticks()
        self._samples = [(self.clock.rising(), self.rows)]

    def advance(self, rows: int) -> None:
        """Count rows."""
        self.rows += rows
        if self.clock.rising() - self._samples[-1][0] >= _SAMPLE_S:
            self._samples = _thinned(self.samples)

    @property
    def samples(self) -> list[tuple[float, int]]:
        """How far it came when; the last one is now."""
        return [*self._samples, (self.clock.rising(), self.rows)]

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return self.clock.rising() - self._samples[0][0]

    @property
    def rate(self) -> float | None:
        """Rows a second, of late."""
        return rate_of(recent(self.samples))

    @property
    def eta(self) -> Eta | None:
        """How long it takes yet."""
        return estimate(self.samples, self.total, self.lanes())


def _thinned(samples: Samples) -> list[tuple[float, int]]:
    """Return samples of which no three lie closer together than a part of their age."""
    now, kept = samples[-1][0], [samples[0]]
    for at in range(1, len(samples) - 1):
        span = samples[at + 1][0] - kept[-1][0]
        if span >= max(_SAMPLE_S, _SAMPLE_SHARE * (now - samples[at][0])):
            kept.append(samples[at])
    return [*kept, samples[-1]]


@dataclass(eq=False)
class Wait:
    """A wait of the runner.

    Attributes:
        what: what for; holds no key.
        since: when it began, ticks.
        until: when it ends at the latest, ticks; None where that is not known.
    """

    what: str
    since: int
    until: int | None
    progress: Progress = field(repr=False)
    told: bool = False

    def look(self, what: str = "") -> None:
        """Say what is waited for, when that has taken more than two seconds and was not said before.

        Args:
            what: what for, if that has changed.
        """
        self.what = what or self.what
        waited = (self.progress.clock.ticks() - self.since) / TICKS_PER_SECOND
        if not self.told and waited >= TOLD_AFTER_S:
            self.tell()

    def tell(self) -> None:
        """Say what is waited for, since when and until when."""
        self.told = True
        until = "" if self.until is None else f", until {moment(self.until)} at most"
        self.progress.note(
            f"waiting for {self.what}, since {moment(self.since)}{until}",
            "wait",
            since=format_ticks(self.since),
            until=None if self.until is None else format_ticks(self.until),
        )


def moment(ticks: int) -> str:
    """Return the time of day of ticks: `12:00:00Z`."""
    return f"{format_ticks(ticks)[11:19]}Z"


class Progress:
    """What engines report to. It keeps how far they are and shows nothing; displays extend it.

    Attributes:
        clock: tells the time.
        work: the pass at work, None between passes.
        waits: what is waited for.
    """

    # How often `tick` is to be called while work goes on; None: never.
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
        """Begin a pass and return the function to call as rows are done.

        Args:
            label: what it does.
            total: how many rows it goes over; None: not known.
            done: how many of them were done before.
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
        """Set how many rows the pass at work goes over, which was not known when it began."""
        if self.work is not None:
            self.work.total = rows

    @contextmanager
    def waiting(self, what: str, at_most_s: float | None = None) -> Iterator[Wait]:
        """Begin a wait; call `look` of what is returned now and then, so that it is told.

        Args:
            what: what for.
            at_most_s: for how many seconds at most; None: not known.
        """
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
        """Show a pass while it is at work."""
        yield lambda _rows: None

    def note(self, text: str, event: str = "note", **figures: object) -> None:
        """Show one sentence to the operator; it holds no key.

        Args:
            text: the sentence.
            event: the name of the event in logs (`rekey.core.logs.EVENTS`).
            figures: what logs have besides the text.
        """

    def tick(self) -> None:
        """Show what has changed by itself: time, a wait, silence of the service. Must not raise."""


class Interruptible(Progress):
    """Progress of work that writes nothing: it may be ended at any advance."""

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
        """Pass the number on."""
        self._inner.expect(rows)

    def note(self, text: str, event: str = "note", **figures: object) -> None:
        """Pass the sentence on."""
        self._inner.note(text, event, **figures)


async def ticking(work: Coroutine[Any, Any, T], tick: Callable[[], None], every_s: float) -> T:
    """Await work, and call `tick` every so often meanwhile.

    Real time passes between ticks: nothing that the work does depends on them.
    """

    async def beat() -> None:
        while True:
            await asyncio.sleep(every_s)
            tick()

    beating = asyncio.create_task(beat())
    try:
        return await work
    finally:
        await cancel([beating])
