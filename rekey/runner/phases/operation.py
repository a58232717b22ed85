"""What every phase is: an operation with a gate, a run and an undo.

Rules kept here:

* `gate` changes nothing; it returns every reason that keeps the phase from beginning.
* `run` may be cut off at any moment and be run again: each step of it is idempotent.
* `undo` leads back to where the phase before it ended, or refuses with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from rekey.phases import Phase
from rekey.runner.run import Run

Counters = dict[str, int]
"""What a phase did, in figures, for the audit log and `status`."""


async def open_gate(_run: Run) -> list[str]:
    """The gate of a phase that needs no more than the phase before it."""
    return []


@dataclass(frozen=True, slots=True)
class Operation:
    """One phase's lifecycle."""

    phase: Phase
    gate: Callable[[Run], Coroutine[Any, Any, list[str]]]
    run: Callable[[Run], Coroutine[Any, Any, Counters]]
    undo: Callable[[Run], Coroutine[Any, Any, None]]
