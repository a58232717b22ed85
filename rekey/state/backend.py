"""yoyo's SQLite backend, made safe for the state file, and the schema applied through it."""

from __future__ import annotations

import logging
import socket
import sqlite3
import uuid
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from yoyo.backends.core.sqlite3 import SQLiteBackend
from yoyo.exceptions import LockTimeout
from yoyo.migrations import Migration as YoyoMigration
from yoyo.migrations import MigrationList, default_migration_table

from rekey.state import files
from rekey.state.applied import SCHEMA_FOLDER, missing_steps, schema_steps, tables
from rekey.state.audit import current_actor, utc_now
from rekey.state.filelock import FileLock

logging.getLogger("yoyo").setLevel(logging.CRITICAL + 1)


class StateBackend(SQLiteBackend):  # type: ignore[misc]
    """yoyo's view of one state file, made from a path."""

    # yoyo's own URI opens another file when the path holds `?`, `#` or `%`, and its `get_backend` writes.
    def __init__(self, path: Path, migration_table: str = default_migration_table) -> None:
        super().__init__(path, migration_table)

    def connect(self, dburi: Path) -> sqlite3.Connection:
        """Open the file; called by the base class, also for every copy of the backend."""
        return files.connect(dburi)

    def __enter__(self) -> StateBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> Any:
        # The default adapters of `sqlite3` for times are deprecated since Python 3.12.
        bound = {
            name: value.isoformat(" ") if isinstance(value, datetime) else value
            for name, value in (params or {}).items()
        }
        return super().execute(sql, bound)

    def list_tables(self, **_: Any) -> list[str]:
        return tables(self.connection)

    def get_log_data(self, migration: Any = None, operation: str = "apply") -> dict[str, Any]:
        """Return the entry for yoyo's log table. yoyo's own asks the network for the full host name."""
        return {
            "id": str(uuid.uuid4()),
            "migration_id": migration.id if migration else None,
            "migration_hash": migration.hash if migration else None,
            "username": current_actor(),
            "hostname": socket.gethostname(),
            "created_at_utc": utc_now().replace(tzinfo=None),
            "operation": operation,
        }

    def begin_exclusive_use(self) -> None:
        """Create yoyo's lock table and remove a lock row that a killed process left. Call only with the file
        lock, which proves that the process is dead."""
        self.execute(self.format_sql(self.create_lock_table_sql).replace("TABLE", "TABLE IF NOT EXISTS", 1))
        self.break_lock()

    def _insert_lock_row(self, pid: int, _timeout: float, _poll_interval: float = 0.5) -> None:
        """Insert the lock row once, in its own transaction.

        yoyo's method takes every database error for a lock, waits, and tries again within the transaction
        that a failed commit (a full disk) left open: the file then looks busy to this process itself.
        """
        try:
            self.execute(
                "INSERT INTO yoyo_lock (locked, ctime, pid) VALUES (1, :ctime, :pid)",
                {"ctime": utc_now().replace(tzinfo=None), "pid": pid},
            )
        except sqlite3.IntegrityError:
            raise LockTimeout("another process has locked this database") from None

    def apply_one(self, migration: Any, force: bool = False, mark: bool = True) -> None:
        """Apply one migration; a transactional one in one transaction with its ledger entry, so that after a
        kill neither exists."""
        migration.load()
        if not migration.use_transactions:
            super().apply_one(migration, force=force, mark=mark)
            return
        self.ensure_internal_schema_updated()
        with self.transaction():
            migration.process_steps(self, "apply", force=force)
            self.log_migration(migration, "apply")
            if mark:
                self.mark_one(migration, log=False)


def schema_migrations(folder: Path = SCHEMA_FOLDER) -> MigrationList:
    """Return the schema's migrations in order, all loaded: yoyo resolves dependencies through a process-wide
    table, where migrations read in between could take entries of those loaded later."""
    scripts = [YoyoMigration(path.stem, str(path), str(folder)) for path in schema_steps(folder)]
    for script in scripts:
        script.load()
    return MigrationList(scripts)


def prepare(path: Path, lock: FileLock | None, *, folder: Path = SCHEMA_FOLDER) -> sqlite3.Connection:
    """Open the state file for writing and upgrade its schema. The caller closes it.

    Args:
        path: the state file; created when there is none.
        lock: the held file lock on it; None: it is taken here while the schema is upgraded.
        folder: where the schema's scripts are.

    Raises:
        StateUnusable: newer than this program, damaged, read-only, not a state file.
        Locked: the schema must change, and another process holds the lock.
        MachineFailed: disk full or failing.
    """
    with files.closed_on_error(files.open_for_writing(path)) as connection, files.translating(path):
        if missing_steps(connection, path, folder):
            if lock is not None:
                lock.require(path)
            with nullcontext() if lock is not None else FileLock(path), StateBackend(path) as backend:
                backend.begin_exclusive_use()
                with backend.lock():
                    backend.apply_migrations(backend.to_apply(schema_migrations(folder)))
    return connection
