"""Dual writes with one of its rules (ADR 0017) switched off, to see the search find what it is there for.

Rules kept here:

* Exactly one rule is off in each; everything else is the program's own code, not a copy of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any
from unittest import mock

from rekey.client import replicas, route, send, source_authority, target_authority
from rekey.client.authority import Authority
from rekey.client.flow import Flow
from rekey.client.parts import ClientParts
from rekey.client.reservations import Reservations
from rekey.client.route import Writer
from rekey.client.source_authority import SourceAuthority
from rekey.client.steps import Decided, Draft, During, Followed, Prepared, State, targets_of
from rekey.client.target_authority import TargetAuthority
from rekey.core.joint import own_row
from rekey.declaration.row_makers import IndexMaker
from rekey.errors import Ambiguous
from rekey.mapping.rows import Forward, Owner, TargetKey
from rekey.mapping.store import MappingStore
from rekey.model import EntityKey, Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol import effects, propagate
from rekey.protocol.journal import IntentRef, Journal
from rekey.protocol.operations import FULL, as_sent, may_take_effect
from rekey.protocol.propagate import Propagated, Propagator
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import Route, Side, View
from rekey.protocol.rules import route as _route
from rekey.runner import clients
from rekey.runner.phases import cutover
from rekey.tables.base import Operation, Table, Verb
from tests.simulation import small


class LateIntents(Journal):
    """Says that intents are durable when they are only on their way."""

    async def begin(
        self, client_id: str, epoch: int, side: Side, keys: Sequence[EntityKey]
    ) -> list[IntentRef]:
        rows = [self._row(client_id, epoch, side, key) for key in keys]
        self.on_their_way = [asyncio.ensure_future(self.table.insert(row)) for row in rows]
        return [IntentRef(key_of(row), side, key, "*") for row, key in zip(rows, keys, strict=True)]


class ForgetsOpenWrites(Writer):
    """Removes the intent of a write whose outcome nobody knows, as if nothing had been sent."""

    def __init__(self, client: ClientParts) -> None:
        super().__init__(client)
        give_up = self.finisher.give_up

        def forgets(flow: Flow) -> None:
            flow.sent = False
            for request in flow.requests:
                request.pending.ambiguous = False
            give_up(flow)

        self.finisher.give_up = forgets  # type: ignore[method-assign]


@contextmanager
def pointers_without_tables() -> Iterator[None]:
    """Let index rows point to a key, whatever the table of the main row."""
    make_all = IndexMaker.make_all

    def points_to_key(self: IndexMaker, row: Row, main: Row) -> list[Row]:
        return make_all(self, row, own_row(main))

    with (
        mock.patch.object(IndexMaker, "make_all", points_to_key),
        mock.patch.dict(small._mappers, clear=True),  # they remember rows as the program makes them
    ):
        yield


@contextmanager
def everything_is_in_the_part() -> Iterator[None]:
    """Follow the rows beside the part of the table that is migrated, too."""
    with (
        mock.patch.object(ClientParts, "is_outside", lambda *_: False),
        mock.patch.object(small, "part_of", lambda table, _: table),
    ):
        yield


@contextmanager
def the_last_error_tells_what_is_open() -> Iterator[None]:
    """Take the error that ended the replicas for the outcome of all their requests."""

    async def propagate(self: Propagator, source_key: EntityKey, **more: Any) -> Propagated:
        try:
            return await _propagate(self, source_key, **more)
        except Ambiguous as error:
            raise error.__cause__ or error from None

    def unsettled(_flow: Flow, decided: Decided, error: Exception) -> Followed:
        decided.pending.ambiguous = may_take_effect(error)
        return Followed(decided, State.UNSETTLED)

    with (
        mock.patch.object(Propagator, "propagate", propagate),
        mock.patch.object(replicas, "unsettled", unsettled),
    ):
        yield


def main_rows_alone_after_complete() -> Any:
    """Write the main target alone as soon as the migration is complete."""

    def plainly(phase: ControlPhase | None, view: View, **more: Any) -> Route:
        return _route(phase, view, **{**more, "maintained": False})

    return mock.patch.object(route, "route", plainly)


def rows_of_no_kind_follow_the_target() -> Any:
    """Take the absence of a target row for the deletion of a source row that no kind takes."""
    expected_of = ReversePropagator.expected_of

    async def nothing_without_a_row(
        self: ReversePropagator, source_key: EntityKey, authority: Row | None, source_row: Row | None = None
    ) -> Any:
        return {} if authority is None else await expected_of(self, source_key, authority, source_row)

    return mock.patch.object(ReversePropagator, "expected_of", nothing_without_a_row)


def rows_of_no_kind_leave_traces() -> Any:
    """Send the delete of a row without replicas again if the journal announces no other write."""
    return mock.patch.object(send, "_leaves_no_trace", lambda *_: False)


def unconditional() -> Any:
    """Replace and delete replica rows whatever is there."""

    async def apply_for_etags(table: Table, operations: Sequence[Operation]) -> Any:
        freed = [one if one.verb is Verb.INSERT else replace(one, etag="*") for one in operations]
        return await _apply_for_etags(table, freed)

    return _in((propagate, replicas), "apply_for_etags", apply_for_etags)


def no_wait_for_what_is_late() -> Any:
    """Send a write that was not answered again at once, although the first may yet take effect."""
    return _always(ClientParts, "wait_out", None)


def content_is_proof() -> Any:
    """Take a row that holds what was written for this client's own write."""
    return _always(send, "_evidence", send.Evidence.OURS)


def journal_is_not_asked() -> Any:
    """Do not look whether another write of the row is under way."""
    return _always(send, "_is_announced", False)


def replicas_are_not_asked() -> Any:
    """Do not look whether another write of the row has been done."""
    return _always(send, "_of_replicas", send.Evidence.OURS)


def nothing_lingers() -> Any:
    """Remove the intent at once of a write that met an unfinished one."""
    return mock.patch.object(replicas, "_met_another", lambda _decided: False)


def owner_is_read_once() -> Any:
    """Do not look again for the owner of a row that was deleted."""
    return _always(replicas, "_owner_now", None)


def no_last_look() -> Any:
    """Do not look at the authority again after the replicas were written."""
    return _always(Authority, "is_settled", True)


@contextmanager
def new_owners_unseen() -> Iterator[None]:
    """Do not look, after a delete, whether the main key has passed to another row meanwhile."""

    async def propagate(self: Propagator, source_key: EntityKey, *, announced: bool = True) -> Propagated:
        tally = self.tally(source_key, announced=announced)
        await self._propagate_key(source_key, tally)
        return await tally.result()

    def given_up(_self: Authority, _decided: Decided) -> set[EntityKey]:
        return set()

    with (
        mock.patch.object(Propagator, "propagate", propagate),
        mock.patch.object(Authority, "given_up", given_up),
    ):
        yield


def no_round_after_insert() -> Any:
    """Take a round of propagate that inserted for the last one, if the authority did not change."""
    return mock.patch.object(propagate, "needs_another_round", lambda _writes: False)


def unlisted() -> Any:
    """Write rows under target keys that the forward row does not list."""
    return _always(Authority, "_extend", None)


def unclaimed() -> Any:
    """Write rows under main target keys that nobody has claimed."""

    async def find_owner(self: Authority, draft: Draft, main: EntityKey, *, claims: bool) -> None:
        draft.mapping.owner = draft.source_key

    return mock.patch.object(Authority, "find_owner", find_owner)


@contextmanager
def reads_after() -> Iterator[None]:
    """Take rows that were read during the write of the authority for rows read before it."""

    async def read(self: Authority, draft: Draft, places: Any) -> None:
        pass

    async def while_writing(self: Authority, write: Prepared, during: During) -> None:
        await _while_writing(self, write, during)
        await self.read_during_write(write, during, {*targets_of(during.forward), *write.expected})
        write.replicas.read.update(during.read)  # type: ignore[attr-defined]

    with mock.patch.multiple(Authority, read=read, while_writing=while_writing):
        yield


@contextmanager
def stale_list() -> Iterator[None]:
    """Look for the row of an old key where the mapping listed it before the replicas were read."""
    listed: ContextVar[Forward | None] = ContextVar("listed", default=None)

    async def propagate(self: ReversePropagator, source_key: EntityKey, **_more: Any) -> Propagated:
        listed.set(await self.mapping.forward(source_key))
        return await _propagate_back(self, source_key)

    async def authority(self: ReversePropagator, source_key: EntityKey) -> Row | None:
        return await self.authority(listed.get() or await self.mapping.forward(source_key))

    with mock.patch.multiple(ReversePropagator, propagate=propagate, _authority=authority):
        yield


def claims_alone_say_whose_a_row_is() -> Any:
    """Do not ask the row itself which old key it stands for."""

    async def holder(self: ReversePropagator, row: Row) -> EntityKey | None:
        return await self.owner_of(key_of(row))

    return mock.patch.object(ReversePropagator, "holder", holder)


def index_rows_of_former_owners_stay() -> Any:
    """An index row that points to a key of another row is always that row's."""
    return _always(Propagator, "_is_unowned", False)


def claims_alone_say_whose_a_replica_is() -> Any:
    """Who has claimed a main key has the row under it, also before the key is listed."""

    async def row_owner(
        _self: Propagator, _source_key: EntityKey, _main: EntityKey, claim: Owner | None
    ) -> Any:
        return claim and claim.source

    return mock.patch.object(Propagator, "_row_owner", row_owner)


def claims_say_whose_a_passing_row_is() -> Any:
    """After cutover the claim of a main key says whose the rows beside it are, also while it passes on."""
    return mock.patch.object(ReversePropagator, "_row_owner", Propagator._row_owner)


def secondary_rows_of_former_owners_stay() -> Any:
    """A main row that passes on is replaced alone."""
    return _always(Propagator, "_former_secondary", [])


def main_rows_pass_on_alone() -> Any:
    """A client takes a main row that it met for its own, with the secondary rows that it knows."""
    return mock.patch.object(replicas, "_may_be_of_former_owner", lambda *_: False)


def deletes_believe_the_claim() -> Any:
    """Whose a row to be deleted is says the claim that was read beside it, which may be older."""

    async def holder_now(_self: TargetAuthority, _before: Any, _named: Any, owner: EntityKey | None) -> Any:
        return owner

    return mock.patch.object(TargetAuthority, "_holder_now", holder_now)


def moved_keys_stay_reserved() -> Any:
    """The reservation of a key that passed on from a row of the same call is left to expire."""
    release = Reservations._release

    async def kept(self: Reservations, request: Any, target: TargetKey, moved: State | None) -> None:
        await release(self, request, target, moved and State.UNSETTLED)

    return mock.patch.object(Reservations, "_release", kept)


def no_reservations() -> Any:
    """Make rows under new main keys without reserving them."""

    async def reserve(self: TargetAuthority, draft: Draft, target: TargetKey) -> None:
        await self._list(draft, target)

    return mock.patch.object(TargetAuthority, "_reserve", reserve)


@contextmanager
def no_target_key_reservations() -> Iterator[None]:
    """Claim target keys without reserving them: the claim of a row that is being created passes on."""

    async def take(self: MappingStore, source_key: EntityKey, target: TargetKey, owner: Any, *_: Any) -> Any:
        claimed = await _take(self, source_key, target, owner)
        return claimed if target.table == 0 else Owner(source_key, "")

    async def is_new(_self: Authority, _draft: Draft, target: TargetKey) -> bool:
        return target.table == 0

    with (
        mock.patch.object(MappingStore, "take", take),
        mock.patch.object(SourceAuthority, "is_new", is_new),
        mock.patch.object(TargetAuthority, "is_new", is_new),
    ):
        yield


def reservations_are_not_waited_for() -> Any:
    """Take over a claim although a write that reserved it may yet take effect."""
    return mock.patch.object(MappingStore, "is_over", lambda *_: True)


def reservations_never_end() -> Any:
    """Take every reservation for one of a write that may yet take effect."""
    return mock.patch.object(MappingStore, "is_over", lambda *_: False)


def owners_keep_their_keys() -> Any:
    """Take every owner of a target key for one whose row stands under it."""

    async def require_free(
        self: MappingStore, source_key: EntityKey, target: TargetKey, owner: Owner | None, _: Any
    ) -> None:
        if owner is not None and owner.source != source_key:
            raise self.collision(target, owner.source, source_key)

    return mock.patch.object(MappingStore, "require_free", require_free)


def own_claims_are_not_reserved() -> Any:
    """Take a claim of the same source key for enough, and reserve only what is claimed anew."""

    async def claim_to_take(self: Reservations, draft: Draft, target: TargetKey) -> Owner | None:
        owner = await _claim_to_take(self, draft, target)
        if owner is not None and owner.source == draft.old_key:
            draft.pending.reserved.setdefault(target, owner)
        return owner

    return mock.patch.object(Reservations, "_claim_to_take", claim_to_take)


def claims_reserved_for_others_are_taken() -> Any:
    """Take a claim that names the own source key, also where a transaction reserved it for another one."""

    async def claim_early(self: Reservations, draft: Draft, target: TargetKey, seen: Owner | None) -> Any:
        return await _claim_early(self, draft, target, seen and seen._replace(reserved=None))

    return mock.patch.object(Reservations, "_claim_early", claim_early)


def upserts_are_sent_as_given() -> Any:
    """Send an upsert without a condition: it may create a row for which no key was reserved."""

    def sent(operation: Operation, before: Row | None) -> Operation:
        return operation if operation.verb in FULL else as_sent(operation, before)

    return _in((source_authority, target_authority), "as_sent", sent)


def index_keys_are_not_claimed() -> Any:
    """Look only at the index rows that are there, not at who is about to write one."""

    async def reserve(self: Reservations, draft: Draft, target: TargetKey, still_owns: Any) -> None:
        if target.table == 0:
            await _reserve(self, draft, target, still_owns)

    return mock.patch.multiple(Reservations, reserve=reserve, reserves_early=lambda *_: [])


def heirs_are_not_asked() -> Any:
    """Ask only the owner of a claim, not the row that is taking its place."""
    return mock.patch.object(Owner, "claimants", property(lambda self: (self.source,)))


async def nothing_moved(*_: Any, **__: Any) -> int:
    """Look at no row again that was written while it was copied."""
    return 0


def no_waiting() -> Any:
    """Move on without waiting for clients; those that went silent are waited for before a freeze."""

    async def wait(*given: Any, missing: Any = None) -> int:
        return 1 if missing is None else await _wait_for_clients(*given, missing=missing)

    return _in((clients, cutover), "wait_for_clients", wait)


def no_draining() -> Any:
    """Move the authority while intents are left."""
    return _always(cutover, "drain", 0)


def _always(owner: Any, name: str, answer: Any) -> Any:
    """Put a coroutine that does nothing and returns `answer` in place of one of the program."""

    async def answers(*_args: object, **_kwargs: object) -> Any:
        return answer

    return mock.patch.object(owner, name, answers)


@contextmanager
def _in(modules: Sequence[Any], name: str, thing: Callable[..., Any] | Awaitable[Any]) -> Iterator[None]:
    before = [getattr(module, name) for module in modules]
    for module in modules:
        setattr(module, name, thing)
    try:
        yield
    finally:
        for module, was in zip(modules, before, strict=True):
            setattr(module, name, was)


_apply_for_etags = effects.apply_for_etags
_claim_early = Reservations._claim_early
_claim_to_take = Reservations._claim_to_take
_reserve = Reservations.reserve
_take = MappingStore.take
_propagate = Propagator.propagate
_propagate_back = ReversePropagator.propagate
_wait_for_clients = clients.wait_for_clients
_while_writing = Authority.while_writing
