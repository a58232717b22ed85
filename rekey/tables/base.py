"""The interface of a table, implemented by `rekey.tables.azure` over HTTP and by the tests in memory. Rows go
in and come out as wire rows (`rekey.model`); an implementation never changes a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rekey.core.limits import is_in_target_account
from rekey.errors import RequestRejected, ServiceError
from rekey.model import EVERYTHING, PARTITION_KEY, ROW_KEY, EntityKey, KeyRange, Row, key_of
from rekey.tables.addresses import is_addressable
from rekey.tables.sent import Sent

MAX_BATCH_OPERATIONS = 100
# Most bytes of the operations of a transaction. The service takes 4 MiB; 1 KiB is for the body around them.
MAX_BATCH_BYTES = 4 * 1024 * 1024 - 1024
MAX_PAGE_ROWS = 1000
# Most seconds that the service works on a write to a table that other clients write too (the `timeout`
# parameter of the request): a request takes effect within this time, or not at all.
MULTI_WRITER_SERVICE_S = 10
# The service refuses a request whose signed date is older than 15 minutes ("Authorize with Shared Key", Azure
# documentation): a process may be suspended that long between signing and sending.
SIGNED_S = 900.0
_MISREAD = "a gateway or proxy on the way changes requests: run `rekey doctor --live`, and connect without it"


def rejected(
    code: str, what: str, index: int | None = None, *, status: int = 400, hint: str = ""
) -> RequestRejected:
    """Return the error for a request that the service would refuse, with the service's code and status.
    `what` holds no key and no value; `index`: position in a transaction."""
    return RequestRejected(f"{what} ({code})", code=code, status=status, index=index, hint=hint)


class Verb(StrEnum):
    """What one operation does to one row."""

    INSERT = "insert"
    REPLACE = "replace"
    MERGE = "merge"
    INSERT_OR_REPLACE = "insert_or_replace"
    INSERT_OR_MERGE = "insert_or_merge"
    DELETE = "delete"


@dataclass(slots=True)
class Operation:
    """One write: a verb, a wire row (for DELETE only its key counts) and, for conditional verbs, an ETag: `*`
    means any version, but the row must exist."""

    # Never changed, except for its cache `encoded`. Not a frozen dataclass, because making one takes three
    # times as long, and three are made for every copied row.
    verb: Verb
    row: Row = field(repr=False)
    etag: str | None = None
    # The encoder and the operation's bytes on the wire, kept between measuring and sending.
    encoded: tuple[object, bytes] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def key(self) -> EntityKey:
        """The key the operation addresses."""
        return key_of(self.row)


@dataclass(frozen=True, slots=True)
class Page:
    """One answer of a scan. `rows` may be empty although more follow."""

    # Wire rows in service order.
    rows: list[Row] = field(repr=False)
    # Everything up to and including this key has been returned; None if nothing was yet.
    cursor: EntityKey | None = field(repr=False)
    # Size of the rows on the wire; 0 where they did not come over a wire.
    bytes: int = 0
    # Whether it has as many rows as were asked for.
    full: bool = False

    def cut(self, upto: EntityKey | None) -> tuple[list[Row], EntityKey | None, bool]:
        """Return the rows up to the key `upto` (None: no end), the cursor after them, and whether the page
        reaches `upto`: the end of a scan may be within a page, or be moved after the scan began."""
        if upto is None or self.cursor is None or self.cursor.order < upto.order:
            return self.rows, self.cursor, False
        return [row for row in self.rows if key_of(row).order <= upto.order], upto, True


class Table(Protocol):
    """One table of one account.

    A call that returns has been applied; one that raises RowExists, RowMissing, ConditionFailed,
    RequestRejected, TableMissing, CredentialRefused or EndpointDown has not. Only Unavailable and Ambiguous
    leave it unknown: before they raise these, implementations retry and settle ambiguous outcomes by reading
    back.

    Backends implement `at_address`, `by_query`, `write_at_address`, `transact`, `encoded_size` and `scan`.
    """

    @property
    def name(self) -> str:
        """The table's name as declared."""

    async def get(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        """Return the row with its ETag and Timestamp, or None when there is none. Raises RequestRejected:
        another row was returned in its place (`AnotherRow`)."""
        # Only where no server on the way can take one key for another. The row's key is compared all the
        # same.
        if is_addressable(key):
            row = await self.at_address(key, select=select)
            if row is None or key_of(row) == key:
                return row
        return await self.find(key, select=select)

    async def find(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        """Return what `get` does, always by a query: absence is proved by what a scan would see."""
        row = await self.by_query(key, select=select)
        if row is not None and key_of(row) != key:
            raise rejected(
                "AnotherRow", f"a query of {self.name} for one row returned another", hint=_MISREAD
            )
        return row

    async def at_address(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        """Return the row that the service reads at the address of a key, whatever its key is."""

    async def by_query(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        """Return the row that a query for a key returns, whatever its key is."""

    async def write(self, operation: Operation) -> str:
        """Carry out one operation; return the row's new ETag, "" after a delete."""
        if operation.verb is Verb.INSERT or is_addressable(operation.key):
            return await self.write_at_address(operation)
        # The address could be misread, so the operation is sent as a transaction, whose body holds the key.
        try:
            [etag] = await self.transact([operation])
        except ServiceError as error:
            error.index = None
            raise
        return etag or ""

    async def write_at_address(self, operation: Operation) -> str:
        """Send one operation to the address of its row (an insert: of the table)."""

    async def insert(self, row: Row) -> str:
        """Insert if absent and return the new ETag. Raises RowExists."""
        return await self.write(Operation(Verb.INSERT, row))

    async def replace(self, row: Row, *, etag: str = "*") -> str:
        """Replace the whole row if its ETag matches. Raises RowMissing, ConditionFailed."""
        return await self.write(Operation(Verb.REPLACE, row, etag))

    async def merge(self, row: Row, *, etag: str = "*") -> str:
        """Set the given properties if the ETag matches. Raises RowMissing, ConditionFailed."""
        return await self.write(Operation(Verb.MERGE, row, etag))

    async def upsert(self, row: Row, *, merge: bool = False) -> str:
        """Insert, or replace (merge) the present row."""
        return await self.write(Operation(Verb.INSERT_OR_MERGE if merge else Verb.INSERT_OR_REPLACE, row))

    async def delete(self, key: EntityKey, *, etag: str = "*") -> None:
        """Delete the row if its ETag matches. Raises RowMissing, ConditionFailed."""
        await self.write(Operation(Verb.DELETE, {PARTITION_KEY: key.partition, ROW_KEY: key.row}, etag))

    def encoded_size(self, operation: Operation) -> int:
        """Return how many bytes an operation takes of a transaction's. Raises RequestRejected."""

    async def transact(self, operations: Sequence[Operation]) -> list[str | None]:
        """Apply all operations or none; return the new ETags (None for deletes). At most 100 operations of
        one partition, each row once, within `MAX_BATCH_BYTES`. Raises the error of the first failing
        operation with its `index` (None if the service does not say)."""

    def scan(
        self,
        within: KeyRange = EVERYTHING,
        *,
        select: Sequence[str] | None = None,
        modified_from: str | None = None,
        with_text_in: str | None = None,
        page_rows: int = MAX_PAGE_ROWS,
        ahead: bool = True,
    ) -> AsyncIterator[Page]:
        """Iterate over the rows of a key range in service order (`EntityKey.order`). Not a snapshot.

        Args:
            select: custom or system property names to return; keys, ETag and Timestamp are always included.
            modified_from: only rows whose Timestamp is at or after this UTC time
                (`2024-01-31T12:00:00.1234567Z`). The service still reads every row of the range.
            with_text_in: only rows with text other than "" in this property, which has no other type. As
                above.
            page_rows: at most this many rows a page (1 to 1,000); fewer where rows are large.
            ahead: whether a page may be requested while the caller still works on the one before it.
        """


class TableWrapper(Table):
    """A table that passes all calls on to another one (`inner`); its subclasses change some of them."""

    def __init__(self, inner: Table) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        return self.inner.name

    async def at_address(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        return await self.inner.at_address(key, select=select)

    async def by_query(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        return await self.inner.by_query(key, select=select)

    def encoded_size(self, operation: Operation) -> int:
        return self.inner.encoded_size(operation)

    def scan(self, within: KeyRange = EVERYTHING, **options: Any) -> AsyncIterator[Page]:
        return self.inner.scan(within, **options)

    async def write_at_address(self, operation: Operation) -> str:
        return await self.inner.write_at_address(operation)

    async def transact(self, operations: Sequence[Operation]) -> list[str | None]:
        return await self.inner.transact(operations)


class TableService(Protocol):
    """The tables of one account."""

    @property
    def last_open(self) -> float | None:
        """When the outcome of an attempt to write last became unknown, even if it was retried with success:
        in monotonic seconds of this machine (`Clock.monotonic`), None if never. The attempt may take effect
        for as long after that as a request can be in flight."""

    @property
    def signature_valid_s(self) -> float:
        """Seconds for which the service accepts a request that is signed now."""

    @property
    def sent(self) -> Sent:
        """The requests sent so far, by kind; each attempt counts."""

    @property
    def silence(self) -> Silence | None:
        """Whether it has not answered for seconds, though requests are in flight; None while it answers."""

    def table(self, name: str) -> Table:
        """Return a handle on a table; sends no request."""

    def multi_writer_table(self, name: str) -> Table:
        """Return a handle on a table whose rows other clients write at the same time.

        Through it, a write that may have been applied is not sent again, unless it is conditional on a row's
        ETag, and equal content does not prove that it was applied: the first attempt may take effect long
        after the second was answered, and undo what was written in between. Such a write raises Ambiguous.
        """

    async def create_table(self, name: str) -> bool:
        """Create a table; False when it was there already. Raises TableBeingDeleted."""

    async def delete_table(self, name: str) -> bool:
        """Delete a table; False when there was none."""

    async def table_exists(self, name: str) -> bool:
        """Tell whether the table exists."""

    async def table_names(self) -> list[str]:
        """Return the names of all tables of the account."""

    async def server_time(self) -> str:
        """Return the service's time as `2024-01-31T12:00:00.0000000Z` (UTC; may be in whole seconds)."""

    async def close(self) -> None:
        """Close connections. Idempotent."""


@dataclass(frozen=True, slots=True)
class Silence:
    """An endpoint that does not answer requests."""

    # Its host and port.
    host: str
    # For how many seconds it has not answered.
    silent_s: float
    # For how many more seconds it is tried at most.
    tried_s: float


@dataclass(frozen=True, slots=True)
class TwoAccounts(TableService):
    """The account of the tables and the target account, whose table names end with `@targets`
    (`core.limits`). Names and time are those of `tables`; for the time of a table's rows see `holding`."""

    tables: TableService
    targets: TableService

    @property
    def last_open(self) -> float | None:
        opened = [
            at for table_service in (self.tables, self.targets) if (at := table_service.last_open) is not None
        ]
        return max(opened, default=None)

    @property
    def signature_valid_s(self) -> float:
        return max(self.tables.signature_valid_s, self.targets.signature_valid_s)

    @property
    def sent(self) -> Sent:
        return Sent(self.tables.sent.counts + self.targets.sent.counts)

    @property
    def silence(self) -> Silence | None:
        return self.tables.silence or self.targets.silence

    def table(self, name: str) -> Table:
        return holding(self, name).table(name)

    def multi_writer_table(self, name: str) -> Table:
        return holding(self, name).multi_writer_table(name)

    async def create_table(self, name: str) -> bool:
        return await holding(self, name).create_table(name)

    async def delete_table(self, name: str) -> bool:
        return await holding(self, name).delete_table(name)

    async def table_exists(self, name: str) -> bool:
        return await holding(self, name).table_exists(name)

    async def table_names(self) -> list[str]:
        return await self.tables.table_names()

    async def server_time(self) -> str:
        return await self.tables.server_time()

    async def close(self) -> None:
        await self.tables.close()
        await self.targets.close()


def holding(service: TableService, name: str) -> TableService:
    """Return the account that holds the table of a name, whose clock its rows' Timestamps are by."""
    if not isinstance(service, TwoAccounts):
        return service
    return service.targets if is_in_target_account(name) else service.tables


@dataclass(frozen=True, slots=True)
class Accounts:
    """Connections to the accounts of a migration."""

    # The account of the application's tables; `TwoAccounts` where `[targets]` is another one.
    tables: TableService
    # The account of the restricted store.
    restricted: TableService
    # Requests that workers reported, by kind.
    by_workers: Counter[str] = field(default_factory=Counter, compare=False)

    @property
    def services(self) -> tuple[TableService, ...]:
        """The accounts, each once: of the tables, the target account if there is one, the restricted one."""
        tables = self.tables
        both = (tables.tables, tables.targets) if isinstance(tables, TwoAccounts) else (tables,)
        return (*both, self.restricted)

    @property
    def sent(self) -> Counter[str]:
        """The requests sent to all accounts so far, by kind, those of workers included."""
        return self.tables.sent.counts + self.restricted.sent.counts + self.by_workers

    def silences(self) -> list[Silence]:
        """Return the accounts that do not answer; one for each host."""
        silent = [silence for service in self.services if (silence := service.silence) is not None]
        return list({silence.host: silence for silence in silent}.values())

    async def close(self) -> None:
        await self.tables.close()
        await self.restricted.close()

    async def __aenter__(self) -> Accounts:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
