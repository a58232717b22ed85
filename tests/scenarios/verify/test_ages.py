"""A verification is as old as the range that it read first, whatever is read later; one that is killed again
and again reads little twice.

Soak: a comparison by ranges that is killed once an hour.
Reason, and what `make test` covers: half a minute; one at once.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.errors import GateClosed, Interrupted
from rekey.model import EVERYTHING, Row, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View
from rekey.runner import commands, steering, verification
from rekey.runner.run import StopFlag
from rekey.state.models import Verification
from rekey.status.facts import took_s
from rekey.tables.base import Page
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
NOBODYS: Row = {"PartitionKey": "a", "RowKey": "of no source row"}
# The number of a page when all rows were read once.
AMONG_REREAD = 2 * ROWS + 100
ANN, BOB = user("ann@example.com"), user("bob@example.com")
TABLES = ("Users", "UsersV2")


def made(tmp_path: Path, rows: Iterable[Row]) -> Company:
    """A migration that is copied but not verified."""
    return company_at(tmp_path, USERS_SCRIPT, list(rows), Phase.BACKFILL)


@pytest.fixture
def company(tmp_path: Path) -> Company:
    """One partition."""
    return made(tmp_path, (user(f"user{number:03}@example.com") for number in range(ROWS)))


@pytest.fixture
def spread(tmp_path: Path) -> Company:
    """A partition for each row."""
    return made(tmp_path, (user("user@example.com", f"p{number:03}") for number in range(ROWS)))


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a page have one row; return a list with the number of rows read."""
    scan, read = MemoryTable.scan, [0]

    async def one_by_one(self: MemoryTable, *words: Any, **more: Any) -> AsyncIterator[Page]:
        async for page in scan(self, *words, **{**more, "page_rows": 1}):
            read[0] += len(page.rows) * ("select" not in more and self.name in TABLES)
            yield page

    monkeypatch.setattr(MemoryTable, "scan", one_by_one)
    return read


def slowly(company: Company, page_s: float, then: Callable[[float, int], None]) -> None:
    """Let each page of the tables take `page_s`, and call `then` with the seconds and the pages so far."""
    clock, pages = company.project.clock, 0
    since = clock.ticks()

    async def gate(call: Call) -> None:
        nonlocal pages
        if call.action == "page" and call.table in TABLES and not application.get():
            await clock.sleep(page_s)
            then((clock.ticks() - since) / TICKS_PER_SECOND, pages)
            pages += 1

    company.project.tables.gate = gate


@pytest.mark.parametrize(
    ("made_by", "page_s"),
    [("company", 25), pytest.param("spread", 9, marks=pytest.mark.soak)],
    ids=["at once", "by ranges"],
)
def test_a_comparison_killed_once_an_hour_reads_at_most_a_hundredth_twice(
    made_by: str,
    page_s: float,
    rows_read: list[int],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    company: Company = request.getfixturevalue(made_by)
    by_ranges = made_by == "spread"
    monkeypatch.setattr(verification, "RANGED_ROWS", 1 if by_ranges else 10**9)

    def kill(seconds: float, _pages: int) -> None:
        if seconds > HOUR:
            raise Killed

    kills = rows_read[0] = 0
    with company:
        while True:
            slowly(company, page_s, kill)
            try:
                report = company.verify()
                break
            except Killed:
                company.project.tables.gate = instant_gate
                company.project.clock.advance(120)  # its lease ends
                with closing(sqlite3.connect(company.project.config.state)) as connection:
                    [[stored]] = connection.execute("select sums from partial_sums").fetchall()
                assert "sealed:" in stored and ('"large"' in stored) is by_ranges
                kills += 1
                assert kills < 6
    assert kills >= 2 and not report.findings
    assert (report.source_rows, report.target_rows) == (ROWS, ROWS)
    assert 2 * ROWS <= rows_read[0] <= 1.01 * 2 * ROWS


@pytest.mark.usefixtures("rows_read")
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


@pytest.mark.usefixtures("rows_read")
def test_what_a_verification_took_is_without_pauses(company: Company) -> None:
    """Two: while all rows are read, and while those of differing buckets are read again."""
    state, clock = company.project.config.state, company.project.clock
    resumed: list[asyncio.Task[None]] = []

    async def resume() -> None:
        await clock.sleep(HOUR)
        steering.say(state, steering.Steering())

    def pause_now(_seconds: float, pages: int) -> None:
        if pages in (ROWS, AMONG_REREAD):
            steering.say(state, steering.Steering(paused=True))
            resumed.append(asyncio.ensure_future(resume()))

    with company:
        company.do(company.project.tables.table("UsersV2").insert(NOBODYS))
        slowly(company, 0.1, pause_now)
        assert company.verify().findings
        assert len(resumed) == 2
        last = last_of(company)
    assert ticks_of(last.finished_at) - ticks_of(last.started_at) > 2 * HOUR * TICKS_PER_SECOND
    assert 40 < took_s(last) < HOUR / 4


@pytest.mark.usefixtures("rows_read")
def test_what_a_verification_took_is_without_the_time_in_which_it_was_killed(company: Company) -> None:
    """All rows were read when it was killed, so that its next sitting reads none for the first time."""

    def kill(_seconds: float, pages: int) -> None:
        if pages == AMONG_REREAD:
            raise Killed

    with company:
        company.do(company.project.tables.table("UsersV2").insert(NOBODYS))
        slowly(company, 0.1, kill)
        with pytest.raises(Killed):
            company.verify()
        company.project.tables.gate = instant_gate
        company.project.clock.advance(HOUR)
        assert company.verify().findings
        last = last_of(company)
    assert ticks_of(last.finished_at) - ticks_of(last.started_at) > HOUR * TICKS_PER_SECOND
    assert 40 < took_s(last) < HOUR / 4


def last_of(company: Company) -> Verification:
    with company.session() as session:
        last = session.state.latest_verification(company.script_id)
    assert last is not None
    return last


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
