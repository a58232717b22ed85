"""The journal, as the runner works with it: swept beside its work, drained in a freeze, asked when verifying.

Rules kept here:

* Only intents whose time is over are taken: what a younger one announces may still be under way, or late.
  That holds in a freeze too: a client that has acknowledged it has settled all but what was left open, and
  nobody knows whether such a request still travels.
* The runner announces what it writes to replicas, as clients do, under intents of its own: whatever is cut
  off, or left open, is looked at again when nothing of it can take effect any more.
* A client that was given up without having ended in order may be heard of until the service refuses what it
  had signed. Its intents do not hold up a freeze, they are settled in it. A way back and `complete` compare
  everything as long as that may be.
* The background sweep ends with the work that it goes with, and its errors end that work.
* Whoever asks whether a key is in flight is answered from a scan that began after the question: an older one
  could miss the intent of a write that was seen half done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from rekey.client.reading import LeaseSettings
from rekey.core.clock import TICKS_PER_SECOND, Clock, format_ticks, ticks_of
from rekey.core.concurrency import cancel, first_of
from rekey.errors import Refused, Unavailable
from rekey.model import EntityKey
from rekey.protocol.control import ControlRow
from rekey.protocol.journal import Journal
from rekey.protocol.propagate import Announce
from rekey.protocol.registry import SAFETY_S, is_current, is_over, refused_at
from rekey.protocol.rules import SOURCE, TARGET, Side
from rekey.protocol.sweeper import Company, Hopeless, Sweeper, Swept
from rekey.protocol.term import Term
from rekey.runner.client_barrier import POLL_S, Deadline
from rekey.runner.run import OPEN_S, WRITING_S, Run

T = TypeVar("T")

RUNNER = "runner"
"""Names the runner's intents, where those of clients have the client's id, which is hexadecimal."""
SWEEP_EVERY_S = 5.0
FRESH_S = 5.0
"""An intent older than this is not of a write that goes on as usual."""


class Announced:
    """A key whose replicas the runner is about to write (`rekey.protocol.propagate.Announced`)."""

    def __init__(self, journal: Journal, ids: list[EntityKey], clock: Clock, until: float) -> None:
        """Take the runner's journal, the intent, and until when it may write, in rising seconds."""
        self._journal, self._ids, self._clock, self._until = journal, ids, clock, until

    def check(self) -> None:
        """Raise Unavailable when that time is over."""
        if self._clock.rising() >= self._until:
            raise Unavailable(
                "the replicas of a row could not be written in time",
                code="TooSlow",
                hint="run the same command again, which goes on where it stopped",
            )

    async def end(self) -> None:
        """Remove the intent."""
        await self._journal.end(self._ids)


def announcing(journal: Journal, clock: Clock) -> Announce:
    """Return what announces the runner's own writes in the journal, as clients announce theirs."""

    async def announce(source_key: EntityKey) -> Announced:
        until = clock.rising() + WRITING_S
        ids = await journal.begin(RUNNER, 0, SOURCE, [source_key])
        return Announced(journal, ids, clock, until)

    return announce


async def company(run: Run) -> Company:
    """Return who may have something under way now.

    The usual time is as the clients themselves say, for intents of a version that did not say it.
    """
    clients = {client.client_id: client for client in await run.registry.list()}
    said = [client.longest_s for client in clients.values()]
    usual_s = max(said, default=LeaseSettings().longest_operation_s) + SAFETY_S
    unquiet = await Term(run.restricted, run.script_id).left(run.config.gates.margin_s) > 0
    now = ticks_of(await run.restricted.server_time())
    return Company(now, clients, usual_s, unquiet)


async def sweep_journal(
    run: Run, side: Side, sweeper: Sweeper | None = None, hopeless: Hopeless | None = None
) -> Swept:
    """Settle the intents whose time is over, once.

    Args:
        run: the migration.
        side: which side is the authority now.
        sweeper: one that knows what it has settled already.
        hopeless: see `Sweeper.sweep`.
    """
    return await (sweeper or run.sweeper).sweep(
        side,
        await company(run),
        concurrency=run.config.limits.concurrency,
        check=run.still_alone,
        hopeless=hopeless,
    )


async def while_sweeping(run: Run, side: Side, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` while the journal is swept at the same time; an error of the sweep ends both."""
    if run.is_delta:
        return await work
    over = asyncio.Event()
    working = asyncio.ensure_future(work)
    sweeping = asyncio.ensure_future(_keep_sweeping(run, side, over))
    try:
        await asyncio.wait((working, sweeping), return_when=asyncio.FIRST_COMPLETED)
        if sweeping.done():
            sweeping.result()
        result = await working
        over.set()  # what it is writing now is finished: nothing is left open by ending it
        await sweeping
        return result
    finally:
        await cancel((working, sweeping))


async def _keep_sweeping(run: Run, side: Side, over: asyncio.Event) -> None:
    sweeper = run.sweeper
    while not over.is_set():
        await sweep_journal(run, side, sweeper)
        await first_of(over, run.clock.sleep(SWEEP_EVERY_S))


async def settle_stale(run: Run, side: Side) -> Swept:
    """Sweep until no intent stands out by its age; return what the last sweep said, with all it settled.

    Before a freeze: an intent that a write left open becomes old enough while writes still go on. Ends when
    that must have happened; what is left then either fails, or is of writes that keep being left open.
    """
    deadline = Deadline(run.clock, max(OPEN_S, (await company(run)).usual_s) + FRESH_S)
    sweeper, settled = run.sweeper, 0
    while True:
        run.check()
        swept = await sweep_journal(run, side, sweeper)
        settled += swept.settled
        now = ticks_of(await run.restricted.server_time())
        fresh = swept.oldest_at is None or now - swept.oldest_at < FRESH_S * TICKS_PER_SECOND
        if fresh or deadline.over:
            return replace(swept, settled=settled)
        await run.clock.sleep(POLL_S)


async def heard_of_until(run: Run, behind: ControlRow | None = None) -> int | None:
    """Return until when clients that were given up may be heard of, in ticks of the service time: until the
    service refuses what they had signed. None where that is over, or none was given up."""
    if run.is_delta:
        return None
    now = ticks_of(await run.restricted.server_time())
    rows = [row for row in await run.registry.list() if is_over(row, now)]
    if behind is not None:  # only those that never acknowledged it
        rows = [row for row in rows if not is_current(row, behind.run_id, behind.epoch)]
    given_up = [refused_at(row) for row in rows]
    return max((at for at in given_up if at > now), default=None)


async def any_intent(run: Run) -> bool:
    """Tell whether the journal holds an intent."""
    async for intents in run.journal.scan():
        if intents:
            return True
    return False


async def drain(run: Run, side: Side, deadline: Deadline, hopeless: Hopeless | None = None) -> int:
    """Sweep until the journal holds nothing that is not settled; return how many intents were settled.

    Only when nobody adds to it any more does that come to an end. What is kept is settled once at least.

    Args:
        run: the migration.
        side: which side is the authority now.
        deadline: how long.
        hopeless: see `Sweeper.sweep`.

    Raises:
        Refused: intents were left when the limit was reached.
    """
    sweeper, settled = run.sweeper, 0
    while True:
        run.check()
        swept = await sweep_journal(run, side, sweeper, hopeless)
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
