"""The records of the state file, as frozen values. Pure. Source keys are among them (a scan resumes at one):
no repr shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rekey.model import EntityKey, KeyRange
from rekey.state.refusals import refusal

# The purpose of the backfill's segments.
BACKFILL = "backfill"

# Fact: up to which time of the service's clock changes of the source are in the targets.
WATERMARK = "watermark"

# Fact: how many requests of overhead were sent outside of phases since the migration began, by reason
# (`rekey.tables.sent.Overhead`), as JSON.
OVERHEAD = "requests_on_top"

# Fact: when the last checkpoint was stored, by the service's clock.
CHECKPOINT_AT = "checkpoint_at"

# Fact: the plan that a migration began with, as RFC 8785 JSON.
PLAN_FACT = "plan"

# Fact: all keys of a migration were removed from the file, and the file was rewritten.
KEYS_FORGOTTEN = "keys_forgotten"

# Prefix of the text of a sealed key; the text of a plain key is a JSON array.
SEALED = "sealed:"


@dataclass(frozen=True, slots=True)
class MigrationRecord:
    """What a migration started with; a later difference is refused. Times are UTC."""

    script_id: str
    digest: str
    source: str
    run_id: str
    # The accounts, as the caller names them (no secret).
    endpoint_id: str
    # By name of the secret.
    secret_fingerprints: Mapping[str, str]
    registered_at: str


@dataclass(frozen=True, slots=True)
class KeptScript:
    """The script that a migration was begun with; `content` is the file as it was."""

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
    (`rekey.mapping.sealing.SealedKeys`); where sealed keys belong, a key in the clear is refused.
    """

    def to_text(self, column: str, key: EntityKey | None) -> str | None:  # noqa: ARG002 - sealed ones need it
        """Return the text of a key for a column; None stays None."""
        return None if key is None else json.dumps([key.partition, key.row], separators=(",", ":"))

    def from_text(self, column: str, text: str | None) -> EntityKey | None:  # noqa: ARG002 - sealed ones need it
        """Return the key of a text that `to_text` made for this column. Raises StateUnusable if sealed."""
        if text is None:
            return None
        if text.startswith(SEALED):
            raise refusal("checkpoints-sealed")
        partition, row = json.loads(text)
        return EntityKey(partition, row)


@dataclass(frozen=True, slots=True)
class Segment:
    """A half-open key range of a table: the unit of scan and checkpoint."""

    id: int
    script_id: str
    # What the scan is for, e.g. `backfill`.
    purpose: str
    # Bounds: after `after`, up to and including `upto`; None: unbounded.
    after: EntityKey | None = field(default=None, repr=False)
    upto: EntityKey | None = field(default=None, repr=False)
    # All rows up to and including this key are done; None before the first checkpoint.
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
        """The range that is done according to the checkpoints; None before the first one."""
        if self.done:
            return KeyRange(self.after, self.upto)
        return None if self.cursor is None else KeyRange(self.after, self.cursor)


@dataclass(frozen=True, slots=True)
class PhaseRun:
    """One attempt at one phase. `finished_at` and `outcome` are None while it runs, or when it was killed.
    `requests` are those it sent, by kind (`rekey.tables.sent`), as far as recorded."""

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
    """The result of one verification, without keys. `digest` is that of the main target table."""

    # `count`, `sample` or `full`.
    mode: str
    started_at: str
    finished_at: str
    digest: str
    # Rows read from the source; `rows_target`: from all targets.
    rows_source: int
    rows_target: int
    # Rows that differ, stable or unsettled.
    divergences: int
    # Divergences that were gone on recheck.
    transient: int
    report: Mapping[str, Any] = field(default_factory=dict)
    # Its number in the state file, rising; 0 before it is recorded.
    number: int = 0


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint of the audit log over its first `size` events. `note`: signed or not
    (`rekey.evidence.note`); `remark`: why it was made, and why it is not signed."""

    size: int
    at: str
    note: str
    remark: str


@dataclass(frozen=True, slots=True)
class StoredDigests:
    """The digests of an unfinished verification."""

    # The conditions they were made under (JSON); they are continued only under equal ones.
    basis: str
    begun_at: str
    digests: dict[str, Any] = field(repr=False)
