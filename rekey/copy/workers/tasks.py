"""Tasks and results: what travels between the runner and its workers. Pure.

Rules kept here:

* Plain data only: text, numbers, bytes. No secret, no credential, no client and no code: what carries a
  task needs nothing of rekey.
* No old key is readable: ranges and cursors travel sealed (`rekey.mapping.sealing`), with a key that is made
  of what stands in the restricted store. A scheduler may write what it carries to a log or a disk.
* A task says which program made it before anything else: another version is refused, not guessed at.
* A result answers one task, by its random id; anything else that comes back is no progress.
* A failure travels as words and an exit code, because exceptions of two machines need not fit together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from rekey import errors
from rekey.core.plain import members
from rekey.tables.sent import OPERATIONS
from rekey.tables.sent import Kind as RequestKind

Plain: TypeAlias = dict[str, Any]
"""What travels: names to text, numbers, bytes, or mappings of those."""

FORM = 2
"""Of tasks and results; one more with every change of their fields."""

_COUNTED = frozenset({*RequestKind, OPERATIONS})
"""What results count requests by."""


class Kind(StrEnum):
    """What a task asks for."""

    COPY = "copy"
    SUM = "sum"
    FIND = "find"


class Ended(StrEnum):
    """How the work on a task ended.

    `DONE`: the whole range is done. `MORE`: time is up; everything up to the cursor is done. `LATE`: its term
    was over before it began; nothing was done. `SUPERSEDED`: the control row or the runner lease is no longer
    what the task was made under. `FAILED`: see the failure.
    """

    DONE = "done"
    MORE = "more"
    LATE = "late"
    SUPERSEDED = "superseded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Basis:
    """What a piece of work was made under, the same for all tasks of it.

    Attributes:
        version: of rekey.
        config: path of the configuration on the runner's machine.
        endpoints: both accounts; a worker that is configured for others refuses.
        script_id, digest: the migration and its declaration's digest.
        run_id, epoch: of the control row.
        lease_id: of the runner lease, "" for work that writes nothing.
    """

    version: str
    config: str
    endpoints: str
    script_id: str
    digest: str
    run_id: str
    epoch: int
    lease_id: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A slice of work.

    Attributes:
        form: `FORM` of who made it.
        kind: what to do.
        basis: what it was made under.
        id: random. This, `seconds`, `until` and the rates are given to it when it is sent.
        table: -1 the source, else the number of a target.
        after, upto: sealed keys of the range, "" where it is unbounded.
        seconds: after this long nothing new is begun; what is under way is finished.
        until: the service's time from which on nothing may be written.
        entities_per_second: this task's share of the account's rate, 0 for no limit.
        partition_entities_per_second: of each partition, 0 for no limit.
        authority_is_target: of a comparison, as `ReconcileContext` has it.
        buckets: of FIND: for each target, a bit for each bucket whose rows are wanted.
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
    authority_is_target: bool = False
    buckets: tuple[bytes, ...] = field(default=(), repr=False)
    form: int = FORM

    def plain(self) -> Plain:
        """Return it as it travels."""
        return members(self)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that a worker met. Holds no key and no secret, as no error does.

    Attributes:
        error: its class, for people.
        what, kept, hint: as of `RekeyError`.
        exit_code: of the command.
    """

    error: str
    what: str
    kept: str
    hint: str
    exit_code: int

    @classmethod
    def of(cls, error: errors.RekeyError) -> Failure:
        """Return an error as it travels."""
        return cls(type(error).__name__, error.what, error.kept, error.hint, int(error.exit_code))

    @property
    def may_pass(self) -> bool:
        """Whether the same task may succeed elsewhere, or later."""
        return self.exit_code == errors.ExitCode.SERVICE

    def raised(self) -> errors.RekeyError:
        """Return the error to raise in the runner: of the same exit code and words."""
        kind = _RAISED.get(self.exit_code, errors.WorkersFailed)
        if kind is errors.WorkersFailed and not self.kept:
            return errors.ServiceError(self.what, hint=self.hint)
        return kind(self.what, kept=self.kept, hint=self.hint)


_RAISED: dict[int, type[errors.RekeyError]] = {
    errors.ExitCode.FINDINGS: errors.Findings,
    errors.ExitCode.USAGE: errors.ConfigurationError,
    errors.ExitCode.REFUSED: errors.Refused,
}


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a task.

    Attributes:
        id: the task's.
        ended: how.
        cursor: sealed; everything of the range up to it is done. "" for none of it.
        rows, size: read of the table, as far as the cursor; bytes.
        counters: further figures, by name.
        open: a write may still be under way although it is not waited for any more.
        sent: the requests that the task sent, by kind.
        sums: of SUM: packed sums by name (`rekey.verify.sums`).
        records: of FIND: rows of the buckets, sealed.
        failure: of FAILED.
        form: `FORM` of who made it.
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
        """Return it as it travels."""
        return members(self)


def read_task(plain: Mapping[str, Any], *, version: str) -> Task:
    """Read a task as it travelled.

    Args:
        plain: what came.
        version: of this program.

    Raises:
        ConfigurationError: another version of rekey made it.
    """
    basis = plain.get("basis")
    made_by = basis.get("version") if isinstance(basis, Mapping) else None
    if plain.get("form") != FORM or made_by != version:
        raise errors.ConfigurationError(
            f"a worker runs rekey {version}, and the runner rekey {made_by or 'unknown'}",
            kept="everything that was checkpointed; the worker did nothing",
            hint="install the runner's version on all workers, restart them, and run the same command again",
        )
    return Task(
        **{
            **plain,
            "kind": Kind(plain["kind"]),
            "basis": Basis(**plain["basis"]),
            "buckets": tuple(plain["buckets"]),
        }
    )


def read_result(plain: object, task: Task) -> Result | None:
    """Read a result as it travelled; None when it is no answer to the task."""
    if not isinstance(plain, Mapping) or plain.get("form") != FORM or plain.get("id") != task.id:
        return None
    try:
        ended, sent, failure = Ended(plain["ended"]), dict(plain["sent"]), plain["failure"]
        if not sent.keys() <= _COUNTED or any(type(one) is not int or one < 0 for one in sent.values()):
            return None
        failed = None if failure is None else Failure(**failure)
        return Result(**{**plain, "ended": ended, "sent": sent, "failure": failed})
    except (KeyError, TypeError, ValueError):
        return None
