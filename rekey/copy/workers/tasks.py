"""Tasks and results: the messages between the runner and its workers. Plain data only (text, numbers, bytes),
without secrets, credentials or code, so that any scheduler can carry them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from rekey import errors
from rekey.core.plain import members
from rekey.errors import ExitCode, RekeyError, WorkersFailed
from rekey.tables.sent import COUNTED

# A message: names to text, numbers, bytes, or mappings of those.
Plain: TypeAlias = dict[str, Any]

# The form of tasks and results: a number raised with every change of their fields.
FORM = 3


class TaskKind(StrEnum):
    """What a task asks for: copy a range, compute its digests, or find its rows in differing buckets."""

    COPY = "copy"
    SUM = "sum"
    FIND = "find"


class Ended(StrEnum):
    """How the work on a task ended.

    `DONE`: the whole range is done. `MORE`: time is up; everything up to the cursor is done. `LATE`: its term
    was over before it began; nothing was done. `SUPERSEDED`: the control row or the runner lease is no longer
    the one that the task was made under. `FAILED`: see the failure.
    """

    DONE = "done"
    MORE = "more"
    LATE = "late"
    SUPERSEDED = "superseded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Basis:
    """The state of the migration that tasks were made under, the same for all tasks of a piece of work."""

    # The runner's version of rekey.
    version: str
    # Path of the configuration on the runner's machine.
    config: str
    # Those of both accounts; a worker that is configured for others refuses.
    endpoints: str
    script_id: str
    # Of the declaration.
    digest: str
    # Of the control row, like `epoch`.
    run_id: str
    epoch: int
    # The id of the runner lease, "" for work that writes nothing.
    lease_id: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A slice of work. The driver sets `id`, `seconds`, `until` and the rates when it sends the task."""

    kind: TaskKind
    basis: Basis
    # Random.
    id: str = ""
    # After so many seconds nothing new is begun; windows in flight are finished.
    seconds: float = 0.0
    # The service's time from which on nothing may be written.
    until: str = ""
    # -1 the source, else the number of a target.
    table: int = -1
    # Sealed keys of the range, "" where it is unbounded: a scheduler may log what it carries.
    after: str = field(default="", repr=False)
    upto: str = field(default="", repr=False)
    # This task's share of the account's rate, 0 for no limit.
    entities_per_second: int = 0
    # Its rate for each partition, 0 for no limit.
    partition_entities_per_second: int = 0
    # Its share of the initial adaptive rate; 0: rates do not adapt.
    begins: int = 0
    # For a comparison, as in `ReconcileContext`.
    authority_is_target: bool = False
    # For FIND: by target, a bit for each bucket whose rows are wanted.
    buckets: tuple[bytes, ...] = field(default=(), repr=False)
    # `FORM` of the program that made it.
    form: int = FORM

    def plain(self) -> Plain:
        return members(self)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that a worker met, in words, since the exception classes of two machines may differ. Holds no
    key and no secret, as no error does."""

    # The name of its class, for people.
    error: str
    # As in `RekeyError`, like `kept` and `hint`.
    what: str
    kept: str
    hint: str
    # The exit code that the command would end with.
    exit_code: int

    @classmethod
    def of(cls, error: RekeyError) -> Failure:
        return cls(type(error).__name__, error.what, error.kept, error.hint, int(error.exit_code))

    @property
    def may_pass(self) -> bool:
        """Whether the same task may succeed elsewhere, or later."""
        return self.exit_code == ExitCode.SERVICE

    def raised(self) -> RekeyError:
        """Return the error to raise in the runner, with the same exit code and words."""
        kind = _RAISED.get(self.exit_code, WorkersFailed)
        if kind is WorkersFailed and not self.kept:
            return errors.ServiceError(self.what, hint=self.hint)
        return kind(self.what, kept=self.kept, hint=self.hint)


_RAISED: dict[int, type[RekeyError]] = {
    ExitCode.FINDINGS: errors.Findings,
    ExitCode.USAGE: errors.ConfigurationError,
    ExitCode.REFUSED: errors.Refused,
}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a task."""

    # The task's id.
    id: str
    ended: Ended
    # Sealed key; everything of the range up to it is done. "": nothing of the range is.
    cursor: str = field(default="", repr=False)
    # Rows read of the table as far as the cursor, and their bytes (`size`).
    rows: int = 0
    size: int = 0
    # Further figures, by name.
    counters: Mapping[str, int] = field(default_factory=dict)
    # A write may still be in flight that the worker no longer waits for.
    open: bool = False
    # The requests that the task sent, by kind.
    sent: Mapping[str, int] = field(default_factory=dict)
    # For SUM: packed digests by name (`rekey.verify.bucket_digests`).
    sums: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    # For FIND: rows of the buckets, sealed.
    records: bytes = field(default=b"", repr=False)
    # For FAILED: the error.
    failure: Failure | None = None
    # `FORM` of the program that made it.
    form: int = FORM

    def plain(self) -> Plain:
        return members(self)


def read_task(plain: Mapping[str, Any], *, version: str) -> Task:
    """Read a task from plain data. `version`: this program's. Raises ConfigurationError: another version of
    rekey made it."""
    basis = plain.get("basis")
    made_by = basis.get("version") if isinstance(basis, Mapping) else None
    if plain.get("form") != FORM or made_by != version:
        what = f"a worker runs rekey {version}, and the runner rekey {made_by or 'unknown'}"
        kept = "everything that was checkpointed; the worker did nothing"
        hint = "install the runner's version on all workers, restart them, and run the same command again"
        raise errors.ConfigurationError(what, kept=kept, hint=hint)
    kind, made_under, buckets = TaskKind(plain["kind"]), Basis(**plain["basis"]), tuple(plain["buckets"])
    return Task(**{**plain, "kind": kind, "basis": made_under, "buckets": buckets})


def read_result(plain: object, task: Task) -> Result | None:
    """Read a result from plain data; return None when it is not a valid answer to the task."""
    if not isinstance(plain, Mapping) or plain.get("form") != FORM or plain.get("id") != task.id:
        return None
    try:
        ended, sent, failure = Ended(plain["ended"]), dict(plain["sent"]), plain["failure"]
        if not sent.keys() <= COUNTED or any(type(count) is not int or count < 0 for count in sent.values()):
            return None
        failed = None if failure is None else Failure(**failure)
        return Result(**{**plain, "ended": ended, "sent": sent, "failure": failed})
    except (KeyError, TypeError, ValueError):
        return None
