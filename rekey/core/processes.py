"""Telling whether a process of this machine still runs.

Rules kept here:

* A process that has ended does not run, also while its parent has not collected it.
* Another process that has its id now is told by when it started.
* What cannot be told from here is not taken for ended.
"""

from __future__ import annotations

import os
from pathlib import Path

_STATE, _STARTED = 0, 19  # fields of `/proc/PID/stat` after the command's name
_ENDED = frozenset("ZXx")


def boot_id() -> str:
    """Return the id of this machine's present boot; "" where there is none (not Linux)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def process_namespace() -> str:
    """Return the namespace of this process's id; "" where there are none (not Linux)."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def started_at(pid: int) -> str:
    """Return when a process started, in the kernel's ticks since the boot; "" if it has ended (also where its
    parent has not noticed that yet), or where this cannot be told."""
    fields = _stat(pid)
    return "" if fields is None or fields[_STATE] in _ENDED else fields[_STARTED]


def is_running(pid: int, started: str) -> bool:
    """Tell whether a process runs. Only for ids of this boot and process namespace, so never on Windows.

    Args:
        pid: its id.
        started: what `started_at` said when it was known to run; "" where that is not known.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    fields = _stat(pid)
    if fields is None:
        return True  # what cannot be read here is not taken for an ended process
    return fields[_STATE] not in _ENDED and started in ("", fields[_STARTED])


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command's name may hold spaces and parentheses
    return fields if len(fields) > _STARTED else None
