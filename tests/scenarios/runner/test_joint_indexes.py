"""Index tables of kinds of rows that have tables of their own: each pointer names the table that holds the
main row, in every command, for clients, and for an application that maintains index rows itself. Whole lives
with kills are in `test_example_lives.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekey.model import Row, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View
from rekey.tables.base import Operation, Verb
from tests.asserts.command_line import Commands, CommandsOn
from tests.scenarios.runner.test_example_lives import joint
from tests.scenarios.runner.test_joint import (
    COMPLETE,
    EXAMPLE,
    SCRIPT,
    TABLES,
    WHY,
    compare,
    delete,
    independently,
    shipment,
    write,
)
from tests.worlds.company import Client, Company, company_at
from tests.worlds.evidence import with_key
from tests.worlds.projects import Project
from tests.worlds.shipments import INDEX, SHIPMENTS_BY_CUSTOMER, by_customer


def stock() -> list[Row]:
    days = ["", "2023-05-01", "2024-12-31", ""]
    return [shipment(f"c{n % 5}", n, days[n % 4], Weight=n % 7) for n in range(40)]


def index_rows_of(row: Row) -> list[Row]:
    """The index rows of a source row, without the mapper."""
    return [index_row for _, index_row in by_customer(*independently(row))]


def compare_all(project: Project) -> None:
    """Require that main and index rows are what the second implementation makes of the source."""
    compare(project)
    wanted = [index_row for row in project.rows("Shipments") for index_row in index_rows_of(row)]
    held = [content_of(row) for row in project.rows(INDEX)]
    assert sorted(held, key=key_of) == sorted(wanted, key=key_of)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.script(SHIPMENTS_BY_CUSTOMER.replace('"dual-write"', '"delta"'), EXAMPLE.name)
    asyncio.run(project.fill("Shipments", stock()))
    return project


@pytest.fixture
def begun(project: Project, commands_on: CommandsOn) -> Commands:
    rekey = commands_on(project)
    rekey("apply", SCRIPT)
    return rekey


@pytest.fixture
def completed(begun: Commands) -> Commands:
    begun("apply", SCRIPT, "--to", "cutover", "--writers-stopped")
    begun(*COMPLETE)
    begun.project.clock.advance(60)
    return begun


# --- commands -----------------------------------------------------------------------------------------------


def test_a_pointer_leads_to_the_table_and_the_key_of_the_main_row(project: Project, begun: Commands) -> None:
    compare_all(project)
    assert len(project.rows(INDEX)) == 40
    for index_row in project.rows(INDEX):
        table, _, partition = index_row["MainPartitionKey"].partition(":")
        [main] = [row for row in project.rows(table) if key_of(row) == (partition, index_row["MainRowKey"])]
        assert main["Customer"] == index_row["PartitionKey"]


def test_index_rows_are_planned_verified_and_proved(project: Project, begun: Commands) -> None:
    planned = begun("plan", "--exact", "--json").json["migrations"][0]
    assert [each["table"] for each in planned["basis"]["targets"]] == [*TABLES, INDEX]
    for mode in ("count", "sample", "full"):
        begun("verify", SCRIPT, "--mode", mode)
    with_key(project.folder)
    bundle = str(project.folder / "bundle")
    begun("evidence", "export", bundle, SCRIPT)
    digests = begun("evidence", "recompute", bundle, "--mapping", "--json").json["digests"]
    labels = [f"{INDEX} {begins}:" for begins in (2023, 2024, 2025, "open")]
    assert {each["table"] for each in digests} >= {"Shipments", *labels}
    write(project, INDEX, {**content_of(project.rows(INDEX)[0]), "MainPartitionKey": "ShipmentsOpen:c4"})
    begun("evidence", "recompute", bundle, code=1)


def test_an_index_row_follows_its_row_to_another_table(project: Project, begun: Commands) -> None:
    moved = shipment("c0", 0, "2025-03-01", Weight=3)
    assert [row["RowKey"] for row in index_rows_of(stock()[0]) + index_rows_of(moved)] == [
        "open:0000",
        "2025:0000",
    ]
    write(project, "Shipments", moved)
    delete(project, "Shipments", stock()[1])
    begun("apply", SCRIPT)
    compare_all(project)
    assert index_rows_of(moved)[0] in map(content_of, project.rows(INDEX))


def test_a_pointer_to_an_equal_key_of_another_table_is_repaired(project: Project, begun: Commands) -> None:
    wrong = next(row for row in project.rows(INDEX) if row["RowKey"].startswith("open:"))
    write(project, INDEX, {**content_of(wrong), "MainPartitionKey": "Shipments2025:c0"})
    report = begun("verify", SCRIPT, "--json", code=1).json
    assert report["by_kind"] == {"altered": 1}
    begun("verify", SCRIPT, "--repair", code=1)
    compare_all(project)
    begun("verify", SCRIPT)


def test_an_index_row_that_no_pass_takes_out_is_not_left_to_the_next_one(
    project: Project, begun: Commands
) -> None:
    """It points to a row that is gone, whose forward row does not list it."""
    delete(project, "Shipments", stock()[1])
    begun("apply", SCRIPT)
    write(project, INDEX, {**index_rows_of(stock()[1])[0], "RowKey": "2023:stray"})
    assert begun("verify", SCRIPT, "--json", code=1).json["by_kind"] == {"extra": 1}
    begun("verify", SCRIPT, "--repair", code=1)
    compare_all(project)
    begun("verify", SCRIPT)
    delete(project, "Shipments", stock()[2])  # the next pass takes out what it lists
    assert begun("verify", SCRIPT, "--json").json["pending"] == 2
    begun("apply", SCRIPT)
    compare_all(project)


# What no main row can have as its PartitionKey.
NO_KEYS = pytest.mark.parametrize(
    "partition",
    [5, "ShipmentsOpen:a/b", f"ShipmentsOpen:{'x' * 1025}", "ShipmentsOpen:\ud800"],
    ids=["a number", "a character", "too long", "half a character"],
)


@NO_KEYS
def test_pointers_that_can_be_no_key_are_repaired(
    project: Project, begun: Commands, partition: object
) -> None:
    point_to(project, partition)
    assert begun("verify", SCRIPT, "--json", code=1).json["by_kind"] == {"altered": 1, "extra": 1}
    begun("apply", SCRIPT, code=1)
    begun("verify", SCRIPT, "--repair", code=1)
    compare_all(project)
    begun("verify", SCRIPT)


@NO_KEYS
def test_pointers_that_can_be_no_key_are_repaired_after_complete(
    project: Project, completed: Commands, partition: object
) -> None:
    row = point_to(project, partition)
    folder = str(project.folder / "index.export")
    completed("export", INDEX, folder)
    assert completed("verify", SCRIPT, "--json", code=1).json["by_kind"] == {"altered": 1, "extra": 1}
    assert completed("lookup", SCRIPT, "--new", *key_of(row), *WHY, "--json", code=1).json
    completed("verify", SCRIPT, "--repair", code=1)
    compare_all(project)
    completed("erase", SCRIPT, "--old", *key_of(stock()[1]), *WHY, "--with-targets")
    assert completed("import", folder, INDEX, "--json", code=1).json["erased"] == 1


def point_to(project: Project, partition: object) -> Row:
    """Write an index row, and another beside it, with a pointer that somebody else made; return the first."""
    row = next(row for row in project.rows(INDEX) if row["RowKey"].startswith("open:"))
    pointed = {**content_of(row), "MainPartitionKey": partition, "MainRowKey": partition}
    write(project, INDEX, pointed)
    write(project, INDEX, {**pointed, "RowKey": "open:stray"})
    return row


def test_a_removed_index_row_comes_back(project: Project, begun: Commands) -> None:
    text = (project.folder / "rekey.toml").read_text("utf-8")
    (project.folder / "rekey.toml").write_text(text.replace('retention = "0s"', 'retention = "3d"'), "utf-8")
    stray = {**index_rows_of(shipment("c9", 99))[0], "RowKey": "open:stray"}
    write(project, INDEX, stray)
    report = begun("verify", SCRIPT, "--repair", "--json", code=1).json
    compare_all(project)
    [row_id] = [each["row"] for each in report["repair"]["repairs"] if each["kind"] == "extra"]
    assert begun("restore-row", row_id, *WHY, "--json").json["table"] == f"{INDEX} open:"
    assert stray in map(content_of, project.rows(INDEX))


def test_a_look_up_by_an_index_row_finds_the_row_that_it_points_to(project: Project, begun: Commands) -> None:
    row = shipment("c1", 1, "2023-05-01", Weight=1)
    table, main = independently(row)
    [index_row] = index_rows_of(row)
    [answer] = begun("lookup", SCRIPT, "--new", *key_of(index_row), *WHY, "--json").json["rows"]
    assert answer["old"] == {"partition_key": "c1", "row_key": "0001"}
    places = [(each["table"], each["partition_key"], each["row_key"]) for each in answer["new"]]
    assert sorted(places) == sorted([(table, *key_of(main)), (INDEX, *key_of(index_row))])


# --- after `complete` ---------------------------------------------------------------------------------------


def test_index_rows_are_compared_with_the_main_rows_of_all_tables(
    project: Project, completed: Commands
) -> None:
    text = " ".join(completed("verify", SCRIPT).out.split())
    assert "full verification of Shipments2023, Shipments2024 and 2 more tables: 40 source rows" in text
    open_row, arrived = shipment("c3", 700, Weight=2), shipment("c3", 701, "2024-01-31", Weight=4)
    for row in (open_row, arrived):
        write(project, *independently(row))
        write(project, INDEX, index_rows_of(row)[0])
    delete(project, *independently(stock()[0]))
    delete(project, INDEX, index_rows_of(stock()[0])[0])
    completed("verify", SCRIPT)
    own_key = {**index_rows_of(open_row)[0], "MainPartitionKey": "c3"}
    write(project, INDEX, own_key)  # as if there were one table
    delete(project, INDEX, index_rows_of(arrived)[0])
    report = completed("verify", SCRIPT, "--json", code=1).json
    assert report["by_kind"] == {"altered": 1, "missing": 1}
    completed("verify", SCRIPT, "--repair", code=1)
    completed("verify", SCRIPT)
    for row in (open_row, arrived):
        assert index_rows_of(row)[0] in map(content_of, project.rows(INDEX))
        assert independently(row)[1] in map(content_of, project.rows(independently(row)[0]))


def test_a_main_row_that_gives_no_index_rows_is_named_in_its_own_table(
    project: Project, completed: Commands
) -> None:
    write(project, "Shipments2024", {"PartitionKey": "2024-01", "RowKey": "c7_9"})  # without its old key
    result = completed("verify", SCRIPT, "--show-keys", *WHY, "--json", code=1).json
    assert [(each["kind"], each["table"]) for each in result["divergences"]] == [("refused", "Shipments2024")]
    assert [(each["table"], each["partition_key"]) for each in result["keys"]] == [
        ("Shipments2024", "2024-01")
    ]
    assert "Shipments2023+" not in completed("verify", SCRIPT, code=1).all


def test_an_erasure_finds_the_index_rows_of_a_row_in_any_table(project: Project, completed: Commands) -> None:
    row, before = shipment("c1", 1, "2023-05-01", Weight=1), len(project.rows(INDEX))
    table, main = independently(row)
    [index_row] = index_rows_of(row)
    by_application = {**index_row, "RowKey": "2023:by the application"}
    to_another_table = {**by_application, "RowKey": "2023:x", "MainPartitionKey": "ShipmentsOpen:2023-05"}
    write(project, INDEX, by_application)
    write(project, INDEX, to_another_table)
    erase = ("erase", SCRIPT, "--old", *key_of(row), *WHY, "--with-targets", "--json")
    assert completed(*erase).json["targets"] == {table: 1, f"{INDEX} 2023:": 2}
    held = list(map(key_of, project.rows(INDEX)))
    assert key_of(index_row) not in held and key_of(by_application) not in held
    assert key_of(to_another_table) in held
    assert len(held) == before
    assert key_of(main) not in map(key_of, project.rows(table))


def test_an_import_leaves_out_what_was_erased_from_each_table_and_the_index(
    project: Project, completed: Commands
) -> None:
    """The control row names five tables, and not which of them hold main rows."""
    rows = [shipment("c0", 0, Weight=0), shipment("c1", 1, "2023-05-01", Weight=1)]
    write(project, INDEX, {**index_rows_of(rows[1])[0], "RowKey": "2023:by the application"})
    folders = {table: str(project.folder / f"{table}.export") for table in (*TABLES, INDEX)}
    for table, folder in folders.items():
        completed("export", table, folder)
    for row in rows:
        completed("erase", SCRIPT, "--old", *key_of(row), *WHY, "--with-targets")
    gone = {"ShipmentsOpen": 1, "Shipments2023": 1, INDEX: 3}
    for table, folder in folders.items():
        left = project.rows(table)
        assert completed("import", folder, table, "--json").json["erased"] == gone.get(table, 0)
        assert project.rows(table) == left


# --- capture "dual-write" -----------------------------------------------------------------------------------


@pytest.fixture
def company(tmp_path: Path) -> Iterator[Company]:
    with company_at(tmp_path, SHIPMENTS_BY_CUSTOMER, stock(), Phase.BACKFILL) as company:
        company.client(View.OLD)
        company.client(View.NEW)
        company.apply()
        yield company


def put(company: Company, client: Client, row: Row, verb: Verb = Verb.INSERT_OR_REPLACE) -> None:
    """Write a source row in a client's view."""
    table, placed = ("Shipments", row) if client.view is View.OLD else independently(row)
    condition = "*" if verb is Verb.DELETE else None
    operation = joint(company.mapper, table, Operation(verb, placed, condition))
    company.do(client.write(operation))


def in_step(company: Company) -> None:
    company.settle()
    compare_all(company.project)
    assert not company.verify().findings


def test_index_rows_follow_the_writes_of_both_views_there_and_back(company: Company) -> None:
    old, new = company.clients[:2]
    put(company, old, shipment("c0", 0, "2024-02-01", Weight=1))  # to another table
    put(company, new, shipment("c3", 3, Weight=5))
    put(company, new, shipment("c2", 2, "2024-12-31"), Verb.DELETE)
    put(company, new, shipment("c2", 2, Weight=3))  # to another table, in the new view
    in_step(company)
    company.apply(Phase.CUTOVER)
    put(company, new, shipment("c0", 0, "2024-02-01"), Verb.DELETE)
    put(company, new, shipment("c0", 0, "2025-02-01", Weight=6))
    put(company, old, shipment("c3", 3, Weight=6))
    put(company, old, shipment("c4", 4), Verb.DELETE)
    put(company, new, shipment("c9", 900, "2023-02-01", Weight=6))
    in_step(company)
    company.rollback()
    assert company.phase is ControlPhase.DUAL_WRITE
    in_step(company)
    kept = {
        (row["PartitionKey"], row["RowKey"]): row.get("Weight") for row in company.project.rows("Shipments")
    }
    assert (kept["c0", "0000"], kept["c9", "0900"], kept["c3", "0003"]) == (6, 6, 6)
    assert ("c4", "0004") not in kept
    company.apply(Phase.CUTOVER)
    in_step(company)


def test_clients_maintain_index_rows_after_complete_until_the_handover(company: Company) -> None:
    _, new = company.clients[:2]
    company.apply(Phase.CUTOVER)
    company.do(company.clients[0].close())  # that of the old view
    company.apply(Phase.COMPLETE)
    put(company, new, shipment("c9", 900, Weight=1))
    put(company, new, shipment("c1", 1, "2023-05-01"), Verb.DELETE)
    [index_row] = index_rows_of(shipment("c9", 900))
    writer, table = new.writer, company.project.tables.table(INDEX)
    assert writer is not None

    async def write_index(operation: Operation) -> None:
        """As the application does that begins to maintain index rows."""
        async with new.lease.operation(writes=True) as permit:
            await writer.write_index(table, [operation], permit)

    company.do(write_index(Operation(Verb.INSERT_OR_REPLACE, {**index_row, "State": "stale"})))
    company.do(write_index(Operation(Verb.DELETE, index_row, "*")))
    for partition in ("c9", "Nowhere:c9", "Shipments2024:c9", 9):
        # Of no table, of none of the migration's, of another than the row's, and no key.
        pointed = {**index_row, "MainPartitionKey": partition}
        company.do(write_index(Operation(Verb.INSERT_OR_REPLACE, pointed)))
        company.do(write_index(Operation(Verb.INSERT, {**pointed, "RowKey": f"open:{partition}"})))
    company.settle()
    assert company.unsettled == []
    assert index_row in map(content_of, company.project.rows(INDEX))
    assert company.verify(repair=True).differences.counts == {"extra": 4}
    in_step(company)
    company.hand_over()
    put(company, new, shipment("c9", 901, Weight=1))
    assert company.verify().differences.counts == {"missing": 1}
    company.do(table.insert(index_rows_of(shipment("c9", 901))[0]))
    assert not company.verify().findings


# --- the target account -------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [INDEX, f"{INDEX}@targets"], ids=["the source's", "the target account"])
def test_pointers_name_tables_of_the_target_account_as_the_script_does(
    tmp_path: Path, commands_on: CommandsOn, index: str
) -> None:
    """There and back, with a row that changes its table. `index`: in which account index rows are."""
    project = Project(tmp_path)
    project.move_elsewhere()
    text = SHIPMENTS_BY_CUSTOMER.replace('"dual-write"', '"delta"').replace(f'"{INDEX}"', f'"{index}"')
    text = text.replace('f"Shipments{year}"', 'f"Shipments{year}@targets"')
    project.script(text.replace('"ShipmentsOpen"', '"ShipmentsOpen@targets"'), EXAMPLE.name)
    asyncio.run(project.fill("Shipments", stock()))
    rekey = commands_on(project)

    def held() -> dict[tuple[str, str], tuple[str, str]]:
        pointers = ((key_of(row), row["MainPartitionKey"], row["MainRowKey"]) for row in project.rows(index))
        return {key: (partition, row) for key, partition, row in pointers}

    def wanted() -> dict[tuple[str, str], tuple[str, str]]:
        pointers = {}
        for row in project.rows("Shipments"):
            [index_row] = index_rows_of(row)
            table, _, partition = index_row["MainPartitionKey"].partition(":")
            pointers[key_of(index_row)] = f"{table}@targets:{partition}", index_row["MainRowKey"]
        return pointers

    rekey("apply", SCRIPT)
    write(project, "Shipments", shipment("c0", 0, "2025-03-01", Weight=3))
    rekey("apply", SCRIPT)
    assert held() == wanted() and len(wanted()) == 40
    rekey("apply", SCRIPT, "--to", "cutover", "--writers-stopped")
    gone = shipment("c4", 4)
    asyncio.run(project.targets.table("ShipmentsOpen@targets").delete(key_of(gone)))
    rekey("rollback", SCRIPT, "--writers-stopped")
    assert key_of(gone) not in map(key_of, project.rows("Shipments"))
    assert held() == wanted() and len(wanted()) == 39
    rekey("verify", SCRIPT)
