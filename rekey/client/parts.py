"""The tables, mapping, journal and lease that the writes of one client share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum

from rekey.client.in_flight import InFlight
from rekey.client.lease import ClientLease, Permit
from rekey.core.limits import TARGET_ACCOUNT_SUFFIX
from rekey.errors import CredentialRefused, ServiceError, Unavailable
from rekey.mapping.rows import CONTROL_TABLE, JOURNAL_TABLE, MAPPING_TABLE
from rekey.model import EntityKey
from rekey.protocol.journal import IntentRef, Journal
from rekey.protocol.propagate import Propagator
from rekey.protocol.rules import SOURCE, View
from rekey.tables.base import Table

LONGEST_OPERATION_S = 30.0
MAX_IN_FLIGHT_S = 7.0
# Most keys of a transaction whose replicas are written at the same time.
WIDTH = 32


class Acknowledge(StrEnum):
    """When the caller of a write has its answer, in the view whose table is the authority."""

    # When its replicas are current, or known to be left to a durable intent.
    BOTH = "both"
    # When intent and authority are durable: the replicas follow at once, after the answer.
    AUTHORITY = "authority"


@dataclass(slots=True)
class Counters:
    """What one client has done since it started; changed by its own tasks only."""

    # Acknowledged write operations; a transaction counts each of its own.
    writes: int = 0
    # Keys whose replicas were current by conditional writes alone, without propagate.
    fast: int = 0
    # Keys that propagate made current.
    propagated: int = 0
    # Failed attempts to make replicas current.
    replica_failures: int = 0
    # Those of them where the credential was refused.
    refused: int = 0
    # Keys whose replicas were not current when the caller had its answer or error; their intents stay.
    left: int = 0
    # Shadow reads that agreed, disagreed, or could not be judged.
    matched: int = 0
    mismatched: int = 0
    ignored: int = 0


@dataclass(eq=False, repr=False)
class ClientParts:
    """The tables, mapping, journal and lease of one client of a migration."""

    view: View
    # Names its partition of the journal.
    client_id: str
    _: KW_ONLY
    propagator: Propagator
    journal: Journal
    permits: ClientLease
    # The run these parts are for; nothing is done under a permit of another run.
    run_id: str = ""
    counters: Counters
    # Its writes that have begun and not ended.
    in_flight: InFlight = field(default_factory=InFlight)
    acknowledge: Acknowledge = Acknowledge.BOTH
    # After how many seconds an operation ends, successful or not.
    longest_operation_s: float = LONGEST_OPERATION_S
    # For how many seconds an unanswered request may take effect after that is known.
    max_in_flight_s: float = MAX_IN_FLIGHT_S
    # Waits, among others between two attempts at a leftover.
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    @property
    def table(self) -> Table:
        return self.propagator.source if self.view is View.OLD else self.propagator.targets[0]

    def is_outside(self, key: EntityKey) -> bool:
        """Tell whether a key of the view is of a row that this migration neither reads nor writes."""
        key_space = self.propagator.mapper.migration.key_spaces.get(self.table.name)
        return key_space is not None and key not in key_space

    async def wait_out(self) -> None:
        """Wait until no unanswered request sent so far can still take effect."""
        await self.sleep(self.max_in_flight_s)

    def current(self) -> Permit | None:
        """Return what `ClientLease.current` does, None also for a permit of another run."""
        permit = self.permits.current()
        return permit if permit is not None and permit.run_id == self.run_id else None


@dataclass(frozen=True, slots=True)
class AnnouncedKey:
    """A key that a client writes besides those of its call (`rekey.protocol.propagate.Announced`)."""

    journal: Journal
    intent: IntentRef

    def check(self) -> None:
        """Do nothing: the call has its own deadline."""

    async def end(self) -> None:
        await self.journal.end([self.intent])


async def announce(client: ClientParts, source_key: EntityKey) -> AnnouncedKey:
    """Write an intent for a key that a client's call leads to. Raises Unavailable: its lease is over."""
    permit = client.current()
    if permit is None:
        raise Unavailable("the client's lease is over", status=503, hint="repeat the operation")
    [intent] = await client.journal.begin(client.client_id, permit.epoch, SOURCE, [source_key])
    return AnnouncedKey(client.journal, intent)


def account_of(error: ServiceError) -> str:
    """Return which account an error is of, `restricted`, `targets` or `tables`, by the table it names."""
    if any(name in error.what for name in (CONTROL_TABLE, JOURNAL_TABLE, MAPPING_TABLE)):
        return "restricted"
    return "targets" if TARGET_ACCOUNT_SUFFIX in error.what else "tables"


def refused_by(error: CredentialRefused) -> CredentialRefused:
    """Return the refusal of a credential, with the account that refused it and what to do there."""
    which = account_of(error)
    return CredentialRefused(
        f"the {which} account refused the credential of this client: {error.what}",
        code=error.code,
        status=error.status,
        index=error.index,
        hint=f"give the client a credential of the {which} account that reads and writes every table of the"
        " migration: the account's key, a SAS for the account, or the role Storage Table Data Contributor;"
        " a SAS for one table is not enough",
    )
