"""What the first signal does, and the second."""

from __future__ import annotations

import os
import signal

import pytest

from rekey.cli import signals
from rekey.runner.run import StopFlag

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@BOTH
def test_the_first_asks_to_stop_and_the_second_ends_with_130(number: int) -> None:
    ended: list[int] = []
    stop = StopFlag()
    with signals.stopping(stop, end=ended.append):
        os.kill(os.getpid(), number)
        assert stop.requested()
        assert ended == []
        os.kill(os.getpid(), number)
    assert ended == [130]


@BOTH
def test_without_checkpoints_either_signal_interrupts(number: int) -> None:
    with pytest.raises(KeyboardInterrupt), signals.interrupting():
        os.kill(os.getpid(), number)


@BOTH
def test_afterwards_the_handlers_are_what_they_were(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with signals.interrupting(), signals.stopping(StopFlag()):
        assert signal.getsignal(number) is not before
    assert signal.getsignal(number) is before
