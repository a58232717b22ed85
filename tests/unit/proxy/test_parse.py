"""A request is read in one way or refused: addresses, headers, verbs, batches; and no bytes make it fail in
another way.

Soak: whatever comes, for long.
Reason, and what `make test` covers: half an hour of made-up requests and batches; 100 of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rekey.client.sdk.calls import Write
from rekey.errors import (
    Ambiguous,
    EndpointDown,
    RequestRejected,
    RowExists,
    RowRefused,
    Unavailable,
    WritesRefused,
)
from rekey.model import EntityKey
from rekey.proxy.answer import Renaming, reply_of, reply_to_write
from rekey.proxy.batch import read_batch, write_answers, write_batch
from rekey.proxy.forward import passed_back, passed_on
from rekey.proxy.handler import answer_to, inserted_key
from rekey.proxy.parse import Incoming, ResourceKind, parse, unsigned
from rekey.tables.base import Operation, Verb
from tests.worlds.proxy import changeset

HEADERS = [("Host", "127.0.0.1:10102"), ("Accept", "application/json")]


def asked(method: str, target: str, *headers: tuple[str, str]) -> Incoming:
    """Return a request, parsed."""
    return parse(method, target, [*HEADERS, *headers], "acct")


@pytest.mark.parametrize(
    ("method", "target", "kind", "table"),
    [
        ("GET", "/acct/Users()", ResourceKind.ROWS, "Users"),
        ("GET", "/Users?$top=1", ResourceKind.ROWS, "Users"),
        ("GET", "/acct?restype=service&comp=properties", ResourceKind.SERVICE, ""),
        ("PUT", "/?restype=service&comp=properties", ResourceKind.SERVICE, ""),
        ("GET", "/acct/Tables", ResourceKind.TABLES, ""),
        ("POST", "/Tables()", ResourceKind.TABLES, ""),
        ("DELETE", "/Tables('Users')", ResourceKind.TABLE, "Users"),
        ("DELETE", "/Tables(%27Users%27)", ResourceKind.TABLE, "Users"),
        ("POST", "/$batch", ResourceKind.BATCH, ""),
        ("POST", "/%24batch", ResourceKind.BATCH, ""),
        ("GET", "/acct/Users?comp=acl", ResourceKind.ROWS, "Users"),
        ("GET", "/acct", ResourceKind.ROWS, "acct"),
        ("GET", "http://elsewhere:10102/acct/Users()", ResourceKind.ROWS, "Users"),
        ("GET", "HTTPS://[::1]/Users()?$top=1", ResourceKind.ROWS, "Users"),
        ("POST", "http://elsewhere/acct/$batch", ResourceKind.BATCH, ""),
        ("GET", "http://elsewhere?restype=service&comp=properties", ResourceKind.SERVICE, ""),
        ("GET", "/acct-secondary/Users()", ResourceKind.ROWS, "Users"),
        ("GET", "/acct-secondary/?restype=service&comp=stats", ResourceKind.SERVICE, ""),
    ],
)
def test_a_resource_is_told_by_the_last_segment(
    method: str, target: str, kind: ResourceKind, table: str
) -> None:
    found = asked(method, target)
    assert (found.kind, found.table) == (kind, table)


@pytest.mark.parametrize(
    ("spelled", "key"),
    [
        ("PartitionKey='eu',RowKey='a'", EntityKey("eu", "a")),
        ("PartitionKey='o''b',RowKey=''", EntityKey("o'b", "")),
        ("PartitionKey=%27o%27%27b%27,RowKey=%27%25%27", EntityKey("o'b", "%")),
        ("PartitionKey='eu',%20RowKey='a%20b+c'", EntityKey("eu", "a b+c")),
        ("RowKey='a',PartitionKey='eu'", EntityKey("eu", "a")),
        ("RowKey='',%20PartitionKey='o''b'", EntityKey("o'b", "")),
        ("PartitionKey='',RowKey=''',RowKey='''", EntityKey("", "',RowKey='")),
    ],
)
def test_a_key_is_what_the_address_says(spelled: str, key: EntityKey) -> None:
    """Doubled quotes are one; percent-encoding is taken off once; no comma or quote in a key ends it."""
    found = asked("GET", f"/acct/Users({spelled})")
    assert (found.kind, found.key) == (ResourceKind.ROW, key)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([("Content-Length", "3"), ("Transfer-Encoding", "chunked")], "InvalidHeaderValue"),
        ([("Content-Length", "3"), ("content-length", "3")], "InvalidHeaderValue"),
        ([("Content-Length", "-3")], "InvalidHeaderValue"),
        ([("Transfer-Encoding", "gzip, chunked")], "InvalidHeaderValue"),
        ([("Host", "other")], "InvalidHeaderValue"),
        ([("Authorization", "a"), ("authorization", "b")], "InvalidHeaderValue"),
        ([("If-Match", "*"), ("If-Match", 'W/"x"')], "InvalidHeaderValue"),
        ([("X-HTTP-Method", "DELETE"), ("X-Http-Method", "MERGE")], "InvalidHeaderValue"),
        ([("If-Match", "*\r\nX: y")], "InvalidHeaderValue"),
        ([("If-Match", "\u00e9")], "InvalidHeaderValue"),
        ([("If Match", "*")], "InvalidHeaderValue"),
        ([("Connection", "close, If-Match"), ("If-Match", "*")], "InvalidHeaderValue"),
        ([("X-HTTP-Method", "GET")], "UnsupportedHttpVerb"),
        ([("X-HTTP-Method", "")], "UnsupportedHttpVerb"),
    ],
)
def test_ambiguous_headers_are_refused(headers: list[tuple[str, str]], code: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        asked("POST", "/acct/Users", *headers)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "target",
    [
        "/acct/Users(PartitionKey='a%2Fb',RowKey='c')",
        "/acct/Users(PartitionKey='a%5cb',RowKey='c')",
        "/acct/Users(PartitionKey='a%0d%0aX:%20y',RowKey='c')",
        "/acct/Users(PartitionKey='a%',RowKey='c')",
        "/acct/Users(PartitionKey='a%zz',RowKey='c')",
        "/acct/Users(PartitionKey='%ff',RowKey='c')",
        "/acct/Users(PartitionKey='a'b',RowKey='c')",
        "/acct/Users(PartitionKey='a')",
        "/acct/Users(RowKey='a')",
        "/acct/../Users()",
        "/acct/%2e%2e/Users()",
        "/acct//Users()",
        "/acct/Users()/more",
        "/other/Users()",
        "/Us%2Fers()",
        "/Users()#x",
        "/Us ers()",
        "/\u00fc()",
        "http://elsewhere/other/Users()",
        "http://elsewhere/acct/../Users()",
        "http://user@elsewhere/acct/Users()",
        "http:///acct/Users()",
        "ftp://elsewhere/acct/Users()",
        "elsewhere:443",
        "*",
        "/1Users()",
        "/Tables('1')",
        "/$metadata",
        "/Users()?$top=1&$top=2",
        "/Users()?%24top=1&$TOP=2",
        "/Users()?$filter=%ff",
        "/Users()?COMP=acl",
        "/Users()?%20comp=acl",
        "/Users()?$Filter=RowKey%20eq%20'a'",
        "/Users()?RESTYPE=service",
        "/Users()?SIG=x",
        "/Users()?a=1&A=2",
        "/Users()?SP=r&sp=r",
        "/Tables?comp=acl",
        "/Users(PartitionKey='a',RowKey='b')?comp=acl",
    ],
)
def test_an_address_that_names_no_resource_in_one_way_is_refused(target: str) -> None:
    with pytest.raises(RequestRejected):
        asked("GET", target)


@pytest.mark.parametrize(
    ("method", "target"), [("POST", "Users"), ("DELETE", "Tables('Users')"), ("POST", "$batch")]
)
def test_nothing_is_written_under_the_name_of_a_secondary(method: str, target: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        asked(method, f"/acct-secondary/{target}")
    assert (refused.value.code, refused.value.status) == ("InsufficientAccountPermissions", 403)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("TRACE", "/Users()"),
        ("HEAD", "/Users()"),
        ("DELETE", "/Users()"),
        ("PUT", "/Tables"),
        ("GET", "/$batch"),
    ],
)
def test_a_verb_that_a_resource_does_not_have_is_refused(method: str, target: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        asked(method, target)
    assert (refused.value.code, refused.value.status) == ("UnsupportedHttpVerb", 405)


def test_a_tunnelled_method_counts_for_post_alone() -> None:
    target = "/Users(PartitionKey='a',RowKey='b')"
    found = asked("POST", target, ("X-HTTP-Method", "merge"))
    assert (found.method, found.sent_method) == ("MERGE", "POST")
    with pytest.raises(RequestRejected):
        asked("PUT", target, ("X-HTTP-Method", "DELETE"))
    with pytest.raises(RequestRejected):  # judged as a read, it would be sent on as a POST
        asked("GET", "/Users()", ("X-HTTP-Method", ""))


def test_what_authorised_a_request_and_its_connection_do_not_go_upstream() -> None:
    assert unsigned("$top=1&sv=2019&SIG=x%3D&se=y&$filter=sig") == "$top=1&$filter=sig"
    found = asked("GET", "/Users()", ("Authorization", "x"), ("Connection", "Keep-Alive, TE"), ("A", "b"))
    assert passed_on(found.headers) == {"accept": "application/json", "a": "b"}
    assert passed_back([("ETag", "e"), ("Transfer-Encoding", "chunked")]) == [("ETag", "e")]


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"PartitionKey": "a", "RowKey": "b"}', EntityKey("a", "b")),
        (b'{"PartitionKey": "a", "RowKey": "b", "PartitionKey": "c"}', None),
        (b'{"PartitionKey": "a", "RowKey": "b", "Partition\\u004bey": "c"}', None),
        (b'{"PartitionKey": "a", "RowKey": 1}', None),
        (b'{"PartitionKey": "a"}', None),
        (b'["PartitionKey"]', None),
        (b"1", None),
        (b"", None),
        (b"{", None),
    ],
)
def test_an_ambiguous_insert_has_no_key(body: bytes, key: EntityKey | None) -> None:
    assert inserted_key(replace(asked("POST", "/Users"), content=body)) == key


# --- batches ----------------------------------------------------------------------------------------------


def batch_of(body: bytes, content_type: str = "multipart/mixed; boundary=batch_1") -> Incoming:
    """Return a `$batch` request with its body."""
    found = asked("POST", "/acct/$batch", ("Content-Type", content_type))
    return replace(found, content=body)


OPERATIONS = [
    ("POST", "Users", {"PartitionKey": "p", "RowKey": "r", "Text": "--batch_1\r\n--changeset_1--"}, {}),
    ("DELETE", "Users(PartitionKey='p',RowKey='o''b')", None, {"If-Match": "*"}),
]


@pytest.mark.parametrize("end", ["\r\n", "\n"])
@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1/acct", "https://proxy.example", ""])
def test_a_changeset_is_read_and_written_anew(end: str, endpoint: str) -> None:
    """What is written upstream reads as what came; a boundary within a value ends nothing."""
    body, _ = changeset(endpoint, OPERATIONS, end)
    batch = read_batch(batch_of(body), "acct")
    assert [part.method for part in batch.parts] == ["POST", "DELETE"]
    assert [one.headers.get("content-id") for one in batch.parts] == [None, None], "a part's own is nobody's"
    assert batch.table == "Users"
    assert batch.parts[1].key == EntityKey("p", "o'b")
    content_type, again = write_batch(batch, lambda part: f"http://up/acct/{part.resource}")
    assert b"POST http://up/acct/Users HTTP/1.1\r\n" in again
    other = read_batch(batch_of(again, content_type), "acct")
    assert [(one.method, one.resource, one.content) for one in other.parts] == [
        (one.method, one.resource, one.content) for one in batch.parts
    ]


QUERY = "\r\n".join(
    (
        *("--batch_1", "Content-Type: application/http", ""),
        *("GET http://h/acct/Users() HTTP/1.1", "Accept: application/json", "", "", "--batch_1--"),
    )
)


def test_a_query_stands_alone() -> None:
    batch = read_batch(batch_of(QUERY.encode()), "acct")
    assert batch.is_query
    assert batch.table == "Users"
    with pytest.raises(RequestRejected):
        read_batch(batch_of(QUERY.replace("GET", "POST").encode()), "acct")
    with pytest.raises(RequestRejected):
        read_batch(batch_of(QUERY.replace("--batch_1--", "POST /x HTTP/1.1\r\n--batch_1--").encode()), "acct")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--batch_1--", ""),
        ("--changeset_1--", "--changeset_1"),
        ("Content-Type: application/http", "Content-Type: text/plain"),
        ("HTTP/1.1", "HTTP/2"),
        ("POST", "GET"),
        ("Users(PartitionKey", "Others(PartitionKey"),
        ("http://h/acct/Users HTTP", "http://h/other/Users HTTP"),
        ("http://h/acct/Users HTTP", "http://[h/acct/Users HTTP"),
        ("http://h/acct/Users HTTP", "http://h/acct/Tables HTTP"),
        ("If-Match: *", "If-Match: *\r\nIf-Match: x"),
        ("If-Match: *", "If-Match"),
        ("If-Match: *", "X-HTTP-Method: "),
        ("boundary=changeset_1", "boundary=other"),
    ],
)
def test_a_batch_that_cannot_be_read_in_one_way_is_refused(before: str, after: str) -> None:
    plain = [("POST", "Users", {"PartitionKey": "p", "RowKey": "r"}, {}), OPERATIONS[1]]
    body = changeset("http://h/acct", plain)[0].decode()
    assert before in body
    with pytest.raises(RequestRejected):
        read_batch(batch_of(body.replace(before, after).encode()), "acct")


def test_more_operations_than_a_changeset_has_are_refused_by_the_index_of_the_first_too_many() -> None:
    many = [("POST", "Users", {"PartitionKey": "p", "RowKey": str(number)}, {}) for number in range(101)]
    with pytest.raises(RequestRejected) as refused:
        read_batch(batch_of(changeset("", many)[0]), "acct")
    assert (refused.value.index, refused.value.code) == (99, "InvalidInput")


# --- aliases ----------------------------------------------------------------------------------------------


def test_an_alias_is_told_in_links_and_never_in_values() -> None:
    renaming = Renaming("UsersV2", "Users")
    body = (
        b'{"odata.metadata":"https://usersv2.table/$metadata#UsersV2/@Element","odata.type":"acct.UsersV2",'
        b'"odata.editLink":"UsersV2(PartitionKey=\'UsersV2\',RowKey=\'r\')","PartitionKey":"UsersV2","N":1.5}'
    )
    found = renaming.body(body, "application/json;odata=fullmetadata")
    assert found == (
        b'{"odata.metadata":"https://usersv2.table/$metadata#Users/@Element","odata.type":"acct.Users",'
        b'"odata.editLink":"Users(PartitionKey=\'UsersV2\',RowKey=\'r\')","PartitionKey":"UsersV2","N":1.5}'
    )
    assert renaming.headers({"Location": "https://h/Tables('UsersV2')", "X": "UsersV2"}) == {
        "Location": "https://h/Tables('Users')",
        "X": "UsersV2",
    }
    _, answer = write_answers([(204, [("Location", "http://h/a/UsersV2(PartitionKey='UsersV2')")], b"")])
    assert b"Location: http://h/a/Users(PartitionKey='UsersV2')\r\n" in renaming.body(
        answer, "multipart/mixed"
    )


# --- whatever comes ---------------------------------------------------------------------------------------

TARGETS = st.one_of(
    st.text(),
    st.text(alphabet="/%$?&=()',#\\UsersTablpRowKyPtin0123456789abcdefABCDEF ", max_size=60),
    st.builds("/acct/Users(PartitionKey='{}',RowKey='{}'){}".format, st.text(), st.text(), st.text()),
)


REQUESTS = (
    st.sampled_from(["GET", "POST", "PUT", "MERGE", "DELETE", "OPTIONS", ""]),
    TARGETS,
    st.lists(st.tuples(st.sampled_from(["If-Match", "Host", "Content-Length", "X-HTTP-Method"]), st.text())),
)


@given(*REQUESTS)
def test_whatever_comes_is_read_or_refused(method: str, target: str, headers: list[tuple[str, str]]) -> None:
    try:
        found = parse(method, target, headers, "acct")
    except RequestRejected as refused:
        assert 400 <= refused.status < 500
        return
    assert "/" not in found.resource
    assert found.kind is not ResourceKind.ROW or found.key is not None


PIECES = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *(b"--batch_1", b"--changeset_1", b"--", b"\r\n", b"\n", b"\r\n\r\n", b": ", b"{}", b"\xff"),
                *(b"Content-Type: multipart/mixed; boundary=changeset_1", b"Content-Type: application/http"),
                *(b"POST http://h/acct/Users HTTP/1.1", b"GET /Users() HTTP/1.1", b"Content-ID: 1"),
            ]
        ),
        st.binary(max_size=8),
    ),
    max_size=40,
)


@given(PIECES)
def test_whatever_a_batch_holds_it_is_read_or_refused(pieces: list[bytes]) -> None:
    try:
        batch = read_batch(batch_of(b"".join(pieces)), "acct")
    except RequestRejected as refused:
        assert 400 <= refused.status < 500
        return
    write_batch(batch, lambda part: part.url)


@pytest.mark.soak
@pytest.mark.parametrize(
    "tried", [test_whatever_comes_is_read_or_refused, test_whatever_a_batch_holds_it_is_read_or_refused]
)
def test_whatever_comes_for_long(tried: Callable[[], None]) -> None:
    limits = settings(max_examples=300_000, suppress_health_check=list(HealthCheck), database=None)
    limits(tried)()


# --- answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefer", "status", "applied"),
    [
        ("return-no-content", 204, True),
        ("return-content", 201, True),
        ("", 201, False),
        ("respond-async", 201, False),
    ],
)
def test_a_successful_insert_is_reported_whatever_its_row(prefer: str, status: int, applied: bool) -> None:
    """Also one of which the service took what is refused here. A preference that nobody knows is none."""
    found = asked("POST", "/acct/Users", *([("Prefer", prefer)] if prefer else []))
    row = {"PartitionKey": "p", "RowKey": "o'b", "At": "no time", "At@odata.type": "Edm.DateTime"}
    write = Write((Operation(Verb.INSERT, row),))
    etag = "W/\"datetime'2024-02-29T12%3A00%3A00.1234567Z'\""
    reply = reply_to_write(found, write, [etag], "http://h/acct", "acct", None)
    headers = dict(reply.headers)
    assert (reply.status, headers["ETag"], "Preference-Applied" in headers) == (status, etag, applied)
    assert headers["Location"] == "http://h/acct/Users(PartitionKey='p',RowKey='o''b')"
    assert ("DataServiceId" in headers) is (status == 204)
    if status == 201:
        told = json.loads(reply.body)
        assert told["Timestamp"] == "2024-02-29T12:00:00.1234567Z"
        assert {name: told[name] for name in row} == row


def test_an_error_of_the_writer_is_told_in_the_services_words() -> None:
    """A row that can never be written is 400 with rekey's code; what may be tried again 503 with Retry-After;
    what is open 500."""
    for error, status, code in (
        (
            RowRefused("missing-property", "target.row_key", "is missing", cure="add it"),
            400,
            "missing-property",
        ),
        (WritesRefused("frozen", "a freeze", hint="wait", retryable=True), 503, "ServerBusy"),
        (WritesRefused("old-view-over", "it is over", hint="deploy"), 403, "old-view-over"),
        (EndpointDown("no connection to http://inside", code="X"), 503, "ServerBusy"),
        (Unavailable("not answered by https://inside:443/a (X)", code="X"), 503, "ServerBusy"),
        (Ambiguous("sent", code="X"), 500, "OperationTimedOut"),
        (TimeoutError(), 500, "OperationTimedOut"),
        (RowExists("there", code="EntityAlreadyExists", status=409), 409, "EntityAlreadyExists"),
    ):
        reply = reply_of({}, answer_to(error, "Users", reads=False))
        told = json.loads(reply.body)["odata.error"]
        assert (reply.status, told["code"]) == (status, code)
        assert ("Retry-After" in dict(reply.headers)) is (status == 503)
        assert "RequestId:" in told["message"]["value"]
        assert b"inside" not in reply.body


@pytest.mark.parametrize(("index", "text"), [(1, "1:row x: target"), (None, "row x: target")])
def test_a_row_of_a_transaction_that_the_mapping_refuses_is_told_in_a_part(
    index: int | None, text: str
) -> None:
    """SDKs read the failing operation's index, and make their exceptions for transactions, of that alone.
    What is about no row is told for the whole transaction."""
    refused = RowRefused("row-too-large", "target", "is too large", cure="drop properties", row_id="x")
    refused.index = index
    answer = answer_to(refused, "Users", reads=False, batch=True)
    reply = reply_of({}, answer)
    status, body = reply.body.decode().split("HTTP/1.1 ")[1].split(" ", 1)
    told = json.loads(body[body.index("{") : body.rindex("}") + 1])["odata.error"]
    assert (reply.status, status, told["code"]) == (202, "400", "row-too-large")
    assert told["message"]["value"].startswith(text)
    over = WritesRefused("old-view-over", "it is over", hint="deploy")
    assert reply_of({}, answer_to(over, "Users", reads=False, batch=True)).status == 403
