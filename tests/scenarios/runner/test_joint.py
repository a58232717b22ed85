"""Kinds of rows with tables of their own: the commands on the worked example, which splits a table by a
property. Whole lives with kills are in `test_example_lives.py`."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekey.core.joint import joint_name
from rekey.errors import GateClosed, Refused
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import Phase
from rekey.protocol.rules import NEW_VIEW_CLOSED, View, refusal
from rekey.runner import remaining
from rekey.runner.commands import Mode
from rekey.runner.phases import prepare
from rekey.tables import joint
from rekey.tables.base import Table, TableService
from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.company import Company, company_at
from tests.worlds.evidence import with_key
from tests.worlds.projects import Project

EXAMPLE = Path(__file__).parents[3] / "migrations" / "0010_shipments_by_state.py"
SCRIPT = EXAMPLE.stem
TABLES = ("Shipments2023", "Shipments2024", "Shipments2025", "ShipmentsOpen")
WHY = ("--reason", "a test of this")
DROP = ("rollback", SCRIPT, "--to", "source", "--drop-targets")
COMPLETE = ("apply", SCRIPT, "--to", "complete", "--writers-stopped", "--yes", SCRIPT)


def shipment(customer: str, number: int, arrived: str = "", **more: object) -> Row:
    row: Row = {"PartitionKey": customer, "RowKey": f"{number:04}", **more}
    if arrived:
        row |= {
            "State": "arrived",
            "ArrivedAt": f"{arrived}T10:00:00Z",
            "ArrivedAt@odata.type": "Edm.DateTime",
        }
    return row


def independently(row: Row) -> tuple[str, Row]:
    """What a shipment becomes, without the mapper: table and row."""
    customer, number = row["PartitionKey"], row["RowKey"]
    held = {**content_of(row), "Customer": customer, "Number": number}
    if "ArrivedAt" not in row:
        return "ShipmentsOpen", held
    month = row["ArrivedAt"][:7]
    return f"Shipments{month[:4]}", {**held, "PartitionKey": month, "RowKey": f"{customer}_{number}"}


def stock() -> list[Row]:
    days = ["", "2023-05-01", "2024-12-31", ""]
    return [shipment(f"c{number % 5}", number, days[number % 4]) for number in range(40)]


def compare(project: Project) -> dict[str, int]:
    """Require that each table holds what the second implementation makes; return the rows of each."""
    wanted: dict[str, list[Row]] = {name: [] for name in TABLES}
    for row in project.rows("Shipments"):
        table, target = independently(row)
        wanted[table].append(target)
    for name in TABLES:
        held = [content_of(row) for row in project.rows(name)]
        assert sorted(held, key=key_of) == sorted(wanted[name], key=key_of)
    return {name: len(rows) for name, rows in wanted.items()}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.script(EXAMPLE.read_text("utf-8").replace('"dual-write"', '"delta"'), EXAMPLE.name)
    asyncio.run(project.fill("Shipments", stock()))
    return project


@pytest.fixture
def rekey(project: Project, commands_on: CommandsOn) -> Commands:
    return commands_on(project)


@pytest.fixture
def begun(rekey: Commands) -> Commands:
    rekey("apply", SCRIPT)
    return rekey


def write(project: Project, table: str, row: Row) -> None:
    asyncio.run(project.tables.table(table).upsert(row))


def delete(project: Project, table: str, row: Row) -> None:
    asyncio.run(project.tables.table(table).delete(key_of(row)))


def lose(project: Project, table: str) -> None:
    asyncio.run(project.tables.delete_table(table))


def test_all_tables_are_verified_and_proved(project: Project, begun: Commands) -> None:
    rows = {"Shipments2023": 10, "Shipments2024": 10, "Shipments2025": 0, "ShipmentsOpen": 20}
    assert compare(project) == rows
    for mode in ("count", "sample", "full"):
        text = begun("verify", SCRIPT, "--mode", mode).out
        assert "of 4 tables" in text or "All counts agree" in text
    begun("apply", SCRIPT, "--to", "cutover", "--writers-stopped")
    begun(*COMPLETE)
    with_key(project.folder)
    bundle = str(project.folder / "bundle")
    begun("evidence", "export", bundle, SCRIPT)
    begun("evidence", "verify", bundle)
    digests = begun("evidence", "recompute", bundle, "--mapping", "--json").json["digests"]
    assert [each["what"] for each in digests] == ["source", "expected", "target"]
    write(project, "Shipments2024", {**project.rows("Shipments2024")[0], "Weight": 7})
    begun("evidence", "recompute", bundle, code=1)


def test_the_plan_says_what_is_in_which_table(rekey: Commands) -> None:
    said = rekey("plan", "--exact", "--show-keys", "--json").json["migrations"][0]
    assert [each["table"] for each in said["basis"]["targets"]] == list(TABLES)
    kinds = {each["name"]: (each["when"].partition(":")[0], each["rows"]) for each in said["kinds"]}
    assert kinds == {
        "arrived-2023": ("Shipments2023", 10),
        "arrived-2024": ("Shipments2024", 10),
        "arrived-2025": ("Shipments2025", 0),
        "open": ("ShipmentsOpen", 20),
    }
    text = rekey("plan", "--exact", "--show-keys").out
    for table in TABLES:
        assert f"{table} (will be made)" in text
    assert "Shipments2023:" not in text.replace("Shipments2023: all of", "")


def by_hand(project: Project) -> str:
    """The digest of all tables, as docs/guides/verify-by-hand.md says."""
    buckets = [[0, 0] for _ in range(16_384)]
    for table in TABLES:
        for row in map(content_of, project.rows(table)):
            partition, row_key = f"{table}:{row.pop('PartitionKey')}", row.pop("RowKey")
            fields = ["+".join(TABLES), partition, row_key]
            for name in sorted(name for name in row if "@" not in name):
                edm = row.get(f"{name}@odata.type", "Edm.String")
                text = f"{row[name][:19]}.0000000Z" if edm == "Edm.DateTime" else row[name]
                fields += [name, edm, text]
            message = json.dumps(fields, separators=(",", ":")).encode()
            bucket = buckets[zlib.crc32(f"{partition}\0{row_key}".encode()) % 16_384]
            bucket[0] += int.from_bytes(hashlib.blake2b(message, digest_size=16).digest())
            bucket[1] += 1
    packed = b"".join((total % 2**128).to_bytes(16) + rows.to_bytes(8) for total, rows in buckets)
    return hashlib.sha256(b"rekey/table/v1\0" + packed).hexdigest()


def test_an_auditor_computes_the_digest_of_all_tables_by_hand(project: Project, begun: Commands) -> None:
    with_key(project.folder)
    bundle = project.folder / "bundle"
    begun("evidence", "export", str(bundle), SCRIPT)
    [entry] = json.loads((bundle / "data/reconciliation.json").read_bytes())[-1]["tables"]
    assert entry["table"] == "+".join(TABLES)
    assert entry["actual_digest"] == entry["expected_digest"] == by_hand(project)
    write(project, "Shipments2024", {**content_of(project.rows("Shipments2024")[0]), "Weight": "7"})
    assert by_hand(project) != entry["actual_digest"]


@pytest.mark.parametrize("table", TABLES)
def test_rows_of_others_in_any_of_the_tables_stop_it(project: Project, rekey: Commands, table: str) -> None:
    others = {"PartitionKey": "p", "RowKey": "r"}
    asyncio.run(project.fill(table, [others]))
    [problem] = [
        each
        for each in rekey("plan", "--json", code=1).json["migrations"][0]["problems"]
        if each["code"] == "target-holds-rows"
    ]
    assert table in problem["message"]
    assert table in rekey("apply", SCRIPT, "--skip-row-check", code=None).err
    assert [content_of(row) for row in project.rows(table)] == [others]


@pytest.mark.parametrize("table", TABLES)
def test_prepare_looks_for_rows_of_others_in_each_table(
    project: Project, begun: Commands, table: str
) -> None:
    write(project, table, {"PartitionKey": "", "RowKey": "first of all"})
    with project.session() as session:
        [reason] = session.do(prepare.gate(session.resume(SCRIPT)))
    assert f"table {table} holds rows" in reason


def test_people_read_no_name_of_the_joint_table(begun: Commands) -> None:
    begun("apply", SCRIPT, "--to", "cutover", "--writers-stopped")
    refused = begun("verify", SCRIPT, code=3).err
    assert "writes to Shipments2023, Shipments2024 and 2 more tables" in " ".join(refused.split())
    refused_by_client = refusal(NEW_VIEW_CLOSED, joint_name(TABLES))
    assert refused_by_client.what.startswith("Shipments2023, Shipments2024 and 2 more tables cannot be used")


@pytest.mark.parametrize("table", TABLES)
def test_cutover_and_complete_ask_that_each_table_exists(
    project: Project, begun: Commands, table: str
) -> None:
    lose(project, table)
    said = begun("apply", SCRIPT, "--to", "cutover", "--writers-stopped", code=None)
    assert f"{table} does not exist" in " ".join(said.all.split())
    assert table in " ".join(begun("status", code=None).all.split())


def test_a_row_that_nothing_gives_is_named_removed_and_restored(project: Project, begun: Commands) -> None:
    text = (project.folder / "rekey.toml").read_text("utf-8")
    (project.folder / "rekey.toml").write_text(text.replace('retention = "0s"', 'retention = "3d"'), "utf-8")
    stray: Row = {"PartitionKey": "2024-01", "RowKey": "c1_9", "Customer": "c1", "Number": "9"}
    write(project, "Shipments2024", stray)
    changed = {**content_of(project.rows("ShipmentsOpen")[0]), "Weight": 9}
    write(project, "ShipmentsOpen", changed)
    report = begun("verify", SCRIPT, "--show-keys", *WHY, "--json", code=1).json
    named = {(each["table"], each["partition_key"], each["row_key"]) for each in report["keys"]}
    assert ("Shipments2024", "2024-01", "c1_9") in named
    assert ("ShipmentsOpen", changed["PartitionKey"], changed["RowKey"]) in named
    assert {table for table, *_ in named} <= {"Shipments", *TABLES}
    assert {each["table"] for each in report["divergences"]} == {"Shipments2024", "ShipmentsOpen"}
    report = begun("verify", SCRIPT, "--repair", "--json", code=1).json
    compare(project)
    [row_id] = [each["row"] for each in report["repair"]["repairs"] if each["kind"] == "extra"]
    assert begun("restore-row", row_id, *WHY, "--json").json["table"] == "Shipments2024"
    assert stray in map(content_of, project.rows("Shipments2024"))


def test_a_look_up_names_table_and_key(project: Project, begun: Commands) -> None:
    for row in (shipment("c1", 1, "2023-05-01"), shipment("c0", 0)):
        table, target = independently(row)
        expected = {"table": table, "partition_key": target["PartitionKey"], "row_key": target["RowKey"]}
        pointer = f"{table}:{target['PartitionKey']}", target["RowKey"]
        for asked in (("--old", *key_of(row)), ("--new", *key_of(target)), ("--new", *pointer)):
            [answer] = begun("lookup", SCRIPT, *asked, *WHY, "--json").json["rows"]
            assert answer["new"] == [expected]
    for partition in ("Shipments2023:c0", "Shipments:c0", "ShipmentsOpen:ShipmentsOpen:c0"):
        begun("lookup", SCRIPT, "--new", partition, "0000", *WHY, code=1)


@pytest.fixture
def alike(project: Project, rekey: Commands) -> tuple[EntityKey, Row, Row]:
    """A key of rows of two tables, and the source rows of these; the migration is complete."""
    here = shipment("2024-02", 0)
    there = shipment("c9", 9, "2024-02-01")
    there["RowKey"] = "x"
    here["RowKey"] = "c9_x"
    for row in (here, there):
        write(project, "Shipments", row)
    rekey("apply", SCRIPT, "--to", "cutover", "--writers-stopped")
    rekey(*COMPLETE)
    return EntityKey("2024-02", "c9_x"), here, there


def test_a_look_up_by_new_key_names_the_rows_of_all_tables(
    rekey: Commands, alike: tuple[EntityKey, Row, Row]
) -> None:
    key, *rows = alike
    answers = rekey("lookup", SCRIPT, "--new", *key, *WHY, "--json").json["rows"]
    assert {answer["old"]["partition_key"] for answer in answers} == {row["PartitionKey"] for row in rows}
    assert {answer["new"][0]["table"] for answer in answers} == {"ShipmentsOpen", "Shipments2024"}


def test_a_new_key_of_rows_in_several_tables_erases_none(
    project: Project, rekey: Commands, alike: tuple[EntityKey, Row, Row]
) -> None:
    """It may be another person's: the mapping does not know which table is meant."""
    key, here, there = alike
    erase = ("erase", SCRIPT, "--new", *key, *WHY, "--with-targets")
    named = re.findall(r"\b[0-9a-z]{12}\b", rekey(*erase, code=3).err)
    answers = [rekey("lookup", SCRIPT, "--id", row_id, *WHY, "--json").json["rows"][0] for row_id in named]
    assert {answer["old"]["row_key"] for answer in answers} == {here["RowKey"], there["RowKey"]}
    pointer = f"ShipmentsOpen:{key.partition}", key.row
    rekey("erase", SCRIPT, "--new", *pointer, *WHY, "--with-targets")
    assert key not in map(key_of, project.rows("ShipmentsOpen"))
    assert "of different source rows" in rekey(*erase, code=3).err
    assert key in map(key_of, project.rows("Shipments2024"))
    rekey("erase", SCRIPT, "--old", *key_of(there), *WHY, "--with-targets")
    assert key not in map(key_of, project.rows("Shipments2024"))


def test_an_erasure_finds_its_rows_in_each_table(project: Project, begun: Commands) -> None:
    write(project, "Shipments", shipment("c0", 0, "2025-01-31"))
    begun("apply", SCRIPT)
    begun("apply", SCRIPT, "--to", "cutover", "--writers-stopped")
    begun(*COMPLETE)
    count = sum(len(project.rows(name)) for name in TABLES)
    for row in (shipment("c0", 0, "2025-01-31"), shipment("c4", 4)):
        table, target = independently(row)
        said = begun("erase", SCRIPT, "--old", *key_of(row), *WHY, "--with-targets", "--json").json
        assert said["targets"] == {table: 1}
        assert key_of(target) not in map(key_of, project.rows(table))
    assert sum(len(project.rows(name)) for name in TABLES) == count - 2


def test_an_import_leaves_out_what_was_erased_from_each_table(project: Project, begun: Commands) -> None:
    begun("apply", SCRIPT, "--to", "cutover", "--writers-stopped")
    begun(*COMPLETE)
    for row in (shipment("c0", 0), shipment("c1", 1, "2023-05-01")):
        table, _ = independently(row)
        folder = str(project.folder / f"{table}.export")
        begun("export", table, folder)
        begun("erase", SCRIPT, "--old", *key_of(row), *WHY, "--with-targets")
        left = project.rows(table)
        assert begun("import", folder, table, "--json").json["erased"] == 1
        assert project.rows(table) == left


def test_an_erasure_passes_over_a_table_that_is_gone(project: Project, begun: Commands) -> None:
    begun("apply", SCRIPT, "--to", "cutover", "--writers-stopped")
    begun(*COMPLETE)
    lose(project, "Shipments2023")
    row = shipment("c0", 0)
    said = begun("erase", SCRIPT, "--old", *key_of(row), *WHY, "--with-targets", "--json").json
    assert said["targets"] == {"ShipmentsOpen": 1}
    gone = shipment("c1", 1, "2023-05-01")
    begun("erase", SCRIPT, "--old", *key_of(gone), *WHY, "--with-targets")


def test_dropping_targets_drops_all_tables(project: Project, begun: Commands) -> None:
    begun(*DROP)
    assert not set(TABLES) & set(asyncio.run(project.tables.table_names()))


@pytest.mark.parametrize("table", TABLES)
def test_rows_that_only_one_of_the_tables_has_are_not_dropped(
    project: Project, begun: Commands, table: str
) -> None:
    """Also where a drop was cut off, or somebody deleted one of the tables: the others are looked at."""
    day = {"Shipments2023": "2023-01-01", "Shipments2024": "2024-01-01", "Shipments2025": "2025-01-01"}
    only = independently(shipment("c7", 700, day.get(table, "")))
    assert only[0] == table
    write(project, *only)
    lose(project, next(name for name in TABLES if name != table))
    assert "1 row of" in " ".join(begun(*DROP, code=3).err.split())
    assert only[1] in map(content_of, project.rows(table))


def test_a_table_that_goes_during_the_proof_does_not_end_it(
    project: Project, begun: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = independently(shipment("c7", 700))
    write(project, *only)
    names = iter(["Shipments2023"])

    async def existing(service: TableService, table: Table) -> Table | None:
        there = await joint.existing(service, table)
        for name in names:
            await service.delete_table(name)
        return there

    monkeypatch.setattr(remaining, "existing", existing)
    assert "1 row of" in " ".join(begun(*DROP, code=3).err.split())
    assert only[1] in map(content_of, project.rows("ShipmentsOpen"))


def test_with_a_table_gone_and_rows_deleted_the_next_step_leads_on(project: Project, begun: Commands) -> None:
    """`apply` cannot take the deleted rows out while a table is missing, and without that none is dropped."""
    lose(project, "Shipments2023")
    project.clock.advance(120)
    gone = [shipment("c0", 0), shipment("c2", 2, "2024-12-31")]
    for row in gone:
        delete(project, "Shipments", row)
    begun("apply", SCRIPT, code=4)
    refused = " ".join(begun(*DROP, code=3).err.split())
    assert "2 rows of" in refused and "and Shipments2023 does not exist" in refused
    keep = f"rollback {SCRIPT} --to source --keep-targets"
    assert f"`rekey {keep}`, then `rekey apply {SCRIPT}`" in refused
    begun(*keep.split())
    begun("apply", SCRIPT)
    assert sum(compare(project).values()) == 38
    begun(*DROP)


def test_rows_of_the_tables_that_are_left_are_dropped_once_proved(project: Project, begun: Commands) -> None:
    lose(project, "Shipments2023")
    begun(*DROP)
    assert not set(TABLES) & set(asyncio.run(project.tables.table_names()))


def test_an_empty_source_does_not_empty_the_tables_that_are_left(project: Project, begun: Commands) -> None:
    lose(project, "Shipments2023")
    for row in project.rows("Shipments"):
        delete(project, "Shipments", row)
    begun("verify", SCRIPT, "--repair", code=None)
    begun("apply", SCRIPT, code=None)
    assert len(project.rows("ShipmentsOpen")) == 20
    assert EntityKey("c0", "0000") in map(key_of, project.rows("ShipmentsOpen"))


# --- one of the tables is made again ------------------------------------------------------------------------


def make_again(project: Project, table: str) -> None:
    lose(project, table)
    project.clock.advance(120)
    asyncio.run(project.tables.create_table(table))


def moved(row: Row) -> Row:
    """The row as one of another kind."""
    customer, number = row["PartitionKey"], int(row["RowKey"])
    return shipment(customer, number, "" if "ArrivedAt" in row else "2025-03-01")


def test_a_table_that_was_made_again_does_not_empty_its_part_of_the_source(
    project: Project, begun: Commands
) -> None:
    """The other tables hold rows, so the joint table is not empty."""
    begun("apply", SCRIPT, "--to", "cutover", "--writers-stopped")
    before = [content_of(row) for row in project.rows("Shipments")]
    make_again(project, "ShipmentsOpen")
    refused = begun("rollback", SCRIPT, "--writers-stopped", code=3).err
    assert "ShipmentsOpen holds 0 rows, and 20 rows of Shipments are not in it" in " ".join(refused.split())
    assert [content_of(row) for row in project.rows("Shipments")] == before
    begun("rollback", SCRIPT, "--writers-stopped", *WHY)
    assert sum("ArrivedAt" not in row for row in project.rows("Shipments")) == 0


def test_rows_that_moved_between_tables_are_not_taken_for_deleted_ones(
    project: Project, begun: Commands
) -> None:
    """Before cutover and after it: nothing is under their former keys."""
    for _ in range(2):
        for row in project.rows("Shipments"):
            write(project, "Shipments", moved(content_of(row)))
        begun("apply", SCRIPT)
    begun("apply", SCRIPT, "--to", "cutover", "--writers-stopped")
    for row in project.rows("Shipments"):
        delete(project, *independently(content_of(row)))
        write(project, *independently(moved(content_of(row))))
    begun("rollback", SCRIPT, "--writers-stopped")
    assert sum(compare(project).values()) == 40


def test_the_source_is_not_retired_for_a_table_that_was_made_again(project: Project, begun: Commands) -> None:
    """There are as many rows as before: the other tables hold more."""
    begun("apply", SCRIPT, "--to", "cutover", "--writers-stopped")
    begun(*COMPLETE)
    with_key(project.folder)
    bundle = str(project.folder / "bundle")
    begun("evidence", "export", bundle, SCRIPT)
    begun("evidence", "verify", bundle)
    make_again(project, "ShipmentsOpen")
    for number in range(900, 930):
        write(project, *independently(shipment("c1", number, "2024-02-01")))
    retire = ("retire", SCRIPT, "--table", "Shipments", "--no-backup", "a test")
    assert "ShipmentsOpen is empty, and Shipments holds rows" in " ".join(begun(*retire, code=3).err.split())
    assert len(project.rows("Shipments")) == 40
    begun(*retire, *WHY)


@pytest.fixture
def company(tmp_path: Path) -> Iterator[Company]:
    """A migration of capture "dual-write" before the gate of cutover, with clients of both views."""
    with company_at(tmp_path, EXAMPLE.read_text("utf-8"), stock(), Phase.BACKFILL) as company:
        company.client(View.OLD)
        company.client(View.NEW)
        company.apply()
        yield company


def made_again_beside(company: Company, table: str) -> None:
    async def losing() -> None:
        await company.project.tables.delete_table(table)
        company.project.clock.advance(120)
        await company.project.tables.create_table(table)

    company.do(losing())


def test_cutover_refuses_a_table_that_was_made_again(company: Company) -> None:
    """After a clean verification: nothing is compared in the freeze of capture "dual-write"."""
    made_again_beside(company, "ShipmentsOpen")
    with pytest.raises(GateClosed, match="ShipmentsOpen is empty"):
        company.apply(Phase.CUTOVER)


def test_after_cutover_a_table_that_was_made_again_closes_complete_and_repair(company: Company) -> None:
    company.apply(Phase.CUTOVER)
    company.do(company.clients[0].close())  # that of the old view
    made_again_beside(company, "ShipmentsOpen")
    with pytest.raises(GateClosed, match="ShipmentsOpen is empty"):
        company.apply(Phase.COMPLETE)
    with pytest.raises(Refused, match="ShipmentsOpen is empty"):
        company.verify(Mode.FULL, repair=True)
    assert len(company.project.rows("Shipments")) == 40


NEXT = """
from rekey import Migration, Target, keys, props

migration = Migration(
    source="ShipmentsOpen",
    target=Target(
        "OpenV2", partition_key=keys.keep(), row_key=keys.keep(), properties=[props.set("Since", 2026)]
    ),
    capture="delta",
)
"""


def test_the_source_is_retired_after_one_of_the_tables_was(project: Project, begun: Commands) -> None:
    """A later migration moved that table's rows: it is gone, and not one that was emptied."""
    begun("apply", SCRIPT, "--to", "cutover", "--writers-stopped")
    begun(*COMPLETE)
    later = project.script(NEXT, "0011_open.py")
    begun("apply", later, "--to", "complete", "--writers-stopped", "--yes", later)
    with_key(project.folder)
    for script_id, table in ((later, "ShipmentsOpen"), (SCRIPT, "Shipments")):
        project.clock.advance(60)
        bundle = str(project.folder / f"bundle-{table}")
        begun("evidence", "export", bundle, script_id)
        begun("evidence", "verify", bundle)
        begun("retire", script_id, "--table", table, "--no-backup", "a test")
    assert not {"Shipments", "ShipmentsOpen"} & set(asyncio.run(project.tables.table_names()))
    assert len(project.rows("OpenV2")) == 20
