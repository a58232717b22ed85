"""Step 3 of a write, the sending: sends the authority's write, and settles whether it was applied when no
answer came (ADR 0035)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum

from rekey.client.abandoned import require_caller
from rekey.client.flow import Flow, check_one_partition
from rekey.client.steps import Decided, During, Prepared
from rekey.errors import Ambiguous, RekeyError, RowRefused, ServiceError, Unavailable
from rekey.mapping.rows import TargetKey
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row, etag_of, key_of
from rekey.protocol.effects import apply_operations, side_by_side
from rekey.protocol.operations import CREATES, is_conditional, may_take_effect
from rekey.protocol.propagate import version_of
from rekey.protocol.replicas import same_content, source_place
from rekey.protocol.rules import SOURCE, TARGET
from rekey.tables.allowance import while_also
from rekey.tables.answers import may_be_applied
from rekey.tables.base import MAX_BATCH_OPERATIONS, Operation, Table, Verb, rejected
from rekey.tables.requests import WriteApplied, all_applied

Rows = Sequence[Row | None]
# Waits until no request that was sent is in flight.
Wait = Callable[[], Awaitable[object]]


class Evidence(Enum):
    """What journal and replicas prove about rows that the authority shows after a lost answer."""

    NONE = "none"
    # No other write of these keys is announced.
    ALONE = "alone"
    # Nor was another one done: rows that hold what was written were written by this client.
    OURS = "ours"
    # Nor was another one done, and the row exists, or not, as when the write began.
    UNTOUCHED = "untouched"


# Collects evidence about the authority's rows as read.
Witness = Callable[[Rows], Awaitable[Evidence]]


class Again(Exception):
    """The write was not applied, and no attempt is in flight any more: send it again."""


async def send(flow: Flow, writes: list[Prepared]) -> bool:
    """Write the authority, with the late reads during that write; return False to prepare again. Raises
    RekeyError, for the caller: `flow.sent` tells whether the write may have been applied."""
    pairs = [(write, operation) for write in writes for operation in write.sent]
    check_one_partition({operation.key.partition for _, operation in pairs})
    pairs = _once_a_row(
        pairs + [(write, operation) for write in writes for _, operation in write.secondary_writes]
    )
    operations = [operation for _, operation in pairs]
    if len(operations) > MAX_BATCH_OPERATIONS:
        raise rejected(
            "InvalidInput",
            f"a transaction has at most {MAX_BATCH_OPERATIONS} operations, and each row counts with its"
            " secondary rows",
            hint="while the migration runs, write fewer rows in one transaction",
        )
    in_flight = flow.client.in_flight
    flow.client.permits.check(flow.permit)
    flow.sent, began = True, next(in_flight.moments)
    steps = [(write, During.of(write)) for write in writes]
    try:
        etags, *_ = await side_by_side(
            [
                _while_called(flow.authority.table, operations),
                *(flow.authority.while_writing(write, during) for write, during in steps),
            ]
        )
    except RekeyError as error:
        if is_ambiguous(error):
            try:
                etags = await settled(
                    flow.authority.table, [write.request.operation for write in writes], operations,
                    wait=flow.client.wait_out,
                    witness=lambda rows: _evidence(flow, steps, began, operations, rows),
                    error=error,
                )  # fmt: skip
            except Again:
                flow.sent = False
                return False
        else:
            flow.sent = False
            write, operation = pairs[error.index or 0]
            if flow.raced(error, writes, write, operation):
                return False
            if error.index is not None:
                error.index = write.request.index if len(writes) > 1 else None
            raise
    decided = next(in_flight.moments)
    in_flight.decided.update((intent.id, decided) for intent in flow.intents)
    written = flow.written = {operation.key: etag for operation, etag in zip(operations, etags, strict=True)}
    flow.decided = [
        Decided(write, during, None if write.is_delete else written[write.sent[-1].key], write.source_key)
        for write, during in steps
    ]
    return True


async def send_conditional(
    table: Table, requested: Sequence[Operation], sent: Sequence[Operation], wait: Wait
) -> list[str | None]:
    """Write a table that no replica follows, on the condition of its rows as read; return the new ETags. The
    caller bounds the time. Raises RekeyError, for the caller.

    Args:
        table: the table.
        requested: the operations as the caller gave them.
        sent: the same with the ETags of the rows as read.
        wait: waits until no request that was sent is in flight.
    """

    # Nothing shows whose write it was: what is no longer as it was read is never written again.
    async def none(_rows: Rows) -> Evidence:
        return Evidence.NONE

    return await _send_unwatched(table, requested, sent, wait, none)


async def send_alone(table: Table, operations: Sequence[Operation], wait: Wait) -> list[str | None]:
    """Write a table that no replica follows; return the new ETags. The caller bounds the time. Raises
    RekeyError, for the caller: Ambiguous where it is unknown whether the write was applied."""

    # There is no journal. So, as by the SDK, a write without a condition is sent again if its row does not
    # show it, but only once no attempt is in flight; what another client did meanwhile is not seen. A row
    # that was to be deleted under a condition and has another version may have been deleted and created
    # again: sent again, it would be reported as changed meanwhile, and not deleted.
    async def none(rows: Rows) -> Evidence:
        if _is_free(operations):
            return Evidence.UNTOUCHED
        shown = zip(operations, rows, strict=True)
        conditional = [(operation, row) for operation, row in shown if is_conditional(operation)]
        return Evidence.NONE if _any_undeleted(conditional) else Evidence.ALONE

    return await _send_unwatched(table, operations, operations, wait, none)


async def _send_unwatched(
    table: Table, requested: Sequence[Operation], sent: Sequence[Operation], wait: Wait, witness: Witness
) -> list[str | None]:
    while True:
        try:
            return await _while_called(table, sent)
        except RekeyError as error:
            if not is_ambiguous(error):
                raise
            with suppress(Again):
                return await settled(table, requested, sent, wait=wait, witness=witness, error=error)


async def _while_called(table: Table, operations: Sequence[Operation]) -> list[str | None]:
    """Send a write, unless its caller is gone by then: the caller may have written the row anew meanwhile."""
    with while_also(require_caller):  # called as it is sent
        return await apply_operations(table, operations)


def _once_a_row(pairs: Sequence[tuple[Prepared, Operation]]) -> list[tuple[Prepared, Operation]]:
    """Return the operations of a transaction with each row once, as the service demands: a row that is
    deleted and created again is replaced. Raises RequestRejected for any other two operations of one row."""
    rows: dict[EntityKey, tuple[Prepared, Operation]] = {}
    for write, operation in pairs:
        _, other = rows.setdefault(operation.key, (write, operation))
        if other is operation:
            continue
        gone, new = sorted((other, operation), key=lambda part: part.verb is not Verb.DELETE)
        if gone.verb is not Verb.DELETE or new.verb not in (Verb.INSERT, Verb.REPLACE):
            raise rejected("InvalidDuplicateRow", "a transaction has two operations on one row")
        rows[operation.key] = write, Operation(Verb.REPLACE, new.row, gone.etag)
    return list(rows.values())


def _is_free(requested: Sequence[Operation]) -> bool:
    """Tell whether a write demands no state of its rows: rows that hold its values are a success."""
    return not any(operation.verb is Verb.INSERT or is_conditional(operation) for operation in requested)


def is_ambiguous(error: BaseException) -> bool:
    """Tell whether a write that ended with this error may have been applied, or may yet be."""
    return may_take_effect(error) and not (isinstance(error, Unavailable) and not may_be_applied(error))


async def settled(
    table: Table,
    requested: Sequence[Operation],
    sent: Sequence[Operation],
    *,
    wait: Wait,
    witness: Witness,
    error: RekeyError,
) -> list[str | None]:
    """Return the ETags of an unanswered write, if it turns out to be applied.

    Args:
        requested: the operations as the caller gave them.
        sent: the operations as sent, one by itself or several as one transaction.
        wait: waits until no attempt is in flight any more.
        witness: collects evidence whose write it was.
        error: the error that the attempt ended with.

    Raises:
        Again: it was not applied, and no attempt is in flight any more.
        Ambiguous: it is unknown whether it was or will be applied.
    """
    free, waited = _is_free(requested), False
    applied_versions: list[str | None] | None = None
    first: list[str | None] | None = None
    while True:
        try:
            rows: Rows = await side_by_side(table.get(operation.key) for operation in sent)
            applied = all_applied(sent, rows)
            conditional = [
                (operation, row)
                for operation, row in zip(sent, rows, strict=True)
                if is_conditional(operation)
            ]
            unchanged = any(version_of(row) == operation.etag for operation, row in conditional)
            # An attempt that depends on a version can take no effect once that version is gone, since every
            # write changes the ETag. Rows are read one by one, so a transaction may have taken effect between
            # two reads.
            over = waited or (bool(conditional) and not unchanged)
            evidence = await witness(rows)
        except ServiceError as failed:
            raise _unanswered(error) from failed
        versions = [version_of(row) for row in rows]
        first = first or versions
        # Content alone proves nothing where the caller asked for a condition or a new row: another writer may
        # have written the same. Without a condition it does not matter who wrote it.
        if applied is WriteApplied.YES and (evidence is Evidence.OURS or (over and free)):
            return versions
        applied_versions = versions if applied is WriteApplied.YES else applied_versions
        if over or (applied is WriteApplied.YES and not free and evidence is Evidence.ALONE):
            break  # waiting would show nothing more
        await wait()
        waited = True
    if free and applied_versions is not None:
        return applied_versions  # others have changed it since
    # Never resend a value the row may have held already, nor over a row that changed during the wait: the
    # write could take effect twice.
    if versions != first and not unchanged:
        raise _unanswered(error)
    creates = any(
        operation.verb in CREATES and row is None for operation, row in zip(sent, rows, strict=True)
    )
    deletes = _any_undeleted(zip(sent, rows, strict=True))
    # A write that deleted or created the row meanwhile would be announced: its intent is retained for a while
    # (`Pending.keep_intent`).
    if unchanged or ((creates or deletes) and evidence is not Evidence.NONE):
        raise Again
    inserts = any(operation.verb is Verb.INSERT for operation in requested)
    if evidence is Evidence.UNTOUCHED and (inserts or applied is not WriteApplied.YES) and not conditional:
        raise Again
    raise _unanswered(error)


def _any_undeleted(shown: Iterable[tuple[Operation, Row | None]]) -> bool:
    """Tell whether a row that was to be deleted is there. `shown`: operations, and their rows as read."""
    return any(operation.verb is Verb.DELETE and row is not None for operation, row in shown)


def outcome_unknown(reason: str) -> Ambiguous:
    """Return the error of a write with an unknown outcome."""
    return Ambiguous(f"the outcome is unknown: {reason}", hint="read the row before you repeat the operation")


def _unanswered(error: RekeyError) -> Ambiguous:
    code = error.code if isinstance(error, ServiceError) else ""
    return outcome_unknown(
        "the write was not answered, and the rows as they are now do not show whether it was applied"
        f" ({code or type(error).__name__})"
    )


Step = tuple[Prepared, During]


async def _evidence(
    flow: Flow, steps: Sequence[Step], began: int, sent: Sequence[Operation], rows: Rows
) -> Evidence:
    """Return what journal and replicas prove about rows that the authority has just shown. `steps`: the
    call's writes as sent; `began`: when; `sent`: their operations; `rows`: what the authority shows."""
    # The write is this client's own if these were read in this order: the authority's rows as written; a
    # journal that announces no other write of these keys; replicas that are as before the write, and differ
    # from what it makes of them; the authority's rows, still the same. Any other writer of those rows would
    # have an intent, or would have changed the replicas.
    by_key = {operation.key: row for operation, row in zip(sent, rows, strict=True)}
    before = [write.before for write, _ in steps if write.before is not None]
    if any(etag_of(row) == version_of(by_key.get(key_of(row))) for row in before):
        return Evidence.UNTOUCHED  # nothing was written since
    if await _is_announced(flow, steps, began):
        return Evidence.NONE
    if any(_leaves_no_trace(flow, write) for write, _ in steps):
        return Evidence.NONE
    if not flow.permit.copied:
        # A row without a replica may not have been copied yet: who creates one again that this write deleted
        # leaves no trace. So a delete is sent again only over the row that was read before it (above).
        undeleted = _any_undeleted(zip(sent, rows, strict=True))
        return Evidence.NONE if undeleted else Evidence.ALONE
    evidence = await side_by_side(
        _of_replicas(flow, write, during, by_key.get(write.sent[-1].key)) for write, during in steps
    )
    again = await side_by_side(flow.authority.table.get(operation.key) for operation in sent)
    if [version_of(row) for row in again] != [version_of(row) for row in rows]:
        return Evidence.NONE
    return next((kind for kind in (Evidence.UNTOUCHED, Evidence.OURS) if kind in evidence), Evidence.ALONE)


def _leaves_no_trace(flow: Flow, write: Prepared) -> bool:
    """Tell whether a delete removes a row that no kind takes, which has no replica: a row that another client
    then creates meets none either, so no intent of that client need show that the delete was done."""
    authority, mapper = flow.authority, flow.authority.mapper
    if authority.side != SOURCE or not write.is_delete:
        return False
    row = write.before
    if row is None and not mapper.content_derived:  # the old key alone says of which kind it is
        row = {PARTITION_KEY: write.old_key.partition, ROW_KEY: write.old_key.row}
    return row is not None and mapper.is_dropped(row)


async def _is_announced(flow: Flow, steps: Sequence[Step], began: int) -> bool:
    """Tell whether the journal announces another write of the keys of a call."""
    own = {intent.id for intent in flow.intents}
    # Writes of this client that the authority had answered before: of them only replicas follow.
    own |= {intent_id for intent_id, decided in flow.client.in_flight.decided.items() if decided < began}
    about = {(intent.side, intent.key) for intent in flow.intents}
    for write, during in steps:
        if write.source_key is not None:
            about.add((SOURCE, write.source_key))
        about |= {(TARGET, main) for main in during.main_keys(write)}
    async for intents in flow.client.journal.scan():
        if any(intent.id not in own and (intent.side, intent.key) in about for intent in intents):
            return True
    return False


async def _of_replicas(flow: Flow, write: Prepared, during: During, now: Row | None) -> Evidence:
    """Compare the replicas read before the write with those there now. `now`: the authority's row."""
    replicas, expected = flow.authority.replicas, write.replicas.expected
    if expected is None or write.source_key is None:
        return Evidence.ALONE
    beside = {place for place, _ in write.secondary_writes}  # written with the authority
    # For a delete, reads during the write count too: another writer's delete would have removed the replica.
    is_delete = write.request.operation.verb is Verb.DELETE
    read = {**during.read, **write.replicas.read} if is_delete else write.replicas.read
    early = {place: row for place, row in sorted(read.items()) if place not in beside}
    then = await side_by_side(replicas.table(place.table).get(place.key) for place in early)
    if list(map(version_of, then)) != list(map(version_of, early.values())):
        return Evidence.ALONE

    def same(rows: Mapping[TargetKey, Row], place: TargetKey) -> bool:
        wanted, row = rows.get(place), early.get(place)
        if wanted is None or row is None:
            return wanted is None and (row is None or place not in during.own)
        return same_content(wanted, row, replicas.ignoring.get(place.table, frozenset()))

    try:
        shown = await replicas.expected_of(write.old_key, now, early.get(source_place(write.old_key)))
    except RowRefused:
        return Evidence.ALONE  # the row stands for another old key
    main = {place for place in (*shown, *early) if place.table <= 0}
    if main and all(same(shown, place) for place in main):
        # A row that no kind takes has no replica that could differ, whoever wrote it.
        is_followed = now is None or any(place.table <= 0 for place in shown)
        return Evidence.UNTOUCHED if is_followed else Evidence.ALONE
    return Evidence.ALONE if all(same(expected, place) for place in early) else Evidence.OURS
