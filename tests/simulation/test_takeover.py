"""What dead clients leave is finished by any client that lives, within the time that is promised, and not
before nothing of the dead ones can take effect.

Soak: drawn lives; some numbers of kills and moments; most stories without a stored mapping; each rule
switched off.
Reason, and what `make test` covers: up to a minute each; each composition of clients by hand, and each story
with its rule, one of them without a stored mapping.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from rekey.client import takeover
from rekey.client.sdk import core
from rekey.model import Row
from rekey.protocol.rules import View
from rekey.tables.base import Operation, Verb
from tests.simulation import takeover_broken
from tests.simulation.dual_people import Client
from tests.simulation.judging import Found
from tests.simulation.loop import OWNER
from tests.simulation.stage import COMPUTED, DUAL, person
from tests.simulation.takeover_stage import TakeoverLife, TakeoverStage
from tests.soaking import others_in_soak

Story = Callable[[TakeoverStage], None]

EVERY_S = takeover.SWEEP_EVERY_S
MAPPINGS = pytest.mark.parametrize(
    "mapping", others_in_soak(["", COMPUTED], kept=[""]), ids=["stored", "computed"]
)


def told(path: Path, kind: str, story: Story, seed: int = 1) -> None:
    """Tell a story."""
    stage = TakeoverStage(path, kind, seed)
    with stage.opened():
        story(stage)


def left_to_readers(stage: TakeoverStage, view: View, readers: int, cut_over: bool) -> None:
    """A client dies; the others only read."""
    stage.opened_client(View.OLD)
    stage.apply()
    for number in range(readers):
        stage.reader((View.OLD, View.NEW)[number % 2])
    if cut_over:
        stage.cut_over()
    for client in stage.clients[:1]:
        stage.kill(client.process)
    stage.pass_(30)
    stage.abandon(view)
    stage.settled_after(stage.bound_s())
    stage.assert_in_step()


@pytest.mark.parametrize("readers", [1, 4])
@pytest.mark.parametrize(
    ("view", "cut_over"), [(View.OLD, False), (View.NEW, True)], ids=["before cutover", "after cutover"]
)
@MAPPINGS
def test_clients_that_only_read_settle_what_a_killed_one_left(
    tmp_path: Path, view: View, readers: int, cut_over: bool, mapping: str
) -> None:
    told(tmp_path, DUAL + mapping, partial(left_to_readers, view=view, readers=readers, cut_over=cut_over))


def registered_before_it_began(stage: TakeoverStage) -> None:
    """The only client that lives has read before the migration began, and never since."""
    reader = stage.opened_client(View.OLD)
    stage.read(reader)
    stage.apply()
    stage.abandon(View.OLD)
    stage.settled_after(stage.bound_s())
    stage.assert_in_step()


@pytest.mark.parametrize("mapping", ["", COMPUTED], ids=["stored", "computed"])
def test_a_client_that_read_before_the_migration_began_settles(tmp_path: Path, mapping: str) -> None:
    told(tmp_path, DUAL + mapping, registered_before_it_began)


def first_is_dead(stage: TakeoverStage, dead: int, after_s: float) -> None:
    """Those whose turn comes first die as well, without having claimed anything."""
    clients = [stage.opened_client(View.OLD)]
    stage.apply()
    clients += [stage.reader() for _ in range(5)]
    stage.abandon(View.OLD)
    began = stage.loop.now
    stage.pass_(after_s)
    for client in stage.in_order(*clients)[:dead]:
        stage.kill(client.process)
    stage.settled_after(stage.bound_s() + dead * takeover.TURN_S - (stage.loop.now - began))
    stage.assert_in_step()


@pytest.mark.parametrize("dead", [1, 5])
@pytest.mark.parametrize("after_s", [0.0, 15.0, 18.0])
@MAPPINGS
def test_the_next_one_settles_where_the_first_is_dead_too(
    tmp_path: Path, dead: int, after_s: float, mapping: str
) -> None:
    told(tmp_path, DUAL + mapping, partial(first_is_dead, dead=dead, after_s=after_s))


def killed_again_and_again(stage: TakeoverStage, times: int) -> None:
    """Whoever claims what was left is killed, all but the last one."""
    clients = [stage.opened_client(View.OLD)]
    stage.apply()
    clients += [stage.reader() for _ in range(times)]
    stage.abandon(View.OLD)
    for _ in range(times):
        stage.fate("old-", "insert", stage.main, lands_s=math.inf, then=lambda: stage.kill(OWNER.get()))
    stage.settled_after(stage.bound_s(killed=times + 1))
    stage.require(sum(client.process.dead for client in clients) == times, "not all of them were killed")
    stage.pass_(5)
    stage.assert_in_step()
    stage.judge()


@pytest.mark.parametrize("times", others_in_soak([1, 3], kept=[3]))
@MAPPINGS
def test_repeated_kills_cost_a_claim_and_a_look_each(tmp_path: Path, times: int, mapping: str) -> None:
    told(tmp_path, DUAL + mapping, partial(killed_again_and_again, times=times))


def by_many(stage: TakeoverStage, clients: int, after_s: float) -> None:
    """Many clients look at the same moments, one of which is so many seconds after what was left is due for
    the first of them: those settle whose turns have come by then."""
    stage.opened_client(View.OLD)
    stage.apply()
    looks_at = 0.0
    at_once = mock.patch.object(
        core, "pause_s", lambda _draw: EVERY_S - (stage.loop.now - looks_at) % EVERY_S
    )
    with at_once:
        for _ in range(clients):
            stage.reader()
        stage.abandon(View.OLD, rows=20)
        stage.pass_(stage.settings.max_in_flight_s)  # a last beat may have landed late
        looks_at = stage.due_at() + after_s
        _settled_in_turn(stage, 1 + int(after_s // takeover.TURN_S))


def _settled_in_turn(stage: TakeoverStage, most: int) -> None:
    stage.settled_after(stage.bound_s())
    stage.assert_in_step()
    settled = [
        working.writer.client.counters.propagated
        for client in stage.clients
        if not client.process.dead and (working := client.core._working) is not None
    ]
    stage.require(sum(settled) == 20, f"keys were settled {sum(settled)} times")
    stage.require(sum(map(bool, settled)) <= most, "others did not wait for their turns")


# Not 0 seconds: clients know the time of their last beats, which were up to a second before.
@pytest.mark.parametrize("after_s", others_in_soak([1.7, 5.7, 9.7], kept=[5.7]))
@MAPPINGS
def test_many_clients_wait_for_their_turns_and_each_key_is_settled_once(
    tmp_path: Path, after_s: float, mapping: str
) -> None:
    told(tmp_path, DUAL + mapping, partial(by_many, clients=12, after_s=after_s))


# --- rules ------------------------------------------------------------------------------------------------


def late_insert_of_the_dead(stage: TakeoverStage) -> None:
    """The insert of a replica, sent by a client that was killed, takes effect late; the row is deleted once
    what the dead client left was settled."""
    writer = stage.opened_client(View.OLD)
    stage.apply()
    victim = stage.opened_client(View.OLD)
    victim.process.request_s = stage.settings.longest_operation_s
    stage.fate(
        victim.process.name, "insert", stage.main, lands_s=8.9, then=partial(stage.kill, victim.process)
    )
    row = person(45)
    stage.begin(Operation(Verb.INSERT, row), victim)
    stage.pass_(1)
    _delete_once_settled(stage, row, writer)


def late_insert_of_a_claimer(stage: TakeoverStage) -> None:
    """The same of a client that was killed while it settled for another one."""
    writer = stage.opened_client(View.OLD)
    stage.apply()
    clients = stage.in_order(writer, *(stage.reader() for _ in range(2)))
    [row] = stage.abandon(View.OLD)
    first = clients[0]
    # As if it had been sent at the end of the attempt.
    first.process.request_s = 2 * stage.settings.max_in_flight_s
    stage.fate(first.process.name, "insert", stage.main, lands_s=5.9, then=partial(stage.kill, first.process))
    _delete_once_settled(stage, row, clients[-1])


def lost_insert_of_a_live_one(stage: TakeoverStage) -> None:
    """The insert of a replica was not answered, and takes effect late; its sender lives."""
    writer = stage.opened_client(View.OLD)
    stage.apply()
    [row] = stage.abandon(View.OLD)
    writer.process.request_s = stage.settings.max_in_flight_s
    stage.fate(writer.process.name, "insert", stage.main, lands_s=2.9)
    _delete_once_settled(stage, row, writer)


def _delete_once_settled(stage: TakeoverStage, row: Row, client: Client) -> None:
    stage.settled_after(stage.bound_s(killed=3))
    stage.write(Operation(Verb.DELETE, row), client)
    stage.pass_(15)
    stage.assert_in_step()


RULES: list[tuple[str, Story, Callable[[], AbstractContextManager[object]]]] = [
    ("the dead are waited for", late_insert_of_the_dead, takeover_broken.nobody_waits_for_the_dead),
    ("claims hold", late_insert_of_a_claimer, takeover_broken.claims_do_not_hold),
    ("open is not settled", lost_insert_of_a_live_one, takeover_broken.open_is_settled),
    (
        "any client comes",
        partial(first_is_dead, dead=1, after_s=17.0),
        takeover_broken.only_the_first_comes,
    ),
    (
        "readers come",
        partial(left_to_readers, view=View.OLD, readers=2, cut_over=False),
        takeover_broken.readers_do_not_come,
    ),
]


def often() -> AbstractContextManager[object]:
    """Let clients look every second, so that many moments are tried."""
    return mock.patch.object(takeover, "SWEEP_EVERY_S", 1.0)


@pytest.mark.parametrize("story", [story for _, story, _ in RULES[:3]], ids=[name for name, *_ in RULES[:3]])
@MAPPINGS
def test_nothing_is_settled_while_a_request_of_a_dead_client_may_take_effect(
    tmp_path: Path, story: Story, mapping: str
) -> None:
    with often():
        told(tmp_path, DUAL + mapping, story)


@pytest.mark.soak
@pytest.mark.parametrize(("story", "broken"), [rule[1:] for rule in RULES], ids=[name for name, *_ in RULES])
@MAPPINGS
def test_with_a_rule_switched_off_the_loss_is_found(
    tmp_path: Path, story: Story, broken: Callable[[], AbstractContextManager[object]], mapping: str
) -> None:
    with often(), broken(), pytest.raises(Found):
        for seed in (1, 2):  # how long requests take is drawn, and one draw may be lucky
            told(tmp_path / str(seed), DUAL + mapping, story, seed)


# --- drawn lives --------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize(
    "kind",
    [
        "keys from keys, indexed",
        "keys that say the old ones",
        "keys from content",
        "keys from keys, secondary rows",
    ],
)
def test_a_life_full_of_kills_loses_nothing_and_survivors_finish_it(
    tmp_path: Path, kind: str, seed: int
) -> None:
    """What clients were told of each key fits one row that changes at once, and replicas are what the
    authority says although no command has run."""
    TakeoverLife(tmp_path, kind, seed).live()
