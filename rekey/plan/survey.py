"""Tries the mapping on source rows without writing: refusals, collisions, examples, fill of batches. Every
row is mapped by backfill's `Mapper`; advice, sizes, examples and plots come from a bounded sample."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import add, mul
from typing import Self, TypeVar

from rekey.copy.scan import row_bytes, window_of
from rekey.core.joint import is_joint, own_key
from rekey.core.limits import entity_bytes, utf16_units
from rekey.core.safe_ids import SafeIds, new_key
from rekey.core.spill import OverBound
from rekey.declaration.kinds import RowKind
from rekey.declaration.mapper import Mapper, TableRows
from rekey.declaration.row_makers import TargetRow
from rekey.declaration.targets import Index
from rekey.errors import RowRefused
from rekey.inspect.inventory import PARTS, PROBED, Inventory, Weights
from rekey.mapping.rows import MappingRows, TargetKey, target_key
from rekey.mapping.sealing import Sealer, new_data_key
from rekey.model import PARTITION_KEY, EntityKey, Row, key_of
from rekey.plan.absent import explained, named_properties
from rekey.plan.advice.gather import Gatherer
from rekey.plan.collisions import CollisionSearch
from rekey.plan.packing import Filled, Packing
from rekey.plan.portrait import Portrayer
from rekey.plan.result import Example, KindRows, MappingResult, NewKey, NotMigrated, RefusedRows
from rekey.plan.subject import PlanOptions, Subject
from rekey.tables.base import Operation, TableService, Verb
from rekey.tables.joint import opened

T = TypeVar("T")

EXAMPLES = 5
FIRST_ROWS = 20
MEASURED_ROWS = 500
# One of so many rows of a page is measured, for windows and batches.
SIZED = 50
# Bounds of the sample.
MOST_ROWS = 5_000
MOST_BYTES = 8 * 1024 * 1024
# So many target keys fit into a mapping row, however long they are and whatever they consist of.
_ALWAYS_LISTABLE = 30
# Partition of a mapping row by a byte of its id: 32 of each direction.
_FORWARD = bytes(byte >> 3 for byte in range(256))
_REVERSE = bytes(32 + (byte >> 3) for byte in range(256))


class RowSample:
    """Takes the rows of all pages (`take`) and keeps every n-th, in order. When there are too many every
    other one is dropped and n doubles: the sample is even, needs no count, and is repeatable."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._bytes = self._seen = 0
        self._every = 1

    def take(self, rows: Sequence[Row]) -> None:
        drawn = rows[-self._seen % self._every :: self._every]
        self._seen += len(rows)
        self.rows += drawn
        self._bytes += sum(map(row_bytes, drawn))
        while len(self.rows) > MOST_ROWS or (self._bytes > MOST_BYTES and len(self.rows) > 1):
            self.rows = self.rows[::2]
            self._bytes //= 2
            self._every *= 2

    def parts(self, inventory: Inventory) -> tuple[list[Row], list[Row]]:
        """Return the rows drawn of each part of the reading (`rekey.inspect.inventory.PARTS`)."""
        head = -(-inventory.head_rows // self._every)
        return self.rows[:head], self.rows[head:]

    def stored_bytes(self, inventory: Inventory) -> int:
        """Return the bytes that the service bills for all rows of the table."""
        means = [sum(map(entity_bytes, part)) / len(part) if part else 0.0 for part in self.parts(inventory)]
        weights = inventory.weights
        return round(weights.sum(mean * rows for mean, rows in zip(means, weights.read, strict=True)))


class Refusals:
    """Counts the rows that the mapping refuses, by reason, with the keys of the first ones."""

    def __init__(self) -> None:
        self._by_reason: dict[tuple[str, str], tuple[RowRefused, int, list[EntityKey]]] = {}

    def add(self, row: Row, refused: RowRefused) -> None:
        reason = refused.code, refused.field
        refusal, count, first = self._by_reason.get(reason, (refused, 0, []))
        self._by_reason[reason] = refusal, count + 1, first
        if len(first) < FIRST_ROWS:
            first.append(key_of(row))

    def by_frequency(self, row_id: Callable[[EntityKey], str], *, show_keys: bool) -> Iterator[RefusedRows]:
        """Yield the refusals by reason, the most frequent first."""
        for refused, count, first in sorted(self._by_reason.values(), key=lambda refusal: -refusal[1]):
            ids, keys = tuple(map(row_id, first)), tuple(first) if show_keys else None
            yield RefusedRows(refused.code, refused.field, refused.problem, refused.cure, count, ids, keys)


class MappedCounts:
    """Rows that were mapped, by part of the reading (`PARTS`).

    Attributes:
        tried: all source rows, refused ones included.
        source_rows: source rows that were mapped.
        target_rows: rows of each target table.
        kinds: source rows of each kind, by its name, refused ones included.
        dropped: source rows that are not migrated.
        first_dropped: the keys of the first of these.
    """

    def __init__(self, tables: int) -> None:
        self.tried = 0
        self.kinds: list[Counter[str]] = [Counter() for _ in PARTS]
        self.dropped = [0 for _ in PARTS]
        self.first_dropped: list[EntityKey] = []
        self.source_rows = [0 for _ in PARTS]
        self.target_rows = [[0] * tables for _ in PARTS]

    def add(self, part: int, source_rows: int, target_rows: Sequence[int]) -> None:
        self.source_rows[part] += source_rows
        self.target_rows[part] = list(map(add, self.target_rows[part], target_rows))

    def drop(self, part: int, keys: Sequence[EntityKey]) -> None:
        self.dropped[part] += len(keys)
        self.first_dropped += keys[: FIRST_ROWS - len(self.first_dropped)]


class BilledBytes:
    """Mean bytes of target and mapping rows as the service bills them, by part of the reading (`PARTS`)."""

    def __init__(self, subject: Subject, mapper: Mapper) -> None:
        migration, sealer = subject.declared.migration, None
        if migration.is_sealed:  # with a random key that is not kept: only sizes matter
            sealer = Sealer()
            sealer.use(new_data_key("0000-00"))
        self._mapping_rows = MappingRows(
            subject.declared.script_id, migration.source, mapper.tables, SafeIds(new_key()), sealer
        )
        self._tables = len(mapper.tables)
        self._stores_mapping = migration.inverse is None
        # Whether a source row can have more target rows than a mapping row lists.
        tables = [table for _, table in migration.declared_tables]
        has_each = any(isinstance(table, Index) and table.each is not None for table in tables)
        self._fans_out = self._stores_mapping and (has_each or len(tables) > _ALWAYS_LISTABLE)
        self._row_means: list[list[float]] = []
        self._mapping_means: list[float] = []

    def measure(self, mapped: Sequence[tuple[Row, Sequence[TargetRow]]]) -> None:
        """Measure the rows of the next part of the reading."""
        sizes: list[list[int]] = [[] for _ in range(self._tables)]
        for _, target_rows in mapped:
            for number, target in target_rows:
                sizes[number].append(entity_bytes(target))
        self._row_means.append(list(map(_mean, sizes)))
        self._mapping_means.append(_mean([*self._mapping_sizes(evenly(mapped, MEASURED_ROWS))]))

    def require_listable(
        self, targets: Sequence[TableRows], refused: Callable[[Row, RowRefused], None]
    ) -> None:
        """Call `refused` for each source row with more target rows than a mapping row can list."""
        if not self._fans_out:
            return
        counts = Counter(id(source) for target in targets for source in target.sources)
        many = {source for source, number in counts.items() if number > _ALWAYS_LISTABLE}
        if not many:
            return
        rows, listed = dict[int, Row](), defaultdict[int, list[TargetKey]](list)
        for number, target in enumerate(targets):
            for row, source in zip(*target, strict=True):
                if id(source) in many:
                    rows[id(source)] = source
                    listed[id(source)].append(target_key(number, row))
        for source_id, row in rows.items():
            try:
                self._mapping_rows.require_fits(key_of(row), listed[source_id])
            except RowRefused as error:
                refused(row, error)

    def _mapping_sizes(self, mapped: Sequence[tuple[Row, Sequence[TargetRow]]]) -> Iterator[int]:
        """Yield the bytes of the forward and the reverse mapping row of each source row."""
        for row, target_rows in mapped:
            with suppress(RowRefused):
                key, targets = key_of(row), [target_key(*target_row) for target_row in target_rows]
                forward = self._mapping_rows.forward_row(key, targets)
                reverse = self._mapping_rows.reverse_row(key, targets[0].key)
                yield entity_bytes(forward) + entity_bytes(reverse)

    def of_target(self, number: int, counts: MappedCounts, weights: Weights) -> int:
        """Return the bytes that the service will bill for the rows of a target table, by its number."""
        rows, means = counts.target_rows, self._row_means
        return round(weights.sum(means[part][number] * rows[part][number] for part in PARTS))

    def of_mapping(self, counts: MappedCounts, weights: Weights) -> int:
        """Return the bytes that the service will bill for the mapping rows of all source rows."""
        if not self._stores_mapping:
            return 0
        return round(weights.sum(map(mul, self._mapping_means, counts.source_rows)))


class Survey:
    """Takes source rows page by page (`take`) and keeps a plan's figures about them. A context manager."""

    def __init__(self, subject: Subject, mapper: Mapper, tables: TableService, options: PlanOptions) -> None:
        """No request is sent here. Raises MachineFailed when there is no place for temporary files."""
        self.subject, self.mapper, self.options = subject, mapper, options
        migration = subject.declared.migration
        self.counts = MappedCounts(len(mapper.tables))
        self.packing = Packing(len(mapper.tables), window_of(options.limits), mapper.co_located)
        self.gatherer = Gatherer(migration, mapper.map, prices=options.prices)
        self.portrayer = Portrayer(migration)
        self.bytes = BilledBytes(subject, mapper)
        # Names of the properties that rows of the sample have.
        self.present: set[str] = set()
        self._encoded_size = [opened(name, tables.table).encoded_size for name in mapper.tables]
        most_bytes = math.inf if options.most_disk is None else options.most_disk
        self._refusals, self._search = Refusals(), CollisionSearch(most_bytes=most_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self._search.__exit__(*ended)

    def needed_bytes(self, target_rows: float) -> int:
        """Return the bytes of temporary files that trying so many target rows takes."""
        return self._search.needed_bytes(target_rows)

    def require_room(self, rows: int) -> None:
        """Raise OverBound when trying a table of so many rows, by those taken, takes more than is allowed."""
        most, target_rows = self.options.most_disk, sum(map(sum, self.counts.target_rows))
        if most is not None and self.needed_bytes(rows * target_rows / max(1, self.counts.tried)) > most:
            raise OverBound

    def take(self, rows: Sequence[Row], part: int) -> None:
        """Map the rows of one page, which belongs to a part of the reading (`PARTS`)."""
        # Only the stretch from the table's beginning is packed: single pages make batches look emptier than
        # they get.
        if part == PROBED:
            self.packing.end(whole=False)
        for start in range(0, len(rows), self.packing.page_rows):
            self._take(rows[start : start + self.packing.page_rows], part)
        self.counts.tried += len(rows)

    def _take(self, rows: Sequence[Row], part: int) -> None:
        [targets] = self.mapper.map_tables(rows, self._refusals.add)
        mapped = targets[0].sources
        self.bytes.require_listable(targets, self._refusals.add)
        if self.mapper.migration.kinds:
            kinds = map(self.mapper.kind_of, rows)
            self.counts.kinds[part].update(kind.name for kind in kinds if kind is not None)
        if self.mapper.drops:
            self.counts.drop(part, [key_of(row) for row in rows if self.mapper.is_dropped(row)])
        digests, *_ = [self._search.take(number, *target) for number, target in enumerate(targets)]
        tables = [mapped, *(target.rows for target in targets)]
        today, *counts = [Counter([row[PARTITION_KEY] for row in table]) for table in tables]
        self.portrayer.count(part, tables, [today, *counts])
        self.counts.add(part, len(mapped), [len(target.rows) for target in targets])
        if self.packing.open:
            co_located, filled = self._rows_per_transaction(targets), []
            for number, (partitions, target) in enumerate(zip(counts, targets, strict=True)):
                sizes = [
                    self._encoded_size[number](Operation(Verb.INSERT, row)) for row in target.rows[::SIZED]
                ]
                unit = co_located if number in self.mapper.co_located else 1.0
                filled.append(Filled(partitions, _mean(sizes), unit))
            # Ids are digests, too: any digests show how mapping rows spread over 32 partitions a direction.
            joined = b"".join([digest[:2] for digest in digests])
            spread = Counter(joined[::2].translate(_FORWARD) + joined[1::2].translate(_REVERSE))
            wire_bytes = round(len(rows) * _mean(list(map(row_bytes, rows[::SIZED]))))
            self.packing.page(len(rows), wire_bytes, filled, Filled(spread))

    def _rows_per_transaction(self, targets: Sequence[TableRows]) -> float:
        """Return how many rows of the main target's table a source row gives one partition, on average."""
        partitions = Counter(
            (id(source), row[PARTITION_KEY])
            for number in self.mapper.co_located
            for row, source in zip(*targets[number], strict=True)
        )
        return _mean(list(partitions.values())) or 1.0

    def finish(self, sample: Sequence[Sequence[Row]], *, exact: bool) -> MappingResult:
        """End the survey: evaluate the sample, and find collisions among all rows taken.

        Args:
            sample: rows spread over those taken, of each part of the reading (`PARTS`).
            exact: every row of the source was taken.
        """
        self.packing.end(whole=exact)
        mappable: list[tuple[Row, Sequence[TargetRow]]] = []
        for rows in sample:
            self.present.update(*rows)
            mapped: list[tuple[Row, Sequence[TargetRow]]] = []
            for row, target_rows in self.mapper.map_all(rows, lambda *_: None):
                if not target_rows:  # not migrated
                    continue
                with suppress(RowRefused):
                    self.gatherer.take(row, target_rows)
                    mapped.append((row, target_rows))
            self.bytes.measure(mapped)
            mappable += mapped
        show_keys, sampled = self.options.show_keys, sum(map(len, sample))
        absent = self.absent if sampled else {}
        return MappingResult(
            mapped_rows=self.counts.tried,
            sampled_rows=sampled,
            examples=tuple(self._example(*entry) for entry in evenly(mappable, EXAMPLES)),
            collisions=self._search.finish(
                self.mapper.labels, self._row_id, exact=exact, show_keys=show_keys
            ),
            refused=tuple(
                explained(refused, self.counts.tried, absent, self.present)
                for refused in self._refusals.by_frequency(self._row_id, show_keys=show_keys)
            ),
        )

    def kinds(self, weights: Weights) -> tuple[KindRows, ...]:
        """Return the rows of each kind, as far as those read stand for the table."""
        migration, rows = self.mapper.migration, weights.merged(self.counts.kinds)
        joint = is_joint(migration.target.table)

        def described(kind: RowKind) -> str:
            where = f"{kind.target.table}: " if joint else ""
            return where + kind.when.describe()

        read = sum(self.counts.kinds, Counter[str]())
        return tuple(
            KindRows(kind.name, described(kind), round(rows.get(kind.name, 0)), read[kind.name])
            for kind in migration.kinds
        )

    def not_migrated(self, weights: Weights) -> NotMigrated | None:
        """Return the rows that the script drops, as `kinds` does; None if no row that was read is dropped."""
        drop, first, read = self.mapper.migration.dropped, self.counts.first_dropped, self.counts.dropped
        if drop is None or not first:
            return None
        shown = tuple(first) if self.options.show_keys else None
        rows = round(weights.sum(read))
        return NotMigrated(drop.reason, rows, sum(read), tuple(map(self._row_id, first)), shown)

    def _row_id(self, key: EntityKey) -> str:
        return self.subject.ids.short(self.subject.declared.migration.source, key)

    def _example(self, row: Row, target_rows: Sequence[TargetRow]) -> Example:
        shown, new_keys = self.options.show_keys, []
        for table, target in target_rows:
            key = key_of(target)
            name, label = self.mapper.tables[table], self.mapper.labels[table]
            row_id = self.subject.ids.short(name, key)
            if is_joint(name):
                label, key = own_key(key)
            units = utf16_units(key.partition), utf16_units(key.row)
            new_keys.append(NewKey(label, row_id, *units, key if shown else None))
        return Example(self._row_id(key_of(row)), key_of(row) if shown else None, tuple(new_keys))

    @property
    def absent(self) -> dict[str, str]:
        """The properties that the declaration names and no row of the sample has; and where."""
        named = named_properties(self.subject.declared.migration)
        return {name: where for name, where in named.items() if name not in self.present}


def evenly(values: Sequence[T], most: int) -> Sequence[T]:
    """Return at most `most` of the values, drawn evenly."""
    return values[:: -(-len(values) // most) or 1]


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
