"""Values are compared by type and canonical text, whatever form the service keeps them in."""

from __future__ import annotations

import pytest

from rekey.core.edm import canonical_text, utc_text


@pytest.mark.parametrize(
    ("sent", "utc"),
    [
        ("2020-11-16T04:25:03Z", "2020-11-16T04:25:03Z"),
        ("2020-11-16T04:25:03.1234567Z", "2020-11-16T04:25:03.1234567Z"),
        ("2020-11-16T04:25:03", "2020-11-16T04:25:03Z"),
        ("2020-11-16T04:25:03-05:00", "2020-11-16T09:25:03Z"),
        ("2020-11-16T04:25:03.5+23:59", "2020-11-15T04:26:03.5Z"),
        ("2020-11-16T04:25Z", "2020-11-16T04:25:00Z"),
        ("2020-11-16T04:25+01:30", "2020-11-16T02:55:00Z"),
        ("2020-11-16T04:25", "2020-11-16T04:25:00Z"),
        ("2020-11-16", "2020-11-16T00:00:00Z"),
        ("2020-11-16Z", "2020-11-16T00:00:00Z"),
        ("1601-01-01T00:00:00+01:00", "1600-12-31T23:00:00Z"),
    ],
)
def test_every_documented_form_of_a_datetime_has_one_utc_text(sent: str, utc: str) -> None:
    assert utc_text(sent) == utc
    assert canonical_text("Edm.DateTime", sent) == canonical_text("Edm.DateTime", utc)


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "2020-13-01",
        "2020-11-16T24:00Z",
        "2020-11-16 04:25:03Z",
        "2020-11-16T04:25:03.12345678Z",
        "2020-11-16T04:25:03+24:00",
        "2020-11-16T04:25:03+0100",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-00:01",
        "",
    ],
)
def test_other_forms_of_a_datetime_have_none(text: str) -> None:
    assert utc_text(text) is None


@pytest.mark.parametrize(
    ("kind", "value"), [("Edm.Int64", "1e3"), ("Edm.Int32", "x"), ("Edm.Double", "many"), ("Edm.Foo", "x")]
)
def test_a_value_that_is_not_of_its_type_is_compared_by_its_own_text(kind: str, value: str) -> None:
    """Azurite stores them."""
    assert canonical_text(kind, value) == value
