"""Two parts of one table, migrated at the same time under the writes of one process that follows both; and
what keeps a process that follows one of them from writing rows of the other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from rekey import DualWriteTableClient
from rekey.client.lease import ClientLease
from rekey.client.sdk import core as core_module
from rekey.client.sdk import guard as guard_module
from rekey.client.sdk.core import ClientCore
from rekey.client.sdk.options import ClientOptions
from rekey.client.sdk.router import Carrier, PartRouter, carrier_of
from rekey.core.clock import TICKS_PER_SECOND
from rekey.core.concurrency import cancel
from rekey.errors import GateClosed, RowMissing, WritesRefused
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import Phase
from rekey.protocol.opening import Prepared
from rekey.protocol.rules import View
from rekey.runner import commands
from rekey.runner.commands import Mode
from rekey.tables.base import SIGNED_S, Accounts, Operation, Verb
from tests.fakes.faults import Call
from tests.fakes.memory import open_gate
from tests.scenarios.runner.test_part_life import PART, SCRIPT, TENANT, TENANTS, independently, invoice, stock
from tests.worlds.company import QUICK, Company, as_application
from tests.worlds.projects import Project, project_of
from tests.worlds.scripts import under_writes

SECOND, OTHER = "0002_second", TENANTS[0]
FREE = TENANTS[1]
FIRST_PART = PART
SECOND_PART = (
    PART.replace("contoso", OTHER).replace("InvoicesV2", "Second").replace("ByPayer", "SecondByPayer")
)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = project_of(tmp_path, PART, stock(8), name=f"{SCRIPT}.py")
    project.script(under_writes(FIRST_PART), f"{SCRIPT}.py")
    project.script(under_writes(SECOND_PART), f"{SECOND}.py")
    clock = project.clock
    by_its_clock = partial(ClientLease, monotonic=lambda: clock.ticks() / TICKS_PER_SECOND, sleep=clock.sleep)
    with (
        mock.patch.object(core_module, "ClientLease", by_its_clock),
        mock.patch.object(guard_module, "ClientLease", by_its_clock),
    ):
        yield project


@pytest.fixture
def first(project: Project) -> Iterator[Company]:
    company = Company(project, SCRIPT)
    yield company
    company.close()


@pytest.fixture
def second(project: Project, first: Company) -> Company:
    return Company(project, SECOND, first.loop)


def process(project: Project, *scripts: str) -> Carrier:
    """Return what carries the requests of a process that follows scripts in the old view."""
    return carrier_of(
        [
            ClientOptions(
                Prepared.of(project.config, project.scripts[script]),
                "Invoices",
                View.OLD,
                name="shop",
                settings=QUICK,
                shadow_reads=0.0,
                tables_endpoint=project.config.tables.endpoint,
            )
            for script in scripts
        ],
        lambda _options: Accounts(project.tables, project.restricted),
    )


class Shop:
    """A process that writes rows of both parts and of none, and remembers what was acknowledged."""

    def __init__(self, company: Company, carrier: Carrier) -> None:
        self.company, self.carrier = company, carrier
        self.wanted: dict[EntityKey, Row | None] = {}
        self.moved_on: set[str] = set()

    async def write(self, operation: Operation) -> None:
        with as_application("shop"):
            await self.carrier.write([operation])

    async def traffic(self, seed: int) -> None:
        draw, clock = random.Random(seed), self.company.project.clock
        while not self.company.stopping:
            tenant = draw.choice([each for each in (TENANT, OTHER, FREE) if each not in self.moved_on])
            number = draw.randrange(5)
            row = invoice(1000 * seed + number, tenant, 1 + number % 3, Version=draw.randrange(99))
            verb = draw.choice([Verb.INSERT_OR_REPLACE, Verb.INSERT_OR_REPLACE, Verb.DELETE])
            try:
                with suppress(RowMissing):
                    await self.write(Operation(verb, row, "*" if verb is Verb.DELETE else None))
                self.wanted[key_of(row)] = None if verb is Verb.DELETE else row
            except WritesRefused as refused:
                if not refused.retryable:
                    assert refused.code == "part-moved"
                    self.moved_on.add(tenant)
            await clock.sleep(draw.random())

    def of(self, tenant: str) -> dict[EntityKey, Row]:
        return {key: row for key, row in self.wanted.items() if row is not None and key.partition == tenant}


def in_source(project: Project, tenant: str) -> dict[EntityKey, Row]:
    rows = [row for row in project.rows("Invoices") if row["PartitionKey"] == tenant]
    return {key_of(row): content_of(row) for row in rows if "Version" in row}


def in_target(project: Project, table: str) -> list[Row]:
    return sorted((content_of(row) for row in project.rows(table) if "Version" in row), key=key_of)


def test_two_parts_live_at_once_under_the_writes_of_one_process(
    first: Company, second: Company, project: Project
) -> None:
    shop = Shop(first, process(project, SCRIPT, SECOND))

    def look() -> None:
        first.quiet()
        for script in (first, second):
            if script.phase is not None and script.phase not in ("source", "complete", "retired"):
                assert not script.verify(Mode.FULL).findings
        for tenant, table in ((TENANT, "InvoicesV2"), (OTHER, "Second"), (FREE, "")):
            if tenant not in shop.moved_on:
                assert in_source(project, tenant) == shop.of(tenant)
            if table and project.rows(table):
                assert in_target(project, table) == sorted(
                    map(independently, shop.of(tenant).values()), key=key_of
                )

    def go_on() -> None:
        for seed in (1, 2):
            first.writes(shop.traffic(seed))

    go_on()
    first.live(5)
    first.apply()
    second.apply()
    look()
    go_on()
    first.apply(Phase.CUTOVER)
    first.live(10)
    second.apply(Phase.CUTOVER)
    first.live(10)
    look()
    go_on()
    second.rollback()
    first.live(10)
    look()
    go_on()
    second.apply(Phase.CUTOVER)
    first.live(5)
    with first.little_traffic():
        first.apply(Phase.COMPLETE)
    first.live(10)
    look()
    assert shop.moved_on == {TENANT}
    assert shop.of(OTHER)
    with pytest.raises(WritesRefused) as refused:
        first.do(shop.write(Operation(Verb.INSERT_OR_REPLACE, invoice(1))))
    assert refused.value.code == "part-moved"
    go_on()
    first.hand_over()
    first.retire()
    assert in_source(project, TENANT) == {}
    with second.little_traffic():
        second.apply(Phase.COMPLETE)
    first.live(10)
    look()
    assert shop.moved_on == {TENANT, OTHER}
    first.do(shop.carrier.close())


def test_two_parts_of_a_group_cut_over_at_once_under_the_writes_of_one_process(
    first: Company, project: Project
) -> None:
    """A write that waits in the freeze of one part keeps no permit of the other."""
    for name, text in ((SCRIPT, FIRST_PART), (SECOND, SECOND_PART)):
        grouped = under_writes(text).replace("    capture=", '    group="tenants",\n    capture=')
        project.script(grouped, f"{name}.py")
    shop = Shop(first, process(project, SCRIPT, SECOND))
    for to in (None, Phase.CUTOVER):
        for seed in (1, 2, 3):
            first.writes(shop.traffic(seed))
        first.live(5)
        with first.session() as session:
            commands.apply_group(session, "tenants", to=to)
        first.live(5)
        first.quiet()
        for tenant, table in ((TENANT, "InvoicesV2"), (OTHER, "Second")):
            rows = sorted(map(independently, shop.of(tenant).values()), key=key_of)
            assert rows
            assert in_target(project, table) == rows
            assert in_source(project, tenant) == shop.of(tenant)
    assert not shop.moved_on
    first.do(shop.carrier.close())


def test_a_process_that_follows_one_part_keeps_the_gates_of_the_other_closed(
    first: Company, second: Company, project: Project
) -> None:
    alone = process(project, SCRIPT)
    first.do(alone.open())
    with pytest.raises(GateClosed) as closed:
        second.apply()
    assert "shop (old view" in str(closed.value)
    assert f'Restart them with both scripts, migration=["{SCRIPT}", "{SECOND}"]' in str(closed.value)
    both = process(project, SECOND, SCRIPT)
    first.do(both.open())
    with pytest.raises(GateClosed):
        second.apply()
    first.do(alone.close())
    second.apply()
    late = process(project, SCRIPT)
    with pytest.raises(WritesRefused) as refused:
        first.do(late.write([Operation(Verb.INSERT_OR_REPLACE, invoice(1, OTHER))]))
    assert refused.value.code == "unknown-part"
    assert SECOND in refused.value.hint
    with pytest.raises(GateClosed):
        second.apply(Phase.CUTOVER)
    first.do(late.close())
    second.apply(Phase.CUTOVER)
    first.do(both.close())


@pytest.mark.parametrize("to", [Phase.PREPARE, None], ids=["source", "dual_write"])
def test_a_process_of_another_project_keeps_the_gates_of_a_part_closed(
    first: Company, project: Project, tmp_path: Path, to: Phase | None
) -> None:
    (project.folder / "migrations" / f"{SECOND}.py").unlink()
    other = Project(tmp_path / "other", clock=project.clock)
    other.tables, other.restricted = project.tables, project.restricted
    other.script(under_writes(SECOND_PART), f"{SECOND}.py")
    second = Company(other, SECOND, first.loop)
    first.apply(to)
    alone = process(project, SCRIPT)
    first.do(alone.open())
    with pytest.raises(GateClosed) as closed:
        second.apply()
    assert closed.value.phase == "dual_write"
    assert f"clients of {SCRIPT}, which is of another project" in str(closed.value)
    assert "shop (old view" in str(closed.value)
    assert f"Put {SECOND}.py, and the secrets that it names, into that project too" in str(closed.value)
    assert "or wait until that application uses the new view alone" in str(closed.value)
    first.do(alone.close())
    second.apply()


def late_process(project: Project) -> ClientCore:
    """Return a process that follows the first part, and begins as the control row of the second one moves for
    the first time: after the gate. It does not look at the control rows again while it trusts its lease."""
    alone = process(project, SCRIPT)
    assert isinstance(alone, ClientCore)

    async def gate(call: Call) -> None:
        await asyncio.sleep(0)
        keys = [key_of(operation.row) for operation in call.operations]
        if call.action == "replace" and EntityKey(SECOND, "control") in keys:
            project.restricted.gate = open_gate
            await stop_looking(alone)

    project.restricted.gate = gate
    return alone


def test_rows_that_a_process_wrote_before_it_could_know_of_a_part_are_copied(
    first: Company, second: Company, project: Project
) -> None:
    alone = late_process(project)
    with pytest.raises(GateClosed) as closed:
        second.apply()
    assert closed.value.phase == "backfill"
    assert "shop (old view" in str(closed.value)
    row = invoice(1, OTHER, Version=7)
    first.do(alone.write([Operation(Verb.INSERT_OR_REPLACE, row)]))
    first.do(alone.close())
    shop = process(project, SCRIPT, SECOND)
    first.do(shop.open())
    second.apply()
    second.apply(Phase.CUTOVER)
    assert in_target(project, "Second") == [independently(row)]
    first.do(shop.close())


@pytest.mark.parametrize("knows", [True, False])
def test_a_verification_waits_for_writes_of_a_killed_process_that_did_not_follow_the_part(
    first: Company, second: Company, project: Project, knows: bool
) -> None:
    """It may have signed one just before it was stopped, and no intent announces it."""
    if knows:
        alone = late_process(project)
        with pytest.raises(GateClosed):
            second.apply()
    else:
        alone = process(project, SCRIPT)
    first.do(stop_looking(alone))
    first.live(60)
    shop = process(project, SCRIPT, SECOND)
    first.do(shop.open())
    second.apply()
    with pytest.raises(GateClosed, match="given up"):
        second.apply(Phase.CUTOVER)
    first.live(SIGNED_S)
    assert not second.verify().findings
    second.apply(Phase.CUTOVER)
    first.do(shop.close())


async def stop_looking(core: Carrier) -> None:
    """Let a process begin, and give no sign any more."""
    assert isinstance(core, ClientCore)
    lease = await core.open()
    assert core._takes_over is not None
    await cancel([*lease._tasks.values(), core._takes_over])


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_process_with_a_wider_part_than_the_migration_writes_no_row_of_another_part(
    first: Company, second: Company, project: Project, is_prepared: bool
) -> None:
    """While its migration follows nothing, its own script is not compared: those of the others are."""
    if is_prepared:
        first.apply(Phase.PREPARE)
    second.apply()
    wider = FIRST_PART.replace('equals="contoso"', f'one_of=["contoso", "{OTHER}"]')
    narrower = SECOND_PART.replace(f'equals="{OTHER}"', 'equals="nobody"')
    row = invoice(1, OTHER, Version=7)
    project.script(under_writes(wider), f"{SCRIPT}.py")
    project.script(under_writes(narrower), f"{SECOND}.py")
    carrier = process(project, SCRIPT, SECOND)
    with pytest.raises(WritesRefused) as refused:
        first.do(carrier.write([Operation(Verb.INSERT_OR_REPLACE, row)]))
    assert refused.value.code == "digest-moved"
    assert in_source(project, OTHER) == {}
    first.do(carrier.close())


def test_a_client_from_the_configuration_follows_all_parts_of_the_folder(project: Project) -> None:
    client = DualWriteTableClient.from_config(project.config.path, SCRIPT, view="old")
    assert isinstance(client._core, PartRouter)
    assert sorted(client._core.options.facts.parts) == [SCRIPT, SECOND]
    client.close()
    client = DualWriteTableClient.from_config(project.config.path, SCRIPT, view="new")
    assert not isinstance(client._core, PartRouter)
    client.close()
