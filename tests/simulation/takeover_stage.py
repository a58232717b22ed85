"""Clients that die and leave writes unfinished, and others that live: no runner works meanwhile."""

from __future__ import annotations

import itertools
import math
import random
from contextvars import Context
from functools import partial

from rekey.client.takeover import settled_within_s
from rekey.core.clock import TICKS_PER_SECOND
from rekey.mapping.rows import CONTROL_TABLE, JOURNAL_TABLE
from rekey.model import ROW_KEY, Row, key_of
from rekey.protocol import journal, registry
from rekey.protocol.rules import View
from rekey.protocol.sweeper import Company
from rekey.tables.base import Operation, Verb
from tests.simulation.dual_life import Life
from tests.simulation.dual_people import Client, Notes
from tests.simulation.judging import wrong_targets
from tests.simulation.stage import Stage, person

SETTLING_S = 3.0
"""For how long settling a few keys takes once it has begun."""


class TakeoverStage(Stage):
    """A migration whose clients come and go; told is what they leave and who finishes it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._people = itertools.count(25)

    def reader(self, view: View = View.OLD) -> Client:
        """Return a client that registers, and reads."""
        client = self.opened_client(view)
        self.read(client)
        return client

    def read(self, client: Client) -> None:
        """Let a client read."""

        async def reads() -> None:
            async with client.core.reading():
                pass

        self.storm.start(client.process, reads())
        self.pass_(0.5)

    def abandon(self, view: View, rows: int = 1) -> list[Row]:
        """Let a client die between the write of the authority and that of the replicas. Return the rows."""
        victim = self.opened_client(view)
        written = [person(next(self._people)) for _ in range(rows)]
        dies = [
            self.fate(
                victim.process.name, action, self.main if view is View.OLD else self.source,
                lands_s=math.inf, then=partial(self.kill, victim.process),
            )
            for action in ("insert", "transact")
        ]  # fmt: skip
        seen = [row if view is View.OLD else self.as_target(row) for row in written]
        self.storm.start(victim.process, victim.core.write([Operation(Verb.INSERT, row) for row in seen]))
        while not victim.process.dead:
            self.pass_(0.1)
        self.storm.fates = [fate for fate in self.storm.fates if fate.seen or fate not in dies]
        for row in written:
            self.told[key_of(row)] = row
        self.require(len(self.unsettled) == rows, "it left something else")
        return written

    def in_order(self, *clients: Client) -> list[Client]:
        """Return clients in the order of their turns."""

        def client_id(client: Client) -> str:
            lease = client.core._lease
            assert lease is not None
            return lease.client_id

        return sorted(clients, key=client_id)

    @property
    def unsettled(self) -> list[Row]:
        """Intents that are not settled."""
        return unsettled_in(self)

    def due_at(self) -> float:
        """Return when what was left is due for the first client, in seconds of the loop's clock."""
        rows = [
            registry.from_row(row)
            for row in self._rows(CONTROL_TABLE, self.project.restricted)
            if row[ROW_KEY].startswith(registry.CLIENT_PREFIX)
        ]
        now = self.project.clock.ticks()
        company = Company.of(rows, now, usual_s=self.settings.longest_operation_s)
        left = [journal._age(row) for row in self.unsettled]
        due = [company.over_at(intent) for intent in left]
        due += [registry.over_at(company.clients[intent.client_id]) for intent in left]
        return self.loop.now + (max(due) - now) / TICKS_PER_SECOND

    def settled_after(self, limit_s: float) -> float:
        """Let time pass until nothing is unsettled; return how long that took. Raises Found if it takes
        longer than a limit."""
        began = self.loop.now
        while self.unsettled:
            self.require(self.loop.now - began <= limit_s, f"unsettled after {limit_s:g} s")
            self.pass_(0.2)
        return self.loop.now - began

    def bound_s(self, killed: int = 1) -> float:
        """Return how long it may take until all is settled after the first one was killed."""
        return settled_within_s(self.settings, killed=killed) + SETTLING_S * killed

    def assert_in_step(self) -> None:
        """Both sides say the same, although no command has run."""
        for wrong in wrong_targets(self.mapper, self._rows(self.source), self._contents):
            self.require(False, wrong)


class TakeoverLife(Life):
    """A life in which clients are killed all the time, and those that are left finish what they leave."""

    moves = False

    def live(self) -> None:
        with self.made_repeatable(), self.pairs.watching(), self.loop, self._all_ending():
            self._begin()
            self._apply()
            self._survive("before cutover")
            self._cut_over()
            self._survive("after cutover")

    async def _nature(self) -> None:
        draw = random.Random(f"{self.kind} {self.seed} killing")
        while True:
            await self.project.clock.sleep(draw.expovariate(1 / 8))
            if self.storm.calm or self.quiet:
                continue
            living = [one for one in self.clients if one.live]
            if len(living) < 2 or (len(living) < 4 and draw.random() < 0.4):
                self._start_client(draw.choice((View.OLD, View.NEW) if self._opens_soon() else (View.OLD,)))
            elif draw.random() < 0.6:
                self.storm.kill(draw.choice(living).process)
            else:
                self._stop(draw.choice(living).process, 30 * draw.random())

    def _survive(self, when: str) -> None:
        """Let clients write and die, then nobody write, and the survivors finish what is left: in the worst
        case some of them die of that as well, and one that only reads is left."""
        self._pass(30)
        self.quiet = True
        for client in self.clients:
            self.storm.go_on(client.process)
        reader = self._start_reader()
        living = [one for one in self.clients if one.live and one is not reader]
        killed = self.random.randint(0, len(living))
        for client in self.random.sample(living, killed):
            self.loop.call_later(
                settled_within_s(self.settings) * self.random.random(),
                self.storm.kill, client.process, context=Context(),
            )  # fmt: skip
        self._pass(settled_within_s(self.settings))
        self.storm.calm = True
        ends = self.loop.now + settled_within_s(self.settings, killed=killed + 1) + 60
        while unsettled := unsettled_in(self):
            self.require(self.loop.now < ends, f"{when} {len(unsettled)} intents are not settled")
            self._pass(5)
        if not self._was_sent_late():
            for wrong in wrong_targets(self.mapper, self._rows(self.source), self._contents):
                self.require(False, f"{when} no command has run, and {wrong}")
        self._judge_told(when)
        self.notes = Notes(self.mapper)
        self.quiet = self.storm.calm = False

    def _start_reader(self) -> Client:
        reader = self.client(self.random.choice((View.OLD, View.NEW)))
        self.storm.start(reader.process, reader._open())
        return reader


def unsettled_in(life: Life) -> list[Row]:
    """Return the intents that are not settled."""
    return [row for row in life._rows(JOURNAL_TABLE, life.project.restricted) if not row.get("Settled")]
