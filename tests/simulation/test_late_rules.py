"""Requests that land when nobody counts on them any more, two runners at once, and clocks that are wrong: in
each of these stories the application is told something, and a rule of the program keeps it true.

Each story is told twice: with the rule nothing is lost; without it the loss is found.

Soak: other lengths of a stop; most stories without a stored mapping; each rule switched off.
Reason, and what `make test` covers: two minutes each; a stop of two minutes; each story with its rule, one of
them without a stored mapping.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import partial
from pathlib import Path

import pytest

from rekey.errors import GateClosed, Refused, RekeyError
from rekey.mapping.rows import JOURNAL_TABLE, MAPPING_TABLE
from rekey.model import key_of
from rekey.protocol.rules import View
from rekey.tables.base import Operation, Verb
from tests.simulation import late_rules_broken
from tests.simulation.judging import Found
from tests.simulation.stage import COMPUTED, DELTA, DUAL, VICTIM, Stage, apply, cut_over, person, verify
from tests.soaking import others_in_soak
from tests.worlds.small import Killed

INSERT, DELETE, REPLACE = Verb.INSERT, Verb.DELETE, Verb.REPLACE
FOUND = (Found, RekeyError)
"""A loss is found by whoever judges, or by the program, which then does not get done."""

Story = Callable[[Stage], None]
NEW_ROW = person(30)
MAPPINGS = pytest.mark.parametrize(
    "mapping", others_in_soak(["", COMPUTED], kept=[""]), ids=["stored", "computed"]
)


def told(path: Path, kind: str, story: Story) -> None:
    """Tell a story."""
    stage = Stage(path, kind, 1)
    with stage.opened():
        story(stage)


# --- two runners ----------------------------------------------------------------------------------------


def two_at_once(stage: Stage) -> None:
    """A second container of the host begins while the runner of the first one stands still, and cuts over.
    Then the first one goes on, for a moment."""
    client = None if stage.is_delta else stage.opened_client(View.OLD)

    def stands_still() -> None:
        stage.stand_still(stage.running, 45)
        stage.loop.call_later(45.1, stage.kill, stage.running, context=Context())

    stage.fate("runner 1", "insert", stage.main, told=True, then=stands_still)

    def meanwhile() -> None:
        stage.write(Operation(DELETE, VICTIM), client)
        for work in (apply, verify, cut_over):
            stage.beside(work, attempts=1)

    stage.killed(apply, also=meanwhile)
    stage.apply()
    stage.cut_over()
    stage.judge()


@pytest.mark.parametrize("kind", [DELTA, DUAL])
@MAPPINGS
def test_two_containers_of_one_host_do_not_take_each_others_lease(
    tmp_path: Path, kind: str, mapping: str
) -> None:
    told(tmp_path, kind + mapping, two_at_once)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [DELTA, DUAL])
@MAPPINGS
def test_where_host_path_and_process_id_are_enough_deleted_rows_come_back(
    tmp_path: Path, kind: str, mapping: str
) -> None:
    """What was sent before is waited for after each such take-over, too; that is switched off as well."""
    with late_rules_broken.same_host_is_same_machine(), late_rules_broken.no_quiet(), pytest.raises(FOUND):
        told(tmp_path, kind + mapping, two_at_once)


def stood_at_the_socket(stage: Stage) -> None:
    """A runner decided to send a row, and stands still until another one has taken over and cut over."""
    stage.fate(
        "runner 1", "insert", stage.main, told=True, then=lambda: stage.stand_still(stage.running, 150)
    )  # fmt: skip

    def meanwhile() -> None:
        stage.write(Operation(DELETE, VICTIM))
        for work in (apply, cut_over):
            stage.beside(work, attempts=3)

    with pytest.raises(RekeyError):
        stage.run(apply, also=meanwhile)
    stage.judge()


@MAPPINGS
def test_what_a_runner_was_about_to_send_is_not_sent_once_its_lease_is_lost(
    tmp_path: Path, mapping: str
) -> None:
    told(tmp_path, DELTA + mapping, stood_at_the_socket)


@pytest.mark.soak
@MAPPINGS
def test_where_nobody_asks_again_it_brings_a_deleted_row_back(tmp_path: Path, mapping: str) -> None:
    """Its successor waits until the service refuses what it had signed; that is switched off as well."""
    with late_rules_broken.not_asked_again(), late_rules_broken.no_quiet(), pytest.raises(FOUND):
        told(tmp_path, DELTA + mapping, stood_at_the_socket)


# --- writes that are repeated ---------------------------------------------------------------------------


def abandoned_by(stage: Stage, view: View, table: str) -> None:
    """A client dies between the authority and the replica of a new row; its intent gets old."""
    dies = stage.opened_client(view)
    stage.fate(
        dies.process.name, "insert", table, lands_s=math.inf, then=lambda: stage.kill(dies.process)
    )  # fmt: skip
    row = NEW_ROW if view is View.OLD else stage.as_target(NEW_ROW)
    stage.begin(Operation(INSERT, row), dies)
    stage.pass_(40)


def sweep_of_the_journal(stage: Stage) -> None:
    """The first attempt to insert a replica stays under way, the second is answered."""
    first = stage.opened_client(View.OLD)
    stage.apply()
    stage.close(first)  # or it settles what is abandoned
    abandoned_by(stage, View.OLD, stage.main)
    stage.fate("runner", "insert", stage.main, lands_s=22)
    stage.apply()
    stage.write(Operation(DELETE, NEW_ROW), stage.opened_client(View.OLD))
    stage.judge()


def sweep_behind_cutover(stage: Stage) -> None:
    """The same, with the target as the authority: the source gets it late."""
    first = stage.opened_client(View.OLD)
    stage.apply()
    stage.cut_over()
    stage.close(first)
    abandoned_by(stage, View.NEW, stage.source)
    stage.fate("runner", "insert", stage.source, lands_s=22)
    stage.apply()
    stage.write(Operation(DELETE, stage.as_target(NEW_ROW)), stage.opened_client(View.NEW))
    stage.judge()


def repair(stage: Stage) -> None:
    """A replica that somebody deleted is put back, by two attempts."""
    client = stage.opened_client(View.OLD)
    stage.apply()
    stage.loop.run(
        stage.project.tables.table(stage.main).delete(Operation(DELETE, stage.as_target(VICTIM)).key)
    )
    stage.fate("runner", "insert", stage.main, lands_s=22)
    stage.run(partial(verify, repair=True))
    stage.write(Operation(DELETE, VICTIM), client)
    stage.judge()


REPEATED = [sweep_of_the_journal, sweep_behind_cutover, repair]


@pytest.mark.parametrize("story", REPEATED)
@MAPPINGS
def test_what_the_runner_writes_where_others_write_is_sent_once(
    tmp_path: Path, story: Story, mapping: str
) -> None:
    told(tmp_path, DUAL + mapping, story)


@pytest.mark.soak
@pytest.mark.parametrize("story", REPEATED)
@MAPPINGS
def test_where_it_is_repeated_a_deleted_row_comes_back(tmp_path: Path, story: Story, mapping: str) -> None:
    """The intent of a client that was killed is kept, and settled again; that is switched off as well."""
    forgotten = late_rules_broken.given_up_is_over()
    with late_rules_broken.repeats_open_writes(), forgotten, pytest.raises(FOUND):
        told(tmp_path, DUAL + mapping, story)


def dropped_connection(stage: Stage) -> None:
    """A connection breaks behind a PUT; what was sent takes its time."""
    one, other = (stage.opened_client(View.OLD) for _ in range(2))
    stage.apply()
    stage.fate(one.process.name, "replace", stage.source, lands_s=4, repeated=True)
    stage.begin(Operation(REPLACE, {**VICTIM, "Nm": "first"}), one)
    stage.pass_(0.3)
    stage.write(Operation(REPLACE, {**VICTIM, "Nm": "second"}), other)
    first = stage.storm.happened["repeated unseen"]
    stage.pass_(10)
    if not first:
        stage.told.clear()  # its client knows that it may yet happen
    stage.judge()


@MAPPINGS
def test_a_connection_that_breaks_leaves_the_outcome_open(tmp_path: Path, mapping: str) -> None:
    told(tmp_path, DUAL + mapping, dropped_connection)


@pytest.mark.soak
@MAPPINGS
def test_where_connections_repeat_unseen_an_acknowledged_write_is_lost(tmp_path: Path, mapping: str) -> None:
    with late_rules_broken.repeated_by_connections(), pytest.raises(FOUND):
        told(tmp_path, DUAL + mapping, dropped_connection)


def late_removal(stage: Stage) -> None:
    """The removal of an intent stays under way. Its client settles the key once more, beside another client
    that makes the row anew, by a request that stays under way longer still; then it is killed."""
    one, other = (stage.opened_client(View.OLD) for _ in range(2))
    one.process.request_s = stage.settings.max_in_flight_s
    stage.apply()
    stage.fate(one.process.name, "delete", JOURNAL_TABLE, lands_s=2)
    stage.fate(one.process.name, "insert", stage.main, lands_s=3)
    stage.fate(other.process.name, "insert", stage.main, lands_s=1, told=True)
    stage.write(Operation(REPLACE, {**VICTIM, "Nm": "first"}), one)
    stage.write(Operation(DELETE, VICTIM), other)
    stage.write(Operation(INSERT, VICTIM), other)
    stage.pass_(0.5)
    stage.kill(one.process)
    stage.pass_(0.2)
    stage.write(Operation(DELETE, VICTIM), other)
    stage.judge()


@MAPPINGS
def test_what_an_unanswered_removal_meets_is_not_removed(tmp_path: Path, mapping: str) -> None:
    told(tmp_path, DUAL + mapping, late_removal)


@pytest.mark.soak
@MAPPINGS
def test_where_an_intent_goes_whatever_it_announces_a_deleted_row_comes_back(
    tmp_path: Path, mapping: str
) -> None:
    with late_rules_broken.removes_intents_whatever_they_are(), pytest.raises(FOUND):
        told(tmp_path, DUAL + mapping, late_removal)


# --- clients that stand still ---------------------------------------------------------------------------


def held_up(stage: Stage, verb: Verb, seconds: float = 120) -> None:
    """A client decides to write and stands still; it is given up, the authority moves, and it goes on."""
    stage.opened_client(View.OLD)
    stage.apply()
    stands = stage.opened_client(View.OLD)
    stands.process.unasked = 1.0
    stage.fate(
        stands.process.name, verb, stage.source, told=True,
        then=lambda: stage.stand_still(stands.process, seconds),
    )  # fmt: skip
    stage.begin(Operation(verb, {**VICTIM, "Nm": "late"}), stands)
    stage.pass_(1)
    stage.cut_over()
    stage.require(stands.process.stopped, "the cutover waited for it")
    stage.pass_(seconds + 10)
    stage.roll_back()
    stage.judge()


@pytest.mark.parametrize("verb", [DELETE, REPLACE])
@MAPPINGS
def test_what_a_client_sends_after_it_was_given_up_is_settled(
    tmp_path: Path, verb: Verb, mapping: str
) -> None:
    told(tmp_path, DUAL + mapping, partial(held_up, verb=verb))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seconds", [300, 600, 840, 960])
@pytest.mark.parametrize("verb", [DELETE, REPLACE])
@MAPPINGS
def test_what_a_client_sends_until_the_service_refuses_it_is_settled(
    tmp_path: Path, verb: Verb, seconds: float, mapping: str
) -> None:
    """For 15 minutes the service takes what was signed."""
    told(tmp_path, DUAL + mapping, partial(held_up, verb=verb, seconds=seconds))


@pytest.mark.soak
@pytest.mark.parametrize("verb", [DELETE, REPLACE])
@MAPPINGS
def test_where_it_is_forgotten_the_sides_differ_for_good(tmp_path: Path, verb: Verb, mapping: str) -> None:
    with late_rules_broken.given_up_is_over(), pytest.raises(FOUND):
        told(tmp_path, DUAL + mapping, partial(held_up, verb=verb))


# --- nothing moves while anything is under way ----------------------------------------------------------


def killed_copy(stage: Stage) -> None:
    """What a killed copy had sent is under way while the next run copies, and cuts over."""
    stage.fate("runner", "insert", stage.main, lands_s=25, then=lambda: stage.kill(stage.running))
    stage.killed(apply)
    stage.write(Operation(DELETE, VICTIM))
    stage.apply()
    stage.cut_over()
    stage.judge()


def repeated_copy(stage: Stage) -> None:
    """An attempt of a copy that was repeated is under way while the same runner goes on, and cuts over."""
    stage.fate("runner", "insert", stage.main, lands_s=25)
    stage.apply()
    stage.write(Operation(DELETE, VICTIM))
    stage.cut_over()
    stage.judge()


def repeated_copy_back(stage: Stage) -> None:
    """An attempt of the way back is under way when the source is the authority again."""
    stage.apply()
    stage.cut_over()
    stage.write_target(Operation(INSERT, stage.as_target(NEW_ROW)))
    stage.fate("runner", "insert", stage.source, lands_s=25)
    stage.roll_back()
    stage.write(Operation(DELETE, NEW_ROW))
    stage.pass_(40)
    stage.apply()
    stage.judge()


MOVED = [killed_copy, repeated_copy, repeated_copy_back]


@pytest.mark.parametrize("story", MOVED)
@MAPPINGS
def test_the_authority_moves_when_nothing_is_under_way_any_more(
    tmp_path: Path, story: Story, mapping: str
) -> None:
    told(tmp_path, DELTA + mapping, story)


@pytest.mark.soak
@pytest.mark.parametrize("story", MOVED)
@MAPPINGS
def test_where_it_does_not_wait_a_deleted_row_comes_back(tmp_path: Path, story: Story, mapping: str) -> None:
    with late_rules_broken.no_quiet(), pytest.raises(FOUND):
        told(tmp_path, DELTA + mapping, story)


def dropped_mapping(stage: Stage, nth: int) -> None:
    """A mapping row of a killed run is under way while all is dropped, and begun again."""
    stage.fate(
        "runner", "", MAPPING_TABLE, nth=nth, lands_s=20, then=lambda: stage.kill(stage.running)
    )  # fmt: skip
    stage.killed(apply)
    stage.drop()
    stage.apply()
    stage.pass_(40)
    stage.apply()
    stage.judge()


def dropped_table(stage: Stage) -> None:
    """The request to drop a target is under way while the migration is begun again. Where it lands before the
    target is the authority, all is taken back once more, and begun again."""
    stage.apply()
    stage.fate("runner", "delete_table", stage.main, lands_s=25, then=lambda: stage.kill(stage.running))
    with pytest.raises(Killed):
        stage.drop()
    try:
        stage.apply()
        stage.cut_over()
    except Found:
        stage.drop()
        stage.apply()
        stage.cut_over()
    stage.judge()


def dropped_mark(stage: Stage) -> None:
    """The mark that the targets are this migration's is under way while they are dropped. The migration is
    begun again and killed before it makes them; then somebody else fills a table of that name, under keys
    that the mapping gives."""
    stage.fate(
        "runner", "insert", MAPPING_TABLE, lands_s=20, then=lambda: stage.kill(stage.running)
    )  # fmt: skip
    stage.killed(apply)
    stage.drop()
    stage.fate(
        "runner", "create_table", stage.main, lands_s=math.inf, then=lambda: stage.kill(stage.running)
    )  # fmt: skip
    stage.killed(apply)
    stage.pass_(60)
    theirs = stage.as_target(NEW_ROW)
    stage.loop.run(stage.project.tables.create_table(stage.main))
    stage.loop.run(stage.project.tables.table(stage.main).insert(theirs))
    with suppress(Refused):
        stage.run(apply)
    stage.require(stage._contents(stage.main) == {key_of(theirs): theirs}, "a row of somebody else is gone")


DROPPED = [
    pytest.param(kind, story, id=f"{name}, {kind}", marks=marks)
    for name, story, kinds, marks in (
        ("mapping", partial(dropped_mapping, nth=8), (DELTA, DUAL), []),
        ("mark", dropped_mark, (DUAL + COMPUTED,), []),
        ("mark", dropped_mark, (DELTA + COMPUTED,), [pytest.mark.soak]),
        ("table", dropped_table, (DELTA, DUAL), []),
        ("table", dropped_table, (DELTA + COMPUTED, DUAL + COMPUTED), [pytest.mark.soak]),
    )
    for kind in kinds
]


@pytest.mark.parametrize(("kind", "story"), DROPPED)
def test_what_was_dropped_leaves_nothing_behind(tmp_path: Path, kind: str, story: Story) -> None:
    told(tmp_path, kind, story)


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "story"), DROPPED)
def test_where_dropping_does_not_wait_something_is_left(tmp_path: Path, kind: str, story: Story) -> None:
    """Where nothing of the mapping is stored, the mark ends before a table is dropped, so that its rows are
    foreign until it is gone; that is switched off as well."""
    with late_rules_broken.no_quiet(), late_rules_broken.marks_stay(), pytest.raises(FOUND):
        told(tmp_path, kind, story)


# --- clocks ---------------------------------------------------------------------------------------------


def clock_behind(stage: Stage) -> None:
    """The way back is made where the clock is five minutes behind: what was verified before is of no use."""
    stage.opened_client(View.OLD)
    stage.apply()
    stage.cut_over()
    stage.run(stage.back, ahead_s=-300)
    before = stage.verified
    stage.pass_(5)
    with suppress(GateClosed):
        stage.run(cut_over)
        stage.require(stage.verified > before, "cut over, and nothing was verified since the way back")


def clock_ahead(stage: Stage) -> None:
    """The way back is made where the clock is five minutes ahead: what is verified behind it counts."""
    stage.opened_client(View.OLD)
    stage.apply()
    stage.cut_over()
    stage.run(stage.back, ahead_s=300)
    stage.pass_(5)
    stage.run(verify)
    stage.run(cut_over)


@pytest.mark.parametrize("story", [clock_behind, clock_ahead])
@MAPPINGS
def test_what_came_first_is_told_without_the_machines_clock(
    tmp_path: Path, story: Story, mapping: str
) -> None:
    told(tmp_path, DUAL + mapping, story)


@pytest.mark.soak
@pytest.mark.parametrize("story", [clock_behind, clock_ahead])
@MAPPINGS
def test_by_the_machines_clock_the_gate_is_open_or_closed_wrongly(
    tmp_path: Path, story: Story, mapping: str
) -> None:
    with late_rules_broken.by_the_machines_clock(), pytest.raises(FOUND):
        told(tmp_path, DUAL + mapping, story)
