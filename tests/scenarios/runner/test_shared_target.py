"""Two tables merged into one that already has rows of its own: whole lives of both migrations, in both
captures. All other rows of that table stay as they were, ETags included."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rekey.errors import RekeyError, WritesRefused
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import Phase
from rekey.protocol.rules import View
from rekey.runner.commands import Mode
from rekey.tables.base import Operation, Verb
from tests.asserts.command_line import CommandsOn
from tests.fakes.interference import before
from tests.worlds.company import Client, Company
from tests.worlds.evidence import with_key
from tests.worlds.projects import Project
from tests.worlds.scripts import under_writes

REGION = '''\
"""The orders of a region join those of all."""
from rekey import Index, Migration, Target, keys, props

migration = Migration(
    source="OrdersDE",
    target=Target(
        "Orders",
        partition_key=keys.join("_", keys.literal("DE"), "PartitionKey"),
        row_key=keys.keep(),
        properties=[props.copy("PartitionKey", to="Customer")],
        shared=True,
    ),
    indexes=[
        Index(
            "ByDay",
            partition_key=keys.join("_", keys.literal("DE"), "Day"),
            row_key=keys.join("_", "PartitionKey", "RowKey"),
            shared=True,
        )
    ],
    capture="delta",
)
'''
DE, FR = "0001_de", "0002_fr"
# Of the application, and of a region whose name begins with that of another one.
OTHERS = [
    {"PartitionKey": "DE", "RowKey": "1", "Sum": 1},
    {"PartitionKey": "DEX_c1", "RowKey": "1", "Sum": 2},
    {"PartitionKey": "", "RowKey": "", "Sum": 3},
    {"PartitionKey": "ZZ_c1", "RowKey": "00001", "Sum": 4},
]


def order(customer: str, number: int, day: int = 1, **more: object) -> Row:
    return {"PartitionKey": customer, "RowKey": f"{number:05}", "Day": f"2024-01-{day:02}", **more}


def independently(region: str, row: Row) -> Row:
    """What an order becomes, without the mapper."""
    content = content_of(row)
    return {**content, "PartitionKey": f"{region}_{row['PartitionKey']}", "Customer": row["PartitionKey"]}


def stock(count: int = 40) -> list[Row]:
    return [order(f"c{number % 4}", number, 1 + number % 7) for number in range(count)]


def script(region: str) -> str:
    return REGION.replace('"DE"', f'"{region}"').replace("OrdersDE", f"Orders{region}")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.script(script("DE"), f"{DE}.py")
    project.script(script("FR"), f"{FR}.py")
    for table, rows in (
        ("OrdersDE", stock()),
        ("OrdersFR", stock(30)),
        ("Orders", OTHERS),
        ("ByDay", OTHERS),
    ):
        asyncio.run(project.fill(table, rows))
    return project


def of_region(project: Project, table: str, region: str) -> list[Row]:
    return [row for row in project.rows(table) if row["PartitionKey"].startswith(f"{region}_")]


def others(project: Project) -> list[list[Row]]:
    """The rows of neither region, with ETag and Timestamp."""
    return [
        [row for row in project.rows(table) if not row["PartitionKey"].startswith(("DE_", "FR_"))]
        for table in ("Orders", "ByDay")
    ]


def compare(project: Project, region: str, rows: list[Row] | None = None) -> int:
    """Require that the targets hold what the second implementation makes of a region's rows, or of `rows`;
    return how many there are."""
    rows = project.rows(f"Orders{region}") if rows is None else rows
    wanted = sorted((independently(region, row) for row in rows), key=key_of)
    assert sorted(map(content_of, of_region(project, "Orders", region)), key=key_of) == wanted
    days = {(row["PartitionKey"], row["RowKey"]) for row in of_region(project, "ByDay", region)}
    assert days == {(f"{region}_{row['Day']}", f"{row['PartitionKey']}_{row['RowKey']}") for row in rows}
    return len(wanted)


def test_two_tables_merge_at_the_same_time_in_capture_delta(
    project: Project, commands_on: CommandsOn
) -> None:
    rekey, untouched = commands_on(project), others(project)
    tables = project.tables.table
    rekey("plan", "--exact")
    rekey("apply", DE)
    rekey("apply", FR)
    assert (compare(project, "DE"), compare(project, "FR")) == (40, 30)
    asyncio.run(tables("OrdersDE").upsert(order("c1", 1, 9, Sum=7)))
    asyncio.run(tables("OrdersDE").delete(EntityKey("c2", "00002")))
    asyncio.run(tables("OrdersFR").insert(order("c9", 900)))
    for script_id in (DE, FR):
        rekey("apply", script_id)
        for mode in ("full", "count", "sample"):
            rekey("verify", script_id, "--mode", mode)
    rekey("apply", DE, "--to", "cutover", "--writers-stopped")
    rekey("apply", FR, "--to", "cutover", "--writers-stopped")
    assert (compare(project, "DE"), compare(project, "FR")) == (39, 31)
    # Written in the new view: DE goes back, FR does not.
    asyncio.run(tables("Orders").upsert(independently("DE", order("c3", 3, 4, Sum=8))))
    asyncio.run(tables("Orders").insert(independently("FR", order("c8", 800))))
    asyncio.run(tables("Orders").delete(EntityKey("DE_c0", "00004")))
    rekey("rollback", DE, "--writers-stopped")
    assert compare(project, "DE") == 38
    rekey("apply", DE, "--to", "cutover", "--writers-stopped")
    assert others(project) == untouched
    with_key(project.folder)
    for script_id, table in ((DE, "OrdersDE"), (FR, "OrdersFR")):
        rekey("apply", script_id, "--to", "complete", "--writers-stopped", "--yes", script_id)
        rekey("verify", script_id, "--mode", "full", code=None)
        bundle = str(project.folder / f"bundle_{table}")
        rekey("evidence", "export", bundle, script_id)
        rekey("evidence", "verify", bundle)
        # FR was not verified since the application wrote in the new view.
        rekey("evidence", "recompute", bundle, "--mapping", code=0 if script_id == DE else 1)
        rekey("retire", script_id, "--table", table, "--no-backup", "a test")
    assert len(of_region(project, "Orders", "DE")) == 38
    assert len(of_region(project, "Orders", "FR")) == 32
    assert others(project) == untouched


def test_a_rollback_takes_its_own_rows_out_of_the_table(project: Project, commands_on: CommandsOn) -> None:
    rekey, untouched = commands_on(project), others(project)
    rekey("apply", DE)
    rekey("apply", FR)
    told = rekey("rollback", DE, "--drop-targets").out
    assert "its rows deleted from Orders, ByDay" in " ".join(told.split())
    assert of_region(project, "Orders", "DE") == of_region(project, "ByDay", "DE") == []
    assert compare(project, "FR") == 30
    assert others(project) == untouched
    rekey("apply", DE)
    assert compare(project, "DE") == 40


def test_a_rollback_deletes_no_row_that_changes_meanwhile(project: Project, commands_on: CommandsOn) -> None:
    rekey = commands_on(project)
    rekey("apply", DE)
    late = {**independently("DE", order("c1", 1)), "Late": True}
    before(project.tables, "", "Orders", lambda: project.tables.table("Orders").upsert(late))
    rekey("rollback", DE, "--drop-targets", code=4)
    assert late in [content_of(row) for row in of_region(project, "Orders", "DE")]
    rekey("rollback", DE, "--to", "source", "--drop-targets")
    assert of_region(project, "Orders", "DE") == []


def test_rows_under_its_own_keys_keep_it_from_beginning(project: Project, commands_on: CommandsOn) -> None:
    rekey = commands_on(project)
    asyncio.run(project.tables.table("Orders").insert(independently("DE", order("c1", 1))))
    told = rekey("apply", DE, code=3)
    assert "Orders" in told.err
    rekey("apply", FR)
    assert compare(project, "FR") == 30


def test_a_row_too_many_is_found_under_its_own_keys_alone(project: Project, commands_on: CommandsOn) -> None:
    rekey = commands_on(project)
    rekey("apply", DE)
    asyncio.run(project.tables.table("Orders").insert(independently("FR", order("c1", 1))))
    rekey("verify", DE, "--mode", "full")
    asyncio.run(project.tables.table("Orders").insert(independently("DE", order("c1", 999))))
    rekey("verify", DE, "--mode", "full", code=1)
    rekey("verify", DE, "--mode", "full", "--repair", code=None)
    assert compare(project, "DE") == 40
    assert len(of_region(project, "Orders", "FR")) == 1


def test_rows_of_others_do_not_pass_for_its_own_at_the_gate(
    project: Project, commands_on: CommandsOn
) -> None:
    rekey = commands_on(project)
    rekey("apply", DE)
    for row in of_region(project, "Orders", "DE"):
        asyncio.run(project.tables.table("Orders").delete(key_of(row)))
    told = rekey("apply", DE, "--to", "cutover", "--writers-stopped", code=3)
    assert "the target table Orders is empty, and OrdersDE is not" in " ".join(told.err.split())


def test_a_script_that_shares_a_table_is_not_taken_for_one_that_is_gone(
    project: Project, commands_on: CommandsOn
) -> None:
    rekey = commands_on(project)
    rekey("apply", DE)
    (project.folder / "migrations" / f"{DE}.py").unlink()
    rekey("apply", FR)
    assert compare(project, "FR") == 30


ON = '''\
"""The orders move on."""
from rekey import Migration, Target, keys, rows

migration = Migration(
    source="Orders",
    target=Target(
        "OrdersV2",
        partition_key=keys.keep(),
        row_key=keys.literal("N") + keys.prop("RowKey"),
        allow_empty=True,
    ),
    reverse=False,
    capture="delta",
    where=WHERE,
)
'''


@pytest.mark.parametrize(("where", "stops"), [("None", True), ("rows.partition_key(equals='DE')", False)])
def test_a_table_is_not_filled_any_more_once_it_moves_on(
    project: Project, commands_on: CommandsOn, where: str, stops: bool
) -> None:
    rekey = commands_on(project)
    rekey("apply", DE)
    rekey("apply", DE, "--to", "complete", "--writers-stopped", "--yes", DE)
    late = project.folder / "migrations" / f"{FR}.py"
    text = late.read_text("utf-8")
    late.unlink()
    project.script(ON.replace("WHERE", where), "0003_on.py")
    rekey("apply", "0003_on")
    late.write_text(text, "utf-8")
    refused = rekey("apply", FR, code=3 if stops else 0)
    told = " ".join(refused.err.split())
    assert ("Orders is the source of 0003_on, which has begun" in told) is stops
    assert of_region(project, "Orders", "FR") == [] or not stops


def test_a_table_that_was_filled_and_moved_on_is_restored(project: Project, commands_on: CommandsOn) -> None:
    rekey, folder = commands_on(project), project.folder
    late = folder / "migrations" / f"{FR}.py"
    text = late.read_text("utf-8")
    late.unlink()
    rekey("apply", DE, "--to", "complete", "--writers-stopped", "--yes", DE)
    project.clock.advance(60)
    project.script(ON.replace("WHERE", "None"), "0003_on.py")
    rekey("apply", "0003_on", "--to", "complete", "--writers-stopped", "--yes", "0003_on")
    with_key(folder)
    rekey("evidence", "export", str(folder / "bundle"), "0003_on")
    rekey("evidence", "verify", str(folder / "bundle"))
    backup, held = str(folder / "backup"), list(map(content_of, project.rows("Orders")))
    rekey("export", "Orders", backup)
    rekey("retire", "0003_on", "--table", "Orders", "--backup", backup)
    project.clock.advance(60)
    rekey("restore", backup, "0003_on")
    assert list(map(content_of, project.rows("Orders"))) == held
    asyncio.run(project.tables.delete_table("Orders"))
    project.clock.advance(60)
    # A table of that name may be filled again: then the backup would be among rows of now.
    late.write_text(text, "utf-8")
    asyncio.run(project.tables.delete_table("OrdersFR"))
    project.clock.advance(60)
    asyncio.run(project.fill("OrdersFR", []))
    rekey("apply", FR)
    told = " ".join(rekey("restore", backup, "0003_on", code=3).err.split())
    assert f"{FR} fills Orders since Orders was deleted" in told


# --- under writes -------------------------------------------------------------------------------------------


async def traffic(company: Company, client: Client, region: str, seed: int) -> None:
    draw = random.Random(seed)
    while not company.stopping:
        row = order(f"c{draw.randrange(4)}", draw.randrange(60), 1 + draw.randrange(5), Sum=draw.randrange(9))
        verb = draw.choice([Verb.INSERT_OR_REPLACE, Verb.INSERT_OR_REPLACE, Verb.DELETE])
        sent = row if client.view is View.OLD else independently(region, row)
        with suppress(RekeyError):
            await client.write(Operation(verb, sent, "*" if verb is Verb.DELETE else None))
        await company.project.clock.sleep(draw.random())


@pytest.fixture
def companies(project: Project) -> Iterator[tuple[Company, Company]]:
    project.script(under_writes(script("DE")), f"{DE}.py")
    project.script(under_writes(script("FR")), f"{FR}.py")
    first = Company(project, DE)
    second = Company(project, FR, first.loop)
    yield first, second
    second.quiet()
    first.close()


def test_two_tables_merge_under_writes_of_both(companies: tuple[Company, Company], project: Project) -> None:
    untouched = others(project)
    regions = dict(zip(("DE", "FR"), companies, strict=True))
    for number, (region, company) in enumerate(regions.items()):
        company.writes(traffic(company, company.client(View.OLD), region, 10 * number))
        company.apply()
        company.writes(traffic(company, company.client(View.NEW), region, 10 * number + 1))
        company.live(10)
    for company in companies:
        company.apply(Phase.CUTOVER)
        company.live(10)
    companies[0].rollback()
    companies[0].live(10)
    assert not companies[0].verify(Mode.FULL).findings
    companies[0].apply(Phase.CUTOVER)
    for region, company in regions.items():
        company.settle()
        assert not company.verify(Mode.FULL).findings
        compare(project, region)
    assert others(project) == untouched


def test_a_client_writes_no_rows_of_others(companies: tuple[Company, Company], project: Project) -> None:
    """Neither those of the other migration, whose replicas would not follow, nor the application's own."""
    company, untouched = companies[0], others(project)
    company.client(View.OLD)
    company.apply()
    client = company.client(View.NEW)
    for row in (independently("FR", order("c1", 1)), OTHERS[0]):
        with pytest.raises(WritesRefused) as refused:
            company.do(client.write(Operation(Verb.INSERT_OR_REPLACE, row)))
        assert refused.value.code == "others-row"
    assert of_region(project, "Orders", "FR") == []
    assert others(project) == untouched
