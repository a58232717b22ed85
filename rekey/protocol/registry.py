"""The rows of the clients: who writes through rekey, the epoch they act by, and their unsettled work."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.errors import ConditionFailed, RowExists, RowMissing, StateUnusable, TableMissing
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import ETAG, PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey, KeyRange, Row, etag_of
from rekey.protocol.stored import INT64, MAPPING, SECONDS, TEXT, WHOLE, ColumnCodec, column, read, written
from rekey.tables.base import SIGNED_S, Operation, TableService, Verb

CLIENT_PREFIX = "client."
# The row key of the counts of clients whose rows are gone.
_ENDED = "ended"
# Attempts to add to it, while other clients do.
_ENDINGS = 10
# A row key that sorts after every client's: ids are hexadecimal.
_AFTER_ALL = "client.~"
FORMAT = 1
_COUNTS = ColumnCodec(
    MAPPING.write, lambda text: {str(name): int(number) for name, number in json.loads(text).items()}
)
_NAMES = ColumnCodec(lambda names: json.dumps(list(names)), lambda text: tuple(map(str, json.loads(text))))
# Seconds allowed for clocks that run at different rates and for servers of one service that disagree.
SAFETY_S = 5.0
# Minimum seconds for which the row of a client that is over is kept.
PURGE_AFTER_S = 3600.0


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One client as its row describes it. Only the client writes it; each beat writes the whole row."""

    # Random, of this client object in this process; never used again.
    client_id: str
    # Given by the application; for people.
    name: str = field(metadata=column("Name"))
    # `old` or `new`.
    view: str = field(metadata=column("View", TEXT))
    # Where it runs.
    host: str = field(metadata=column("Host"))
    pid: int = field(metadata=column("Pid", WHOLE))
    # Of rekey.
    version: str = field(metadata=column("Version"))
    # The newest epoch it has acknowledged: no operation of an older one runs in it; 0: none yet.
    epoch: int = field(metadata=column("Epoch", INT64))
    # Seconds for which it trusts what it read in the control row.
    lease_s: float = field(metadata=column("LeaseMs", SECONDS))
    # Seconds within which an operation that it begins takes effect, or not at all.
    longest_s: float = field(metadata=column("LongestMs", SECONDS))
    # Its last beat, in ticks of the service's clock; 0 for a row that was not read.
    beat_at: int = 0
    # The number of operations in flight.
    in_flight: int = field(default=0, metadata=column("InFlight", WHOLE))
    # The number of keys whose replicas it still has to settle.
    left: int = field(default=0, metadata=column("Left", WHOLE))
    # Its counts since it began, by name.
    counters: Mapping[str, int] = field(default_factory=dict, metadata=column("Counters", _COUNTS))
    # The run that the epoch belongs to, "" while there is no control row: after a rollback another run counts
    # epochs from 1 again.
    run_id: str = field(default="", metadata=column("RunId"))
    # The code of the reason that keeps it from dual writes, "" when there is none.
    refuses: str = field(default="", metadata=column("Refuses"))
    # Seconds after which the service refuses what the client has signed.
    signature_valid_s: float = field(default=SIGNED_S, metadata=column("LateMs", SECONDS, may_be_absent=True))
    # The ids of the scripts whose parts of its table the same process follows, this one among them; None
    # where no part of a table is migrated.
    parts: tuple[str, ...] | None = field(default=None, metadata=column("Parts", _NAMES, may_be_absent=True))
    etag: str = ""

    def follows(self, script_id: str) -> bool:
        """Tell whether it writes the rows of another part of its table through a client of that migration."""
        return script_id in (self.parts or ())


class Standing(StrEnum):
    """The state of a client, judged by the age of its last beat."""

    LIVE = "live"
    # Its lease has ended; operations that it began before may still take effect.
    SILENT = "silent"
    # None of its operations can take effect any more.
    OVER = "over"


def silent_at(row: ClientRow) -> int:
    """Return when the client's lease ends unless it beats again, in ticks of the service's clock."""
    return row.beat_at + _ticks(row.lease_s)


def over_at(row: ClientRow) -> int:
    """Return when the client is over unless it beats again, in ticks of the service's clock."""
    return row.beat_at + _ticks(row.lease_s + row.longest_s + SAFETY_S)


def refused_at(row: ClientRow) -> int:
    """Return from when on the service refuses every request that the client has signed, unless it beats
    again, in ticks of the service's clock."""
    # A process suspended between checking its lease and sending may send when it resumes: until then the
    # intents of a client that did not end in order are kept.
    return over_at(row) + _ticks(row.signature_valid_s)


def is_over(row: ClientRow, now: int) -> bool:
    """Tell whether no operation of the client can take effect any more, at `now` in ticks of the service's
    clock. `row`: as listed; a later beat only means that the client has read the control row since."""
    return now >= over_at(row)


def standing(row: ClientRow, now: int) -> Standing:
    """Return the state of the client at `now`, in ticks of the service's clock."""
    if is_over(row, now):
        return Standing.OVER
    return Standing.SILENT if now >= silent_at(row) else Standing.LIVE


def is_current(row: ClientRow, run_id: str, epoch: int) -> bool:
    """Tell whether the client has acknowledged an epoch of a run: no operation of an older one runs in it."""
    return row.run_id == run_id and row.epoch >= epoch


def settlers(rows: Iterable[ClientRow], now: int) -> list[ClientRow]:
    """Return the clients that settle dead clients' intents, in the order in which they begin: those that are
    live and refuse nothing."""
    able = [row for row in rows if not row.refuses and standing(row, now) is Standing.LIVE]
    return sorted(able, key=lambda row: row.client_id)


def _ticks(seconds: float) -> int:
    return math.ceil(seconds * TICKS_PER_SECOND)


def to_row(script_id: str, client: ClientRow) -> Row:
    """Return the wire row."""
    row_key = CLIENT_PREFIX + client.client_id
    return {PARTITION_KEY: script_id, ROW_KEY: row_key, "Format": FORMAT, **written(client)}


def from_row(row: Row) -> ClientRow:
    """Read a wire row. Raises StateUnusable for another format, and for an absent or invalid column."""
    try:
        if row["Format"] != FORMAT:
            raise ValueError("format")
        client_id, beat_at = row[ROW_KEY].removeprefix(CLIENT_PREFIX), ticks_of(row[TIMESTAMP])
        return ClientRow(client_id, beat_at=beat_at, etag=row[ETAG], **read(ClientRow, row))
    except (KeyError, ValueError, TypeError, AttributeError):
        raise StateUnusable(
            f"the row of a client of {row.get(PARTITION_KEY)} in {CONTROL_TABLE} cannot be read by this"
            " program",
            kept="the row, unchanged",
            hint="bring rekey to the same version in the application and here; no other program may write to"
            " the restricted store",
        ) from None


class Registry:
    """The clients of one migration, in the restricted store."""

    def __init__(self, restricted: TableService, script_id: str) -> None:
        self._service = restricted
        self._table = restricted.table(CONTROL_TABLE)
        self.script_id = script_id

    async def list(self) -> list[ClientRow]:
        """Return all clients that have a row, those that are over included. A client that is not listed
        registers after this call began, and reads the control row after that.

        Raises:
            StateUnusable: a row cannot be read by this program; its client is never left out instead.
            ServiceError: the restricted store failed.
        """
        within = KeyRange(EntityKey(self.script_id, CLIENT_PREFIX), EntityKey(self.script_id, _AFTER_ALL))
        client_rows: list[ClientRow] = []
        try:
            async for page in self._table.scan(within):
                client_rows += [from_row(row) for row in page.rows]
        except TableMissing:
            return []
        return client_rows

    async def beat(self, client: ClientRow) -> None:
        """Write the client's row, replacing the present one; create the table if there is none yet."""
        row = to_row(self.script_id, client)
        try:
            await self._table.upsert(row)
        except TableMissing:
            await self._service.create_table(CONTROL_TABLE)
            await self._table.upsert(row)

    async def ended(self) -> Mapping[str, int]:
        """Return the counts of clients whose rows are gone, by name."""
        try:
            row = await self._table.get(EntityKey(self.script_id, _ENDED))
        except TableMissing:
            return {}
        return {} if row is None else dict(_COUNTS.read(row["Counters"]))

    async def delete(self, client_id: str, counters: Mapping[str, int], etag: str = "*") -> bool:
        """Delete a client's row and keep its counts, in one transaction; return whether it was there. For the
        client itself, once it has no operation in flight, and for clients that are over.

        Args:
            counters: what it has counted.
            etag: of its row, "*" for any.

        Raises:
            ConditionFailed: the row has another ETag.
            ServiceError: the restricted store failed.
        """
        gone = Operation(
            Verb.DELETE, {PARTITION_KEY: self.script_id, ROW_KEY: CLIENT_PREFIX + client_id}, etag
        )
        place = EntityKey(self.script_id, _ENDED)
        for attempt in range(_ENDINGS):
            operations = [gone]
            try:
                if any(counters.values()) and attempt < _ENDINGS - 1:  # then the counts are given up
                    before = await self._table.get(place)
                    known = Counter({} if before is None else _COUNTS.read(before["Counters"]))
                    known.update(counters)
                    row = {PARTITION_KEY: place.partition, ROW_KEY: _ENDED, "Counters": _COUNTS.write(known)}
                    verb = Verb.INSERT if before is None else Verb.REPLACE
                    operations.append(Operation(verb, row, None if before is None else etag_of(before)))
                await self._table.transact(operations)
            except (RowMissing, TableMissing):
                return False
            except (RowExists, ConditionFailed) as raced:
                if raced.index != 1:
                    raise
            else:
                return True
        return False

    async def purge(self, now: int) -> int:
        """Delete the rows of clients that have been over for `PURGE_AFTER_S` seconds and whose signed
        requests the service refuses (`refused_at`); return how many. A client that beats meanwhile keeps its
        row; one that beats later inserts it again, and reads the control row after that."""
        purged = 0
        for client in await self.list():
            if now < max(over_at(client) + _ticks(PURGE_AFTER_S), refused_at(client)):
                continue
            with suppress(ConditionFailed):
                purged += await self.delete(client.client_id, client.counters, client.etag)
        return purged
