"""Kinds of rows in a table, as far as rows show them: by how their keys begin (`U_`, `order:`), else by a
property that rows of one kind have and all others lack. Pure. Memory is bounded.

A beginning is letters up to a separator. It is reported only where many keys share it and few others are
beside it: first names begin keys as well, and are many. Words of a slug may be few, and a name may be very
frequent, so beginnings up to a hyphen, and beginnings among many others, count only where properties tell the
rows apart, too.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Generic, TypeAlias, TypeVar

from rekey.core.plain import json_field
from rekey.model import PARTITION_KEY, ROW_KEY, Row

MOST_KINDS = 12
# A kind, or what several kinds leave, has at least so many rows.
LEAST_ROWS = 10
# Beginnings of PartitionKeys are those of several partitions, or they would tell one key.
_LEAST_PARTITIONS = 2
# Where keys begin in more than `MOST_KINDS` ways, those count that begin so many keys, such a share of all
# keys, and so many times the keys of the most frequent other beginning.
_LEAST_AMONG_MANY, _SHARE_AMONG_MANY, _TIMES_THE_NEXT = 20, 0.05, 10
_BEGINNING = re.compile(r"[A-Za-z]{1,30}[_:|~-]")
# Different values that are counted at most; the rarest are forgotten.
_MOST_COUNTED = 1_000
# Steps of the search for properties that tell kinds apart.
_MOST_STEPS = 10_000
_OMIT_DEFAULT = json_field(omit_default=True)
_NOT_IN_NAMES = re.compile(r"[^0-9A-Za-z_-]")

Value = TypeVar("Value", bound=Hashable)
Names: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SeenKind:
    """Rows of a table that seem to be of one kind. What is "" says nothing about them; where all is, these
    are the rows that no other kind takes."""

    name: str
    rows: int  # of those read
    partition_prefix: str = field(default="", metadata=_OMIT_DEFAULT)
    row_prefix: str = field(default="", metadata=_OMIT_DEFAULT)
    has_property: str = field(default="", metadata=json_field("property", omit_default=True))


class _Frequent(Generic[Value]):
    """Counts values in bounded memory, by forgetting rare ones."""

    def __init__(self) -> None:
        self.counts: Counter[Value] = Counter()
        self.forgotten = 0

    def add(self, value: Value) -> None:
        self.counts[value] += 1
        if len(self.counts) > 2 * _MOST_COUNTED:
            kept = Counter(dict(self.counts.most_common(_MOST_COUNTED)))
            self.forgotten += self.counts.total() - kept.total()
            self.counts = kept


class KindCounts:
    """Counts rows by the beginnings of their keys and by their properties."""

    def __init__(self) -> None:
        self._rows: _Frequent[tuple[str, str, Names]] = _Frequent()
        self._partitions: _Frequent[str] = _Frequent()

    def add_partition(self, partition: str) -> None:
        self._partitions.add(_beginning(partition))

    def add(self, row: Row, names: Sequence[str]) -> None:
        """Count a row with these properties."""
        beginnings = _beginning(row[PARTITION_KEY]), _beginning(row[ROW_KEY])
        value = (*beginnings, tuple(names))
        # The order of properties in an answer means nothing, and is mostly the same.
        self._rows.add(value if value in self._rows.counts else (*beginnings, tuple(sorted(names))))

    @property
    def kinds(self) -> tuple[SeenKind, ...]:
        """The kinds that rows show, in the order in which a script tries them; none for rows of one kind."""
        by_row_key: Counter[str] = Counter()
        by_partition: Counter[str] = Counter()
        for (partition, row, _), count in self._rows.counts.items():
            by_row_key[row] += count
            by_partition[partition] += count
        row_prefixes = _telling(by_row_key, LEAST_ROWS)
        rows_by_prefix = {row: {"": names} for row, names in self._groups(set(), row_prefixes)[""].items()}
        are_many = len(set(by_row_key) - {""}) > MOST_KINDS
        row_prefixes -= {prefix for prefix in _twins(rows_by_prefix) if are_many or prefix.endswith("-")}
        partition_prefixes = {
            prefix
            for prefix in _telling(self._partitions.counts, _LEAST_PARTITIONS)
            if by_partition[prefix] >= LEAST_ROWS
        }
        groups = self._groups(partition_prefixes, row_prefixes)
        apart = partition_prefixes - _twins(groups)
        kinds = self._listed(self._groups(apart, row_prefixes))
        if len(kinds) > MOST_KINDS:
            kinds = self._listed(self._groups(set(), row_prefixes))
        large = [kind for kind in kinds if kind.rows >= LEAST_ROWS]
        return tuple(kinds) if len(large) > 1 else ()

    def _groups(self, partition_prefixes: set[str], row_prefixes: set[str]) -> _Groups:
        groups: _Groups = defaultdict(lambda: defaultdict(Counter))
        for (partition, row, names), count in self._rows.counts.items():
            begins = partition if partition in partition_prefixes else ""
            groups[begins][row if row in row_prefixes else ""][names] += count
        return groups

    def _listed(self, groups: _Groups) -> list[SeenKind]:
        kinds: list[SeenKind] = []
        # What is known of a row by less comes later.
        for partition in sorted(groups, key=lambda prefix: (not prefix, prefix)):
            for row in sorted(groups[partition], key=lambda prefix: (not prefix, prefix)):
                if partition or row:
                    rows = groups[partition][row].total()
                    kinds.append(SeenKind(_named(partition, row), rows, partition, row))
        rest = groups[""][""] if "" in groups else Counter[Names]()
        properties = [] if self._rows.forgotten else _telling_properties(rest)
        if len(kinds) + len(properties) > MOST_KINDS:
            properties = []
        for name in properties:
            rows = sum(count for names, count in rest.items() if name in names)
            kinds.append(SeenKind(_NOT_IN_NAMES.sub("-", name)[:50], rows, has_property=name))
        left = self._rows.forgotten + (0 if properties else rest.total())
        if left:
            kinds.append(SeenKind("other", left))
        return list(_distinct(kinds))


# Rows by the beginnings of PartitionKey and RowKey that tell kinds apart, then by their properties.
_Groups: TypeAlias = defaultdict[str, defaultdict[str, Counter[Names]]]


def _beginning(key: str) -> str:
    begins = _BEGINNING.match(key)
    return begins[0] if begins else ""


def _telling(counts: Mapping[str, int], least: int) -> set[str]:
    """Return the beginnings that so many keys share that they are structure, not content."""
    ordered = sorted(((count, prefix) for prefix, count in counts.items() if prefix), reverse=True)
    if len(ordered) <= MOST_KINDS:
        return {prefix for count, prefix in ordered if count >= least}
    bar = max(least, _LEAST_AMONG_MANY, _SHARE_AMONG_MANY * sum(counts.values()))
    for number in range(MOST_KINDS, 0, -1):
        fewest, following = ordered[number - 1][0], ordered[number][0]
        if fewest >= max(bar, _TIMES_THE_NEXT * following):
            return {prefix for _, prefix in ordered[:number]}
    return set()


def _twins(groups: Mapping[str, Mapping[str, Counter[Names]]]) -> set[str]:
    """Return the beginnings whose rows are like those of another, as those of tenants' PartitionKeys."""
    pairs = [pair for pair in combinations(groups, 2) if _are_alike(*(groups[each] for each in pair))]
    return {prefix for pair in pairs for prefix in pair}


def _are_alike(mine: Mapping[str, Counter[Names]], others: Mapping[str, Counter[Names]]) -> bool:
    """Tell whether rows of two groups have RowKeys that begin alike, and no property tells them apart."""
    mine_begin, others_begin = (
        {prefix for prefix, rows in group.items() if rows.total() >= LEAST_ROWS} for group in (mine, others)
    )
    if mine_begin.isdisjoint(others_begin):
        return False
    mine_all, mine_any = _properties_of(mine.values())
    others_all, others_any = _properties_of(others.values())
    return mine_all <= others_any and others_all <= mine_any


def _properties_of(groups: Iterable[Counter[Names]]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the properties that all rows have, and those that any row has."""
    schemas = [frozenset(names) for group in groups for names in group]
    return frozenset.intersection(*schemas), frozenset[str]().union(*schemas)


def _telling_properties(rows: Mapping[Names, int]) -> list[str]:
    """Return properties of which every row has exactly one, as many as there are; none if there are no two,
    as where properties are optional."""
    schemas, counts = list(rows), list(rows.values())
    # For each set of schemas (bits of an integer) that have some property, the name of one.
    by_schemas: dict[int, str] = {}
    for name in sorted({name for names in schemas for name in names}, key=_telling_order):
        having = sum(1 << at for at, names in enumerate(schemas) if name in names)
        if sum(count for at, count in enumerate(counts) if having >> at & 1) >= LEAST_ROWS:
            by_schemas.setdefault(having, name)
    everything = (1 << len(schemas)) - 1
    by_schemas.pop(everything, None)
    smallest_first = sorted(by_schemas, key=lambda having: (having.bit_count(), having))
    steps = iter(range(_MOST_STEPS))
    cover = _cover(smallest_first, everything, MOST_KINDS, steps) or []
    return [by_schemas[having] for having in cover]


def _cover(sets: Sequence[int], left: int, most: int, steps: Iterator[int]) -> list[int] | None:
    """Return disjoint sets, at most so many, that hold exactly what is left; None if there are none."""
    if not left:
        return []
    lowest = left & -left
    for each in sets:
        if not each & lowest or each & ~left or not most or next(steps, None) is None:
            continue
        if (others := _cover(sets, left & ~each, most - 1, steps)) is not None:
            return [each, *others]
    return None


def _telling_order(name: str) -> tuple[bool, str]:
    """An id says best what a row is."""
    return not name.lower().endswith("id"), name


def _named(*prefixes: str) -> str:
    return "-".join(prefix[:-1].lower() for prefix in prefixes if prefix)


def _distinct(kinds: Iterable[SeenKind]) -> Iterator[SeenKind]:
    """Yield the kinds, those of one name under names with numbers."""
    seen: Counter[str] = Counter()
    for kind in kinds:
        seen[kind.name.lower()] += 1
        number = seen[kind.name.lower()]
        yield (
            kind
            if number == 1
            else SeenKind(
                f"{kind.name}-{number}", kind.rows, kind.partition_prefix, kind.row_prefix, kind.has_property
            )
        )
