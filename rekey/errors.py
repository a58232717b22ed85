"""The errors of rekey. Each says what happened, what was kept, and what to do next. There is one class per
choice that the caller has; it determines the exit code.

No text holds a legacy key, a secret, a SAS or a connection string: rows are named by safe id
(`rekey.core.safe_ids`), and of a service's answer only the code is used.
"""

from __future__ import annotations

import re
from enum import IntEnum

# C0 and C1 controls, DEL, bidirectional controls, line separators and lone surrogates.
_HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Return a text that UTF-8 can encode, with all controls but line feeds escaped (`\x1b`, `\u202e`)."""
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def one_line(text: str) -> str:
    """Return a text in one line, so that a name in it cannot pass for a line of rekey's own."""
    return visible(text).replace("\n", r"\n")


def reason_of(error: BaseException) -> str:
    """Return why a file could not be used, in the system's words ("No such file or directory"), else the type
    of the exception: its text may quote the file."""
    return getattr(error, "strerror", None) or type(error).__name__


_IN_WORDS = {
    "Collision": "two rows would share a new key",
    "CredentialRefused": "the credential was refused",
    "EndpointDown": "no connection",
    "Findings": "rows differ",
    "GateClosed": "its gate closed",
    "Interrupted": "on request",
    "Locked": "another runner took over",
    "RowRefused": "a row cannot be mapped",
    "Unavailable": "the service did not answer",
    "WriterAtWork": "a writer was at work",
    **dict.fromkeys(("MachineFailed", "MemoryError", "OSError"), "this machine failed"),
}


def in_words(error: str | None) -> str:
    """Return in words a class of errors, by its name in the state file; None: the process was killed."""
    return "cut off" if error is None else _IN_WORDS.get(error, "an error")


class ExitCode(IntEnum):
    """Exit code of the `rekey` command."""

    DONE = 0
    # Divergences, collisions, plan errors: the command did its work and has findings.
    FINDINGS = 1
    # Usage, configuration or declaration: nothing was begun.
    USAGE = 2
    # A gate, a lock or a moved plan or declaration refused.
    REFUSED = 3
    # The service, a credential or the machine (disk) failed.
    SERVICE = 4
    # Stopped by SIGINT or SIGTERM; checkpointed and resumable.
    INTERRUPTED = 130


class RekeyError(Exception):
    """Base of all errors that rekey raises deliberately.

    Attributes:
        what: what happened, one sentence, no keys and no secrets.
        kept: what was kept (checkpoints, tables, rows), a sentence (`Nothing was changed.`), or "" when
            nothing had begun.
        hint: what to do next: a command or an edit.
        index: position of the failing operation in a transaction, None if unknown or not a transaction.
    """

    exit_code = ExitCode.SERVICE
    index: int | None = None

    def __init__(self, what: str, *, kept: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.kept = kept
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.kept:
            # what was kept, or a sentence: `Nothing was changed.`
            is_sentence = self.kept.endswith(".") or self.kept.startswith("Nothing ")
            lines.append(self.kept if is_sentence else f"Kept: {self.kept}")
        if self.hint:
            lines.append(f"Next: {self.hint}")
        return "\n".join(one_line(line) for line in lines)

    def as_json(self) -> dict[str, str | int]:
        """Return the error as one JSON object, as `--json` prints it."""
        return {
            "error": type(self).__name__,
            "what": self.what,
            "kept": self.kept,
            "next": self.hint,
            "exit_code": int(self.exit_code),
        }


# --- usage, configuration, declaration (2) ---------------------------------------------------------


class ConfigurationError(RekeyError):
    """`rekey.toml`, an environment variable, a path or the state file cannot be used as it is."""

    exit_code = ExitCode.USAGE


class DeclarationError(RekeyError):
    """A migration script is not a valid declaration. Names the script, the field and the cure.

    Attributes:
        fault: text of the exception that the script raised, which may hold anything; for `--debug` only.
    """

    exit_code = ExitCode.USAGE

    def __init__(self, script: str, field: str, problem: str, *, cure: str, fault: str = "") -> None:
        where = f"{script}: {field}: " if field else f"{script}: "
        super().__init__(where + problem, hint=cure)
        self.script = script
        self.fault = fault
        self.field = field
        self.problem = problem


class SecretMissing(ConfigurationError):
    """A secret that a declaration names is not configured, empty, too short or not readable."""


class StateUnusable(ConfigurationError):
    """The state file belongs to another migration, or is read-only, damaged, or newer than this program."""


# --- findings (1) ----------------------------------------------------------------------------------


class Findings(RekeyError):
    """The command finished and found divergences, plan errors or rows that cannot be mapped."""

    exit_code = ExitCode.FINDINGS


class RowRefused(Findings):
    """The mapping cannot be applied to one row; nothing was written for it.

    Raised by pure code that does not know the row's safe id; a caller that knows it raises `for_row` instead.

    Attributes:
        code: stable: `missing-property`, `empty-key`, `refused-character`, `key-too-long`, `not-a-date`,
            `not-a-number`, `out-of-range`, `no-match`, `bad-cast`, `row-too-large`, `too-many-properties`,
            `no-old-key`, `no-kind`, `not-reversible`, `custom-failed`, `bad-property-name`, `key-moves`,
            `key-taken`, `outside-part`, `no-old-reference`, `bad-reference`.
        field: where in the declaration, e.g. `target.row_key`.
        row_id: the safe id, "" if unknown.
    """

    def __init__(self, code: str, field: str, problem: str, *, cure: str, row_id: str = "") -> None:
        where = f"row {row_id}: " if row_id else ""
        super().__init__(f"{where}{field}: {problem}", hint=cure)
        self.code = code
        self.field = field
        self.problem = problem
        self.cure = cure
        self.row_id = row_id

    def for_row(self, row_id: str) -> RowRefused:
        """Return the same error, naming the row by its safe id."""
        return RowRefused(self.code, self.field, self.problem, cure=self.cure, row_id=row_id)


class Collision(Findings):
    """Two source rows map to one target key. The migration stops; nothing was overwritten."""

    def __init__(self, table: str, first_id: str, second_id: str) -> None:
        super().__init__(
            f"collision in {table}: source rows {first_id} and {second_id} map to the same key",
            kept="both source rows and the row that was copied first; nothing was overwritten",
            hint="`rekey plan --exact --show-keys` lists all collisions with their keys; change the key"
            " expressions or fix the rows, roll back with `rekey rollback`, and apply again",
        )
        self.first_id = first_id
        self.second_id = second_id


class SealedUnreadable(Findings):
    """A sealed row of the restricted store cannot be opened: altered, moved, or its data key is gone.

    Attributes:
        row: row key of the sealed row; it reveals nothing without the restricted store.
    """

    def __init__(self, table: str, row: str, why: str) -> None:
        super().__init__(
            f"the sealed row {row} of {table} cannot be opened: {why}",
            kept="everything; the row was not taken for real, and nothing was written because of it",
            hint="only rekey may write to the restricted store: find out who else did;"
            " `rekey runbook wrapping-key` says what can be had back",
        )
        self.row = row


class Erased(Findings):
    """The requested data was erased on purpose: for one subject, or at the end of its retention.

    Attributes:
        on: day of the erasure, `2026-11-22`.
    """

    def __init__(self, row: str, on: str) -> None:
        super().__init__(
            f"{row} was erased on {on}",
            kept="that it was erased, and when; nothing else of it",
            hint="there is nothing to be had back; the audit log says on whose word it was done"
            " (`rekey evidence export`)",
        )
        self.on = on


# --- refusals (3) ----------------------------------------------------------------------------------


class Refused(RekeyError):
    """Base of refusals: the request was understood and must not be done now."""

    exit_code = ExitCode.REFUSED


class GateClosed(Refused):
    """The gate before a phase is closed. `reasons` lists everything that keeps it closed."""

    def __init__(self, phase: str, reasons: list[str], *, hint: str) -> None:
        listed = "; ".join(reasons)
        super().__init__(
            f"the gate before `{phase}` is closed: {listed}",
            kept="everything done so far; the migration stays in its phase",
            hint=hint,
        )
        self.phase = phase
        self.reasons = reasons


class WriterAtWork(GateClosed):
    """The source was written while frozen for the cutover: a writer was not stopped."""


class Locked(Refused):
    """Another runner works on this migration (file lock or runner lease)."""


class Moved(Refused):
    """The declaration, a secret, the plan or the source has changed since the migration began."""


class WritesRefused(Refused):
    """A dual-write client must not do this operation now; nothing was written for it.

    Attributes:
        code: stable, for programs: `frozen`, `new-view-closed`, `new-view-reads-only`, `old-view-over`,
            `part-moved`, `index-table`, `table-in-use` (from the phase); `unknown-part`, `migrated-again`,
            `other-migration`, `digest-moved`, `secret-moved`, `lease-lost`, `control-gone`,
            `control-moved-back`, `other-run`, `closed` (from the client's lease); `wrapping-key-moved`;
            `forked` (the client was made before its process was forked).
        retryable: whether the same operation, unchanged and in the same client, can succeed later.
    """

    def __init__(
        self, code: str, what: str, *, hint: str, retryable: bool = False, kept: str = "nothing was written"
    ) -> None:
        super().__init__(what, kept=kept, hint=hint)
        self.code = code
        self.retryable = retryable


# --- service, credential, machine (4) ---------------------------------------------------------------


class MachineFailed(RekeyError):
    """This machine failed: disk full, state not writable while running."""


class WorkersFailed(RekeyError):
    """The executor or its workers failed repeatedly: they ended, did not answer, or cannot run rekey."""


class ServiceError(RekeyError):
    """The table service returned an error, or did not answer.

    Attributes:
        code: the service's error code (`EntityAlreadyExists`, ...) or rekey's name for a transport error.
        status: HTTP status, 0 without a response.
        index: position of the failing operation in a transaction, None if unknown or not a transaction.
    """

    def __init__(
        self, what: str, *, code: str = "", status: int = 0, index: int | None = None, hint: str = ""
    ) -> None:
        super().__init__(what, hint=hint)
        self.code = code
        self.status = status
        self.index = index


class RowExists(ServiceError):
    """An insert found a row with the same key (409 EntityAlreadyExists)."""


class RowMissing(ServiceError):
    """An update or delete found no row (404 ResourceNotFound)."""


class ConditionFailed(ServiceError):
    """An If-Match condition did not hold (412 UpdateConditionNotSatisfied)."""


class TableMissing(ServiceError):
    """The table does not exist (404 TableNotFound)."""


class TableBeingDeleted(ServiceError):
    """The table is being deleted (409), which takes 40 seconds or more."""


class RequestRejected(ServiceError):
    """The service refuses the request itself (400, 413): retrying is useless."""


class CredentialRefused(ServiceError):
    """401, 403, or no token: the credential is wrong or lacks a role."""


class EndpointDown(ServiceError):
    """No connection to the endpoint; nothing reached the service."""


class Unavailable(ServiceError):
    """408, 429, 5xx except 501, a timeout, or a row that kept changing, after all retries. The request may or
    may not have been applied."""


class RowTooBusy(Unavailable):
    """Other writes kept a row busy for all attempts of one. It was not applied, and never will be."""

    def __init__(self, what: str, *, hint: str) -> None:
        super().__init__(f"{what}; nothing was written", code="RowTooBusy", status=503, hint=hint)


class Ambiguous(ServiceError):
    """A write was sent, and its outcome is unknown: it may have been applied, or still be."""


class Interrupted(RekeyError):
    """SIGINT or SIGTERM: work was checkpointed."""

    exit_code = ExitCode.INTERRUPTED
