"""Step 4 of a write: the conditional writes of the replicas, before the caller has its answer.

Rules kept here (ADR 0017):

* Once the authority has answered, no error of a replica fails the call: the intent stays instead.
* The owner of a row that was deleted is read again after the delete, if there was none before it.
* A credential that a replica refuses does not mend itself: the application's log says so once, and
  `rekey status` as long as the client lives.
"""

from __future__ import annotations

import logging
from functools import partial

from rekey.client.authority import Flow
from rekey.client.work import WIDTH, State, Work, refused_by
from rekey.errors import CredentialRefused, ServiceError
from rekey.protocol.effects import Outcome, apply_for_etags, in_turns, side_by_side
from rekey.protocol.operations import may_travel
from rekey.protocol.replicas import Writes, lacks_main, transactions
from rekey.protocol.replicas import follow as following_writes
from rekey.tables.base import Verb

_log = logging.getLogger(__name__)


async def follow(flow: Flow) -> None:
    """Write the replicas of all keys. Errors of replicas are not raised."""
    works, last = flow.works, list[Work]()
    if any(work.moves for work in works):
        for work in works:
            work.slow = True
        # A row that takes a key first: otherwise it would be missed under that key for a moment.
        last = [work for work in works if work.given.verb is Verb.DELETE]
        works = [work for work in works if work.given.verb is not Verb.DELETE]
    for some in (works, last):
        await in_turns([partial(_follow, flow, work) for work in some], WIDTH)


async def _follow(flow: Flow, work: Work) -> None:
    if work.source_key is None and not await _has_owner_now(flow, work):
        return
    work.lingers = work.lingers or _met_another(work)
    if work.moves:  # a claim that passes on with the row is reserved until propagate has passed it on
        await _write_replicas(flow, work)
        await _release(flow, work)
    else:
        await side_by_side([_release(flow, work), _write_replicas(flow, work)])


async def _has_owner_now(flow: Flow, work: Work) -> bool:
    """Look again for the owner of a row that was deleted: another client may have claimed its key and made it
    after the owner was looked for. A row without an owner has no replicas."""
    try:
        work.source_key = await flow.authority.replicas.owner_of(work.key)
    except ServiceError as error:
        leave(flow, work, error)
        return False
    work.slow = True
    if work.source_key is None:
        work.state = State.SETTLED
    return work.source_key is not None


def _met_another(work: Work) -> bool:
    """Tell whether a write has met an unfinished one: the row that it deleted had no replica, or the one that
    it created had one."""
    rows = {**work.late, **work.early}
    there = any(row is not None and place.table <= 0 and place in work.ours for place, row in rows.items())
    return there if work.given.verb is Verb.INSERT else work.given.verb is Verb.DELETE and not there


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
    expected, early, late = dict(work.expected), dict(work.early), dict(work.late)
    for place, _ in work.along:
        for rows in (expected, early, late):
            rows.pop(place, None)
    following = following_writes(expected, early, late, work.previous, work.ours)
    if following is None:
        return False
    writes, look_again = following
    unread = flow.authority.followers(work) - work.early.keys() - work.late.keys()
    work.look_again = look_again or bool(unread)

    async def write(group: Writes) -> Outcome:
        table = flow.authority.replicas.table(group[0][0].table)
        try:
            outcome, etags = await apply_for_etags(table, [operation for _, operation in group])
        except ServiceError as error:
            work.open = work.open or may_travel(error)
            raise
        for (place, _), etag in zip(group, etags, strict=True):
            if place == work.place:
                work.view_etag = etag
        return outcome

    together = flow.authority.mapper.together
    if together and (unread or not await flow.authority.same_list(work)):
        return False  # a secondary row that is not known may stand there
    groups = transactions(writes, together)
    seen = {**late, **early}
    if any(lacks_main(group, seen, together) for group in groups):
        return False  # it came after what was read: a main row that was not there may be there now
    outcomes = await side_by_side(write(group) for group in groups)
    # One that may yet happen does not keep the others waiting: propagate writes what is missing now, and the
    # intent stays until it is over.
    work.open = work.open or Outcome.OPEN in outcomes
    return all(outcomes)


async def propagate(flow: Flow, work: Work) -> None:
    """Make the replicas of a key equal what the authority says now."""
    done = await flow.authority.replicas.propagate(work.old_key)
    flow.client.counters.propagated += 1
    work.open = work.open or done.open
    work.state = State.LEFT if work.open else State.SETTLED


def leave(flow: Flow, work: Work, error: Exception) -> None:
    """Note that the replicas of a key could not be made current."""
    counters = flow.client.counters
    counters.replica_failures += 1
    if isinstance(error, CredentialRefused):
        counters.refused += 1
        if counters.refused == 1:
            said = refused_by(error)
            _log.warning(
                "replicas are left behind: %s. Next: %s",
                said.what,
                said.hint,
                extra={"event": "replicas-behind"},
            )
    work.open = work.open or may_travel(error)
    work.state = State.LEFT
