"""Requests with retries: from single attempts to an outcome that says what is known; and settling whether a
write whose answer was lost was applied."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Generic, TypeVar

from rekey.core.clock import Clock
from rekey.core.edm import canonical, canonical_content
from rekey.core.progress import REPORT_AFTER_S
from rekey.errors import Ambiguous, EndpointDown, ServiceError, Unavailable
from rekey.model import Row, etag_of, property_names
from rekey.tables import allowance
from rekey.tables.answers import Answer, may_be_applied, moment_of, note_length
from rekey.tables.base import Operation, Verb
from rekey.tables.rules import written_form
from rekey.tables.sent import Overhead, overhead
from rekey.tables.transport import NoAnswer, NotSent, Request, Transport

_LOG = logging.getLogger("rekey.tables")
T = TypeVar("T")
_JITTER = 0.2
_SLOW_S = 10.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and after which waits, a request is repeated. Waits in seconds."""

    # Attempts in all for a request that got an answer or may have reached the service.
    attempts: int = 10
    # Attempts in all while the endpoint has never answered, which is most often a typing error.
    connect_attempts: int = 5
    # Before the second attempt.
    min_wait: float = 0.2
    # The longest wait without a Retry-After, which may ask for more, up to `max_retry_after`.
    max_wait: float = 20.0
    # The longest Retry-After that is honored.
    max_retry_after: float = 120.0
    # Whether a write that may have been applied is sent again. Not where other clients write the same rows:
    # the first attempt may take effect long after the second was answered, and overwrite what was written in
    # between.
    repeats_open_writes: bool = True
    # Whether a row that holds what was written (or is gone after a delete) proves that the write was applied.
    # Not where other clients write the same rows: two that conditionally raise a counter from the same number
    # write the same content, and one of them must be told that it failed; and a row that another client
    # deleted may be inserted again, and then be deleted by a delayed request.
    content_settles: bool = True

    def wait(self, failures: int, retry_after: float | None, draw: float) -> float:
        """Return the seconds to wait after `failures` (1 or more) failed attempts. `retry_after`: the
        service's, in seconds; `draw`: a random number of [0, 1)."""
        grown = self.min_wait * 2.0 ** min(failures - 1, 32)
        # Jitter: clients that failed together must not come back together.
        wait = min(self.max_wait, grown) * (1.0 + _JITTER * (2.0 * draw - 1.0))
        return wait if retry_after is None else max(wait, min(retry_after, self.max_retry_after))

    def longest_s(self, failures: int, attempts: int, attempt_s: float) -> float:
        """Return for how many more seconds a request is tried, at most.

        Args:
            failures: attempts that failed so far.
            attempts: attempts in all.
            attempt_s: how long an unanswered attempt takes.
        """
        waits = sum(self.wait(failed, None, 1.0) for failed in range(max(1, failures), attempts))
        return waits + (attempts - failures) * attempt_s


def retry_after_of(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the seconds that an answer asks to wait, None when it does not ask, or not in a known form:
    `x-ms-retry-after-ms`, or `Retry-After` as seconds or a date."""
    milliseconds = headers.get("x-ms-retry-after-ms", "")
    if milliseconds.isascii() and milliseconds.isdigit():
        return int(milliseconds) / 1000
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    until = moment_of(text) if text else None
    return None if until is None else max(0.0, (until - (now or datetime.now(UTC))).total_seconds())


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The outcome of a request: a value or an error."""

    value: T | None
    error: ServiceError | None
    # An attempt may have been applied: where `final`, one before the answered one; else any.
    ambiguous: bool
    # The service gave its final answer; otherwise no further attempt is allowed.
    final: bool

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        if self.value is None:
            raise AssertionError("an outcome without an error has a value")
        return self.value


@dataclass(frozen=True, slots=True)
class _Failed:
    """An attempt after which another may follow."""

    # The error to report if no other attempt follows.
    error: ServiceError
    # It may have been applied; otherwise nothing was done.
    ambiguous: bool
    # What the service asked to wait, in seconds.
    retry_after: float | None = None
    # It could not connect, and the endpoint has never answered.
    only_connect: bool = False


@dataclass(slots=True)
class _Known:
    """The state that all requesters of an account share. Times are of `Clock.monotonic`."""

    ever_answered: bool = False
    # When the outcome of an attempt to write last became unknown.
    last_open: float | None = None
    # Requests that wait for an answer or for their next attempt.
    calls: int = 0
    # Time of the last answer; if no attempt has failed since, when the first of `calls` began.
    heard_at: float = 0.0
    # Unanswered attempts since then.
    failures: int = 0
    # Until when the unanswered requests are tried.
    tried_until: float = 0.0


@dataclass(frozen=True, eq=False)
class Requester:
    """Sender of requests that repeats them until they are answered or no further attempt is allowed."""

    # Sends one attempt.
    transport: Transport
    policy: RetryPolicy
    clock: Clock
    # Random numbers for the jitter.
    rng: random.Random
    # The state that all requesters on these connections share.
    known: _Known = field(default_factory=_Known)

    async def call(self, request: Request, read: Callable[[Answer, str], T]) -> Outcome[T]:
        """Send a request until its final answer, or until no further attempt is allowed. `read` turns an
        answer and `request.doing` into a value; it raises a ServiceError for an error answer (Unavailable is
        retried) and ValueError for a malformed one, which counts as none."""
        known = self.known
        if not known.calls and not known.failures:
            known.heard_at = self.clock.monotonic()
        known.calls += 1
        try:
            return await self._call(request, read)
        except asyncio.CancelledError:
            self.note_open(request)  # it may have been sent
            raise
        finally:
            known.calls -= 1

    def silence(self) -> tuple[float, float] | None:
        """Return for how many seconds nothing was answered, and for how many more it is tried, at most; None
        while answers come, or none is expected. A silence with failed attempts ends with an answer."""
        known, now, limits = self.known, self.clock.monotonic(), self.transport.timeouts
        silent_s, is_sent = now - known.heard_at, self.transport.any_sent
        if not (known.calls or known.failures):
            return None
        # An answer that is only slow (a scan for few rows of many takes the service 5 s) gets longer.
        if silent_s < (REPORT_AFTER_S if known.failures or not is_sent else _SLOW_S):
            return None
        if known.failures:
            return silent_s, max(0.0, known.tried_until - now)
        policy = self.policy
        attempts = policy.attempts if known.ever_answered or is_sent else policy.connect_attempts
        longest_s = policy.longest_s(0, attempts, limits.read if is_sent else limits.connect)
        return silent_s, max(0.0, longest_s - silent_s)

    async def _call(self, request: Request, read: Callable[[Answer, str], T]) -> Outcome[T]:
        is_write, ambiguous, failures = request.method != "GET", False, 0
        repeats = request.on_version or self.policy.repeats_open_writes
        while True:
            try:
                if is_write:
                    allowance.check()
                began = self.clock.monotonic()
                with overhead(Overhead.RETRIES) if failures else nullcontext():
                    tried = await self._attempt(request, read)
            except Exception as forbidden:
                if not ambiguous:
                    raise
                self.note_open(request)  # no further attempt: the earlier outcomes stay unknown
                raise _open(request, type(forbidden).__name__) from forbidden
            if isinstance(tried, Outcome):
                return replace(tried, ambiguous=True) if ambiguous else tried
            if not tried.ambiguous:
                allowance.refused()
            ambiguous, error = ambiguous or tried.ambiguous, tried.error
            failures += 1
            attempts = self.policy.connect_attempts if tried.only_connect else self.policy.attempts
            # for `silence`
            now = self.clock.monotonic()
            until = now + self.policy.longest_s(failures, attempts, now - began)
            self.known.tried_until = max(self.known.tried_until, until)
            wait = None
            if failures < attempts and (repeats or not (ambiguous and is_write)):
                wait = self.policy.wait(failures, tried.retry_after, self.rng.random())
            # Not for a write conditional on an ETag that is retried: its final answer rules out that an
            # earlier attempt takes effect ("Managing concurrency", ETags, Azure documentation).
            if ambiguous and (wait is None or not request.on_version):
                self.note_open(request)
            if wait is None:
                if ambiguous and isinstance(error, EndpointDown):
                    error = _open(request, error.code)
                return Outcome(None, error, ambiguous, final=False)
            _LOG.info(
                "%s: %s; attempt %d follows in %.1f s",
                *(request.doing, error.code or error.status, failures + 1, wait),
                extra={"event": "request-retried"},
            )
            await self.clock.sleep(wait)
            if not tried.ambiguous:
                await allowance.again()

    def note_open(self, request: Request) -> None:
        """Record that a request may yet take effect."""
        if request.method != "GET":
            self.known.last_open = self.clock.monotonic()

    async def _attempt(self, request: Request, read: Callable[[Answer, str], T]) -> Outcome[T] | _Failed:
        headers: Mapping[str, str] = {}  # of the answer, once there is one
        try:
            answer = await self.transport.send(request)
            headers = answer.headers
            self.known.ever_answered, self.known.failures = True, 0
            self.known.heard_at = self.clock.monotonic()
            return Outcome(read(answer, request.doing), None, ambiguous=False, final=True)
        except Unavailable as busy:
            return _Failed(busy, may_be_applied(busy), retry_after_of(headers))
        except ServiceError as refused:
            note_length(refused, request.path)
            return Outcome(None, refused, ambiguous=False, final=True)
        except NotSent as failed:
            self.known.failures += 1
            down = EndpointDown(
                f"{request.doing}: no connection to {failed.endpoint} ({failed})",
                code=str(failed),
                hint="check the endpoint in rekey.toml, the network and the proxy settings; an Azurite on"
                " this machine is started by `rekey azurite`",
            )
            return _Failed(down, ambiguous=False, only_connect=not self.known.ever_answered)
        except (NoAnswer, ValueError) as failed:
            if isinstance(failed, NoAnswer):
                self.known.failures += 1
                unanswered = _open(request, str(failed), f" by {failed.endpoint}")
            else:
                unanswered = _open(request, "MalformedAnswer")
            return _Failed(unanswered, ambiguous=True, retry_after=retry_after_of(headers))

    async def read(self, request: Request, read: Callable[[Answer, str], T]) -> T:
        """Send a request that changes nothing. Raises Unavailable where a write would be ambiguous."""
        outcome = await self.call(request, read)
        if isinstance(outcome.error, Ambiguous):
            raise Unavailable(
                outcome.error.what.partition(";")[0],
                code=outcome.error.code,
                hint="check the connection and repeat the command, which goes on where it stopped",
            )
        return outcome.result()


def _open(request: Request, code: str, by: str = "") -> Ambiguous:
    return Ambiguous(
        f"{request.doing}: sent, and not answered{by} ({code}); it may have been applied",
        code=code,
        hint="check the connection and repeat the command, which goes on where it stopped",
    )


# --- settling ------------------------------------------------------------------------------------------

_MERGES = frozenset({Verb.MERGE, Verb.INSERT_OR_MERGE})


class WriteApplied(Enum):
    """Whether an ambiguous write was applied."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "open"


def write_applied(operation: Operation, now: Row | None, *, by_content: bool = True) -> WriteApplied:
    """Tell whether a write was applied, by the row that is there now (None: no row). `by_content`: whether a
    row that holds what was written, or is gone after a delete, proves that this write was applied."""
    claimed = WriteApplied.YES if by_content else WriteApplied.UNKNOWN
    if now is None:
        # What an update wrote is gone with the row: it is reported like an update of a missing row.
        return claimed if operation.verb is Verb.DELETE else WriteApplied.NO
    # Every write changes the ETag, so this is proof.
    if operation.etag is not None and etag_of(now) == operation.etag:
        return WriteApplied.NO
    if operation.verb is Verb.DELETE:
        return WriteApplied.UNKNOWN
    written = written_form(operation.row).row
    if operation.verb not in _MERGES:
        holds = canonical_content(written) == canonical_content(now)
    else:  # at least what it wrote
        names = property_names(written)
        holds = all(name in now and canonical(written, name) == canonical(now, name) for name in names)
    # Otherwise it may have been applied and overwritten since.
    return claimed if holds else WriteApplied.UNKNOWN


def all_applied(
    operations: Sequence[Operation], now: Sequence[Row | None], *, by_content: bool = True
) -> WriteApplied:
    """Tell whether a transaction was applied, from the rows that are there now, in the same order."""
    pairs = zip(operations, now, strict=True)
    outcomes = [write_applied(operation, row, by_content=by_content) for operation, row in pairs]
    # All or nothing.
    if WriteApplied.NO in outcomes:
        return WriteApplied.NO
    return WriteApplied.YES if set(outcomes) <= {WriteApplied.YES} else WriteApplied.UNKNOWN
