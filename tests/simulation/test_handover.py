"""Index tables after `complete`, in every order. Several clients maintain them until the handover. After it
the runner settles what a killed client left, and takes nothing from an application that maintains them
itself. With the rules switched off the searches find the index rows that rot. Without a stored mapping there
are no index tables, hence no such worlds.

Soak: large worlds; an open outcome beside an application that maintains its index rows; each rule switched
off.
Reason, and what `make test` covers: up to four minutes each, or shows the search; one client with most
faults, pairs without preemptions.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation import broken, dual_broken
from tests.simulation.dual_cases import dual
from tests.simulation.explore import Budget, Searched
from tests.simulation.handover_small import handing_over
from tests.soaking import others_in_soak

FAULTS = {
    "no faults": Budget(),
    "a crash, late requests": Budget(crashes=1, late_requests=True),
    "an open outcome": Budget(lost_answers=1, late_requests=True),
    "a busy service": Budget(failures=1),
}


ROT = "what their main rows give"
UNMAPPED = "a target row has no mapping row"


def visited(name: str, found: Searched, *, at_least: int) -> None:
    print(f"{name}: {found}")
    assert not found.loss, (found.loss, found.schedule)
    assert found.states >= at_least


MAINTAINED = [
    ("posts, complete: new replace", "a crash, late requests", None),
    ("posts, complete: new delete", "an open outcome", 0),
    ("posts, complete: new delete", "a busy service", None),
    ("posts, complete: new replace | new delete", "no faults", 0),
    ("posts, complete: new merge | new replace-if", "no faults", 0),
    ("posts, complete: new move | new replace", "no faults", 0),
    ("posts, complete, absent: new insert | new upsert", "no faults", 0),
    ("races, complete: new move", "a crash, late requests", None),
    ("races, complete: new move | new delete", "no faults", 0),
    ("posts, complete: new replace | new delete", "a crash, late requests", 0),
    ("posts, complete: new delete, then insert | new merge", "no faults", 0),
    ("races, complete: new batch | new merge", "no faults", 0),
    ("folded, complete: new delete | new upsert the other", "no faults", 0),
    ("posts, complete: new merge", "an open outcome", 0),
]
LARGE = [MAINTAINED[4], MAINTAINED[6], *MAINTAINED[9:14]]


@pytest.mark.parametrize(
    ("name", "faults", "bound"),
    others_in_soak(MAINTAINED, kept=[one for one in MAINTAINED if one not in LARGE]),
)
def test_index_rows_follow_every_write_after_complete(name: str, faults: str, bound: int | None) -> None:
    budget = FAULTS[faults] if bound is None else replace(FAULTS[faults], preemptions=bound)
    visited(f"{name}, {faults}", dual(name, budget), at_least=5)


@pytest.mark.soak
@pytest.mark.parametrize(
    "name",
    [
        "posts, complete: new merge",
        "posts, complete: new delete",
        "posts, complete, absent: new insert | new upsert",
        "races, complete: new move",
    ],
)
def test_where_clients_write_main_rows_alone_after_complete_their_index_rows_rot(name: str) -> None:
    with dual_broken.main_rows_alone_after_complete():
        found = dual(name, Budget(preemptions=0))
    assert found.loss.endswith(ROT) or found.loss == UNMAPPED, found


HANDED_OVER = [
    ("posts, complete: new replace", True),
    ("posts, complete: new delete", True),
    ("posts, complete: new upsert", False),
    ("folded, complete: new upsert", False),
    ("posts, complete: new upsert, then delete", True),
]


SWEPT = [(name, lacks, faults) for name, lacks in HANDED_OVER for faults in ("no faults", "an open outcome")]


@pytest.mark.parametrize(
    ("name", "lacks", "faults"),
    others_in_soak(SWEPT, kept=[one for one in SWEPT if one[2] == "no faults"]),
)
def test_the_runner_takes_nothing_from_an_application_that_maintains_its_index_rows(
    name: str, lacks: bool, faults: str
) -> None:
    budget = replace(FAULTS[faults], preemptions=2)
    visited(f"{name}, handed over, {faults}", handing_over(name, budget, lacks=lacks), at_least=20)


@pytest.mark.soak
def test_a_runner_that_does_not_read_the_main_row_again_revives_an_index_row() -> None:
    with broken.no_look_after_writing():
        found = handing_over("posts, complete: new delete", Budget(preemptions=2), lacks=True)
    assert found.loss.endswith(ROT) or found.loss == UNMAPPED, found


@pytest.mark.soak
def test_a_runner_that_writes_without_conditions_takes_an_index_row_from_the_application() -> None:
    """Reading the main row again makes up for that. Without both the index row is gone."""
    name, budget = "folded, complete: new upsert", Budget(preemptions=2)
    with broken.no_look_after_writing():
        assert not handing_over(name, budget, lacks=False).loss
        with broken.unconditional():
            found = handing_over(name, budget, lacks=False)
    assert found.loss.endswith(ROT) or found.loss == UNMAPPED, found
