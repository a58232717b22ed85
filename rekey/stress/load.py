"""Offering one rate to a table for some seconds, and measuring what comes of it.

Rules kept here:

* Requests are due at fixed moments, whether earlier ones were answered or not, and latency counts from the
  moment a request was due: a service that stalls is not spared the requests that would have met it.
* Nothing is tried again: what is refused is what is measured.
* What waits for answers is bounded. A request that is due while too many wait is not sent, and counted.
* The beginning of a step is not measured; what the service saved up for a burst goes there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rekey.core.clock import TICKS_PER_SECOND, Clock
from rekey.errors import Ambiguous, EndpointDown, ServiceError, Unavailable
from rekey.model import Row
from rekey.stress.spread import MadeUp
from rekey.stress.steps import Step, percentile
from rekey.tables.base import Operation, Table, Verb

MOST_WAITING = 256
UNMEASURED = 0.25
"""Share of a step, at its beginning, that is not measured."""
_REFUSED = frozenset({429, 500, 503})
_EXPECTED = (Unavailable, Ambiguous, EndpointDown)


@dataclass(frozen=True, slots=True)
class Offer:
    """One rate for some seconds: rows a second, `batch` of them in a request."""

    rate: float
    seconds: float
    batch: int

    @property
    def requests(self) -> int:
        """Return how many requests that is."""
        return max(1, round(self.rate * self.seconds / self.batch))


@dataclass(slots=True)
class _Sent:
    """One request: seconds since the step began at which it was due, sent, answered; how it ended."""

    due: float
    sent: float = 0.0
    answered: float = 0.0
    error: ServiceError | None = None


async def offer(
    table: Table,
    rows: MadeUp,
    given: Offer,
    clock: Clock,
    *,
    processor: Callable[[], float] = time.process_time,
) -> Step:
    """Offer a rate, and wait for all answers.

    Args:
        table: the test table.
        rows: makes up what is inserted.
        given: how much.
        clock: tells when requests are due.
        processor: seconds of processor that this process has used.

    Raises:
        ServiceError: something other than load is wrong: the table is gone, a credential is refused.
    """
    record: list[_Sent] = []
    unsent: list[float] = []
    waiting = 0
    began, used = clock.ticks(), processor()

    def now() -> float:
        return (clock.ticks() - began) / TICKS_PER_SECOND

    async def send(made: Sequence[Row], due: float) -> None:
        nonlocal waiting
        sent = _Sent(due, now())
        try:
            if len(made) == 1:
                await table.insert(made[0])
            else:
                await table.transact([Operation(Verb.INSERT, row) for row in made])
        except _EXPECTED as error:
            sent.error = error
        finally:
            waiting -= 1
        sent.answered = now()
        record.append(sent)

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(given.requests):
                due = number * given.batch / given.rate
                # Also when it is late: answers must be taken in.
                await clock.sleep(max(0.0, due - now()))
                if waiting >= MOST_WAITING:
                    unsent.append(due)
                    continue
                waiting += 1
                group.create_task(send(rows.rows(given.batch), due))
            lasted, used = now(), processor() - used
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return measured(record, unsent, given, used / max(lasted, given.seconds))


def measured(sent: Sequence[_Sent], unsent: Sequence[float], given: Offer, processor: float) -> Step:
    """Return the figures of a step; throughput by when answers came, all else by when requests were due."""
    begin, end = UNMEASURED * given.seconds, given.seconds
    due = [one for one in sent if one.due >= begin]
    times = sorted(max(0.0, one.answered - one.due) for one in due if one.error is None)
    good = sum(one.error is None and begin <= one.answered < end for one in sent)
    refused = sum(one.error is not None and one.error.status in _REFUSED for one in due)
    return Step(
        offered=given.rate,
        achieved=good * given.batch / (end - begin),
        seconds=end - begin,
        requests=len(due),
        refused=refused,
        failed=sum(one.error is not None for one in due) - refused,
        unsent=sum(one >= begin for one in unsent),
        p50=percentile(times, 0.50),
        p95=percentile(times, 0.95),
        p99=percentile(times, 0.99),
        grain=given.batch / (end - begin),
        late=percentile(sorted(one.sent - one.due for one in due), 0.95) or 0.0,
        processor=processor,
    )
