"""Side by side on the stub: rows per second of the client's processor, and the ratios.

Both sides read the same source and write the same rows (or compare the same two tables). A figure is the
best of `TRIES` runs: on a machine that others use, a worse one tells more of them than of the program.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import project
from benchmarks.measure import run
from benchmarks.stub import StubProcess

WORKS = ("copy", "copy-targets", "verify")
TRIES = 3
ROWS_OF_LOOP = 5_000
"""The loop takes as long for every row; this many show it."""


def work(side: str, kind: str, rows: int, *options: str) -> dict[str, Any]:
    """Let a process do one piece of work on a stub of its own; return what it took and what the stub saw."""
    with StubProcess(rows, *options) as stub, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environ = {**os.environ, "PYTHONPATH": project.python_path()}
        process = run(["benchmarks.stub_work", side, kind, stub.endpoint], folder=folder, environ=environ)
        taken = json.loads((folder / "work.json").read_text("ascii"))
        return {**taken, "peak_mib": process.peak_mib, "stub": stub.stats()}


def measure(count: int, say: Callable[[str], None], *, tries: int = TRIES) -> dict[str, Any]:
    """Return rows per second of processor of both sides for every kind of work, and the ratio."""
    figures: dict[str, Any] = {"rows": count, "rows_of_the_loop": min(count, ROWS_OF_LOOP)}
    for kind in WORKS:
        options = ("--target",) if kind == "verify" else ()
        rates = {}
        for side, rows in (("rekey", count), ("sdk", min(count, ROWS_OF_LOOP))):
            say(f"stub, {rows:,} rows: {side} {kind}")
            # Partitions of one size on both sides, so that both fill their batches alike.
            partitions = str(max(1, project.PARTITIONS * rows // count))
            runs = [work(side, kind, rows, "--partitions", partitions, *options) for _ in range(tries)]
            rates[side] = max(one["rows"] / one["cpu_seconds"] for one in runs)
        figures[kind.replace("-", "_")] = {
            "rekey_rows_per_cpu_second": round(rates["rekey"]),
            "sdk_loop_rows_per_cpu_second": round(rates["sdk"]),
            "ratio": round(rates["rekey"] / rates["sdk"], 1),
        }
    return figures | {"inspect": inspect(count, say, tries=tries)}


def inspect(count: int, say: Callable[[str], None], *, tries: int = TRIES) -> dict[str, Any]:
    """Return how an exact inspection compares with reading the same pages and dropping them."""
    best: dict[str, dict[str, Any]] = {}
    for kind in ("inspect", "scan"):
        say(f"stub, {count:,} rows: {kind}")
        runs = [work("rekey", kind, count) for _ in range(tries)]
        best[kind] = min(runs, key=lambda one: float(one["seconds"]))
    rates = {kind: one["rows"] / one["seconds"] for kind, one in best.items()}
    return {
        "rows_per_second": round(rates["inspect"]),
        "scan_rows_per_second": round(rates["scan"]),
        "of_scan_speed": round(rates["inspect"] / rates["scan"], 2),
        "rows_per_cpu_second": round(best["inspect"]["rows"] / best["inspect"]["cpu_seconds"]),
        "peak_rss_mib": round(best["inspect"]["peak_mib"], 1),
    }
