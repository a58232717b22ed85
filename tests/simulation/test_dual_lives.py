"""Whole lives of dual-write migrations, drawn from seeds: the application never stops, and nothing is lost.

A failure names its kind and seed; `Life(folder, kind, seed).live()` lives it again. `make soak` goes on with
new seeds for SOAK_SECONDS, from SOAK_SEED on.

Soak: whole lives, two of three kinds with shared target keys, repeated ones; lives with a rule switched off;
as long as allowed.
Reason, and what `make test` covers: up to a minute each; a life to its cutover, and one with folded keys.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rekey.protocol import propagate
from rekey.protocol.propagate import Propagated
from rekey.protocol.reverse import ReversePropagator
from tests.simulation import dual_broken
from tests.simulation.dual_life import KINDS, Life, ToCutover
from tests.simulation.judging import Found
from tests.simulation.living import lived
from tests.soaking import others_in_soak

QUICK = (
    ("keys from keys, indexed", 7),
    ("keys from content", 37),
    ("keys from keys, secondary rows", 10),
)
"""Lives in which, together, every kind of event happens."""
SHORT = ("keys from content", 4)
"""A life of four seconds."""
IN_THE_SOAK = (
    ("keys from keys, indexed", 1),
    ("keys from content", 3),
    ("keys from keys, secondary rows", 3),
    ("keys from keys, secondary rows", 2),
    ("keys from keys", 2),
    ("keys that say the old ones", 1),
    ("keys that say the old ones", 2),
    ("keys from content", 2),
    ("keys from content, secondary rows", 2),
)
"""A life takes ten to twenty seconds of processor. The soak lives these and more of every kind."""
SHARED_QUICK = (("folded keys", 71), ("a unique index", 75), ("drawn keys, folded", 71))
"""Lives in which two rows want one target key, to their cutover: one of each kind."""
SHARED_IN_THE_SOAK = (
    *(("folded keys", seed) for seed in range(71, 81)),
    *(("a unique index", seed) for seed in range(71, 76)),
    *(("drawn keys", seed) for seed in range(71, 80)),
    *(("drawn keys, folded", seed) for seed in range(71, 77)),
)
"""The same kinds, whole lives."""
TWO_ROWS = "have target key .* in common|source rows .* map to the same key"
MORE_SEEDS = (5, 6)
EVERY_KIND_OF_EVENT = {
    "client started",
    "client closed",
    "process stopped",
    "lease expired",
    "kill",
    "runner killed",
    "late request",
    "not-sent",
    "busy",
    "timed-out",
    "lost-answer",
    "lost-request",
    "inside-batch",
    "empty-page",
    "short-page",
    "slow",
    "at the socket",
    "sent late",
    "second runner",
    "clock set",
}
pytestmark = pytest.mark.xdist_group("dual lives")


def test_a_life_to_its_cutover_loses_nothing() -> None:
    """As whole lives, which the soak lives."""
    life = lived(ToCutover, *SHORT)
    assert life.operations > 100
    assert len(life.storm.happened) > 10


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "seed"), [*QUICK, *IN_THE_SOAK])
def test_a_life_under_writes_loses_nothing(kind: str, seed: int) -> None:
    """What clients of both views were told of each key fits one row that changes at once; replicas are what
    the authority says, the mapping accounts for them and the journal is empty: after cutover, after the way
    back, after `complete`. No verification under writes has a false alarm. After every single request
    secondary rows are those that their main rows give, until the application writes them itself."""
    life = lived(Life, kind, seed)
    assert life.operations > 100
    assert bool(life.pairs.looks) == bool(life.mapper.co_located)


@pytest.mark.parametrize(("kind", "seed"), others_in_soak(SHARED_QUICK, kept=SHARED_QUICK[:1]))
def test_of_clients_that_want_one_target_key_one_has_it(kind: str, seed: int) -> None:
    """Several clients create rows whose target keys are the same, delete them and create others, also in one
    transaction. At no moment have two rows of the authority a target key in common, a client is told of a
    collision only where another row had or was taking the key, and all else holds as in other lives."""
    one_has_it(lived(ToCutover, kind, seed))


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "seed"), SHARED_IN_THE_SOAK)
def test_in_a_whole_life_of_shared_target_keys_each_is_one_rows(kind: str, seed: int) -> None:
    """On the way back, after another cutover and until `complete` too."""
    one_has_it(lived(Life, kind, seed))


def one_has_it(life: Life) -> None:
    assert life.operations > 100
    assert life.shared.looks > 100
    assert life.shared.judged == life.storm.happened["collision"]
    assert bool(life.storm.happened["collision"]) == bool(life.mapper.shared)


def happened_in(lives: Iterable[tuple[str, int]]) -> set[str]:
    return {str(event) for life in lives for event in lived(Life, *life).storm.happened}


@pytest.mark.soak
def test_over_the_quick_seeds_everything_happens() -> None:
    """A simulation in which nothing goes wrong would prove nothing."""
    assert happened_in(QUICK) >= EVERY_KIND_OF_EVENT


@pytest.mark.soak
def test_over_more_seeds_everything_happens(tmp_path: Path) -> None:
    """More lives are lived until all has."""
    happened = happened_in([*QUICK, *IN_THE_SOAK])
    for seed in MORE_SEEDS:
        if happened >= EVERY_KIND_OF_EVENT:
            return
        for kind in KINDS:
            life = Life(tmp_path / f"{kind} {seed}".replace(" ", "-"), kind, seed)
            life.live()
            happened.update(map(str, life.storm.happened))
    assert happened >= EVERY_KIND_OF_EVENT


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "seed"),
    [pytest.param(*QUICK[0], id="sealed"), pytest.param(*QUICK[1], id="in the clear")],  # sealing draws too
)
def test_a_seed_is_a_dual_life(kind: str, seed: int) -> None:
    """The same seed gives the same requests in the same order in every process: a failure can be lived again.
    What hangs on the order of a set differs from process to process."""
    one = lived(Life, kind, seed)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.simulation.living", kind, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(ran.stdout) == [one.storm.trace, str(sorted(one.storm.happened.items()))]


async def _settles_nothing(*_: object) -> Propagated:
    return Propagated()


@pytest.mark.soak
def test_without_settling_what_intents_announce_a_life_finds_the_loss(tmp_path: Path) -> None:
    """Intents that killed clients left behind are removed, and nothing is done about them."""
    with (
        mock.patch.object(ReversePropagator, "settle", _settles_nothing),
        mock.patch.object(Life, "moves", False),
        pytest.raises(Found, match="seed"),
    ):
        for seed in range(7, 20):  # one that finds it soon comes first
            Life(tmp_path / str(seed), "keys from keys, secondary rows", seed).live()


@pytest.mark.soak
def test_without_transactions_a_life_finds_half_a_pair(tmp_path: Path) -> None:
    """Main and secondary rows are written one by one, at the same time."""
    kind = "keys from keys, secondary rows"
    alone = mock.patch.object(propagate, "transactions", lambda writes, _together: [[one] for one in writes])
    here = mock.patch.object(Life, "moves", False)
    with alone, here, pytest.raises(Found, match="are not what their main rows say"):
        for seed in range(20):
            Life(tmp_path / str(seed), kind, seed).live()


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (dual_broken.no_target_key_reservations, "folded keys"),
        (dual_broken.no_target_key_reservations, "a unique index"),
        (dual_broken.own_claims_are_not_reserved, "folded keys"),
    ],
)
def test_without_reserving_target_keys_a_life_finds_two_rows(
    tmp_path: Path, rule: Callable[[], AbstractContextManager[Any]], kind: str
) -> None:
    """Two clients that create rows of one target key find neither the other's row nor that it is coming. One
    row may be overwritten before the end: then what clients were told has no order."""
    with rule(), pytest.raises(Found, match=f"{TWO_ROWS}|what cannot be"):
        for seed in range(71, 81):
            Life(tmp_path / str(seed), kind, seed).live()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("rule", "kind", "what"),
    [
        (dual_broken.owners_keep_their_keys, "folded keys", "no other row had its keys"),
        (dual_broken.reservations_never_end, "folded keys", "was over"),
    ],
)
def test_a_refusal_without_another_row_is_found(
    tmp_path: Path, rule: Callable[[], AbstractContextManager[Any]], kind: str, what: str
) -> None:
    """A target key whose owner is gone, or which a killed client reserved, belongs to who creates a row."""
    with rule(), pytest.raises(Found, match=f"was refused as a collision, and .*{what}"):
        for seed in range(71, 76):
            ToCutover(tmp_path / str(seed), kind, seed).live()


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_dual_lives_for_as_long_as_asked(tmp_path: Path) -> None:
    """`make soak`: lives of all kinds, one seed after the other."""
    seconds = float(os.environ.get("SOAK_SECONDS", "60"))
    seed = first = int(os.environ.get("SOAK_SEED", "1000"))
    happened: Counter[str] = Counter()
    operations = 0
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for kind in KINDS:
            life = Life(tmp_path / f"{kind} {seed}".replace(" ", "-"), kind, seed)
            life.live()
            happened += life.storm.happened
            operations += life.operations
        seed += 1
    listed = ", ".join(f"{count:,} × {what}" for what, count in sorted(happened.items()))
    print(f"\nseeds {first} to {seed - 1}, each in {len(KINDS)} kinds: {operations:,} operations; {listed}")
