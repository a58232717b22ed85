"""Copying and comparing by processes and by a dask cluster, on real tables; workers are killed meanwhile.

Soak: a dask cluster.
Reason, and what `make test` covers: a minute of processor; processes of this machine, which are killed, too.
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
from tests.worlds.azurite_projects import Project, Ran, Running, users
from tests.worlds.scripts import USERS

pytestmark = [pytest.mark.azurite, pytest.mark.xdist_group("executors")]
PROCESSES = ("--executor", "rekey.executors:processes")
DASK = ("--executor", "rekey.executors:dask_cluster")
ROWS = 900
EXECUTOR = '[executor]\ntasks = 2\nslice = "1s"'


@pytest.fixture
def project(tmp_path: Path, azurite: Azurite) -> Project:
    """A project whose copy takes some seconds; its commands are begun from nothing: they start processes."""
    made = Project(tmp_path / "project", azurite, from_nothing=True)
    made.script(USERS)
    made.fill(users(ROWS))
    made.configure(window_rows=100, entities_per_second=600, more=EXECUTOR)
    return made


def copied(project: Project, ran: Ran) -> dict[str, int]:
    """Check that everything is in the targets, once; return the counters of the backfill."""
    [migration] = ran.document["migrations"]
    counters: dict[str, int] = {one["phase"]: one["counters"] for one in migration["phases"]}["backfill"]
    assert counters["source_rows"] == ROWS
    assert len(project.wire.contents(project.target)) == ROWS
    assert not [row for row in project.restricted_rows("rekeycontrol") if row["RowKey"] == "tasks"]
    project.configure(window_rows=100, more=EXECUTOR)
    project.from_nothing = False
    project.run("verify").ended(0)
    return counters


def children(running: Running) -> list[psutil.Process]:
    """Return the processes of a command that carry tasks out."""
    try:
        below = psutil.Process(running.process.pid).children(recursive=True)
        return [one for one in below if "spawn_main" in " ".join(one.cmdline())]
    except psutil.Error:
        return []


def test_a_killed_process_costs_a_slice_and_nothing_else(project: Project) -> None:
    running = project.start("apply", "--json", *PROCESSES)
    assert running.until(lambda: _in_the_middle(project))
    children(running)[0].kill()
    counters = copied(project, running.wait().ended(0))
    assert counters["tasks"] >= 2
    assert counters["tasks_lost"] >= 1


def test_no_process_outlives_a_killed_runner(project: Project) -> None:
    """What its tasks may still send is on record for the next run."""
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


@pytest.mark.soak
def test_a_dask_cluster_loses_a_worker_in_the_middle_and_everything_is_equal(project: Project) -> None:
    """Two processes over TLS; one is killed by SIGKILL; what they logged holds no old key."""
    with dask_of_two(project) as (environment, workers):
        running = project.start("apply", "--json", *DASK, **environment)
        assert running.until(lambda: _in_the_middle(project))
        os.kill(workers[0], signal.SIGKILL)
        ran = running.wait().ended(0)
        project.run("verify", *DASK, **environment).ended(0)
    copied(project, ran)
    assert "mail.example" not in (project.folder / "dask" / "log").read_text("utf-8", "replace")
