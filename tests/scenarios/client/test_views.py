"""Dual writes of each view, while its table decides and while the other one does: every verb is followed,
answers are those of the view's rows, and what the other table cannot express is refused and not written."""

from __future__ import annotations

from typing import Any

import pytest

from rekey import Migration
from rekey.errors import ConditionFailed, RequestRejected, RowExists, RowMissing, RowRefused
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from rekey.tables.base import Operation
from tests.fakes.memory import MemoryTableService
from tests.worlds.dual_write import (
    TAGGED,
    DualWorld,
    delete,
    insert,
    key_row,
    memory_world,
    merge,
    replace,
    upsert,
)
from tests.worlds.small import POSTS, USERS, post, user

ANN = EntityKey("eu", "ann@example.com")
PHASES = [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER]
ANOTHER_TABLES = 'W/"another table\'s"'


def in_view(world: DualWorld, view: View, source_row: Row) -> Row:
    """Return a source row as a view has it."""
    return source_row if view is View.OLD else content_of(world.mapper.map(source_row)[0].row)


@pytest.mark.parametrize("migration", [USERS, TAGGED], ids=["one target", "index table"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("view", View)
async def test_every_verb_of_a_view_is_followed(
    memory: MemoryTableService, migration: Migration, phase: ControlPhase, view: View
) -> None:
    """What the new view has no name for, the source keeps."""
    world = await memory_world(migration, memory).prepare([user(ANN.row, Age=1)])
    world.permits.move(phase)
    writer = world.writer(view)
    table, name, hidden = ("Users", "Nm", "new") if view is View.OLD else ("UsersV2", "Name", "x-1")
    ann, new, bob, eve = (
        in_view(world, view, user(f"{who}@example.com")) for who in ("ann", "new", "bob", "eve")
    )

    async def write(operation: Operation) -> str | None:
        [etag] = await writer.write([operation])
        assert etag == world.etag(table, operation.key)
        await world.assert_quiet()
        return etag

    etag = await write(replace({**ann, "Age": 2}, world.etag(table, key_of(ann))))
    more = {"Ssn": "new"} if view is View.OLD else {}
    etag = await write(merge({**key_row(key_of(ann)), name: "Ann", **more}, etag))
    [row] = memory.dump("Users")
    assert (row["Age"], row["Nm"], row["Ssn"]) == (2, "Ann", hidden)
    with pytest.raises(RowExists):
        await writer.write([insert(ann)])
    with pytest.raises(ConditionFailed):
        await writer.write([delete(key_of(ann), ANOTHER_TABLES)])
    await write(insert({**new, "Age": 7}))
    await write(upsert({**new, "Age": 8}))
    await write(upsert({**key_row(key_of(new)), "Age": 9}, merging=True))
    await write(upsert({**bob, "Age": 4}))
    await write(upsert({**eve, "Age": 5}, merging=True))
    assert await writer.write([delete(key_of(ann), etag)]) == [None]
    await world.assert_quiet()
    for one in ("Users", "UsersV2"):
        assert sorted(row["Age"] for row in memory.dump(one)) == [4, 5, 9]
    await write(insert(ann))
    assert world.counters.writes == 9
    assert world.counters.left == world.counters.replica_failures == 0
    if (view is View.OLD) == (phase is ControlPhase.DUAL_WRITE):
        assert world.counters.fast == 9, "in the authority's own view"


@pytest.mark.parametrize(
    ("migration", "view"),
    [(USERS, View.OLD), (POSTS, View.OLD), (USERS, View.NEW)],
    ids=["keys from keys", "keys from content", "the new view"],
)
async def test_answers_are_those_of_the_views_rows(
    memory: MemoryTableService, migration: Migration, view: View
) -> None:
    source = user(ANN.row) if migration is USERS else post("hello")
    world = await memory_world(migration, memory).prepare([source])
    row = in_view(world, view, source)
    stale = world.etag(migration.source if view is View.OLD else migration.target.table, key_of(row))
    await world.writer().write([replace({**source, "Age": 5})])
    missing = in_view(world, view, {**source, "RowKey": "other"})
    cases: list[tuple[Operation, type[Exception]]] = [
        (insert(row), RowExists),
        (replace({**row, "Age": 6}, stale), ConditionFailed),
        (merge(key_row(key_of(row)), stale), ConditionFailed),
        (delete(key_of(row), stale), ConditionFailed),
        (delete(key_of(row), ANOTHER_TABLES), ConditionFailed),
        (replace(missing), RowMissing),
        (merge(missing), RowMissing),
        (delete(key_of(missing)), RowMissing),
    ]
    if view is View.OLD:
        cases.append((insert({**row, "RowKey": "a/b"}), RequestRejected))
    for operation, error in cases:
        with pytest.raises(error) as raised:
            await world.writer(view).write([operation])
        assert raised.value.index is None  # type: ignore[attr-defined]
    await world.assert_quiet()
    assert memory.dump(migration.source)[0]["Age"] == 5


REFUSED: dict[str, tuple[Migration, Row, list[tuple[Any, dict[str, str | None], str | tuple[str, str]]]]] = {
    "users": (
        USERS,
        user(ANN.row),
        [
            (replace, {"Ssn": "x"}, "not-reversible"),
            (replace, {"ContactEmail": "bob@example.com"}, "not-reversible"),
            (replace, {"ContactEmail": None}, ("not-reversible", "no-old-key")),
            (insert, {"ContactEmail": None, "RowKey": "other"}, "no-old-key"),
            (insert, {"RowKey": "other"}, ("key-taken", "not-reversible")),
        ],
    ),
    "posts": (
        POSTS,
        post("hello", "2024-01"),
        [
            (replace, {"Month": "2024-02"}, "not-reversible"),
            (replace, {"Blog": "other"}, "not-reversible"),
            (insert, {"PartitionKey": "2024-02", "Month": "2024-02"}, "key-taken"),
        ],
    ),
}
"""What the new view writes, as changes of a row (None: left out), and with which code it is refused: two if
it is another one after cutover."""


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("migration", "source", "cases"), REFUSED.values(), ids=REFUSED)
async def test_what_the_source_cannot_express_is_refused_in_the_new_view(
    memory: MemoryTableService, migration: Migration, source: Row, cases: Any, phase: ControlPhase
) -> None:
    world = await memory_world(migration, memory).prepare([source])
    world.permits.move(phase)
    row = in_view(world, View.NEW, source)
    before = {name: world.rows(name) for name in (migration.source, migration.target.table)}
    for verb, changes, code in cases:
        changed = {name: value for name, value in {**row, **changes}.items() if value is not None}
        with pytest.raises(RowRefused) as refused:
            await world.writer(View.NEW).write([verb(changed)])
        assert refused.value.code == (code if isinstance(code, str) else code[PHASES.index(phase)])
        assert "example" not in str(refused.value)
        await world.assert_quiet()
    assert {name: world.rows(name) for name in before} == before
    await world.writer(View.NEW).write([replace({**row, "Tags": "c", "Title": "t"})])
    await world.assert_quiet()
