"""Step 3 of a write, the sending: the authority's write, and what is known of it when no answer came.

Rules kept here (ADR 0035):

* An attempt that was not answered can take effect for `ClientParts.late_s` seconds more. One that depends on
  a version cannot any more once that version is gone, since every write changes the ETag. As long as an
  attempt can take effect, the write is not sent again.
* Content alone proves nothing where the caller asked for a condition or for a new row: another writer may
  have written the same. The write is this client's own if these were read one after the other: the
  authority's rows as written; a journal in which no other write of these keys is announced; replicas that
  stand as they stood before the write, and differ from what it makes of them; the authority's rows, still the
  same. Any other writer of those rows would have an intent, or would have changed the replicas.
* The same evidence tells that a row is as it was before, where the replicas show what the authority does now.
  Before the backfill is done replicas tell nothing; the row as it was read before the write tells it then.
* Where the caller set no condition, rows that hold what was to be written are an answer whoever wrote them,
  once no attempt can take effect any more: also rows that held it, and that others have changed since.
* What rows have held once is never sent again, nor what changed while it was waited: it would perhaps take
  effect twice.
* A row that was to be created and is not there, or was to be deleted and is there, was not written, if no
  other write of it is announced: one that had deleted or created it in between lingers in the journal
  (`Work.lingers`). So such a write is sent again, too. All else is told as open.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum

from rekey.client.authority import Flow, check_one_partition
from rekey.client.work import State, Work
from rekey.errors import Ambiguous, RekeyError, RowRefused, ServiceError, Unavailable
from rekey.mapping.rows import TargetKey
from rekey.model import EntityKey, Row, etag_of, key_of
from rekey.protocol.effects import apply_operations, side_by_side
from rekey.protocol.operations import CREATES, is_conditional, may_travel
from rekey.protocol.propagate import version_of
from rekey.protocol.replicas import same_content, source_place
from rekey.protocol.rules import SOURCE, TARGET
from rekey.tables.answers import may_be_applied
from rekey.tables.base import MAX_BATCH_OPERATIONS, Operation, Table, Verb, rejected
from rekey.tables.requests import Landed, all_landed

Rows = Sequence[Row | None]
# Waits until nothing that was sent can take effect any more.
Wait = Callable[[], Awaitable[object]]


class Evidence(Enum):
    """What the journal and the replicas tell of rows that the authority shows after a lost answer."""

    NONE = "none"
    # No other write of these keys is announced.
    ALONE = "alone"
    # Nor has any other been done: rows that hold what was written were written by this client.
    OURS = "ours"
    # Nor has any other been done, and the row is there, or is not, as when the write began.
    UNTOUCHED = "untouched"


# Looks for evidence about the authority's rows as read.
Witness = Callable[[Rows], Awaitable[Evidence]]


class Again(Exception):
    """The write was not applied, and no attempt can take effect any more: it is to be sent again."""


async def send(flow: Flow) -> bool:
    """Write the authority, with the late reads during that write; return False to begin again.

    Raises:
        RekeyError: the answer to the caller. `flow.sent` tells whether the write may have been applied.
    """
    pairs = [(work, operation) for work in flow.works for operation in work.sent]
    check_one_partition({operation.key.partition for _, operation in pairs})
    pairs = _once_a_row(pairs + [(work, operation) for work in flow.works for _, operation in work.along])
    operations = [operation for _, operation in pairs]
    if len(operations) > MAX_BATCH_OPERATIONS:
        raise rejected(
            "InvalidInput",
            f"a transaction has at most {MAX_BATCH_OPERATIONS} operations, and each row counts with its"
            " secondary rows",
            hint="while the migration runs, write fewer rows in one transaction",
        )
    flow.client.permits.check(flow.permit)
    flow.sent, began = True, next(flow.client.moments)
    try:
        etags, *_ = await side_by_side(
            [
                apply_operations(flow.authority.table, operations),
                *(flow.authority.while_writing(work) for work in flow.works),
            ]
        )
    except RekeyError as error:
        if is_open(error):
            try:
                etags = await settled(
                    flow.authority.table, [work.given for work in flow.works], operations,
                    wait=flow.client.wait_out, witness=lambda rows: _evidence(flow, began, operations, rows),
                    error=error,
                )  # fmt: skip
            except Again:
                flow.sent = False
                return False
        else:
            flow.sent = False
            work, operation = pairs[error.index or 0]
            if flow.raced(error, work, operation):
                return False
            if error.index is not None:
                error.index = work.index if len(flow.works) > 1 else None
            raise
    decided = next(flow.client.moments)
    flow.client.decided.update((intent.id, decided) for work in flow.works for intent in work.intents)
    written = flow.written = {one.key: etag for one, etag in zip(operations, etags, strict=True)}
    for work in flow.works:
        work.etag = None if work.sent[-1].verb is Verb.DELETE else written[work.sent[-1].key]
        work.state = State.DECIDED
    return True


async def send_alone(table: Table, operations: Sequence[Operation], wait: Wait) -> list[str | None]:
    """Write a table that no replica follows; return the new ETags. The caller bounds the time.

    There is no journal. So a write without a condition is sent again if its row does not show it, as by the
    SDK, but only when no attempt can take effect any more; what another client did meanwhile is not seen.

    Raises:
        RekeyError: the answer to the caller; Ambiguous where it is not known whether it was applied.
    """

    async def none(_rows: Rows) -> Evidence:
        return Evidence.UNTOUCHED if _is_free(operations) else Evidence.ALONE

    while True:
        try:
            return await apply_operations(table, operations)
        except RekeyError as error:
            if not is_open(error):
                raise
            with suppress(Again):
                return await settled(table, operations, operations, wait=wait, witness=none, error=error)


def _once_a_row(pairs: Sequence[tuple[Work, Operation]]) -> list[tuple[Work, Operation]]:
    """Return the operations of a transaction, which can have each row once: one that is deleted and created
    again is replaced. Raises RequestRejected for any other two operations of one row."""
    rows: dict[EntityKey, tuple[Work, Operation]] = {}
    for work, operation in pairs:
        _, other = rows.setdefault(operation.key, (work, operation))
        if other is operation:
            continue
        gone, new = sorted((other, operation), key=lambda one: one.verb is not Verb.DELETE)
        if gone.verb is not Verb.DELETE or new.verb not in (Verb.INSERT, Verb.REPLACE):
            raise rejected("InvalidDuplicateRow", "a transaction has two operations on one row")
        rows[operation.key] = work, Operation(Verb.REPLACE, new.row, gone.etag)
    return list(rows.values())


def _is_free(given: Sequence[Operation]) -> bool:
    """Tell whether a write demands no state of its rows: rows that hold it answer its caller."""
    return not any(one.verb is Verb.INSERT or is_conditional(one) for one in given)


def is_open(error: BaseException) -> bool:
    """Tell whether a write that ended with this error may have been applied, or may yet be."""
    return may_travel(error) and not (isinstance(error, Unavailable) and not may_be_applied(error))


async def settled(
    table: Table,
    given: Sequence[Operation],
    sent: Sequence[Operation],
    *,
    wait: Wait,
    witness: Witness,
    error: RekeyError,
) -> list[str | None]:
    """Return the ETags of a write that was not answered, if it turns out to be applied.

    Args:
        table: what was written.
        given: the operations as the caller gave them.
        sent: the operations as they were sent, one by itself or several as one transaction.
        wait: waits until no attempt can take effect any more.
        witness: looks for evidence whose write it was.
        error: with which the attempt ended.

    Raises:
        Again: it was not applied, and no attempt can take effect any more.
        Ambiguous: it cannot be told.
    """
    free, waited = _is_free(given), False
    shown: list[str | None] | None = None
    first: list[str | None] | None = None
    while True:
        try:
            rows: Rows = await side_by_side(table.get(one.key) for one in sent)
            found = all_landed(sent, rows)
            pairs = [(one, row) for one, row in zip(sent, rows, strict=True) if is_conditional(one)]
            unchanged = any(version_of(row) == one.etag for one, row in pairs)
            # Rows are read one by one: a transaction may have taken effect between two of them.
            over = waited or (bool(pairs) and not unchanged)
            said = await witness(rows)
        except ServiceError as failed:
            raise _unanswered(error) from failed
        versions = [version_of(row) for row in rows]
        first = first or versions
        if found is Landed.YES and (said is Evidence.OURS or (over and free)):
            return versions
        shown = versions if found is Landed.YES else shown
        if over or (found is Landed.YES and not free and said is Evidence.ALONE):
            break  # waiting would tell nothing more
        await wait()
        waited = True
    if free and shown is not None:
        return shown
    if versions != first and not unchanged:  # perhaps by the write itself, and changed by others since
        raise _unanswered(error)
    creates = any(one.verb in CREATES and row is None for one, row in zip(sent, rows, strict=True))
    deletes = any(one.verb is Verb.DELETE and row is not None for one, row in zip(sent, rows, strict=True))
    if unchanged or ((creates or deletes) and said is not Evidence.NONE):
        raise Again
    inserts = any(one.verb is Verb.INSERT for one in given)
    if said is Evidence.UNTOUCHED and (inserts or found is not Landed.YES) and not pairs:
        raise Again
    raise _unanswered(error)


def left_open(said: str) -> Ambiguous:
    """Return the error of a write of which it is not known whether it was, or will be, applied."""
    return Ambiguous(f"the outcome is open: {said}", hint="read the row before you repeat the operation")


def _unanswered(error: RekeyError) -> Ambiguous:
    code = error.code if isinstance(error, ServiceError) else ""
    return left_open(
        "the write was sent and not answered, and what is there now does not tell whether it was applied"
        f" ({code or type(error).__name__})"
    )


async def _evidence(flow: Flow, began: int, sent: Sequence[Operation], rows: Rows) -> Evidence:
    """Return what journal and replicas tell of rows that the authority has just shown. `began`: when the
    write was sent."""
    by_key = {one.key: row for one, row in zip(sent, rows, strict=True)}
    before = [work.before for work in flow.works if work.before is not None]
    if any(etag_of(row) == version_of(by_key.get(key_of(row))) for row in before):
        return Evidence.UNTOUCHED  # nothing was written since
    if await _is_announced(flow, began):
        return Evidence.NONE
    if not flow.permit.copied:
        return Evidence.ALONE  # a row without a replica may be one that is not copied yet
    found = await side_by_side(_of_replicas(flow, work, by_key.get(work.sent[-1].key)) for work in flow.works)
    again = await side_by_side(flow.authority.table.get(one.key) for one in sent)
    if [version_of(row) for row in again] != [version_of(row) for row in rows]:
        return Evidence.NONE
    return next((one for one in (Evidence.UNTOUCHED, Evidence.OURS) if one in found), Evidence.ALONE)


async def _is_announced(flow: Flow, began: int) -> bool:
    """Tell whether the journal announces another write of the keys of a call, not counting those of this
    client that the authority had answered before: of them only replicas follow."""
    own = {intent.id for work in flow.works for intent in work.intents}
    own |= {one for one, decided in flow.client.decided.items() if decided < began}
    about = {(intent.side, intent.key) for work in flow.works for intent in work.intents}
    about |= {(SOURCE, work.source_key) for work in flow.works if work.source_key is not None}
    about |= {(TARGET, main) for work in flow.works for main in work.main_keys}
    async for intents in flow.client.journal.scan():
        if any(one.id not in own and (one.side, one.key) in about for one in intents):
            return True
    return False


async def _of_replicas(flow: Flow, work: Work, now: Row | None) -> Evidence:
    """Compare the replicas that were read before the write with those that are there now. `now`: the
    authority's row."""
    replicas, expected = flow.authority.replicas, work.expected
    if expected is None or work.source_key is None:
        return Evidence.ALONE
    beside = {place for place, _ in work.along}  # written with the authority
    # What was read during a delete will do: a replica of a row that another writer deleted would be gone.
    read = {**work.late, **work.early} if work.given.verb is Verb.DELETE else work.early
    early = {place: row for place, row in sorted(read.items()) if place not in beside}
    then = await side_by_side(replicas.table(place.table).get(place.key) for place in early)
    if list(map(version_of, then)) != list(map(version_of, early.values())):
        return Evidence.ALONE

    def same(rows: Mapping[TargetKey, Row], place: TargetKey) -> bool:
        wanted, row = rows.get(place), early.get(place)
        if wanted is None or row is None:
            return wanted is None and (row is None or place not in work.ours)
        return same_content(wanted, row, replicas.ignoring.get(place.table, frozenset()))

    try:
        shown = replicas.expected_of(work.old_key, now, early.get(source_place(work.old_key)))
    except RowRefused:
        return Evidence.ALONE  # the row stands for another old key
    main = {place for place in (*shown, *early) if place.table <= 0}
    if main and all(same(shown, place) for place in main):
        return Evidence.UNTOUCHED
    return Evidence.ALONE if all(same(expected, place) for place in early) else Evidence.OURS
