"""What an answer says, and when it counts as none."""

from __future__ import annotations

import pytest

from rekey.errors import CredentialRefused, RowExists
from rekey.tables.answers import Answer, read_batch, read_etag, read_page, read_tables, read_time
from rekey.tables.base import Operation, Verb

KEY = {"PartitionKey": "p", "RowKey": "r"}
INSERT, DELETE = Operation(Verb.INSERT, KEY), Operation(Verb.DELETE, KEY)


def answer(status: int, body: bytes = b"", **headers: str) -> Answer:
    return Answer(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


def test_a_write_without_an_etag_in_its_answer_counts_as_unanswered() -> None:
    """An empty ETag, given back as a condition, would be no condition at all."""
    assert read_etag(answer(204, ETag="x"), "insert", [INSERT]) == ["x"]
    assert read_etag(answer(204), "delete", [DELETE]) == [None]
    with pytest.raises(ValueError):
        read_etag(answer(204), "insert", [INSERT])
    part = b"--changesetresponse_1\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n\r\n"
    assert read_batch(answer(202, part), "batch", [DELETE]) == [None]
    with pytest.raises(ValueError):
        read_batch(answer(202, part), "batch", [INSERT])


def test_an_error_code_may_stand_in_a_header_alone() -> None:
    with pytest.raises(RowExists):
        read_etag(answer(409, x_ms_error_code="EntityAlreadyExists"), "insert", [INSERT])


@pytest.mark.parametrize("status", [200, 403])
def test_the_time_stands_on_any_answer(status: int) -> None:
    """A role on one table may not list tables, and still learns the time."""
    found = read_time(answer(status, Date="Wed, 31 Jan 2024 12:00:00 GMT"), "time")
    assert found == "2024-01-31T12:00:00.0000000Z"


def test_a_wrong_credential_is_told_also_when_asked_for_the_time() -> None:
    with pytest.raises(CredentialRefused):
        read_time(answer(401, Date="Wed, 31 Jan 2024 12:00:00 GMT"), "time")


def test_a_continuation_may_lack_its_row_key_or_have_an_empty_one() -> None:
    """Sent back empty, the service answers 400: recorded in AzureStorageExplorer #5434 and #5584."""
    page = read_page(answer(200, b'{"value":[]}', x_ms_continuation_NextPartitionKey="1!4!cA--"), "scan")
    assert page.continuation == [("NextPartitionKey", "1!4!cA--")]
    empty = {"x_ms_continuation_NextPartitionKey": "1!8!dXNlcg--", "x_ms_continuation_NextRowKey": ""}
    page = read_page(answer(200, b'{"value":[]}', **empty), "scan")
    assert page.continuation == [("NextPartitionKey", "1!8!dXNlcg--")]
    empty["x_ms_continuation_NextPartitionKey"] = ""
    assert read_page(answer(200, b'{"value":[]}', **empty), "scan").continuation is None
    assert read_page(answer(200, b'{"value":[]}'), "scan").continuation is None


def test_a_list_of_tables_is_continued_where_its_header_says() -> None:
    names = b'{"value":[{"TableName":"Users"}]}'
    first = answer(200, names, x_ms_continuation_NextTableName="1!8!VXNlcnM-")
    assert read_tables(first, "list") == (["Users"], "1!8!VXNlcnM-")
    assert read_tables(answer(200, names), "list") == (["Users"], None)
