"""Every order in which the calls of dual writes can take effect on one key, with a crash, an open outcome, a
busy service or a late request anywhere: the journal empties, replicas are what the authority says, and what
clients were told is what one row that changes at once could have said.

What is searched: two clients in both views, in `dual_write` (the source is the authority) and in `cutover`
(the target is), with keys from keys (users), keys from content with an index table (posts) and keys that pass
from one row to another (folded; seats, for those of an index), alone or beside a backfill and its sweep, a
sweeper of the journal, or a runner that takes the authority to the other side. A search says how many states
it visited, and whether it is complete or bounded by a number of preemptions. Worlds here are chosen to take
seconds; `make soak` draws from all of them, with larger bounds.

Soak: large worlds and bounds; worlds that are drawn.
Reason, and what `make test` covers: up to half an hour; each operation with some faults and each fault with
several kinds of keys in both phases, pairs with at most one preemption, moves with none or one.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from dataclasses import replace
from math import inf

import pytest

from tests.simulation.dual_cases import DELETED_AND_WRITTEN_ELSEWHERE, KINDS, dual, moving
from tests.simulation.explore import Budget, Searched, TooMany
from tests.soaking import others_in_soak, soak_seconds

FAULTS = {
    "no faults": Budget(),
    "a crash, late requests": Budget(crashes=1, late_requests=True),
    "an open outcome": Budget(lost_answers=1, late_requests=True),
    "a busy service": Budget(failures=1),
    "an open outcome, then no connection": Budget(
        lost_answers=1, late_requests=True, failures=1, unreachable=True, preemptions=0
    ),
}
BOUND = 4
"""Preemptions of the searches that are too large to be complete."""


def visited(name: str, found: Searched, *, at_least: int) -> None:
    """Say how much was visited; nothing may be lost, and a search that shrank is no search."""
    print(f"{name}: {found}")
    assert not found.loss, (found.loss, found.schedule)
    assert found.states >= at_least


ONE_CLIENT = [
    "users, dual_write: old replace",
    "users, cutover: new delete",
    "users, dual_write: new merge",
    "users, cutover: old upsert",
    "inverted, dual_write: old replace",
    "inverted, dual_write: new delete",
    "inverted, cutover, absent: new insert",
    "inverted, cutover: old batch of delete and insert",
    "tenants, cutover: old replace beside, then replace",
    "posts, dual_write: old move",
    "posts, dual_write: old move, then delete",
    "posts, cutover: new move",
    "lowered, dual_write: old batch of delete and insert",
    "lowered, cutover: old batch of delete and insert",
    "folded, cutover: old batch of delete and insert",
    "handles, dual_write: old batch of delete and insert",
    "handles, cutover: old batch of delete and insert",
    "benches, dual_write: old batch of delete and insert",
    "benches, cutover: old batch of delete and insert",
    "benches, dual_write: old batch that keeps the seat",
    "benches, cutover: old batch that keeps the seat",
    "tickets, dual_write: old close",
    "tickets, cutover: old merge a close",
    "apart, dual_write: old close",
    "apart, dual_write: new replace",
    "apart, cutover: old close",
    "apart, cutover: new delete",
    "apart by owner, dual_write: old close",
    "apart by owner, cutover: new delete",
    "apart by owner, cutover, absent: new insert",
    "apart by owner, complete: new replace",
    "drops, dual_write: old draft by replace",
    "drops, dual_write, a draft: old replace",
    "drops, cutover, a draft: old merge a number",
    "drops, cutover, a draft: old delete",
    "drops, cutover, a draft: new insert",
    "drops by key, dual_write: old delete",
    "drops by key, cutover: old replace",
    "races, dual_write: old move",
    "races, dual_write: new move",
    "races, cutover: new move",
    "races, cutover: old rename",
    "races, cutover: new delete",
]
LARGE = (
    ("tickets, dual_write: old close", "an open outcome"),
    ("tickets, dual_write: old close", "a busy service"),
    ("tickets, cutover: old merge a close", "an open outcome"),
    ("posts, dual_write: old move", "an open outcome"),
    ("posts, dual_write: old move", "a busy service"),
    ("races, cutover: old rename", "an open outcome"),
    ("lowered, dual_write: old batch of delete and insert", "an open outcome"),
    ("folded, cutover: old batch of delete and insert", "a busy service"),
    ("folded, cutover: old batch of delete and insert", "an open outcome"),
    ("lowered, cutover: old batch of delete and insert", "an open outcome"),
    ("lowered, dual_write: old batch of delete and insert", "a busy service"),
    ("races, cutover: new move", "an open outcome"),
    ("races, cutover: old rename", "a busy service"),
    ("races, cutover: old rename", "a crash, late requests"),
    ("races, dual_write: old move", "an open outcome"),
    ("races, dual_write: new move", "an open outcome"),
    ("posts, dual_write: old move", "a crash, late requests"),
    *(("posts, dual_write: old move, then delete", faults) for faults in FAULTS),
    *(
        (name, "an open outcome, then no connection")
        for name in ONE_CLIENT
        if name != "users, dual_write: old replace"
    ),
    ("races, dual_write: old move", "a busy service"),
    ("races, dual_write: new move", "a busy service"),
    ("races, cutover: new move", "a busy service"),
    ("races, cutover: new move", "a crash, late requests"),
    ("drops, cutover, a draft: new insert", "a crash, late requests"),
    ("folded, cutover: old batch of delete and insert", "a crash, late requests"),
    ("benches, cutover: old batch that keeps the seat", "a crash, late requests"),
    ("lowered, cutover: old batch of delete and insert", "a busy service"),
    ("benches, cutover: old batch that keeps the seat", "an open outcome"),
    ("benches, cutover: old batch that keeps the seat", "a busy service"),
    ("benches, dual_write: old batch that keeps the seat", "an open outcome"),
    ("benches, dual_write: old batch that keeps the seat", "a busy service"),
    ("benches, dual_write: old batch that keeps the seat", "a crash, late requests"),
    ("lowered, dual_write: old batch of delete and insert", "a crash, late requests"),
    *(
        (name, faults)
        for name in (
            "apart, dual_write: old close",
            "drops, dual_write, a draft: old replace",
            "drops, cutover, a draft: new insert",
        )
        for faults in ("an open outcome", "a busy service")
    ),
    *(
        (name, faults)
        for name in ("apart by owner, dual_write: old close", "apart by owner, cutover, absent: new insert")
        for faults in ("an open outcome", "a busy service", "a crash, late requests")
    ),
    *(
        (f"{kind}, {phase}: old batch of delete and insert", faults)
        for kind in ("handles", "benches")
        for phase in ("dual_write", "cutover")
        for faults in ("a busy service", "an open outcome", "a crash, late requests")
    ),
)
"""A source row, a main row and index rows, one request after the other: as long as all others together."""
ALONE = list(itertools.product(ONE_CLIENT, FAULTS))


@pytest.mark.parametrize(
    ("name", "faults"),
    others_in_soak(ALONE, kept=set(ALONE) - set(LARGE)),
)
def test_one_client_loses_nothing_whatever_happens_to_it(name: str, faults: str) -> None:
    found = dual(name, FAULTS[faults], most_seconds=soak_seconds() if (name, faults) in LARGE else inf)
    visited(f"{name}, {faults}", found, at_least=3)


TWO_CLIENTS_QUICK = [
    ("users, dual_write: old replace | old replace", "no faults", 1),
    ("tenants, dual_write: old batch beside, then replace | old replace", "no faults", 0),
    ("tenants, cutover: old replace beside, then upsert | new delete", "no faults", 1),
    ("tenants, cutover: old upsert | old delete-if beside", "an open outcome", 0),
    ("users, dual_write: old merge | old delete", "a crash, late requests", 0),
    ("users, dual_write, absent: old insert | old delete", "no faults", 0),
    ("users, dual_write: old delete-if | old delete-if", "an open outcome", 0),
    ("users, dual_write: old replace-if | old replace-if", "no faults", 0),
    ("users, dual_write: old merge | new replace-if", "no faults", 1),
    ("users, cutover: new replace | new delete", "no faults", 0),
    ("users, cutover: new merge | old replace-if", "no faults", 0),
    ("users, cutover: old delete | new upsert", "no faults", 0),
    ("inverted, dual_write: old replace | old replace", "no faults", 1),
    ("inverted, dual_write: old delete-if | old delete-if", "an open outcome", 0),
    ("inverted, dual_write, absent: old insert | old delete", "no faults", 1),
    ("inverted, dual_write: old merge | new replace-if", "no faults", 1),
    ("inverted, cutover, absent: new insert | new delete", "no faults", 1),
    ("inverted, cutover: old delete | new upsert", "no faults", 1),
    ("posts, cutover: old delete | new replace", "no faults", 0),
    ("folded, cutover: new delete | old upsert the other", "no faults", 0),
    ("lowered, cutover: old batch of delete and insert | new replace", "no faults", 0),
    ("lowered, dual_write: old batch of delete and insert | old insert, then insert", "no faults", 0),
    ("races, cutover: new move | old delete", "no faults", 0),
    ("lowered, dual_write, gone: new upsert | new insert the other", "no faults", 0),
    ("lowered, cutover, gone: old insert | old insert the other", "no faults", 0),
    ("tickets, dual_write: old close | new delete", "no faults", 0),
    ("drops, dual_write: old draft by replace | old merge", "no faults", 0),
    ("drops, dual_write: old draft by upsert | new delete", "no faults", 0),
    ("drops, dual_write, a draft: old replace | new insert", "no faults", 0),
    ("drops, cutover, a draft: old merge a number | new insert", "no faults", 0),
    ("drops, cutover, a draft: old delete | old insert", "no faults", 0),
    ("drops by key, dual_write: old replace | old merge", "no faults", 1),
    ("drops by key, cutover: old delete | old replace", "an open outcome", 0),
    ("tickets, cutover: old close | new replace", "no faults", 0),
    ("apart, dual_write: old close | old delete", "no faults", 0),
    ("apart, dual_write: old close | new replace", "no faults", 0),
    ("apart, cutover: old delete | new upsert closed", "no faults", 0),
    ("apart by owner, dual_write: old close | new replace", "no faults", 0),
    ("apart by owner, cutover: old replace | new delete", "no faults", 0),
    ("seats, dual_write, gone: old insert | old insert the other", "no faults", 0),
]
TWO_CLIENTS = [
    *TWO_CLIENTS_QUICK,
    ("posts, dual_write: old move | old delete", "no faults", 0),
    ("tickets, cutover, absent: old upsert closed | new insert", "no faults", 0),
    ("handles, dual_write: old delete | old insert the other", "a busy service", 1),
    ("lowered, dual_write, gone: old upsert | old upsert the other", "a crash, late requests", 0),
    ("lowered, dual_write, gone: old upsert | old upsert the other", "an open outcome", 0),
    ("lowered, dual_write, gone: old upsert | old upsert the other", "a busy service", 0),
    ("lowered, dual_write, absent: old insert | old insert the other", "no faults", 1),
    ("lowered, cutover, gone: old insert | new insert the other", "no faults", 1),
    ("lowered, cutover, gone: new upsert | new upsert the other", "an open outcome", 0),
    ("lowered, cutover, gone: new upsert | new insert the other", "no faults", 1),
    ("folded, dual_write: new delete | old upsert the other", "an open outcome", 0),
    ("races, cutover, absent: new insert | old upsert elsewhere", "no faults", 0),
    ("users, dual_write, absent: old insert | old delete", "an open outcome", 0),
    ("users, dual_write: old upsert | old replace-if", "an open outcome", 0),
    ("users, dual_write: old delete | old delete-if", "an open outcome", 1),
    ("users, dual_write: old delete-if | old delete-if", "an open outcome", 1),
    ("users, cutover, absent: new insert | new delete", "no faults", 1),
    ("users, dual_write: new delete | old upsert-merge", "no faults", 1),
    ("lowered, cutover: old batch of delete and insert | new delete", "no faults", 1),
    ("races, dual_write: old move | old rename", "no faults", 0),
    ("benches, cutover: old batch of delete and insert | new delete", "no faults", 1),
    ("benches, dual_write: old delete | old insert the other", "no faults", 1),
    ("handles, dual_write: old batch of delete and insert | new upsert", "a crash, late requests", 0),
    ("handles, cutover: old batch of delete and insert | new delete", "no faults", 0),
    ("lowered, dual_write: old upsert | old delete, then insert the other", "no faults", 0),
    ("lowered, cutover, gone: new replace | new insert the other", "no faults", 1),
    ("lowered, cutover, gone: new merge | new insert the other", "no faults", 1),
    ("lowered, dual_write, gone: old insert | old insert the other", "no faults", 1),
    ("lowered, dual_write, gone: new upsert | old upsert the other", "no faults", 1),
    ("seats, cutover, gone: new upsert | new upsert the other", "no faults", 0),
    ("seats, dual_write: old leave the seat | old upsert the other", "no faults", 0),
    ("posts, cutover, absent: new insert | old upsert elsewhere", "no faults", 0),
    ("posts, dual_write: old merge | new replace-if", "no faults", 0),
    ("apart, cutover, absent: new insert | new upsert closed", "no faults", 0),
    ("apart by owner, dual_write: old close | old delete", "no faults", 0),
    ("apart by owner, cutover: old delete | new upsert closed", "no faults", 0),
    ("lowered, cutover, gone: new upsert | new upsert the other", "no faults", 0),
    ("drops by key, dual_write: old delete | old insert", "an open outcome", 1),
    ("lowered, dual_write: old batch of delete and insert | old replace", "no faults", 0),
    ("users, dual_write: old batch | old delete-if", "no faults", 0),
    ("folded, dual_write: old delete | old insert the other", "no faults", 0),
    ("tickets, dual_write: old close | old merge", "no faults", 0),
]
BESIDE_A_BACKFILL = [
    ("users, dual_write: old delete", "a crash, late requests", 0),
    ("users, dual_write: old replace", "no faults", 1),
    ("users, dual_write, absent: old insert", "no faults", 1),
    ("inverted, dual_write: old delete", "a crash, late requests", 0),
    ("inverted, dual_write: old replace", "no faults", 1),
    ("inverted, dual_write, absent: old insert", "no faults", 1),
    ("posts, dual_write: old move", "no faults", 0),
    ("tickets, dual_write: old close", "no faults", 0),
    ("apart, dual_write: old close", "no faults", 0),
    ("apart by owner, dual_write: old close", "no faults", 0),
    ("drops, dual_write: old draft by replace", "no faults", 0),
    ("drops, dual_write, a draft: old replace", "no faults", 0),
    ("races, dual_write: old move", "no faults", 0),
]
"""Worlds with the preemptions that take seconds; `make soak` searches each with four: up to half an hour."""
BESIDE_A_BACKFILL_IN_THE_SOAK = [
    (f"{kind}, dual_write: old batch of delete and insert", "no faults", 1)
    for kind in ("lowered", "handles", "benches")
]

_EACH = 6
"""Of SOAK_SECONDS each of some fifty worlds has this part."""


@pytest.mark.parametrize(
    ("name", "faults", "bound"),
    others_in_soak(TWO_CLIENTS, kept=TWO_CLIENTS_QUICK),
)
def test_two_clients_lose_nothing(name: str, faults: str, bound: int) -> None:
    visited(f"{name}, {faults}", dual(name, replace(FAULTS[faults], preemptions=bound)), at_least=50)


@pytest.mark.parametrize(
    ("name", "faults", "bound"),
    others_in_soak(BESIDE_A_BACKFILL, [one for one in BESIDE_A_BACKFILL if not one[0].startswith("posts")]),
)
def test_a_client_loses_nothing_beside_a_backfill_and_its_sweep(name: str, faults: str, bound: int) -> None:
    budget = replace(FAULTS[faults], preemptions=bound)
    found = dual(name, budget, backfill=True, copied=False)
    visited(f"{name}, backfill, {faults}", found, at_least=50)


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("users, dual_write: old replace", "a crash, late requests"),
        ("users, dual_write: old replace", "an open outcome"),
        ("users, cutover: new replace", "a crash, late requests"),
        ("inverted, cutover: new delete", "a crash, late requests"),
        # As long as the others together; it differs from the second in the side that is the authority.
        pytest.param("users, cutover: new replace", "an open outcome", marks=pytest.mark.soak),
    ],
)
def test_a_sweeper_at_work_beside_a_client_takes_nothing_from_it(name: str, faults: str) -> None:
    found = dual(name, replace(FAULTS[faults], preemptions=BOUND), sweeps=True)
    visited(f"{name}, sweeper, {faults}", found, at_least=20)


@pytest.mark.parametrize(
    ("name", "bound", "looks"),
    [
        ("users, dual_write: old replace", 1, 0),
        ("users, dual_write: new merge", 0, 1),
        ("users, cutover: new delete", 0, 1),
        ("users, source: old replace", 0, 1),
    ],
)
def test_the_authority_moves_beside_a_client_and_nothing_is_lost(name: str, bound: int, looks: int) -> None:
    """The runner waits, freezes, drains and moves; the client looks at the control row when it likes. `make
    soak` searches these and more with larger bounds."""
    visited(f"{name}, moving", moving(name, Budget(preemptions=bound), looks=looks), at_least=180)


@pytest.mark.parametrize("name", ["inverted, dual_write: new merge", "inverted, cutover: old delete"])
def test_the_authority_moves_beside_a_client_without_a_stored_mapping(name: str) -> None:
    """Fewer requests are made, so fewer states are visited."""
    visited(f"{name}, moving", moving(name, Budget(preemptions=0), looks=1), at_least=140)


@pytest.mark.parametrize(
    "name",
    ["users, cutover: new delete", pytest.param("users, dual_write: old replace", marks=pytest.mark.soak)],
)
def test_orders_that_are_taken_for_equal_end_alike(name: str) -> None:
    """What is left out (the order of answers within a process, calls that commute with all others') is
    followed all the same: more states, the same ends."""
    few, every = (dual(name, Budget(all_orders=all_orders), sweeps=True) for all_orders in (False, True))
    print(f"{few}; all orders: {every}")
    assert few.states < every.states
    assert few.ends == every.ends


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("users, dual_write: old delete", {"backfill": True, "copied": False}),
        ("users, dual_write: old delete | old read", {}),
        ("users, cutover: new delete | old read", {}),
    ],
)
def test_more_orders_that_are_taken_for_equal_end_alike(name: str, beside: dict[str, bool]) -> None:
    """All orders are too many to be followed to the end: no end that is found in the time is a new one."""
    few = dual(name, Budget(), **beside)
    every = dual(
        name,
        Budget(all_orders=True),
        most_states=100_000_000,
        most_seconds=soak_seconds(),
        **beside,
    )
    print(f"{name}: {few}; all orders: {every}")
    assert every.ends <= few.ends
    assert every.ended is not None or (few.states < every.states and few.ends == every.ends)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_what_an_attempt_left_open_keeps_the_intent_though_the_next_one_succeeds() -> None:
    """Found by this search: a write across views brought rows in step first, and one of those requests landed
    behind everything, after the intent was gone."""
    name = "posts, dual_write: new replace-if | new replace"
    found = dual(name, replace(FAULTS["an open outcome"], preemptions=1), most_seconds=soak_seconds())
    visited(name, found, at_least=100)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_row_deleted_and_written_elsewhere_stays() -> None:
    """Found on Azurite: the look behind the delete took the row for gone and deleted its source row."""
    found = dual(DELETED_AND_WRITTEN_ELSEWHERE, Budget(preemptions=1), most_seconds=soak_seconds())
    visited(DELETED_AND_WRITTEN_ELSEWHERE, found, at_least=100)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("name", "faults", "bound"), [*TWO_CLIENTS, *BESIDE_A_BACKFILL, *BESIDE_A_BACKFILL_IN_THE_SOAK]
)
def test_with_up_to_four_preemptions_nothing_is_lost_either(name: str, faults: str, bound: int) -> None:
    """Those with few preemptions come first; what is printed says how far a search came in its time."""
    is_beside = (name, faults, bound) in [*BESIDE_A_BACKFILL, *BESIDE_A_BACKFILL_IN_THE_SOAK]
    more = {"backfill": True, "copied": False} if is_beside else {}
    budget = replace(FAULTS[faults], preemptions=BOUND)
    found = dual(name, budget, most_states=10_000_000, most_seconds=soak_seconds() / _EACH, **more)
    visited(f"{name}, {faults}", found, at_least=50)


def views_of(kind: str, steps: str) -> tuple[str, ...]:
    """Return the views in which a client can do its steps: the new one has no rows that no kind takes, and
    none of another part."""
    is_old = kind == "drops by key" or "draft" in steps or "beside" in steps
    return ("old",) if is_old else ("old", "new")


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_worlds_drawn_from_all_that_there_are() -> None:
    """`make soak`: worlds drawn from a seed for as long as asked, each with at least four preemptions or
    complete; those that grow too large are searched with fewer, and say so."""
    ends = time.monotonic() + soak_seconds()
    seed = int(os.environ.get("SOAK_SEED", "1000"))
    draw = random.Random(seed)
    while time.monotonic() < ends:
        kind = draw.choice(list(KINDS))
        steps = list(KINDS[kind][2](2))
        phase = draw.choice(("dual_write", "cutover"))
        there = draw.choice(("", "", ", absent"))
        # Two clients, or one that goes on while the last looks at what it did before are still under way.
        counts = draw.choice(((1, 1), (1, 1), (2,), (3,)))
        done = [", then ".join(draw.choice(steps) for _ in range(count)) for count in counts]
        clients = " | ".join(f"{draw.choice(views_of(kind, steps))} {steps}" for steps in done)
        name, faults = f"{kind}, {phase}{there}: {clients}", draw.choice(list(FAULTS))
        more = draw.choice(({}, {}, {"sweeps": True}, {"backfill": True, "copied": False}))
        if phase == "cutover" or "new" in clients:
            more.pop("backfill", None), more.pop("copied", None)
        for bound in (BOUND, 3, 2, 1, 0):
            try:
                budget = replace(FAULTS[faults], preemptions=bound)
                found = dual(name, budget, most_seconds=soak_seconds() / _EACH, **more)
            except TooMany:
                continue
            visited(f"seed {seed}, {name}, {faults} {more}", found, at_least=1)
            break


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("name", "faults", "bound", "looks", "passages"),
    [
        ("users, dual_write: new merge", "no faults", 1, 2, 0),
        ("users, cutover: new delete", "no faults", 1, 2, 0),
        ("users, source: old replace", "no faults", 1, 2, 0),
        ("users, dual_write: old replace", "no faults", 3, 2, 0),
        ("users, dual_write: old replace", "no faults", 4, 0, 0),
        ("users, dual_write: old replace", "a crash, late requests", 1, 2, 0),
        ("users, dual_write: old replace", "an open outcome", 1, 1, 0),
        ("users, dual_write: new merge", "a busy service", 1, 1, 0),
        ("users, dual_write: old merge", "no faults", 1, 0, 1),
        ("users, cutover: old merge", "a crash, late requests", 1, 1, 0),
        ("users, dual_write: old replace-if | new replace-if", "no faults", 2, 0, 0),
        ("users, cutover: new merge | old delete", "no faults", 2, 0, 0),
        ("posts, dual_write: old move", "no faults", 1, 2, 0),
    ],
)
def test_the_authority_moves_and_nothing_is_lost_with_larger_bounds(
    name: str, faults: str, bound: int, looks: int, passages: int
) -> None:
    """How often clients look at the control row, and how often time passes while somebody could go on, are
    bounds as well."""
    budget = replace(FAULTS[faults], preemptions=bound)
    found = moving(name, budget, looks=looks, passages=passages, most_seconds=soak_seconds())
    visited(f"{name}, moving, {faults}, time passes {passages} times", found, at_least=500)
