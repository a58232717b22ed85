"""The rows of the clients: who writes through rekey, what they act by, how much of it is still open.

Rules kept here:

* One row for each client in the restricted table `rekeycontrol`: PartitionKey the script's id, RowKey
  `client.<id>`. Only its client writes it, whole, with every beat; ids are random and never used again.
* A client is over once nothing that it began can take effect any more: the row's Timestamp (the service's),
  its lease, its longest operation and a margin are past, by the service's clock. Until then it is waited for.
* A process that stands still between looking at its lease and sending (it is stopped, its machine is moved)
  may send when it goes on. So one that was given up without having ended in order may be heard of until the
  service refuses what it had signed (`refused_at`): until then its intents are kept.
* An epoch counts as acknowledged only together with the run it belongs to: after a rollback another run
  counts its epochs from 1 again.
* A row that this program cannot read is an error, never a client less.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.errors import ConditionFailed, RowMissing, StateUnusable, TableMissing
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import ETAG, PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey, KeyRange, Row
from rekey.protocol.stored import INT64, MAPPING, SECONDS, TEXT, WHOLE, Kind, column, read, written
from rekey.tables.base import SIGNED_S, TableService

CLIENT_PREFIX = "client."
_BEHIND_ALL = "client.~"
"""After every client's row: ids are hexadecimal."""
FORMAT = 1
_COUNTS = Kind(
    MAPPING.write, lambda text: {str(name): int(number) for name, number in json.loads(text).items()}
)
SAFETY_S = 5.0
"""What clocks that run at different rates, and servers of one service that disagree, may come to."""
PURGE_AFTER_S = 3600.0
"""For how long a client that is over stays visible."""


@dataclass(frozen=True, slots=True)
class ClientRow:
    """What a client says of itself.

    Attributes:
        client_id: random, of this client object in this process.
        name: what the application calls it; for people.
        view: `old` or `new`.
        host, pid: where it runs.
        version: of rekey.
        epoch: the newest it has acknowledged: nothing of an older one runs in it. 0: of none yet.
        lease_s: seconds for which it trusts what it read.
        longest_s: seconds within which all that it begins has taken effect, or never does.
        beat_at: its last beat, in ticks of the service's clock; 0 for a row that was not read.
        in_flight: operations under way.
        left: writes whose replicas it still has to bring up to date.
        counters: what it has counted since it began.
        run_id: the run that the epoch belongs to, "" while there is no control row.
        refuses: the code of what keeps it from dual writes, "" when nothing does.
        late_s: seconds after which the service refuses what the client has signed.
        etag: as read.
    """

    client_id: str
    name: str = field(metadata=column("Name"))
    view: str = field(metadata=column("View", TEXT))
    host: str = field(metadata=column("Host"))
    pid: int = field(metadata=column("Pid", WHOLE))
    version: str = field(metadata=column("Version"))
    epoch: int = field(metadata=column("Epoch", INT64))
    lease_s: float = field(metadata=column("LeaseMs", SECONDS))
    longest_s: float = field(metadata=column("LongestMs", SECONDS))
    beat_at: int = 0
    in_flight: int = field(default=0, metadata=column("InFlight", WHOLE))
    left: int = field(default=0, metadata=column("Left", WHOLE))
    counters: Mapping[str, int] = field(default_factory=dict, metadata=column("Counters", _COUNTS))
    run_id: str = field(default="", metadata=column("RunId"))
    refuses: str = field(default="", metadata=column("Refuses"))
    late_s: float = field(default=SIGNED_S, metadata=column("LateMs", SECONDS, may_be_absent=True))
    etag: str = ""


class Standing(StrEnum):
    """What is known of a client from the age of its last beat."""

    LIVE = "live"
    SILENT = "silent"
    """Its lease has ended; what it began before may still take effect."""
    OVER = "over"
    """Nothing of it can take effect any more."""


def silent_at(row: ClientRow) -> int:
    """Return when the client trusts nothing any more unless it beats, in ticks of the service's clock."""
    return row.beat_at + _ticks(row.lease_s)


def over_at(row: ClientRow) -> int:
    """Return when the client is over unless it beats again, in ticks of the service's clock."""
    return row.beat_at + _ticks(row.lease_s + row.longest_s + SAFETY_S)


def refused_at(row: ClientRow) -> int:
    """Return from when on the service refuses all that a client has signed that does not beat again, in ticks
    of the service's clock."""
    return over_at(row) + _ticks(row.late_s)


def is_over(row: ClientRow, now: int) -> bool:
    """Tell whether nothing of the client can take effect any more.

    Args:
        row: as listed; a later beat only means that the client has read the control row since.
        now: ticks of the service's clock.
    """
    return now >= over_at(row)


def standing(row: ClientRow, now: int) -> Standing:
    """Return what the client's last beat says of it, by the service's clock."""
    if is_over(row, now):
        return Standing.OVER
    return Standing.SILENT if now >= silent_at(row) else Standing.LIVE


def is_current(row: ClientRow, run_id: str, epoch: int) -> bool:
    """Tell whether the client has acknowledged an epoch of a run: nothing of an older one runs in it."""
    return row.run_id == run_id and row.epoch >= epoch


def _ticks(seconds: float) -> int:
    return math.ceil(seconds * TICKS_PER_SECOND)


def to_row(script_id: str, client: ClientRow) -> Row:
    """Return the wire row."""
    row_key = CLIENT_PREFIX + client.client_id
    return {PARTITION_KEY: script_id, ROW_KEY: row_key, "Format": FORMAT, **written(client)}


def from_row(row: Row) -> ClientRow:
    """Read a wire row. Raises StateUnusable when another version, or another program, wrote it."""
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
        """Take the restricted account's tables; nothing is asked of them yet."""
        self._service = restricted
        self._table = restricted.table(CONTROL_TABLE)
        self.script_id = script_id

    async def list(self) -> list[ClientRow]:
        """Return all clients that have a row, those that are over included.

        A client that is not listed registers after this call began, and reads the control row after that.

        Raises:
            StateUnusable: a row cannot be read by this program.
            ServiceError: the restricted store failed.
        """
        within = KeyRange(EntityKey(self.script_id, CLIENT_PREFIX), EntityKey(self.script_id, _BEHIND_ALL))
        found: list[ClientRow] = []
        try:
            async for page in self._table.scan(within):
                found += [from_row(row) for row in page.rows]
        except TableMissing:
            return []
        return found

    async def beat(self, client: ClientRow) -> None:
        """Write the client's row, over what is there; makes the table if there is none yet."""
        row = to_row(self.script_id, client)
        try:
            await self._table.upsert(row)
        except TableMissing:
            await self._service.create_table(CONTROL_TABLE)
            await self._table.upsert(row)

    async def delete(self, client_id: str) -> None:
        """Delete a client's row. Only for the client itself, once nothing of it is under way."""
        with suppress(RowMissing, TableMissing):
            await self._table.delete(EntityKey(self.script_id, CLIENT_PREFIX + client_id))

    async def purge(self, now: int) -> int:
        """Delete the rows of clients that have been over for `PURGE_AFTER_S` seconds; return how many.

        One that beats meanwhile keeps its row. One that beats later makes it anew, and reads after that.
        """
        purged = 0
        for client in await self.list():
            if now < max(over_at(client) + _ticks(PURGE_AFTER_S), refused_at(client)):
                continue
            key = EntityKey(self.script_id, CLIENT_PREFIX + client.client_id)
            with suppress(ConditionFailed, RowMissing):
                await self._table.delete(key, etag=client.etag)
                purged += 1
        return purged
