"""Copying and comparing by processes and by a dask cluster, on real tables; workers are killed meanwhile.

Soak: a killed process of this machine.
Reason, and what `make test` covers: half a minute; a killed worker of a dask cluster, and a killed runner.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from rekey.rehearse.azurite import Azurite
from tests.acceptance.support import Project, Running, posts, users
from tests.worlds.scripts import POSTS, USERS

pytestmark = [pytest.mark.azurite, pytest.mark.xdist_group("executors")]
PROCESSES = ("--executor", "rekey.executors:processes")
DASK = ("--executor", "rekey.executors:dask_cluster")
EXECUTOR = '[executor]\ntasks = 2\nslice = "1s"'


@pytest.fixture
def project(tmp_path: Path, azurite: Azurite) -> Project:
    made = Project(tmp_path / "project", azurite, from_nothing=True)
    made.script(USERS)
    made.fill(users(1500))
    made.configure(window_rows=100, more=EXECUTOR)
    return made


def test_processes_of_this_machine_copy_what_one_process_copies(project: Project) -> None:
    """Out of the box; the second project on the same source is copied without, and is the same."""
    ran = project.run("apply", "--json", *PROCESSES).ended(0)
    [migration] = ran.document["migrations"]
    counters = {one["phase"]: one["counters"] for one in migration["phases"]}["backfill"]
    assert counters["source_rows"] == 1500
    assert counters["tasks"] >= 2
    assert counters["tasks_lost"] == 0
    assert len(project.wire.contents(project.target)) == 1500
    assert not [row for row in project.restricted_rows("rekeycontrol") if row["RowKey"] == "tasks"]
    project.run("verify").ended(0)


def children(running: Running) -> list[psutil.Process]:
    """Return the processes of a command that carry tasks out."""
    try:
        below = psutil.Process(running.process.pid).children(recursive=True)
        return [one for one in below if "spawn_main" in " ".join(one.cmdline())]
    except psutil.Error:
        return []


@pytest.mark.soak
def test_a_killed_process_costs_a_slice_and_nothing_else(tmp_path: Path, azurite: Azurite) -> None:
    project = Project(tmp_path / "project", azurite, from_nothing=True)
    project.script(POSTS)
    project.fill(posts(900))
    project.configure(window_rows=100, entities_per_second=600, more=EXECUTOR)
    running = project.start("apply", "--json", *PROCESSES)
    assert running.until(lambda: _in_the_middle(project))
    victim = children(running)[0]
    victim.kill()
    ran = running.wait().ended(0)
    [migration] = ran.document["migrations"]
    counters = {one["phase"]: one["counters"] for one in migration["phases"]}["backfill"]
    assert counters["tasks_lost"] >= 1
    project.configure(window_rows=100, more=EXECUTOR)
    project.run("verify").ended(0)


def test_no_process_outlives_a_killed_runner_and_the_next_run_goes_on(
    tmp_path: Path, azurite: Azurite
) -> None:
    project = Project(tmp_path / "project", azurite, from_nothing=True)
    project.script(USERS)
    project.fill(users(1500))
    project.configure(window_rows=100, entities_per_second=1000, more=EXECUTOR)
    running = project.start("apply", *PROCESSES)
    assert running.until(lambda: _in_the_middle(project))
    workers = children(running)
    assert workers
    running.kill()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    [term] = [row for row in project.restricted_rows("rekeycontrol") if row["RowKey"] == "tasks"]
    assert term["Until"]


def _in_the_middle(project: Project) -> bool:
    return project.state.exists() and any(one.rows for one in project.segments())


@contextmanager
def dask_of_two(project: Project) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Run a dask cluster with TLS; give what a runner's environment must say, and the workers' processes."""
    folder = project.folder / "dask"
    folder.mkdir()
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("dask_cluster.py")), str(folder)],
        env={**os.environ, **project.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        said = json.loads(process.stdout.readline())
        tls = "DASK_DISTRIBUTED__COMM__TLS"
        yield (
            {
                "DASK_SCHEDULER_ADDRESS": said["address"],
                f"{tls}__CA_FILE": str(folder / "ca.pem"),
                f"{tls}__CLIENT__CERT": str(folder / "client.pem"),
                f"{tls}__CLIENT__KEY": str(folder / "client.key"),
            },
            said["workers"],
        )
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()
        log.close()


def test_a_dask_cluster_loses_a_worker_in_the_middle_and_everything_is_equal(project: Project) -> None:
    """Two processes over TLS; one is killed by SIGKILL; what they logged holds no old key."""
    project.configure(window_rows=100, entities_per_second=1000, more=EXECUTOR)
    with dask_of_two(project) as (environment, workers):
        running = project.start("apply", "--json", *DASK, **environment)
        assert running.until(lambda: _in_the_middle(project))
        os.kill(workers[0], signal.SIGKILL)
        ran = running.wait().ended(0)
        project.configure(window_rows=100, more=EXECUTOR)
        project.run("verify", *DASK, **environment).ended(0)
    [migration] = ran.document["migrations"]
    counters = {one["phase"]: one["counters"] for one in migration["phases"]}["backfill"]
    assert counters["source_rows"] == 1500
    assert len(project.wire.contents(project.target)) == 1500
    assert "mail.example" not in (project.folder / "dask" / "log").read_text("utf-8", "replace")
    project.run("verify").ended(0)


def test_a_cluster_that_is_not_encrypted_elsewhere_or_not_there_is_refused_before_anything_is_copied(
    tmp_path: Path, azurite: Azurite
) -> None:
    project = Project(tmp_path / "project", azurite)
    project.script(USERS)
    project.fill(users(10))
    project.configure(more=EXECUTOR)
    project.run("apply", *DASK, DASK_SCHEDULER_ADDRESS=None).ended(2, "no dask cluster is configured")
    elsewhere = project.run("apply", *DASK, DASK_SCHEDULER_ADDRESS="tcp://scheduler.example:8786")
    elsewhere.ended(2, "neither encrypted")
    project.run("apply", "--executor", "no_such_module:thing").ended(2, "cannot be imported")
    assert not project.wire.contents(project.target)
