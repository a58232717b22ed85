"""Figures for the plots of a plan: partitions, keys and batches of a table, its load over time. Pure. In
bounded memory; partitions are named by safe id."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain

from rekey.core.limits import utf16_units
from rekey.core.safe_ids import SafeIds
from rekey.declaration.keys.moments import parse_ticks
from rekey.declaration.migration import Migration
from rekey.errors import RowRefused
from rekey.inspect.inventory import PARTS, Weights
from rekey.inspect.partitions import Crowding, PartitionSizes, PartitionTally
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row
from rekey.plan.advice.structure import MOMENTS, counting_scope
from rekey.plan.result import Load, Portrait, TableFill

LARGEST = 8
LANES = 40
TIMES = 60
# Amounts kept by partition and time; beyond, the smaller half of the partitions is dropped.
CELLS = 50_000
LENGTH_STEP = 8
# Steps of time as lengths of ISO text: hours, days, months, years.
_STEPS = (13, 10, 7, 4)
_KEYS = (PARTITION_KEY, ROW_KEY)


class Portrayer:
    """Counts the rows of a table and of its targets (`count`), then gives portraits and loads."""

    def __init__(self, migration: Migration) -> None:
        self._tables = (migration.source, *migration.tables)
        self._labels = (migration.source, *migration.labels)
        # One for the source, then one for each target table; as are the sizes.
        self.partitions = [PartitionTally() for _ in self._tables]
        self.crowding = [Crowding() for _ in self._tables]
        self.sizes = [PartitionSizes() for _ in self._tables]
        # The expression inside the first moment of any key, which is the time of a row in loads;
        # PartitionKeys are searched before RowKeys.
        keys = [target.partition_key for target in migration.filled] + [
            target.row_key for target in migration.filled
        ]
        nodes = (node for key in keys for node in key.walk())
        moment = next((node.of for node in nodes if isinstance(node, MOMENTS)), None)
        self._moment = None if moment is None else moment.compile(counting_scope("load over time", migration))
        # Rows by the length of each key, for each part of what was read and each table.
        self._lengths = [[{key: Counter[int]() for key in _KEYS} for _ in self._tables] for _ in PARTS]
        self._lanes = [[_Lanes(), _Lanes()] for _ in PARTS]
        self.rows = 0

    def count(
        self, part: int, tables: Sequence[Sequence[Row]], partitions: Sequence[Mapping[str, int]]
    ) -> None:
        """Count the rows of one page.

        Args:
            part: the part of the reading that they belong to (`PARTS`).
            tables: rows of the source, then of each target table; the main target's in the source's order.
            partitions: the number of rows of each table by partition.
        """
        self.rows += len(tables[0])
        lengths = self._lengths[part]
        for number, (rows, parted) in enumerate(zip(tables, partitions, strict=True)):
            self.partitions[number].add(parted)
            self.crowding[number].add(partitions[0], parted)
            self.sizes[number].add(parted)
            for partition, count in parted.items():
                lengths[number][PARTITION_KEY][utf16_units(partition)] += count
            row_keys = [row[ROW_KEY] for row in rows]
            # Asked once for all of them: keys are mostly ASCII.
            units = len if "".join(row_keys).isascii() else utf16_units
            lengths[number][ROW_KEY].update(map(units, row_keys))
        if self._moment is None:
            return
        times: list[str] = []
        for row in tables[0]:
            times.append("")
            with suppress(RowRefused):
                moment = self._moment(row, "")
                # Not every row of a conditional key has a moment.
                times[-1] = "" if parse_ticks(moment) is None else moment[: _STEPS[0]]
        for lanes, rows in zip(self._lanes[part], tables, strict=False):
            lanes.add([(row[PARTITION_KEY], at) for row, at in zip(rows, times, strict=True) if at])

    def portraits(self, ids: SafeIds, fills: Sequence[TableFill], weights: Weights) -> tuple[Portrait, ...]:
        """Return a portrait of each table, the source first. `ids` name partitions; `fills`: rows and batches
        of each target; `weights`: how many source rows a row read stands for."""
        portraits = []
        for number, table in enumerate(self._tables):
            lengths = {key: weights.merged([part[number][key] for part in self._lengths]) for key in _KEYS}
            largest = self.partitions[number].top(LARGEST)
            rows = sum(lengths[ROW_KEY].values())
            units = sum(units * count for counts in lengths.values() for units, count in counts.items())
            portraits.append(
                Portrait(
                    table=self._labels[number],
                    today=not number,
                    rows=self.rows,
                    sizes=self.sizes[number].by_class,
                    largest=tuple((_lane_id(ids, table, name), count) for name, count in largest),
                    lengths={key: _by_class(counts) for key, counts in lengths.items()},
                    key_bytes=2 * units / rows if rows else 0.0,
                    fills=dict(sorted(fills[number - 1].fills.items())) if number else {},
                )
            )
        return tuple(portraits)

    def loads(self, ids: SafeIds, weights: Weights) -> tuple[Load, ...]:
        """Return the source's and the main target's load over time; empty where no key holds a moment."""
        everything = [lanes for part in self._lanes for lanes in part if lanes.times]
        if not everything:
            return ()
        step = min(lanes.step for lanes in everything)
        at = sorted({*chain(*(lanes.times for lanes in everything))})
        while len(times := _times(at[0][:step], at[-1][:step])) > TIMES and step > _STEPS[-1]:
            step = _coarser(step)
        return tuple(
            replace(
                _load(ids, table, [part[number] for part in self._lanes], times, weights, today=not number),
                table=self._labels[number],
            )
            for number, table in enumerate(self._tables[:2])
        )


class _Lanes:
    """Rows of one table by partition and time, in bounded memory: at most `TIMES` times, except years."""

    def __init__(self) -> None:
        self.step = _STEPS[0]
        self.counts: Counter[tuple[str, str]] = Counter()
        # All rows by time, also those of dropped partitions.
        self.times: Counter[str] = Counter()
        self.partitions_exact = True

    def add(self, rows: Sequence[tuple[str, str]]) -> None:
        self.counts.update([(partition, at[: self.step]) for partition, at in rows])
        self.times.update([at[: self.step] for _, at in rows])
        while self.step > _STEPS[-1] and len(self.times) > TIMES:
            counts, times, step = self.counts, self.times, _coarser(self.step)
            self.step, self.counts, self.times = step, Counter(), Counter()
            for (partition, at), count in counts.items():
                self.counts[partition, at[:step]] += count
            for at, count in times.items():
                self.times[at[:step]] += count
        if len(self.counts) > CELLS:
            self.partitions_exact = False
            rows_of: Counter[str] = Counter()
            for (partition, _), count in self.counts.items():
                rows_of[partition] += count
            kept = {partition for partition, _ in rows_of.most_common(len(rows_of) // 2)}
            self.counts = Counter({cell: count for cell, count in self.counts.items() if cell[0] in kept})


def _load(
    ids: SafeIds, table: str, parts: Sequence[_Lanes], times: Sequence[str], weights: Weights, *, today: bool
) -> Load:
    """Return the load in columns of equal length, each beginning at one of `times`."""
    step, column = len(times[0]), {time: number for number, time in enumerate(times)}
    all_rows = [0.0] * len(times)
    for at, count in weights.merged([lanes.times for lanes in parts]).items():
        all_rows[column[at[:step]]] += count
    cells: defaultdict[tuple[str, int], float] = defaultdict(float)
    for (partition, at), count in weights.merged([lanes.counts for lanes in parts]).items():
        cells[partition, column[at[:step]]] += count
    rows: defaultdict[str, float] = defaultdict(float)
    most = [0.0] * len(times)
    for (partition, at_column), count in cells.items():
        rows[partition] += count
        most[at_column] = max(most[at_column], count)
    shown = {name: [0] * len(times) for name in sorted(rows, key=lambda name: (-rows[name], name))[:LANES]}
    for (partition, at_column), count in cells.items():
        if partition in shown:
            shown[partition][at_column] = round(count)
    # Lanes in the order in which their load begins.
    in_order = sorted(shown.items(), key=lambda entry: next(at for at, count in enumerate(entry[1]) if count))
    others_rows = [round(total) - sum(lane) for total, *lane in zip(all_rows, *shown.values(), strict=True)]
    return Load(
        table=table,
        today=today,
        times=tuple(times),
        lanes=tuple((_lane_id(ids, table, name), tuple(lane)) for name, lane in in_order),
        others=len(rows) - len(shown),
        others_rows=tuple(max(0, rows) for rows in others_rows),
        partitions_exact=all(lanes.partitions_exact for lanes in parts),
        busiest=tuple(rows / total if total else 0.0 for rows, total in zip(most, all_rows, strict=True)),
    )


def _times(first: str, last: str) -> list[str]:
    """Return all times from the first to the last at their own step, also those without rows; except for
    years at most one beyond `TIMES`."""
    at, times = datetime.fromisoformat(first + "0001-01-01T00"[len(first) :]), [first]
    while times[-1] < last and (len(times) <= TIMES or len(first) == _STEPS[-1]):
        # Longer than a step of months or years, and shorter than two.
        at += timedelta(**{"hours": 1} if len(first) == 13 else {"days": {10: 1, 7: 31, 4: 366}[len(first)]})
        at = at.replace(day=1) if len(first) < 10 else at
        times.append(at.isoformat()[: len(first)])
    return times


def _coarser(step: int) -> int:
    return next(each for each in _STEPS if each < step)


def _by_class(lengths: Mapping[int, float]) -> dict[int, int]:
    """Return rows by the lower end of a class of `LENGTH_STEP` units, for all classes up to the longest."""
    classes: defaultdict[int, float] = defaultdict(float)
    for units, rows in lengths.items():
        classes[units // LENGTH_STEP * LENGTH_STEP] += rows
    return {low: round(classes[low]) for low in range(0, max(classes, default=-1) + 1, LENGTH_STEP)}


def _lane_id(ids: SafeIds, table: str, partition: str) -> str:
    return ids.short(table, EntityKey(partition, ""))
