"""The lease of a client: for how long it trusts its last reading of the control row, and when it acknowledges
a newer epoch (ADR 0018)."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace

from rekey.client.reading import (
    LEASE_LOST,
    ClientFacts,
    LeaseSettings,
    Reading,
    closed,
    digest_moved,
    reading,
    unknown_part,
    unknown_parts,
)
from rekey.core.clock import monotonic_seconds
from rekey.core.concurrency import first_of
from rekey.core.distribution import VERSION
from rekey.errors import RekeyError, ServiceError, Unavailable, WritesRefused
from rekey.phases import FOLLOWED, ControlPhase
from rekey.protocol.control import ControlRow, ControlStore, PartOfSource
from rekey.protocol.effects import side_by_side
from rekey.protocol.operations import may_take_effect
from rekey.protocol.other_migrations import OtherMigration, others_of
from rekey.protocol.registry import ClientRow, Registry
from rekey.protocol.rules import FROZEN
from rekey.tables.base import SIGNED_S

_log = logging.getLogger(__name__)
_draw = random.SystemRandom()

# Pause between two reads of the control row in a freeze, as a share of `poll_s`.
_FREEZE_PAUSE = 0.25


@dataclass(frozen=True, slots=True)
class Permit:
    """The control row's state when an operation began. The operation runs from beginning to end under it."""

    # None when there is no control row yet.
    phase: ControlPhase | None
    epoch: int
    # Whether the backfill is done, so that the new view is open.
    copied: bool
    run_id: str = ""
    # Counts readings: one more with each new epoch or run. The epoch alone would not do, as another run
    # counts epochs from 1 again.
    number: int = field(default=0, compare=False)
    # Whether clients maintain index tables after `complete`.
    maintained: bool = False
    # Whether the source has the rows of a retired part again.
    restored: bool = False
    # In a freeze, the phase before it.
    came_from: ControlPhase | None = field(default=None, compare=False)
    # Until when requests may be sent for it, by the client's clock.
    sends_until: float = field(default=float("-inf"), compare=False)
    # By when its work must have taken effect.
    until: float = field(default=float("-inf"), compare=False)

    @property
    def is_followed(self) -> bool:
        """Whether replicas follow what is written under it."""
        return self.phase in FOLLOWED or self.maintained


class RunningOperations:
    """The operations of one client that are in flight, counted by the number of their permit."""

    def __init__(self) -> None:
        # Operations begun so far.
        self.begun = 0
        self.running: Counter[int] = Counter()
        # Until when a write with an unknown outcome may still take effect, by the client's clock.
        self.open_until = float("-inf")
        # The same for writes without a journal, by the number of their permit.
        self._open_by_number: dict[int, float] = {}
        self._idle = asyncio.Event()

    def leave(self, number: int) -> bool:
        """Decrement the count of a permit number; tell whether it is now 0."""
        self.running[number] -= 1
        last = not self.running[number]
        if last:
            del self.running[number]
        if not self.running:
            self._idle.set()
        return last

    def failed(self, permit: Permit, error: BaseException) -> None:
        """Record a write that ended with an error, if it may have been applied or may yet be."""
        if not may_take_effect(error):
            return
        self.open_until = max(permit.until, self.open_until)
        # Such a write has no intent, so nothing would find it after an acknowledged `dual_write`: it counts
        # as in flight until it can no longer take effect. Writes of later phases have an intent.
        if permit.phase in (None, ControlPhase.SOURCE):
            before = self._open_by_number.get(permit.number, permit.until)
            self._open_by_number[permit.number] = max(permit.until, before)

    def any_before(self, number: int, now: float) -> bool:
        """Tell whether an operation that was begun under an older number is in flight."""
        self._open_by_number = {older: until for older, until in self._open_by_number.items() if now < until}
        return any(older < number for older in (*self.running, *self._open_by_number))

    async def wait_idle(self) -> None:
        """Wait until no operation is running."""
        while self.running:
            self._idle.clear()
            await self._idle.wait()


async def _nothing_to_settle() -> None:
    """Do nothing: there is no background work to settle."""


@dataclass(eq=False, repr=False)
class ClientLease:
    """The lease of one client: gives its operations their permits.

    No request is sent before `start`, `poll`, `reread` or the first operation.
    """

    store: ControlStore
    registry: Registry
    facts: ClientFacts
    _: KW_ONLY
    settings: LeaseSettings = field(default_factory=LeaseSettings)
    # Ends the background work of older epochs (`Writer.settle`); awaited before an epoch is acknowledged and
    # at the end.
    settle: Callable[[], Awaitable[None]] = _nothing_to_settle
    # For the client's row: counts by name, and the number of keys it still has to settle.
    counters: Callable[[], Mapping[str, int]] = dict
    left: Callable[[], int] = int
    # For how many seconds the service accepts a request after the client signed it.
    signature_valid_s: Callable[[], float] = lambda: SIGNED_S
    # Lower case hexadecimal, of this lease alone.
    client_id: str = field(default_factory=lambda: secrets.token_hex(8))
    monotonic: Callable[[], float] = monotonic_seconds
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    # Draws from [0, 1).
    jitter: Callable[[], float] = _draw.random

    def __post_init__(self) -> None:
        # The permit that the last reading gives, without times.
        self._view = Permit(None, 0, copied=False)
        self._acknowledged = self._view
        self._reading = Reading(None)
        self._unknown: tuple[PartOfSource, ...] = ()
        self._others: Sequence[OtherMigration] = ()
        self._trusted_until = float("-inf")
        self._in_flight = RunningOperations()
        self._problems: dict[str, RekeyError] = {}
        self._settling = False
        self._closed = False
        self._read_lock = asyncio.Lock()
        # Reads that have ended, and that have begun; the last of them that succeeded, in the order begun.
        self._reads = self._begun = self._newest = 0
        self._moved = asyncio.Event()
        self._wanted = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # --- state and permits of operations ------------------------------------------------------------------

    @property
    def control(self) -> ControlRow | None:
        """The control row that the client acts on, None while there is none."""
        return self._reading.control

    @property
    def trusted(self) -> bool:
        return self.monotonic() < self._trusted_until

    @property
    def problem(self) -> RekeyError | None:
        """The error of the last read of the control row, or of the last settling; None if both succeeded."""
        return next(iter(self._problems.values()), None)

    @asynccontextmanager
    async def operation(self, *, writes: bool, waits: bool = True) -> AsyncIterator[Permit]:
        """Run an operation under a permit. The caller bounds its time by `longest_operation_s`.

        Args:
            writes: whether the operation writes.
            waits: whether a write waits in a freeze, up to `freeze_wait_s`.

        Raises:
            WritesRefused: the freeze lasts too long, the lease is over, the client is closed, or the control
                row's run, epoch, declaration or secrets do not match the client's.
        """
        permit = await self._enter(writes, waits)
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
        """Keep a permit in use beyond its operation, until the context is left. Never waits. Enter it while
        the permit is in use, or with what `current` has just returned.

        Raises:
            WritesRefused: a newer epoch was acknowledged, so the runner no longer waits for this work.
        """
        if permit.number < self._acknowledged.number:
            raise self._held_up()
        self._in_flight.running[permit.number] += 1
        try:
            yield
        finally:
            self._leave(permit.number)

    def current(self) -> Permit | None:
        """Return the permit that the last trusted reading gives, without waiting: None when the lease is over
        or the reading refuses anything. In a freeze the permit's phase says so.

        Called by background work before it begins; also from within `settle`, when the newest epoch is read
        but not acknowledged yet.
        """
        return self._grant() if self.trusted and self._reading.refusal is None else None

    def check(self, permit: Permit) -> None:
        """Raise WritesRefused when a permit no longer allows sending. Called as each request is sent."""
        # The process may have been suspended since the permit was given, and its client taken for dead.
        if self.monotonic() >= permit.sends_until:
            raise self._held_up()

    def require_known_parts(self, *, reads: bool = False) -> None:
        """Raise WritesRefused when another part of the source is migrated that the client does not follow.
        Called before a row is written, or read (`reads`), that may be one of it."""
        refusal = unknown_part(self._unknown, self.facts, reads=reads)
        if refusal is not None:
            raise refusal.error()

    @property
    def has_same_declaration(self) -> bool:
        """Whether the client's declaration is the migration's. False also while there is no control row."""
        return self.control is not None and self.control.digest == self.facts.digest

    def require_same_part(self) -> None:
        """Raise WritesRefused unless the client's declaration, which says which rows are migrated, is the
        migration's. Called before a row outside the part is written or read."""
        control = self.control
        has_begun = control is not None and control.phase is not ControlPhase.SOURCE
        if has_begun and not self.has_same_declaration:
            raise digest_moved(self.facts).error()

    def in_time(self, permit: Permit) -> bool:
        """Tell whether the time allowed for an operation under this permit is not over."""
        return self.monotonic() < permit.until

    async def reread(self) -> Permit:
        """Return the permit by a reading of the control row that begins after this call. Raises RekeyError:
        the row could not be read, or the reading refuses anything."""
        await self._read(after=self._begun)
        if self._reading.refusal is not None:
            raise self._reading.refusal.error()
        return self._grant()

    # --- start, poll, close -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the control row for the first time, and keep reading it in the background."""
        # A restricted store that fails now is no error yet: the first operation reads again, and is refused
        # if that fails too.
        await self._note("read", self.poll())
        self._tasks["reads"] = asyncio.create_task(self._keep(), name=f"client lease {self.facts.script_id}")

    async def poll(self) -> None:
        """Beat, read the control row, and acknowledge its epoch if possible (then beat and read once more).

        Raises:
            ServiceError: the restricted store failed; the lease is not extended.
            StateUnusable: the control row cannot be read by this program.
        """
        await self._read()
        await self._acknowledge_all()

    async def close(self) -> None:
        """Refuse new operations, wait for those in flight, settle, and delete the client's row. Idempotent. A
        row that cannot be deleted expires."""
        if self._closed:
            return
        self._closed = True
        self._moved.set()
        reading_task = self._tasks.get("reads")
        if reading_task is not None:
            # A beat cancelled now could be applied after the delete, and restore the row.
            async with self._read_lock:
                reading_task.cancel()
            await asyncio.wait([reading_task])
        await self._in_flight.wait_idle()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        if not await self._note("settle", self._end()):
            _log.warning(
                "the row of client %s of %s could not be deleted; it expires",
                self.client_id,
                self.facts.script_id,
                extra={"event": "client-row-left"},
            )
        self._raise_faults()

    async def _end(self) -> None:
        if self._in_flight.begun:
            await self.settle()
        self._trusted_until = float("-inf")
        # By the client's row the sweeper tells whether to keep its intents: the row stays, and expires, while
        # an outcome is unknown.
        if not self.monotonic() < self._in_flight.open_until:
            await self.registry.delete(self.client_id, self.counters())

    # --- permits ------------------------------------------------------------------------------------------

    async def _enter(self, writes: bool, waits: bool) -> Permit:
        waits_until: float | None = None
        while True:
            await self._require_trust()
            refusal = self._reading.refusal
            if refusal is not None and (writes or refusal.reads_too):
                raise refusal.error()
            if not (writes and waits) or self._view.phase is not ControlPhase.FREEZE:
                permit = self._grant()
                self._in_flight.running[permit.number] += 1
                self._in_flight.begun += 1
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
            # Not counted as in flight while it waits; woken when the phase moves.
            await first_of(self._moved, self.sleep(waits_until - now))

    async def _require_trust(self) -> None:
        """Ensure that the lease is trusted; read the control row if it is over. Raises WritesRefused."""
        self._require_open()
        if self.trusted:
            return
        await self._note("read", self._read(shared=True))
        self._require_open()
        if not self.trusted:
            problem = self._problems.get("read")
            text = "that took longer than the lease" if problem is None else _code(problem)
            raise WritesRefused(
                LEASE_LOST,
                f"this client's lease on {self.facts.script_id} is over and the control row could not be"
                f" read: {text}",
                hint="repeat the operation once the restricted store can be reached: check [restricted],"
                " its credential and the network",
                retryable=True,
            )

    def _require_open(self) -> None:
        self._raise_faults()
        if self._closed:
            raise closed(self.facts.script_id).error()

    def _raise_faults(self) -> None:
        """Raise the error that ended a background task: a bug must not look like a lost lease."""
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.result()

    def _held_up(self) -> WritesRefused:
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
            self._wanted.set()  # the newer epoch may now be acknowledged

    # --- reading and acknowledging ------------------------------------------------------------------------

    async def _read(self, *, shared: bool = False, after: int | None = None) -> None:
        """Beat, then read the control row.

        Args:
            shared: another task's read that ends after the call is enough.
            after: so is a read that succeeds, and that begins after this number of reads.

        Raises:
            Unavailable: it took longer than `lease_s`: such a read extends nothing.
        """
        asked = self._reads
        try:
            async with asyncio.timeout(self.settings.lease_s), self._read_lock:
                if (shared and self._reads != asked) or (after is not None and self._newest > after):
                    return
                await self._beat_and_read()
        except TimeoutError:
            raise Unavailable("the restricted store did not answer in time", code="TooSlow") from None

    async def _beat_and_read(self) -> None:
        began, was_over = self.monotonic(), not self.trusted
        self._begun += 1
        number = self._begun
        try:
            # The beat comes first: a runner that moves the control row and then lists the clients either
            # finds this client's row, or this client reads the move.
            await self.registry.beat(self._row())
            if self.facts.part_of:
                # After the beat as well: a part that is not among these begins after this client registered,
                # and finds it.
                read, parts = await side_by_side([self.store.read(), self.store.parts()])
                self._unknown = unknown_parts(parts, self.facts)
            else:
                read = await self.store.read()
            # After the beat, too. The gates of one that begins while this client is registered find it. Once
            # this client's migration is over, the next one may have capture "delta", which has no such gates.
            has_ended = read is not None and read.ended_at is not None
            if was_over or has_ended or self._others:
                self._others = await others_of(self.store)
            self._take(read)
        finally:
            self._reads += 1
        # From the beginning of the beat, by this machine's monotonic clock; the runner waits from the row's
        # Timestamp on, by the service's clock. So no two clocks are compared. A beat without a reading after
        # it extends nothing.
        self._trusted_until = began + self.settings.lease_s
        self._newest = number
        self._problems.pop("read", None)

    def _take(self, read: ControlRow | None) -> None:
        """Adopt a reading of the control row, or start refusing operations with its reason."""
        self._reading = reading(self.control, read, self.facts, self._others)
        before, control = self._view, self.control
        then = Permit(None, 0, copied=False)
        if control is not None:
            then = Permit(
                *(control.phase, control.epoch, control.copied, control.run_id),
                maintained=control.maintained,
                restored=control.restored,
                came_from=control.came_from,
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
            signature_valid_s=self.signature_valid_s(),
            parts=self.facts.parts or None,
        )

    async def _acknowledge_in_background(self) -> None:
        # Calling `_acknowledge_all` in here leaves no coroutine that is never awaited when the task is
        # cancelled before it began.
        await self._note("settle", self._acknowledge_all())

    async def _acknowledge_all(self) -> None:
        while await self._acknowledge():
            await self._read()

    async def _acknowledge(self) -> bool:
        """Acknowledge the newest epoch if nothing of older ones is in flight; tell whether that was done."""
        # New operations use the newest epoch at once: two epochs in flight in one client are no worse than
        # two clients that are one epoch apart.
        view = self._view
        if self._settling or view.number == self._acknowledged.number or not self._is_quiesced(view):
            return False
        self._settling = True
        try:
            if self._in_flight.begun:
                await self.settle()
        finally:
            self._settling = False
        if not self._is_quiesced(view):
            return False
        self._acknowledged = view
        return True

    def _is_quiesced(self, view: Permit) -> bool:
        return not self._in_flight.any_before(view.number, self.monotonic())

    # --- in the background --------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Read the control row repeatedly."""
        while True:
            share = _FREEZE_PAUSE if self._view.phase is ControlPhase.FREEZE else 1.0
            pause_s = self.settings.poll_s * share * (0.9 + 0.2 * self.jitter())
            await first_of(self._wanted, self.sleep(pause_s))
            self._wanted.clear()
            await self._note("read", self._read())
            running = self._tasks.get("acknowledges")
            if self._view.number != self._acknowledged.number and (running is None or running.done()):
                self._raise_faults()
                # In its own task, since it settles: beats must not wait for that.
                self._tasks["acknowledges"] = asyncio.create_task(self._acknowledge_in_background())

    async def _note(self, what: str, work: Awaitable[None]) -> bool:
        """Await `work`; keep its RekeyError, and log the first in a row. Tell whether it succeeded."""
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
