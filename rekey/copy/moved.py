"""Rows that moved while they were copied: what was copied of them under their older keys is removed.

Rules kept here:

* The backfill writes what it read a moment ago. Where keys come from content, the row may have moved
  meanwhile: its writer finds nothing under the older key, and then the copy is inserted there. Nobody meets
  it, and the sweep does not see it, because the row is not gone.
* So when the last row is copied, every row that was written since the first one was read is looked at once
  more. A copy stands only under keys that the forward row lists: where that lists none but the row's own,
  there is nothing to look for; all others are left to propagate.
* Where keys come from keys alone, no row moves, and nothing needs to be looked at.
"""

from __future__ import annotations

from collections.abc import Callable

from rekey.core.concurrency import for_each
from rekey.model import Row, key_of
from rekey.protocol.propagate import Propagator


async def settle_moved(
    propagator: Propagator,
    *,
    since: str,
    concurrency: int,
    advance: Callable[[int], None],
    check: Callable[[], None],
) -> int:
    """Propagate every row written since a moment that may have been copied under an older key.

    Args:
        propagator: of the migration.
        since: a time of the service, before the first row was read for the copy.
        concurrency: how many rows are looked at at a time.
        advance: told how many rows were looked at.
        check: called between pages; raises to stop.

    Returns:
        How many rows this changed something for.

    Raises:
        Collision, RowRefused: as propagate does.
    """
    changed = 0

    async def settle(row: Row) -> None:
        nonlocal changed
        source_key = key_of(row)
        forward = await propagator.mapping.forward(source_key)
        if forward is None or forward.targets == propagator.expected_of(source_key, row).keys():
            return
        # Awaited before the sum is read: others add to it meanwhile.
        outcome = await propagator.propagate(source_key)
        changed += outcome.changed

    if not propagator.mapper.content_derived:
        return 0
    async for page in propagator.source.scan(modified_from=since):
        check()
        await for_each(page.rows, settle, limit=concurrency)
        advance(len(page.rows))
    return changed
