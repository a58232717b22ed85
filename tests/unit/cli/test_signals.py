"""What the first signal does, and the second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

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


_LOADED = """
import os, sys

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "click":
            os.kill(os.getpid(), {number})

from rekey.__main__ import main
sys.meta_path.insert(0, Interrupts())
sys.exit(main())
"""


@BOTH
def test_while_the_program_is_being_loaded_either_signal_ends_it_without_a_traceback(number: int) -> None:
    program = _LOADED.format(number=int(number))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (130, "")
    assert ran.stderr.startswith("rekey: stopped by a signal\nKept: ")
    assert "Next: " in ran.stderr
    assert "Traceback" not in ran.stderr
