"""The worked examples in `migrations/`: what they do to rows, both ways; their digests hold still."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest

from rekey.core import crockford
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Declared, required_secrets
from rekey.declaration.scripts import load_scripts
from rekey.errors import RowRefused
from rekey.model import Row, content_of, key_of

FOLDER = Path(__file__).parents[3] / "migrations"
SECRET = b"a secret of the examples' test"

DIGESTS = {
    "0001_users_opaque_ids": "dae2e9d1cb32e8f13f8a0efc00bd751c19aff3a84860126f3521478a0df8d300",
    "0002_posts_by_month": "5e5f1c12ae75338f674715097cb2f195c96168ede549fbdde5ae9fbefd5a0067",
    "0003_telemetry_by_device_day": "6f0bf210f167b837a87a566ff3ec206a31928a95363883ec7836950c352d4ab1",
    "0004_race_registrations": "fbf138f9266a1132dcb7b480c35bb04c0cf1e62207760e5fb452c199c0dfe871",
    "0005_identity_users": "0f10489aee667d608bb37d487f70f0a56c632cd51a1ed83c22b6f5c85a895766",
    "0006_orders_of_users": "633273ca176178dbcebbbbc16d067afa141411aeddb3dd395c4f500d8f59417d",
    "0007_invoices_of_a_tenant": "2e388980f352e1e931d6fd8b9a6cc33ba42f4bea0e3ad2a93e10e2360ecb5f2f",
    "0008_orders_of_regions-OrdersDE": "3640784f57cadade479211a08f43f4c90e93dd9b3a98794cb9dc357656419d59",
    "0008_orders_of_regions-OrdersFR": "3243d441fd54070637b822c57b77d5d5ea4e83befc8b81a656c47440d04d1fe7",
    "0009_logs_by_month-202401": "47de907375f588bab88ee8a0753e0dd9ec76b03ffdf88cc66f0230a25535103f",
    "0009_logs_by_month-202402": "ae98d0a92d75e14cb3e3b8ec1cf825c393a3456b8ad51e7fee7416f37b8a0756",
    "0009_logs_by_month-202403": "3a581fa5f0602f3db309ef777fd7e2e3dfc17a4a29aac59cfa8db7b41c9c9dc5",
    "0010_shipments_by_state": "acd7753d6470781154060cb712ad0c7938bc5a0d1df45a4ba6508e0411c2f5a6",
}
"""A change here means that an example was edited, or that old declarations would no longer be recognised."""


@pytest.fixture(scope="module")
def scripts() -> dict[str, Declared]:
    return {script.script_id: script for script in load_scripts(FOLDER)}


def mapper(scripts: dict[str, Declared], script_id: str) -> Mapper:
    migration = scripts[script_id].migration
    return Mapper(migration, dict.fromkeys(required_secrets(migration), SECRET))


def comes_back(made: Mapper, row: Row) -> None:
    """Show that the source row is found again from its main row alone, and with the source row at hand."""
    target = made.map(row)[0].row
    assert made.source_key(target) == key_of(row)
    for source in (row, None):
        returned = made.reverse(target, key_of(row), source)
        assert returned == content_of(row)
        assert made.map(returned)[0].row == target


def test_all_examples_load_explain_themselves_and_can_be_rolled_back(scripts: dict[str, Declared]) -> None:
    assert list(scripts) == list(DIGESTS)
    for script in scripts.values():
        assert "Things to notice:" in script.doc
        assert script.migration.reverse


def test_their_digests_hold_still(scripts: dict[str, Declared]) -> None:
    assert {script_id: script.digest for script_id, script in scripts.items()} == DIGESTS


@pytest.mark.parametrize("address", ["alice@example.com", "o'hara+100%@example.org", "ünï@example.com"])
def test_users_get_opaque_ids_and_keep_their_address(scripts: dict[str, Declared], address: str) -> None:
    row: Row = {
        "odata.etag": "e",
        "PartitionKey": "eu",
        "RowKey": address,
        "Timestamp": "2024-01-01T00:00:00Z",
        "Name": "Alice",
        "Logins": "12345678901",
        "Logins@odata.type": "Edm.Int64",
        "Joined": "2020-02-29T23:59:59.1234567Z",
        "Joined@odata.type": "Edm.DateTime",
    }
    made = mapper(scripts, "0001_users_opaque_ids")
    assert required_secrets(scripts["0001_users_opaque_ids"].migration) == ["users"]
    digest = hmac.digest(SECRET, b"rekey/v1\0user\0" + address.encode(), hashlib.sha256)
    (main,) = made.map(row)
    assert main.row == {**content_of(row), "RowKey": crockford.encode(digest[:20]), "ContactEmail": address}
    assert not made.content_derived
    comes_back(made, row)


def post(slug: str, published: str, **properties: Any) -> Row:
    return {
        "PartitionKey": "blog",
        "RowKey": slug,
        "Title": slug.title(),
        "Published": published,
        "Published@odata.type": "Edm.DateTime",
        "Author": "Ann Example",
        **properties,
    }


def test_posts_are_keyed_by_month_newest_first_with_index_rows(scripts: dict[str, Declared]) -> None:
    made = mapper(scripts, "0002_posts_by_month")
    row = post("hello", "2024-03-05T10:20:30.1234567Z", Category="News/Local", Tags="Azure, C#, azure,,")
    # 638452308301234567 is [DateTime]::Parse("2024-03-05T10:20:30.1234567Z").ToUniversalTime().Ticks
    row_key = f"{3155378975999999999 - 638452308301234567:019d}_hello"
    listing = {
        "MainPartitionKey": "2024-03",
        "MainRowKey": row_key,
        "Title": "Hello",
        "Published": "2024-03-05T10:20:30.1234567Z",
        "Published@odata.type": "Edm.DateTime",
    }
    mapped = made.map(row)
    assert mapped[0].row == {
        **row,
        "PartitionKey": "2024-03",
        "RowKey": row_key,
        "Blog": "blog",
        "Slug": "hello",
    }
    assert [(made.tables[number], index) for number, index in mapped[1:]] == [
        (table, {"PartitionKey": partition, "RowKey": row_key, **listing})
        for table, partition in (
            ("PostsByCategory", "news-local"),
            ("PostsByTag", "azure"),
            ("PostsByTag", "c"),
            ("PostsByAuthor", "ann-example"),
        )
    ]
    assert made.content_derived
    comes_back(made, row)


def test_newer_posts_sort_before_older_ones_within_a_month(scripts: dict[str, Declared]) -> None:
    made = mapper(scripts, "0002_posts_by_month")
    moments = ["2024-03-31T23:59:59.9999999Z", "2024-03-31T23:59:59.9999998Z", "2024-03-01T00:00:00Z"]
    row_keys = [made.map(post("x", moment))[0].row["RowKey"] for moment in moments]
    assert row_keys == sorted(row_keys)


def test_posts_need_a_date_but_no_tags_or_category(scripts: dict[str, Declared]) -> None:
    made = mapper(scripts, "0002_posts_by_month")
    row = post("plain", "2024-03-05T10:20:30Z")
    mapped = made.map(row)
    assert [(made.tables[number], index["PartitionKey"]) for number, index in mapped[1:]] == [
        ("PostsByCategory", "uncategorised"),
        ("PostsByAuthor", "ann-example"),
    ]
    comes_back(made, row)
    del row["Published"]
    with pytest.raises(RowRefused) as caught:
        made.map(row)
    assert (caught.value.code, caught.value.field) == ("missing-property", "target.partition_key")


def test_rows_of_an_identity_table_stay_with_their_user(scripts: dict[str, Declared]) -> None:
    made = mapper(scripts, "0005_identity_users")
    address, user = "E_ann@example.com", "U_ann@example.com"
    own = [
        {"PartitionKey": user, "RowKey": row_key} for row_key in (user, "C_admin", "L_google:1", "R_reader")
    ]
    mains = [made.map(row)[0].row for row in [{"PartitionKey": address, "RowKey": user}, *own]]
    [partition] = {row["PartitionKey"] for row in mains[1:]}
    assert mains[0]["RowKey"] == f"U_{partition}", "the row of the address names the user's new partition"
    assert [row["RowKey"][:2] for row in mains[1:]] == ["U_", "C_", "L_", "R_"]
    assert not any("ann" in row[key] for row in mains for key in ("PartitionKey", "RowKey"))
    for row in own:
        comes_back(made, row)


def test_an_order_names_its_user_by_the_key_that_the_user_gets(scripts: dict[str, Declared]) -> None:
    user = {"PartitionKey": "eu", "RowKey": "ann@example.com"}
    order = {"PartitionKey": "eu", "RowKey": "17", "UserEmail": "ann@example.com"}
    made = mapper(scripts, "0006_orders_of_users")
    [main] = made.map(order)
    assert main.row["UserId"] == mapper(scripts, "0001_users_opaque_ids").map(user)[0].row["RowKey"]
    comes_back(made, order)


def test_an_invoice_moves_to_its_month_and_says_whose_it_is(scripts: dict[str, Declared]) -> None:
    issued = {"IssuedAt": "2024-03-05T10:20:30Z", "IssuedAt@odata.type": "Edm.DateTime"}
    row = {"PartitionKey": "contoso", "RowKey": "17", **issued}
    made = mapper(scripts, "0007_invoices_of_a_tenant")
    [main] = made.map(row)
    assert main.row == {**row, "PartitionKey": "2024-03", "Tenant": "contoso"}
    comes_back(made, row)
    with pytest.raises(RowRefused) as refused:
        made.source_key({**main.row, "Tenant": "fabrikam"})
    assert (refused.value.code, refused.value.field) == ("outside-part", "where")


def test_an_order_joins_those_of_all_regions_under_its_region(scripts: dict[str, Declared]) -> None:
    row = {"PartitionKey": "c-1042", "RowKey": "17", "Sum": 4}
    for region in ("DE", "FR"):
        made = mapper(scripts, f"0008_orders_of_regions-Orders{region}")
        [main] = made.map(row)
        assert main.row == {**row, "PartitionKey": f"{region}_c-1042", "Customer": "c-1042"}
        comes_back(made, row)


def test_a_line_goes_to_the_table_of_its_month(scripts: dict[str, Declared]) -> None:
    row = {"PartitionKey": "2024-02-29", "RowKey": "17", "Service": "web"}
    made = mapper(scripts, "0009_logs_by_month-202402")
    [main] = made.map(row)
    assert main.row == {**row, "PartitionKey": "web_2024-02-29", "Day": "2024-02-29"}
    comes_back(made, row)
    assert not scripts["0009_logs_by_month-202401"].migration.has(key_of(row))


def reading(moment: str, sequence: int, **properties: Any) -> Row:
    return {
        "PartitionKey": "device-17",
        "RowKey": "5f0c",
        "DeviceId": "device-17",
        "RecordedAt": moment,
        "RecordedAt@odata.type": "Edm.DateTime",
        "Sequence": sequence,
        "Celsius": 21.0,
        **properties,
    }


def test_readings_go_to_their_device_and_day_in_order(scripts: dict[str, Declared]) -> None:
    made = mapper(scripts, "0003_telemetry_by_device_day")
    row = reading("2024-03-05T10:20:30.1234567Z", 9)
    (main,) = made.map(row)
    assert main.row == {
        **row,
        "PartitionKey": "device-17_2024-03-05",
        "RowKey": "0638452308301234567-0000000009",
        "OldPartitionKey": "device-17",
        "OldRowKey": "5f0c",
    }
    comes_back(made, row)
    later = [
        reading("2024-03-05T10:20:30.1234567Z", 10),
        reading("2024-03-05T10:20:30.1234568Z", 1),
        reading("2024-03-05T23:59:59Z", 0),
    ]
    row_keys = [made.map(one)[0].row["RowKey"] for one in (row, *later)]
    assert row_keys == sorted(row_keys)


def test_sequence_numbers_of_either_integer_type_give_the_same_key(scripts: dict[str, Declared]) -> None:
    made = mapper(scripts, "0003_telemetry_by_device_day")
    row = reading("2024-03-05T10:20:30Z", 9)
    wide = {**row, "Sequence": "9", "Sequence@odata.type": "Edm.Int64"}
    assert key_of(made.map(row)[0].row) == key_of(made.map(wide)[0].row)
    comes_back(made, wide)


def test_a_negative_sequence_number_is_refused(scripts: dict[str, Declared]) -> None:
    with pytest.raises(RowRefused) as caught:
        mapper(scripts, "0003_telemetry_by_device_day").map(reading("2024-03-05T10:20:30Z", -1))
    assert caught.value.code == "not-a-number"


def test_race_registrations_stand_under_bib_and_age(scripts: dict[str, Declared]) -> None:
    made = mapper(scripts, "0004_race_registrations")
    row = {
        "PartitionKey": "2011 New York City Marathon",
        "RowKey": "r-1",
        "Distance": "Full",
        "Bib": 1234,
        "Name": "John",
        "Gender": "M",
        "Age": 55,
    }
    race = "2011 New York City Marathon__Full"
    main, by_age = made.map(row)
    assert key_of(main.row) == (race, "BIB:01234__John__M__55")
    assert key_of(by_age.row) == (race, "AGE:055__1234__John__M")
    carried = {name: row[name] for name in ("Distance", "Bib", "Name", "Gender", "Age")}
    pointer = {"MainPartitionKey": race, "MainRowKey": "BIB:01234__John__M__55"}
    assert by_age.row == {
        **dict(zip(("PartitionKey", "RowKey"), key_of(by_age.row), strict=True)),
        **pointer,
        **carried,
    }
    comes_back(made, row)
    with pytest.raises(RowRefused, match="more than 3 digits"):
        made.map({**row, "Age": 1000})
