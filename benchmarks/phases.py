"""What the phases of a process take: seconds on the clock and of its processor."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

BEGAN = "BENCH_BEGAN"
"""Environment variable: when the process was started, by the clock that all processes share."""


class Phases:
    """Phases one after the other; the first began with the process."""

    def __init__(self) -> None:
        """Begin the first phase."""
        self._taken: dict[str, dict[str, float]] = {}
        self._before = float(os.environ[BEGAN]), 0.0

    def ended(self, phase: str) -> None:
        """End a phase; what follows belongs to the next one. A phase may come several times: it adds up."""
        now = time.monotonic(), time.process_time()
        wall, cpu = (after - before for after, before in zip(now, self._before, strict=True))
        taken = self._taken.setdefault(phase, {"seconds": 0.0, "cpu_seconds": 0.0})
        taken["seconds"] += wall
        taken["cpu_seconds"] += cpu
        self._before = now

    def write(self) -> None:
        """Write the phases into the current folder."""
        Path("phases.json").write_text(json.dumps(self._taken), "ascii")
