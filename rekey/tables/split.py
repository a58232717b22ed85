"""Finding a key that splits a key range in two: several partitions between them, one partition by RowKey. A
split is correct wherever it is, since rows go to the side to which they compare; it may be uneven."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

from rekey.core.key_order import character_of, rank_of
from rekey.model import LAST_ROW, PARTITION_KEY, ROW_KEY, EntityKey, KeyRange, key_of
from rekey.tables.base import Table
from rekey.tables.kinds import whole
from rekey.tables.part import with_others

# Sorts after every character but U+FFFE and U+FFFF.
HIGH = "\ufffd"

# Returns the first existing text greater than the one given, None when there is none.
Beyond = Callable[[str], Awaitable[str | None]]

_LAST_ASCII = 0x7E
_LAST_CONTROL = 0x9F
# Most texts that are stepped over one by one because each is a prefix of all that follow.
_MOST_PREFIXES = 8


async def find_middle(
    source: Table, rest: KeyRange, cursor: EntityKey | None = None, *, partitions_apart: bool = False
) -> EntityKey | None:
    """Return a key within `rest` that has rows on both sides of it, None when none is found. Sends about 15
    queries with `$top=1`, since the service tells neither how many rows nor which partitions there are.

    Args:
        rest: the range to be split.
        cursor: how far the range was read, None when it was not begun.
        partitions_apart: split only between partitions, and query nothing within one.

    Raises:
        ServiceError: the table could not be read.
    """

    # Includes rows of other kinds and, within its ranges, beside a part: no page is empty for them.
    source = with_others(whole(source))

    async def first(within: KeyRange) -> EntityKey | None:
        async with aclosing(source.scan(within, select=[PARTITION_KEY, ROW_KEY], page_rows=1)) as pages:  # type: ignore[type-var]
            async for page in pages:
                if page.rows:
                    return key_of(page.rows[0])
        return None

    async def partition_beyond(text: str) -> str | None:
        key = await first(KeyRange(EntityKey(text, LAST_ROW), rest.upto))
        return None if key is None or key.partition == text else key.partition

    lowest = cursor or await first(rest)
    if lowest is None:
        return None

    async def row_beyond(text: str) -> str | None:
        key = await first(KeyRange(EntityKey(lowest.partition, text), rest.upto))
        return None if key is None or key.partition != lowest.partition else key.row

    key: EntityKey | None = None
    if (partition := await middle_text(lowest.partition, partition_beyond)) is not None:
        key = EntityKey(partition, LAST_ROW)
    elif not partitions_apart and (row := await middle_text(lowest.row, row_beyond)) is not None:
        key = EntityKey(lowest.partition, row)
    return key if key is not None and key in rest else None


async def middle_text(low: str, beyond: Beyond) -> str | None:
    """Return a text at or above `low`, the lowest existing text, that has existing texts beyond it; None if
    none is found."""
    before: str | None = None
    for _ in range(_MOST_PREFIXES):
        if any("\ud800" <= character <= "\udfff" for character in low):
            return before  # a text with half of a surrogate pair cannot be queried
        shared = await _shared(low, beyond)
        if shared < len(low):
            break
        following = await beyond(low)
        if following is None:
            return before
        before, low = low, following  # all other texts begin with `low`: split those
    else:
        return before
    prefix = low[:shared]
    lowest = rank_of(low[shared])

    async def something_beyond(rank: int) -> bool:
        return await beyond(prefix + character_of(rank) + HIGH) is not None

    # There are texts beyond `lowest`, because `prefix` is the longest that all texts share.
    occupied, empty = lowest, rank_of(HIGH)
    if lowest < _LAST_ASCII and not await something_beyond(_LAST_ASCII):
        empty = _LAST_ASCII
    while empty - occupied > 1:
        half = (occupied + empty) // 2
        if await something_beyond(half):
            occupied = half
        else:
            empty = half
    # The characters after `prefix` range from `lowest` to `empty`, exclusive: cut in the middle.
    half = (lowest + empty - 1) // 2
    if _LAST_ASCII < half <= _LAST_CONTROL:
        half = _LAST_ASCII  # no key holds control characters, and some servers refuse them
    return prefix + character_of(half) + HIGH


async def _shared(low: str, beyond: Beyond) -> int:
    """Return the length of the prefix that all existing texts share with `low`, the lowest of them. By
    halving: a long common prefix costs a few queries, not one per character."""
    all_share, some_differ = 0, len(low) + 1
    while some_differ - all_share > 1:
        half = (all_share + some_differ) // 2
        if await beyond(low[:half] + HIGH) is None:
            all_share = half
        else:
            some_differ = half
    return all_share
