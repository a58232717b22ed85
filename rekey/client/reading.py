"""What a client concludes from a reading of the control row: adopt it, or refuse operations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rekey.core.endpoints import are_other_accounts
from rekey.errors import WritesRefused
from rekey.phases import ControlPhase
from rekey.project.config import is_same_account
from rekey.protocol.control import ControlRow, PartOfSource
from rekey.protocol.other_migrations import OtherMigration

CONTROL_GONE = "control-gone"
OTHER_RUN = "other-run"
MOVED_BACK = "control-moved-back"
DIGEST_MOVED = "digest-moved"
SECRET_MOVED = "secret-moved"  # noqa: S105 - a code
TARGETS_MOVED = "targets-moved"
OTHER_ACCOUNT = "other-account"
UNKNOWN_PART = "unknown-part"
MIGRATED_AGAIN = "migrated-again"
OTHER_MIGRATION = "other-migration"
LEASE_LOST = "lease-lost"
CLOSED = "closed"

# The service may work on one request for the longest operation divided by this.
_SERVICE_SHARE = 6
_MOST_SERVICE_S = 30
# So many migrations are named in a refusal.
_NAMED = 5
# Seconds that a request and its answer may be in transit, besides the service's work.
ON_THE_WAY_S = 2.0


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """Facts that a client is created with, compared with the control row.

    Attributes:
        digest: of the declaration that the client uses.
        fingerprints: of the secrets it has, by name.
        view: `old` or `new`.
        name: for people; given by the application.
        target_account: the endpoint of the target account; "" if no table of the migration is there.
        tables_endpoint: the endpoint of the account of the tables; "" if it is not known.
        part_of: the source, for the old view of a part of it; else "".
        parts: the ids of all scripts whose parts of that source the process follows, this one included.
    """

    script_id: str
    digest: str
    fingerprints: Mapping[str, str]
    view: str
    name: str = ""
    target_account: str = ""
    tables_endpoint: str = ""
    part_of: str = ""
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Times of a client, in seconds.

    Attributes:
        poll_s: between two reads of the control row; also how fast a move is noticed.
        lease_s: for which a reading is trusted; also how long the restricted store may be unavailable.
        longest_operation_s: within which an operation, background work included, takes effect, or not at all;
            at least 2.
        freeze_wait_s: for which a write waits in a freeze.
    """

    poll_s: float = 1.0
    lease_s: float = 15.0
    longest_operation_s: float = 30.0
    freeze_wait_s: float = 10.0

    @property
    def service_s(self) -> int:
        """For how long the service may work on one request, in whole seconds, at least one."""
        return int(min(_MOST_SERVICE_S, max(1.0, self.longest_operation_s / _SERVICE_SHARE)))

    @property
    def max_in_flight_s(self) -> float:
        """For how long a request may take effect after it is known that no answer comes."""
        return self.service_s + ON_THE_WAY_S

    @property
    def sending_s(self) -> float:
        """For how long an operation sends requests: `service_s` less than the longest operation, but at least
        half of it."""
        return max(self.longest_operation_s - self.service_s, self.longest_operation_s / 2)

    def __post_init__(self) -> None:
        if not 0 < self.poll_s < self.lease_s or self.freeze_wait_s < 0:
            raise ValueError("poll_s must be shorter than lease_s, and all times positive")
        # The service takes its timeout in whole seconds, and sending needs as long before that.
        if self.longest_operation_s < 2:
            raise ValueError("longest_operation_s must be 2 seconds or more")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a client refuses operations, and what to do about it."""

    code: str
    what: str
    hint: str
    reads_too: bool = False

    def error(self) -> WritesRefused:
        return WritesRefused(self.code, self.what, hint=self.hint)


@dataclass(frozen=True, slots=True)
class Reading:
    """What follows for a client from a reading of the control row."""

    # The control row that the client acts on from now on, None for none.
    control: ControlRow | None
    # Why it refuses writes (with `reads_too` all operations) until another reading, None if it does not.
    refusal: Refusal | None = None
    # The code of what rules out dual writes, also in phases without them; "" for nothing.
    refuses: str = ""


def reading(
    before: ControlRow | None,
    now: ControlRow | None,
    facts: ClientFacts,
    others: Iterable[OtherMigration] = (),
) -> Reading:
    """Return the reading that follows `before` when the control row is `now` (None: no control row).
    `others`: those that are recorded beside it."""
    lost = _lost(before, now, facts.script_id)
    if lost is not None:
        return Reading(before, lost, lost.code)
    unfollowed = _unfollowed(now, facts, others)
    if now is None:
        return Reading(None, unfollowed, "" if unfollowed is None else unfollowed.code)
    if now.digest == facts.digest and are_other_accounts(now.tables_endpoint, facts.tables_endpoint):
        refusal = Refusal(
            OTHER_ACCOUNT,
            f"this client works with another account than the one whose tables {facts.script_id} moves",
            f"give it {now.tables_endpoint} as endpoint, or as [tables] endpoint",
            reads_too=True,
        )
        return Reading(now, refusal, OTHER_ACCOUNT)
    if now.digest == facts.digest and not is_same_account(now.target_account, facts.target_account):
        refusal = Refusal(
            TARGETS_MOVED,
            f"the account of targets of this client is not the one that {facts.script_id} began with",
            f"give it {now.target_account} as targets_endpoint, or as [targets] endpoint",
            reads_too=facts.view == "new",
        )
        return Reading(now, refusal, TARGETS_MOVED)  # in every phase: its writes would go elsewhere
    if unfollowed is not None:
        return Reading(now, unfollowed, unfollowed.code)
    differs = _differs(now, facts)
    if differs is None:
        return Reading(now)
    # Another declaration or secret would give other keys. That matters where replicas follow; in other phases
    # only the client's row reports it, and the runner can refuse to go on.
    return Reading(now, differs if now.is_followed else None, differs.code)


def _lost(before: ControlRow | None, now: ControlRow | None, script_id: str) -> Refusal | None:
    """Return why the control row as read cannot be adopted, None if it can."""
    if before is None:
        return None
    if before.phase is ControlPhase.SOURCE and (now is None or now.run_id != before.run_id):
        return None  # no replica has followed its writes yet
    # From here on clients may have written in a later phase, so it is unknown which table is the authority:
    # reads are refused too.
    if now is None:
        return Refusal(
            CONTROL_GONE,
            f"the control row of {script_id} is gone: it is unknown which table is the authority",
            f"see with `rekey status {script_id}` whether the migration was rolled back: if so, restart this"
            " client; if not, find out who deleted the row",
            reads_too=True,
        )
    if now.run_id != before.run_id:
        return Refusal(
            OTHER_RUN,
            f"{script_id} was rolled back and begun again since this client read the control row",
            "restart this client",
            reads_too=True,
        )
    if now.epoch < before.epoch:
        return Refusal(
            MOVED_BACK,
            f"the control row of {script_id} has gone back from epoch {before.epoch} to {now.epoch}",
            "find out who put an older copy of the restricted store in place; restart this client when it is"
            " known that the row says what holds",
            reads_too=True,
        )
    return None


def _unfollowed(
    now: ControlRow | None, facts: ClientFacts, others: Iterable[OtherMigration]
) -> Refusal | None:
    """Return why rows that other migrations move are not written, None if there are no such migrations."""
    closing = [other for other in others if other.closes(now, facts.view)]
    if not closing:
        return None
    names = sorted(other.script_id for other in closing)
    listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if names[_NAMED:] else "")
    if not any(other.is_next for other in closing):
        return Refusal(
            OTHER_MIGRATION,
            f"{listed} migrates the same rows as {facts.script_id}, and this client does not follow that",
            f"end it, and use one of {names[0]}; no client follows both",
        )
    return Refusal(
        MIGRATED_AGAIN,
        f"{listed} migrates on what {facts.script_id} has filled, and this client does not follow that",
        f"end it, and use one of the old view of {names[0]}, or of its new view once that is open; a proxy is"
        " restarted with that script",
        reads_too=any(other.closes(now, facts.view, reads=True) for other in closing),
    )


def _differs(now: ControlRow, facts: ClientFacts) -> Refusal | None:
    """Return why the client would give rows other keys than the runner does, None if it would not."""
    if now.digest != facts.digest:
        return digest_moved(facts)
    for name, fingerprint in sorted(now.fingerprints.items()):
        if facts.fingerprints.get(name) == fingerprint:
            continue
        what = f"this client has no secret {name}, which {facts.script_id} needs"
        if name in facts.fingerprints:
            what = f"the secret {name} of this client is not the one that {facts.script_id} was begun with"
        return Refusal(SECRET_MOVED, what, f"give it the secret {name} that `rekey apply` was run with")
    return None


def digest_moved(facts: ClientFacts) -> Refusal:
    """Return the refusal of a client with another declaration than the migration's."""
    return Refusal(
        DIGEST_MOVED,
        f"this client works by another declaration of {facts.script_id} than the migration",
        "deploy the script that the migration was begun with, unchanged",
        reads_too=facts.view == "new",  # the new table may be another one, too
    )


# Phases in which the source may no longer have the rows of a part as they are.
_STALE = frozenset({ControlPhase.CUTOVER, ControlPhase.COMPLETE, ControlPhase.RETIRED})


def unknown_parts(parts: Iterable[PartOfSource], facts: ClientFacts) -> tuple[PartOfSource, ...]:
    """Return the migrations of parts of the client's source that have begun, and that it does not follow."""
    return tuple(
        part
        for part in parts
        if part.has_begun
        and part.is_of(facts.part_of, facts.tables_endpoint)
        and part.script_id not in facts.parts
    )


def unknown_part(unknown: Iterable[PartOfSource], facts: ClientFacts, *, reads: bool) -> Refusal | None:
    """Return why rows outside the client's parts are not written, or read (`reads`): they may be rows of
    another migration that has begun. None: there is no such migration."""
    names = sorted(part.script_id for part in unknown if not reads or part.phase in _STALE)
    if not names:
        return None
    listed = ", ".join(names)
    return Refusal(
        UNKNOWN_PART,
        f"{listed} migrates a part of {facts.part_of} too, and this client does not know its rows",
        f"give the client that script as well, migration=[{', '.join((*facts.parts, *names))}]; a proxy reads"
        " all scripts of its project when it starts",
    )


def closed(script_id: str) -> Refusal:
    """Return the refusal of a closed client."""
    return Refusal(CLOSED, f"this client of {script_id} is closed", "open another one", reads_too=True)
