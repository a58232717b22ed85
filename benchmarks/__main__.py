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
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import (
    asked,
    backups,
    dualwrite,
    freezes,
    large_life,
    machine,
    peers,
    project,
    proxy,
    pure,
    rates,
    scale,
    stubbed,
)
from benchmarks.measure import Measured, run
from rekey.rehearse.azurite import Azurite


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


# --- the document -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows of every part."""

    lives: tuple[int, ...] = (10_000, 100_000, 300_000)
    side_by_side: int = 20_000
    stub: int = 100_000
    limits: int = 100_000
    freeze: int = 1_000_000
    throttled: int = 500_000
    requests: int = 100_000
    sizes: tuple[int, ...] = (10_000, 100_000, 300_000)
    base: int = 30_000
    pure: int = 20_000
    calls: int = dualwrite.CALLS
    kinds: int | None = None
    tries: int = peers.TRIES
    row_check: int = 1_000_000
    peers: int = 100_000
    backup: int = 1_000_000
    rates: float = 1.0
    proxy: proxy.Sizes = proxy.FULL
    scale: tuple[int, ...] = (10**6, 10**7, 10**8)
    large_life: int = 1_000_000


FULL = replace(
    Sizes(),
    limits=1_000_000,
    sizes=(10_000, 1_000_000, 3_000_000),
    scale=tuple(10**power for power in range(6, 11)),
    large_life=10_000_000,
)
QUICK = Sizes(
    (400,),
    400,
    2_000,
    2_000,
    2_000,
    2_000,
    2_000,
    (1_000, 2_000),
    1_000,
    2_000,
    2,
    1,
    1,
    2_000,
    400,
    2_000,
    0.02,
    proxy.QUICK,
    (200_000,),
    2_000,
)


def all_lives(counts: tuple[int, ...]) -> dict[str, Any]:
    """Return the lives of every size, and what memory `apply` takes at each."""
    done = [life(count) for count in counts]
    applied = [one["steps"]["apply"]["peak_rss_mib"] for one in done]
    return {
        "lives": done,
        "memory_of_apply": {
            "peak_rss_mib": dict(zip(map(str, counts), applied, strict=True)),
            "largest_to_smallest": round(applied[-1] / applied[0], 2),
        },
    }


PARTS: dict[str, Callable[[Sizes], dict[str, Any]]] = {
    "lives": lambda sizes: all_lives(sizes.lives),
    "side_by_side": lambda sizes: {"side_by_side": side_by_side(sizes.side_by_side)},
    "on_the_stub": lambda sizes: {"on_the_stub": stubbed.measure(sizes.stub, say)},
    "limits": lambda sizes: {"limits": asked.limits(sizes.limits, say)},
    "throttled": lambda sizes: {"throttled": asked.throttled(sizes.throttled, say)},
    "freeze": lambda sizes: {"freeze": freezes.measure(sizes.freeze, say)},
    "rates": lambda sizes: {"rates": rates.measure(sizes.rates, say)},
    "requests": lambda sizes: {"requests": asked.requests(sizes.requests, say)},
    "sizes": lambda sizes: {"sizes": asked.sizes(sizes.sizes, sizes.base, say)},
    "row_check": lambda sizes: {"row_check": asked.row_check(sizes.row_check, say, sizes.tries)},
    "backup": lambda sizes: {"backup": backups.measure(sizes.backup, say, sizes.tries)},
    "large_life": lambda sizes: {"large_life": large_life.measure(sizes.large_life, say)},
    "scale": lambda sizes: {"scale": scale.measure(sizes.scale, say)},
    "peers": lambda sizes: {"peers": peers.measure(sizes.peers, say, tries=sizes.tries)},
    "dual_write": lambda sizes: {
        "dual_write": dualwrite.measure(sizes.calls, say, dualwrite.KINDS[: sizes.kinds])
    },
    "proxy": lambda sizes: {"proxy": proxy.measure(sizes.proxy, say)},
    "rows_per_cpu_second": lambda sizes: {"rows_per_cpu_second": pure.measure(sizes.pure)},
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all of them, or some: {', '.join(PARTS)}")
    parser.add_argument("--rows", type=int, help="rows of the side-by-side copy")
    parser.add_argument(
        "--full", action="store_true", help="1,000,000 and 3,000,000 rows where that is asked"
    )
    parser.add_argument("--quick", action="store_true", help="small numbers: shows that it works, no more")
    parser.add_argument("--out", type=Path, help="write the document to a file as well")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    sizes = QUICK if options.quick else FULL if options.full else Sizes()
    if options.rows is not None:
        sizes = replace(sizes, side_by_side=options.rows)
    document: dict[str, Any] = {"machine": machine.describe()}
    for name in options.parts or PARTS:
        document |= PARTS[name](sizes)
    document["asked"] = asked.asked_of(document)
    text = json.dumps(document, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
