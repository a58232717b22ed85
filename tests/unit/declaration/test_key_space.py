"""Key spaces: which rows are in a part, by ranges and by test alike, and the conditions that name no part."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekey import Index, Migration, RowKind, Target, keys, props, rows
from rekey.core.key_order import MOST_UNITS, first_above, first_after, last_below
from rekey.core.key_space import KeySpace
from rekey.declaration.key_space import key_space_of
from rekey.declaration.keys.base import Expression, InvalidDeclaration
from rekey.declaration.mapper import Mapper
from rekey.declaration.rows import Condition
from rekey.errors import RowRefused
from rekey.model import EVERYTHING, LAST_ROW, EntityKey, KeyRange, key_of, utf16_order
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


# --- tables that others fill too ----------------------------------------------------------------------------


def expressions() -> st.SearchStrategy[Expression | str]:
    literal = st.builds(keys.literal, some_text)
    part = st.one_of(literal, st.sampled_from(["PartitionKey", "RowKey"]), st.just(keys.lower("RowKey")))
    joined = st.builds(lambda parts: keys.join("_", *parts), st.lists(part, min_size=2, max_size=3))
    return st.one_of(literal, joined, st.sampled_from([keys.prop("PartitionKey"), keys.prop("RowKey")]))


@given(key_conditions(), expressions(), expressions(), st.lists(entity_keys, max_size=20))
def test_every_row_that_a_migration_writes_is_in_its_key_space_of_the_table(
    condition: Condition, partition: Expression, row: Expression, candidates: list[EntityKey]
) -> None:
    target = Target("All", partition_key=partition, row_key=row, shared=True, allow_empty=True)
    try:
        migration = Migration("Old", target, where=condition, capture="delta", reverse=False)
    except InvalidDeclaration:
        return
    space, map_row = migration.key_spaces["All"], Mapper(migration, {}).map
    for key in filter(migration.has, candidates):
        try:
            [mapped] = map_row({"PartitionKey": key.partition, "RowKey": key.row})
        except RowRefused:
            continue
        written = key_of(mapped.row)
        assert written in space
        assert [each for each in space.ranges if written in each]


REGION = {"row_key": keys.keep(), "properties": [props.copy("PartitionKey", to="Old")], "shared": True}


def region(name: str, source: str = "", **more: Any) -> Migration:
    partition = keys.literal(f"{name}_") + keys.prop("PartitionKey")
    return Migration(
        source or f"Orders{name}",
        Target("Orders", **{"partition_key": partition, **REGION}),
        capture="delta",
        **more,
    )


def test_a_part_of_a_table_keeps_its_exact_partition_key() -> None:
    """So "t1" and "t10" are apart though one begins with the other."""

    def space(tenant: str, partition: Any) -> KeySpace:
        target = Target("All", **{"partition_key": partition, **REGION})
        where = rows.partition_key(equals=tenant)
        return Migration("Old", target, where=where, capture="delta").key_spaces["All"]

    kept, joined = keys.keep(), keys.join("_", "PartitionKey", "RowKey")
    for partition in (kept, joined):
        assert space("t1", partition).is_apart_from(space("t10", partition))
    assert EntityKey("t1", "any") in space("t1", kept)
    assert EntityKey("t10", "any") not in space("t1", kept)
    assert EntityKey("t1_x", "any") in space("t1", joined)


def test_indexes_in_the_table_are_in_its_key_space() -> None:
    index = Index(
        "Orders", partition_key=keys.literal("DE_mail"), row_key=keys.literal("M:") + keys.prop("Mail")
    )
    target = Target(
        "Orders",
        **{
            **REGION,
            "partition_key": keys.literal("DE"),
            "row_key": keys.literal("O:") + keys.prop("RowKey"),
        },
    )
    space = Migration("OrdersDE", target, [index], capture="delta", reverse=False).key_spaces["Orders"]
    assert EntityKey("DE", "O:1") in space
    assert EntityKey("DE_mail", "M:a") in space
    assert EntityKey("DE_mail", "O:a") not in space
    assert EntityKey("DE_x", "O:1") not in space


def test_what_a_kind_takes_tells_its_rows_from_those_of_others() -> None:
    kinds = [
        RowKind(
            name,
            when=rows.partition_key(prefix=f"{name}_"),
            target=Target("All", partition_key=keys.keep(), row_key=keys.literal(name), shared=True),
        )
        for name in ("user", "role")
    ]
    space = Migration("Old", kinds=kinds, capture="delta", reverse=False).key_spaces["All"]
    assert EntityKey("user_1", "user") in space
    assert EntityKey("other_1", "user") not in space
    assert len(space.ranges) == 2


def test_only_a_shared_table_has_a_key_space() -> None:
    assert "key_spaces" not in region("DE").canonical()
    alone = Migration(
        "Old",
        Target("New", partition_key=keys.literal("a"), row_key=keys.keep()),
        capture="delta",
        reverse=False,
    )
    assert alone.key_spaces == {}
    assert "shared" not in alone.canonical_json()
    assert '"shared":true' in region("DE").canonical_json()
