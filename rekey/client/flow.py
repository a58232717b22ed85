"""One call of the application, an operation or a transaction, on its way through the steps of a write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from rekey.client.authority import Authority
from rekey.client.lease import Permit
from rekey.client.parts import ClientParts
from rekey.client.steps import Decided, Followed, IntentRef, Prepared, Request
from rekey.errors import RekeyError
from rekey.model import EntityKey
from rekey.protocol.rules import Side
from rekey.tables.base import Operation, rejected


@dataclass(slots=True)
class Flow(ABC):
    """One call.

    Attributes:
        requests: one for each operation.
        client: the client that makes the call.
        authority: the side that decides.
        permit: the permit that the call runs under.
        deadline: when the call and its work after the answer must have ended, by the loop's clock.
        sent: whether a request to the authority may have been applied, or may yet be.
        named: the keys it writes, as its intents name them, as far as they are known.
        decided: its operations, once the authority has done them; in the order of `requests`.
        followed: those of them whose replicas were written, by their place in `decided`.
        written: ETags of all rows that the authority's transaction has written, by key.
    """

    requests: list[Request]
    client: ClientParts
    authority: Authority
    permit: Permit
    deadline: float
    sent: bool = False
    named: list[tuple[Side, EntityKey]] = field(default_factory=list, init=False)
    decided: list[Decided] = field(default_factory=list, init=False)
    followed: dict[int, Followed] = field(default_factory=dict, init=False)
    written: dict[EntityKey, str | None] = field(default_factory=dict, init=False)

    @abstractmethod
    async def prepare(self) -> list[Prepared] | None:
        """Do everything that comes before the authority's write; see `intent.prepare`."""

    @abstractmethod
    def raced(self, error: RekeyError, writes: list[Prepared], failed: Prepared, sent: Operation) -> bool:
        """Tell whether the authority refused only a condition that this client added.

        Args:
            error: its answer.
            writes: the call as it was sent.
            failed: the write that it names.
            sent: the operation that it names.
        """

    @property
    def intents(self) -> list[IntentRef]:
        """The intents of all its operations."""
        return [intent for request in self.requests for intent in request.held.intents]

    async def begin(self, side: Side, keys: Iterable[EntityKey]) -> None:
        """Note that keys, as intents name them, are written by the call, and wait until no earlier write of
        them is being settled."""
        new = [(side, key) for key in keys if (side, key) not in self.named]
        self.named += new
        self.client.in_flight.begun.update(new)
        await self.client.in_flight.let_settle(new)

    def end(self) -> None:
        """Note that the call's writes are no longer in flight."""
        self.client.in_flight.ends(self.named, self.intents)

    def etags(self) -> list[str | None]:
        """Return the caller's ETags, None for deletes."""
        return [decided.etag for decided in self.decided]

    async def etag_after_propagate(self, decided: Decided) -> str | None:  # noqa: ARG002
        """Read the new ETag of the view's row, where that is a replica that propagate has written."""
        return None


def check_one_partition(partitions: set[str]) -> None:
    """Refuse a transaction over several partitions of the authority. Raises RequestRejected."""
    if len(partitions) > 1:
        raise rejected(
            "CommandsInBatchActOnDifferentPartitions",
            "rows of one transaction lie in several partitions of the table that is written first",
            hint="while the migration runs, write these rows one by one or in the other view",
        )
