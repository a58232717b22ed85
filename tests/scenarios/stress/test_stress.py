"""A stress test finds what a service carries, keeps to its bounds, and leaves nothing behind.

Soak: 2,000 rows a second.
Reason, and what `make test` covers: 300 rows a second.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rekey.cli.main import run as rekey_run
from rekey.cli.shell import Surroundings
from rekey.core.progress import Progress
from rekey.errors import CredentialRefused, RekeyError, ServiceError
from rekey.model import Row
from rekey.state.filelock import FileLock
from rekey.stress import load
from rekey.stress.judge import Limit, Step, measure
from rekey.stress.load import InProcess
from rekey.stress.mix import OperationKind, inserts
from rekey.stress.report import StressReport
from rekey.stress.requests import Population
from rekey.stress.run import Bounds, Notes, StressTest, new_name
from rekey.stress.shares import spread_of_rows
from rekey.stress.spread import ONE_PARTITION, Spread
from rekey.tables.probe import ProbeResult
from tests.asserts.every import every
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call, Fault, FaultKind
from tests.fakes.memory import MemoryTableService
from tests.fakes.rate_limits import PartitionLimit
from tests.worlds.projects import Project
from tests.worlds.scripts import USERS, named
from tests.worlds.small import user

ENDPOINT = "http://127.0.0.1:10002/devstoreaccount1"
EVEN = Spread("Users", (1,) * 50)


class Failing:
    """Faults by a function of the call."""

    def __init__(self, decide: Callable[[Call], Fault | None]) -> None:
        self.decide = decide


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "state.sqlite")


def service_with(clock: FakeClock, *, limit: float | None = None) -> MemoryTableService:
    return MemoryTableService(clock=clock, faults=None if limit is None else PartitionLimit(limit, clock))


async def tried(
    service: MemoryTableService,
    notes: Notes,
    clock: FakeClock,
    *,
    spreads: Iterable[Spread] = (EVEN,),
    bounds: Bounds | None = None,
    batch: int = 25,
) -> StressReport:
    @asynccontextmanager
    async def generators(name: str) -> AsyncIterator[InProcess]:
        yield InProcess(service.table(name), clock, processor=lambda: 0.0)

    test = StressTest(
        service,
        generators,
        inserts(batch),
        bounds or Bounds(),
        notes=notes,
        endpoint=ENDPOINT,
        clock=clock,
        progress=Progress(),
    )
    return await test.run(list(spreads))


def tables_of(service: MemoryTableService) -> set[str]:
    return set(service._tables)


# --- one rate -------------------------------------------------------------------------------------------


async def offered(service: MemoryTableService, clock: FakeClock, rate: float, seconds: float) -> Step:
    """Offer a rate to the table Tried, row by row."""
    rates = {OperationKind.INSERT: rate}
    _, requests = Population(ONE_PARTITION, 0, inserts(1)).plan(rates, seconds)
    generator = InProcess(service.table("Tried"), clock, processor=lambda: 0.0)
    return measure(await generator.offer(requests), rate, seconds, rates)


async def test_latency_counts_from_when_a_request_was_due(clock: FakeClock) -> None:
    """A service that stalls for two seconds: a closed loop would meet it once and report one slow answer in
    hundreds; everything that was due meanwhile waited, too."""
    began = clock.ticks()

    def stall(call: Call) -> Fault | None:
        at = (clock.ticks() - began) / 10_000_000
        return Fault(FaultKind.SLOW, seconds=6 - at) if call.operations and 4 <= at < 6 else None

    service = MemoryTableService(clock=clock, faults=Failing(stall))
    await service.create_table("Tried")
    step = await offered(service, clock, 100, 10)
    assert step.achieved == pytest.approx(100, rel=0.02)
    assert step.latency.p50 is not None and step.latency.p50 < 0.1
    assert step.latency.p95 == pytest.approx(1.6, abs=0.2)
    assert step.latency.p99 is not None and step.latency.p99 > 1.8


async def test_waiting_requests_are_bounded(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MOST_WAITING", 20)
    waiting = most = 0

    async def gate(call: Call) -> None:
        nonlocal waiting, most
        if call.operations:
            waiting += 1
            most = max(most, waiting)
            await clock.sleep(5.0)
            waiting -= 1

    service = MemoryTableService(clock=clock, gate=gate)
    await service.create_table("Tried")
    step = await offered(service, clock, 40, 4)
    assert most == 20
    assert step.counts.unsent == 120
    assert step.achieved == 0.0


async def test_a_table_that_is_gone_ends_the_test_with_its_error(clock: FakeClock) -> None:
    service = service_with(clock)
    with pytest.raises(ServiceError, match="no table"):
        await offered(service, clock, 100, 2)


async def test_refusals_are_told_apart_from_lost_answers(clock: FakeClock) -> None:
    def every_fifth(call: Call) -> Fault | None:
        kinds = {0: FaultKind.BUSY, 1: FaultKind.LOST_REQUEST}
        return Fault(kinds[call.number % 5]) if call.operations and call.number % 5 in kinds else None

    service = MemoryTableService(clock=clock, faults=Failing(every_fifth))
    await service.create_table("Tried")
    step = await offered(service, clock, 100, 8)
    assert step.counts.sent == 600
    assert (step.counts.refused, step.counts.failed) == (120, 120)
    assert step.achieved == pytest.approx(60, rel=0.05)


# --- a whole test ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "batch"), [(300, 5), pytest.param(2_000, 25, marks=pytest.mark.soak)])
async def test_partition_limit_is_found(clock: FakeClock, notes: Notes, limit: float, batch: int) -> None:
    service = service_with(clock, limit=limit)
    bounds = Bounds(step_seconds=4)
    report = await tried(
        service, notes, clock, spreads=[Spread("Users", (1, 1, 1, 1))], bounds=bounds, batch=batch
    )
    one, spread = report.stages
    assert one.saturation.limit is spread.saturation.limit is Limit.SERVICE
    assert one.saturation.rate == pytest.approx(limit, rel=0.1)
    assert spread.saturation.rate == pytest.approx(4 * limit, rel=0.1)
    assert one.spread.expected == 2_000 and spread.spread.expected == 8_000


async def test_a_hot_partition_limits_its_design(clock: FakeClock, notes: Notes) -> None:
    """Half of all rows go to one partition: the other hundred do not help."""
    service = service_with(clock, limit=200)
    report = await tried(service, notes, clock, spreads=[Spread("Users", (100, *[1] * 100))])
    assert report.stages[1].saturation.rate == pytest.approx(400, rel=0.1)


async def test_without_a_limit_it_ends_at_twice_the_targets(clock: FakeClock, notes: Notes) -> None:
    bounds = Bounds(rows=10_000_000, seconds=10_000, step_seconds=1)
    report = await tried(
        service_with(clock), notes, clock, spreads=[Spread("Users", (1, 1))], bounds=bounds, batch=100
    )
    assert [stage.saturation.limit for stage in report.stages] == [Limit.NOTHING] * 2
    assert [stage.saturation.rate for stage in report.stages] == pytest.approx([4_000, 8_000], rel=0.01)


async def test_rows_and_seconds_are_shared_by_the_stages(clock: FakeClock, notes: Notes) -> None:
    few = await tried(service_with(clock), notes, clock, bounds=Bounds(rows=8_000))
    assert few.sent <= 8_000
    assert [stage.bounded for stage in few.stages] == ["rows", "rows"]
    assert every(stage.steps for stage in few.stages)
    short = await tried(service_with(clock), notes, clock, bounds=Bounds(seconds=20))
    assert short.seconds <= 21
    assert [stage.bounded for stage in short.stages] == ["seconds", "seconds"]
    assert every(stage.steps for stage in short.stages)


# --- what is left ---------------------------------------------------------------------------------------


async def test_the_test_table_is_removed_and_no_other(clock: FakeClock, notes: Notes) -> None:
    service = service_with(clock, limit=300)
    await service.create_table("Users")
    report = await tried(service, notes, clock, bounds=Bounds(rows=5_000))
    assert tables_of(service) == {"users"}
    assert report.table.startswith("rekeystress")
    assert not notes.path.exists()


async def test_it_is_removed_on_failure_and_cancellation(clock: FakeClock, notes: Notes) -> None:
    def refused(call: Call) -> Fault | None:
        if call.number > 50:
            raise CredentialRefused("no", code="AuthenticationFailed")
        return None

    service = MemoryTableService(clock=clock, faults=Failing(lambda c: refused(c) if c.operations else None))
    with pytest.raises(CredentialRefused):
        await tried(service, notes, clock)
    assert tables_of(service) == set()
    assert not notes.path.exists()

    service = service_with(clock)
    running = asyncio.create_task(tried(service, notes, clock))
    while not any(service._tables.values()) or not service.dump(*service._tables):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert tables_of(service) == set()
    assert not notes.path.exists()


async def test_a_table_that_was_left_is_removed_next_time(clock: FakeClock, notes: Notes) -> None:
    """A process that is killed leaves a note, too: it is written before the table is made."""
    stuck = True

    def down(call: Call) -> Fault | None:
        return Fault(FaultKind.BUSY) if call.action == "delete_table" and stuck else None

    service = MemoryTableService(clock=clock, faults=Failing(down))
    strange = new_name()
    await service.create_table(strange)
    with pytest.raises(RekeyError, match="could not be removed") as told:
        await tried(service, notes, clock, bounds=Bounds(rows=2_000))
    [left] = notes.tables(ENDPOINT)
    assert left in told.value.kept
    assert tables_of(service) == {strange, left}
    stuck = False
    report = await tried(service, notes, clock, bounds=Bounds(rows=2_000))
    assert report.removed == (left,)
    assert tables_of(service) == {strange}, "a table that was not noted is somebody else's"


async def test_a_note_of_another_account_is_left_alone(clock: FakeClock, notes: Notes) -> None:
    elsewhere = new_name()
    notes.add(elsewhere, "https://other.table.core.windows.net")
    service = service_with(clock)
    await service.create_table(elsewhere)
    report = await tried(service, notes, clock, bounds=Bounds(rows=2_000))
    assert report.removed == ()
    assert tables_of(service) == {elsewhere}
    assert notes.tables("https://other.table.core.windows.net") == [elsewhere]


def test_a_damaged_note_removes_nothing(notes: Notes) -> None:
    """Neither a name that no stress test makes, nor a line that was cut off."""
    notes.path.write_text(f"Users {ENDPOINT}\nrekeystress12 {ENDPOINT}\n{new_name()} {ENDPOINT}", "utf-8")
    assert notes.tables(ENDPOINT) == []


# --- distributions --------------------------------------------------------------------------------------


async def test_shares_of_a_table_and_of_a_design_are_read(tmp_path: Path) -> None:
    project = Project(tmp_path)
    tenants = ["north"] * 60 + ["south"] * 30 + ["west"] * 10
    rows = [{**user(f"user{n}@example.com"), "PartitionKey": tenant} for n, tenant in enumerate(tenants)]
    await project.fill("Users", rows)
    before = project.tables.dump("Users")
    source = project.tables.table("Users")
    [found], _ = await spread_of_rows(source, None, exact=False, progress=Progress())
    assert found == Spread("Users", (60, 30, 10))
    script = project.script(named(USERS, "Users", "UsersV2"))
    migration = project.scripts[script].migration
    planned, refused = await spread_of_rows(source, migration, exact=True, progress=Progress())
    assert refused == 0
    assert [one.table for one in planned] == list(migration.tables)
    assert planned[0].counts == (60, 30, 10)
    assert project.tables.dump("Users") == before
    assert set(project.tables._tables) == {"users"}


# --- the command line -----------------------------------------------------------------------------------

AZURITE, STORAGE = (
    ProbeResult(status=403, server=name) for name in ("Azurite-Table/3.35.0", "Windows-Azure-Table/1")
)
SHORT = ("--rows", "3000", "--batch", "25", "--step-seconds", "2")


class Commands:
    """Runs commands against tables in memory behind a service that says who it is."""

    def __init__(
        self, folder: Path, capsys: pytest.CaptureFixture[str], answer: ProbeResult = AZURITE
    ) -> None:
        self.project = Project(folder)
        self._capsys = capsys
        self.answer = answer

    def __call__(self, *words: str, code: int = 0) -> str:
        async def ask(*_: object) -> ProbeResult:
            return self.answer

        around = Surroundings(self.project.connect, self.project.clock, is_terminal=False, ask=ask)
        ended = rekey_run([*words, "--config", str(self.project.folder / "rekey.toml")], around)
        said = self._capsys.readouterr()
        assert ended == code, said
        return said.out + said.err

    def fill(self, rows: Iterable[Row]) -> None:
        asyncio.run(self.project.fill("Users", rows))


@pytest.fixture
def rekey(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    commands = Commands(tmp_path, capsys)
    commands.fill(user(f"user{number}@example.com") for number in range(50))
    return commands


def test_an_account_that_is_not_azurite_is_loaded_by_its_owner_only(rekey: Commands) -> None:
    rekey.answer = STORAGE
    calls = rekey.project.tables._calls
    said = rekey("stress", "Users", *SHORT, code=3)
    assert "--i-own-this-account" in said and "costs money" in said
    assert rekey.project.tables._calls == calls, "nothing was read or written"
    assert "one partition" in rekey("stress", "Users", *SHORT, "--i-own-this-account")


def test_an_unknown_service_is_not_taken_for_azurite(rekey: Commands) -> None:
    rekey.answer = ProbeResult(status=200, server="nginx")
    rekey("stress", "Users", *SHORT, code=3)


def test_the_report_names_no_key_and_one_document_is_printed(rekey: Commands) -> None:
    text = rekey("stress", "Users", *SHORT)
    assert "spread as in Users" in text and "example.com" not in text
    assert max(map(len, text.splitlines())) <= 100
    document = json.loads(rekey("stress", "Users", *SHORT, "--json"))
    assert document["exit_code"] == 0
    assert [stage["stage"] for stage in document["stages"]] == ["one partition", "Users"]
    assert document["rows_sent"] <= 3000


def test_a_design_that_carries_less_than_its_load_is_a_finding(rekey: Commands) -> None:
    rekey.project.tables.faults = PartitionLimit(300, rekey.project.clock)
    script = named(USERS, "Users", "UsersV2")
    declared = script.replace(
        "migration = Migration(", 'migration = Migration(\n    load={"writes_per_second": 900},'
    )
    assert declared != script
    rekey.project.script(declared)
    said = rekey("stress", "--design", "0001", "--batch", "25", code=1)
    assert "does not carry the declared 900 writes/s" in said
    rekey.project.script(declared.replace("900", "200"))
    assert "carries the declared 200 writes/s" in rekey("stress", "--design", "0001", "--batch", "25")


def test_what_cannot_be_is_usage(rekey: Commands) -> None:
    assert "either TABLE or --design" in rekey("stress", code=2)
    assert "either TABLE or --design" in rekey("stress", "Users", "--design", "0001", code=2)
    assert "not a table name" in rekey("stress", "no-table", code=2)
    assert "no table Nobody" in rekey("stress", "Nobody", code=2)
    asyncio.run(rekey.project.tables.create_table("Empty"))
    assert "gives no rows" in rekey("stress", "Empty", code=2)


def test_two_at_a_time_are_refused(rekey: Commands) -> None:
    with FileLock(Notes(rekey.project.folder / "state.sqlite").path):
        assert "another stress test" in rekey("stress", "Users", code=3)
