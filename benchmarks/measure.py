"""Measuring whole processes: wall clock, processor time and peak memory, as the system accounts them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Measured:
    """What one process took: seconds on the clock, seconds of processor, peak resident MiB."""

    seconds: float
    cpu_seconds: float
    peak_mib: float

    def as_json(self, rows: int) -> dict[str, Any]:
        """Return the figures, and rows a second by both clocks."""
        return {
            "seconds": round(self.seconds, 2),
            "cpu_seconds": round(self.cpu_seconds, 2),
            "peak_rss_mib": round(self.peak_mib, 1),
            "rows_per_second": round(rows / self.seconds),
            "rows_per_cpu_second": round(rows / self.cpu_seconds),
        }


def run(words: Sequence[str], *, folder: Path, environ: Mapping[str, str]) -> Measured:
    """Run `python -m ...` to its end and account for it. Raises RuntimeError when it fails."""
    began = time.monotonic()
    with (folder / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=folder, env=environ, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}:\n{output.read()[-2000:]}")
    peak = usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024 * 1024)
    return Measured(time.monotonic() - began, usage.ru_utime + usage.ru_stime, peak)
