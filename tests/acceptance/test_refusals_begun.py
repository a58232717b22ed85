"""What is refused once a migration has begun: moved scripts and secrets, wrong state files, a second runner.

"Nothing written" means: both accounts hold the same rows with the same ETags, and the state file says the
same of the migration.

Soak: `verify` and `apply --to cutover` with an edited script or another secret.
Reason, and what `make test` covers: one check for all commands; `apply` and `rollback`.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from rekey.rehearse.azurite import Azurite
from tests.acceptance.support import Project, users
from tests.soaking import others_in_soak
from tests.worlds.scripts import USERS

pytestmark = pytest.mark.azurite
ROWS = 200


@pytest.fixture(scope="module")
def begun(azurite: Azurite, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A migration at the gate before cutover, which no case may change."""
    project = Project(tmp_path_factory.mktemp("begun"), azurite)
    project.script(USERS)
    project.fill(users(ROWS))
    project.run("apply").ended(0)
    return project


@contextmanager
def _unchanged(project: Project) -> Iterator[None]:
    before = project.everything(), project.remembered()
    yield
    assert (project.everything(), project.remembered()) == before


COMMANDS = {
    "apply": ("apply",),
    "apply --to cutover": ("apply", "--to", "cutover", "--writers-stopped"),
    "verify": ("verify", "--repair"),
    "rollback": ("rollback", "--to", "source", "--drop-targets"),
}


@pytest.mark.parametrize("name", others_in_soak(COMMANDS, kept=["apply", "rollback"]))
def test_a_script_edited_after_its_first_phase_is_refused(begun: Project, name: str) -> None:
    """Two rules in one target would never be in step; the message says how to get back."""
    begun.script(USERS.replace('props.drop("Ssn")', 'props.keep("Ssn")'))
    try:
        with _unchanged(begun):
            begun.run(*COMMANDS[name]).ended(3, "was edited after its first phase", "Kept:", "put that back")
    finally:
        begun.script(USERS)


@pytest.mark.parametrize("name", others_in_soak(COMMANDS, kept=["apply", "rollback"]))
def test_a_secret_changed_since_the_first_phase_is_refused(begun: Project, name: str) -> None:
    """The same old key would get another new key; neither secret is shown."""
    other = "another-secret-of-enough-bytes"
    with _unchanged(begun):
        ran = begun.run(*COMMANDS[name], ACCEPTANCE_SECRET=other)
        ran.ended(3, "the secret `users` is not the one", "Kept:", "Next: configure the secret of the start")
    assert other not in ran.said


def test_plan_tells_of_an_edited_script_and_a_changed_secret(begun: Project) -> None:
    """Both are errors of the plan: exit code 1."""
    begun.script(USERS.replace('props.drop("Ssn")', 'props.keep("Ssn")'))
    try:
        begun.run("plan", ACCEPTANCE_SECRET="another-secret-of-enough-bytes").ended(
            1, "the script was edited after the migration was begun", "the secret 'users' is not the one"
        )
    finally:
        begun.script(USERS)


# --- state files ----------------------------------------------------------------------------------------


def test_a_state_file_of_another_account_is_refused(begun: Project, azurite: Azurite) -> None:
    """The same file with another restricted account, and with another tables account."""
    other = azurite.restricted.endpoint
    begun.configure(tables=other)
    try:
        with _unchanged(begun):
            begun.run("apply", ACCEPTANCE_TABLES_KEY=azurite.restricted.key).ended(
                2, "the state file is of another migration", "another account", "Next:"
            )
        begun.configure(restricted=azurite.tables.endpoint)
        with _unchanged(begun):
            begun.run("apply", ACCEPTANCE_RESTRICTED_KEY=azurite.tables.key).ended(
                2, "begun in the state file but unknown to the restricted store", "Next:"
            )
    finally:
        begun.configure()


def test_a_state_file_of_an_earlier_run_is_refused_and_its_own_goes_on(
    tmp_path: Path, azurite: Azurite
) -> None:
    """The same script, rolled back and begun again: the old file's checkpoints are of rows that are gone."""
    project = Project(tmp_path, azurite)
    project.script(USERS)
    project.fill(users(30))
    project.run("apply").ended(0)
    own, earlier = project.state, project.state.with_name("earlier.sqlite")
    shutil.copy(own, earlier)
    project.run("rollback", "--to", "source", "--drop-targets").ended(0)
    project.run("apply").ended(0)
    project.configure(state=earlier)
    with _unchanged(project):
        project.run("apply").ended(2, "the state file is of another migration", "another run")
    project.configure(state=own)
    project.run("apply").ended(0)


@contextmanager
def _copied_state(begun: Project, folder: Path) -> Iterator[Path]:
    """Let the project work with a copy of its state file, in a folder of its own."""
    own, copy = begun.state, folder / "copied" / "state.sqlite"
    copy.parent.mkdir()
    with closing(sqlite3.connect(own)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    begun.configure(state=copy)
    try:
        yield copy
    finally:
        begun.configure(state=own)


def test_a_state_file_newer_than_the_program_is_refused(begun: Project, tmp_path: Path) -> None:
    """A step of the schema that this program does not know: `apply` and `status` refuse, too."""
    with _copied_state(begun, tmp_path) as state:
        with closing(sqlite3.connect(state)) as connection, connection:
            connection.execute(
                "insert into _yoyo_migration (migration_hash, migration_id) values ('x', 'state-0099-later')"
            )
        with _unchanged(begun):
            begun.run("apply").ended(2, "was written by a newer rekey", "Next: install the newer rekey")
            begun.run("status").ended(2, "was written by a newer rekey")


def test_a_state_file_that_is_none_is_refused(begun: Project, tmp_path: Path) -> None:
    """A folder, a text, a cut-off database: left as they are."""
    with _copied_state(begun, tmp_path) as state:
        for content in (b"these are my notes\n" * 50, state.read_bytes()[:6000]):
            state.write_bytes(content)
            before = begun.everything()
            begun.run("apply").ended(2, "damaged or is no state file", "Next: move it away")
            assert (begun.everything(), state.read_bytes()) == (before, content)
        state.unlink()
        for beside in ("state.sqlite-wal", "state.sqlite-shm"):
            state.with_name(beside).unlink(missing_ok=True)
        state.mkdir()
        begun.run("apply").ended(2, "is a folder", "Next: name a file")


def _obeying_permissions() -> tuple[str, ...]:
    """Return what makes permissions bind the command: root gives up the power over them."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("root without setpriv: permissions bind nobody here")
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


@pytest.mark.parametrize("mode", ["file", "folder"])
def test_a_read_only_state_file_is_refused_before_anything_is_written(
    begun: Project, tmp_path: Path, mode: str
) -> None:
    """`apply` needs to write its checkpoints; `status` only reads and works."""
    within = _obeying_permissions()
    with _copied_state(begun, tmp_path) as state:
        path = state if mode == "file" else state.parent
        path.chmod(0o400 if mode == "file" else 0o500)
        try:
            with _unchanged(begun):
                begun.run("apply", within=within).ended(2, "read-only for this user", "Next: give this user")
                begun.run("status", within=within).ended(0)
        finally:
            path.chmod(0o700)


# --- a second runner ------------------------------------------------------------------------------------


def test_a_second_runner_is_refused_on_this_state_file_and_on_any_other(
    tmp_path: Path, azurite: Azurite
) -> None:
    """The file lock stops it here, the lease in the restricted store from elsewhere; the first one goes on.

    `plan` and `status` only read: they work beside it.
    """
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
    _ends_in_step(project, 400)
    # Now that the first one has ended, the other one may go on, and finds everything done.
    elsewhere.run("apply").ended(0)


def test_the_lease_of_a_killed_runner_does_not_keep_its_own_state_file_waiting(
    tmp_path: Path, azurite: Azurite
) -> None:
    """On the same machine a killed runner is known to be dead; from elsewhere its lease is waited for."""
    project = Project(tmp_path / "first", azurite)
    project.script(USERS)
    project.fill(users(100))
    project.configure(window_rows=20, entities_per_second=5)
    first = project.start("apply")
    assert first.until(lambda: project.state.exists() and bool(project.segments()))
    first.kill()
    elsewhere = Project(tmp_path / "elsewhere", azurite)
    elsewhere.source, elsewhere.target = project.source, project.target
    elsewhere.script_id = project.script_id
    elsewhere.script(USERS)
    elsewhere.run("apply").ended(3, "Next:")
    project.configure()
    project.run("apply").ended(0)


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
