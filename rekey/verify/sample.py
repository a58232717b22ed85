"""Verification by sample: random rows in both directions, and the confidence that they give. Source to
targets finds missing and altered rows, targets to source extra ones; each table has a bound of its own."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import NamedTuple

from rekey.core.concurrency import for_each
from rekey.errors import RowRefused
from rekey.model import PARTITION_KEY, EntityKey, key_of
from rekey.present.text import counted
from rekey.tables.base import MAX_PAGE_ROWS, Page
from rekey.verify.bucket_digests import SOURCE
from rekey.verify.confidence import CONFIDENCE, upper_bound
from rekey.verify.context import ReconcileContext
from rekey.verify.report import Direction, SampleReport
from rekey.verify.settle import Candidate, Collector, Point, settle

# Rows a sample may ask for; with more a full verification is cheaper and proves more.
MAX_ROWS = 100_000


# Largest response of the service ("Query timeout and pagination" and its limits).
PAGE_BYTES = 4 * 1024 * 1024
# The row twice, its mapping row, the source row.
LOOKUPS_A_TARGET_ROW = 4


class Drawn(NamedTuple):
    """Keys drawn from one table, and from how many."""

    keys: list[EntityKey]
    population: int


async def sample(
    ctx: ReconcileContext, n: int, seed: int, say: Callable[[str], None], *, always: bool = False
) -> SampleReport | None:
    """Draw `n` rows from the source and from every target table and check each as a full verification checks
    a difference.

    Args:
        ctx: the tables and the mapping.
        n: rows to draw per table, 1 to `MAX_ROWS`; a smaller table is checked whole.
        seed: decides which rows are drawn from a table; printed in the report.
        say: given what the sample costs, before anything is looked up.
        always: sample, also where a full verification takes fewer requests.

    Returns:
        The report; None where a full verification takes fewer requests: nothing was looked up.

    Raises:
        ValueError: `n` is out of range.
        Interrupted: `ctx.reads.stop` raised it.
        ServiceError: a table could not be read. A sample changes nothing.
    """
    if not 1 <= n <= MAX_ROWS:
        raise ValueError(f"a sample has 1 to {MAX_ROWS:,} rows")
    started_at = ctx.now()
    pages = {table: await _first_page(ctx, table) for table in ctx.numbers}
    if not always and all(page.full for page in pages.values()):
        return None  # pages of whole rows hold as many as pages of keys: the scan of keys alone costs as much
    drawn: dict[int, Drawn] = {}
    rows = Counter[int]()  # how many were read of each table

    async def draw_from(table: int) -> None:
        generator = random.Random(f"{seed}:{ctx.label(table)}")  # noqa: S311 repeatable on purpose, guards no secret
        drawn[table] = await reservoir(_keys(ctx, table, rows), n, generator)

    await for_each(ctx.numbers, draw_from, limit=ctx.reads.concurrency)
    row_bytes = {table: page.bytes / max(1, len(page.rows)) for table, page in pages.items()}
    full = sum(_requests(rows[table], row_bytes[table]) for table in ctx.numbers)
    lookups = _lookups(drawn)
    if lookups > full and not always:
        return None
    scanned = (
        _requests(rows[table], row_bytes[table] if _reads_whole(ctx, table) else 0.0) for table in ctx.numbers
    )
    asked = sum(1 + requests for requests in scanned) + lookups
    say(
        f"the sample asks for at most {counted(asked, 'request')}, and more where rows differ; a full"
        f" verification asks for about {full:,}"
    )
    collector = Collector(ctx, suspects=False)
    directions = [await _check(ctx, table, drawn[table], collector) for table in ctx.numbers]
    return SampleReport(
        started_at=started_at,
        finished_at=ctx.now(),
        source=ctx.source.name,
        seed=seed,
        asked=n,
        confidence=CONFIDENCE,
        directions=tuple(directions),
        differences=collector.findings(),
    )


async def _first_page(ctx: ReconcileContext, table: int) -> Page:
    async with aclosing(ctx.whole(table).scan()) as pages:  # type: ignore[type-var]  # all scans are generators
        async for page in pages:
            if page.rows:
                return page
    return Page([], None)


def _requests(rows: int, row_bytes: float) -> int:
    """Return the requests of reading so many rows of so many bytes on the wire."""
    a_page = min(MAX_PAGE_ROWS, PAGE_BYTES / row_bytes) if row_bytes else MAX_PAGE_ROWS
    return max(1, math.ceil(rows / max(1.0, a_page)))


def _lookups(drawn: Mapping[int, Drawn]) -> int:
    """Return the requests of looking the drawn rows up, at most, unless rows differ."""
    rows, targets = (
        drawn[SOURCE].population,
        [table_drawn for table, table_drawn in drawn.items() if table != SOURCE],
    )
    # A source row is read, and for each row it maps to that target row and the source row once more.
    mapped = sum(-(-target.population // max(1, rows)) for target in targets)
    from_targets = sum(len(target.keys) for target in targets)
    return len(drawn[SOURCE].keys) * (1 + 2 * mapped) + LOOKUPS_A_TARGET_ROW * from_targets


async def reservoir(keys: AsyncIterator[EntityKey], n: int, generator: random.Random) -> Drawn:
    """Draw up to `n` keys, each with the same chance, in one pass and with memory for `n` keys.

    Li's algorithm L (ACM TOMS 20, 1994). Probing random keys would be cheaper and wrong: a row after a wide
    gap would be drawn more often than its neighbors, and no confidence could be stated.
    """
    kept: list[EntityKey] = []
    population = 0
    weight = 1.0
    following = 0
    async for key in keys:
        if population < n:
            kept.append(key)
            if population == n - 1:
                weight, following = _skip(weight, n, population, generator)
        elif population == following:
            kept[generator.randrange(n)] = key
            weight, following = _skip(weight, n, population, generator)
        population += 1
    return Drawn(kept, population)


def _skip(weight: float, n: int, position: int, generator: random.Random) -> tuple[float, int]:
    """Return the reservoir's new weight and the position of the next row that enters it."""
    weight *= math.exp(math.log(1.0 - generator.random()) / n)
    # 1 - random() lies in (0, 1]: its logarithm is finite
    gap = math.log(1.0 - generator.random()) / math.log1p(-weight) if weight < 1.0 else 0.0
    return weight, position + math.floor(gap) + 1


def _reads_whole(ctx: ReconcileContext, table: int) -> bool:
    """Tell whether whole rows of a table are read to draw from it: keys do not tell which are not
    migrated."""
    return table == SOURCE and ctx.mapper.drops


async def _keys(ctx: ReconcileContext, table: int, rows: Counter[int]) -> AsyncIterator[EntityKey]:
    """Yield the keys of a table's rows, of the source those that are migrated: with all, a sample of few
    that are would prove nothing about them. Counts the rows that are read in `rows`."""
    reads_whole = _reads_whole(ctx, table)
    async for page in ctx.table(table).scan(select=None if reads_whole else (PARTITION_KEY,)):
        ctx.reads.stop()
        ctx.reads.advance(len(page.rows))
        rows[table] += len(page.rows)
        for row in page.rows:
            if not (reads_whole and ctx.mapper.is_dropped(row)):
                yield key_of(row)


async def _check(ctx: ReconcileContext, table: int, drawn: Drawn, collector: Collector) -> Direction:
    """Look up the rows drawn from one table on the other side; return their figures."""
    wanted: dict[int, Candidate] = {}

    async def prepare(item: tuple[int, EntityKey]) -> None:
        position, key = item
        row = await ctx.table(table).get(key, select=None if table == SOURCE else (PARTITION_KEY,))
        if row is None:  # deleted meanwhile
            return
        if table != SOURCE:
            wanted[position] = (Point(table, key),)
            return
        try:
            mapped = ctx.mapper.map(row)
        except RowRefused:
            wanted[position] = (Point(SOURCE, key),)
        else:
            if mapped:  # a row that is not migrated is wrong nowhere
                wanted[position] = tuple(Point(number, key_of(target), (key,)) for number, target in mapped)

    await for_each(enumerate(drawn.keys), prepare, limit=ctx.reads.concurrency)
    wrong = 0
    async for settled in settle(ctx, (wanted[position] for position in sorted(wanted))):
        wrong += collector.take(settled) > 0
    checked, population = len(wanted), drawn.population - (len(drawn.keys) - len(wanted))
    at_most = upper_bound(wrong, checked, population=population)
    return Direction(ctx.label(table), population, checked, wrong, at_most)
