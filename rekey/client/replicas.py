"""Step 4 of a write: the conditional writes of the replicas, before the caller has its answer.

Rules kept here (ADR 0017):

* Once the authority has answered, no error of a replica fails the call: the intent stays instead.
"""

from __future__ import annotations

from functools import partial

from rekey.client.authority import Flow
from rekey.client.work import WIDTH, State, Work
from rekey.errors import Ambiguous, ServiceError
from rekey.mapping.rows import TargetKey
from rekey.protocol.effects import Outcome, apply_for_etag, in_turns, side_by_side
from rekey.protocol.operations import may_travel
from rekey.protocol.replicas import follow as following_writes
from rekey.tables.base import Operation


async def follow(flow: Flow) -> None:
    """Write the replicas of all keys. Errors of replicas are not raised."""
    await in_turns([partial(_follow, flow, work) for work in flow.works], WIDTH)


async def _follow(flow: Flow, work: Work) -> None:
    if work.source_key is None:
        work.state = State.SETTLED
        return
    await side_by_side([_release(flow, work), _write_replicas(flow, work)])


async def release(flow: Flow) -> None:
    """Give up the reservations of a call: it wrote nothing, and will write nothing."""
    await in_turns([partial(_release, flow, work) for work in flow.works], WIDTH)


async def _release(flow: Flow, work: Work) -> None:
    try:
        await flow.authority.release(work)
    except ServiceError:
        flow.client.counters.replica_failures += 1  # the reservation ends by time


async def _write_replicas(flow: Flow, work: Work) -> None:
    try:
        if await _write_conditionally(flow, work):
            flow.client.counters.fast += 1
            work.state = State.FOLLOWED
        else:
            await propagate(flow, work)
            await flow.after_propagate(work)
    except Exception as error:  # noqa: BLE001 - the write is done: no error of a replica may fail it
        leave(flow, work, error)


async def _write_conditionally(flow: Flow, work: Work) -> bool:
    """Write the replicas on the condition of the rows as read; return False when propagate is needed."""
    if work.slow or work.expected is None:
        return False
    following = following_writes(work.expected, work.early, work.late, work.previous, work.ours)
    if following is None:
        return False
    writes, look_again = following
    unread = flow.authority.followers(work) - work.early.keys() - work.late.keys()
    work.look_again = look_again or bool(unread)

    async def write(place: TargetKey, operation: Operation) -> Outcome:
        try:
            outcome, etag = await apply_for_etag(flow.authority.replicas.table(place.table), operation)
        except ServiceError as error:
            work.open = work.open or may_travel(error)
            raise
        if place == work.place:
            work.view_etag = etag
        return outcome

    outcomes = await side_by_side(write(*one) for one in writes)
    if Outcome.OPEN in outcomes:
        raise Ambiguous("a replica's write may yet happen")
    return all(outcomes)


async def propagate(flow: Flow, work: Work) -> None:
    """Make the replicas of a key equal what the authority says now."""
    done = await flow.authority.replicas.propagate(work.old_key)
    flow.client.counters.propagated += 1
    work.open = work.open or done.open
    work.state = State.LEFT if work.open else State.SETTLED


def leave(flow: Flow, work: Work, error: Exception) -> None:
    """Note that the replicas of a key could not be made current."""
    flow.client.counters.replica_failures += 1
    work.open = work.open or may_travel(error)
    work.state = State.LEFT
