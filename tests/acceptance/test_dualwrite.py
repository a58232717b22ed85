"""Whole migrations while an application writes at full speed: kills and bad weather everywhere, nothing lost.

Client processes of both views write through a fault proxy; so does the installed command, which is killed and
run again. After cutover, after rollback and after completion the ledgers of all that was acknowledged are
compared with the tables. The moments come from a seed that stands in every failure: `REKEY_SEED=… pytest …`
draws the same ones again.

Soak: whole lives; life after life.
Reason, and what `make test` covers: a minute each, or as long as allowed; one of posts, whose keys come from
content, to its cutover; the way back in `test_proxy.py` and `test_rehearse.py`.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from rekey.rehearse.azurite import Azurite
from tests.acceptance.dualwriting import Fleet, Stage, waited_for
from tests.acceptance.dualwriting_proxy import BREEZY, STORMY, ProxyProcess
from tests.acceptance.dualwriting_worlds import View
from tests.acceptance.support import Project, Ran, Running
from tests.soaking import others_in_soak

pytestmark = pytest.mark.azurite
SETTINGS = {"poll_s": 0.25, "lease_s": 1.0, "longest_operation_s": 2.0, "freeze_wait_s": 10.0}
"""Short leases: what a killed client holds up is waited for in every step."""
ROWS = 240
OWN = 12
"""Rows that one task writes; the rest are only copied."""
SHARED = ("s0", "s1")


@pytest.fixture
def seed() -> int:
    """Draws the moments, the weather, and what clients write."""
    return int(os.environ.get("REKEY_SEED", random.SystemRandom().randrange(2**32)))


class Life:
    """One migration with its clients, its proxy and its operator, who is killed a lot."""

    def __init__(self, stage: Stage, fleet: Fleet, seed: int, kills: int, pause: float) -> None:
        self.stage, self.fleet, self.seed, self.kills, self.pause = stage, fleet, seed, kills, pause
        self.lot = random.Random(seed)
        self.rekey = stage.project
        self._tasks = itertools.count()

    def join(self, name: str, view: View, tasks: int = 2, *, sync: bool = False) -> None:
        """Start a client process with rows of its own: half of them are in the source, half are not yet."""
        rows = [self._own(next(self._tasks)) for _ in range(1 if sync else tasks)]
        self.fleet.start(
            name, view, rows, shared=() if sync else SHARED, seed=self.seed, sync=sync, pause=self.pause
        )

    @staticmethod
    def _own(task: int) -> list[str]:
        half = range(task * OWN // 2, (task + 1) * OWN // 2)
        return [f"r{begin + number}" for begin in (0, ROWS) for number in half]

    def through_kills(self, *words: str, beside: Callable[[Running], None] = lambda _: None) -> Ran:
        """Run a command, killing it at drawn moments; then let it end, with something done beside it."""
        for kill in range(self.kills):
            running = self.rekey.start(*words)
            running.until_it_works()
            time.sleep(self.lot.uniform(0, 0.4 * (kill + 1)))
            ran = running.kill()
            if ran.code != -signal.SIGKILL:
                return ran
        running = self.rekey.start(*words)
        beside(running)
        return running.wait()

    def end_storm(self, ends: bool) -> Callable[[Running], None]:
        """Return what ends a storm, if it is to end."""
        return lambda _: self.stage.proxy.change(BREEZY) if ends else None

    def lose_client(self, name: str, *, once: str) -> Callable[[Running], None]:
        """Return what kills a client once the control row says something; another process goes on for it."""

        def lose(running: Running) -> None:
            running.until(lambda: self.stage.phase() == once and self._acknowledged(name))
            self.fleet.kill(name, then=f"{name}-again")

        return lose

    def _acknowledged(self, name: str) -> bool:
        """Tell whether a client has acknowledged what the control row says: before, it had no intents."""
        epoch = int(self.stage.control()["Epoch"])
        return any(one["name"] == name and int(one["epoch"]) >= epoch for one in self.stage.clients())

    def compare(self, when: str, authority: View) -> None:
        """Let all clients stand still; what they were told must be in the tables, and replicas like them."""
        self.fleet.pause()
        verdict = self.stage.judged(self.fleet, authority)
        print(f"{when}: {verdict}")
        told = f"seed {self.seed}, {when}"
        assert not verdict.wrong, f"{told}: {verdict}"
        self.stage.drained()
        unlike = self.stage.unlike(authority)
        assert not unlike, f"{told}: {unlike[:5]} and {len(unlike)} in all"
        self.fleet.resume()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("world", "whole"),
    others_in_soak([("users", True), ("posts", True), ("posts", False)], kept=[("posts", False)]),
)
def test_a_whole_life_under_writes_kills_and_faults_loses_nothing(
    tmp_path: Path, azurite: Azurite, seed: int, world: str, whole: bool
) -> None:
    """Apply, cutover, rollback, cutover, complete: no acknowledged write lost, no deleted row back. One that
    is not whole ends behind the first cutover.

    What stays open in a storm is waited for before and in every freeze, so here the storm is over before the
    first freeze, and answers come late or not at once from then on. The application pauses between writes: at
    full speed it starves a slow machine, and requests run out of time. `make soak` has full speed, and the
    storm all the way through.
    """
    dealt = live_once(tmp_path, azurite, world, seed, kills=1, pause=0.4, storm_ends=True, whole=whole)
    assert dealt["lost"], "the weather was too fine"
    assert dealt["busy"], "the weather was too fine"


@pytest.mark.soak
def test_life_after_life_loses_nothing(tmp_path: Path, azurite: Azurite, seed: int) -> None:
    """The same with more kills, seed after seed, for SOAK_SECONDS; both worlds in turn."""
    ends = time.monotonic() + float(os.environ.get("SOAK_SECONDS", "60"))
    lives = 0
    while not lives or time.monotonic() < ends:
        world = ("users", "posts")[lives % 2]
        live_once(tmp_path / str(lives), azurite, world, seed + lives, kills=4)
        lives += 1
    print(f"{lives} lives from seed {seed} on")


def live_once(
    folder: Path,
    azurite: Azurite,
    world: str,
    seed: int,
    *,
    kills: int,
    pause: float = 0.0,
    storm_ends: bool = False,
    whole: bool = True,
) -> dict[str, int]:
    """Live one life; return what the weather dealt out."""
    with ExitStack() as stack:
        proxy = stack.enter_context(ProxyProcess(azurite.tables.endpoint, replace(STORMY, seed=seed)))
        stage = Stage(Project(folder / "project", azurite), world, proxy, settings=SETTINGS)
        stage.load([f"r{number}" for number in range(ROWS)], SHARED)
        fleet = stack.enter_context(Fleet(folder / "clients", stage.where, world))
        live(Life(stage, fleet, seed, kills, pause), storm_ends, whole)
    print(f"seed {seed}, {world}: {proxy.dealt}")
    return proxy.dealt


def live(life: Life, storm_ends: bool, whole: bool) -> None:
    """Take one migration from its first client to its last, or to the cutover."""
    fleet, rekey = life.fleet, life.rekey
    life.join("old", "old")
    life.join("old-sync", "old", sync=True)
    life.join("new", "new")
    fleet.until_writing("old", "old-sync")
    life.through_kills("apply", beside=life.lose_client("old", once="dual_write")).ended(0)
    life.join("new-sync", "new", sync=True)
    fleet.until_writing()
    life.through_kills("apply", "--to", "cutover", beside=life.end_storm(storm_ends)).ended(0)
    fleet.until_writing()
    life.compare("after cutover", "new")
    if not whole:
        fleet.stop()
        return
    life.through_kills("rollback", beside=life.lose_client("new", once="cutover"))
    assert life.stage.phase() == "dual_write"
    fleet.until_writing()
    life.compare("after rollback", "old")
    rekey.run("verify", "--mode", "full").ended(0)
    life.through_kills("apply", "--to", "cutover").ended(0)
    fleet.until_writing()
    rekey.run("apply", "--to", "complete", "--yes", rekey.script_id).ended(
        3, "clients still use the old view", "old-again"
    )
    fleet.end("old-again", "old-sync")
    # One that leaves an open write behind is listed until that can no longer take effect.
    waited_for("the end of the old view", lambda: not life.stage.living("old"))
    life.through_kills("apply", "--to", "complete", "--yes", rekey.script_id).ended(0)
    fleet.until_writing()
    fleet.pause()
    verdict = life.stage.judged(fleet, "new")
    print(f"after completion: {verdict}")
    assert not verdict.wrong, f"seed {life.seed}, after completion: {verdict}"
    fleet.resume()
    fleet.stop()
