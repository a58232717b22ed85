"""The route of a dual-write client's operation, decided by phase, view, `copied` and `reverse` alone (ADR
0017, ADR 0046). Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias

from rekey.core.joint import spoken
from rekey.errors import WritesRefused
from rekey.phases import ControlPhase

# One of the two tables that a view can address, and that can be the authority.
Side: TypeAlias = Literal["source", "target"]

SOURCE: Side = "source"
TARGET: Side = "target"


class View(StrEnum):
    """How an application addresses its rows."""

    # By old keys, in the source.
    OLD = "old"
    # By new keys, in the main target.
    NEW = "new"

    @property
    def side(self) -> Side:
        return SOURCE if self is View.OLD else TARGET


class Route(StrEnum):
    """The route of one write."""

    # To the view's table only; nothing follows it.
    PLAIN = "plain"
    # The view's table is the authority; the replicas follow.
    SAME_VIEW = "same-view"
    # The view's table is a replica: the authority is written first.
    CROSS_VIEW = "cross-view"
    # The write waits: there is a freeze.
    WAIT = "wait"
    # The write is refused in this phase; `refusal_code` says why.
    REFUSED = "refused"


NEW_VIEW_CLOSED = "new-view-closed"
NEW_VIEW_READS_ONLY = "new-view-reads-only"
OLD_VIEW_OVER = "old-view-over"
FROZEN = "frozen"
INDEX_TABLE = "index-table"
SECONDARY_ROW = "secondary-row"
SECONDARY_DIFFERS = "secondary-differs"
MIXED_PARTS = "mixed-parts"
PART_MOVED = "part-moved"
OTHERS_ROW = "others-row"


def authority(phase: ControlPhase | None) -> Side | None:
    """Return the side that is the authority in a phase; None in a freeze, where it stays what it was."""
    match phase:
        case ControlPhase.FREEZE:
            return None
        case ControlPhase.CUTOVER | ControlPhase.COMPLETE | ControlPhase.RETIRED:
            return TARGET
    return SOURCE


def is_settled_by_clients(phase: ControlPhase | None, *, reverse: bool) -> bool:
    """Tell whether live clients settle dead ones' intents in a phase: not in a freeze, where the runner does,
    and not where no replica follows the target. `reverse`: of the migration."""
    match phase:
        case ControlPhase.DUAL_WRITE:
            return True
        case ControlPhase.CUTOVER | ControlPhase.COMPLETE:
            return reverse
    return False


def route(
    phase: ControlPhase | None, view: View, *, copied: bool, reverse: bool, maintained: bool = False
) -> Route:
    """Return the route of a write.

    Args:
        phase: None when there is no control row yet.
        copied: whether the backfill is done; before that the new view would miss rows.
        reverse: whether the declaration allows rollback after cutover. Without it no replica follows the
            target, so the old view is no longer current.
        maintained: whether clients maintain index tables after `complete`: then replicas follow as in
            `cutover`.
    """
    match phase:
        case None | ControlPhase.SOURCE:
            return Route.PLAIN if view is View.OLD else Route.REFUSED
        case ControlPhase.DUAL_WRITE:
            if view is View.OLD:
                return Route.SAME_VIEW
            # Without `reverse` it is undefined what the write is in the source.
            return Route.CROSS_VIEW if copied and reverse else Route.REFUSED
        case ControlPhase.FREEZE:
            return Route.WAIT
        case ControlPhase.CUTOVER:
            if view is View.OLD:
                return Route.CROSS_VIEW if reverse else Route.REFUSED
            return Route.SAME_VIEW if reverse else Route.PLAIN
        case ControlPhase.COMPLETE | ControlPhase.RETIRED:
            if view is View.OLD:
                return Route.REFUSED
            return Route.SAME_VIEW if maintained else Route.PLAIN


def reads_refused(phase: ControlPhase | None, view: View, *, copied: bool, reverse: bool) -> str:
    """Return "" when the view's table may be read in a phase, otherwise the code for `refusal`."""
    if view is View.NEW:
        open_already = authority(phase) is TARGET or (
            copied and phase in (ControlPhase.DUAL_WRITE, ControlPhase.FREEZE)
        )
        return "" if open_already else NEW_VIEW_CLOSED
    over = phase in (ControlPhase.COMPLETE, ControlPhase.RETIRED)
    return OLD_VIEW_OVER if over or (phase is ControlPhase.CUTOVER and not reverse) else ""


def index_write_refused(phase: ControlPhase | None) -> str:
    """Return "" when an index table may be written by the application, otherwise the code for `refusal`."""
    return "" if phase in (ControlPhase.COMPLETE, ControlPhase.RETIRED) else INDEX_TABLE


# Message and hint of a refusal, by its code.
_REFUSALS = {
    NEW_VIEW_CLOSED: (
        "{table} cannot be used by its new keys yet: not all rows are copied",
        "use the old view until `rekey status` says that the backfill is done, then this one",
    ),
    NEW_VIEW_READS_ONLY: (
        "{table} cannot be written by its new keys before cutover: the script says reverse=False",
        "write in the old view until cutover",
    ),
    OLD_VIEW_OVER: (
        "{table} cannot be used by its old keys any more: the migration has gone beyond that",
        "deploy the version of the application that uses the new view",
    ),
    INDEX_TABLE: (
        "{table} is an index table: until `complete` it follows its main table and is not written by itself",
        "write the main row: its index rows follow",
    ),
    SECONDARY_ROW: (
        "secondary rows of {table} follow their main rows and are not written by themselves until `complete`",
        "write the main row: its secondary rows follow in the same transaction",
    ),
    SECONDARY_DIFFERS: (
        "a secondary row of {table} would become something else than its main row gives by the script",
        "write it as the script declares it, with its main row or after it, until the handover",
    ),
    MIXED_PARTS: (
        "a transaction on {table} writes rows of a part that is migrated, and rows of no part or of another",
        "write the rows of each part in a transaction of their own, and rows of no part in another",
    ),
    PART_MOVED: (
        "{table} no longer has these rows: the migration of their part has gone beyond the old keys",
        "use them by their new keys in the new table; a query compares PartitionKey with those of other rows",
    ),
    OTHERS_ROW: (
        "no migration that this client follows gives the row's key in {table}: others fill the table too",
        (
            "if a migration gives the row, name its script to the client or proxy as well; a row that none"
            " gives is written with the SDK's own TableClient, at the account's own endpoint"
        ),
    ),
    FROZEN: (
        "writes to {table} wait while the migration moves the authority",
        "repeat the operation: a freeze lasts seconds",
    ),
}


def refusal(code: str, table: str) -> WritesRefused:
    """Return the error for a refused operation on the table named, saying what to do."""
    what, hint = _REFUSALS[code]
    name = spoken(table)
    return WritesRefused(
        code, what.format(table=name), hint=hint.format(table=name), retryable=code == FROZEN
    )


def refusal_code(view: View, route_taken: Route, *, copied: bool, is_part: bool = False) -> str:
    """Return the code of a refused or waiting route. `is_part`: a part of a table is migrated."""
    if route_taken is Route.WAIT:
        return FROZEN
    if view is View.OLD:
        return PART_MOVED if is_part else OLD_VIEW_OVER
    return NEW_VIEW_READS_ONLY if copied else NEW_VIEW_CLOSED
