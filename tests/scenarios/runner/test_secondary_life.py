"""The whole life of a migration with secondary rows, in both captures: kills, a way back, writers in both
views; no look at any state of the table shows half a pair.

Soak: 8 of 13 moments of a kill.
Reason, and what `make test` covers: five moments.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rekey.declaration.mapper import Mapper
from rekey.errors import RekeyError
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View
from rekey.runner import commands
from rekey.runner.commands import Mode
from rekey.runner.run import Options
from rekey.tables.base import Operation, Verb
from tests.fakes.faults import Call, Fault, FaultKind, Planned, PlannedFaults
from tests.soaking import others_in_soak
from tests.worlds.company import Client, Company
from tests.worlds.projects import Project, project_of
from tests.worlds.scripts import RACES, named, under_writes
from tests.worlds.small import Killed, contents, halves, mapped, racer

SCRIPT = "0001_races"
TABLE = "RacesByKey"
RACES_SCRIPT = named(RACES, "Races", TABLE)
STOPPED = Options(writers_stopped=True)


class Watch:
    """Looks at the shared table before a call on the account of the tables takes effect, if it has changed
    since the last call."""

    def __init__(self, project: Project) -> None:
        self.seen: list[EntityKey] = []
        self.looks = 0
        self._last = (0, 0)
        self._mapper = Mapper(project.scripts[SCRIPT].migration, {})
        self._service = project.tables
        self._pass_on = project.tables.gate
        project.tables.gate = self._look

    async def _look(self, call: Call) -> None:
        await self._pass_on(call)
        if "racesbykey" in self._service._tables:
            self.looks += 1
            stored = self._service._tables["racesbykey"]
            now = len(stored.order), sum(stored.last_ticks.values())
            if now == self._last:
                return
            self._last = now
            self.seen += halves(self._mapper, self._service.dump(TABLE))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return project_of(
        tmp_path,
        RACES_SCRIPT,
        [racer(f"{n:04}", 20 + n % 50, race=f"r{n % 3}") for n in range(180)],
        name=f"{SCRIPT}.py",
    )


def in_step(project: Project) -> bool:
    mapper = Mapper(project.scripts[SCRIPT].migration, {})
    return contents(project.rows(TABLE)) == mapped(mapper, project.rows("Races"))[TABLE]


def test_the_life_in_capture_delta_with_a_way_back_in_it(project: Project) -> None:
    watch = Watch(project)

    def apply(to: Phase | None = None, options: Options | None = None) -> None:
        with project.session(options) as session:
            commands.apply(session, SCRIPT, to=to)

    apply()
    assert in_step(project)
    source = project.tables.table("Races")

    async def change() -> None:
        await source.replace(racer("0001", 77, race="r1"))
        await source.delete(EntityKey("r2", "0002"))
        await source.insert(racer("0999", 18, race="r0"))

    asyncio.run(change())
    apply(Phase.CUTOVER, STOPPED)
    assert in_step(project)
    assert watch.seen == []
    # The application writes both rows by itself now; one secondary row it forgets.
    mapper = Mapper(project.scripts[SCRIPT].migration, {})
    made = [one.row for one in mapper.map(racer("0500", 33, race="r1"))]
    age = next(row for row in project.rows(TABLE) if row["RowKey"].startswith("AGE:"))

    async def work() -> None:
        table = project.tables.table(TABLE)
        await table.transact([Operation(Verb.INSERT, row) for row in made])
        await table.delete(key_of(age))

    asyncio.run(work())
    with project.session(STOPPED) as session:
        assert commands.rollback(session, SCRIPT, to=None, drop=None) == [Phase.CUTOVER]
    assert in_step(project)
    assert any(row["RowKey"] == "0500" for row in project.rows("Races"))
    watch.seen.clear()
    apply(Phase.CUTOVER, STOPPED)
    apply(Phase.COMPLETE, STOPPED)
    assert watch.seen == []
    assert watch.looks > 100


def test_what_the_way_back_finds_wrong_in_a_main_row_is_not_mended(project: Project) -> None:
    """The main rows are the authority: a stray one there stays, though it shares its table with secondary
    rows, which are mended."""
    with project.session(STOPPED) as session:
        commands.apply(session, SCRIPT, to=Phase.CUTOVER)
    stray: Row = {"PartitionKey": "r1", "RowKey": "BIB:stray", "Name": "x"}
    asyncio.run(project.tables.table(TABLE).insert(stray))
    with project.session(STOPPED) as session, pytest.raises(RekeyError):
        commands.rollback(session, SCRIPT, to=None, drop=None)
    assert any(row["RowKey"] == "BIB:stray" for row in project.rows(TABLE))


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "lost answer"])
def test_an_interrupted_rollback_removes_secondary_rows(project: Project, killed: bool) -> None:
    """The runner is killed right after it has written a source row, or does not hear that it has: nothing
    differs any more then, and the secondary row has to leave with its content all the same."""
    mapper = Mapper(project.scripts[SCRIPT].migration, {})
    old, new = ([one.row for one in mapper.map(racer("0001", age, race="r1"))] for age in (21, 88))
    writes = (Verb.REPLACE, new[0]), (Verb.DELETE, old[1]), (Verb.INSERT, new[1])

    def cut_over() -> None:
        with project.session(STOPPED) as session:
            commands.apply(session, SCRIPT, to=Phase.CUTOVER)

    def go_back() -> None:
        with project.session(STOPPED) as session:
            commands.rollback(session, SCRIPT, to=ControlPhase.DUAL_WRITE, drop=None)

    cut_over()
    asyncio.run(project.tables.table(TABLE).transact([Operation(*one) for one in writes]))
    if killed:
        sent: list[Call] = []

        async def kill(call: Call) -> None:
            if sent:
                raise Killed
            sent.extend([call] if call.writes else [])

        project.tables.gate, go_on = kill, project.tables.gate
        with pytest.raises(Killed):
            go_back()
        project.tables.gate = go_on
        assert [one.table for one in sent] == ["Races"]
    else:
        project.tables.faults = PlannedFaults(Planned(Fault(FaultKind.LOST_ANSWER), "replace", "Races"))
    go_back()
    assert in_step(project)
    asyncio.run(project.tables.table("Races").replace(racer("0001", 89, race="r1")))
    cut_over()
    assert in_step(project)


@pytest.mark.parametrize("at", others_in_soak(range(5, 120, 9), kept=range(5, 120, 27)))
def test_a_runner_killed_at_any_moment_leaves_whole_pairs_and_goes_on(tmp_path: Path, at: int) -> None:
    project = Project(tmp_path)
    project.script(RACES_SCRIPT, f"{SCRIPT}.py")
    asyncio.run(project.fill("Races", [racer(f"{n:04}", 20 + n % 50) for n in range(60)]))
    watch = Watch(project)
    calls = 0
    go_on = project.tables.gate

    async def kill(call: Call) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise Killed
        await go_on(call)

    project.tables.gate = kill
    with suppress(Killed), project.session() as session:
        commands.apply(session, SCRIPT, to=None)
    project.tables.gate = go_on
    asyncio.run(project.clock.sleep(1_000))
    with project.session() as session:
        commands.apply(session, SCRIPT, to=None)
    assert in_step(project)
    assert watch.seen == []


@pytest.fixture
def races(project: Project) -> Iterator[Company]:
    project.script(under_writes(RACES_SCRIPT), f"{SCRIPT}.py")
    made = Company(project, SCRIPT)
    yield made
    made.close()


async def traffic(company: Company, client: Client, seed: int) -> None:
    """Write at random through a client until told to stop; what is refused is left."""
    draw, mapper = random.Random(seed), company.mapper
    while not company.stopping:
        row = racer(f"{draw.randrange(8):04}", 20 + draw.randrange(4), draw.choice(("John", "Jack")), "r0")
        if client.view is View.NEW:
            row = content_of(mapper.map(row)[0].row)
        verb = draw.choice([Verb.INSERT_OR_REPLACE, Verb.REPLACE, Verb.MERGE, Verb.DELETE, Verb.INSERT])
        with suppress(RekeyError):
            await client.write(Operation(verb, row))
        await company.project.clock.sleep(draw.random())


def test_the_life_in_capture_dual_write_under_writes_in_both_views(races: Company, project: Project) -> None:
    watch = Watch(project)
    old = [races.client(View.OLD), races.client(View.OLD)]
    for number, client in enumerate(old):
        races.writes(traffic(races, client, number))
    races.apply()
    races.settle()
    new = races.client(View.NEW)
    for number, client in enumerate([*old, new]):
        races.writes(traffic(races, client, 10 + number))
    races.live(10)
    races.apply(Phase.CUTOVER)
    assert races.phase is ControlPhase.CUTOVER
    races.live(10)
    races.rollback()
    assert races.phase is ControlPhase.DUAL_WRITE
    races.live(10)
    assert not races.verify(Mode.FULL).findings
    races.apply(Phase.CUTOVER)
    races.live(10)
    races.settle()
    assert not races.verify(Mode.FULL).findings
    assert watch.seen == []
    assert watch.looks > 1_000
    races.assert_in_step()
