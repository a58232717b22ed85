"""Two parts that share a partition, migrated at the same time under single writes and transactions of one
process, on rows of both parts and of none, with and without ETags."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from rekey.client.lease import ClientLease
from rekey.client.sdk import core as core_module
from rekey.client.sdk.router import Carrier
from rekey.core.clock import TICKS_PER_SECOND
from rekey.errors import ConditionFailed, RowExists, RowMissing, WritesRefused
from rekey.model import PARTITION_KEY, ROW_KEY, Row, content_of
from rekey.phases import ControlPhase, Phase
from rekey.tables.base import Operation, Verb
from tests.scenarios.runner.test_part_life import SCRIPT
from tests.scenarios.runner.test_parts_at_once import SECOND, process
from tests.worlds.company import Company, as_application
from tests.worlds.projects import Project, project_of

PART = '''\
"""The rows of one kind, told by their RowKeys."""
from rekey import Migration, Target, keys, props, rows

migration = Migration(
    source="Invoices",
    where=rows.all_of(rows.partition_key(equals="p"), rows.row_key(prefix="KIND")),
    target=Target(
        "TableKIND",
        partition_key=keys.join("_", keys.literal("t"), "PartitionKey"),
        row_key=keys.keep(),
        properties=[props.copy("PartitionKey", to="Old")],
    ),
    capture="dual-write",
)
'''
KINDS = ("a", "b", "c")
"""What RowKeys begin with: of the first part, of the second one, and of no part."""
CONDITIONAL = (Verb.REPLACE, Verb.MERGE, Verb.DELETE)
MERGES = (Verb.MERGE, Verb.INSERT_OR_MERGE)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    stock = [{"PartitionKey": "p", "RowKey": f"{kind}old", "Value": 0} for kind in KINDS]
    project = project_of(tmp_path, PART.replace("KIND", "a"), stock, name=f"{SCRIPT}.py")
    project.script(PART.replace("KIND", "b"), f"{SECOND}.py")
    clock = project.clock
    by_its_clock = partial(ClientLease, monotonic=lambda: clock.ticks() / TICKS_PER_SECOND, sleep=clock.sleep)
    with mock.patch.object(core_module, "ClientLease", by_its_clock):
        yield project


class Shop:
    """A process that writes rows of all kinds, and remembers what was acknowledged."""

    def __init__(self, company: Company, carrier: Carrier) -> None:
        self.company, self.carrier = company, carrier
        self.rows = {f"{kind}old": {"Value": 0} for kind in KINDS}
        self.etags: dict[str, str] = {}
        self.counts = Counter[str]()

    async def traffic(self, seed: int) -> None:
        draw, clock = random.Random(seed), self.company.project.clock
        while not self.company.stopping:
            kinds = draw.choice([KINDS, "a", "b", "c"])
            keys = {
                f"{draw.choice(kinds)}{seed}{draw.randrange(3)}" for _ in range(draw.choice([1, 1, 2, 3]))
            }
            operations = [self._operation(draw, key) for key in sorted(keys)]
            try:
                with as_application("shop"):
                    etags = await self.carrier.write(operations)
            except WritesRefused as refused:
                self.counts[refused.code] += 1
            except (RowExists, RowMissing, ConditionFailed):
                pass
            else:
                several = len({key[0] for key in keys}) > 1
                self.counts["several kinds" if several else "one kind"] += len(keys) > 1
                for operation, etag in zip(operations, etags, strict=True):
                    self._applied(operation, etag or "")
            await clock.sleep(draw.random())

    def _operation(self, draw: random.Random, key: str) -> Operation:
        verb, place = draw.choice(list(Verb)), {"PartitionKey": "p", "RowKey": key}
        etag = draw.choice(["*", self.etags.get(key, "*")]) if verb in CONDITIONAL else None
        if verb is Verb.DELETE:
            return Operation(verb, place, etag)
        return Operation(verb, {**place, "Value": draw.randrange(99), f"Extra{draw.randrange(2)}": 1}, etag)

    def _applied(self, operation: Operation, etag: str) -> None:
        key, values = operation.key.row, without_keys(operation.row)
        before = self.rows.pop(key, {})
        self.etags[key] = etag or "*"
        if operation.verb is not Verb.DELETE:
            self.rows[key] = {**before, **values} if operation.verb in MERGES else values

    def of(self, kind: str) -> dict[str, Row]:
        return {key: values for key, values in self.rows.items() if key.startswith(kind)}


def without_keys(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in (PARTITION_KEY, ROW_KEY, "Old")}


def in_table(project: Project, name: str) -> dict[str, dict[str, Row]]:
    """Return the rows of a table by their kind and RowKey."""
    by_kind = defaultdict[str, dict[str, Row]](dict)
    for row in project.rows(name):
        by_kind[row[ROW_KEY][0]][row[ROW_KEY]] = without_keys(content_of(row))
    return by_kind


def test_parts_of_a_partition_live_at_once_under_transactions(project: Project) -> None:
    first = Company(project, SCRIPT)
    second = Company(project, SECOND, first.loop)
    shop = Shop(first, process(project, SCRIPT, SECOND))
    moved: set[str] = set()

    def go_on() -> None:
        for seed in (1, 2, 3):
            first.writes(shop.traffic(seed))
        first.live(8)

    def look() -> None:
        first.quiet()
        source = in_table(project, "Invoices")
        assert {kind: source[kind] for kind in KINDS if kind not in moved} == {
            kind: shop.of(kind) for kind in KINDS if kind not in moved
        }
        for kind, company in (("a", first), ("b", second)):
            if company.phase not in (None, "source"):
                assert in_table(project, f"Table{kind}")[kind] == shop.of(kind)
        go_on()

    go_on()
    look()
    assert shop.counts["several kinds"], "nothing follows either part"
    for company in (first, second):
        company.apply()
        look()
    assert shop.counts["mixed-parts"]
    for company in (first, second):
        company.apply(Phase.CUTOVER)
        look()
    first.rollback()
    look()
    second.rollback()
    second.rollback(ControlPhase.SOURCE, drop=False)
    look()
    assert not first.verify().findings
    first.apply(Phase.CUTOVER)
    with first.little_traffic():
        first.apply(Phase.COMPLETE)
    moved.add("a")
    look()
    assert shop.counts["part-moved"]
    second.apply()
    second.apply(Phase.CUTOVER)
    first.retire()
    look()
    assert in_table(project, "Invoices")["a"] == {}
    with first.little_traffic():
        second.apply(Phase.COMPLETE)
    moved.add("b")
    look()
    first.quiet()
    first.do(shop.carrier.close())
    first.close()
