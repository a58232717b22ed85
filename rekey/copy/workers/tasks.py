"""Tasks and results: the messages between the runner and its workers. Pure.

Rules kept here:

* Plain data only: text, numbers, bytes. No secret, no credential, no client and no code: a scheduler needs
  nothing of rekey to carry a task.
* No old key is readable: ranges and cursors travel sealed (`rekey.mapping.sealing`), with a key that is made
  of values in the restricted store. A scheduler may write what it carries to a log or a disk.
* The version that made a task is checked before anything else is read: a task of another version is refused.
* A result answers one task, by its random id; any other answer is no progress.
* A failure travels as words and an exit code, because the exception classes of two machines may differ.
"""

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


class Kind(StrEnum):
    """What a task asks for: to copy a range, to sum it up, or to find its rows in differing buckets."""

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
    """The state of the migration that tasks were made under, the same for all tasks of a piece of work.

    Attributes:
        version: the runner's version of rekey.
        config: path of the configuration on the runner's machine.
        endpoints: those of both accounts; a worker that is configured for others refuses.
        script_id, digest: the migration and its declaration's digest.
        run_id, epoch: those of the control row.
        lease_id: the id of the runner lease, "" for work that writes nothing.
        group: the migration's group.
    """

    version: str
    config: str
    endpoints: str
    script_id: str
    digest: str
    run_id: str
    epoch: int
    lease_id: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A slice of work.

    Attributes:
        form: `FORM` of the program that made it.
        kind: what to do.
        basis: the state of the migration that it was made under.
        id: random. The driver sets this, `seconds`, `until` and the rates when it sends the task.
        table: -1 the source, else the number of a target.
        after, upto: sealed keys of the range, "" where it is unbounded.
        seconds: after so many seconds nothing new is begun; windows under way are finished.
        until: the service's time from which on nothing may be written.
        entities_per_second: this task's share of the account's rate, 0 for no limit.
        partition_entities_per_second: its rate for each partition, 0 for no limit.
        begins: its share of the rate at which rates begin that follow the service; 0: they do not.
        authority_is_target: for a comparison, as in `ReconcileContext`.
        buckets: for FIND: by target, a bit for each bucket whose rows are wanted.
    """

    kind: Kind
    basis: Basis
    id: str = ""
    seconds: float = 0.0
    until: str = ""
    table: int = -1
    after: str = field(default="", repr=False)
    upto: str = field(default="", repr=False)
    entities_per_second: int = 0
    partition_entities_per_second: int = 0
    begins: int = 0
    authority_is_target: bool = False
    buckets: tuple[bytes, ...] = field(default=(), repr=False)
    form: int = FORM

    def plain(self) -> Plain:
        """Return it as plain data, to travel."""
        return members(self)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that a worker met. Holds no key and no secret, as no error does.

    Attributes:
        error: the name of its class, for people.
        what, kept, hint: as in `RekeyError`.
        exit_code: the exit code that the command would end with.
    """

    error: str
    what: str
    kept: str
    hint: str
    exit_code: int

    @classmethod
    def of(cls, error: RekeyError) -> Failure:
        """Return the failure that an error travels as."""
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
    """The result of a task.

    Attributes:
        id: the task's id.
        ended: how the work ended.
        cursor: sealed key; everything of the range up to it is done. "": nothing of the range is.
        rows, size: rows read of the table as far as the cursor, and their bytes.
        counters: further figures, by name.
        open: a write may still be under way that the worker does not wait for any more.
        sent: the requests that the task sent, by kind.
        sums: for SUM: packed sums by name (`rekey.verify.sums`).
        records: for FIND: rows of the buckets, sealed.
        failure: for FAILED: the error.
        form: `FORM` of the program that made it.
    """

    id: str
    ended: Ended
    cursor: str = field(default="", repr=False)
    rows: int = 0
    size: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    open: bool = False
    sent: Mapping[str, int] = field(default_factory=dict)
    sums: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    records: bytes = field(default=b"", repr=False)
    failure: Failure | None = None
    form: int = FORM

    def plain(self) -> Plain:
        """Return it as plain data, to travel."""
        return members(self)


def read_task(plain: Mapping[str, Any], *, version: str) -> Task:
    """Read a task from plain data.

    Args:
        plain: the task as plain data.
        version: this program's version of rekey.

    Raises:
        ConfigurationError: another version of rekey made it.
    """
    basis = plain.get("basis")
    made_by = basis.get("version") if isinstance(basis, Mapping) else None
    if plain.get("form") != FORM or made_by != version:
        what = f"a worker runs rekey {version}, and the runner rekey {made_by or 'unknown'}"
        kept = "everything that was checkpointed; the worker did nothing"
        hint = "install the runner's version on all workers, restart them, and run the same command again"
        raise errors.ConfigurationError(what, kept=kept, hint=hint)
    kind, made_under, buckets = Kind(plain["kind"]), Basis(**plain["basis"]), tuple(plain["buckets"])
    return Task(**{**plain, "kind": kind, "basis": made_under, "buckets": buckets})


def read_result(plain: object, task: Task) -> Result | None:
    """Read a result from plain data; return None when it is not a valid answer to the task."""
    if not isinstance(plain, Mapping) or plain.get("form") != FORM or plain.get("id") != task.id:
        return None
    try:
        ended, sent, failure = Ended(plain["ended"]), dict(plain["sent"]), plain["failure"]
        if not sent.keys() <= COUNTED or any(type(one) is not int or one < 0 for one in sent.values()):
            return None
        failed = None if failure is None else Failure(**failure)
        return Result(**{**plain, "ended": ended, "sent": sent, "failure": failed})
    except (KeyError, TypeError, ValueError):
        return None
