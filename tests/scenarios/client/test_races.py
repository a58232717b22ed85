"""Many writers of both views at once, calls that overtake each other, lost answers and late requests: no
acknowledged write is lost, and in the end all tables agree. And the races that each rule is there for.

Soak: 4 of 6, 10 of 12 and 17 of 20 seeds; three quarters of the ways to take a key.
Reason, and what `make test` covers: two and three seeds in each phase; every two of verb, phase, views,
tables and what happened before together; every order on one key in `tests/simulation`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from rekey import keys
from rekey.client.route import Writer
from rekey.declaration.migration import Migration
from rekey.errors import RekeyError, RowMissing
from rekey.mapping.rows import MAPPING_TABLE
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from rekey.tables.base import Operation, Verb
from tests.fakes.faults import Call, Fault, FaultKind, PlannedFaults
from tests.fakes.memory import MemoryTableService, instant_gate, open_gate
from tests.soaking import others_in_soak
from tests.worlds.dual_write import (
    TAGGED,
    DualWorld,
    delete,
    insert,
    key_row,
    memory_world,
    merge,
    replace,
    sleep_forever,
    upsert,
)
from tests.worlds.small import BENCHES, HANDLES, LOWERED, POSTS, SEATS, USERS, post, user

ANN = EntityKey("eu", "ann@example.com")


class Held:
    """Holds the nth call that fits, until it is let go."""

    def __init__(self, memory: MemoryTableService, action: str, table: str, nth: int = 1) -> None:
        self.memory, self.action, self.table, self.rest = memory, action, table, nth
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def gate(self, call: Call) -> None:
        if (call.action, call.table) == (self.action, self.table):
            self.rest -= 1
            if not self.rest:
                self.reached.set()
                await self.go.wait()
        await asyncio.sleep(0)


@asynccontextmanager
async def held(
    world: DualWorld, operation: Operation, action: str, table: str, view: View = View.OLD
) -> AsyncIterator[asyncio.Task[list[str | None]]]:
    """Begin a write and hold one call of it for as long as the context lasts; then let it end."""
    hold = Held(world.service, action, table)
    world.service.gate = hold.gate
    writing = asyncio.ensure_future(world.writer(view, "held", sleep=sleep_forever).write([operation]))
    await hold.reached.wait()
    yield writing
    hold.go.set()
    await writing


_VERBS: dict[str, Callable[[Row], Operation]] = {
    "insert": insert,
    "replace": replace,
    "merge": merge,
    "upsert": upsert,
    "upsert-merge": lambda row: upsert(row, merging=True),
    "delete": lambda row: delete(key_of(row)),
}
BY_HANDLE = dataclasses.replace(
    LOWERED, target=dataclasses.replace(LOWERED.target, row_key=keys.prop("Handle"))
)
"""Rows of several old keys have one target key, which follows from content."""
FORMER, OTHER = "Ann@example.com", "ANN@example.com"


PHASES = (ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER)
CREATES = ("insert", "upsert", "upsert-merge")


def halves(*values: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Return all combinations of values in two halves; in each, every two values of different ones meet."""
    cases = [tuple(zip(*one, strict=True)) for one in itertools.product(*map(enumerate, values))]
    kept, others = ([case for numbers, case in cases if sum(numbers) % 2 == odd] for odd in (False, True))
    return kept, others


def every_other(*values: Iterable[Any]) -> list[Any]:
    """Return all combinations of values; `make test` runs half."""
    kept, others = halves(*values)
    return others_in_soak([*kept, *others], kept)


MEANWHILE = halves(View, (True, False), (True, False))
"""What else happens to the key: the view of the other row, and what `Taken` calls `is_gone` and `knows`."""


@pytest.mark.parametrize("meanwhile", [0, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("verb", "phase", "view"), every_other(sorted(_VERBS), PHASES, View))
async def test_a_row_taking_a_key_is_not_overwritten(
    verb: str, phase: ControlPhase, view: View, meanwhile: int
) -> None:
    """The write is of the key's former row. It reads its claim and its row at the same time, and what it read
    first was older than the row: it took the other one for its own."""
    for other_view, is_gone, knows in MEANWHILE[meanwhile]:
        for number in itertools.count():
            taken = Taken(phase, _VERBS[verb], view, other_view, is_gone, knows)
            if not await taken.between(number):
                assert number > 1
                break
            await taken.world.assert_quiet()
            left = [row["Tok"] for row in taken.world.service.dump("Users")]
            context = (other_view, is_gone, knows, number, taken.answers, left)
            if taken.answers == ["done", "done"]:
                # In the new view a row is deleted whoever it stands for.
                assert left == ["theirs"] or (verb == "delete" and view is View.NEW and not left), context
                assert verb == "delete" or not is_gone, context
            else:
                assert len(left) == ("done" in taken.answers), context


@pytest.mark.parametrize(("verb", "phase", "view"), every_other(CREATES, PHASES, View))
async def test_two_creators_of_a_row_do_not_collide(verb: str, phase: ControlPhase, view: View) -> None:
    """The key's former row is gone. What one write read of its claim is older than the row of the other."""
    for other_view in View:
        for number in itertools.count():
            taken = Taken(phase, _VERBS[verb], view, other_view, is_gone=True, knows=False, old_key=OTHER)
            if not await taken.between(number):
                assert number > 5
                break
            await taken.world.assert_quiet()
            assert set(taken.answers) <= {"done", "RowExists"}, (other_view, number, taken.answers)
            assert "done" in taken.answers
            assert len(taken.world.service.dump("Users")) == 1


@pytest.mark.parametrize("view", View)
@pytest.mark.parametrize("phase", PHASES)
async def test_a_create_is_no_collision_with_a_twin_that_is_deleted_again(
    phase: ControlPhase, view: View
) -> None:
    """The key's former row is gone, and its claim was read before the twin. No other row has the key at any
    moment."""
    for other_view, lives in itertools.product(View, range(1, 4)):
        for number in itertools.count():
            taken = Taken(phase, upsert, view, other_view, is_gone=True, knows=False, old_key=OTHER)
            if not await taken.between(number, number + lives):
                assert number > 5
                break
            await taken.world.assert_quiet()
            assert set(taken.answers) <= {"done", "RowExists"}, (other_view, number, lives, taken.answers)


@pytest.mark.parametrize("table", ["GuestsV2", "GuestsBySeat"])
@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
@pytest.mark.parametrize("create", [insert, upsert])
async def test_a_row_that_takes_the_key_of_one_deleted_with_it_leaves_nothing_of_that(
    create: Callable[[Row], Operation], phase: ControlPhase, table: str, memory: MemoryTableService
) -> None:
    """Its index row pointed to the key that passed on, and was neither row's; and the key stayed reserved."""
    world = await on_one_bench(memory, phase, table)
    await world.writer(View.OLD).write([delete(EntityKey("p", "Ann")), create(bench("ANN", "s2"))])
    await world.assert_quiet()
    assert sorted(row["RowKey"] for name in {table, "GuestsV2"} for row in memory.dump(name)) == [
        "S:s2",
        "U:ann",
    ]
    assert reserved_keys(memory) == []


@pytest.mark.parametrize(("create", "table"), every_other((insert, upsert), ("GuestsV2", "GuestsBySeat")))
async def test_a_row_deleted_during_its_write_is_gone(create: Callable[[Row], Operation], table: str) -> None:
    """The key's claim had not passed on yet, so the delete looked for the former row's secondary rows."""
    for number in itertools.count():
        world = await on_one_bench(MemoryTableService(), ControlPhase.CUTOVER, table)
        moves = [delete(EntityKey("p", "Ann")), create(bench("ANN", "s2"))]
        answers = await _between(world, number, moves, [delete(EntityKey("p", "U:ann"))])
        await world.assert_quiet()
        if len(answers) < 2:
            assert number > 20
            break
        left = [world.service.dump(name) for name in ("Guests", "GuestsV2", table)]
        assert left == [[], [], []], (number, answers)
        assert reserved_keys(world.service) == []


async def test_a_row_whose_key_passes_on_is_never_missing_in_the_new_view() -> None:
    """A client that settled the former row first deleted it, and a write was told that there is none."""
    target = EntityKey("eu", "ann@example.com")
    for number in itertools.count():
        world = await memory_world(LOWERED, MemoryTableService()).prepare([user("Ann@example.com")])
        moves = [delete(EntityKey("eu", "Ann@example.com")), insert(user("ANN@example.com"))]
        answers = await _between(world, number, moves, [merge({**key_row(target), "Nm": "merged"})])
        await world.assert_quiet()
        if len(answers) < 2:
            assert number > 20
            break
        assert not [answer for answer in answers if isinstance(answer, RowMissing)], number
        assert [row["RowKey"] for row in world.service.dump("UsersV2")] == [target.row]


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_an_index_key_belongs_to_the_row_that_took_it_from_one_deleted_with_it(
    phase: ControlPhase, memory: MemoryTableService
) -> None:
    """Its claim stayed the deleted row's without a reservation: a third row could take the key."""
    world = await memory_world(SEATS, memory).prepare([bench("u1", "s1")])
    world.permits.move(phase)
    writer = world.writer(View.OLD)
    await writer.write([delete(EntityKey("p", "u1")), insert(bench("u2", "s1"))])
    await writer.write([delete(EntityKey("p", "u2")), insert(bench("u3", "s1"))])
    await world.assert_quiet()
    claim = await world.mapping.owner(EntityKey("p", "S:s1"), 1)
    assert claim is not None
    assert (claim.source, claim.reserved) == (EntityKey("p", "u3"), None)


async def _between(
    world: DualWorld, number: int, call: Sequence[Operation], other: Sequence[Operation]
) -> list[list[str | None] | BaseException]:
    """Do a call in the old view, and another one in the new view before its call of this number; return
    their answers, that of the other one first."""
    calls = itertools.count()
    answers: list[list[str | None] | BaseException] = []

    async def answer(view: View, client: str, operations: Sequence[Operation]) -> None:
        answers.extend(
            await asyncio.gather(world.writer(view, client).write(operations), return_exceptions=True)
        )

    async def gate(_call: Call) -> None:
        if next(calls) == number:
            world.service.gate = open_gate
            await answer(View.NEW, "two", other)

    world.service.gate = gate
    await answer(View.OLD, "one", call)
    world.service.gate = open_gate
    return answers


async def on_one_bench(memory: MemoryTableService, phase: ControlPhase, table: str) -> DualWorld:
    """Return a world with one guest, whose index row is in a table."""
    migration = BENCHES if table == "GuestsV2" else HANDLES
    world = await memory_world(migration, memory).prepare([bench("Ann", "s1")])
    world.permits.move(phase)
    return world


def bench(name: str, seat: str) -> Row:
    """Return a row of BENCHES."""
    return {"PartitionKey": "p", "RowKey": name, "Handle": "ann", "Seat": seat}


def reserved_keys(memory: MemoryTableService) -> list[Row]:
    """Return the rows of the mapping that hold a reservation."""
    return [row for row in memory.dump(MAPPING_TABLE) if "ReservedBy" in row]


@dataclass
class Taken:
    """A write of a row whose target key another row takes meanwhile.

    Attributes:
        is_gone: whether the row was deleted before; if not, whoever takes the key deletes it first.
        knows: whether the writer has written the row before: it may believe what it saw then.
        old_key: of the row that is written.
        answers: what both writes were told: "done", or the name of the error.
    """

    phase: ControlPhase
    operation_of: Callable[[Row], Operation]
    view: View
    other_view: View
    is_gone: bool
    knows: bool
    old_key: str = FORMER
    world: DualWorld = field(init=False)
    answers: list[str] = field(default_factory=list)

    async def between(self, number: int, end: int | None = None) -> bool:
        """Do the write, and the other one before its call of this number; tell whether it made that one.

        Args:
            number: counted from 0.
            end: before which call the other one's row is deleted again; None: not at all.
        """
        former = self.row(FORMER, "former")
        self.world = await memory_world(BY_HANDLE, MemoryTableService()).prepare([former])
        self.world.permits.move(self.phase)
        writer, other = self.world.writer(self.view, "one"), self.world.writer(self.other_view, "two")
        if self.knows:
            await writer.write([replace(self.in_view(former, self.view))])
            await writer.settle()
        if self.is_gone:
            await other.write([delete(key_of(self.in_view(former, self.other_view)))])
            await other.settle()
        calls = itertools.count()
        theirs = self.in_view(self.row(OTHER, "theirs"), self.other_view)

        async def gate(_call: Call) -> None:
            if (call := next(calls)) not in (number, end):
                return
            self.world.service.gate = open_gate
            if call == end:
                await self.write(other, delete(key_of(theirs)))
                return
            if not self.is_gone:
                await other.write([delete(key_of(self.in_view(former, self.other_view)))])
            await self.write(other, insert(theirs))
            if end is not None:
                await other.settle()
                self.world.service.gate = gate

        self.world.service.gate = gate
        await self.write(writer, self.operation_of(self.in_view(self.row(self.old_key, "mine"), self.view)))
        if end is not None:
            await writer.settle()
        self.world.service.gate = open_gate
        return len(self.answers) > 1

    async def write(self, writer: Writer, operation: Operation) -> None:
        """Write, and note the answer."""
        try:
            await writer.write([operation])
        except RekeyError as error:
            self.answers.append(type(error).__name__)
        else:
            self.answers.append("done")

    def in_view(self, row: Row, view: View) -> Row:
        """Return a source row as a view has it."""
        return row if view is View.OLD else content_of(self.world.mapper.map(row)[0].row)

    @staticmethod
    def row(old_key: str, token: str) -> Row:
        """Return a source row; all want the same target key."""
        return {"PartitionKey": "eu", "RowKey": old_key, "Handle": "ann", "Tok": token}


async def test_a_row_deleted_while_its_copy_was_inserted_does_not_stay(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare()
    other = world.writer(client="c2", sleep=sleep_forever)
    async with held(world, insert(user(ANN.row)), "insert", "UsersV2"):
        await other.write([delete(ANN)])
        await other.settle()
    await world.assert_quiet()
    assert memory.dump("UsersV2") == []


async def test_a_delete_that_found_no_copy_looks_again(memory: MemoryTableService) -> None:
    """It found none; then the copy was inserted, and looked after, and only then the row was deleted."""
    world = await memory_world(USERS, memory).prepare()
    await world.source.insert(user(ANN.row))
    async with held(world, delete(ANN), "delete", "Users"):
        await world.copier.copy(memory.dump("Users"))
    await world.assert_quiet()
    assert memory.dump("UsersV2") == []


async def test_a_row_that_moved_away_and_back_is_where_it_belongs(memory: MemoryTableService) -> None:
    """The ETag held, and the authority is again what the copy was: nobody but the writer can notice."""
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    async with held(world, replace(user(ANN.row, Age=2)), "replace", "UsersV2"):
        await world.source.replace(user(ANN.row, Age=1))
        await world.propagator.propagate(ANN)
    await world.assert_quiet()


async def test_a_slow_writer_never_takes_a_newer_row_away(memory: MemoryTableService) -> None:
    """Rows under older keys are read beside the write of the authority. What is found there may be another
    writer's, who has had his answer: it must be there at every moment from then on."""
    world = await memory_world(POSTS, memory).prepare([post("hello", "2024-01", "a")])
    other = world.writer(client="c2", sleep=sleep_forever)
    # Its first read of the main target is of the new key, before it writes; the second is of the older one.
    hold = Held(memory, "get", "PostsV2", nth=2)
    answered = False

    async def gate(call: Call) -> None:
        await hold.gate(call)
        if answered:
            assert "newest" in [row["Title"] for row in memory.dump("PostsV2")]

    memory.gate = gate
    slow = world.writer(client="held", sleep=sleep_forever)
    writing = asyncio.ensure_future(slow.write([replace(post("hello", "2024-02", "b"))]))
    await hold.reached.wait()
    while memory.dump("Posts")[0]["Month"] != "2024-02":
        await asyncio.sleep(0)
    await other.write([replace({**post("hello", "2024-01", "a"), "Title": "newest"})])
    answered = True
    hold.go.set()
    await writing
    await world.assert_quiet()


async def test_rechecking_a_deleted_row_finds_it_under_its_new_key(memory: MemoryTableService) -> None:
    """The keys that a row may stand under are listed in the mapping. Whoever settles the delete with a list
    that is older than the row's new key takes it for gone, and would delete its source row."""
    world = await memory_world(POSTS, memory).prepare([post("hello", "2024-01", "a")])
    world.permits.move(ControlPhase.CUTOVER)
    writer = world.writer(View.NEW, sleep=sleep_forever)
    # An older index key is listed, so that the delete is looked after by propagate.
    await writer.write([replace(world.mapper.map(post("hello", "2024-01", "b"))[0].row)])
    await writer.settle()
    # The source row is read beside the delete, and by the look behind it once that has read the list.
    hold = Held(memory, "get", "Posts", nth=2)
    memory.gate = hold.gate
    await writer.write([delete(EntityKey("2024-01", "hello"))])
    await hold.reached.wait()
    other = world.writer(View.NEW, "c2", sleep=sleep_forever)
    await other.write([insert(world.mapper.map(post("hello", "2024-02", "b"))[0].row)])
    await other.settle()
    hold.go.set()
    await world.assert_quiet()
    assert [row["Month"] for row in memory.dump("Posts")] == ["2024-02"]


# --- everything at once -------------------------------------------------------------------------------------


@dataclass
class Storm:
    """Writers of both views on a few keys, calls that overtake each other, and faults.

    Every writer counts in a property of its own: what it was told is there, nobody may take away. Requests
    whose answers are lost may land at any later moment.
    """

    world: DualWorld
    random: random.Random
    rate: float = 0.06
    late: list[tuple[str, Operation]] = field(default_factory=list)
    told: dict[tuple[int, EntityKey], int] = field(default_factory=dict)

    async def gate(self, call: Call) -> None:
        for _ in range(self.random.choice((0, 0, 1, 2, 5, 20, 80))):
            await asyncio.sleep(0)
        if self.late and self.random.random() < 0.1:
            self._land()

    def decide(self, call: Call) -> Fault | None:
        if self.random.random() >= self.rate:
            return None
        if not call.writes:
            return Fault(self.random.choice((FaultKind.NOT_SENT, FaultKind.BUSY)))
        kind = self.random.choice(
            (FaultKind.NOT_SENT, FaultKind.BUSY, FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST)
        )
        if kind is FaultKind.LOST_REQUEST and call.action != "transact" and call.table != "rekeyjournal":
            self.late.append((call.table, call.operations[0]))
        return Fault(kind)

    def _land(self) -> None:
        """Let a late request take effect, at once: nothing comes in between."""
        table, operation = self.late.pop(self.random.randrange(len(self.late)))
        service = self.world.service
        gate, faults = service.gate, service.faults
        service.gate, service.faults = instant_gate, PlannedFaults()
        try:
            service.table(table)._run(operation.verb, (operation,)).send(None)
        except (StopIteration, RekeyError):
            service.gate, service.faults = gate, faults

    async def run(self, views: list[View], rows: list[Row], *, steps: int) -> None:
        self.world.service.gate, self.world.service.faults = self.gate, self
        writers = [
            self.world.writer(view, f"c{number}", sleep=sleep_forever) for number, view in enumerate(views)
        ]
        await asyncio.gather(*(self._work(number, view, rows, steps) for number, view in enumerate(views)))
        self.world.service.gate, self.world.service.faults = open_gate, PlannedFaults()
        for writer in (*writers, *self.world._writers):
            await writer.close()
        while self.late:
            self._land()

    async def _work(self, number: int, view: View, rows: list[Row], steps: int) -> None:
        writer = self.world.writer(view, f"c{number}", sleep=sleep_forever)
        for step in range(1, steps + 1):
            source = self.random.choice(rows)
            row = source if view is View.OLD else self.world.mapper.map(source)[0].row
            operation = self.operation(number, step, row)
            try:
                await writer.write([operation])
            except RekeyError:
                continue
            self.told[number, key_of(source)] = step

    def operation(self, number: int, step: int, row: Row) -> Operation:
        """Draw an operation."""
        return merge({**key_row(key_of(row)), f"W{number}": step})


class Churn(Storm):
    """Rows come and go as well; what counts is that the tables agree in the end."""

    def operation(self, number: int, step: int, row: Row) -> Operation:
        changed = {**row, f"W{number}": step}
        if "Tags" in row:
            changed["Tags"] = self.random.choice(("a", "a,b", "c"))
        return self.random.choice(
            (
                insert(changed),
                replace(changed),
                upsert(changed),
                upsert(changed, merging=True),
                delete(key_of(row)),
            )
        )


class Wander(Storm):
    """Each writer has a row of its own, which moves from month to month and from tag to tag, gone in between.

    A new version of the application moves a row by deleting it and writing it under its other key.
    """

    async def _work(self, number: int, view: View, rows: list[Row], steps: int) -> None:
        writer = self.world.writer(view, f"c{number}", sleep=sleep_forever)
        at: Row | None = None
        for step in range(1, steps + 1):
            row = post(f"own-{number}", self.random.choice(MONTHS), self.random.choice(("", "a", "b,c")))
            row["Title"] = f"step {step}"
            if view is View.NEW:
                row = self.world.mapper.map(row)[0].row
            doing = upsert(row)
            if at is not None and (view is View.NEW or self.random.random() < 0.3):
                doing = delete(key_of(at))
                if key_of(at) == key_of(row) and self.random.random() < 0.5:
                    doing = replace(row)
            try:
                await writer.write([doing])
            except RekeyError:
                # Nobody knows where it is: it is looked for where it can be.
                at = self._found(number, view)
                continue
            at = None if doing.verb is Verb.DELETE else row

    def _found(self, number: int, view: View) -> Row | None:
        table = self.world.source.name if view is View.OLD else self.world.targets[0].name
        found = [row for row in self.world.service.dump(table) if row["RowKey"] == f"own-{number}"]
        return found[0] if found else None


MONTHS = ("2024-01", "2024-02", "2024-03")
BOTH = [View.OLD, View.OLD, View.NEW, View.NEW]
IN_PHASES = pytest.mark.parametrize("phase", PHASES)
WORLDS = pytest.mark.parametrize("migration", [TAGGED, POSTS], ids=["key-derived", "content-derived"])


def rows_of(migration: Migration) -> list[Row]:
    """Source rows to write on."""
    return [post("one"), post("two")] if migration is POSTS else [user("a@x.org"), user("b@x.org")]


@IN_PHASES
@WORLDS
@pytest.mark.parametrize("seed", others_in_soak(range(6), kept=range(2)))
async def test_no_acknowledged_write_of_either_view_is_lost(
    memory: MemoryTableService, migration: Migration, phase: ControlPhase, seed: int
) -> None:
    rows = rows_of(migration)
    world = await memory_world(migration, memory).prepare(rows)
    world.permits.move(phase)
    storm = Storm(world, random.Random(seed))
    await storm.run(BOTH, rows, steps=10)
    await world.sweep("target" if phase is ControlPhase.CUTOVER else "source")
    await world.assert_quiet()
    now = {key_of(row): row for row in memory.dump(world.source.name)}
    for (number, key), step in storm.told.items():
        assert now[key][f"W{number}"] >= step, (seed, number, step)


@IN_PHASES
@WORLDS
@pytest.mark.parametrize("seed", others_in_soak(range(12), kept=range(2)))
async def test_rows_that_come_and_go_are_the_same_in_all_tables_in_the_end(
    memory: MemoryTableService, migration: Migration, phase: ControlPhase, seed: int
) -> None:
    rows = rows_of(migration)
    world = await memory_world(migration, memory).prepare(rows[:1])
    world.permits.move(phase)
    await Churn(world, random.Random(seed)).run(BOTH, rows, steps=8)
    await world.sweep("target" if phase is ControlPhase.CUTOVER else "source")
    await world.assert_quiet()


@IN_PHASES
@pytest.mark.parametrize("rate", [0.0, 0.06], ids=["calm", "faults"])
@pytest.mark.parametrize("seed", others_in_soak(range(20), kept=range(3)))
async def test_rows_that_wander_are_the_same_in_all_tables_in_the_end(
    memory: MemoryTableService, phase: ControlPhase, seed: int, rate: float
) -> None:
    world = await memory_world(POSTS, memory).prepare()
    world.permits.move(phase)
    await Wander(world, random.Random(seed), rate).run(BOTH, [], steps=8)
    await world.sweep("target" if phase is ControlPhase.CUTOVER else "source")
    await world.assert_quiet()
