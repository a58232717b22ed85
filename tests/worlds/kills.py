"""Commands whose process is killed at a call on the tables in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rekey.mapping.rows import MAPPING_TABLE
from tests.fakes.faults import Call
from tests.worlds.projects import Project
from tests.worlds.small import Killed

LEASE_S = 120
"""After so long the lease of a killed runner is over."""


@dataclass
class Kill:
    """A kill: how many calls it has counted, and whether it has happened."""

    calls: int = 0
    happened: bool = False


def any_call(_call: Call) -> bool:
    return True


def replaces_mapping(call: Call) -> bool:
    """Tell whether a call replaces a row of the mapping, as erasures do."""
    return call.action == "replace" and call.table == MAPPING_TABLE


@contextmanager
def killed(project: Project, at: int = 1, when: Callable[[Call], object] = any_call) -> Iterator[Kill]:
    """Kill what runs, on any account, before its call number `at` of those that `when` is true of: neither
    this call nor a later one takes effect. Afterwards its lease is over."""
    kill = Kill()

    async def gate(call: Call) -> None:
        kill.calls += bool(not kill.happened and when(call))
        kill.happened = kill.calls >= at
        if kill.happened:
            raise Killed

    accounts = project.tables, project.targets, project.restricted
    gates = [account.gate for account in accounts]
    for account in accounts:
        account.gate = gate
    try:
        with suppress(Killed):
            yield kill
    finally:
        for account, before in zip(accounts, gates, strict=True):
            account.gate = before
    project.clock.advance(LEASE_S)
