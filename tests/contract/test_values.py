"""Values and keys survive byte for byte, alone and in transactions, on every implementation."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest

from rekey.core.edm import canonical, canonical_content
from rekey.errors import ConditionFailed, RequestRejected, RowMissing
from rekey.model import EntityKey, KeyRange, Row, content_of, key_of
from rekey.tables.base import Operation, Table, Verb

VALUES: dict[str, tuple[Any, str | None]] = {
    "Text": ("Ada", None),
    "EmptyText": ("", None),
    "TextLikeNumber": ("5", None),
    "TextWithEverything": ("'\"\\/%+ \t\r\n{}\u0000\u0001\u2028\u2029é漢😀", None),
    "TextLikeBatch": ("--changeset_0\r\nHTTP/1.1 409 Conflict\r\n\r\n{", None),
    "Int32": (5, None),
    "Int32Least": (-(2**31), None),
    "Int32Most": (2**31 - 1, None),
    "Int64": ("5", "Edm.Int64"),
    "Int64BeyondDouble": ("9007199254740993", "Edm.Int64"),
    "Int64Least": (str(-(2**63)), "Edm.Int64"),
    "Int64Most": (str(2**63 - 1), "Edm.Int64"),
    "Double": (0.1, None),
    "DoubleWhole": (3.0, None),
    "DoubleWholeAnnotated": (3.0, "Edm.Double"),
    "DoubleLarge": (1.7976931348623157e308, None),
    "DoubleSmall": (5e-324, None),
    "DoubleWholeLarge": (1e22, None),
    "DoubleNotANumber": ("NaN", "Edm.Double"),
    "DoubleInfinite": ("Infinity", "Edm.Double"),
    "DoubleMinusInfinite": ("-Infinity", "Edm.Double"),
    "True_": (True, None),
    "False_": (False, None),
    "Moment": ("2024-01-31T12:00:00.1234567Z", "Edm.DateTime"),
    "MomentWhole": ("2024-01-31T12:00:00Z", "Edm.DateTime"),
    "MomentFirst": ("1601-01-01T00:00:00Z", "Edm.DateTime"),
    "MomentLast": ("9999-12-31T23:59:59.9999999Z", "Edm.DateTime"),
    "GuidUpper": ("ABCDEF01-2345-6789-ABCD-EF0123456789", "Edm.Guid"),
    "GuidLower": ("abcdef01-2345-6789-abcd-ef0123456789", "Edm.Guid"),
    "Bytes": ("AAECAwT/", "Edm.Binary"),
    "BytesEmpty": ("", "Edm.Binary"),
}

EVERY_KEY_CHARACTER = "".join(
    chr(code) for code in [*range(0x20, 0x7F), 0xA0, 0xFF, 0x3042, 0xFFFD] if chr(code) not in "/\\#?"
)
KEYS = {
    "empty": "",
    "quote": "it's ''quoted''",
    "percent": "100%25 %20 %",
    "percent twice": "a%2525b%252F",
    "plus": "a+b",
    "spaces": " a  b ",
    "trailing dot": "a.",
    "dots": "..",
    "emoji": "😀👩‍👩‍👧",
    "braces": "{\"a\":1} ('b')",
    "ampersand": "a&b=c;d,e@f:g",
    "http": "http:x HTTP",
    "longest": "x" * 512,
    "longest in emoji": "😀" * 256,
    "every kind": EVERY_KEY_CHARACTER,
}


def row_of(name: str, value: Any, edm: str | None, row_key: str = "r") -> Row:
    row: Row = {"PartitionKey": "p", "RowKey": row_key, name: value}
    if edm is not None:
        row[f"{name}@odata.type"] = edm
    return row


@pytest.mark.parametrize("name", VALUES)
async def test_a_value_survives_every_way_in_and_out(table: Table, name: str) -> None:
    """Doubles are compared as (type, text): that one comes back as Int32 or loses its sign would show."""
    value, edm = VALUES[name]
    sent = row_of(name, value, edm)
    await table.insert(sent)
    await table.upsert({**sent, "RowKey": "r2"})
    await table.transact(
        [
            Operation(Verb.INSERT, {**sent, "RowKey": "r3"}),
            Operation(Verb.INSERT_OR_MERGE, {**sent, "RowKey": "r4"}),
        ]
    )
    found = [one async for page in table.scan() for one in page.rows]
    assert sorted(key_of(one).row for one in found) == ["r", "r2", "r3", "r4"]
    for one in [*found, await table.get(EntityKey("p", "r"))]:
        assert one is not None
        if (
            name == "GuidUpper"
        ):  # the service and the tables in memory answer in lower case, Azurite as it was sent
            one[name] = one[name].upper()
        assert canonical(one, name) == canonical(sent, name)
        assert type(one[name]) is type(value)
        if not isinstance(value, float):
            assert one[name] == value


async def test_all_values_of_one_row_survive_being_copied_as_read(table: Table) -> None:
    """The second writing is of what was read: what the service leaves out on reading must not be needed."""
    sent: Row = {"PartitionKey": "p", "RowKey": "r"}
    for name, (value, edm) in VALUES.items():
        sent |= row_of(name, value, edm)
    await table.insert(sent)
    first = await table.get(EntityKey("p", "r"))
    assert first is not None
    await table.insert({**content_of(first), "RowKey": "copy"})
    second = await table.get(EntityKey("p", "copy"))
    assert second is not None
    assert canonical_content(second) == canonical_content(first)
    assert canonical_content({**first, "GuidUpper": first["GuidUpper"].upper()}) == canonical_content(sent)


@pytest.mark.parametrize("name", KEYS)
async def test_a_key_survives_in_addresses_filters_and_bodies(table: Table, name: str) -> None:
    text = KEYS[name]
    neighbours = [EntityKey(text, "a"), EntityKey(text, text or "b")]
    for key in neighbours:
        await table.insert({"PartitionKey": key.partition, "RowKey": key.row, "A": 1})
    await table.insert({"PartitionKey": f"{text[:255]}!", "RowKey": text})
    key = neighbours[1]
    found = await table.get(key)
    assert found is not None
    assert key_of(found) == key
    etag = await table.merge({"PartitionKey": key.partition, "RowKey": key.row, "A": 2})
    assert await table.transact(
        [
            Operation(Verb.REPLACE, {"PartitionKey": key.partition, "RowKey": key.row, "A": 3}, etag),
            Operation(Verb.DELETE, {"PartitionKey": text, "RowKey": "a"}),
        ]
    )
    inside = KeyRange(EntityKey(text, ""), key) if key.row else KeyRange(None, key)
    assert [key_of(one) async for page in table.scan(inside) for one in page.rows] == [key]
    await table.delete(key)
    assert await table.get(key) is None


async def test_keys_that_look_alike_are_different_rows(table: Table) -> None:
    composed, decomposed = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    alike = [composed, decomposed, "É", "e", "e ", " e", "e.", "E", "e%20", "e+", ""]
    for number, text in enumerate(alike):
        await table.insert({"PartitionKey": text, "RowKey": text, "Number": number})
    for number, text in enumerate(alike):
        found = await table.get(EntityKey(text, text))
        assert found is not None
        assert found["Number"] == number


# A key, and one that is made of it by decoding its address once more.
LOOK_ALIKE = {"percent": ("a%25b", "a%b"), "space": ("two%20words", "two words"), "quote": ("it%27s", "it's")}


@pytest.mark.parametrize("part", ["PartitionKey", "RowKey"])
@pytest.mark.parametrize("name", LOOK_ALIKE)
async def test_a_row_is_read_and_written_under_its_own_key_whatever_addresses_are_decoded_to(
    table: Table, name: str, part: str
) -> None:
    """Rows that one transaction wrote can have one ETag: a condition does not tell them apart."""

    def named(text: str, number: int) -> Row:
        return {"PartitionKey": "p", "RowKey": "r", part: text, "Number": number}

    async def numbers() -> list[int | None]:
        rows = [await table.get(key_of(named(text, 0))) for text in LOOK_ALIKE[name]]
        found = [await table.find(key_of(named(text, 0))) for text in LOOK_ALIKE[name]]
        assert rows == found
        return [None if row is None else row["Number"] for row in rows]

    key, other = LOOK_ALIKE[name]
    assert await numbers() == [None, None]
    await table.insert(named(other, 1))
    assert await numbers() == [None, 1]
    with pytest.raises(RowMissing) as missing:
        await table.delete(key_of(named(key, 0)))
    assert missing.value.index is None
    assert await table.upsert(named(key, 2))
    assert await numbers() == [2, 1]
    etag = await table.replace(named(key, 3))
    with pytest.raises(ConditionFailed):
        await table.replace(named(other, 4), etag=etag)
    assert await numbers() == [3, 1]
    await table.delete(key_of(named(key, 0)), etag=etag)
    assert await numbers() == [None, 1]
    await table.delete(key_of(named(other, 0)))
    assert await numbers() == [None, None]


@pytest.mark.parametrize("character", ["/", "\\", "#", "?", "\x00", "\x1f", "\x7f", "\x9f"])
@pytest.mark.parametrize("part", ["PartitionKey", "RowKey"])
async def test_a_refused_character_in_a_key_is_an_error_and_writes_nothing(
    table: Table, part: str, character: str
) -> None:
    with pytest.raises(RequestRejected):
        await table.insert({"PartitionKey": "p", "RowKey": "r", part: f"a{character}b"})
    assert [page async for page in table.scan()] == []


async def test_a_key_over_1024_units_is_refused(table: Table) -> None:
    with pytest.raises(RequestRejected):
        await table.insert({"PartitionKey": "p", "RowKey": "x" * 1025})


@pytest.mark.parametrize(
    "row",
    [
        {"PartitionKey": "p", "RowKey": "r", "A": float("nan")},
        {"PartitionKey": "p", "RowKey": "r", "A": float("inf")},
        {"PartitionKey": "p", "RowKey": "r", "A": b"bytes"},
        {"PartitionKey": "p", "RowKey": "r", "A": ["list"]},
        {"PartitionKey": "p", "RowKey": b"r"},
        {"PartitionKey": None, "RowKey": "r"},
        {"RowKey": "r"},
        {"PartitionKey": "p", "RowKey": "half a \ud83d pair"},
    ],
    ids=str,
)
async def test_what_is_no_wire_value_is_refused_and_never_changed_silently(table: Table, row: Row) -> None:
    """The SDK takes bytes and UUIDs as keys, JSON libraries write NaN as null: both would lose data."""
    with pytest.raises(RequestRejected):
        await table.insert(row)
    with pytest.raises(RequestRejected):
        await table.transact([Operation(Verb.INSERT, row)])
    assert [page async for page in table.scan()] == []


@pytest.mark.parametrize("text", ["😀" * 16_384, "x" + "漢" * 32_000, "é" * 32_000], ids=["😀", "漢", "é"])
async def test_long_texts_beyond_ascii_survive_alone_and_in_transactions(table: Table, text: str) -> None:
    """Such a row is larger than a piece in which a body arrives."""
    row: Row = {"PartitionKey": "p", "RowKey": "long", "Text": text, "More": text}
    await table.insert(row)
    for write in (table.merge, table.replace, table.upsert):
        assert content_of(await table.get(key_of(row)) or {}) == row
        await write(row)
    others: list[Row] = [{**row, "RowKey": name} for name in ("a", "é" * 100, "c")]
    await table.transact([Operation(Verb.INSERT, other) for other in others])
    for each in (row, *others):
        assert content_of(await table.get(key_of(each)) or {}) == each
