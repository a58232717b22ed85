"""The state file as a file: creating, opening and checking it, and translating SQLite's errors, none of which
leave this package."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rekey.errors import RekeyError, reason_of
from rekey.state.refusals import refusal

MAGIC = b"SQLite format 3\0"
BUSY_TIMEOUT_S = 20.0
_COPY_ATTEMPTS = 5


@contextmanager
def closed_on_error(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Close a connection if the body raises."""
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


@contextmanager
def translating(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into those of `translated`."""
    try:
        yield
    except sqlite3.Error as error:
        raise translated(error, path) from error


def translated(error: sqlite3.Error, path: Path) -> RekeyError:
    """Return the RekeyError for an error of SQLite, with what the operator is to do."""
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    if name == "SQLITE_FULL":
        return refusal("no-space", path=path)
    if name.startswith(("SQLITE_IOERR", "SQLITE_NOMEM")):
        return refusal("disk-failed", path=path, name=name)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return refusal("busy", path=path)
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return refusal("not-writable", file="state file", path=path, why=name)
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT", "SQLITE_SCHEMA")):
        return refusal("damaged", path=path, why=name)
    return refusal("statement-refused", path=path, name=name)


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the file for writing, creating it when there is none. The caller closes the connection.

    Raises:
        StateUnusable: not a file, no database, damaged, or read-only.
        MachineFailed, Locked: see `translated`.
    """
    # With mode 0600, as it holds old keys: SQLite gives -wal and -shm the mode of the main file.
    os.close(open_private(path))
    _check_header(path)
    with translating(path), closed_on_error(connect(path)) as connection:
        # A setting of the file itself: a writer does not stop readers in other processes.
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        _check_intact(connection, path)
    return connection


def sqlite_version() -> str:
    """Return the version of the SQLite library in use."""
    return sqlite3.sqlite_version


def rewrite(connection: sqlite3.Connection) -> None:
    """Rewrite the whole file, so that removed data does not stay in its free pages or its log."""
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection without implicit transactions that syncs every commit to the disk."""
    opened = sqlite3.connect(
        path.absolute(), timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=False
    )
    with closed_on_error(opened) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        # Temporary files would hold keys outside of the file's private folder, and a full disk there would be
        # reported as the state file's.
        connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def copy_into_memory(path: Path) -> sqlite3.Connection:
    """Return an in-memory copy of the file's present content; an empty database when there is no file.

    Raises:
        StateUnusable: damaged, no database, or not readable.
        MachineFailed: see `translated`.
        Locked: another process keeps the file busy, or changes it too fast for a copy.
    """
    opened = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with closed_on_error(opened) as memory:
        if path.exists():
            _check_header(path)
            with translating(path):
                _copy(path, memory)
                _check_intact(memory, path)
        memory.execute("PRAGMA foreign_keys = ON")
    return memory


def _copy(path: Path, memory: sqlite3.Connection) -> None:
    for _ in range(_COPY_ATTEMPTS):
        before = _fingerprint(path)
        # A reader changes nothing, but opening a file in WAL mode makes -wal and -shm next to it. Without a
        # -wal the file is not being written: it is opened as immutable, which makes neither, and checked for
        # changes afterwards.
        mode = "mode=ro" if before[-1] else "mode=ro&immutable=1"
        uri = f"{path.absolute().as_uri()}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S)) as source:
            source.backup(memory)
        if before[-1] or _fingerprint(path) == before:
            return
    raise refusal("changing", path=path)


def _fingerprint(path: Path) -> tuple[int, int, bool]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, path.with_name(path.name + "-wal").exists()


def open_private(path: Path, what: str = "state file") -> int:
    """Return the descriptor of a file to read and write; an absent one is created for its owner only.

    Raises:
        StateUnusable: it is a folder, or read-only.
        MachineFailed: it cannot be created or opened for another reason.
    """
    with _opening(path, what):
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


@contextmanager
def _opening(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except IsADirectoryError:
        raise refusal("is-folder", file=what, path=path) from None
    except PermissionError:
        raise refusal("not-writable", file=what, path=path, why="PermissionError") from None
    except OSError as error:
        if error.errno == errno.EROFS:
            raise refusal("not-writable", file=what, path=path, why="read-only file system") from None
        raise refusal("not-opened", file=what, path=path, reason=reason_of(error)) from None


def _check_header(path: Path) -> None:
    """Raise StateUnusable for a file without SQLite's header. An empty file passes: it is a new database."""
    with _opening(path, "state file"), path.open("rb") as file:
        head = file.read(len(MAGIC))
    if head and head != MAGIC:
        raise refusal("damaged", path=path, why="not a database")


def _check_intact(connection: sqlite3.Connection, path: Path) -> None:
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict is None or verdict[0] != "ok":
        raise refusal("damaged", path=path, why="its pages do not fit together")
