"""Tables from a million rows to ten billion on a virtual service, in simulated time.

    python -m benchmarks.scale ROWS        writes the figures of a table of that many rows to `life.json`

Nothing is stored: a row is made from its number when somebody looks at it. What runs is the program's own:
the plan (a sample of real rows), reading and splitting segments, checkpoints in a state file, rates, and the
comparison with its parts and stored digests. What takes processor for each row is left out, which other parts
of the benchmarks measure: a page holds one object for the rows of a partition; mapping, digests and the
encoding of batches are not done.

Rules kept here:

* Entities pass through the accounts at the documented targets, by the program's own throttle; a page takes
  30 ms.
* Partitions are skewed: each block of 100,000 rows has 200 partitions, whose sizes fall as one over their
  rank, and one partition in the middle has a hundredth of the table.
* A comparison is killed once per simulated hour, and resumed from what the state file has.
* What the plan says is taken for the rows that there are: how far off their number may be it says itself.
* Memory is that of the process, with the virtual tables in it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import virtual
from benchmarks.measure import run
from benchmarks.project import SCRIPT_ID, SECRET, USERS, python_path
from rekey import Migration
from rekey.copy.map import Copied
from rekey.copy.pipeline import Callbacks, copy_segments
from rekey.copy.scan import ReadOptions, window_of
from rekey.copy.throttle import Throttle
from rekey.core.limits import ACCOUNT_TARGET
from rekey.core.safe_ids import SafeIds
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Declared
from rekey.model import EVERYTHING, PARTITION_KEY, EntityKey, KeyRange, Row
from rekey.plan.plan import make_plan
from rekey.plan.result import MigrationPlan
from rekey.plan.subject import PlanOptions, Subject
from rekey.project.config import Limits
from rekey.state.models import StoredDigests
from rekey.state.store import State
from rekey.tables.base import MAX_PAGE_ROWS, Operation, Page, Table
from rekey.tables.sent import RequestKind
from rekey.verify.bucket_digests import SOURCE, Partial
from rekey.verify.context import MappedRows, ReconcileContext, RowReads
from rekey.verify.first_pass import RowAdder, add_digests

WORKS = ("copy", "comparison")
LATENCY = 0.03
MOST_STATE_MB, MOST_MIB, MOST_OFF, MOST_TWICE = 50, 300, 0.05, 0.01
_LIMITS = Limits().with_targets()
_BLOCK = 100_000
_PARTITIONS = 200
_ROW_BYTES = 300
_HOUR = 3600.0
"""Seconds between two kills of a comparison."""


def _partition_ends() -> list[int]:
    """Return where the partitions of a block end: their sizes fall as one over the rank, in mixed order."""
    shares = [1 / rank for rank in range(1, _PARTITIONS + 1)]
    random.Random(1).shuffle(shares)
    return [round(_BLOCK * total / sum(shares)) for total in accumulate(shares)]


class Skewed:
    """The keys of a table of `rows` rows in key order, from their numbers."""

    ends = _partition_ends()

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._huge = rows // 100
        self._before = (rows // 2 // _BLOCK + 1) * _BLOCK
        self.largest = max(self._huge, *(b - a for a, b in zip([0, *self.ends], self.ends, strict=False)))

    def partition(self, number: int) -> tuple[str, int, int]:
        """Return the partition of a row, and the numbers of its first row and of the first behind it."""
        if self._before <= number < self._before + self._huge:
            return f"t-{self._before // _BLOCK - 1:06}-zzz", self._before, self._before + self._huge
        skipped = self._huge if number >= self._before else 0
        block, at = divmod(number - skipped, _BLOCK)
        index, base = bisect_right(self.ends, at), block * _BLOCK + skipped
        first = base + (self.ends[index - 1] if index else 0)
        # The last block may be cut short, or by the huge partition, which begins at a block's end.
        return f"t-{block:06}-{index:03}", first, min(base + self.ends[index], self.rows)

    def key(self, number: int) -> EntityKey:
        """Return the key of a row by its number."""
        name, first, _ = self.partition(number)
        return EntityKey(name, f"user-{number - first:012}@mail.example")

    def beyond(self, key: EntityKey | None) -> int:
        """Return the number of the first row behind a key."""
        if key is None:
            return 0
        return bisect_right(range(self.rows), key.order, key=lambda number: self.key(number).order)


class VirtualPage(Page):
    """Rows of a table by number; those of a partition are one object, the last row of all has its own key."""

    def __init__(self, table: VirtualTable, first: int, end: int, *, full: bool) -> None:
        rows, at = [], first
        while at < end:
            name, _, behind = table.shape.partition(at)
            behind = min(behind, end)
            rows += [{PARTITION_KEY: name, "RowKey": ""}] * (behind - at)
            at = behind
        if rows:
            rows[-1] = {**rows[-1], "RowKey": table.shape.key(end - 1).row}
        cursor = table.shape.key(end - 1) if end else None
        super().__init__(rows, cursor, len(rows) * _ROW_BYTES, full)
        object.__setattr__(self, "_table", table)
        object.__setattr__(self, "_first", first)

    def cut(self, upto: EntityKey | None) -> tuple[list[Row], EntityKey | None, bool]:
        """Cut by number."""
        if upto is None or self.cursor is None or self.cursor.order < upto.order:
            return self.rows, self.cursor, False
        return self.rows[: self._table.shape.beyond(upto) - self._first], upto, True  # type: ignore[attr-defined]


async def _unused(*_: Any, **_options: Any) -> Any:
    raise AssertionError("tables are only scanned")


class VirtualTable(Table):
    """A table that is only read. `whole_rows`: rows with keys and properties of their own."""

    def __init__(self, name: str, shape: Skewed, counts: Counter[str], *, whole_rows: bool = False) -> None:
        self._name, self.shape = name, shape
        self._counts, self._whole_rows, self._clock = counts, whole_rows, virtual.VirtualClock()

    @property
    def name(self) -> str:
        return self._name

    at_address = by_query = write_at_address = transact = _unused

    def encoded_size(self, _operation: Operation) -> int:
        return 2 * _ROW_BYTES

    async def scan(
        self, within: KeyRange = EVERYTHING, *, page_rows: int = MAX_PAGE_ROWS, **_options: Any
    ) -> AsyncIterator[Page]:
        """Yield pages; each takes the latency."""
        at = self.shape.beyond(within.after)
        stop = self.shape.rows if within.upto is None else max(at, self.shape.beyond(within.upto))
        while True:
            await self._clock.sleep(LATENCY)
            end = min(stop, at + page_rows)
            self._counts["probes" if page_rows == 1 else "pages"] += 1
            self._counts["read"] += end - at
            if self._whole_rows and end > at:
                rows = [self._row(number) for number in range(at, end)]
                yield Page(rows, self.shape.key(end - 1), full=end - at == page_rows)
            elif end > at:
                yield VirtualPage(self, at, end, full=end - at == page_rows)
            at = end
            if at >= stop:
                return

    def _row(self, number: int) -> Row:
        key = self.shape.key(number)
        stamp = "2024-01-01T00:00:00.0000000Z"
        named = {"odata.etag": 'W/"1"', PARTITION_KEY: key.partition, "RowKey": key.row, "Timestamp": stamp}
        return {**named, "Name": f"First Last {number}", "Logins": number}


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables of an account, for the plan."""

    shape: Skewed
    counts: Counter[str]

    def table(self, name: str) -> VirtualTable:
        return VirtualTable(
            name, self.shape if name == USERS.source else Skewed(0), self.counts, whole_rows=True
        )

    async def table_exists(self, name: str) -> bool:
        return name == USERS.source

    async def table_names(self) -> list[str]:
        return [USERS.source]


async def _planned(shape: Skewed, migration: Migration) -> tuple[MigrationPlan, int]:
    """Return the plan of a sample, and how many requests it took."""
    declared = Declared(SCRIPT_ID, Path(f"{SCRIPT_ID}.py"), "", frozenset(), migration, migration.digest())
    subject = Subject(declared, Mapper(migration, {"users": SECRET.encode()}), SafeIds(bytes(32)))
    counts: Counter[str] = Counter()
    tables: Any = _Tables(shape, counts)
    plan = await make_plan([subject], tables, PlanOptions(limits=_LIMITS), clock=virtual.VirtualClock())
    return plan.migrations[0], counts["pages"] + counts["probes"]


class _Writes:
    """Takes the rates of what a copy writes, in the place of a `BatchWriter`; nothing is sent."""

    def __init__(self, throttle: Throttle, clock: virtual.VirtualClock) -> None:
        self._throttle = throttle
        self._restricted = Throttle(ACCOUNT_TARGET, clock)
        self._changed = asyncio.Event()
        self._windows = 0
        self.has_room = True

    async def copy(self, rows: Sequence[Row]) -> Copied:
        self._windows += 1
        self.has_room = self._windows < 10
        await self._restricted.take(2 * len(rows), kind=RequestKind.BATCH)
        for partition, count in Counter([row[PARTITION_KEY] for row in rows]).items():
            await self._throttle.take(count, (USERS.tables[0], partition), RequestKind.BATCH)
        self._windows -= 1
        self.has_room = True
        self._changed.set()
        copied = Copied()
        copied.rows = len(rows)
        return copied

    def drain(self) -> None:
        """Hold nothing back."""

    async def progress(self) -> None:
        self._changed.clear()
        await self._changed.wait()


async def _copied(shape: Skewed, state: State) -> dict[str, Any]:
    clock, counts = virtual.VirtualClock(), Counter[str]()
    throttle = Throttle(_LIMITS.account_rate, clock, partition=_LIMITS.partition_entities_per_second)
    writes: Any = _Writes(throttle, clock)
    segments = state.add_segments(SCRIPT_ID, "backfill", [EVERYTHING])
    began = clock.monotonic()
    copied, _ = await copy_segments(
        VirtualTable(USERS.source, shape, counts),
        segments,
        writes.copy,
        window_of(_LIMITS),
        callbacks=Callbacks(state.checkpoint),
        options=ReadOptions(_LIMITS.scans, state.split_segment, throttle=throttle),
        writer=writes,
    )
    segments = state.segments(SCRIPT_ID, "backfill")
    assert all(segment.done for segment in segments)
    assert copied.rows == sum(segment.rows for segment in segments) == shape.rows
    return {"seconds": clock.monotonic() - began, **counts, "segments": len(segments)}


class _Killed(Exception):
    """The process is killed."""


def _count(adder: RowAdder, table: int, rows: list[Row]) -> None:
    """Count rows without their digests."""
    work = adder._work  # noqa: SLF001 - what is replaced has it
    if table == SOURCE:
        work.source_rows += len(rows)
        work.expected[0].counts[0] += len(rows)
    else:
        work.actual[table].counts[0] += len(rows)


async def _compared(shape: Skewed, state: State) -> dict[str, Any]:
    """Compare; killed once an hour, and resumed."""
    clock, counts = virtual.VirtualClock(), Counter[str]()
    began = clock.monotonic()
    kill_at = began + _HOUR
    throttle = Throttle(_LIMITS.account_rate, clock, partition=_LIMITS.partition_entities_per_second)

    def stop() -> None:
        if clock.monotonic() >= kill_at:
            raise _Killed

    async def unasked(*_: object) -> EntityKey | None:
        raise AssertionError("the two sides are equal")

    def keep(work: Partial) -> None:
        state.keep_digests(SCRIPT_ID, StoredDigests("{}", "", work.as_state()))

    ctx = ReconcileContext(
        source=VirtualTable(USERS.source, shape, counts),
        targets=[VirtualTable(USERS.tables[0], shape, counts)],
        mapper=Mapper(USERS, {"users": SECRET.encode()}),
        ids=SafeIds(bytes(32)),
        rows=MappedRows(owner=unasked, propagate=unasked),
        folder=Path.cwd(),
        reads=RowReads(scans=2 * _LIMITS.scans, prefetch=False, wait=throttle.arrived_from, stop=stop),
        clock=clock,
    )
    work, kills = Partial.fresh(1), 0
    with mock.patch.object(RowAdder, "add", _count):
        while True:
            try:
                await add_digests(ctx, work, checkpoint=keep)
            except _Killed:
                stored = state.stored_digests(SCRIPT_ID)
                assert stored is not None
                work, kills, kill_at = (
                    Partial.from_state(stored.digests, targets=1),
                    kills + 1,
                    kill_at + _HOUR,
                )
            else:
                break
    assert work.source_rows == work.actual[0].rows == shape.rows
    twice = counts["read"] - counts["probes"] - 2 * shape.rows
    figures = {"seconds": clock.monotonic() - began, **counts, "parts": len(work.parts)}
    return figures | {"kills": kills, "read_twice": twice / (2 * shape.rows)}


def _life(rows: int) -> dict[str, Any]:
    """Plan, copy and compare a table in this process."""
    shape, path = Skewed(rows), Path("state.sqlite")
    delta, dual_write = USERS, replace(USERS, capture="dual-write")
    figures: dict[str, Any] = {"rows": rows}
    with State.open(path) as state:
        state.register(SCRIPT_ID, "digest", USERS.source, "run", {}, "virtual")
        for name in WORKS:
            work, declared, phase = {
                "copy": (_copied, delta, "backfill"),
                "comparison": (_compared, dual_write, "reconcile"),
            }[name]
            plan, requests = virtual.run(_planned(shape, declared))
            assert plan.estimate is not None and plan.inventory is not None
            [estimated] = [one.at_limits_s for one in plan.estimate.durations if one.phase == phase]
            known = plan.inventory.rows
            figures["plan"] = {"rows": known.rows, "error": round(known.error, 3), "requests": requests}
            began, processor = time.monotonic(), time.process_time()
            done = virtual.run(work(shape, state))
            figures[name] = {
                **done,
                # Of the rows there are: how far off their number is the plan says itself.
                "estimated_seconds": round(estimated * rows / known.rows, 1),
                "took_seconds": round(time.monotonic() - began, 1),
                "took_cpu_seconds": round(time.process_time() - processor, 1),
            }
            size = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
            figures["state_bytes"] = max(figures.get("state_bytes", 0), size)
    return figures


def measure(sizes: Sequence[int], say: Callable[[str], None]) -> dict[str, Any]:
    """Return the figures of tables of several sizes, each planned, copied and compared by its own process."""
    done = {}
    for rows in sizes:
        say(f"virtual service in simulated time: {rows:,} rows")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            process = run(
                ["benchmarks.scale", str(rows)],
                folder=folder,
                environ={**os.environ, "PYTHONPATH": python_path()},
            )
            done[str(rows)] = json.loads((folder / "life.json").read_text("ascii")) | {
                "peak_rss_mib": round(process.peak_mib, 1)
            }
    off = max(
        abs(life[work]["estimated_seconds"] / life[work]["seconds"] - 1)
        for life in done.values()
        for work in WORKS
    )
    state_mb = max(life["state_bytes"] for life in done.values()) / 1e6
    memory = max(life["peak_rss_mib"] for life in done.values())
    twice = max(life["comparison"]["read_twice"] for life in done.values())
    return {
        "state_file": _figure(
            f"at most {MOST_STATE_MB} MB at every size", state_mb, state_mb <= MOST_STATE_MB
        ),
        "peak_rss": _figure(f"at most {MOST_MIB} MiB at every size", memory, memory <= MOST_MIB),
        "durations": _figure(f"the plan's within {MOST_OFF} of what it takes", off, off <= MOST_OFF),
        "read_twice": _figure(
            f"at most {MOST_TWICE} of a comparison that is killed once an hour", twice, twice <= MOST_TWICE
        ),
        "sizes": done,
    }


def _figure(asked: str, measured: float, met: bool) -> dict[str, Any]:
    return {"asked": asked, "measured": round(measured, 4), "met": met}


def main(words: Sequence[str]) -> None:
    """Write the figures of one size to `life.json`."""
    Path("life.json").write_text(json.dumps(_life(int(words[0]))), "ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
