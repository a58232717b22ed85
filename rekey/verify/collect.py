"""From settled candidates to findings: naming, counting, and keeping what repair needs.

Rules kept here:

* Memory is bounded: at most `LISTED` divergences are kept as values; for repair all of them go to disk.
* A missing row and an extra one with its content are one divergence, `wrong-key`, unless the mapping table
  says that the extra row belongs to another source row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rekey.model import EntityKey
from rekey.verify.context import ReconcileContext
from rekey.verify.observe import Point, Verdict
from rekey.verify.recheck import Settled
from rekey.verify.report import LISTED, Change, Divergence, Findings, Kind, PropertyDifference
from rekey.verify.spill import Record, Spill


@dataclass(frozen=True, slots=True)
class Found:
    """A stable divergence with the keys that repair needs. Never printed: its repr shows no key.

    Attributes:
        divergence: the same without keys.
        source: the source row to propagate; None for a foreign row.
        stray: the target row to take away as (table number, key, ETag that was seen), or None.
    """

    divergence: Divergence
    source: EntityKey | None = field(repr=False)
    stray: tuple[int, EntityKey, str] | None = field(default=None, repr=False)


def divergences(ctx: ReconcileContext, settled: Settled) -> Iterator[Found]:
    """Name what is wrong with a settled candidate."""
    points = settled.candidate.points
    if len(points) == 2:
        pair = _wrong_key(ctx, points, settled.verdicts)
        if pair is not None:
            yield pair
            return
    for point, verdict in zip(points, settled.verdicts, strict=True):
        if verdict is not None:
            yield from _single(ctx, point, verdict)


def _wrong_key(
    ctx: ReconcileContext, points: tuple[Point, ...], verdicts: tuple[Verdict | None, ...]
) -> Found | None:
    missing, stray = verdicts
    if missing is None or stray is None or missing.kind is not Kind.MISSING or stray.kind is not Kind.EXTRA:
        return None
    if missing.content != stray.content or stray.sources not in ((), missing.sources):
        return None
    source = missing.sources[0]
    table = points[0].table
    divergence = Divergence(
        Kind.WRONG_KEY,
        ctx.targets[table].name,
        ctx.target_id(table, points[0].key),
        ctx.source_id(source),
        stray_id=ctx.target_id(table, points[1].key),
    )
    return Found(divergence, source, (table, points[1].key, stray.etag))


def _single(ctx: ReconcileContext, point: Point, verdict: Verdict) -> Iterator[Found]:
    if verdict.kind is Kind.REFUSED:
        divergence = Divergence(
            Kind.REFUSED, ctx.source_name, "", ctx.source_id(point.key), code=verdict.code
        )
        yield Found(divergence, point.key)
        return
    table = ctx.targets[point.table].name
    row_id = ctx.target_id(point.table, point.key)
    stray = (point.table, point.key, verdict.etag) if verdict.kind is Kind.EXTRA else None
    for source in verdict.sources or (None,):
        source_id = "" if source is None else ctx.source_id(source)
        divergence = Divergence(verdict.kind, table, row_id, source_id, properties=verdict.properties)
        yield Found(divergence, source, stray)


class Collector:
    """Takes settled candidates and gives the findings."""

    def __init__(self, ctx: ReconcileContext, keep: Spill | None = None, *, suspects: bool = True) -> None:
        """Take the context and, when a repair shall follow, where to keep every divergence.

        With `suspects` every candidate was seen to differ by a scan: what is equal now is transient. Without
        (rows drawn by lot), it is transient only if a look at it saw a difference.
        """
        self._ctx = ctx
        self._suspects = suspects
        self._keep = keep
        self._counts: Counter[str] = Counter()
        self._listed: list[Divergence] = []
        self._transient = 0
        self._unsettled = 0
        self._pending = 0

    @property
    def stable(self) -> int:
        """How many stable divergences there are so far."""
        return self._counts.total()

    def take(self, settled: Settled) -> int:
        """Count a settled candidate; return how many divergences it holds."""
        found = list(divergences(self._ctx, settled))
        for each in found:
            self._counts[each.divergence.kind.value] += 1
            if len(self._listed) < LISTED:
                self._listed.append(each.divergence)
            if self._keep is not None:
                self._keep.put(_record(each))
        self._unsettled += settled.unsettled
        self._pending += settled.pending
        open_still = found or settled.unsettled or settled.pending
        if not open_still and (self._suspects or settled.differed):
            self._transient += 1
        return len(found)

    def findings(self, *, unchecked: int = 0) -> Findings:
        """Return what was found."""
        return Findings(
            dict(sorted(self._counts.items())),
            tuple(self._listed),
            self._transient,
            self._unsettled,
            unchecked,
            self._pending,
        )


def _record(found: Found) -> Record:
    divergence = found.divergence
    return [
        divergence.kind.value,
        divergence.table,
        divergence.row_id,
        divergence.source_id,
        [[each.name, each.change.value] for each in divergence.properties],
        divergence.stray_id,
        divergence.code,
        found.source,
        found.stray,
    ]


def read_found(record: Record) -> Found:
    """Read what `Collector` kept."""
    kind, table, row_id, source_id, properties, stray_id, code, source, stray = record
    divergence = Divergence(
        Kind(kind),
        table,
        row_id,
        source_id,
        tuple(PropertyDifference(name, Change(change)) for name, change in properties),
        stray_id,
        code,
    )
    return Found(
        divergence,
        None if source is None else EntityKey(*source),
        None if stray is None else (stray[0], EntityKey(*stray[1]), stray[2]),
    )
