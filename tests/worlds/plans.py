"""What planner tests share: scripts and tables in memory, ready to be planned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rekey.core.safe_ids import SafeIds
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Declared, Migration
from rekey.inspect.inventory import SampleSize
from rekey.model import PARTITION_KEY, EntityKey, Row
from rekey.plan.plan import make_plan
from rekey.plan.result import MigrationPlan
from rekey.plan.subject import PlanOptions, Subject
from rekey.tables.base import Operation, TableService, Verb
from tests.fakes.clock import FakeClock
from tests.worlds.small import SECRET

IDS = SafeIds(bytes(range(32)))
FINGERPRINTS = {"users": "fingerprint-of-users"}
SMALL_SAMPLE = SampleSize(head_rows=2_000, probes=30)


def declared(migration: Migration, script_id: str = "0001_users", doc: str = "Re-key users.") -> Declared:
    """A script that declares a migration."""
    return Declared(script_id, Path(f"{script_id}.py"), doc, frozenset(), migration, migration.digest())


def subject(migration: Migration, script_id: str = "0001_users", **more: Any) -> Subject:
    """A migration to plan, with its secret and nothing begun."""
    ready = Subject(
        declared(migration, script_id),
        Mapper(migration, {"users": SECRET}),
        IDS,
        ids_hold=True,
        secret_fingerprints=FINGERPRINTS,
    )
    return replace(ready, **more)


async def fill(service: TableService, table: str, rows: Iterable[Row]) -> None:
    """Create a table and insert rows, in batches."""
    await service.create_table(table)
    partitions: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        partitions[row[PARTITION_KEY]].append(row)
    for members in partitions.values():
        for start in range(0, len(members), 100):
            batch = [Operation(Verb.INSERT, row) for row in members[start : start + 100]]
            await service.table(table).transact(batch)


async def plan_one(service: TableService, what: Subject, **options: Any) -> MigrationPlan:
    """Plan one migration."""
    plan = await make_plan([what], service, PlanOptions(**options), clock=FakeClock())
    return plan.migrations[0]


def codes(plan: MigrationPlan) -> list[str]:
    """The codes of a plan's problems, errors first."""
    return [problem.code for problem in plan.problems]


KEY = EntityKey("p", "r")
