"""The backup that `retire` asks for. What counts is no digest of the past: every row that would be deleted
must be in the export as it is now."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from rekey.backup.folder import MANIFEST, Export
from rekey.backup.restore import check_export
from rekey.core.concurrency import for_each
from rekey.model import EntityKey, key_of
from rekey.present.text import counted
from rekey.runner.run import Run
from rekey.state.audit import BACKED_UP
from rekey.status.reasons import reason
from rekey.verify.bucket_digests import FEW
from rekey.verify.context import partition_of
from rekey.verify.settle import compare


def backup_folder(script_id: str) -> str:
    """Return the name of the folder that texts propose for the backup of a migration's source."""
    return f"backup-{script_id}"


async def closed_by_backup(run: Run) -> list[str]:
    """Return why the source may not be deleted: no export was named that holds each of its rows as it is now,
    and no reason for keeping none was given. What was found is recorded.

    Raises:
        Refused: a part of the export is not what was exported.
    """
    export, why_none = run.options.backup, run.options.no_backup
    if not await run.tables.table_exists(run.source.name):
        return []  # a run that was cut off deleted it
    if why_none:
        run.state.audit(BACKED_UP, run.script_id, {"backup": None, "reason": why_none})
        return []
    if export is None:
        return [reason("no-backup", source=run.source, folder=backup_folder(run.script_id))]
    with run.progress.task(f"check {export.folder.name}", total=export.manifest.rows) as advance:
        await check_export(export, advance, run.check)
    rows, lacking = await _compared(run, export)
    details = {"backup": described(export), "rows_compared": rows, "rows_lacking": len(lacking)}
    run.state.audit(BACKED_UP, run.script_id, details)
    if not lacking:
        return []
    rows_lacking, listed = counted(len(lacking), "row"), run.listed(run.source, sorted(lacking))
    return [
        reason("backup-lacks-rows", folder=export.folder, source=run.source, rows=rows_lacking, listed=listed)
    ]


def described(export: Export) -> dict[str, Any]:
    """Return what the audit log says of an export: no key, and no digest from which few rows could be
    guessed."""
    header, is_few = export.manifest.header, export.manifest.rows < FEW
    manifest = (export.folder / MANIFEST).read_bytes()
    return {
        "export": header.export,
        "table": header.table,
        "account": header.account,
        "began_at": header.began_at,
        "rows": export.manifest.rows,
        "encrypted": export.cover.is_sealed,
        "digest": "" if is_few else export.manifest.digest,
        "manifest_sha256": (
            "" if is_few and not export.cover.is_sealed else hashlib.sha256(manifest).hexdigest()
        ),
    }


async def _compared(run: Run, export: Export) -> tuple[int, list[EntityKey]]:
    """Compare the source with an export; return how many rows it has, and the keys of those that the export
    lacks or holds with other content. What the export has besides does not matter: rows of other parts, rows
    that the application deleted, rows that a `retire` which was cut off has deleted."""
    rows, lacking, source = 0, list[EntityKey](), run.source

    async def compare_part(number: int) -> None:
        nonlocal rows
        # The ranges of the parts cover all keys, each once.
        exported = await asyncio.to_thread(export.rows, export.parts, number)
        known = {key_of(row): row for row in exported}
        async for page in source.scan(export.parts[number].within):
            run.check()
            for row in page.rows:
                kept = known.get(key_of(row))
                if kept is None or compare(kept, row):
                    lacking.append(key_of(row))
            rows += len(page.rows)
            advance(len(page.rows))
            if page.rows:
                partition = partition_of(source, page.rows)
                await run.copier.throttle.arrived_from(source.name, len(page.rows), partition)

    with run.progress.task("compare with the backup") as advance:
        await for_each(range(len(export.parts)), compare_part, limit=run.config.limits.scans)
    return rows, lacking
