"""Progress for people: bars by tqdm on a terminal, log records elsewhere.

Rules kept here:

* Bars and notes go to standard error only. Bars bypass the `Edge` of `rekey.cli.shell`: labels and notes are
  escaped here.
* Without a terminal no bar is drawn; `-v` then logs each task when it begins and when it ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rekey.core.progress import Advance
from rekey.errors import one_line, visible

_log = logging.getLogger(__name__)
Note = Callable[[str], None]


class Logged:
    """Progress as log records of the beginning and the end of each task."""

    def __init__(self, note: Note) -> None:
        self._note = note

    @contextmanager
    def task(self, label: str, *, total: int | None = None) -> Iterator[Advance]:
        """Count rows and log the sum."""
        rows = 0

        def advance(more: int) -> None:
            nonlocal rows
            rows += more

        _log.info("%s begins%s", label, f", about {total:,} rows" if total else "")
        began = time.monotonic()
        yield advance
        _log.info("%s ended: %s rows in %.1f s", label, f"{rows:,}", time.monotonic() - began)

    def note(self, text: str) -> None:
        """Print one sentence."""
        self._note(text)


class Bars:
    """Progress as bars with rows, rate and expected end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @contextmanager
    def task(self, label: str, *, total: int | None = None) -> Iterator[Advance]:
        """Draw one bar; it stays on the screen when its task has ended."""
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # no thread of its own: rows come often enough to redraw
        with tqdm(
            desc=one_line(label),
            total=total,
            file=self._stream,
            unit=" rows",
            unit_scale=True,
            dynamic_ncols=True,
            mininterval=0.2,
        ) as bar:

            def advance(rows: int) -> None:
                bar.update(rows)

            yield advance

    def note(self, text: str) -> None:
        """Print one sentence above the bar."""
        from tqdm import tqdm

        tqdm.write(visible(text), file=self._stream)
