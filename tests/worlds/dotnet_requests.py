"""Requests as `Azure.Data.Tables` for .NET sends them: their addresses, headers, bodies and transactions have
the forms of its recorded tests (azure-sdk-for-net, sdk/tables/Azure.Data.Tables/tests/SessionRecords,
`TableClientLiveTests(Storage)`: BatchInsertAndMergeAndDelete, CustomEntityMergeRespectsEtag)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

FORMAT = "$format=application%2Fjson%3Bodata%3Dminimalmetadata"
USUAL = {"Accept": "application/json; odata=minimalmetadata", "x-ms-return-client-request-id": "true"}
CREATES = {**USUAL, "Content-Type": "application/json; odata=nometadata", "Prefer": "return-no-content"}
PLAIN = {"Accept": "application/json"}


def entity(number: int, **changed: Any) -> dict[str, Any]:
    """Return an entity with a property of each type that the SDK writes."""
    return {
        "StringTypeProperty": f"This is table entity number {number:02}",
        "DatetimeTypeProperty": f"2020-01-01T01:{number:02}:00.0000000Z",
        "DatetimeTypeProperty@odata.type": "Edm.DateTime",
        "GuidTypeProperty": f"0d391d16-97f1-4b9a-be68-4cc871f9{number:04}",
        "GuidTypeProperty@odata.type": "Edm.Guid",
        "BinaryTypeProperty": "AQIDBAU=",
        "BinaryTypeProperty@odata.type": "Edm.Binary",
        "UInt64TypeProperty": str(number),
        "UInt64TypeProperty@odata.type": "Edm.Int64",
        "DoubleTypeProperty": number,
        "DoubleTypeProperty@odata.type": "Edm.Double",
        "IntTypeProperty": number,
        "PartitionKey": "somPartition",
        "RowKey": f"{number:02}",
        **changed,
    }


def address(number: int) -> str:
    """Return the address of an entity below its table's name."""
    return f"(PartitionKey='somPartition',RowKey='{number:02}')?{FORMAT}"


def transaction(
    endpoint: str, operations: Sequence[tuple[str, str, Any, dict[str, str]]]
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a transaction: whole addresses with the host again, and no `Content-ID`.
    `operations`: method, path, entity (None for a delete) and further headers of each."""
    lines = ["--batch_1", "Content-Type: multipart/mixed; boundary=changeset_1", ""]
    for method, path, body, headers in operations:
        lines += ["--changeset_1", "Content-Type: application/http", "Content-Transfer-Encoding: binary", ""]
        usual = {"Host": urlsplit(endpoint).netloc, "x-ms-version": "2019-02-02", "DataServiceVersion": "3.0"}
        more = {"Accept": "application/json;odata=minimalmetadata"} if body is None else {**PLAIN}
        kind = {} if body is None else {"Content-Type": "application/json"}
        lines += [f"{method} {endpoint}/{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in {**usual, **more, **kind, **headers}.items()]
        lines += ["", "" if body is None else json.dumps(body)]
    lines += ["--changeset_1--", "", "--batch_1--", ""]
    kinds = {"Content-Type": "multipart/mixed; boundary=batch_1", **PLAIN}
    return "\r\n".join(lines).encode(), kinds


async def as_dotnet(ask: Callable[..., Any], table: str, endpoint: str) -> None:
    """Create, change under conditions, query and delete entities, singly and in transactions."""
    for number in (1, 2, 3):
        await ask("POST", f"{table}?{FORMAT}", entity(number), CREATES)
    await ask("POST", f"{table}?{FORMAT}", entity(1), CREATES)
    await ask("PUT", table + address(9), {**entity(9), "Timestamp": None}, PLAIN)
    where = "$filter=PartitionKey%20eq%20%27somPartition%27%20and%20RowKey%20eq%20%2709%27"
    [read] = (await ask("GET", f"{table}()?{FORMAT}&{where}", None, PLAIN)).json["value"]
    # What was read is sent back whole, with what the service owns.
    await ask("PATCH", table + address(9), {**read, "New": "This is new"}, {"If-Match": "*"})
    await ask("PATCH", table + address(9), {**read, "New": "late"}, {"If-Match": read["odata.etag"]})
    now = (await ask("GET", f"{table}{address(9)}", None, USUAL)).json
    await ask("PUT", table + address(9), {**now, "New": "in time"}, {"If-Match": now["odata.etag"]})
    await ask("GET", f"{table}()?{FORMAT}&$top=2&$select=RowKey%2CNew", None, PLAIN)
    await ask("DELETE", table + address(9), None, {**PLAIN, "If-Match": now["odata.etag"]})
    await ask("DELETE", table + address(9), None, {**PLAIN, "If-Match": "*"})
    await ask("DELETE", table + address(9), None, {**PLAIN, "If-Match": "*"})
    merged = {"PartitionKey": "somPartition", "RowKey": "01", "MergedProperty": "foo"}
    created = {**CREATES, "Accept": "application/json;odata=minimalmetadata"}
    changes: list[tuple[str, str, Any, dict[str, str]]] = [
        ("PATCH", table + address(1), merged, {"If-Match": "*"}),
        ("DELETE", table + address(2), None, {"If-Match": "*"}),
        ("PUT", table + address(3), entity(3, StringTypeProperty="updated"), {}),
        ("PUT", table + address(4), entity(4), {}),
        ("POST", f"{table}?{FORMAT}", entity(5), created),
    ]
    await ask("POST", "$batch", *transaction(endpoint, changes))
    await ask("GET", f"{table}()?{FORMAT}", None, USUAL)
    failing = [changes[2], ("POST", f"{table}?{FORMAT}", entity(5), created)]
    await ask("POST", "$batch", *transaction(endpoint, failing))
    await ask("GET", f"{table}()?{FORMAT}", None, USUAL)
