"""Reading the facts of a migration, without a lock, a lease or a write.

Rules kept here:

* It works while a runner is at work: the state file is read as it is at one moment.
* A service that cannot be asked is one of the facts, not an error: the state file is read in any case.
"""

from __future__ import annotations

from collections.abc import Mapping

from rekey.core.clock import Clock, format_ticks, ticks_of
from rekey.declaration.migration import Declared
from rekey.errors import ServiceError, TableMissing
from rekey.mapping.rows import JOURNAL_TABLE, Cohort
from rekey.mapping.store import cohorts_kept
from rekey.project.config import Config
from rekey.protocol.control import ControlStore
from rekey.protocol.journal import Journal
from rekey.protocol.lease import Holder, ends_at, holder_of, is_over, process_exists, read_lease
from rekey.protocol.registry import ClientRow, Registry
from rekey.state.audit import erasures
from rekey.state.ledger import applied_phases
from rekey.state.models import BACKFILL
from rekey.state.store import State
from rekey.status.facts import Facts, Intents, Lease, is_proved, waits
from rekey.tables.base import TableService


async def look_at(
    declared: Declared,
    scripts: Mapping[str, Declared],
    config: Config,
    state: State,
    restricted: TableService,
    clock: Clock,
) -> Facts:
    """Collect the facts of one migration.

    Args:
        declared: the migration.
        scripts: all scripts, by id.
        config: the configuration.
        state: the state file, open for reading at least.
        restricted: tables of the restricted account.
        clock: this machine's clock, used when the service cannot be asked.

    Raises:
        StateUnusable: the state file, the control row or a client's row cannot be read.
    """
    script_id, control, lease = declared.script_id, None, None
    clients: list[ClientRow] = []
    ended: Mapping[str, int] = {}
    intents: Intents | None = None
    cohorts: tuple[Cohort, ...] = ()
    now, unreachable = clock.ticks(), ""
    try:
        control = await ControlStore(restricted, script_id).read()
        server_time = await restricted.server_time()
        now = ticks_of(server_time)
        lease = await _lease(restricted, script_id, server_time)
        if declared.migration.capture == "dual-write":
            registry = Registry(restricted, script_id)
            clients, ended = await registry.list(), await registry.ended()
            intents = await _intents(restricted, script_id)
        sealed = declared.migration.is_sealed
        ended_at = None if control is None else control.ended_at
        keep_s = config.gates.mapping_retention_s
        cohorts = await cohorts_kept(restricted, script_id, ended_at, sealed=sealed, keep_s=keep_s)
    except ServiceError as error:
        unreachable = f"the restricted store could not be asked ({type(error).__name__})"
    ids = state.ledger_ids()
    return Facts(
        declared=declared,
        applied=tuple(applied_phases(ids, script_id)),
        control=control,
        lease=lease,
        runs=tuple(state.phase_runs(script_id)),
        segments=tuple(state.segments(script_id, BACKFILL, keys=False)),
        facts=state.facts(script_id),
        verification=state.latest_verification(script_id, mode="full"),
        gates=config.gates,
        now=now,
        waits_for=waits(declared, scripts, ids),
        unreachable=unreachable,
        clients=tuple(clients),
        ended=ended,
        intents=intents,
        proved=is_proved(state.audit_events(script_id)),
        cohorts=cohorts,
        erasing=erasures(state.audit_events(script_id)).open,
    )


async def _intents(restricted: TableService, script_id: str) -> Intents:
    """Return the number of intents and the time of the oldest, without their keys."""
    made: list[tuple[int, bool]] = []
    try:
        async for times in Journal(restricted.table(JOURNAL_TABLE), script_id).times():
            made += times
    except TableMissing:
        return Intents(0, None)
    unsettled = [at for at, settled in made if not settled]
    return Intents(len(unsettled), min(unsettled, default=None), len(made) - len(unsettled))


async def _lease(restricted: TableService, script_id: str, server_time: str) -> Lease | None:
    """Return the runner lease, None when there is none or this process holds it."""
    row = await read_lease(restricted, script_id)
    if row is None:
        return None
    holder, ours = holder_of(row), Holder.current(lock="")
    if holder.process == ours.process:
        return None
    here = bool(ours.boot) and (holder.boot, holder.namespace) == (ours.boot, ours.namespace)
    return Lease(
        host=holder.host,
        pid=holder.pid,
        ends_at=format_ticks(ends_at(row)),
        live=not is_over(row, server_time) and not (here and not process_exists(holder.pid)),
    )
