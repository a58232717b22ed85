"""The protection against late workers with one of its rules switched off, to see the search find the loss.

Rules kept here:

* Exactly one rule is off in each; everything else is the program's own code, not a copy of it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest import mock

from rekey.copy.workers import fence
from rekey.copy.workers.fence import Fence
from rekey.protocol.term import Term
from rekey.runner.phases import backfill


def no_wait_for_the_term() -> Any:
    """Sweep as soon as the last segment is done."""

    async def until_quiet(_run: object) -> None:
        return

    return mock.patch.object(backfill, "until_quiet", until_quiet)


def no_margin() -> Any:
    """Sweep at the end of the term, while what was sent within it may be under way."""

    async def left(self: Term, _margin_s: float) -> float:
        return await _left(self, 0.0)

    return mock.patch.object(Term, "left", left)


def no_term_in_the_store() -> Any:
    """Tell nobody until when tasks may write."""

    async def extend(_self: Term, _until: str) -> None:
        return

    return mock.patch.object(Term, "extend", extend)


def no_fence() -> Any:
    """Write whatever the time, whoever is the runner."""

    async def passed(_self: Fence) -> None:
        return

    return mock.patch.multiple(Fence, passed=passed, in_time=lambda _self: None)


def no_time_of_the_service() -> Any:
    """Ask the service for its time only when the task begins, and the worker's own clock from there on."""

    async def some(_service: object, _until: str) -> float:
        return 1.0

    return mock.patch.object(fence, "seconds_left", some)


def no_clock() -> Any:
    """Ask no clock before a write; control row and runner lease are read all the same."""

    def in_time(self: Fence) -> None:
        if self._down is not None:
            raise self._down

    stack = ExitStack()
    stack.enter_context(no_time_of_the_service())
    stack.enter_context(mock.patch.object(Fence, "in_time", in_time))
    return stack


_left = Term.left
