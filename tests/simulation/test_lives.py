"""Whole lives of migrations, drawn from seeds: whatever happens, nothing is lost and nothing comes back.

A failure names its kind and seed; `Life(folder, kind, seed).live()` lives it again. `make soak` goes on with
new seeds for SOAK_SECONDS, from SOAK_SEED on.

Soak: seed 2; seed 9; a second repeated one; as long as allowed.
Reason, and what `make test` covers: a life of each kind, one repeated.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.life import KINDS, Life
from tests.simulation.living import lived
from tests.soaking import others_in_soak

QUICK_SEEDS = (1,)
MORE_SEEDS = (2,)
"""For the soak, which lives more lives of all kinds anyway."""
pytestmark = pytest.mark.xdist_group("lives")


@pytest.mark.parametrize("seed", others_in_soak([*QUICK_SEEDS, *MORE_SEEDS], kept=QUICK_SEEDS))
@pytest.mark.parametrize("kind", KINDS)
def test_a_life_loses_nothing(kind: str, seed: int) -> None:
    """Writers at work, kills, lost answers, late requests, failures, odd pages: targets equal the mapping of
    the source after every cutover, and the source is what the target was after every way back. After every
    single request secondary rows are those that their main rows give."""
    life = lived(Life, kind, seed)
    assert life.adversary.happened["write"] > 0
    assert bool(life.pairs.looks) == bool(life.mapper.co_located)


@pytest.mark.parametrize(
    ("kind", "seed"), [("keys that pass", 9), ("keys from keys", 14), ("keys from content", 6)]
)
def test_what_lands_late_brings_nothing_back(tmp_path: Path, kind: str, seed: int) -> None:
    """Found in these lives: a row that came back behind the cutover, twice; and mapping rows left of a run
    that was taken back whole."""
    Life(tmp_path, kind, seed, moves=False).live()


@pytest.mark.parametrize("seed", others_in_soak([9, 21], kept=[21]))
def test_what_a_rollback_copied_before_it_was_killed_does_not_stop_the_next(
    tmp_path: Path, seed: int
) -> None:
    """Found in these lives, without a stored mapping: the application deletes such a row, which is newer than
    the freeze."""
    Life(tmp_path, "keys that say the old ones", seed, goes_on=True).live()


def test_what_lands_late_takes_no_root_key_of_a_migration_that_began_anew(tmp_path: Path) -> None:
    """Found here: the way back deleted the root key twice; the first delete landed in the next run."""
    Life(tmp_path, "keys from keys", 1003).live()


def test_over_the_quick_seeds_everything_happens() -> None:
    """A simulation in which nothing goes wrong would prove nothing."""
    lives = [lived(Life, kind, seed) for kind in KINDS for seed in QUICK_SEEDS]
    lives.append(lived(Life, "keys from content", 5))  # targets are dropped that hold more than the source
    happened = {event for life in lives for event in life.adversary.happened}
    expected = {"write", "kill", "late request", "lost-answer", "lost-request", "empty-page", "short-page"}
    expected |= {"clock set", "reason given"}
    assert expected <= happened


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("keys from content", id="in the clear", marks=pytest.mark.soak),
        pytest.param("keys from keys", id="sealed"),
    ],
)
def test_a_seed_is_a_life(tmp_path: Path, kind: str) -> None:
    """The same seed gives the same calls in the same order: a failure can be lived again."""
    one, other = lived(Life, kind, 1), Life(tmp_path, kind, 1)
    other.live()
    assert one.adversary.trace == other.adversary.trace
    assert one.adversary.happened == other.adversary.happened


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_lives_for_as_long_as_asked(tmp_path: Path) -> None:
    """`make soak`: lives of all kinds, one seed after the other."""
    seconds = float(os.environ.get("SOAK_SECONDS", "60"))
    seed = first = int(os.environ.get("SOAK_SEED", "1000"))
    happened: Counter[str] = Counter()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for kind in KINDS:
            folder = tmp_path / f"{kind} {seed}".replace(" ", "-")
            life = Life(folder, kind, seed, goes_on=bool(seed % 2))
            life.live()
            happened += life.adversary.happened
        seed += 1
    listed = ", ".join(f"{count:,} × {what}" for what, count in sorted(happened.items()))
    print(f"\nseeds {first} to {seed - 1}, each in {len(KINDS)} kinds: {listed}")
