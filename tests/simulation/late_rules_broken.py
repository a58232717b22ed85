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
from dataclasses import fields, replace
from typing import Any
from unittest import mock

from rekey.dualwrite.journal import Journal
from rekey.runner.lease import Holder
from rekey.tables.memory import MemoryTable
from tests.simulation import repeatable
from tests.simulation.storm import Storm, StormService

_OF_A_PATH = frozenset({"host", "boot", "pid", "process", "state"})


@contextmanager
def same_host_is_same_machine() -> Iterator[None]:
    """Tell holders of a lease apart by host, boot, process id and path alone: all that a lock file, and the
    name space of its process, say besides is the same for everybody."""

    def alike(*given: Any) -> Holder:
        holder = _at_the_same_path(*given)
        more = {one.name: 0 for one in fields(holder) if one.name not in _OF_A_PATH}
        return replace(holder, **more)

    with mock.patch.object(repeatable, "at_the_same_path", alike):
        yield


def no_quiet() -> Any:
    """Move the authority, drop tables and make them while requests of earlier runners, and one's own, may be
    under way."""

    async def quiet(*_: Any, **__: Any) -> None:
        return

    return _everywhere("rekey.runner.quiet", "quiet", quiet)


def repeats_open_writes() -> Any:
    """Send a write again that others may have written behind, and take what is there then for a proof."""

    def shared(self: StormService, name: str) -> MemoryTable:
        return self.table(name)

    return mock.patch.object(StormService, "shared", shared)


class Untouched(Journal):
    """Leaves an intent as old as it was when its key is worked on again."""

    async def touch(self, *_: Any, **__: Any) -> None:
        return


def not_asked_again() -> Any:
    """Send what was decided long ago without asking whether it may still be sent."""
    return mock.patch.object(Storm, "asks_again", False)


def repeated_by_connections() -> Any:
    """Let connections send PUT and DELETE a second time, and answer with what became of that."""
    return mock.patch.object(Storm, "repeats_unseen", True)


def given_up_is_over() -> Any:
    """Settle the intents of a client that was given up once, and forget them: as if nothing of it could be
    sent any more."""

    async def nothing_kept(*_: Any, **__: Any) -> frozenset[str]:
        return frozenset()

    return _everywhere("rekey.runner.intents", "given_up", nothing_kept)


def by_the_machines_clock() -> Any:
    """Tell what came first, a verification or a way back, by the clock of the machine that did it."""
    return _everywhere("rekey.runner.facts", "is_behind_the_way_back", _always)


def _always(*_: Any, **__: Any) -> bool:
    return True


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


_at_the_same_path = repeatable.at_the_same_path
