"""The data keys of one sealed migration: made, wrapped into the restricted store, and unwrapped once.

Rules kept here:

* One data key for each cohort: it is made by insert-if-absent, so the first writer of a month decides for
  all. A process unwraps each key once.
* The root key, of which safe ids and the seal of the state file are derived, is made before the control row.
  A migration that has begun without its root key is broken, and nothing is made up in its place.
* Waiting happens here and not in the codec: `fresh` before something is sealed, `learn` before something is
  opened. Both return at once when there is nothing to do, which is nearly always.
* A data key that was shredded is not made again: nothing is sealed in its month any more, and what it sealed
  is told to be erased. One that is said to be shredded and stands there again is not used.
* A wrapping key that is far away is asked on another thread: its client blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from rekey.errors import (
    Ambiguous,
    ConditionFailed,
    Refused,
    RowExists,
    RowMissing,
    SealedUnreadable,
    TableMissing,
    Unavailable,
)
from rekey.mapping.rows import MAPPING_TABLE, Cohort, Tombstones, cohorts, is_tombstone
from rekey.mapping.sealing import (
    DATA_KEY,
    ROOT,
    DataKey,
    Sealer,
    WrappingKey,
    cohort_in,
    cohort_of,
    data_key_row,
    key_partition,
    new_data_key,
    read_data_key,
    unreadable,
    within,
)
from rekey.model import EntityKey, Row, etag_of, key_of
from rekey.state.audit import utc_now
from rekey.tables.base import Table, TableService

_MAX_ROUNDS = 20


async def data_key_rows(table: Table, script_id: str) -> list[Row]:
    """Return what stands in the partition of a migration's data keys; nothing is opened."""
    return [row async for page in table.scan(within(key_partition(script_id))) for row in page.rows]


async def cohorts_kept(
    restricted: TableService, script_id: str, ended_at: str | None, *, sealed: bool, keep_s: float
) -> tuple[Cohort, ...]:
    """Return the cohorts of a completed migration, oldest first; nothing is opened.

    Args:
        restricted: the restricted account.
        script_id: the migration.
        ended_at: when it was completed, the service's time; None before, when there are none.
        sealed: whether its mapping is.
        keep_s: for how long cohorts are kept, in seconds.
    """
    if ended_at is None:
        return ()
    try:
        rows = await data_key_rows(restricted.table(MAPPING_TABLE), script_id)
    except TableMissing:
        return ()
    return cohorts(rows, sealed=sealed, completed_at=ended_at, keep_s=keep_s)


class Keyring:
    """The data keys of one migration. `begin` or `open` it before anything else."""

    def __init__(
        self, table: Table, script_id: str, wrapping: WrappingKey, *, now: Callable[[], datetime] = utc_now
    ) -> None:
        """Take the mapping table, the migration's id, what wraps, and this machine's clock, which is never
        wrong by a cohort's month."""
        self.table = table
        self.script_id = script_id
        self.sealer = Sealer()
        self.gone: Mapping[str, str] = {}
        """Cohorts that the audit log says were shredded, and on which day: their keys are not used, even if
        they are there again."""
        self._wrapping = wrapping
        self._now = now
        self._root: DataKey | None = None
        self._busy = asyncio.Lock()

    async def begin(self) -> None:
        """Make the root key if there is none, and open it. The mapping table must exist."""
        self._root = await self._made(ROOT)

    async def open(self) -> None:
        """Open the root key of a migration that has begun.

        Raises:
            SealedUnreadable: there is none.
            Moved: another wrapping key wrapped it.
        """
        if self._root is not None:
            return
        row = await self._row(ROOT)
        if row is None:
            raise SealedUnreadable(self.table.name, ROOT, "the root key of the migration is gone")
        self._root = await self._unwrapped(row)

    @property
    def root(self) -> DataKey:
        """The root key; `begin` or `open` comes first."""
        if self._root is None:
            raise RuntimeError("the keyring was not opened")
        return self._root

    @property
    def tombstones(self) -> Tombstones:
        """What makes and reads tombstones."""
        return Tombstones(self.table.name, self.root)

    async def fresh(self) -> None:
        """Have the data key of the present cohort, to seal with. Raises Refused when it was shredded."""
        cohort = cohort_of(self._now())
        if self.sealer.cohort == cohort:
            return
        async with self._busy:
            if self.sealer.cohort != cohort:
                self.sealer.use(await self._made(cohort))

    async def learn(self, rows: Iterable[Row]) -> None:
        """Have the data keys that rows are sealed with, to open them. One that is gone or shredded is told
        when a row is opened.

        Raises:
            SealedUnreadable: a data key that was shredded stands there again.
            Moved: a data key does not unwrap.
        """
        knows = self.sealer.knows
        wanted = {name for row in rows if isinstance(name := row.get(DATA_KEY), str) and not knows(name)}
        if not wanted:
            return
        async with self._busy:
            for cohort in sorted({cohort_in(name) for name in wanted if not knows(name)}):
                row = await self._row(cohort)
                if row is None:
                    continue
                if is_tombstone(row):
                    self.sealer.shredded(cohort, self.tombstones.read(row))
                elif cohort in self.gone:
                    said = f"it was shredded on {self.gone[cohort]}, and it was put back"
                    raise unreadable(self.table.name, key_of(row), said)
                else:
                    self.sealer.add(await self._unwrapped(row))

    async def rewrap(self) -> int:
        """Wrap the data keys anew that a previous wrapping key wrapped; return how many.

        Raises:
            Moved: a key is neither of the present wrapping key nor of the previous one.
        """
        renewed = 0
        for row in await data_key_rows(self.table, self.script_id):
            if is_tombstone(row) or self._wrapping.wraps(row.get("WrappedBy", "")):
                continue
            anew = await self._data_key_row(await self._unwrapped(row))
            try:
                await self.table.replace(anew, etag=etag_of(row))
            except ConditionFailed:
                continue  # another process did the same, or shredded it
            renewed += 1
        return renewed

    async def shred(self, cohort: str, on: str) -> bool:
        """Overwrite the data key of a cohort by a tombstone; False when there is none any more.

        Args:
            cohort: its month; never the root key.
            on: the day.
        """
        if cohort == ROOT:
            raise ValueError("the root key is never shredded: ids and tombstones hang on it")
        for _ in range(_MAX_ROUNDS):
            row = await self._row(cohort)
            if row is None:
                return False
            if is_tombstone(row):
                try:
                    self.tombstones.read(row)
                except SealedUnreadable:
                    pass  # not by rekey: ours takes its place
                else:
                    return False
            try:
                await self.table.replace(self.tombstones.make(key_of(row), on), etag=etag_of(row))
            except (ConditionFailed, RowMissing, Ambiguous):
                continue  # it was wrapped anew meanwhile, or that is not known
            return True
        raise Unavailable("the row of a data key kept changing", hint="run the same command again")

    async def forget(self) -> None:
        """Delete all data keys: nothing that they sealed can ever be opened again."""
        for row in await data_key_rows(self.table, self.script_id):
            await self.table.delete(key_of(row), etag="*")

    async def _row(self, cohort: str) -> Row | None:
        try:
            return await self.table.get(EntityKey(key_partition(self.script_id), cohort))
        except TableMissing:
            return None

    async def _made(self, cohort: str) -> DataKey:
        """Return the data key of a cohort; made if there is none."""
        row = await self._row(cohort)
        if row is None:
            made = new_data_key(cohort)
            fresh = await self._data_key_row(made)
            try:
                await self.table.insert(fresh)
            except (RowExists, Ambiguous):
                row = await self._row(cohort)
                if row is None:
                    raise
            else:
                return made
        if is_tombstone(row):
            on = self.tombstones.read(row)
            raise Refused(
                f"the data key of {cohort} was shredded on {on}: nothing is sealed in its place",
                kept="everything; nothing was written",
                hint=f"`rekey status {self.script_id}`: after `complete` nothing is written to the mapping"
                " any more; find out who still does",
            )
        return await self._unwrapped(row)

    async def _data_key_row(self, key: DataKey) -> Row:
        """Wrap a data key and return its row."""
        wrap = self._wrapping.wrap
        wrapped = await asyncio.to_thread(wrap, key.key) if self._wrapping.is_remote else wrap(key.key)
        return data_key_row(self.script_id, key, wrapped)

    async def _unwrapped(self, row: Row) -> DataKey:
        if self._wrapping.is_remote:
            return await asyncio.to_thread(read_data_key, self.script_id, row, self._wrapping)
        return read_data_key(self.script_id, row, self._wrapping)
