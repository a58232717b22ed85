"""Key expressions on text: properties, constants, joining, case, normal forms, slugs, padding."""

from __future__ import annotations

import pytest

from rekey import keys
from rekey.declaration.keys import InvalidDeclaration
from rekey.model import Row
from tests.asserts.expression_values import evaluate, refused


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        ({"A": "text"}, "text"),
        ({"A": ""}, ""),
        ({"A": "x", "A@odata.type": "Edm.String"}, "x"),
        ({"A": 5}, "5"),
        ({"A": True}, "true"),
        ({"A": 1.5}, "1.5"),
        ({"A": 3.0}, "3.0"),
        ({"A": "NaN", "A@odata.type": "Edm.Double"}, "NaN"),
        ({"A": "9223372036854775807", "A@odata.type": "Edm.Int64"}, "9223372036854775807"),
        ({"A": "2024-01-02T03:04:05Z", "A@odata.type": "Edm.DateTime"}, "2024-01-02T03:04:05.0000000Z"),
        (
            {"A": "2024-01-02T03:04:05.1234567Z", "A@odata.type": "Edm.DateTime"},
            "2024-01-02T03:04:05.1234567Z",
        ),
        (
            {"A": "0F9A0A2B-5E4B-4C1E-9C0A-0123456789aB", "A@odata.type": "Edm.Guid"},
            "0F9A0A2B-5E4B-4C1E-9C0A-0123456789aB",
        ),
        ({"A": "AAEC", "A@odata.type": "Edm.Binary"}, "AAEC"),
    ],
)
def test_prop_yields_the_canonical_text_of_every_edm_type(wire: Row, text: str) -> None:
    assert evaluate(keys.prop("A"), wire) == text


def test_prop_reads_keys_and_timestamp() -> None:
    assert evaluate(keys.prop("PartitionKey") + keys.prop("RowKey")) == "pr"
    assert (
        evaluate(keys.prop("Timestamp"), Timestamp="2024-01-02T03:04:05.5Z") == "2024-01-02T03:04:05.5000000Z"
    )


def test_a_missing_property_is_refused_and_the_cure_is_a_default() -> None:
    refusal = refused(keys.prop("A"))
    assert refusal.code == "missing-property"
    assert 'keys.prop("A", default=' in refusal.hint
    assert evaluate(keys.prop("A", default="none")) == "none"
    assert evaluate(keys.prop("A", default="none"), A="") == "", "an empty property is not a missing one"
    assert refused(keys.prop("A"), {"A": None}).code == "missing-property"


def test_a_missing_timestamp_is_cured_by_reading_the_row() -> None:
    assert "read the row" in refused(keys.prop("Timestamp")).hint


def test_join_and_plus_compose() -> None:
    row = {"A": "a", "B": "b", "C": "c"}
    a, b, c = (keys.prop(name) for name in "ABC")
    assert evaluate(keys.join("_", a, b, c), row) == "a_b_c"
    assert evaluate(keys.join("_", a, b), row) == "a_b"
    assert evaluate(keys.join("_", a), row) == "a"
    assert evaluate(a + keys.literal("/") + b + c, row) == "a/bc"
    assert (a + b) + c == a + (b + c), "grouping does not change the declaration"
    assert (a + b + c).as_json()["op"] == "concat"


def test_item_is_the_index_item() -> None:
    assert evaluate(keys.upper(keys.item()), item="tag") == "TAG"


def test_case_and_white_space() -> None:
    assert evaluate(keys.lower("A"), A="ÀB") == "àb"
    assert evaluate(keys.upper("A"), A="straße") == "STRASSE"
    assert evaluate(keys.strip("A"), A="\u00a0 a b\t") == "a b"


@pytest.mark.parametrize(
    ("profile", "text", "expected"),
    [
        ("nfc", "e\u0301", "é"),
        ("nfc", "ﬁ", "ﬁ"),
        ("nfkc", "ﬁ", "fi"),
        ("nfkc", "Ａ", "A"),
        ("casefold", "Straße", "strasse"),
        ("casefold", "E\u0301", "é"),
        ("casefold", " A ", " a "),
        ("email", "  Ann.B+tag@Example.ORG ", "ann.b+tag@example.org"),
    ],
)
def test_each_normalization_profile_does_what_it_documents(profile: str, text: str, expected: str) -> None:
    once = evaluate(keys.normalize(profile, "A"), A=text)
    assert once == expected
    assert evaluate(keys.normalize(profile, "A"), A=once) == once, "a normal form is stable"


@pytest.mark.parametrize(
    ("text", "slug"),
    [("Éclairs & Co.", "eclairs-co"), ("C#", "c"), ("  --a__b--", "a-b"), ("x", "x"), ("2024/03", "2024-03")],
)
def test_slug(text: str, slug: str) -> None:
    assert evaluate(keys.slug("A"), A=text) == slug


def test_a_slug_of_nothing_is_refused() -> None:
    assert refused(keys.slug("A"), A="日本").code == "empty-key"


def test_zero_pad_makes_numbers_sort_as_text() -> None:
    assert evaluate(keys.zero_pad(5, "A"), A=42) == "00042"
    assert evaluate(keys.zero_pad(5, "A"), {"A": "42", "A@odata.type": "Edm.Int64"}) == "00042"
    assert evaluate(keys.zero_pad(2, "A"), A=42) == "42"


@pytest.mark.parametrize("value", [-4211, 1234.5, "12a", "٣٣", ""])
def test_zero_pad_refuses_what_is_no_whole_number(value: object) -> None:
    assert refused(keys.zero_pad(9, "A"), A=value).code == "not-a-number"


def test_zero_pad_refuses_numbers_that_are_too_long() -> None:
    assert refused(keys.zero_pad(3, "A"), A=4211).code == "out-of-range"


@pytest.mark.parametrize(
    "make",
    [
        lambda: keys.prop(""),
        lambda: keys.prop("A@odata.type"),
        lambda: keys.prop("odata.etag"),
        lambda: keys.prop("RowKey", default="x"),
        lambda: keys.prop(3),
        lambda: keys.literal(3),
        lambda: keys.literal("\ud800"),
        lambda: keys.join("_"),
        lambda: keys.join("_", "A"),
        lambda: keys.join(1, keys.prop("A")),
        lambda: keys.prop("A") + "x",
        lambda: "x" + keys.prop("A"),
        lambda: keys.lower(3),
        lambda: keys.normalize("nope", "A"),
        lambda: keys.zero_pad(0, "A"),
        lambda: keys.zero_pad("3", "A"),
        lambda: keys.zero_pad(True, "A"),
        lambda: keys.zero_pad(1025, "A"),
    ],
)
def test_impossible_expressions_are_refused_when_they_are_made(make: object) -> None:
    with pytest.raises(InvalidDeclaration) as caught:
        make()  # type: ignore[operator]
    assert caught.value.field
    assert caught.value.problem
    assert caught.value.cure


def test_a_string_where_an_expression_must_stand_names_both_cures() -> None:
    with pytest.raises(InvalidDeclaration, match=r"keys\.literal.*keys\.prop"):
        keys.prop("A") + "x"  # type: ignore[operator]


def test_a_string_that_is_joined_is_the_name_of_a_property() -> None:
    assert keys.join("_", "A", keys.literal("x")) == keys.join("_", keys.prop("A"), keys.literal("x"))


@pytest.mark.parametrize("parts", [("A", "B"), ("PartitionKey", "RowKey", "A"), ("RowKey", "_", "A")])
def test_a_join_whose_separator_was_forgotten_is_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(InvalidDeclaration, match="is taken for the separator; write the separator first"):
        keys.join(*parts)


def test_expressions_describe_themselves() -> None:
    described = {
        keys.prop("A"): "A",
        keys.prop("A", default="x"): 'A or "x"',
        keys.literal("é"): '"é"',
        keys.prop("A") + keys.item(): "A + item",
        keys.join("_", keys.prop("A"), keys.prop("B")): 'join("_", A, B)',
        keys.lower("A"): "lower(A)",
        keys.upper("A"): "upper(A)",
        keys.strip("A"): "strip(A)",
        keys.normalize("nfc", "A"): "normalize(nfc, A)",
        keys.slug("A"): "slug(A)",
        keys.zero_pad(3, "A"): "zero_pad(3, A)",
        keys.part("_", 1, "A"): 'part("_", 1, A)',
        keys.regex("(x)", 1, "A"): 'regex("(x)", 1, A)',
        keys.date("yyyy", "A"): "date(yyyy, A)",
        keys.ticks("A"): "ticks(A)",
        keys.inverted_ticks("A"): "inverted_ticks(A)",
        keys.inverted_seconds(9, "A"): "inverted_seconds(9, A)",
        keys.bucket(4, "crc32", "A"): "bucket(4, crc32, A)",
        keys.hashed("md5", "A"): "hashed(md5, A)",
        keys.opaque("RowKey", domain="user", secret="s"): "opaque(RowKey, domain=user)",
    }
    for expression, text in described.items():
        assert expression.describe() == text
    assert keys.split("A", ",").describe() == 'split(A, ",")'


def test_expressions_know_what_they_read() -> None:
    made = keys.join("_", keys.opaque("A", keys.lower("B"), domain="d", secret="s"), keys.literal("x"))
    assert made.inputs() == {"A", "B"}
    assert keys.item().inputs() == frozenset()
