"""Key expressions on pieces of text: split, part, regex."""

from __future__ import annotations

import pytest

from rekey import keys
from rekey.declaration.keys import InvalidDeclaration, Split
from rekey.declaration.keys.base import Scope
from rekey.errors import RowRefused
from tests.asserts.expression_values import evaluate, refused


def items(split: Split, **properties: object) -> list[str]:
    row = {"PartitionKey": "p", "RowKey": "r", **properties}
    return split.compile(Scope("index[X].each", {}))(row)


def test_split_strips_items_and_leaves_blanks_and_repeats_out() -> None:
    assert items(keys.split("Tags", ","), Tags=" b, a,, b ,\t,c") == ["b", "a", "c"]
    assert items(keys.split("Tags", ","), Tags="") == []
    assert items(keys.split(keys.lower("Tags"), "; "), Tags="A; B; a") == ["a", "b"]


def test_split_refuses_a_missing_property_unless_it_has_a_default() -> None:
    with pytest.raises(RowRefused) as caught:
        items(keys.split("Tags", ","))
    assert caught.value.code == "missing-property"
    assert 'default=""' in caught.value.hint
    assert items(keys.split("Tags", ",", default="")) == []
    assert items(keys.split("Tags", ",", default="none")) == ["none"]


def test_a_default_goes_with_a_property_name_only() -> None:
    with pytest.raises(InvalidDeclaration, match=r"keys\.split\(default\)"):
        keys.split(keys.prop("Tags"), ",", default="")


@pytest.mark.parametrize(("index", "text"), [(0, "a"), (1, ""), (2, "c"), (-1, "c"), (-3, "a")])
def test_part_counts_from_either_end(index: int, text: str) -> None:
    assert evaluate(keys.part("_", index, "A"), A="a__c") == text


@pytest.mark.parametrize("index", [3, -4])
def test_a_part_that_is_not_there_is_refused(index: int) -> None:
    assert refused(keys.part("_", index, "A"), A="a__c").code == "no-match"


def test_regex_gives_a_group_by_number_or_name() -> None:
    pattern = r"(?P<device>[a-z]+)-(\d+)"
    assert evaluate(keys.regex(pattern, 0, "A"), A="x dev-17!") == "dev-17"
    assert evaluate(keys.regex(pattern, 2, "A"), A="x dev-17!") == "17"
    assert evaluate(keys.regex(pattern, "device", "A"), A="x dev-17!") == "dev"


def test_regex_refuses_what_does_not_match_and_groups_that_took_no_part() -> None:
    assert refused(keys.regex("(z+)", 1, "A"), A="secret").code == "no-match"
    assert refused(keys.regex("s(z)?", 1, "A"), A="secret").code == "no-match"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: keys.split("A", ""), "keys.split(separator)"),
        (lambda: keys.part("", 0, "A"), "keys.part(separator)"),
        (lambda: keys.part("_", "0", "A"), "keys.part(index)"),
        (lambda: keys.regex("(", 1, "A"), "keys.regex(pattern)"),
        (lambda: keys.regex("a", 1, "A"), "keys.regex(group)"),
        (lambda: keys.regex("(a)", "b", "A"), "keys.regex(group)"),
        (lambda: keys.regex("(a)", -1, "A"), "keys.regex(group)"),
    ],
)
def test_impossible_pieces_are_refused_when_they_are_made(make: object, field: str) -> None:
    with pytest.raises(InvalidDeclaration) as caught:
        make()  # type: ignore[operator]
    assert caught.value.field == field
