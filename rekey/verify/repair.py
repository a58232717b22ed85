"""Repairs the divergences that a full verification found, by `propagate`. Whether all is well afterwards is
decided by verifying again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from rekey.core.concurrency import for_each
from rekey.core.spill import Spill
from rekey.errors import ConditionFailed, RowMissing
from rekey.errors import Findings as NotMendable
from rekey.model import EntityKey, Row
from rekey.verify.context import ReconcileContext
from rekey.verify.report import LISTED, Kind, Outcome, Repair, RepairReport
from rekey.verify.settle import Candidate, Found, Point, observe, owner_of

_MENDS = (Outcome.PROPAGATED, Outcome.MOVED, Outcome.DELETED)


async def repair_all(ctx: ReconcileContext, kept: Spill[Found]) -> RepairReport:
    """Repair every divergence in `kept`. Raises ServiceError, and Interrupted of `ctx.stop`; what was
    repaired until then stays."""
    counts: Counter[str] = Counter()
    listed: list[Repair] = []

    async def mend(found: Found) -> None:
        ctx.stop()
        outcome = await repair(ctx, found)
        # "Done" alone proves nothing: a request may have reached another row, or none.
        if outcome in _MENDS and (await observe(ctx, found.point)).verdict is not None:
            outcome = Outcome.UNCONFIRMED
        counts[outcome.value] += 1
        if len(listed) < LISTED:
            listed.append(Repair(found.divergence, outcome))
        ctx.advance(0)

    await for_each(chain.from_iterable(kept.groups()), mend, limit=ctx.concurrency)
    return RepairReport(dict(sorted(counts.items())), tuple(listed))


async def bring(ctx: ReconcileContext, candidates: Iterable[Candidate]) -> set[Point]:
    """Propagate the source keys of rows that differ; return their points. Rows without a source row stay.

    Raises:
        Collision, RowRefused: of a row that the mapping or another row forbids; it is named.
        ServiceError, and Interrupted of `ctx.stop`. What was propagated until then stays.
    """
    brought: set[Point] = set()

    async def propagate(point: Point) -> None:
        ctx.stop()
        verdict = (await observe(ctx, point)).verdict
        for source_key in () if verdict is None else verdict.sources:
            await ctx.propagate(source_key)
            brought.add(point)
        ctx.advance(0)

    await for_each(chain.from_iterable(candidates), propagate, limit=ctx.concurrency)
    return brought


async def repair(ctx: ReconcileContext, found: Found) -> Outcome:
    """Repair one stable divergence and return the outcome."""
    if found.divergence.kind in (Kind.REFUSED, Kind.COLLISION):
        return Outcome.REFUSED
    stray, row = found.stray, None
    # A row of the authority without a source row, whose old key is not known, is never deleted.
    stays = stray is None or (ctx.authority_is_target and stray[0] == 0)
    try:
        if stray is not None and not stays and (row := await ctx.targets[stray[0]].get(stray[1])) is not None:
            # Kept first, to be restored: from ids alone nobody can tell whose row it was.
            await ctx.keep_removed(stray[0], row, found.source)
        if found.source is not None:
            await ctx.propagate(found.source)
        if stray is None or stays:
            return Outcome.REFUSED if found.source is None else Outcome.PROPAGATED
        return await _take_away(ctx, found, stray, row)
    except NotMendable:  # the mapping refuses the source row, or another row has its key
        return Outcome.REFUSED


async def _take_away(
    ctx: ReconcileContext, found: Found, stray: tuple[int, EntityKey, str], row: Row | None
) -> Outcome:
    """Delete a row to which nothing maps (`row`: as kept), unless it is gone, changed, or claimed by now."""
    table, key, etag = stray
    claims = () if found.source is None else (found.source,)
    seen = await observe(ctx, Point(table, key, claims))
    if seen.verdict is None or seen.verdict.kind is not Kind.EXTRA:
        return Outcome.PROPAGATED if found.source is not None else Outcome.GONE
    if seen.verdict.etag != etag or seen.verdict.sources not in ((), claims):
        return Outcome.CHANGED
    try:
        await ctx.targets[table].delete(key, etag=etag)
    except RowMissing:
        return Outcome.GONE
    except ConditionFailed:
        return Outcome.CHANGED
    # A writer claims before it reads the row. So one that claimed the key between the last check and the
    # delete, and left the row as its own, is found here.
    owner = None if row is None else await owner_of(ctx, Point(table, key), row)
    for source_key in dict.fromkeys((*claims, *(() if owner is None else (owner,)))):
        await ctx.propagate(source_key)
    return Outcome.MOVED if found.divergence.kind is Kind.WRONG_KEY else Outcome.DELETED
