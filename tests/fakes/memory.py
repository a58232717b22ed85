"""Tables in memory, with the service's exact semantics, seeded faults and a clock of their own: the other
implementation of `rekey.tables.base`.

Rules kept here:

* Everything `rekey.tables.base` promises, plus what Azurite does not check: sizes, names, the 40 seconds in
  which a deleted table still refuses, pages that are empty although rows follow.
* Every effect is atomic between two awaits. Each call awaits exactly one `gate` before its effect, so a
  scheduler that owns the gate owns every interleaving.
* ETags are opaque and change with every write of a row, also across delete and insert. Timestamps have
  100 ns and rise per row; rows written in one moment share one, as on the service.
* A read row is a copy: changing it changes nothing here.
* Where Azurite and Azure Storage differ, a `Mood` says like which (tests/unit/tables/test_service_facts.py).
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import unquote

from rekey.core.clock import TICKS_PER_SECOND, Clock, SystemClock, format_ticks, ticks_of
from rekey.core.edm import DATETIME
from rekey.core.joint import is_joint, joint_row, names_in, prefix_of
from rekey.core.limits import own_name
from rekey.errors import (
    Ambiguous,
    ConditionFailed,
    RequestRejected,
    RowExists,
    RowMissing,
    ServiceError,
    TableBeingDeleted,
    TableMissing,
)
from rekey.model import (
    ETAG,
    EVERYTHING,
    PARTITION_KEY,
    ROW_KEY,
    TIMESTAMP,
    TYPE_SUFFIX,
    EntityKey,
    KeyRange,
    Row,
    key_of,
)
from rekey.tables import allowance
from rekey.tables.base import (
    MAX_BATCH_BYTES,
    MAX_PAGE_ROWS,
    SIGNED_S,
    Operation,
    Page,
    Table,
    Verb,
)
from rekey.tables.rules import (
    check_batch,
    check_key_part,
    check_table_name,
    too_large,
)
from rekey.tables.sent import OPERATIONS, RequestKind, Sent
from rekey.tables.wire import Encoder
from tests.fakes.faults import Call, Fault, FaultKind, Faults, NoFaults
from tests.fakes.service_limits import stored_form, stored_merge

Gate = Callable[[Call], Awaitable[None]]


class Mood(Enum):
    """Like which service the tables answer where two differ.

    AZURITE: fractions of a second have 7 digits; every error of a transaction names the operation.
    STORAGE: fractions of Timestamps, ETags and DateTimes have no trailing zeros; an error of a transaction of
        one operation names it for a missing table alone. (Of 409 there is no recording: it is taken to be
        like 404 and 412.)
    DECODES_TWICE: like AZURITE, and the address of a row is decoded twice, as Microsoft documented for the
        Table service and gateways do: `a%25b` is read and written as `a%b`. Queries and transactions are not
        affected.
    """

    AZURITE = "azurite"
    STORAGE = "storage"
    DECODES_TWICE = "decodes-twice"

    def addressed(self, key: EntityKey) -> EntityKey:
        """Return the key that is read and written at the address of a key."""
        return EntityKey(unquote(key.partition), unquote(key.row)) if self is Mood.DECODES_TWICE else key


def unpadded(moment: str) -> str:
    """Return a UTC time without the trailing zeros of its fraction."""
    return moment[:-1].rstrip("0").rstrip(".") + "Z" if "." in moment else moment


@lru_cache(maxsize=65_536)
def _formatted(ticks: int, mood: Mood) -> str:
    """Return a Timestamp. It is read far more often than it changes."""
    return unpadded(format_ticks(ticks)) if mood is Mood.STORAGE else format_ticks(ticks)


Order: TypeAlias = tuple[bytes, bytes]
"""`EntityKey.order`: where a row stands."""


@dataclass(slots=True)
class StoredRow:
    """One row at rest: content in the service's form and the tick of its last write."""

    content: Row
    ticks: int
    mood: Mood

    @property
    def timestamp(self) -> str:
        """When it was written last."""
        return _formatted(self.ticks, self.mood)

    @property
    def etag(self) -> str:
        """Its version."""
        return f"W/\"datetime'{self.timestamp.replace(':', '%3A')}'\""

    def as_read(self, select: Sequence[str] | None) -> Row:
        """Return a copy as the service gives it; of the properties, only the selected ones."""
        row: Row = {ETAG: self.etag, **self.content, TIMESTAMP: self.timestamp}
        if select is None:
            return row
        kept = {ETAG, PARTITION_KEY, ROW_KEY, TIMESTAMP, *select, *(name + TYPE_SUFFIX for name in select)}
        return {name: value for name, value in row.items() if name in kept}


@dataclass(slots=True)
class StoredRows:
    """The rows of one table in service order."""

    rows: dict[Order, StoredRow] = field(default_factory=dict)
    order: list[Order] = field(default_factory=list)
    last_ticks: dict[Order, int] = field(default_factory=dict)
    """Last write of every key ever written, so that a row inserted again gets a new ETag."""
    mood: Mood = Mood.AZURITE

    def __deepcopy__(self, _memo: object) -> StoredRows:
        """Copy them; a row at rest never changes, and is shared."""
        return StoredRows(dict(self.rows), list(self.order), dict(self.last_ticks), self.mood)

    def put(self, place: Order, content: Row, now: int) -> StoredRow:
        """Write a row at `now` ticks, or a tick after its last write if that is later."""
        ticks = max(now, self.last_ticks.get(place, 0) + 1)
        self.last_ticks[place] = ticks
        for name in [name for name, kind in content.items() if kind == DATETIME]:
            if name.endswith(TYPE_SUFFIX) and self.mood is Mood.STORAGE:
                moment = format_ticks(ticks_of(content[name.removesuffix(TYPE_SUFFIX)]))
                content[name.removesuffix(TYPE_SUFFIX)] = unpadded(moment)
        stored = StoredRow(content, ticks, self.mood)
        if place not in self.rows:
            bisect.insort(self.order, place)
        self.rows[place] = stored
        return stored

    def drop(self, place: Order) -> None:
        """Remove a row."""
        del self.rows[place]
        del self.order[bisect.bisect_left(self.order, place)]

    def restore(self, place: Order, before: StoredRow | None) -> None:
        """Put a place back to what it was, None for empty."""
        if before is not None:
            if place not in self.rows:
                bisect.insort(self.order, place)
            self.rows[place] = before
        elif place in self.rows:
            self.drop(place)


_KINDS = {
    "get": RequestKind.READ,
    "page": RequestKind.SCAN,
    "table_exists": RequestKind.SCAN,
    "transact": RequestKind.BATCH,
    "delete": RequestKind.DELETE,
    "create_table": RequestKind.TABLE,
    "delete_table": RequestKind.TABLE,
    "server_time": RequestKind.TABLE,
}
"""What the service's own requests for these calls are; all other calls write one row."""
_READS = frozenset({"get", "page", "table_exists", "server_time"})


async def open_gate(_call: Call) -> None:
    """The gate without a scheduler: let other tasks run, as waiting for an answer would."""
    await asyncio.sleep(0)


async def instant_gate(_call: Call) -> None:
    """The gate that lets no other task run in between."""


class MemoryTableService:
    """The tables of one account, in memory.

    Args:
        clock: where time comes from; the machine's clock by default.
        faults: what goes wrong; nothing by default.
        gate: awaited once before the effect of every call. A scheduler may hold calls there in any order,
            and may cancel a caller there ("crash before this effect").
        deletion_seconds: how long a deleted table's name answers TableBeingDeleted.
        mood: like which service they answer.
        is_target_account: whether this is the account of `[targets]`.
    """

    def __init__(
        self,
        *,
        is_target_account: bool = False,
        clock: Clock | None = None,
        faults: Faults | None = None,
        gate: Gate | None = None,
        deletion_seconds: float = 40.0,
        mood: Mood = Mood.AZURITE,
    ) -> None:
        self.mood, self.is_target_account = mood, is_target_account
        self.clock: Clock = clock or SystemClock()
        self.faults: Faults = faults or NoFaults()
        self.gate: Gate = gate or open_gate
        self._deletion_ticks = round(deletion_seconds * TICKS_PER_SECOND)
        self._tables: dict[str, StoredRows] = {}
        self._names: dict[str, str] = {}
        self._being_deleted: dict[str, int] = {}
        self._calls = 0
        self.sent = Sent()
        self.last_open: float | None = None
        """When an attempt to write was last left without an answer, in monotonic seconds of the clock."""

    @property
    def signature_valid_s(self) -> float:
        """For how long what was signed is accepted: as with a shared key."""
        return SIGNED_S

    def table(self, name: str) -> MemoryTable:
        """Return a handle; the table need not exist yet."""
        check_table_name(name, in_target_account=self.is_target_account)
        return MemoryTable(self, name)

    def multi_writer_table(self, name: str) -> MemoryTable:
        """Return the same: nothing is sent again here."""
        return self.table(name)

    async def create_table(self, name: str) -> bool:
        """Create a table; False when it was there already. Raises TableBeingDeleted, RequestRejected."""
        check_table_name(name, in_target_account=self.is_target_account)
        fault = await self.enter("create_table", name)
        self._refuse_deleted(name)
        made = name.lower() not in self._tables
        self._tables.setdefault(name.lower(), StoredRows(mood=self.mood))
        self._names.setdefault(name.lower(), name)
        self.leave(fault)
        return made

    async def delete_table(self, name: str) -> bool:
        """Delete a table; False when there was none. Its name stays taken for `deletion_seconds`."""
        fault = await self.enter("delete_table", name)
        dropped = self._tables.pop(name.lower(), None) is not None
        if dropped:
            self._being_deleted[name.lower()] = self.clock.ticks() + self._deletion_ticks
        self.leave(fault)
        return dropped

    async def table_exists(self, name: str) -> bool:
        """Tell whether the table exists (one that is being deleted does not)."""
        self.leave(await self.enter("table_exists", name))
        return name.lower() in self._tables

    async def table_names(self) -> list[str]:
        """Return the names of all tables, as they were made."""
        self.leave(await self.enter("table_names", ""))
        return [self._names[one] for one in self._tables]

    async def server_time(self) -> str:
        """Return the clock's time in whole seconds, as the service does: so less than a second too early."""
        self.leave(await self.enter("server_time", ""))
        now = self.clock.ticks()
        return format_ticks(now - now % TICKS_PER_SECOND)

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def dump(self, name: str) -> list[Row]:
        """Return all rows of a table, which may be joint, as read, without a gate, a fault or a call being
        counted."""
        if is_joint(name):
            return [joint_row(prefix_of(each), row) for each in names_in(name) for row in self.dump(each)]
        rows = self._tables[name.lower()]
        return [rows.rows[place].as_read(None) for place in rows.order]

    async def enter(
        self, action: str, table: str, operations: tuple[Operation, ...] = (), read: str | None = None
    ) -> Fault | None:
        """Pass the gate and learn what goes wrong with a call; latency passes on the clock.

        Raises the fault's error at once when the call is not applied; otherwise `leave` raises it.
        """
        if action not in _READS:
            allowance.check()
        self._calls += 1
        self.sent.add(_KINDS.get(action, RequestKind.WRITE).value)
        if action == "transact":
            self.sent.add(OPERATIONS, len(operations))
        call = Call(action, table, operations, self._calls, read)
        await self.gate(call)
        fault = self.faults.decide(call)
        if fault is not None and fault.seconds:
            await self.clock.sleep(fault.seconds)
        if fault is not None and not fault.applied:
            self.leave(fault)
        return fault

    def leave(self, fault: Fault | None) -> None:
        """Raise the error of a fault that has one."""
        error = None if fault is None else fault.error()
        if isinstance(error, Ambiguous):
            self.last_open = self.clock.monotonic()
        if error is not None:
            raise error

    def rows(self, name: str) -> StoredRows:
        """Return a table's rows. Raises TableMissing, TableBeingDeleted."""
        rows = self._tables.get(name.lower())
        if rows is None:
            self._refuse_deleted(name)
            raise TableMissing(f"there is no table {name} (TableNotFound)", code="TableNotFound", status=404)
        return rows

    def _refuse_deleted(self, name: str) -> None:
        until = self._being_deleted.get(name.lower())
        if until is not None and self.clock.ticks() < until:
            raise TableBeingDeleted(
                f"table {name} is being deleted (TableBeingDeleted)", code="TableBeingDeleted", status=409
            )


class MemoryTable(Table):
    """One table of a `MemoryTableService`."""

    def __init__(self, service: MemoryTableService, name: str) -> None:
        self._service = service
        self._name = name
        self._encoder = Encoder("https://account.table.core.windows.net", own_name(name))

    @property
    def name(self) -> str:
        """The table's name as given."""
        return self._name

    async def at_address(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        """Return a copy of the row that is read at the address of a key, or None."""
        return await self._read(self._service.mood.addressed(key), select)

    async def by_query(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        """Return a copy of the row that a query for a key returns, or None."""
        return await self._read(key, select)

    async def _read(self, key: EntityKey, select: Sequence[str] | None) -> Row | None:
        check_key_part(key.partition)
        check_key_part(key.row)
        self._service.leave(await self._service.enter("get", self._name, read=key.partition))
        stored = self._service.rows(self._name).rows.get(key.order)
        return None if stored is None else stored.as_read(select)

    async def write_at_address(self, operation: Operation) -> str:
        """Send one operation to the address of its row."""
        if self._service.mood is Mood.DECODES_TWICE and operation.verb is not Verb.INSERT:
            partition, row = self._service.mood.addressed(operation.key)
            operation = replace(operation, row={**operation.row, PARTITION_KEY: partition, ROW_KEY: row})
        [etag] = await self._run(operation.verb, (operation,))
        return etag or ""

    def encoded_size(self, operation: Operation) -> int:
        """Return how many bytes an operation takes in a transaction, counted as on the wire."""
        return self._encoder.size(operation)

    async def transact(self, operations: Sequence[Operation]) -> list[str | None]:
        """Apply all operations or none; return the new ETags."""
        check_batch(operations)
        if sum(map(self.encoded_size, operations)) > MAX_BATCH_BYTES:
            raise too_large()
        return await self._run("transact", tuple(operations))

    async def scan(
        self,
        within: KeyRange = EVERYTHING,
        *,
        select: Sequence[str] | None = None,
        modified_from: str | None = None,
        with_text_in: str | None = None,
        page_rows: int = MAX_PAGE_ROWS,
        ahead: bool = True,
    ) -> AsyncIterator[Page]:
        """Iterate over a key range; each page is read when it is wanted, in one moment: no snapshot."""
        if not 1 <= page_rows <= MAX_PAGE_ROWS:
            raise RequestRejected("a page has 1 to 1,000 rows", code="InvalidInput", status=400)
        since = None if modified_from is None else ticks_of(modified_from)
        rest = within
        after, upto = within.after, within.upto
        one = after.partition if after and upto and after.partition == upto.partition else None
        while True:
            fault = await self._service.enter("page", self._name, read=one)
            limit = _page_limit(fault, page_rows)
            places, more = self._places(rest, since, with_text_in, limit)
            rows = self._service.rows(self._name).rows
            page = [rows[place].as_read(select) for place in places]
            if page:
                rest = rest.behind(key_of(page[-1]))
            if page or more:
                yield Page(page, rest.after if rest is not within else None, full=len(page) == page_rows)
            if not more:
                return

    def _places(
        self, rest: KeyRange, since: int | None, text_in: str | None, limit: int
    ) -> tuple[list[Order], bool]:
        """Return where the next rows of a range are, at most `limit`, and whether more follow."""
        takes_all = since is None and text_in is None
        rows = self._service.rows(self._name)
        at = 0 if rest.after is None else bisect.bisect_right(rows.order, rest.after.order)
        end = len(rows.order) if rest.upto is None else bisect.bisect_right(rows.order, rest.upto.order)
        found: list[Order] = []
        for place in rows.order[at : min(end, at + limit + 1)] if takes_all else rows.order[at:end]:
            if since is not None and rows.rows[place].ticks < since:
                continue
            if text_in is not None and not _has_text(rows.rows[place].as_read(None), text_in):
                continue
            if len(found) == limit:
                return found, True
            found.append(place)
        return found, False

    async def _run(self, action: str, operations: tuple[Operation, ...]) -> list[str | None]:
        """Check, pass the gate, apply all or none, then lose the answer if a fault says so."""
        prepared = [
            _prepare(operation, index if action == "transact" else None)
            for index, operation in enumerate(operations)
        ]
        fault = await self._service.enter(action, self._name, operations)
        try:
            etags = self._apply(action, operations, prepared)
        except ServiceError as refused:
            if action == "transact" and self._service.mood is Mood.STORAGE:
                if isinstance(refused, TableMissing):
                    refused.index = 0
                elif len(operations) == 1:
                    refused.index = None
            raise
        self._service.leave(fault)
        return etags

    def _apply(self, action: str, operations: tuple[Operation, ...], prepared: list[Row]) -> list[str | None]:
        rows = self._service.rows(self._name)
        now = self._service.clock.ticks()
        undo: list[tuple[Order, StoredRow | None]] = []
        etags: list[str | None] = []
        try:
            for index, (operation, content) in enumerate(zip(operations, prepared, strict=True)):
                place = key_of(content).order
                before = rows.rows.get(place)
                _check_condition(operation, before, index if action == "transact" else None)
                undo.append((place, before))
                etags.append(_apply_one(rows, operation.verb, place, content, now))
        except (RowExists, RowMissing, ConditionFailed, RequestRejected):
            for place, before in reversed(undo):
                rows.restore(place, before)
            raise
        return etags


def _prepare(operation: Operation, index: int | None) -> Row:
    """Return the content to store (of a delete: its key), or raise RequestRejected as the service would."""
    try:
        if operation.verb is not Verb.DELETE:
            return stored_form(operation.row)
        check_key_part(operation.row.get(PARTITION_KEY))
        check_key_part(operation.row.get(ROW_KEY))
    except RequestRejected as refused:
        refused.index = index
        raise
    return operation.row


def _has_text(row: Row, name: str) -> bool:
    value = row.get(name)
    return isinstance(value, str) and value != "" and name + TYPE_SUFFIX not in row


def _page_limit(fault: Fault | None, page_rows: int) -> int:
    if fault is not None and fault.kind is FaultKind.EMPTY_PAGE:
        return 0
    if fault is not None and fault.kind is FaultKind.SHORT_PAGE:
        return max(1, page_rows // 3)
    return page_rows


def _check_condition(operation: Operation, before: StoredRow | None, index: int | None) -> None:
    if operation.verb is Verb.INSERT:
        if before is not None:
            raise RowExists(
                "the row exists (EntityAlreadyExists)", code="EntityAlreadyExists", status=409, index=index
            )
        return
    if operation.verb in (Verb.INSERT_OR_MERGE, Verb.INSERT_OR_REPLACE):
        return
    if before is None:
        raise RowMissing(
            "the row does not exist (ResourceNotFound)", code="ResourceNotFound", status=404, index=index
        )
    if operation.etag not in (None, "*", before.etag):
        raise ConditionFailed(
            "the row was changed meanwhile (UpdateConditionNotSatisfied)",
            code="UpdateConditionNotSatisfied",
            status=412,
            index=index,
        )


def _apply_one(rows: StoredRows, verb: Verb, place: Order, content: Row, now: int) -> str | None:
    if verb is Verb.DELETE:
        rows.drop(place)
        return None
    before = rows.rows.get(place)
    if before is not None and verb in (Verb.MERGE, Verb.INSERT_OR_MERGE):
        content = stored_merge(before.content, content)
    return rows.put(place, dict(content), now).etag
