"""Key spaces: which rows are in a part, by ranges and by test alike, and the conditions that name no part."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekey import Migration, Target, keys, rows
from rekey.core.key_order import MOST_UNITS, first_above, first_after, last_below
from rekey.declaration.key_space import key_space_of
from rekey.declaration.keys.base import InvalidDeclaration
from rekey.declaration.rows import Condition
from rekey.model import EVERYTHING, LAST_ROW, EntityKey, KeyRange, utf16_order
from rekey.tables.wire import range_filters

# On both sides of the surrogates, of control characters, and at the end of all.
texts = st.text(st.sampled_from("a'b ~\xa0\ud7ff\ue000\uff5e😀\U0010ffff\ufffe\uffff"), max_size=3)
entity_keys = st.builds(EntityKey, texts, texts)
some_text = texts.filter(bool)


def key_conditions() -> st.SearchStrategy[Condition]:
    making = st.sampled_from([rows.partition_key, rows.row_key])
    given_one = st.one_of(
        st.fixed_dictionaries({"prefix": some_text}),
        st.fixed_dictionaries({"equals": texts}),
        st.fixed_dictionaries({"one_of": st.lists(texts, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"at_least": texts}),
        st.fixed_dictionaries({"below": some_text}),
        st.just({"pattern": "a.*"}),
    )
    simple = st.builds(lambda make, asked: make(**asked), making, given_one)
    return st.recursive(
        simple,
        lambda inner: st.builds(
            lambda combine, of: combine(*of),
            st.sampled_from([rows.all_of, rows.any_of, rows.none_of]),
            st.lists(inner, min_size=1, max_size=3),
        ),
        max_leaves=6,
    )


@given(key_conditions(), st.lists(entity_keys, max_size=20))
def test_ranges_are_in_order_and_hold_every_key_of_the_part(
    condition: Condition, candidates: list[EntityKey]
) -> None:
    try:
        space = key_space_of(condition)
    except InvalidDeclaration as refused:
        problem = refused.problem
        assert problem in ("every row meets it", "no key meets it")
        test = condition.compile()
        met = [test({"PartitionKey": key.partition, "RowKey": key.row}) for key in candidates]
        assert set(met) <= {problem == "every row meets it"}
        return
    ends = [bound for each in space.ranges for bound in (each.after, each.upto)]
    assert None not in ends[1:-1]
    orders = [bound.order for bound in ends if bound is not None]
    assert orders == sorted(orders)
    for key in candidates:
        holding = [each for each in space.ranges if key in each]
        assert len(holding) <= 1
        assert bool(holding) or key not in space


@given(texts.filter(bool), st.lists(texts, max_size=12))
def test_no_text_is_between_a_text_and_the_last_one_below_it(text: str, candidates: list[str]) -> None:
    below = utf16_order(last_below(text))
    assert below < utf16_order(text)
    assert not [each for each in candidates if below < utf16_order(each) < utf16_order(text)]
    assert len(below) <= 2 * MOST_UNITS


@given(texts.filter(bool), st.lists(texts, max_size=12))
def test_texts_that_begin_with_another_end_before_the_first_after_it(
    prefix: str, candidates: list[str]
) -> None:
    end = first_after(prefix)
    for each in candidates:
        is_below = end is None or utf16_order(each) < utf16_order(end)
        assert each.startswith(prefix) == (utf16_order(prefix) <= utf16_order(each) and is_below)


def test_ends_of_key_ranges_are_queried_without_long_bounds() -> None:
    assert first_above(last_below("b")) == "b"
    assert first_above(LAST_ROW) is None
    assert first_above("a\uffff") is None


def filters(condition: Condition) -> list[list[str]]:
    return [range_filters(each) for each in key_space_of(condition).ranges]


def test_a_condition_becomes_as_few_queries_as_there_are_ranges() -> None:
    tenant = rows.partition_key(equals="t-b")
    assert filters(tenant) == [["PartitionKey eq 't-b'"]]
    assert filters(rows.partition_key(prefix="t-")) == [["PartitionKey ge 't-' and PartitionKey lt 't.'"]]
    assert filters(rows.partition_key(prefix="t~")) == [["PartitionKey ge 't~' and PartitionKey lt 't\xa0'"]]
    assert filters(rows.partition_key(at_least="a", below="c")) == [
        ["PartitionKey ge 'a' and PartitionKey lt 'c'"]
    ]
    assert filters(rows.partition_key(below="c")) == [["PartitionKey lt 'c'"]]
    assert filters(rows.partition_key(one_of=["b", "a", "b"])) == [
        ["PartitionKey eq 'a'"],
        ["PartitionKey eq 'b'"],
    ]
    assert filters(rows.all_of(tenant, rows.row_key(prefix="U_"))) == [
        ["PartitionKey eq 't-b' and RowKey ge 'U_' and RowKey lt 'U`'"]
    ]
    assert filters(rows.none_of(tenant)) == [["PartitionKey lt 't-b'"], ["PartitionKey gt 't-b'"]]
    assert filters(rows.row_key(prefix="U_")) == [[""]]
    assert filters(rows.partition_key(equals="")) == [["PartitionKey le ''"]]
    either = rows.any_of(
        rows.all_of(rows.partition_key(equals="a"), rows.row_key(equals="1")),
        rows.all_of(rows.partition_key(equals="b"), rows.row_key(below="2")),
    )
    assert filters(either) == [
        ["PartitionKey eq 'a' and RowKey ge '1' and RowKey le '1'"],
        ["PartitionKey eq 'b' and RowKey lt '2'"],
    ]


def test_a_range_is_cut_to_the_part() -> None:
    space = key_space_of(rows.partition_key(one_of=["a", "c"]))
    assert list(space.within(EVERYTHING)) == list(space.ranges)
    assert list(space.within(KeyRange(EntityKey("a", LAST_ROW), EntityKey("b", "")))) == []
    [cut] = space.within(KeyRange(EntityKey("a", "7"), EntityKey("b", "")))
    assert cut == KeyRange(EntityKey("a", "7"), EntityKey("a", LAST_ROW))


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        (rows.partition_key(equals="a"), rows.partition_key(equals="b"), True),
        (rows.partition_key(prefix="a"), rows.partition_key(equals="ab"), False),
        (rows.partition_key(below="b"), rows.partition_key(at_least="b"), True),
        (rows.partition_key(one_of=["a", "b"]), rows.partition_key(one_of=["c", "b"]), False),
        (rows.partition_key(equals="a"), rows.none_of(rows.partition_key(equals="a")), True),
        (rows.row_key(prefix="a"), rows.row_key(prefix="b"), False),  # true, and not proved
        (
            rows.all_of(rows.partition_key(equals="p"), rows.row_key(prefix="a")),
            rows.all_of(rows.partition_key(equals="p"), rows.row_key(prefix="b")),
            True,
        ),
    ],
    ids=range(7),
)
def test_parts_are_told_apart_by_their_ranges(first: Condition, second: Condition, apart: bool) -> None:
    spaces = key_space_of(first), key_space_of(second)
    assert spaces[0].is_apart_from(spaces[1]) is spaces[1].is_apart_from(spaces[0]) is apart


def part(where: Any, **more: Any) -> Migration:
    target = Target("OrdersV2", partition_key=keys.keep(), row_key=keys.keep())
    return Migration(source="Orders", target=target, capture="delta", where=where, **more)


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("t-b", "is not a condition"),
        ([rows.partition_key(equals="a")], "is not a condition"),
        (True, "is not a condition"),
        (rows.prop("Tenant", equals="b"), "reads Tenant"),
        (rows.all_of(rows.partition_key(equals="a"), rows.prop("Open")), "reads Open"),
        (rows.any_of(rows.partition_key(equals="a"), rows.prop("B"), rows.prop("A")), "reads A, B"),
        (rows.none_of(rows.prop("Closed", equals=True)), "reads Closed"),
        (rows.every(), "every row meets it"),
        (rows.partition_key(at_least=""), "every row meets it"),
        (rows.any_of(rows.partition_key(below="b"), rows.partition_key(at_least="b")), "every row"),
        (rows.none_of(rows.every()), "no key meets it"),
        (rows.all_of(rows.partition_key(equals="a"), rows.partition_key(equals="b")), "no key meets it"),
        (rows.partition_key(prefix="b", below="a"), "no key meets it"),
    ],
    ids=range(13),
)
def test_a_condition_that_names_no_part_is_refused_with_field_and_cure(where: Any, problem: str) -> None:
    with pytest.raises(InvalidDeclaration) as refused:
        part(where)
    assert refused.value.field == "where"
    assert problem in refused.value.problem
    assert refused.value.cure


def test_a_migration_of_the_whole_table_keeps_its_digest() -> None:
    whole = part(None)
    assert "where" not in whole.canonical()
    assert whole.key_space is None
    assert whole.has(EntityKey("any", ""))
    tenant = part(rows.partition_key(equals="t-b"))
    assert tenant.canonical()["where"] == {
        "op": "key",
        "name": "PartitionKey",
        "one_of": [{"type": "Edm.String", "value": "t-b"}],
    }
    assert tenant.digest() != whole.digest()
    assert tenant.has(EntityKey("t-b", ""))
    assert not tenant.has(EntityKey("t-bb", ""))
