"""Plans of whole migrations on tables in memory: what they count is what backfill does.

Soak: more rows.
Reason, and what `make test` covers: a quarter as many batches, and 8,000 rows sampled.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rekey import Migration, Target, keys, props
from rekey.copy.pipeline import copy_segments
from rekey.copy.scan import window_of
from rekey.errors import CredentialRefused, EndpointDown, ExitCode, SecretMissing
from rekey.inspect.inventory import SampleSize
from rekey.model import Row
from rekey.phases import shown
from rekey.plan.estimate import Batches, Workload, estimate
from rekey.plan.page import plan_page
from rekey.plan.plan import make_plan
from rekey.plan.problems import Started
from rekey.plan.render import plan_text
from rekey.plan.result import EVERY_ROW, Disk, TableFill
from rekey.plan.subject import PlanOptions, Subject
from rekey.present.text import WIDTH, fitted
from rekey.project.config import Limits, Planning, RowCheck
from rekey.state.models import Segment
from rekey.tables.azure import AzureTableService
from rekey.tables.sent import RequestKind
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call
from tests.fakes.interference import noted
from tests.fakes.memory import MemoryTableService
from tests.worlds.example_rows import GENERATORS
from tests.worlds.odd_rows import generic
from tests.worlds.plans import FINGERPRINTS, IDS, SMALL_SAMPLE, codes, fill, plan_one, subject
from tests.worlds.small import LOWERED, POSTS, USERS, World, post, user

LIMITS = Limits(window_rows=2_000)


def posts(count: int) -> list[Row]:
    return [post(f"s{n:05}", f"20{n % 24:02}-{n % 12 + 1:02}", tags=f"t{n % 7},all") for n in range(count)]


@pytest.mark.parametrize("migration", [USERS, POSTS], ids=["users", "posts with an index"])
@pytest.mark.parametrize(
    ("count", "limits"),
    [(1_150, Limits(window_rows=500)), pytest.param(4_300, LIMITS, marks=pytest.mark.soak)],
    ids=["few", "more"],
)
async def test_an_exact_plan_counts_the_batches_that_backfill_sends(
    memory: MemoryTableService, migration: Migration, count: int, limits: Limits
) -> None:
    rows = (
        [user(f"u{n:05}@mail.example", f"p{n % 13}") for n in range(count)]
        if migration is USERS
        else posts(count)
    )
    world = World(memory, migration)
    await world.prepare()
    await fill(memory, migration.source, rows)
    what = replace(subject(migration), ids=world.mapping.rows.ids, started=None)
    plan = await plan_one(memory, what, exact=True, limits=limits)
    assert codes(plan) == []
    async with world.copier.writer() as writer:
        copied, _ = await copy_segments(
            world.source,
            [Segment(id=1, script_id="0001_users", purpose="backfill")],
            writer.copy,
            window_of(limits),
            writer=writer,
        )
    written = sum(
        one.count
        for one in plan.estimate.requests
        if one.phase == "backfill" and one.kind in (RequestKind.BATCH, RequestKind.WRITE)
    )
    # Windows come in order, and what they leave over at the end goes together: it can be foretold.
    assert abs(written - copied.requests) <= 0.01 * copied.requests
    assert [fill_of.rows for fill_of in plan.mapping.fills] == [
        len(table) for table in world.actual().values()
    ]


async def test_planning_writes_nothing(memory: MemoryTableService) -> None:
    await fill(memory, "Users", [user(f"u{n}@mail.example") for n in range(300)])
    before = memory.dump("Users")
    calls = noted(memory)
    await plan_one(memory, subject(USERS), exact=True, show_keys=True)
    assert {call.action for call in calls} <= {"page", "get", "table_exists"}
    assert memory.dump("Users") == before
    assert not await memory.table_exists("UsersV2")


async def test_colliding_keys_are_shown_only_on_request(memory: MemoryTableService) -> None:
    rows = [user(f"anna{n}@mail.example") for n in range(2_500)]
    await fill(memory, "Users", [*rows, user("ANNA7@mail.example"), user("Anna7@mail.example")])
    plan = await make_plan([subject(LOWERED)], memory, PlanOptions(exact=True), clock=FakeClock())
    [migration] = plan.migrations
    assert plan.exit_code == ExitCode.FINDINGS
    assert codes(migration) == ["collision"]
    assert (migration.mapping.collisions.keys, migration.mapping.collisions.rows) == (1, 3)
    named = {IDS.short("Users", key) for key in keys_of("anna7", "ANNA7", "Anna7")}
    assert set(migration.problems[0].row_ids) == named
    for text in (plan_text(plan), json.dumps(plan.as_json())):
        assert "mail.example" not in text.lower()
    shown = await make_plan([subject(LOWERED)], memory, PlanOptions(exact=True, show_keys=True))
    assert "'ANNA7@mail.example'" in plan_text(shown)
    assert "operator's eyes only" in plan_text(shown)
    assert "ANNA7@mail.example" in json.dumps(shown.as_json())
    assert "mail.example" not in json.dumps(shown.as_json(keys=False)).lower()


async def test_unmappable_rows_are_shown_only_on_request(memory: MemoryTableService) -> None:
    broken = {"PartitionKey": "blog", "RowKey": "secret-slug", "Tags": "a"}
    await fill(memory, "Posts", [broken, *posts(20)])
    plan = await make_plan([subject(POSTS)], memory, PlanOptions(exact=True))
    assert codes(plan.migrations[0])[0] == "row-refused"
    for text in (plan_text(plan), json.dumps(plan.as_json())):
        assert "secret-slug" not in text
    shown = await make_plan([subject(POSTS)], memory, PlanOptions(exact=True, show_keys=True))
    assert "'secret-slug'" in plan_text(shown)
    assert "secret-slug" in json.dumps(shown.as_json())
    assert "secret-slug" not in json.dumps(shown.as_json(keys=False))


def keys_of(*names: str) -> list[object]:
    from rekey.model import EntityKey

    return [EntityKey("eu", f"{name}@mail.example") for name in names]


async def test_rows_whose_keys_no_address_can_hold_are_foretold(memory: MemoryTableService) -> None:
    """The service takes keys of 1,024 characters; ASCII ones are carried."""
    await fill(memory, "Posts", [*posts(10), post("a" * 1024), post("\u6f22" * 1024)])
    plan = await plan_one(memory, subject(POSTS), exact=True)
    assert [(one.code, one.rows) for one in plan.mapping.refused] == [("key-too-long", 1)]
    assert plan.mapping.fills[0].rows == 11


async def test_rows_that_cannot_be_mapped_are_counted_by_reason(memory: MemoryTableService) -> None:
    bad = [post(f"bad{n}", month="2024/01") for n in range(25)]
    lacking = {name: value for name, value in post("lacks").items() if name != "Month"}
    await fill(memory, "Posts", [*posts(100), *bad, lacking])
    plan = await plan_one(memory, subject(POSTS), exact=True)
    assert [(one.code, one.rows, len(one.row_ids)) for one in plan.mapping.refused] == [
        ("refused-character", 25, 20),
        ("missing-property", 1, 1),
    ]
    assert codes(plan) == ["row-refused", "row-refused"]
    assert "default=" in plan.mapping.refused[1].cure
    assert plan.mapping.fills[0].rows == 100


async def test_a_row_with_more_index_rows_than_a_mapping_row_lists_is_foretold(
    memory: MemoryTableService,
) -> None:
    """The copy refused it, after tables were made and rows written."""
    tags = ",".join(f"{number:x}" for number in range(1500))
    await fill(memory, "Posts", [*posts(40), post("s" * 500, tags=tags), post("short", tags=tags)])
    for row_check in (True, False):
        plan = await plan_one(memory, subject(POSTS), exact=row_check)
        assert [(one.code, one.rows) for one in plan.mapping.refused] == [("row-too-large", 1)]


async def test_every_row_is_tried_however_few_are_looked_at_for_advice(memory: MemoryTableService) -> None:
    """Rows are looked at in steps from the first one on; the second and the last but one are not."""
    rows = posts(6_000)
    for place in (1, -2):
        rows[place] = {**rows[place], "Month": "2024/01"}
    await fill(memory, "Posts", rows)
    plan = await plan_one(memory, subject(POSTS), exact=True)
    assert (plan.mapping.mapped_rows, plan.mapping.sampled_rows) == (6_000, 3_000)
    assert [(one.code, one.rows) for one in plan.mapping.refused] == [("refused-character", 2)]


async def test_examples_show_five_rows_by_safe_id_with_every_new_key(memory: MemoryTableService) -> None:
    await fill(memory, "Posts", posts(200))
    plan = await plan_one(memory, subject(POSTS))
    assert len(plan.mapping.examples) == 5
    for example in plan.mapping.examples:
        assert [new.table for new in example.new_keys] == ["PostsV2", "PostsByTag", "PostsByTag"]
        assert example.old_key is None and all(new.new_key is None for new in example.new_keys)
        assert example.new_keys[0].partition_units == len("2024-01")
    again = await plan_one(memory, subject(POSTS))
    assert again.mapping.examples == plan.mapping.examples


async def test_a_partition_per_row_is_a_warning_with_its_price(memory: MemoryTableService) -> None:
    alone = Migration(
        source="Users",
        target=Target(
            "UsersV2",
            partition_key=keys.opaque("RowKey", domain="user", secret="users"),
            row_key=keys.literal(""),
            properties=[props.copy("RowKey", to="Mail"), props.copy("PartitionKey", to="Region")],
        ),
        capture="delta",
    )
    await fill(memory, "Users", [user(f"u{n}@mail.example") for n in range(1_500)])
    plan = await plan_one(memory, subject(alone), exact=True)
    assert codes(plan) == ["batches-of-one"]
    assert plan.mapping.fills[0].batches == 1_500
    assert "1,500 requests instead of 15" in plan.problems[0].message


@pytest.mark.parametrize("count", [8_000, pytest.param(30_000, marks=pytest.mark.soak)])
async def test_a_large_table_is_sampled_within_bounds(memory: MemoryTableService, count: int) -> None:
    await fill(memory, "Users", [user(f"u{n:06}@mail.example", f"p{n % 20:02}") for n in range(count)])
    pages = noted(memory, lambda call: call.action == "page")
    plan = await plan_one(memory, subject(USERS), sample=SMALL_SAMPLE, limits=LIMITS)
    assert plan.inventory is not None and not plan.inventory.exact
    assert len(pages) <= 3 + SMALL_SAMPLE.probes + 1
    assert plan.inventory.rows.at_least < count
    assert 0.8 < plan.inventory.rows.rows / count < 1.2
    assert codes(plan) == ["sampled"]
    assert "about" in plan_text(await make_plan([subject(USERS)], memory, PlanOptions(sample=SMALL_SAMPLE)))
    exact = await plan_one(memory, subject(USERS), exact=True, limits=LIMITS)
    assert 0.8 < plan.mapping.fills[0].batches / exact.mapping.fills[0].batches < 1.25


async def test_a_row_met_by_two_probes_is_looked_at_once(memory: MemoryTableService) -> None:
    """Probes may overlap; a row looked at twice would collide with itself."""
    await fill(memory, "Users", [user(str(n), "p") for n in range(6_000)])
    plan = await plan_one(memory, subject(USERS), sample=SampleSize(head_rows=1_000, probes=40))
    assert plan.mapping.collisions is not None and plan.mapping.collisions.keys == 0
    assert plan.mapping.mapped_rows <= 6_000


@pytest.mark.parametrize("generator", ["Users", "Posts", "Telemetry"])
async def test_the_inventory_of_a_whole_read_is_exact(memory: MemoryTableService, generator: str) -> None:
    rows = list(GENERATORS[generator](1_200))
    await fill(memory, "Users", rows)
    plan = await plan_one(memory, replace(subject(USERS), mapper=None), exact=True)
    partitions = [row["PartitionKey"] for row in rows]
    assert plan.inventory.rows.rows == 1_200
    assert plan.inventory.partitions == len(set(partitions))
    assert plan.inventory.largest_partition == max(map(partitions.count, set(partitions)))
    assert plan.inventory.digest is not None


async def test_the_inventory_digest_changes_with_every_kind_of_write(memory: MemoryTableService) -> None:
    await fill(memory, "Users", [user("a"), user("b")])
    source = memory.table("Users")

    async def digest() -> str | None:
        return (await plan_one(memory, subject(USERS), exact=True)).basis.inventory

    seen = [await digest(), await digest()]
    assert seen[0] == seen[1]
    await source.insert(user("c"))
    seen.append(await digest())
    await source.merge({"PartitionKey": "eu", "RowKey": "a", "Nm": "a"})  # the same value again
    seen.append(await digest())
    await source.delete(keys_of_row("b"))
    seen.append(await digest())
    assert len(set(seen)) == 4


def keys_of_row(name: str):  # type: ignore[no-untyped-def]
    from rekey.model import EntityKey

    return EntityKey("eu", name)


async def test_what_cannot_be_looked_at_is_a_finding_not_a_crash(memory: MemoryTableService) -> None:
    missing = await plan_one(memory, subject(USERS))
    assert codes(missing) == ["source-missing"] and missing.inventory is None
    await fill(memory, "Users", [user("a")])
    unset = SecretMissing("secret `users` is not configured", hint="add it")
    no_secret = replace(subject(USERS), mapper=None, missing_secrets=(unset,), secret_fingerprints={})
    assert codes(await plan_one(memory, no_secret)) == ["secret-missing"]
    await fill(memory, "UsersV2", [user("somebody else's")])
    assert codes(await plan_one(memory, subject(USERS), exact=True)) == ["target-holds-rows"]
    begun = replace(subject(USERS), started=Started("backfill", USERS.digest(), FINGERPRINTS))
    assert codes(await plan_one(memory, begun, exact=True)) == []

    async def ours(_number: int, _row: Row) -> bool:
        return True

    assert codes(await plan_one(memory, replace(subject(USERS), owns_row=ours), exact=True)) == []


@pytest.mark.parametrize(
    ("phase", "is_foreign"), [("dual_write", True), ("cutover", False), ("complete", False)]
)
async def test_rows_that_the_application_wrote_in_the_new_view_are_not_foreign(
    memory: MemoryTableService, phase: str, is_foreign: bool
) -> None:
    await fill(memory, "Users", [user("a")])
    await fill(memory, "UsersV2", [user("new")])

    async def ours(_number: int, _row: Row) -> bool:
        return False

    started = Started(phase, USERS.digest(), FINGERPRINTS)
    begun = replace(subject(USERS), started=started, owns_row=ours)
    assert ("target-holds-rows" in codes(await plan_one(memory, begun, exact=True))) is is_foreign


async def test_a_source_that_an_earlier_script_makes_is_a_note(memory: MemoryTableService) -> None:
    await fill(memory, "Users", [user("a")])
    second = replace(
        USERS,
        source="UsersV2",
        target=replace(USERS.target, table="UsersV3", properties=USERS.target.properties[:1]),
    )
    plan = await make_plan(
        [subject(USERS), subject(second, "0002_again")], memory, PlanOptions(exact=True), clock=FakeClock()
    )
    assert [codes(one) for one in plan.migrations] == [[], ["source-not-yet"]]
    assert plan.exit_code == ExitCode.DONE


@pytest.mark.parametrize("error", [EndpointDown, CredentialRefused])
async def test_a_service_error_ends_the_plan(memory: MemoryTableService, error: type[EndpointDown]) -> None:
    async def gate(_call: Call) -> None:
        raise error("no answer")

    memory.gate = gate
    with pytest.raises(error):
        await plan_one(memory, subject(USERS))


async def test_short_and_empty_pages_are_read_to_the_end(memory: MemoryTableService) -> None:
    await fill(memory, "Users", [user(f"u{n:04}") for n in range(1_500)])
    turn = 0

    def decide(_call: Call) -> object:
        from tests.fakes.faults import Fault, FaultKind

        nonlocal turn
        turn += 1
        return Fault(FaultKind.EMPTY_PAGE if turn % 2 else FaultKind.SHORT_PAGE)

    class Pages:
        def decide(self, call: Call) -> object:
            return decide(call) if call.action == "page" and call.table == "Users" else None

    memory.faults = Pages()  # type: ignore[assignment]
    for exact in (True, False):
        plan = await plan_one(memory, subject(USERS), exact=exact)
        assert plan.inventory is not None and plan.inventory.rows.rows == 1_500


async def test_the_text_is_narrow_and_complete(memory: MemoryTableService, tmp_path: Path) -> None:
    await fill(memory, "Users", [user(f"u{n:04}@mail.example") for n in range(1_500)])
    await fill(memory, "Posts", [*posts(50), post("x", month="a/b")])
    unheld: Subject = replace(subject(POSTS, "0002_posts"), ids_hold=False)
    plan = await make_plan([subject(USERS), unheld], memory, PlanOptions(exact=True, show_keys=True))
    text = plan_text(plan)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    for part in (
        "Users: 1,500 rows",
        "UsersV2 (will be made): 1,500 rows in 15 batches",
        "takes ",
        "ERROR",
        "row-refused",
        "cure:",
        "are valid for this plan",
    ):
        assert part in text
    assert list(tmp_path.iterdir()) == []
    with fitted(60):
        assert max(map(len, plan_text(plan, requests=True).splitlines())) <= 60
    empty = plan_text(replace(plan, migrations=()))
    assert "no migration script" in empty


async def test_what_matters_comes_first_and_fits_on_one_screen(memory: MemoryTableService) -> None:
    """What blocks `apply` leads, requests are listed when asked for, one is not called many."""
    await fill(memory, "Posts", [*posts(50), post("x", month="a/b")])
    plan = await make_plan([subject(POSTS, "0002_posts")], memory, PlanOptions(exact=True), clock=FakeClock())
    text = plan_text(plan).splitlines()
    assert text[2].startswith("ERROR   row-refused: 1 row")
    assert len(text) <= 24 and "Phase" not in " ".join(text)
    assert "every row was read (1 page)" in " ".join(text)
    assert text[-1] == "1 error. `rekey apply` would refuse or stop: fix it first."
    estimate = plan.migrations[0].estimate
    assert estimate is not None
    listed = plan_text(plan, requests=True)
    for one in estimate.requests:
        assert one.what in listed
    for phase in estimate.durations:
        assert f"\n{shown(phase.phase, 'delta')} " in listed
    assert "following" in listed and "dual_write" not in listed + plan_page(plan)


@pytest.mark.azurite
async def test_probes_are_keys_that_a_service_answers(
    tables_service: AzureTableService, table_name: Callable[[str], str]
) -> None:
    """Probe keys are made up from odd keys: quotes, percent signs, emoji, halves of surrogate pairs."""
    name = table_name("Odd")
    rows = list(generic(1_200, seed=2, partitions=2))
    await fill(tables_service, name, rows)
    what = subject(replace(USERS, source=name, target=replace(USERS.target, table=f"{name}V2")))
    try:
        sample = SampleSize(head_rows=500, probes=25)
        plan = await plan_one(tables_service, what, sample=sample)
        exact = await plan_one(tables_service, what, exact=True)
    finally:
        await tables_service.delete_table(name)
    assert plan.inventory is not None and exact.inventory is not None
    assert exact.inventory.rows.rows == 1_200
    assert exact.inventory.partitions == len({row["PartitionKey"] for row in rows})
    assert plan.mapping.mapped_rows <= 1_200
    assert plan.mapping.collisions is not None and plan.mapping.collisions.keys == 0


async def test_what_a_large_table_takes_is_told_for_large_tables_alone(memory: MemoryTableService) -> None:
    await fill(memory, "Posts", posts(50))
    options = PlanOptions(planning=Planning(RowCheck.FULL))
    plan = await make_plan([subject(POSTS, "0002_posts")], memory, options, clock=FakeClock())
    [migration] = plan.migrations
    small = plan_text(plan)
    rows = 10**10
    table = TableFill("PostsV2", rows, rows // 100, rows, False, 100, 0.0, fills={100: 1})
    large = Workload(rows, 100, Batches.of(2 * rows, {100: 1}), [table])
    estimated = replace(
        estimate(large, Limits().with_targets()),
        disk=Disk(EVERY_ROW, 7 * 10**11, large.comparison_bytes),
    )
    told = " ".join(plan_text(replace(plan, migrations=(replace(migration, estimate=estimated),))).split())
    for figure in (
        "long phases prepare 5.8 d, bound by 20,000 entities/s of the account",
        "mapping 20,000,000,000 rows",
        "faster 41 d in place of 53 d with target tables in another account ([targets])",
        "disk about 651.9 GiB of temporary files",
    ):
        assert figure in told
    for label in ("long phases", "mapping ", "faster", "disk"):
        assert f"\n  {label}" not in small
