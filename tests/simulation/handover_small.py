"""A small world of the handover of index tables: a client of the new epoch, whose application maintains its
index rows itself, beside the runner that settles what a killed client of the epoch before left half done.

Rules kept here:

* The application writes its main row through its client, then its index rows: it writes those of the row as
  it is and deletes those of the row as it was, without conditions. It is alone and is not killed: what it
  leaves out by that would be its own loss.
* The runner sweeps as in `rekey.runner.phases.complete.end_following`. Its requests may stay unanswered, and
  land late.
* At the end index rows are what the main rows give, and the journal is empty. The source is not looked at:
  nothing follows what the application writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from rekey.declaration.migration import Migration
from rekey.errors import RowMissing
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.model import Row, key_of
from rekey.phases import ControlPhase
from tests.simulation.dual_cases import MOST_STATES, parsed
from tests.simulation.dual_small import DualParts, DualWorld, Works
from tests.simulation.explore import Budget, Scenario, Searched, search
from tests.simulation.scheduler import Scheduler
from tests.simulation.witness import DELETE


class HandoverWorld(DualWorld):
    """One application that maintains its index rows, beside a sweep of the journal."""

    def __init__(
        self,
        scheduler: Scheduler,
        migration: Migration,
        before: Sequence[Row],
        clients: Sequence[Works],
        parts: DualParts,
        *,
        lacks: bool,
    ) -> None:
        """Take what `DualWorld` takes. `lacks`: the client that was killed had not written the index rows
        yet; otherwise it had not deleted them yet, and the main row is gone."""
        super().__init__(
            scheduler,
            migration,
            before,
            clients,
            parts,
            phase=ControlPhase.COMPLETE,
            sweeps=1,
            open_sweeps=True,
            abandoned=[key_of(row) for row in before],
        )
        self.permit = replace(self.permit, maintained=False)
        self.mortal, self.crashing = frozenset[str](), frozenset({"sweeper"})
        self.lacks = lacks

    async def prepare(self) -> None:
        await super().prepare()
        for row in self.before:
            for number, made in self.mapper.map(row):
                if (number > 0) is self.lacks:
                    await self.targets[number].delete(key_of(made))

    async def _work(self, name: str) -> None:
        works, main = self.clients[name], self.targets[0]
        writer = self.writer(name, works.view)
        for [do] in works.steps:
            before = await main.get(key_of(do.row))
            with suppress(RowMissing):
                await writer.write([do.operation(None)])
            old = [] if before is None else self.mapper.index_rows(before)
            new = [] if do.verb == DELETE else self.mapper.index_rows(do.row)
            for number, row in new:
                await self.targets[number].upsert(row)
            kept = {(number, key_of(row)) for number, row in new}
            for number, row in old:
                if (number, key_of(row)) not in kept:
                    with suppress(RowMissing):
                        await self.targets[number].delete(key_of(row))
        await writer.settle()

    def broken(self) -> str:
        """Return "": rows that the application makes are in no mapping, and it writes them one by one."""
        return ""

    def wrong(self) -> str:
        if self.unswept or (left := self.others.dump(JOURNAL_TABLE)):
            return f"{self.unswept or len(left)} intents are left"
        return self.rotten()


def handing_over(name: str, budget: Budget, parts: DualParts | None = None, *, lacks: bool) -> Searched:
    """Search a world of the handover; its name says what the application does."""
    migration, before, clients, _phase = parsed(name)

    def make(scheduler: Scheduler) -> Scenario:
        return HandoverWorld(scheduler, migration, before, clients, parts or DualParts(), lacks=lacks)

    return search(make, budget, MOST_STATES)
