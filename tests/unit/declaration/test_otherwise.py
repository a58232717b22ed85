"""Rows that no kind takes and that a script drops: how it says so, and what the mapper makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rekey import Migration, RowKind, Target, keys, props, rows
from rekey.declaration.keys.base import InvalidDeclaration
from rekey.declaration.mapper import Mapper
from rekey.errors import RowRefused
from rekey.model import EntityKey, Row
from rekey.protocol.replicas import lost
from rekey.runner.indexes import MainRows
from tests.worlds.small import DROPPING, SECRET, TICKETS, ticket

DROP = rows.drop(reason="drafts")


def users(when: Any = None) -> RowKind:
    target = Target(
        "New", partition_key=keys.keep(), row_key=keys.keep(), properties=[props.copy("RowKey", to="Old")]
    )
    return RowKind("user", when=when or rows.row_key(prefix="U_"), target=target)


def migration(*kinds: RowKind, **more: Any) -> Migration:
    return Migration(source="Old", kinds=kinds, capture="delta", **more)


def test_a_script_without_it_keeps_its_digest() -> None:
    assert migration(users(), otherwise="refuse").digest() == migration(users()).digest()
    assert "otherwise" not in migration(users()).canonical()


def test_the_reason_is_part_of_the_digest() -> None:
    declared = migration(users(), otherwise=DROP)
    assert declared.canonical()["otherwise"] == {"op": "drop", "reason": "drafts"}
    other = migration(users(), otherwise=rows.drop(reason="others"))
    assert len({declared.digest(), other.digest(), migration(users()).digest()}) == 3


def test_rows_are_left_by_migrating_the_part_that_kinds_take() -> None:
    second = replace(users(rows.row_key(prefix="C_")), name="claim")
    left = migration(users(), second, otherwise="leave")
    part = rows.any_of(rows.row_key(prefix="U_"), rows.row_key(prefix="C_"))
    assert left.canonical() == migration(users(), second, where=part).canonical()
    assert not left.has(EntityKey("p", "X_1"))
    tenant = rows.partition_key(equals="a")
    within = migration(users(), otherwise="leave", where=tenant)
    assert [within.has(EntityKey(key, "U_1")) for key in "ab"] == [True, False]
    assert replace(left, group="g", target=None, indexes=()).where == left.where


BAD: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a word without a reason": (lambda: migration(users(), otherwise="drop"), "otherwise", "rows.drop"),
    "leaving rows by a property": (
        lambda: migration(users(rows.prop("Kind", equals="user")), otherwise="leave"),
        "otherwise",
        "let keys alone say",
    ),
    "leaving rows where a kind takes all": (
        lambda: migration(users(rows.every()), otherwise="leave"),
        "otherwise",
        "leave it out",
    ),
    "a function": (lambda: migration(users(), otherwise=rows.drop), "otherwise", "rows.drop"),
    "nothing": (lambda: migration(users(), otherwise=None), "otherwise", "rows.drop"),
    "no kinds": (
        lambda: Migration(source="Old", target=users().target, capture="delta", otherwise=DROP),
        "otherwise",
        "leave it out",
    ),
    "a kind that takes all rows": (
        lambda: migration(users(rows.every()), otherwise=DROP),
        "otherwise",
        "leave it out",
    ),
    "an empty reason": (lambda: rows.drop(reason=""), "rows.drop(reason)", "at least one character"),
    "a blank reason": (lambda: rows.drop(reason="  "), "rows.drop(reason)", "write rows.drop"),
    "a reason of two lines": (lambda: rows.drop(reason="a\nb"), "rows.drop(reason)", "write rows.drop"),
    "a long reason": (lambda: rows.drop(reason="a" * 501), "rows.drop(reason)", "write rows.drop"),
    "a reason that is no text": (lambda: rows.drop(reason=1), "rows.drop(reason)", "a string"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("declare", "field", "cure"), BAD.values(), ids=BAD)
def test_what_cannot_be_meant_is_refused_with_field_and_cure(
    declare: Callable[[], Any], field: str, cure: str
) -> None:
    with pytest.raises(InvalidDeclaration) as refused:
        declare()
    assert refused.value.field == field
    assert cure in refused.value.cure


@pytest.mark.parametrize("with_indexes", [False, True])
def test_such_a_row_has_no_target_rows_and_its_neighbors_have_theirs(with_indexes: bool) -> None:
    kinds = DROPPING.kinds if with_indexes else [replace(kind, indexes=()) for kind in DROPPING.kinds]
    mapper = Mapper(replace(DROPPING, target=None, indexes=(), kinds=kinds), {"users": SECRET})
    page = [ticket("1"), ticket("2", "draft"), ticket("3", "closed"), ticket("4", "")]
    refused: list[Row] = []
    by_row = {
        row["RowKey"]: len(mapped) for row, mapped in mapper.map_all(page, lambda row, _: refused.append(row))
    }
    assert by_row == {"1": 1 + with_indexes, "2": 0, "3": 1, "4": 0}
    [main, *_] = next(mapper.map_tables(page, lambda row, _: refused.append(row)))
    assert [row["RowKey"] for row in main.sources] == ["1", "3"]
    assert [row["RowKey"] for row in main.rows] == ["open:1", "closed:3"]
    assert refused == []
    assert [mapper.is_dropped(row) for row in page] == [False, True, False, True]


def test_where_a_key_says_it_no_row_is_read() -> None:
    mapper = Mapper(migration(users(), otherwise=DROP), {})
    assert mapper.target_keys(EntityKey("p", "x")) == []
    assert mapper.target_keys(EntityKey("p", "U_1")) == [(0, ("p", "U_1"))]


def test_without_it_such_a_row_is_refused_and_the_cure_names_it() -> None:
    mapper = Mapper(replace(TICKETS, target=None, indexes=(), kinds=[TICKETS.kinds[0]]), {})
    assert not mapper.is_dropped(ticket("1"))
    with pytest.raises(RowRefused) as refused:
        mapper.map(ticket("1"))
    assert "otherwise=rows.drop" in refused.value.cure


def test_a_target_row_whose_source_row_would_be_of_no_kind_does_not_come_back() -> None:
    mapper = Mapper(DROPPING, {})
    main = {**mapper.map(ticket("1"))[0].row, "Status": "draft"}
    assert "gives no row" in str(lost(mapper, mapper.reverse(main, EntityKey("eu", "1"), None), main))


def test_no_row_of_the_main_target_is_dropped_when_its_index_rows_are_compared() -> None:
    assert not MainRows(Mapper(DROPPING, {})).is_dropped({"PartitionKey": "eu", "RowKey": "open:1"})


@pytest.mark.parametrize("status", ["open", "closed", "draft"])
def test_the_properties_that_tell_kinds_are_enough_to_tell_dropped_rows(status: str) -> None:
    """Copies and counts select these alone."""
    mapper, row = Mapper(DROPPING, {"users": SECRET}), ticket("1", status)
    selected = {name: value for name, value in row.items() if name in mapper.kind_inputs}
    assert "Owner" not in selected
    assert mapper.is_dropped(selected) == mapper.is_dropped(row) == (status == "draft")
    assert mapper.kind_of(selected) == mapper.kind_of(row)
