"""A service that breaks one thing that rekey takes for granted: a proxy in front of Azurite, and deviations.

Each deviation stands for something that was seen, or is easily imagined: a gateway that caches or repeats, an
imitation that sorts otherwise, a store that rounds times. It gets what was asked, and what passes it on.
"""

from __future__ import annotations

import asyncio
import json
import re
import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import replace
from email.utils import formatdate, parsedate_to_datetime
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from tests.fakes.fault_proxy import Answered, Asked, FaultProxy, error_answer

Forward: TypeAlias = Callable[[Asked], Awaitable[Answered]]
Deviate: TypeAlias = Callable[[Asked, Forward], Awaitable[Answered]]


class DeviatingProxy(FaultProxy):
    """Passes requests on through a deviation."""

    def __init__(self, upstream: str, deviate: Deviate | None = None) -> None:
        super().__init__(upstream)
        self._deviate = deviate

    async def _pass_on(self, asked: Asked) -> Answered:
        forward = super()._pass_on
        return await (forward(asked) if self._deviate is None else self._deviate(asked, forward))


# --- what deviations are made of -------------------------------------------------------------------------


def is_row(asked: Asked) -> bool:
    """Whether one row is addressed."""
    return "(PartitionKey=" in asked.target


def is_scan(asked: Asked) -> bool:
    """Whether it is a query of rows."""
    return asked.method == "GET" and "()" in asked.target


def is_insert(asked: Asked) -> bool:
    """Whether it is an insert of one row."""
    return asked.method == "POST" and not asked.target.endswith(("$batch", "Tables"))


def is_batch(asked: Asked) -> bool:
    """Whether it is a transaction."""
    return asked.target.partition("?")[0].endswith("$batch")


def with_body(asked: Asked, body: bytes) -> Asked:
    """Return a request with another body."""
    return replace(asked, body=body, headers={**asked.headers, "Content-Length": str(len(body))})


def answering(matches: Callable[[Asked], bool], change: Callable[[Asked, Answered], Answered]) -> Deviate:
    """Return a deviation that changes answers."""

    async def deviate(asked: Asked, forward: Forward) -> Answered:
        answer = await forward(asked)
        return change(asked, answer) if matches(asked) else answer

    return deviate


def asking(matches: Callable[[Asked], bool], change: Callable[[Asked], Asked | Answered]) -> Deviate:
    """Return a deviation that changes requests, or answers them by itself."""

    async def deviate(asked: Asked, forward: Forward) -> Answered:
        changed = change(asked) if matches(asked) else asked
        return changed if isinstance(changed, Answered) else await forward(changed)

    return deviate


def of_rows(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Deviate:
    """Return a deviation that changes the rows of scans."""

    def changed(_asked: Asked, answer: Answered) -> Answered:
        if answer.status != 200:
            return answer
        page = json.loads(answer.body)
        return replace(answer, body=json.dumps({**page, "value": change(page["value"])}).encode())

    return answering(is_scan, changed)


def substituted(pattern: bytes, by: bytes | Callable[[re.Match[bytes]], bytes]) -> Deviate:
    """Return a deviation that changes text in the answers to reads."""
    return answering(
        lambda asked: asked.method == "GET",
        lambda _asked, answer: replace(answer, body=re.sub(pattern, by, answer.body)),
    )


def refusing(matches: Callable[[Asked], bool], status: int, code: str = "") -> Deviate:
    """Return a deviation that refuses requests."""
    return asking(matches, lambda _asked: error_answer(status, code))


def instead_of(status: int, answer: Answered, matches: Callable[[Asked], bool]) -> Deviate:
    """Return a deviation that gives another answer instead of those of a status."""
    return answering(matches, lambda _asked, real: answer if real.status == status else real)


def without_condition(asked: Asked) -> Asked:
    """Return a request without its condition."""
    return replace(asked, headers={name: one for name, one in asked.headers.items() if name != "If-Match"})


def on_any_version(asked: Asked) -> Asked:
    """Return a request whose condition holds for any version."""
    return replace(asked, headers={**asked.headers, "If-Match": "*"})


def has_condition(asked: Asked) -> bool:
    """Whether it is conditional on one version."""
    return asked.headers.get("If-Match", "*") != "*"


DONE = Answered(
    204, {"ETag": "W/\"datetime'2024-01-01T00%3A00%3A00.0000000Z'\"", "x-ms-version": "2020-12-06"}
)


def caching() -> Deviate:
    """Return a deviation that answers a point read as it did before."""
    kept: dict[str, Answered] = {}

    async def deviate(asked: Asked, forward: Forward) -> Answered:
        if asked.method != "GET" or not is_row(asked):
            return await forward(asked)
        if asked.target not in kept:
            kept[asked.target] = await forward(asked)
        return kept[asked.target]

    return deviate


def repeating(method: str) -> Deviate:
    """Return a deviation that sends writes of a method once more, a little later."""
    tasks: set[asyncio.Task[Answered]] = set()

    async def deviate(asked: Asked, forward: Forward) -> Answered:
        answer = await forward(asked)
        if asked.method == method and is_row(asked):

            async def again() -> Answered:
                await asyncio.sleep(0.4)
                return await forward(asked)

            tasks.add(asyncio.create_task(again()))
        return answer

    return deviate


async def half_applied(asked: Asked, forward: Forward) -> Answered:
    """Carry out all operations of a transaction but the last one, when the whole fails."""
    answer = await forward(asked)
    if is_batch(asked) and b"HTTP/1.1 4" in answer.body:
        separator = re.search(rb"--changeset_\w+\r\n", asked.body)
        end = re.search(rb"--changeset_\w+--", asked.body)
        if separator is not None and end is not None:
            cut = asked.body.rfind(separator[0])
            await forward(with_body(asked, asked.body[:cut] + asked.body[end.start() :]))
    return answer


def dating(shift: Callable[[int], float]) -> Deviate:
    """Return a deviation that shifts the service's clock, by the number of the answer, in seconds."""
    count = 0

    def changed(_asked: Asked, answer: Answered) -> Answered:
        nonlocal count
        count += 1
        told = parsedate_to_datetime(answer.headers["Date"]).timestamp()
        return replace(
            answer, headers={**answer.headers, "Date": formatdate(told + shift(count), usegmt=True)}
        )

    return answering(lambda _asked: True, changed)


def header(name: str, value: str | None, matches: Callable[[Asked], bool]) -> Deviate:
    """Return a deviation that sets or leaves out a header of answers."""

    def changed(_asked: Asked, answer: Answered) -> Answered:
        kept = {one: text for one, text in answer.headers.items() if one.lower() != name.lower()}
        there = len(kept) < len(answer.headers)
        return replace(answer, headers={**kept, name: value} if there and value is not None else kept)

    return answering(matches, changed)


def falling() -> Deviate:
    """Return a deviation whose Timestamps fall from answer to answer."""
    left = 50

    def stamp(_found: re.Match[bytes]) -> bytes:
        nonlocal left
        left -= 1
        return b'"Timestamp":"2024-01-31T12:00:%02d.1234567Z"' % left

    return substituted(rb'"Timestamp":"[^"]*"', stamp)


def reversed_etags(_asked: Asked, answer: Answered) -> Answered:
    """Exchange the ETags in the answer to a transaction."""
    found = re.findall(rb"(?i)etag: ?[^\r\n]+", answer.body)
    back = iter(reversed(found))
    return replace(answer, body=re.sub(rb"(?i)etag: ?[^\r\n]+", lambda _one: next(back), answer.body))


def without(parameter: str) -> Callable[[Asked], Asked]:
    """Return what takes a parameter out of a request."""
    return lambda asked: replace(asked, target=re.sub(rf"(?<=[?&])\{parameter}=[^&]*&?", "", asked.target))


def later_pages(asked: Asked) -> bool:
    """Whether it asks for a page after the first one."""
    return is_scan(asked) and "NextPartitionKey" in asked.target


def without_first(_asked: Asked, answer: Answered) -> Answered:
    """Leave out the first row of a page."""
    page = json.loads(answer.body)
    return replace(answer, body=json.dumps({**page, "value": page["value"][1:]}).encode())


MIB = 1024 * 1024
DEVIATIONS: dict[str, tuple[str, Deviate]] = {
    "an insert says that it overwrote": ("insert-once/again", instead_of(409, DONE, is_insert)),
    "a conflict has no code": ("insert-once/again", instead_of(409, error_answer(409), is_insert)),
    "an update inserts": (
        "update-needs-row/replace",
        asking(lambda one: one.method == "PUT", without_condition),
    ),
    "a delete of nothing is done": (
        "update-needs-row/delete",
        instead_of(404, DONE, lambda one: one.method == "DELETE" and is_row(one)),
    ),
    "conditions of deletes are ignored": (
        "conditions/delete",
        asking(lambda one: one.method == "DELETE" and has_condition(one), on_any_version),
    ),
    "conditions of merges are ignored": (
        "conditions/merge",
        asking(lambda one: one.method == "PATCH" and has_condition(one), on_any_version),
    ),
    "a failed condition is a conflict": (
        "conditions/replace",
        instead_of(412, error_answer(409, "EntityAlreadyExists"), has_condition),
    ),
    "every writer wins": ("one-winner/winners", asking(has_condition, on_any_version)),
    "a merge replaces": (
        "replace-and-merge/merge",
        asking(lambda one: one.method == "PATCH", lambda one: replace(one, method="PUT")),
    ),
    "an upsert merges": (
        "replace-and-merge/insert_or_replace",
        asking(
            lambda one: one.method == "PUT" and "If-Match" not in one.headers,
            lambda one: replace(one, method="PATCH"),
        ),
    ),
    "an ETag comes back": ("etags/new", header("ETag", DONE.headers["ETag"], lambda one: True)),
    "a scan gives other ETags": (
        "etags/scanned",
        of_rows(lambda rows: [{**row, "odata.etag": 'W/"another"'} for row in rows]),
    ),
    "point reads are cached": ("read-after-write/merge", caching()),
    "a PUT is repeated": ("not-repeated/put_once", repeating("PUT")),
    "a DELETE is repeated": ("not-repeated/delete_once", repeating("DELETE")),
    "rows come by code point": (
        "order/in_order",
        of_rows(lambda rows: sorted(rows, key=lambda row: (row["PartitionKey"], row["RowKey"]))),
    ),
    "rows come unsorted": ("order/in_order", of_rows(lambda rows: rows[::-1])),
    "keys lose their last space": (
        "odd-keys/filtered",
        of_rows(lambda rows: [{**row, "RowKey": row["RowKey"].rstrip()} for row in rows]),
    ),
    "keys are normalised": (
        "odd-keys/filtered",
        of_rows(
            lambda rows: [{**row, "RowKey": unicodedata.normalize("NFC", row["RowKey"])} for row in rows]
        ),
    ),
    "addresses are decoded once more": (
        "addresses/misread",
        asking(is_row, lambda one: replace(one, target=quote(unquote(unquote(one.target)), safe="/(),='?&"))),
    ),
    "a continuation is lost": ("pages/rows", header("x-ms-continuation-NextPartitionKey", None, is_scan)),
    "pages lose their last row": ("pages/rows", of_rows(lambda rows: rows[:-1])),
    "pages overlap": ("pages/rows", of_rows(lambda rows: rows[:1] + rows)),
    "an empty page ends a scan": (
        "pages/rows",
        answering(
            later_pages,
            lambda _asked, one: replace(
                one, headers={"Content-Type": "application/json"}, body=b'{"value":[]}'
            ),
        ),
    ),
    "a scan moves on by numbers": ("moving-scan/staying", answering(later_pages, without_first)),
    "filters are ignored": ("ranges/across", asking(is_scan, without("$filter"))),
    "a selection loses types": ("selection/read", substituted(rb'"A@odata.type":"[^"]*",', b"")),
    "Timestamps have whole seconds": (
        "timestamps/resolution",
        substituted(rb'("Timestamp":"[^".]*)\.\d+Z', lambda found: found[1] + b"Z"),
    ),
    "Timestamps have milliseconds": (
        "timestamps/resolution",
        substituted(rb'("Timestamp":"[^".]*\.\d{3})\d*Z', lambda found: found[1] + b"Z"),
    ),
    "Timestamps fall": ("timestamps/of_a_partition_do_not_fall", falling()),
    "a filter leaves out the moment itself": (
        "changed-since/equal",
        asking(
            is_scan, lambda one: replace(one, target=one.target.replace("Timestamp%20ge", "Timestamp%20gt"))
        ),
    ),
    "a filter on Timestamp is ignored": (
        "changed-since/older",
        asking(
            is_scan,
            lambda one: replace(one, target=re.sub(r"%20and%20Timestamp%20ge.*?(?=&|$)", "", one.target)),
        ),
    ),
    "the clock is a minute behind": ("clock/timestamps_off", dating(lambda _count: -60.0)),
    "the clock falls": ("clock/falls", dating(lambda count: -20.0 if count % 2 else 0.0)),
    "the service knows no time limit": (
        "service-time/error",
        refusing(lambda one: "timeout=" in one.target, 400, "InvalidQueryParameterValue"),
    ),
    "an Int64 becomes a number": (
        "values/altered",
        substituted(
            rb'"int64@odata.type":"Edm.Int64",|"int64":"(\d+)"',
            lambda found: found[0][:0] + (b'"int64":' + found[1] if found[1] else b""),
        ),
    ),
    "a DateTime loses 100 ns": ("values/altered", substituted(rb"12:00:00\.123456\dZ", b"12:00:00.123456Z")),
    "text is trimmed": ("values/altered", substituted(rb"\\r\\n\\t", b"\\\\n")),
    "a gateway takes 32 KiB": (
        "value-limits/string_32767",
        refusing(lambda one: is_insert(one) and len(one.body) > 32000, 413, "RequestBodyTooLarge"),
    ),
    "keys have 255 characters at most": (
        "key-limits/units_512",
        refusing(lambda one: is_insert(one) and b"k" * 256 in one.body, 400, "InvalidInput"),
    ),
    "a slash in a key is taken": (
        "key-limits/slash",
        asking(lambda one: is_insert(one) and b"a/b" in one.body, lambda _one: DONE),
    ),
    "rows have half a MiB at most": (
        "row-limits/kib_992",
        refusing(lambda one: is_insert(one) and len(one.body) > MIB / 4, 413, "EntityTooLarge"),
    ),
    "ETags of a transaction are out of order": (
        "transaction/etags_in_order",
        answering(is_batch, reversed_etags),
    ),
    "a failed transaction is half applied": ("transaction-whole/after_as_before", half_applied),
    "a failed transaction names no operation": (
        "transaction-whole/exists",
        answering(is_batch, lambda _asked, one: replace(one, body=re.sub(rb'"\d+:', b'"', one.body))),
    ),
    "transactions have 50 operations at most": (
        "transaction-limits/operations_100",
        refusing(lambda one: is_batch(one) and one.body.count(b"HTTP/1.1") > 50, 400, "InvalidInput"),
    ),
    "transactions have 2 MiB at most": (
        "transaction-limits/mib_4",
        refusing(lambda one: is_batch(one) and len(one.body) > 2 * MIB, 413, "RequestBodyTooLarge"),
    ),
    "a table is made twice": (
        "tables/made_again",
        instead_of(409, DONE, lambda one: one.target.endswith("/Tables") and one.method == "POST"),
    ),
    "a deleted table takes rows": ("tables/insert", instead_of(404, DONE, is_insert)),
    "what was written is not found": (
        "lost-answers/insert",
        refusing(lambda one: one.method == "GET" and is_row(one), 404, "ResourceNotFound"),
    ),
    "a repeated write is refused as malformed": (
        "lost-answers/insert",
        instead_of(409, error_answer(400, "InvalidInput"), is_insert),
    ),
    "anybody may read": (
        "credentials/none",
        asking(
            lambda one: "Authorization" not in one.headers,
            lambda _one: Answered(200, {"Content-Type": "application/json"}, b'{"value":[]}'),
        ),
    ),
    "any key is taken": (
        "credentials/another",
        instead_of(403, Answered(200, {"Content-Type": "application/json"}, b'{"value":[]}'), is_scan),
    ),
}
"""Deviations by what they do: the check and the word of it that must tell, and what makes the deviation."""
