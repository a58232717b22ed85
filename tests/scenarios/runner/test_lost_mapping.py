"""Rows of the mapping that somebody deletes. A verification reads source and targets only, so the gate of
cutover looks a sample of rows up: without the mapping clients would find no row by its old key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rekey.core.limits import GATE_SAMPLE
from rekey.mapping.rows import MAPPING_TABLE
from rekey.mapping.sealing import ROOT, key_partition
from rekey.model import EntityKey, Row, key_of
from tests.asserts.command_line import Commands
from tests.worlds.dropping import ID, STOCK
from tests.worlds.dropping import SCRIPT as DROPPING
from tests.worlds.projects import USERS_SCRIPT
from tests.worlds.scripts import under_writes
from tests.worlds.small import ticket, user

SCRIPT, ROWS = "0001_users", 30
CUTOVER = ("apply", "--to", "cutover", "--writers-stopped")
CAPTURES = {"delta": USERS_SCRIPT, "dual-write": under_writes(USERS_SCRIPT)}


def mapping_rows(rekey: Commands, direction: str, script: str = SCRIPT) -> list[Row]:
    """Return the rows that map from old keys (`f`) or from new ones (`r`)."""
    rows = rekey.project.restricted.dump(MAPPING_TABLE)
    return [row for row in rows if row["PartitionKey"].startswith(f"{script}.{direction}.")]


def lose(rekey: Commands, rows: Sequence[Row]) -> None:
    table = rekey.project.restricted.table(MAPPING_TABLE)
    does(*(table.delete(key_of(row)) for row in rows))


def does(*work: Any) -> None:
    for each in work:
        asyncio.run(each)


def begun(rekey: Commands, script: str) -> None:
    rekey.project.script(script)
    does(rekey.project.fill("Users", [user(f"user{number:02}@example.com") for number in range(ROWS)]))
    rekey("apply")


@pytest.mark.parametrize("direction", ["f", "r"], ids=["of old keys", "of new keys"])
@pytest.mark.parametrize("capture", CAPTURES)
def test_cutover_is_refused_without_the_mapping_and_the_step_that_it_names_makes_it_again(
    rekey: Commands, capture: str, direction: str
) -> None:
    begun(rekey, CAPTURES[capture])
    lost = mapping_rows(rekey, direction)
    assert len(lost) == ROWS
    lose(rekey, lost[::2])
    rekey("verify")  # every row is in the target
    refused = " ".join(rekey(*CUTOVER, code=3).err.split())
    assert f"15 of {ROWS} rows of Users are not in the mapping" in refused
    again = f"rekey rollback {SCRIPT} --to source --drop-targets"
    assert f"`{again}`, then `rekey apply {SCRIPT}`" in refused
    rekey(*again.split()[1:])
    rekey.project.clock.advance(60)  # a deleted table's name is taken for so long
    rekey("apply", SCRIPT)
    assert len(mapping_rows(rekey, direction)) == ROWS
    rekey("verify")
    rekey(*CUTOVER)


@pytest.mark.parametrize("capture", CAPTURES)
def test_rows_are_missing_where_the_whole_mapping_table_is(rekey: Commands, capture: str) -> None:
    plain = 'mapping="plain",\n    waive={"personal-data": "made-up addresses"},\n    capture='
    begun(rekey, CAPTURES[capture].replace("capture=", plain))
    does(rekey.project.restricted.delete_table(MAPPING_TABLE))
    for seconds in (0, 60):  # it is being deleted, then it is gone
        rekey.project.clock.advance(seconds)
        refused = " ".join(rekey(*CUTOVER, code=3).err.split())
        assert f"{ROWS} of {ROWS} rows of Users are not in the mapping" in refused


@pytest.mark.parametrize("capture", ["delta", "dual-write"])
def test_rows_that_are_not_migrated_do_not_hide_that_others_are_missing(
    rekey: Commands, capture: str
) -> None:
    """More of them than are looked up come first in the source."""
    rekey.project.script(DROPPING if capture == "delta" else under_writes(DROPPING), f"{ID}.py")
    drafts = [ticket(f"0{number:04}", "draft") for number in range(GATE_SAMPLE)]
    does(rekey.project.fill("Tickets", drafts + STOCK))
    rekey("apply")
    lose(rekey, mapping_rows(rekey, "f", ID))
    filed = sum(row["Status"] != "draft" for row in STOCK)
    refused = " ".join(rekey(*CUTOVER, code=3).err.split())
    assert f"{filed} of {filed} rows of Tickets are not in the mapping" in refused


def test_rows_that_writers_just_added_do_not_hide_that_others_are_missing(rekey: Commands) -> None:
    """As with keys by time, the newest first."""
    begun(rekey, CAPTURES["delta"])
    rekey.project.clock.advance(60)
    users = rekey.project.tables.table("Users")
    does(*(users.insert(user(f"a{number:04}@example.com")) for number in range(GATE_SAMPLE)))
    lose(rekey, mapping_rows(rekey, "f"))
    refused = " ".join(rekey(*CUTOVER, code=3).err.split())
    assert f"{ROWS} of {ROWS} rows of Users are not in the mapping" in refused


def test_rows_that_writers_added_since_the_last_pass_need_not_be_in_the_mapping(rekey: Commands) -> None:
    begun(rekey, CAPTURES["delta"])
    rekey.project.clock.advance(60)
    does(rekey.project.tables.table("Users").insert(user("another@example.com", "a")))
    rekey(*CUTOVER)
    assert len(mapping_rows(rekey, "f")) == ROWS + 1


def test_a_row_whose_write_is_announced_need_not_be_in_the_mapping_yet(rekey: Commands) -> None:
    """Authority moves once the write is settled, which brings its mapping rows."""
    begun(rekey, CAPTURES["dual-write"])
    row, mapping = rekey.project.rows("Users")[0], asyncio.run(rekey.project.mapping(SCRIPT))
    forward = mapping.rows.forward_key(key_of(row))

    async def announce() -> None:
        await (await rekey.project.journal(SCRIPT)).begin("0dead", 2, "source", [key_of(row)])
        await mapping.table.delete(forward)

    asyncio.run(announce())
    rekey(*CUTOVER)
    assert asyncio.run(mapping.table.get(forward)) is not None


@pytest.mark.parametrize("lost", ["the table", "the root key"])
@pytest.mark.parametrize("capture", CAPTURES)
def test_without_the_root_key_status_names_the_rollback_that_begins_anew(
    rekey: Commands, capture: str, lost: str
) -> None:
    """Nothing that it sealed can be opened again, and the source holds every row."""
    begun(rekey, CAPTURES[capture])
    rows = rekey.project.rows("Users")
    if lost == "the table":
        does(rekey.project.restricted.delete_table(MAPPING_TABLE))
        rekey.project.clock.advance(60)
    else:
        table = rekey.project.restricted.table(MAPPING_TABLE)
        does(table.delete(EntityKey(key_partition(SCRIPT), ROOT)))
    refused = rekey("apply", code=1).err
    assert "the root key of the migration is gone" in refused
    [found] = rekey("status", "--json").json["migrations"]
    assert not found["safe"] and "Users is the authority and holds every row" in found["sentence"]
    again = found["next"]["command"].split()[1:]
    assert again == ["rollback", SCRIPT, "--to", "source", "--drop-targets"]
    assert "the rollback goes on without it" in " ".join(rekey(*again).all.split())
    rekey.project.clock.advance(60)
    rekey("apply", SCRIPT)
    rekey("verify")
    rekey(*CUTOVER)
    assert rekey.project.rows("Users") == rows and len(mapping_rows(rekey, "f")) == ROWS


@pytest.mark.parametrize("options", [("--keep-targets",), ("--drop-targets",)])
def test_without_the_root_key_no_rollback_that_reads_the_mapping_goes_on(
    rekey: Commands, options: tuple[str, ...]
) -> None:
    begun(rekey, CAPTURES["delta"])
    if options == ("--drop-targets",):
        rekey(*CUTOVER)
        options += ("--writers-stopped",)
    table = rekey.project.restricted.table(MAPPING_TABLE)
    does(table.delete(EntityKey(key_partition(SCRIPT), ROOT)))
    tables = rekey.project.rows("Users"), rekey.project.rows("UsersV2")
    refused = rekey("rollback", SCRIPT, "--to", "source", *options, code=1).err
    assert "the root key of the migration is gone" in refused
    assert (rekey.project.rows("Users"), rekey.project.rows("UsersV2")) == tables
    [found] = rekey("status", "--json").json["migrations"]
    assert not found["safe"] and "the root key of the migration is gone" in found["sentence"]
