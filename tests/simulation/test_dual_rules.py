"""Each rule of DESIGN section 5 that dual writes keep, switched off: the search finds the loss.

The program keeps more than one of these rules would need: after every write of a replica it looks at the
authority once more. Where a rule alone is made up for by that, the test says so: alone nothing is lost, and
with that look switched off as well, the loss is there. Likewise the intents that linger (ADR 0035): their
keys are propagated once more.

Soak: all of it.
Reason, and what `make test` covers: each rule switched off: shows the search, not the program; the same
searches with all rules in `test_dual_every_order.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation import broken, dual_broken, dual_cases
from tests.simulation.dual_cases import dual, moving
from tests.simulation.dual_small import DualParts
from tests.simulation.explore import Budget, Searched
from tests.soaking import soak_seconds

pytestmark = pytest.mark.soak
OLDER = "UsersV2 holds an older row"
EXTRA = "UsersV2 holds 1 rows that no source row gives"
UNACCOUNTED = "a target row has no mapping row"
TOLD = "clients were told what cannot be"
CRASH = Budget(crashes=1, late_requests=True, preemptions=4)
OPEN = Budget(lost_answers=1, late_requests=True, preemptions=4)
CALM = Budget(preemptions=4)
BOUNDED = Budget(preemptions=1)
TWO = "users, dual_write: old replace | old replace"
BOTH_DELETE = "users, dual_write: old delete-if | old delete-if"
COMES_AND_GOES = "users, dual_write, absent: old upsert | old delete"


def lost(found: Searched, what: str) -> None:
    print(f"{what}: found in schedule {found.schedules}, after {found.states:,} states")
    assert found.loss.startswith(what), found
    assert found.schedule


def test_the_intent_is_durable_before_the_authority_is_written() -> None:
    parts = DualParts(journal=dual_broken.LateIntents)
    lost(dual("users, dual_write: old replace", CRASH, parts), OLDER)


MADE_UP_FOR = pytest.mark.parametrize(
    ("rule", "name", "what"),
    [
        (dual_broken.reads_after, TWO, OLDER),
        (dual_broken.unconditional, TWO, OLDER),
        (dual_broken.no_round_after_insert, COMES_AND_GOES, EXTRA),
    ],
    ids=["replicas are read before the authority", "conditional replica writes", "a round after an insert"],
)


@MADE_UP_FOR
def test_what_the_last_look_makes_up_for(rule: Any, name: str, what: str) -> None:
    """One rule alone: the writer sees at its last look that somebody came in between. Without that look it is
    lost. (Propagate by itself needs each of them: `test_rules.py`.)"""
    with rule():
        assert not dual(name, BOUNDED).loss
        with dual_broken.no_last_look(), dual_broken.nothing_lingers():
            lost(dual(name, CALM), what)


@pytest.mark.timeout(0)  # nothing is found early: the whole space, ten times as large as with one preemption
@MADE_UP_FOR
def test_with_four_preemptions_the_last_look_makes_up_for_it_too(rule: Any, name: str, what: str) -> None:
    with rule():
        assert not dual(name, CALM, most_seconds=soak_seconds()).loss


def test_after_the_replicas_the_authority_is_read_again() -> None:
    """A row that was inserted where none was: absence is no version, so the row may be gone again."""
    with dual_broken.no_last_look(), dual_broken.nothing_lingers():
        lost(dual("users, dual_write, absent: old insert | old delete", CALM), EXTRA)


@pytest.mark.parametrize("phase", ["dual_write", "cutover"])
def test_rows_beside_the_part_are_not_followed(phase: str) -> None:
    name = f"tenants, {phase}: old replace beside"
    assert not dual(name, CALM).loss
    with dual_broken.everything_is_in_the_part():
        lost(dual(name, CALM), EXTRA)


def test_a_main_key_is_claimed_before_a_row_is_written_under_it() -> None:
    with dual_broken.unclaimed():
        lost(dual("users, dual_write, absent: old insert", CALM), UNACCOUNTED)


def test_the_forward_row_lists_every_key_before_a_row_is_written_under_it() -> None:
    """Where keys come from content, what is not listed is not found again: here by a delete."""
    with dual_broken.unlisted():
        found = dual("posts, dual_write: old move | old delete", Budget(preemptions=2))
        lost(found, "PostsV2 holds 1 rows that no source row gives")


def test_a_row_that_moves_between_tables_is_found_in_each() -> None:
    """What is not listed is looked for in the table of the row's kind alone."""
    with dual_broken.unlisted():
        found = dual("apart, dual_write: old close | old delete", Budget(preemptions=2))
        lost(found, "TicketsClosed+TicketsOpen holds 1 rows that no source row gives")


def test_an_index_row_belongs_to_the_row_of_the_table_that_it_names() -> None:
    """By its key alone the main row could be that of either table, and nobody would delete the index row."""
    name = "apart by owner, dual_write: old delete"
    assert not dual(name, CALM).loss
    with dual_broken.pointers_without_tables():
        lost(dual(name, CALM), "TicketsByOwner holds 1 rows that no source row gives")


def test_one_old_key_has_a_row_in_one_of_the_tables_alone() -> None:
    name = "apart, cutover, absent: new insert | new upsert closed"
    assert not dual(name, Budget(preemptions=0)).loss
    with dual_broken.no_reservations():
        lost(dual(name, Budget(preemptions=1)), "1 intents are left")


def test_where_a_row_may_stand_is_read_again_behind_the_replicas() -> None:
    """A row deleted under one key and written under another is gone for whoever has the older list."""
    with dual_broken.stale_list():
        found = dual(dual_cases.DELETED_AND_WRITTEN_ELSEWHERE, Budget(preemptions=0))
        lost(found, "PostsV2 holds 1 rows that no source row gives")


def test_a_main_key_is_reserved_before_a_row_is_made_under_it() -> None:
    """Where keys come from content: otherwise two rows say that they are the same old row."""
    name = "posts, cutover, absent: new insert | new upsert elsewhere"
    assert not dual(name, Budget(preemptions=0)).loss
    with dual_broken.no_reservations():
        lost(dual(name, Budget(preemptions=1)), "1 intents are left")


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("folded, dual_write: old delete | old insert the other", Budget(failures=1, preemptions=1)),
        ("folded, cutover: new delete | old upsert the other", Budget(preemptions=1)),
    ],
)
def test_who_deletes_looks_whether_the_key_has_passed_on(name: str, budget: Budget) -> None:
    """The new owner finds an equal index row and leaves it alone; then the former owner's delete takes it."""
    with dual_broken.new_owners_unseen():
        lost(dual(name, budget), "ByMail lacks 1 rows")


def test_a_key_that_a_transaction_passes_on_is_not_taken_back() -> None:
    """The claim still names the former owner; its client knows the claim when it tries again."""
    with dual_broken.claims_reserved_for_others_are_taken():
        name = "lowered, dual_write: old batch of delete and insert | old insert, then insert"
        lost(dual(name, Budget(preemptions=1)), "1 intents are left")


@pytest.mark.parametrize(
    ("copier", "what"),
    [(broken.UpsertingCopier, OLDER), (broken.TargetFirst, UNACCOUNTED)],
    ids=["the backfill inserts if absent", "mapping rows come before target rows"],
)
def test_the_backfill_takes_nothing_from_a_client(copier: Any, what: str) -> None:
    parts = DualParts(copier=copier)
    lost(dual("users, dual_write: old replace", CALM, parts, backfill=True, copied=False), what)


def test_a_sweep_finds_what_was_deleted_while_it_was_copied() -> None:
    parts = DualParts(sweep=broken.no_sweep)
    with dual_broken.nothing_lingers():
        found = dual("users, dual_write: old delete", CALM, parts, backfill=True, copied=False)
    lost(found, EXTRA)


def test_rows_that_moved_while_they_were_copied_are_looked_at_once_more() -> None:
    """They are not gone, so the sweep does not see what was copied of them under their older keys."""
    parts = DualParts(moved=dual_broken.nothing_moved)
    budget = Budget(preemptions=1)
    found = dual("posts, dual_write: old move", budget, parts, backfill=True, copied=False)
    lost(found, "PostsByTag holds 1 rows that no source row gives")


def test_the_sweeper_leaves_young_intents_alone() -> None:
    """It settles what an intent announces before that has happened, and removes the intent."""
    parts = DualParts(older_than_s=0.0)
    lost(dual("users, dual_write: old replace", CRASH, parts, sweeps=True), OLDER)


def test_an_open_outcome_leaves_the_intent() -> None:
    """An answer is lost, and what is there cannot be looked at."""
    parts = DualParts(writer=dual_broken.ForgetsOpenWrites)
    budget = replace(OPEN, failures=1)
    lost(dual("users, dual_write: old replace", budget, parts), OLDER)


def test_an_error_tells_nothing_of_the_requests_beside_it() -> None:
    """An insert may land late, and the delete beside it finds no connection."""
    budget = replace(OPEN, failures=1, unreachable=True, preemptions=0)
    with dual_broken.the_last_error_tells_what_is_open():
        found = dual("posts, dual_write: old move, then delete", budget)
    lost(found, "PostsV2 holds 1 rows that no source row gives")


@pytest.mark.parametrize(
    ("rule", "name", "what"),
    [
        (dual_broken.no_wait_for_what_is_late, TWO, OLDER),
        (dual_broken.content_is_proof, BOTH_DELETE, TOLD),
        (dual_broken.journal_is_not_asked, BOTH_DELETE, TOLD),
        (dual_broken.replicas_are_not_asked, BOTH_DELETE, TOLD),
        (dual_broken.nothing_lingers, "users, dual_write, absent: old insert | old delete-if", TOLD),
    ],
    ids=["late requests", "content", "the journal", "replicas", "traces"],
)
def test_a_lost_answer_is_settled_by_all_of_its_rules(rule: Any, name: str, what: str) -> None:
    """Late requests are waited for, content is no proof, the journal and the replicas tell who else wrote,
    and a write that met an unfinished one leaves a trace (ADR 0035)."""
    with rule():
        lost(dual(name, replace(OPEN, preemptions=1)), what)


BACKFILL: dict[str, Any] = {"backfill": True, "copied": False}


@pytest.mark.parametrize(
    ("rules", "parts", "name", "budget", "more", "what"),
    [
        ((), DualParts(journal=dual_broken.LateIntents), "old replace", CRASH, {}, OLDER),
        (
            (dual_broken.no_last_look, dual_broken.nothing_lingers),
            DualParts(),
            "absent: old insert | old delete",
            CALM,
            {},
            EXTRA,
        ),
        (
            (dual_broken.reads_after, dual_broken.no_last_look, dual_broken.nothing_lingers),
            DualParts(),
            "old replace | old replace",
            CALM,
            {},
            OLDER,
        ),
        (
            (dual_broken.unconditional, dual_broken.no_last_look, dual_broken.nothing_lingers),
            DualParts(),
            "old replace | old replace",
            CALM,
            {},
            OLDER,
        ),
        ((), DualParts(copier=broken.UpsertingCopier), "old replace", CALM, BACKFILL, OLDER),
        (
            (dual_broken.nothing_lingers,),
            DualParts(sweep=broken.no_sweep),
            "old delete",
            CALM,
            BACKFILL,
            EXTRA,
        ),
        ((), DualParts(older_than_s=0.0), "old replace", CRASH, {"sweeps": True}, OLDER),
        (
            (),
            DualParts(writer=dual_broken.ForgetsOpenWrites),
            "old replace",
            replace(OPEN, failures=1),
            {},
            OLDER,
        ),
        (
            (dual_broken.no_wait_for_what_is_late,),
            DualParts(),
            "old replace | old replace",
            replace(OPEN, preemptions=1),
            {},
            OLDER,
        ),
        *(
            ((rule,), DualParts(), "old delete-if | old delete-if", replace(OPEN, preemptions=1), {}, TOLD)
            for rule in (
                dual_broken.content_is_proof,
                dual_broken.journal_is_not_asked,
                dual_broken.replicas_are_not_asked,
            )
        ),
    ],
    ids=[
        "intents are durable",
        "the last look",
        "replicas are read before",
        "conditional replica writes",
        "the backfill inserts if absent",
        "a sweep",
        "young intents",
        "open outcomes",
        "late requests",
        "content",
        "the journal",
        "replicas",
    ],
)
def test_without_a_stored_mapping_the_same_rules_are_needed(
    rules: Sequence[Any],
    parts: DualParts,
    name: str,
    budget: Budget,
    more: dict[str, Any],
    what: str,
) -> None:
    """All but those about claims and listed keys: these are there at any time."""
    phase = "dual_write, " if name.startswith("absent") else "dual_write: "
    with ExitStack() as stack:
        for rule in rules:
            stack.enter_context(rule())
        lost(dual(f"inverted, {phase}{name}", budget, parts, **more), what)


@pytest.mark.parametrize(
    ("rule", "name", "budget", "what"),
    [
        (
            dual_broken.no_waiting,
            "inverted, dual_write: old replace-if | new replace-if",
            Budget(preemptions=2),
            TOLD,
        ),
        (
            dual_broken.no_draining,
            "inverted, dual_write: old replace",
            Budget(preemptions=1, crashes=1, failures=1, late_requests=True),
            TOLD,
        ),
        (dual_broken.no_waiting, "inverted, source: old replace", Budget(preemptions=4), OLDER),
    ],
    ids=["clients are waited for", "the journal is drained", "no client is two epochs behind"],
)
def test_without_a_stored_mapping_the_authority_moves_by_the_same_rules(
    rule: Any, name: str, budget: Budget, what: str
) -> None:
    with rule():
        lost(moving(name, budget, looks=0), what)


MOVE = "lowered, cutover: old batch of delete and insert"


def test_after_cutover_a_row_that_was_moved_says_itself_whose_it_is() -> None:
    """The claim follows it: until then it names the old key of the row that is gone."""
    with dual_broken.claims_alone_say_whose_a_row_is():
        lost(dual(MOVE, Budget(preemptions=0)), "1 intents are left")


def test_the_target_says_nothing_of_a_row_that_no_kind_takes() -> None:
    """Its forward row lists keys of the time when a kind took it, and no row is under them any more."""
    name = "drops, cutover, a draft: new insert"
    assert not dual(name, CRASH).loss
    with dual_broken.rows_of_no_kind_follow_the_target():
        lost(dual(name, CRASH), TOLD)


def test_nothing_shows_who_deleted_a_row_that_no_kind_takes() -> None:
    """It has no replica, and neither has the row that another client then creates."""
    with dual_broken.rows_of_no_kind_leave_traces():
        name = "drops by key, dual_write: old delete | old insert"
        lost(dual(name, replace(OPEN, preemptions=1)), TOLD)


BATCH = "old batch of delete and insert"


@pytest.mark.parametrize(
    ("rule", "name", "budget", "what"),
    [
        (
            dual_broken.index_rows_of_former_owners_stay,
            f"handles, dual_write: {BATCH}",
            CALM,
            "GuestsBySeat holds 1 rows that no source row gives",
        ),
        (
            dual_broken.secondary_rows_of_former_owners_stay,
            f"benches, dual_write: {BATCH}",
            CALM,
            "1 secondary rows are not what their main rows give",
        ),
        (
            dual_broken.claims_say_whose_a_passing_row_is,
            "benches, cutover: old batch that keeps the seat",
            CALM,
            "a row stands without the row that it goes with",
        ),
        (
            dual_broken.main_rows_pass_on_alone,
            "benches, dual_write: old delete | old insert the other",
            BOUNDED,
            "1 secondary rows are not what their main rows give",
        ),
        (
            dual_broken.deletes_believe_the_claim,
            f"benches, cutover: {BATCH} | new delete",
            BOUNDED,
            "a row stands without the row that it goes with",
        ),
        (
            dual_broken.claims_alone_say_whose_a_replica_is,
            "handles, dual_write: old delete | old insert the other",
            Budget(failures=1, preemptions=1),
            "GuestsV2 holds 1 rows that no source row gives",
        ),
        (
            dual_broken.moved_keys_stay_reserved,
            f"lowered, cutover: {BATCH} | new delete",
            BOUNDED,
            "1 target keys are reserved",
        ),
    ],
)
def test_a_main_key_passes_on_with_all_that_points_to_it(
    rule: Any, name: str, budget: Budget, what: str
) -> None:
    with rule():
        lost(dual(name, budget), what)


TWO_SPELLINGS = "lowered, dual_write, gone: old insert | old insert the other"
TWO_GUESTS = "seats, dual_write, gone: old insert | old insert the other"
TWO_ROWS = "two rows of the source map to one target key"
LEFT_OVER = "1 intents are left"


@pytest.mark.parametrize(
    ("rule", "name", "what"),
    [
        (dual_broken.no_target_key_reservations, TWO_SPELLINGS, LEFT_OVER),
        (dual_broken.no_target_key_reservations, TWO_GUESTS, LEFT_OVER),
        (dual_broken.reservations_are_not_waited_for, TWO_SPELLINGS, LEFT_OVER),
        (dual_broken.own_claims_are_not_reserved, TWO_SPELLINGS, TWO_ROWS),
        (dual_broken.index_keys_are_not_claimed, TWO_GUESTS, LEFT_OVER),
        (
            dual_broken.upserts_are_sent_as_given,
            "lowered, dual_write: old upsert | old delete, then insert the other",
            TWO_ROWS,
        ),
        (
            dual_broken.upserts_are_sent_as_given,
            "lowered, cutover, gone: new upsert | new upsert the other",
            TWO_ROWS,
        ),
    ],
)
def test_of_two_rows_that_want_one_target_key_one_is_refused(rule: Any, name: str, what: str) -> None:
    """A write that creates a row reserves its keys, also where the claim is its own; a reservation of another
    write is waited for; only a write that reserved its keys can create a row."""
    with rule():
        lost(dual(name, BOUNDED), what)


def test_the_owner_of_a_deleted_row_is_read_after_the_delete() -> None:
    """Another client may claim the key and make the row while it is being deleted."""
    with dual_broken.owner_is_read_once():
        lost(dual("users, cutover, absent: new insert | new delete", BOUNDED), "UsersV2 lacks 1 rows")


def test_a_freeze_waits_until_every_client_has_acknowledged_it_or_is_over() -> None:
    """Otherwise two sides decide at the same time: two conditional writes on one version both succeed."""
    with dual_broken.no_waiting():
        name = "users, dual_write: old replace-if | new replace-if"
        lost(moving(name, Budget(preemptions=2), looks=0), TOLD)


def test_the_journal_is_drained_before_the_authority_moves() -> None:
    """A write that nobody carried over is taken back by the side that decides then."""
    with dual_broken.no_draining():
        budget = Budget(preemptions=1, crashes=1, failures=1, late_requests=True)
        lost(moving("users, dual_write: old replace", budget, looks=0), TOLD)


def test_no_client_is_two_epochs_behind() -> None:
    """A client that still writes plainly while rows are copied: nothing follows what it writes."""
    with ExitStack() as stack:
        stack.enter_context(dual_broken.no_waiting())
        lost(moving("users, source: old replace", Budget(preemptions=4), looks=0), OLDER)
