"""The end of retention: data keys of sealed mappings are shredded, a mapping in the clear is emptied. All
times are by the service's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rekey import errors
from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.core.concurrency import for_each
from rekey.evidence.log import make_checkpoint
from rekey.mapping.removed import RemovedRows
from rekey.mapping.rows import DONE, ERASED_ON, WHOLE, Cohort, day_of, is_tombstone
from rekey.mapping.sealing import key_partition
from rekey.mapping.store import cohorts_kept
from rekey.model import TIMESTAMP, EntityKey, KeyRange, Row, etag_of, key_of
from rekey.protocol.control import ControlRow
from rekey.runner.erase.erasure import require_complete
from rekey.runner.erase.targets import MAX_ROUNDS
from rekey.runner.references import require_expirable_mapping
from rekey.runner.refusals import refusal
from rekey.runner.run import Run
from rekey.runner.session import Session
from rekey.state.audit import COHORTS, ERASURE_BEGUN, ERASURE_ENDED, MAPPING, erasures

OVER = "its keeping time is over"


@dataclass(frozen=True, slots=True)
class Expired:
    """What was shredded or emptied."""

    on: str
    # Months whose data keys were shredded; `all` for a mapping in the clear.
    cohorts: tuple[str, ...]
    deleted_rows: int
    # Rows of a mapping in the clear that stay: retention is not over, or they changed meanwhile.
    kept_rows: int
    # Cohorts not erased, in the order in which their retention ends.
    left: tuple[Cohort, ...]
    # Rows that a repair had removed and that are kept no longer.
    removed_rows: int = 0

    def as_json(self) -> dict[str, Any]:
        left = [{"cohort": cohort.name, "over_at": format_ticks(cohort.over_at)} for cohort in self.left]
        return asdict(self) | {"cohorts": list(self.cohorts), "left": left}


def expire(session: Session, script_id: str, cohort: str | None = None, reason: str = "") -> Expired:
    """Shred one cohort, or all whose retention is over; empty a mapping in the clear when its retention is
    over.

    Args:
        session: the open session.
        script_id: the migration.
        cohort: its month; None for all whose retention is over.
        reason: why it is shredded early; may be "" when its retention is over.

    Raises:
        ConfigurationError: the mapping is in the clear and has no cohorts.
        Findings: there is no such cohort.
        Refused: its retention is not over and no reason is given; or see `require_complete`.
    """
    if cohort is not None and not session.scripts[script_id].migration.is_sealed:
        raise refusal("no-cohorts", script=script_id)
    run = session.resume(script_id)

    async def work() -> Expired:
        # Nothing is sealed after this, so no data key is shredded that a client still seals with.
        control = await require_complete(run)
        await require_expirable_mapping(run)
        now, seen = await _seen(run, control)
        due, why = [cohort.name for cohort in seen if cohort.is_due(now)], OVER
        if cohort is not None:
            wanted = next((seen_cohort for seen_cohort in seen if seen_cohort.name == cohort), None)
            if wanted is None:
                there = ", ".join(seen_cohort.name for seen_cohort in seen) or "none"
                raise refusal("no-such-cohort", script=script_id, cohort=cohort, cohorts=there)
            if not reason and now < wanted.over_at and not wanted.erased_on:
                over_at = format_ticks(wanted.over_at)
                raise refusal("cohort-not-over", cohort=cohort, script=script_id, over_at=over_at)
            due, why = [] if wanted.erased_on else [cohort], reason or OVER
        done = await _erase(session, run, control, due, why)
        return replace(done, removed_rows=await expire_removed(run, done.cohorts))

    return session.do(work())


async def expire_removed(run: Run, cohorts: Sequence[str] = ()) -> int:
    """Delete removed rows that were kept for `[gates] retention` or belong to `cohorts`; return how many."""
    now = ticks_of(await run.restricted.server_time())
    gone = await RemovedRows(run.mapping).expire(now, run.config.gates.retention_s, cohorts)
    if gone:
        run.state.audit("removed-rows-expired", run.script_id, {"rows": gone})
    return gone


async def _seen(run: Run, control: ControlRow) -> tuple[int, tuple[Cohort, ...]]:
    now = ticks_of(await run.restricted.server_time())
    ended_at, sealed = control.ended_at, run.declared.migration.is_sealed
    keep_s = run.config.gates.mapping_retention_s
    if not run.mapping.is_stored:
        return now, ()
    return now, await cohorts_kept(run.restricted, run.script_id, ended_at, sealed=sealed, keep_s=keep_s)


async def _erase(session: Session, run: Run, control: ControlRow, due: list[str], reason: str) -> Expired:
    """Erase the cohorts `due` and finish erasures that were cut off; record begin and end of each."""
    kind = COHORTS if run.declared.migration.is_sealed else MAPPING
    before = [e for e in erasures(run.state.audit_events(run.script_id)).open if e.details["kind"] == kind]
    begun = {event.seq: list(event.details["cohorts"]) for event in before}
    named = {name for names in begun.values() for name in names}
    new = [name for name in due if name not in named]
    if new:
        details = {"kind": kind, "cohorts": new, "reason": reason}
        event = run.state.audit(ERASURE_BEGUN, run.script_id, details)
        begun[event.seq] = new
    on = day_of(await run.restricted.server_time())
    erased, counts = list[str](), dict[str, int]()
    if begun and run.mapping.keyring is None:
        counts = await _empty(run, control, on)
        erased = [WHOLE]
    elif begun and run.mapping.keyring is not None:
        for cohort in sorted({*named, *new}):
            run.check()
            # The root key stays: ids and tombstones depend on it.
            if await run.mapping.keyring.shred(cohort, on):
                erased.append(cohort)
    for seq, names in begun.items():
        ended = {"kind": kind, "begun": seq, "on": on, "cohorts": names}
        run.state.audit(ERASURE_ENDED, run.script_id, ended | counts)
    if begun:
        make_checkpoint(run.state, session.signer, f"{run.script_id}: erased", run.progress)
    _, seen = await _seen(run, control)
    left = sorted((cohort for cohort in seen if not cohort.erased_on), key=lambda cohort: cohort.over_at)
    return Expired(on, tuple(erased), counts.get("deleted_rows", 0), counts.get("kept_rows", 0), tuple(left))


async def _empty(run: Run, control: ControlRow, on: str) -> dict[str, int]:
    """Delete the rows of a clear mapping whose retention is over, reverse rows first; return counts."""
    mapping, counts = run.mapping, {"deleted_rows": 0, "kept_rows": 0}
    completed = ticks_of(control.ended_at or control.updated_at)
    keep = round(run.config.gates.mapping_retention_s * TICKS_PER_SECOND)
    now = ticks_of(await run.restricted.server_time())
    # Before the first row is deleted: a look-up must never take an erased row for an unknown one.
    on = await _mark(run, on, done=False)

    async def remove(row: Row) -> None:
        if not is_tombstone(row) and max(ticks_of(row[TIMESTAMP]), completed) + keep > now:
            counts["kept_rows"] += 1
            return
        try:
            await mapping.table.delete(key_of(row), etag=etag_of(row))
        except errors.RowMissing:
            return
        except errors.ConditionFailed:
            counts["kept_rows"] += 1
        else:
            counts["deleted_rows"] += 1

    with run.progress.task("empty the mapping") as advance:
        for partition in mapping.rows.all_partitions:
            async for page in mapping.table.scan(KeyRange.of_rows(partition), select=[ERASED_ON]):
                run.check()
                await for_each(page.rows, remove, limit=run.config.limits.concurrency)
                advance(len(page.rows))
    if not counts["kept_rows"]:
        await _mark(run, on, done=True)
    return counts


async def _mark(run: Run, on: str, *, done: bool) -> str:
    """Write the tombstone of the whole mapping and return its day: `on`, or that of an earlier tombstone."""
    table, tombstones = run.mapping.table, run.mapping.rows.tombstones
    at = EntityKey(key_partition(run.script_id), WHOLE)
    for _ in range(MAX_ROUNDS):
        row = await table.get(at)
        text = on if row is None else tombstones.read(row)
        if row is not None and (row.get(DONE, False) or not done):
            return text
        tombstone = tombstones.make(at, text) | {DONE: done}
        try:
            if row is None:
                await table.insert(tombstone)
            else:
                await table.replace(tombstone, etag=etag_of(row))
        except (errors.RowExists, errors.RowMissing, errors.ConditionFailed, errors.Ambiguous):
            continue
        return text
    raise refusal("mark-changing")
