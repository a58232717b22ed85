"""The end of retention: data keys are shredded, a mapping in the clear is emptied.

Rules kept here:

* Only after `complete`, when every client has acknowledged it and the journal is empty (`require_complete`):
  nothing is sealed then, so no month is shredded that is still written under, even if a client remembers its
  key. The root key is never shredded: ids and tombstones depend on it.
* What is not over is shredded only when it is named, and with a reason. A mapping in the clear goes as a
  whole, and never before its time.
* It is on record before the first key goes, and once more after the last. Killed in between, the next
  command ends it.
* Time is the service's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.errors import ConfigurationError, Findings, Refused
from rekey.evidence.log import make_checkpoint
from rekey.mapping.erasing import Emptied, empty
from rekey.mapping.keyring import cohorts_kept
from rekey.mapping.retention import WHOLE, Cohort, day_of
from rekey.protocol.control import ControlRow
from rekey.runner.erase.erasure import require_complete
from rekey.runner.run import Run
from rekey.runner.session import Session
from rekey.state.audit import COHORTS, ERASURE_BEGUN, ERASURE_ENDED, MAPPING, erasures

OVER = "its keeping time is over"


@dataclass(frozen=True, slots=True)
class Expired:
    """What was shredded.

    Attributes:
        on: the day.
        cohorts: whose data keys are gone now.
        deleted_rows: of a mapping in the clear.
        kept_rows: of a mapping in the clear: written or changed too late to be over.
        left: cohorts that are not over, the one that will be first in front.
    """

    on: str
    cohorts: tuple[str, ...]
    deleted_rows: int
    kept_rows: int
    left: tuple[Cohort, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        left = [{"cohort": one.name, "over_at": format_ticks(one.over_at)} for one in self.left]
        return asdict(self) | {"cohorts": list(self.cohorts), "left": left}


def expire(session: Session, script_id: str, cohort: str | None = None, reason: str = "") -> Expired:
    """Shred one cohort, or all that are over; empty a mapping in the clear that is over.

    Args:
        session: the open session.
        script_id: the migration.
        cohort: its month; None for all that are over.
        reason: why it is shredded before its time; "" is right for one that is over.

    Raises:
        ConfigurationError: the mapping is in the clear and has no cohorts.
        Findings: there is no such cohort.
        Refused: its retention is not over and no reason is given; or see `require_complete`.
    """
    if cohort is not None and not session.scripts[script_id].migration.is_sealed:
        raise ConfigurationError(
            f"the mapping of {script_id} is in the clear: it has no cohorts that could be shredded",
            kept="everything; nothing was erased",
            hint=f"`rekey expire {script_id}` empties it when its retention is over",
        )
    run = session.resume(script_id)
    control = session.do(require_complete(run))
    now, seen = session.do(_seen(run, control))
    if cohort is None:
        return _erase(session, run, control, [one.name for one in seen if one.is_due(now)], OVER)
    found = next((one for one in seen if one.name == cohort), None)
    if found is None:
        there = ", ".join(one.name for one in seen) or "none"
        raise Findings(
            f"{script_id} has no cohort {cohort}",
            kept="everything; nothing was erased",
            hint=f"there are: {there}",
        )
    if not reason and now < found.over_at and not found.erased_on:
        raise Refused(
            f"the retention of {cohort} of {script_id} is over at {format_ticks(found.over_at)}",
            kept="everything; nothing was erased",
            hint="wait, or say with --reason why its rows must not be looked up until then",
        )
    due = [] if found.erased_on else [cohort]
    return _erase(session, run, control, due, reason or OVER)


async def _seen(run: Run, control: ControlRow) -> tuple[int, tuple[Cohort, ...]]:
    """Return the service's time in ticks, and the cohorts."""
    now = ticks_of(await run.restricted.server_time())
    return now, await cohorts_kept(
        run.restricted,
        run.script_id,
        control.ended_at,
        sealed=run.declared.migration.is_sealed,
        keep_s=run.config.gates.mapping_retention_s,
    )


def _erase(session: Session, run: Run, control: ControlRow, due: list[str], reason: str) -> Expired:
    """Erase cohorts with the events around it, and those that were begun before and cut off."""
    state, script_id = session.state, run.script_id
    sealed = run.declared.migration.is_sealed
    kind = COHORTS if sealed else MAPPING
    before = [e for e in erasures(state.audit_events(script_id)).open if e.details["kind"] == kind]
    begun = {event.seq: list(event.details["cohorts"]) for event in before}
    named = {name for names in begun.values() for name in names}
    new = [name for name in due if name not in named]
    if new:
        event = state.audit(ERASURE_BEGUN, script_id, {"kind": kind, "cohorts": new, "reason": reason})
        begun[event.seq] = new
    on = day_of(session.do(run.restricted.server_time()))
    emptied, erased = Emptied(), list[str]()
    if begun and not sealed:
        emptied = session.do(_empty(run, control, on))
        erased = [WHOLE]
    elif begun:
        erased = session.do(_shred_keys(run, sorted({*named, *new}), on))
    for seq, names in begun.items():
        said: dict[str, Any] = {"kind": kind, "begun": seq, "on": on, "cohorts": names}
        counts = {} if sealed else {"deleted_rows": emptied.deleted, "kept_rows": emptied.kept}
        state.audit(ERASURE_ENDED, script_id, said | counts)
    if begun:
        make_checkpoint(state, session.signer, f"{script_id}: erased", session.progress)
    _, seen = session.do(_seen(run, control))
    left = sorted((one for one in seen if not one.erased_on), key=lambda one: one.over_at)
    return Expired(on, tuple(erased), emptied.deleted, emptied.kept, tuple(left))


async def _shred_keys(run: Run, cohorts: list[str], on: str) -> list[str]:
    """Shred data keys; return the cohorts of those that still stood."""
    keyring = run.mapping.keyring
    shredded = []
    for cohort in cohorts:
        run.check()
        if keyring is not None and await keyring.shred(cohort, on):
            shredded.append(cohort)
    return shredded


async def _empty(run: Run, control: ControlRow, on: str) -> Emptied:
    completed = ticks_of(control.completed_at or control.updated_at)
    now = ticks_of(await run.restricted.server_time())
    keep = round(run.config.gates.mapping_retention_s * TICKS_PER_SECOND)
    with run.progress.task("empty the mapping") as advance:
        return await empty(
            run.mapping,
            on,
            lambda written: max(written, completed) + keep <= now,
            concurrency=run.config.limits.concurrency,
            advance=advance,
            check=run.check,
        )
