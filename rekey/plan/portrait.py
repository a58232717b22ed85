"""Figures for the plots of a plan: partitions, keys and batches of a table, its load over time. Pure.

Rules kept here:

* Portraits and loads name partitions by safe id and hold no key.
* Memory is bounded: partitions of all rows are counted by `PartitionTally` and `PartitionSizes`, times in a
  sample of the rows.
* Load over time is shown where a key of a target holds a moment: that moment is the time. The source is shown
  next to it, by the same moments. Rows that have none were refused and are not shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from rekey.declaration.keys.base import Scope
from rekey.declaration.migration import Migration, required_secrets
from rekey.errors import RowRefused
from rekey.inspect.partitions import PartitionSizes, PartitionTally
from rekey.inspect.profile import RowCounts
from rekey.mapping.ids import SafeIds
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row
from rekey.plan.advice.gather import MADE_UP_SECRET
from rekey.plan.advice.structure import MOMENTS
from rekey.plan.result import Load, Portrait, TableFill

LARGEST = 8
LANES = 40
TIMES = 60
LENGTH_STEP = 8
_STEPS = (13, 10, 7, 4)
"""Steps of time as lengths of ISO text: hours, days, months, years."""


class Portrayer:
    """Counts the partitions of all rows (`count`) and the times of a sample of them (`take`), then gives
    portraits and loads."""

    def __init__(self, migration: Migration) -> None:
        """Create empty counts for the source and the targets of a migration."""
        self._tables = (migration.source, *migration.tables)
        self._labels = (migration.source, *migration.labels)
        self.partitions = [PartitionTally() for _ in self._tables]
        """One for the source, then one for each target table; as are the sizes."""
        self.sizes = [PartitionSizes() for _ in self._tables]
        # The expression inside the first moment of any key; PartitionKeys are searched before RowKeys.
        keys = [one.partition_key for one in migration.filled] + [one.row_key for one in migration.filled]
        nodes = (node for key in keys for node in key.walk())
        moment = next((node.of for node in nodes if isinstance(node, MOMENTS)), None)
        secrets = dict.fromkeys(required_secrets(migration), MADE_UP_SECRET)
        self._moment = None if moment is None else moment.compile(Scope("load over time", secrets))
        self._cells = [_Cells(), _Cells()]
        self.rows = 0

    def count(self, partitions: Sequence[Mapping[str, int]]) -> None:
        """Count the rows of one page by partition: of the source, then of each target table."""
        self.rows += sum(partitions[0].values())
        for tally, sizes, rows in zip(self.partitions, self.sizes, partitions, strict=True):
            tally.add(rows)
            sizes.add(rows)

    def take(self, row: Row, mapped: Sequence[tuple[int, Row]]) -> None:
        """Look at one source row of the sample and its target rows."""
        if self._moment is None:
            return
        with suppress(RowRefused):
            at = self._moment(row, "")[: _STEPS[0]]
            for cells, one in zip(self._cells, (row, mapped[0][1]), strict=True):
                cells.counts[one[PARTITION_KEY], at] += 1

    def portraits(
        self, ids: SafeIds, counts: Sequence[RowCounts], fills: Sequence[TableFill]
    ) -> tuple[Portrait, ...]:
        """Return a portrait of each table, the source first.

        Args:
            ids: the safe ids that name partitions.
            counts: counts of each table's keys, the source first.
            fills: rows and batches of each target table.
        """
        return tuple(
            Portrait(
                table=self._labels[number],
                today=not number,
                rows=self.rows,
                sizes=self.sizes[number].by_class,
                largest=tuple(
                    (_lane_id(ids, table, partition), rows)
                    for partition, rows in self.partitions[number].top(LARGEST)
                ),
                lengths={
                    PARTITION_KEY: one.partition_keys.by_length(LENGTH_STEP),
                    ROW_KEY: one.row_keys.by_length(LENGTH_STEP),
                },
                key_bytes=2 * (one.partition_keys.lengths.mean + one.row_keys.lengths.mean),
                fills=dict(sorted(fills[number - 1].fills.items())) if number else {},
            )
            for number, (table, one) in enumerate(zip(self._tables, counts, strict=True))
        )

    def loads(self, ids: SafeIds) -> tuple[Load, ...]:
        """Return the source's and the main target's load over time; empty where no key holds a moment."""
        source, main = self._cells
        if not source.counts:
            return ()
        for step in _STEPS:
            times = sorted({time[:step] for _, time in (*source.counts, *main.counts)})
            if len(times) <= TIMES and len(times[0]) >= step:
                break  # the finest step of at most `TIMES` columns; years in any case
        return tuple(
            cells.load(ids, table, times, today=cells is source)
            for cells, table in zip((source, main), self._tables[:2], strict=True)
        )


class _Cells:
    """Number of rows by partition and time."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

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
        # Lanes by the beginning of their load: those of a target by month make stairs down the plot.
        shown.sort(key=lambda one: next(at for at, count in enumerate(one[1]) if count))
        return Load(
            table=table,
            today=today,
            times=tuple(times),
            lanes=tuple((_lane_id(ids, table, name), tuple(lane)) for name, lane in shown),
            others=len(rest),
            others_rows=tuple(sum(lane[at] for _, lane in rest) for at in range(len(times))),
            busiest=tuple(max(at) / sum(at) if any(at) else 0.0 for at in zip(*rows.values(), strict=True)),
        )


def _lane_id(ids: SafeIds, table: str, partition: str) -> str:
    return ids.short(table, EntityKey(partition, ""))
