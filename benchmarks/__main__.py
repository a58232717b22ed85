"""`python -m benchmarks`: print one JSON document with every figure. Progress goes to standard error.

Rules kept here:

* What is compared is measured in the same run, on the same machine, against the same Azurite build; ratios
  are what counts. Absolute figures belong to the machine that is named with them.
* Each side is a whole process, accounted for by the operating system.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import dualwrite, machine, project, pure, stubbed
from benchmarks.measure import Measured, run
from rekey.rehearse.azurite import Azurite

_SIZES = (10_000, 100_000, 300_000)
_LEAST_PURE = 2_000
_STUB_ROWS = 100_000


def say(text: str) -> None:
    """Tell whoever watches what goes on."""
    print(text, file=sys.stderr, flush=True)


def life(count: int) -> dict[str, Any]:
    """Take `count` rows through plan, apply, full verification and cutover by the installed command."""
    steps = {
        "plan": ["plan", "--exact"],
        "apply": ["apply", project.SCRIPT_ID],
        "verify": ["verify", project.SCRIPT_ID, "--mode", "full"],
        "cutover": ["apply", project.SCRIPT_ID, "--to", "cutover", "--writers-stopped"],
    }
    taken: dict[str, Measured] = {}
    with Azurite() as azurite, tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        environ = project.make(folder, azurite)
        project.fill(azurite, count)
        for step, words in steps.items():
            say(f"{count:,} rows: rekey {' '.join(words)}")
            taken[step] = run(["rekey", *words], folder=folder, environ=environ)
    return {
        "rows": count,
        "partitions": project.PARTITIONS,
        "steps": {step: measured.as_json(count) for step, measured in taken.items()},
        "seconds": round(sum(measured.seconds for measured in taken.values()), 1),
        "peak_rss_mib": round(max(measured.peak_mib for measured in taken.values()), 1),
    }


def copy_with(words: list[str], count: int) -> Measured:
    """Copy `count` rows with one program, on an Azurite of its own."""
    say(f"{count:,} rows: {' '.join(words)}")
    with Azurite() as azurite, tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        environ = project.make(folder, azurite)
        project.fill(azurite, count)
        return run(words, folder=folder, environ=environ)


def side_by_side(count: int) -> dict[str, Any]:
    """Compare rekey's backfill with the loop over the SDK. Both map the same keys."""
    ours = copy_with(["benchmarks.rekey_loop"], count)
    loop = copy_with(["benchmarks.sdk_loop"], count)
    same = copy_with(["benchmarks.sdk_loop", "--mapping"], count)
    return {
        "rows": count,
        "rekey_backfill": ours.as_json(count),
        "sdk_loop_same_rows": same.as_json(count),
        "sdk_loop_target_only": loop.as_json(count),
        "ratio_same_rows": _ratio(same, ours),
        "ratio_target_only_although_rekey_writes_three_times_the_rows": _ratio(loop, ours),
    }


def _ratio(other: Measured, ours: Measured) -> dict[str, float]:
    return {
        "wall": round(other.seconds / ours.seconds, 2),
        "cpu": round(other.cpu_seconds / ours.cpu_seconds, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the side-by-side copy")
    parser.add_argument("--quick", action="store_true", help="small numbers: shows that it works, no more")
    parser.add_argument("--out", type=Path, help="write the document to a file as well")
    options = parser.parse_args()
    sizes = (400,) if options.quick else _SIZES
    count = 400 if options.quick else options.rows
    lives = [life(size) for size in sizes]
    applied = [one["steps"]["apply"]["peak_rss_mib"] for one in lives]
    document = {
        "machine": machine.describe(),
        "lives": lives,
        "memory_of_apply": {
            "peak_rss_mib": dict(zip(map(str, sizes), applied, strict=True)),
            "largest_to_smallest": round(applied[-1] / applied[0], 2),
        },
        "side_by_side": side_by_side(count),
        "on_the_stub": stubbed.measure(2_000 if options.quick else _STUB_ROWS, say),
        "dual_write": dualwrite.measure(
            2 if options.quick else dualwrite.CALLS, say, dualwrite.KINDS[: 1 if options.quick else None]
        ),
        "rows_per_cpu_second": pure.measure(max(count, _LEAST_PURE)),
    }
    text = json.dumps(document, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
