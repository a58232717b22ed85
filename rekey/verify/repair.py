"""Repairs the divergences that a full verification found, by `propagate`. Only another verification proves
that all is well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from rekey.core.concurrency import for_each
from rekey.core.spill import Spill
from rekey.errors import ConditionFailed, RowMissing
from rekey.errors import Findings as NotRepairable
from rekey.model import EntityKey, Row
from rekey.verify.context import ReconcileContext
from rekey.verify.report import LISTED, DifferenceKind, Outcome, Repair, RepairReport
from rekey.verify.settle import Candidate, KeyedDivergence, Point, observe, owner_of

_REPAIRED = (Outcome.PROPAGATED, Outcome.MOVED, Outcome.DELETED)


async def repair_all(ctx: ReconcileContext, kept: Spill[KeyedDivergence]) -> RepairReport:
    """Repair every divergence in `kept`. Raises ServiceError, and Interrupted of `ctx.reads.stop`; what was
    repaired until then stays."""
    counts: Counter[str] = Counter()
    listed: list[Repair] = []

    async def repair_one(keyed: KeyedDivergence) -> None:
        ctx.reads.stop()
        outcome = await repair(ctx, keyed)
        # A success response is no proof: the request may have reached another row, or none.
        if outcome in _REPAIRED and (await observe(ctx, keyed.point)).verdict is not None:
            outcome = Outcome.UNCONFIRMED
        counts[outcome.value] += 1
        if len(listed) < LISTED:
            listed.append(Repair(keyed.divergence, outcome))
        ctx.reads.advance(0)

    await for_each(chain.from_iterable(kept.groups()), repair_one, limit=ctx.reads.concurrency)
    return RepairReport(dict(sorted(counts.items())), tuple(listed))


async def propagate_all(ctx: ReconcileContext, candidates: Iterable[Candidate]) -> set[Point]:
    """Propagate the source keys of rows that differ; return their points. Rows without a source row stay.

    Raises:
        Collision, RowRefused: of a row that the mapping or another row forbids; it is named.
        ServiceError, and Interrupted of `ctx.reads.stop`. What was propagated until then stays.
    """
    propagated: set[Point] = set()

    async def propagate(point: Point) -> None:
        ctx.reads.stop()
        verdict = (await observe(ctx, point)).verdict
        for source_key in () if verdict is None else verdict.sources:
            await ctx.rows.propagate(source_key)
            propagated.add(point)
        ctx.reads.advance(0)

    await for_each(chain.from_iterable(candidates), propagate, limit=ctx.reads.concurrency)
    return propagated


async def repair(ctx: ReconcileContext, keyed: KeyedDivergence) -> Outcome:
    """Repair one stable divergence and return the outcome."""
    if keyed.divergence.kind in (DifferenceKind.REFUSED, DifferenceKind.COLLISION):
        return Outcome.REFUSED
    stray, row = keyed.stray, None
    # A row of the authority without a source row, whose old key is not known, is never deleted.
    stays = stray is None or keyed.is_of_authority(ctx)
    try:
        if stray is not None and not stays and (row := await ctx.targets[stray[0]].get(stray[1])) is not None:
            # Keep it first, so that it can be restored: safe ids do not identify it.
            await ctx.rows.keep_removed(stray[0], row, keyed.source)
        if keyed.source is not None:
            await ctx.rows.propagate(keyed.source)
        if stray is None or stays:
            return Outcome.REFUSED if keyed.source is None else Outcome.PROPAGATED
        return await _delete_stray(ctx, keyed, stray, row)
    except NotRepairable:  # the mapping refuses the source row, or another row has its key
        return Outcome.REFUSED


async def _delete_stray(
    ctx: ReconcileContext, keyed: KeyedDivergence, stray: tuple[int, EntityKey, str], row: Row | None
) -> Outcome:
    """Delete a row to which nothing maps (`row`: as kept), unless it is gone, changed, or claimed by now."""
    table, key, etag = stray
    claims = () if keyed.source is None else (keyed.source,)
    seen = await observe(ctx, Point(table, key, claims))
    if seen.verdict is None or seen.verdict.kind is not DifferenceKind.EXTRA:
        return Outcome.PROPAGATED if keyed.source is not None else Outcome.GONE
    if seen.verdict.etag != etag or seen.verdict.sources not in ((), claims):
        return Outcome.CHANGED
    try:
        await ctx.targets[table].delete(key, etag=etag)
    except RowMissing:
        return Outcome.GONE
    except ConditionFailed:
        return Outcome.CHANGED
    # A writer claims the key before it reads the row. This finds one that claimed it between the last check
    # and the delete and kept the row as its own.
    owner = None if row is None else await owner_of(ctx, Point(table, key), row)
    for source_key in dict.fromkeys((*claims, *(() if owner is None else (owner,)))):
        await ctx.rows.propagate(source_key)
    return Outcome.MOVED if keyed.divergence.kind is DifferenceKind.WRONG_KEY else Outcome.DELETED
