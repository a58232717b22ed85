"""Index tables after `complete`: clients maintain them until the handover, then the application does; a
comparison finds what it leaves out.

Soak: 12 of 13 moments of a killed handover, 4 of 5 of a killed completion.
Reason, and what `make test` covers: a moment of each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rekey.errors import ConfigurationError, GateClosed, Refused, RowMissing, WritesRefused
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.control import Maintainer
from rekey.protocol.rules import View
from rekey.runner import commands
from rekey.runner.commands import Mode
from rekey.runner.handover import hand_over
from rekey.runner.run import Options
from rekey.tables.base import Operation, Verb
from tests.soaking import others_in_soak
from tests.worlds.company import ApplicationFaults, Client, Company, Ledger, company_at, traffic
from tests.worlds.evidence import prove
from tests.worlds.projects import POSTS_SCRIPT, USERS_SCRIPT
from tests.worlds.scripts import RACES, named
from tests.worlds.small import post, racer, user

RACES_SCRIPT = named(RACES, "Races", "RacesByKey")


@pytest.fixture
def posts(tmp_path: Path) -> Iterator[Company]:
    """A migration that has cut over."""
    rows = [post(f"post-{number:03}") for number in range(20)]
    with company_at(tmp_path, POSTS_SCRIPT, rows, Phase.CUTOVER) as made:
        yield made


@pytest.fixture
def races(tmp_path: Path) -> Iterator[Company]:
    rows = [racer(f"{n:04}", 20 + n % 50, race=f"r{n % 3}") for n in range(20)]
    with company_at(tmp_path, RACES_SCRIPT, rows, Phase.CUTOVER) as made:
        yield made


def new_post(rng: random.Random, key: EntityKey) -> Row:
    tags = ",".join(rng.sample(["a", "b", "c", "d"], rng.randint(0, 3)))
    return {"Month": key.partition, "Tags": tags, "Title": f"title-{rng.random()}", "Blog": "blog"}


def keys_of(name: str, count: int = 6) -> list[EntityKey]:
    return [EntityKey(f"2024-0{1 + n % 2}", f"{name}-{n}") for n in range(count)]


async def moves(client: Client, ledger: Ledger, name: str, seed: int) -> None:
    """Write a few posts, delete each, and write it again under another key, as its month changes."""
    rng = random.Random(seed)
    while not client.company.stopping:
        row = f"{name}-{rng.randint(0, 2)}"
        months = [EntityKey(f"2024-0{month}", row) for month in (3, 4)]
        there = next((key for key in months if ledger.rows.get(key) is not None), None)
        key = there or rng.choice(months)
        content = {**new_post(rng, key), "PartitionKey": key.partition, "RowKey": key.row}
        verb = Verb.INSERT if there is None else rng.choice((Verb.DELETE, Verb.REPLACE))
        await client.write(Operation(verb, content, None if there is None else "*"))
        ledger.rows[key] = None if verb is Verb.DELETE else content
        ledger.writes += 1
        await client.company.project.clock.sleep(0.1)


def complete(ours: Company) -> Client:
    """Bring a migration from cutover to `complete`, with a client of the new view; return that client."""
    client = ours.client(View.NEW)
    ours.live(3)
    ours.apply(Phase.COMPLETE)
    assert ours.phase is ControlPhase.COMPLETE
    return client


def handed_over(ours: Company) -> dict[str, int]:
    with ours.session() as session:
        return hand_over(session, ours.script_id)


def without_index_rows(ours: Company) -> list[EntityKey]:
    """The keys at which index rows are not what the main rows give by themselves."""
    mapper, tables = ours.mapper, ours.actual()
    wanted: dict[str, dict[EntityKey, Row]] = {name: {} for name in mapper.tables}
    for row in ours.project.rows(mapper.tables[0]):
        if mapper.number_by_row_key(row["RowKey"]) == 0:
            wanted[mapper.tables[0]][key_of(row)] = content_of(row)
            for number, made in mapper.index_rows(row):
                wanted[mapper.tables[number]][key_of(made)] = made
    return [
        key
        for name, rows in wanted.items()
        for key in rows.keys() | tables[name].keys()
        if rows.get(key) != tables[name].get(key)
    ]


def assert_told(ours: Company, ledger: Ledger) -> None:
    """Every acknowledged write of a client is in the main table."""
    there = {key_of(row): row["Title"] for row in ours.project.rows("PostsV2")}
    told = {key: None if row is None else row["Title"] for key, row in ledger.rows.items()}
    assert told == {key: there.get(key) for key in told}


# --- until the handover -------------------------------------------------------------------------------------


def test_index_rows_follow_clients_until_the_handover(posts: Company) -> None:
    ledgers = [Ledger() for _ in range(3)]
    for number, ledger in enumerate(ledgers):
        client = posts.client(View.NEW)
        if number:
            posts.writes(traffic(client, keys_of(f"w{number}"), new_post, ledger, seed=number))
        else:
            posts.writes(moves(client, ledger, "moves", seed=number))
    posts.live(5)
    posts.apply(Phase.COMPLETE)
    before = sum(ledger.writes for ledger in ledgers)
    posts.live(30)
    assert sum(ledger.writes for ledger in ledgers) > before + 100
    report = posts.verify()
    assert (report.findings, report.differences.unsettled) == (False, 0)
    posts.settle()
    assert posts.unsettled == []
    assert without_index_rows(posts) == []
    posts.assert_in_step()
    for ledger in ledgers:
        assert_told(posts, ledger)
    assert posts.control.maintainer is Maintainer.CLIENTS
    handed_over(posts)
    assert posts.control.maintainer is Maintainer.APPLICATION
    assert posts.intents == []


@pytest.mark.parametrize("seed", [1, 2])
def test_clients_settle_faults_after_complete(posts: Company, seed: int) -> None:
    complete(posts)
    ledgers = [Ledger(), Ledger()]
    for number, ledger in enumerate(ledgers):
        client = posts.client(View.NEW)
        posts.writes(traffic(client, keys_of(f"w{number}", 30), new_post, ledger, seed=seed + number))
    faults = ApplicationFaults(seed, rate=0.04, table="PostsV2")
    posts.project.tables.faults = faults
    posts.live(20)
    faults.end()
    with posts.little_traffic():
        posts.live(90)
    posts.settle()
    assert faults.unanswered is not None
    assert posts.unsettled == []
    assert without_index_rows(posts) == []
    for ledger in ledgers:
        assert_told(posts, ledger)
    assert not posts.verify().findings


def test_what_a_client_killed_after_complete_left_is_settled_by_the_runner(posts: Company) -> None:
    complete(posts)
    ledger, dying = Ledger(), posts.client(View.NEW, name="dying")
    posts.writes(traffic(dying, keys_of("w"), new_post, ledger, seed=7))
    posts.dies_in_the_middle(dying, lambda call: call.table == "PostsByTag" and call.writes, at=3)
    assert without_index_rows(posts), "between a main row and its index rows"
    posts.live(70)
    posts.apply()
    assert without_index_rows(posts) == []
    posts.assert_in_step()


def test_a_client_is_refused_by_another_script_as_long_as_it_maintains_index_tables(posts: Company) -> None:
    complete(posts)
    other = posts.client(View.NEW, digest="0" * 64)
    with pytest.raises(WritesRefused, match="another declaration"):
        posts.do(other.write(Operation(Verb.DELETE, {"PartitionKey": "2024-01", "RowKey": "x"}, "*")))


def test_a_migration_without_index_tables_has_nothing_to_hand_over(tmp_path: Path) -> None:
    ours = company_at(tmp_path, USERS_SCRIPT, [user("ann@example.com")], Phase.CUTOVER)
    client = complete(ours)
    assert (ours.control.maintainer, ours.control.is_followed) == (None, False)
    ours.do(client.write(Operation(Verb.INSERT, {"PartitionKey": "eu", "RowKey": "free", "Any": 1})))
    assert ours.intents == []
    assert len(ours.project.rows("Users")) == 1, "nothing follows"
    with pytest.raises(Refused, match="maintain no index table"):
        handed_over(ours)
    ours.close()


# --- the application begins to maintain them ----------------------------------------------------------------


def as_the_application(ours: Company, client: Client, *, forgets: frozenset[str] = frozenset()) -> type:
    """Return a version of the application that maintains index rows itself."""
    mapper, tables = ours.mapper, ours.project.tables

    class Application:
        async def write(self, operation: Operation) -> None:
            main = tables.table(mapper.tables[0])
            before = await main.get(operation.key)
            await client.write(operation)
            old = {} if before is None else {key_of(row): n for n, row in mapper.index_rows(before)}
            new = [] if operation.verb is Verb.DELETE else mapper.index_rows(operation.row)
            for number, row in new:
                if row["PartitionKey"] not in forgets:
                    await tables.table(mapper.tables[number]).upsert(row)
            for key in old.keys() - {key_of(row) for _, row in new}:
                with suppress(RowMissing):  # the client was faster
                    await tables.table(mapper.tables[old[key]]).delete(key)

    return Application


async def writes_on(ours: Company, app: object, seed: int) -> None:
    rng = random.Random(seed)
    while not ours.stopping:
        key = EntityKey("2024-01", f"own-{seed}-{rng.randint(0, 5)}")
        row = {**new_post(rng, key), "PartitionKey": key.partition, "RowKey": key.row}
        await app.write(Operation(Verb.INSERT_OR_REPLACE, row))  # type: ignore[attr-defined]
        await ours.project.clock.sleep(0.2 * ours.pause)


def test_no_row_lacks_its_index_rows_at_any_time_of_the_handover(posts: Company) -> None:
    """Both maintain them for a while; then the clients let go, while writes go on."""
    first = complete(posts)
    second = posts.client(View.NEW)
    for seed, client in enumerate((first, second)):
        posts.writes(writes_on(posts, as_the_application(posts, client)(), seed))
    posts.live(10)
    assert not posts.verify().findings
    counters = handed_over(posts)
    assert counters["clients"] == 2
    posts.live(10)
    report = posts.verify()
    assert (report.findings, report.source) == (False, "PostsV2")
    assert [table.table for table in report.tables] == ["PostsByTag"]
    posts.quiet()
    assert without_index_rows(posts) == []
    assert posts.intents == [], "clients write the main table alone"


def test_a_comparison_after_the_handover_repairs_what_is_missing(posts: Company) -> None:
    client = complete(posts)
    posts.verify()
    handed_over(posts)
    posts.writes(writes_on(posts, as_the_application(posts, client, forgets=frozenset("a"))(), 3))
    posts.live(20)
    posts.quiet()
    assert without_index_rows(posts)
    report = posts.verify()
    assert report.differences.counts.keys() == {"missing"}
    assert posts.verify(repair=True).repair is not None
    assert without_index_rows(posts) == []
    assert not posts.verify().findings


def test_workers_are_refused_where_only_index_rows_are_compared(posts: Company) -> None:
    complete(posts)
    posts.verify()
    handed_over(posts)
    options = Options(executor="rekey.executors:processes")
    with posts.session(options) as session, pytest.raises(ConfigurationError, match="no worker") as refused:
        commands.verify(session, posts.script_id, mode=Mode.FULL)
    assert refused.value.hint == "leave out --executor"


def test_a_repair_after_the_handover_deletes_no_main_row(posts: Company) -> None:
    client = complete(posts)
    posts.verify()
    handed_over(posts)
    mains = posts.actual()["PostsV2"]
    stray = {"PartitionKey": "z", "RowKey": "gone", "MainPartitionKey": "2024-01", "MainRowKey": "gone"}
    posts.do(posts.project.tables.table("PostsByTag").insert(stray))
    free = {"PartitionKey": "2024-05", "RowKey": "new", "Tags": "q", "Title": "t"}
    posts.do(client.write(Operation(Verb.INSERT, free)))
    posts.verify(repair=True)
    assert posts.actual()["PostsV2"] == {**mains, EntityKey("2024-05", "new"): free}
    assert EntityKey("z", "gone") not in posts.actual()["PostsByTag"]


def test_a_delayed_index_write_is_repaired_until_the_handover(posts: Company) -> None:
    """It writes what an older main row gave, after another instance has written a newer one."""
    client = complete(posts)
    key = EntityKey("2024-01", "late")
    row = {**new_post(random.Random(1), key), "PartitionKey": key.partition, "RowKey": key.row}
    old, new = {**row, "Tags": "a", "Title": "old"}, {**row, "Tags": "a", "Title": "new"}
    posts.do(client.write(Operation(Verb.INSERT, old)))
    posts.do(client.write(Operation(Verb.REPLACE, new, "*")))
    [(_, stale)] = posts.mapper.index_rows(old)
    table = posts.project.tables.table("PostsByTag")

    async def write() -> None:
        async with client.lease.operation(writes=True) as permit:
            await client.writer.write_index(table, [Operation(Verb.INSERT_OR_REPLACE, stale)], permit)
            await client.writer.write_index(table, [Operation(Verb.DELETE, stale, "*")], permit)

    posts.do(write())
    posts.settle()
    assert posts.actual()["PostsByTag"][key_of(stale)]["Title"] == "new"
    assert posts.unsettled == []


# --- secondary rows -----------------------------------------------------------------------------------------


def of_race(ours: Company, bib: str, age: int) -> list[Row]:
    """A main row of RACES and its secondary row, as an application makes them."""
    return [made for _, made in ours.mapper.map(racer(bib, age, race="r1"))]


def test_secondary_rows_are_written_by_client_and_application_until_the_handover(races: Company) -> None:
    client = complete(races)
    main, age = of_race(races, "7000", 30)
    etags = races.do(client.write(Operation(Verb.INSERT, main), Operation(Verb.INSERT, age)))
    there = {key_of(row): row["odata.etag"] for row in races.project.rows("RacesByKey")}
    assert etags == [there[key_of(main)], there[key_of(age)]]
    _, older = of_race(races, "7000", 31)
    moved = {**main, "Age": 31}
    done = races.do(
        client.write(
            Operation(Verb.DELETE, age, "*"),
            Operation(Verb.MERGE, {**moved}, "*"),
            Operation(Verb.INSERT, older),
        )
    )
    there = {key_of(row): row["odata.etag"] for row in races.project.rows("RacesByKey")}
    assert done == [None, there[key_of(main)], there[key_of(older)]]
    assert races.do(client.write(Operation(Verb.INSERT_OR_REPLACE, older))) == [done[2]], "by itself"
    races.settle()
    assert without_index_rows(races) == []
    races.assert_in_step()


@pytest.mark.parametrize(
    "wrong",
    [
        [Operation(Verb.INSERT, {"PartitionKey": "r1", "RowKey": "AGE:099__7000", "Age": 99})],
        [Operation(Verb.DELETE, {"PartitionKey": "r1", "RowKey": "AGE:020__0000"}, "*")],
    ],
    ids=["a row that no main row gives", "a row that its main row gives"],
)
def test_an_undeclared_secondary_row_is_refused(races: Company, wrong: list[Operation]) -> None:
    client = complete(races)
    if wrong[0].verb is Verb.DELETE:
        there = next(row for row in races.project.rows("RacesByKey") if row["RowKey"].startswith("AGE:"))
        wrong = [Operation(Verb.DELETE, there, "*")]
    before = races.actual()
    main, _ = of_race(races, "7000", 30)
    with pytest.raises(WritesRefused) as refused:
        races.do(client.write(*wrong))
    assert refused.value.code == "secondary-differs"
    if wrong[0].verb is Verb.INSERT:
        with pytest.raises(WritesRefused):
            races.do(client.write(Operation(Verb.INSERT, main), *wrong))
    races.settle()
    assert races.actual() == before
    races.verify()
    handed_over(races)
    races.do(client.write(*wrong))
    assert races.verify().findings


# --- what waits for the handover ----------------------------------------------------------------------------


def test_the_handover_asks_for_a_full_verification_since_complete(posts: Company) -> None:
    complete(posts)
    with pytest.raises(GateClosed, match="since `complete`"):
        handed_over(posts)
    index = next(row for row in posts.project.rows("PostsByTag"))
    posts.do(posts.project.tables.table("PostsByTag").delete(key_of(index)))
    assert posts.verify().findings
    with pytest.raises(GateClosed, match="--repair"):
        handed_over(posts)
    posts.verify(repair=True)
    assert not posts.verify().findings
    handed_over(posts)


def test_a_verification_of_before_complete_does_not_count_where_another_machine_completed(
    posts: Company,
) -> None:
    client, state = posts.client(View.NEW), posts.project.config.state
    posts.live(3)
    assert not posts.verify().findings
    before = state.read_bytes()
    posts.apply(Phase.COMPLETE)
    state.write_bytes(before)
    with pytest.raises(GateClosed, match="nothing has been verified in full since `complete`"):
        handed_over(posts)
    posts.hand_over()
    assert posts.control.maintainer is Maintainer.APPLICATION
    posts.do(client.close())


def test_retire_and_erasing_wait_for_the_handover_and_say_who_maintains_what(posts: Company) -> None:
    config = posts.project.folder / "rekey.toml"
    config.write_text(config.read_text("utf-8").replace('retention = "0s"', 'retention = "5m"', 1), "utf-8")
    complete(posts)
    posts.live(400)
    with pytest.raises(GateClosed, match=r"clients still maintain PostsByTag.*handover"):
        posts.retire()
    with posts.session() as session, pytest.raises(Refused, match="need the mapping"):
        from rekey.runner.erase.expiry import expire

        expire(session, posts.script_id)
    posts.verify()
    handed_over(posts)
    with pytest.raises(GateClosed, match="retention"):
        posts.retire()
    posts.live(400)
    posts.retire()
    assert posts.phase is ControlPhase.RETIRED
    assert not posts.verify().findings, "index rows are compared without the source, too"


def test_evidence_of_before_the_handover_does_not_open_the_gate_before_retire(posts: Company) -> None:
    complete(posts)
    posts.verify()
    with posts.session() as session:
        prove(session.config, session.scripts[posts.script_id], session.state)
    handed_over(posts)
    with (
        posts.session(Options(typed_table="Posts", no_backup="a test")) as session,
        pytest.raises(GateClosed, match="evidence"),
    ):
        commands.retire(session, posts.script_id)


@pytest.mark.parametrize("at", others_in_soak(list(range(1, 14)), kept=[8]))
def test_a_handover_that_is_killed_is_ended_by_the_next(posts: Company, at: int) -> None:
    client = complete(posts)
    posts.writes(writes_on(posts, as_the_application(posts, client)(), at))
    posts.live(3)
    posts.verify()
    with posts.killing_the_runner(at):
        handed_over(posts)
    with posts.little_traffic():
        posts.live(70)
        if posts.control.maintained:
            posts.verify()
        handed_over(posts)
    posts.quiet()
    assert posts.control.maintainer is Maintainer.APPLICATION
    assert posts.intents == []
    assert without_index_rows(posts) == []
    with posts.session() as session:
        assert session.state.get_fact(posts.script_id, "quiet_at") is not None


@pytest.mark.parametrize("at", others_in_soak([2, 5, 8, 11, 14], kept=[11]))
def test_a_completion_that_is_killed_leaves_index_tables_maintained(posts: Company, at: int) -> None:
    ledger, client = Ledger(), posts.client(View.NEW)
    posts.writes(traffic(client, keys_of("w"), new_post, ledger, seed=at))
    posts.live(3)
    with posts.killing_the_runner(at):
        posts.apply(Phase.COMPLETE)
    with posts.little_traffic():
        posts.live(70)
        posts.apply(Phase.COMPLETE)
    assert posts.control.maintained
    posts.live(5)
    posts.settle()
    assert without_index_rows(posts) == []


def test_a_program_that_does_not_know_of_it_cannot_read_the_control_row(posts: Company) -> None:
    """It would write the main table alone."""
    complete(posts)
    [row] = [row for row in posts.project.restricted.dump("rekeycontrol") if row["RowKey"] == "control"]
    assert row["Format"] == 2
    posts.verify()
    handed_over(posts)
    [row] = [row for row in posts.project.restricted.dump("rekeycontrol") if row["RowKey"] == "control"]
    assert row["Format"] == 1
