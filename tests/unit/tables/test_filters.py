"""Filters of key ranges: three plain queries at most, not too long, and together exactly the range."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from rekey.core.key_order import last_below
from rekey.model import EVERYTHING, LAST_ROW, EntityKey, KeyRange, utf16_order
from rekey.tables.wire import MAX_ADDRESS_BYTES, both, escape, modified_filter, quoted, range_filters

_CONDITION = re.compile(r"(PartitionKey|RowKey) (eq|gt|ge|lt|le) '((?:[^']|'')*)'(?: and |$)")

# Few and nasty: quotes, words of the filter language, characters on both sides of the surrogates.
texts = st.text(st.sampled_from("a'b \uff5e😀"), max_size=3) | st.just("' or RowKey gt '")
keys = st.builds(EntityKey, texts, texts)
# The ends of parts of a table.
lasts = texts.filter(bool).map(last_below)
ends_of_parts = st.builds(EntityKey, lasts, st.just(LAST_ROW)) | st.builds(EntityKey, texts, lasts)
bounds = st.none() | keys | st.builds(EntityKey, texts, st.just(LAST_ROW)) | ends_of_parts
ranges = st.builds(KeyRange, bounds, bounds)

# Up to 512 UTF-16 units, most of them shared, with what is different at any place.
ends = st.text(st.sampled_from("0'漢😀\ufffd\uffff"), max_size=3)
long_texts = st.builds(
    lambda character, count, end: character * min(count, (512 - 6) // (1 + (character > "\uffff"))) + end,
    st.sampled_from("a'漢字😀\ufffd\uffff"),
    st.sampled_from([0, 1, 250, 507, 512]),
    ends,
)
long_keys = st.builds(EntityKey, long_texts, long_texts)
long_bounds = st.none() | long_keys | st.builds(EntityKey, long_texts, st.just(LAST_ROW))


def holds(condition: str, key: EntityKey) -> bool:
    """Evaluate a filter as the service does: every condition, by UTF-16 order."""
    result = True
    at = 0
    while at < len(condition):
        found = _CONDITION.match(condition, at)
        assert found is not None, condition
        name, operator, literal = found.groups()
        value = utf16_order(key.partition if name == "PartitionKey" else key.row)
        bound = utf16_order(literal.replace("''", "'"))
        result &= {
            "eq": value == bound,
            "gt": value > bound,
            "ge": value >= bound,
            "lt": value < bound,
            "le": value <= bound,
        }[operator]
        at = found.end()
    return result


@given(ranges, st.lists(keys, max_size=12))
def test_range_queries_are_disjoint_and_complete(within: KeyRange, candidates: list[EntityKey]) -> None:
    candidates += [bound for bound in (within.after, within.upto) if bound is not None]
    distinct = sorted(set(candidates), key=lambda key: key.order)
    filters = range_filters(within)
    assert len(filters) <= 3
    found = [key for one in filters for key in distinct if holds(one, key)]
    assert found == [key for key in distinct if key in within]


@given(st.builds(KeyRange, long_bounds, long_bounds), st.lists(long_keys, max_size=12))
def test_queries_of_long_keys_fit_an_address(within: KeyRange, candidates: list[EntityKey]) -> None:
    candidates += [bound for bound in (within.after, within.upto) if bound is not None]
    distinct = sorted(set(candidates), key=lambda key: key.order)
    filters = range_filters(within)
    # Path, selection and a Timestamp filter come on top.
    assert max((len(escape(one)) for one in filters), default=0) + 512 <= MAX_ADDRESS_BYTES
    found = [key for one in filters for key in distinct if holds(one, key)]
    assert found == sorted(set(found), key=lambda key: key.order)
    assert [key for key in found if within.upto is None or key.order <= within.upto.order] == [
        key for key in distinct if key in within
    ]


def test_an_upper_bound_is_shortened_only_where_it_must_be() -> None:
    """To something that sorts no lower, by whole characters; where there is no room it is left out."""
    partition, low, high = "漢" * 500, "a", "😀" * 250
    [one] = range_filters(KeyRange(EntityKey(partition, low), EntityKey(partition, high)))
    begin, _, bound = one.rpartition(" and RowKey le ")
    assert begin == f"PartitionKey eq '{partition}' and RowKey gt 'a'"
    assert high.startswith(bound[1:-2]) and bound[-2] == "\ufffd" and len(bound) > 150
    [one] = range_filters(KeyRange(EntityKey(partition, "漢" * 500), EntityKey(partition, "漢" * 501)))
    assert "RowKey le" not in one
    short = KeyRange(EntityKey("漢" * 200, "1"), EntityKey("漢" * 200, "漢" * 300))
    assert range_filters(short) == [
        f"PartitionKey eq '{'漢' * 200}' and RowKey gt '1' and RowKey le '{'漢' * 300}'"
    ]


def test_the_three_queries_are_contiguous_and_without_or() -> None:
    within = KeyRange(EntityKey("it's", "1"), EntityKey("q", "2"))
    assert range_filters(within) == [
        "PartitionKey eq 'it''s' and RowKey gt '1'",
        "PartitionKey gt 'it''s' and PartitionKey lt 'q'",
        "PartitionKey eq 'q' and RowKey le '2'",
    ]


def test_a_range_within_one_partition_is_one_query() -> None:
    within = KeyRange(EntityKey("p", "1"), EntityKey("p", "2"))
    assert range_filters(within) == ["PartitionKey eq 'p' and RowKey gt '1' and RowKey le '2'"]


def test_whole_partitions_are_one_query() -> None:
    after, upto = EntityKey("b", LAST_ROW), EntityKey("d", LAST_ROW)
    assert range_filters(KeyRange(after, upto)) == ["PartitionKey gt 'b' and PartitionKey le 'd'"]
    assert range_filters(KeyRange(after)) == ["PartitionKey gt 'b'"]
    assert range_filters(KeyRange(None, upto)) == ["PartitionKey le 'd'"]
    assert range_filters(KeyRange(EntityKey("d", "1"), upto)) == ["PartitionKey eq 'd' and RowKey gt '1'"]
    assert range_filters(KeyRange(after, EntityKey("b", LAST_ROW))) == []


def test_everything_has_no_filter_and_an_empty_range_no_query() -> None:
    assert range_filters(EVERYTHING) == [""]
    assert range_filters(KeyRange(EntityKey("b", ""), EntityKey("a", ""))) == []
    assert range_filters(KeyRange(EntityKey("b", ""), EntityKey("b", ""))) == []


def test_a_timestamp_filter_joins_a_range_filter() -> None:
    stamp = modified_filter("2024-01-01T00:00:00.1234567Z")
    assert stamp == "Timestamp ge datetime'2024-01-01T00:00:00.1234567Z'"
    assert both("A eq 1", stamp) == f"A eq 1 and {stamp}"
    assert both("", stamp) == stamp
    assert both("A eq 1", "") == "A eq 1"


def test_quotes_double() -> None:
    assert quoted("o''x'") == "'o''''x'''"
