"""A verification is as old as the range that it read first, whatever is read later; one that is killed again
and again reads little twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.errors import GateClosed, Interrupted
from rekey.model import EVERYTHING, Row, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View
from rekey.runner import commands
from rekey.runner.run import StopFlag
from rekey.verify.bucket_digests import SOURCE, Part, Partial
from rekey.verify.first_pass import add_digests
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call
from tests.fakes.memory import MemoryTable, MemoryTableService, instant_gate
from tests.worlds.company import Company, application, company_at
from tests.worlds.projects import USERS_SCRIPT
from tests.worlds.small import USERS, Killed, World, user
from tests.worlds.verification import context, filled

ROWS, HOUR = 450, 3600
ANN, BOB = user("ann@example.com"), user("bob@example.com")
TABLES = ("Users", "UsersV2")


@pytest.fixture
def company(tmp_path: Path) -> Company:
    """A migration that is copied but not verified, with a client of each view, in pages of one row."""
    rows = [user(f"user{number:03}@example.com") for number in range(ROWS)]
    return company_at(tmp_path, USERS_SCRIPT, rows, Phase.BACKFILL)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = MemoryTable.scan
    monkeypatch.setattr(
        MemoryTable, "scan", lambda self, *words, **more: scan(self, *words, **{**more, "page_rows": 1})
    )


def slowly(company: Company, page_s: float, then: Callable[[float, int], None]) -> list[int]:
    """Let each page of the tables take `page_s`, and call `then` with the seconds and the number of pages so
    far; return a list with that number."""
    clock, pages = company.project.clock, [0]
    since = clock.ticks()

    async def gate(call: Call) -> None:
        if call.action == "page" and call.table in TABLES and not application.get():
            await clock.sleep(page_s)
            then((clock.ticks() - since) / TICKS_PER_SECOND, pages[0])
            pages[0] += 1

    company.project.tables.gate = gate
    return pages


@pytest.mark.usefixtures("small_pages")
def test_a_comparison_killed_once_an_hour_reads_at_most_a_hundredth_twice(company: Company) -> None:
    def kill(seconds: float, _pages: int) -> None:
        if seconds > HOUR:
            raise Killed

    read = kills = 0
    with company:
        while True:
            pages = slowly(company, 25, kill)
            try:
                report = company.verify()
                break
            except Killed:
                company.project.tables.gate = instant_gate
                company.project.clock.advance(120)  # its lease ends
                kills += 1
                assert kills < 6
            finally:
                read += pages[0]
    assert kills >= 2 and not report.findings
    assert (report.source_rows, report.target_rows) == (ROWS, ROWS)
    ends = 2 * (kills + 2)  # a page that says that nothing follows, of each table and each sitting
    assert 2 * ROWS <= read <= 1.01 * 2 * ROWS + ends


@pytest.mark.usefixtures("small_pages")
def test_what_was_read_before_a_break_makes_the_verification_as_old(company: Company) -> None:
    stop = StopFlag()

    def end(_seconds: float, pages: int) -> None:
        if pages == ROWS:
            stop.request()

    with company:
        company.client(View.OLD)
        slowly(company, 1, end)
        opened = company.project.session(stop=stop, loop=company.loop)
        with pytest.raises(Interrupted), opened as session:
            commands.apply(session, company.script_id)
        company.project.tables.gate = instant_gate
        pause(company, 23)
        company.apply()
        status = company.status()
        assert not status.verification_closes
        begun_at = status.as_json()["verification"]["begun_at"]
        assert company.project.clock.ticks() - ticks_of(begun_at) > 23 * HOUR * TICKS_PER_SECOND
        pause(company, 1)
        assert "oldest rows" in company.status().verification_closes
        with pytest.raises(GateClosed, match=r"read its oldest rows at .*, which is too old"):
            company.apply(Phase.CUTOVER)
        assert company.phase is ControlPhase.DUAL_WRITE
        assert not company.verify().findings
        company.apply(Phase.CUTOVER)
        assert company.phase is ControlPhase.CUTOVER


def pause(company: Company, hours: int) -> None:
    """Let time pass without clients, whose heartbeats would take their own."""
    company.do(company.clients.pop().close())
    company.project.clock.advance(hours * HOUR)
    company.client(View.OLD)


# --- why ranges are not renewed one by one (docs/adr/0058-as-old-as-the-oldest-range.md) -------------------


@pytest.fixture
async def world(clock: FakeClock) -> World:
    return await filled(World(MemoryTableService(clock=clock), USERS), [ANN, BOB])


async def of_source(world: World, folder: Path, work: Partial) -> Partial:
    """Return the digests with those of the source read again, and those of the target as they are."""
    renewed = Partial.fresh(1)
    renewed.parts = [Part(SOURCE, EVERYTHING)]
    await add_digests(context(world, folder), renewed)
    renewed.actual = work.actual
    return renewed


def differing(work: Partial) -> frozenset[int]:
    [expected], [actual] = work.expected, work.actual
    return expected.differing(actual)


async def test_a_range_read_again_proves_nothing_newer_than_the_other_side(
    world: World, tmp_path: Path
) -> None:
    """A foreign writer changes the target behind what was read of it; the source range, read later, agrees
    with what was there before. Its pair is as old as the older half."""
    work = Partial.fresh(1)
    await add_digests(context(world, tmp_path), work)
    [row, *_] = world.service.dump("UsersV2")
    await world.targets[0].replace({**content_of(row), "Name": "foreign"})
    assert not differing(await of_source(world, tmp_path, work))
    anew = Partial.fresh(1)
    await add_digests(context(world, tmp_path), anew)
    assert len(differing(anew)) == 1


async def test_after_a_write_of_a_client_ranges_of_different_times_do_not_agree(
    world: World, tmp_path: Path
) -> None:
    """The write reached both sides, which are equal; digests from before it and after it are not, and do not
    say which row it was. So every range must be read again to find that."""
    work = Partial.fresh(1)
    await add_digests(context(world, tmp_path), work)
    changed: Row = {**ANN, "Nm": "changed"}
    await world.source.replace(changed)
    await world.propagator.propagate(key_of(ANN))
    assert len(differing(await of_source(world, tmp_path, work))) == 1
    anew = Partial.fresh(1)
    await add_digests(context(world, tmp_path), anew)
    assert not differing(anew)
