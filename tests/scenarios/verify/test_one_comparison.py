"""Capture "delta": one comparison catches up, sweeps and proves; how long writers will have to stop is told
before, and a longer stop than allowed is not begun."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rekey.core.clock import TICKS_PER_SECOND, format_ticks
from rekey.declaration.mapper import Mapper
from rekey.errors import Findings, GateClosed, Interrupted
from rekey.model import EntityKey, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.runner import commands, stop
from rekey.runner.run import Options, StopFlag
from rekey.runner.stop import Measured, reading_s
from rekey.verify import first_pass, trace
from rekey.verify import full as comparison
from rekey.verify.report import FullReport, TableRead
from tests.asserts.command_line import CommandsOn
from tests.fakes.executors import NAME, inline
from tests.fakes.faults import Call
from tests.fakes.memory import instant_gate
from tests.worlds.projects import POSTS_SCRIPT, SECONDARY_FROM_KEYS_SCRIPT, USERS_SCRIPT, Project, lived
from tests.worlds.small import SECRET, contents, mapped, post, racer, user

SCRIPT = "0001_users"
ROWS = 1_100
STOPPED = Options(writers_stopped=True)
FIRST, SECOND, THIRD, NEW = (f"user{number:04}@example.com" for number in (0, 1, 2, 9_999))


@pytest.fixture
def copied(tmp_path: Path) -> Project:
    """A project after backfill."""
    return lived_until(Phase.BACKFILL, tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project at the gate of cutover."""
    return lived_until(Phase.RECONCILE, tmp_path)


def lived_until(phase: Phase, folder: Path) -> Project:
    def live(project: Project) -> None:
        project.script(USERS_SCRIPT)
        rows = [user(f"user{number:04}@example.com", "p0") for number in range(ROWS)]
        asyncio.run(project.fill("Users", rows))
        project.clock.advance(3_600)
        apply(project, phase)

    return lived((__name__, phase), folder, live)


def apply(project: Project, to: Phase | None = None, options: Options | None = None) -> commands.Applied:
    with project.session(options) as session:
        return commands.apply(session, SCRIPT, to=to)


def changed(project: Project) -> None:
    """The application inserts, changes and deletes a row."""
    source = project.tables.table("Users")

    async def work() -> None:
        await source.insert(user(NEW, "p0"))
        await source.merge({"PartitionKey": "p0", "RowKey": FIRST, "Nm": "changed"})
        await source.delete(EntityKey("p0", SECOND))

    asyncio.run(work())


def in_step(project: Project) -> bool:
    """Whether every table holds what the source says."""
    [declared] = project.scripts.values()
    mapper = Mapper(declared.migration, {"users": SECRET})
    expected = mapped(mapper, project.rows(declared.migration.source))
    return all(contents(project.rows(name)) == rows for name, rows in expected.items())


@contextmanager
def counted(project: Project) -> Iterator[Counter[str]]:
    """Count requests by kind and table."""
    calls: Counter[str] = Counter()

    async def count(call: Call) -> None:
        calls[f"{call.action} {call.table}"] += 1

    before, project.tables.gate = project.tables.gate, count
    yield calls
    project.tables.gate = before


def last_report(project: Project) -> dict[str, object]:
    with project.session() as session:
        last = session.state.latest_verification(SCRIPT)
        return dict(last.report)


PAGES = -(-ROWS // 1_000)


def test_reconcile_reads_source_and_targets_once(copied: Project) -> None:
    """And three times a page of the source: whether it is empty, what was written meanwhile, and the gate of
    cutover, which looks at the target as well."""
    with counted(copied) as calls:
        apply(copied)
    assert (calls["page Users"], calls["page UsersV2"]) == (PAGES + 3, PAGES + 1)
    assert in_step(copied)


def test_under_freeze_all_is_read_once_and_pages_with_changes_once_more(project: Project) -> None:
    changed(project)
    with counted(project) as calls:
        apply(project, Phase.CUTOVER, STOPPED)
    # The rows that changed are in two pages of the source, and in as many of the target. One request looks
    # for strays; the gates of cutover and `complete` look at the tables, what would delete rows at the source
    # once more, and one takes a sample that must be in the mapping.
    assert calls["page Users"] <= PAGES + 2 + 1 + 2 + 1
    assert calls["page UsersV2"] <= PAGES + 2 + 2
    assert in_step(project)


def test_the_report_holds_the_sums_of_what_is_there_after_what_differed_was_brought(project: Project) -> None:
    """So that they can be recomputed from the tables, and the next verification finds the same."""
    changed(project)
    apply(project, Phase.CUTOVER, STOPPED)
    report = last_report(project)
    assert (report["brought"], report["stable"], report["transient"]) == (3, 0, 0)
    [table] = report["tables"]  # type: ignore[misc]
    assert table["expected_digest"] == table["actual_digest"] and table["differing_buckets"] == 0
    assert table["expected_rows"] == table["actual_rows"] == ROWS
    with project.session(STOPPED) as session:
        commands.rollback(session, SCRIPT, to=ControlPhase.DUAL_WRITE, drop=None)
        again = commands.verify(session, SCRIPT, mode=commands.Mode.FULL)
    assert isinstance(again, FullReport)
    assert again.tables[0].actual_digest == table["actual_digest"]
    assert again.source_digest == report["source_digest"]


@pytest.mark.parametrize("capture", ["posts", "races"])
def test_rows_of_index_tables_and_secondary_rows_are_brought_too(tmp_path: Path, capture: str) -> None:
    made = Project(tmp_path)
    made.script(POSTS_SCRIPT if capture == "posts" else SECONDARY_FROM_KEYS_SCRIPT)
    table = "Posts" if capture == "posts" else "Races"
    rows = [post(f"p{n:03}") if capture == "posts" else racer(f"{n:04}") for n in range(60)]
    asyncio.run(made.fill(table, rows))
    made.clock.advance(3_600)
    apply(made)
    source = made.tables.table(table)

    async def work() -> None:
        await source.delete(key_of(rows[0]))
        if capture == "posts":
            await source.replace(post("p001", "2024-09", "x,y"))
        await source.insert(post("new") if capture == "posts" else racer("0077"))

    asyncio.run(work())
    apply(made, Phase.CUTOVER, STOPPED)
    assert in_step(made)
    assert "brought" in last_report(made)


def test_a_row_that_somebody_changed_or_deleted_in_the_target_is_brought(project: Project) -> None:
    first, second, *_ = project.rows("UsersV2")
    target = project.tables.table("UsersV2")
    asyncio.run(target.replace({**content_of(first), "Name": "wrong"}))
    asyncio.run(target.delete(key_of(second)))
    assert apply(project).caught_up == 2
    assert in_step(project)


def test_a_row_that_no_source_row_is_known_for_is_left_and_keeps_the_gate_closed(project: Project) -> None:
    stray = {"PartitionKey": "p0", "RowKey": "stray", "Name": "?"}
    asyncio.run(project.tables.table("UsersV2").insert(stray))
    with pytest.raises(Findings, match=r"1 rows? that differ"):
        apply(project, Phase.CUTOVER, STOPPED)
    with pytest.raises(Findings, match=r"1 rows? that differ"):
        apply(project)
    with pytest.raises(GateClosed, match=r"1 rows? that differ"):
        apply(project, Phase.CUTOVER, STOPPED)


def test_many_differences_are_first_passed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST", 2)
    monkeypatch.setattr(comparison, "MOST", 2)
    changed(project)
    assert apply(project).caught_up == 3
    changed_again = project.tables.table("Users")
    for name in (FIRST, THIRD, NEW):
        asyncio.run(changed_again.merge({"PartitionKey": "p0", "RowKey": name, "Nm": "again"}))
    apply(project, Phase.CUTOVER, STOPPED)
    assert in_step(project)
    assert "brought" not in last_report(project)


def test_with_workers_passes_a_sweep_and_a_verification_do_the_same(project: Project) -> None:
    with inline(project):
        options = Options(writers_stopped=True, executor=NAME)
        apply(project, options=options)
        changed(project)
        apply(project, Phase.CUTOVER, options)
    assert in_step(project)


def test_an_interrupted_comparison_resumes(copied: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its watermark is the time before its first sitting: what changed between the two is not passed over."""
    monkeypatch.setattr(first_pass, "CHECKPOINT_ROWS", 100)
    changed(copied)
    stop_flag, pages = StopFlag(), 0

    async def then_stop(call: Call) -> None:
        nonlocal pages
        pages += call.action == "page"
        if pages == 3:
            stop_flag.request()

    copied.tables.gate = then_stop
    with pytest.raises(Interrupted), copied.session(stop=stop_flag) as session:
        commands.apply(session, SCRIPT)

    copied.tables.gate = instant_gate
    copied.clock.advance(60)
    asyncio.run(copied.tables.table("Users").merge({"PartitionKey": "p0", "RowKey": THIRD, "Nm": "later"}))
    apply(copied)
    report = last_report(copied)
    assert {one["sitting"] for one in report["read"]} == {1, 2}  # type: ignore[attr-defined]
    assert report["brought"]
    apply(copied, Phase.CUTOVER, STOPPED)
    assert in_step(copied)


# --- how long writers will have to stop -------------------------------------------------------------------


def test_passes_repeat_until_little_is_left(copied: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass finds a quarter of what the one before it found, which the application wrote meanwhile."""
    from rekey.runner.phases import reconcile

    monkeypatch.setattr(reconcile, "_LITTLE", 3)
    left, passes = [64], 0
    source = copied.tables.table("Users")
    original = reconcile.written_since

    async def written_since(*given: object):  # type: ignore[no-untyped-def]
        nonlocal passes
        passes += 1
        for number in range(left[0]):
            name = f"user{number:04}@example.com"
            await source.merge({"PartitionKey": "p0", "RowKey": name, "Nm": f"{passes}"})
        left[0] //= 4
        async for row in original(*given):  # type: ignore[arg-type]
            yield row

    monkeypatch.setattr(reconcile, "written_since", written_since)
    done = apply(copied)
    assert passes == 4, "64, 16, 4, 1"
    assert done.stop_s is not None and done.stop_s >= stop.FIXED_S
    left[0], passes = 64, 0
    monkeypatch.setattr(reconcile, "MAX_PASSES", 2)
    apply(copied)
    assert passes == 2


def test_passes_end_at_the_rate_of_changes(copied: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from rekey.runner.phases import reconcile

    monkeypatch.setattr(reconcile, "_LITTLE", 3)
    source, looks = copied.tables.table("Users"), 0
    original = reconcile.written_since

    async def written_since(*given: object):  # type: ignore[no-untyped-def]
        nonlocal looks
        looks += 1
        for number in range(40):
            name = f"user{number:04}@example.com"
            await source.merge({"PartitionKey": "p0", "RowKey": name, "Nm": f"{looks}"})
        async for row in original(*given):  # type: ignore[arg-type]
            yield row

    monkeypatch.setattr(reconcile, "written_since", written_since)
    apply(copied)
    assert looks == 2


def kept(project: Project, **more: float) -> None:
    """Pretend to have measured a stop of half a minute."""
    fields = {
        "read_s": 23.0 - stop.FIXED_S,
        "look_s": 2.0,
        "bring_s": 0.5,
        "waiting": 10,
        "changes_per_s": 0.0,
    }
    measured = Measured(format_ticks(project.clock.ticks()), **{**fields, **more})  # type: ignore[arg-type]
    with project.session() as session:
        stop.keep(session.begin(SCRIPT), measured)


def test_what_will_have_changed_by_then_counts() -> None:
    at = 7 * TICKS_PER_SECOND
    measured = Measured(format_ticks(at), 20.0, 2.0, 0.5, 10, 0.2)
    assert measured.stop_s(at) == stop.FIXED_S + 20 + 2 + 5
    assert measured.stop_s(at + 100 * TICKS_PER_SECOND) == stop.FIXED_S + 20 + 2 + 15


def test_reading_is_measured_by_the_last_sitting() -> None:
    def read(sitting: int, rows: int, begun: int, ended: int) -> TableRead:
        return TableRead("T", sitting, f"2024-01-01T00:00:{begun:02}Z", f"2024-01-01T00:00:{ended:02}Z", rows)

    report = FullReport.__new__(FullReport)
    object.__setattr__(report, "read", (read(1, 900, 0, 30), read(2, 100, 40, 42), read(2, 100, 41, 44)))
    assert reading_s(report) == 4 * 1_100 / 200
    object.__setattr__(report, "read", ())
    assert reading_s(report) == 0


def test_a_longer_stop_than_allowed_is_not_begun(project: Project, commands_on: CommandsOn) -> None:
    rekey = commands_on(project)
    rekey("apply", "0001")
    kept(project)
    to_cutover = ("apply", "0001", "--to", "cutover", "--writers-stopped", "--stop-at-most")
    said = rekey(*to_cutover, "29s", code=3).err
    assert "about 30 s, exceeds 29 s" in said and "rekey apply 0001_users" in said
    [migration] = rekey("status", "--json").json["migrations"]
    assert migration["control"]["phase"] == "dual_write"
    assert "(--stop-at-most)" in rekey(*to_cutover, "10s", code=3).err
    assert "write for example 60s" in rekey(*to_cutover, "soon", code=2).err
    rekey(*to_cutover, "31s")


def test_what_was_left_open_is_waited_for_and_counts(project: Project) -> None:
    kept(project)
    project.tables.last_open = project.clock.monotonic()
    with pytest.raises(GateClosed, match="about 90 s, exceeds 31 s"):
        apply(project, Phase.CUTOVER, Options(writers_stopped=True, stop_at_most_s=31))


def test_without_a_measurement_no_limit_is_kept_and_none_is_promised(project: Project) -> None:
    with project.session() as session:
        session.state.set_fact(SCRIPT, stop.MEASURED, None)
    with pytest.raises(GateClosed, match="is not known"):
        apply(project, Phase.CUTOVER, Options(writers_stopped=True, stop_at_most_s=3_600))
    apply(project, Phase.CUTOVER, STOPPED)


def test_apply_says_how_long_the_stop_will_be(project: Project, commands_on: CommandsOn) -> None:
    rekey = commands_on(project)
    assert f"estimated write downtime: about {stop.FIXED_S} s" in rekey("apply", "0001").out
    [done] = rekey("apply", "0001", "--json").json["migrations"]
    assert done["stop_seconds"] == stop.FIXED_S
    [done] = rekey("apply", "0001", "--to", "cutover", "--writers-stopped", "--json").json["migrations"]
    assert done["stop_seconds"] is None
