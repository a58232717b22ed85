"""`rekey stress --mix` as installed, with processes: planted limits are found, and nothing is left behind.

Azurite throttles nobody: a proxy before it refuses what goes beyond limits of kinds and of partitions.

Soak: limits that are found; SIGTERM.
Reason, and what `make test` covers: a minute to a quarter of an hour of load; the same limits on the fake
clock in `tests/scenarios/stress/test_mix.py`; SIGINT.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from rekey.rehearse.azurite import Azurite
from rekey.stress.mix import OperationKind
from tests.fakes.rate_limits import MixLimitProxy, PlantedLimits
from tests.soaking import others_in_soak
from tests.worlds.azurite_projects import Project, Ran, Running

pytestmark = pytest.mark.azurite
_LONGEST = 1200

QUICK = """\
[mix]
point_read = 75
update = 25
[rows]
count = 500
partitions = 5
[load]
processes = 2
"""
ALL = """\
[mix]
point_read = 40
range_query = 10
insert = 20
update = 15
delete = 10
batch = 5
[range_query]
top = 5
[batch]
rows = 4
[rows]
count = 1000
partitions = 10
[load]
processes = 2
"""


@pytest.fixture
def project(tmp_path: Path, azurite: Azurite) -> Project:
    """A project whose commands are begun from nothing: they start processes."""
    made = Project(tmp_path, azurite, from_nothing=True)
    (made.folder / "mix.toml").write_text(ALL, "utf-8")
    return made


def tables_of_tests(project: Project) -> set[str]:
    return {name for name in project.wire.names() if name.startswith("rekeystress")}


def generating(running: Running) -> list[psutil.Process]:
    """Return the processes that generate load."""
    try:
        below = psutil.Process(running.process.pid).children(recursive=True)
        return [one for one in below if "spawn_main" in " ".join(one.cmdline())]
    except psutil.Error:
        return []


def through_limits(
    project: Project, kinds: dict[OperationKind, float], partitions: dict[str, float], *words: str
) -> dict[str, Any]:
    """Run a stress test through a proxy with limits; return its document. It must leave no table."""

    async def run() -> Ran:
        limits = PlantedLimits(time.monotonic, kinds, partitions)
        async with MixLimitProxy(f"http://127.0.0.1:{project.azurite.port}", limits, 4) as proxy:
            project.configure(tables=proxy.address + urlsplit(project.azurite.tables.endpoint).path)
            running = project.start("stress", "--mix", "mix.toml", *words, "--json")
            return await asyncio.to_thread(running.wait, _LONGEST)

    document = asyncio.run(run()).ended(0).document
    assert tables_of_tests(project) == set()
    return document


def is_found(stage: dict[str, Any], kind: OperationKind, limit: float) -> None:
    """Check that a kind's limit was found within a tenth, and that it has percentiles."""
    found = stage["kinds"][kind]
    assert found["saturation"]["limit"] == "service", stage
    assert abs(found["saturation"]["rate"] - limit) <= limit / 10, stage
    assert found["p99_ms"] >= found["p95_ms"] >= found["p50_ms"] > 0


@pytest.mark.soak
def test_planted_limits_of_a_kind_and_of_a_partition_are_found(project: Project) -> None:
    """Updates end the mix; the partition shows when reads rise beyond the mix."""
    (project.folder / "mix.toml").write_text(QUICK, "utf-8")
    words = ("--step-seconds", "3", "--seconds", "75", "--most", "150", "--html", "stress.html")
    document = through_limits(project, {OperationKind.UPDATE: 20.0}, {"1.0000002": 20.0}, *words)
    one, stage = document["stages"]
    is_found(stage, OperationKind.UPDATE, 20)
    assert stage["saturation"]["because_of"] == ["update"]
    assert one["partitions_below_target"] == {}, "a limit of a kind is none of the partition"
    assert stage["partitions_below_target"].keys() == {"partition 3"}
    assert abs(stage["partitions_below_target"]["partition 3"] - 20) <= 2, stage
    page = (project.folder / "stress.html").read_text("utf-8")
    assert "partition 3" in page and page.count("<svg") == 4


@pytest.mark.soak
@pytest.mark.timeout(_LONGEST)
def test_planted_limits_of_all_kinds_are_found(project: Project) -> None:
    kinds = {
        OperationKind.POINT_READ: 60.0,
        OperationKind.RANGE_QUERY: 25.0,
        OperationKind.INSERT: 30.0,
        OperationKind.UPDATE: 20.0,
        OperationKind.DELETE: 25.0,
        OperationKind.BATCH: 20.0,
    }
    words = ("--step-seconds", "4", "--seconds", "900", "--most", "400")
    _, stage = through_limits(project, kinds, {}, *words)["stages"]
    for kind, limit in kinds.items():
        is_found(stage, kind, limit)
    assert stage["partitions_below_target"] == {}


@pytest.mark.soak
@pytest.mark.timeout(_LONGEST)
def test_a_planted_limit_of_a_partition_is_found_with_all_kinds(project: Project) -> None:
    """Low enough that Azurite carries all partitions at that rate, on a busy machine, too."""
    (project.folder / "mix.toml").write_text(ALL.replace("partitions = 10", "partitions = 5"), "utf-8")
    words = ("--step-seconds", "6", "--seconds", "300", "--most", "150")
    _, stage = through_limits(project, {}, {"1.0000003": 15.0}, *words)["stages"]
    assert stage["partitions_below_target"].keys() == {"partition 4"}
    assert abs(stage["partitions_below_target"]["partition 4"] - 15) <= 1.5, stage


def in_its_midst(project: Project) -> Running:
    """Return a stress test that has loaded rows and generates load."""
    running = project.start("stress", "--mix", "mix.toml", "--seconds", "60")

    def generates() -> bool:
        return len(generating(running)) == 2 and any(
            project.wire.rows(name) for name in tables_of_tests(project)
        )

    assert running.until(generates)
    return running


@pytest.mark.parametrize("number", others_in_soak([signal.SIGINT, signal.SIGTERM], kept=[signal.SIGINT]))
def test_a_test_that_is_interrupted_ends_its_processes_and_removes_its_table(
    project: Project, number: int
) -> None:
    running = in_its_midst(project)
    processes = generating(running)
    running.signal(number).ended(130)
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    assert tables_of_tests(project) == set()


def test_a_killed_process_is_told_and_the_table_is_removed(project: Project) -> None:
    running = in_its_midst(project)
    generating(running)[0].kill()
    running.wait().ended(4, "a process that generates load ended", "the test table is removed")
    assert tables_of_tests(project) == set()


def test_processes_end_with_a_test_that_is_killed(project: Project) -> None:
    running = in_its_midst(project)
    processes = generating(running)
    running.kill()
    assert psutil.wait_procs(processes, timeout=30)[1] == []
    [left] = tables_of_tests(project)
    project.run("stress", "--mix", "mix.toml", "--rows", "500").ended(0, "Left by an earlier", left)
    assert tables_of_tests(project) == set()
