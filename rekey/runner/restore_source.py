"""Brings a retired source back from the backup that it was retired with."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from rekey.backup.begun import control_rows, require_ended
from rekey.backup.erased import Unerased, erased_from, erased_in, recorded_in
from rekey.backup.folder import Export
from rekey.backup.restore import Imported, Writes, check_export, import_rows
from rekey.client.reading import LeaseSettings
from rekey.copy.delta import fresh_second
from rekey.core.clock import format_ticks
from rekey.core.limits import own_name
from rekey.mapping.rows import CONTROL_TABLE, MAPPING_TABLE
from rekey.model import Row
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow
from rekey.protocol.opening import open_wrapping
from rekey.protocol.registry import SAFETY_S
from rekey.runner.backup import described
from rekey.runner.clients import wait_for_clients
from rekey.runner.refusals import refusal
from rekey.runner.remaining import rows_up_to
from rekey.runner.run import Run
from rekey.runner.session import Session
from rekey.state.audit import BACKED_UP, erasures

# Audit event: rows were brought back.
RESTORED = "source-restored"
# Fact: the export that the source is being brought back from.
RESTORING = "restoring"


def restore_source(session: Session, script_id: str, export: Export) -> tuple[Imported, int]:
    """Bring the retired source of a migration back from its backup: of a part, the rows of the part. Rows
    that are there are left, and rows that were erased stay erased. The same call again finishes it. Return
    what was done, and how many rows were left out because they were erased.

    Raises:
        Refused: the migration is not retired, the export is not the backup it was retired with or was
            changed, or the source holds rows, or is a table of another migration by now; or clients of the
            part did not follow in time.
    """
    run = session.resume(script_id)

    def is_other(row: ControlRow) -> bool:
        # Another part of the source holds no row of this one.
        other = session.scripts.get(row.script_id)
        return row.script_id != script_id and (other is None or not other.is_beside(run.declared))

    control = session.do(run.control.read())
    if control is None or control.phase is not ControlPhase.RETIRED:
        phase = "nothing" if control is None else control.phase
        raise refusal("not-retired", script=script_id, phase=phase)
    source, backup = run.source, export.manifest.header.export
    backups = [event.details["backup"] for event in run.state.audit_events(script_id, event=BACKED_UP)]
    if backups and (backups[-1] is None or backups[-1]["export"] != backup):
        raise refusal("not-the-backup", folder=export.folder, script=script_id, source=source)
    controls = session.do(control_rows(run.restricted.table(CONTROL_TABLE)))
    if filling := session.do(_filled_since(run, control)):
        raise refusal("source-is-target", source=source, scripts=", ".join(filling), folder=export.folder)
    endpoint = run.config.holding(source.name)[1].endpoint
    require_ended(filter(is_other, controls), own_name(source.name), endpoint)
    if run.state.get_fact(script_id, RESTORING) != backup:
        if session.do(rows_up_to(source, 1)):
            # A run that was killed at its very end is repeated.
            restored = run.state.audit_events(script_id, event=RESTORED)
            if restored and restored[-1].details["backup"]["export"] == backup:
                moment = restored[-1].at
                raise refusal(
                    "restored-already",
                    source=source,
                    script=script_id,
                    restored_at=moment,
                    folder=export.folder,
                )
            raise refusal("source-holds-rows", source=source, folder=export.folder)
        run.state.set_fact(script_id, RESTORING, backup)
    session.do(_mark_restored(run))
    known = [row for row in controls if row.script_id != script_id]
    done, erased, until = session.do(_restored(run, export, known))
    details = {"backup": described(export), **done.as_json(), "erased": erased, "until": until}
    run.state.audit(RESTORED, script_id, details)
    run.state.set_fact(script_id, RESTORING, None)
    return done, erased


async def restored_until(run: Run, now: ControlRow) -> str | None:
    """Return the time before which the rows of a retired source were restored, by the service's clock: what
    was written later is not by rekey. None: none was, or the table is another migration's target by now."""
    restorations = run.state.audit_events(run.script_id, event=RESTORED)
    if not (now.restored or restorations) or await _filled_since(run, now):
        return None
    # Of one that was cut off, or that another state file or an earlier version recorded, it is not known.
    known = restorations[-1].details.get("until") if restorations else None
    return known or format_ticks(0)


async def _filled_since(run: Run, control: ControlRow) -> list[str]:
    """Return the migrations that fill the source since it was retired."""
    source, filling = run.source.name.lower(), []
    for script in run.scripts:
        theirs = await run.control_of(script) if source in script.fills else None
        if theirs is not None and not theirs.ended_before(control):
            filling.append(script.script_id)
    return sorted(filling)


async def _mark_restored(run: Run) -> None:
    """Record that the source has rows again. Of a part, have the clients of the old view refuse queries that
    could return them, as before `retire`: what is restored is older than what the target holds."""
    control = await run.control.mark_restored()
    if run.declared.migration.where is None:
        return
    if run.is_delta:
        # Guards register nowhere, and each trusts a reading of the control row for so long.
        trusted_s = LeaseSettings().lease_s + SAFETY_S
        with run.progress.waiting("clients", trusted_s):
            await run.clock.sleep(trusted_s)
    await wait_for_clients(run, control)


async def _restored(run: Run, export: Export, others: Iterable[ControlRow]) -> tuple[Imported, int, str]:
    """Write the rows of the export that were not erased, by this migration or by one of `others` that has its
    source as a table; return what was done, how many were erased, and when it was over."""

    def recorded(script_id: str) -> frozenset[str]:
        return recorded_in(erasures(run.state.audit_events(script_id)))

    mapping = run.restricted.table(MAPPING_TABLE)
    own = await erased_in(mapping, run.mapping.rows, recorded(run.script_id))
    place = own_name(run.source.name), run.config.holding(run.source.name)[1].endpoint
    wrapping = partial(open_wrapping, run.config)
    theirs = await erased_from(mapping, others, [place], wrapping=wrapping, recorded=recorded)
    unerased = Unerased([(run.source.name, own), *theirs])
    total = export.manifest.rows
    with run.progress.task(f"check {export.folder.name}", total=total) as advance:
        await check_export(export, advance, run.check)
    name = run.source.name
    if not await run.tables.table_exists(name):
        await run.tables.create_table(name)
    with run.progress.task(f"restore {name}", total=total) as advance:
        writes = Writes(
            replace=False,
            concurrency=run.config.limits.concurrency,
            throttle=run.copier.throttle,
            advance=advance,
            stop=run.check,
        )
        # The export may hold the other rows of the table, which were not deleted.
        part = run.declared.migration.key_spaces.get(name)
        table = run.tables.multi_writer_table(name)

        def takes(row: Row) -> bool:
            return (part is None or part.has(row)) and unerased.takes(row)

        done = await import_rows(export, table, writes, takes=takes)
    return done, unerased.erased, await fresh_second(run.source_time, run.clock)
