"""Inspects a table, whole or by a bounded sample, without writing anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rekey.core.progress import Progress
from rekey.core.safe_ids import SafeIds, new_key
from rekey.inspect.inventory import PARTS, SampleSize, read_sample, read_whole
from rekey.inspect.profile import TableProfile
from rekey.inspect.report import Inspection, report_of
from rekey.model import Row
from rekey.tables.base import Table

SAMPLE_REQUESTS = 60
HEAD_ROWS = 5_000


async def inspect_table(
    table: Table, *, exact: bool = False, show_keys: bool = False, progress: Progress | None = None
) -> tuple[Inspection, TableProfile]:
    """Return the report of a table, and the profile it was made from (for advice; it holds keys). Memory does
    not grow with the table. Safe ids use a key that is not kept, so they are valid within one output only.

    Args:
        table: the table.
        exact: read every row; otherwise at most `SAMPLE_REQUESTS` requests are sent.
        show_keys: name the largest partitions by their keys.
        progress: reports the rows read.

    Raises:
        TableMissing: there is no such table.
        CredentialRefused, EndpointDown, Unavailable: the service failed.
    """
    profile = TableProfile(gaps=not exact)
    progress = progress or Progress()
    with progress.task(f"inspect {table.name}") as advance:
        stored = [0 for _ in PARTS]

        def take(rows: Sequence[Row], part: int) -> None:
            before = profile.stored_bytes
            profile.take(rows)
            stored[part] += profile.stored_bytes - before
            advance(len(rows))

        if exact:
            inventory = await read_whole(table, take, progress.expect)
        else:
            size = SampleSize(head_rows=HEAD_ROWS, probes=SAMPLE_REQUESTS, requests=SAMPLE_REQUESTS)
            inventory = await read_sample(table, size, take, profile.jump)
    profile.finish(whole=inventory.exact)
    inventory = replace(inventory, stored_bytes=round(inventory.weights.sum(stored)))
    return report_of(profile, inventory, SafeIds(new_key()), show_keys=show_keys), profile
