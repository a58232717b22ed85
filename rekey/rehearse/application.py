"""The application of a rehearsal: a small writer that keeps inserting, updating and deleting rows that the
mapping accepts. It knows nothing of the runner, and records what the source must hold; the witness compares
with that record."""

from __future__ import annotations

import base64
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from azure.data.tables import EdmType, EntityProperty, TableClient, UpdateMode

from rekey.client.sdk.client_sync import DualWriteTableClient
from rekey.client.sdk.errors import DualWriteRefused
from rekey.core.edm import BINARY, BOOLEAN, DOUBLE, INT32, INT64, STRING, canonical_text, edm_type
from rekey.core.joint import is_joint, own_row, place_of
from rekey.declaration.keys.base import WHOLE_ROW
from rekey.declaration.mapper import Mapper
from rekey.declaration.row_makers import TargetRow
from rekey.errors import RowRefused
from rekey.model import (
    PARTITION_KEY,
    ROW_KEY,
    TIMESTAMP,
    TYPE_SUFFIX,
    EntityKey,
    Row,
    content_of,
    key_of,
    property_names,
)
from rekey.rehearse.witness import Place, Witness, digest_of

# The property to add to a row that has none that can be changed.
ADDED = "RehearsalNote"
_TEXT_LIMIT = 500
_SOME_TIME = "2024-01-01T00:00:00.0000000Z"


def places_of(mapper: Mapper, row: Row) -> list[Place]:
    """Return the places of a source row's target rows; none if the mapping refuses the row, or it is not in
    the part that is migrated."""
    if not mapper.migration.has(key_of(row)):
        return []
    # Only the service sets Timestamp, and the mapping may need one.
    try:
        return [(table, key_of(target)) for table, target in mapper.map({TIMESTAMP: _SOME_TIME, **row})]
    except RowRefused:
        return []


class Application:
    """Writes rows in capture "delta", through the Azure SDK: to the source before cutover, to the targets
    under their new keys after it. Choices depend on the seed; what is written during a command, on the
    runner's progress."""

    def __init__(self, witness: Witness, seed: int) -> None:
        self._witness = witness
        self._mapper = witness.mapper
        self.source_name = witness.source_name
        self._source = witness.client(witness.source_name)
        self._targets: Mapping[str, TableClient] = {
            name: witness.client(name) for name in self._mapper.migration.table_names
        }
        # Rows to be inserted later.
        self.kept_back: list[Row] = []
        self._lot = random.Random(f"application/{seed}")  # noqa: S311 - repeatable choices
        self._owners: dict[Place, EntityKey] = {}
        # The digest of each row that the source must hold.
        self.must_hold: dict[EntityKey, bytes] = {}
        # Keys of rows not changed since they were loaded.
        self.untouched: dict[EntityKey, None] = {}
        # Target rows of source rows that were deleted before cutover.
        self.deleted: set[Place] = set()
        # Counts since `begin_counting`: `inserts`, `updates`, `deletes`, and writes refused in a freeze.
        self.done: Counter[str] = Counter()

    def loaded(self, row: Row) -> None:
        """Record a row that was loaded into the source; called once per key."""
        if not self._mapper.migration.has(key_of(row)):
            self._witness.beside[key_of(row)] = digest_of(row)
            return
        self._enter(row)
        if not self._mapper.is_dropped(row):
            self.untouched[key_of(row)] = None

    def begin_counting(self) -> None:
        self.done = Counter()

    def summary(self) -> str:
        """Return the counts in `done` as text, e.g. `12 inserts, 30 updates, 7 deletes`."""
        return ", ".join(f"{self.done[what]:,} {what}" for what in ("inserts", "updates", "deletes"))

    def _write(
        self,
        keys: Collection[EntityKey],
        insert: Callable[[Row], Row | None] | None,
        delete: Callable[[Row], None],
        replace: Callable[[Row, Row], bool],
    ) -> None:
        """Make a random write to a row of `keys`; an update is twice as likely as an insert or a delete.
        `insert` returns the row that the source must hold, None if it did not insert; `replace` tells whether
        it replaced."""
        what = self._lot.randrange(4)
        if what == 0 and self.kept_back and insert is not None:
            row = self.kept_back.pop()
            inserted = None if self._taken(row) else insert(row)
            if inserted is not None:
                self._enter(inserted)
                self.done["inserts"] += 1
        elif what == 1 and len(keys) > 1:
            if (chosen := self._choose(keys)) is not None:
                delete(chosen)
                self._leave(chosen)
        elif keys:
            self._update(self._choose(keys), replace)

    # --- before cutover ----------------------------------------------------------------------------------

    def write_source(self) -> None:
        """Make one write to the source."""
        self._write(self.must_hold, self._insert_in_source, self._delete_in_source, self._replace_in_source)

    def _insert_in_source(self, row: Row) -> Row:
        self._source.create_entity(to_entity(row))
        return row

    def _delete_in_source(self, row: Row) -> None:
        self._source.delete_entity(row[PARTITION_KEY], row[ROW_KEY])
        self.deleted.update(places_of(self._mapper, row))

    def _replace_in_source(self, _row: Row, changed: Row) -> bool:
        self._source.update_entity(to_entity(changed), mode=UpdateMode.REPLACE)
        return True

    # --- after cutover -----------------------------------------------------------------------------------

    @property
    def _writable(self) -> Collection[EntityKey]:
        """Keys of rows that can be written after cutover: those whose source row matches the target."""
        return self.untouched

    def write_target(self) -> None:
        """Make one write to the targets under the new keys, including index rows."""
        insert = None if self._mapper.needs_timestamp else self._insert_in_target

        def delete(row: Row) -> None:
            self._delete_in_target(self._mapper.map(row))

        self._write(self._writable, insert, delete, self._replace_in_target)

    def _insert_in_target(self, row: Row) -> Row | None:
        target_rows = self._mapper.map(row)
        try:
            # Rollback can only restore what the target row says of its source row.
            back = self._mapper.reverse(target_rows[0].row, self._mapper.source_key(target_rows[0].row), None)
            if self._mapper.map(back) != target_rows:
                return None
        except RowRefused:
            return None
        self._create_in_target(target_rows)
        return content_of(back)

    def _create_in_target(self, target_rows: Sequence[TargetRow]) -> None:
        for target_row in target_rows:
            client, entity = self._in_target(target_row)
            client.upsert_entity(entity, mode=UpdateMode.REPLACE)

    def _delete_in_target(self, target_rows: Sequence[TargetRow]) -> None:
        for target_row in target_rows:
            client, entity = self._in_target(target_row)
            client.delete_entity(entity[PARTITION_KEY], entity[ROW_KEY])

    def _in_target(self, target_row: TargetRow) -> tuple[TableClient, dict[str, Any]]:
        """Return the client of the table that holds a target row, and the row as an entity."""
        name, row = self._mapper.tables[target_row.table], target_row.row
        own, _ = place_of(name, key_of(row))
        return self._targets[own], to_entity(own_row(row) if is_joint(name) else row)

    def _replace_in_target(self, row: Row, changed: Row) -> bool:
        before, after = self._mapper.map(row), self._mapper.map(changed)
        if not self._comes_back(row, changed, before[0].row, after[0].row):
            return False
        stays = {(table, key_of(target)) for table, target in after}
        self._delete_in_target(
            [target_row for target_row in before if (target_row.table, key_of(target_row.row)) not in stays]
        )
        self._create_in_target(after)
        return True

    def _comes_back(self, row: Row, changed: Row, before: Row, after: Row) -> bool:
        """Tell whether a change alters the main target row, and reversing that row gives it again."""
        if (key_of(before), digest_of(before)) == (key_of(after), digest_of(after)):
            return False
        try:
            back = self._mapper.reverse(after, key_of(row), row)
        except RowRefused:
            return False
        return digest_of(back) == digest_of(changed)

    # --- the record of the source's rows -----------------------------------------------------------------

    def _enter(self, row: Row) -> None:
        key = key_of(row)
        self.must_hold[key] = digest_of(row)
        self.untouched.pop(key, None)
        for place in places_of(self._mapper, row):
            self._owners[place] = key
            self.deleted.discard(place)

    def _leave(self, row: Row) -> None:
        key = key_of(row)
        del self.must_hold[key]
        self.untouched.pop(key, None)
        self._release(row)
        self.done["deletes"] += 1

    def _update(self, row: Row | None, write: Callable[[Row, Row], bool]) -> None:
        """Write the first of a row's changes that can be written; `write` tells whether it wrote one."""
        if row is None:
            return
        for changed in self._changes(row):
            if not self._taken(changed, owner=key_of(row)) and write(row, changed):
                self._release(row)
                self._enter(changed)
                self.done["updates"] += 1
                return

    def _release(self, row: Row) -> None:
        for place in places_of(self._mapper, row):
            if self._owners.get(place) == key_of(row):
                del self._owners[place]

    def _choose(self, keys: Collection[EntityKey]) -> Row | None:
        row = self._witness.get(self.source_name, self._lot.choice(list(keys)))
        return None if row is None or self._mapper.is_dropped(row) else row

    def _taken(self, row: Row, owner: EntityKey | None = None) -> bool:
        """Tell whether a row cannot be written: the mapping refuses it, or its key or a target key is in use
        by a row other than `owner`, the one it replaces."""
        places = places_of(self._mapper, row)
        if not places or (owner is None and key_of(row) in self.must_hold):
            return True
        return any(self._owners.get(place, owner) != owner for place in places)

    def _changes(self, row: Row) -> Iterator[Row]:
        """Yield forms of a row that differ in one property, half of the time with key inputs first."""
        inputs = self._mapper.migration.key_inputs - {PARTITION_KEY, ROW_KEY, TIMESTAMP, WHOLE_ROW}
        content = content_of(row)
        if inputs and self._lot.random() < 0.5:
            other = self._choose(self.must_hold) or row
            for name in sorted(inputs & other.keys()):
                if other[name] != row.get(name):
                    own = (name, name + TYPE_SUFFIX)
                    rest = {field: value for field, value in content.items() if field not in own}
                    yield _with(rest, name, edm_type(other, name), other[name])
        names = sorted(set(property_names(row)) - inputs)
        self._lot.shuffle(names)
        yield from changed_by_one(content, names)


class LiveApplication(Application):
    """The application in capture "dual-write": it writes through rekey's clients, in the old view before
    cutover and in both views afterwards, and never stops. A write that a freeze delays is waited for."""

    def __init__(
        self, witness: Witness, seed: int, old: DualWriteTableClient, new: Mapping[str, DualWriteTableClient]
    ) -> None:
        """Create it. `new`: the clients of the new view, by their tables."""
        super().__init__(witness, seed)
        self.old = self._source = old
        self._targets = new
        # Longest duration of a write since `begin_counting`; reported, never a condition.
        self.longest_seconds = 0.0

    def begin_counting(self) -> None:
        super().begin_counting()
        self.longest_seconds = 0.0

    def write_source(self) -> None:
        """Make one write in the old view."""
        self._timed(super().write_source)
        # The targets were updated before the write was acknowledged, also for deletes.
        self.deleted.clear()

    def write_both(self) -> None:
        """Make one write: an update in the old view, or any write in the new view."""
        if self._lot.random() < 0.5:
            self._timed(lambda: self._update(self._choose(self.must_hold), self._replace_in_place))
        else:
            self.write_target()

    def write_target(self) -> None:
        """Make one write in the new view; the client updates index rows and the source."""
        self._timed(super().write_target)

    def _timed(self, write: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            write()
        except DualWriteRefused as refused:
            if not refused.retryable:
                raise
            self.done["refused for the length of the freeze"] += 1
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)

    @property
    def _writable(self) -> Collection[EntityKey]:
        # Replicas follow at once, so any row can be written in either view.
        return self.must_hold

    def _replace_in_place(self, row: Row, changed: Row) -> bool:
        before, after = places_of(self._mapper, row), places_of(self._mapper, changed)
        if after[:1] != before[:1] or self._refers_anew(row, changed):
            return False
        return self._replace_in_source(row, changed)

    def _refers_anew(self, row: Row, changed: Row) -> bool:
        """Tell whether a change refers to a row of another migration that nobody knows: clients refuse it."""
        if not self._mapper.looks_up:
            return False
        return self._mapper.changes_reference(self._mapper.map(changed)[0].row, self._mapper.map(row)[0].row)

    def _create_in_target(self, target_rows: Sequence[TargetRow]) -> None:
        client, entity = self._in_target(target_rows[0])
        client.create_entity(entity)

    def _delete_in_target(self, target_rows: Sequence[TargetRow]) -> None:
        super()._delete_in_target(target_rows[:1])

    def _replace_in_target(self, row: Row, changed: Row) -> bool:
        before, after = self._mapper.map(row)[0], self._mapper.map(changed)[0]
        # The client refuses a change of the new key in the new view.
        is_moved = key_of(before.row) != key_of(after.row)
        if is_moved or not self._comes_back(row, changed, before.row, after.row):
            return False
        client, entity = self._in_target(after)
        client.update_entity(entity, mode=UpdateMode.REPLACE)
        return True


# --- changes ----------------------------------------------------------------------------------------------


def changed_by_one(row: Row, names: Sequence[str]) -> Iterator[Row]:
    """Yield forms of a row, each with one of these properties changed; last one with `ADDED` added."""
    for name in names:
        if (edm := edm_type(row, name)) in _CHANGES:
            yield _with(row, name, edm, _CHANGES[edm](row[name]))
    if ADDED not in row:
        yield {**row, ADDED: "added"}


def _is_true(value: Any) -> bool:
    return canonical_text(BOOLEAN, value) == "true"


# Makes a slightly different value of an EDM type; other types are not changed.
_CHANGES: dict[str, Callable[[Any], Any]] = {
    STRING: lambda value: value + "~" if len(value) < _TEXT_LIMIT else value[:-1],
    INT32: lambda value: int(value) ^ 1,
    INT64: lambda value: str(int(value) ^ 1),
    BOOLEAN: lambda value: not _is_true(value),
    DOUBLE: lambda value: 2.5 if value == 1.5 else 1.5,
}
_FOR_THE_SDK: dict[str, Callable[[Any], Any]] = {BINARY: base64.b64decode, BOOLEAN: _is_true, INT64: int}


def to_entity(row: Row) -> dict[str, Any]:
    """Return a wire row as an entity of the SDK, with explicit types so that no value is converted."""
    entity: dict[str, Any] = {PARTITION_KEY: row[PARTITION_KEY], ROW_KEY: row[ROW_KEY]}
    for name in property_names(row):
        edm, value = edm_type(row, name), row[name]
        converted = _FOR_THE_SDK[edm](value) if edm in _FOR_THE_SDK else value
        entity[name] = EntityProperty(converted, EdmType(edm))
    return entity


def _with(row: Row, name: str, edm: str, value: Any) -> Row:
    changed = {**row, name: value}
    if name + TYPE_SUFFIX in changed or edm not in (STRING, INT32, BOOLEAN, DOUBLE):
        changed[name + TYPE_SUFFIX] = edm
    return changed
