"""The pulse of a runner: what it is doing now, in a small file next to the state file. It is written about
once a second by the holder of the file lock and replaced whole, so reading needs no lock; losing it loses
nothing. It holds no key; times are by this machine's clock."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND
from rekey.core.eta import Eta
from rekey.core.plain import json_field, plain
from rekey.core.progress import Held, Holds, Progress
from rekey.project.privatefiles import write_whole

# A pulse that a killed runner left is ignored after this.
STALE_S = 15.0
_SUFFIX = ".pulse.json"


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over rows, as far as it has come. `rate`: recent rows a second. None: not known."""

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
    """What a runner is doing."""

    # When it was written; ticks.
    at: int
    script_id: str
    # None between passes.
    work: Pass | None = None
    # For clients, delayed requests, a service that does not answer.
    waits: tuple[Waiting, ...] = ()
    # What holds requests back.
    limits: tuple[Held, ...] = field(default=(), metadata=json_field("held"))
    # Since when it follows (`apply --follow`); "": it does not.
    following: str = ""


def pulse_of(progress: Progress, script_id: str, limits: tuple[Held, ...], following: str = "") -> Pulse:
    """Return the pulse of a runner from its progress, its migration and what holds its requests back."""
    now, work = progress.work, None
    if now is not None:
        # While something is waited for, the recent rate says nothing about the rest.
        eta = None if progress.waits else now.eta
        work = Pass(now.label, now.began_at, now.rows, now.total, now.rate, eta)
    return Pulse(
        at=progress.clock.ticks(),
        script_id=script_id,
        work=work,
        waits=tuple(Waiting(wait.what, wait.since, wait.until) for wait in progress.waits),
        limits=limits,
        following=following,
    )


def path_of(state: Path) -> Path:
    """Return the path of the pulse that belongs to a state file."""
    return state.with_name(state.name + _SUFFIX)


def write(state: Path, pulse: Pulse) -> None:
    """Replace the pulse. A failure is ignored: the work goes on without."""
    with suppress(OSError):
        write_whole(path_of(state), json.dumps(plain(pulse)).encode(), durable=False)


def remove(state: Path) -> None:
    """Remove the pulse: the runner ends."""
    with suppress(OSError):
        path_of(state).unlink(missing_ok=True)


def read(state: Path, now: int) -> Pulse | None:
    """Return the pulse; None: absent, over, or not parseable. `now`: ticks of this machine's clock."""
    try:
        document: dict[str, Any] = json.loads(path_of(state).read_text("utf-8"))
        work = document["work"]
        if work is not None:
            work["eta"] = work["eta"] and Eta(**work["eta"])
        pulse = Pulse(
            at=int(document["at"]),
            script_id=str(document["script_id"]),
            work=None if work is None else Pass(**work),
            waits=tuple(Waiting(**wait) for wait in document["waits"]),
            limits=tuple(Held(**{**limit, "by": Holds(limit["by"])}) for limit in document["held"]),
            following=str(document["following"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pulse if abs(now - pulse.at) <= STALE_S * TICKS_PER_SECOND else None
