"""Whole lives of migrations of one tenant, in both captures: its rows as a second implementation makes them,
writes in both views, the way back and forth, and all other tenants' rows as they were, ETags included."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from rekey.errors import GateClosed, RekeyError, RowMissing, WritesRefused
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.next_steps import next_step
from rekey.phases import Phase
from rekey.protocol.rules import View
from rekey.runner.commands import Mode
from rekey.runner.run import Options
from rekey.tables.base import Operation, Verb
from tests.asserts.command_line import Commands, CommandsOn
from tests.fakes.faults import Call
from tests.fakes.interference import before
from tests.worlds.company import Client, Company
from tests.worlds.erasure import configured
from tests.worlds.projects import Project, project_of
from tests.worlds.scripts import under_writes

SCRIPT = "0001_tenant"
TENANT = "contoso"
TENANTS = [f"tenant{number:02}" for number in range(4)]
PART = '''\
"""One tenant's invoices by month."""
from rekey import Index, Migration, Target, keys, props, rows

migration = Migration(
    source="Invoices",
    where=rows.partition_key(equals="contoso"),
    target=Target(
        "InvoicesV2",
        partition_key=keys.prop("Month"),
        row_key=keys.keep(),
        properties=[props.copy("PartitionKey", to="Tenant")],
    ),
    indexes=[Index("ByPayer", partition_key=keys.prop("Payer"), row_key=keys.prop("RowKey"))],
    capture="delta",
)
'''


def invoice(number: int, tenant: str = TENANT, month: int = 1, payer: str = "ann", **more: object) -> Row:
    row = {"PartitionKey": tenant, "RowKey": f"{number:05}", "Month": f"2024-{month:02}", "Payer": payer}
    return {**row, **more}


def independently(row: Row) -> Row:
    """What an invoice becomes, without the mapper."""
    new = {name: value for name, value in content_of(row).items() if name != "PartitionKey"}
    return {**new, "PartitionKey": row["Month"], "Tenant": row["PartitionKey"]}


def stock(each: int = 30) -> list[Row]:
    tenants = [*TENANTS[:2], TENANT, "contoso2", *TENANTS[2:], ""]
    return [
        invoice(number, tenant, 1 + number % 5, f"payer{number % 3}")
        for tenant in tenants
        for number in range(each)
    ]


def part_of(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["PartitionKey"] == TENANT]


def beside(project: Project) -> list[Row]:
    """The other tenants' rows, with ETag and Timestamp."""
    return [row for row in project.rows("Invoices") if row["PartitionKey"] != TENANT]


def compare(project: Project) -> int:
    """Require that the targets hold what the second implementation makes of the part; return its rows."""
    wanted = sorted(map(independently, part_of(project.rows("Invoices"))), key=key_of)
    assert sorted(map(content_of, project.rows("InvoicesV2")), key=key_of) == wanted
    payers = {(row["PartitionKey"], row["RowKey"]) for row in project.rows("ByPayer")}
    assert payers == {(row["Payer"], row["RowKey"]) for row in wanted}
    return len(wanted)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return project_of(tmp_path, PART, stock(), name=f"{SCRIPT}.py")


def test_the_part_is_named_where_the_table_is(project: Project, commands_on: CommandsOn) -> None:
    """`test_example_lives.py` has the whole life."""
    rekey, untouched = commands_on(project), beside(project)
    planned = rekey("plan", "--exact")
    assert "30 rows" in planned.out
    assert "PartitionKey is a certain one; all others of Invoices stay" in " ".join(planned.out.split())
    [plan] = rekey("plan", "--exact", "--json").json["migrations"]
    assert (plan["basis"]["rows"], plan["basis"]["part"]) == (30, "PartitionKey is a certain one")
    rekey("apply")
    assert "part of Invoices" in rekey("status").out
    for mode in ("full", "count", "sample"):
        rekey("verify", "--mode", mode)
    rekey("apply", "--to", "cutover", "--writers-stopped")
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", SCRIPT)
    prove(rekey)
    said = rekey("evidence", "recompute", str(project.folder / "bundle"), "--mapping").out
    assert "source Invoices: 30 rows, as many rows" in said
    told = rekey("retire", "--table", "Invoices", "--no-backup", "a test").out
    assert "part of Invoices" in told and "is deleted" in told
    assert project.rows("Invoices") == untouched
    assert "part of Invoices" in rekey("status").out


def prove(rekey: Commands) -> None:
    from tests.scenarios.runner.test_life import prove_it

    prove_it(rekey)


def test_a_row_of_another_tenant_in_the_new_table_is_never_copied_back(
    project: Project, commands_on: CommandsOn
) -> None:
    """It would be written over that tenant's row."""
    rekey = commands_on(project)
    untouched = beside(project)
    rekey("apply", "--to", "cutover", "--writers-stopped")
    stray = {**independently(invoice(3, TENANTS[0])), "PartitionKey": "2025-01", "Amount": 666}
    asyncio.run(project.tables.table("InvoicesV2").insert(stray))
    told = rekey("rollback", "--writers-stopped", code=3)
    assert "outside the part" in " ".join(told.err.split())
    assert beside(project) == untouched
    asyncio.run(project.tables.table("InvoicesV2").delete(key_of(stray)))
    rekey("rollback", "--writers-stopped")
    assert compare(project) == 30


def test_a_rollback_drops_the_targets_and_leaves_the_source(
    project: Project, commands_on: CommandsOn
) -> None:
    rekey = commands_on(project)
    before = project.rows("Invoices")
    rekey("apply")
    rekey("rollback", "--drop-targets")
    assert project.rows("Invoices") == before
    assert not asyncio.run(project.tables.table_exists("InvoicesV2"))


def test_retire_keeps_a_row_that_changed_after_the_freeze(project: Project, commands_on: CommandsOn) -> None:
    rekey = commands_on(project)
    untouched = beside(project)
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", SCRIPT)
    prove(rekey)
    late = invoice(2, Late=True)
    asyncio.run(project.tables.table("Invoices").replace(late))
    rekey("retire", "--table", "Invoices", "--no-backup", "a test", code=1)
    assert [content_of(row) for row in part_of(project.rows("Invoices"))] == [late]
    assert beside(project) == untouched
    asyncio.run(project.tables.table("Invoices").delete(key_of(late)))
    rekey("retire", "--table", "Invoices", "--no-backup", "a test")
    assert project.rows("Invoices") == untouched


def test_retire_keeps_a_row_that_changes_after_it_was_read(project: Project, commands_on: CommandsOn) -> None:
    rekey = commands_on(project)
    untouched = beside(project)
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", SCRIPT)
    prove(rekey)
    late, table = invoice(2, Late=True), project.tables.table("Invoices")
    before(project.tables, "delete", "", lambda: table.replace(late))
    rekey("retire", "--table", "Invoices", "--no-backup", "a test", code=1)
    assert [content_of(row) for row in part_of(project.rows("Invoices"))] == [late]
    assert beside(project) == untouched


def test_a_row_beside_the_part_was_not_erased_with_the_mapping(
    project: Project, commands_on: CommandsOn
) -> None:
    rekey, why = commands_on(project), ("--reason", "ticket 4711")
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", SCRIPT)
    configured(project, mapping_retention="1d")
    project.clock.advance(2 * 86_400)
    rekey("expire", "--confirm", SCRIPT)
    own, other = ("--old", TENANT, "00003"), ("--old", TENANTS[0], "00003")
    assert "was erased on" in rekey("lookup", *own, *why, code=1).err
    assert "has no such row" in rekey("lookup", *other, *why, code=1).err
    untouched = beside(project)
    said = rekey("erase", *other, *why, "--json", code=1)
    assert "has no such row" in said.err
    assert beside(project) == untouched


def pages_read(project: Project, commands_on: CommandsOn) -> Counter[str]:
    """How many pages of the source each command reads, from plan to retire."""
    rekey, pages = commands_on(project), Counter[str]()

    async def count(call: Call) -> None:
        pages[command] += call.action == "page" and call.table.lower() == "invoices"

    project.tables.gate = count
    for words in (
        ("plan", "--exact"),
        ("apply",),
        ("verify", "--mode", "full"),
        ("verify", "--mode", "count"),
        ("apply", "--to", "cutover", "--writers-stopped"),
        ("rollback", "--writers-stopped"),
        ("apply", "--to", "complete", "--writers-stopped", "--yes", SCRIPT),
    ):
        command = " ".join(words)
        rekey(*words)
    prove(rekey)
    command = "retire"
    rekey("retire", "--table", "Invoices", "--no-backup", "a test")
    return pages


def test_a_tenant_of_a_hundred_reads_a_tenants_pages(tmp_path: Path, commands_on: CommandsOn) -> None:
    own = [invoice(number) for number in range(40)]
    others = [invoice(number, f"t{tenant:02}") for tenant in range(99) for number in range(12)]
    whole = PART.replace('    where=rows.partition_key(equals="contoso"),\n', "")
    alone = pages_read(project_of(tmp_path / "alone", whole, own, name=f"{SCRIPT}.py"), commands_on)
    among = pages_read(
        project_of(tmp_path / "among", PART, [*own, *others], name=f"{SCRIPT}.py"), commands_on
    )
    del alone["retire"], among["retire"]  # which deletes the table, or the part's rows
    print(alone, among)
    assert alone.keys() == among.keys()
    for command, pages in alone.items():
        assert among[command] <= 1.1 * pages, command


# --- under writes -------------------------------------------------------------------------------------------


@pytest.fixture
def company(project: Project) -> Iterator[Company]:
    project.script(under_writes(PART), f"{SCRIPT}.py")
    company = Company(project, SCRIPT)
    yield company
    company.close()


async def tenants(company: Company, client: Client, seed: int, wanted: dict[EntityKey, Row | None]) -> None:
    """Write rows of the tenant and, in the old view, of others; note the others' rows as answered."""
    draw, mapper = random.Random(seed), company.mapper
    while not company.stopping:
        is_old = client.view is View.OLD
        tenant = draw.choice([TENANT, TENANTS[seed % 4]]) if is_old else TENANT
        number = 1000 * (1 + seed) + draw.randrange(6)
        row = invoice(
            number, tenant, 1 + draw.randrange(3), draw.choice(["ann", "bob"]), Version=draw.randrange(99)
        )
        verb = draw.choice([Verb.INSERT_OR_REPLACE, Verb.INSERT_OR_REPLACE, Verb.DELETE])
        key = key_of(row)
        sent = row if is_old else content_of(mapper.map(row)[0].row)
        operation = Operation(verb, sent, "*" if verb is Verb.DELETE else None)
        if tenant == TENANT:
            with suppress(RekeyError):
                await client.write(operation)
        else:
            with suppress(RowMissing):
                await client.write(operation)
            wanted[key] = None if verb is Verb.DELETE else row
        await company.project.clock.sleep(draw.random())


def require_others(project: Project, stocked: Sequence[Row], wanted: dict[EntityKey, Row | None]) -> None:
    """Require that other tenants' rows are as stocked, or as written since."""
    written = {key: row for key, row in wanted.items() if row is not None}
    assert [row for row in beside(project) if key_of(row) not in wanted] == list(stocked)
    assert {key_of(row): content_of(row) for row in beside(project) if key_of(row) in wanted} == written


def test_a_tenant_lives_its_life_under_writes_of_all_tenants(company: Company, project: Project) -> None:
    stocked, wanted = beside(project), dict[EntityKey, Row | None]()
    old = [company.client(View.OLD), company.client(View.OLD)]
    for number, client in enumerate(old):
        company.writes(tenants(company, client, number, wanted))
    company.apply()
    company.settle()
    compare(project)
    new = company.client(View.NEW)
    for number, client in enumerate([*old, new]):
        company.writes(tenants(company, client, number, wanted))
    company.live(10)
    company.apply(Phase.CUTOVER)
    company.live(10)
    company.rollback()
    company.live(10)
    assert not company.verify(Mode.FULL).findings
    company.apply(Phase.CUTOVER)
    company.live(10)
    company.settle()
    assert not company.verify(Mode.FULL).findings
    compare(project)
    require_others(project, stocked, wanted)
    with company.little_traffic():
        company.apply(Phase.COMPLETE)
    row = invoice(5, TENANTS[3], Version=1)
    company.do(old[0].write(Operation(Verb.INSERT_OR_REPLACE, row)))
    wanted[key_of(row)] = row
    stocked = [each for each in stocked if key_of(each) not in wanted]
    with pytest.raises(WritesRefused):
        company.do(old[0].write(Operation(Verb.INSERT_OR_REPLACE, invoice(5, Version=1))))
    company.do(old[0].close())
    company.do(old[1].close())
    company.hand_over()
    company.retire()
    assert part_of(project.rows("Invoices")) == []
    require_others(project, stocked, wanted)


def test_a_row_beside_the_part_keeps_the_way_back_closed_until_it_is_mended_as_told(
    company: Company, project: Project
) -> None:
    company.client(View.OLD)
    company.apply(Phase.CUTOVER)
    stray = {**independently(invoice(3, TENANTS[0])), "PartitionKey": "2023-01"}
    company.do(project.tables.table("InvoicesV2").insert(stray))
    with pytest.raises(GateClosed) as closed:
        company.rollback()
    told = next_step("fix-new-rows", script=SCRIPT)
    assert f"{told}" in closed.value.reasons[0]
    assert company.verify(Mode.FULL, repair=True).findings, "no repair mends it"
    company.do(project.tables.table("InvoicesV2").delete(key_of(stray)))
    assert not company.verify(Mode.FULL).findings
    company.rollback()
    assert compare(project) == 30


def test_a_client_with_another_part_writes_nothing_beside_it(company: Company, project: Project) -> None:
    """By its declaration the row is beside the part; by the migration's it is in it, and would be lost."""
    company.apply()
    other = company.client(View.OLD, digest="of another where=")
    with pytest.raises(WritesRefused) as refused:
        company.do(other.write(Operation(Verb.INSERT_OR_REPLACE, invoice(1, TENANTS[0]))))
    assert refused.value.code == "digest-moved"


@pytest.fixture
def second(company: Company, project: Project) -> Company:
    """The migration of another tenant, which waits for the first one."""
    text = under_writes(PART).replace("contoso", TENANTS[0]).replace("InvoicesV2", "Second")
    text = text.replace("ByPayer", "SecondByPayer")
    text = text.replace("migration =", f'__depends__ = {{"{SCRIPT}"}}\nmigration =')
    project.script(text, "0002_second.py")
    return Company(project, "0002_second", company.loop)


def test_a_second_part_waits_until_the_first_is_complete(company: Company, second: Company) -> None:
    """Until then clients follow the first: they would pass rows of the second as rows beside their part."""
    company.apply(Phase.CUTOVER, Options(writers_stopped=True))
    with pytest.raises(RekeyError) as refused:
        second.apply()
    assert "--to complete" in str(refused.value)
    company.apply(Phase.COMPLETE)
    second.apply()


def test_clients_of_another_part_keep_complete_closed(company: Company, second: Company) -> None:
    """They write rows of this part to the old table, which nobody reads from then on."""
    company.apply(Phase.CUTOVER, Options(writers_stopped=True))
    client = second.client(View.OLD, "kiosk")
    with pytest.raises(GateClosed) as closed:
        company.apply(Phase.COMPLETE)
    assert "kiosk (old view" in str(closed.value)
    company.do(client.close())
    company.apply(Phase.COMPLETE)


def test_clients_of_another_part_keep_dual_writes_and_cutover_from_beginning(
    company: Company, second: Company, project: Project
) -> None:
    company.apply(Phase.COMPLETE, Options(writers_stopped=True))
    client = company.client(View.OLD, "shop")
    with pytest.raises(GateClosed) as closed:
        second.apply()
    assert "shop (old view" in str(closed.value)
    company.do(client.close())
    second.apply()
    assert len(project.rows("Second")) == 30
    client = company.client(View.OLD, "kiosk")
    with pytest.raises(GateClosed) as closed:
        second.apply(Phase.CUTOVER)
    assert "kiosk (old view" in str(closed.value)
    company.do(client.close())
    with pytest.raises(GateClosed) as closed:
        second.apply(Phase.CUTOVER)
    assert "kiosk" not in str(closed.value)
