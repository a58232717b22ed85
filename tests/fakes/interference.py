"""What happens between the calls on tables in memory: something else right before one, or a note of each. No
other task runs in between, as behind `instant_gate`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.fakes.faults import Call
from tests.fakes.memory import MemoryTableService


@dataclass
class Interference:
    """Whether it happened."""

    happened: bool = False


def before(
    service: MemoryTableService, action: str, table: str, act: Callable[[], Awaitable[object]]
) -> Interference:
    """Do something right before the first call of an action on a table; "" is any write, or any table."""
    interference = Interference()

    async def gate(call: Call) -> None:
        is_it = (call.action == action if action else call.writes) and table in ("", call.table)
        if is_it and not interference.happened:
            interference.happened = True
            await act()

    service.gate = gate
    return interference


def noted(service: MemoryTableService, when: Callable[[Call], object] = lambda _: True) -> list[Call]:
    """Return the calls that fit, as they come."""
    calls: list[Call] = []

    async def gate(call: Call) -> None:
        if when(call):
            calls.append(call)

    service.gate = gate
    return calls
