"""Signals: the first asks the work to stop at its next checkpoint, the second ends the process at once, both
with exit code 130. Loaded before all other modules, so it imports little."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType

    from rekey.runner.run import StopFlag

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_FIRST = "\nStopping at the next checkpoint. Ctrl-C again stops immediately; checkpointed work is kept.\n"


_OUTSIDE = b"rekey: stopped by a signal\nKept: everything that was done\nNext: run the same command again\n"
_INTERRUPTED = 130


def ending_at_once() -> None:
    """Let both signals end the process at once while no command is at work: an exception raised during
    imports would come out as a traceback."""

    def end(_number: int, _frame: FrameType | None) -> None:
        with suppress(OSError):  # standard error is closed
            os.write(2, _OUTSIDE)
        os._exit(_INTERRUPTED)

    for number in _SIGNALS:
        signal.signal(number, end)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def interrupting() -> AbstractContextManager[None]:
    """Let both signals raise KeyboardInterrupt: for commands without checkpoints."""
    return _handled(signal.default_int_handler)


def stopping(
    stop: StopFlag, *, end: Callable[[int], object] = os._exit, log_json: bool = False
) -> AbstractContextManager[None]:
    """Let the first signal set the flag and the second end the process (`end`), as SIGKILL would, which a
    migration survives at any moment. `log_json`: log it as an event."""

    from rekey.core.logs import json_line

    text = json_line("stopping", _FIRST.strip()) + "\n" if log_json else _FIRST

    def handle(_number: int, _frame: FrameType | None) -> None:
        if stop.requested():
            end(_INTERRUPTED)
            return
        stop.request()
        try:
            os.write(2, text.encode("ascii"))
        except OSError:
            return  # standard error is closed; the flag is set

    return _handled(handle)
