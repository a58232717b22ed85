"""A key space: the keys of a part of a table, and the key ranges in which they are. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, KeyRange, Row


@dataclass(frozen=True)
class KeySpace:
    """The keys of a part of a table."""

    # Disjoint, in service order; together they hold every key of the part, perhaps others too.
    ranges: tuple[KeyRange, ...]
    # Tells whether a row, of which only the keys are read, is in the part.
    has: Callable[[Row], bool] = field(compare=False)

    def __contains__(self, key: EntityKey) -> bool:
        return self.has({PARTITION_KEY: key.partition, ROW_KEY: key.row})

    def within(self, within: KeyRange) -> Iterator[KeyRange]:
        """Yield what the ranges and `within` have in common, in service order."""
        for each in self.ranges:
            if (common := each.common(within)) is not None:
                yield common

    def is_within(self, other: KeySpace) -> bool:
        """Tell whether, provably, every key of this one is in a key range of the other."""
        return all(list(other.within(each)) == [each] for each in self.ranges)

    def is_apart_from(self, other: KeySpace) -> bool:
        """Tell whether, provably, no key is in both."""
        return not any(True for each in self.ranges for _ in other.within(each))
