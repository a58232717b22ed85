"""Offering rates to a table, each for some seconds, and measuring what comes of it.

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
from rekey.stress.steps import Bounds, Step, percentile
from rekey.tables.base import Operation, Table, Verb

MOST_WAITING = 256
UNMEASURED = 0.25
"""Share of a step, at its beginning, that is not measured."""
_REFUSED = frozenset({429, 500, 503})
_EXPECTED = (Unavailable, Ambiguous, EndpointDown)


@dataclass(slots=True)
class _Sent:
    """One request: seconds since the step began at which it was due, sent, answered; how it ended."""

    due: float
    sent: float
    answered: float = 0.0
    error: ServiceError | None = None


class Load:
    """What is offered to a test table, and what is left of time and rows.

    Attributes:
        bounds: of the whole test.
        clock: tells when requests are due.
        sent: rows sent so far.
    """

    def __init__(
        self,
        table: Table,
        bounds: Bounds,
        clock: Clock,
        *,
        processor: Callable[[], float] = time.process_time,
    ) -> None:
        """Take the table and the bounds; the test begins now.

        Args:
            table: the test table.
            bounds: of the whole test.
            clock: tells when requests are due.
            processor: seconds of processor that this process has used.
        """
        self.bounds = bounds
        self.clock = clock
        self.sent = 0
        self._table = table
        self._processor = processor
        self._began = clock.ticks()

    @property
    def spent(self) -> float:
        """Return the seconds since the beginning."""
        return (self.clock.ticks() - self._began) / TICKS_PER_SECOND

    def share(self, stages: int) -> tuple[float, int]:
        """Return until which second, and up to which row, the first of so many stages may go."""
        seconds, rows = self.bounds.seconds - self.spent, self.bounds.rows - self.sent
        return self.spent + seconds / stages, self.sent + rows // stages

    async def offer(self, rows: MadeUp, rate: float, seconds: float) -> Step:
        """Offer a rate for some seconds, and wait for all answers.

        Args:
            rows: makes up what is inserted.
            rate: rows a second.
            seconds: how long.

        Raises:
            ServiceError: something other than load is wrong: the table is gone, a credential is refused.
        """
        batch, requests = self.bounds.batch, max(1, round(rate * seconds / self.bounds.batch))
        self.sent += requests * batch
        record: list[_Sent] = []
        unsent: list[float] = []
        waiting = 0
        began, used = self.spent, self._processor()

        async def send(made: Sequence[Row], due: float) -> None:
            nonlocal waiting
            sent = _Sent(due, self.spent - began)
            try:
                if len(made) == 1:
                    await self._table.insert(made[0])
                else:
                    await self._table.transact([Operation(Verb.INSERT, row) for row in made])
            except _EXPECTED as error:
                sent.error = error
            finally:
                waiting -= 1
            sent.answered = self.spent - began
            record.append(sent)

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(requests):
                    due = number * batch / rate
                    # Also when it is late: answers must be taken in.
                    await self.clock.sleep(max(0.0, due - (self.spent - began)))
                    if waiting >= MOST_WAITING:
                        unsent.append(due)
                        continue
                    waiting += 1
                    group.create_task(send(rows.rows(batch), due))
                lasted, used = self.spent - began, self._processor() - used
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        begin, measured = UNMEASURED * seconds, (1 - UNMEASURED) * seconds
        # Throughput goes by when answers came, all else by when requests were due.
        good = sum(one.error is None and begin <= one.answered < seconds for one in record)
        of_step = [one for one in record if one.due >= begin]
        times = sorted(max(0.0, one.answered - one.due) for one in of_step if one.error is None)
        refused = sum(one.error is not None and one.error.status in _REFUSED for one in of_step)
        return Step(
            offered=rate,
            achieved=good * batch / measured,
            seconds=measured,
            requests=len(of_step),
            refused=refused,
            failed=sum(one.error is not None for one in of_step) - refused,
            unsent=sum(due >= begin for due in unsent),
            p50=percentile(times, 0.50),
            p95=percentile(times, 0.95),
            p99=percentile(times, 0.99),
            grain=batch / measured,
            late=percentile(sorted(one.sent - one.due for one in of_step), 0.95) or 0.0,
            processor=used / max(lasted, seconds),
        )
