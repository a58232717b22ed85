"""A small world of dual writes on orders that refer to users (`keep_old=False`), beside an actor that creates
and deletes users.

Rules kept here:

* The users' migration is past its cutover: its mapping and new table are there; its rows are not judged.
* The witness knows every mail, so what a row of the new view means is judged without the mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from rekey.copy import sweep
from rekey.model import Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.propagate import Propagator
from tests.simulation.dual_small import DualParts, DualWorld, Works
from tests.simulation.explore import Budget, Searched, search
from tests.simulation.scheduler import Scheduler
from tests.simulation.small import DigestsInMemory
from tests.worlds.referring import ANN, ORDERS, KnowingMapper, map_user, old_references_in, user_row
from tests.worlds.small import SECRET


class ReferringWorld(DualWorld):
    """Clients that write orders, beside an actor that works on users."""

    def __init__(
        self,
        scheduler: Scheduler,
        before: Sequence[Row],
        clients: Sequence[Works],
        phase: ControlPhase,
        *,
        creates: str = "",
        deletes: str = "",
    ) -> None:
        """Create it with the user that the actor creates and the one that it deletes; "": none."""
        super().__init__(scheduler, ORDERS, before, clients, DualParts(), phase=phase)
        self.creates, self.deletes = creates, deletes
        self.witness.mapper = KnowingMapper(ORDERS, {"users": SECRET})

    async def prepare(self) -> None:
        await self.others.create_table("UsersV2")
        await super().prepare()
        await self._create(ANN)

    def actors(self) -> dict[str, Callable[[], object]]:
        more: dict[str, Callable[[], object]] = {}
        if self.creates or self.deletes:
            more["users"] = self._work_on_users
        return super().actors() | more

    def propagator(self) -> Propagator:
        propagator = super().propagator()
        propagator.references = old_references_in(self.others)
        return propagator

    async def _work_on_users(self) -> None:
        if self.creates:
            await self._create(self.creates)
        if self.deletes:
            await self.others.table("UsersV2").delete(key_of(user_row(self.deletes)))

    async def _create(self, mail: str) -> None:
        await map_user(self.others, mail)
        await self.others.table("UsersV2").insert(user_row(mail))


def referring(
    budget: Budget,
    before: Sequence[Row],
    *clients: Works,
    phase: ControlPhase = ControlPhase.CUTOVER,
    most_states: int = 200_000,
    **more: Any,
) -> Searched:
    """Search a world of orders. `more` as `ReferringWorld` takes it."""

    def make(scheduler: Scheduler) -> ReferringWorld:
        return ReferringWorld(scheduler, before, clients, phase, **more)

    with mock.patch.object(sweep, "DigestParts", DigestsInMemory):
        return search(make, budget, most_states)
