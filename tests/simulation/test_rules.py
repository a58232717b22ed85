"""Each rule of copying and propagating, switched off: the search finds what is lost without it.

Which world finds it says what a rule is for. In capture "delta" the runner alone writes to the targets, one
request after another for a key; there only requests of a killed runner that land late compete with it. Some
rules therefore protect nothing yet in "delta": they are for writers that propagate on their own, and are
switched off in a world that has them.

Soak: all of it.
Reason, and what `make test` covers: each rule switched off: shows the search, not the program; the same
searches with all rules in `test_every_order.py`.
"""

from __future__ import annotations

import pytest

from tests.fakes.memory import Mood
from tests.simulation import broken, dual_broken
from tests.simulation.explore import Budget, Searched
from tests.simulation.small import Parts, SmallWorld
from tests.simulation.test_every_order import (
    COMPUTED,
    CRASH,
    CRASH_WITH_LATE_REQUESTS,
    DELTA,
    KEY_PASSES,
    KEYS_MOVE,
    MISREAD,
    World,
    delta,
    following,
)

pytestmark = pytest.mark.soak
OLDER = "UsersV2 holds an older row"
EXTRA = "UsersV2 holds 1 rows that no source row gives"
MISSING = "UsersV2 lacks 1 rows"
UNACCOUNTED = "a target row has no mapping row"


def lost(found: Searched, what: str) -> None:
    print(f"{what}: found in schedule {found.schedules}, after {found.states:,} states")
    assert found.loss == what
    assert found.schedule


@pytest.fixture
def only_the_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not look at the mapping on the way: a rule is to be missed by what is lost in the end."""
    monkeypatch.setattr(SmallWorld, "broken", lambda _self: "")


# --- propagate -------------------------------------------------------------------------------------------


def test_after_writing_the_authority_is_looked_at_again() -> None:
    """The replica's ETag held, and yet the authority moved: away and back to what the replica held, so that
    the writer who moved it back found nothing to do."""
    with broken.no_look_after_writing():
        lost(following("replace | replace back"), OLDER)


def test_replicas_are_read_before_the_authority() -> None:
    """The other way round, a slow propagator writes what the authority said before somebody else's round.

    The look after writing finds that and makes up for it; until then the older row can be read. With both
    rules off the loss stays.

    Not found in "delta" (all interleavings with one crash and late requests were searched): a late request
    of a killed runner is one write, conditional on what it had read; it cannot read in between.
    """
    with broken.no_look_after_writing():
        assert not following("replace | replace").loss
        lost(following("replace | replace", Parts(propagator=broken.AuthorityFirst)), OLDER)


def test_writes_are_conditional_on_what_was_read() -> None:
    """As above: the look after writing makes up for it, if the writer lives to do it."""
    with broken.no_look_after_writing(), broken.unconditional():
        lost(following("replace | replace"), OLDER)


@pytest.mark.timeout(0)
def test_writes_are_conditional_also_for_a_killed_runners_late_request() -> None:
    """In "delta": its replace lands after the next runner has written a newer row, which no later pass looks
    at again."""
    with broken.unconditional():
        lost(delta(DELTA["replace, replace"], CRASH_WITH_LATE_REQUESTS), OLDER)


def test_a_round_that_inserted_is_followed_by_another() -> None:
    """Absence is no version: the row may have come and gone since it was found absent.

    Not found in "delta": between reading and inserting nobody else inserts and deletes there, and what the
    source saw meanwhile is brought by the next pass (its watermark is older) or by the sweep.
    """
    with broken.no_look_after_writing():
        lost(following("insert | delete"), EXTRA)


def test_a_key_is_claimed_before_a_row_is_written_under_it() -> None:
    lost(following("insert | delete", Parts(propagator=broken.WriteFirst)), UNACCOUNTED)


def test_a_row_without_a_claim_is_never_found_again(only_the_end_counts: None) -> None:
    """What the claim is for in the end: who deletes looks where the mapping says."""
    lost(following("insert | delete", Parts(propagator=broken.WriteFirst)), EXTRA)


def test_after_a_claim_the_round_begins_again_which_the_round_after_an_insert_would_make_up_for(
    only_the_end_counts: None,
) -> None:
    """Not found in either world, and this shows why nothing is faked: a key that was just claimed was not
    read before, so its row is written by insert-if-absent, and a round that wrote is never the last.
    With both rules off the loss is there."""
    parts = Parts(propagator=broken.ClaimAfterReading)
    assert not following("insert | delete", parts).loss
    with broken.no_look_after_writing():
        lost(following("insert | delete", parts), EXTRA)


def test_only_rows_of_the_key_itself_are_touched() -> None:
    """A target key passed on to another source row: the old key's propagate deletes its new owner's row, and
    does not look at the new owner afterwards."""
    with dual_broken.new_owners_unseen():
        lost(delta(KEY_PASSES, CRASH, Parts(propagator=broken.AnyOwner)), MISSING)


@pytest.mark.parametrize("world", ["delta", "following"])
def test_odd_keys_are_not_read_at_their_addresses(world: str) -> None:
    """The row is read as absent there: its copy is deleted."""
    with broken.addresses_trusted():
        if world == "delta":
            lost(delta(MISREAD["replace, replace"], Budget(), Parts(mood=Mood.DECODES_TWICE)), MISSING)
        else:
            lost(following("misread: replace | replace"), MISSING)


# --- the copier ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", ["writers that propagate", "delta, late requests"])
def test_copies_are_inserted_if_absent(world: str) -> None:
    """An upsert overwrites a newer row: a writer's, or the next runner's when the request comes late."""
    parts = Parts(copier=broken.UpsertingCopier)
    if world == "delta, late requests":
        lost(delta(DELTA["replace, replace"], CRASH_WITH_LATE_REQUESTS, parts), OLDER)
    else:
        lost(following("replace, backfill", parts), OLDER)


@pytest.mark.parametrize("rule", ["at any moment", "in the end"])
def test_mapping_rows_come_before_target_rows(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between the two leaves a row that the sweep, which walks the mapping, does not see."""
    parts = Parts(copier=broken.TargetFirst)
    if rule == "at any moment":
        lost(delta(DELTA["replace, delete"], Budget(), parts), UNACCOUNTED)
        return
    monkeypatch.setattr(SmallWorld, "broken", lambda _self: "")
    lost(delta(KEYS_MOVE["move, delete"], CRASH, parts), "PostsV2 holds 1 rows that no source row gives")


def test_a_row_that_stands_in_the_way_is_looked_at() -> None:
    lost(delta(KEY_PASSES, CRASH, Parts(copier=broken.Blind)), MISSING)


# --- passes, sweep, checkpoint ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "world", "what"),
    [
        (Parts(delta_pass=broken.late_watermark), DELTA["replace, replace"], OLDER),
        (Parts(sweep=broken.no_sweep), DELTA["replace, delete"], EXTRA),
        (Parts(sweep=broken.no_sweep), COMPUTED["replace, delete"], EXTRA),
        (Parts(checkpoint_first=True), (*DELTA["replace, replace"][:2], []), MISSING),
    ],
    ids=[
        "the watermark is the time before the pass",
        "a sweep finds deletes",
        "a sweep finds deletes by inversion",
        "checkpoints follow the rows",
    ],
)
def test_what_a_runner_keeps_is_never_ahead_of_what_it_did(parts: Parts, world: World, what: str) -> None:
    """One crash is allowed; the first two are lost without it."""
    lost(delta(world, CRASH, parts), what)
