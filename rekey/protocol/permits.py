"""Permits: what an operation may rely on while it runs. Said here, kept by the lease (or by a test).

Rules kept here:

* An operation runs from beginning to end under one permit: phase, epoch and `copied` as they stood when it
  began. The client's lease does not acknowledge a newer epoch while a permit of an older one is in use.
* Work that goes on after the caller has its answer holds the operation's permit on.
* Nothing but the lease knows how a permit comes about; the writer knows only this protocol.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from rekey.phases import ControlPhase


@dataclass(frozen=True, slots=True)
class Permit:
    """What the control row said when an operation began.

    Attributes:
        phase: None when there is no control row yet.
        epoch: the control row's epoch, 0 when there is none.
        copied: whether the backfill is done, so that the new view is open.
    """

    phase: ControlPhase | None
    epoch: int
    copied: bool


class Permits(Protocol):
    """Gives out permits."""

    def operation(self, *, writes: bool) -> AbstractAsyncContextManager[Permit]:
        """Enter an operation; leaving it gives the permit back.

        Args:
            writes: whether the operation writes. Writes wait in a freeze, as long as the settings say.

        Raises:
            WritesRefused: on entering, when the freeze lasts too long, or lease, epoch, declaration or
                secrets are not as they must be.
        """

    def hold(self, permit: Permit) -> AbstractContextManager[None]:
        """Keep a permit in use beyond its operation, until the context is left. Never waits.

        Entered while the permit is still in use, or with what `current` has just returned.
        """

    def check(self, permit: Permit) -> None:
        """Raise WritesRefused when nothing may be sent under a permit any more: a process that was held up
        must not write. Asked in the moment in which a request is sent."""

    def in_time(self, permit: Permit) -> bool:
        """Tell whether nobody can have given up an operation under this permit yet."""

    async def look_again(self) -> Permit:
        """Look at the control row now, and return the permit of what it says.

        Raises:
            RekeyError: that could not be had.
        """

    def current(self) -> Permit | None:
        """Return the permit that the last trusted reading of the control row gives, at once.

        None when the lease is over or something else would make `operation` refuse. In a freeze it is a
        permit that says so. Asked by work that nobody waits for, before it begins; also from within
        `Writer.settle`, when the newest epoch is read but not acknowledged yet.
        """
