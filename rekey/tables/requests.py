"""Requests with retries: from single attempts to an outcome that says what is known.

Rules kept here:

* An outcome is a value: what came of the request, and whether an attempt before its answer may have been
  applied already. Settling that is the business of whoever knows what was asked.
* An error inside the answer to a batch is retried like one outside.
* A malformed answer is no answer.
* What is sent again is sent under the rates and limits that count then (`rekey.tables.allowance`).
* When an attempt to write was last left open is remembered: also one that was repeated with success, and one
  whose caller was cancelled. Not so where the write depends on a row's version and was answered in the end:
  then no earlier attempt can take effect any more ("Managing concurrency", ETags, Azure documentation).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rekey.core.clock import Clock
from rekey.errors import Ambiguous, EndpointDown, ServiceError, Unavailable
from rekey.tables import allowance
from rekey.tables.answers import may_be_applied
from rekey.tables.retry import Backoff, RetryPolicy, retry_after_of
from rekey.tables.transport import Answer, NoAnswer, NotSent, Request, Transport

_LOG = logging.getLogger("rekey.tables")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What came of a request: a value or an error.

    Attributes:
        ambiguous: an attempt before the one that was answered may have been applied.
        final: the service answered; otherwise all attempts are used up.
    """

    value: T | None
    error: ServiceError | None
    ambiguous: bool
    final: bool

    def result(self) -> T:
        """Return the value or raise the error."""
        if self.error is not None:
            raise self.error
        if self.value is None:
            raise AssertionError("an outcome without an error has a value")
        return self.value


@dataclass(frozen=True, slots=True)
class _Failed:
    """An attempt behind which another may follow.

    Attributes:
        error: what became of it.
        open: it may have been applied; else nothing was done.
        retry_after: what the service asked to wait, in seconds.
        only_connect: there has never been a connection.
    """

    error: ServiceError
    open: bool
    retry_after: float | None = None
    only_connect: bool = False


@dataclass(slots=True)
class _Known:
    """What all requesters of an account know."""

    ever_answered: bool = False
    last_open: float | None = None


class Requester:
    """Sends requests again until they are answered or it is enough.

    Args:
        transport: sends one attempt.
        policy: how often and how patiently.
        clock: what to wait on.
        source: where jitter comes from.
    """

    def __init__(
        self, transport: Transport, policy: RetryPolicy, clock: Clock, source: random.Random
    ) -> None:
        self._transport = transport
        self._policy = policy
        self._clock = clock
        self._random = source
        self._known = _Known()

    def with_policy(self, **changes: bool) -> Requester:
        """Return a requester on the same connections whose policy differs in some attributes."""
        other = copy(self)
        other._policy = replace(self._policy, **changes)  # noqa: SLF001 - of the same class
        return other

    @property
    def last_open(self) -> float | None:
        """When an attempt to write was last left open, in rising seconds of the clock; None if never."""
        return self._known.last_open

    @property
    def content_settles(self) -> bool:
        """Whether what a row holds proves who wrote it, see `RetryPolicy`."""
        return self._policy.content_settles

    async def call(self, request: Request, read: Callable[[Answer], T]) -> Outcome[T]:
        """Send a request until it is answered for good or it is enough.

        Args:
            request: what to send.
            read: turns an answer into a value; raises a ServiceError for an error answer (Unavailable is
                tried again) and ValueError for a malformed one.
        """
        try:
            return await self._call(request, read)
        except asyncio.CancelledError:
            self._note_open(request)  # nobody knows whether it was sent
            raise

    async def _call(self, request: Request, read: Callable[[Answer], T]) -> Outcome[T]:
        backoff = Backoff(self._policy, self._random)
        is_write, ambiguous = request.method != "GET", False
        repeats = request.on_version or self._policy.repeats_open_writes
        while True:
            try:
                if is_write:
                    allowance.check()
                tried = await self._attempt(request, read)
            except Exception as forbidden:
                if not ambiguous:
                    raise
                self._note_open(request)  # no further attempt: what became of the first nobody will know
                raise _open(request, type(forbidden).__name__) from forbidden
            if isinstance(tried, Outcome):
                return replace(tried, ambiguous=ambiguous)
            if not tried.open:
                allowance.refused()
            ambiguous, error = ambiguous or tried.open, tried.error
            wait = backoff.next_wait(retry_after=tried.retry_after, only_connect=tried.only_connect)
            if ambiguous and is_write and not repeats:
                wait = None
            if ambiguous and (wait is None or not request.on_version):
                self._note_open(request)
            if wait is None:
                if ambiguous and isinstance(error, EndpointDown):
                    error = _open(request, error.code)
                return Outcome(None, error, ambiguous, final=False)
            _LOG.info(
                "%s: %s; attempt %d follows in %.1f s",
                *(request.doing, error.code or error.status, backoff.failures + 1, wait),
            )
            await self._clock.sleep(wait)
            if not tried.open:
                await allowance.again()

    def _note_open(self, request: Request) -> None:
        if request.method != "GET":
            self._known.last_open = self._clock.rising()

    async def _attempt(self, request: Request, read: Callable[[Answer], T]) -> Outcome[T] | _Failed:
        """Send a request once."""
        retry_after = None
        try:
            answer = await self._transport.send(request)
            self._known.ever_answered = True
            retry_after = retry_after_of(answer.headers)
            return Outcome(read(answer), None, ambiguous=False, final=True)
        except Unavailable as busy:
            return _Failed(busy, may_be_applied(busy), retry_after)
        except ServiceError as refused:
            return Outcome(None, refused, ambiguous=False, final=True)
        except NotSent as failed:
            down = _down(request, str(failed))
            return _Failed(down, open=False, only_connect=not self._known.ever_answered)
        except (NoAnswer, ValueError) as failed:
            said = str(failed) if isinstance(failed, NoAnswer) else "MalformedAnswer"
            return _Failed(_open(request, said), open=True, retry_after=retry_after)

    async def read(self, request: Request, read: Callable[[Answer], T]) -> T:
        """Send a request that changes nothing. Raises Unavailable where a write would be ambiguous."""
        outcome = await self.call(request, read)
        if isinstance(outcome.error, Ambiguous):
            raise Unavailable(
                f"{request.doing}: the service did not answer ({outcome.error.code})",
                code=outcome.error.code,
                hint="check the connection and repeat the command, which goes on where it stopped",
            )
        return outcome.result()


def _down(request: Request, code: str) -> EndpointDown:
    return EndpointDown(
        f"{request.doing}: no connection to the endpoint ({code})",
        code=code,
        hint="check the endpoint in rekey.toml, the network and the proxy settings",
    )


def _open(request: Request, code: str) -> Ambiguous:
    return Ambiguous(
        f"{request.doing}: sent, and not answered ({code}); it may have been applied",
        code=code,
        hint="check the connection and repeat the command, which goes on where it stopped",
    )
