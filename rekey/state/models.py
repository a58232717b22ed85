"""What the state file holds, as frozen values. Pure.

Rules kept here:

* Source keys stand in the state file (that is where a scan resumes), which is why it is readable by its owner
  only. No repr here shows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rekey.errors import Moved, StateUnusable
from rekey.model import EntityKey, KeyRange

BACKFILL = "backfill"
"""The purpose of the segments that the copying goes through."""

WATERMARK = "watermark"
"""The fact that says up to when, by the service's clock, changes of the source are in the targets."""

PLAN_FACT = "plan"
"""The fact that holds the plan a migration began with, as RFC 8785 JSON."""

KEYS_FORGOTTEN = "keys_forgotten"
"""The fact that all keys of a migration's segments were taken out of the file, and the file written anew."""

SEALED = "sealed:"
"""What the text of a sealed key begins with; that of a plain one is a JSON array."""


@dataclass(frozen=True, slots=True)
class MigrationRecord:
    """What a migration started with; anything that differs later is refused.

    Attributes:
        script_id: the script.
        digest: of its declaration, hex SHA-256.
        source: name of the source table.
        run_id: the run that made the control row.
        endpoint_id: which account, as the caller names it (no secret).
        secret_fingerprints: secret name to fingerprint.
        registered_at: UTC, ISO 8601.
    """

    script_id: str
    digest: str
    source: str
    run_id: str
    endpoint_id: str
    secret_fingerprints: Mapping[str, str]
    registered_at: str

    def require_same_place(self, source: str, endpoint_id: str, run_id: str) -> None:
        """Refuse a state file that belongs to another migration of the same name. Raises StateUnusable."""
        ours = (self.source.lower(), self.endpoint_id, self.run_id)
        if ours == (source.lower(), endpoint_id, run_id):
            return
        part = "run"
        if self.endpoint_id != endpoint_id:
            part = "account"
        elif self.source.lower() != source.lower():
            part = "source table"
        raise StateUnusable(
            f"the state file is of another migration: its {self.script_id} has another {part}",
            kept="the state file and all tables, unchanged",
            hint="give this migration a state file of its own: [state] path in the configuration;"
            " without its file a migration copies again and loses nothing",
        )


Rules = tuple[str, Mapping[str, str]]
"""What decides how rows are mapped: a declaration's digest, and the fingerprints of its secrets by name."""


def require_same_rules(script_id: str, began: Rules, now: Rules) -> None:
    """Refuse a declaration or a secret that changed since the first phase. Raises Moved."""
    (first_digest, first_secrets), (digest, secrets) = began, now
    if digest != first_digest:
        raise Moved(
            f"the script {script_id} was edited after its first phase:"
            f" digest {digest[:12]}, started with {first_digest[:12]}",
            kept="everything done so far; nothing was written with the edited script",
            hint="put the script back as it was; to change it, `rekey rollback` with the old one first",
        )
    changed = [
        f"`{name}`"
        for name in sorted({*secrets, *first_secrets})
        if secrets.get(name) != first_secrets.get(name)
    ]
    if changed:
        raise Moved(
            f"the secret {', '.join(changed)} is not the one that {script_id} started with",
            kept="everything done so far; nothing was written with the other secret",
            hint="configure the secret of the start; to change it, `rekey rollback` with that one first",
        )


class KeyTexts:
    """How keys stand in the state file: as they are, as JSON arrays in ASCII.

    Keys of a sealed migration stand sealed (`rekey.mapping.sealing.SealedKeys`), once it was opened for work:
    the state file itself cannot seal or open anything. A column holds one form: a key in the clear is never
    taken for real where sealed ones belong.
    """

    def to_text(self, column: str, key: EntityKey | None) -> str | None:  # noqa: ARG002 - sealed ones need it
        """Return a key as a column holds it; None stays None."""
        return None if key is None else json.dumps([key.partition, key.row], separators=(",", ":"))

    def from_text(self, column: str, text: str | None) -> EntityKey | None:  # noqa: ARG002 - sealed ones need it
        """Return the key that `to_text` wrote for that column. Raises StateUnusable when it is not."""
        if text is None:
            return None
        if text.startswith(SEALED):
            raise StateUnusable(
                "the checkpoints in the state file are sealed, and the migration was not opened",
                kept="the state file, unchanged",
                hint="run the command with [sealing] configured as it was when the migration began",
            )
        partition, row = json.loads(text)
        return EntityKey(partition, row)


@dataclass(frozen=True, slots=True)
class Segment:
    """A half-open key range of a table: the unit of scan and checkpoint.

    Attributes:
        id: in the state file.
        script_id: the migration it belongs to.
        purpose: what the scan is for, e.g. `backfill`.
        after, upto: the range; None is unbounded.
        cursor: everything up to and including this key is done; None before the first checkpoint.
        rows, bytes: done so far.
        done: the whole range is done.
    """

    id: int
    script_id: str
    purpose: str
    after: EntityKey | None = field(default=None, repr=False)
    upto: EntityKey | None = field(default=None, repr=False)
    cursor: EntityKey | None = field(default=None, repr=False)
    rows: int = 0
    bytes: int = 0
    done: bool = False

    @property
    def rest(self) -> KeyRange:
        """Return what is left to do after the cursor."""
        return KeyRange(self.after if self.cursor is None else self.cursor, self.upto)

    @property
    def claimed(self) -> KeyRange | None:
        """Return what checkpoints claim to be done, None before the first one."""
        if self.done:
            return KeyRange(self.after, self.upto)
        return None if self.cursor is None else KeyRange(self.after, self.cursor)


@dataclass(frozen=True, slots=True)
class PhaseRun:
    """One attempt at one phase. `finished_at` and `outcome` are None while it runs, or when it was killed.

    Attributes:
        counters: what it did.
        requests: what it sent, by kind (`rekey.tables.sent`), as far as it was kept.
    """

    id: int
    script_id: str
    phase: str
    started_at: str
    finished_at: str | None
    outcome: str | None
    counters: Mapping[str, int]
    requests: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of one verification; holds no keys.

    Attributes:
        mode: `count`, `sample` or `full`.
        started_at, finished_at: UTC, ISO 8601.
        digest: of the declaration that was verified.
        rows_source, rows_target: rows seen on each side.
        divergences: stable ones.
        transient: those that were gone on recheck.
        report: further figures, JSON-able, without keys.
        number: its place among all verifications of the file, which only rises; 0 before it is recorded.
    """

    mode: str
    started_at: str
    finished_at: str
    digest: str
    rows_source: int
    rows_target: int
    divergences: int
    transient: int
    report: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint over the beginning of the audit log.

    Attributes:
        size: how many events it covers.
        at: when it was made; UTC, ISO 8601.
        note: the note (`rekey.evidence.note`), signed or not.
        remark: why it was made, and why it is not signed if it should be.
    """

    size: int
    at: str
    note: str
    remark: str


@dataclass(frozen=True, slots=True)
class StoredSums:
    """Sums of an unfinished verification.

    Attributes:
        basis: what they were made under; compared before a verification goes on from them.
        begun_at: when the first row went into them; UTC, ISO 8601.
        sums: the sums, JSON-able but for the keys of their parts.
    """

    basis: str
    begun_at: str
    sums: dict[str, Any] = field(repr=False)
