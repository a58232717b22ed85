"""Who else may be writing: waiting for the application's clients when the control row moves, and for requests
that were left open; sweeping, draining and querying the journal.

Rules kept here (ADR 0019):

* Two clients are never two epochs apart: before a move every live client has acknowledged the present epoch,
  and after it nothing goes on before every live client has acknowledged the new one.
* A client is waited for until it has acknowledged or until it is over: its lease, its longest operation and a
  margin have passed, by the service's clock. The client's own clock is never asked.
* Waiting has a limit; beyond it the error names the clients and says what can be done about them.
* The only move that does not wait first is the one that leaves a freeze, back to the phase that it came from:
  the same rules hold on both sides of the freeze, so a client that has not seen it does no harm.
* Only intents whose time is over are settled: the write that a younger one announces may still be in flight,
  or late. That holds in a freeze too: a client that has acknowledged it has settled all its writes but those
  left open, and it is not known whether such a request is still in flight.
* The runner announces its writes to replicas as clients do, under intents of its own: a write that is cut
  off, or left open, is looked at again when it can take effect no more.
* A client that was given up without having ended in order may be heard of until the service refuses what it
  had signed. Its intents do not hold up a freeze, they are settled in it. A way back and `complete` compare
  everything as long as such a client may be heard of.
* The background sweep ends with the work that it runs next to, and its errors end that work.
* Whether a key is in flight is answered from a scan that began after the question: an older scan could miss
  the intent of a write that the caller saw half done.
* Capture "delta" has no clients: no client is waited for.
* A request that was sent and not answered takes effect within `[gates] margin`, or never. So nothing that
  relies on what the tables hold (a sweep, a move of the authority, a way back, dropping tables) begins while
  a request that was left open, or whose sender was cut off, is younger than the margin (`until_quiet`).
* The age of requests that this process left open is measured by its own clock, which only rises. The time
  until which earlier runners and workers may have sent requests is in the restricted store, by the service's
  clock (`rekey.protocol.term`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rekey.client.reading import LeaseSettings
from rekey.core.clock import TICKS_PER_SECOND, Clock, format_ticks, ticks_of
from rekey.core.concurrency import cancel, first_of
from rekey.errors import ServiceError, Unavailable
from rekey.model import EntityKey
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow
from rekey.protocol.journal import Journal
from rekey.protocol.propagate import Announce
from rekey.protocol.registry import ClientRow, is_current, is_over, over_at, refused_at, silent_at
from rekey.protocol.rules import SOURCE, TARGET, Side
from rekey.protocol.sweeper import Company, Hopeless, Sweeper, Swept
from rekey.protocol.term import Term
from rekey.runner.refusals import refusal
from rekey.runner.run import OPEN_S, WRITING_S, Run
from rekey.tables.answers import NOT_SENT

T = TypeVar("T")

POLL_S = 0.2
# One second, in ticks. The service's clock tells whole seconds, so a beat within the second that it told may
# be older than the answer.
UNTOLD = TICKS_PER_SECOND
# How long a gate waits for a client that has just been started, before it names the client.
GRACE_S = 3.0
_NAMED = 10
# Client id of the runner's own intents. The ids of clients are hexadecimal.
RUNNER = "runner"
SWEEP_EVERY_S = 5.0
_LOOK_S = 1.0
# An intent older than this is not of a write that goes as usual.
FRESH_S = 5.0


class Deadline:
    """A time limit, measured by the clock that only rises."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        """Begin the time limit now."""
        self._clock = clock
        self.seconds = seconds
        self.began = clock.rising()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the limit began."""
        return self._clock.rising() - self.began

    @property
    def left_s(self) -> float:
        """Seconds that are left of the limit."""
        return max(0.0, self.seconds - self.elapsed_s)

    @property
    def over(self) -> bool:
        """Whether the limit has passed."""
        return self.elapsed_s >= self.seconds


# --- waiting for clients -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients of one reading of the registry.

    Attributes:
        rows: all clients that have a row, those that are over included.
        now: ticks of the service's clock, read before the rows.
    """

    rows: Sequence[ClientRow]
    now: int

    @property
    def live(self) -> list[ClientRow]:
        """The clients that are not over: a request of theirs may still take effect."""
        return [row for row in self.rows if not is_over(row, self.now)]

    def behind(self, control: ControlRow) -> list[ClientRow]:
        """Return the live clients that have not acknowledged the control row's epoch."""
        return [row for row in self.live if not is_current(row, control.run_id, control.epoch)]

    def unheard(self, control: ControlRow, since: int) -> list[ClientRow]:
        """Return the live clients that are behind, or have not beaten since `since` (service's ticks)."""
        behind = self.behind(control)
        return behind + [row for row in self.live if row.beat_at < since and row not in behind]

    def closed_by_refusing(self) -> list[str]:
        """Return the reason that live clients refuse dual writes, as a list; empty when none does."""
        refusing = [row for row in self.live if row.refuses]
        said = "clients of the application were made with another declaration or other secrets"
        return [f"{said}: {named(refusing, self.now)}"] if refusing else []


def named(rows: Sequence[ClientRow], now: int) -> str:
    """Return a text that names clients, with the state of each. Holds no key."""
    listed = []
    for row in rows[:_NAMED]:
        said = [f"acknowledged epoch {row.epoch}"]
        if row.refuses:
            said.append(f"refuses with `{row.refuses}`")
        if now >= silent_at(row):
            said.append("silent")
        if row.in_flight:
            said.append(f"{row.in_flight} operations in flight")
        listed.append(f"{row.name} ({row.view} view, host {row.host}, pid {row.pid}; {', '.join(said)})")
    if len(rows) > _NAMED:
        listed.append(f"and {len(rows) - _NAMED} more")
    return "; ".join(listed)


async def look(run: Run) -> Clients:
    """Read the registry of clients."""
    now = ticks_of(await run.restricted.server_time())
    return Clients(await run.registry.list(), now)


async def move(run: Run, now: ControlPhase, then: ControlPhase) -> ControlRow:
    """Move the control row from phase `now` to `then`, waiting for every live client before and after it.

    Raises:
        Refused: not a legal move; or clients did not follow in time, before the move or after it.
        Moved, Ambiguous, Unavailable: see `ControlStore.move`.
    """
    await wait_for_present(run)
    after = await run.control.move(now, then)
    await wait_for_clients(run, after)
    return after


async def wait_for_present(run: Run) -> None:
    """Wait until every live client has acknowledged the present epoch. Raises Refused when that takes longer
    than `[gates] clients_timeout`."""
    if run.is_delta:
        return
    control = await run.control.read()
    if control is not None:
        await wait_for_clients(run, control)


async def wait_until_heard(run: Run, control: ControlRow) -> int:
    """Wait until every live client is current and has beaten after this call; return the number of live ones.

    For use before a freeze: clients that went silent are waited for while writes still go on.
    """
    since = ticks_of(await run.restricted.server_time()) + UNTOLD
    return await wait_for_clients(run, control, missing=lambda clients: clients.unheard(control, since))


async def wait_for_clients(
    run: Run,
    control: ControlRow,
    deadline: Deadline | None = None,
    missing: Callable[[Clients], list[ClientRow]] | None = None,
) -> int:
    """Wait until every live client has acknowledged the control row's epoch; return the number of live ones.

    Args:
        run: the migration.
        control: the control row as read or written last.
        deadline: the limit; by default `[gates] clients_timeout` from now.
        missing: returns the clients that are still waited for; by default those that are behind.

    Raises:
        Refused: the limit has passed; the error names the clients.
    """
    if run.is_delta:
        return 0
    deadline = deadline or Deadline(run.clock, run.config.gates.clients_timeout_s)
    with run.progress.waiting("clients", deadline.left_s) as wait:
        while True:
            run.check()
            clients = await look(run)
            waiting = clients.behind(control) if missing is None else missing(clients)
            if not waiting:
                return len(clients.live)
            if deadline.over:
                said = f"{_have_not(waiting)} followed to epoch {control.epoch} (`{control.phase}`)"
                said += f": {named(waiting, clients.now)}"
                longest = max(0, max(over_at(row) for row in waiting) - clients.now) / TICKS_PER_SECOND
                raise refusal("clients-behind", run=run, deadline=deadline, said=said, longest=longest)
            wait.look(named(waiting, clients.now))
            await run.clock.sleep(POLL_S)


def _have_not(rows: Sequence[ClientRow]) -> str:
    clients, have = ("client", "has") if len(rows) == 1 else ("clients", "have")
    return f"{len(rows)} {clients} of the application {have} not"


async def closed_by_clients(run: Run, control: ControlRow) -> list[str]:
    """Return the reasons for which clients keep the gate before cutover closed; empty when they do not.

    Clients that are behind get `GRACE_S` seconds to follow.
    """
    deadline = Deadline(run.clock, GRACE_S)
    with run.progress.waiting("clients", GRACE_S) as wait:
        while True:
            clients = await look(run)
            behind = clients.behind(control)
            if not behind or deadline.over:
                break
            wait.look(named(behind, clients.now))
            await run.clock.sleep(POLL_S)
    reasons = clients.closed_by_refusing()
    if behind:
        who = named(behind, clients.now)
        reasons.append(f"{_have_not(behind)} acknowledged epoch {control.epoch}: {who}")
    if not reasons and not clients.live and not run.options.writers_stopped:
        none = "no client of the application is registered"
        followed = "writes that do not go through one are not followed"
        reasons.append(f"{none}: {followed} (--writers-stopped confirms that there are none)")
    return reasons


async def forget_ended(run: Run) -> None:
    """Delete the rows of clients that have been over for long (`Registry.purge`)."""
    if run.is_delta:
        return
    try:
        await run.registry.purge(ticks_of(await run.restricted.server_time()))
    except ServiceError:
        # Nothing depends on these rows, and the phase's own work is done: the next command tries again.
        said = "rows of clients that ended could not be removed; the next command tries again"
        run.progress.note(said, "clients-not-purged")


async def heard_of_until(run: Run, behind: ControlRow | None = None) -> int | None:
    """Return when the service will refuse all requests that clients given up so far had signed.

    Until then such a client may be heard of.

    Args:
        run: the migration.
        behind: only clients that never acknowledged this control row count; None: all count.

    Returns:
        Ticks of the service's clock; None when that time is past, or no client was given up.
    """
    if run.is_delta:
        return None
    now = ticks_of(await run.restricted.server_time())
    given_up = [
        refused_at(row)
        for row in await run.registry.list()
        if is_over(row, now) and (behind is None or not is_current(row, behind.run_id, behind.epoch))
    ]
    return max((at for at in given_up if at > now), default=None)


# --- what was sent and not answered ------------------------------------------------------------------------


async def until_quiet(run: Run) -> None:
    """Wait until no request that was sent before can take effect any more; return at once if all were
    answered."""
    term, margin_s = Term(run.restricted, run.script_id), run.config.gates.margin_s
    theirs = await term.left(margin_s)
    seconds = max(theirs, open_s(run))
    with run.progress.waiting("unanswered requests, which may still take effect", seconds) as wait:
        if seconds:
            wait.tell()
        if theirs:
            await term.wait(margin_s, run.clock, run.check)
        while (left := open_s(run)) > 0:
            run.check()
            await run.clock.sleep(min(_LOOK_S, left))


async def quiet_in_s(run: Run) -> float:
    """Return for how many seconds a request that was sent before may still take effect; 0: none may."""
    return max(await Term(run.restricted, run.script_id).left(run.config.gates.margin_s), open_s(run))


async def unfrozen(run: Run) -> ControlRow | None:
    """Return the control row, out of a freeze that nobody works in; None: there is none. No move that
    was sent before can take effect afterwards.

    Raises:
        Moved: another runner moved it meanwhile.
        Ambiguous, Unavailable: the service failed.
    """
    row = await (run.control.fence() if await quiet_in_s(run) else run.control.read())
    if row is None or row.phase is not ControlPhase.FREEZE:
        return row
    back_to = row.came_from or ControlPhase.DUAL_WRITE
    row = await run.control.move(ControlPhase.FREEZE, back_to)
    told = f"{run.script_id}: left the freeze of a run that was cut off; back in `{back_to}`"
    run.progress.note(told, "freeze-left")
    return row


async def hand_over(run: Run) -> bool:
    """Extend the term in the restricted store if this process has left requests open, for the next runner.

    Returns:
        False when the service failed and the next runner will not know of them.
    """
    if not open_s(run):
        return True
    try:
        await Term(run.restricted, run.script_id).extend(await run.restricted.server_time())
    except ServiceError:
        return False
    return True


def open_s(run: Run) -> float:
    """Return for how many more seconds a request that this process left open may take effect; 0: none may."""
    opened = [at for at in (run.tables.last_open, run.restricted.last_open) if at is not None]
    return max(0.0, max(opened) + run.config.gates.margin_s - run.clock.rising()) if opened else 0.0


# --- the journal -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Announced:
    """A key whose replicas the runner is about to write (`rekey.protocol.propagate.Announced`).

    Attributes:
        journal: the journal.
        ids: the key of the runner's intent in the journal.
        clock, until: the time until which the runner may write, in seconds of `clock.rising()`.
    """

    journal: Journal
    ids: list[EntityKey]
    clock: Clock
    until: float

    def check(self) -> None:
        """Raise Unavailable when the time for writing is over."""
        if self.clock.rising() >= self.until:
            hint = "run the same command again, which goes on where it stopped"
            raise Unavailable("the replicas of a row could not be written in time", code=NOT_SENT, hint=hint)

    async def end(self) -> None:
        """Remove the intent."""
        await self.journal.end(self.ids)


def announcing(journal: Journal, clock: Clock) -> Announce:
    """Return a function that announces the runner's own writes in the journal, as clients announce theirs."""

    async def announce(source_key: EntityKey) -> Announced:
        until = clock.rising() + WRITING_S
        return Announced(journal, await journal.begin(RUNNER, 0, SOURCE, [source_key]), clock, until)

    return announce


async def company(run: Run) -> Company:
    """Return the clients and other writers that may have a request in flight now, for a sweep of the journal.

    Intents of a version that did not record their own time count as in flight for the longest operation of
    the registered clients and a margin.
    """
    rows = await run.registry.list()
    unquiet = await Term(run.restricted, run.script_id).left(run.config.gates.margin_s) > 0
    now = ticks_of(await run.restricted.server_time())
    return Company.of(rows, now, usual_s=LeaseSettings().longest_operation_s, unquiet=unquiet)


async def sweep_journal(
    run: Run, side: Side, sweeper: Sweeper | None = None, hopeless: Hopeless | None = None
) -> Swept:
    """Sweep the journal once: settle the intents whose time is over.

    Args:
        run: the migration.
        side: which side is the authority now.
        sweeper: the sweeper of earlier sweeps, which knows when it settled the intents that are kept; None:
            a new one.
        hopeless: see `Sweeper.sweep`.
    """
    return await (sweeper or run.sweeper).sweep(
        side,
        await company(run),
        concurrency=run.config.limits.concurrency,
        check=run.still_alone,
        hopeless=hopeless,
    )


async def settle_again(run: Run, *, side: Side) -> int:
    """Settle the intents whose time is over and return how many were removed; 0 in capture "delta"."""
    return 0 if run.is_delta else (await sweep_journal(run, side)).settled


async def while_sweeping(run: Run, side: Side, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` while the journal is swept in the background; an error of the sweep ends both."""
    if run.is_delta:
        return await work
    over = asyncio.Event()

    async def keep_sweeping() -> None:
        sweeper = run.sweeper
        while not over.is_set():
            await sweep_journal(run, side, sweeper)
            await first_of(over, run.clock.sleep(SWEEP_EVERY_S))

    working = asyncio.ensure_future(work)
    sweeping = asyncio.ensure_future(keep_sweeping())
    try:
        await asyncio.wait((working, sweeping), return_when=asyncio.FIRST_COMPLETED)
        if sweeping.done():
            sweeping.result()
        result = await working
        over.set()  # the present sweep is finished, not cancelled: ending it leaves no write open
        await sweeping
        return result
    finally:
        await cancel((working, sweeping))


async def settle_stale(run: Run, side: Side) -> Swept:
    """Sweep until no intent that is left is older than `FRESH_S`; return the last sweep's result, with the
    number of intents that all these sweeps removed.

    For use before a freeze: an intent of a write with an open outcome becomes old enough to be settled while
    writes still go on. Ends when that must have happened; the old intents that are left then cannot be
    settled, or are of writes that are left open again and again.
    """
    deadline = Deadline(run.clock, max(OPEN_S, (await company(run)).usual_s) + FRESH_S)
    sweeper, settled = run.sweeper, 0
    with run.progress.waiting("writes of the application that were left open", deadline.left_s) as wait:
        while True:
            run.check()
            swept = await sweep_journal(run, side, sweeper)
            settled += swept.settled
            now = ticks_of(await run.restricted.server_time())
            fresh = swept.oldest_at is None or now - swept.oldest_at < FRESH_S * TICKS_PER_SECOND
            if fresh or deadline.over:
                return replace(swept, settled=settled)
            wait.look()
            await run.clock.sleep(POLL_S)


async def any_intent(run: Run) -> bool:
    """Tell whether the journal holds an intent, settled or not; no sealed key is opened."""
    async for ages in run.journal.ages():
        if ages:
            return True
    return False


async def drain(run: Run, side: Side, deadline: Deadline, hopeless: Hopeless | None = None) -> int:
    """Sweep until the journal holds no unsettled intent; return how many intents were removed.

    Ends only when no client adds intents any more. Kept intents were settled at least once.

    Args:
        run: the migration.
        side: which side is the authority now.
        deadline: the limit.
        hopeless: see `Sweeper.sweep`.

    Raises:
        Refused: intents that are not settled were left when the limit was reached.
    """
    sweeper, settled = run.sweeper, 0
    with run.progress.waiting("writes that are under way", deadline.left_s) as wait:
        while True:
            run.check()
            swept = await sweep_journal(run, side, sweeper, hopeless)
            settled += swept.settled
            if not swept.left:
                return settled
            if deadline.over:
                oldest = "" if swept.oldest_at is None else f", the oldest of {format_ticks(swept.oldest_at)}"
                said = f"after {deadline.seconds:g} s the journal of {run.script_id} still holds"
                said += f" {swept.left} intents{oldest}"
                if swept.failed:
                    raise refusal("journal-not-settled", said=said, swept=swept, hint=unsettled_hint(run))
                raise refusal("journal-not-drained", said=said)
            wait.look(f"{swept.left:,} writes of the application that are under way")
            await run.clock.sleep(POLL_S)


def unsettled_hint(run: Run) -> str:
    """Return the hint for intents that cannot be settled."""
    rows = "the rows that the mapping refuses or that collide; fix them, then run the same command again"
    return f"`rekey verify {run.script_id} --mode full` names {rows}"


class InFlight:
    """Tells whether the journal announces a write for a source key. Concurrent questions share one scan."""

    def __init__(self, run: Run) -> None:
        """Create it for a migration; the journal is not read yet."""
        self._run = run
        self._next: asyncio.Task[tuple[set[EntityKey], set[EntityKey]]] | None = None

    async def __call__(self, source_key: EntityKey) -> bool:
        """Tell whether the journal holds an intent for `source_key` or for a main target key of it."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._scan())
        sources, targets = await self._next
        if source_key in sources or not targets:
            return source_key in sources
        forward = await self._run.mapping.forward(source_key)
        return forward is not None and any(one.table == 0 and one.key in targets for one in forward.targets)

    async def _scan(self) -> tuple[set[EntityKey], set[EntityKey]]:
        """Return the source keys and main target keys that the journal announces a write for."""
        await asyncio.sleep(0)  # questions of the same turn of the event loop share the scan
        self._next = None  # a later question needs a scan that begins later
        sources, targets = set[EntityKey](), set[EntityKey]()
        async for intents in self._run.journal.scan():
            for intent in intents:
                (targets if intent.side == TARGET else sources).add(intent.key)
        return sources, targets
