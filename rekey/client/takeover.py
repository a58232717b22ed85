"""Settling what dead clients left in the journal, by any live client, even one that only reads (ADR 0045).
Turns keep most clients from starting at the same time; a claim keeps two of them off one key."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import partial

from rekey.client.finish import Finisher
from rekey.client.lease import Permit
from rekey.client.reading import LeaseSettings
from rekey.core.clock import TICKS_PER_SECOND
from rekey.errors import RekeyError, ServiceError
from rekey.model import EntityKey
from rekey.protocol.effects import side_by_side
from rekey.protocol.journal import Intent, IntentRef
from rekey.protocol.registry import SAFETY_S, Registry, over_at, settlers
from rekey.protocol.rules import Side, authority, is_settled_by_clients
from rekey.protocol.sweeper import Company
from rekey.tables.allowance import while_allowed

# Interval in seconds between sweeps for dead clients' intents, varied by up to a fifth.
SWEEP_EVERY_S = 10.0
# Seconds by which each later turn begins later: if the first client cannot do it, the next one does, and they
# do not all begin at the same moment.
TURN_S = 2.0
LAST_TURN = 15
# Seconds that a key may be worked on. Short, because others wait for this if the client that claimed the key
# dies.
ATTEMPT_S = 10.0
_AT_ONCE = 8
_LEAST_PAUSE, _MOST_PAUSE = 0.8, 1.2
# Most intents that are collected in one sweep, and most of one key claimed in one attempt.
_MOST, _MOST_OF_A_KEY = 1_000, 20
# After so many sweeps at which this client was writing a key, the key is settled all the same.
_MOST_SKIPPED = 5


def pause_s(draw: float) -> float:
    """Return how many seconds pass until the next sweep. `draw`: from [0, 1)."""
    return SWEEP_EVERY_S * (_LEAST_PAUSE + (_MOST_PAUSE - _LEAST_PAUSE) * draw)


def settled_within_s(settings: LeaseSettings, *, killed: int = 1) -> float:
    """Return within how many seconds after a kill a live client begins to settle the killed one's intents,
    while the services answer. `settings`: of all clients. `killed`: how many were killed: the first one, and
    others that had just claimed what it left."""
    # The last beat of the killed client may have taken effect `max_in_flight_s` after the kill.
    dead = settings.max_in_flight_s + settings.lease_s + settings.longest_operation_s + SAFETY_S
    interval = _MOST_PAUSE * SWEEP_EVERY_S + _MOST_PAUSE * settings.poll_s
    # Killed clients that still look live each take a turn that nobody uses.
    turns = TURN_S * killed * (killed - 1) / 2
    return dead + killed * interval + turns + (killed - 1) * _claim_s(ATTEMPT_S, settings.max_in_flight_s)


def _claim_s(attempt_s: float, max_in_flight_s: float) -> float:
    """Return for how many seconds a claim holds: until the attempt's last request has taken effect."""
    return attempt_s + max_in_flight_s + SAFETY_S


@dataclass(frozen=True, slots=True)
class Sweep:
    """The result of one sweep. `settled`: how many intents; `more`: some were settled and there are further
    ones, so sweep again at once."""

    settled: int = 0
    more: bool = False


@dataclass(eq=False, repr=False)
class TakeOver:
    """Settles dead clients' intents for one client. `finisher`: has the client's own leftovers."""

    finisher: Finisher
    _skipped: Counter[EntityKey] = field(default_factory=Counter, init=False)

    async def sweep(self, registry: Registry) -> Sweep:
        """Settle what is due for this client. Raises RekeyError: clients' rows or journal were not
        readable."""
        client = self.finisher.client
        permit = client.current()
        reverse = client.propagator.mapper.reversible
        if permit is None or not is_settled_by_clients(permit.phase, reverse=reverse):
            return Sweep()
        rows = await registry.list()
        own = next((row for row in rows if row.client_id == client.client_id), None)
        if own is None:
            return Sweep()  # the client is closing
        # Its own row has the service's time as of its last beat.
        company = Company.of(rows, own.beat_at, usual_s=own.longest_s)
        order = [row.client_id for row in settlers(rows, own.beat_at)]
        turn = order.index(client.client_id) if client.client_id in order else LAST_TURN
        return await self.settle(company, min(turn, LAST_TURN), permit)

    async def settle(self, company: Company, turn: int, permit: Permit) -> Sweep:
        """Settle the intents of dead clients. Raises RekeyError: the journal could not be read.

        Args:
            company: the clients of the migration, as read before this call.
            turn: how many other clients begin before this one.
            permit: what the control row says; nothing is begun under another epoch.
        """
        client = self.finisher.client
        due: defaultdict[tuple[Side, str, str], list[Intent]] = defaultdict(list)
        count = 0
        async for intents in client.journal.scan():
            for intent in intents:
                if count < _MOST and self._is_due(intent, company, turn):
                    due[intent.side, *intent.key].append(intent)
                    count += 1
            if count >= _MOST:
                break
        groups = [intents[:_MOST_OF_A_KEY] for intents in due.values()]
        self._skipped = Counter({intent.id: self._skipped[intent.id] for group in groups for intent in group})
        settled = 0
        for start in range(0, len(groups), _AT_ONCE):
            batch = groups[start : start + _AT_ONCE]
            counts = await side_by_side(self._settle(group, permit) for group in batch)
            settled += sum(filter(None, counts))
            if all(count is None for count in counts):
                break  # the service fails: do not let every client keep asking it
        return Sweep(settled, more=count >= _MOST and settled > 0)

    def _is_due(self, intent: Intent, company: Company, turn: int) -> bool:
        if intent.settled or company.is_young(intent):
            return False
        if intent.client_id == self.finisher.client.client_id:
            # Its own, and no longer retried: the epoch has ended since, or there were too many.
            return not self.finisher.is_kept(intent.id)
        if not company.is_gone(intent.client_id):
            return False
        row = company.clients.get(intent.client_id)
        # Not before every request of the client that left it, or of one that claimed it, has taken effect or
        # never will.
        since = max(company.over_at(intent), 0 if row is None else over_at(row))
        return company.now >= since + round(turn * TURN_S * TICKS_PER_SECOND)

    async def _settle(self, intents: list[Intent], permit: Permit) -> int | None:
        """Claim the intents of one key, settle it, and mark them; return how many, None if the service
        failed. What fails is retried by any client once the claim has expired."""
        client, now = self.finisher.client, self.finisher.client.current()
        decides = authority(permit.phase)
        if now is None or decides is None or (now.number, now.epoch) != (permit.number, permit.epoch):
            return 0
        refs = [IntentRef(intent.id, intent.side, intent.key, intent.etag) for intent in intents]
        if client.in_flight.is_writing(refs[:1], begun=True) and self._skipped[refs[0].id] < _MOST_SKIPPED:
            self._skipped[refs[0].id] += 1
            return 0
        attempt_s = min(ATTEMPT_S, client.longest_operation_s)
        open_s = _claim_s(attempt_s, client.max_in_flight_s)
        now = replace(now, sends_until=now.sends_until - client.longest_operation_s + attempt_s)
        try:
            with (
                client.permits.hold(now),
                while_allowed(partial(client.permits.check, now)),
                client.in_flight.settles(refs),
            ):
                async with asyncio.timeout(attempt_s):
                    claimed: list[tuple[Intent, str]] = []
                    for intent in intents:
                        etag = await client.journal.claim(intent, client.client_id, now.epoch, open_s)
                        if etag is not None:
                            claimed.append((intent, etag))
                    if not claimed:
                        return 0
                    done = await self.finisher.reverse.settle(decides, intents[0].side, intents[0].key)
                    client.counters.propagated += 1
                    if done.ambiguous:
                        return 0
                    for intent, etag in claimed:
                        if intent.client_id == client.client_id:
                            await client.journal.end_if(replace(intent, etag=etag))
                        else:
                            # Not removed: the process that left it may only be suspended. The runner removes
                            # it when no request can follow any more.
                            await client.journal.keep(intent.id, etag)
                    return len(claimed)
        except (RekeyError, TimeoutError) as error:
            client.counters.replica_failures += 1
            return None if isinstance(error, ServiceError | TimeoutError) else 0
