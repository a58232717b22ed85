"""What the runner does about other writers (ADR 0019): wait for the application's clients around moves of the
control row, wait for unanswered requests, and sweep, drain and query the journal. README.md of this folder
has the rules that the phases rely on."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rekey.client.reading import LeaseSettings
from rekey.core.clock import TICKS_PER_SECOND, Clock, format_ticks, ticks_of
from rekey.core.concurrency import cancel, first_of, for_each
from rekey.declaration.migration import Declared
from rekey.errors import ServiceError, Unavailable
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.model import EntityKey
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow
from rekey.protocol.journal import IntentRef, Journal
from rekey.protocol.other_migrations import OtherMigration, add_other
from rekey.protocol.propagate import Announce
from rekey.protocol.registry import ClientRow, Registry, is_current, is_over, over_at, refused_at, silent_at
from rekey.protocol.rules import SOURCE, TARGET, Side, View
from rekey.protocol.sweeper import Company, Hopeless, Sweeper, Swept
from rekey.protocol.term import Term
from rekey.runner.refusals import refusal
from rekey.runner.run import OPEN_S, WRITING_S, Run
from rekey.status.notes import note
from rekey.status.reasons import reason
from rekey.tables.answers import NOT_SENT

T = TypeVar("T")

POLL_S = 0.2
# One second, in ticks: the service's clock shows whole seconds, so a heartbeat within the second that it
# showed may be older than the answer.
CLOCK_RESOLUTION = TICKS_PER_SECOND
# How long a gate waits for a client that has just started, before it names the client.
GRACE_S = 3.0
_NAMED = 10
# Client id of the runner's own intents. The ids of clients are hexadecimal.
RUNNER = "runner"
SWEEP_EVERY_S = 5.0
_POLL_S = 1.0
# An intent older than this does not belong to a write in normal progress.
FRESH_S = 5.0


class Deadline:
    """A time limit, on the monotonic clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds
        self.began = clock.monotonic()

    @property
    def elapsed_s(self) -> float:
        return self._clock.monotonic() - self.began

    @property
    def left_s(self) -> float:
        return max(0.0, self.seconds - self.elapsed_s)

    @property
    def over(self) -> bool:
        return self.elapsed_s >= self.seconds


# --- waiting for clients -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients of one reading of the registry, those that are over included. `now`: ticks of the service's
    clock, read before the rows."""

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
        """Return the live clients that are behind or sent no heartbeat since `since` (service's ticks)."""
        behind = self.behind(control)
        return behind + [row for row in self.live if row.beat_at < since and row not in behind]

    def closed_by_refusing(self) -> list[str]:
        """Return, as a list, the reason that live clients refuse dual writes; empty when none does."""
        refusing = [row for row in self.live if row.refuses]
        return [reason("clients-refuse", clients=named(refusing, self.now))] if refusing else []


def named(rows: Sequence[ClientRow], now: int) -> str:
    """Return a text that names clients with the state of each. It holds no key."""
    listed = []
    for row in rows[:_NAMED]:
        traits = [f"acknowledged epoch {row.epoch}"]
        if row.refuses:
            traits.append(f"refuses with `{row.refuses}`")
        if now >= silent_at(row):
            traits.append("silent")
        if row.in_flight:
            traits.append(f"{row.in_flight} operations in flight")
        listed.append(f"{row.name} ({row.view} view, host {row.host}, pid {row.pid}; {', '.join(traits)})")
    if len(rows) > _NAMED:
        listed.append(f"and {len(rows) - _NAMED} more")
    return "; ".join(listed)


def _over_in_s(rows: Sequence[ClientRow], now: int) -> float:
    """Return in how many seconds the last of some clients is over, if they have ended."""
    return max(0, max(over_at(row) for row in rows) - now) / TICKS_PER_SECOND


async def read_clients(run: Run) -> Clients:
    """Read the registry of clients."""
    now = ticks_of(await run.restricted.server_time())
    return Clients(await run.registry.list(), now)


async def move(run: Run, now: ControlPhase, then: ControlPhase) -> ControlRow:
    """Move the control row, waiting for every live client before and after the move.

    Raises:
        Refused: not a legal move; or clients did not follow in time, before the move or after it.
        Moved, Ambiguous, Unavailable: see `ControlStore.move`.
    """
    await wait_for_present(run)
    after = await run.control.move(now, then)
    await wait_for_clients(run, after)
    return after


async def wait_for_present(run: Run) -> None:
    """Wait until all live clients have acknowledged the present epoch. Raises Refused: see
    `wait_for_clients`."""
    if run.is_delta:
        return
    control = await run.control.read()
    if control is not None:
        await wait_for_clients(run, control)


async def wait_until_heard(run: Run, control: ControlRow) -> int:
    """Wait until every live client is current and has sent a heartbeat after this call; return how many are
    live.

    For use before a freeze, so that silent clients are waited for while writes still go on.
    """
    since = ticks_of(await run.restricted.server_time()) + CLOCK_RESOLUTION
    return await wait_for_clients(run, control, missing=lambda clients: clients.unheard(control, since))


async def wait_for_clients(
    run: Run,
    control: ControlRow,
    deadline: Deadline | None = None,
    missing: Callable[[Clients], list[ClientRow]] | None = None,
) -> int:
    """Wait until every live client has acknowledged the control row's epoch; return how many are live.

    A client counts until its lease, its longest operation and a margin have passed by the service's clock;
    the client's own clock is never asked.

    Args:
        run: the migration.
        control: the control row as read or written last.
        deadline: the limit; by default `[gates] clients_timeout` from now.
        missing: returns the clients still waited for; by default those that are behind.

    Raises:
        Refused: the limit has passed; the error names the clients.
    """
    if run.is_delta:
        return 0
    deadline = deadline or Deadline(run.clock, run.config.gates.clients_timeout_s)
    with run.progress.waiting("clients", deadline.left_s) as wait:
        while True:
            run.check()
            clients = await read_clients(run)
            waiting = clients.behind(control) if missing is None else missing(clients)
            if not waiting:
                return len(clients.live)
            if deadline.over:
                code = "client-not-followed" if len(waiting) == 1 else "clients-not-followed"
                who = named(waiting, clients.now)
                text = reason(code, number=len(waiting), control=control, clients=who)
                longest = _over_in_s(waiting, clients.now)
                raise refusal("clients-behind", run=run, deadline=deadline, said=text, longest=longest)
            wait.update(named(waiting, clients.now))
            await run.clock.sleep(POLL_S)


async def closed_by_clients(run: Run, control: ControlRow) -> list[str]:
    """Return why clients keep the gate before cutover closed; those behind get `GRACE_S` seconds."""
    deadline = Deadline(run.clock, GRACE_S)
    with run.progress.waiting("clients", GRACE_S) as wait:
        while True:
            clients = await read_clients(run)
            behind = clients.behind(control)
            if not behind or deadline.over:
                break
            wait.update(named(behind, clients.now))
            await run.clock.sleep(POLL_S)
    reasons = clients.closed_by_refusing()
    if behind:
        code, who = "client-behind" if len(behind) == 1 else "clients-behind", named(behind, clients.now)
        reasons.append(reason(code, number=len(behind), control=control, clients=who))
    if not reasons and not clients.live and not run.options.writers_stopped:
        reasons.append(reason("no-client"))
    return reasons


async def closed_by_others(run: Run) -> list[str]:
    """Return a reason for each other migration with live clients that write rows of this one to the source
    alone: they move other parts of it, or the same rows, or write it as the new table that theirs has
    filled."""
    filled, same, beside = (
        {declared.script_id for declared in others}
        for others in (run.builds_on, run.of_same_rows, run.beside)
    )
    return [
        reason(
            "filled-before"
            if script_id in filled
            else "same-rows"
            if script_id in same
            else "other-part"
            if script_id in beside
            else "other-part-elsewhere",
            script=script_id,
            own=run.script_id,
            source=run.source.name,
            clients=named(clients.live, clients.now),
            longest=_over_in_s(clients.live, clients.now),
        )
        for script_id, clients in (await _unfollowing(run)).items()
        if clients.live
    ]


async def _unfollowing(run: Run) -> dict[str, Clients]:
    """Return the clients that write the source and do not follow this migration, by the ids of theirs: those
    of other parts of it, of the project or with a control row, of its same rows, and those that have filled
    it."""
    views = defaultdict[str, set[str]](set)
    for declared in run.builds_on:
        views[declared.script_id].add(View.NEW)
    for declared in run.of_same_rows:
        theirs = await run.control_of(declared)
        if theirs is None or theirs.ended_at is None:  # after cutover those of the new view write it, too
            views[declared.script_id] |= {View.OLD, View.NEW}
    if run.declared.migration.where is not None:
        source, endpoint = run.declared.migration.source, run.config.tables.endpoint
        others = {part.script_id for part in await run.control.parts() if part.is_of(source, endpoint)}
        others |= {declared.script_id for declared in run.beside}
        for script_id in others - {run.script_id}:
            views[script_id].add(View.OLD)
    now = ticks_of(await run.restricted.server_time()) if views else 0
    clients = {}
    for script_id, written in sorted(views.items()):
        rows = await Registry(run.restricted, script_id).list()
        unfollowing = [row for row in rows if row.view in written and not row.follows(run.script_id)]
        clients[script_id] = Clients(unfollowing, now)
    return clients


async def unannounced_until(run: Run, control: ControlRow | None) -> int | None:
    """Return when (service's ticks) the service will refuse all writes of the source that clients given up so
    far had signed and that no intent announces; None: when no such write can arrive. `control`: those of the
    migration's clients that never acknowledged it have none."""
    own = await heard_of_until(run, control)
    others = {} if run.is_delta else await _unfollowing(run)
    given_up = [
        refused_at(row)
        for clients in others.values()
        for row in clients.rows
        if is_over(row, clients.now) and refused_at(row) > clients.now
    ]
    return max([*given_up, *([] if own is None else [own])], default=None)


async def announce_to_others(run: Run, control: ControlRow) -> None:
    """Let clients of migrations that filled the source, or that have the same one, know of this migration:
    they do not follow it, and refuse to write from the move to `dual_write` on. Gates find those that read
    before the move. `control`: its control row."""
    capture = run.declared.migration.capture

    async def announce(to: tuple[Declared, bool]) -> None:
        declared, is_next = to
        own = OtherMigration(run.script_id, control.group, capture, is_next, control.run_id)
        await add_other(run.restricted, declared.script_id, own)

    others = [(declared, False) for declared in run.of_same_rows]
    others += [(declared, True) for declared in run.builds_on]
    await for_each(others, announce, limit=run.config.limits.concurrency)


async def forget_ended(run: Run) -> None:
    """Delete the rows of clients that have been over for long (`Registry.purge`)."""
    if run.is_delta:
        return
    try:
        await run.registry.purge(ticks_of(await run.restricted.server_time()))
    except ServiceError:
        # Nothing depends on these rows, and the phase's own work is done: the next command tries again.
        note(run.progress, "clients-not-purged")


async def heard_of_until(run: Run, behind: ControlRow | None = None) -> int | None:
    """Return when (service's ticks) the service will refuse all requests that clients given up so far had
    signed; None when no such request can arrive.

    A client that was given up without a clean shutdown may still send one until then. `behind`: count only
    clients that never acknowledged this control row.
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
    """Wait until no request sent before can take effect; return at once if all were answered."""
    term, margin_s = Term(run.restricted, run.script_id), run.config.gates.margin_s
    # Earlier runners and workers are covered by the term in the restricted store (service's clock), this
    # process by its own monotonic clock.
    theirs = await term.left(margin_s)
    seconds = max(theirs, open_s(run))
    with run.progress.waiting("unanswered requests, which may still take effect", seconds) as wait:
        if seconds:
            wait.report()
        if theirs:
            await term.wait(margin_s, run.clock, run.check)
        while (left := open_s(run)) > 0:
            run.check()
            await run.clock.sleep(min(_POLL_S, left))


async def quiet_in_s(run: Run) -> float:
    """Return for how many seconds a request sent before may still take effect; 0: none may."""
    return max(await Term(run.restricted, run.script_id).left(run.config.gates.margin_s), open_s(run))


async def unfrozen(run: Run) -> ControlRow | None:
    """Return the control row after leaving a freeze that no run works in; None if there is no control row. No
    move sent before can take effect afterwards.

    Raises:
        Moved: another runner moved it meanwhile.
        Ambiguous, Unavailable: the service failed.
    """
    row = await (run.control.fence() if await quiet_in_s(run) else run.control.read())
    if row is None or row.phase is not ControlPhase.FREEZE:
        return row
    back_to = row.unfrozen
    # Without waiting for clients first, unlike `move`: the same rules hold on both sides of the freeze, so a
    # client that has not seen it does no harm.
    row = await run.control.move(ControlPhase.FREEZE, back_to)
    note(run.progress, "freeze-left", {"script": run.script_id, "phase": back_to})
    return row


async def hand_over(run: Run) -> bool:
    """Extend the term in the restricted store if this process left requests unanswered; return False if the
    service failed, so that the next runner will not know of them."""
    if not open_s(run):
        return True
    try:
        await Term(run.restricted, run.script_id).extend(await run.restricted.server_time())
    except ServiceError:
        return False
    return True


def open_s(run: Run) -> float:
    """Return for how many more seconds an unanswered request of this process may take effect; 0: none."""
    opened = [at for at in (run.tables.last_open, run.restricted.last_open) if at is not None]
    return max(0.0, max(opened) + run.config.gates.margin_s - run.clock.monotonic()) if opened else 0.0


# --- the journal -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Announced:
    """A key whose replicas the runner is about to write (`rekey.protocol.propagate.Announced`). `until`:
    seconds of `clock.monotonic()` after which the runner may not write."""

    journal: Journal
    intents: list[IntentRef]
    clock: Clock
    until: float

    def check(self) -> None:
        """Raise Unavailable when the time for writing is over."""
        if self.clock.monotonic() >= self.until:
            hint = "run the same command again, which goes on where it stopped"
            raise Unavailable("the replicas of a row could not be written in time", code=NOT_SENT, hint=hint)

    async def end(self) -> None:
        await self.journal.end(self.intents)


def announcing(journal: Journal, clock: Clock) -> Announce:
    """Return a function that announces the runner's own writes in the journal, as clients announce theirs: a
    write that is cut off or stays unanswered is settled when it can take effect no more."""

    async def announce(source_key: EntityKey) -> Announced:
        until = clock.monotonic() + WRITING_S
        return Announced(journal, await journal.begin(RUNNER, 0, SOURCE, [source_key]), clock, until)

    return announce


async def company(run: Run) -> Company:
    """Return the clients and other writers that may have a request in flight, for a journal sweep."""
    rows = await run.registry.list()
    others_in_flight = await Term(run.restricted, run.script_id).left(run.config.gates.margin_s) > 0
    now = ticks_of(await run.restricted.server_time())
    # Intents of a version that did not record their own duration count as in flight for `usual_s`.
    return Company.of(
        rows, now, usual_s=LeaseSettings().longest_operation_s, others_in_flight=others_in_flight
    )


async def sweep_journal(
    run: Run, side: Side, sweeper: Sweeper | None = None, hopeless: Hopeless | None = None
) -> Swept:
    """Sweep the journal once: settle the intents whose time is over. Younger ones stay, also in a freeze: it
    is not known whether their requests are still in flight.

    Args:
        run: the migration.
        side: which side is the authority now.
        sweeper: that of earlier sweeps, which knows when it settled the intents that are kept; None: a new
            one.
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
        over.set()  # the present sweep is finished, not cancelled, so that no write is left unanswered
        await sweeping
        return result
    finally:
        await cancel((working, sweeping))


async def settle_stale(run: Run, side: Side) -> Swept:
    """Sweep until no remaining intent is older than `FRESH_S`; return the last sweep's result, with the
    intents that all sweeps removed.

    For use before a freeze: intents of writes with an unknown outcome become old enough to be settled while
    writes still go on. Old intents that remain at the limit cannot be settled, or new ones keep coming.
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
            wait.update()
            await run.clock.sleep(POLL_S)


async def closed_by_intents(run: Run) -> list[str]:
    """Settle stale intents, the target being the authority; return why those that cannot be close a gate."""
    swept = await settle_stale(run, TARGET)
    hint = reason("fix-rows", script=run.script_id)
    return [reason("intents-fail-named", number=swept.failed, hint=hint)] if swept.failed else []


async def any_intent(run: Run, declared: Declared | None = None) -> bool:
    """Tell whether the journal holds an intent, settled or not, of a migration of the project (None: of the
    run's own); no sealed key is opened."""
    script_id = run.script_id if declared is None else declared.script_id
    async for ages in Journal(run.restricted.table(JOURNAL_TABLE), script_id).ages():
        if ages:
            return True
    return False


async def drain(run: Run, side: Side, deadline: Deadline, hopeless: Hopeless | None = None) -> int:
    """Sweep until the journal holds no unsettled intent; return how many intents were removed.

    Ends only once clients add no intents. Arguments as of `sweep_journal`; kept intents were settled at least
    once.

    Raises:
        Refused: unsettled intents were left at the limit.
    """
    sweeper, settled = run.sweeper, 0
    with run.progress.waiting("writes in flight", deadline.left_s) as wait:
        while True:
            run.check()
            swept = await sweep_journal(run, side, sweeper, hopeless)
            settled += swept.settled
            if not swept.left:
                return settled
            if deadline.over:
                oldest = "" if swept.oldest_at is None else f", the oldest of {format_ticks(swept.oldest_at)}"
                text = f"after {deadline.seconds:g} s the journal of {run.script_id} still holds"
                text += f" {swept.left} intents{oldest}"
                if swept.failed:
                    hint = reason("fix-rows", script=run.script_id)
                    raise refusal("journal-not-settled", said=text, swept=swept, hint=hint)
                raise refusal("journal-not-drained", said=text)
            wait.update(f"{swept.left:,} writes of the application in flight")
            await run.clock.sleep(POLL_S)


class InFlight:
    """Tells whether the journal announces a write for a source key. Concurrent calls share one scan."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._next: asyncio.Task[tuple[set[EntityKey], set[EntityKey]]] | None = None

    async def __call__(self, source_key: EntityKey) -> bool:
        """Tell whether the journal holds an intent for `source_key` or for its main target key."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._scan())
        sources, targets = await self._next
        if source_key in sources or not targets:
            return source_key in sources
        forward = await self._run.mapping.forward(source_key)
        return forward is not None and any(
            target.table == 0 and target.key in targets for target in forward.targets
        )

    async def _scan(self) -> tuple[set[EntityKey], set[EntityKey]]:
        await asyncio.sleep(0)  # calls of the same turn of the event loop share the scan
        # A later call needs a scan that begins later: an older one could miss the intent of a write that the
        # caller saw half done.
        self._next = None
        return await announced_keys(self._run)


async def announced_keys(run: Run) -> tuple[set[EntityKey], set[EntityKey]]:
    """Return the source keys and the main target keys for which the journal announces a write."""
    sources, targets = set[EntityKey](), set[EntityKey]()
    async for intents in run.journal.scan():
        for intent in intents:
            (targets if intent.side == TARGET else sources).add(intent.key)
    return sources, targets
