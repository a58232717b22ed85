"""Rates that follow the service, on the stub in simulated time: a copy finds limits that it is not told.

Rules kept here:

* The copy is the program's own, with its windows, pages, batches and retries; the stub enforces the limits of
  account and partitions. Time is simulated (`virtual`): the processor of this machine does not count.
* What is measured is the last third of each stage, when the limit has been found: entities that the stub let
  through, over those that its limit allows. Rows are left then: at the end of a copy, which few partitions
  share, it is their limits that hold.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from typing import Any

from benchmarks import virtual
from benchmarks.stub import Stub, parser
from benchmarks.stub_work import DECLARED, copy, no_mapping
from rekey.copy.throttle import Throttle
from rekey.core.limits import ACCOUNT_TARGET
from rekey.project.config import Limits

LATENCY = 0.03
LEAST_OF_LIMIT = 0.85
# A copy's last seconds, in which fewer and fewer partitions are left.
_END_SECONDS = 15
_LIMITS = Limits(concurrency=64, scans=24)
"""A scan reads 2,000 rows/s of a partition: eight of them are not enough for 60,000 entities/s."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A limit of the account, in entities a second, and for how long it holds.

    `carried`: the share of it that a copy uses, growing included: so many rows are made up.
    """

    rate: int
    seconds: int
    carried: float = 0.95


CASES: dict[str, tuple[Stage, ...]] = {
    "10,000": (Stage(10_000, 40),),
    "20,000": (Stage(20_000, 40),),
    "60,000": (Stage(60_000, 90, 0.75),),
    "20,000, then 40,000, then 10,000": (Stage(20_000, 30), Stage(40_000, 50, 0.8), Stage(10_000, 30)),
}


async def _copied(words: list[str]) -> dict[str, Any]:
    clock = virtual.VirtualClock()
    stub = Stub(parser().parse_args(words), clock.monotonic)
    throttle = Throttle(None, clock, begins=ACCOUNT_TARGET)
    with no_mapping():
        await copy(virtual.service_of(stub, LATENCY), _LIMITS, DECLARED["kept"], throttle)
    return stub.stats()


def case(stages: tuple[Stage, ...], part: float) -> dict[str, Any]:
    """Copy at limits that change from stage to stage; `part` of the seconds of each."""
    begins, steps, rows = 0.0, [], 0.0
    for stage in stages:
        steps.append((begins, stage.rate))
        begins += stage.seconds * part
        rows += stage.rate * stage.carried * stage.seconds * part / 2
    rows += stages[-1].rate * _END_SECONDS * part / 2
    words = [str(round(rows)), "--limits", "--account-rate", ",".join(f"{s}:{rate}" for s, rate in steps)]
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        stats = virtual.run(_copied(words))
    carried, refused = stats["taken_in_second"], stats["refused_in_second"]
    found, ends = [], 0.0
    for stage in stages:
        since, ends = ends, ends + stage.seconds * part
        last = range(round((since + 2 * ends) / 3), round(min(ends, stats["seconds"] - 3)))
        share = sum(carried.get(second, 0) for second in last) / stage.rate / max(1, len(last))
        within = [
            second
            for second in range(round(since), round(ends))
            if carried.get(second, 0) >= LEAST_OF_LIMIT * stage.rate
        ]
        found.append(
            {
                "limit": stage.rate,
                "share": round(share, 3),
                "seconds_to_find": within[0] - round(since) if within else None,
                "refused": sum(refused.get(second, 0) for second in last) / max(1, len(last)),
            }
        )
    return {"rows": round(rows), "seconds": round(stats["seconds"], 1), "stages": found}


def measure(part: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Return all cases, and the least share of a limit that was used once it was found."""
    cases = {}
    for name, stages in CASES.items():
        say(f"stub in simulated time: a copy that follows limits of {name} entities/s")
        cases[name] = case(stages, part)
    least = min(stage["share"] for one in cases.values() for stage in one["stages"])
    return {
        "asked": f"at least {LEAST_OF_LIMIT} of each limit, once it was found",
        "measured": least,
        "met": least >= LEAST_OF_LIMIT,
        "cases": cases,
    }
