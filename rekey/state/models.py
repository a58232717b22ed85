"""The records of the state file, as frozen values. Pure.

Rules kept here:

* Source keys stand in the state file (a scan resumes at them), so only its owner may read it. No repr here
  shows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rekey.errors import StateUnusable
from rekey.model import EntityKey, KeyRange

# The purpose of the segments of the backfill.
BACKFILL = "backfill"

# The fact that says up to which time of the service's clock changes of the source are in the targets.
WATERMARK = "watermark"

# The fact that holds how many requests were sent outside of phases since the migration began, by the reason
# why they came on top (`rekey.tables.sent.OnTop`), as a JSON object.
ON_TOP = "requests_on_top"

# The fact that says when the last checkpoint was stored, by the service's clock.
CHECKPOINT_AT = "checkpoint_at"

# The fact that holds the plan a migration began with, as RFC 8785 JSON.
PLAN_FACT = "plan"

# The fact that says that all keys of a migration were removed from the file, and the file was rewritten.
KEYS_FORGOTTEN = "keys_forgotten"

# Prefix of the text of a sealed key; the text of a plain key is a JSON array.
SEALED = "sealed:"


@dataclass(frozen=True, slots=True)
class MigrationRecord:
    """What a migration started with; a later difference is refused.

    Attributes:
        script_id: the script.
        digest: digest of its declaration, hex SHA-256.
        source: name of the source table.
        run_id: the id that the control row was made with.
        endpoint_id: the accounts, as the caller names them (no secret).
        secret_fingerprints: fingerprints of the secrets, by name.
        registered_at: UTC, ISO 8601.
    """

    script_id: str
    digest: str
    source: str
    run_id: str
    endpoint_id: str
    secret_fingerprints: Mapping[str, str]
    registered_at: str


@dataclass(frozen=True, slots=True)
class KeptScript:
    """The script that a migration was begun with.

    Attributes:
        run_id: the id that the control row was made with.
        script_id: the script.
        begun_at: UTC, ISO 8601.
        digest: digest of its declaration, hex SHA-256.
        source, targets: names of the tables.
        content: the file as it was.
    """

    run_id: str
    script_id: str
    begun_at: str
    digest: str
    source: str
    targets: Sequence[str]
    content: bytes = field(repr=False)


class KeyTexts:
    """Keys as texts of the state file: in the clear, as JSON arrays in ASCII.

    Once a sealed migration was opened for work, its keys are sealed texts
    (`rekey.mapping.sealing.SealedKeys`); before that the state file can neither seal nor open keys. A column
    holds one form: where sealed keys belong, a key in the clear is refused.
    """

    def to_text(self, column: str, key: EntityKey | None) -> str | None:  # noqa: ARG002 - sealed ones need it
        """Return the text of a key for a column; None stays None."""
        return None if key is None else json.dumps([key.partition, key.row], separators=(",", ":"))

    def from_text(self, column: str, text: str | None) -> EntityKey | None:  # noqa: ARG002 - sealed ones need it
        """Return the key of a text that `to_text` made for this column. Raises StateUnusable if sealed."""
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
        id: its number in the state file.
        script_id: the migration it belongs to.
        purpose: what the scan is for, e.g. `backfill`.
        after, upto: the bounds of the range, below (open) and above (closed); None: unbounded.
        cursor: all rows up to and including this key are done; None before the first checkpoint.
        rows, bytes: how many rows and bytes are done so far.
        done: whether the whole range is done.
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
        """The range that is left to do after the cursor."""
        return KeyRange(self.after if self.cursor is None else self.cursor, self.upto)

    @property
    def claimed(self) -> KeyRange | None:
        """The range that is done according to the checkpoints, None before the first one."""
        if self.done:
            return KeyRange(self.after, self.upto)
        return None if self.cursor is None else KeyRange(self.after, self.cursor)


@dataclass(frozen=True, slots=True)
class PhaseRun:
    """One attempt at one phase. `finished_at` and `outcome` are None while it runs, or when it was killed.

    Attributes:
        counters: figures of its work.
        requests: how many requests it sent, by kind (`rekey.tables.sent`), as far as that was recorded.
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
        digest: content digest of the main target table.
        rows_source, rows_target: rows read from the source, and from all targets together.
        divergences: rows that differ, stable or unsettled.
        transient: divergences that were gone on recheck.
        report: the report, JSON-able, without keys.
        number: its number in the state file; later verifications have higher ones. 0 before it is recorded.
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
    """A checkpoint of the audit log, over its first `size` events.

    Attributes:
        size: how many events it covers.
        at: when it was made; UTC, ISO 8601.
        note: the note (`rekey.evidence.note`), signed or not.
        remark: why it was made, and if it is not signed, why not.
    """

    size: int
    at: str
    note: str
    remark: str


@dataclass(frozen=True, slots=True)
class StoredSums:
    """The sums of an unfinished verification.

    Attributes:
        basis: the conditions under which they were made (JSON); a verification goes on from them only under
            equal ones.
        begun_at: when the first sitting began; UTC, ISO 8601.
        sums: the sums, JSON-able except for the keys of their parts.
    """

    basis: str
    begun_at: str
    sums: dict[str, Any] = field(repr=False)
