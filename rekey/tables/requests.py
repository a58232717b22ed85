"""Requests with retries: from single attempts to an outcome that says what is known.

Rules kept here:

* An outcome is a value: what came of the request, and whether an attempt before its answer may have been
  applied already. Settling that is the business of whoever knows what was asked.
* An error inside the answer to a batch is retried like one outside.
* A malformed answer is no answer.
* What is sent again is sent under the rates and limits that count then (`rekey.tables.allowance`).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rekey.errors import Ambiguous, EndpointDown, ServiceError, Unavailable
from rekey.tables import allowance
from rekey.tables.answers import may_be_applied
from rekey.tables.clock import Clock
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
        self._ever_answered = False
        self.last_open: int | None = None
        """When an attempt to write was last left without an answer, in ticks of the clock."""

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
        backoff = Backoff(self._policy, self._random)
        is_write, ambiguous = request.method != "GET", False
        while True:
            if is_write:
                allowance.check()
            tried = await self._attempt(request, read)
            if isinstance(tried, Outcome):
                return replace(tried, ambiguous=ambiguous or tried.ambiguous)
            if not tried.open:
                allowance.refused()
            ambiguous, error = ambiguous or tried.open, tried.error
            if ambiguous and is_write:
                self.last_open = self._clock.ticks()
            wait = backoff.next_wait(retry_after=tried.retry_after, only_connect=tried.only_connect)
            if ambiguous and is_write and not self._policy.repeats_open_writes:
                wait = None
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

    async def _attempt(self, request: Request, read: Callable[[Answer], T]) -> Outcome[T] | _Failed:
        """Send a request once."""
        retry_after, repeated = None, False
        try:
            answer = await self._transport.send(request)
            self._ever_answered = True
            retry_after, repeated = retry_after_of(answer.headers), answer.repeated
            if repeated:
                self.last_open = self._clock.ticks()
            return Outcome(read(answer), None, repeated, final=True)
        except Unavailable as busy:
            return _Failed(busy, repeated or may_be_applied(busy), retry_after)
        except ServiceError as refused:
            return Outcome(None, refused, repeated, final=True)
        except NotSent as failed:
            down = _down(request, str(failed))
            return _Failed(down, open=False, only_connect=not self._ever_answered)
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
