"""The lease of a client: for how long it trusts what it read, and when it acknowledges a newer epoch.

Rules kept here (ADR 0018):

* A client writes its own row first (the beat) and reads the control row after that. So a runner that moved
  the control row and then lists the clients either finds this client's row, or this client reads the move.
* What was read is trusted until `lease_s` after the *beginning* of the beat before it, by this machine's
  monotonic clock. The runner waits from the row's Timestamp on, by the service's clock. No two clocks are
  compared; a beat without a reading after it, or whose answer was lost, extends nothing.
* An operation that begins while the lease is trusted has taken effect `longest_operation_s` later, or never
  does: the writer bounds operations and background work alike by that. So it is known from when on nothing of
  a client can take effect any more.
* A process may be suspended at any step for longer than that, and its client be given up. So whether it may
  write is checked when a request is sent, and an operation that ends after its time looks at the control row
  again.
* An operation runs from beginning to end under one permit; work that goes on after the caller has its answer
  keeps that permit in use.
* Readings are numbered (`Permit.number`): one more with each new epoch or run. The epoch alone would not do:
  another run counts epochs from 1 again.
* A newer epoch is acknowledged when no operation and no background work of an older one is in flight, and
  `settle` has ended. New operations use the newest epoch at once: two epochs in flight in one client are no
  worse than two clients that are one epoch apart.
* A write without a journal (no replica follows it yet) whose outcome is open counts as in flight until it can
  no longer take effect: after an acknowledged `dual_write` nothing would find it. Later writes have an intent
  for that. By the client's row the sweeper tells whether to keep such an intent: so the row stays as long as
  an outcome is open.
* A write that waits in a freeze is not in flight; it is woken when the phase moves.
* An error in the background is kept in `problem` and logged; the refusal for a lost lease names that of the
  last look.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace

from rekey.client.reading import LEASE_LOST, ClientFacts, LeaseSettings, Reading, closed, reading
from rekey.core.clock import rising_seconds
from rekey.core.concurrency import first_of
from rekey.core.distribution import VERSION
from rekey.errors import RekeyError, ServiceError, Unavailable, WritesRefused
from rekey.phases import FOLLOWED, ControlPhase
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.operations import may_travel
from rekey.protocol.registry import ClientRow, Registry
from rekey.protocol.rules import FROZEN
from rekey.tables.base import SIGNED_S

_log = logging.getLogger(__name__)
_draw = random.SystemRandom()

# Pause between two looks in a freeze, as a share of `poll_s`.
_FREEZE_PAUSE = 0.25


@dataclass(frozen=True, slots=True)
class Permit:
    """What the control row said when an operation began: the operation runs from beginning to end under it.

    Attributes:
        phase: None when there is no control row yet.
        epoch: the control row's epoch, 0 when there is none.
        copied: whether the backfill is done, so that the new view is open.
        run_id: the run, "" when there is no control row.
        number: of the reading; one more with each new epoch or run.
        maintained: whether clients maintain index tables after `complete`.
        sends_until: until when requests may be sent for it, by the client's clock.
        until: by when its work must have taken effect.
    """

    phase: ControlPhase | None
    epoch: int
    copied: bool
    run_id: str = ""
    number: int = field(default=0, compare=False)
    maintained: bool = False
    sends_until: float = field(default=float("-inf"), compare=False)
    until: float = field(default=float("-inf"), compare=False)

    @property
    def is_followed(self) -> bool:
        """Whether replicas follow what is written under it."""
        return self.phase in FOLLOWED or self.maintained


class InFlight:
    """The operations of one client that are in flight, counted by the number of their permit."""

    def __init__(self) -> None:
        """Start empty."""
        # Operations that have begun since the client began.
        self.given = 0
        self.running: Counter[int] = Counter()
        # Until when a write whose outcome is open may still take effect, by the client's clock.
        self.open_until = float("-inf")
        # The same for writes without a journal, by the number of their permit.
        self._open_by_number: dict[int, float] = {}
        self._quiet = asyncio.Event()

    def leave(self, number: int) -> bool:
        """Count one operation less; tell whether it was the last of its number."""
        self.running[number] -= 1
        last = not self.running[number]
        if last:
            del self.running[number]
        if not self.running:
            self._quiet.set()
        return last

    def failed(self, permit: Permit, error: BaseException) -> None:
        """Note a write that ended with an error, if it may have been applied or may yet be."""
        if not may_travel(error):
            return
        self.open_until = max(permit.until, self.open_until)
        if permit.phase in (None, ControlPhase.SOURCE):
            before = self._open_by_number.get(permit.number, permit.until)
            self._open_by_number[permit.number] = max(permit.until, before)

    def any_before(self, number: int, now: float) -> bool:
        """Tell whether an operation that was begun under an older number is in flight."""
        self._open_by_number = {older: until for older, until in self._open_by_number.items() if now < until}
        return any(older < number for older in (*self.running, *self._open_by_number))

    async def quiet(self) -> None:
        """Wait until no operation is running."""
        while self.running:
            self._quiet.clear()
            await self._quiet.wait()


async def _nothing_to_settle() -> None:
    """Do nothing: there is no background work to settle."""


@dataclass(eq=False, repr=False)
class ClientLease:
    """The lease of one client: gives its operations their permits.

    No request is sent before `start`, `poll`, `look_again` or the first operation.

    Attributes:
        store: the migration's control row.
        registry: the rows of its clients.
        facts: the facts that the client is created with.
        settings: its times.
        settle: ends the background work of older epochs (`Writer.settle`); awaited before an epoch is
            acknowledged and at the end.
        counters, left: for the client's row: counts by name, and the number of keys it still has to settle.
        late_s: for how many seconds the service accepts a request after the client signed it.
        client_id: lower case hexadecimal, of this lease alone; random by default.
        monotonic, sleep, jitter: this machine's clock, waiting, and a draw of [0, 1); for tests.
    """

    store: ControlStore
    registry: Registry
    facts: ClientFacts
    _: KW_ONLY
    settings: LeaseSettings = field(default_factory=LeaseSettings)
    settle: Callable[[], Awaitable[None]] = _nothing_to_settle
    counters: Callable[[], Mapping[str, int]] = dict
    left: Callable[[], int] = int
    late_s: Callable[[], float] = lambda: SIGNED_S
    client_id: str = field(default_factory=lambda: secrets.token_hex(8))
    monotonic: Callable[[], float] = rising_seconds
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    jitter: Callable[[], float] = _draw.random

    def __post_init__(self) -> None:
        # The permit by the last reading, without times.
        self._view = Permit(None, 0, copied=False)
        self._acknowledged = self._view
        self._reading = Reading(None)
        self._trusted_until = float("-inf")
        self._in_flight = InFlight()
        self._problems: dict[str, RekeyError] = {}
        self._settling = False
        self._closed = False
        self._looking = asyncio.Lock()
        self._looks = 0
        self._moved = asyncio.Event()
        self._wanted = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # --- what a client asks -------------------------------------------------------------------------------

    @property
    def control(self) -> ControlRow | None:
        """The control row that the client acts on, None while there is none."""
        return self._reading.control

    @property
    def trusted(self) -> bool:
        """Whether what was read may still be relied on."""
        return self.monotonic() < self._trusted_until

    @property
    def problem(self) -> RekeyError | None:
        """The error of the last look at the control row, or of the last settling; None if both succeeded."""
        return next(iter(self._problems.values()), None)

    @asynccontextmanager
    async def operation(self, *, writes: bool) -> AsyncIterator[Permit]:
        """Enter an operation; leaving it gives the permit back. The caller bounds it by the longest
        operation.

        Args:
            writes: whether the operation writes. Writes wait in a freeze, up to `freeze_wait_s`.

        Raises:
            WritesRefused: on entering, when the freeze lasts too long, the lease is over, the client is
                closed, or run, epoch, declaration or secrets are not as they must be.
        """
        permit = await self._enter(writes)
        try:
            yield permit
        except BaseException as error:
            if writes:
                self._in_flight.failed(permit, error)
            raise
        finally:
            self._leave(permit.number)

    @contextmanager
    def hold(self, permit: Permit) -> Iterator[None]:
        """Keep a permit in use beyond its operation, until the context is left. Never waits.

        Entered while the permit is still in use, or with what `current` has just returned.

        Raises:
            WritesRefused: a newer epoch was acknowledged, so the runner no longer waits for this work.
        """
        if permit.number < self._acknowledged.number:
            raise self._too_late()
        self._in_flight.running[permit.number] += 1
        try:
            yield
        finally:
            self._leave(permit.number)

    def current(self) -> Permit | None:
        """Return the permit that the last trusted reading of the control row gives, at once.

        None when the lease is over or the last reading refuses anything. In a freeze the permit's phase says
        so. Called by background work before it begins; also from within `settle`, when the newest epoch is
        read but not acknowledged yet.
        """
        return self._grant() if self.trusted and self._reading.refusal is None else None

    def check(self, permit: Permit) -> None:
        """Raise WritesRefused when nothing may be sent under a permit any more: a process that was held up
        must not write. Called at the moment a request is sent."""
        if self.monotonic() >= permit.sends_until:
            raise self._too_late()

    def in_time(self, permit: Permit) -> bool:
        """Tell whether the runner cannot have given up an operation under this permit yet."""
        return self.monotonic() < permit.until

    async def look_again(self) -> Permit:
        """Look at the control row now, and return the permit by this reading.

        Raises:
            RekeyError: the control row could not be read, or the reading refuses anything.
        """
        await self._look()
        if self._reading.refusal is not None:
            raise self._reading.refusal.error()
        return self._grant()

    # --- beginning, looking, ending -----------------------------------------------------------------------

    async def start(self) -> None:
        """Look at the control row for the first time, and go on looking in the background.

        A restricted store that fails now is no error yet: the first operation looks again, and refuses if
        that fails too.
        """
        await self._note("look", self.poll())
        self._tasks["looks"] = asyncio.create_task(self._keep(), name=f"client lease {self.facts.script_id}")

    async def poll(self) -> None:
        """Beat, read the control row, and acknowledge its epoch if possible (then beat and read once more).

        Raises:
            ServiceError: the restricted store failed; the lease is not extended.
            StateUnusable: the control row cannot be read by this program.
        """
        await self._look()
        await self._acknowledge_all()

    async def close(self) -> None:
        """Refuse new operations, wait for those in flight, settle, and delete the client's row. Idempotent.

        A row that cannot be deleted, or must stay because the outcome of a write is open, expires by itself.
        """
        if self._closed:
            return
        self._closed = True
        self._moved.set()
        looks = self._tasks.get("looks")
        if looks is not None:
            # A beat cancelled now could be applied after the delete, and bring the row back.
            async with self._looking:
                looks.cancel()
            await asyncio.wait([looks])
        await self._in_flight.quiet()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        if not await self._note("settle", self._end()):
            _log.warning(
                "the row of client %s of %s stays behind; it ends by itself",
                self.client_id,
                self.facts.script_id,
                extra={"event": "client-row-left"},
            )
        self._raise_faults()

    async def _end(self) -> None:
        if self._in_flight.given:
            await self.settle()
        self._trusted_until = float("-inf")
        if not self.monotonic() < self._in_flight.open_until:
            await self.registry.delete(self.client_id, self.counters())

    # --- permits ------------------------------------------------------------------------------------------

    async def _enter(self, writes: bool) -> Permit:
        waits_until: float | None = None
        while True:
            await self._require_trust()
            refusal = self._reading.refusal
            if refusal is not None and (writes or refusal.reads_too):
                raise refusal.error()
            if not writes or self._view.phase is not ControlPhase.FREEZE:
                permit = self._grant()
                self._in_flight.running[permit.number] += 1
                self._in_flight.given += 1
                return permit
            now = self.monotonic()
            if waits_until is None:
                waits_until = now + self.settings.freeze_wait_s
            if now >= waits_until:
                raise WritesRefused(
                    FROZEN,
                    f"writes wait while {self.facts.script_id} moves the authority; this one has waited"
                    f" {self.settings.freeze_wait_s:g} s",
                    hint="repeat the operation: a freeze lasts seconds",
                    retryable=True,
                )
            await first_of(self._moved, self.sleep(waits_until - now))

    async def _require_trust(self) -> None:
        """Ensure that the lease is trusted; look at the control row if it is over. Raises WritesRefused."""
        self._require_open()
        if self.trusted:
            return
        await self._note("look", self._look(shared=True))
        self._require_open()
        if not self.trusted:
            problem = self._problems.get("look")
            said = "that took longer than the lease" if problem is None else _code(problem)
            raise WritesRefused(
                LEASE_LOST,
                f"this client's lease on {self.facts.script_id} is over and the control row could not be"
                f" read: {said}",
                hint="repeat the operation once the restricted store can be reached: look at [restricted],"
                " its credential and the network",
                retryable=True,
            )

    def _require_open(self) -> None:
        self._raise_faults()
        if self._closed:
            raise closed(self.facts.script_id).error()

    def _raise_faults(self) -> None:
        """Raise the error that ended a background task: a bug must not pass for a lost lease."""
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.result()

    def _too_late(self) -> WritesRefused:
        """Return the error for work that was held up beyond the time of its permit."""
        return WritesRefused(
            LEASE_LOST,
            f"this operation of a client of {self.facts.script_id} was held up for longer than it may take",
            hint="repeat it; if it happens again, see what keeps the process from running",
            retryable=True,
        )

    def _grant(self) -> Permit:
        now, settings = self.monotonic(), self.settings
        until = now + settings.longest_operation_s
        return replace(self._view, sends_until=now + settings.sending_s, until=until)

    def _leave(self, number: int) -> None:
        if self._in_flight.leave(number) and number < self._view.number:
            self._wanted.set()  # perhaps the newer epoch can be acknowledged now

    # --- looking and acknowledging ------------------------------------------------------------------------

    async def _look(self, *, shared: bool = False) -> None:
        """Beat, then read the control row. `shared`: a look that another task has made meanwhile is enough.

        Bounded by `lease_s`: a look that takes longer extends nothing. Raises Unavailable then.
        """
        asked = self._looks
        try:
            async with asyncio.timeout(self.settings.lease_s), self._looking:
                if not shared or self._looks == asked:
                    await self._look_now()
        except TimeoutError:
            raise Unavailable("the restricted store did not answer in time", code="TooSlow") from None

    async def _look_now(self) -> None:
        """Beat, then read the control row; only both together extend the lease."""
        began = self.monotonic()
        try:
            await self.registry.beat(self._row())
            self._take(await self.store.read())
        finally:
            self._looks += 1
        self._trusted_until = began + self.settings.lease_s
        self._problems.pop("look", None)

    def _take(self, read: ControlRow | None) -> None:
        """Adopt a reading of the control row, or start refusing operations with the reason."""
        self._reading = reading(self.control, read, self.facts)
        before, control = self._view, self.control
        then = Permit(None, 0, copied=False)
        if control is not None:
            then = Permit(
                control.phase, control.epoch, control.copied, control.run_id, maintained=control.maintained
            )
        moved = (then.run_id, then.epoch) != (before.run_id, before.epoch)
        self._view = replace(then, number=before.number + 1 if moved else before.number)
        if moved:
            self._moved.set()
            self._moved = asyncio.Event()

    def _row(self) -> ClientRow:
        return ClientRow(
            client_id=self.client_id,
            name=self.facts.name or "client",
            view=self.facts.view,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=VERSION,
            epoch=self._acknowledged.epoch,
            lease_s=self.settings.lease_s,
            longest_s=self.settings.longest_operation_s,
            in_flight=self._in_flight.running.total(),
            left=self.left(),
            counters=dict(self.counters()),
            run_id=self._acknowledged.run_id,
            refuses=self._reading.refuses,
            late_s=self.late_s(),
        )

    async def _acknowledge_in_background(self) -> None:
        # `_acknowledge_all` is called in here: a task that is cancelled before it began leaves no coroutine
        # that is never awaited.
        await self._note("settle", self._acknowledge_all())

    async def _acknowledge_all(self) -> None:
        while await self._acknowledge():
            await self._look()

    async def _acknowledge(self) -> bool:
        """Acknowledge the newest epoch if nothing of older ones is in flight; tell whether that was done."""
        view = self._view
        if self._settling or view.number == self._acknowledged.number or not self._is_through(view):
            return False
        self._settling = True
        try:
            if self._in_flight.given:
                await self.settle()
        finally:
            self._settling = False
        if not self._is_through(view):
            return False
        self._acknowledged = view
        return True

    def _is_through(self, view: Permit) -> bool:
        return not self._in_flight.any_before(view.number, self.monotonic())

    # --- in the background --------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Look at the control row repeatedly. Settling runs in its own task: beats must not wait for it."""
        while True:
            share = _FREEZE_PAUSE if self._view.phase is ControlPhase.FREEZE else 1.0
            pause_s = self.settings.poll_s * share * (0.9 + 0.2 * self.jitter())
            await first_of(self._wanted, self.sleep(pause_s))
            self._wanted.clear()
            await self._note("look", self._look())
            running = self._tasks.get("acknowledges")
            if self._view.number != self._acknowledged.number and (running is None or running.done()):
                self._raise_faults()
                self._tasks["acknowledges"] = asyncio.create_task(self._acknowledge_in_background())

    async def _note(self, what: str, work: Awaitable[None]) -> bool:
        """Await `work`; keep its RekeyError and log the first in a row. Tell whether it succeeded."""
        try:
            await work
        except RekeyError as error:
            if what not in self._problems:
                _log.warning(
                    "client %s of %s: %s: %s",
                    *(self.client_id, self.facts.script_id, what, _code(error)),
                    extra={"event": "client-lease"},
                )
            self._problems[what] = error
            return False
        self._problems.pop(what, None)
        return True


def _code(error: RekeyError) -> str:
    return (error.code if isinstance(error, ServiceError) else "") or type(error).__name__
