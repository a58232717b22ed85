"""Requests of four SDKs, recorded against the real service: all are read, routed as their answers say, and a
write that is carried is answered as the service answered it. Where they are from: test_service_facts.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest

from rekey.client.sdk.calls import Read, Write, call_in
from rekey.errors import RequestRejected
from rekey.proxy import sas
from rekey.proxy.answer import Reply, reply_to_write
from rekey.proxy.batch import Batch, read_batch, write_batch
from rekey.proxy.parse import Incoming, ResourceKind, parameters, parse
from tests.unit.tables.test_service_facts import facts

ACCOUNT, BASE = "account", "https://account.table.core.windows.net"
HEADERS = ("etag", "location", "dataserviceid", "preference-applied", "content-type", "content-id")
Fact = dict[str, Any]
RECORDED = facts("request")


def read(fact: Fact) -> tuple[Incoming, Batch | None]:
    """Return a recorded request as the proxy reads it."""
    asked = parse(fact["method"], fact["target"], fact.get("headers", {}).items(), ACCOUNT)
    asked = replace(asked, content=fact.get("body", "").encode())
    return asked, read_batch(asked, ACCOUNT) if asked.kind is ResourceKind.BATCH else None


def is_about_rows(fact: Fact) -> bool:
    """Tell whether a client would carry the request, were its table one of a migration."""
    return (
        fact["kind"] in (ResourceKind.ROWS, ResourceKind.ROW, ResourceKind.BATCH)
        and "comp=" not in fact["target"]
    )


def chosen(*, wrote: bool) -> list[Any]:
    """Return the requests about rows that the service carried out: writes, or reads."""
    return [
        one
        for one in RECORDED
        if is_about_rows(one.values[0])
        and one.values[0]["status"] < 400
        and (one.values[0]["method"] != "GET" and "GET http" not in one.values[0].get("body", "")) is wrote
    ]


@pytest.mark.parametrize("fact", RECORDED)
def test_a_recorded_request_is_read_as_what_it_was(fact: Fact) -> None:
    """Its resource, its table and its method; a signature in it is understood, but for a stored policy's."""
    asked, _ = read(fact)
    assert asked.kind == fact["kind"]
    assert asked.table == (
        "Table" if asked.kind in (ResourceKind.ROWS, ResourceKind.ROW, ResourceKind.TABLE) else ""
    )
    assert (asked.method, asked.sent_method) == (fact["method"], fact["method"])
    said = parameters(asked.query)
    if "sig" in said and said["se" if "se" in said else "si"] not in ("end", "testid"):  # replaced
        assert sas.read(said).parameters["sp"] == said["sp"]


@pytest.mark.parametrize("fact", chosen(wrote=False))
def test_a_recorded_read_is_no_write(fact: Fact) -> None:
    asked, batch = read(fact)
    if batch is not None:
        assert batch.is_query and [one.is_read for one in batch.parts] == [True]
        return
    call = call_in(asked, "Table")
    assert isinstance(call, Read)
    assert (call.key is not None) is (asked.kind is ResourceKind.ROW)


@pytest.mark.parametrize("fact", chosen(wrote=True))
def test_a_recorded_write_is_carried_and_answered_as_the_service_did(fact: Fact) -> None:
    """With the ETags that the service gave: statuses, headers, and the row in an answer that echoes it."""
    asked, batch = read(fact)
    call = call_in(asked, "Table") if batch is None else call_in(asked, batch.table, batch.parts)
    assert isinstance(call, Write)
    expected = answers_of(fact)
    assert len(call.operations) == len(expected)
    etags = [headers.get("etag") for _, headers, _ in expected]
    reply = reply_to_write(asked, call, etags, BASE, ACCOUNT, batch)
    if not fact.get("headers"):  # which the recorder of that SDK left out, and with them what it prefers
        return
    assert reply.status == fact["status"]
    found = answers_in(reply)
    for (status, headers, row), (their_status, theirs, their_row) in zip(found, expected, strict=True):
        assert (status, headers, row) == (their_status, theirs, their_row)


@pytest.mark.parametrize(
    "fact", [one for one in RECORDED if is_about_rows(one.values[0]) and one.values[0]["status"] >= 400]
)
def test_what_the_service_refused_is_refused_with_its_code_or_passed_on(fact: Fact) -> None:
    asked, _ = read(fact)
    if asked.is_read:  # the account judges filters
        assert isinstance(call_in(asked, "Table"), Read)
        return
    with pytest.raises(RequestRejected) as raised:
        call_in(asked, "Table")
    assert (raised.value.status, raised.value.code) == (
        fact["status"],
        json.loads(fact["answered"])["odata.error"]["code"],
    )


@pytest.mark.parametrize("fact", [one for one in RECORDED if one.values[0]["kind"] == ResourceKind.BATCH])
def test_a_recorded_transaction_that_is_written_anew_is_read_as_before(fact: Fact) -> None:
    asked, batch = read(fact)
    assert batch is not None
    content_type, body = write_batch(batch, lambda part: f"{BASE}/{part.resource}?{part.query}".rstrip("?"))
    again = replace(asked, headers={"content-type": content_type}, content=body)
    sent = [(one.method, one.path, one.query, one.content) for one in read_batch(again, ACCOUNT).parts]
    assert sent == [(one.method, one.path, one.query, one.content) for one in batch.parts]


def answers_of(fact: Fact) -> list[tuple[int, dict[str, str], Any]]:
    """Return what can be compared of the recorded answer: of each operation status, headers and row."""
    if fact["kind"] != ResourceKind.BATCH:
        return [told(fact["status"], fact.get("answer", {}), fact.get("answered", ""))]
    return parts_of(fact["answered"])


def answers_in(reply: Reply) -> list[tuple[int, dict[str, str], Any]]:
    """Return the same of an answer of the proxy."""
    if reply.status != HTTPStatus.ACCEPTED:
        return [told(reply.status, dict(reply.headers), reply.body.decode())]
    return parts_of(reply.body.decode())


def parts_of(body: str) -> list[tuple[int, dict[str, str], Any]]:
    """Return the answers in a changeset."""
    found = []
    for part in re.split(r"--changesetresponse\S*", body)[1:-1]:
        head, _, rest = part.partition("HTTP/1.1 ")[2].partition("\r\n\r\n")
        status, *lines = head.split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        found.append(told(int(status.split()[0]), headers, rest))
    return found


def told(status: int, headers: dict[str, str], body: str) -> tuple[int, dict[str, str], Any]:
    """Return what can be compared of one answer. The service drops the last zeros of a time."""
    kept = {name.lower(): value.replace("; ", ";") for name, value in headers.items()}
    row = json.loads(body) if body.strip() else {}
    if isinstance(row, dict):
        row = {name: short(value) if isinstance(value, str) else value for name, value in row.items()}
    return status, {name: kept[name] for name in HEADERS if name in kept}, row


def short(value: str) -> str:
    """Return a time without the zeros at its end; any other text as it is."""
    return re.sub(r"(T\d\d:\d\d:\d\d)(?:\.0+|(\.\d*?[1-9])0+)Z$", r"\1\2Z", value)
