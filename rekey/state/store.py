"""The state file: progress and records that the runner keeps between runs.

Rules kept here:

* Every change is one transaction, synced to the disk before the call returns: progress is never claimed
  before it is durable, and a failed write leaves the last checkpoint.
* The segments of a checkpoint change in one transaction, and so do the halves of a segment that is split: at
  any moment every key is in exactly one segment.
* A checkpoint moves cursors and counts, never bounds: it may come from before a split.
* Keys stand in the file as the `KeyTexts` of their migration write them, sealed if its mapping is sealed.
* The newest audit event is read and the next one added in one transaction: two processes never add two events
  after the same one.
* Opened read-only it is a copy of one moment: no file is made, written or locked; an absent file reads as an
  empty one.
* Losing the file loses no data: it holds progress and records, never the only copy of a row or a key.

Calls block for about the time of one disk sync. A State may be used by several threads, one at a time.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert as upsert

from rekey.errors import StateUnusable
from rekey.model import EntityKey, KeyRange
from rekey.state import audit, backend, files
from rekey.state.audit import AuditEvent, canonical_json, utc_text
from rekey.state.filelock import FileLock
from rekey.state.models import (
    KEYS_FORGOTTEN,
    KeptScript,
    KeyTexts,
    MigrationRecord,
    PhaseRun,
    Segment,
    StoredCheckpoint,
    StoredSums,
    Verification,
)

# Prefix of a phase run's counters that count requests; files of older versions have no such counters.
_REQUESTS = "requests."
# Names of the keys of a segment, and of a part of a verification: a sealed key is bound to its name.
_KEYS = ("after", "upto", "cursor")


def _table(name: str, *columns: str, json: str | None = None) -> sa.TableClause:
    """Return a table for queries; `json` names its column of canonical JSON. `schema/` makes the tables."""
    return sa.table(name, *(sa.column(one, sa.JSON if one == json else None) for one in columns))


def _fields(value: type[Any]) -> Iterator[str]:
    return (one.name for one in fields(value))


MIGRATION = _table("migration", *_fields(MigrationRecord), json="secret_fingerprints")
SCRIPT = _table("script", *_fields(KeptScript), json="targets")
FACT = _table("fact", "script_id", "name", "value")
SEGMENT = _table(
    "segment",
    *("id", "script_id", "purpose", "after_key", "upto_key", "cursor_key", "row_count", "byte_count", "done"),
)
PHASE_RUN = _table(
    "phase_run",
    *("id", "script_id", "phase", "started_at", "finished_at", "outcome", "counters"),
    json="counters",
)
VERIFICATION = _table(
    "verification",
    *("id", "script_id", *(name for name in _fields(Verification) if name != "number")),
    json="report",
)
PARTIAL_SUMS = _table("partial_sums", "script_id", *_fields(StoredSums))
AUDIT_EVENT = _table("audit_event", *_fields(AuditEvent), json="details")
AUDIT_CHECKPOINT = _table("audit_checkpoint", *_fields(StoredCheckpoint))
_OPENED = ContextVar[sqlite3.Connection]("opened")
# One for all files: it keeps statements as they were compiled, which takes longer than to run them.
_ENGINE = sa.create_engine(
    "sqlite://",
    creator=_OPENED.get,
    poolclass=sa.NullPool,
    hide_parameters=True,
    # canonical, so that an event has the same hash after it was read back
    json_serializer=canonical_json,
)


class State:
    """The open state file. Use `State.open`, and close it."""

    def __init__(
        self, path: Path, raw: sqlite3.Connection, *, read_only: bool, clock: Callable[[], datetime]
    ) -> None:
        """Create the state on an open connection of the right schema; `close` closes the connection."""
        self.path = path
        self.read_only = read_only
        self._clock = clock
        self._guard = threading.RLock()
        self._keys: dict[str, KeyTexts] = {}
        with files.closed_on_error(raw):
            opened = _OPENED.set(raw)
            self._connection = _ENGINE.connect()
            _OPENED.reset(opened)

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
            read_only: copy the present content into memory; for commands without side effects.
            lock: the held file lock, if this process holds it; otherwise the lock is taken while the schema
                is made or upgraded, if it must be.
            clock: tells the times that are recorded.

        Raises:
            StateUnusable: newer than this program, damaged, or read-only.
            MachineFailed: disk full or failing.
            Locked: another process holds the lock while the schema must change.
        """
        path = Path(path).absolute()
        if not read_only:
            return cls(path, backend.prepare(path, lock), read_only=False, clock=clock)
        with files.closed_on_error(files.copy_into_memory(path)) as copy, files.translating(path):
            backend.upgrade_copy(copy, path)
        return cls(path, copy, read_only=True, clock=clock)

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._guard:
            self._connection.close()

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the ledger, read only: `rekey.state.ledger` writes it ----------------------------------------

    def ledger_ids(self) -> list[str]:
        """Return the ids of all applied ledger entries: schema steps and phases."""
        with self._reading() as connection:
            return backend.ledger_ids(_raw(connection))

    @property
    def schema_version(self) -> int:
        """The number of the newest schema step that the file has."""
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
    ) -> None:
        """Record what a migration starts with; a record that is there stays as it is."""
        made = MigrationRecord(
            script_id, digest, source, run_id, endpoint_id, dict(secret_fingerprints), self._now()
        )
        self._write(upsert(MIGRATION).values(asdict(made)).on_conflict_do_nothing())

    def migration(self, script_id: str) -> MigrationRecord | None:
        """Return what a migration started with, None when the file does not know it."""
        found = self._read(sa.select(MIGRATION).where(MIGRATION.c.script_id == script_id))
        return MigrationRecord(**found[0]) if found else None

    def migrations(self) -> list[MigrationRecord]:
        """Return what all migrations that the file knows started with, by id."""
        return [
            MigrationRecord(**one) for one in self._read(sa.select(MIGRATION).order_by(MIGRATION.c.script_id))
        ]

    def keep_script(self, script_id: str, targets: Sequence[str], content: bytes) -> None:
        """Keep the script that a migration was begun with, unless that was done before.

        Args:
            script_id: the migration; it must be registered.
            targets: its target tables.
            content: the script's file.
        """
        record = self.migration(script_id)
        if record is None:
            raise AssertionError("a migration is registered before its script is kept")
        began = record.run_id, script_id, record.registered_at, record.digest, record.source
        kept = KeptScript(*began, list(targets), content)
        self._write(upsert(SCRIPT).values(asdict(kept)).on_conflict_do_nothing())

    def kept_scripts(self) -> list[KeptScript]:
        """Return all scripts that migrations were begun with, oldest first."""
        return [KeptScript(**one) for one in self._read(sa.select(SCRIPT).order_by(SCRIPT.c.begun_at))]

    def script_ids(self) -> list[str]:
        """Return the ids of all migrations that were ever begun, also of those that were taken back."""
        columns = (one.c.script_id for one in (PHASE_RUN, SCRIPT, MIGRATION))
        known = sa.union(*(sa.select(column) for column in columns))
        return sorted(one["script_id"] for one in self._read(known))

    def forget(self, script_id: str) -> None:
        """Remove a migration with its segments, facts, verifications and sums.

        Its script, phase runs and audit events stay.
        """
        self._write(sa.delete(MIGRATION).where(MIGRATION.c.script_id == script_id))

    # --- segments and checkpoints -----------------------------------------------------------------------

    def use_keys(self, script_id: str, keys: KeyTexts) -> None:
        """Set how keys of a migration are written and read from now on; the default is in the clear."""
        self._keys[script_id] = keys

    def segments(self, script_id: str, purpose: str, *, keys: bool = True) -> list[Segment]:
        """Return the segments of one purpose in the order in which they were added.

        Args:
            script_id: the migration.
            purpose: what the segments are for.
            keys: False: return counts only; all keys are None, sealed or not.

        Raises:
            StateUnusable: the keys are sealed, and `use_keys` was not called.
        """
        with self._reading() as connection:
            return _segments(connection, script_id, purpose, self._texts(script_id) if keys else None)

    def add_segments(self, script_id: str, purpose: str, ranges: Iterable[KeyRange]) -> list[Segment]:
        """Add one segment for each range and return all segments of that purpose."""
        with self._writing() as connection:
            return _add_segments(connection, script_id, purpose, ranges, self._texts(script_id))

    def checkpoint(self, segments: Sequence[Segment]) -> None:
        """Save cursors, counts and `done` of segments of one migration, in one transaction.

        Raises:
            MachineFailed: disk full or failing; the file keeps the checkpoint before this one.
        """
        scripts = {segment.script_id for segment in segments}
        if len(scripts) != 1:
            raise ValueError("a checkpoint is of the segments of one migration")
        keys = self._texts(scripts.pop())
        with self._writing() as connection:
            for segment in segments:
                saved = {
                    "cursor_key": keys.to_text("cursor", segment.cursor),
                    "row_count": segment.rows,
                    "byte_count": segment.bytes,
                    "done": int(segment.done),
                }
                connection.execute(sa.update(SEGMENT).where(SEGMENT.c.id == segment.id).values(saved))

    def split_segment(self, segment: Segment, middle: EntityKey) -> Segment:
        """End a segment at a key and add a new one for what lies after it, in one transaction.

        Returns:
            The new segment. The old one ends at `middle`, and later checkpoints do not change that.

        Raises:
            StateUnusable: the file has no such segment, it is done, or `middle` is not in what is left of it.
            MachineFailed: disk full or failing; nothing was split.
        """
        keys = self._texts(segment.script_id)
        same = SEGMENT.c.id == segment.id
        with self._writing() as connection:
            found = _rows(connection, sa.select(SEGMENT).where(same))
            known = _segment(found[0], keys) if found else None
            if not known or known.done or known.script_id != segment.script_id or middle not in known.rest:
                raise StateUnusable(
                    "the state file does not hold the segment that was to be split",
                    kept="all checkpoints",
                    hint="run the same command again: it goes on from the last checkpoint",
                )
            lower, upper = KeyRange(known.after, known.upto).split(middle)
            ended = {"upto_key": keys.to_text("upto", lower.upto)}
            connection.execute(sa.update(SEGMENT).where(same).values(ended))
            return _add_segments(connection, known.script_id, known.purpose, [upper], keys)[-1]

    def clear_segments(self, script_id: str, purpose: str) -> None:
        """Remove the segments of one purpose."""
        self._write(sa.delete(SEGMENT).where(SEGMENT.c.script_id == script_id, SEGMENT.c.purpose == purpose))

    def forget_keys(self, script_id: str) -> None:
        """Remove all keys of a migration from the file; counts stay. After `complete` no key is needed."""
        columns = [SEGMENT.c[f"{name}_key"] for name in _KEYS]
        holding = sa.or_(*(key.is_not(None) for key in columns))
        with self._writing() as connection:
            emptied = sa.update(SEGMENT).where(SEGMENT.c.script_id == script_id, holding)
            forgotten = connection.execute(emptied.values(dict.fromkeys(columns))).rowcount
            forgotten += _forget_sums(connection, script_id)
        if forgotten or self.get_fact(script_id, KEYS_FORGOTTEN) is None:  # or the last rewrite failed
            with self._guard, files.translating(self.path):
                files.rewrite(_raw(self._connection))
            self.set_fact(script_id, KEYS_FORGOTTEN, "true")

    # --- facts --------------------------------------------------------------------------------------------

    def get_fact(self, script_id: str, name: str) -> str | None:
        """Return a fact (a watermark, a time), None when it is not set."""
        return self.facts(script_id).get(name)

    def facts(self, script_id: str) -> dict[str, str]:
        """Return all facts of a migration."""
        found = self._read(sa.select(FACT).where(FACT.c.script_id == script_id))
        return {one["name"]: one["value"] for one in found}

    def set_fact(self, script_id: str, name: str, value: str | None) -> None:
        """Set a fact; None removes it. The migration must be registered."""
        self.set_facts(script_id, {name: value})

    def set_facts(self, script_id: str, facts: Mapping[str, str | None]) -> None:
        """Set facts in one transaction, as `set_fact`."""
        with self._writing() as connection:
            for name, value in facts.items():
                _put_fact(connection, script_id, name, value)

    # --- phase runs ---------------------------------------------------------------------------------------

    def start_phase(self, script_id: str, phase: str) -> int:
        """Record that a phase is entered; return the number of this phase run."""
        begun = {"script_id": script_id, "phase": str(phase), "started_at": self._now(), "counters": {}}
        return self._write(sa.insert(PHASE_RUN).values(begun)).lastrowid

    def count_phase(self, run: int, requests: Mapping[str, int]) -> None:
        """Record the requests that a phase run has sent so far, by kind; the record stays if it is killed."""
        counted = _counters({}, requests)
        self._write(sa.update(PHASE_RUN).where(PHASE_RUN.c.id == run).values(counters=counted))

    def finish_phase(
        self, run: int, outcome: str, counters: Mapping[str, int], requests: Mapping[str, int] | None = None
    ) -> None:
        """Record how a phase run ended, the figures of its work, and the requests that it sent."""
        counted = _counters(counters, requests or {})
        ended = {"finished_at": self._now(), "outcome": outcome, "counters": counted}
        self._write(sa.update(PHASE_RUN).where(PHASE_RUN.c.id == run).values(ended))

    def phase_runs(self, script_id: str) -> list[PhaseRun]:
        """Return all phase runs of a migration, oldest first."""
        query = sa.select(PHASE_RUN).where(PHASE_RUN.c.script_id == script_id).order_by(PHASE_RUN.c.id)
        runs = []
        for values in self._read(query):
            counters, requests = dict[str, int](), dict[str, int]()
            for name, number in values.pop("counters").items():
                (requests if name.startswith(_REQUESTS) else counters)[name.removeprefix(_REQUESTS)] = number
            runs.append(PhaseRun(**values, counters=counters, requests=requests))
        return runs

    # --- verifications ------------------------------------------------------------------------------------

    def add_verification(self, script_id: str, verification: Verification) -> None:
        """Record the result of a verification. The migration must be registered."""
        values = {**asdict(verification), "script_id": script_id}
        del values["number"]  # the database assigns it
        self._write(sa.insert(VERIFICATION).values(values))

    def latest_verification(self, script_id: str, mode: str = "full") -> Verification | None:
        """Return the verification of this mode that was recorded last, None when there is none."""
        found = self.verifications(script_id, mode=mode)
        return found[-1] if found else None

    def verifications(self, script_id: str, *, mode: str | None = None) -> list[Verification]:
        """Return the verifications of a migration, oldest first; of one mode, or of all."""
        query = sa.select(VERIFICATION).where(VERIFICATION.c.script_id == script_id)
        if mode is not None:
            query = query.where(VERIFICATION.c.mode == mode)
        found = self._read(query.order_by(VERIFICATION.c.id))
        for values in found:
            del values["script_id"]
        return [Verification(number=values.pop("id"), **values) for values in found]

    def keep_sums(self, script_id: str, stored: StoredSums | None) -> None:
        """Store the sums of an unfinished verification in place of earlier ones; None removes them."""
        with self._writing() as connection:
            if stored is None:
                _forget_sums(connection, script_id)
                return
            sums = json.dumps(_with_keys(stored.sums, self._texts(script_id).to_text))
            values = {"basis": stored.basis, "begun_at": stored.begun_at, "sums": sums}
            adding = upsert(PARTIAL_SUMS).values(script_id=script_id, **values)
            connection.execute(adding.on_conflict_do_update(index_elements=["script_id"], set_=values))
            _put_fact(connection, script_id, KEYS_FORGOTTEN, None)  # the file holds keys again

    def sums(self, script_id: str) -> StoredSums | None:
        """Return the sums of an unfinished verification, None when there are none.

        Raises:
            StateUnusable: they cannot be read, or their keys cannot be opened.
        """
        found = self._read(sa.select(PARTIAL_SUMS).where(PARTIAL_SUMS.c.script_id == script_id))
        if not found:
            return None
        [stored] = found
        try:
            sums = _with_keys(json.loads(stored["sums"]), self._texts(script_id).from_text)
        except (KeyError, TypeError, ValueError):
            raise StateUnusable(
                "the stored sums of an earlier verification cannot be read",
                kept="all tables; a verification changes none",
                hint="run `rekey verify --mode full` again: it begins anew",
            ) from None
        return StoredSums(stored["basis"], stored["begun_at"], sums)

    # --- audit --------------------------------------------------------------------------------------------

    def audit(self, event: str, script_id: str | None, details: Mapping[str, Any]) -> AuditEvent:
        """Add an event to the audit chain and return it. Details are JSON-able, without keys and secrets."""
        with self._writing() as connection:
            return self._add_event(connection, event, script_id, details)

    def audit_within(
        self, event: str, script_id: str | None, details: Mapping[str, Any], *, most: int, seconds: float
    ) -> AuditEvent | None:
        """Add an event to the audit chain, unless `most` of its name were added in the last `seconds`.

        They are counted in the file, over all migrations, so a new process does not begin at zero.

        Returns:
            The event; None when it was not added.
        """
        since = utc_text(self._clock() - timedelta(seconds=seconds))
        count = sa.select(sa.func.count()).where(AUDIT_EVENT.c.event == event, AUDIT_EVENT.c.at > since)
        with self._writing() as connection:
            if connection.execute(count).scalar_one() >= most:
                return None
            return self._add_event(connection, event, script_id, details)

    def audit_events(self, script_id: str | None = None, *, event: str | None = None) -> list[AuditEvent]:
        """Return the events in order; all, or those of one migration, or of one name."""
        query = sa.select(AUDIT_EVENT).order_by(AUDIT_EVENT.c.seq)
        if event is not None:
            query = query.where(AUDIT_EVENT.c.event == event)
        if script_id is not None:
            query = query.where(AUDIT_EVENT.c.script_id == script_id)
        return [AuditEvent(**one) for one in self._read(query)]

    def check_chain(self) -> int | None:
        """Return the seq at which the audit chain breaks first, None when it holds."""
        return audit.first_broken(self.audit_events())

    def add_checkpoint(self, size: int, note: str, remark: str) -> None:
        """Record a checkpoint over the first `size` events; an earlier one of that size stays unchanged."""
        adding = upsert(AUDIT_CHECKPOINT).values(size=size, at=self._now(), note=note, remark=remark)
        self._write(adding.on_conflict_do_nothing())

    def checkpoints(self) -> list[StoredCheckpoint]:
        """Return all checkpoints over the audit log, by size."""
        found = self._read(sa.select(AUDIT_CHECKPOINT).order_by(AUDIT_CHECKPOINT.c.size))
        return [StoredCheckpoint(**one) for one in found]

    def _add_event(
        self, connection: sa.Connection, event: str, script_id: str | None, details: Mapping[str, Any]
    ) -> AuditEvent:
        newest = sa.select(AUDIT_EVENT).order_by(AUDIT_EVENT.c.seq.desc()).limit(1)
        last = next((AuditEvent(**row) for row in _rows(connection, newest)), None)
        added = audit.chained(last, self._now(), event, script_id, details)
        connection.execute(sa.insert(AUDIT_EVENT).values(asdict(added)))
        return added

    # --- transactions -------------------------------------------------------------------------------------

    def _now(self) -> str:
        return utc_text(self._clock())

    def _texts(self, script_id: str) -> KeyTexts:
        return self._keys.get(script_id) or KeyTexts()

    def _read(self, query: sa.Select[Any] | sa.CompoundSelect[Any]) -> list[dict[str, Any]]:
        with self._reading() as connection:
            return _rows(connection, query)

    def _write(self, statement: sa.Executable) -> sa.CursorResult[Any]:
        with self._writing() as connection:
            return connection.execute(statement)

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._guard, files.translating(self.path), self._connection.begin():
            yield self._connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        if self.read_only:
            raise StateUnusable(
                f"the state file {self.path} was opened for reading only",
                hint="this command has no side effects; use one that has",
            )
        with self._guard, files.translating(self.path), self._connection.begin():
            # takes the write lock first: rows read in this transaction cannot change before it commits
            self._connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield self._connection


def _rows(connection: sa.Connection, query: sa.Select[Any] | sa.CompoundSelect[Any]) -> list[dict[str, Any]]:
    return [row._asdict() for row in connection.execute(query)]


def _raw(connection: sa.Connection) -> sqlite3.Connection:
    return cast(sqlite3.Connection, connection.connection.dbapi_connection)


def _segments(
    connection: sa.Connection, script_id: str, purpose: str, keys: KeyTexts | None
) -> list[Segment]:
    of_purpose = SEGMENT.c.script_id == script_id, SEGMENT.c.purpose == purpose
    found = _rows(connection, sa.select(SEGMENT).where(*of_purpose).order_by(SEGMENT.c.id))
    return [_segment(row, keys) for row in found]


def _segment(row: Mapping[str, Any], keys: KeyTexts | None) -> Segment:
    after, upto, cursor = (
        None if keys is None else keys.from_text(name, row[f"{name}_key"]) for name in _KEYS
    )
    counts = row["row_count"], row["byte_count"], bool(row["done"])
    return Segment(row["id"], row["script_id"], row["purpose"], after, upto, cursor, *counts)


def _add_segments(
    connection: sa.Connection, script_id: str, purpose: str, ranges: Iterable[KeyRange], keys: KeyTexts
) -> list[Segment]:
    values = [
        {
            "script_id": script_id,
            "purpose": purpose,
            "after_key": keys.to_text("after", within.after),
            "upto_key": keys.to_text("upto", within.upto),
        }
        for within in ranges
    ]
    if values:
        connection.execute(sa.insert(SEGMENT), values)
    return _segments(connection, script_id, purpose, keys)


def _put_fact(connection: sa.Connection, script_id: str, name: str, value: str | None) -> None:
    """Set a fact of a migration; None removes it."""
    if value is None:
        connection.execute(sa.delete(FACT).where(FACT.c.script_id == script_id, FACT.c.name == name))
        return
    setting = upsert(FACT).values(script_id=script_id, name=name, value=value)
    connection.execute(
        setting.on_conflict_do_update(index_elements=["script_id", "name"], set_={"value": value})
    )


def _counters(counters: Mapping[str, int], requests: Mapping[str, int]) -> dict[str, int]:
    """Return the figures and the request counts of a phase run in one mapping, as its column holds them."""
    return {**counters, **{_REQUESTS + name: number for name, number in requests.items()}}


def _with_keys(sums: Mapping[str, Any], convert: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return sums of a verification with the keys of their parts converted: to texts, or from texts."""
    parts = [
        [name, *(convert(key, bound) for key, bound in zip(_KEYS, bounds, strict=True)), done]
        for name, *bounds, done in sums["parts"]
    ]
    return {**sums, "parts": parts}


def _forget_sums(connection: sa.Connection, script_id: str) -> int:
    return connection.execute(sa.delete(PARTIAL_SUMS).where(PARTIAL_SUMS.c.script_id == script_id)).rowcount
