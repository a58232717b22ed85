"""The command, killed at random moments and stopped by signals, on real tables: nothing lost or doubled.
The installed command, from nothing, is the one that SIGINT and SIGTERM stop at a checkpoint.

The moments come from a seed that stands in every failure: `REKEY_SEED=… pytest …` draws the same ones again.

Soak: keys from keys; 60 kills; SIGTERM; kills on the way to cutover and back.
Reason, and what `make test` covers: minutes; 4 kills with keys from content, SIGINT; SIGTERM in
`tests/scenarios/runner/test_life.py`; kills all the way in `tests/scenarios/runner/test_lifecycle.py`.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rekey.model import Row, content_of
from rekey.rehearse.azurite import Azurite
from rekey.state.models import Segment
from tests.worlds.azurite_projects import Key, Project, keys_of, posts, users
from tests.worlds.scripts import POSTS, USERS

pytestmark = pytest.mark.azurite
SLOW_ROWS_PER_SECOND = 600
"""Three kills of four come while copying is held to this, and every other one of those waits for a
checkpoint, so that many interrupt it on any machine; the others come at full speed, and fall into the sweep,
the passes and the verification, too."""


@pytest.fixture
def seed() -> int:
    """Draws the moments."""
    return int(os.environ.get("REKEY_SEED", random.SystemRandom().randrange(2**32)))


class Pair:
    """Two projects on one source table: one is left in peace, others are killed, one after the other."""

    def __init__(self, folder: Path, azurite: Azurite, script: str, rows: list[Row]) -> None:
        """Apply the one that nobody disturbs."""
        self._folder, self._azurite, self._script, self.rows = folder, azurite, script, rows
        self.peaceful = Project(folder / "peaceful", azurite)
        self.peaceful.script(script)
        self.peaceful.configure(window_rows=50)
        self.peaceful.fill(rows)
        self.source_before = self.peaceful.wire.rows(self.peaceful.source)
        self.peaceful.run("apply").ended(0)
        self.expected = {
            "main": self.peaceful.wire.contents(self.peaceful.target),
            "index": self.peaceful.wire.contents(self.peaceful.index),
        }
        assert len(self.expected["main"]) == len(rows)
        self.begin()

    def begin(self) -> None:
        """Make another one to be killed."""
        number = len(list(self._folder.iterdir()))
        self.killed = Project(self._folder / f"killed-{number}", self._azurite)
        self.killed.source = self.peaceful.source
        self.killed.script(self._script)
        self.killed.configure(window_rows=50)

    def difference(self) -> str:
        """Return how the killed one differs from the one left in peace, "" when it does not."""
        killed, wrong = self.killed, []
        for what, table in (("main", killed.target), ("index", killed.index)):
            actual, expected = killed.wire.contents(table), self.expected[what]
            if actual != expected:
                missing, extra = len(expected.keys() - actual.keys()), len(actual.keys() - expected.keys())
                altered = sum(actual[key] != expected[key] for key in actual.keys() & expected.keys())
                wrong.append(f"{what}: {missing} missing, {extra} extra, {altered} altered")
        mapping, mapped = killed.mapping(), self.peaceful.mapping()
        if mapping != mapped:
            wrong.append(f"mapping: {len(mapping)} rows where {len(mapped)} should be, or other content")
        if killed.wire.rows(killed.source) != self.source_before:
            wrong.append("the source changed")
        return "; ".join(wrong)

    def ahead(self) -> str:
        """Return what checkpoints, targets and mapping claim and do not have, "" when all of it holds."""
        killed = self.killed
        segments = killed.segments() if killed.state.exists() else []
        there = {(0, *key): row for key, row in killed.wire.contents(killed.target).items()}
        there |= {(1, *key): row for key, row in killed.wire.contents(killed.index).items()}
        expected = {(0, *key): row for key, row in self.expected["main"].items()}
        expected |= {(1, *key): row for key, row in self.expected["index"].items()}
        if any(expected.get(place) != row for place, row in there.items()):
            return "a target row is not what its source row gives"
        forward = {old: targets for kind, old, targets in killed.mapping() if kind == "forward"}
        if there.keys() - {place for targets in forward.values() for place in targets}:
            return "a target row has no mapping row"
        claimed = [key for key in keys_of(self.rows) if any(_claims(one, key) for one in segments)]
        lacking = [key for key in claimed if not set(forward.get(key, [(9, "", "")])) <= there.keys()]
        return f"{len(lacking)} of {len(claimed)} rows behind a checkpoint are not there" if lacking else ""

    def copied(self) -> int:
        """Return how many rows checkpoints claim."""
        return sum(one.rows for one in self.killed.segments()) if self.killed.state.exists() else 0

    def is_copied(self) -> bool:
        """Tell whether copying is done."""
        segments = self.killed.segments() if self.killed.state.exists() else []
        return bool(segments) and all(one.done for one in segments)

    def in_the_middle(self) -> bool:
        """Tell whether copying has begun, has a checkpoint, and is not done."""
        return self.copied() > 0 and not self.is_copied()


def _claims(segment: Segment, key: Key) -> bool:
    """Tell whether a checkpoint claims a source row. The keys here are ASCII: Python's order is right."""
    if segment.after is not None and key <= tuple(segment.after):
        return False
    upto = segment.upto if segment.done else segment.cursor
    return (segment.done and upto is None) or (upto is not None and key <= tuple(upto))


@pytest.mark.parametrize(
    ("script", "make", "kills"),
    [
        pytest.param(USERS, users, 10, id="keys from keys", marks=pytest.mark.soak),
        pytest.param(POSTS, posts, 4, id="keys from content"),
        pytest.param(USERS, users, 60, id="keys from keys, longer", marks=pytest.mark.soak),
        pytest.param(POSTS, posts, 60, id="keys from content, longer", marks=pytest.mark.soak),
    ],
)
def test_killed_many_times_during_apply_it_ends_as_if_undisturbed(
    tmp_path: Path, azurite: Azurite, seed: int, script: str, make: Callable[[int], list[Row]], kills: int
) -> None:
    """SIGKILL at random moments: no row lost, doubled, or claimed by a checkpoint before it was written."""
    begun = time.monotonic()
    pair = Pair(tmp_path, azurite, script, make(600 + 25 * kills))
    span = (time.monotonic() - begun) / 5
    lot, killed, landed, in_the_middle = random.Random(seed), pair.killed, 0, 0
    while landed < kills:
        slow = 4 * landed < 3 * kills
        killed.configure(window_rows=50, entities_per_second=SLOW_ROWS_PER_SECOND if slow else None)
        before = pair.copied()
        running = killed.start("apply")
        running.until_it_works()
        if slow and landed % 2:
            running.until(lambda: pair.copied() > before or pair.is_copied())  # noqa: B023 - ends in this turn
        time.sleep(lot.uniform(0, min(span, 1.0)))
        ran = running.kill()
        told = f"seed {seed}, kill {landed + 1}"
        assert ran.code in (-signal.SIGKILL, 0), (told, ran)
        landed += ran.code != 0
        assert not pair.ahead(), (told, pair.ahead())
        in_the_middle += pair.in_the_middle()
    assert 4 * in_the_middle >= kills, f"seed {seed}: at least a quarter must interrupt the copying"
    killed.run("apply").ended(0)
    assert not pair.difference(), (f"seed {seed}", pair.difference())
    killed.run("verify").ended(0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, azurite: Azurite) -> Pair:
    return Pair(tmp_path_factory.mktemp("signals"), azurite, USERS, users(600))


@pytest.fixture
def pair(undisturbed: Pair) -> Pair:
    undisturbed.begin()
    return undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_signal_stops_at_a_checkpoint_with_130_and_the_same_command_goes_on(
    pair: Pair, number: int
) -> None:
    """The message says that it was asked to, what is kept and what to do; nothing is lost by it."""
    pair.killed.from_nothing = True
    pair.killed.configure(window_rows=50, entities_per_second=100)
    running = pair.killed.start("apply")
    assert running.until(pair.in_the_middle)
    pair.killed.from_nothing = False
    [status] = pair.killed.run("status", "--json").ended(0).document["migrations"]
    assert (status["runner"]["pid"], status["runner"]["live"]) == (running.process.pid, True)
    running.signal(number).ended(
        130, "Stopping at the next checkpoint", "Kept: all checkpoints", "Next: run the same"
    )
    assert pair.in_the_middle()
    assert not pair.ahead()
    pair.killed.configure(window_rows=50)
    pair.killed.run("apply").ended(0)
    assert not pair.difference()


def test_a_second_signal_ends_at_once_with_130_and_costs_nothing_that_is_checkpointed(
    pair: Pair,
) -> None:
    """An operator who presses Ctrl-C twice gets out now."""
    pair.killed.configure(window_rows=300, entities_per_second=100)
    running = pair.killed.start("apply")
    assert running.until(lambda: bool(pair.killed.wire.rows(pair.killed.target)))
    running.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert running.process.poll() is None, "the window of 300 rows is not done yet"
    assert running.signal(signal.SIGINT).code == 130
    assert not pair.ahead()
    pair.killed.configure(window_rows=300)
    pair.killed.run("apply").ended(0)
    assert not pair.difference()


@pytest.mark.soak
def test_killed_on_the_way_to_cutover_it_cuts_over_in_the_end_and_the_way_back_survives_kills_too(
    tmp_path: Path, azurite: Azurite, seed: int
) -> None:
    """Authority is on one side at any time; what was written after cutover is in the source in the end."""
    pair = Pair(tmp_path, azurite, USERS, users(800))
    killed, lot = pair.killed, random.Random(seed)
    killed.run("apply").ended(0)
    to_cutover = ("apply", "--to", "cutover", "--writers-stopped")
    phases = _kill_until_done(killed, lot, to_cutover, f"seed {seed}, cutover")
    assert phases <= {"dual_write", "freeze", "cutover"}, seed
    assert _phase(killed) == "cutover"
    assert not pair.difference(), (f"seed {seed}", pair.difference())

    # The application works on the target: one row changed, one gone, one new.
    changed, gone, *_ = killed.wire.rows(killed.target)
    killed.wire.replace(killed.target, {**content_of(changed), "Name": "Changed"})
    killed.wire.delete(killed.target, (gone["PartitionKey"], gone["RowKey"]))
    wanted = dict(zip(keys_of(pair.rows), pair.rows, strict=True))
    wanted[changed["PartitionKey"], changed["ContactEmail"]] |= {"Nm": "Changed"}
    del wanted[gone["PartitionKey"], gone["ContactEmail"]]

    phases = _kill_until_done(killed, lot, ("rollback", "--writers-stopped"), f"seed {seed}, rollback")
    assert phases <= {"cutover", "freeze", "dual_write"}, seed
    assert _phase(killed) == "dual_write"
    assert killed.wire.contents(killed.source) == wanted, f"seed {seed}"
    killed.run("verify").ended(0)


def _kill_until_done(project: Project, lot: random.Random, words: tuple[str, ...], told: str) -> set[str]:
    """Kill a command up to four times, then let it end; return the control row's phases after the kills."""
    phases = set()
    for kill in range(4):
        running = project.start(*words)
        running.until_it_works()
        time.sleep(lot.uniform(0, 0.4 * (kill + 1)))
        ran = running.kill()
        phases.add(_phase(project))
        if ran.code != -signal.SIGKILL:
            break
    else:
        ran = project.run(*words)
    # Killed between the last write and the last word, a rollback is done; there is nothing left to take back.
    done = ran.code == 0 or (words[0] == "rollback" and "say what happens to" in ran.said)
    assert done, (told, ran)
    return phases


def _phase(project: Project) -> str:
    """Return the phase in the control row."""
    [control] = [row for row in project.restricted_rows("rekeycontrol") if row["RowKey"] == "control"]
    return str(control["Phase"])
