"""Count and sample: what they find, what they promise, and that they raise no false alarm."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rekey import Migration
from rekey.errors import ExitCode, Interrupted
from rekey.model import EVERYTHING, EntityKey, KeyRange, Row, content_of, key_of
from rekey.present.text import WIDTH
from rekey.tables.base import MAX_PAGE_ROWS, Page, Table
from rekey.verify import count as count_module
from rekey.verify.count import count
from rekey.verify.render import render
from rekey.verify.report import DifferenceKind, exit_code
from rekey.verify.sample import PAGE_BYTES, reservoir, sample
from tests.asserts.every import every
from tests.fakes.clock import FakeClock
from tests.fakes.interference import noted
from tests.fakes.memory import MemoryTableService
from tests.worlds.small import DROPPING, POSTS, USERS, World, post, ticket, user
from tests.worlds.verification import context, filled, rows_of, sampled, source_id

HELLO = EntityKey("blog", "post-007")


def posts(number: int = 60) -> list[Row]:
    return [post(f"post-{n:03}", f"2024-{n % 12 + 1:02}", f"t{n % 3},x") for n in range(number)]


def no_keys(text: str) -> bool:
    return "post-0" not in text and "2024-" not in text and "example.com" not in text


async def test_count_agrees_when_tables_are_in_step(memory: MemoryTableService, tmp_path: Path) -> None:
    """Both sides, per table with fan-out, and the source's partitions."""
    world = await filled(World(memory, POSTS), [*posts(), {**post("p"), "PartitionKey": "other"}])
    report = await count(context(world, tmp_path))
    assert exit_code(report) == ExitCode.DONE
    assert (report.source_rows, report.source_partitions, report.passes) == (61, 2, 1)
    assert [size.rows for size in report.largest] == [60, 1]
    main, index = report.tables
    assert (main.expected, main.actual, main.partitions) == (61, 61, 12)
    assert (index.expected, index.actual, index.partitions) == (122, 122, 6)
    assert "All counts agree" in render(report, "0001_users")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tallies", [2, count_module.TALLIES])
async def test_count_names_the_partitions_that_differ(
    memory: MemoryTableService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tallies: int
) -> None:
    """The worst first, by safe id; alike whether tallies fit into memory or go to disk."""
    monkeypatch.setattr(count_module, "TALLIES", tallies)
    world = await filled(World(memory, POSTS), posts())
    for number in (0, 12):
        [row] = rows_of(world, 0, EntityKey("blog", f"post-{number:03}"))
        await world.targets[0].delete(key_of(row))
    await world.targets[0].insert({"PartitionKey": "2023-12", "RowKey": "foreign"})
    report = await count(context(world, tmp_path))
    assert exit_code(report) == ExitCode.FINDINGS
    main, index = report.tables
    assert (main.expected, main.actual, main.differing, index.differing) == (60, 59, 2, 0)
    assert [(each.expected, each.actual) for each in main.listed] == [(5, 3), (0, 1)]
    name = context(world, tmp_path).ids.short("PostsV2/partition", EntityKey("2024-01", ""))
    assert main.listed[0].partition_id == name
    text = render(report, "0001_users")
    assert name in text
    assert no_keys(text)
    assert no_keys(json.dumps(report.as_json()["tables"]))
    assert no_keys(repr(report.tables) + repr(report.largest))
    assert every(len(line) <= WIDTH for line in text.splitlines())
    assert list(tmp_path.iterdir()) == []


async def test_rows_inserted_meanwhile_are_no_findings(memory: MemoryTableService, tmp_path: Path) -> None:
    """Each pass sees the source one row ahead of the target, in another partition each time."""
    world = await filled(World(memory, POSTS), posts())
    first, second = post("late-0", "2024-01", "t0"), post("late-1", "2024-02", "t1")
    await world.source.insert(first)

    class WritersGoOn(FakeClock):
        """Between two passes the writer's first row arrives and its next one is written."""

        async def sleep(self, seconds: float) -> None:
            await world.propagator.propagate(key_of(first))
            await world.source.insert(second)
            await super().sleep(seconds)

    report = await count(context(world, tmp_path, clock=WritersGoOn()))
    assert exit_code(report) == ExitCode.DONE
    assert report.passes == 2
    assert report.tables[0].moving > 0
    assert "changed while counting" in render(report, "0001_users")


async def test_count_reports_rows_the_mapping_refuses(memory: MemoryTableService, tmp_path: Path) -> None:
    world = await filled(World(memory, POSTS), posts())
    keyless = post("keyless")
    del keyless["Month"]
    await world.source.insert(keyless)
    report = await count(context(world, tmp_path))
    assert (report.refused_rows, exit_code(report)) == (1, ExitCode.FINDINGS)
    assert "refuses: 1" in render(report, "0001_users")


async def test_a_stopped_count_leaves_no_file_behind(memory: MemoryTableService, tmp_path: Path) -> None:
    world = await filled(World(memory, POSTS), posts())

    def stop() -> None:
        raise Interrupted("stopped on request")

    with pytest.raises(Interrupted):
        await count(context(world, tmp_path, stop=stop))
    assert list(tmp_path.iterdir()) == []


async def test_a_clean_sample_states_what_it_proves(memory: MemoryTableService, tmp_path: Path) -> None:
    world = await filled(World(memory, POSTS), posts())
    report = await sampled(context(world, tmp_path), 30, seed=7)
    assert exit_code(report) == ExitCode.DONE
    assert [(each.table, each.population, each.checked, each.wrong) for each in report.directions] == [
        ("Posts", 60, 30, 0),
        ("PostsV2", 60, 30, 0),
        ("PostsByTag", 120, 30, 0),
    ]
    assert report.directions[0].at_most == pytest.approx(1 - 0.05 ** (1 / 30))
    assert "0 of 30 (60 in all): at most 9.6 % wrong at 95 %" in render(report, "0001_users")
    assert report.as_json()["seed"] == 7
    assert report.differences.transient == 0, "a row that never differed is no transient divergence"


async def test_a_sample_of_all_rows_checks_all(memory: MemoryTableService, tmp_path: Path) -> None:
    """Each direction finds what the other cannot: missing rows here, extra ones there."""
    world = await filled(World(memory, POSTS), posts())
    [main] = rows_of(world, 0, HELLO)
    await world.targets[0].delete(key_of(main))
    await world.targets[0].insert({"PartitionKey": "2024-01", "RowKey": "foreign"})
    index = rows_of(world, 1, EntityKey("blog", "post-009"))[0]
    await world.targets[1].replace({**content_of(index), "Title": "changed"})
    report = await sampled(context(world, tmp_path), 1000, seed=1)
    assert exit_code(report) == ExitCode.FINDINGS
    assert report.differences.counts == {"altered": 2, "extra": 1, "missing": 1}
    assert [(each.wrong, each.checked) for each in report.directions] == [(2, 60), (1, 60), (1, 120)]
    assert report.directions[0].at_most == 2 / 60
    [missing] = [each for each in report.differences.listed if each.kind is DifferenceKind.MISSING]
    assert missing.source_id == source_id(world, HELLO)
    assert no_keys(json.dumps(report.as_json()["divergences"]))
    assert no_keys(render(report, "0001_users"))


async def test_a_collision_shows_in_a_sample(memory: MemoryTableService, tmp_path: Path) -> None:
    """The row under the key belongs to another source row, which the mapping table names."""
    from tests.worlds.small import LOWERED

    world = await filled(World(memory, LOWERED), [user("Ann")])
    await world.source.insert(user("ANN"))
    report = await sampled(context(world, tmp_path), 10, seed=1)
    assert report.differences.counts == {"collision": 1}


async def test_a_seed_draws_the_same_rows(memory: MemoryTableService, tmp_path: Path) -> None:
    world = await filled(World(memory, USERS), [user(f"u{n:03}@example.com") for n in range(200)])
    for row in memory.dump("UsersV2"):
        await world.targets[0].replace({**content_of(row), "Name": "changed"})

    async def drawn(seed: int) -> set[str]:
        report = await sampled(context(world, tmp_path), 10, seed=seed)
        return {each.row_id for each in report.differences.listed}

    assert await drawn(1) == await drawn(1)
    assert await drawn(1) != await drawn(2)


async def test_deleted_rows_do_not_count_as_checked(memory: MemoryTableService, tmp_path: Path) -> None:
    world = await filled(World(memory, USERS), [user(f"u{n:03}@example.com") for n in range(20)])

    class Deleting:
        """The source; half of its rows are deleted, and that is propagated, before anyone is read."""

        name = world.source.name
        scan = staticmethod(world.source.scan)
        deleted = False

        async def get(self, key: EntityKey, **_: Any) -> Row | None:
            if not self.deleted:
                self.deleted = True
                for number in range(10):
                    gone = EntityKey("eu", f"u{number:03}@example.com")
                    await world.source.delete(gone)
                    await world.propagator.propagate(gone)
            return await world.source.get(key)

    report = await sampled(context(world, tmp_path, source=Deleting(), concurrency=1), 20, seed=3)
    assert [(each.population, each.checked, each.wrong) for each in report.directions] == [
        (10, 10, 0),
        (10, 10, 0),
    ]
    assert not report.findings


async def test_rows_that_the_script_drops_do_not_count_as_checked(
    memory: MemoryTableService, tmp_path: Path
) -> None:
    stock = [ticket(str(number), ("closed", "draft")[number % 2]) for number in range(20)]
    world = await filled(World(memory, DROPPING), stock)
    report = await sampled(context(world, tmp_path), 20, seed=3)
    assert [(each.population, each.checked, each.wrong) for each in report.directions] == [
        (10, 10, 0),
        (10, 10, 0),
        (0, 0, 0),
    ]
    assert not report.findings


async def test_a_sample_is_drawn_from_the_rows_that_have_target_rows(
    memory: MemoryTableService, tmp_path: Path
) -> None:
    """Drawn from all, it would hold about one row that is migrated, and say that up to 95 % may be wrong."""
    stock = [ticket(str(number), "closed" if number % 50 == 0 else "draft") for number in range(1000)]
    world = await filled(World(memory, DROPPING), stock)
    report = await sampled(context(world, tmp_path), 19, seed=3)
    source = report.directions[0]
    assert (source.population, source.checked, source.wrong) == (20, 19, 0)
    assert source.at_most < 0.15


@pytest.mark.parametrize("n", [0, 100_001])
async def test_a_senseless_sample_size_is_refused(memory: MemoryTableService, tmp_path: Path, n: int) -> None:
    world = await World(memory, USERS).prepare()
    with pytest.raises(ValueError, match="1 to 100,000"):
        await sampled(context(world, tmp_path), n, seed=1)


async def test_every_row_has_the_same_chance_to_be_drawn() -> None:
    """4,000 draws of 5 out of 40: each row comes about 500 times, wherever it stands."""

    async def keys() -> AsyncIterator[EntityKey]:
        for number in range(40):
            yield EntityKey("p", f"{number:02}")

    counts: Counter[str] = Counter()
    for seed in range(4000):
        drawn = await reservoir(keys(), 5, random.Random(seed))
        assert len({key.row for key in drawn.keys}) == 5
        assert drawn.population == 40
        counts.update(key.row for key in drawn.keys)
    # of a binomial count with these numbers
    assert every(
        abs(counts[f"{number:02}"] - 500) < 5 * (4000 * 0.125 * 0.875) ** 0.5 for number in range(40)
    )


# --- what a sample costs -----------------------------------------------------------------------------------


class Heavy:
    """A table of rows so large that a page of whole ones holds few; keys alone come in pages as usual."""

    def __init__(self, table: Table, rows_a_page: int) -> None:
        self._table, self._rows = table, rows_a_page
        self.name = table.name

    async def scan(
        self, within: KeyRange = EVERYTHING, *, select: Sequence[str] | None = None
    ) -> AsyncIterator[Page]:
        async for page in self._table.scan(within, select=select):
            if select is not None:
                yield page
                continue
            for at in range(0, len(page.rows), self._rows):
                rows = page.rows[at : at + self._rows]
                size = len(rows) * PAGE_BYTES // self._rows
                yield Page(rows, page.cursor, size, full=len(rows) == MAX_PAGE_ROWS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


@pytest.mark.parametrize("count_of", [60, 1_500])
async def test_small_samples_cost_less(memory: MemoryTableService, tmp_path: Path, count_of: int) -> None:
    """Found out by two requests for each table at most: the first page and, of few rows, one of keys."""
    world = await filled(World(memory, USERS), [user(f"u{n:05}@example.com") for n in range(count_of)])
    said: list[str] = []
    calls = noted(memory)
    assert await sample(context(world, tmp_path), 3_000, 1, said.append) is None
    assert len(calls) == (4 if count_of < MAX_PAGE_ROWS else 2)
    assert said == []


@pytest.mark.parametrize("migration", [USERS, POSTS], ids=["users", "posts with an index"])
@pytest.mark.parametrize("n", [3, 40])
async def test_a_sample_is_taken_where_it_is_cheaper_and_asks_for_no_more_than_it_said(
    memory: MemoryTableService, tmp_path: Path, migration: Migration, n: int
) -> None:
    rows = posts(300) if migration is POSTS else [user(f"u{k:03}@example.com") for k in range(300)]
    world = await filled(World(memory, migration), rows)
    heavy = context(
        world,
        tmp_path,
        source=Heavy(world.source, 10),
        targets=[Heavy(table, 10) for table in world.propagator.targets],
    )
    pages = -(-sum(len(memory.dump(table.name)) for table in (world.source, *world.targets)) // 10)
    said: list[str] = []
    calls = noted(memory)
    report = await sample(heavy, n, 1, said.append)
    asked = len(calls)
    if n == 40:
        assert report is None and asked <= 2 * (1 + len(world.targets)) < pages, "little was lost by asking"
        return
    assert report is not None and not report.findings and report.asked == 3
    [promise] = [int(one) for one in re.findall(r"at most ([0-9]+) requests", said[0])]
    assert asked <= promise < pages
    assert f"a full verification asks for about {pages}" in said[0]


async def test_a_seeded_sample_is_taken_at_its_cost(memory: MemoryTableService, tmp_path: Path) -> None:
    world = await filled(World(memory, USERS), [user(f"u{n:03}@example.com") for n in range(60)])
    said: list[str] = []
    calls = noted(memory)
    report = await sample(context(world, tmp_path), 20, 7, said.append, always=True)
    assert report is not None and report.directions[0].checked == 20
    [promise] = said
    assert promise.startswith(
        f"the sample asks for at most {len(calls)} requests, and more where rows differ;"
    )
    assert promise.endswith(" a full verification asks for about 2")
