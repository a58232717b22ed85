"""Writes of source rows that no kind takes, in the old view after cutover. Such a row is in no target, so the
source alone has it; before cutover it is a row of the authority like all others."""

from __future__ import annotations

from collections.abc import Sequence

from rekey.client.parts import ClientParts
from rekey.client.send import send_conditional
from rekey.errors import ConditionFailed, RekeyError, RowExists, RowMissing, RowRefused, RowTooBusy
from rekey.model import Row
from rekey.protocol.effects import side_by_side
from rekey.protocol.operations import as_sent, as_stored, is_lost_race, row_after
from rekey.tables.base import Operation
from rekey.tables.rules import check_batch

# Attempts before a row counts as too busy.
_MAX_TRIES = 20
_CURES = {
    "the call also writes rows of a kind, which go to the new table first": "write them in two calls",
    "no kind took the row, so it is not in the new table, which decides since cutover": (
        "delete the row, then insert it again as a row of a kind"
    ),
    "it is not known of which kind the row would be": "write values in the form that the service returns",
    "no kind takes the row, and the new table decides since cutover": (
        "write a row of a kind, or wait for a rollback: rows of no kind are not migrated"
    ),
}
_MIXED, _BECOMES, _UNFORESEEN, NOT_OF_A_KIND = _CURES


def no_kind(problem: str, row_id: str) -> RowRefused:
    """Return the error for a write that one of `_CURES` is about."""
    return RowRefused("no-kind", "otherwise", problem, cure=_CURES[problem], row_id=row_id)


async def write_dropped(client: ClientParts, operations: Sequence[Operation]) -> list[str | None] | None:
    """Write rows of the source that no kind takes, and leave them of no kind; return their new ETags (None
    for deletes). None: no such row is there, and nothing was written.

    Raises:
        RowRefused: the call also writes other rows, or would make a row one of a kind.
        ServiceError: as `send_conditional`.
    """
    if len(operations) != 1:
        check_batch(operations)
    for _ in range(_MAX_TRIES):
        rows = await side_by_side(client.table.get(operation.key) for operation in operations)
        if not any(row is not None and client.propagator.mapper.is_dropped(row) for row in rows):
            return None
        # On the condition of the rows as read: while it holds, no row has become one of a kind.
        sent = [_checked(client, operations, index, rows[index]) for index in range(len(operations))]
        try:
            return await send_conditional(client.table, operations, sent, client.wait_out)
        except (RowExists, RowMissing, ConditionFailed) as error:
            failed = range(len(sent)) if error.index is None else [error.index]
            if not any(is_lost_race(error, operations[index], sent[index]) for index in failed):
                raise
    raise RowTooBusy(
        f"the row kept changing in {_MAX_TRIES} attempts to write it", hint="repeat the operation"
    )


def _checked(
    client: ClientParts, operations: Sequence[Operation], index: int, before: Row | None
) -> Operation:
    """Return an operation on a row that is of no kind, before and after it, as it is sent. Raises RowRefused
    and what the service would answer, in a transaction with the operation's index."""
    mapper = client.propagator.mapper
    try:
        operation, is_foreseen = as_stored(operations[index])
        row_id = client.propagator.row_id(operation.key)
        if before is None or not mapper.is_dropped(before):
            raise no_kind(_MIXED, row_id)
        after = row_after(operation, before)
        if after is not None and not mapper.is_dropped(after):
            raise no_kind(_BECOMES, row_id)
        if after is not None and not is_foreseen:
            raise no_kind(_UNFORESEEN, row_id)
        return as_sent(operation, before)
    except RekeyError as error:
        error.index = index if len(operations) > 1 else None
        raise
