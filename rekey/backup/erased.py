"""The rows that were erased from a completed migration: what an older export still holds of them is not
written again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from rekey.backup.begun import names_in
from rekey.core.concurrency import for_each
from rekey.core.joint import joint_key, joint_name, prefix_of
from rekey.core.safe_ids import SafeIds
from rekey.declaration.targets import MAIN_ROW_KEY
from rekey.errors import TableMissing
from rekey.mapping.rows import ERASED_ON, PROOF, MappingRows, is_tombstone, pointer_of
from rekey.mapping.sealing import ROOT, WrappingKey, ids_key
from rekey.mapping.store import Keyring, data_key_rows
from rekey.model import ROW_KEY, EntityKey, KeyRange, Row, key_of
from rekey.protocol.control import ControlRow
from rekey.state.audit import SUBJECTS, Erasures
from rekey.tables.base import Table

_PARTITIONS_AT_ONCE = 8


@dataclass(frozen=True)
class ErasedRows:
    """The erased rows of one migration."""

    rows: MappingRows = field(repr=False)
    # The keys of the mapping rows that are tombstones.
    buried: frozenset[EntityKey] = field(repr=False)
    # The safe ids of the source rows that the audit log says were erased: rows that no kind takes have no
    # mapping row, and an expired mapping in the clear has none either.
    recorded: frozenset[str]

    def hold(self, name: str, row: Row) -> bool:
        """Tell whether a row was erased. `name`: of its table, as the migration has it."""
        key, rows = key_of(row), self.rows
        if name == rows.source:
            return rows.forward_key(key) in self.buried or rows.ids.short(name, key) in self.recorded
        named = [joint_key(prefix_of(name), key)]
        if MAIN_ROW_KEY in row:
            named.append(pointer_of(row))
            if rows.reverse_key(named[-1]) in self.buried:
                return True
        if any(joint.reverse_key(main) in self.buried for joint in self._joint for main in named):
            return True
        return rows.reverse_key(key, rows.tables.index(name)) in self.buried

    @cached_property
    def _joint(self) -> list[MappingRows]:
        """The mapping rows of a migration whose kinds have the first two or more of these tables. The
        control row does not say which of its targets hold main rows."""
        tables = self.rows.tables
        return [
            replace(self.rows, tables=(joint_name(tables[:mains]),)) for mains in range(2, len(tables) + 1)
        ]


class Unerased:
    """Tells which rows may be written, and counts those that were erased."""

    def __init__(self, erased: Iterable[tuple[str, ErasedRows]]) -> None:
        """Create it. `erased`: a name of the table, and the erased rows of the migration that calls it so."""
        self._erased = tuple(erased)
        self.erased = 0

    def takes(self, row: Row) -> bool:
        for name, erased in self._erased:
            if erased.hold(name, row):
                self.erased += 1
                return False
        return True


def recorded_in(erasures: Erasures) -> frozenset[str]:
    """Return the safe ids of the rows that the audit log says were erased, or are being erased."""
    begun = (event.details for event in erasures.open if event.details["kind"] == SUBJECTS)
    return frozenset(erasures.rows).union(*(details["rows"] for details in begun))


async def erased_of(
    table: Table, control: ControlRow, *, wrapping: Callable[[], WrappingKey], recorded: frozenset[str]
) -> ErasedRows | None:
    """Return the erased rows of a migration; None: there are none, and nothing was opened.

    Args:
        table: the mapping table.
        control: the migration.
        wrapping: returns the wrapping key of its mapping, or raises SecretMissing.
        recorded: what `recorded_in` returns for it.

    Raises:
        SealedUnreadable: a tombstone is not by rekey.
        Moved, SecretMissing: the mapping is sealed, and its wrapping key is not there.
        ServiceError: the restricted store failed.
    """
    of = control.script_id, control.source, control.targets
    rows = MappingRows(*of, SafeIds(control.id_key))
    tombstones, keys = list[Row](), list[Row]()
    with suppress(TableMissing):
        tombstones = await _tombstones(table, rows)
        keys = await data_key_rows(table, control.script_id)
    if not tombstones and not recorded:
        return None
    if any(row[ROW_KEY] == ROOT for row in keys):
        keyring = Keyring(table, control.script_id, wrapping())
        await keyring.open()
        ids = SafeIds(ids_key(keyring.root, control.id_key))
        rows = MappingRows(*of, ids, keyring.sealer, keyring.tombstones)
    return _proved(rows, tombstones, recorded)


async def erased_in(table: Table, rows: MappingRows, recorded: frozenset[str]) -> ErasedRows:
    """Return the erased rows of a migration whose mapping is open; arguments and errors as of `erased_of`."""
    return _proved(rows, await _tombstones(table, rows), recorded)


async def erased_from(
    table: Table,
    controls: Iterable[ControlRow],
    places: Collection[tuple[str, str]],
    *,
    wrapping: Callable[[], WrappingKey],
    recorded: Callable[[str], frozenset[str]],
) -> list[tuple[str, ErasedRows]]:
    """Return the erased rows of each migration that has a table as its source or as a target, for `Unerased`.

    Args:
        table: the mapping table.
        controls: the migrations.
        places: names of the table within an account, each with the account's endpoint.
        wrapping: as of `erased_of`.
        recorded: returns what `recorded_in` does for a migration, by its id.

    Raises:
        SealedUnreadable, Moved, SecretMissing, ServiceError: as `erased_of`.
    """
    erased = list[tuple[str, ErasedRows]]()
    for control in controls:
        names = {each for name, endpoint in places for each in names_in(control, name, endpoint)}
        if names and (
            rows := await erased_of(table, control, wrapping=wrapping, recorded=recorded(control.script_id))
        ):
            erased += [(name, rows) for name in sorted(names)]
    return erased


def _proved(rows: MappingRows, tombstones: Iterable[Row], recorded: frozenset[str]) -> ErasedRows:
    """Return the rows that tombstones stand for. Raises SealedUnreadable: one is not by rekey."""
    buried = set[EntityKey]()
    for row in tombstones:
        # Who can write to the restricted store could otherwise keep any row from coming back.
        rows.tombstones.read(row)
        buried.add(key_of(row))
    return ErasedRows(rows, frozenset(buried), recorded)


async def _tombstones(table: Table, rows: MappingRows) -> list[Row]:
    tombstones: list[Row] = []

    async def read(partition: str) -> None:
        async for page in table.scan(KeyRange.of_rows(partition), select=[ERASED_ON, PROOF]):
            tombstones.extend(filter(is_tombstone, page.rows))

    await for_each(rows.all_partitions, read, limit=_PARTITIONS_AT_ONCE)
    return tombstones
