"""Tells whether a process of this machine is still running."""

from __future__ import annotations

import os
from pathlib import Path

_STATE, _STARTED = 0, 19  # fields of `/proc/PID/stat` after the command's name
_ENDED = frozenset("ZXx")


def boot_id() -> str:
    """Return the id of this machine's current boot; "" where there is none (not Linux)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def process_namespace() -> str:
    """Return this process's PID namespace; "" where there is none (not Linux)."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def started_at(pid: int) -> str:
    """Return when a process started, in kernel ticks since boot; "" if it has ended (even if its parent has
    not collected it), or if this cannot be read."""
    fields = _stat(pid)
    return "" if fields is None or fields[_STATE] in _ENDED else fields[_STARTED]


def is_running(pid: int, started: str) -> bool:
    """Tell whether a process is running. Only for ids of this boot and PID namespace, so never on Windows.

    Args:
        pid: its id.
        started: `started_at` when it was known to run, which tells it from a later process with the same id;
            "" if unknown.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    fields = _stat(pid)
    if fields is None:
        # If its state cannot be read, assume that it is running.
        return True
    return fields[_STATE] not in _ENDED and started in ("", fields[_STARTED])


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command's name may hold spaces and parentheses
    return fields if len(fields) > _STARTED else None
