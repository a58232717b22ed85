"""A stress test with an application's mix finds limits of kinds and of partitions, each by itself."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import psutil
import pytest

from rekey import Migration, Target, keys, rows
from rekey.core.progress import Progress
from rekey.errors import WorkersFailed
from rekey.model import Row
from rekey.project.config import Account
from rekey.stress.judge import Limit
from rekey.stress.load import Generator, InProcess, LoadProcesses
from rekey.stress.mix import Mix, OperationKind
from rekey.stress.report import StressReport
from rekey.stress.run import Bounds, Notes, StressTest
from rekey.stress.shares import spread_of_rows
from rekey.stress.spread import Spread
from tests.asserts.every import every
from tests.fakes.clock import FakeClock
from tests.fakes.memory import MemoryTableService
from tests.fakes.rate_limits import MixLimit, PlantedLimits
from tests.scenarios.stress.test_stress import Commands
from tests.worlds.scripts import USERS, named
from tests.worlds.small import user

ENDPOINT = "http://127.0.0.1:10002/devstoreaccount1"
READ, QUERY, INSERT, UPDATE, DELETE, BATCH = OperationKind
SHARES = {READ: 0.5, QUERY: 0.1, INSERT: 0.1, UPDATE: 0.15, DELETE: 0.1, BATCH: 0.05}
MIX = Mix(SHARES, top=5, batch_rows=4, rows=200, partitions=5)
EVEN = Spread("mix.toml", (1,) * 5)
BOUNDS = Bounds(rows=10_000_000, seconds=100_000, step_seconds=2, most=240)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "state.sqlite")


class World:
    """Tables in memory; what generates load meets limits that loading and removing do not meet."""

    def __init__(self, clock: FakeClock, notes: Notes, limits: PlantedLimits) -> None:
        self.clock, self.notes = clock, notes
        self.service = MemoryTableService(clock=clock)
        self.loaded = MemoryTableService(clock=clock, faults=MixLimit(limits, MIX.top))
        self.loaded._tables = self.service._tables
        self.at_end: list[Row] = []

    async def tried(self, mix: Mix = MIX, spread: Spread = EVEN, bounds: Bounds = BOUNDS) -> StressReport:
        @asynccontextmanager
        async def generators(name: str) -> AsyncIterator[Generator]:
            table = self.loaded.table(name)
            yield InProcess(table, self.clock, processor=lambda: 0.0)
            self.at_end = self.service.dump(name)

        test = StressTest(
            self.service,
            generators,
            mix,
            bounds,
            notes=self.notes,
            endpoint=ENDPOINT,
            clock=self.clock,
            progress=Progress(),
        )
        return await test.run([spread])


def planted(clock: FakeClock, **limits: object) -> PlantedLimits:
    return PlantedLimits(clock.monotonic, **limits)  # type: ignore[arg-type]


async def test_limits_of_kinds_are_found_each_by_itself(clock: FakeClock, notes: Notes) -> None:
    """Updates end the mix; what reads carry is found afterwards, with the others at half of the mix."""
    limits = {UPDATE: 15.0, READ: 75.0, DELETE: 22.5}
    world = World(clock, notes, planted(clock, kinds=limits))
    stage = (await world.tried(bounds=replace(BOUNDS, step_seconds=4))).stages[1]
    found = stage.kinds
    for kind, limit in limits.items():
        assert found[kind].limit is Limit.SERVICE
        assert found[kind].rate == pytest.approx(limit, rel=0.1), kind
    assert stage.saturation.rate == pytest.approx(15 / SHARES[UPDATE], rel=0.1)
    assert stage.below_target == {}, "a kind is refused in all partitions alike"
    for kind in set(OperationKind) - set(limits):
        assert found[kind].limit is Limit.NOTHING, kind


async def test_a_partition_that_takes_less_is_named_by_its_number(clock: FakeClock, notes: Notes) -> None:
    world = World(clock, notes, planted(clock, partitions={"1.0000003": 30.0}))
    stage = (await world.tried()).stages[1]
    assert list(stage.below_target) == ["partition 4"]
    assert stage.below_target["partition 4"] == pytest.approx(30, rel=0.1)


async def test_a_limit_of_every_partition_shows_on_one_partition(clock: FakeClock, notes: Notes) -> None:
    world = World(clock, notes, planted(clock, every=80.0))
    one, spread = (await world.tried(bounds=replace(BOUNDS, most=480))).stages
    assert one.below_target == {"one partition": pytest.approx(80, rel=0.1)}
    assert spread.entities == pytest.approx(400, rel=0.1)


async def test_no_request_fails_because_of_the_others(clock: FakeClock, notes: Notes) -> None:
    """More deletes than inserts: rows to delete are loaded between the steps."""
    world = World(clock, notes, planted(clock))
    mix = Mix({DELETE: 0.6, READ: 0.2, INSERT: 0.1, QUERY: 0.1}, top=5, rows=100, partitions=5)
    report = await world.tried(mix, bounds=Bounds(rows=4_000, seconds=1_000, step_seconds=2, most=100))
    for stage in report.stages:
        assert stage.steps and stage.saturation.limit is Limit.NOTHING
        assert every(one.step.counts.refused == one.step.counts.failed == 0 for one in stage.steps)
        for step in (one.step for one in stage.steps):
            assert step.entities > step.achieved, "range queries return several entities"
    assert len(world.at_end) >= 200


async def test_the_shares_are_those_of_the_file(clock: FakeClock, notes: Notes) -> None:
    world = World(clock, notes, planted(clock))
    report = await world.tried(bounds=Bounds(rows=20_000, seconds=1_000, step_seconds=4, most=400))
    step = report.stages[1].steps[-1].step
    for kind, share in SHARES.items():
        assert step.kinds[kind].offered == pytest.approx(share * step.offered, rel=0.05)


async def test_the_table_is_removed_when_what_generates_load_fails(clock: FakeClock, notes: Notes) -> None:
    world = World(clock, notes, planted(clock))

    @asynccontextmanager
    async def failing(_name: str) -> AsyncIterator[Generator]:
        raise WorkersFailed("a process that generates load ended (signal 9)")
        yield

    test = StressTest(
        world.service,
        failing,
        MIX,
        BOUNDS,
        notes=notes,
        endpoint=ENDPOINT,
        clock=clock,
        progress=Progress(),
    )
    with pytest.raises(WorkersFailed):
        await test.run([EVEN])
    assert world.service._tables == {}
    assert not notes.path.exists()


async def test_a_process_that_ended_between_two_steps_is_told_and_none_is_left() -> None:
    """A pool tells that its process has ended when it is given work, not only when it is waited for."""
    before = set(active_children())
    async with LoadProcesses(2, Account(ENDPOINT), "Tried") as generator:
        started = [psutil.Process(one.pid) for one in set(active_children()) - before]
        started[0].kill()
        with pytest.raises(WorkersFailed, match="a process that generates load ended"):
            while True:
                await generator.offer([])
        with pytest.raises(WorkersFailed, match="a process that generates load ended"):
            await generator.offer([])
    assert len(started) == 2 and psutil.wait_procs(started, timeout=10)[1] == []


# --- the command line -----------------------------------------------------------------------------------

FILE = "[mix]\npoint_read = 80\ndelete = 20\n[rows]\ncount = 100\npartitions = 5\n"
SHORT = ("--rows", "3000", "--step-seconds", "2", "--most", "200")


@pytest.fixture
def rekey(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    commands = Commands(tmp_path, capsys)
    commands.fill(user(f"user{number}@example.com") for number in range(50))
    return commands


def mix_file(rekey: Commands, text: str = FILE) -> str:
    path = rekey.project.folder / "mix.toml"
    path.write_text(text, "utf-8")
    return str(path)


def test_a_report_has_each_kind_and_a_page_draws_it(rekey: Commands) -> None:
    html = rekey.project.folder / "stress.html"
    said = rekey("stress", "--mix", mix_file(rekey), *SHORT, "--html", str(html))
    assert "spread as in mix.toml: 5 partitions among 100 rows" in said and "point read" in said
    assert f"The page is {html}." in said
    assert max(map(len, said.splitlines())) <= max(100, len(str(html)) + 20)
    page = html.read_text("utf-8")
    # Throughput of two stages; tables in memory have no latencies to draw.
    assert page.count("<svg") == 2 and "<script" not in page
    assert set(rekey.project.tables._tables) == {"users"}


def test_one_document_has_everything_and_no_key(rekey: Commands) -> None:
    name = mix_file(rekey, FILE.replace("partitions = 5\n", ""))
    document = json.loads(rekey("stress", "Users", "--mix", name, *SHORT, "--json"))
    assert "example.com" not in json.dumps(document)
    assert [stage["stage"] for stage in document["stages"]] == ["one partition", "Users"]
    for stage in document["stages"]:
        assert stage["kinds"].keys() == {"point_read", "delete"}
        assert every(step["kinds"].keys() == stage["kinds"].keys() for step in stage["steps"])
    assert document["rows_sent"] <= 3000


def test_a_design_gives_its_distribution(rekey: Commands) -> None:
    rekey.project.script(named(USERS, "Users", "UsersV2"))
    name = mix_file(rekey, FILE.replace("partitions = 5\n", ""))
    assert "as in UsersV2" in rekey("stress", "--design", "0001", "--mix", name, *SHORT)


async def test_a_design_of_a_part_gives_the_distribution_of_its_rows(memory: MemoryTableService) -> None:
    await memory.create_table("Users")
    for number in range(6):
        await memory.table("Users").insert(user(f"u{number}@mail.example", "eu" if number < 2 else "us"))
    target = Target("UsersV2", partition_key=keys.literal("all"), row_key=keys.keep())
    where = rows.partition_key(equals="eu")
    part = Migration("Users", target, capture="delta", where=where, reverse=False)
    [spread], refused = await spread_of_rows(memory.table("Users"), part, exact=True, progress=Progress())
    assert (spread.counts, refused) == ((2,), 0)


def test_a_mistake_in_the_file_is_told_before_anything_is_asked(rekey: Commands) -> None:
    calls = rekey.project.tables._calls
    said = rekey("stress", "--mix", mix_file(rekey, FILE.replace("delete", "deletes")), code=2)
    assert "mix.toml, line 3: [mix] deletes: unknown key" in said
    said = rekey("stress", "Users", "--mix", mix_file(rekey), code=2)
    assert "line 6: [rows] partitions: TABLE or --design has" in said
    assert "not valid TOML (at line 2" in rekey("stress", "--mix", mix_file(rekey, "[mix]\nx = ="), code=2)
    assert "there is no configuration file" in rekey("stress", "--mix", "none.toml", code=2)
    assert rekey.project.tables._calls == calls


def test_options_that_do_not_go_together_are_usage(rekey: Commands) -> None:
    assert "--batch does not go with --mix" in rekey(
        "stress", "--mix", mix_file(rekey), "--batch", "5", code=2
    )


def test_a_page_that_cannot_be_written_costs_no_result(rekey: Commands) -> None:
    said = rekey("stress", "--mix", mix_file(rekey), *SHORT, "--html", "none/stress.html", code=2)
    assert "one partition" in said and "--html" in said
