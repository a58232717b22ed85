"""What the worlds have in common whose control rows a runner moves in one store of tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from rekey.core.clock import TICKS_PER_SECOND
from rekey.protocol import control
from tests.fakes.faults import Call
from tests.simulation.explore import Searched, service_of
from tests.simulation.scenario import Scenario
from tests.simulation.scheduler import Held, Scheduler

_moves = itertools.count()


def number_moves_from(first: int) -> None:
    """Begin to number the moves of a run."""
    global _moves
    _moves = itertools.count(first)


@contextmanager
def numbered_moves() -> Iterator[None]:
    """Number the moves of each run instead of drawing words."""
    with mock.patch.object(control.secrets, "token_hex", lambda _bytes: f"move-{next(_moves)}"):
        yield


class OneStoreWorld(Scenario):
    """A world with all its tables in one store."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.store = service_of(scheduler)
        number_moves_from(0)

    def snapshot(self) -> Any:
        return self.store.snapshot(), self.store.clock.ticks(), next(_moves)

    def restore(self, snapshot: Any) -> None:
        tables, ticks, moves = snapshot
        self.store.restore(tables)
        clock = self.scheduler.clock
        clock.advance((ticks - clock.ticks()) / TICKS_PER_SECOND)
        number_moves_from(moves + 1)


class FollowingWorld(OneStoreWorld):
    """A world with a process that follows migrations by its clients. `acknowledged`: its writes."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.acknowledged: set[tuple[Any, int]] = set()

    def durable(self) -> tuple[Any, frozenset[tuple[Any, int]]]:
        return self.store.content(), frozenset(self.acknowledged)

    def is_marking(self, one: Held) -> bool:
        return one.call.action in ("begins", "looks")

    async def finish(self) -> None:
        """Do nothing: what was acknowledged is where it decides."""

    async def gate(self, action: str) -> None:
        """Wait until the search lets the process go on."""
        await self.scheduler.hold(Call(action, "", (), 0))


def assert_harmless(result: Searched, states: int) -> None:
    """Assert that a search of at least `states` states found no loss."""
    assert not result.loss, (result.loss, result.schedule)
    assert result.states >= states
