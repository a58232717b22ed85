"""What the real service answered is understood as it was meant.

The facts are in tests/fixtures/service, found in request and answer pairs that tests of Azure SDKs
recorded against Azure Storage in 2017 to 2021 and published under MIT and Apache-2.0.
`source` names the SDK and the test: `python` is azure-data-tables (Azure/azure-sdk-for-python),
`python-preview` its previews of 2020, `python-legacy` Azure/azure-cosmos-table-python, `go` and `go-legacy`
aztables and storage of Azure/azure-sdk-for-go, `js` @azure/data-tables of Azure/azure-sdk-for-js. Names of
accounts and tables and ids of requests are replaced.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, unquote

import pytest
from multidict import CIMultiDict

from rekey import errors
from rekey.core.clock import format_ticks, ticks_of
from rekey.core.edm import canonical_content
from rekey.model import EVERYTHING, TIMESTAMP, content_of, etag_of, key_of
from rekey.tables.answers import Answer, checked, may_be_applied, read_batch, read_etag, read_page, read_time
from rekey.tables.base import Operation, Verb
from rekey.tables.paging import PageSize, read_range
from rekey.tables.requests import Requester, WriteApplied, retry_after_of, write_applied
from rekey.tables.rules import written_form
from rekey.tables.transport import Request
from rekey.tables.wire import decode_row, entity_path, query_string
from tests.fakes.clock import FakeClock
from tests.fakes.memory import MemoryTableService, Mood, unpadded

_FOLDER = Path(__file__).parents[2] / "fixtures/service"
KEY = {"PartitionKey": "p", "RowKey": "r"}
Fact = dict[str, Any]


def facts(kind: str) -> list[Any]:
    """Return the facts of one kind, named by their sources."""
    found = tomllib.loads((_FOLDER / f"{kind}s.toml").read_text("utf-8"))
    kept = found[kind]
    return [pytest.param(fact, id=fact["source"]) for fact in kept]


def answered(fact: Fact) -> Answer:
    """Return the answer of a fact. Header names come in any case, as from the HTTP client."""
    body = fact.get("body", "")
    text = body if isinstance(body, str) else "".join(body)
    return Answer(fact.get("status", 200), CIMultiDict(fact.get("headers", {})), text.encode())


@pytest.mark.parametrize("fact", facts("refusal"))
def test_a_refusal_becomes_the_error_that_it_means(fact: Fact) -> None:
    """By status and code, in JSON or XML, with the code in the body, in a header or in both."""
    answer = answered(fact)
    with pytest.raises(errors.ServiceError) as raised:
        checked(answer, "ask")
    error = raised.value
    assert type(error) is getattr(errors, fact["means"])
    assert (error.code, error.status) == (fact["code"], fact["status"])
    message = re.search(r"PartitionKey/RowKey|[A-Z]\w+(?: [a-zA-Z]+){3}", answer.body.decode())
    assert message is not None and message[0] not in f"{error!r} {error.as_json()}"


def test_being_told_to_wait_says_that_nothing_was_done() -> None:
    """429, as a gateway says it, also without saying for how long."""
    body = b'{"odata.error":{"code":"TooManyRequests","message":{"lang":"en-us","value":"too many"}}}'
    answer = Answer(429, {}, body)
    with pytest.raises(errors.Unavailable) as raised:
        checked(answer, "ask")
    assert not may_be_applied(raised.value)
    assert retry_after_of(answer.headers) is None


def test_the_server_in_front_refuses_without_the_version_that_the_service_names() -> None:
    """By this `rekey doctor` tells a wrong key from a missing role."""
    refused = [one.values[0] for one in facts("refusal") if one.values[0]["status"] == 403]
    for fact in refused:
        headers = answered(fact).headers
        in_front = fact["code"] == "AuthenticationFailed"
        assert (headers["Server"] == "Microsoft-HTTPAPI/2.0") is in_front
        assert ("x-ms-version" in headers) is not in_front
        assert ticks_of(read_time(answered(fact), "ask"))  # a refusal tells the service's time
    assert {fact["code"] for fact in refused} >= {"AuthenticationFailed", "AuthorizationPermissionMismatch"}
    assert {answered(fact).body[:1] for fact in refused} == {b"{", b"<"}


@pytest.mark.parametrize(
    "body", ["<html><code>ResourceNotFound</code>", "<error><code>ResourceNotFound</code>"]
)
def test_a_page_of_a_proxy_is_no_refusal_of_the_service(body: str) -> None:
    with pytest.raises(errors.RequestRejected) as raised:
        checked(Answer(404, {}, body.encode()), "ask")
    assert raised.value.code == ""


@pytest.mark.parametrize("fact", facts("transaction"))
def test_the_answer_to_a_transaction_says_what_became_of_it(fact: Fact) -> None:
    """New ETags in the order of the operations; or one error, with the index that is named, if any."""
    verbs = fact["operations"] * fact.get("times", 1)
    operations = [Operation(Verb(verb), {**KEY, "RowKey": f"{n}"}) for n, verb in enumerate(verbs)]
    if "etags" in fact:
        assert read_batch(answered(fact), "write", operations) == [etag or None for etag in fact["etags"]]
        return
    with pytest.raises(errors.ServiceError) as raised:
        read_batch(answered(fact), "write", operations)
    assert type(raised.value) is getattr(errors, fact["means"])
    assert (raised.value.code, raised.value.index) == (fact["code"], fact.get("index"))


def test_storage_names_no_index_where_one_operation_met_another_row_or_none() -> None:
    """Of several operations it names the one."""
    found = {
        (len(fact["operations"]) * fact.get("times", 1) == 1, fact["code"], "index" in fact)
        for one in facts("transaction")
        for fact in one.values
        if "means" in fact
    }
    assert found == {
        (True, "UpdateConditionNotSatisfied", False),
        (True, "ResourceNotFound", False),
        (True, "TableNotFound", True),
        (False, "TableNotFound", True),
        (False, "InvalidDuplicateRow", True),
        (False, "InvalidInput", True),
        (False, "EntityAlreadyExists", True),
    }


@pytest.mark.parametrize("fact", facts("write"))
def test_the_answer_to_a_write_holds_the_new_etag(fact: Fact) -> None:
    """However its header is spelled, with the row in the body or without."""
    operation = Operation(Verb(fact["operation"]), KEY)
    assert read_etag(answered(fact), "write", [operation]) == [fact.get("etag")]


@pytest.mark.parametrize("fact", facts("page"))
async def test_a_query_is_continued_as_the_service_took_it(fact: Fact) -> None:
    fetched = read_page(answered(fact), "read")
    assert len(fetched.rows) == fact["rows"]
    expected = fact.get("continuation")
    assert fetched.continuation == (None if expected is None else [tuple(pair) for pair in expected])

    asked: list[str] = []

    class Pages:
        async def read(self, request: Request, read: Any) -> Any:
            asked.append(request.path)
            first = answered(fact) if len(asked) == 1 else Answer(200, {}, b'{"value":[]}')
            return read(first, request.doing)

    query = [pair for pair in parse_qsl(fact["query"]) if pair[0] == "$filter"]
    sender = cast(Requester, Pages())
    pages = read_range(sender, "T", EVERYTHING, lambda _: [query], size=PageSize(0))
    assert sum([len(page.rows) async for page, _ in pages]) == fact["rows"]
    assert len(asked) == (1 if expected is None else 2)
    if "taken" in fact:
        ours, theirs = (
            {pair for pair in parse_qsl(text) if pair[0] not in ("$top", "timeout", "$format")}
            for text in (asked[1].partition("?")[2], fact["taken"])
        )
        assert ours == theirs


@pytest.mark.parametrize("fact", facts("row"))
def test_a_row_comes_back_in_the_form_that_is_reckoned_with(fact: Fact) -> None:
    """Types, values and key are those that were sent, a lost answer to that write is settled by the row, and
    its ETag is that of its Timestamp. Trailing zeros are left out."""
    sent, read = json.loads(fact["sent"]), decode_row(fact["got"].encode())
    kept = written_form(sent).row
    assert canonical_content(content_of(read)) == canonical_content(kept)
    assert key_of(read) == key_of(kept)
    assert write_applied(Operation(Verb.INSERT, sent), read) is WriteApplied.YES
    if "path" in fact:
        assert unquote(entity_path("T", key_of(read))) == fact["path"]
    stamp = read[TIMESTAMP]
    assert stamp == unpadded(format_ticks(ticks_of(stamp)))
    assert unquote(etag_of(read)) == f"W/\"datetime'{stamp}'\""
    moments = [name.partition("@")[0] for name, kind in read.items() if kind == "Edm.DateTime"]
    for name in moments:
        assert read[name] == unpadded(format_ticks(ticks_of(read[name])))


def test_some_timestamps_of_storage_are_shorter_than_seven_digits() -> None:
    """Else the rule about trailing zeros would be shown by none."""
    found = [json.loads(one.values[0]["got"]) for one in facts("row")]
    assert {len(row[TIMESTAMP]) for row in found} >= {27, 28}
    assert query_string([("NextRowKey", "1!8!MTAxMg--")]) == "?NextRowKey=1%218%21MTAxMg--"


# --- tables in memory, in the mood of Storage ---------------------------------------------------------------


@pytest.fixture
def service() -> MemoryTableService:
    """Tables in memory that answer like Azure Storage."""
    return MemoryTableService(clock=FakeClock(), mood=Mood.STORAGE)


@pytest.mark.parametrize("fact", facts("row"))
async def test_memory_tables_store_rows_as_the_service(service: MemoryTableService, fact: Fact) -> None:
    await service.create_table("Facts")
    sent, recorded = json.loads(fact["sent"]), decode_row(fact["got"].encode())
    await service.table("Facts").insert(sent)
    [read] = service.dump("Facts")
    content, expected = content_of(read), content_of(recorded)
    assert content == expected
    assert {name: type(value) for name, value in content.items()} == {n: type(v) for n, v in expected.items()}


async def test_timestamps_in_memory_are_as_long_as_those_of_storage() -> None:
    """And ETags are made of them."""
    clock = FakeClock()
    service = MemoryTableService(clock=clock, mood=Mood.STORAGE)
    await service.create_table("Facts")
    found = []
    for seconds in (0, 0.5, 0.1234567):
        clock.advance(seconds)
        etag = await service.table("Facts").upsert(KEY)
        [row] = service.dump("Facts")
        assert unquote(etag) == f"W/\"datetime'{row[TIMESTAMP]}'\""
        found.append(row[TIMESTAMP].partition(":00:00")[2])
    assert found == ["Z", ".5Z", ".6234567Z"]


@pytest.mark.parametrize("fact", [one for one in facts("transaction") if "means" in one.values[0]])
async def test_memory_tables_refuse_as_the_service(service: MemoryTableService, fact: Fact) -> None:
    """With the same error, and with an index where the service named one."""
    verbs = fact["operations"] * fact.get("times", 1)
    one_row = fact["code"] == "InvalidDuplicateRow"
    stale = "W/\"datetime'2012-06-15T22%3A51%3A44.9662825Z'\""
    operations = [
        Operation(Verb(verb), {**KEY, "RowKey": "r" if one_row else f"{number}"}, stale)
        for number, verb in enumerate(verbs)
    ]
    no_table = fact["means"] == "TableMissing" or (fact["code"] == "ResourceNotFound" and "insert" in verbs)
    if not no_table:
        await service.create_table("Facts")
    if fact["means"] in ("RowExists", "ConditionFailed"):
        await service.table("Facts").insert(operations[fact.get("index", 0)].row)
    with pytest.raises(getattr(errors, fact["means"])) as raised:
        await service.table("Facts").transact(operations)
    assert (raised.value.code, raised.value.status) == (fact["code"], answered_inside(fact))
    assert raised.value.index == fact.get("index")


def answered_inside(fact: Fact) -> int:
    """Return the status of the one operation that a transaction's answer tells of."""
    found = re.search(r"HTTP/1\.1 (\d{3})", "".join(fact["body"]))
    return int(found[1])
