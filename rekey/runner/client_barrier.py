"""Moving the control row together with the clients of the application.

Rules kept here (ADR 0019):

* Two clients are never two epochs apart: before a move every live client has acknowledged the present epoch,
  and after it nothing goes on before every live client has acknowledged the new one.
* A client is waited for until it has acknowledged or until it is over: its lease, its longest operation and a
  margin past, by the service's clock. Its own clock is never asked.
* Waiting has a limit; beyond it the clients are named, with what can be done about them.
* The only move that does not wait first is the way out of a freeze, back to where it came from: on both sides
  of the freeze the same rules hold, so nobody is wronged by a client that has not seen it (ADR 0019).
* Capture "delta" has no clients: nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rekey.core.clock import TICKS_PER_SECOND, Clock, ticks_of
from rekey.errors import Refused, ServiceError
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow
from rekey.protocol.registry import ClientRow, is_current, is_over, over_at, silent_at
from rekey.runner.run import Run

POLL_S = 0.2
NOTE_AFTER_S = 2.0
"""Who is waited for is said once waiting takes longer than this."""
UNTOLD = TICKS_PER_SECOND
"""The service tells whole seconds: a beat of the second that it tells may be older than the question."""
GRACE_S = 3.0
"""What a gate allows a client that has just been started, before it names it."""
_NAMED = 10


class Deadline:
    """A limit to how long something may take, by what only rises."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        """Begin now."""
        self._clock = clock
        self.seconds = seconds
        self.began = clock.rising()

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return self._clock.rising() - self.began

    @property
    def over(self) -> bool:
        """Whether the limit has passed."""
        return self.elapsed_s >= self.seconds


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients that were found, and when.

    Attributes:
        rows: all that have a row.
        now: ticks of the service's clock, read before the rows were.
    """

    rows: Sequence[ClientRow]
    now: int

    @property
    def live(self) -> list[ClientRow]:
        """Those of which something can still take effect."""
        return [row for row in self.rows if not is_over(row, self.now)]

    def behind(self, control: ControlRow) -> list[ClientRow]:
        """Live clients that have not acknowledged the control row's epoch."""
        return [row for row in self.live if not is_current(row, control.run_id, control.epoch)]

    def unheard(self, control: ControlRow, since: int) -> list[ClientRow]:
        """Live clients that are behind, or have given no sign since a moment of the service's clock."""
        behind = self.behind(control)
        return behind + [row for row in self.live if row.beat_at < since and row not in behind]


def named(rows: Sequence[ClientRow], now: int) -> str:
    """Return who these clients are and what is known of them. Holds no key."""
    listed = [_named(row, now) for row in rows[:_NAMED]]
    more = [f"and {len(rows) - _NAMED} more"] if len(rows) > _NAMED else []
    return "; ".join(listed + more)


def _named(row: ClientRow, now: int) -> str:
    said = [f"acknowledged epoch {row.epoch}"]
    if row.refuses:
        said.append(f"refuses with `{row.refuses}`")
    if now >= silent_at(row):
        said.append("silent")
    if row.in_flight:
        said.append(f"{row.in_flight} operations under way")
    return f"{row.name} ({row.view} view, host {row.host}, pid {row.pid}; {', '.join(said)})"


async def look(run: Run) -> Clients:
    """Read the registry."""
    now = ticks_of(await run.restricted.server_time())
    return Clients(await run.registry.list(), now)


async def move(run: Run, now: ControlPhase, then: ControlPhase) -> ControlRow:
    """Move the control row, with every live client.

    Raises:
        Refused: not a legal move; or clients did not follow in time, before the move or after it.
        Moved, Ambiguous, Unavailable: see `ControlStore.move`.
    """
    await wait_for_present(run)
    after = await run.control.move(now, then)
    await wait_for_clients(run, after)
    return after


async def wait_for_present(run: Run) -> None:
    """Wait until every live client has acknowledged the present epoch. Raises Refused over the limit."""
    if run.is_delta:
        return
    control = await run.control.read()
    if control is not None:
        await wait_for_clients(run, control)


async def wait_for_clients(run: Run, control: ControlRow, deadline: Deadline | None = None) -> int:
    """Wait until every live client has acknowledged the control row's epoch; return how many live ones are.

    Args:
        run: the migration.
        control: the row as it stands.
        deadline: how long; by default `[gates] clients_timeout` from now.

    Raises:
        Refused: over the limit; names the clients.
    """
    return await _wait(run, control, deadline, lambda clients: clients.behind(control))


async def wait_until_heard(run: Run, control: ControlRow) -> int:
    """Wait until every live client is current and has given a sign since now; return how many live ones are.

    Before a freeze: whoever has gone silent is waited for while writes still go on.
    """
    since = ticks_of(await run.restricted.server_time()) + UNTOLD
    return await _wait(run, control, None, lambda clients: clients.unheard(control, since))


async def _wait(
    run: Run,
    control: ControlRow,
    deadline: Deadline | None,
    missing: Callable[[Clients], list[ClientRow]],
) -> int:
    if run.is_delta:
        return 0
    deadline = deadline or Deadline(run.clock, run.config.gates.clients_timeout_s)
    noted = False
    while True:
        run.check()
        clients = await look(run)
        waiting = missing(clients)
        if not waiting:
            return len(clients.live)
        if deadline.over:
            raise not_followed(run, control, waiting, clients.now, deadline.seconds)
        if not noted and deadline.elapsed_s >= NOTE_AFTER_S:
            run.progress.note(f"waiting for {named(waiting, clients.now)}")
            noted = True
        await run.clock.sleep(POLL_S)


def not_followed(
    run: Run, control: ControlRow, waiting: Sequence[ClientRow], now: int, seconds: float
) -> Refused:
    """Return the error that names the clients that did not follow."""
    longest = max(0, max(over_at(row) for row in waiting) - now) / TICKS_PER_SECOND
    return Refused(
        f"after {seconds:g} s {_clients(len(waiting))} not followed to epoch {control.epoch}"
        f" (`{control.phase}`): {named(waiting, now)}",
        kept="everything; no write is lost by it",
        hint="mend or end these processes; one that has ended is over by itself, here in"
        f" {longest:.0f} s at most. Then run the same command again; `rekey status {run.script_id}` shows"
        " all clients",
    )


def _clients(number: int) -> str:
    return "1 client of the application has" if number == 1 else f"{number} clients of the application have"


async def closed_by_refusing(run: Run) -> list[str]:
    """Return which live clients could not go on with the migration; empty when all can."""
    return _refusing(await look(run))


def _refusing(clients: Clients) -> list[str]:
    refusing = [row for row in clients.live if row.refuses]
    if not refusing:
        return []
    who = named(refusing, clients.now)
    return [f"clients of the application were made with another declaration or other secrets: {who}"]


async def closed_by_clients(run: Run, control: ControlRow) -> list[str]:
    """Return why the clients keep the gate before cutover closed; empty when they do not."""
    deadline = Deadline(run.clock, GRACE_S)
    while True:
        clients = await look(run)
        behind = clients.behind(control)
        if not behind or deadline.over:
            break
        await run.clock.sleep(POLL_S)
    reasons = _refusing(clients)
    if behind:
        reasons.append(
            f"{_clients(len(behind))} not acknowledged epoch {control.epoch}: {named(behind, clients.now)}"
        )
    if reasons:
        return reasons
    if not clients.live and not run.options.writers_stopped:
        reasons.append(
            "no client of the application is registered: whoever writes without one is not followed"
            " (--writers-stopped says that nobody writes)"
        )
    return reasons


async def closed_by_old_view(run: Run) -> list[str]:
    """Return why clients of the old view keep the gate before `complete` closed; empty when there is none."""
    clients = await look(run)
    old = [row for row in clients.live if row.view == "old"]
    if not old:
        return []
    return [f"clients still use the old view, which `complete` ends: {named(old, clients.now)}"]


async def forget_ended(run: Run) -> None:
    """Delete the rows of clients that have been over for long; they are of no interest any more."""
    if run.is_delta:
        return
    try:
        await run.registry.purge(ticks_of(await run.restricted.server_time()))
    except ServiceError:
        # Nothing depends on it, and what it would end has been done: the next command tries again.
        run.progress.note("rows of clients that ended could not be removed; the next command tries again")
