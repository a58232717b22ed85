"""Mapping rows: any old key fits, both directions find it again, no id tells the key."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekey.core.crockford import ALPHABET
from rekey.core.safe_ids import SHORT_CHARACTERS, SafeIds, new_key
from rekey.errors import RowRefused
from rekey.mapping.rows import MappingRows, TargetKey
from rekey.model import ETAG, EntityKey, Row

KEY = bytes(range(32))
ROWS = MappingRows("0001_users", "Users", ["UsersV2", "UsersByTag"], SafeIds(KEY))
parts = st.text(max_size=40)
keys = st.builds(EntityKey, parts, parts)
target_keys = st.builds(TargetKey, st.integers(0, 1), parts, parts)


def as_read(row: Row) -> Row:
    return {**row, ETAG: 'W/"1"'}


@given(keys, st.frozensets(target_keys, max_size=8))
def test_a_forward_row_has_source_and_target_keys(source: EntityKey, targets: frozenset[TargetKey]) -> None:
    forward = ROWS.read_forward(as_read(ROWS.forward_row(source, targets)))
    assert forward.source == source
    assert forward.targets == targets


@given(keys, keys)
def test_a_reverse_row_gives_back_its_owner(source: EntityKey, target: EntityKey) -> None:
    row = as_read(ROWS.reverse_row(source, target))
    assert ROWS.read_owner(row).source == source == ROWS.read_source(row)
    assert (row["NewPartitionKey"], row["NewRowKey"]) == target


@given(st.dictionaries(keys, st.frozensets(target_keys, max_size=3), max_size=4))
def test_rows_of_copied_rows_are_those_that_each_would_have(
    copied: dict[EntityKey, frozenset[TargetKey]],
) -> None:
    assert list(ROWS.rows_of([*copied.items()])) == [
        (source, row)
        for source, targets in copied.items()
        for row in [
            ROWS.forward_row(source, targets),
            *(ROWS.reverse_row(source, target.key) for target in targets if target.table == 0),
        ]
    ]


@given(keys)
def test_row_keys_of_the_mapping_are_digests_whatever_the_old_key_is(source: EntityKey) -> None:
    partition, row = ROWS.forward_key(source)
    assert len(row) == 32
    assert set(row) <= set(ALPHABET)
    assert partition == f"0001_users.f.{row[0]}"
    assert partition in ROWS.partitions("f")


def test_a_lone_surrogate_in_a_key_survives() -> None:
    source = EntityKey("p", "\ud800")
    target = TargetKey(0, "p", "x\udfff")
    forward = ROWS.read_forward(as_read(ROWS.forward_row(source, [target])))
    assert (forward.source, forward.targets) == (source, {target})


def test_a_long_list_of_target_keys_is_spread_over_several_properties() -> None:
    targets = frozenset(TargetKey(1, "t" * 500, f"{number:04}" * 30) for number in range(200))
    row = ROWS.forward_row(EntityKey("p", "r"), targets)
    assert max(len(value) for value in row.values()) <= 32_000
    assert ROWS.read_forward(as_read(row)).targets == targets


def test_a_fan_out_that_one_row_cannot_list_is_refused_and_names_the_row_by_safe_id() -> None:
    targets = [TargetKey(1, "t" * 500, f"{number:04}" * 100) for number in range(700)]
    with pytest.raises(RowRefused) as refused:
        ROWS.forward_row(EntityKey("p", "someone@example.com"), targets)
    assert refused.value.row_id == ROWS.ids.short("Users", EntityKey("p", "someone@example.com"))
    assert "someone" not in str(refused.value)


@given(keys, keys)
def test_ids_differ_by_key_table_and_secret(one: EntityKey, other: EntityKey) -> None:
    ids = SafeIds(KEY)
    assert (ids.long("Users", one) == ids.long("Users", other)) == (one == other)
    assert ids.long("Users", one) != ids.long("UsersV2", one)
    assert ids.long("Users", one) != SafeIds(new_key()).long("Users", one)
    assert ids.long("Users", one).startswith(ids.short("Users", one))
    assert len(ids.short("Users", one)) == SHORT_CHARACTERS


def test_where_one_part_of_a_key_ends_counts() -> None:
    ids = SafeIds(KEY)
    assert ids.long("T", EntityKey("ab", "c")) != ids.long("T", EntityKey("a", "bc"))


def test_target_lists_are_plain_json_in_order() -> None:
    row = ROWS.forward_row(EntityKey("p", "r"), [TargetKey(1, "b", "x"), TargetKey(0, "a", "y")])
    assert json.loads(row["Targets0"]) == [[0, "a", "y"], [1, "b", "x"]]
