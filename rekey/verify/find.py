"""Finding the rows behind differing sums, in bounded memory.

Rules kept here:

* Only rows of differing buckets are written to disk: key, content digest and source key, nothing else.
* They are joined on the target key; what remains unmatched is joined on the content, so that a row under a
  wrong key is recognised when exactly one row is missing and exactly one is too many with that content.
* What comes out are candidates, not findings: tables changed while they were read. `recheck` decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rekey.core.concurrency import for_each
from rekey.errors import RowRefused
from rekey.model import EntityKey, Row, key_of
from rekey.verify.context import ReconcileContext, RowMapper
from rekey.verify.digest import bucket_of, content_digest
from rekey.verify.observe import Point
from rekey.verify.recheck import Candidate
from rekey.verify.spill import Record, Spill, hash_of
from rekey.verify.sums import SOURCE, Part

MAX_CLAIMS = 16
"""Source rows looked at together when several give one target key."""

EXPECTED, ACTUAL, REFUSED = 0, 1, 2
_SIDE, _TABLE, _PARTITION, _ROW, _CONTENT, _SOURCE_PARTITION, _SOURCE_ROW = range(7)


def by_key(record: Record) -> int:
    """Place records of one target key together."""
    return hash_of(f"{record[_TABLE]}\0{record[_PARTITION]}\0{record[_ROW]}")


def by_content(record: Record) -> int:
    """Place records of one content together."""
    return hash_of(f"{record[_TABLE]}\0{record[_CONTENT]}")


def worth_reading(parts: Sequence[Part], differing: Sequence[frozenset[int]]) -> list[Part]:
    """Return the parts that hold rows of differing buckets."""
    return [part for part in parts if part.table == SOURCE or differing[part.table]]


async def spill_rows(
    ctx: ReconcileContext, parts: Sequence[Part], differing: Sequence[frozenset[int]], spill: Spill
) -> None:
    """Read the parts once more and write the rows of differing buckets, and refused source rows, to `spill`.

    Args:
        ctx: the tables and the mapping.
        parts: the key ranges that were compared.
        differing: per target table, the buckets whose sums differ.
        spill: takes the records, by key.
    """
    wanted = worth_reading(parts, differing)
    not_compared = [ctx.not_compared(number) for number in range(len(ctx.targets))]

    async def read(part: Part) -> None:
        table = ctx.source if part.table == SOURCE else ctx.targets[part.table]
        async for page in table.scan(part.within):
            ctx.stop()
            for record in records_of(part.table, page.rows, ctx.mapper, not_compared, differing):
                spill.put(record)
            ctx.progress.advance(len(page.rows), "finding the rows that differ")
            await ctx.taken(table, page)

    await for_each(wanted, read, limit=ctx.concurrency)


def records_of(
    table: int,
    rows: Iterable[Row],
    mapper: RowMapper,
    not_compared: Sequence[frozenset[str]],
    differing: Sequence[frozenset[int]],
) -> Iterator[Record]:
    """Give the records of rows that lie in differing buckets, and of source rows that the mapping refuses."""
    for row in rows:
        key = key_of(row)
        if table != SOURCE:
            if bucket_of(*key) in differing[table]:
                yield [ACTUAL, table, *key, content_digest(row, not_compared[table]).hex()]
            continue
        try:
            mapped = mapper.map(row)
        except RowRefused:
            yield [REFUSED, SOURCE, *key, "", *key]
            continue
        for number, target in mapped:
            if bucket_of(*key_of(target)) in differing[number]:
                digest = content_digest(target, not_compared[number]).hex()
                yield [EXPECTED, number, *key_of(target), digest, *key]


def candidates(spilled: Spill, unmatched: Spill) -> Iterator[Candidate]:
    """Join the spilled rows and give what has to be looked at.

    Args:
        spilled: records placed `by_key`.
        unmatched: an empty spill placed `by_content`; takes what has no counterpart.
    """
    for group in spilled.groups():
        yield from _join_keys(group, unmatched)
    for group in unmatched.groups():
        yield from _join_contents(group)


def _join_keys(group: list[Record], unmatched: Spill) -> Iterator[Candidate]:
    expected: dict[tuple[int, str, str], list[Record]] = defaultdict(list)
    actual: dict[tuple[int, str, str], Record] = {}
    for record in group:
        place = (record[_TABLE], record[_PARTITION], record[_ROW])
        if record[_SIDE] == EXPECTED:
            expected[place].append(record)
        elif record[_SIDE] == ACTUAL:
            actual[place] = record
        else:
            yield Candidate((Point(SOURCE, _key(record)),))
    for place, records in expected.items():
        present = actual.pop(place, None)
        if len(records) > 1:
            yield from _collisions(records)
        elif present is None:
            unmatched.put(records[0])
        elif present[_CONTENT] != records[0][_CONTENT]:
            yield Candidate((_point(records[0]),))
    for record in actual.values():
        unmatched.put(record)


def _collisions(records: list[Record]) -> Iterator[Candidate]:
    """Give candidates of several source rows with one target key; the first takes part in every one."""
    sources = list(dict.fromkeys(_source(record) for record in records))
    first, others = sources[0], sources[1:]
    point = _point(records[0])
    step = MAX_CLAIMS - 1
    for begin in range(0, max(len(others), 1), step):
        claims = (first, *others[begin : begin + step])
        yield Candidate((Point(point.table, point.key, claims, (first,) if begin else ()),))


def _join_contents(group: list[Record]) -> Iterator[Candidate]:
    alike: dict[tuple[int, str], list[Record]] = defaultdict(list)
    for record in group:
        alike[record[_TABLE], record[_CONTENT]].append(record)
    for records in alike.values():
        if len(records) == 2 and {record[_SIDE] for record in records} == {EXPECTED, ACTUAL}:
            missing, stray = sorted(records, key=lambda record: int(record[_SIDE]))
            # The source of the missing row is asked about the stray one too: it may have moved its row there.
            yield Candidate((_point(missing), Point(stray[_TABLE], _key(stray), (_source(missing),))))
        else:
            for record in records:
                yield Candidate((_point(record),))


def _point(record: Record) -> Point:
    claims = (_source(record),) if record[_SIDE] == EXPECTED else ()
    return Point(record[_TABLE], _key(record), claims)


def _key(record: Record) -> EntityKey:
    return EntityKey(record[_PARTITION], record[_ROW])


def _source(record: Record) -> EntityKey:
    return EntityKey(record[_SOURCE_PARTITION], record[_SOURCE_ROW])
