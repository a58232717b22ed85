"""`rekey stress` as installed: the limit of a partition is found within a tenth, and nothing is left behind.

Azurite throttles nobody, and slows down as a partition grows. So the service's published target, 2,000 rows a
second, is enforced by the stub of the benchmarks; in front of Azurite a proxy enforces a lower one.

Soak: limits of the service and of Azurite; SIGTERM.
Reason, and what `make test` covers: a minute at full load; a limit on the fake clock in
`tests/scenarios/stress/test_stress.py`; SIGINT.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.stub import KEY, StubProcess
from rekey.rehearse.azurite import Azurite
from tests.asserts.every import every
from tests.fakes.rate_limits import LimitProxy
from tests.worlds.azurite_projects import Project, Ran, users

pytestmark = pytest.mark.azurite

QUICK = ("--batch", "20", "--step-seconds", "4", "--seconds", "80")


def project_of(folder: Path, azurite: Azurite) -> Project:
    project = Project(folder, azurite)
    project.fill(users(100))
    return project


def behind(proxy: LimitProxy, project: Project) -> None:
    """Let the project reach its tables through the proxy."""
    project.configure(tables=proxy.address + urlsplit(project.azurite.tables.endpoint).path)


def stress_tables(project: Project) -> set[str]:
    return {name for name in project.wire.names() if name.startswith("rekeystress")}


def through_a_limit(project: Project, limit: float, *words: str) -> Ran:
    async def run() -> Ran:
        async with LimitProxy(f"http://127.0.0.1:{project.azurite.port}", limit) as proxy:
            behind(proxy, project)
            ran = await asyncio.to_thread(project.run, *words)
            assert proxy.refused > 0
            return ran

    return asyncio.run(run())


def found(ran: Ran, limit: float) -> dict[str, Any]:
    """Return the stage with one partition; it must have found the limit within a tenth."""
    one: dict[str, Any] = json.loads(ran.ended(0).out)["stages"][0]
    assert one["saturation"]["limit"] == "service", one
    assert abs(one["saturation"]["rate"] - limit) <= limit / 10, one
    assert one["saturation"]["clean"] < one["saturation"]["saturated"]
    assert every(step["p99_ms"] >= step["p95_ms"] >= step["p50_ms"] > 0 for step in one["steps"])
    assert sum(step["refused"] for step in one["steps"]) > 0
    return one


@pytest.mark.soak
def test_the_limit_of_a_partition_on_azurite_is_found(tmp_path: Path, azurite: Azurite) -> None:
    project = project_of(tmp_path, azurite)
    before = project.wire.contents(project.source)
    found(through_a_limit(project, 400, "stress", project.source, *QUICK, "--json"), 400)
    assert project.wire.contents(project.source) == before
    assert stress_tables(project) == set()


@pytest.mark.soak
def test_the_published_target_of_a_partition_is_found(tmp_path: Path, azurite: Azurite) -> None:
    project = Project(tmp_path, azurite)
    with StubProcess(1000, "--limits") as stub:
        project.configure(tables=stub.endpoint)
        words = ("stress", "Users", "--batch", "50", "--step-seconds", "3", "--seconds", "75", "--json")
        refused = project.run(*words).ended(3)
        assert "--i-own-this-account" in refused.said
        one = found(project.run(*words, "--i-own-this-account", ACCEPTANCE_TABLES_KEY=KEY), 2_000)
    assert one["saturation"]["of_target"] == round(one["saturation"]["rate"] / 2_000, 3)


def left_by(project: Project, end: Callable[[Any], Ran]) -> tuple[Ran, set[str]]:
    """Start a stress test, end it in its midst; return how it ended and which test tables are left."""
    running = project.start("stress", project.source, "--batch", "50", "--rows", "50000")

    def writes() -> bool:
        return any(project.wire.rows(name) for name in stress_tables(project))

    assert running.until(writes)
    return end(running), stress_tables(project)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_test_that_is_interrupted_removes_its_table(tmp_path: Path, azurite: Azurite, number: int) -> None:
    project = project_of(tmp_path, azurite)
    ran, left = left_by(project, lambda running: running.signal(number))
    ran.ended(130)
    assert left == set()


def test_what_a_killed_test_left_is_removed_by_the_next_and_nothing_else(
    tmp_path: Path, azurite: Azurite
) -> None:
    project = project_of(tmp_path, azurite)
    foreign = "rekeystress" + "f" * 16
    project.wire.create(foreign)
    _, left = left_by(project, lambda running: running.kill())
    [mine] = left - {foreign}
    ran = project.run("stress", project.source, "--rows", "1000").ended(
        0, "Left by an earlier stress test", mine
    )
    assert foreign not in ran.said
    assert stress_tables(project) == {foreign}
    project.wire.drop(foreign)  # this Azurite serves other tests after this one
