"""The journal, as the runner works with it: swept beside its work, drained in a freeze, asked when verifying.

Rules kept here:

* Only intents older than the longest operation (and a margin) are taken: what a younger one announces may
  still be under way, or late. That holds in a freeze too: a client that has acknowledged it has settled all
  but what was left open, and nobody knows whether such a request still travels.
* The background sweep ends with the work beside it, and its errors end that work.
* Whoever asks whether a key is in flight is answered from a scan that began after the question: an older one
  could miss the intent of a write that was seen half done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from rekey.concurrency import cancel
from rekey.dualwrite.reading import LeaseSettings
from rekey.dualwrite.registry import SAFETY_S
from rekey.dualwrite.rules import TARGET, Side
from rekey.dualwrite.sweeper import Swept
from rekey.errors import Refused
from rekey.model import EntityKey
from rekey.runner.following import POLL_S, Deadline
from rekey.runner.run import Run
from rekey.tables.clock import TICKS_PER_SECOND, format_ticks, ticks_of

T = TypeVar("T")

SWEEP_EVERY_S = 5.0
FRESH_S = 5.0
"""An intent older than this is not of a write that goes on as usual."""


async def settled_before(run: Run) -> int:
    """Return the moment, in ticks of the service's clock, before which no intent has anything under way."""
    now = ticks_of(await run.restricted.server_time())
    return now - round(await longest_s(run) * TICKS_PER_SECOND)


async def longest_s(run: Run) -> float:
    """Return the seconds after which nothing of any write is under way, margin included.

    As the clients themselves say: a client's row goes only once nothing of it can take effect any more. The
    usual time is taken when there is no client to ask.
    """
    clients = await run.registry.list()
    said = [client.longest_s for client in clients]
    return max(said, default=LeaseSettings().longest_operation_s) + SAFETY_S


async def sweep_journal(run: Run, side: Side) -> Swept:
    """Settle the intents that are old enough, once.

    Args:
        run: the migration.
        side: which side is the authority now.
    """
    return await run.sweeper.sweep(
        side,
        older_than=await settled_before(run),
        concurrency=run.config.limits.concurrency,
        check=run.still_alone,
    )


async def while_sweeping(run: Run, side: Side, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` while the journal is swept beside it; an error of the sweep ends both."""
    if run.is_delta:
        return await work
    working = asyncio.ensure_future(work)
    sweeping = asyncio.ensure_future(_keep_sweeping(run, side))
    try:
        await asyncio.wait((working, sweeping), return_when=asyncio.FIRST_COMPLETED)
        if sweeping.done():
            sweeping.result()
        return await working
    finally:
        await cancel((working, sweeping))


async def _keep_sweeping(run: Run, side: Side) -> None:
    while True:
        await sweep_journal(run, side)
        await run.clock.sleep(SWEEP_EVERY_S)


async def settle_stale(run: Run, side: Side) -> Swept:
    """Sweep until no intent stands out by its age; return what the last sweep said, with all it settled.

    Before a freeze: an intent that a write left open becomes old enough while writes still go on. Ends when
    that must have happened; what is left then either fails, or is of writes that keep being left open.
    """
    deadline = Deadline(run.clock, await longest_s(run) + FRESH_S)
    settled = 0
    while True:
        run.check()
        swept = await sweep_journal(run, side)
        settled += swept.settled
        now = ticks_of(await run.restricted.server_time())
        fresh = swept.oldest_at is None or now - swept.oldest_at < FRESH_S * TICKS_PER_SECOND
        if fresh or deadline.over:
            return replace(swept, settled=settled)
        await run.clock.sleep(POLL_S)


async def any_intent(run: Run) -> bool:
    """Tell whether the journal holds an intent."""
    async for intents in run.journal.scan():
        if intents:
            return True
    return False


async def drain(run: Run, side: Side, deadline: Deadline) -> int:
    """Sweep until the journal is empty; return how many intents were settled.

    Only when nobody adds to it any more does that come to an end.

    Raises:
        Refused: intents were left when the limit was reached.
    """
    settled = 0
    while True:
        run.check()
        swept = await sweep_journal(run, side)
        settled += swept.settled
        if not swept.left:
            return settled
        if deadline.over:
            raise _not_drained(run, swept, deadline)
        await run.clock.sleep(POLL_S)


def _not_drained(run: Run, swept: Swept, deadline: Deadline) -> Refused:
    oldest = "" if swept.oldest_at is None else f", the oldest of {format_ticks(swept.oldest_at)}"
    failed = f", {swept.failed} of which cannot be settled" if swept.failed else ""
    return Refused(
        f"after {deadline.seconds:g} s the journal of {run.script_id} still holds {swept.left} intents"
        f"{oldest}{failed}",
        kept="every intent and every row; nothing is lost",
        hint=unsettled_hint(run)
        if swept.failed
        else "a write with an open outcome is waited for as long as the longest operation takes: run the same"
        " command again, or allow more with [gates] freeze_timeout",
    )


def unsettled_hint(run: Run) -> str:
    """Return what to do about intents that cannot be settled."""
    return (
        f"`rekey verify {run.script_id} --mode full` names the rows that the mapping refuses or that collide;"
        " mend them, then run the same command again"
    )


class InFlight:
    """Tells whether the journal announces a write for a source key. Questions share scans."""

    def __init__(self, run: Run) -> None:
        """Take the migration; nothing is asked yet."""
        self._run = run
        self._next: asyncio.Task[_Announced] | None = None

    async def __call__(self, source_key: EntityKey) -> bool:
        """Tell whether an intent for `source_key`, or for a main target key of it, is in the journal."""
        announced = await self._scan()
        if source_key in announced.sources:
            return True
        if not announced.targets:
            return False
        forward = await self._run.mapping.forward(source_key)
        known = forward.targets if forward is not None else frozenset()
        return any(target.table == 0 and target.key in announced.targets for target in known)

    async def _scan(self) -> _Announced:
        """Return what a scan found that began after this call."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._read())
        return await self._next

    async def _read(self) -> _Announced:
        await asyncio.sleep(0)  # whoever asks in the same turn shares the scan
        self._next = None
        found = _Announced(set(), set())
        async for intents in self._run.journal.scan():
            for intent in intents:
                (found.targets if intent.side == TARGET else found.sources).add(intent.key)
        return found


class _Announced:
    """The keys that one scan of the journal found."""

    def __init__(self, sources: set[EntityKey], targets: set[EntityKey]) -> None:
        self.sources = sources
        self.targets = targets
