"""What a script says beside keys: checked, in words that help, and part of the digest only when said."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from rekey import query
from rekey.declaration.keys.base import InvalidDeclaration
from tests.worlds.advice import migration
from tests.worlds.small import USERS


def test_a_script_that_says_none_of_it_keeps_its_canonical_form() -> None:
    plain = json.loads(USERS.canonical_json())
    assert not {"queries", "load", "waive"} & set(plain)
    assert replace(USERS, queries=[], load={}, waive={}).digest() == USERS.digest()


def test_what_is_said_is_part_of_the_digest_whatever_its_order() -> None:
    said = migration(
        queries=[query.latest(20, by="At", within=["B", "A"]), query.point("RowKey")],
        load={"writes_per_second": 5, "rows": 10},
        waive={"table-name": "the name is meant", "fan-out": "few writes"},
    )
    assert said.canonical()["queries"] == [
        {"query": "latest", "known": ["A", "B"], "by": "At", "rows": 20},
        {"query": "point", "known": ["RowKey"], "by": None, "rows": 1},
    ]
    turned = replace(
        said,
        queries=[query.latest(20, by="At", within=["A", "B"]), query.point("RowKey")],
        load={"rows": 10, "writes_per_second": 5},
        waive={"fan-out": "few writes", "table-name": "the name is meant"},
    )
    assert turned.digest() == said.digest() != migration().digest()
    assert hash(turned) == hash(said)
    other = {"table-name": "the name is meant", "fan-out": "another reason"}
    assert replace(said, waive=other).digest() != said.digest()


@pytest.mark.parametrize(
    ("more", "field", "cure"),
    [
        ({"queries": query.point("A")}, "queries", "queries=[query.point"),
        ({"queries": ["point"]}, "queries", "query.point("),
        ({"load": 500}, "load", 'load={"writes_per_second"'),
        ({"load": {"writes": 5}}, "load", "writes_per_second"),
        ({"load": {"rows": 0}}, "load[rows]", "long run"),
        ({"load": {"rows": True}}, "load[rows]", "long run"),
        ({"load": {"rows": float("inf")}}, "load[rows]", "long run"),
        ({"waive": ["fan-out"]}, "waive", "waive={"),
        ({"waive": {"fanout": "x"}}, "waive", "did you mean fan-out?"),
        ({"waive": {"fan-out": " "}}, "waive[fan-out]", "why"),
    ],
)
def test_what_cannot_be_is_refused_with_field_and_cure(more: dict[str, Any], field: str, cure: str) -> None:
    with pytest.raises(InvalidDeclaration) as refused:
        migration(**more)
    assert refused.value.field == field
    assert cure in refused.value.cure


@pytest.mark.parametrize(
    "make",
    [
        lambda: query.point(),
        lambda: query.point(""),
        lambda: query.range(""),
        lambda: query.range("A", rows=0),
        lambda: query.latest(0),
        lambda: query.latest("20"),
        lambda: query.latest(5, within=[7]),
    ],
)
def test_queries_that_ask_for_nothing_are_refused(make: Any) -> None:
    with pytest.raises(InvalidDeclaration):
        make()


def test_queries_describe_themselves() -> None:
    assert query.point("B", "A").describe() == "point(A, B)"
    assert query.range("At", within="Device").describe() == "range(At, within Device)"
    assert query.latest(5).describe() == "latest(5)"
