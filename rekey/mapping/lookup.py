"""Looking keys up in two steps: `Lookup.find_all` finds mapping rows without decrypting them, and
`Lookup.open` decrypts them. The look-up is recorded between the two, before a legacy key is seen. Where the
mapping is computed, target rows stand for mapping rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rekey.core.joint import is_joint, joint_key, names_in, own_key, place_of, prefix_of
from rekey.core.plain import json_field
from rekey.core.safe_ids import SHORT_CHARACTERS
from rekey.declaration.targets import MAIN_PARTITION_KEY
from rekey.errors import Erased, TableMissing
from rekey.mapping.computed import ComputedMapping
from rekey.mapping.rows import pointer_of
from rekey.mapping.store import MappingStore
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row, key_of
from rekey.tables.base import TableService

# Stands for an id as the user typed it, which is never repeated: it may be a key, given by mistake.
UNKNOWN_ID = "the id that was given"
_KEYS = (PARTITION_KEY, ROW_KEY)


@dataclass(frozen=True, slots=True)
class Query:
    """One question: exactly one of the three fields is set."""

    old: EntityKey | None = field(default=None, repr=False)
    new: EntityKey | None = field(default=None, repr=False)
    safe_id: str | None = field(default=None, repr=False)

    @property
    def by(self) -> str:
        return "old" if self.old is not None else "new" if self.new is not None else "id"


@dataclass(frozen=True, slots=True)
class Matches:
    """The mapping rows found for a query, unopened, or the target rows where the mapping is computed.
    `digests`: full safe ids asked for; "" for an unknown one."""

    query: Query
    digests: tuple[str, ...]
    rows: tuple[Row, ...] = field(repr=False)

    @property
    def row_ids(self) -> tuple[str, ...]:
        """Safe ids of what was asked for, as people see them."""
        return tuple(dict.fromkeys(digest[:SHORT_CHARACTERS] or UNKNOWN_ID for digest in self.digests))


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """One source row and all keys it ever had in the targets."""

    row_id: str
    old: EntityKey = field(repr=False)
    new: tuple[tuple[str, EntityKey], ...] = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        return {
            "row_id": self.row_id,
            "old": {"partition_key": self.old.partition, "row_key": self.old.row},
            "new": [
                {"table": table, "partition_key": key.partition, "row_key": key.row}
                for table, key in self.new
            ],
        }


@dataclass(frozen=True, slots=True)
class ErasedRow:
    """A row that was erased."""

    # The safe id of what was asked for, or of its source row.
    row_id: str
    # The day on which it was erased.
    on: str = field(metadata=json_field("erased_on"))
    # It was put back: it is in the mapping again, although the audit log says that it was erased.
    returned: bool = False


class Lookup:
    """Answers queries about the keys of one migration."""

    def __init__(self, store: MappingStore, tables: TableService) -> None:
        self._store = store
        self._tables = tables
        self._erased: Mapping[str, str] = {}
        self._whole = ""

    def was_erased(self, rows: Mapping[str, str], cohorts: Mapping[str, str], whole: str) -> None:
        """Set the days of erasure from the audit log.

        Args:
            rows: by safe id of the source row.
            cohorts: of data keys, by cohort.
            whole: of a whole mapping in the clear, "" when it was not erased.
        """
        self._erased, self._whole = rows, whole
        if self._store.keyring is not None:
            self._store.keyring.gone = cohorts

    async def find_all(self, queries: Sequence[Query]) -> list[Matches]:
        """Find the mapping rows of each query; opens none."""
        return [await self._find(query) for query in queries]

    def source_of(self, row: Row) -> EntityKey:
        """Return the source key that a row of `Matches` names. Raises Erased, SealedUnreadable."""
        return self._store.rows.read_source(row)

    async def _find(self, query: Query) -> Matches:
        store = self._store
        if query.safe_id is not None:
            wanted, rows = query.safe_id.strip().lower(), list[Row]()
            # A shorter prefix would open many rows at once.
            if len(wanted) >= SHORT_CHARACTERS:
                rows = [*await store.lookup("f", wanted), *await store.lookup("r", wanted)]
            digests = tuple(dict.fromkeys(str(row[ROW_KEY]) for row in rows))
            return Matches(query, digests or ("",), tuple(rows))
        if query.old is not None:
            at = [store.rows.forward_key(query.old)]
            there = [await store.table.get(at[0])]
        else:
            at, there = await self._by_new(query.new or EntityKey("", ""))
        present = tuple(row for row in there if row is not None)
        return Matches(query, tuple(str(row[ROW_KEY]) for row in present) or (at[0].row,), present)

    async def open(self, matches: Matches) -> list[FoundKeys | ErasedRow]:
        """Open the mapping rows of a query, and return their keys, each source row once. Raises
        SealedUnreadable: a row cannot be opened, or its data key was shredded and put back."""
        store, answers = self._store, dict[EntityKey | str, FoundKeys | ErasedRow]()
        if not matches.rows and (on := await store.expired_on()):
            return [ErasedRow(row_id, on) for row_id in matches.row_ids]
        await store.learn(matches.rows)
        for row in matches.rows:
            try:
                key = store.rows.read_source(row)
                if key not in answers and (keys := await self._keys_of(key)) is not None:
                    answers[key] = keys
            except Erased as erased:
                row_id = str(row[ROW_KEY])[:SHORT_CHARACTERS]
                answers[row_id] = ErasedRow(row_id, erased.on)
        return list(answers.values())

    async def _by_new(self, key: EntityKey) -> tuple[list[EntityKey], list[Row | None]]:
        """Return the keys of the reverse rows that a key in a new table can have, and those rows: each table
        of a joint table can hold a row under it. A key may name the table, as pointers of index rows do."""
        store, main = self._store, self._store.rows.tables[0]
        keys = [key]
        if is_joint(main):
            keys = [joint_key(prefix_of(name), key) for name in names_in(main)]
            keys += [key] if own_key(key)[0] in names_in(main) else []
        at = [store.rows.reverse_key(each) for each in keys]
        there = [await store.table.get(each) for each in at]
        return at, there if any(there) else [await self._by_index(key)]

    async def _by_index(self, key: EntityKey) -> Row | None:
        """Return the reverse row of the main row that an index row under `key` points to, if any."""
        for name in self._store.rows.tables[1:]:
            try:
                row = await self._tables.table(name).get(key)
            except TableMissing:
                continue
            if row is not None and MAIN_PARTITION_KEY in row:
                reverse = await self._store.table.get(self._store.rows.reverse_key(pointer_of(row)))
                if reverse is not None:
                    return reverse
        return None

    async def _keys_of(self, source_key: EntityKey) -> FoundKeys | ErasedRow | None:
        forward = await self._store.forward(source_key)
        if forward is None:
            return None
        rows = self._store.rows
        row_id = rows.ids.short(rows.source, source_key)
        if on := self._erased.get(row_id, self._whole):
            return ErasedRow(row_id, on, returned=True)
        new = tuple(place_of(rows.tables[target.table], target.key) for target in sorted(forward.targets))
        return FoundKeys(row_id, source_key, new)


class ComputedLookup(Lookup):
    """Answers queries by the keys of the main target's rows, and by tombstones. A row that is not there is
    unknown."""

    def __init__(self, store: ComputedMapping, tables: TableService) -> None:
        super().__init__(store, tables)
        self._computed = store
        self._target = tables.table(store.rows.tables[0])

    async def find_all(self, queries: Sequence[Query]) -> list[Matches]:
        # Ids cannot be inverted: one scan of the target serves all of them.
        prefixes = {query: (query.safe_id or "").strip().lower() for query in queries}
        by_id = {prefix: list[Row]() for prefix in prefixes.values() if len(prefix) >= SHORT_CHARACTERS}
        with suppress(TableMissing):
            if by_id:
                await self._scan(by_id)
        matches = []
        for query in queries:
            named = await self._find(query)
            standing = by_id.get(prefixes[query], [])
            digests = tuple(dict.fromkeys([*filter(None, named.digests), *map(self._digest, standing)]))
            matches.append(Matches(query, digests or ("",), (*named.rows, *standing)))
        return matches

    def source_of(self, row: Row) -> EntityKey:
        self._store.rows.tombstones.refuse(row)
        source = self._computed.source_of(key_of(row))
        if source is None:
            raise ValueError("no source key maps to the row's key")
        return source

    async def open(self, matches: Matches) -> list[FoundKeys | ErasedRow]:
        answers: list[FoundKeys | ErasedRow] = []
        erased_on = ""
        for row in matches.rows:
            try:
                keys = await self._keys_of(self.source_of(row))
            except Erased as erased:
                erased_on = erased.on
            else:
                answers += [] if keys is None else [keys]
        if not erased_on:
            return answers
        stands = [answer.row_id for answer in answers]
        return [ErasedRow(each, erased_on, returned=each in stands) for each in stands or matches.row_ids[:1]]

    async def _find(self, query: Query) -> Matches:
        rows, target = self._store.rows, None
        if query.safe_id is not None:
            return await super()._find(query)  # tombstones
        if query.old is not None:
            at, target = rows.forward_key(query.old), self._computed.target_of(query.old)
        else:
            new = query.new or EntityKey("", "")
            at, target = rows.reverse_key(new), new if self._computed.source_of(new) is not None else None
        there = [await self._store.table.get(at)]
        with suppress(TableMissing):
            there += [] if target is None else [await self._target.get(target, select=_KEYS)]
        return Matches(query, (at.row,), tuple(row for row in there if row is not None))

    def _digest(self, row: Row) -> str:
        return self._store.rows.forward_key(self.source_of(row)).row

    async def _scan(self, by_id: Mapping[str, list[Row]]) -> None:
        rows = self._store.rows
        async for page in self._target.scan(select=_KEYS):
            for row in page.rows:
                if (source := self._computed.source_of(key_of(row))) is None:
                    continue
                digests = rows.forward_key(source).row, rows.reverse_key(key_of(row)).row
                for prefix, standing in by_id.items():
                    if any(digest.startswith(prefix) for digest in digests):
                        standing.append(row)


def lookup_of(store: MappingStore, tables: TableService) -> Lookup:
    """Return what answers queries about a migration."""
    return ComputedLookup(store, tables) if isinstance(store, ComputedMapping) else Lookup(store, tables)
