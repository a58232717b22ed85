"""The rules against late requests, second runners and wrong clocks, switched off one by one.

Rules kept here:

* Exactly one rule is off in each; everything else is the program's own code, not a copy of it.
* What a rule is made of is replaced in every module that imported it by its name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from rekey.core.clock import ticks_of
from rekey.mapping.computed import ComputedMapping
from rekey.model import EntityKey
from rekey.protocol import journal
from rekey.protocol.journal import IntentRef, Journal
from rekey.protocol.lease import Holder
from rekey.protocol.sweeper import Company
from rekey.runner import remaining, session
from rekey.runner.clients import RUNNER
from rekey.runner.phases import cutover
from rekey.state.models import Verification
from rekey.status import facts
from rekey.tables.base import Operation
from tests.fakes.memory import MemoryTable
from tests.simulation import repeatable
from tests.simulation.storm import Storm, StormService


@contextmanager
def same_host_is_same_machine() -> Iterator[None]:
    """Tell holders of a lease apart by host, boot, process id and path alone: all that a lock file, and the
    name space of its process, say besides is the same for everybody."""

    def alike(lock: str) -> Holder:
        return replace(_at_the_same_path(lock), lock="the same", namespace="the same")

    with mock.patch.object(repeatable, "at_the_same_path", alike):
        yield


def no_quiet() -> Any:
    """Move the authority, drop tables and make them while requests of earlier runners, and one's own, may be
    under way."""

    async def until_quiet(_run: object) -> None:
        return

    return _everywhere("rekey.runner.clients", "until_quiet", until_quiet)


def marks_stay() -> Any:
    """Drop targets while a mark still says that they are this migration's (`ComputedMapping`)."""

    async def disown(_mapping: ComputedMapping) -> None:
        return

    return mock.patch.object(ComputedMapping, "disown", disown)


def repeats_open_writes() -> Any:
    """Send a write again that others may have written behind, and take what is there then for a proof."""

    def multi_writer_table(self: StormService, name: str) -> MemoryTable:
        return self.table(name)

    return mock.patch.object(StormService, "multi_writer_table", multi_writer_table)


class Unannounced(Journal):
    """Announces nothing of what the runner writes to replicas."""

    async def begin(self, client_id: str, *given: Any) -> list[IntentRef]:
        return [] if client_id == RUNNER else await super().begin(client_id, *given)


def removes_intents_whatever_they_are() -> Any:
    """Remove an intent also if it was written again since: by a request that was not answered, say."""

    def removal(intent_id: EntityKey, _etag: str) -> Operation:
        return _removal(intent_id, "*")

    return mock.patch.object(journal, "_removal", removal)


def not_asked_again() -> Any:
    """Send what was decided long ago without asking whether it may still be sent."""
    return mock.patch.object(Storm, "asks_again", False)


def repeated_by_connections() -> Any:
    """Let connections send PUT and DELETE a second time, and answer with what became of that."""
    return mock.patch.object(Storm, "repeats_unseen", True)


def given_up_is_over() -> Any:
    """Settle the intents of a client that was given up once, and forget them: as if nothing of it could be
    sent any more. A rollback finds a deleted row in its sample of the target: that is off as well."""

    async def not_heard_of(*_: object) -> None:
        return

    async def none(*_: object) -> list[object]:
        return []

    stack = _everywhere("rekey.runner.clients", "heard_of_until", not_heard_of)
    stack.enter_context(mock.patch.object(remaining, "_without_source", none))
    stack.enter_context(mock.patch.object(Company, "keeps", lambda *_: False))
    return stack


def by_the_machines_clock() -> Any:
    """Tell what came first, a verification or a rollback, by the clock of the machine that did it. A rollback
    also ends the force of verifications in the control row: that is off as well."""

    def by_time(last: Verification | None, *given: Any, **more: Any) -> str:
        timed = None if last is None else replace(last, number=ticks_of(last.started_at))
        return problem(timed, *given, **{**more, "control": None})

    problem = facts.verification_problem
    stack = _everywhere("rekey.status.facts", "verification_problem", by_time)
    stack.enter_context(mock.patch.object(cutover, "last_number", lambda run: run.clock.ticks()))
    stack.enter_context(mock.patch.object(session, "ServiceClock", lambda _told, clock: clock))
    return stack


def _everywhere(module: str, name: str, thing: Any) -> ExitStack:
    """Replace something in every module of the program that has it. A program without it has no such rule."""
    stack = ExitStack()
    try:
        original = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return stack
    for other in [held for key, held in sys.modules.items() if key.startswith("rekey.")]:
        if getattr(other, name, None) is original:
            stack.enter_context(mock.patch.object(other, name, thing))
    return stack


_removal = journal._removal
_at_the_same_path = repeatable.at_the_same_path
