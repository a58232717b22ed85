"""What of a client is under way, by what it goes by. Bookkeeping: nothing is asked of a service.

Rules kept here:

* What a client goes by is numbered: one more with each epoch or run it has read. Epochs alone would not do:
  another run counts them from 1 again.
* A write without a journal (nothing follows it yet) whose outcome is open counts until it can no longer take
  effect: after an acknowledged `dual_write` nobody would see it. Later writes have an intent for that, whose
  age is told by the longest operation in the client's row: so that row stays for as long.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass

from rekey.core.concurrency import cancel
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow
from rekey.protocol.operations import may_travel
from rekey.protocol.permits import Permit


@dataclass(frozen=True, slots=True)
class Going:
    """What a client goes by: a control row or None, and the number of it."""

    number: int
    control: ControlRow | None

    @property
    def run_id(self) -> str:
        """The run, "" without a control row."""
        return "" if self.control is None else self.control.run_id

    @property
    def epoch(self) -> int:
        """The epoch, 0 without a control row."""
        return 0 if self.control is None else self.control.epoch

    @property
    def phase(self) -> ControlPhase | None:
        """The phase, None without a control row."""
        return None if self.control is None else self.control.phase

    def next(self, control: ControlRow | None) -> Going:
        """Return what the client goes by after it has read a row that it follows."""
        then = Going(self.number, control)
        same = (then.run_id, then.epoch) == (self.run_id, self.epoch)
        return then if same else Going(self.number + 1, control)

    def grant(self, sends_until: float, until: float) -> Granted:
        """Return a permit for work that sends its last request, and has taken effect, by two moments of the
        client's clock."""
        copied = self.control is not None and self.control.copied
        return Granted(
            self.phase, self.epoch, copied, number=self.number, sends_until=sends_until, until=until
        )


@dataclass(frozen=True, slots=True)
class Granted(Permit):
    """A permit of a lease.

    Attributes:
        number: of the `Going` it was given under.
        sends_until: until when requests may be sent for it, by the client's clock.
        until: by when its work must have taken effect.
    """

    number: int = 0
    sends_until: float = 0.0
    until: float = 0.0


def granted(permit: Permit) -> Granted:
    """Return a permit as the lease gave it. Raises TypeError for one that no lease has given."""
    if not isinstance(permit, Granted):
        raise TypeError("a permit that no lease has given")
    return permit


async def first_of(event: asyncio.Event, sleep: Awaitable[object]) -> None:
    """Wait for an event, at most as long as `sleep` takes."""
    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(sleep)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(waits)


class UnderWay:
    """Counts what is under way in one client."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.given = 0
        """Operations that have begun since the client began."""
        self._running: Counter[int] = Counter()
        self._open_until: dict[int, float] = {}
        self._any_open_until = float("-inf")
        self._quiet = asyncio.Event()

    @property
    def total(self) -> int:
        """How much is under way."""
        return self._running.total()

    def enter(self, number: int) -> None:
        """Count one more."""
        self._running[number] += 1

    def leave(self, number: int) -> bool:
        """Count one less; tell whether it was the last of its number."""
        self._running[number] -= 1
        last = not self._running[number]
        if last:
            del self._running[number]
        if not self._running:
            self._quiet.set()
        return last

    def failed(self, permit: Granted, error: BaseException) -> None:
        """Note that a write ended with an error, after which it may yet be applied or not."""
        if not may_travel(error):
            return
        self._any_open_until = max(permit.until, self._any_open_until)
        if permit.phase in (None, ControlPhase.SOURCE):
            before = self._open_until.get(permit.number, permit.until)
            self._open_until[permit.number] = max(permit.until, before)

    def any_open(self, now: float) -> bool:
        """Tell whether a write whose outcome is open may still take effect."""
        return now < self._any_open_until

    def any_before(self, number: int, now: float) -> bool:
        """Tell whether anything is under way that was begun by something older than a number."""
        self._open_until = {older: until for older, until in self._open_until.items() if now < until}
        return any(older < number for older in (*self._running, *self._open_until))

    async def quiet(self) -> None:
        """Wait until nothing runs."""
        while self._running:
            self._quiet.clear()
            await self._quiet.wait()
