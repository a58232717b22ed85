"""Measuring whole processes: wall clock, processor time and peak memory, as the system accounts them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.phases import BEGAN

_ACCOUNT = Path(__file__).with_name("account.py")


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


def run(
    words: Sequence[str],
    *,
    folder: Path,
    environ: Mapping[str, str],
    program: Sequence[str] = (sys.executable, "-m"),
) -> Measured:
    """Run `python -m ...`, or another program, to its end and account for it. Raises RuntimeError when it
    fails."""
    figures = folder / "figures.json"
    command = [sys.executable, "-I", "-S", str(_ACCOUNT), str(figures), *program, *words]
    with (folder / "output.txt").open("w+") as output:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**environ, BEGAN: str(time.monotonic())},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode:
            output.seek(0)
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{output.read()[-2000:]}")
    return Measured(**json.loads(figures.read_text("utf-8")))
