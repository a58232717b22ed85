"""How long writers stand still at the cutover of capture "delta", on the stub in simulated time.

Rules kept here:

* What runs is what the phase runs under freeze: the one comparison that brings what differs, then the look
  for rows written since. Tables are equal, as after the passes before; the stub enforces the service's
  targets.
* The least is what those targets allow: every row of source and target read once. The service looks through a
  table for rows written since by itself; the stub answers such a page at once.
* A question for the first row beyond a key (`probes`), by which idle readers find where to divide a range, is
  no page.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import virtual
from benchmarks.project import USERS
from benchmarks.stub import ACCOUNT_RATE, Stub, parser
from benchmarks.stub_work import comparison_of
from rekey.copy.delta import written_since
from rekey.copy.throttle import Throttle
from rekey.project.config import Limits
from rekey.tables.base import MAX_PAGE_ROWS
from rekey.verify.context import RowReads
from rekey.verify.full import full

LATENCY = 0.03
MOST_OF_LEAST, MOST_PAGES = 1.2, 1.05


async def _frozen(rows: int, folder: Path) -> dict[str, Any]:
    clock = virtual.VirtualClock()
    stub = Stub(parser().parse_args([str(rows), "--limits", "--target"]), clock.monotonic)
    service = virtual.service_of(stub, LATENCY)
    limits = Limits().with_targets()
    throttle = Throttle(limits.account_rate, clock, partition=limits.partition_entities_per_second)
    service.listen(throttle.heard, throttle.admit)
    reads = RowReads(scans=2 * limits.scans, prefetch=False, wait=throttle.arrived_from)
    report = await full(comparison_of(service, folder, reads=reads, propagate_first=True))
    assert report.equal
    strays = written_since(service.table(USERS.source), "2024-02-01T00:00:00Z")
    assert [row async for row in strays] == []
    return {**stub.stats(), "seconds": clock.monotonic()}


def measure(rows: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the seconds and pages of a stop, over the least."""
    say(f"stub in simulated time, {rows:,} rows: what runs under freeze, at the service's limits")
    with tempfile.TemporaryDirectory() as folder:
        done = virtual.run(_frozen(rows, Path(folder)))
    least_s, least_pages = 2 * rows / ACCOUNT_RATE, 2 * -(-rows // MAX_PAGE_ROWS)
    times, pages = done["seconds"] / least_s, (done["pages"] - done["probes"]) / least_pages
    return {
        "asked": f"at most {MOST_OF_LEAST} times the time of reading both once, {MOST_PAGES} times its pages",
        "measured": round(times, 3),
        "met": times <= MOST_OF_LEAST and pages <= MOST_PAGES,
        "rows": rows,
        "seconds": round(done["seconds"], 1),
        "least_seconds": round(least_s, 1),
        "pages_of_least": round(pages, 3),
        "probes": done["probes"],
        "refused": done.get("refused", 0),
    }
