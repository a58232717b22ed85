"""References in whose place only the source holds the old key (`keep_old=False`), while users are created
and deleted and clients are killed: the source always follows. With the rule switched off the search finds
rows that nobody can write back.

Soak: two clients, with more preemptions.
Reason, and what `make test` covers: minutes; one client beside the users' actor with a crash, two clients
without preemption, and each way in which the rule switched off loses a row.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from rekey.client.target_authority import TargetAuthority
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from tests.simulation.dual_small import Works
from tests.simulation.explore import Budget
from tests.simulation.referring import referring
from tests.simulation.witness import DELETE, INSERT, MERGE, REPLACE, UPSERT, Do
from tests.worlds.referring import ANN, GHOST, ZED, order

KILLED, IN_TURN, MIXED = Budget(crashes=1, preemptions=1), Budget(preemptions=0), Budget(preemptions=1)
AT_ANY_CALL = Budget(crashes=1, preemptions=0)
NEW, OLD = View.NEW, View.OLD


def works(view: View, verb: str, version: int, mail: str | None) -> Works:
    return Works(view, ((Do(verb, order(version, mail)),),))


# Rows at the beginning, what each client does, and what becomes of users meanwhile.
CASES: dict[str, tuple[list[Any], list[Works], dict[str, str]]] = {
    "kept | changed": ([order(1, GHOST)], [works(NEW, UPSERT, 2, GHOST), works(NEW, REPLACE, 3, ANN)], {}),
    "kept | deleted": ([order(1, GHOST)], [works(NEW, UPSERT, 2, GHOST), works(NEW, DELETE, 3, GHOST)], {}),
    "old kept | changed": (
        [order(1, GHOST)],
        [works(OLD, REPLACE, 2, GHOST), works(NEW, UPSERT, 3, ANN)],
        {},
    ),
    "old to nobody | merged": (
        [order(1, ANN)],
        [works(OLD, REPLACE, 2, GHOST), works(NEW, MERGE, 3, ANN)],
        {},
    ),
    "to a user that is deleted | deleted": (
        [order(1, GHOST)],
        [works(NEW, REPLACE, 2, ANN), works(NEW, DELETE, 3, GHOST)],
        {"deletes": ANN},
    ),
}
ALONE: dict[str, tuple[list[Any], list[Works], dict[str, str]]] = {
    "new, of a user that is created": ([], [works(NEW, INSERT, 2, ZED)], {"creates": ZED}),
    "old, of a user that is created": ([], [works(OLD, INSERT, 2, ZED)], {"creates": ZED}),
    "old, of nobody": ([], [works(OLD, INSERT, 2, GHOST)], {}),
}


@pytest.mark.parametrize("name", ALONE)
def test_the_source_follows_one_client_that_is_killed(name: str) -> None:
    before, clients, more = ALONE[name]
    searched = referring(AT_ANY_CALL, before, *clients, **more)
    assert not searched.loss, searched
    assert searched.schedules > 1


@pytest.mark.parametrize("name", ["kept | changed", "kept | deleted"])
def test_the_source_follows_two_clients(name: str) -> None:
    before, clients, more = CASES[name]
    searched = referring(IN_TURN, before, *clients, **more)
    assert not searched.loss, searched
    assert searched.states > 100


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("budget", [KILLED, MIXED], ids=["killed", "mixed"])
def test_the_source_follows_every_reference(name: str, budget: Budget) -> None:
    before, clients, more = CASES[name]
    assert not referring(budget, before, *clients, **more).loss


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_what_was_looked_up_is_written_to_the_source_before_cutover() -> None:
    clients = works(NEW, REPLACE, 2, ANN), works(OLD, REPLACE, 3, GHOST)
    assert not referring(KILLED, [order(1, GHOST)], *clients, phase=ControlPhase.DUAL_WRITE).loss


def unrequired() -> Any:
    async def nothing(*_: object) -> bool:
        return False

    return mock.patch.object(TargetAuthority, "require_reference", nothing)


@pytest.mark.parametrize("name", ["kept | changed", "kept | deleted", "old, of nobody"])
def test_a_reference_is_looked_up_unless_it_rests_on_the_row_that_holds_it(name: str) -> None:
    before, clients, more = (CASES | ALONE)[name]
    with unrequired():
        searched = referring(KILLED, before, *clients, **more)
    assert searched.loss == "1 intents are left", searched
