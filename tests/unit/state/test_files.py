"""A state file that cannot be used is refused with the cure, and one that is only read is not touched."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from yoyo.internalmigrations import schema_versions
from yoyo.migrations import default_migration_table

from rekey.errors import ExitCode, Locked, MachineFailed, StateUnusable
from rekey.model import EntityKey, KeyRange
from rekey.phases import Phase
from rekey.state import applied, backend, files
from rekey.state.applied import SCHEMA_FOLDER
from rekey.state.backend import StateBackend
from rekey.state.filelock import FileLock
from rekey.state.ledger import Ledger
from rekey.state.store import State
from tests.worlds.scripts import filling

SCRIPT = "0001_users"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


def filled(path: Path) -> State:
    state = State.open(path)
    state.register(SCRIPT, "d", "Users", "run", {}, "account")
    return state


def snapshot(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}


# --- reading -----------------------------------------------------------------------------------------


def test_reading_a_state_that_is_not_there_makes_nothing(tmp_path: Path) -> None:
    with State.open(tmp_path / "none" / "state.sqlite", read_only=True) as state:
        assert state.migration(SCRIPT) is None
        assert state.audit_events() == []
        assert state.ledger_ids() == []
        assert state.schema_version == 0
    assert list(tmp_path.iterdir()) == []


def test_reading_changes_no_byte_and_makes_no_file(tmp_path: Path, path: Path) -> None:
    filled(path).close()
    before = snapshot(tmp_path)
    with State.open(path, read_only=True) as state:
        assert state.migration(SCRIPT) is not None
        with pytest.raises(StateUnusable, match="reading only"):
            state.audit("x", None, {})
    assert snapshot(tmp_path) == before


KILLED = """
import os, signal, sys
from pathlib import Path
from rekey.state.store import State
state = State.open(Path(sys.argv[1]))
state.register("0001_users", "d", "Users", "run", {}, "account")
state.set_fact("0001_users", "x", "durable")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_commits_of_a_killed_process_are_read_without_writing(tmp_path: Path, path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    before = snapshot(tmp_path)
    with State.open(path, read_only=True) as state:
        assert state.get_fact(SCRIPT, "x") == "durable"
    after = snapshot(tmp_path)
    for side in (before, after):
        del side["state.sqlite-shm"]  # the readers' own bookkeeping, no content
    assert after == before
    with State.open(path) as state:
        assert state.get_fact(SCRIPT, "x") == "durable"


def test_an_older_file_is_migrated_in_a_copy_only(tmp_path: Path, path: Path) -> None:
    old = only_first_step(tmp_path)
    backend.prepare(path, None, folder=old).close()
    before = path.read_bytes()
    with State.open(path, read_only=True) as state:
        assert state.audit_events() == []
    assert path.read_bytes() == before


# --- schema ------------------------------------------------------------------------------------------


def only_first_step(tmp_path: Path) -> Path:
    folder = tmp_path / "old-schema"
    folder.mkdir()
    for script in SCHEMA_FOLDER.glob("state-0001-*"):
        shutil.copy(script, folder)
    return folder


def test_a_file_of_an_older_program_is_upgraded_and_keeps_its_content(tmp_path: Path, path: Path) -> None:
    with closing(backend.prepare(path, None, folder=only_first_step(tmp_path))) as connection:
        assert applied.schema_version(applied.ledger_ids(connection)) == 1
        connection.execute("INSERT INTO migration VALUES ('0001_users', 'd', 'U', 'r', 'e', '{}', 't')")
    with State.open(path) as state:
        assert state.schema_version == 5
        assert state.migration(SCRIPT) is not None
        state.audit("x", None, {})


def test_a_file_of_a_newer_program_is_refused(path: Path) -> None:
    filled(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO _yoyo_migration VALUES ('h', 'state-0099-later', '2030-01-01')")
    for read_only in (True, False):
        with pytest.raises(StateUnusable, match=r"newer rekey \(schema 99, this program knows 5\)") as error:
            State.open(path, read_only=read_only)
        assert "install the newer" in error.value.hint
        assert error.value.exit_code == ExitCode.USAGE


def test_a_phase_that_this_program_does_not_know_means_newer_too(path: Path) -> None:
    filled(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO _yoyo_migration VALUES ('h', '0001_users.rejoice', '2030-01-01')")
    with pytest.raises(StateUnusable, match="newer"):
        State.open(path)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_ledger_format_that_this_program_does_not_know_means_newer_too(path: Path, read_only: bool) -> None:
    filled(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO _yoyo_version VALUES (99, '2030-01-01')")
    with pytest.raises(StateUnusable, match="newer"):
        State.open(path, read_only=read_only)


def test_what_is_known_of_yoyo_without_its_import_is_so() -> None:
    assert default_migration_table == applied.LEDGER_TABLE
    assert max(schema_versions) == applied.LEDGER_FORM


def test_a_script_called_like_a_schema_step_is_no_schema_step(path: Path) -> None:
    script = filling("state-0009-x", "TableA", "TableB")
    with FileLock(path) as lock:
        ledger = Ledger(path, [script], run=lambda *_: None, undo=lambda *_: None, lock=lock)
        ledger.apply("state-0009-x", Phase.PREPARE)
    with State.open(path) as state:
        assert state.schema_version == 5


def test_a_schema_step_and_its_entry_are_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between them, the next start would make the tables a second time and fail for ever."""
    monkeypatch.setattr(StateBackend, "mark_one", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        State.open(path)
    monkeypatch.undo()
    with State.open(path) as state:
        assert state.schema_version == 5


def test_the_schema_can_be_taken_back_step_by_step(path: Path) -> None:
    filled(path).close()
    with StateBackend(path) as yoyo, FileLock(path):
        yoyo.begin_exclusive_use()
        with yoyo.lock():
            yoyo.rollback_migrations(yoyo.to_rollback(backend.schema_migrations()))
        left = {name for name in yoyo.list_tables() if "yoyo" not in name}
    assert left <= {"sqlite_sequence"}


def test_two_processes_do_not_upgrade_at_once(path: Path) -> None:
    with FileLock(path) as lock:
        with pytest.raises(Locked):
            State.open(path)
        State.open(path, lock=lock).close()
        State.open(path).close()  # nothing to upgrade: needs no lock


# --- unusable ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_that_is_no_database_is_refused_and_kept(path: Path, read_only: bool) -> None:
    path.write_bytes(b"PK\x03\x04 something else entirely, and long enough to be read as a page" * 100)
    before = path.read_bytes()
    with pytest.raises(StateUnusable, match="damaged or is no state file") as error:
        State.open(path, read_only=read_only)
    assert "move it away" in error.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize("read_only", [True, False])
def test_a_database_of_another_program_is_refused(path: Path, read_only: bool) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (id)")
    with pytest.raises(StateUnusable, match="not one of rekey"):
        State.open(path, read_only=read_only)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("keep", [100, 5000, 30000])
def test_a_truncated_file_is_refused(path: Path, read_only: bool, keep: int) -> None:
    filled(path).close()
    os.truncate(path, keep)
    with pytest.raises(StateUnusable, match="damaged"):
        State.open(path, read_only=read_only)


@pytest.mark.parametrize("read_only", [True, False])
def test_overwritten_pages_are_noticed(path: Path, read_only: bool) -> None:
    filled(path).close()
    content = bytearray(path.read_bytes())
    content[4096:12288] = b"\xff" * 8192
    path.write_bytes(content)
    with pytest.raises(StateUnusable, match="damaged"):
        State.open(path, read_only=read_only)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_folder_in_its_place_is_refused(path: Path, read_only: bool) -> None:
    path.mkdir()
    with pytest.raises(StateUnusable, match="is a folder"):
        State.open(path, read_only=read_only)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user can reach; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="rekey-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """Permissions do not stop root: be somebody else for a moment, where the test runs as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_file_is_refused_for_writing_and_can_be_read(shared: Path) -> None:
    path = shared / "state.sqlite"
    filled(path).close()
    path.chmod(0o444)
    shared.chmod(0o777)
    with as_an_ordinary_user():
        with pytest.raises(StateUnusable, match="read-only for this user") as error:
            State.open(path)
        assert "write permission" in error.value.hint
        with State.open(path, read_only=True) as state:
            assert state.migration(SCRIPT) is not None


def test_a_read_only_folder_is_refused_for_writing_and_can_be_read(shared: Path) -> None:
    path = shared / "state.sqlite"
    filled(path).close()
    path.chmod(0o666)
    shared.chmod(0o555)
    with as_an_ordinary_user():
        with pytest.raises(StateUnusable, match="read-only for this user"):
            State.open(path)
        with pytest.raises(StateUnusable, match="read-only for this user"):
            State.open(shared / "new.sqlite")
        with pytest.raises(StateUnusable, match="read-only for this user"):
            FileLock(shared / "new.sqlite").acquire()
        with State.open(path, read_only=True) as state:
            assert state.migration(SCRIPT) is not None


def test_a_file_that_may_not_be_read_is_refused(shared: Path) -> None:
    path = shared / "state.sqlite"
    filled(path).close()
    path.chmod(0o000)
    with as_an_ordinary_user(), pytest.raises(StateUnusable, match="read-only for this user"):
        State.open(path, read_only=True)


def test_a_read_only_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr("rekey.state.files.os.open", refuse)
    with pytest.raises(StateUnusable, match="read-only"):
        State.open(path)


# --- failing while running ---------------------------------------------------------------------------


@contextmanager
def no_file_longer_than(length: int) -> Iterator[None]:
    """Let the kernel refuse to make any file longer, as a full disk or a quota does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_space_while_checkpointing_keeps_the_checkpoint_before(path: Path) -> None:
    with filled(path) as state:
        [segment] = state.add_segments(SCRIPT, "backfill", [KeyRange()])
        state.checkpoint([replace(segment, cursor=EntityKey("a", "1"), rows=1)])
        [pages] = state._connection.execute("PRAGMA page_count").fetchone()
        state._connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
        with pytest.raises(MachineFailed, match="no space is left") as error:
            state.checkpoint([replace(segment, cursor=EntityKey("b", "x" * 100_000), rows=2)])
        assert error.value.exit_code == ExitCode.SERVICE
        assert "last checkpoint" in error.value.kept
        assert "run the same command again" in error.value.hint
        state.set_fact(SCRIPT, "small", "still works")
    with State.open(path) as state:
        [kept] = state.segments(SCRIPT, "backfill")
        assert (kept.cursor, kept.rows) == (EntityKey("a", "1"), 1)


def test_a_write_that_the_system_refuses_keeps_the_checkpoint_before(path: Path) -> None:
    with filled(path) as state:
        state.set_fact(SCRIPT, "x", "before")
        length = path.with_name("state.sqlite-wal").stat().st_size
        with no_file_longer_than(length), pytest.raises(MachineFailed, match="state file"):
            state.set_fact(SCRIPT, "x", "y" * 100_000)
        assert state.get_fact(SCRIPT, "x") == "before"
        state.set_fact(SCRIPT, "x", "after")
    with State.open(path) as state:
        assert state.get_fact(SCRIPT, "x") == "after"


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="the system does not tell which files are open"
)
def test_no_temporary_file_is_made_elsewhere(path: Path) -> None:
    """It would hold keys, and a full disk there would be reported as the state file's."""
    names = set()

    def look() -> None:
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # that of the folder itself is closed by now
                names.add(descriptor.readlink().name)

    with filled(path) as state:
        state.set_facts(SCRIPT, {str(number): "x" * 100_000 for number in range(50)})  # more than is cached
        state._connection.set_progress_handler(look, 100)
        state.forget_keys(SCRIPT)
    assert path.name in names
    assert [name for name in names if "etilqs_" in name] == []


def test_no_space_while_yoyo_marks_a_phase_leaves_it_pending(path: Path) -> None:
    calls: list[Phase] = []
    script = filling(SCRIPT, "TableA", "TableB")

    def run(_: str, phase: Phase) -> None:
        calls.append(phase)
        if len(calls) == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))

    with FileLock(path) as lock:
        ledger = Ledger(path, [script], run=run, undo=run, lock=lock)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            with pytest.raises(MachineFailed):
                ledger.apply(SCRIPT, Phase.BACKFILL)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert ledger.applied(SCRIPT) == [Phase.PREPARE]
        ledger.apply(SCRIPT, Phase.BACKFILL)
    assert calls == [Phase.PREPARE, Phase.DUAL_WRITE, Phase.DUAL_WRITE, Phase.BACKFILL]


def test_a_file_kept_busy_is_reported_as_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BUSY_TIMEOUT_S", 0.0)
    with filled(path) as state, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Locked, match="kept busy"):
            state.audit("x", None, {})
        other.execute("ROLLBACK")
        state.audit("x", None, {})


def test_errors_show_neither_statement_nor_values(path: Path) -> None:
    with filled(path) as state:
        with pytest.raises(MachineFailed) as error:
            state.set_fact("no such migration", "name", "alice@example.com")
        shown: list[BaseException | None] = [error.value]
        while shown:
            link = shown.pop()
            if link is not None:
                assert "alice" not in f"{link} {link!r}"
                shown += [link.__cause__, link.__context__]
