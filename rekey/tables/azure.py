"""Tables of an Azure Storage account (or Azurite), by direct HTTP requests."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import orjson

from rekey import errors
from rekey.core.clock import Clock, SystemClock
from rekey.core.distribution import VERSION
from rekey.core.limits import own_name
from rekey.model import ETAG, EVERYTHING, PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey, KeyRange, Row, key_of
from rekey.tables import answers, wire
from rekey.tables.base import (
    MAX_BATCH_BYTES,
    MAX_PAGE_ROWS,
    MULTI_WRITER_SERVICE_S,
    Operation,
    Page,
    Silence,
    Table,
    Verb,
    rejected,
)
from rekey.tables.credentials import Credential
from rekey.tables.paging import FIRST_PAGE_ROWS, PageSize, Parameters, read_range
from rekey.tables.requests import Requester, RetryPolicy, WriteApplied, all_applied
from rekey.tables.rules import check_batch, check_table_name, too_large
from rekey.tables.sent import OPERATIONS, RequestKind, Sent
from rekey.tables.transport import Network, Request, Transport

_SENDING = {"Content-Type": "application/json", "Prefer": "return-no-content"}
# Errors that leave an ambiguous write unsettled: a retry met its own effect, or the outcome is unknown.
_UNSETTLED = (
    *(errors.RowExists, errors.RowMissing, errors.ConditionFailed),
    *(errors.Unavailable, errors.Ambiguous),
)


@dataclass(eq=False)
class AzureTableService:
    """The tables of one account.

    Attributes:
        endpoint: without a trailing slash.
        is_target_account: whether this is the target account: its tables are named `NAME@targets` everywhere
            but on the wire.
        sizes: page sizes, by table and selection.

    >>> async with AzureTableService.open(endpoint, credential) as service:
    ...     await service.create_table("Users")
    """

    endpoint: str
    _transport: Transport
    _requester: Requester
    is_target_account: bool = False
    sizes: dict[tuple[str, str], PageSize] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        endpoint: str,
        credential: Credential,
        *,
        retry: RetryPolicy | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        is_target_account: bool = False,
    ) -> AzureTableService:
        """Return a service; the first request connects.

        Args:
            endpoint: `https://ACCOUNT.table.core.windows.net`, or `http://127.0.0.1:PORT/ACCOUNT`.
            credential: from `rekey.tables.credentials`; closed with the service.
            retry: how often, and after which waits, requests are repeated.
            network: timeouts, proxies and how many connections.
            clock: times the waits between attempts.
            is_target_account: whether this is the target account.
        """
        endpoint = endpoint.rstrip("/")
        transport = Transport(endpoint, credential, network or Network(), agent=f"rekey/{VERSION}")
        jitter = random.Random()  # noqa: S311 - spreads retries, keeps no secret
        requester = Requester(transport, retry or RetryPolicy(), clock or SystemClock(), jitter)
        return cls(endpoint, transport, requester, is_target_account)

    @property
    def last_open(self) -> float | None:
        return self._requester.known.last_open

    @property
    def signature_valid_s(self) -> float:
        return self._transport.signature_valid_s

    @property
    def sent(self) -> Sent:
        return self._transport.sent

    @property
    def silence(self) -> Silence | None:
        silent = self._requester.silence()
        return None if silent is None else Silence(urlsplit(self.endpoint).netloc, *silent)

    def listen(
        self,
        listener: Callable[[RequestKind, int, float], None],
        admit: Callable[[RequestKind], Awaitable[None]] | None = None,
    ) -> None:
        """Call `listener` for every answer, with the kind of request, the status (0 where none came in time)
        and the seconds it took; await `admit` before every attempt, with the kind of request."""
        self._transport.listener, self._transport.admit = listener, admit

    def table(self, name: str) -> AzureTable:
        """Return a handle on a table; sends no request. Raises RequestRejected for an impossible name."""
        check_table_name(name, in_target_account=self.is_target_account)
        return AzureTable(self, name, self._requester)

    def multi_writer_table(self, name: str) -> AzureTable:
        """Return a handle on a table whose rows other clients write too, see `TableService`."""
        check_table_name(name, in_target_account=self.is_target_account)
        policy = replace(self._requester.policy, repeats_open_writes=False, content_settles=False)
        return AzureTable(self, name, replace(self._requester, policy=policy), MULTI_WRITER_SERVICE_S)

    async def create_table(self, name: str) -> bool:
        check_table_name(name, in_target_account=self.is_target_account)
        body = orjson.dumps({"TableName": own_name(name)})
        request = Request("POST", "Tables", f"create table {name}", {**wire.COMMON_HEADERS, **_SENDING}, body)
        outcome = await self._requester.call(request, answers.read_done)
        if outcome.error is not None and outcome.error.code == "TableAlreadyExists":
            return False
        if isinstance(outcome.error, errors.RowMissing):
            raise errors.RequestRejected(
                f"{request.doing}: the endpoint has no such account ({outcome.error.code})",
                code=outcome.error.code,
                status=outcome.error.status,
                hint="check the account's name in the endpoint of rekey.toml",
            )
        return outcome.result()

    async def delete_table(self, name: str) -> bool:
        """Delete a table; False when there was none, or it is being deleted already."""
        check_table_name(name, in_target_account=self.is_target_account)
        request = Request(
            "DELETE", f"Tables('{own_name(name)}')", f"delete table {name}", wire.COMMON_HEADERS
        )
        outcome = await self._requester.call(request, answers.read_done)
        if isinstance(outcome.error, errors.TableMissing | errors.RowMissing | errors.TableBeingDeleted):
            # True where an earlier attempt of this call may have deleted it.
            return outcome.ambiguous
        return outcome.result()

    async def table_exists(self, name: str) -> bool:
        """Tell whether the table exists. Needs permission to read only that table."""
        check_table_name(name, in_target_account=self.is_target_account)
        path = f"{own_name(name)}()" + wire.query_string([("$select", PARTITION_KEY), ("$top", "1")])
        request = Request("GET", path, f"look for table {name}", wire.COMMON_HEADERS)
        try:
            return await self._requester.read(request, answers.read_done)
        except (errors.TableMissing, errors.RowMissing, errors.TableBeingDeleted):
            return False

    async def table_names(self) -> list[str]:
        """Return the names of all tables of the account. Needs permission to list them."""
        listed: list[str] = []
        after: str | None = ""
        while after is not None:
            path = "Tables" + wire.query_string([("NextTableName", after)] * bool(after))
            request = Request("GET", path, "list tables", wire.COMMON_HEADERS)
            names, after = await self._requester.read(request, answers.read_tables)
            listed += names
        return listed

    async def server_time(self) -> str:
        """Return the service's time, in whole seconds; also works if listing tables is refused (403)."""
        path = "Tables" + wire.query_string([("$top", "1")])
        request = Request("GET", path, "ask the service for its time", wire.COMMON_HEADERS)
        return await self._requester.read(request, answers.read_time)

    async def close(self) -> None:
        """Close connections and the credential. Idempotent."""
        await self._transport.close()

    async def __aenter__(self) -> AzureTableService:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AzureTable(Table):
    """One table of an account."""

    def __init__(
        self, service: AzureTableService, name: str, requester: Requester, service_s: int | None = None
    ) -> None:
        self._service, self._name, self._own = service, name, own_name(name)
        self._requester, self._service_s = requester, service_s
        self._encoder = wire.Encoder(service.endpoint, self._own)

    @property
    def name(self) -> str:
        return self._name

    async def at_address(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        parameters = [] if select is None else [("$select", _selection(select))]
        path = wire.entity_path(self._own, key) + wire.query_string(parameters)
        request = Request("GET", path, f"read a row of {self._name}", wire.COMMON_HEADERS)
        try:
            row = await self._requester.read(request, answers.read_row)
        except errors.RowMissing:
            return None
        return row if select is None else wire.projected(row, select)

    async def by_query(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        parameters = [] if select is None else [("$select", _selection(select))]
        parameters.append(("$filter", wire.key_filter(key)))
        pages = read_range(
            self._requester, self._name, EVERYTHING, lambda _: [parameters], size=PageSize(0), ahead=False
        )
        async with aclosing(pages):
            async for fetched, _ in pages:
                for row in fetched.rows:
                    return row if select is None else wire.projected(row, select)
        return None

    def encoded_size(self, operation: Operation) -> int:
        """Return how many bytes an operation takes of a transaction's; its encoding is kept for sending."""
        return self._encoder.size(operation)

    async def transact(self, operations: Sequence[Operation]) -> list[str | None]:
        check_batch(operations)
        parts = [self._encoder.encode(operation) for operation in operations]
        if sum(map(len, parts)) + len(parts) * wire.BOUNDARY_BYTES > MAX_BATCH_BYTES:
            raise too_large()
        mark = secrets.token_hex(16)
        doing, body = f"write a batch to {self._name}", wire.batch_body(parts, mark)
        headers = {**wire.COMMON_HEADERS, "Content-Type": f"multipart/mixed; boundary=batch_{mark}"}
        # All or nothing: once the version of one row has changed, the transaction can no longer be applied.
        on_version = any(map(_on_version, operations))
        request = Request("POST", "$batch", doing, headers, body, on_version, self._service_s)
        self._service.sent.add(OPERATIONS, len(operations))
        return await self._written(request, operations, answers.read_batch)

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
        if not 1 <= page_rows <= MAX_PAGE_ROWS:
            raise rejected("InvalidInput", "a page has 1 to 1,000 rows")
        selection = "" if select is None else _selection(select)
        common = [("$select", selection)] if selection else []
        wanted = "" if modified_from is None else wire.modified_filter(modified_from)
        if with_text_in is not None:
            wanted = wire.both(wanted, f"{with_text_in} gt ''")

        def queries(rest: KeyRange) -> list[Parameters]:
            filters = [wire.both(keys, wanted) for keys in wire.range_filters(rest)]
            return [[*common, ("$filter", condition)] if condition else common for condition in filters]

        cursor = within.after
        # A selection is of keys and small properties: a thousand rows of them are no large page.
        unsure = 0 if selection else FIRST_PAGE_ROWS
        size = self._service.sizes.setdefault((self._name, selection), PageSize(unsure))
        reading = read_range(
            self._requester, self._name, within, queries, size=size, most=page_rows, ahead=ahead
        )
        async with aclosing(reading) as pages:
            async for fetched, more in pages:
                rows = fetched.rows
                if rows:
                    cursor = key_of(rows[-1])
                if select is not None:
                    rows = [wire.projected(row, select) for row in rows]
                if rows or more:
                    yield Page(rows, cursor, fetched.bytes, fetched.full)
                del fetched, rows

    async def write_at_address(self, operation: Operation) -> str:
        verb, path, doing = operation.verb, self._own, f"insert into {self._name}"
        if verb is not Verb.INSERT:
            path = wire.entity_path(self._own, operation.key)
            doing = f"{verb.replace('_', ' ')} a row of {self._name}"
        headers, body, method = wire.COMMON_HEADERS, None, wire.METHODS[verb]
        if verb is not Verb.DELETE:
            headers, body = {**headers, **_SENDING}, wire.encode_alone(operation.row)
        if verb in wire.CONDITIONAL:
            # Without the header an update would be an upsert.
            headers = {**headers, "If-Match": "*" if operation.etag is None else operation.etag}
        request = Request(method, path, doing, headers, body, _on_version(operation), self._service_s)
        [etag] = await self._written(request, [operation], answers.read_etag)
        return etag or ""

    async def _written(
        self,
        request: Request,
        operations: Sequence[Operation],
        read: Callable[[answers.Answer, str, Sequence[Operation]], list[str | None]],
    ) -> list[str | None]:
        """Send a write and return its ETags; settle an ambiguous outcome by reading back."""
        outcome = await self._requester.call(request, lambda answer, doing: read(answer, doing, operations))
        error = outcome.error
        if error is None or not outcome.ambiguous:
            return outcome.result()
        by_content = self._requester.policy.content_settles
        if not isinstance(error, _UNSETTLED):
            # A credential that is now refused, say, tells nothing about the attempt before.
            self._requester.note_open(request)
            raise _left_open(error, error.code) from error
        if not outcome.final and not by_content:
            raise _left_open(error, error.code)  # it may still be applied
        try:
            now = await asyncio.gather(*(self.get(operation.key) for operation in operations))
        except errors.ServiceError as failed:
            raise _left_open(error, failed.code) from None
        verdict = all_applied(operations, now, by_content=by_content)
        if verdict is WriteApplied.YES:
            return [None if row is None else row[ETAG] for row in now]
        if isinstance(error, errors.Unavailable) and not answers.may_be_applied(error):
            raise _left_open(error, error.code)  # this attempt was not applied; an earlier one may have been
        if verdict is WriteApplied.NO or not outcome.final:
            raise error
        raise _left_open(error, error.code)


def _on_version(operation: Operation) -> bool:
    """Tell whether an operation is conditional on a certain ETag of its row."""
    return operation.verb in wire.CONDITIONAL and operation.etag not in (None, "*")


def _left_open(error: errors.ServiceError, code: str) -> errors.Ambiguous:
    return errors.Ambiguous(
        f"a write was repeated after a lost answer, and the rows as they are now do not show whether it was"
        f" applied ({code})",
        code=code,
        status=error.status,
        index=error.index,
        hint="repeat the command, which goes on where it stopped and compares what is there",
    )


def _selection(select: Sequence[str]) -> str:
    return ",".join(dict.fromkeys((PARTITION_KEY, ROW_KEY, TIMESTAMP, *select)))
