"""Progress for people on standard error: bars by tqdm on a terminal, a line every so often elsewhere. Rates
and estimates are those of `rekey.core.eta`, which knows partitions with a rate."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from rekey.core.clock import TICKS_PER_SECOND, Clock
from rekey.core.progress import Advance, Progress, Wait, Work
from rekey.errors import one_line, visible
from rekey.present.text import WIDTH, duration
from rekey.status.progress import how_far
from rekey.tables.base import Silence

if TYPE_CHECKING:
    from tqdm import tqdm

_log = logging.getLogger(__name__)
# How often a pass is reported without a terminal.
LINE_EVERY_S = 15.0


class Note(Protocol):
    """Prints a sentence, or logs it as an event."""

    def __call__(self, text: str, event: str = "note", **figures: object) -> None:
        """Print it."""


class Lines(Progress):
    """Progress in lines: what is waited for, and every so often how far a pass is."""

    ticks_every_s = 1.0

    def __init__(
        self,
        note: Note,
        clock: Clock | None = None,
        silences: Callable[[], Sequence[Silence]] = tuple,
        *,
        of_passes: bool = True,
    ) -> None:
        """`silences` returns the services that do not answer; `of_passes`: report passes as well as waits."""
        super().__init__(clock)
        self._note = note
        self._silences = silences
        self._of_passes = of_passes
        self._silent: dict[str, Wait] = {}
        self._told_at = self.clock.monotonic()

    @contextmanager
    def shown(self, work: Work) -> Iterator[Advance]:
        """Log where a pass begins and ends."""
        total = f", about {work.total:,} rows" if work.total else ""
        self._told_at = self.clock.monotonic()
        figures = {"pass": work.label, "rows": work.rows, "estimated_rows": work.total}
        _log.info("%s begins%s", work.label, total, extra={"event": "pass-begun", "figures": figures})
        yield lambda _rows: None
        took_s = round(work.elapsed_s, 1)
        figures |= {"rows": work.rows, "seconds": took_s}
        message = ("%s ended: %s rows in %.1f s", work.label, f"{work.rows:,}", took_s)
        _log.info(*message, extra={"event": "pass-done", "figures": figures})

    def note(self, text: str, event: str = "note", **figures: object) -> None:
        self._note(text, event, **figures)

    def tick(self) -> None:
        """Report services that do not answer, and how far the pass is when that was not reported for long."""
        self._listen()
        for wait in self.waits:
            wait.update()
        work = self.work
        if work is None or not self._of_passes or self.clock.monotonic() - self._told_at < LINE_EVERY_S:
            return
        self._told_at = self.clock.monotonic()
        rate, eta = work.rate, None if self.waits else work.eta
        self.note(
            f"{work.label}: {how_far(work.rows, work.total, rate, eta)}",
            "pass",
            **{"pass": work.label, "rows": work.rows, "estimated_rows": work.total},
            rows_per_second=None if rate is None else round(rate, 1),
            seconds_left=None if eta is None else round(eta.seconds),
        )

    def _listen(self) -> None:
        """Report the services that stopped answering, and those that answer again: after seconds, not when
        all attempts failed."""
        silences, now = {silence.host: silence for silence in self._silences()}, self.clock.ticks()
        for host, silence in silences.items():
            until = now + round(silence.tried_s * TICKS_PER_SECOND)
            if host not in self._silent:
                what = f"{host}, where nothing answers"
                self._silent[host] = Wait(what, now - round(silence.silent_s * TICKS_PER_SECOND), until, self)
                self.waits.append(self._silent[host])
            self._silent[host].until = until
        for host in self._silent.keys() - silences.keys():
            wait = self._silent.pop(host)
            self.waits.remove(wait)
            if wait.reported:
                took_s = (now - wait.since) / TICKS_PER_SECOND
                self.note(f"{host} answers again, after {duration(took_s)}", "answers-again", host=host)


class Bars(Lines):
    """Progress as bars. They bypass `Edge`: labels and notes are escaped here."""

    ticks_every_s = 0.5

    def __init__(self, stream: TextIO, *more: Any, **options: Any) -> None:
        """Draw on a stream; its notes go above the bar. Other arguments as of `Lines`."""
        super().__init__(self._above, *more, of_passes=False, **options)
        self._stream = stream
        self._bar: tqdm[Any] | None = None

    @contextmanager
    def shown(self, work: Work) -> Iterator[Advance]:
        """Draw one bar; it stays on the screen when its pass has ended."""
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # no thread of its own: the ticks redraw
        before, no_width = self._bar, _has_no_width(self._stream)
        with (
            super().shown(work),
            tqdm(
                desc=one_line(work.label),
                total=work.total,
                initial=work.rows,
                file=self._stream,
                unit=" rows",
                unit_scale=True,
                dynamic_ncols=not no_width,
                ncols=WIDTH if no_width else None,
                mininterval=0.2,
                bar_format=_WITH_TOTAL if work.total else _WITHOUT,
            ) as self._bar,
        ):
            bar = self._bar

            def advance(rows: int) -> None:
                bar.update(rows)

            try:
                yield advance
            finally:
                bar.set_postfix_str(_rate(work), refresh=False)
                self._bar = before

    def tick(self) -> None:
        """Redraw the bar with the present rate and the estimated time remaining."""
        super().tick()
        if self._bar is not None and self.work is not None:
            if self._bar.total != self.work.total:
                self._bar.total, self._bar.bar_format = self.work.total, _WITH_TOTAL
            eta = None if self.waits else self.work.eta
            left = "" if eta is None else f", about {duration(eta.seconds)} left"
            self._bar.set_postfix_str(_rate(self.work) + left)

    def _above(self, text: str, event: str = "note", **figures: object) -> None:
        from tqdm import tqdm

        del event, figures
        tqdm.write(visible(text), file=self._stream)


_WITH_TOTAL = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} rows [{elapsed}{postfix}]"
_WITHOUT = "{desc}: {n_fmt} rows [{elapsed}{postfix}]"


def _has_no_width(stream: TextIO) -> bool:
    """Tell whether a terminal says that it has no columns, as some containers' do; no bar would fit."""
    try:
        return os.get_terminal_size(stream.fileno()).columns == 0
    except (OSError, ValueError):
        return False


def _rate(work: Work) -> str:
    rate = work.rate
    return "" if rate is None else f"{rate:,.0f} rows/s"
