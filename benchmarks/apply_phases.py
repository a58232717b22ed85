"""`rekey apply` as its command runs it, in a process that writes down what each of its phases takes.

    python -m benchmarks.apply_phases [WORD]...

`start` goes from the first import to the row check; `rest` is what lies between phases.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

from benchmarks.phases import Phases


def main() -> int:
    """Run the command and return its exit code."""
    phases = Phases()
    from rekey.cli.main import run  # here: its imports belong to the start
    from rekey.phases import Phase
    from rekey.plan import plan
    from rekey.runner import commands
    from rekey.state.store import State

    start_phase, finish_phase = State.start_phase, State.finish_phase
    running = ""

    async def checked(*words: Any, **more: Any) -> Any:
        phases.ended("start")
        try:
            return await plan.make_plan(*words, **more)
        finally:
            phases.ended("row check")

    def started(state: State, script_id: str, phase: Phase) -> int:
        nonlocal running
        running = phase
        phases.ended("rest")
        return start_phase(state, script_id, phase)

    def finished(*words: Any) -> None:
        finish_phase(*words)
        phases.ended(running)

    sys.argv[1:1] = ["apply"]
    with (
        mock.patch.object(commands, "make_plan", checked),
        mock.patch.object(State, "start_phase", started),
        mock.patch.object(State, "finish_phase", finished),
    ):
        code = run()
    phases.ended("rest")
    phases.write()
    return code


if __name__ == "__main__":
    sys.exit(main())
