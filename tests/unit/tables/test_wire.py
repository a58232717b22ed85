"""The wire format, byte by byte."""

from __future__ import annotations

import math
from urllib.parse import unquote

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekey.errors import RequestRejected
from rekey.model import EntityKey, Row
from rekey.tables.base import Operation, Verb
from rekey.tables.wire import (
    BOUNDARY_BYTES,
    BatchFailure,
    Encoder,
    batch_body,
    decode_row,
    decode_rows,
    encode_row,
    entity_path,
    error_code,
    parse_batch,
    query_string,
)

ENDPOINT = "http://127.0.0.1:10002/tables"
MARK = "0123456789abcdef0123456789abcdef"


def row(**properties: object) -> Row:
    return {"PartitionKey": "p", "RowKey": "r", **properties}


# --- addresses -----------------------------------------------------------------------------------------


def test_an_address_is_escaped_whole_and_quotes_are_doubled() -> None:
    path = entity_path("T", EntityKey("it's", "100%25 +é😀&=,)."))
    assert path == "T(PartitionKey='it%27%27s',RowKey='100%2525%20%2B%C3%A9%F0%9F%98%80%26%3D%2C%29.')"


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_any_key_can_be_read_back_from_its_address(partition: str, row_key: str) -> None:
    path = entity_path("T", EntityKey(partition, row_key))
    assert path.isascii()
    inner = path.removeprefix("T(PartitionKey='").removesuffix("')")
    found = [unquote(part).replace("''", "'") for part in inner.split("',RowKey='")]
    assert found == [partition, row_key]


@pytest.mark.parametrize("key", [EntityKey("\ud800", ""), EntityKey("", b"r")], ids=["surrogate", "bytes"])  # type: ignore[arg-type]
def test_a_key_that_has_no_address_is_refused(key: EntityKey) -> None:
    with pytest.raises(RequestRejected):
        entity_path("T", key)


def test_query_parameters_are_escaped() -> None:
    assert query_string([]) == ""
    assert query_string([("$filter", "A eq 'x+y'"), ("$top", "5")]) == "?$filter=A%20eq%20%27x%2By%27&$top=5"


# --- JSON ----------------------------------------------------------------------------------------------


def test_text_goes_out_as_utf8() -> None:
    """Also what begins in UTF-8 as line separators do: dashes, quotes, the euro."""
    assert encode_row(row(A="é漢😀–’€")) == '{"PartitionKey":"p","RowKey":"r","A":"é漢😀–’€"}'.encode()


def test_line_separators_are_escaped_because_azurite_ends_a_body_there() -> None:
    encoded = encode_row(row(A="a\u2028b\u2029"))
    assert encoded.endswith(b'"A":"a\\u2028b\\u2029"}')
    assert orjson.loads(encoded)["A"] == "a\u2028b\u2029"


def test_half_a_surrogate_pair_in_a_value_survives() -> None:
    """Old .NET clients can have stored one; UTF-8 cannot hold it, JSON can."""
    encoded = encode_row(row(A="x\ud83dy"))
    assert b"\\ud83d" in encoded
    assert decode_row(encoded[:-1] + b',"odata.etag":"e"}')["A"] == "x\ud83dy"


def test_a_whole_double_goes_out_with_its_type() -> None:
    assert orjson.loads(encode_row(row(A=3.0, B=0.5)))["A@odata.type"] == "Edm.Double"
    assert "B@odata.type" not in orjson.loads(encode_row(row(A=3.0, B=0.5)))


def test_minus_zero_keeps_its_sign_both_ways() -> None:
    """Azurite loses it (shown on the wire format and in memory instead of there)."""
    encoded = encode_row(row(A=-0.0))
    assert b'"A":-0.0' in encoded
    assert math.copysign(1.0, decode_row(encoded[:-1] + b',"odata.etag":"e"}')["A"]) == -1.0


def test_what_the_server_owns_is_not_sent() -> None:
    read = {"odata.etag": "e", **row(A=1), "Timestamp": "2024-01-01T00:00:00Z"}
    assert orjson.loads(encode_row(read)) == row(A=1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, b"x", ["x"], {"x": 1}, {1}])
def test_a_value_that_json_would_change_is_refused(value: object) -> None:
    with pytest.raises(RequestRejected):
        encode_row(row(A=value))


def test_a_page_without_rows_and_a_row_without_etag_are_malformed() -> None:
    for body in (b"", b"[]", b"{}", b'{"value":{}}', b"<html>"):
        with pytest.raises(ValueError):
            decode_rows(body)
        with pytest.raises(ValueError):
            decode_row(body)


# --- batches -------------------------------------------------------------------------------------------


def test_a_batch_is_exactly_this() -> None:
    encoder = Encoder(ENDPOINT, "T")
    operations = [
        Operation(Verb.INSERT, row(A=1)),
        Operation(Verb.MERGE, row(A=2), 'W/"x"'),
        Operation(Verb.DELETE, row()),
    ]
    body = batch_body([encoder.encode(operation) for operation in operations], MARK)
    common = "Accept: application/json;odata=minimalmetadata\r\n"
    sending = f"{common}Content-Type: application/json\r\nDataServiceVersion: 3.0\r\n"
    part = (
        f"--changeset_{MARK}\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"
    )
    address = f"{ENDPOINT}/T(PartitionKey='p',RowKey='r')"
    assert body.decode() == (
        f"--batch_{MARK}\r\nContent-Type: multipart/mixed; boundary=changeset_{MARK}\r\n\r\n"
        f"{part}POST {ENDPOINT}/T HTTP/1.1\r\n{sending}Prefer: return-no-content\r\n\r\n"
        '{"PartitionKey":"p","RowKey":"r","A":1}\r\n\r\n'
        f'{part}PATCH {address} HTTP/1.1\r\n{sending}If-Match: W/"x"\r\n\r\n'
        '{"PartitionKey":"p","RowKey":"r","A":2}\r\n\r\n'
        f"{part}DELETE {address} HTTP/1.1\r\n{common}DataServiceVersion: 3.0\r\nIf-Match: *\r\n\r\n\r\n"
        f"--changeset_{MARK}--\r\n--batch_{MARK}--\r\n"
    )


@pytest.mark.parametrize("verb", [Verb.INSERT_OR_MERGE, Verb.INSERT_OR_REPLACE])
def test_an_upsert_carries_no_condition_even_when_given_one(verb: Verb) -> None:
    assert b"If-Match" not in Encoder(ENDPOINT, "T").encode(Operation(verb, row(), 'W/"x"'))


def test_counted_bytes_are_the_bytes_of_the_body() -> None:
    encoder = Encoder(ENDPOINT, "T")
    operations = [Operation(Verb.INSERT, row(A="漢" * number)) for number in range(5)]
    body = batch_body([encoder.encode(operation) for operation in operations], MARK)
    frame = len(batch_body([], MARK))
    assert len(body) <= sum(map(encoder.size, operations)) + frame
    assert encoder.size(operations[1]) - encoder.size(operations[0]) == 3
    assert BOUNDARY_BYTES < 64
    assert frame < 1024


def test_an_operation_is_encoded_once_for_each_table() -> None:
    operation = Operation(Verb.INSERT, row(A=1))
    first, second = Encoder(ENDPOINT, "T"), Encoder(ENDPOINT, "U")
    assert first.encode(operation) is first.encode(operation)
    assert b"/U HTTP" in second.encode(operation)
    assert operation == Operation(Verb.INSERT, row(A=1))
    assert "RowKey" not in repr(operation)


SUCCESS = (
    b"--batchresponse_1\r\nContent-Type: multipart/mixed; boundary=changesetresponse_1\r\n\r\n"
    b"--changesetresponse_1\r\nContent-Type: application/http\r\n\r\n"
    b"HTTP/1.1 204 No Content\r\nDataServiceVersion: 3.0;\r\nETag: W/\"datetime'1'\"\r\n\r\n\r\n"
    b"--changesetresponse_1\r\nContent-Type: application/http\r\n\r\n"
    b"HTTP/1.1 204 No Content\r\nX-Content-Type-Options: nosniff\r\n\r\n\r\n"
    b"--changesetresponse_1--\r\n--batchresponse_1--\r\n"
)


def failure(message: str, code: str = "EntityAlreadyExists") -> bytes:
    described = orjson.dumps({"odata.error": {"code": code, "message": {"lang": "en", "value": message}}})
    return (
        b"--batchresponse_1\r\n\r\n--changesetresponse_1\r\n\r\nHTTP/1.1 409 Conflict\r\nContent-ID: 1\r\n"
        b"Content-Type: application/json\r\n\r\n" + described + b"\r\n--changesetresponse_1--\r\n"
    )


def test_the_etags_of_a_batch_come_in_order() -> None:
    assert parse_batch(SUCCESS, 2) == ["W/\"datetime'1'\"", None]


@pytest.mark.parametrize("ends", ["\r\n", "\n"])
@pytest.mark.parametrize("name", ["ETag: ", "etag:"])
@pytest.mark.parametrize("etag", ["W/\"datetime'2'\"", '"a b"', '"é"'])
def test_etags_are_read_however_an_answer_spells_them(ends: str, name: str, etag: str) -> None:
    head = f"HTTP/1.1 204 No Content{ends}{name}"
    answer = f"--c{ends}{head}W/first{ends}{ends}--c{ends}{head}{etag}{ends}{ends}--c--{ends}"
    assert parse_batch(answer.encode("latin-1"), 2) == ["W/first", etag]


@pytest.mark.parametrize(
    ("message", "index"),
    [("7:The entity exists.", 7), ("42:x\nHTTP/1.1 204 No Content\n", 42), ("no index", None), ("", None)],
)
def test_the_failing_operation_of_a_batch_is_named_if_known(message: str, index: int | None) -> None:
    assert parse_batch(failure(message), 50) == BatchFailure(409, "EntityAlreadyExists", index)


@pytest.mark.parametrize("count", [1, 3])
def test_an_answer_for_another_number_of_operations_is_malformed(count: int) -> None:
    with pytest.raises(ValueError):
        parse_batch(SUCCESS, count)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"odata.error":{}}', b"\xff\xfe"])
def test_an_error_without_a_readable_code_has_none(body: bytes) -> None:
    assert error_code(body) == ("", None)
