"""Tells real differences from writes in flight: observes a key until its difference is gone or stable.
The replica is read first, then the authority (ADR 0017): a difference is real or being repaired."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rekey.core.concurrency import for_each
from rekey.core.edm import canonical_content
from rekey.core.joint import place_of
from rekey.core.spill import Spill
from rekey.declaration.targets import named_main
from rekey.errors import RowRefused
from rekey.model import EntityKey, Row, etag_of, key_of
from rekey.tables.addresses import is_addressable
from rekey.tables.base import Table
from rekey.verify.bucket_digests import SOURCE
from rekey.verify.context import ReconcileContext
from rekey.verify.digest import Digester, content_digest
from rekey.verify.report import LISTED, Change, DifferenceKind, Divergence, Findings, PropertyDifference

_REPAIRED_BY_A_PASS = frozenset({DifferenceKind.MISSING, DifferenceKind.EXTRA, DifferenceKind.ALTERED})


@dataclass(frozen=True, slots=True)
class Point:
    """One key to observe."""

    table: int
    key: EntityKey = field(repr=False)
    # Source keys that are known to map, or to have mapped, to this key.
    claims: tuple[EntityKey, ...] = field(default=(), repr=False)
    # Claims that another point of the same key reports already, if they collide.
    named: tuple[EntityKey, ...] = field(default=(), repr=False)


# Points judged together: one point, or several to which one source row maps. Two points of a full comparison
# are a missing row and its likely copy under another key.
Candidate: TypeAlias = tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The difference seen at a point, with the keys that repair needs."""

    kind: DifferenceKind
    # The source row concerned; for `COLLISION` those whose rows are not the one there; empty: nothing maps to
    # the row.
    sources: tuple[EntityKey, ...] = field(repr=False)
    # Of the target row; "": there is none.
    etag: str = field(default="", repr=False)
    properties: tuple[PropertyDifference, ...] = ()
    # Digest of the missing or the extra row's content.
    content: bytes = field(default=b"", repr=False)
    code: str = ""
    # For `COLLISION`, the source key whose row is there, or would be.
    holder: EntityKey | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Observation:
    """One observation of a point."""

    # The ETags and the owner read: two observations with one signature saw the same rows.
    signature: tuple[object, ...]
    verdict: Verdict | None
    # The source keys that were read; an intent for one of them may explain a difference.
    involved: tuple[EntityKey, ...] = field(default=(), repr=False)
    # Digests of the rows expected at the point, and of the row that is there, as the comparison holds them.
    rows: tuple[tuple[bytes, ...], tuple[bytes, ...]] = ((), ())


@dataclass(slots=True)
class TrackedPoint:
    """A point and the state of its observation."""

    point: Point
    # When observing it began, in seconds of the context's clock.
    since: float
    before: Observation | None = None
    settled: bool = False
    # The stable difference of a settled point.
    verdict: Verdict | None = None
    # It kept changing for `RecheckPolicy.limit_s`: neither proved right nor wrong.
    unsettled: bool = False
    # A later delta pass is due to repair it.
    pending: bool = False
    # At least one observation saw a difference.
    differed: bool = False


async def settle(
    ctx: ReconcileContext, candidates: Iterator[Candidate]
) -> AsyncGenerator[list[TrackedPoint], None]:
    """Observe candidates until each is settled: equal, unchanged for a delay, pending, or still changing
    after `limit_s`. Yield the points of each candidate when all are."""
    tracked: list[list[TrackedPoint]] = []
    colliding = set[EntityKey]()  # source keys of collisions found so far
    while True:
        ctx.reads.stop()
        now, room = ctx.seconds(), ctx.recheck.chunk - len(tracked)
        while room > 0 and (candidate := next(candidates, None)) is not None:
            tracked.append([TrackedPoint(point, now) for point in candidate])
            room -= len(candidate)
        if not tracked:
            return
        todo = [point for points in tracked for point in points if not point.settled]
        await for_each(todo, lambda point: _recheck(ctx, point, colliding), limit=ctx.reads.concurrency)
        ctx.reads.advance(0)
        before, tracked = tracked, []
        for points in before:
            if all(point.settled for point in points):
                yield points
            else:
                tracked.append(points)
        if tracked:
            await ctx.clock.sleep(ctx.recheck.delay_s)


async def _recheck(ctx: ReconcileContext, tracked: TrackedPoint, colliding: set[EntityKey]) -> None:
    """Observe a point once more, and settle it if this observation decides."""
    before = tracked.before
    # An intent for a source row concerned explains a difference, so the first observation does not count. It
    # does not explain a collision, nor other differences of colliding rows: their intents cannot be settled
    # while both rows exist.
    if before is not None and not _is_collision(ctx, before) and not colliding.intersection(before.involved):
        before = None if await _any(ctx.rows.in_flight, before.involved) else before
    seen = await observe(ctx, tracked.point)
    tracked.differed = tracked.differed or seen.verdict is not None
    if seen.verdict is None:
        tracked.settled = True
    elif seen.verdict.kind in _REPAIRED_BY_A_PASS and await _is_pending(ctx, tracked.point, seen):
        tracked.settled = tracked.pending = True
    elif _is_same(before, seen) or _is_stuck(ctx, tracked, seen):
        tracked.settled, tracked.verdict = True, seen.verdict
        if seen.verdict.kind is DifferenceKind.COLLISION:
            colliding.update(seen.involved)
    elif ctx.seconds() - tracked.since > ctx.recheck.limit_s:
        tracked.settled = tracked.unsettled = True
    tracked.before = seen


def _is_same(before: Observation | None, seen: Observation) -> bool:
    return before is not None and before.signature == seen.signature


def _is_stuck(ctx: ReconcileContext, tracked: TrackedPoint, seen: Observation) -> bool:
    """Tell whether rows have collided, unchanged, for longer than a write is in flight."""
    is_collision = seen.verdict is not None and seen.verdict.kind is DifferenceKind.COLLISION
    return (
        is_collision
        and _is_same(tracked.before, seen)
        and ctx.seconds() - tracked.since > ctx.recheck.collision_s
    )


def _is_collision(ctx: ReconcileContext, seen: Observation) -> bool:
    """Tell whether rows of the authority collide. A colliding replica may be left from a write in flight."""
    return (
        seen.verdict is not None
        and seen.verdict.kind is DifferenceKind.COLLISION
        and not ctx.authority_is_target
    )


async def _is_pending(ctx: ReconcileContext, point: Point, seen: Observation) -> bool:
    return await _any(lambda source_key: ctx.rows.pending(source_key, point.table, point.key), seen.involved)


async def _any(question: Callable[[EntityKey], Awaitable[bool]], source_keys: tuple[EntityKey, ...]) -> bool:
    for source_key in source_keys:
        if await question(source_key):
            return True
    return False


# --- one observation ---------------------------------------------------------------------------------------


async def observe(ctx: ReconcileContext, point: Point) -> Observation:
    """Read a point's target row and the source rows that may map to it, and compare them.

    Where the target is the authority the claims are read before the target row. An owner that only the
    mapping table knows is read last.
    """
    if point.table == SOURCE:
        return await _observe_refused(ctx, point.key)
    etags: dict[EntityKey, str | None] = {}  # of the source rows read; None: gone
    giving: dict[EntityKey, Row] = {}  # the row expected at the point, by the source keys that map to it

    async def read_sources(keys: Iterable[EntityKey]) -> None:
        for key in keys:
            if key in etags:
                continue
            row = await _read(ctx.source, key)
            etags[key] = None if row is None else etag_of(row)
            try:
                mapped = [] if row is None else ctx.mapper.map(row)
            except RowRefused:
                continue  # it maps to no row; the scan reports it as refused
            for table, target in mapped:
                if table == point.table and key_of(target) == point.key:
                    giving[key] = target

    if ctx.authority_is_target:
        await read_sources(point.claims)
    actual = await _read(ctx.targets[point.table], point.key)
    await read_sources(point.claims)
    without = ctx.not_compared(point.table)
    verdict = _judge(giving, actual, without)
    owner = None
    if verdict is not None:
        owner = await owner_of(ctx, point, actual)
        if owner is not None and owner not in etags:
            await read_sources((owner,))
            verdict = _judge(giving, actual, without)
    if verdict is not None:
        verdict = _attributed(verdict, owner, point)
    signature = (None if actual is None else etag_of(actual), owner, tuple(etags.items()))
    digester = Digester(ctx.targets[point.table].name, without)
    # Rows of claims that another point names count with that one, and so does the row that is there.
    expected = [row for key, row in giving.items() if key not in point.named]
    there = [] if actual is None or point.named else [actual]
    digests = tuple(digester.digests(expected)), tuple(digester.digests(there))
    return Observation(signature, verdict, tuple(etags), digests)


async def _read(table: Table, key: EntityKey) -> Row | None:
    """Return a row. Its absence is confirmed by a query: a read at an address may be misread there."""
    row = await table.get(key)
    return await table.find(key) if row is None and is_addressable(key) else row


async def owner_of(ctx: ReconcileContext, point: Point, actual: Row | None) -> EntityKey | None:
    """Return the source key that owns a point's target row by the mapping table, or None: of a main row by
    its key, of an index row (`actual`) by the main row that its pointer names."""
    if point.table == 0:
        return await ctx.rows.owner(point.key)
    main = None if actual is None else named_main(actual)
    return None if main is None else await ctx.rows.owner(main)


def compare(expected: Row, actual: Row, without: Set[str] = frozenset()) -> tuple[PropertyDifference, ...]:
    """Return how two rows' custom properties differ, in order of name; empty when they are equal."""
    wanted = {name: (edm, text) for name, edm, text in canonical_content(expected)}
    present = {name: (edm, text) for name, edm, text in canonical_content(actual)}
    differences = []
    for name in sorted((wanted.keys() | present.keys()) - without):
        if name not in present:
            change = Change.MISSING
        elif name not in wanted:
            change = Change.EXTRA
        elif wanted[name] == present[name]:
            continue
        else:
            change = Change.VALUE if wanted[name][0] == present[name][0] else Change.TYPE
        differences.append(PropertyDifference(name, change))
    return tuple(differences)


async def _observe_refused(ctx: ReconcileContext, source_key: EntityKey) -> Observation:
    row = await _read(ctx.source, source_key)
    if row is None:
        return Observation((None,), None)
    try:
        ctx.mapper.map(row)
    except RowRefused as refused:
        verdict = Verdict(DifferenceKind.REFUSED, (source_key,), code=refused.code)
        return Observation((etag_of(row),), verdict, (source_key,))
    return Observation((etag_of(row),), None)


def _judge(giving: dict[EntityKey, Row], actual: Row | None, without: Set[str]) -> Verdict | None:
    """Return the difference between a target row and the rows that source rows map to under its key
    (`giving`, by source key)."""
    if len(giving) > 1:
        # Report the source keys whose row is not the one there; all but the first if none is.
        equal = [
            key for key, row in giving.items() if actual is not None and not compare(row, actual, without)
        ]
        holder = equal[0] if equal else next(iter(giving))
        others = tuple(key for key in giving if key != holder)
        return Verdict(
            DifferenceKind.COLLISION, others, "" if actual is None else etag_of(actual), holder=holder
        )
    if not giving:
        if actual is None:
            return None
        return Verdict(DifferenceKind.EXTRA, (), etag_of(actual), content=content_digest(actual, without))
    [(source, expected)] = giving.items()
    if actual is None:
        return Verdict(DifferenceKind.MISSING, (source,), content=content_digest(expected, without))
    properties = compare(expected, actual, without)
    return Verdict(DifferenceKind.ALTERED, (source,), etag_of(actual), properties) if properties else None


def _attributed(verdict: Verdict, owner: EntityKey | None, point: Point) -> Verdict | None:
    """Add the owner by the mapping table to an extra row's verdict, and drop source keys reported already."""
    if verdict.kind is DifferenceKind.EXTRA and owner is not None:
        return replace(verdict, sources=(owner,))
    if verdict.kind is DifferenceKind.COLLISION:
        sources = tuple(source for source in verdict.sources if source not in point.named)
        return replace(verdict, sources=sources) if sources else None
    return verdict


# --- findings ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyedDivergence:
    """A stable divergence with the keys that repair needs; its repr shows none."""

    divergence: Divergence
    point: Point
    # The source key to propagate; None for a foreign row.
    source: EntityKey | None = field(repr=False)
    # The target row to delete: table number, key, ETag that was seen.
    stray: tuple[int, EntityKey, str] | None = field(default=None, repr=False)

    def is_of_authority(self, ctx: ReconcileContext) -> bool:
        """Tell whether the stray row is a row of the authority, which is never deleted."""
        return self.stray is not None and ctx.authority_is_target and self.stray[0] == 0

    def is_foreign(self, ctx: ReconcileContext) -> bool:
        """Tell whether it is an extra row of the authority that nothing is known to do about."""
        return self.is_of_authority(ctx) and self.source is None


@dataclass(eq=False)
class Collector:
    """Counts settled candidates and returns the findings."""

    ctx: ReconcileContext
    # Takes every divergence when a repair is to follow.
    keep: Spill[KeyedDivergence] | None = None
    # A scan saw every candidate differ, so one that is equal now is transient. Else (rows of a sample) it is
    # transient only if an observation saw a difference.
    suspects: bool = True
    # Points whose source keys were propagated before they were observed.
    propagated: Set[Point] = frozenset()

    def __post_init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._listed: list[Divergence] = []
        self._others: Counter[str] = Counter()  # candidates without a divergence

    def take(self, settled: Sequence[TrackedPoint]) -> int:
        """Count a settled candidate; return how many divergences it holds."""
        divergences = list(_divergences(self.ctx, settled))
        for each in divergences:
            self._counts[each.divergence.kind.value] += 1
            self._others["foreign"] += each.is_foreign(self.ctx)
            if len(self._listed) < LISTED:
                self._listed.append(each.divergence)
            if self.keep is not None:
                self.keep.put(each)
        unsettled = sum(check.unsettled for check in settled)
        pending = sum(check.pending for check in settled)
        suspected = self.suspects or any(check.differed for check in settled)
        equal = int(suspected and not (divergences or unsettled or pending))
        propagated = equal * any(check.point in self.propagated for check in settled)
        self._others.update(transient=equal - propagated, propagated=propagated)
        self._others.update(unsettled=unsettled, pending=pending)
        self._others["rechecked"] += len(settled)
        return len(divergences)

    def findings(self) -> Findings:
        return Findings(dict(sorted(self._counts.items())), tuple(self._listed), **self._others)


def _divergences(ctx: ReconcileContext, settled: Sequence[TrackedPoint]) -> Iterator[KeyedDivergence]:
    """Yield the divergences of a settled candidate."""
    pair = _wrong_key(ctx, *settled) if len(settled) == 2 else None
    if pair is not None:
        yield pair
        return
    for check in settled:
        point, verdict = check.point, check.verdict
        if verdict is None:
            continue
        if verdict.kind is DifferenceKind.REFUSED:
            # Where index rows are compared with main rows, these may be in several tables.
            (name, _), source_id = place_of(ctx.source.name, point.key), ctx.source_id(point.key)
            refused = Divergence(DifferenceKind.REFUSED, name, "", source_id, code=verdict.code)
            yield KeyedDivergence(refused, point, point.key)
            continue
        table = ctx.mapper.label_of(point.table, point.key)
        row_id = ctx.target_id(point.table, point.key)
        stray = (point.table, point.key, verdict.etag) if verdict.kind is DifferenceKind.EXTRA else None
        for source in verdict.sources or (None,):
            source_id = "" if source is None else ctx.source_id(source)
            divergence = Divergence(
                *(verdict.kind, table, row_id, source_id),
                properties=verdict.properties,
                other_id="" if verdict.holder is None else ctx.source_id(verdict.holder),
            )
            yield KeyedDivergence(divergence, point, source, stray)


def _wrong_key(ctx: ReconcileContext, first: TrackedPoint, second: TrackedPoint) -> KeyedDivergence | None:
    missing, stray = first.verdict, second.verdict
    if missing is None or missing.kind is not DifferenceKind.MISSING:
        return None
    if stray is None or stray.kind is not DifferenceKind.EXTRA:
        return None
    # Unless the mapping table says that the extra row belongs to another source row.
    if missing.content != stray.content or stray.sources not in ((), missing.sources):
        return None
    source, table = missing.sources[0], first.point.table
    divergence = Divergence(
        DifferenceKind.WRONG_KEY,
        ctx.mapper.label_of(table, first.point.key),
        ctx.target_id(table, first.point.key),
        ctx.source_id(source),
        stray_id=ctx.target_id(table, second.point.key),
    )
    return KeyedDivergence(divergence, first.point, source, (table, second.point.key, stray.etag))
