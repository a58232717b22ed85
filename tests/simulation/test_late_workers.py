"""A task that is stopped at any of its requests, for any length of time, while its runner gives it up or is
killed, another worker copies the segment, a client or a writer deletes, changes or moves the row, and the
runner sweeps: in the end the targets are what the source says. Without one of the rules that see to that, the
search finds what is lost.

Searched is the program's backfill with an executor, and the program's worker (see `late_small`). Worlds and
bounds here are chosen to take seconds; the soak searches larger ones, each for SOAK_SECONDS.

Soak: preemptions; a row that changes or moves; other faults without a stored mapping; each rule switched off.
Reason, and what `make test` covers: minutes; a row that is deleted, without preemptions.
"""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from rekey.declaration.migration import Migration
from rekey.model import Row
from tests.simulation import late_broken
from tests.simulation.explore import Budget, Searched, search
from tests.simulation.late_small import LateWorld, at_work
from tests.simulation.scheduler import Scheduler
from tests.simulation.small import Do
from tests.soaking import others_in_soak, soak_seconds
from tests.worlds.small import INVERTED, POSTS, USERS, post, user

ANN, ANN_2 = (user("ann@example.com", Age=age) for age in (1, 2))
HELLO, MOVED = (post("hello", month, "a") for month in ("2024-01", "2024-02"))

World = tuple[Migration, list[Row], list[Do]]

WORLDS: dict[str, World] = {
    "delete": (USERS, [ANN], [Do("delete", ANN)]),
    "replace": (USERS, [ANN], [Do("replace", ANN_2)]),
    "delete, inverted": (INVERTED, [ANN], [Do("delete", ANN)]),
    "replace, inverted": (INVERTED, [ANN], [Do("replace", ANN_2)]),
    "move": (POSTS, [HELLO], [Do("replace", MOVED)]),
}
DELETES = pytest.mark.parametrize("name", ["delete", "delete, inverted"])
OF_DELETES = pytest.mark.parametrize("name", others_in_soak(["delete", "delete, inverted"], kept=["delete"]))
EXTRA = "UsersV2 holds 1 rows that no source row gives"


def late(
    name: str,
    preemptions: int | None = 1,
    *,
    follows: bool = True,
    passages: int = 1,
    most_seconds: float = inf,
    **more: Any,
) -> Searched:
    """Search one world. `more` as `LateWorld` takes it."""
    migration, before, operations = WORLDS[name]

    def make(scheduler: Scheduler) -> LateWorld:
        return LateWorld(scheduler, migration, before, operations, follows=follows, passages=passages, **more)

    with at_work():
        return search(make, Budget(preemptions=preemptions), most_states=5_000_000, most_seconds=most_seconds)


def visited(name: str, found: Searched, *, at_least: int) -> None:
    """Say how much was visited; nothing may be lost, and a search that shrank is no search. Where no mapping
    is stored, fewer requests are sent."""
    print(f"{name}: {found}")
    assert not found.loss, (found.loss, found.schedule)
    assert found.states >= (at_least // 2 if "inverted" in name else at_least)


def lost(found: Searched, what: str = EXTRA) -> None:
    print(f"{what}: found in schedule {found.schedules}, after {found.states:,} states")
    assert found.loss == what, found
    assert found.schedule


# --- nothing is lost ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", others_in_soak([name for name in WORLDS if name != "move"], kept=["delete", "delete, inverted"])
)
def test_a_task_that_was_given_up_brings_nothing_back(name: str) -> None:
    """Capture "dual-write": the executor says that the task is lost, and it runs on. Without preemptions;
    the soak has them, and rows that move."""
    visited(name, late(name, 0), at_least=500)


@OF_DELETES
def test_a_task_that_was_given_up_brings_nothing_back_behind_the_last_sweep_of_delta(name: str) -> None:
    visited(f"delta, {name}", late(name, 0, follows=False), at_least=500)


@OF_DELETES
def test_a_task_of_a_runner_that_was_killed_brings_nothing_back(name: str) -> None:
    visited(f"killed, {name}", late(name, 0, losses=0, kills=1), at_least=500)


@OF_DELETES
def test_a_worker_whose_clock_stood_still_while_it_was_stopped_brings_nothing_back(name: str) -> None:
    """A machine that slept, or a virtual one that was paused: by its own clock no time has passed."""
    visited(f"asleep, {name}", late(name, 0, sleeps=True), at_least=500)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("follows", [True, False], ids=["dual-write", "delta"])
@pytest.mark.parametrize("name", WORLDS)
def test_late_tasks_bring_nothing_back_in_any_order(name: str, follows: bool) -> None:
    """Complete, or bounded as it says, each for SOAK_SECONDS at most: first with the writer and the second
    worker in one moment each, then with time passing twice, with workers whose clocks stand still, with a
    runner that is killed, and with everybody call by call."""
    bound = 2 if name == "move" else None

    def searched(preemptions: int | None = 1, **more: Any) -> Searched:
        return late(name, preemptions, follows=follows, most_seconds=soak_seconds(), **more)

    visited(name, searched(bound), at_least=1_500)
    visited(f"{name}, longer", searched(passages=2), at_least=1_500)
    visited(f"{name}, asleep", searched(sleeps=True), at_least=1_500)
    visited(f"{name}, killed", searched(kills=1), at_least=1_500)
    visited(f"{name}, fine", searched(fine=True), at_least=1_500)


# --- each rule, switched off ----------------------------------------------------------------------------


@pytest.mark.soak
@DELETES
def test_the_sweep_waits_for_the_term(name: str) -> None:
    with late_broken.no_wait_for_the_term():
        lost(late(name))


@pytest.mark.soak
@DELETES
def test_the_sweep_waits_for_the_margin_behind_the_term(name: str) -> None:
    with late_broken.no_margin():
        lost(late(name))


@pytest.mark.soak
@DELETES
def test_the_term_stands_in_the_restricted_store_for_the_next_runner(name: str) -> None:
    with late_broken.no_term_in_the_store():
        lost(late(name, follows=False, losses=0, kills=1))


@pytest.mark.soak
@DELETES
def test_a_worker_writes_behind_the_fence_alone(name: str) -> None:
    with late_broken.no_fence():
        lost(late(name))


@pytest.mark.soak
@DELETES
def test_a_worker_asks_for_the_time_before_it_writes(name: str) -> None:
    """The control row and the runner lease are what they were; only the term is over."""
    with late_broken.no_clock():
        lost(late(name))


@pytest.mark.soak
@DELETES
def test_a_worker_asks_the_service_for_the_time(name: str) -> None:
    """Its own clock is enough as long as it goes on."""
    with late_broken.no_time_of_the_service():
        assert not late(name, 0).loss
        lost(late(name, 0, sleeps=True))
