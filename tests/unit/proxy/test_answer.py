"""Addresses in answers begin as those that the application asks, and values of rows are left alone."""

from __future__ import annotations

import json

import pytest

from rekey.proxy.answer import Readdressing

BASE = "https://proxy.example:8443"
HERE = f"{BASE}/Users(PartitionKey='a',RowKey='b')"


@pytest.mark.parametrize(
    ("endpoint", "there"),
    [
        ("https://acct.table.core.windows.net", "https://acct.table.core.windows.net"),
        ("https://acct.table.core.windows.net", "https://acct-secondary.table.core.windows.net:443"),
        ("https://gateway.example/tables/", "https://gateway.example/tables"),
        ("http://127.0.0.1:10002/devstoreaccount1", "http://127.0.0.1:10002/devstoreaccount1"),
    ],
)
def test_only_metadata_links_and_headers_are_rewritten(endpoint: str, there: str) -> None:
    made = Readdressing(endpoint, BASE)
    link = f"{there}/Users(PartitionKey='a',RowKey='b')"
    row = {
        "odata.metadata": f"{there}/$metadata#Users",
        "odata.id": link,
        "odata.editLink": "Users(PartitionKey='a',RowKey='b')",
        "Link": link,
        "Quoted": f'"odata.id":"{link}"',
        "Lines": f"\r\nLocation: {link}",
    }
    document = {"odata.nextLink": f"{there}/Users?NextRowKey=b", "value": [row]}
    expected = {
        "odata.nextLink": f"{BASE}/Users?NextRowKey=b",
        "value": [{**row, "odata.metadata": f"{BASE}/$metadata#Users", "odata.id": HERE}],
    }
    for body in (json.dumps(document), json.dumps(document, separators=(",", ":"))):
        told = made.body(body.encode(), "application/json;odata=fullmetadata")
        assert json.loads(told) == expected
        part = f"--b\r\nLocation: {link}\r\nDataServiceId: {link}\r\nETag: x\r\n\r\n{body}\r\n--b--"
        head, _, rest = made.body(part.encode(), "multipart/mixed; boundary=b").partition(b"\r\n\r\n")
        assert head.decode() == f"--b\r\nLocation: {HERE}\r\nDataServiceId: {HERE}\r\nETag: x"
        assert json.loads(rest.removesuffix(b"\r\n--b--")) == expected
    atom = f'<feed xml:base="{{0}}/"><id>{{0}}/Users</id><d:Note>xml:base="{there}/" {there}</d:Note></feed>'
    told = made.body(atom.format(there).encode(), "application/atom+xml;type=feed")
    assert told.decode() == atom.format(BASE)
    headers = [("Location", link), ("DataServiceId", link), ("x-ms-request-id", there)]
    assert made.headers(headers) == [("Location", HERE), ("DataServiceId", HERE), ("x-ms-request-id", there)]
