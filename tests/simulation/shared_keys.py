"""What is checked of target keys that two source rows can have, while a life goes on.

No two rows of the authority have a target key in common, at any moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from unittest import mock

from rekey.declaration.mapper import Mapper
from rekey.mapping.rows import TargetKey
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.protocol.replicas import inverse
from rekey.protocol.rules import SOURCE, TARGET
from tests.memory import MemoryTable


@dataclass(eq=False)
class SharedKeysWatch:
    """Looks at the source and the main target after every request that takes effect there.

    Attributes:
        mapper: the declaration at work.
        side: where the authority is.
        wrong: what was found, in words.
        looks: how many times it looked.
        paused: nothing is carried to the source any more.
    """

    mapper: Mapper
    side: Callable[[], str]
    wrong: list[str] = field(default_factory=list)
    looks: int = 0
    paused: bool = False
    _memo: dict[Any, frozenset[TargetKey]] = field(default_factory=dict)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look from now on, if two rows can have a target key in common."""
        apply = MemoryTable._apply

        def applied(table: MemoryTable, action: str, operations: Any, prepared: Any) -> Any:
            etags = apply(table, action, operations, prepared)
            if table.name.lower() in self._sides and not self.paused:
                self._look(table, f"{action} of {[(one.verb, *one.key) for one in operations]}")
            return etags

        with mock.patch.object(MemoryTable, "_apply", applied):
            yield

    @cached_property
    def _sides(self) -> dict[str, str]:
        return {self.mapper.migration.source.lower(): SOURCE, self.mapper.tables[0].lower(): TARGET}

    def _look(self, table: MemoryTable, what: str) -> None:
        self.looks += 1
        side = self._sides[table.name.lower()]
        holders: dict[TargetKey, set[EntityKey]] = defaultdict(set)
        for row in table._service.dump(table.name):
            key = key_of(row) if side == SOURCE else self.mapper.source_key(row)
            for target in self.targets(row, side):
                holders[target].add(key)
        for target, keys in holders.items():
            if len(keys) > 1 and side == self.side():
                self.wrong.append(f"after {what} rows {sorted(keys)} have target key {target} in common")

    def targets(self, row: Row, side: str) -> frozenset[TargetKey]:
        """Return the target keys of a row of the source or the main target."""
        memo = (side, tuple(sorted(content_of(row).items())))
        if memo not in self._memo:
            if side == TARGET:
                row = inverse(self.mapper, self.mapper.source_key(row), row, None)
            self._memo[memo] = frozenset(
                TargetKey(number, *key_of(made)) for number, made in self.mapper.map(row)
            )
        return self._memo[memo]
