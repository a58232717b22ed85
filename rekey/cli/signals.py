"""Signals: the first asks the work to stop at its next checkpoint, the second ends the process at once.

Rules kept here:

* A handler only sets a flag; the work looks at it between windows and pages.
* Ending at once does what SIGKILL would do, which a migration survives at any moment. The exit code is 130
  in both cases.
* Commands without checkpoints are ended by the first signal, SIGINT or SIGTERM.
* Before a command has begun and after it has ended nothing is open: a signal ends the process at once. This
  module is loaded before all others for that, so it loads little itself.
"""

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
    """Let both signals end the process at once, while no command is at work: an exception that is raised
    while the program is being loaded would come out as a traceback."""

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
    """Let both signals raise KeyboardInterrupt."""
    return _handled(signal.default_int_handler)


def stopping(
    stop: StopFlag, *, end: Callable[[int], object] = os._exit, log_json: bool = False
) -> AbstractContextManager[None]:
    """Let the first signal set the flag and the second end the process.

    Args:
        stop: the flag that the work looks at.
        end: ends the process with an exit code; a test gives something else.
        log_json: say it as an event, in JSON.
    """

    from rekey.core.logs import json_line

    said = json_line("stopping", _FIRST.strip()) + "\n" if log_json else _FIRST

    def handle(_number: int, _frame: FrameType | None) -> None:
        if stop.requested():
            end(_INTERRUPTED)
            return
        stop.request()
        try:
            os.write(2, said.encode("ascii"))
        except OSError:
            return  # standard error is closed; the flag is set

    return _handled(handle)
