"""Row digests: equal exactly when key, names, EDM types and canonical texts are equal."""

import json
from collections.abc import Set
from hashlib import blake2b
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from rekey.core.edm import canonical_content
from rekey.model import Row
from rekey.verify.digest import BUCKETS, Digester, bucket_of, buckets_of, content_digest, message

TYPES = ["Edm.String", "Edm.Int32", "Edm.Int64", "Edm.Double", "Edm.DateTime", "Edm.Guid", "Edm.Binary"]

CANONICAL_DATETIMES = ["2024-01-02T03:04:05.1234567Z", "9999-12-31T23:59:59.9999999Z"]
DATETIMES = st.sampled_from(
    [
        "2024-01-02T03:04:05Z",
        "2024-01-02T03:04:05.0Z",
        "2024-01-02T03:04:05.0000000Z",
        "2024-01-02T03:04:05.0000001Z",
        "2024-01-02T03:04:05.1Z",
        "2024-01-02T03:04:05.10Z",
        "1601-01-01T00:00:00Z",
        "2024-01-02T03:04:05.123456",
        "2024-01-02T03:04:05.12345678",
        "a28-character-text.without-Z",
    ]
)
TYPED = st.one_of(
    st.tuples(st.just("Edm.Int64"), st.integers(-(2**63), 2**63 - 1).map(str)),
    st.tuples(st.just("Edm.Int64"), st.sampled_from(["5", "05", "-0", "0", "+7"])),
    st.tuples(st.just("Edm.Int64"), st.sampled_from([5, 5.0, True])),
    st.tuples(st.just("Edm.DateTime"), DATETIMES),
    st.tuples(st.just("Edm.Double"), st.sampled_from(["NaN", "Infinity", "-Infinity", "3.0", 3, 3.0])),
    st.tuples(st.just("Edm.Guid"), st.sampled_from(["a0B1", "A0B1"])),
    st.tuples(st.just("Edm.Binary"), st.sampled_from(["", "AA==", "5"])),
    st.tuples(st.just("Edm.String"), st.sampled_from(["", "5", "true", "3.0"])),
    st.tuples(st.just("Edm.Boolean"), st.sampled_from([True, False, "true", "True"])),
    st.tuples(st.just("Edm.Int32"), st.sampled_from([5, "5", 3, 1])),
)
TEXTS = st.one_of(st.text(max_size=8), st.just("\ud800"))
# Values of one type each.
KINDS = [
    st.tuples(
        st.just("Edm.Int64"), st.sampled_from(["5", "10", "05", "-0", "0", "+7", " 7", "1_0", "\u0667"])
    ),
    st.tuples(st.just("Edm.Int64"), st.integers(1, 2**63 - 1).map(str)),
    st.tuples(st.just("Edm.DateTime"), DATETIMES),
    st.tuples(st.just("Edm.DateTime"), st.sampled_from(CANONICAL_DATETIMES)),
    st.tuples(st.just("Edm.Guid"), st.sampled_from(["a0B1", "A0B1"])),
    st.tuples(st.none(), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.none(), st.booleans()),
    st.tuples(st.none(), st.floats()),
    st.tuples(st.none(), TEXTS),
    st.tuples(st.none(), st.none()),
]
PLAIN = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["5", "3", "3.0", "true", "NaN", "\ud800", "é", "e\u0301", "😀"]),
    st.sampled_from([3, 3.0, 1, True, 0, False, -0.0, 0.0, 5, 5e-324, 1e400, -1e400, float("nan")]),
    st.integers(-(2**31), 2**31 - 1),
    st.floats(),
).map(lambda value: (None, value))


def row_of(key: tuple[str, str], properties: dict[str, tuple[str | None, Any]]) -> Row:
    row: Row = {"PartitionKey": key[0], "RowKey": key[1], "odata.etag": "x", "Timestamp": "now"}
    for name, (annotation, value) in properties.items():
        if annotation is not None:
            row[f"{name}@odata.type"] = annotation
        row[name] = value
    return row


ROWS = st.builds(
    row_of,
    st.tuples(st.sampled_from(["", "p", "q"]), st.sampled_from(["", "r", "pr"])),
    st.dictionaries(
        st.sampled_from(["A", "a", "B", "Ab", "Ä", "odata"]), st.one_of(PLAIN, TYPED), max_size=3
    ),
)


def digest_of(row: Row, table: str = "T") -> bytes:
    [digest] = Digester(table).digests([row])
    return digest


def defined(row: Row, without: Set[str] = frozenset()) -> bytes:
    return blake2b(message("T", row, without), digest_size=16).digest()


def identity(row: Row) -> Any:
    return row["PartitionKey"], row["RowKey"], canonical_content(row)


def pair(first: tuple[str | None, Any], second: tuple[str | None, Any]) -> tuple[Row, Row]:
    return row_of(("p", "r"), {"A": first}), row_of(("p", "r"), {"A": second})


@given(st.tuples(ROWS, ROWS))
@example(pair((None, 3.0), (None, 3)))
@example(pair((None, True), (None, 1)))
@example(pair((None, float("nan")), (None, float("nan"))))
@example(pair((None, float("nan")), ("Edm.Double", "NaN")))
@example(pair((None, 5), ("Edm.Int64", "5")))
@example(pair((None, "5"), ("Edm.Int64", "5")))
@example(pair((None, -0.0), (None, 0.0)))
@example(
    pair(("Edm.DateTime", "2024-01-02T03:04:05.1234567Z"), ("Edm.DateTime", "2024-01-02T03:04:05.1234568Z"))
)
@example(pair(("Edm.DateTime", "2024-01-02T03:04:05.1Z"), ("Edm.DateTime", "2024-01-02T03:04:05.1000000Z")))
@example(pair(("Edm.DateTime", "2024-01-02T03:04:05Z"), ("Edm.DateTime", "2024-01-02T03:04:05.0000000Z")))
@example(pair(("Edm.DateTime", "2024-01-02T03:04:05Z"), (None, "2024-01-02T03:04:05Z")))
@example(pair((None, "é"), (None, "e\u0301")))
def test_digests_are_equal_exactly_when_canonical_contents_are(rows: tuple[Row, Row]) -> None:
    one, other = Digester("T").digests(rows)
    assert (one == other) == (identity(rows[0]) == identity(rows[1]))


# Rows as the service sends them: mostly of one shape, each property of one type.
ALIKE = st.dictionaries(
    st.sampled_from(["A", "a", "B", "Ab", "Ä"]), st.sampled_from([PLAIN, TYPED, *KINDS]), max_size=4
).flatmap(
    lambda kinds: st.lists(
        st.builds(row_of, st.tuples(st.text(max_size=2), st.text(max_size=3)), st.fixed_dictionaries(kinds)),
        max_size=5,
    )
)


@given(st.one_of(ALIKE, st.lists(ROWS, max_size=5)), st.sampled_from([set(), {"A"}, {"A", "a", "B"}]))
def test_digests_of_pages_are_the_defined_ones(rows: list[Row], without: set[str]) -> None:
    """An auditor computes BLAKE2b over each row's message: a page gives the same, in its rows' order."""
    assert Digester("T", without).digests(rows) == [defined(row, without) for row in rows]


def test_rows_of_another_shape_are_told_apart_although_they_have_as_many_fields() -> None:
    """A row without an ETag has room for a property that the rows before it do not have."""
    one = row_of(("p", "r"), {"A": (None, "x")})
    other = row_of(("p", "s"), {"A": (None, "x"), "B": (None, "y")})
    del other["odata.etag"]
    assert len(one) == len(other)
    assert Digester("T").digests([one, other]) == [defined(one), defined(other)]
    assert Digester("T").digests([other, one]) == [defined(other), defined(one)]


def test_the_message_is_the_documented_json() -> None:
    """The message can be written by hand: JSON array, sorted names, EDM type and canonical text."""
    row = row_of(
        ("p", 'r"'), {"b": (None, 3), "A": (None, 3.0), "a": ("Edm.DateTime", "2024-01-02T03:04:05Z")}
    )
    expected = (
        '["T","p","r\\"","A","Edm.Double","3.0","a","Edm.DateTime","2024-01-02T03:04:05.0000000Z",'
        '"b","Edm.Int32","3"]'
    )
    assert message("T", row) == expected.encode()
    assert json.loads(expected)[2] == 'r"'


def test_a_digest_known_from_outside() -> None:
    """The digest of a fixed row never changes between versions (computed with `b2sum -l 128`)."""
    row = row_of(("p", "r"), {"Name": (None, "Zoë")})
    assert digest_of(row).hex() == "cfa334004698803f475c34f34bcd66b2"


def test_lone_surrogates_are_hashed_and_not_refused() -> None:
    """The service's JSON may carry a lone surrogate: rows that differ in it differ."""
    one, other = pair((None, "\ud800"), (None, "\ud801"))
    assert digest_of(one) != digest_of(other)
    assert digest_of(one) == defined(one)
    assert 0 <= bucket_of("\udfff", "r") < BUCKETS


def test_moving_a_boundary_changes_the_digest() -> None:
    """Key parts and texts are delimited: `a`+`bc` is not `ab`+`c`."""
    assert digest_of(row_of(("a", "bc"), {})) != digest_of(row_of(("ab", "c"), {}))
    assert digest_of(row_of(("a", "b"), {})) != digest_of(row_of(("a", "b"), {}), "U")


def test_wire_order_and_server_fields_do_not_matter() -> None:
    """Two reads of the same row at other times, with properties in another order, have one digest."""
    one = row_of(("p", "r"), {"A": (None, "x"), "B": ("Edm.Int64", "5")})
    other = dict(reversed(list(one.items()))) | {"odata.etag": "y", "Timestamp": "later"}
    assert digest_of(one) == digest_of(other)


def test_content_digest_leaves_out_the_key() -> None:
    """A row under another key has the same content digest."""
    properties = {"A": (None, "x")}
    assert content_digest(row_of(("p", "r"), properties)) == content_digest(row_of(("q", "s"), properties))


def test_rows_without_a_common_shape_have_the_defined_digests() -> None:
    """A page of which each row has other properties, or another type of one, or none of it."""
    rows = [row_of(("p", f"{number}"), {f"P{number % 3}": (None, number)}) for number in range(5)]
    rows += [row_of(("p", "t"), {"P1": (None, "1")}), row_of(("p", "u"), {"P1": ("Edm.Int64", "1")})]
    rows += [row_of(("p", "v"), {}), row_of(("p", "w"), {"P1": (None, None), "P2": (None, 2.5)})]
    assert Digester("T").digests(rows) == [defined(row) for row in rows]


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1))
def test_a_bucket_depends_on_the_key_alone(keys: list[tuple[str, str]]) -> None:
    """Buckets are in range and repeatable; those of a page are those of its keys."""
    for partition, row in keys:
        assert 0 <= bucket_of(partition, row) < BUCKETS
        assert bucket_of(partition, row) == bucket_of(partition, row)
    assert buckets_of([row_of(key, {}) for key in keys]) == [bucket_of(*key) for key in keys]
