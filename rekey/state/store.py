"""The state file: what the runner must remember between runs.

Rules kept here:

* Every change is one transaction, synced to the disk before the call returns: progress is never claimed
  before it is durable, and a failed write leaves the last checkpoint.
* Segments and the facts that belong to them change in one transaction (`checkpoint`).
* Opened read-only it is a copy of one moment: nothing is made, written or held; no file reads as empty.
* Losing the file loses no data: it holds progress and records, never the only copy of a row or a key.

Calls block for about the time of one disk sync. A State may be used by several threads, one at a time.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from sqlalchemy import Connection, NullPool, create_engine, delete, insert, select
from sqlalchemy.dialects.sqlite import insert as upsert

from rekey.errors import StateUnusable
from rekey.model import EntityKey, KeyRange
from rekey.state import audit, backend, events, files, rows, runs
from rekey.state import facts as facts_in_file
from rekey.state import segments as in_file
from rekey.state import sums as partial_sums
from rekey.state.audit import AuditEvent, canonical_json, utc_text
from rekey.state.filelock import FileLock
from rekey.state.keytexts import PLAIN, KeyTexts, NoKeys
from rekey.state.models import (
    AUDIT_CHECKPOINT,
    AUDIT_EVENT,
    KEYS_FORGOTTEN,
    MIGRATION,
    SEGMENT,
    VERIFICATION,
    MigrationRecord,
    PhaseRun,
    Segment,
    StoredCheckpoint,
    Verification,
)


class State:
    """The open state file. Use `State.open`, and close it."""

    def __init__(
        self, path: Path, raw: sqlite3.Connection, *, read_only: bool, clock: Callable[[], datetime]
    ) -> None:
        """Take an open connection whose schema is right; it is closed with this object."""
        self.path = path
        self.read_only = read_only
        self._clock = clock
        self._guard = threading.RLock()
        self._keys: dict[str, KeyTexts] = {}
        self._engine = create_engine(
            "sqlite://", creator=lambda: raw, poolclass=NullPool, hide_parameters=True
        )
        try:
            self._connection = self._engine.connect()
        except BaseException:
            raw.close()
            raise

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        read_only: bool = False,
        lock: FileLock | None = None,
        clock: Callable[[], datetime] = audit.utc_now,
    ) -> State:
        """Open the state file.

        Args:
            path: the file; made (0600, its folder 0700) when there is none and not read_only.
            read_only: take a copy of what is there now; for commands without side effects.
            lock: the held file lock, if this process has it; otherwise it is taken for a moment when the
                schema must be made or upgraded.
            clock: for the times that are recorded.

        Raises:
            StateUnusable: newer than this program, damaged, or read-only.
            MachineFailed: disk full or failing.
            Locked: another process holds the lock while the schema must change.
        """
        path = Path(path).absolute()
        if not read_only:
            return cls(path, backend.prepare(path, lock), read_only=False, clock=clock)
        copy = files.copy_into_memory(path)
        try:
            with files.translating(path):
                backend.upgrade_copy(copy, path)
        except BaseException:
            copy.close()
            raise
        return cls(path, copy, read_only=True, clock=clock)

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._guard:
            self._connection.close()
            self._engine.dispose()

    def __enter__(self) -> State:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the ledger, read only: `runner.ledger` writes it ---------------------------------------------

    def ledger_ids(self) -> list[str]:
        """Return the ids of all applied ledger entries: schema steps and phases."""
        with self._reading() as connection:
            return backend.ledger_ids(_raw(connection))

    @property
    def schema_version(self) -> int:
        """Return the number of the newest schema step that the file has."""
        return backend.schema_version(self.ledger_ids())

    # --- migrations -----------------------------------------------------------------------------------

    def register(
        self,
        script_id: str,
        digest: str,
        source: str,
        run_id: str,
        secret_fingerprints: Mapping[str, str],
        endpoint_id: str,
    ) -> MigrationRecord:
        """Record what a migration starts with, or check that it is what it started with.

        Raises:
            StateUnusable: recorded with another account, source table or run.
            Moved: recorded with another digest or another secret.
        """
        with self._writing() as connection:
            known = _migration(connection, script_id)
            if known is not None:
                known.require_same_place(source=source, endpoint_id=endpoint_id, run_id=run_id)
                known.require_same_rules(digest=digest, secret_fingerprints=secret_fingerprints)
                return known
            connection.execute(
                insert(MIGRATION).values(
                    script_id=script_id,
                    digest=digest,
                    source=source,
                    run_id=run_id,
                    endpoint_id=endpoint_id,
                    secret_fingerprints=canonical_json(dict(secret_fingerprints)),
                    registered_at=self._now(),
                )
            )
            made = _migration(connection, script_id)
        assert made is not None  # noqa: S101 - inserted above, in the same transaction
        return made

    def migration(self, script_id: str) -> MigrationRecord | None:
        """Return what a migration started with, None when the file does not know it."""
        with self._reading() as connection:
            return _migration(connection, script_id)

    def migrations(self) -> list[MigrationRecord]:
        """Return all migrations that the file knows, by script id."""
        with self._reading() as connection:
            found = connection.execute(select(MIGRATION).order_by(MIGRATION.c.script_id))
            return [rows.migration(row) for row in found]

    def forget(self, script_id: str) -> None:
        """Remove a migration with its segments, facts and verifications; its phase runs and audit stay."""
        with self._writing() as connection:
            connection.execute(delete(MIGRATION).where(MIGRATION.c.script_id == script_id))

    # --- segments and checkpoints -----------------------------------------------------------------------

    def use_keys(self, script_id: str, keys: KeyTexts) -> None:
        """Say how keys of a migration stand in the file, from now on: as they are, if nobody says."""
        self._keys[script_id] = keys

    def segments(self, script_id: str, purpose: str, *, keys: bool = True) -> list[Segment]:
        """Return the segments of one purpose in the order in which they were added.

        Args:
            script_id: the migration.
            purpose: what they are for.
            keys: False for counts alone: the keys are None, sealed or not.

        Raises:
            StateUnusable: the keys are sealed, and nobody said with what.
        """
        with self._reading() as connection:
            texts = self._keys.get(script_id, PLAIN) if keys else NoKeys()
            return in_file.listed(connection, script_id, purpose, texts)

    def add_segments(self, script_id: str, purpose: str, ranges: Iterable[KeyRange]) -> list[Segment]:
        """Add one segment for each range and return all segments of that purpose."""
        with self._writing() as connection:
            keys = self._keys.get(script_id, PLAIN)
            in_file.add(connection, script_id, purpose, ranges, keys)
            return in_file.listed(connection, script_id, purpose, keys)

    def checkpoint(self, segments: Sequence[Segment], *, facts: Mapping[str, str] | None = None) -> None:
        """Save cursors, counts and done of segments of one migration, and facts of it, in one transaction.

        Raises:
            MachineFailed: disk full or failing; the checkpoint before this one stands.
        """
        scripts = {segment.script_id for segment in segments}
        if len(scripts) != 1:
            raise ValueError("a checkpoint is of the segments of one migration")
        script_id = scripts.pop()
        with self._writing() as connection:
            in_file.save(connection, segments, self._keys.get(script_id, PLAIN))
            facts_in_file.put(connection, script_id, facts or {})

    def split_segment(self, segment: Segment, middle: EntityKey) -> Segment:
        """End a segment at a key and add a new one for what lies behind it, in one transaction.

        Returns:
            The new segment. The other one's end is `middle`, whatever a later checkpoint says of it.

        Raises:
            StateUnusable: the file has no such segment, or one that is done or already beyond that key.
            MachineFailed: disk full or failing; nothing was split.
        """
        with self._writing() as connection:
            return in_file.split(connection, segment, middle, self._keys.get(segment.script_id, PLAIN))

    def clear_segments(self, script_id: str, purpose: str) -> None:
        """Remove the segments of one purpose."""
        with self._writing() as connection:
            connection.execute(
                delete(SEGMENT).where(SEGMENT.c.script_id == script_id, SEGMENT.c.purpose == purpose)
            )

    def forget_keys(self, script_id: str) -> None:
        """Take all keys of a migration out of the file; counts stay. Behind `complete` they are of no use."""
        with self._writing() as connection:
            forgotten = in_file.forget_keys(connection, script_id)
            forgotten += partial_sums.forget(connection, script_id)
        if forgotten or self.get_fact(script_id, KEYS_FORGOTTEN) is None:  # or it failed here the last time
            with self._guard, files.translating(self.path):
                files.rewrite(_raw(self._connection))
            self.set_fact(script_id, KEYS_FORGOTTEN, "true")

    # --- facts --------------------------------------------------------------------------------------------

    def get_fact(self, script_id: str, name: str) -> str | None:
        """Return a small fact (a watermark, a moment), None when it is not set."""
        return self.facts(script_id).get(name)

    def facts(self, script_id: str) -> dict[str, str]:
        """Return all facts of a migration."""
        with self._reading() as connection:
            return facts_in_file.listed(connection, script_id)

    def set_fact(self, script_id: str, name: str, value: str | None) -> None:
        """Set a fact; None removes it. The migration must be registered."""
        with self._writing() as connection:
            facts_in_file.put(connection, script_id, {name: value})

    # --- phase runs ---------------------------------------------------------------------------------------

    def start_phase(self, script_id: str, phase: str) -> int:
        """Record that a phase is entered and return the number of this run."""
        with self._writing() as connection:
            return runs.start(connection, script_id, str(phase), self._now())

    def count_phase(self, run: int, requests: Mapping[str, int]) -> None:
        """Record what a run of a phase that goes on has sent until now, by kind."""
        with self._writing() as connection:
            runs.count(connection, run, requests)

    def finish_phase(
        self, run: int, outcome: str, counters: Mapping[str, int], requests: Mapping[str, int] | None = None
    ) -> None:
        """Record how a run of a phase ended, what it did, and what it sent."""
        with self._writing() as connection:
            runs.finish(connection, run, outcome, counters, requests or {}, self._now())

    def phase_runs(self, script_id: str) -> list[PhaseRun]:
        """Return all runs of all phases of a migration, oldest first."""
        with self._reading() as connection:
            return runs.listed(connection, script_id)

    # --- verifications ------------------------------------------------------------------------------------

    def add_verification(self, script_id: str, verification: Verification) -> None:
        """Record the result of a verification. The migration must be registered."""
        with self._writing() as connection:
            connection.execute(insert(VERIFICATION).values(rows.of_verification(script_id, verification)))

    def latest_verification(self, script_id: str, mode: str = "full") -> Verification | None:
        """Return the verification of this mode that was recorded last."""
        found = self.verifications(script_id, mode=mode)
        return found[-1] if found else None

    def verifications(self, script_id: str, *, mode: str | None = None) -> list[Verification]:
        """Return the verifications of a migration, oldest first; of one mode, or of all."""
        query = select(VERIFICATION).where(VERIFICATION.c.script_id == script_id).order_by(VERIFICATION.c.id)
        if mode is not None:
            query = query.where(VERIFICATION.c.mode == mode)
        with self._reading() as connection:
            return [rows.verification(row) for row in connection.execute(query)]

    def keep_sums(self, script_id: str, stored: partial_sums.StoredSums | None) -> None:
        """Store the sums of a verification under way in the place of those before; None removes them."""
        partial_sums.keep(self._writing, script_id, stored, self._keys.get(script_id, PLAIN))

    def sums(self, script_id: str) -> partial_sums.StoredSums | None:
        """Return the sums of a verification under way. Raises StateUnusable when they cannot be read."""
        return partial_sums.load(self._reading, script_id, self._keys.get(script_id, PLAIN))

    # --- audit --------------------------------------------------------------------------------------------

    def audit(self, event: str, script_id: str | None, details: Mapping[str, Any]) -> AuditEvent:
        """Add an event to the chain. Details are JSON-able, without keys and secrets."""
        with self._writing() as connection:
            return events.add(connection, self._now(), event, script_id, details)

    def audit_within(
        self, event: str, script_id: str | None, details: Mapping[str, Any], *, most: int, seconds: float
    ) -> AuditEvent | None:
        """Add an event to the chain unless `most` of its name were added in the last seconds; None then."""
        with self._writing() as connection:
            since = utc_text(self._clock() - timedelta(seconds=seconds))
            if events.count(connection, event, since) >= most:
                return None
            return events.add(connection, self._now(), event, script_id, details)

    def audit_events(self, script_id: str | None = None) -> list[AuditEvent]:
        """Return the events in order; all, or those of one migration."""
        query = select(AUDIT_EVENT).order_by(AUDIT_EVENT.c.seq)
        if script_id is not None:
            query = query.where(AUDIT_EVENT.c.script_id == script_id)
        with self._reading() as connection:
            return [rows.audit_event(row) for row in connection.execute(query)]

    def check_chain(self) -> int | None:
        """Return the seq at which the audit chain breaks first, None when it holds."""
        return audit.first_broken(self.audit_events())

    def add_checkpoint(self, size: int, note: str, remark: str) -> None:
        """Record a checkpoint over the first `size` events; one that is there already stays as it is."""
        with self._writing() as connection:
            adding = upsert(AUDIT_CHECKPOINT).values(size=size, at=self._now(), note=note, remark=remark)
            connection.execute(adding.on_conflict_do_nothing())

    def checkpoints(self) -> list[StoredCheckpoint]:
        """Return all checkpoints over the audit log, by size."""
        with self._reading() as connection:
            found = connection.execute(select(AUDIT_CHECKPOINT).order_by(AUDIT_CHECKPOINT.c.size))
            return [rows.stored_checkpoint(row) for row in found]

    # --- transactions -------------------------------------------------------------------------------------

    def _now(self) -> str:
        return utc_text(self._clock())

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._guard, files.translating(self.path), self._connection.begin():
            yield self._connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        if self.read_only:
            raise StateUnusable(
                f"the state file {self.path} was opened for reading only",
                hint="this command has no side effects; use one that has",
            )
        with self._guard, files.translating(self.path), self._connection.begin():
            # the write lock first: what is read in this transaction is still true when it commits
            self._connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield self._connection


def _raw(connection: Connection) -> sqlite3.Connection:
    return cast(sqlite3.Connection, connection.connection.dbapi_connection)


def _migration(connection: Connection, script_id: str) -> MigrationRecord | None:
    row = connection.execute(select(MIGRATION).where(MIGRATION.c.script_id == script_id)).one_or_none()
    return None if row is None else rows.migration(row)
