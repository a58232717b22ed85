"""Export and import on the stub, side by side with a loop over the SDK that writes a row as a line of JSON.

Both sides read and write the same rows. rekey's export is encrypted, compressed and has a digest; its import
checks every part before it writes: both count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.asked import figure
from benchmarks.stubbed import ROWS_OF_LOOP, work

LEAST_TIMES = 10


def measure(rows: int, say: Callable[[str], None], tries: int) -> dict[str, Any]:
    """Return rows per second of processor of both sides, and the ratio: the best of some tries."""
    figures: dict[str, Any] = {}
    for kind in ("export", "import"):
        best: dict[str, dict[str, Any]] = {}
        for side, count in (("rekey", rows), ("sdk", min(rows, ROWS_OF_LOOP))):
            say(f"stub, {count:,} rows: {side} {kind}")
            runs = [work(side, kind, count) for _ in range(tries)]
            best[side] = max(runs, key=lambda taken: float(taken["rows"] / taken["cpu_seconds"]))
        rates = {side: taken["rows"] / taken["cpu_seconds"] for side, taken in best.items()}
        ratio = rates["rekey"] / rates["sdk"]
        figures[kind] = figure(
            f"at least {LEAST_TIMES} times the loop",
            ratio,
            ratio >= LEAST_TIMES,
            rows=rows,
            rekey_rows_per_cpu_second=round(rates["rekey"]),
            sdk_loop_rows_per_cpu_second=round(rates["sdk"]),
            seconds=round(best["rekey"]["seconds"], 1),
            peak_rss_mib=round(best["rekey"]["peak_mib"], 1),
        )
    return figures
