"""What a plan shows in pictures: partitions, keys and batches of a table, and its load over time. Pure.

Rules kept here:

* What is kept names partitions by safe id and holds no key.
* Memory is bounded: counts of partitions (`tally`), and cells of partition and time, whose times get coarser
  when there are too many.
* Load over time is told where a key of a target holds a moment: that moment is the time. The source is shown
  next to it, by the same moments. Rows that have none were refused and are not shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rekey.declaration.keys.base import Evaluator, Expression, Scope
from rekey.declaration.keys.moments import Date, InvertedSeconds, InvertedTicks, Ticks
from rekey.declaration.migration import Index, Migration, Target, required_secrets
from rekey.errors import RowRefused
from rekey.inspect.columns import KeyColumn
from rekey.inspect.partitions import PartitionSizes, PartitionTally
from rekey.mapping.ids import SafeIds
from rekey.model import PARTITION_KEY, EntityKey, Row
from rekey.plan.result import Load, Portrait, TableFill

LARGEST = 8
LANES = 40
TIMES = 60
ALL_ROWS = 20_000
STRIDE = 8
MOST_CELLS = 60_000
LENGTH_STEP = 8
_STEPS = (13, 10, 7, 4)
"""Characters of ISO text: hours, days, months, years."""
_MOMENTS = (Date, Ticks, InvertedTicks, InvertedSeconds)
_SECRET = b"made up for counting only"
_PARTITION, _ROW = "PartitionKey", "RowKey"


class Portrayer:
    """Takes source rows with what they are mapped to (`take`), then gives portraits and loads."""

    def __init__(self, migration: Migration) -> None:
        """Take the declaration."""
        self._tables = (migration.source, *migration.tables)
        self._sizes = [PartitionSizes() for _ in self._tables]
        self._tallies = [PartitionTally() for _ in self._tables]
        moment = _moment_of((migration.target, *migration.indexes))
        secrets = dict.fromkeys(required_secrets(migration), _SECRET)
        self._moment = None if moment is None else moment.compile(Scope("load over time", secrets))
        self._cells = [_Cells() for _ in self._tables]
        self.rows = 0

    def take(self, row: Row, mapped: Sequence[tuple[int, Row]]) -> None:
        """Count one source row and its target rows."""
        self.rows += 1
        places = [(0, row[PARTITION_KEY]), *((1 + number, to[PARTITION_KEY]) for number, to in mapped)]
        for number, partition in places:
            self._sizes[number].add(partition)
            self._tallies[number].add(partition, 1)
        if self._moment is not None and (self.rows <= ALL_ROWS or self.rows % STRIDE == 0):
            self._note(self._moment, row, places)

    def portraits(
        self, ids: SafeIds, columns: Sequence[tuple[KeyColumn, KeyColumn]], fills: Sequence[TableFill]
    ) -> tuple[Portrait, ...]:
        """Return a portrait of each table, the source first.

        Args:
            ids: names partitions.
            columns: for each table, PartitionKeys and RowKeys as counted.
            fills: what each target table gets.
        """
        return tuple(
            Portrait(
                table=table,
                today=not number,
                rows=self.rows,
                sizes=self._sizes[number].by_class,
                largest=tuple(
                    (_lane_id(ids, table, partition), rows)
                    for partition, rows in self._tallies[number].top(LARGEST)
                ),
                lengths={
                    name: column.by_length(LENGTH_STEP)
                    for name, column in zip((_PARTITION, _ROW), columns[number], strict=True)
                },
                key_bytes=2 * sum(column.lengths.mean for column in columns[number]),
                fills=dict(sorted(fills[number - 1].fills.items())) if number else {},
            )
            for number, table in enumerate(self._tables)
        )

    def loads(self, ids: SafeIds) -> tuple[Load, ...]:
        """Return the source's and the main target's load over time; nothing where no key holds a moment."""
        if self._moment is None or not self._cells[0].counts:
            return ()
        source, main = self._cells[0], self._cells[1]
        step = min(source.step, main.step)
        times = _columns(source.times(step) | main.times(step))
        return tuple(
            cells.load(ids, table, times, today=cells is source)
            for cells, table in zip((source, main), self._tables[:2], strict=True)
        )

    def _note(self, moment: Evaluator, row: Row, places: Sequence[tuple[int, str]]) -> None:
        try:
            at = moment(row, "")
        except RowRefused:
            return
        for number, partition in places[:2]:
            self._cells[number].add(partition, at)


class _Cells:
    """Rows by partition and time."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._level = 0

    @property
    def step(self) -> int:
        """Return how many characters of a moment are kept."""
        return _STEPS[self._level]

    def add(self, partition: str, at: str) -> None:
        cell = partition, at[: self.step]
        if cell not in self.counts and len(self.counts) >= MOST_CELLS:
            if self._level == len(_STEPS) - 1:
                return
            self._level += 1
            coarser: Counter[tuple[str, str]] = Counter()
            for (name, time), rows in self.counts.items():
                coarser[name, time[: self.step]] += rows
            self.counts = coarser
            self.add(partition, at)
            return
        self.counts[cell] += 1

    def times(self, step: int) -> set[str]:
        """Return the times met, of at most so many characters."""
        return {time[:step] for _, time in self.counts}

    def load(self, ids: SafeIds, table: str, times: Sequence[str], *, today: bool) -> Load:
        """Return the load in columns of time, each beginning at one of `times`, all equally long."""
        step = len(times[0])
        column = {time: number for number, time in enumerate(times)}
        rows: dict[str, list[int]] = {}
        for (partition, time), count in self.counts.items():
            lane = rows.setdefault(partition, [0] * len(times))
            lane[column[time[:step]]] += count
        ordered = sorted(rows.items(), key=lambda one: (-sum(one[1]), one[0]))
        shown, rest = ordered[:LANES], ordered[LANES:]
        # In the order in which their load begins: a target by month runs down the picture like stairs.
        shown.sort(key=lambda one: next(at for at, count in enumerate(one[1]) if count))
        totals = [sum(lane[at] for lane in rows.values()) for at in range(len(times))]
        most = [max((lane[at] for lane in rows.values()), default=0) for at in range(len(times))]
        return Load(
            table=table,
            today=today,
            times=tuple(times),
            lanes=tuple((_lane_id(ids, table, name), tuple(lane)) for name, lane in shown),
            others=len(rest),
            others_rows=tuple(sum(lane[at] for _, lane in rest) for at in range(len(times))),
            busiest=tuple(top / total if total else 0.0 for top, total in zip(most, totals, strict=True)),
        )


def _columns(met: set[str]) -> list[str]:
    """Return the columns of time: the finest step of which there are few enough."""
    times = sorted(met)
    for step in _STEPS:
        columns = sorted({time[:step] for time in times})
        if len(columns) <= TIMES and len(times[0]) >= step:
            return columns
    return sorted({time[: _STEPS[-1]] for time in times})


def _moment_of(declared: Sequence[Target | Index]) -> Expression | None:
    """Return what the first moment in a key is made of, the PartitionKeys looked at first."""
    keys = [one.partition_key for one in declared] + [one.row_key for one in declared]
    for key in keys:
        for node in key.walk():
            if isinstance(node, _MOMENTS):
                return node.of
    return None


def _lane_id(ids: SafeIds, table: str, partition: str) -> str:
    return ids.short(table, EntityKey(partition, ""))
