"""Two runners of one migration as processes, a runner that was killed, and a disk that is full.

What else is refused once a migration has begun is shown in process: `tests/scenarios/cli/test_refusals.py`.

Soak: a disk of six megabytes.
Reason, and what `make test` covers: only root may mount one; a limit on the size of files.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rekey.rehearse.azurite import Azurite
from tests.worlds.azurite_projects import Project, users
from tests.worlds.scripts import USERS

pytestmark = pytest.mark.azurite


def test_a_second_runner_is_refused_until_the_first_one_is_known_to_have_ended(
    tmp_path: Path, azurite: Azurite
) -> None:
    """The file lock refuses it here, the lease in the restricted store elsewhere. A killed runner is known to
    be dead on its own machine; from elsewhere its lease is waited for. `plan` and `status` only read."""
    project = Project(tmp_path / "first", azurite)
    project.script(USERS)
    project.fill(users(400))
    project.configure(window_rows=50, entities_per_second=5)
    elsewhere = Project(tmp_path / "elsewhere", azurite)
    elsewhere.source, elsewhere.target = project.source, project.target
    elsewhere.script_id = project.script_id
    elsewhere.script(USERS)
    first = project.start("apply")
    assert first.until(lambda: project.state.exists() and bool(project.segments()))
    project.run("apply").ended(
        3, f"Another rekey command (pid {first.process.pid} on", "is running", "Next: wait until"
    )
    project.run("status").ended(0, f"process {first.process.pid} on")
    elsewhere.run("apply").ended(3, str(first.process.pid), "Next:")
    elsewhere.run("plan").ended(0)
    assert elsewhere.remembered() == {}
    assert first.process.poll() is None, "all of this happened while the first one was at work"
    first.kill()
    elsewhere.run("apply").ended(3, "Next:")
    _ends_in_step(project, 400)
    elsewhere.run("apply").ended(0)


# --- a full disk ----------------------------------------------------------------------------------------


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of six megabytes."""
    folder.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=6m,mode=700", "rekey-test", str(folder))
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk; the test with a limited file size runs everywhere")
    try:
        yield folder
    finally:
        subprocess.run(("umount", "--lazy", str(folder)), check=True)


def _fill_up(path: Path) -> None:
    """Leave no byte free on the disk of a file."""
    with path.open("wb", buffering=0) as ballast:
        for size in (4096, 1):
            try:
                while True:
                    ballast.write(b"x" * size)
            except OSError:
                continue


def _ends_in_step(project: Project, rows: int) -> None:
    project.configure()
    project.run("apply").ended(0)
    project.run("verify").ended(0)
    assert len(project.wire.rows(project.target)) == rows
    assert len(project.mapping()) == 2 * rows


@pytest.mark.soak
def test_a_disk_that_fills_up_while_checkpointing_stops_it_with_a_clear_error(
    tmp_path: Path, azurite: Azurite
) -> None:
    """Exit code 4, what is kept, what to do; with space again the same command goes on where it stopped."""
    with _small_disk(tmp_path / "disk") as disk:
        project = Project(tmp_path / "project", azurite)
        project.script(USERS)
        project.fill(users(600))
        project.configure(window_rows=20, entities_per_second=150, state=disk / "state.sqlite")
        running = project.start("apply")
        assert running.until(lambda: project.state.exists() and any(one.rows for one in project.segments()))
        _fill_up(disk / "ballast")
        running.wait().ended(
            4, "no space is left for the state file", "Kept:", "Next: free space on that disk"
        )
        (disk / "ballast").unlink()
        claimed = sum(segment.rows for segment in project.segments())
        assert 0 < claimed < 600
        assert len(project.wire.rows(project.target)) >= claimed
        _ends_in_step(project, 600)


def test_a_limit_on_the_size_of_files_is_met_with_a_clear_error(tmp_path: Path, azurite: Azurite) -> None:
    """What needs no root: the state file must not grow (`ulimit -f`); it goes on when it may again."""
    project = Project(tmp_path, azurite)
    project.script(USERS)
    project.fill(users(300))
    project.configure(window_rows=10)
    limited = ("sh", "-c", 'ulimit -f 200; exec "$@"', "sh")
    ran = project.run("apply", within=limited).ended(4, "the state file", "Kept:", "Next:")
    assert "300 rows" not in ran.out
    _ends_in_step(project, 300)
