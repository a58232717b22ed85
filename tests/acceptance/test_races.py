"""Two to five creators of one target key at the same time, on Azurite: at most one of them is acknowledged.

Folded keys, keys from content, index and secondary keys; both views, through rekey's client and the SDK's own
at a proxy; before, during and after cutover and rollback. Races are drawn from a seed that stands in every
failure: `REKEY_SEED=… pytest …` draws the same ones again.

Soak: 10,000 races; races without reservations.
Reason, and what `make test` covers: half an hour, or shows that races find a loss; 40 races.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest

from rekey.model import EntityKey
from rekey.rehearse.azurite import Azurite
from tests.acceptance.racing import (
    ACKNOWLEDGED,
    COLLISION,
    EXISTS_ALREADY,
    UNKNOWN,
    WORLDS,
    Answer,
    Before,
    Creator,
    Judged,
    Life,
    Race,
    Report,
)
from tests.acceptance.test_proxy import Proxy
from tests.simulation import dual_broken
from tests.worlds.azurite_projects import Project

pytestmark = pytest.mark.azurite
RACES, SOAK_RACES, RACES_OF_A_LIFE, RACES_UNTIL_A_LOSS = 40, 10_000, 250, 200
PROXY = """
[proxy]
drain = "0s"
lease = "30s"
longest_operation = "60s"
freeze_wait = "60s"
request = "150s"
[proxy.access.keys.application]
env = "ACCEPTANCE_TABLES_KEY"
"""


@pytest.fixture
def seed() -> int:
    """Draws the races."""
    return int(os.environ.get("REKEY_SEED", random.SystemRandom().randrange(2**32)))


def life_of(
    folder: Path, azurite: Azurite, monkeypatch: pytest.MonkeyPatch, seed: int, races: int, **more: bool
) -> Life:
    """Make a project, and in it a life of so many races."""
    project = Project(folder, azurite)
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    return Life(project, seed, races, **more)


def live(life: Life) -> Report:
    """Live one life, with a proxy; return what came of its races."""
    life.project.configure(more=PROXY)
    proxy = Proxy(life.project).start()
    try:
        asyncio.run(life.live(proxy.endpoint))
    finally:
        proxy.end(signal.SIGTERM)
    assert life.report.races.total() == life.races
    return life.report


@pytest.mark.timeout(900)
def test_of_creators_of_one_key_at_most_one_is_acknowledged(
    tmp_path: Path, azurite: Azurite, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    report = live(life_of(tmp_path, azurite, monkeypatch, seed, RACES))
    print(f"seed {seed}: {report}")
    assert report.answers["acknowledged"]
    assert report.answers["collision"]


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_of_ten_thousand_races_none_has_two_winners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Life after life, each on an Azurite of its own, which is slow with large tables; every second one moves
    its migrations one by one instead of as a group."""
    report = Report()
    for life in range(SOAK_RACES // RACES_OF_A_LIFE):
        folder, grouped = tmp_path / str(life), not life % 2
        with Azurite() as azurite:
            report += live(
                life_of(folder, azurite, monkeypatch, seed + life, RACES_OF_A_LIFE, grouped=grouped)
            )
        print(f"up to seed {seed + life}: {report}", flush=True)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("phase", ["dual_write", "cutover"])
def test_races_find_what_is_lost_without_reservations(
    tmp_path: Path,
    azurite: Azurite,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    phase: Literal["dual_write", "cutover"],
) -> None:
    """All clients are in this process here: that of a proxy would reserve."""
    with dual_broken.no_target_key_reservations():
        life = life_of(tmp_path, azurite, monkeypatch, seed, RACES_UNTIL_A_LOSS, proxied=False)
        wrong = asyncio.run(life.race_in(phase))
    found = Counter(
        kind for kind in ("old keys were acknowledged", "rows want one key") for one in wrong if kind in one
    )
    print(f"seed {seed}, {phase}: {dict(found)} in {RACES_UNTIL_A_LOSS} races\n" + "\n".join(wrong[:3]))
    assert found["old keys were acknowledged"]


def judged(
    race: Race, outcomes: Sequence[str], left: Mapping[str, str], *, moving: bool = False
) -> list[str]:
    """Return what is wrong when creators were told this, and rows of these contents are left."""
    answers = [Answer(2 * number, 2 * number + 1, outcome) for number, outcome in enumerate(outcomes)]
    source = {
        EntityKey("p0", old_key): race.world.row(race.number, old_key, {"Tok": tok, f"By{tok[-1]}": tok})
        for old_key, tok in left.items()
    }
    return [line.partition(":")[0] for line in Judged(race, "", answers).wrong(source, moving=moving)]


def race_of(before: Before, *old_keys: str, moves: bool = False) -> Race:
    """Return a race of clients of the old view that insert rows whose keys fold together."""
    creators = (
        Creator(number, key, "old", 0, "insert", False, moves, 0.0) for number, key in enumerate(old_keys)
    )
    return Race(0, WORLDS[0], before, "" if before == "absent" else "key", ("old", 0), tuple(creators))


@pytest.mark.parametrize(
    ("race", "outcomes", "left", "wrong"),
    [
        (race_of("absent", "Key", "kEy"), [ACKNOWLEDGED, COLLISION], {"Key": "0 0"}, []),
        (
            race_of("absent", "Key", "kEy"),
            [ACKNOWLEDGED, COLLISION],
            {},
            ["acknowledged ['Key'], present []"],
        ),
        (
            race_of("absent", "Key", "kEy"),
            [ACKNOWLEDGED, ACKNOWLEDGED],
            {"Key": "0 0", "kEy": "0 1"},
            ["2 old keys were acknowledged", "2 rows want one key"],
        ),
        (
            race_of("absent", "Key", "kEy"),
            [COLLISION, COLLISION],
            {"Key": "0 0"},
            ["nobody was acknowledged, present ['Key']"],
        ),
        (
            race_of("absent", "Key", "kEy"),
            [ACKNOWLEDGED, COLLISION],
            {"Key": "0 1"},
            ["no order explains its row"],
        ),
        (
            race_of("absent", "Key", "kEy"),
            [ACKNOWLEDGED, EXISTS_ALREADY],
            {"Key": "0 0"},
            ["creator 1 was told exists"],
        ),
        (race_of("absent", "Key", "Key"), [ACKNOWLEDGED, EXISTS_ALREADY], {"Key": "0 0"}, []),
        (
            race_of("absent", "Key", "Key"),
            [ACKNOWLEDGED, ACKNOWLEDGED],
            {"Key": "0 1"},
            ["no order explains its row"],
        ),
        (race_of("held", "Key"), [COLLISION], {"key": "0 former"}, []),
        (race_of("held", "Key"), [COLLISION], {}, ["nobody was acknowledged, present []"]),
        (
            race_of("held", "Key"),
            [ACKNOWLEDGED],
            {"Key": "0 0"},
            ["the key of a row that is there was acknowledged to another one"],
        ),
        (race_of("moved", "Key", moves=True), [ACKNOWLEDGED], {"Key": "0 0"}, []),
        (race_of("absent", "Key"), [UNKNOWN], {"Key": "0 0"}, ["creator 0 was told unknown outcome"]),
    ],
)
def test_what_is_left_must_follow_from_the_answers(
    race: Race, outcomes: list[str], left: dict[str, str], wrong: list[str]
) -> None:
    assert judged(race, outcomes, left) == wrong


def test_an_unknown_outcome_is_allowed_while_the_phase_changes() -> None:
    race = race_of("absent", "Key", "kEy")
    assert judged(race, [UNKNOWN, COLLISION], {"Key": "0 0"}, moving=True) == []
    assert judged(race, [UNKNOWN, COLLISION], {}, moving=True) == []
    assert judged(race, [UNKNOWN, ACKNOWLEDGED], {"kEy": "0 1"}, moving=True) == []
    assert judged(race, [UNKNOWN, ACKNOWLEDGED], {"Key": "0 0"}, moving=True)
