"""Step 4 of a write: the conditional writes of the replicas, before the caller has its answer (ADR 0017)."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from rekey.client.flow import Flow
from rekey.client.parts import WIDTH, refused_by
from rekey.client.steps import Decided, Followed, Request, State
from rekey.errors import CredentialRefused, RekeyError, ServiceError
from rekey.mapping.rows import targets_of
from rekey.model import EntityKey
from rekey.protocol.effects import Outcome, apply_for_etags, in_turns, side_by_side
from rekey.protocol.operations import may_take_effect
from rekey.protocol.replicas import Seen, Writes, lacks_main, same_content, transactions
from rekey.protocol.replicas import follow as following_writes
from rekey.tables.base import Verb

_log = logging.getLogger(__name__)


async def follow(flow: Flow) -> None:
    """Write the replicas of all keys, and record the result of each in `flow.followed`. Errors of replicas
    are not raised: the authority has answered, so the intent stays instead."""
    numbers = range(len(flow.decided))
    takes_over = any(decided.pending.takes_over_key for decided in flow.decided)
    # A row that takes over a key goes first: otherwise a reader would miss it there for a moment.
    last = [
        number for number in numbers if takes_over and flow.requests[number].operation.verb is Verb.DELETE
    ]
    for group in ([number for number in numbers if number not in last], last):
        await in_turns([partial(_follow, flow, number, takes_over) for number in group], WIDTH)


async def _follow(flow: Flow, number: int, takes_over: bool) -> None:
    decided = flow.decided[number]
    needs_propagate = takes_over or decided.during.needs_propagate
    if decided.source_key is None:
        # Another client may have claimed the deleted row's key and created it after the owner was read.
        try:
            owner = await _owner_now(flow, decided)
        except RekeyError as error:
            flow.followed[number] = unsettled(flow, decided, error)
            return
        if owner is None:  # a row without an owner has no replicas
            flow.followed[number] = Followed(decided, State.SETTLED)
            return
        decided, needs_propagate = replace(decided, source_key=owner), True
    pending = decided.pending
    pending.keep_intent = pending.keep_intent or _met_another(decided)
    if pending.takes_over_key:  # a claim that passes on stays reserved until propagate has passed it on
        await _write_replicas(flow, number, decided, needs_propagate)
        await _release(flow, decided.write.request, decided, flow.followed[number].state)
    else:
        release_keys = _release(flow, decided.write.request, decided)
        await side_by_side([release_keys, _write_replicas(flow, number, decided, needs_propagate)])


async def _owner_now(flow: Flow, decided: Decided) -> EntityKey | None:
    return await flow.authority.replicas.owner_of(decided.write.request.key)


def _met_another(decided: Decided) -> bool:
    """Tell whether an unfinished write was met: the deleted row had no replica, or the created one had."""
    there = any(
        row is not None and place.table <= 0 and place in decided.during.own
        for place, row in decided.read.items()
    )
    verb = decided.write.request.operation.verb
    return there if verb is Verb.INSERT else verb is Verb.DELETE and not there


async def release(flow: Flow) -> None:
    """Release the reservations of a call that wrote nothing, and will write nothing."""
    await in_turns([partial(_release, flow, request) for request in flow.requests], WIDTH)


async def _release(
    flow: Flow, request: Request, decided: Decided | None = None, moved: State | None = None
) -> None:
    forward = None if decided is None else decided.during.forward
    try:
        await flow.authority.release(request, forward, moved)
    except RekeyError:
        flow.client.counters.replica_failures += 1  # the reservation expires


async def _write_replicas(flow: Flow, number: int, decided: Decided, needs_propagate: bool) -> None:
    pending = decided.pending
    try:
        followed = None if needs_propagate else await _write_conditionally(flow, decided)
        if followed is not None:
            flow.client.counters.fast += 1
        else:
            followed = await propagate(flow, decided)
            pending.view_etag = await flow.etag_after_propagate(decided) or pending.view_etag
    except Exception as error:  # noqa: BLE001 - the write is done: no replica's error may fail it
        followed = unsettled(flow, decided, error)
    flow.followed[number] = followed


async def _write_conditionally(flow: Flow, decided: Decided) -> Followed | None:
    """Write the replicas on the condition of the rows as read; return None when propagate is needed."""
    write, during, pending = decided.write, decided.during, decided.pending
    if write.replicas.expected is None:
        return None
    beside = {place for place, _ in write.secondary_writes}
    expected = {place: row for place, row in write.expected.items() if place not in beside}
    before_write, during_write = (
        {place: row for place, row in rows.items() if place not in beside}
        for rows in (write.replicas.read, during.read)
    )
    following = following_writes(expected, before_write, during_write, during.previous, during.own)
    if following is None:
        return None
    writes, reread = following
    places = flow.authority.replica_places(decided.old_key, targets_of(during.forward))
    unread = places - write.replicas.read.keys() - during.read.keys()

    async def write_group(group: Writes) -> Outcome:
        table = flow.authority.replicas.table(group[0][0].table)
        try:
            outcome, etags = await apply_for_etags(table, [operation for _, operation in group])
        except ServiceError as error:
            pending.ambiguous = pending.ambiguous or may_take_effect(error)
            raise
        # Noted at once: the error of a request beside this one may end the step. An unknown outcome does not
        # hold up the others: propagate writes what is missing now, and the intent stays until the request is
        # over.
        pending.ambiguous = pending.ambiguous or outcome is Outcome.UNKNOWN
        for (place, _), etag in zip(group, etags, strict=True):
            if place == write.place:
                pending.view_etag = etag
        return outcome

    co_located = flow.authority.mapper.co_located
    if co_located and (unread or not await flow.authority.same_list(decided)):
        return None  # there may be a secondary row that is not known
    groups = transactions(writes, co_located)
    seen = {**during_write, **before_write}
    if any(lacks_main(group, seen, co_located) for group in groups):
        return None  # a main row that was not there when read may be there now
    if 0 in flow.authority.mapper.shared and co_located and _may_be_of_former_owner(decided, writes, seen):
        return None
    outcomes = await side_by_side(write_group(group) for group in groups)
    if not all(outcomes):
        return None
    return Followed(decided, State.WRITTEN, reread or bool(unread))


def _may_be_of_former_owner(decided: Decided, writes: Writes, seen: Seen) -> bool:
    """Tell whether a main row to be replaced or deleted may be that of the key's former owner, which has
    secondary rows of its own. `seen`: the rows as read."""
    before = decided.during.previous
    mains = [place for place, operation in writes if place.table == 0 and operation.etag]
    return any(not same_content(before.get(place, {}), seen[place] or {}) for place in mains)


async def propagate(flow: Flow, decided: Decided) -> Followed:
    """Make the replicas of a key equal what the authority says now."""
    done = await flow.authority.replicas.propagate(decided.old_key)
    flow.client.counters.propagated += 1
    decided.pending.ambiguous = decided.pending.ambiguous or done.ambiguous
    return Followed(decided, State.UNSETTLED if decided.pending.ambiguous else State.SETTLED)


def unsettled(flow: Flow, decided: Decided, error: Exception) -> Followed:
    """Record that the replicas of a key could not be made current."""
    counters = flow.client.counters
    counters.replica_failures += 1
    if isinstance(error, CredentialRefused):
        counters.refused += 1
        if counters.refused == 1:  # only an operator can fix it: `rekey status` shows it as well
            refusal = refused_by(error)
            _log.warning(
                "replicas are left behind: %s. Next: %s",
                refusal.what,
                refusal.hint,
                extra={"event": "replicas-behind"},
            )
    decided.pending.ambiguous = decided.pending.ambiguous or may_take_effect(error)
    return Followed(decided, State.UNSETTLED)
