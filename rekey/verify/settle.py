"""Telling real differences from writes in flight: observe a key, observe it again, and name what stays.

Rules kept here:

* The replica is read first, then the authority (ADR 0017): a difference seen in this order is either real or
  still being mended, and a second observation tells which.
* Only the source decides what a target key should hold. The source rows that may map to it come from the scan
  (`claims`) and, when these do not explain the row, from the mapping table: for a main row from its reverse
  row, for an index row from the reverse row of the main row that its pointer names.
* A difference counts only when two observations, one delay apart, saw the same rows (by ETag), and the
  journal holds no intent for a source row concerned when the second begins. So a write in flight is never
  reported.
* Two source rows that map to one target key, both seen twice with the same ETags, collide, whatever the
  journal holds: no intent of theirs can be settled while both stand. Nor does one explain then what else
  differs of these rows.
* Absence is proved by a query: what two scans saw and a read at an address does not see may be misread there.
* In capture "delta" targets follow by delta passes: a difference that the next pass is due to mend is
  pending. It is counted apart; in the final verification, when writers have stopped, nothing is pending.
* A row that keeps changing is observed until it is equal or stands still. After `limit_s` it is reported as
  unsettled: neither proved right nor called wrong.
* Memory is bounded: at most `chunk` candidates are open at a time, and at most `LISTED` divergences are kept
  as values; for repair all of them go to disk.
* A missing row and an extra one with its content are one divergence, `wrong-key`, unless the mapping table
  says that the extra row belongs to another source row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rekey.core.concurrency import for_each
from rekey.core.edm import canonical_content
from rekey.core.spill import Spill
from rekey.declaration.migration import MAIN_PARTITION_KEY, MAIN_ROW_KEY
from rekey.errors import RowRefused
from rekey.model import EntityKey, Row, etag_of, key_of
from rekey.tables.addresses import is_addressable
from rekey.tables.base import Table
from rekey.verify.context import ReconcileContext
from rekey.verify.digest import Digester, content_digest
from rekey.verify.report import LISTED, Change, Divergence, Findings, Kind, PropertyDifference
from rekey.verify.sums import SOURCE

_MENDED_BY_A_PASS = frozenset({Kind.MISSING, Kind.EXTRA, Kind.ALTERED})


@dataclass(frozen=True, slots=True)
class Point:
    """One key to observe.

    Attributes:
        table: number of the target table, or `SOURCE` for a source row that the mapping refused.
        key: the target key, or the source key for `SOURCE`.
        claims: source keys that are known to map, or to have mapped, to this key.
        named: claims that another point of the same key reports already, if they collide.
    """

    table: int
    key: EntityKey = field(repr=False)
    claims: tuple[EntityKey, ...] = field(default=(), repr=False)
    named: tuple[EntityKey, ...] = field(default=(), repr=False)


# Points that are judged together: one, or several to which one source row maps. Two of a comparison are a
# missing row and its likely double under another key.
Candidate: TypeAlias = tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The difference seen at a point, with the keys that repair needs.

    Attributes:
        kind: what is wrong.
        sources: the key of the source row concerned; for `COLLISION` those whose rows are not the one there;
            empty when nothing maps to the row.
        etag: the target row's ETag, "" when there is none.
        properties: for `ALTERED`, the properties that differ.
        content: digest of the missing row's content (`MISSING`) or the extra row's (`EXTRA`).
        code: the refusal's code, for `REFUSED`.
        holder: for `COLLISION`, the source key whose row is there, or would be.
    """

    kind: Kind
    sources: tuple[EntityKey, ...] = field(repr=False)
    etag: str = field(default="", repr=False)
    properties: tuple[PropertyDifference, ...] = ()
    content: bytes = field(default=b"", repr=False)
    code: str = ""
    holder: EntityKey | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Observation:
    """One observation of a point.

    Attributes:
        signature: the ETags and the owner read: two observations with one signature saw the same rows.
        verdict: the difference seen; None when there is none.
        involved: the source keys that were read; an intent for one of them may explain a difference.
        rows: what the sums of a comparison hold of the point: the digests of the rows expected there, and of
            the row that is there, if any.
    """

    signature: tuple[object, ...]
    verdict: Verdict | None
    involved: tuple[EntityKey, ...] = field(default=(), repr=False)
    rows: tuple[tuple[bytes, ...], tuple[bytes, ...]] = ((), ())


@dataclass(slots=True)
class Looked:
    """One point, and the state of observing it.

    Attributes:
        point: the point.
        since: when observing it began, in seconds of the context's clock.
        before: the last observation.
        settled: it is not observed any more.
        verdict: the stable difference of a settled point; None when there is none, or it is not known.
        unsettled: it did not stand still within the time allowed.
        pending: a later delta pass is due to mend it.
        differed: at least one observation saw a difference.
    """

    point: Point
    since: float
    before: Observation | None = None
    settled: bool = False
    verdict: Verdict | None = None
    unsettled: bool = False
    pending: bool = False
    differed: bool = False


async def settle(
    ctx: ReconcileContext, candidates: Iterator[Candidate]
) -> AsyncGenerator[list[Looked], None]:
    """Observe candidates until each is settled; yield the points of each candidate when all are.

    A point is settled when it is equal, stands still, is pending, or did not stand still for `limit_s`.
    """
    tracked: list[list[Looked]] = []
    colliding = set[EntityKey]()  # source keys of collisions found so far
    while True:
        ctx.stop()
        now, room = ctx.seconds(), ctx.recheck.chunk - len(tracked)
        while room > 0 and (candidate := next(candidates, None)) is not None:
            tracked.append([Looked(point, now) for point in candidate])
            room -= len(candidate)
        if not tracked:
            return
        todo = [one for points in tracked for one in points if not one.settled]
        await for_each(todo, lambda one: _look(ctx, one, colliding), limit=ctx.concurrency)
        ctx.advance(0)
        before, tracked = tracked, []
        for points in before:
            if all(one.settled for one in points):
                yield points
            else:
                tracked.append(points)
        if tracked:
            await ctx.clock.sleep(ctx.recheck.delay_s)


async def _look(ctx: ReconcileContext, one: Looked, colliding: set[EntityKey]) -> None:
    """Observe a point once more, and settle it if this observation decides."""
    before = one.before
    if before is not None and not _is_collision(ctx, before) and not colliding.intersection(before.involved):
        before = None if await _any(ctx.in_flight, before.involved) else before
    seen = await observe(ctx, one.point)
    one.differed = one.differed or seen.verdict is not None
    if seen.verdict is None:
        one.settled = True
    elif seen.verdict.kind in _MENDED_BY_A_PASS and await _any(ctx.pending, seen.involved):
        one.settled = one.pending = True
    elif _is_same(before, seen) or _is_stuck(ctx, one, seen):
        one.settled, one.verdict = True, seen.verdict
        if seen.verdict.kind is Kind.COLLISION:
            colliding.update(seen.involved)
    elif ctx.seconds() - one.since > ctx.recheck.limit_s:
        one.settled = one.unsettled = True
    one.before = seen


def _is_same(before: Observation | None, seen: Observation) -> bool:
    """Tell whether two observations saw the same rows."""
    return before is not None and before.signature == seen.signature


def _is_stuck(ctx: ReconcileContext, one: Looked, seen: Observation) -> bool:
    """Tell whether rows collide, and stand still for longer than a write is in flight."""
    is_collision = seen.verdict is not None and seen.verdict.kind is Kind.COLLISION
    return is_collision and _is_same(one.before, seen) and ctx.seconds() - one.since > ctx.recheck.collision_s


def _is_collision(ctx: ReconcileContext, seen: Observation) -> bool:
    """Tell whether rows of the authority collide. Of replicas one may be left over from a write in flight."""
    return seen.verdict is not None and seen.verdict.kind is Kind.COLLISION and not ctx.authority_is_target


async def _any(question: Callable[[EntityKey], Awaitable[bool]], source_keys: tuple[EntityKey, ...]) -> bool:
    for source_key in source_keys:
        if await question(source_key):
            return True
    return False


# --- one observation ---------------------------------------------------------------------------------------


async def observe(ctx: ReconcileContext, point: Point) -> Observation:
    """Read a point's target row and the source rows that may map to it, and compare them.

    The replica is read first, so where the target is the authority the claims are read before the target row.
    An owner that only the mapping table knows is read last.
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
    # Rows of claims that another point names are summed up with that one, and so is the row that is there.
    expected = [row for key, row in giving.items() if key not in point.named]
    there = [] if actual is None or point.named else [actual]
    digests = tuple(digester.digests(expected)), tuple(digester.digests(there))
    return Observation(signature, verdict, tuple(etags), digests)


async def _read(table: Table, key: EntityKey) -> Row | None:
    """Return a row; its absence is confirmed by a query."""
    row = await table.get(key)
    return await table.find(key) if row is None and is_addressable(key) else row


async def owner_of(ctx: ReconcileContext, point: Point, actual: Row | None) -> EntityKey | None:
    """Return the source key that owns a point's target row by the mapping table, None when there is none.

    Args:
        ctx: the tables and the mapping.
        point: the point; of a main row the key alone tells the owner.
        actual: the row that is there, which points to its main row; None when there is none.
    """
    if point.table == 0:
        return await ctx.owner(point.key)
    pointer = {} if actual is None else actual
    partition, row = pointer.get(MAIN_PARTITION_KEY), pointer.get(MAIN_ROW_KEY)
    if not isinstance(partition, str) or not isinstance(row, str):
        return None
    return await ctx.owner(EntityKey(partition, row))


def compare(expected: Row, actual: Row, without: Set[str] = frozenset()) -> tuple[PropertyDifference, ...]:
    """Return how two rows' custom properties differ, in order of name; empty when they are equal."""
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
    row = await _read(ctx.source, source_key)
    if row is None:
        return Observation((None,), None)
    try:
        ctx.mapper.map(row)
    except RowRefused as refused:
        verdict = Verdict(Kind.REFUSED, (source_key,), code=refused.code)
        return Observation((etag_of(row),), verdict, (source_key,))
    return Observation((etag_of(row),), None)


def _judge(giving: dict[EntityKey, Row], actual: Row | None, without: Set[str]) -> Verdict | None:
    """Return the difference between a target row and the rows that source rows map to under its key.

    Args:
        giving: by source key, the row expected there.
        actual: the row that is there, None for none.
        without: properties that are not compared.
    """
    if len(giving) > 1:
        # Reported are the source keys whose row is not the one there; all but the first if none is.
        equal = [
            key for key, row in giving.items() if actual is not None and not compare(row, actual, without)
        ]
        holder = equal[0] if equal else next(iter(giving))
        others = tuple(key for key in giving if key != holder)
        return Verdict(Kind.COLLISION, others, "" if actual is None else etag_of(actual), holder=holder)
    if not giving:
        if actual is None:
            return None
        return Verdict(Kind.EXTRA, (), etag_of(actual), content=content_digest(actual, without))
    [(source, expected)] = giving.items()
    if actual is None:
        return Verdict(Kind.MISSING, (source,), content=content_digest(expected, without))
    properties = compare(expected, actual, without)
    return Verdict(Kind.ALTERED, (source,), etag_of(actual), properties) if properties else None


def _attributed(verdict: Verdict, owner: EntityKey | None, point: Point) -> Verdict | None:
    """Add the owner by the mapping table to an extra row's verdict, and drop source keys reported already."""
    if verdict.kind is Kind.EXTRA and owner is not None:
        return replace(verdict, sources=(owner,))
    if verdict.kind is Kind.COLLISION:
        sources = tuple(source for source in verdict.sources if source not in point.named)
        return replace(verdict, sources=sources) if sources else None
    return verdict


# --- findings ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """A stable divergence with the keys that repair needs. Never printed: its repr shows no key.

    Attributes:
        divergence: the divergence without keys.
        point: the row that differs; of `wrong-key`, the missing one.
        source: the source key to propagate; None for a foreign row.
        stray: the target row to delete as (table number, key, ETag that was seen), or None.
    """

    divergence: Divergence
    point: Point
    source: EntityKey | None = field(repr=False)
    stray: tuple[int, EntityKey, str] | None = field(default=None, repr=False)


@dataclass(eq=False)
class Collector:
    """Counts settled candidates and returns the findings.

    Attributes:
        ctx: the tables and the mapping.
        keep: where to keep every divergence when a repair is to follow.
        suspects: a scan saw every candidate differ, so one that is equal now is transient. Else (rows of a
            sample) it is transient only if an observation saw a difference.
        brought: points whose source keys were propagated before they were observed.
    """

    ctx: ReconcileContext
    keep: Spill[Found] | None = None
    suspects: bool = True
    brought: Set[Point] = frozenset()

    def __post_init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._listed: list[Divergence] = []
        self._others: Counter[str] = Counter()  # candidates without a divergence

    def take(self, settled: Sequence[Looked]) -> int:
        """Count a settled candidate; return how many divergences it holds."""
        found = list(_divergences(self.ctx, settled))
        for each in found:
            self._counts[each.divergence.kind.value] += 1
            if len(self._listed) < LISTED:
                self._listed.append(each.divergence)
            if self.keep is not None:
                self.keep.put(each)
        unsettled = sum(one.unsettled for one in settled)
        pending = sum(one.pending for one in settled)
        suspected = self.suspects or any(one.differed for one in settled)
        equal = int(suspected and not (found or unsettled or pending))
        brought = equal * any(one.point in self.brought for one in settled)
        self._others.update(transient=equal - brought, brought=brought, unsettled=unsettled, pending=pending)
        self._others["rechecked"] += len(settled)
        return len(found)

    def findings(self) -> Findings:
        """Return the findings so far."""
        return Findings(dict(sorted(self._counts.items())), tuple(self._listed), **self._others)


def _divergences(ctx: ReconcileContext, settled: Sequence[Looked]) -> Iterator[Found]:
    """Yield the divergences of a settled candidate."""
    pair = _wrong_key(ctx, *settled) if len(settled) == 2 else None
    if pair is not None:
        yield pair
        return
    for one in settled:
        point, verdict = one.point, one.verdict
        if verdict is None:
            continue
        if verdict.kind is Kind.REFUSED:
            name, source_id = ctx.source.name, ctx.source_id(point.key)
            yield Found(Divergence(Kind.REFUSED, name, "", source_id, code=verdict.code), point, point.key)
            continue
        table = ctx.label(point.table)
        row_id = ctx.target_id(point.table, point.key)
        stray = (point.table, point.key, verdict.etag) if verdict.kind is Kind.EXTRA else None
        for source in verdict.sources or (None,):
            source_id = "" if source is None else ctx.source_id(source)
            divergence = Divergence(
                *(verdict.kind, table, row_id, source_id),
                properties=verdict.properties,
                other_id="" if verdict.holder is None else ctx.source_id(verdict.holder),
            )
            yield Found(divergence, point, source, stray)


def _wrong_key(ctx: ReconcileContext, one: Looked, other: Looked) -> Found | None:
    missing, stray = one.verdict, other.verdict
    if missing is None or stray is None or missing.kind is not Kind.MISSING or stray.kind is not Kind.EXTRA:
        return None
    if missing.content != stray.content or stray.sources not in ((), missing.sources):
        return None
    source, table = missing.sources[0], one.point.table
    divergence = Divergence(
        Kind.WRONG_KEY,
        ctx.label(table),
        ctx.target_id(table, one.point.key),
        ctx.source_id(source),
        stray_id=ctx.target_id(table, other.point.key),
    )
    return Found(divergence, one.point, source, (table, other.point.key, stray.etag))
