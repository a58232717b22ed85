"""One call of the application, an operation or a transaction, as it passes through the steps of a write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from rekey.client.authority import Authority
from rekey.client.lease import Permit
from rekey.client.parts import ClientParts
from rekey.client.steps import Decided, Followed, Prepared, Request
from rekey.errors import RekeyError
from rekey.model import EntityKey
from rekey.protocol.journal import IntentRef
from rekey.protocol.rules import Side
from rekey.tables.base import Operation, rejected


@dataclass(slots=True)
class Flow(ABC):
    """One call."""

    requests: list[Request]
    client: ClientParts
    # The side that decides.
    authority: Authority
    permit: Permit
    # When the call and its work after the answer must have ended, by the loop's clock.
    deadline: float
    # Whether a request to the authority may have been applied, or may yet be.
    sent: bool = False
    # The keys it writes, as its intents name them, as far as they are known.
    named: list[tuple[Side, EntityKey]] = field(default_factory=list, init=False)
    # Its operations, once the authority has done them; in the order of `requests`.
    decided: list[Decided] = field(default_factory=list, init=False)
    # Those whose replicas were written, by their place in `decided`.
    followed: dict[int, Followed] = field(default_factory=dict, init=False)
    # ETags of all rows that the authority's transaction has written, by key.
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
            failed, sent: the write and the operation that the error names.
        """

    @property
    def intents(self) -> list[IntentRef]:
        return [intent for request in self.requests for intent in request.pending.intents]

    async def begin(self, side: Side, keys: Iterable[EntityKey]) -> None:
        """Record the keys that the call writes, and wait until no earlier write of them is being settled."""
        new = [(side, key) for key in keys if (side, key) not in self.named]
        self.named += new
        self.client.in_flight.begun.update(new)
        await self.client.in_flight.let_settle(new)

    def end(self) -> None:
        """Record that the call's writes are no longer in flight."""
        self.client.in_flight.ends(self.named, self.intents)

    def etags(self) -> list[str | None]:
        """Return the caller's ETags, None for deletes."""
        return [decided.etag for decided in self.decided]

    async def etag_after_propagate(self, decided: Decided) -> str | None:  # noqa: ARG002
        """Return the new ETag of the view's row, where that row is a replica that propagate wrote."""
        return None


def check_one_partition(partitions: set[str]) -> None:
    """Raise RequestRejected for a transaction that spans partitions of the authority."""
    if len(partitions) > 1:
        raise rejected(
            "CommandsInBatchActOnDifferentPartitions",
            "rows of one transaction lie in several partitions of the table that is written first",
            hint="while the migration runs, write these rows one by one or in the other view",
        )
