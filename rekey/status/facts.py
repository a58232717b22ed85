"""All that is known of one migration, as `rekey.status.read` collects it.

Rules kept here:

* The control row is believed before the ledger (`align`).
* A fact that could not be read is shown as unknown, never guessed.
* A client that is over is neither behind nor refusing: one that was killed leaves its row.
* Nothing here holds a key, except segments, whose keys no repr shows.
* A bundle counts as evidence for `retire` when it was exported after `complete`, was signed, and was verified
  on this machine: the audit log has all three. A bundle exported before `complete` does not show how the
  migration ended. Where the log does not hold the completion (the state file was lost since), every bundle
  in the log counts: it was exported later than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.core.plain import told
from rekey.declaration.migration import Declared
from rekey.mapping.rows import Cohort
from rekey.phases import ControlPhase, Phase
from rekey.project.config import Gates
from rekey.protocol.control import ControlRow
from rekey.protocol.registry import ClientRow, is_current, is_over
from rekey.state.audit import EVIDENCE_VERIFIED, AuditEvent
from rekey.state.ledger import aligned, applied_phases, handover
from rekey.state.models import PhaseRun, Segment, Verification

RETURNED_AFTER = "returned_after"
"""Fact: the number of the last full verification when a way back from cutover was last begun."""
RETURNED_AT = "returned_at"
"""Fact of versions before 0.2: the same as a time, by the clock of some machine. It cannot tell which
verifications are newer. The next full verification removes it."""
ESTIMATED_ROWS = "estimated_rows"
"""Fact: how many rows the source has, as planned before the first write."""
UNFOLLOWED = "unfollowed"
"""Fact: the number of the last full verification that was made while no client was registered."""
LATE_UNTIL = "late_until"
"""Fact: until when, by the service's clock, requests of clients that were given up when dual writes began may
still take effect. They have no intent."""

EVIDENCE_MISSING = (
    "no signed evidence was exported since `complete` and verified"
    " (`rekey evidence export`, then `rekey evidence verify`)"
)


@dataclass(frozen=True, slots=True)
class Lease:
    """The runner lease as read.

    Attributes:
        host, pid: the process that holds it.
        ends_at: when it ends unless it is renewed, by the service's clock.
        live: it has not ended, and its process is not known to be gone.
    """

    host: str
    pid: int
    ends_at: str = field(metadata=told("lease_ends_at"))
    live: bool


@dataclass(frozen=True, slots=True)
class Intents:
    """The intents in the journal: of writes under way, and of keys whose replicas may not be current.

    Attributes:
        depth: how many intents are not settled.
        oldest_at: when the oldest of these was made, ticks of the service's clock; None without any.
        kept: how many more are settled, and kept while requests of their client may still take effect.
    """

    depth: int
    oldest_at: int | None = field(metadata=told(form=format_ticks))
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """A script that another script waits for, and the phase that it must have applied."""

    script_id: str
    phase: Phase


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts of one migration.

    Attributes:
        declared: the script as it is now.
        applied: the ledger's phases, in order.
        control: the control row, None when there is none or it could not be read.
        lease: the runner lease, None when it is free or this process holds it.
        runs: runs of phases, oldest first.
        segments: of the backfill.
        facts: small facts of the state file.
        verification: the last full verification.
        gates: the configured gates.
        now: ticks of the service's clock; of this machine's when the service could not be asked.
        waits_for: scripts that must apply further phases before this one begins.
        unreachable: why the service could not be asked, "" when it was.
        clients: clients with a row in the registry, in capture "dual-write".
        ended: what clients had counted that have no row any more, by name.
        intents: the journal, in capture "dual-write"; None when it was not read.
        proved: whether the evidence that `retire` asks for was exported and verified.
        cohorts: of the mapping, once the migration is complete.
        erasing: events of erasures that were begun and not ended.
    """

    declared: Declared
    applied: tuple[Phase, ...]
    control: ControlRow | None
    lease: Lease | None
    runs: tuple[PhaseRun, ...]
    segments: tuple[Segment, ...]
    facts: Mapping[str, str]
    verification: Verification | None
    gates: Gates
    now: int
    waits_for: tuple[Wait, ...] = ()
    unreachable: str = ""
    clients: tuple[ClientRow, ...] = ()
    ended: Mapping[str, int] = field(default_factory=dict)
    intents: Intents | None = None
    proved: bool = True
    cohorts: tuple[Cohort, ...] = ()
    erasing: tuple[AuditEvent, ...] = ()

    @property
    def script_id(self) -> str:
        """The migration's id."""
        return self.declared.script_id

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that count as applied: the ledger's, aligned with the control row except in a freeze."""
        if self.control is None or self.control.phase is ControlPhase.FREEZE:
            return self.applied
        return aligned(self.control.phase, self.applied)

    @property
    def is_delta(self) -> bool:
        """Whether the targets follow by delta passes."""
        return self.declared.migration.capture == "delta"

    @property
    def at_work(self) -> bool:
        """Whether a runner works on the migration."""
        return self.lease is not None and self.lease.live

    @property
    def live_clients(self) -> tuple[ClientRow, ...]:
        """Clients that are not over: their requests may still take effect."""
        return tuple(row for row in self.clients if not is_over(row, self.now))

    @property
    def clients_behind(self) -> tuple[ClientRow, ...]:
        """Live clients that have not acknowledged the control row's epoch."""
        return tuple(row for row in self.live_clients if not self.is_current(row))

    @property
    def clients_refusing(self) -> tuple[ClientRow, ...]:
        """Live clients that refuse dual writes, or will refuse them once dual writes begin."""
        return tuple(row for row in self.live_clients if row.refuses)

    def is_current(self, row: ClientRow) -> bool:
        """Tell whether a client has acknowledged the control row's epoch; True without a control row."""
        control = self.control
        return control is None or is_current(row, control.run_id, control.epoch)

    @property
    def source(self) -> str:
        """The source table's name."""
        return self.declared.migration.source

    @property
    def target(self) -> str:
        """The main target table's name."""
        return self.declared.migration.tables[0]

    @property
    def retention_ends_at(self) -> int | None:
        """When the retention period ends, in ticks; None unless the control phase is `complete`."""
        control = self.control
        if control is None or control.phase is not ControlPhase.COMPLETE:
            return None
        since = ticks_of(control.completed_at or control.updated_at)
        return since + round(self.gates.retention_s * TICKS_PER_SECOND)

    @property
    def due(self) -> tuple[Cohort, ...]:
        """Cohorts whose keeping time is over and that are not erased yet."""
        return tuple(one for one in self.cohorts if one.is_due(self.now))

    def since(self, moment: str) -> float:
        """Return the seconds since a time of the service's clock, not below 0."""
        return max(0.0, round((self.now - ticks_of(moment)) / TICKS_PER_SECOND, 1))


def waits(script: Declared, scripts: Mapping[str, Declared], ledger_ids: Iterable[str]) -> tuple[Wait, ...]:
    """Return the scripts that a script waits for before it can begin; the ledger refuses it for the same
    reasons."""
    ids = set(ledger_ids)
    if applied_phases(ids, script.script_id):
        return ()
    needed = [Wait(other, handover(scripts[other], script)) for other in sorted(script.depends)]
    return tuple(one for one in needed if one.phase not in applied_phases(ids, one.script_id))


def verification_problem(
    last: Verification | None,
    facts: Mapping[str, str],
    *,
    now: int,
    max_age_s: float,
    writers_stopped: bool = False,
) -> str:
    """Return why the last full verification keeps the gate before cutover closed, "" when it opens it.

    Args:
        last: the last full verification.
        facts: small facts of the state file.
        now: ticks of the service's clock, which verifications are timed by.
        max_age_s: how old the verification may be, in seconds.
        writers_stopped: the operator says that no application writes: no client needed to be registered.
    """
    if last is None:
        return "nothing has been verified in full"
    if last.divergences:
        return f"the last full verification found {last.divergences:,} rows that differ"
    returned = RETURNED_AFTER in facts and last.number <= int(facts[RETURNED_AFTER])
    if returned or (RETURNED_AT in facts and RETURNED_AFTER not in facts):
        return "nothing has been verified in full since the way back from cutover"
    late_until = facts.get(LATE_UNTIL)
    if late_until is not None and ticks_of(last.started_at) < ticks_of(late_until):
        return (
            "a client was given up when dual writes began, without having ended in order: what it had signed"
            f" may reach the source until {late_until}; only a full verification that begins later finds it"
        )
    if is_unfollowed(last, facts) and not writers_stopped:
        return "when all was last verified, no client of the application was registered"
    if now - ticks_of(last.finished_at) > max_age_s * TICKS_PER_SECOND:
        return f"the last full verification is of {last.finished_at}, which is too old"
    return ""


def is_unfollowed(last: Verification, facts: Mapping[str, str]) -> bool:
    """Tell whether a full verification was made while no client was registered."""
    return UNFOLLOWED in facts and last.number <= int(facts[UNFOLLOWED])


def is_proved(events: Iterable[AuditEvent]) -> bool:
    """Tell whether a signed bundle that was exported after `complete` was verified.

    Args:
        events: the events of one migration, in order.
    """
    completed, proved = 0, False
    for event in events:
        if event.event == "phase-done" and event.details.get("phase") == Phase.COMPLETE:
            completed, proved = event.seq, False
        if event.event == EVIDENCE_VERIFIED and event.details["signed"]:
            proved = proved or event.details["exported"] > completed
    return proved
