"""Rows of several kinds: what they become through whole lives, in both views, and back again; rows that
change their kind, and rows that are of none."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

import pytest

from rekey import Migration
from rekey.core import crockford
from rekey.errors import RowRefused
from rekey.model import Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from tests.asserts.command_line import CommandsOn
from tests.fakes.memory import MemoryTableService
from tests.worlds.dual_write import DualWorld, delete, insert, memory_world, merge, replace
from tests.worlds.projects import Project, project_of
from tests.worlds.small import SECRET, TICKETS, ticket

ROOT = Path(__file__).parents[3]
IDENTITY = (ROOT / "migrations/0005_identity_users.py").read_text().replace('"dual-write"', '"delta"')


def places(memory: MemoryTableService, table: str) -> list[tuple[str, str]]:
    return [tuple(key_of(row)) for row in memory.dump(table)]


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_a_row_that_changes_its_kind_moves_with_its_index_rows(
    memory: MemoryTableService, phase: ControlPhase
) -> None:
    world = await memory_world(TICKETS, memory).prepare([ticket("1"), ticket("2", "closed")])
    world.permits.move(phase)
    assert sorted(places(memory, "TicketsV2")) == [("eu", "closed:2"), ("eu", "open:1")]
    assert places(memory, "TicketsByOwner") == [("ann", "1")]
    old = world.writer(View.OLD)
    await old.write([replace(ticket("1", "closed"))])
    await old.write([merge({"PartitionKey": "eu", "RowKey": "2", "Status": "open"})])
    await world.assert_quiet()
    assert sorted(places(memory, "TicketsV2")) == [("eu", "closed:1"), ("eu", "open:2")]
    assert places(memory, "TicketsByOwner") == [("ann", "2")]


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_the_new_view_writes_rows_of_each_kind(memory: MemoryTableService, phase: ControlPhase) -> None:
    world = await memory_world(TICKETS, memory).prepare([ticket("1")])
    world.permits.move(phase)
    new = world.writer(View.NEW)
    await new.write([insert(main_row(world, ticket("3", "closed")))])
    await new.write([replace(main_row(world, ticket("1", Owner="bob")))])
    await world.assert_quiet()
    assert sorted((row["RowKey"], row["Status"], row["Owner"]) for row in memory.dump("Tickets")) == [
        ("1", "open", "bob"),
        ("3", "closed", "ann"),
    ]
    assert places(memory, "TicketsByOwner") == [("bob", "1")]
    await new.write([delete(key_of(main_row(world, ticket("1"))))])
    await world.assert_quiet()
    assert places(memory, "Tickets") == [("eu", "3")]


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({**ticket("other:1"), "Number": "1"}, "no-kind"),
        ({**ticket("open:1", "closed"), "Number": "1"}, "not-reversible"),
    ],
    ids=["a row of no kind", "a row that says another kind than its key"],
)
async def test_a_row_that_no_source_row_gives_is_refused_in_the_new_view(
    memory: MemoryTableService, phase: ControlPhase, row: Row, code: str
) -> None:
    world = await memory_world(TICKETS, memory).prepare([ticket("1")])
    world.permits.move(phase)
    with pytest.raises(RowRefused) as refused:
        await world.writer(View.NEW).write([replace(row) if code == "not-reversible" else insert(row)])
    assert refused.value.code == code
    await world.assert_quiet()


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_a_row_that_no_kind_takes_is_refused_in_the_old_view(
    memory: MemoryTableService, phase: ControlPhase
) -> None:
    first, *_ = TICKETS.kinds
    alone = Migration(source="Tickets", kinds=[first], capture="dual-write")
    world = await memory_world(alone, memory).prepare([ticket("1", "closed")])
    world.permits.move(phase)
    with pytest.raises(RowRefused) as refused:
        await world.writer(View.OLD).write([insert(ticket("2"))])
    assert refused.value.code == "no-kind"
    await world.assert_quiet()
    assert places(memory, "Tickets") == [("eu", "1")]


def main_row(world: DualWorld, source_row: Row) -> Row:
    return world.mapper.map(source_row)[0].row


# --- whole lives, against a second implementation ----------------------------------------------------------


def opaque(domain: str, text: str) -> str:
    digest = hmac.digest(SECRET, b"rekey/v1\0" + domain.encode() + b"\0" + text.encode(), hashlib.sha256)
    return crockford.encode(digest[:20])


def independently(row: Row) -> Row:
    """What a row of the identity table becomes, without the mapper."""
    old_partition, old_row = str(row["PartitionKey"]), str(row["RowKey"])
    new = {name: value for name, value in row.items() if name not in ("PartitionKey", "RowKey", "Timestamp")}
    new = {name: value for name, value in new.items() if not name.startswith("odata.")}
    if old_partition.startswith("E_"):
        new |= {
            "PartitionKey": "E_" + opaque("email", old_partition),
            "RowKey": "U_" + opaque("user", old_row),
        }
        return new | {"Email": old_partition, "UserName": old_row}
    new |= {"PartitionKey": opaque("user", old_partition), "UserName": old_partition}
    if old_row.startswith("U_"):
        return new | {"RowKey": "U_" + opaque("user", old_row), "OldRowKey": old_row}
    if old_row.startswith("L_"):
        return new | {"RowKey": "L_" + opaque("login", old_row), "OldRowKey": old_row}
    return new | {"RowKey": old_row}


def identity(number: int) -> Sequence[Row]:
    user = f"U_user{number}@example.com"
    return [
        {"PartitionKey": user, "RowKey": user, "Name": f"User {number}"},
        {"PartitionKey": user, "RowKey": "C_admin", "Value": number},
        {"PartitionKey": user, "RowKey": f"L_google:{number}"},
        {"PartitionKey": user, "RowKey": "R_reader"},
        {"PartitionKey": f"E_user{number}@example.com", "RowKey": user},
    ]


def identity_project(folder: Path, more: Sequence[Row] = (), script: str = IDENTITY) -> Project:
    stock = [row for number in range(12) for row in identity(number)]
    return project_of(folder, script, [*stock, *more], name="0001_identity.py")


def test_a_plan_counts_the_rows_of_each_kind_and_names_those_of_none(
    commands_on: CommandsOn, tmp_path: Path
) -> None:
    project = identity_project(tmp_path, [{"PartitionKey": "settings", "RowKey": "theme@example.com"}])
    rekey = commands_on(project)
    planned = rekey("plan", "--json", "--exact", code=1)
    [script] = planned.json["migrations"]
    assert {kind["name"]: (kind["rows"], kind["rows_read"]) for kind in script["kinds"]} == dict.fromkeys(
        ("email", "user", "claim", "login", "role"), (12, 12)
    )
    [refused] = script["refused"]
    assert (refused["code"], refused["rows"], len(refused["row_ids"])) == ("no-kind", 1, 1)
    text = rekey("plan", "--exact", code=1).out
    assert "email: 12 rows, PartitionKey begins with E_" in text
    assert "no kind takes the row" in text
    assert "theme@example.com" not in text + planned.out


def test_a_plan_names_a_misspelled_property_of_a_condition(commands_on: CommandsOn, tmp_path: Path) -> None:
    script = IDENTITY.replace('when=rows.row_key(prefix="L_")', 'when=rows.prop("Provider")')
    project = identity_project(tmp_path, script=script)
    text = commands_on(project)("plan", "--exact", code=1).out
    assert "Provider" in text
    assert "kinds[login].when" in text
