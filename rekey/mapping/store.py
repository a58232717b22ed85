"""The mapping table of one migration: its data keys, reading its rows, and claiming target keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from rekey import errors
from rekey.mapping.refusals import refusal
from rekey.mapping.rows import (
    ERASED_ON,
    MAPPING_TABLE,
    WHOLE,
    Cohort,
    Forward,
    MappingRows,
    Owner,
    Reservation,
    TargetKey,
    Tombstones,
    cohorts,
    is_tombstone,
    pointer_of,
    targets_of,
)
from rekey.mapping.sealing import (
    DATA_KEY,
    ROOT,
    DataKey,
    Sealer,
    WrappingKey,
    cohort_in,
    cohort_of,
    has_proof,
    key_partition,
    new_data_key,
    read_data_key,
    unreadable,
    wrap_data_key,
)
from rekey.model import ROW_KEY, EntityKey, KeyRange, Row, etag_of, key_of
from rekey.state.audit import utc_now
from rekey.tables.base import Page, Table, TableService

_MAX_ROUNDS = 50
# Seconds between two reads of a claim that another write has reserved.
_PAUSE_S = 0.05
# Seconds added to a reservation's: after that, an unknown outcome counts as over.
MARGIN_S = 5.0
# Most keys in each cache of mapping rows that a process has seen.
_REMEMBERED = 10_000

_Result = TypeVar("_Result")
_Value = TypeVar("_Value")

# Tells whether a source key's row exists now and maps to a target key.
StillOwns = Callable[[EntityKey, TargetKey], Awaitable[bool]]


def remember(memory: dict[EntityKey, _Value], key: EntityKey, value: _Value) -> None:
    """Put a value into a cache of bounded size; a full one is cleared first."""
    if len(memory) >= _REMEMBERED:
        memory.clear()
    memory[key] = value


async def data_key_rows(table: Table, script_id: str) -> list[Row]:
    """Return the rows in the partition of a migration's data keys; none is opened."""
    return [row async for page in table.scan(KeyRange.of_rows(key_partition(script_id))) for row in page.rows]


async def cohorts_kept(
    restricted: TableService, script_id: str, ended_at: str | None, *, sealed: bool, keep_s: float
) -> tuple[Cohort, ...]:
    """Return the cohorts of a completed migration, oldest first; no data key is opened.

    Args:
        restricted: the restricted account.
        ended_at: when it was completed, the service's time; None before: then there are no cohorts.
        sealed: whether its mapping is sealed.
        keep_s: the retention in seconds.
    """
    if ended_at is None:
        return ()
    try:
        rows = await data_key_rows(restricted.table(MAPPING_TABLE), script_id)
    except errors.TableMissing:
        return ()
    return cohorts(rows, sealed=sealed, completed_at=ended_at, keep_s=keep_s)


async def keys_gone_since(restricted: TableService, script_id: str) -> str:
    """Return the day on which the first data key of a sealed mapping was shredded, or on which the erasure of
    a whole mapping in the clear began; "" when neither happened. No tombstone is proved."""
    try:
        rows = await data_key_rows(restricted.table(MAPPING_TABLE), script_id)
    except errors.TableMissing:
        return ""
    return min((str(row[ERASED_ON]) for row in rows if is_tombstone(row)), default="")


def root_key_gone() -> errors.SealedUnreadable:
    """Return the error for a sealed migration without a root key."""
    return errors.SealedUnreadable(MAPPING_TABLE, ROOT, "the root key of the migration is gone")


class Keyring:
    """The data keys of one migration. Call `begin` or `open` before anything else."""

    def __init__(
        self, table: Table, script_id: str, wrapping: WrappingKey, *, now: Callable[[], datetime] = utc_now
    ) -> None:
        """Create the keyring; nothing is read yet. `now`: this machine's clock, never wrong by a cohort (a
        month)."""
        self.table = table
        self.script_id = script_id
        self.sealer = Sealer()
        # Cohorts that the audit log says were shredded, and on which day: rows are not opened with their data
        # keys, even if these exist again.
        self.gone: Mapping[str, str] = {}
        # Whether the root key is gone, and that of the keyring is stored nowhere.
        self.lacks_root = False
        self._wrapping = wrapping
        self._now = now
        self._root: DataKey | None = None
        self._busy = asyncio.Lock()

    async def begin(self) -> None:
        """Make the root key if there is none, and open it. The mapping table must exist."""
        self._root = await self._load_or_make(ROOT)

    async def open(self) -> None:
        """Open the root key of a migration that has begun.

        Raises:
            SealedUnreadable: there is none, and it is never made again.
            Moved: another wrapping key wrapped it.
        """
        if self._root is not None:
            return
        row = await self._row(ROOT)
        if row is None:
            raise root_key_gone()
        self._root = await self._unwrapped(row)

    def go_without(self) -> None:
        """Go on with a root key that is not stored, in place of one that is gone: for a rollback that deletes
        all that was sealed."""
        self._root, self.lacks_root = new_data_key(ROOT), True

    @property
    def root(self) -> DataKey:
        """The root key; call `begin` or `open` first."""
        if self._root is None:
            raise RuntimeError("the keyring was not opened")
        return self._root

    @property
    def tombstones(self) -> Tombstones:
        return Tombstones(self.table.name, self.root)

    async def fresh(self) -> None:
        """Load or make the present cohort's data key, to seal with. Raises Refused when it was shredded."""
        cohort = cohort_of(self._now())
        if self.sealer.cohort == cohort:
            return
        async with self._busy:
            if self.sealer.cohort != cohort:
                self.sealer.use(await self._load_or_make(cohort))

    async def learn(self, rows: Iterable[Row]) -> None:
        """Load the data keys that rows are sealed with, to open them. A missing or shredded one is raised
        only when a row is opened.

        Raises:
            SealedUnreadable: a shredded data key was put back, or rekey did not write the tombstone of one.
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
                    text = f"it was shredded on {self.gone[cohort]}, and it was put back"
                    raise unreadable(self.table.name, key_of(row), text)
                else:
                    self.sealer.add(await self._unwrapped(row))

    async def prove(self, check: Callable[[DataKey], None]) -> list[str]:
        """Write a proof for each data key that has none, and open the root key; return their cohorts. Data
        keys without a proof are trusted here, even if somebody planted them. `check` raises an error for a
        root key that is not the migration's.

        Raises:
            Moved: a proof is wrong, or a data key does not unwrap.
        """
        rows = await data_key_rows(self.table, self.script_id)
        without = [row for row in rows if not is_tombstone(row) and not has_proof(row, self._wrapping)]
        root_row = next((row for row in rows if row[ROW_KEY] == ROOT), None)
        if root_row is None or not without:
            await self.open()
            return []
        root = await self._with_wrapping(
            read_data_key, self.script_id, root_row, self._wrapping, proofless=True
        )
        check(root)
        # The root key last: until then nothing else accepts it, so an interrupted call is repeated.
        for row in sorted(without, key=lambda row: str(row[ROW_KEY]) == ROOT):
            under = None if row is root_row else root
            key = await self._with_wrapping(
                read_data_key, self.script_id, row, self._wrapping, under, proofless=True
            )
            with_proof = await self._with_wrapping(wrap_data_key, self.script_id, key, self._wrapping, under)
            await self.table.replace(with_proof, etag=etag_of(row))
        self._root = root
        return [str(row[ROW_KEY]) for row in without]

    async def rewrap(self) -> int:
        """Rewrap, with the present wrapping key, data keys that the previous one wrapped; return how many.
        Raises Moved: a key is neither of the present wrapping key nor of the previous one."""
        renewed = 0
        for row in await data_key_rows(self.table, self.script_id):
            if is_tombstone(row) or self._wrapping.wraps(row.get("WrappedBy", "")):
                continue
            anew = await self._data_key_row(await self._unwrapped(row))
            try:
                await self.table.replace(anew, etag=etag_of(row))
            except errors.ConditionFailed:
                continue  # another process did the same, or shredded it
            renewed += 1
        return renewed

    async def shred(self, cohort: str, on: str) -> bool:
        """Overwrite the data key of a cohort by a tombstone; False when there is no data key any more. `on`:
        the day. Raises ValueError for `ROOT`."""
        if cohort == ROOT:
            raise ValueError("the root key is never shredded: ids and tombstones hang on it")
        for _ in range(_MAX_ROUNDS):
            row = await self._row(cohort)
            if row is None:
                return False
            if is_tombstone(row):
                try:
                    self.tombstones.read(row)
                except errors.SealedUnreadable:
                    pass  # rekey did not write it: replace it
                else:
                    return False
            try:
                await self.table.replace(self.tombstones.make(key_of(row), on), etag=etag_of(row))
            except (errors.ConditionFailed, errors.RowMissing, errors.Ambiguous):
                continue  # rewrapped or deleted meanwhile, or unknown outcome: reread
            return True
        raise refusal("data-key-changing")

    async def forget(self) -> None:
        """Delete all data keys: nothing that they sealed can ever be opened again."""
        with suppress(errors.TableMissing):
            while rows := await data_key_rows(self.table, self.script_id):
                for row in rows:
                    # On its version: nobody waits for a delayed delete, and by then a new run may have a root
                    # key in its place.
                    with suppress(errors.ConditionFailed):  # rewrapped meanwhile
                        await self.table.delete(key_of(row), etag=etag_of(row))

    async def _row(self, cohort: str) -> Row | None:
        try:
            return await self.table.get(EntityKey(key_partition(self.script_id), cohort))
        except errors.TableMissing:
            return None

    async def _load_or_make(self, cohort: str) -> DataKey:
        """Return the data key of a cohort; make it if there is none. Raises Refused when it was shredded."""
        row = await self._row(cohort)
        if row is None:
            data_key = new_data_key(cohort)
            fresh = await self._data_key_row(data_key)
            try:
                # If absent: the first writer of a month decides for all.
                await self.table.insert(fresh)
            except (errors.RowExists, errors.Ambiguous):
                row = await self._row(cohort)
                if row is None:
                    raise
            else:
                return data_key
        if is_tombstone(row):
            on = self.tombstones.read(row)
            raise refusal("data-key-shredded", cohort=cohort, on=on, script=self.script_id)
        return await self._unwrapped(row)

    async def _data_key_row(self, key: DataKey) -> Row:
        root = None if key.cohort == ROOT else self.root
        return await self._with_wrapping(wrap_data_key, self.script_id, key, self._wrapping, root)

    async def _unwrapped(self, row: Row) -> DataKey:
        root = None if row[ROW_KEY] == ROOT else self.root
        return await self._with_wrapping(read_data_key, self.script_id, row, self._wrapping, root)

    async def _with_wrapping(self, work: Callable[..., _Result], *args: Any, **options: Any) -> _Result:
        """Call what may use the wrapping key, on another thread if it is remote, since its client blocks."""
        if self._wrapping.is_remote:
            return await asyncio.to_thread(work, *args, **options)
        return work(*args, **options)


@dataclass(eq=False)
class MappingStore:
    """Reads and extends the mapping rows of one migration."""

    table: Table
    rows: MappingRows
    # The data keys of sealed rows; None for a mapping in the clear.
    keyring: Keyring | None = None
    # For how many seconds a claim that another write has reserved is waited for before it counts as a
    # collision; infinite: until the reservation is over.
    patience_s: float = 0.0
    # Whether mapping rows say which keys belong together; else the keys do (`ComputedMapping`).
    is_stored: ClassVar[bool] = True
    # Reservations of other writes, and when each was first seen, in seconds of the loop's clock.
    # Of each reservation, by its mapping row's key: its key, and since when each of its writes was seen.
    _seen: dict[EntityKey, tuple[EntityKey, dict[str, float]]] = field(default_factory=dict, init=False)

    async def begin(self) -> None:
        """Prepare for the first rows of the targets, which are empty or this migration's."""

    async def disown(self) -> None:
        """Undo `begin`, before the targets are dropped."""

    async def fresh(self) -> None:
        if self.keyring is not None:
            await self.keyring.fresh()

    async def learn(self, rows: Iterable[Row]) -> None:
        if self.keyring is not None:
            await self.keyring.learn(rows)

    async def row_at(self, at: EntityKey) -> Row | None:
        """Return a row of the mapping, None when there is none; its data key is loaded."""
        row = await self.table.get(at)
        if row is not None:
            await self.learn((row,))
        return row

    async def forward(self, source_key: EntityKey) -> Forward | None:
        """Return the forward row of a source key, None when it was never copied. Raises Erased."""
        row = await self.row_at(self.rows.forward_key(source_key))
        return None if row is None else self.rows.read_forward(row)

    async def owner(self, target_key: EntityKey, table: int = 0) -> Owner | None:
        """Return the owner of a key of target number `table`, None when it is not claimed. Raises Erased."""
        row = await self.row_at(self.rows.reverse_key(target_key, table))
        return None if row is None else self.rows.read_owner(row)

    async def owns(self, table: int, row: Row) -> bool:
        """Tell whether this migration wrote `row`, of its target table number `table` (0: main)."""
        try:
            return await self.owner(pointer_of(row) if table else key_of(row)) is not None
        except errors.Erased:
            return True
        except errors.TableMissing:
            return False

    async def expired_on(self) -> str:
        """Return the day on which the erasure of a whole mapping in the clear began, "" when it has not.
        Raises SealedUnreadable: rekey did not write the tombstone that says so."""
        if self.keyring is not None:
            return ""
        row = await self.table.get(EntityKey(key_partition(self.rows.script_id), WHOLE))
        return "" if row is None or not is_tombstone(row) else self.rows.tombstones.read(row)

    async def claim(
        self,
        source_key: EntityKey,
        forward: Forward | None,
        targets: Iterable[TargetKey],
        still_owns: StillOwns,
    ) -> None:
        """Claim target keys for a source key: reverse rows first, then the forward row. Afterwards the caller
        rereads the forward row, which another writer may have extended meanwhile.

        Args:
            source_key: the claimant.
            forward: its forward row as read, None when there was none.
            targets: the target keys it is about to be written under.
            still_owns: called for the present owner of a main target key.

        Raises:
            Collision: a main target key belongs to another source row that exists and maps to it.
            RowRefused: more target keys than one forward row can list.
        """
        wanted = frozenset(targets)
        for target in sorted(wanted):
            if target.table == 0:
                await self.claim_main(source_key, target, still_owns)
        await self.extend(source_key, forward, wanted)

    async def extend(
        self, source_key: EntityKey, forward: Forward | None, targets: Iterable[TargetKey]
    ) -> Forward | None:
        """Add target keys to the forward row of a source key; keep its reservation. Otherwise as
        `reserve`."""
        return await self.reserve(source_key, forward, targets, forward.reserved if forward else None)

    async def reserve(
        self,
        source_key: EntityKey,
        forward: Forward | None,
        targets: Iterable[TargetKey],
        reserved: Reservation | None,
    ) -> Forward | None:
        """Add target keys to the forward row of a source key as read (None: there was none), and set its
        reservation. Return the row as written; None when another writer changed it meanwhile, or the outcome
        is unknown: reread it then. Raises RowRefused: more target keys than one forward row can list."""
        listed = frozenset(targets) | targets_of(forward)
        await self.fresh()
        row = self.rows.forward_row(source_key, listed, reserved)
        try:
            if forward is None:
                etag = await self.table.insert(row)
            else:
                etag = await self.table.replace(row, etag=forward.etag)
        except (errors.RowExists, errors.RowMissing, errors.ConditionFailed, errors.Ambiguous):
            return None
        return Forward(source_key, listed, etag, reserved)

    async def claim_main(self, source_key: EntityKey, target: TargetKey, still_owns: StillOwns) -> None:
        """Make a source key the owner of a main target key. Raises Collision, Erased, Unavailable."""
        for _ in range(_MAX_ROUNDS):
            owner = await self.unreserved(source_key, target)
            if owner is not None and owner.source == source_key:
                return
            await self.require_free(source_key, target, owner, still_owns)
            reserved = None if owner is None else owner.reserved
            ours = reserved if reserved is not None and reserved.key == source_key else None
            if await self.take(source_key, target, owner, ours):
                return
        raise self.kept_changing()

    async def take(
        self,
        source_key: EntityKey,
        target: TargetKey,
        owner: Owner | None,
        reserved: Reservation | None = None,
    ) -> Owner | None:
        """Write the claim of a target key, on the condition of the claim `owner` as read (None: there was
        none). Return the claim as written; None when it changed meanwhile, or the outcome is unknown."""
        await self.fresh()
        row = self.rows.reverse_row(source_key, target.key, target.table, reserved)
        try:
            # Recorded before the claim passes: cutover rereads the rows of both source keys.
            if owner is not None and owner.source != source_key:
                await self.table.upsert(self.rows.passed_row(target, owner.source))
            if owner is None:
                etag = await self.table.insert(row)
            else:
                etag = await self.table.replace(row, etag=owner.etag)
        except (errors.RowExists, errors.RowMissing, errors.ConditionFailed, errors.Ambiguous):
            return None
        return Owner(source_key, etag, reserved)

    async def unreserved(self, source_key: EntityKey, target: TargetKey) -> Owner | None:
        """Return the claim of a target key when no write for another source key is creating a row under it.

        Raises:
            Collision: one still is, after `patience_s`.
            Erased: the key was erased.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.patience_s
        while True:
            owner = await self.owner(target.key, target.table)
            reserved = None if owner is None else owner.reserved
            if reserved is None or reserved.key == source_key:
                return owner
            if self.is_over(self.rows.reverse_key(target.key, target.table), reserved):
                return owner
            if loop.time() >= ends:
                raise self.collision(target, reserved.key, source_key)
            await asyncio.sleep(_PAUSE_S)

    async def require_free(
        self, source_key: EntityKey, target: TargetKey, owner: Owner | None, still_owns: StillOwns
    ) -> None:
        """Raise Collision when a row of another source key, which the claim names, maps to a target key."""
        for other in () if owner is None else owner.claimants:
            if other != source_key and await still_owns(other, target):
                raise self.collision(target, other, source_key)

    def is_over(self, at: EntityKey, reserved: Reservation) -> bool:
        """Tell whether no write of a reservation can take effect any more: each was seen in it for so long
        that even a delayed request has been applied or never will be. `at`: the key of its mapping row."""
        # Counted for each write, since writes that join a killed one's reservation must not prolong it.
        now = asyncio.get_running_loop().time()
        key, before = self._seen.get(at, (reserved.key, {}))
        since = {
            writer: before.get(writer, now) if key == reserved.key else now for writer in reserved.writers
        }
        remember(self._seen, at, (reserved.key, since))
        return now - max(since.values()) > reserved.seconds + MARGIN_S

    @staticmethod
    def kept_changing() -> errors.RekeyError:
        return refusal("row-changing")

    def collision(self, target: TargetKey, first: EntityKey, second: EntityKey) -> errors.Collision:
        ids, source = self.rows.ids, self.rows.source
        return errors.Collision(
            self.rows.tables[target.table], ids.short(source, first), ids.short(source, second)
        )

    async def scan(self, direction: str) -> AsyncIterator[Page]:
        for partition in self.rows.partitions(direction):
            async for page in self.table.scan(KeyRange.of_rows(partition)):
                await self.learn(page.rows)
                yield page

    async def passed(self, since: str) -> AsyncIterator[tuple[TargetKey, EntityKey, EntityKey]]:
        """Iterate over the claims that passed to another source key since a time of the service: target key,
        former owner, present owner. A claim whose mapping rows are gone or erased is left out."""
        bounds = KeyRange.of_rows(self.rows.passed_partition)
        async for page in self.table.scan(bounds, modified_from=since):
            for row in page.rows:
                reverse_at, forward_at = self.rows.read_passed(row)
                reverse, forward = await self.row_at(reverse_at), await self.row_at(forward_at)
                if reverse is None or forward is None:
                    continue
                try:
                    owner, former = self.rows.read_owner(reverse), self.rows.read_forward(forward)
                except errors.Erased:
                    continue
                now = await self.forward(owner.source)
                listed = former.targets | targets_of(now)
                for target in listed:
                    if self.rows.reverse_key(target.key, target.table) == reverse_at:
                        yield target, former.source, owner.source

    async def former_owners(self, target: TargetKey) -> list[Forward]:
        """Return the forward rows of the source keys that a target key's claim has passed on from, without
        erased ones."""
        owners = []
        async for page in self.table.scan(self.rows.passed_range(target)):
            for row in page.rows:
                forward = await self.row_at(self.rows.read_passed(row)[1])
                with suppress(errors.Erased):
                    owners += [] if forward is None else [self.rows.read_forward(forward)]
        return owners

    async def lookup(self, direction: str, prefix: str) -> list[Row]:
        """Return the mapping rows of a direction whose digest starts with `prefix` (a safe id)."""
        if not prefix:
            return []
        partition = f"{self.rows.script_id}.{direction}.{prefix[0]}"
        bounds = KeyRange(EntityKey(partition, prefix[:-1]), EntityKey(partition, prefix + "\uffff"))
        pages = self.table.scan(bounds)
        return [row async for page in pages for row in page.rows if row["RowKey"].startswith(prefix)]
