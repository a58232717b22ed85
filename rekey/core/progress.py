"""The interface by which engines report progress, without knowing how it is shown.

Rules kept here:

* A label or a note holds no key: a terminal and a log show both.
* Reporting changes nothing, except that `Interruptible` may end work that writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], None]
"""Function that is called with the number of rows done since the last call."""


class Progress(Protocol):
    """Display of tasks, one after another; the command line draws them with tqdm on standard error."""

    def task(self, label: str, *, total: int | None = None) -> AbstractContextManager[Advance]:
        """Begin a task of `total` rows (None: unknown) and return the function to call as rows are done."""

    def note(self, text: str) -> None:
        """Show one sentence to the operator; it holds no key."""


class Silent:
    """Progress that is not shown."""

    @contextmanager
    def task(self, label: str, *, total: int | None = None) -> Iterator[Advance]:  # noqa: ARG002 - the protocol's
        """Begin a task that is not shown."""
        yield lambda _rows: None

    def note(self, text: str) -> None:
        """Show nothing."""


class Interruptible:
    """Progress of work that writes nothing: it may be ended at any advance."""

    def __init__(self, inner: Progress, check: Callable[[], None]) -> None:
        """Create it. `inner` shows the progress; `check` raises when the work must end."""
        self._inner = inner
        self._check = check

    @contextmanager
    def task(self, label: str, *, total: int | None = None) -> Iterator[Advance]:
        """Begin a task; its advance raises when the work must end."""
        with self._inner.task(label, total=total) as inner:

            def advance(rows: int) -> None:
                self._check()
                inner(rows)

            yield advance

    def note(self, text: str) -> None:
        """Pass the sentence on."""
        self._inner.note(text)
