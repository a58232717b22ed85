"""What simulated lives have in common, whatever their capture: small windows, and what is judged in the end.

What judges yields what is wrong, in words; nothing when all is right.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from rekey.core.limits import TARGET_ACCOUNT_SUFFIX
from rekey.core.safe_ids import SafeIds
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Migration
from rekey.errors import SealedUnreadable
from rekey.mapping.rows import MAPPING_TABLE, REVERSE, MappingRows, TargetKey
from rekey.mapping.sealing import ROOT, LocalWrappingKey, Sealer, ids_key, key_partition, read_data_key
from rekey.model import EntityKey, Row, key_of
from rekey.protocol.control import ControlRow
from rekey.protocol.replicas import inverse
from tests.fakes.memory import MemoryTable
from tests.worlds.projects import WRAPPING_KEY
from tests.worlds.small import contents, mapped


class Found(AssertionError):
    """Something is wrong; says the seed and what."""


def draw_limits(folder: Path, draw: random.Random) -> None:
    """Set small windows, and few calls at a time, in a project's configuration."""
    toml = folder / "rekey.toml"
    windows = draw.choice((3, 7, 20))
    text = toml.read_text("utf-8").replace("window_rows = 50", f"window_rows = {windows}\nconcurrency = 3")
    toml.write_text(text, "utf-8")


def elsewhere_or_not(script: str, seed: object) -> str:
    """Return a script as it is, or (drawn) with its main target in the account of targets, under the source's
    name or its own."""
    draw = random.Random(f"{seed} elsewhere")
    if draw.random() < 0.5:
        return script
    source, target = (
        re.findall(pattern, script)[0] for pattern in (r'source="(\w+)"', r'Target\(\s*"(\w+)"')
    )
    return script.replace(f'"{target}"', f'"{draw.choice((source, target))}{TARGET_ACCOUNT_SUFFIX}"')


def wrong_targets(
    mapper: Mapper, source: Iterable[Row], contents: Callable[[str], Mapping[EntityKey, Row]]
) -> Iterator[str]:
    """Compare every target with what the source rows give."""
    expected = mapped(mapper, source)
    for name, rows in expected.items():
        actual = contents(name)
        if extra := actual.keys() - rows.keys():
            yield f"{name} holds {sorted(extra)} which no source row gives"
        if missing := rows.keys() - actual.keys():
            yield f"{name} lacks {sorted(missing)}"
        if altered := [key for key in actual.keys() & rows.keys() if actual[key] != rows[key]]:
            yield f"{name} has other content in {altered}"


def main_rows(mapper: Mapper, rows: Mapping[EntityKey, Row]) -> dict[EntityKey, Row]:
    """Return those rows of the main target's table that are main rows."""
    return {key: row for key, row in rows.items() if not mapper.number_by_row_key(key.row)}


def standing_together(mapper: Mapper, target_row: Row) -> dict[EntityKey, Row]:
    """Return a main target row with the secondary rows of its partition that it gives, by their keys."""
    source = inverse(mapper, mapper.source_key(target_row), target_row, None)
    rows = [one.row for one in mapper.map(source) if one.table in mapper.co_located]
    return {key_of(row): row for row in rows if row["PartitionKey"] == target_row["PartitionKey"]} | {
        key_of(target_row): target_row
    }


class PairsWatch:
    """Looks at the table of main and secondary rows after every request that takes effect there.

    Attributes:
        wrong: what was found, in words: the rows of a partition that are not those which its main rows give.
        looks: how many times it looked.
        paused: the application writes both kinds itself now, in steps of its own.
    """

    def __init__(self, mapper: Mapper) -> None:
        self.wrong: list[str] = []
        self.looks = 0
        self.paused = False
        self._mapper = mapper

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look from now on, if the migration has secondary rows."""
        apply = MemoryTable._apply
        name = self._mapper.tables[0].lower()

        def applied(table: MemoryTable, action: str, operations: Any, prepared: Any) -> Any:
            etags = apply(table, action, operations, prepared)
            if table.name.lower() == name and not self.paused:
                self._look(table, f"{action} of {[(one.verb, *one.key) for one in operations]}")
            return etags

        with mock.patch.object(MemoryTable, "_apply", applied) if self._mapper.co_located else nullcontext():
            yield

    def _look(self, table: MemoryTable, what: str) -> None:
        self.looks += 1
        rows = contents(table._service.dump(table.name))
        there = {
            key for key, row in rows.items() if row.get("MainPartitionKey", key.partition) == key.partition
        }
        expected: dict[EntityKey, Row] = {}
        for row in main_rows(self._mapper, rows).values():
            expected |= standing_together(self._mapper, row)
        if expected != {key: rows[key] for key in there}:
            differing = [key for key in expected.keys() | there if expected.get(key) != rows.get(key)]
            self.wrong.append(
                f"after {what} these rows are not what their main rows say: {sorted(differing)}"
            )


def rows_of(control: ControlRow, migration: Migration, mapping: Iterable[Row]) -> MappingRows:
    """Return what reads the mapping rows of a migration, sealed or in the clear."""
    script_id, id_key, sealer = control.script_id, control.id_key, None
    if migration.is_sealed:
        wrapping, sealer = LocalWrappingKey(WRAPPING_KEY.encode()), Sealer()
        stand = [row for row in mapping if row["PartitionKey"] == key_partition(script_id)]
        keys = [read_data_key(script_id, row, wrapping) for row in stand]
        for key in keys:
            sealer.add(key)
        id_key = ids_key(next(key for key in keys if key.cohort == ROOT), id_key)
    return MappingRows(script_id, migration.source, migration.tables, SafeIds(id_key), sealer)


def wrong_mapping(
    mapper: Mapper, rows: MappingRows, mapping: Iterable[Row], source: Iterable[Row]
) -> Iterator[str]:
    """Check that every target row has its owner, and every owner lists it; where keys alone say so, that no
    mapping row is stored."""
    there = {key_of(row): row for row in mapping}
    if mapper.migration.inverse is not None:
        directions = {row["PartitionKey"].removeprefix(rows.script_id)[:3] for row in mapping}
        if stored := directions & {".f.", ".r.", ".i."}:
            yield f"mapping rows are stored: {sorted(stored)}"
        return
    for source_row in source:
        key = key_of(source_row)
        listed = there.get(rows.forward_key(key))
        targets = {TargetKey(number, *key_of(row)) for number, row in mapper.map(source_row)}
        if listed is None or not targets <= rows.read_forward(listed).targets:
            yield f"the mapping does not list all targets of {key}"
        for target in targets:
            owner = there.get(rows.reverse_key(target.key)) if target.table == 0 else None
            if target.table == 0 and (owner is None or rows.read_source(owner) != key):
                yield f"{target} is not owned by {key}"
    for row in there.values():
        if f"{rows.script_id}.i." in row["PartitionKey"]:
            # It does not say whose row stands there: a call that is refused may have claimed the key.
            key = EntityKey(*_target_of(rows, row))
            tables = [
                table for table in range(1, len(rows.tables)) if rows.reverse_key(key, table) == key_of(row)
            ]
            if not tables or not mapper.shared.issuperset(tables):
                yield f"the mapping claims {key}, which is no index key that two rows can have"


def left_of_other_runs(rows: MappingRows, mapping: Iterable[Row]) -> Iterator[str]:
    """Check that this run can have written every mapping row: what another one kept has other keys."""
    for row in mapping:
        direction = next((one for one in "fri" if f".{one}." in row["PartitionKey"]), "")
        if not direction:
            continue  # data keys
        try:
            source = rows.read_source(row)
        except SealedUnreadable:
            yield "the mapping holds a row that no data key opens"
            continue
        expected = rows.forward_key(source)
        if direction != "f":
            target, tables = EntityKey(*_target_of(rows, row)), range(len(rows.tables))
            there = tables[:1] if direction == "r" else tables[1:]
            expected = next(
                (key for n in there if (key := rows.reverse_key(target, n)) == key_of(row)), expected
            )
        if key_of(row) != expected:
            yield f"the mapping holds a row of another run, about {source}"


def _target_of(rows: MappingRows, row: Row) -> Sequence[str]:
    """Return the target key that a reverse row names, beside the source key."""
    if rows.sealer is None:
        return row["NewPartitionKey"], row["NewRowKey"]
    target = json.loads(rows.sealer.unseal(REVERSE, MAPPING_TABLE, row, lane=row["RowKey"][:1]))[1]
    return list(target)
