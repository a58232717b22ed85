"""Sweep: find every mapping row whose row is gone, so that what it stands for can be removed.

Rules kept here:

* A sweep only names candidates; propagate reads both sides afresh before anything is deleted, so a row that
  was written while the sweep ran is safe.
* Two scans and no point reads: the digests of all keys of one table are set aside by their first two
  characters (1,024 parts), then the mapping, which is sorted by the same digests, is walked part by part.
* Memory holds some ten thousand digests, and one part: a thousandth of the table's. What is more is on disk.
* Parts hold keyed digests only, no keys; their folder goes when the sweep ends, however it ends.
* The backfill writes what it read a moment ago. Where keys come from content, the row may have moved
  meanwhile: its writer finds nothing under the older key, and then the copy is inserted there. The sweep does
  not see it, because the row is not gone. So when the last row is copied, every row that was written since
  the first one was read is looked at once more (`settle_moved`). A copy stands only under keys that the
  forward row lists: where that lists none but the row's own, there is nothing to look for.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

from rekey.core.concurrency import for_each
from rekey.mapping.ids import SafeIds
from rekey.mapping.store import MappingStore
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row, key_of
from rekey.protocol.propagate import Propagator
from rekey.tables.base import Table

_PREFIX = 2
_DIGEST_CHARACTERS = 32
_BUFFERED = 65_536
"""Digests held in memory before they are written to their parts; of a small table none is."""


class DigestParts:
    """A set of row digests in parts by prefix, on disk when they are many. Use as a context manager."""

    def __init__(self) -> None:
        """Make a temporary folder for the parts."""
        self._temporary = tempfile.TemporaryDirectory(prefix="rekey-sweep-")
        self._buffers: defaultdict[str, list[str]] = defaultdict(list)
        self._buffered = 0

    def __enter__(self) -> DigestParts:
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.cleanup()

    def add(self, digest: str) -> None:
        """Add one 32-character digest."""
        self._buffers[digest[:_PREFIX]].append(digest)
        self._buffered += 1
        if self._buffered < _BUFFERED:
            return
        for prefix, digests in self._buffers.items():
            with self._part(prefix).open("a", encoding="ascii") as part:
                part.write("".join(digests))
        self._buffers.clear()
        self._buffered = 0

    def read(self, prefix: str) -> set[str]:
        """Return all digests that start with a two-character prefix."""
        found = set(self._buffers.get(prefix, ()))
        path = self._part(prefix)
        if path.exists():
            text = path.read_text(encoding="ascii")
            found.update(text[at : at + _DIGEST_CHARACTERS] for at in range(0, len(text), _DIGEST_CHARACTERS))
        return found

    def _part(self, prefix: str) -> Path:
        return Path(self._temporary.name) / prefix


async def gone(
    table: Table,
    ids: SafeIds,
    mapping: MappingStore,
    direction: str,
    *,
    advance: Callable[[int], None],
    check: Callable[[], None],
) -> AsyncGenerator[list[EntityKey], None]:
    """Yield, in portions, the source keys of mapping rows whose row is not in `table`.

    Iterate within `aclosing`: only then are the parts gone as soon as an error ends the iteration.

    Args:
        table: the source (direction `f`) or the main target (direction `r`).
        ids: the safe ids of the migration.
        mapping: its mapping store.
        direction: which mapping rows to walk: `f` forward, `r` reverse.
        advance: told how many rows were scanned.
        check: called between pages; raises to stop.
    """
    with DigestParts() as parts:
        async for page in table.scan(select=[PARTITION_KEY, ROW_KEY]):
            check()
            for row in page.rows:
                parts.add(ids.long(table.name, key_of(row)))
            advance(len(page.rows))
        prefix, present = "", set[str]()
        async for page in mapping.scan(direction):
            check()
            missing = []
            for row in page.rows:
                digest = row[ROW_KEY]
                if not digest.startswith(prefix) or not prefix:
                    prefix = digest[:_PREFIX]
                    present = parts.read(prefix)
                if digest not in present:
                    missing.append(mapping.rows.read_source(row))
            if missing:
                yield missing


async def sweep(
    propagator: Propagator,
    *,
    concurrency: int,
    advance: Callable[[int], None],
    check: Callable[[], None],
) -> int:
    """Propagate every mapping row whose source row is gone; return how many keys this changed.

    Closes "deleted while being copied", crashes between copy and checkpoint, and all deletes of a delta
    capture.
    """
    changed = 0

    async def settle(source_key: EntityKey) -> None:
        nonlocal changed
        # Awaited before the sum is read: others add to it meanwhile.
        outcome = await propagator.propagate(source_key)
        changed += outcome.changed

    mapping = propagator.mapping
    candidates = gone(propagator.source, mapping.rows.ids, mapping, "f", advance=advance, check=check)
    async with aclosing(candidates):
        async for portion in candidates:
            await for_each(portion, settle, limit=concurrency)
    return changed


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
