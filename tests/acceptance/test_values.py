"""Values and keys of every kind survive a whole migration byte for byte.

What is compared is the service's own JSON, numbers as the text they were, read over a wire of the tests' own;
and then what `azure-data-tables`, the client that applications use, makes of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from azure.data.tables import TableEntity

from rekey.core.edm import BINARY, DATETIME, DOUBLE, GUID, INT64
from rekey.model import Row, content_of
from rekey.rehearse.azurite import Azurite
from rekey.rehearse.witness import open_service
from tests.worlds.azurite_projects import Key, Project
from tests.worlds.odd_rows import generic

pytestmark = pytest.mark.azurite

SWAPPED = '''\
"""Both keys change places, so that every odd text is read and written as either of them."""
from rekey import Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET", partition_key=keys.prop("RowKey"), row_key=keys.prop("PartitionKey"), allow_empty=True,
        properties=[
            props.copy("PartitionKey", to="OldPartitionKey"), props.copy("RowKey", to="OldRowKey"),
            props.rename("Text", "Words"),
        ],
    ),
    capture="delta",
)
'''

ODD_KEYS = [
    "it's",
    "''",
    "100%",
    "%25",
    "%2F",
    "a+b",
    " leading and trailing ",
    "two  spaces",
    "dots..",
    "😀🚲",
    "\U0010ffff",
    "日本語",
    "é",
    "e\u0301",
    "UPPER",
    "upper",
    '"quoted"',
    "a&b=c;d,e",
    "(PartitionKey='x')",
    "😀" * 256,
    "k" * 512,
]


def _typed(**values: tuple[str, object]) -> Row:
    row: Row = {}
    for name, (edm, value) in values.items():
        row |= {name: value, f"{name}@odata.type": edm}
    return row


VALUES: list[Row] = [
    _typed(Big=(INT64, str(2**53 + 1)), Small=(INT64, str(-(2**63))), Large=(INT64, str(2**63 - 1))),
    {
        "Int": 2**31 - 1,
        "Negative": -(2**31),
        "Zero": 0,
        "Yes": True,
        "No": False,
        "Empty": "",
        "Text": "x\ty\n",
    },
    _typed(First=(DATETIME, "1601-01-01T00:00:00Z"), Last=(DATETIME, "9999-12-31T23:59:59.9999999Z")),
    _typed(Tick=(DATETIME, "2024-05-06T07:08:09.1234567Z"), Next=(DATETIME, "2024-05-06T07:08:09.1234568Z")),
    _typed(Nan=(DOUBLE, "NaN"), Up=(DOUBLE, "Infinity"), Down=(DOUBLE, "-Infinity")),
    _typed(Whole=(DOUBLE, 3.0), Tenth=(DOUBLE, 0.1), Huge=(DOUBLE, 1e308), Tiny=(DOUBLE, 5e-324)),
    _typed(
        Lower=(GUID, "0a9b8c7d-0000-4000-8000-0123456789ab"),
        Upper=(GUID, "0A9B8C7D-0000-4000-8000-0123456789AB"),
    ),
    _typed(Bytes=(BINARY, "AAEC/w=="), NoBytes=(BINARY, "")),
    {"Text": "e\u0301é\u2028😀 'quoted' <b>&amp;</b>", "日本語": "a property name", "Long": "ü" * 32_000},
]


def _rows() -> list[Row]:
    """Rows with every kind of value under every kind of key."""
    rows = [
        {"PartitionKey": key, "RowKey": f"value {number}", **values}
        for number, (key, values) in enumerate((key, values) for key in ODD_KEYS[:3] for values in VALUES)
    ]
    rows += [{"PartitionKey": "p", "RowKey": key, "Text": key} for key in ODD_KEYS]
    rows += [{"PartitionKey": key, "RowKey": "", "Text": key} for key in ODD_KEYS]
    rows += [{"PartitionKey": "", "RowKey": "an empty PartitionKey"}]
    rows += [{**row, "RowKey": row["RowKey"] + "g"} for row in generic(120, seed=3)]
    return rows


def _raw(project: Project, table: str) -> dict[Key, Row]:
    """Return wire rows by key; numbers stay the text that was sent, so that 3.0 is not 3."""
    found, token = {}, ""
    while True:
        status, headers, body = project.wire.ask("GET", f"{table}()?{token}")
        assert status == 200
        for row in json.loads(body, parse_float=lambda text: f"float {text}")["value"]:
            found[row["PartitionKey"], row["RowKey"]] = content_of(row)
        if "x-ms-continuation-nextpartitionkey" not in headers:
            return found
        token = "&".join(
            f"{name}={quote(headers['x-ms-continuation-' + name.lower()], safe='')}"
            for name in ("NextPartitionKey", "NextRowKey")
            if "x-ms-continuation-" + name.lower() in headers
        )


def _wanted(source: dict[Key, Row]) -> dict[Key, Row]:
    """Return what the script makes of wire rows, said again by hand."""
    wanted = {}
    for (partition, row_key), row in source.items():
        renamed = {("Words" if name == "Text" else name): value for name, value in row.items()}
        keys = {"PartitionKey": row_key, "RowKey": partition}
        wanted[row_key, partition] = {**renamed, **keys, "OldPartitionKey": partition, "OldRowKey": row_key}
    return wanted


def _sdk(project: Project, table: str) -> dict[Key, TableEntity]:
    """Return the rows as the Azure SDK gives them to an application."""
    with open_service(project.azurite.tables) as service, service.get_table_client(table) as client:
        return {(entity["PartitionKey"], entity["RowKey"]): entity for entity in client.list_entities()}


def _told(value: Any) -> tuple[str, str]:
    """Return type and text of an SDK value, the seventh digit of a moment included."""
    return type(value).__name__, f"{value!r} {getattr(value, 'tables_service_value', '')}"


def test_every_value_and_key_survives_there_and_back_byte_for_byte(tmp_path: Path, azurite: Azurite) -> None:
    """Source, target and, after cutover and rollback, the source again hold what was put in."""
    project = Project(tmp_path, azurite)
    project.script(SWAPPED)
    rows = _rows()
    project.wire.create(project.source)
    for row in rows:
        project.wire.insert(project.source, row)
    source = _raw(project, project.source)
    assert len(source) == len(rows)
    there = project.wire.contents(project.source)
    for row in rows:
        plain = {name: value for name, value in row.items() if value != DOUBLE}
        kept = there[row["PartitionKey"], row["RowKey"]]
        assert {name: kept[name] for name in plain} == plain, "the service itself keeps it"

    project.run("apply").ended(0)
    assert _raw(project, project.target) == _wanted(source)
    project.run("verify").ended(0)

    applied, before = _sdk(project, project.target), _sdk(project, project.source)
    for (partition, row_key), entity in before.items():
        copy = applied[row_key, partition]
        for name in entity.keys() - {"PartitionKey", "RowKey"}:
            assert _told(copy["Words" if name == "Text" else name]) == _told(entity[name]), name

    project.run("apply", "--to", "cutover", "--writers-stopped").ended(0)
    # The application changes every row after cutover, so that every value has to go back.
    for partition, row_key in applied:
        changed = {"PartitionKey": partition, "RowKey": row_key, "Changed": True}
        project.wire.merge(project.target, changed)
    project.run("rollback", "--writers-stopped").ended(0)
    assert _raw(project, project.source) == {key: {**row, "Changed": True} for key, row in source.items()}
    project.run("verify").ended(0)
