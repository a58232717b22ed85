"""How commands show fields, phases and what comes next.

Rules kept here:

* Labels stand in one column, one indent in.
* A command that is to be typed stands on a line of its own and is never wrapped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rekey.cli.shell import Shell
from rekey.present.text import duration, wrapped

if TYPE_CHECKING:
    from rekey.state.models import PhaseRun
    from rekey.status.status import Status

LABEL = 14
_TICKS = 10_000_000


def field(label: str, text: str) -> list[str]:
    """Return a labelled text, indented."""
    return wrapped(text, first=f"  {label:<{LABEL}}")


def bullets(texts: Iterable[str]) -> list[str]:
    """Return one item a line, longer ones wrapped."""
    return [line for text in texts for line in wrapped(text, first="    - ")]


def moment(text: str) -> str:
    """Return a time without its fraction: `2024-01-31 12:00:00Z`."""
    return text[:19].replace("T", " ") + "Z"


def phase_line(run: PhaseRun) -> str:
    """Return one line about one run of a phase."""
    from rekey.core.clock import ticks_of

    took = ""
    if run.finished_at is not None:
        took = duration((ticks_of(run.finished_at) - ticks_of(run.started_at)) / _TICKS)
    counters = ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in run.counters.items())
    outcome = "" if run.outcome == "done" else f"stopped ({run.outcome})"
    return f"  {run.phase:<{LABEL}}{took:>7}  {outcome or counters}".rstrip()


def next_lines(shell: Shell, status: Status) -> list[str]:
    """Return what to do next."""
    if not status.command:
        return []
    lines = [f"  {'next':<{LABEL}}{shell.command(status.command)}"]
    if status.remark:
        lines += wrapped(f"({status.remark})", first=" " * (LABEL + 2), rest=" " * (LABEL + 3))
    return lines
