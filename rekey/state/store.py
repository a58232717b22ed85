"""The state file: progress and records between runs, never the only copy of a row or a key."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rekey.model import EntityKey, KeyRange
from rekey.state import applied, audit, files
from rekey.state.audit import AuditEvent, utc_text
from rekey.state.models import (
    KEYS_FORGOTTEN,
    KeptScript,
    KeyTexts,
    MigrationRecord,
    PhaseRun,
    Segment,
    StoredCheckpoint,
    StoredDigests,
    Verification,
)
from rekey.state.refusals import refusal

if TYPE_CHECKING:
    from rekey.state.filelock import FileLock
    from rekey.state.writer import Writer

# Prefix of a phase run's counters that count requests; files of older versions have none.
_REQUESTS = "requests."
# Names of the keys of a segment, and of a part of a verification: a sealed key is bound to its name.
_KEYS = ("after", "upto", "cursor")


class State:
    """The open state file. Use `State.open`, and close it.

    Every change is one transaction, synced to the disk before the call returns. Several threads may use it,
    one at a time.
    """

    def __init__(
        self, path: Path, connection: sqlite3.Connection, writer: Writer | None, clock: Callable[[], datetime]
    ) -> None:
        self.path = path
        # Reads go through `sqlite3` alone: `rekey status` waits neither for SQLAlchemy nor for yoyo.
        self._connection = connection
        self._writer = writer
        self._clock = clock
        self._guard = threading.RLock()
        self._keys: dict[str, KeyTexts] = {}

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
            path: the file; created (0600, its folder 0700) when there is none and not read_only.
            read_only: copy the present content into memory; nothing is made, written or locked.
            lock: the held file lock, if this process holds it; otherwise it is taken while the schema is
                created or upgraded.
            clock: tells the times that are recorded.

        Raises:
            StateUnusable: newer than this program, damaged, or read-only.
            MachineFailed: disk full or failing.
            Locked: another process holds the lock while the schema must change.
        """
        path = Path(path).absolute()
        if read_only:
            with files.closed_on_error(files.copy_into_memory(path)) as copy, files.translating(path):
                for step in applied.missing_steps(copy, path):
                    copy.executescript(step.read_text("utf-8"))
            return cls(path, copy, None, clock)
        from rekey.state import backend
        from rekey.state.writer import Writer

        with files.closed_on_error(backend.prepare(path, lock)) as connection:
            return cls(path, connection, Writer(path, connection), clock)

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._guard:
            if self._writer is not None:
                self._writer.close()
            self._connection.close()

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the ledger, read only: `rekey.state.ledger` writes it ----------------------------------------

    def ledger_ids(self) -> list[str]:
        """Return the ids of all applied ledger entries: schema steps and phases."""
        with self._guard, files.translating(self.path):
            return applied.ledger_ids(self._connection)

    @property
    def schema_version(self) -> int:
        return applied.schema_version(self.ledger_ids())

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
        """Record what a migration starts with; an existing record stays."""
        record = MigrationRecord(
            script_id, digest, source, run_id, endpoint_id, dict(secret_fingerprints), self._now()
        )
        with self._writing() as writer:
            writer.insert("migration", asdict(record), unless_there=True)

    def migration(self, script_id: str) -> MigrationRecord | None:
        """Return what a migration started with; None: the file does not know it."""
        return next((migration for migration in self.migrations() if migration.script_id == script_id), None)

    def migrations(self) -> list[MigrationRecord]:
        """Return what all known migrations started with, by id."""
        rows = self._read("SELECT * FROM migration ORDER BY script_id", decode="secret_fingerprints")
        return [MigrationRecord(**row) for row in rows]

    def keep_script(self, script_id: str, targets: Sequence[str], content: bytes) -> None:
        """Store the file of the script that a registered migration was begun with; an existing one stays."""
        record = self.migration(script_id)
        if record is None:
            raise AssertionError("a migration is registered before its script is kept")
        began = record.run_id, script_id, record.registered_at, record.digest, record.source
        with self._writing() as writer:
            writer.insert("script", asdict(KeptScript(*began, list(targets), content)), unless_there=True)

    def kept_scripts(self) -> list[KeptScript]:
        """Return all scripts that migrations were begun with, oldest first."""
        rows = self._read("SELECT * FROM script ORDER BY begun_at", decode="targets")
        return [KeptScript(**row) for row in rows]

    def script_ids(self) -> list[str]:
        """Return the ids of all migrations that were ever begun, also of those rolled back."""
        rows = self._read(
            "SELECT script_id FROM phase_run UNION SELECT script_id FROM script"
            " UNION SELECT script_id FROM migration"
        )
        return sorted(row["script_id"] for row in rows)

    def forget(self, script_id: str) -> None:
        """Remove a migration with its segments, facts, verifications and digests; script, phase runs and
        audit events stay."""
        with self._writing() as writer:
            writer.delete("migration", script_id=script_id)

    # --- segments and checkpoints -----------------------------------------------------------------------

    def use_keys(self, script_id: str, keys: KeyTexts) -> None:
        """Set how keys of a migration are written and read from now on; the default is in the clear."""
        self._keys[script_id] = keys

    def segments(self, script_id: str, purpose: str, *, keys: bool = True) -> list[Segment]:
        """Return the segments of one purpose in the order in which they were added. `keys`: False: all keys
        are None, sealed or not. Raises StateUnusable for sealed keys before `use_keys`."""
        query = "SELECT * FROM segment WHERE script_id = ? AND purpose = ? ORDER BY id"
        texts = self._texts(script_id) if keys else None
        return [_segment(row, texts) for row in self._read(query, script_id, purpose)]

    def require_readable(self, script_id: str) -> bool:
        """Tell whether a migration's segments hold any key. Raises StateUnusable unless all can be read."""
        segments = [
            _segment(row, self._texts(script_id))
            for row in self._read("SELECT * FROM segment WHERE script_id = ?", script_id)
        ]
        return any(
            key is not None for segment in segments for key in (segment.after, segment.upto, segment.cursor)
        )

    def add_segments(self, script_id: str, purpose: str, ranges: Iterable[KeyRange]) -> list[Segment]:
        """Add one segment for each range; return all segments of that purpose."""
        keys = self._texts(script_id)
        with self._writing() as writer:
            for within in ranges:
                after, upto = keys.to_text("after", within.after), keys.to_text("upto", within.upto)
                bounds = {"after_key": after, "upto_key": upto}
                writer.insert("segment", {"script_id": script_id, "purpose": purpose, **bounds})
            return self.segments(script_id, purpose)

    def checkpoint(self, segments: Sequence[Segment]) -> None:
        """Save cursors, counts and `done` of segments of one migration. Raises MachineFailed when the disk is
        full or failing; the file keeps the checkpoint before this one."""
        scripts = {segment.script_id for segment in segments}
        if len(scripts) != 1:
            raise ValueError("a checkpoint is of the segments of one migration")
        keys = self._texts(scripts.pop())
        with self._writing() as writer:
            for segment in segments:
                # Never the bounds: this segment may have been split since it was read.
                saved = {
                    "cursor_key": keys.to_text("cursor", segment.cursor),
                    "row_count": segment.rows,
                    "byte_count": segment.bytes,
                    "done": int(segment.done),
                }
                writer.update("segment", saved, id=segment.id)

    def split_segment(self, segment: Segment, middle: EntityKey) -> Segment:
        """End a segment at `middle` and return the new one for what lies after it. Later checkpoints do not
        change the bounds.

        Raises:
            StateUnusable: the file has no such segment, it is done, or `middle` is not in what is left of it.
            MachineFailed: disk full or failing; nothing was split.
        """
        keys = self._texts(segment.script_id)
        with self._writing() as writer:
            rows = self._read("SELECT * FROM segment WHERE id = ?", segment.id)
            known = _segment(rows[0], keys) if rows else None
            if not known or known.done or known.script_id != segment.script_id or middle not in known.rest:
                raise refusal("no-segment")
            lower, upper = KeyRange(known.after, known.upto).split(middle)
            writer.update("segment", {"upto_key": keys.to_text("upto", lower.upto)}, id=segment.id)
            return self.add_segments(known.script_id, known.purpose, [upper])[-1]

    def clear_segments(self, script_id: str, purpose: str) -> None:
        """Remove the segments of one purpose."""
        with self._writing() as writer:
            writer.delete("segment", script_id=script_id, purpose=purpose)

    def forget_keys(self, script_id: str) -> None:
        """Remove all keys of a migration from the file; counts stay."""
        columns = [f"{name}_key" for name in _KEYS]
        with self._writing() as writer:
            rows = self._read("SELECT * FROM segment WHERE script_id = ?", script_id)
            forgotten = sum(any(map(row.get, columns)) for row in rows)
            writer.update("segment", dict.fromkeys(columns), script_id=script_id)
            forgotten += writer.delete("partial_sums", script_id=script_id)
        if forgotten or self.get_fact(script_id, KEYS_FORGOTTEN) is None:  # or the last rewrite failed
            with self._guard, files.translating(self.path):
                files.rewrite(self._connection)
            self.set_fact(script_id, KEYS_FORGOTTEN, "true")

    # --- facts --------------------------------------------------------------------------------------------

    def get_fact(self, script_id: str, name: str) -> str | None:
        """Return a fact (a watermark, a time); None: it is not set."""
        return self.facts(script_id).get(name)

    def facts(self, script_id: str) -> dict[str, str]:
        """Return all facts of a migration."""
        rows = self._read("SELECT name, value FROM fact WHERE script_id = ?", script_id)
        return {row["name"]: row["value"] for row in rows}

    def set_fact(self, script_id: str, name: str, value: str | None) -> None:
        """Set a fact; None removes it. The migration must be registered."""
        self.set_facts(script_id, {name: value})

    def set_facts(self, script_id: str, facts: Mapping[str, str | None]) -> None:
        """Set facts in one transaction, as `set_fact`."""
        with self._writing() as writer:
            for name, value in facts.items():
                writer.delete("fact", script_id=script_id, name=name)
                if value is not None:
                    writer.insert("fact", {"script_id": script_id, "name": name, "value": value})

    # --- phase runs ---------------------------------------------------------------------------------------

    def start_phase(self, script_id: str, phase: str) -> int:
        """Record that a phase is entered; return the number of this phase run."""
        begun = {"script_id": script_id, "phase": str(phase), "started_at": self._now(), "counters": {}}
        with self._writing() as writer:
            return writer.insert("phase_run", begun)

    def count_phase(self, run: int, requests: Mapping[str, int]) -> None:
        """Record the requests that a phase run has sent so far, by kind, in case it is killed."""
        with self._writing() as writer:
            writer.update("phase_run", {"counters": _counters({}, requests)}, id=run)

    def finish_phase(
        self, run: int, outcome: str, counters: Mapping[str, int], requests: Mapping[str, int] | None = None
    ) -> None:
        """Record how a phase run ended, its figures and its requests."""
        counted, now = _counters(counters, requests or {}), self._now()
        with self._writing() as writer:
            writer.update("phase_run", {"finished_at": now, "outcome": outcome, "counters": counted}, id=run)

    def phase_runs(self, script_id: str) -> list[PhaseRun]:
        """Return all phase runs of a migration, oldest first."""
        query = "SELECT * FROM phase_run WHERE script_id = ? ORDER BY id"
        runs = []
        for values in self._read(query, script_id, decode="counters"):
            counters, requests = dict[str, int](), dict[str, int]()
            for name, number in values.pop("counters").items():
                (requests if name.startswith(_REQUESTS) else counters)[name.removeprefix(_REQUESTS)] = number
            runs.append(PhaseRun(**values, counters=counters, requests=requests))
        return runs

    # --- verifications ------------------------------------------------------------------------------------

    def add_verification(self, script_id: str, verification: Verification) -> None:
        """Record a verification. The migration must be registered."""
        values = {**asdict(verification), "script_id": script_id}
        del values["number"]  # the database assigns it
        with self._writing() as writer:
            writer.insert("verification", values)

    def latest_verification(self, script_id: str, mode: str = "full") -> Verification | None:
        """Return the last verification of this mode; None: none."""
        verifications = self.verifications(script_id, mode=mode)
        return verifications[-1] if verifications else None

    def verifications(self, script_id: str, *, mode: str | None = None) -> list[Verification]:
        """Return the verifications of a migration, oldest first; of one mode, or of all."""
        query = "SELECT * FROM verification WHERE script_id = ? AND mode = ifnull(?, mode) ORDER BY id"
        rows = self._read(query, script_id, mode, decode="report")
        for values in rows:
            del values["script_id"]
        return [Verification(number=values.pop("id"), **values) for values in rows]

    def keep_digests(self, script_id: str, stored: StoredDigests | None) -> None:
        """Store the digests of an unfinished verification in place of earlier ones; None removes them."""
        with self._writing() as writer:
            writer.delete("partial_sums", script_id=script_id)
            if stored is not None:
                digests = json.dumps(_with_keys(stored.digests, self._texts(script_id).to_text))
                values = {"basis": stored.basis, "begun_at": stored.begun_at, "sums": digests}
                writer.insert("partial_sums", {"script_id": script_id, **values})
                self.set_fact(script_id, KEYS_FORGOTTEN, None)  # the file holds keys again

    def stored_digests(self, script_id: str) -> StoredDigests | None:
        """Return the digests of an unfinished verification; None: none. Raises StateUnusable when they cannot
        be read, or their keys cannot be opened."""
        rows = self._read("SELECT * FROM partial_sums WHERE script_id = ?", script_id)
        if not rows:
            return None
        [stored] = rows
        try:
            digests = _with_keys(json.loads(stored["sums"]), self._texts(script_id).from_text)
        except (KeyError, TypeError, ValueError):
            raise refusal("digests-unreadable") from None
        return StoredDigests(stored["basis"], stored["begun_at"], digests)

    # --- audit --------------------------------------------------------------------------------------------

    def audit(self, event: str, script_id: str | None, details: Mapping[str, Any]) -> AuditEvent:
        """Add an event to the audit chain and return it. Details are JSON-able, without keys and secrets."""
        with self._writing() as writer:
            # Within the transaction: no other process may add an event after the same one.
            newest = self._read("SELECT * FROM audit_event ORDER BY seq DESC LIMIT 1", decode="details")
            last = next((AuditEvent(**row) for row in newest), None)
            added = audit.chained(last, self._now(), event, script_id, details)
            writer.insert("audit_event", asdict(added))
        return added

    def audit_within(
        self, event: str, script_id: str | None, details: Mapping[str, Any], *, most: int, seconds: float
    ) -> AuditEvent | None:
        """Add an event to the audit chain unless `most` of its name were added in the last `seconds`; return
        it, or None. They are counted in the file, over all migrations: a new process continues the count."""
        # Events after now were added while the clock was ahead: they would count until it is there again.
        query = "SELECT count(*) AS added FROM audit_event WHERE event = ? AND at > ? AND at <= ?"
        with self._writing():
            now = self._clock()  # read here: no other process adds an event after it
            [row] = self._read(query, event, utc_text(now - timedelta(seconds=seconds)), utc_text(now))
            return None if row["added"] >= most else self.audit(event, script_id, details)

    def audit_events(self, script_id: str | None = None, *, event: str | None = None) -> list[AuditEvent]:
        """Return the events in order; all, or those of one migration, or of one name."""
        # `IS`, because an event may belong to no migration
        query = (
            "SELECT * FROM audit_event"
            " WHERE event = ifnull(?, event) AND script_id IS ifnull(?, script_id) ORDER BY seq"
        )
        return [AuditEvent(**row) for row in self._read(query, event, script_id, decode="details")]

    def check_chain(self) -> int | None:
        """Return the seq at which the audit chain first breaks; None: it holds."""
        return audit.first_broken(self.audit_events())

    def add_checkpoint(self, size: int, note: str, remark: str) -> None:
        """Record a checkpoint over the first `size` events; an earlier one of that size stays unchanged."""
        stored_checkpoint = StoredCheckpoint(size, self._now(), note, remark)
        with self._writing() as writer:
            writer.insert("audit_checkpoint", asdict(stored_checkpoint), unless_there=True)

    def checkpoints(self) -> list[StoredCheckpoint]:
        """Return all checkpoints over the audit log, by size."""
        return [StoredCheckpoint(**row) for row in self._read("SELECT * FROM audit_checkpoint ORDER BY size")]

    # --- transactions -------------------------------------------------------------------------------------

    def _now(self) -> str:
        return utc_text(self._clock())

    def _texts(self, script_id: str) -> KeyTexts:
        return self._keys.get(script_id) or KeyTexts()

    def _read(self, query: str, *values: object, decode: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of a query; `decode` names the column that holds JSON."""
        with self._guard, files.translating(self.path):
            cursor = self._connection.cursor()
            cursor.row_factory = sqlite3.Row
            rows = [dict(row) for row in cursor.execute(query, values)]
        for row in rows if decode else ():
            row[decode] = json.loads(row[decode])
        return rows

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        """Begin a transaction, or go on in this thread's: what is read in it cannot change meanwhile."""
        if self._writer is None:
            raise refusal("for-reading-only", path=self.path)
        with self._guard, self._writer.transaction():
            yield self._writer


def _segment(row: Mapping[str, Any], keys: KeyTexts | None) -> Segment:
    after, upto, cursor = (
        None if keys is None else keys.from_text(name, row[f"{name}_key"]) for name in _KEYS
    )
    counts = row["row_count"], row["byte_count"], bool(row["done"])
    return Segment(row["id"], row["script_id"], row["purpose"], after, upto, cursor, *counts)


def _counters(counters: Mapping[str, int], requests: Mapping[str, int]) -> dict[str, int]:
    return {**counters, **{_REQUESTS + name: number for name, number in requests.items()}}


def _with_keys(digests: Mapping[str, Any], convert: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return digests of a verification with the keys of their parts converted to or from texts."""
    parts = [
        [name, *(convert(key, bound) for key, bound in zip(_KEYS, bounds, strict=True)), done]
        for name, *bounds, done in digests["parts"]
    ]
    return {**digests, "parts": parts}
