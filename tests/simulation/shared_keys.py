"""What is checked of target keys that two source rows can have, while a life goes on.

* No two rows of the authority have a target key in common, at any moment.
* A write is refused as a collision only if at some moment of the call another row had one of its target keys,
  or a write for another source key had reserved it; and not for longer than a reservation lasts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from unittest import mock

from rekey.declaration.mapper import Mapper
from rekey.mapping.rows import MAPPING_TABLE, MappingRows, Reservation, TargetKey
from rekey.mapping.store import MARGIN_S
from rekey.model import ETAG, EntityKey, Row, content_of, key_of
from rekey.protocol.replicas import inverse
from rekey.protocol.rules import SOURCE, TARGET
from tests.fakes.memory import MemoryTable
from tests.simulation.witness import DELETE, MERGE, READ, UPSERT_MERGE, Do

_MERGES = (MERGE, UPSERT_MERGE)


@dataclass(eq=False)
class SharedKeysWatch:
    """Looks at the source and the main target after every request that takes effect there.

    Attributes:
        mapper: the declaration at work.
        side: where the authority is.
        now: the loop's time.
        rows: what reads mapping rows as they are now.
        wrong: what was found, in words.
        looks: how many times it looked.
        judged: how many refusals it judged.
        paused: nothing is carried to the source any more.
    """

    mapper: Mapper
    side: Callable[[], str]
    now: Callable[[], float] = lambda: 0.0
    rows: Callable[[], MappingRows | None] = lambda: None
    wrong: list[str] = field(default_factory=list)
    looks: int = 0
    judged: int = 0
    paused: bool = False
    _memo: dict[Any, frozenset[TargetKey]] = field(default_factory=dict)
    # What stood under a key of a table, and since when: rows of both sides, and mapping rows.
    _stood: dict[tuple[str, EntityKey], list[tuple[float, Row | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    # When a process was first refused because of a reservation.
    _refused: dict[tuple[object, EntityKey, Reservation], float] = field(default_factory=dict)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look from now on, if two rows can have a target key in common."""
        apply = MemoryTable._apply

        def applied(table: MemoryTable, action: str, operations: Any, prepared: Any) -> Any:
            etags = apply(table, action, operations, prepared)
            name = table.name.lower()
            if name in self._sides or name == MAPPING_TABLE:
                for key in {one.key for one in operations}:
                    stored = table._service.rows(table.name).rows.get(key.order)
                    row = None if stored is None else {**stored.content, ETAG: stored.etag}
                    self._stood[name, key].append((self.now(), row))
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

    # --- refusals ------------------------------------------------------------------------------------------

    def judge(self, process: object, step: Sequence[Do], side: str, began: float) -> None:
        """Judge the refusal of a call as a collision, which began then and is over.

        Args:
            process: whose call it was.
            step: what was to be done.
            side: the side whose keys it names.
            began: the loop's time.
        """
        self.judged += 1
        wanted = [(key, targets) for do in step for key, targets in self._wanted(do, side, began)]
        others = [name for name in self._stood if name[0] in self._sides]
        for key, targets in wanted:
            if any(other != key and targets & them for other, them in wanted):
                return  # two rows of the same call
            for name, at in others:
                for row in self._rows_since(name, at, began):
                    if row is not None and self._key(row, name) != key and targets & self._of(row, name):
                        return
        reserved = {one for key, targets in wanted for one in self._reserved(key, targets, began)}
        if not reserved:
            self.wrong.append(
                f"{[*map(str, step)]} was refused as a collision, and no other row had its keys"
            )
        if len(reserved) == 1:  # of several it is not known which one the process has looked at
            [(at, one)] = reserved
            first = self._refused.setdefault((process, at, one), self.now())
            if began > first + one.seconds + MARGIN_S:
                self.wrong.append(f"{[*map(str, step)]} was refused as a collision, and {one} was over")

    def _wanted(self, do: Do, side: str, began: float) -> Iterator[tuple[EntityKey, frozenset[TargetKey]]]:
        """The source key of an operation, and the target keys that its row may have had during the call."""
        if do.verb in (READ, DELETE):
            return
        name = next(name for name, one in self._sides.items() if one == side)
        there = [row for row in self._rows_since(name, key_of(do.row), began) if row is not None]
        rows = [{**row, **do.row} for row in there] if do.verb in _MERGES else []
        for row in [*rows, *([] if do.verb == MERGE else [do.row])]:
            yield self._key(row, name), self._of(row, name)

    def _key(self, row: Row, name: str) -> EntityKey:
        return key_of(row) if self._sides[name] == SOURCE else self.mapper.source_key(row)

    def _of(self, row: Row, name: str) -> frozenset[TargetKey]:
        """The target keys of a row that another row can have, too."""
        targets = self.targets(row, self._sides[name])
        return frozenset(target for target in targets if target.table in self.mapper.shared)

    def _reserved(
        self, key: EntityKey, targets: Iterable[TargetKey], began: float
    ) -> Iterator[tuple[EntityKey, Reservation]]:
        """The reservations of target keys for other source keys, at any moment since then, each with the key
        of its mapping row."""
        mapping = self.rows()
        for target in () if mapping is None else targets:
            at = mapping.reverse_key(target.key, target.table)
            for row in self._rows_since(MAPPING_TABLE, at, began):
                reserved = None if row is None else mapping.read_owner(row).reserved
                if reserved is not None and reserved.key != key:
                    yield at, reserved

    def _rows_since(self, name: str, key: EntityKey, began: float) -> list[Row | None]:
        """What has stood under a key since a moment, what stood there then included."""
        stood = self._stood.get((name, key), [])
        before = sum(moment < began for moment, _ in stood)
        return [row for _, row in stood[max(0, before - 1) :]]
