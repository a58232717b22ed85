"""One piece of work against the stub, timed from its first request.

    python -m benchmarks.stub_work SIDE WORK URL

SIDE is `rekey` or `sdk`; WORK is `copy` (with mapping rows), `copy-targets` (without) or `verify`, for rekey
also `copy-limited` (with mapping rows, at the rates that rekey keeps to against the service), `copy:MAPPING`,
another declaration of `DECLARED`, `check` (the row check), `inspect` (every row) and `scan` (the same pages,
read and dropped). `export` writes the source to files, `import` writes such files to the target: the export
before it is not timed. The loops over azure-data-tables are those that teams write by hand (`sdk_loop`).
Writes `work.json` into the current folder: rows, seconds, and seconds of this process's processor, its start
and imports left out.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import EntityProperty, TableClient, TableServiceClient

from benchmarks.project import SCRIPT_ID, SECRET, USERS
from benchmarks.sdk_loop import mapping_rows, opaque, write
from benchmarks.stub import ACCOUNT, KEY
from rekey import Migration, Target, keys, props
from rekey.backup.export import export_table
from rekey.backup.folder import open_export
from rekey.backup.restore import Writes, check_export, import_rows
from rekey.copy.map import CopyWindow, Write
from rekey.copy.pipeline import Callbacks, copy_segments
from rekey.copy.scan import ReadOptions, window_of
from rekey.copy.throttle import Throttle
from rekey.copy.write import Copier
from rekey.core.collector import patient_collector
from rekey.core.safe_ids import SafeIds
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Declared
from rekey.inspect.inspect import inspect_table
from rekey.mapping.rows import MAPPING_TABLE, MappingRows
from rekey.mapping.sealing import LocalWrappingKey, Sealer, new_data_key
from rekey.mapping.store import MappingStore
from rekey.model import EVERYTHING, EntityKey
from rekey.plan.plan import make_plan
from rekey.plan.subject import PlanOptions, Subject
from rekey.project.config import Limits
from rekey.protocol.propagate import Propagator
from rekey.state import backend, writer
from rekey.state.store import State
from rekey.tables.azure import AzureTableService
from rekey.tables.credentials import SharedKey
from rekey.verify.context import MappedRows, ReconcileContext, RowReads
from rekey.verify.full import full

_PURPOSE = "backfill"
DECLARED = {
    "kept": USERS,
    "buckets": Migration(
        source=USERS.source,
        target=Target(
            USERS.tables[0],
            partition_key=keys.bucket(64, "sha256", "RowKey"),
            row_key=keys.join("-", keys.prop("PartitionKey"), keys.prop("RowKey")),
            properties=[props.copy("PartitionKey", to="Tenant")],
        ),
        capture="delta",
        reverse=False,
    ),
    "apart": Migration(
        source=USERS.source,
        target=Target(
            USERS.tables[0],
            partition_key=keys.join("-", keys.prop("PartitionKey"), keys.prop("RowKey")),
            row_key=keys.literal("user"),
            properties=[props.copy("RowKey", to="ContactEmail"), props.copy("PartitionKey", to="Tenant")],
        ),
        capture="delta",
        reverse=False,
    ),
}
"""What can be copied: to the same partitions, to few, to one for each row."""
_SECRET = SECRET.encode()


def _no_mapping_writes(_rows: MappingRows, _window: CopyWindow) -> Iterator[Write]:
    """Write no mapping rows. For the comparison alone: rekey has no such mode."""
    return iter(())


def no_mapping() -> AbstractContextManager[object]:
    """Return a context in which no mapping rows are written."""
    return mock.patch("rekey.copy.write.mapping_writes", _no_mapping_writes)


def mapping_of(migration: Migration) -> MappingRows:
    """Return what makes the mapping rows of a declaration."""
    sealer = Sealer()
    sealer.use(new_data_key("2024-05"))
    return MappingRows(SCRIPT_ID, migration.source, migration.tables, SafeIds(bytes(32)), sealer)


def _migration(service: AzureTableService, migration: Migration = USERS) -> Propagator:
    return Propagator(
        service.table(migration.source),
        [service.table(name) for name in migration.tables],
        Mapper(migration, {"users": _SECRET}),
        MappingStore(service.table(MAPPING_TABLE), mapping_of(migration)),
    )


def throttle_of(limits: Limits) -> Throttle:
    """Return the throttle of fixed rates."""
    return Throttle(limits.account_rate, partition=limits.partition_entities_per_second)


async def copy(service: AzureTableService, limits: Limits, migration: Migration, throttle: Throttle) -> int:
    """Copy all rows; return how many."""
    service.listen(throttle.heard, throttle.admit)
    copier = Copier(_migration(service, migration), limits.concurrency, throttle)
    path = Path("state.sqlite")
    with State.open(path) as state:
        state.register(SCRIPT_ID, "digest", USERS.source, "run", {}, "stub")
        segments = state.add_segments(SCRIPT_ID, _PURPOSE, [EVERYTHING])
        async with copier.writer() as writer:
            copied, _ = await copy_segments(
                copier.propagator.source,
                segments,
                writer.copy,
                window_of(limits),
                callbacks=Callbacks(state.checkpoint),
                options=ReadOptions(limits.scans, state.split_segment, throttle=copier.throttle),
                writer=writer,
            )
        segments = state.segments(SCRIPT_ID, _PURPOSE)
        assert all(segment.done for segment in segments)
        assert sum(segment.rows for segment in segments) == copied.rows
    return copied.rows


def comparison_of(service: AzureTableService, folder: Path, **options: Any) -> ReconcileContext:
    """Return the context of a comparison of source and target, which are equal."""
    migration = _migration(service)

    async def unasked(*_: object) -> EntityKey | None:
        raise AssertionError("the two sides are equal")

    return ReconcileContext(
        source=migration.source,
        targets=migration.targets,
        mapper=migration.mapper,
        ids=migration.mapping.rows.ids,
        rows=MappedRows(owner=unasked, propagate=unasked),
        folder=folder,
        **options,
    )


async def _verify(service: AzureTableService) -> int:
    report = await full(comparison_of(service, Path.cwd()))
    assert not report.findings
    return report.source_rows + sum(table.actual_rows for table in report.tables)


async def _check(service: AzureTableService) -> int:
    declared = Declared(SCRIPT_ID, Path(f"{SCRIPT_ID}.py"), "", frozenset(), USERS, USERS.digest())
    subject = Subject(declared, Mapper(USERS, {"users": _SECRET}), SafeIds(bytes(32)))
    with patient_collector():
        plan = await make_plan([subject], service, PlanOptions(exact=True))
    [migration] = plan.migrations
    assert not migration.errors
    return migration.mapping.mapped_rows


async def _inspect(service: AzureTableService, *, scan_only: bool) -> int:
    source = service.table(USERS.source)
    if scan_only:
        return sum([len(page.rows) async for page in source.scan()])
    found, _ = await inspect_table(source, exact=True)
    return found.inventory.rows.rows


def rekey(work: str, endpoint: str) -> int:
    """Do one piece of work with rekey; return the rows it was about."""

    async def run() -> int:
        service = AzureTableService.open(endpoint, SharedKey.of(ACCOUNT, KEY))
        try:
            if work == "verify":
                return await _verify(service)
            if work == "check":
                return await _check(service)
            if work in ("inspect", "scan"):
                return await _inspect(service, scan_only=work == "scan")
            if work in ("export", "import"):
                return await _backup(service, endpoint, imports=work == "import")
            limits = Limits().with_targets() if work == "copy-limited" else Limits()
            declared = DECLARED[work.partition(":")[2] or "kept"]
            if work != "copy-targets":
                return await copy(service, limits, declared, throttle_of(limits))
            with no_mapping():
                return await copy(service, limits, declared, throttle_of(limits))
        finally:
            await service.close()

    return asyncio.run(run())


async def _backup(service: AzureTableService, endpoint: str, *, imports: bool) -> int:
    folder, wrapping = Path("export"), LocalWrappingKey(_SECRET)

    async def now() -> str:
        return "2024-01-01T00:00:00.0000000Z"  # the stub does not tell its time

    if not imports:
        source = service.table(USERS.source)
        export = await export_table(source, endpoint, folder, wrapping=wrapping, now=now, reads=RowReads())
        return export.manifest.rows
    export = open_export(folder, lambda: wrapping)
    await check_export(export, lambda _rows: None, lambda: None)
    writes = Writes(False, Limits().concurrency, Throttle(), lambda _rows: None, lambda: None)
    return (await import_rows(export, service.table(USERS.tables[0]), writes)).inserted


def _export_lines(source: TableClient) -> int:
    rows = 0
    with Path("rows.jsonl").open("w", encoding="utf-8") as file:
        for entity in source.list_entities(results_per_page=1000):
            file.write(json.dumps(entity, default=str) + "\n")
            rows += 1
    return rows


def _entity(line: str) -> dict[str, Any]:
    """Return the entity of a line; JSON has made a list of an Int64, which has its type with it."""
    entity = json.loads(line)
    return {
        name: EntityProperty(*value) if isinstance(value, list) else value for name, value in entity.items()
    }


def _import_lines(target: TableClient) -> int:
    rows = 0
    with Path("rows.jsonl").open(encoding="utf-8") as file:
        while lines := list(islice(file, 1000)):
            write(target, map(_entity, lines))
            rows += len(lines)
    return rows


def sdk(work: str, endpoint: str) -> int:
    """Do the same with the loop over azure-data-tables."""
    service = TableServiceClient(endpoint, credential=AzureNamedKeyCredential(ACCOUNT, KEY))
    source, target = (service.get_table_client(name) for name in (USERS.source, USERS.tables[0]))
    if work == "export":
        return _export_lines(source)
    if work == "import":
        return _import_lines(target)
    mapping = service.get_table_client(MAPPING_TABLE)
    rows = 0
    expected: dict[tuple[str, str], dict[str, Any]] = {}
    for page in source.list_entities(results_per_page=1000).by_page():
        old = [dict(entity) for entity in page]
        rows += len(old)
        new = [
            {**entity, "RowKey": opaque(_SECRET, entity["RowKey"]), "ContactEmail": entity["RowKey"]}
            for entity in old
        ]
        if work == "verify":
            expected.update(((entity["PartitionKey"], entity["RowKey"]), entity) for entity in new)
            continue
        if work == "copy":
            pairs = zip(old, new, strict=True)
            write(mapping, (row for pair in pairs for row in mapping_rows(_SECRET, *pair)))
        write(target, new)
    if work != "verify":
        return rows
    for page in target.list_entities(results_per_page=1000).by_page():
        for entity in page:
            rows += 1
            wanted = expected.pop((entity["PartitionKey"], entity["RowKey"]), None)
            assert wanted == dict(entity)
    assert not expected
    return rows


# Imported when a state file is opened for writing: imports are no part of what is measured.
_IMPORTED = (backend, writer)
SIDES: dict[str, Callable[[str, str], int]] = {"rekey": rekey, "sdk": sdk}


def main(words: Sequence[str]) -> None:
    """Do what the command line says, and write down what it took."""
    side, work, endpoint = words
    if work == "import":
        SIDES[side]("export", endpoint)
    began, processor = time.monotonic(), time.process_time()
    rows = SIDES[side](work, endpoint)
    taken = {
        "rows": rows,
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - processor,
    }
    Path("work.json").write_text(json.dumps(taken), "ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
