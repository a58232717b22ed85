"""Looking at one target key: what is there, what should be there, and who says so.

Rules kept here:

* The replica is read first, then the authority (ADR 0017): a difference seen in this order is either
  real or still being mended, and looking again tells which.
* Only the source decides what a target key should hold. Who might claim it comes from the scan (`claims`),
  and when that does not explain the row, from the mapping table: a main row by its reverse row, an index row
  by the reverse row of the main row that its pointer names.
* An observation carries a signature made of ETags. Two observations with one signature saw the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rekey.core.edm import canonical_content
from rekey.declaration.migration import MAIN_PARTITION_KEY, MAIN_ROW_KEY
from rekey.errors import RowRefused
from rekey.model import EntityKey, Row, etag_of, key_of
from rekey.verify.context import ReconcileContext
from rekey.verify.digest import content_digest
from rekey.verify.divergence import Change, Kind, PropertyDifference
from rekey.verify.sums import SOURCE

Signature: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One key to look at.

    Attributes:
        table: number of the target table, or `SOURCE` for a source row that the mapping refused.
        key: the target key, or the source key for `SOURCE`.
        claims: source keys that are known to give, or to have given, a row under this key.
        named: those of them that another point of the same key names already, if they collide.
    """

    table: int
    key: EntityKey = field(repr=False)
    claims: tuple[EntityKey, ...] = field(default=(), repr=False)
    named: tuple[EntityKey, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong at a point, with the keys that repair needs.

    Attributes:
        kind: what is wrong.
        sources: the source row concerned; for `COLLISION` those whose rows do not stand there; empty when
            nothing maps to the row.
        etag: the target row's ETag, "" when there is none.
        properties: what differs, for `ALTERED`.
        content: digest of the content that is missing (`MISSING`) or too much (`EXTRA`).
        code: the refusal's code, for `REFUSED`.
    """

    kind: Kind
    sources: tuple[EntityKey, ...] = field(repr=False)
    etag: str = field(default="", repr=False)
    properties: tuple[PropertyDifference, ...] = ()
    content: bytes = field(default=b"", repr=False)
    code: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one look at a point saw. `verdict` is None when all is well.

    Attributes:
        signature: the ETags that were read.
        involved: the source keys that were read; a write announced for one of them may explain a difference.
    """

    signature: Signature
    verdict: Verdict | None
    involved: tuple[EntityKey, ...] = field(default=(), repr=False)


@dataclass(slots=True)
class _Reading:
    """Rows read for one observation: source rows by key (None: gone), and which of them give the row."""

    etags: dict[EntityKey, str | None]
    giving: dict[EntityKey, Row]


async def observe(ctx: ReconcileContext, point: Point) -> Observation:
    """Look at one point once."""
    if point.table == SOURCE:
        return await _observe_refused(ctx, point.key)
    reading = _Reading({}, {})
    if ctx.authority_is_target:
        await _read_sources(ctx, point, point.claims, reading)
    target = ctx.targets[point.table]
    actual = await target.get(point.key)
    await _read_sources(ctx, point, point.claims, reading)
    without = ctx.not_compared(point.table)
    verdict = _judge(reading, actual, without)
    owner = None
    if verdict is not None and actual is not None:
        owner = await owner_of(ctx, point.table, actual)
        if owner is not None and owner not in reading.etags:
            await _read_sources(ctx, point, (owner,), reading)
            verdict = _judge(reading, actual, without)
    if verdict is not None:
        verdict = _attributed(verdict, owner, point)
    signature = (
        None if actual is None else etag_of(actual),
        owner,
        tuple(reading.etags.items()),
    )
    return Observation(signature, verdict, tuple(reading.etags))


async def owner_of(ctx: ReconcileContext, table: int, actual: Row) -> EntityKey | None:
    """Return the source key that the mapping table gives for a target row, None when nobody claimed it."""
    main = ctx.targets[0].name
    if table == 0:
        return await ctx.owner(main, key_of(actual))
    partition, row = actual.get(MAIN_PARTITION_KEY), actual.get(MAIN_ROW_KEY)
    if not isinstance(partition, str) or not isinstance(row, str):
        return None
    return await ctx.owner(main, EntityKey(partition, row))


def compare(expected: Row, actual: Row, without: Set[str] = frozenset()) -> tuple[PropertyDifference, ...]:
    """Return how two rows' custom properties differ, by name; empty when they are equal."""
    wanted = {name: (edm, text) for name, edm, text in canonical_content(expected)}
    found = {name: (edm, text) for name, edm, text in canonical_content(actual)}
    differences = []
    for name in sorted((wanted.keys() | found.keys()) - without):
        if name not in found:
            change = Change.MISSING
        elif name not in wanted:
            change = Change.EXTRA
        elif wanted[name] == found[name]:
            continue
        else:
            change = Change.VALUE if wanted[name][0] == found[name][0] else Change.TYPE
        differences.append(PropertyDifference(name, change))
    return tuple(differences)


async def _observe_refused(ctx: ReconcileContext, source_key: EntityKey) -> Observation:
    row = await ctx.source.get(source_key)
    if row is None:
        return Observation((None,), None)
    try:
        ctx.mapper.map(row)
    except RowRefused as refused:
        verdict = Verdict(Kind.REFUSED, (source_key,), code=refused.code)
        return Observation((etag_of(row),), verdict, (source_key,))
    return Observation((etag_of(row),), None)


async def _read_sources(
    ctx: ReconcileContext, point: Point, keys: Iterable[EntityKey], reading: _Reading
) -> None:
    """Read source rows that were not read yet and note which of them give the point's row."""
    for key in keys:
        if key in reading.etags:
            continue
        row = await ctx.source.get(key)
        reading.etags[key] = None if row is None else etag_of(row)
        if row is None:
            continue
        try:
            mapped = ctx.mapper.map(row)
        except RowRefused:
            continue  # it gives no row; the scan reports it as refused
        for table, target in mapped:
            if table == point.table and key_of(target) == point.key:
                reading.giving[key] = target


def _judge(reading: _Reading, actual: Row | None, without: Set[str]) -> Verdict | None:
    giving = reading.giving
    if len(giving) > 1:
        return Verdict(
            Kind.COLLISION, _not_standing(giving, actual, without), "" if actual is None else etag_of(actual)
        )
    if not giving:
        if actual is None:
            return None
        return Verdict(Kind.EXTRA, (), etag_of(actual), content=content_digest(actual, without))
    [(source, expected)] = giving.items()
    if actual is None:
        return Verdict(Kind.MISSING, (source,), content=content_digest(expected, without))
    properties = compare(expected, actual, without)
    return Verdict(Kind.ALTERED, (source,), etag_of(actual), properties) if properties else None


def _not_standing(
    giving: dict[EntityKey, Row], actual: Row | None, without: Set[str]
) -> tuple[EntityKey, ...]:
    """Return the colliding source keys whose row is not what stands there; all but one if none can tell."""
    equal = [key for key, row in giving.items() if actual is not None and not compare(row, actual, without)]
    holder = equal[0] if equal else next(iter(giving))
    return tuple(key for key in giving if key != holder)


def _attributed(verdict: Verdict, owner: EntityKey | None, point: Point) -> Verdict | None:
    """Return the verdict with the owner that the mapping table knows, and naming nobody twice."""
    if verdict.kind is Kind.EXTRA and owner is not None:
        return replace(verdict, sources=(owner,))
    if verdict.kind is Kind.COLLISION:
        sources = tuple(source for source in verdict.sources if source not in point.named)
        return replace(verdict, sources=sources) if sources else None
    return verdict
