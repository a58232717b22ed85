"""Sweep: finds every mapping row, or target row, whose source row is gone, so that its copies can be removed.
It only names candidates: propagate rereads both sides before anything is deleted."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

from rekey.core.concurrency import for_each
from rekey.core.spill import Spill, hash_of
from rekey.declaration.mapper import Mapper
from rekey.mapping.computed import ComputedMapping
from rekey.mapping.store import MappingStore
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row, key_of
from rekey.protocol.propagate import Propagated, Propagator
from rekey.tables.base import Table
from rekey.tables.sent import Overhead, overhead

T = TypeVar("T")

_PREFIX = 2
_DIGEST_CHARACTERS = 32
# Digests held in memory before they are written to disk; those of a smaller table never are.
_BUFFERED = 65_536


class DigestParts:
    """A set of keyed row digests, without keys, in 1,024 parts by prefix, on disk from `_BUFFERED` on. Use as
    a context manager, which deletes the parts."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="rekey-sweep-")
        self._buffers: defaultdict[str, list[str]] = defaultdict(list)
        self._buffered = 0

    def __enter__(self) -> DigestParts:
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.cleanup()

    def add(self, digest: str) -> None:
        self._buffers[digest[:_PREFIX]].append(digest)
        self._buffered += 1
        if self._buffered < _BUFFERED:
            return
        for prefix, digests in self._buffers.items():
            with self._part(prefix).open("a", encoding="ascii") as part:
                part.write("".join(digests))
        self._buffers.clear()
        self._buffered = 0

    def prefixes(self) -> list[str]:
        """Return the two-character prefixes of the added digests."""
        return sorted({*self._buffers, *(part.name for part in Path(self._temporary.name).iterdir())})

    def read(self, prefix: str) -> set[str]:
        """Return all digests that start with a two-character prefix."""
        digests = set(self._buffers.get(prefix, ()))
        path = self._part(prefix)
        if path.exists():
            text = path.read_text(encoding="ascii")
            digests.update(
                text[at : at + _DIGEST_CHARACTERS] for at in range(0, len(text), _DIGEST_CHARACTERS)
            )
        return digests

    def _part(self, prefix: str) -> Path:
        return Path(self._temporary.name) / prefix


async def gone(
    table: Table,
    mapping: MappingStore,
    direction: str,
    *,
    without: Mapper | None = None,
    advance: Callable[[int], None],
    check: Callable[[], None],
) -> AsyncGenerator[list[EntityKey], None]:
    """Yield, page by page of the mapping, the source keys of mapping rows whose row is not in `table`.

    Iterate within `aclosing`: only then are the parts deleted as soon as an error ends the iteration.

    Args:
        table: the source (direction `f`) or the main target (direction `r`).
        direction: which mapping rows to walk: `f` forward, `r` reverse.
        without: the mapper of a source whose dropped rows count as not there; None: each row counts.
        advance: called with the number of rows of `table` scanned, page by page.
        check: called between pages; raises to stop.
    """
    with DigestParts() as parts:
        digest_of = mapping.rows.ids.long
        async for page in table.scan(select=without.kind_inputs if without else [PARTITION_KEY, ROW_KEY]):
            check()
            for row in page.rows:
                if without is not None and without.is_dropped(row):
                    continue
                parts.add(digest_of(table.name, key_of(row)))
            advance(len(page.rows))
        # The mapping is sorted by the same digests: one part at a time is in memory, and no point read is
        # needed.
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


async def unmatched(
    keys: AsyncIterator[list[EntityKey]], present: AsyncIterator[list[EntityKey]]
) -> AsyncGenerator[list[EntityKey], None]:
    """Yield those of `keys` that are not in `present`, in groups; both may be of any size.

    `present` is read first. Iterate within `aclosing`: only then are temporary files deleted as soon as an
    error ends the iteration.
    """
    with Spill[tuple[bool, EntityKey]](None, _by_key) as spill:
        for is_present, pages in ((True, present), (False, keys)):
            async for page in pages:
                for key in page:
                    spill.put((is_present, key))
        for group in spill.groups():
            there = {key for is_present, key in group if is_present}
            if missing := [key for is_present, key in group if not is_present and key not in there]:
                yield missing


def _by_key(record: tuple[bool, EntityKey]) -> int:
    return hash_of("\0".join(record[1]))


async def source_keys(
    table: Table,
    keys_of: Callable[[Sequence[Row]], list[EntityKey]],
    *,
    advance: Callable[[int], None] = lambda _rows: None,
    check: Callable[[], None],
) -> AsyncIterator[list[EntityKey]]:
    """Yield the source keys of a table's rows, page by page. `advance`, `check`: as of `gone`."""
    async for page in table.scan(select=[PARTITION_KEY, ROW_KEY]):
        check()
        yield keys_of(page.rows)
        advance(len(page.rows))


async def sweep(
    propagator: Propagator, *, concurrency: int, advance: Callable[[int], None], check: Callable[[], None]
) -> int:
    """Propagate every source key in the mapping, or of a target row, whose row is gone or no longer migrated;
    return for how many this wrote something.

    This covers rows deleted while they were being copied, crashes between copy and checkpoint, and all
    deletes of capture "delta".
    """
    changed, source, mapping = 0, propagator.source, propagator.mapping
    if isinstance(mapping, ComputedMapping):
        present = source_keys(source, lambda rows: [*map(key_of, rows)], advance=advance, check=check)
        portions = unmatched(source_keys(propagator.targets[0], mapping.sources_of, check=check), present)
    else:
        # A copy writes nothing for a row that no kind takes, so it does not meet what an earlier one wrote,
        # before a rollback that kept the targets.
        without = propagator.mapper if propagator.mapper.drops else None
        portions = gone(source, mapping, "f", without=without, advance=advance, check=check)
    async with aclosing(portions) as candidates:
        async for portion in candidates:
            changed += await _propagated(portion, propagator.propagate, concurrency)
    return changed


async def settle_moved(
    source: Table,
    propagate: Callable[[Row], Awaitable[Propagated]],
    *,
    since: str,
    concurrency: int,
    advance: Callable[[int], None],
    check: Callable[[], None],
) -> int:
    """Propagate every source row written since `since` that may have been copied under an older target key;
    return for how many this wrote something. Needed where target keys come from content.

    Args:
        propagate: `Propagator.propagate_moved`.
        since: a time of the service, before the first row was read for the copy.
        concurrency: how many rows are checked at a time.
        advance: called with the number of rows checked, page by page.
        check: called between pages; raises to stop.

    Raises:
        Collision, RowRefused: as propagate does.
    """
    # The backfill writes rows as read a moment ago. If the application has moved a row meanwhile, its writer
    # finds nothing under the older target key, and then the backfill inserts its copy there. The sweep does
    # not find that copy, because the source row is not gone.
    changed = 0
    async for page in source.scan(modified_from=since):
        check()
        changed += await _propagated(page.rows, propagate, concurrency)
        advance(len(page.rows))
    return changed


async def _propagated(
    items: Iterable[T], propagate: Callable[[T], Awaitable[Propagated]], concurrency: int
) -> int:
    """Propagate each item; return for how many this wrote something."""
    changed = 0

    async def settle(item: T) -> None:
        nonlocal changed
        # A separate statement: `changed += await ...` would read the sum first and lose concurrent additions.
        outcome = await propagate(item)
        changed += outcome.changed

    with overhead(Overhead.CHANGES):
        await for_each(items, settle, limit=concurrency)
    return changed
