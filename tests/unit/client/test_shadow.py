"""Shadow reads count what agrees, what disagrees and what cannot be judged; nobody waits for them, and no key
shows in what they log."""

from __future__ import annotations

import logging

import pytest

from rekey.client import shadow as module
from rekey.client.lease import Permit
from rekey.client.parts import ClientParts, Counters
from rekey.client.shadow import Shadow
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.model import EntityKey, Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.journal import Journal
from rekey.protocol.rules import SOURCE, TARGET, View
from tests.asserts.every import every
from tests.fakes.memory import MemoryTableService
from tests.worlds.small import POSTS, USERS, World, post, user

BEFORE = Permit(ControlPhase.DUAL_WRITE, 2, copied=True)
AFTER = Permit(ControlPhase.CUTOVER, 4, copied=True)


class Told:
    """Permits that say what they are told to."""

    def __init__(self, permit: Permit | None) -> None:
        self.permit = permit

    def current(self) -> Permit | None:
        return self.permit


class Setting:
    """A world with shadow reads of one view."""

    def __init__(self, world: World, journal: Journal, view: View, permit: Permit | None) -> None:
        self.world = world
        self.journal = journal
        self.permits = Told(permit)
        self.counters = Counters()
        self.shadow = Shadow(
            ClientParts(
                view,
                "c1",
                propagator=world.propagator,
                journal=journal,
                permits=self.permits,
                counters=self.counters,
            ),
            1.0,
            7,
        )

    @property
    def counted(self) -> tuple[int, int, int]:
        """Matched, mismatched, ignored."""
        return self.counters.matched, self.counters.mismatched, self.counters.ignored

    async def compare(self, key: EntityKey, row: Row | None, *, whole: bool = True) -> tuple[int, int, int]:
        """Offer one read and wait until it is compared."""
        self.shadow.offer(key, row, whole=whole)
        await self.shadow.idle()
        return self.counted


@pytest.fixture
async def users(memory: MemoryTableService) -> World:
    """Two users, and their replicas as they should be."""
    return await filled(World(memory, USERS), [user("ada@example.org"), user("bob@example.org")])


@pytest.fixture
async def posts(memory: MemoryTableService) -> World:
    """Posts, whose keys come from their content."""
    return await filled(World(memory, POSTS), [post("one"), post("two")])


async def filled(world: World, rows: list[Row]) -> World:
    await world.prepare(rows)
    await world.service.create_table(JOURNAL_TABLE)
    for row in rows:
        await world.propagator.propagate(key_of(row))
    return world


def setting(world: World, view: View = View.OLD, permit: Permit | None = BEFORE) -> Setting:
    return Setting(world, Journal(world.service.table(JOURNAL_TABLE), "0001_users"), view, permit)


async def both_keys(world: World, number: int = 0) -> tuple[EntityKey, EntityKey]:
    """The source key and the main target key of one row."""
    row = world.service.dump(world.source.name)[number]
    return key_of(row), key_of(world.mapper.map(row)[0].row)


@pytest.mark.parametrize("permit", [BEFORE, AFTER], ids=["dual_write", "cutover"])
@pytest.mark.parametrize("view", View)
async def test_a_row_and_its_replica_agree(users: World, view: View, permit: Permit) -> None:
    old, new = await both_keys(users)
    made = setting(users, view, permit)
    key, table = (old, users.source) if view is View.OLD else (new, users.targets[0])
    assert await made.compare(key, await table.get(key)) == (1, 0, 0)
    assert await made.compare(EntityKey("eu", "nobody"), None) == (2, 0, 0)
    await made.shadow.close()


@pytest.mark.parametrize("permit", [BEFORE, AFTER], ids=["dual_write", "cutover"])
@pytest.mark.parametrize("view", View)
async def test_a_row_that_differs_is_counted_and_named_by_its_safe_id_alone(
    posts: World, view: View, permit: Permit, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = await both_keys(posts)
    await posts.targets[0].merge({**dict(zip(("PartitionKey", "RowKey"), new, strict=True)), "Title": "no"})
    made = setting(posts, view, permit)
    key, table = (old, posts.source) if view is View.OLD else (new, posts.targets[0])
    with caplog.at_level(logging.DEBUG, logger="rekey"):
        assert await made.compare(key, await table.get(key)) == (0, 1, 0)
    [record] = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert posts.propagator.row_id(old) in record.getMessage()
    assert not any(part in caplog.text for part in (*old, *new) if len(part) > 3 or part == old.row)
    await made.shadow.close()


async def test_a_replica_that_is_missing_or_left_over_differs(posts: World) -> None:
    old, new = await both_keys(posts)
    made = setting(posts)
    row = await posts.source.get(old)
    await posts.targets[0].delete(new)
    assert await made.compare(old, row) == (0, 1, 0)
    old, new = await both_keys(posts, 1)
    await posts.source.delete(old)
    assert await made.compare(old, None) == (0, 2, 0)
    of_new = setting(posts, View.NEW)
    assert await of_new.compare(new, await posts.targets[0].get(new)) == (0, 1, 0)
    for one in (made, of_new):
        await one.shadow.close()


@pytest.mark.parametrize(("side", "which"), [(SOURCE, 0), (TARGET, 1)])
async def test_a_row_with_an_intent_in_flight_is_ignored(users: World, side: str, which: int) -> None:
    keys = await both_keys(users)
    made = setting(users)
    row = await users.source.get(keys[0])
    await users.targets[0].delete(keys[1])
    await made.journal.begin("another", 2, side, [keys[which]])
    assert await made.compare(keys[0], row) == (0, 0, 1)
    await made.shadow.close()


async def test_a_row_that_changed_since_it_was_read_is_ignored(users: World) -> None:
    old, _new = await both_keys(users)
    made = setting(users)
    row = await users.source.get(old)
    await users.source.merge({**user(old.row), "Nm": "Changed"})
    await users.propagator.propagate(old)
    assert await made.compare(old, row) == (0, 0, 1)
    await made.shadow.close()


async def test_a_replica_that_caught_up_is_ignored(users: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write that had not reached the replica yet has, when it is looked at again."""
    old, new = await both_keys(users)
    made = setting(users)
    row = await users.source.get(old)
    await users.targets[0].delete(new)
    under_way = made.shadow._is_being_written

    async def catching_up(pair: module._Pair) -> bool:
        await users.propagator.propagate(old)
        return await under_way(pair)

    monkeypatch.setattr(made.shadow, "_is_being_written", catching_up)
    assert await made.compare(old, row) == (0, 0, 1)
    await made.shadow.close()


async def test_a_phase_that_moves_meanwhile_is_ignored(users: World, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = await both_keys(users)
    made = setting(users)
    row = await users.source.get(old)
    await users.targets[0].delete(new)
    again = made.shadow._again

    async def moving(pair: module._Pair, decides: str) -> module._Pair:
        made.permits.permit = AFTER
        return await again(pair, decides)

    monkeypatch.setattr(made.shadow, "_again", moving)
    assert await made.compare(old, row) == (0, 0, 1)
    await made.shadow.close()


@pytest.mark.parametrize(
    "permit",
    [
        None,
        Permit(None, 0, copied=False),
        Permit(ControlPhase.DUAL_WRITE, 2, copied=False),
        Permit(ControlPhase.FREEZE, 3, copied=True),
        Permit(ControlPhase.COMPLETE, 5, copied=True),
    ],
    ids=["no lease", "not begun", "not copied", "freeze", "complete"],
)
async def test_nothing_is_compared_while_no_side_fully_follows(users: World, permit: Permit | None) -> None:
    old, _new = await both_keys(users)
    made = setting(users, permit=permit)
    assert await made.compare(old, await users.source.get(old)) == (0, 0, 0)


async def test_a_part_of_a_row_is_read_whole_before_it_is_compared(users: World) -> None:
    old, _new = await both_keys(users)
    made = setting(users)
    part = await users.source.get(old, select=["Nm"])
    assert await made.compare(old, part, whole=False) == (1, 0, 0)
    await made.shadow.close()


async def test_what_does_not_fit_into_the_queue_is_ignored_and_so_is_what_is_given_up(users: World) -> None:
    old, _new = await both_keys(users)
    made = setting(users)
    row = await users.source.get(old)
    for _ in range(module.MAX_QUEUED + 3):
        made.shadow.offer(old, row)
    assert made.counted == (0, 0, 3)
    await made.shadow.close()
    assert made.counted == (0, 0, 3 + module.MAX_QUEUED)


async def test_of_a_page_a_few_rows_are_compared(memory: MemoryTableService) -> None:
    world = await filled(World(memory, USERS), [user(f"u{number}@example.org") for number in range(20)])
    made = setting(world)
    rows = [row async for page in world.source.scan() for row in page.rows]
    made.shadow.offer_page(rows)
    made.shadow.offer_page(rows[:2])
    made.shadow.offer_page([{"Nm": "keys were not selected"}])
    await made.shadow.idle()
    assert made.counted == (module.MAX_ROWS_OF_A_PAGE + 2, 0, 0)
    await made.shadow.close()


async def test_a_side_that_cannot_be_read_is_no_mismatch_and_raises_nothing(users: World) -> None:
    old, _new = await both_keys(users)
    made = setting(users)
    row = await users.source.get(old)
    await users.service.delete_table(users.targets[0].name)
    assert await made.compare(old, row) == (0, 0, 1)
    assert await made.compare(old, row) == (0, 0, 2)
    await made.shadow.close()


def test_the_share_of_reads_is_drawn_from_a_seed(memory: MemoryTableService) -> None:
    def drawn(share: float, seed: int) -> list[bool]:
        world = World(memory, USERS)
        made = Shadow(
            ClientParts(
                View.OLD,
                "c1",
                propagator=world.propagator,
                journal=Journal(memory.table(JOURNAL_TABLE), "s"),
                permits=Told(None),
                counters=Counters(),
            ),
            share,
            seed,
        )
        return [made.drawn() for _ in range(200)]

    assert drawn(0.25, 1) == drawn(0.25, 1) != drawn(0.25, 2)
    assert 20 < sum(drawn(0.25, 1)) < 80
    assert not any(drawn(0.0, 1))
    assert every(drawn(1.0, 1))
