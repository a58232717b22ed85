"""What the program's connections do above a request: they repeat it, and settle what it left open.

Rules kept here:

* It is the program's own code that repeats and settles (`rekey.tables.requests`); only the sending of one
  attempt is the simulation's.
* An attempt goes out by the allowance that counts in that moment, however long ago it was decided.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rekey.core.clock import Clock
from rekey.errors import Ambiguous, ConditionFailed, EndpointDown, RowExists, RowMissing, ServiceError
from rekey.errors import Unavailable as Busy
from rekey.model import ETAG
from rekey.tables import allowance
from rekey.tables.answers import Answer
from rekey.tables.base import Operation, Table
from rekey.tables.requests import Requester, RetryPolicy, WriteApplied, all_applied
from rekey.tables.transport import NoAnswer, NotSent, Request

ETags = list[str | None]


@dataclass(frozen=True)
class _Attempted(Request):
    """A request of which one attempt is a call on tables in memory."""

    attempt: Callable[[], Awaitable[ETags]] | None = None


@dataclass(frozen=True)
class _Answered(Answer):
    """An answer as its reader finds it: ETags, or what the service refused with."""

    etags: ETags | None = None
    refused: ServiceError | None = None


class _Attempts:
    """Stands for the transport: sends once."""

    async def send(self, request: Request) -> Answer:
        allowance.check()
        etags, refused = None, None
        try:
            etags = await request.attempt()  # type: ignore[attr-defined]
        except EndpointDown as error:
            raise NotSent(error.code) from None
        except Ambiguous as error:
            raise NoAnswer(error.code) from None
        except ServiceError as error:
            refused = error
        return _Answered(0, {}, b"", etags, refused)


def _read(answer: Answer, _doing: str) -> ETags:
    if answer.refused is not None:  # type: ignore[attr-defined]
        raise answer.refused  # type: ignore[attr-defined]
    return answer.etags or []  # type: ignore[attr-defined]


class Repeating:
    """Repeats writes as a connection of the runner does."""

    def __init__(self, clock: Clock, draw: random.Random, policy: RetryPolicy | None = None) -> None:
        """Take what waiting is asked of, and where jitter comes from."""
        transport: object = _Attempts()
        self._requester = Requester(transport, policy or RetryPolicy(), clock, draw)  # type: ignore[arg-type]

    async def write(
        self,
        table: Table,
        operations: Sequence[Operation],
        attempt: Callable[[], Awaitable[ETags]],
    ) -> ETags:
        """Send until it is answered or enough, then look whether an open outcome can be settled.

        Args:
            table: what is read to settle it; reads are not repeated.
            operations: what is written.
            attempt: sends it once.
        """
        on_version = any(one.etag not in (None, "*") for one in operations)
        doing = f"write to {table.name}"
        request = _Attempted("POST", "", doing, on_version=on_version, attempt=attempt)
        outcome = await self._requester.call(request, _read)
        error = outcome.error
        if (
            error is None
            or not outcome.ambiguous
            or not isinstance(error, RowExists | RowMissing | ConditionFailed | Busy | Ambiguous)
        ):
            return outcome.result()
        try:
            now = await asyncio.gather(*(table.get(operation.key) for operation in operations))
        except (Busy, EndpointDown) as failed:
            raise _left_open(failed.code) from None
        verdict = all_applied(operations, now, by_content=True)
        if verdict is WriteApplied.YES:
            return [None if row is None else row[ETAG] for row in now]
        if verdict is WriteApplied.NO or not outcome.final:
            raise error
        raise _left_open(error.code)


def _left_open(code: str) -> Ambiguous:
    return Ambiguous("repeated after a lost answer, and what is there does not tell", code=code)
