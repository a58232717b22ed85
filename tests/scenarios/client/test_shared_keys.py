"""Target keys that two old keys can have: one row has each, and whoever comes second is told so in time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekey.errors import Collision, RekeyError
from rekey.model import EntityKey, Row
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View
from rekey.tables.base import Operation, Verb
from tests.worlds.company import Client, Company, company
from tests.worlds.projects import FOLDED_SCRIPT

SEATS = '''\
"""Guests by seat."""
from rekey import Index, Migration, Target, keys, props

migration = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.literal("U:") + keys.prop("RowKey"),
        properties=[props.copy("RowKey", to="OldRowKey")],
    ),
    indexes=[
        Index(
            "UsersBySeat",
            partition_key=keys.prop("PartitionKey"),
            row_key=keys.literal("S:") + keys.prop("Seat"),
        ),
    ],
    capture="delta",
    waive={"personal-data": "made-up"},
)
'''
"""Two guests want one seat."""


def row(key: str, **more: object) -> Row:
    return {"PartitionKey": "p", "RowKey": key, **more}


def upsert(key: str, **more: object) -> Operation:
    return Operation(Verb.INSERT_OR_REPLACE, row(key, **more))


def delete(key: str) -> Operation:
    return Operation(Verb.DELETE, row(key), "*")


@pytest.fixture
def folded(tmp_path: Path) -> Iterator[Company]:
    with company(tmp_path, FOLDED_SCRIPT, [row("Ann", Age=1), row("bob", Age=1)]) as made:
        yield made


@pytest.fixture
def seats(tmp_path: Path) -> Iterator[Company]:
    with company(tmp_path, SEATS, [row("u1", Seat="s1"), row("u2", Seat="s2")]) as made:
        yield made


async def race(*writes: tuple[Client, Operation]) -> list[object]:
    """Begin writes at once; return their answers."""
    return await asyncio.gather(
        *(client.write(operation) for client, operation in writes), return_exceptions=True
    )


def assert_one_won(ours: Company, answers: list[object]) -> None:
    """One write was acknowledged and is everywhere; the others were told that their key is taken."""
    won = [one for one in answers if not isinstance(one, BaseException)]
    assert len(won) == 1, answers
    assert sum(isinstance(one, RekeyError) for one in answers) == len(answers) - 1, answers
    ours.settle()
    assert ours.unsettled == []
    ours.assert_in_step()
    assert not ours.verify().findings


def test_of_two_spellings_created_at_once_in_the_old_view_one_is_refused(folded: Company) -> None:
    first, second = folded.client(), folded.client()
    folded.apply()
    folded.do(first.write(delete("Ann")))
    answers = folded.do(race((first, upsert("ANN", Age=2)), (second, upsert("ann", Age=3))))
    assert any(isinstance(one, Collision) for one in answers)
    assert_one_won(folded, answers)


def test_of_two_spellings_created_at_once_after_cutover_one_is_refused(folded: Company) -> None:
    first, second = folded.client(View.NEW), folded.client(View.NEW)
    folded.apply()
    folded.apply(Phase.CUTOVER)
    folded.do(first.write(delete("ann")))
    answers = folded.do(
        race((first, upsert("ann", OldRowKey="ANN")), (second, upsert("ann", OldRowKey="Ann")))
    )
    assert_one_won(folded, answers)


def test_of_two_views_that_create_two_spellings_at_once_one_is_refused(folded: Company) -> None:
    old, new = folded.client(View.OLD), folded.client(View.NEW)
    folded.apply()
    for phase in (None, Phase.CUTOVER):
        if phase is not None:
            folded.apply(phase)
        for client in (old, new):
            [present] = [one for one in folded.do(rows_of(folded)) if one.lower() == "ann"]
            folded.do(old.write(delete(present)))
            other = new if client is old else old
            operations = {old: upsert("ANN", Age=1), new: upsert("ann", OldRowKey="aNN")}
            assert_one_won(folded, folded.do(race((client, operations[client]), (other, operations[other]))))


async def rows_of(ours: Company) -> list[str]:
    """Return the row keys in the source."""
    return [str(one["RowKey"]) for one in ours.project.tables.dump("Users")]


def test_of_two_guests_who_take_one_seat_at_once_one_is_refused(seats: Company) -> None:
    first, second = seats.client(), seats.client()
    seats.apply()
    answers = seats.do(race((first, upsert("u3", Seat="s9")), (second, upsert("u4", Seat="s9"))))
    assert any(isinstance(one, Collision) for one in answers)
    assert_one_won(seats, answers)


def test_a_seat_that_the_backfill_copied_is_taken(seats: Company) -> None:
    client = seats.client()
    seats.apply()
    with pytest.raises(Collision):
        seats.do(client.write(upsert("u3", Seat="s1")))
    with pytest.raises(Collision):
        seats.do(client.write(upsert("u2", Seat="s1")))
    seats.settle()
    seats.assert_in_step()


def test_a_seat_that_its_guest_left_is_free(seats: Company) -> None:
    client = seats.client()
    seats.apply()
    seats.do(client.write(upsert("u1", Seat="s3")))
    seats.do(client.write(upsert("u2", Seat="s1")))
    seats.do(client.write(upsert("u1", Seat="s2")))
    seats.do(client.write(delete("u2")))
    seats.do(client.write(upsert("u3", Seat="s1")))
    seats.settle()
    seats.assert_in_step()


def test_another_spelling_takes_the_key_as_soon_as_the_former_row_is_deleted(folded: Company) -> None:
    client = folded.client()
    folded.apply()
    for spelling in ("Ann", "ANN", "ann", "Ann"):
        folded.do(client.write(upsert(spelling, Age=2)))
        folded.do(client.write(delete(spelling)))
    folded.do(client.write(upsert("ANN", Age=3)))
    folded.settle()
    folded.assert_in_step()


def test_cutover_reads_the_rows_of_keys_that_passed_on_since_the_verification_again(folded: Company) -> None:
    """A writer that bypasses the clients put the former row back after the last verification."""
    client = folded.client()
    folded.apply()
    assert not folded.verify().findings
    folded.do(client.write(delete("Ann")))
    folded.do(client.write(upsert("ann", Age=2)))
    folded.settle()
    folded.do(folded.project.tables.table("Users").insert(row("Ann", Age=9)))
    with pytest.raises(Collision) as raised:
        folded.apply(Phase.CUTOVER)
    ids = folded.do(safe_ids(folded, "Ann", "ann"))
    assert {raised.value.first_id, raised.value.second_id} == ids
    assert folded.phase is ControlPhase.DUAL_WRITE


async def safe_ids(ours: Company, *row_keys: str) -> set[str]:
    rows = (await ours.project.mapping(ours.script_id)).rows
    return {rows.ids.short(rows.source, EntityKey("p", key)) for key in row_keys}


def test_a_mapping_that_is_dropped_leaves_no_claim_of_an_index_key(seats: Company) -> None:
    client = seats.client()
    seats.apply()
    seats.do(client.write(upsert("u3", Seat="s9")))
    seats.do(client.write(delete("u3")))
    seats.do(client.write(upsert("u4", Seat="s9")))
    seats.settle()
    seats.do(client.close())
    seats.clients.clear()
    seats.live(120)
    seats.rollback(ControlPhase.SOURCE, drop=True)
    left = seats.project.restricted.dump("rekeymap")
    assert [one for one in left if ".k" not in str(one["PartitionKey"])] == []
