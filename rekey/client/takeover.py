"""Settling what dead clients left in the journal, by any client that lives (ADR 0045).

Rules kept here:

* Every client does this, also one that only reads: each reads the clients' rows and the journal every
  `LOOK_EVERY_S`.
* Nothing is settled while a request of the client that left it, or of one that claimed it, may take effect.
* Turns keep most clients from starting at the same time; a claim keeps two of them from working on one key.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import partial

from rekey.client.finish import Finisher
from rekey.client.lease import Permit
from rekey.client.reading import LeaseSettings
from rekey.client.steps import IntentRef
from rekey.core.clock import TICKS_PER_SECOND
from rekey.errors import RekeyError, ServiceError
from rekey.model import EntityKey
from rekey.protocol.effects import side_by_side
from rekey.protocol.journal import Intent
from rekey.protocol.registry import SAFETY_S, Registry, over_at, settlers
from rekey.protocol.rules import Side, authority, is_settled_by_clients
from rekey.protocol.sweeper import Company
from rekey.tables.allowance import while_allowed

# Seconds between two looks for what dead clients left; each pause is drawn from a fifth less to a fifth more.
LOOK_EVERY_S = 10.0
# A client whose turn is later by one begins so many seconds later: if the first one cannot do it, the next
# one does, and with many clients not all of them begin at the same moment.
TURN_S = 2.0
LAST_TURN = 15
# For how many seconds a key may be worked on. Short, because others wait for this if the client that claimed
# the key dies.
ATTEMPT_S = 10.0
_AT_ONCE = 8
_LEAST_PAUSE, _MOST_PAUSE = 0.8, 1.2
# Most intents that are collected in one look, and most of one key that are claimed in one attempt.
_MOST, _MOST_OF_A_KEY = 1_000, 20
# After so many looks at which this client was writing a key, the key is settled all the same.
_MOST_SKIPPED = 5


def pause_s(draw: float) -> float:
    """Return how many seconds pass until the next look. `draw`: of [0, 1)."""
    return LOOK_EVERY_S * (_LEAST_PAUSE + (_MOST_PAUSE - _LEAST_PAUSE) * draw)


def settled_within_s(settings: LeaseSettings, *, killed: int = 1) -> float:
    """Return within how many seconds after a kill a live client has begun to settle what the killed one left,
    while the services answer.

    Args:
        settings: of all clients.
        killed: how many clients were killed: the first one, and `killed - 1` others, each of which had just
            claimed what the first one left.
    """
    # The last beat of the killed client may have landed `late_s` after the kill.
    dead = settings.late_s + settings.lease_s + settings.longest_operation_s + SAFETY_S
    look = _MOST_PAUSE * LOOK_EVERY_S + _MOST_PAUSE * settings.poll_s
    # Clients that were killed, and look live for a while, each take a turn that nobody uses.
    turns = TURN_S * killed * (killed - 1) / 2
    return dead + killed * look + turns + (killed - 1) * _claim_s(ATTEMPT_S, settings.late_s)


def _claim_s(attempt_s: float, late_s: float) -> float:
    """Return for how many seconds a claim holds: what is sent at the end of the attempt takes effect within
    `late_s`."""
    return attempt_s + late_s + SAFETY_S


@dataclass(frozen=True, slots=True)
class Taken:
    """What one look came to.

    Attributes:
        settled: intents that were settled.
        more: whether there were more than one look collects, and some were settled: look again at once.
    """

    settled: int = 0
    more: bool = False


@dataclass(eq=False, repr=False)
class TakeOver:
    """Settles for one client what dead clients left.

    Attributes:
        finisher: the client's leftovers, which are settled there.
    """

    finisher: Finisher
    _skipped: Counter[EntityKey] = field(default_factory=Counter, init=False)

    async def look(self, registry: Registry) -> Taken:
        """Settle what is due for this client.

        Raises:
            RekeyError: the clients' rows or the journal could not be read.
        """
        client = self.finisher.client
        permit = client.current()
        reverse = client.propagator.mapper.reversible
        if permit is None or not is_settled_by_clients(permit.phase, reverse=reverse):
            return Taken()
        rows = await registry.list()
        own = next((row for row in rows if row.client_id == client.client_id), None)
        if own is None:
            return Taken()  # the client ends
        # The time of the own row is the service's, as of the last beat.
        company = Company.of(rows, own.beat_at, usual_s=own.longest_s)
        order = [row.client_id for row in settlers(rows, own.beat_at)]
        turn = order.index(client.client_id) if client.client_id in order else LAST_TURN
        return await self.settle(company, min(turn, LAST_TURN), permit)

    async def settle(self, company: Company, turn: int, permit: Permit) -> Taken:
        """Settle what clients left that are gone.

        Args:
            company: the clients of the migration, as read before this call.
            turn: how many other clients begin before this one.
            permit: what the control row says; nothing is begun under another epoch.

        Raises:
            RekeyError: the journal could not be read.
        """
        client = self.finisher.client
        due: defaultdict[tuple[Side, str, str], list[Intent]] = defaultdict(list)
        count = 0
        async for intents in client.journal.scan():
            for one in intents:
                if count < _MOST and self._is_due(one, company, turn):
                    due[one.side, *one.key].append(one)
                    count += 1
            if count >= _MOST:
                break
        groups = [some[:_MOST_OF_A_KEY] for some in due.values()]
        self._skipped = Counter({one.id: self._skipped[one.id] for some in groups for one in some})
        settled = 0
        for start in range(0, len(groups), _AT_ONCE):
            some = groups[start : start + _AT_ONCE]
            counts = await side_by_side(self._settle(one, permit) for one in some)
            settled += sum(filter(None, counts))
            if all(one is None for one in counts):
                break  # the service fails: not everybody keeps on asking it
        return Taken(settled, more=count >= _MOST and settled > 0)

    def _is_due(self, intent: Intent, company: Company, turn: int) -> bool:
        if intent.settled or company.is_young(intent):
            return False
        if intent.client_id == self.finisher.client.client_id:
            # Its own, and nobody tries it any more: the epoch has ended since, or there were too many.
            return not self.finisher.is_kept(intent.id)
        if not company.is_gone(intent.client_id):
            return False
        row = company.clients.get(intent.client_id)
        since = max(company.over_at(intent), 0 if row is None else over_at(row))
        return company.now >= since + round(turn * TURN_S * TICKS_PER_SECOND)

    async def _settle(self, intents: list[Intent], permit: Permit) -> int | None:
        """Claim the intents of one key, settle it, and mark them.

        What fails is tried again by whoever comes first once the claim is over.

        Returns:
            How many were marked; None: the service failed.
        """
        client, now = self.finisher.client, self.finisher.client.current()
        decides = authority(permit.phase)
        if now is None or decides is None or (now.number, now.epoch) != (permit.number, permit.epoch):
            return 0
        refs = [IntentRef(one.id, one.side, one.key) for one in intents]
        if client.in_flight.is_writing(refs[:1], begun=True) and self._skipped[refs[0].id] < _MOST_SKIPPED:
            self._skipped[refs[0].id] += 1
            return 0
        attempt_s = min(ATTEMPT_S, client.longest_operation_s)
        open_s = _claim_s(attempt_s, client.late_s)
        now = replace(now, sends_until=now.sends_until - client.longest_operation_s + attempt_s)
        try:
            with (
                client.permits.hold(now),
                while_allowed(partial(client.permits.check, now)),
                client.in_flight.settles(refs),
            ):
                async with asyncio.timeout(attempt_s):
                    claimed: list[tuple[Intent, str]] = []
                    for one in intents:
                        etag = await client.journal.claim(one, client.client_id, now.epoch, open_s)
                        if etag is not None:
                            claimed.append((one, etag))
                    if not claimed:
                        return 0
                    done = await self.finisher.reverse.settle(decides, intents[0].side, intents[0].key)
                    client.counters.propagated += 1
                    if done.open:
                        return 0
                    for one, etag in claimed:
                        if one.client_id == client.client_id:
                            await client.journal.end_if(replace(one, etag=etag))
                        else:
                            # Not removed: the process that left it may only be suspended. The runner knows
                            # when nothing can come of it any more.
                            await client.journal.keep(one.id, etag)
                    return len(claimed)
        except (RekeyError, TimeoutError) as error:
            client.counters.replica_failures += 1
            return None if isinstance(error, ServiceError | TimeoutError) else 0
