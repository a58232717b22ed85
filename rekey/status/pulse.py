"""The pulse of a runner: what it is at just now, in a small file next to the state file, for whoever looks.

Rules kept here:

* The state file says what is durable; the pulse says what is under way: the pass over a table and how far it
  came, what is waited for, what holds requests back. Losing it loses nothing.
* Written about once a second by the process that holds the file lock, and replaced whole, so reading needs no
  lock. Removed when the runner ends; one that a killed runner left is over after `STALE_S`.
* It holds figures, names of tables and hosts, no key. Times are by this machine's clock.
* A pulse that cannot be written or read is no error: the work and the status go on without.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND
from rekey.core.eta import Eta
from rekey.core.plain import plain
from rekey.core.progress import Held, Holds, Progress
from rekey.project.privatefiles import write_whole

STALE_S = 15.0
_SUFFIX = ".pulse.json"


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over rows, as far as it has come.

    Attributes:
        label: what it does.
        began_at: when it began; ticks.
        rows, total: rows done, and in all; `total` is None where not known.
        rate: rows a second, of late; None before it can be said.
        eta: how long it takes yet; None where that cannot be said.
    """

    label: str
    began_at: int
    rows: int
    total: int | None
    rate: float | None
    eta: Eta | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A wait: what for, since when, until when at most (None: not known); ticks."""

    what: str
    since: int
    until: int | None


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a runner is at.

    Attributes:
        at: when it was told; ticks.
        script_id: the migration.
        work: the pass over rows, None between passes.
        waits: what is waited for: clients, requests that may be late, a service that does not answer.
        held: what holds requests back.
        following: since when it follows (`apply --follow`); "" while it does not.
    """

    at: int
    script_id: str
    work: Pass | None = None
    waits: tuple[Waiting, ...] = ()
    held: tuple[Held, ...] = ()
    following: str = ""


def pulse_of(progress: Progress, script_id: str, held: tuple[Held, ...], following: str = "") -> Pulse:
    """Return the pulse of a runner.

    Args:
        progress: how far it is.
        script_id: the migration that it works on.
        held: what holds its requests back.
        following: see `Pulse`.
    """
    now, work = progress.work, None
    if now is not None:
        # While something is waited for, the rate of late says nothing about the rest.
        eta = None if progress.waits else now.eta
        work = Pass(now.label, now.began_at, now.rows, now.total, now.rate, eta)
    return Pulse(
        at=progress.clock.ticks(),
        script_id=script_id,
        work=work,
        waits=tuple(Waiting(one.what, one.since, one.until) for one in progress.waits),
        held=held,
        following=following,
    )


def path_of(state: Path) -> Path:
    """Return the path of the pulse of the runner that works with a state file."""
    return state.with_name(state.name + _SUFFIX)


def write(state: Path, pulse: Pulse) -> None:
    """Replace the pulse; what cannot be written is left out."""
    with suppress(OSError):
        write_whole(path_of(state), json.dumps(plain(pulse)).encode(), durable=False)


def remove(state: Path) -> None:
    """Remove the pulse: the runner ends."""
    with suppress(OSError):
        path_of(state).unlink(missing_ok=True)


def read(state: Path, now: int) -> Pulse | None:
    """Return the pulse; None when there is none, it is over, or it cannot be understood.

    Args:
        state: the state file.
        now: ticks of this machine's clock.
    """
    try:
        told: dict[str, Any] = json.loads(path_of(state).read_text("utf-8"))
        work = told["work"]
        if work is not None:
            work["eta"] = work["eta"] and Eta(**work["eta"])
        pulse = Pulse(
            at=int(told["at"]),
            script_id=str(told["script_id"]),
            work=None if work is None else Pass(**work),
            waits=tuple(Waiting(**one) for one in told["waits"]),
            held=tuple(Held(**{**one, "by": Holds(one["by"])}) for one in told["held"]),
            following=str(told["following"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pulse if abs(now - pulse.at) <= STALE_S * TICKS_PER_SECOND else None
