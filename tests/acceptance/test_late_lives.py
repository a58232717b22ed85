"""Whole lives in which requests arrive late and processes are killed and stopped: nothing lost or revived.

Both captures. A proxy holds writes back, drops them, applies them without an answer; runners, workers and
clients are killed, or stand still for longer than their leases; a second runner begins beside one that stands
still, where the machine permits in a container of the same name, path and process id. In the end an order is
searched that explains all that clients were told, and tables are compared.

    LATE_LIVES=30 SOAK_SECONDS=600 pytest -m soak -s tests/acceptance/test_late_lives.py
    LATE_LIFE_SEED=17 pytest -m soak -s tests/acceptance/test_late_lives.py      one life again

Nothing depends on the moments but what happens: a seed that failed draws the same plan again.

Soak: life after life; a quick life in capture "delta".
Reason, and what `make test` covers: as long as allowed; a quick life in capture "dual-write", and kills in
`test_kills.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rekey.rehearse.azurite import Azurite
from tests.acceptance.late_group import Group
from tests.acceptance.late_lives import Life
from tests.acceptance.late_stage import LIFE_SECONDS, QUICK, SUM, Outcome
from tests.fakes.weather import Weather, WeatherProxy
from tests.soaking import others_in_soak
from tests.worlds.azurite_projects import Project, Wire
from tests.worlds.late_machines import ROOT, namespaces_work

pytestmark = pytest.mark.azurite
LIVES = int(os.environ.get("LATE_LIVES", "30"))
AT_A_TIME = int(os.environ.get("LATE_LIVES_AT_A_TIME", "2"))
_ENDS_WITHIN_S = LIFE_SECONDS + 240.0


@pytest.mark.parametrize("seed", others_in_soak([1, 2], kept=[2]), ids=["delta, users", "dual-write, posts"])
def test_a_quick_life_loses_nothing_and_what_is_then_lost_by_hand_is_found(
    tmp_path: Path, azurite: Azurite, seed: int
) -> None:
    """Copied and cut over, with everything scaled down; then three losses are planted in its tables."""
    with Life(tmp_path / "life", azurite, seed, scale=QUICK, route=("apply", "cutover")) as life:
        outcome = life.live()
        assert not outcome.wrong, outcome
        assert outcome.figures["acknowledged"], outcome
        wire, target = life.project.wire, life.project.target
        row = next(iter(wire.rows(target)))
        key = row["PartitionKey"], row["RowKey"]
        whole = {name: value for name, value in row.items() if not name.startswith("odata.")}
        whole.pop("Timestamp")
        wire.delete(target, key)
        assert any("it is lost" in one for one in life.judged("new").wrong)
        wire.replace(target, {**whole, life.titled: "an older version"})
        assert life.judged("new").wrong
        wire.replace(target, whole)
        assert not life.judged("new").wrong
        wire.insert(target, {**whole, "RowKey": "doubled"})
        assert any("twice" in one for one in life.judged("new").wrong)
    print(outcome)


@pytest.mark.soak
def test_life_after_life_loses_nothing(tmp_path: Path) -> None:
    """At least LATE_LIVES lives, and for SOAK_SECONDS; some at a time, each with an Azurite of its own."""
    if not namespaces_work():
        print("no namespaces on this machine: second runners run beside the first ones, not in containers")
    given = os.environ.get("LATE_LIFE_SEED")
    first = int(given or random.SystemRandom().randrange(1_000_000))
    ends = time.monotonic() + float(os.environ.get("SOAK_SECONDS", "0"))
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        seeds = iter(range(first, first + 100_000))
        least = 1 if given else LIVES
        while len(outcomes) < least or (not given and time.monotonic() < ends):
            some = [next(seeds) for _ in range(max(AT_A_TIME, least - len(outcomes)))]
            for outcome in pool.map(lambda seed: live_apart(tmp_path / str(seed), seed), some):
                print(outcome, flush=True)
                outcomes.append(outcome)
    figures = sum((outcome.figures for outcome in outcomes), Counter[str]())
    told = ", ".join(f"{name} {figures[name]:,}" for name in SUM if figures[name])
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    captures = Counter(outcome.kind.partition(",")[0] for outcome in outcomes)
    print(f"{len(outcomes)} lives from seed {first} on ({dict(captures)}), {len(wrong)} wrong: {told}")
    assert not wrong, f"seeds {[outcome.seed for outcome in wrong]}: {wrong[0]}"


def live_apart(folder: Path, seed: int) -> Outcome:
    """Live one life in a process of its own, so that several can be lived at a time."""
    words = [sys.executable, "-m", "tests.acceptance.late_lives", str(seed), str(folder)]
    try:
        ran = subprocess.run(
            words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ENDS_WITHIN_S
        )
    except subprocess.TimeoutExpired:
        return Outcome(seed, "unknown", wrong=[f"did not end within {_ENDS_WITHIN_S:.0f} s"])
    if ran.returncode != 0:
        return Outcome(seed, "unknown", wrong=[f"the life itself failed: {ran.stdout} {ran.stderr}"])
    said = json.loads(ran.stdout.splitlines()[-1])
    return Outcome(**{**said, "figures": Counter(said["figures"])})


def test_a_mixed_group_and_rows_that_its_second_script_lost_are_seen(
    tmp_path: Path, azurite: Azurite
) -> None:
    """What the lives look for in a group, planted."""
    project = Project(tmp_path / "project", azurite)
    group = Group(project)
    group.declare("delta")
    if "rekeycontrol" not in project.restricted.names():
        project.restricted.create("rekeycontrol")
    for script_id, phase in zip(group.script_ids, ("cutover", "dual_write"), strict=True):
        row = {"PartitionKey": f"group:{group.name}", "RowKey": script_id, "Phase": phase}
        project.restricted.insert("rekeycontrol", row)
    assert group.mixed()
    project.restricted.replace("rekeycontrol", {**row, "Phase": "cutover"})
    assert not group.mixed()
    project.wire.create(group.target)
    rows = [group.mapper.map(row)[0].row for row in project.wire.rows(group.source)]
    for row in rows:
        project.wire.insert(group.target, row)
    assert not group.wrong()
    project.wire.delete(group.target, (rows[0]["PartitionKey"], rows[0]["RowKey"]))
    assert group.wrong()


# --- the proxy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weather", "there_at_once", "there_later", "answered"),
    [
        pytest.param(Weather(), True, True, True, id="calm"),
        pytest.param(Weather(hold=1.0, held_s=1.0), False, True, False, id="held"),
        pytest.param(Weather(drop=1.0), False, False, False, id="dropped"),
        pytest.param(Weather(repeat=1.0), True, True, False, id="applied and not answered"),
        pytest.param(Weather(delay=1.0, delay_s=0.1), True, True, True, id="delayed"),
        pytest.param(Weather(busy=1.0), False, False, False, id="busy"),
        pytest.param(Weather(failed=1.0), False, False, False, id="failed"),
        pytest.param(Weather(timed_out=1.0), False, False, False, id="timed out"),
    ],
)
async def test_the_proxy_deals_out_what_it_says(
    tmp_path: Path, azurite: Azurite, weather: Weather, there_at_once: bool, there_later: bool, answered: bool
) -> None:
    """One insert through each kind of weather; what was held arrives though its caller is gone."""
    project = Project(tmp_path / "project", azurite)
    project.wire.create(project.source)
    proxy = WeatherProxy(("127.0.0.1", azurite.port), {"all": weather}, 1, tmp_path / "log")
    ports = await proxy.start()
    through = Wire(azurite.tables)
    through._port = ports["all"]
    row = {"PartitionKey": "p", "RowKey": "r"}
    try:
        try:
            status, _, _ = await asyncio.to_thread(through.ask, "POST", project.source, row)
            was_answered = status in (201, 204)
        except OSError:
            was_answered = False
        assert was_answered == answered
        assert bool(await asyncio.to_thread(project.wire.rows, project.source)) == there_at_once
        while proxy.figures()["held"]:
            await asyncio.sleep(0.05)
        assert bool(await asyncio.to_thread(project.wire.rows, project.source)) == there_later
    finally:
        await proxy.stop()


async def test_a_request_is_held_no_longer_than_its_own_timeout(tmp_path: Path, azurite: Azurite) -> None:
    project = Project(tmp_path / "project", azurite)
    project.wire.create(project.source)
    proxy = WeatherProxy(("127.0.0.1", azurite.port), {"all": Weather(hold=1.0, held_s=60.0)}, 1)
    ports = await proxy.start()
    through = Wire(azurite.tables)
    through._port = ports["all"]
    row = {"PartitionKey": "p", "RowKey": "r"}
    try:
        with pytest.raises(OSError):
            await asyncio.to_thread(through.ask, "POST", f"{project.source}?timeout=1", row)
        async with asyncio.timeout(5):
            while not await asyncio.to_thread(project.wire.rows, project.source):
                await asyncio.sleep(0.05)
    finally:
        await proxy.stop()
