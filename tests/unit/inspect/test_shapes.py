"""Shapes case by case: what has one, what only seems to, and what stands inside a longer key."""

from __future__ import annotations

import pytest

from rekey.inspect.shapes import Shape, is_card, is_national_id, luhn, shape_of, shapes_in


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("anna@mail.example", Shape.EMAIL),
        ("anna@localhost", None),
        ("3f2504e0-4f89-41d3-9a0c-0305e82c3301", Shape.GUID),
        ("{3F2504E0-4F89-41D3-9A0C-0305E82C3301}", Shape.GUID),
        ("2024-02-29", Shape.DATE),
        ("2023-02-29", None),
        ("2024-13", None),
        ("20240229T101500Z", Shape.DATE),
        ("31.12.2024", Shape.DATE),
        ("32.12.2024", None),
        ("2024-W05", Shape.DATE),
        ("0638400000000000000", Shape.TICKS),
        ("2516978975999999999", Shape.INVERTED_TICKS),
        ("1000000000000000000", Shape.NUMBER),
        ("4111111111111111", Shape.CARD),
        ("4111111111111112", Shape.NUMBER),
        ("4111 1111 1111 1111", Shape.CARD),
        ("0000000000000000", Shape.PADDED),
        ("007", Shape.PADDED),
        ("0", Shape.NUMBER),
        ("111", Shape.NUMBER),
        ("+44 20 7946 0018", Shape.PHONE),
        ("(555) 123-4567", Shape.PHONE),
        ("10.20.30.40", None),
        ("anna.mueller", Shape.NAME),
        ("report.pdf", None),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", Shape.SECRET),
        ("sv=2022-11-02&sig=abcdefghijklmnopqrst%3D", Shape.SECRET),
        ("3m9kq2w7x1c5v8b4n6j0hfgdstryzape", Shape.DIGEST),
        ("hello-big-world", Shape.SLUG),
        ("Vienna", None),
        ("", None),
        ("9" * 600, None),
    ],
)
def test_the_shape_of_a_whole_key(text: str, shape: Shape | None) -> None:
    assert shape_of(text) is shape


@pytest.mark.parametrize(
    ("key", "shapes"),
    [
        ("device-17_2024-03-05", {Shape.SLUG, Shape.DATE}),
        ("0638400000000000000-0000000009", {Shape.TICKS}),
        ("2516978975999999999_green-tea", {Shape.INVERTED_TICKS, Shape.SLUG}),
        ("tenant|anna@mail.example", {Shape.EMAIL}),
        ("order_4111111111111111", {Shape.CARD}),
        ("order_7", {Shape.NUMBER}),
        ("order7", set()),
        ("a/b", set()),
    ],
)
def test_a_key_of_parts_has_the_shapes_of_its_parts(key: str, shapes: set[Shape]) -> None:
    assert set(shapes_in(key)) == shapes


def test_check_digits_must_be_right() -> None:
    assert luhn("79927398713") and not luhn("79927398710")
    assert is_card("378282246310005") and not is_card("378282246310006")


@pytest.mark.parametrize(
    "text",
    [
        *("078-05-1120", "AB123456C", "12345678Z", "X1234567L", "255081416802538", "RSSMRA85T10A562S"),
        *("44051401359", "529.982.247-25", "811218-9876", "131052-308T", "110101-1111", "900101-1234567"),
        *("11010519491231002X", "756.9217.0769.85"),
    ],
)
def test_national_ids_of_thirteen_countries(text: str) -> None:
    """Examples of the authorities' own documents, or made by their rules; one changed digit is refused where
    there is a check digit."""
    assert is_national_id(text)


@pytest.mark.parametrize(
    "text",
    [
        *("000-12-3456", "12345678A", "255081416802539", "44051401358", "529.982.247-26", "811218-9877"),
        *("131052-308U", "991301-1234567", "110105194912310021", "756.9217.0769.84", "00000000000", "short"),
    ],
)
def test_numbers_that_only_look_like_national_ids(text: str) -> None:
    assert not is_national_id(text)
