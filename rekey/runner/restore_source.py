"""Brings a retired source back from the backup that it was retired with."""

from __future__ import annotations

from rekey.backup.begun import control_rows, require_ended
from rekey.backup.erased import Unerased, erased_in, recorded_in
from rekey.backup.folder import Export
from rekey.backup.restore import Imported, Writes, check_export, import_rows
from rekey.client.reading import LeaseSettings
from rekey.core.limits import own_name
from rekey.mapping.rows import CONTROL_TABLE, MAPPING_TABLE
from rekey.model import Row
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow
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
    others = [row for row in session.do(control_rows(run.restricted.table(CONTROL_TABLE))) if is_other(row)]
    fillers = {name for name, script in session.scripts.items() if source.name.lower() in script.fills}
    since = [row.script_id for row in others if not row.ended_before(control)]
    if filling := sorted(fillers.intersection(since)):
        raise refusal("source-is-target", source=source, scripts=", ".join(filling), folder=export.folder)
    require_ended(others, own_name(source.name), run.config.holding(source.name)[1].endpoint)
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
    if run.declared.migration.where is not None:
        session.do(_close_queries(run))
    done, erased = session.do(_restored(run, export))
    details = {"backup": described(export), **done.as_json(), "erased": erased}
    run.state.audit(RESTORED, script_id, details)
    run.state.set_fact(script_id, RESTORING, None)
    return done, erased


async def _close_queries(run: Run) -> None:
    """Have the clients of the old view refuse queries that could return rows of the part, as before `retire`:
    what is restored is older than what the target holds."""
    control = await run.control.mark_restored()
    if run.is_delta:
        # Guards register nowhere, and each trusts a reading of the control row for so long.
        trusted_s = LeaseSettings().lease_s + SAFETY_S
        with run.progress.waiting("clients", trusted_s):
            await run.clock.sleep(trusted_s)
    await wait_for_clients(run, control)


async def _restored(run: Run, export: Export) -> tuple[Imported, int]:
    recorded = recorded_in(erasures(run.state.audit_events(run.script_id)))
    rows = await erased_in(run.restricted.table(MAPPING_TABLE), run.mapping.rows, recorded)
    unerased = Unerased([(run.source.name, rows)])
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

        return await import_rows(export, table, writes, takes=takes), unerased.erased
