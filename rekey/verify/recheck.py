"""Telling real divergences from writes that were under way.

Rules kept here:

* A difference counts only when two observations, one delay apart, saw the same rows (by ETag), and in between
  the journal announced no write for a source row concerned. So a write in flight is never reported.
* In capture "delta" targets follow by passes: a difference that the next pass is due to mend is pending. It
  is counted apart, and the final verification, when writers have stopped, knows none.
* A row that keeps changing is looked at until it is equal or stands still. After `limit_s` it is reported as
  unsettled: neither proved right nor called wrong.
* At most `chunk` differences are open at a time, however many there are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from rekey.core.concurrency import for_each
from rekey.model import EntityKey
from rekey.verify.context import ReconcileContext
from rekey.verify.observe import Observation, Point, Verdict, observe
from rekey.verify.report import Kind

_MENDED_BY_A_PASS = frozenset({Kind.MISSING, Kind.EXTRA, Kind.ALTERED})


@dataclass(frozen=True, slots=True)
class Candidate:
    """Points that are judged together. Two points are a missing row and its likely double elsewhere."""

    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """A candidate whose points are all settled.

    Attributes:
        candidate: what was looked at.
        verdicts: per point: what is wrong, None when nothing is (any more).
        unsettled: how many points never stood still; their verdict is None.
        pending: how many points a later pass is due to mend; their verdict is None.
        differed: whether any look at any point saw a difference.
    """

    candidate: Candidate
    verdicts: tuple[Verdict | None, ...]
    unsettled: int = 0
    pending: int = 0
    differed: bool = True


@dataclass(slots=True)
class _Open:
    """One point that is not settled yet."""

    point: Point
    since: float
    before: Observation | None = None
    verdict: Verdict | None = None
    settled: bool = False
    given_up: bool = False
    pending: bool = False
    differed: bool = False


@dataclass(slots=True)
class _Tracked:
    candidate: Candidate
    points: list[_Open] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        return all(point.settled for point in self.points)

    def result(self) -> Settled:
        return Settled(
            self.candidate,
            tuple(point.verdict for point in self.points),
            sum(point.given_up for point in self.points),
            sum(point.pending for point in self.points),
            any(point.differed for point in self.points),
        )


async def settle(ctx: ReconcileContext, candidates: Iterator[Candidate]) -> AsyncGenerator[Settled, None]:
    """Look at candidates until each is equal or stands still; yield them as they settle."""
    tracked: list[_Tracked] = []
    while True:
        ctx.stop()
        fresh = _take(ctx, candidates, ctx.recheck.chunk - len(tracked))
        tracked += fresh
        if not tracked:
            return
        todo = [point for each in tracked for point in each.points if not point.settled]
        await for_each(todo, lambda point: _look(ctx, point), limit=ctx.concurrency)
        done = [each for each in tracked if each.settled]
        ctx.progress.advance(0, f"rechecked {len(todo):,} differences")
        for each in done:
            yield each.result()
        tracked = [each for each in tracked if not each.settled]
        if tracked:
            await ctx.clock.sleep(ctx.recheck.delay_s)


def _take(ctx: ReconcileContext, candidates: Iterator[Candidate], room: int) -> list[_Tracked]:
    taken = []
    now = ctx.seconds()
    while room > 0 and (candidate := next(candidates, None)) is not None:
        taken.append(_Tracked(candidate, [_Open(point, now) for point in candidate.points]))
        room -= len(candidate.points)
    return taken


async def _look(ctx: ReconcileContext, point: _Open) -> None:
    """Observe a point once more and settle it if this observation allows."""
    before = point.before
    if before is not None and await _any(ctx.in_flight, before.involved):
        before = None
    seen = await observe(ctx, point.point)
    point.differed = point.differed or seen.verdict is not None
    if seen.verdict is None:
        point.settled = True
    elif seen.verdict.kind in _MENDED_BY_A_PASS and await _any(ctx.pending, seen.involved):
        point.settled, point.pending = True, True
    elif before is not None and before.signature == seen.signature:
        point.settled, point.verdict = True, seen.verdict
    elif ctx.seconds() - point.since > ctx.recheck.limit_s:
        point.settled, point.given_up = True, True
    point.before = seen


async def _any(question: Callable[[EntityKey], Awaitable[bool]], source_keys: tuple[EntityKey, ...]) -> bool:
    for source_key in source_keys:
        if await question(source_key):
            return True
    return False
