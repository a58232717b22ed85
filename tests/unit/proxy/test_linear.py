"""What runs before a credential is judged, or after a token that only the account can verify: twice the input
costs twice the steps, whatever is repeated wherever. Steps are counted, see `tests/asserts/steps.py`.

Soak: 8 of 10 bodies, 10 of 17 addresses, 2 of 5 parts of a signature.
Reason, and what `make test` covers: a minute of matching by hand; the others.
"""

from __future__ import annotations

import email.utils
import sys
import urllib.parse
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from types import ModuleType

import pytest

from rekey.client.sdk import calls
from rekey.errors import RequestRejected
from rekey.proxy import access, answer, batch, handler, parse, sas
from tests.asserts.steps import Text, counted
from tests.soaking import others_in_soak
from tests.worlds.access import ACCESS, DATE, NOW, table_sas

MODULES: tuple[ModuleType, ...] = (
    parse,
    access,
    sas,
    batch,
    calls,
    answer,
    handler,
    urllib.parse,
    email.utils,
)
MODULES += (sys.modules["email._parseaddr"],)
TAKING = replace(ACCESS, tokens=True)
PLAIN, ROW = "/acme/Orders()", "/acme/Orders(PartitionKey='{}',RowKey='{}')"
SIGNED = dict.fromkeys(("sv", "sig", "sp", "se", "tn"), "x")
# What is repeated, # being its number: what divides, what is escaped, what may be there any number of times.
REPEATED: tuple[str, ...] = (
    "a",
    "1",
    "'",
    "''",
    "(",
    ")",
    "%41",
    "%C3%BC",
    "%",
    "&",
    "=",
    "&a#",
    ";",
    "; ",
    " ",
    "\t",
    ",",
)
REPEATED += ("/", "/.", "+", "-", ":", ".", '"', "GMT", "boundary=", "\r\n", "--b", "é")
TARGETS: tuple[str, ...] = (
    "/{}",
    "/acme/{}",
    "/acme/Orders{}",
    ROW,
    "/acme/Orders(RowKey='{}",
    "/Tables('{}')",
    "http://{}",
)
TARGETS += ("http://h{}", PLAIN + "?{}", PLAIN + "?{}=1", PLAIN + "?$filter={}", PLAIN + "?comp={}")
TARGETS += tuple(
    PLAIN + "?" + "&".join(f"{name}={'{}' if name == long else value}" for name, value in SIGNED.items())
    for long in SIGNED
)
HEADERS: tuple[str, ...] = ("Accept", "Authorization", "Connection", "Content-Length", "Content-Type", "Date")
HEADERS += ("Host", "If-Match", "Transfer-Encoding", "X-HTTP-Method", "x-ms-date")
HEADERS += (
    "Content-Type: multipart/mixed;{}",
    "Content-Type: multipart/mixed; boundary={}",
    "Date: Mon, {} GMT",
)
SHOWN = ("SharedKey {}", "SharedKeyLite acme:{}", "Bearer {}", "{} acme:x")


def judge(method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes = b"") -> None:
    """Do what the handler does with a request until its credential is judged, and with its body."""
    with suppress(RequestRejected):
        asked = parse.parse(method, target, headers, "acme")
        shown = access.Asked(
            *(asked.method, asked.path, asked.parameters, asked.headers, "10.0.0.5", True, asked.table),
            *("o", frozenset("r")),
            confines=True,
        )
        with suppress(RequestRejected):
            access.judge(shown, TAKING, NOW)
        parse.unsigned(asked.query)
        asked = replace(asked, content=body)
        handler.inserted_key(asked)
        answer.is_atom(asked)
        answer.reply_of(asked.headers, handler.answer_to(RuntimeError(), "", reads=True))
        if asked.kind is parse.ResourceKind.BATCH:
            batch.read_batch(asked, "acme")
        sas.confined(asked.query, sas.Within(("a", None), None))


def check_linear(patch: pytest.MonkeyPatch, request: tuple[str, str, list[tuple[str, str]], str]) -> None:
    """Check that a request with `{}` takes at most as many steps as its size says. `request`: method, target,
    headers, body."""
    method, target, headers, body = request
    with patch.context() as unbounded:
        for module in (parse, batch):  # a bound would hide what it bounds
            unbounded.setattr(module, "MAX_HEADERS", 10**9)
        unbounded.setattr(parse, "MAX_PARAMETERS", 10**9)
        unbounded.setattr(batch, "MAX_BATCH_OPERATIONS", 10**9)
        for repeated in REPEATED:
            taken = []
            for times in (80, 160):
                text = "".join(repeated.replace("#", str(number)) for number in range(times))
                with counted(patch, *MODULES) as steps:
                    fill = [(name, value.replace("{}", text)) for name, value in headers]
                    sent = body.replace("{}", text).encode()
                    judge(method, Text.of(target.replace("{}", text), steps), Text.of(fill, steps), sent)
                taken.append(steps.taken)
            assert taken[1] < 2.4 * taken[0], f"{repeated!r} in {request}: {taken}"


@pytest.mark.parametrize("target", others_in_soak(TARGETS, TARGETS[1:4] + TARGETS[8:12]))
def test_an_address_is_read_and_judged_in_linear_time(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_linear(monkeypatch, ("GET", target, [("Host", "x"), ("x-ms-date", DATE)], ""))


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_read_and_judged_in_linear_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, value = name.partition(": ")
    shown = [] if name == "Authorization" else [("Authorization", "Bearer x")]
    check_linear(monkeypatch, ("POST", "/acme/$batch", [*shown, (name, value or "{}")], ""))


@pytest.mark.parametrize("name", ["X-#", "Accept"])
def test_many_headers_are_read_in_linear_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "MAX_HEADERS", 10**9)
    taken = []
    for times in (300, 600):
        with counted(monkeypatch, *MODULES) as steps:
            lines = [(name.replace("#", str(number)), "a/b") for number in range(times)]
            judge("GET", PLAIN, Text.of(lines, steps))
        taken.append(steps.taken)
    assert taken[1] < 2.4 * taken[0], taken


@pytest.mark.parametrize("shown", SHOWN)
def test_a_credential_is_judged_in_linear_time(shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_linear(monkeypatch, ("GET", PLAIN, [("x-ms-date", DATE), ("Authorization", shown)], ""))


@pytest.mark.parametrize("name", others_in_soak(("spk", "epk", "sip", "st", "sv"), kept=("spk", "sip", "sv")))
def test_a_signature_is_judged_in_linear_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query = table_sas(**{name: "here"}).replace("here", "{}")
    check_linear(monkeypatch, ("GET", f"{PLAIN}?{query}&$filter={{}}", [], ""))


PART = "--c\r\nContent-Type: application/http\r\n\r\nPOST /acme/Orders HTTP/1.1\r\n\r\n{}\r\n"
OUTER = "--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n%s--c--\r\n--b--\r\n"


BODIES = ["{}", "--b{}", "--b\r\n{}\r\n--b--", "--b\r\nContent-Type: {}\r\n\r\n--b--", OUTER % PART]
BODIES += [OUTER % PART.replace("{}", "").replace("--c\r\n", "--c{}\r\n"), OUTER.replace("=c", "=c{}") % PART]
BODIES += [OUTER % PART.replace(*more) for more in (("/Orders", "/Orders{}"), ("/http", "/http{}"))]
BODIES += [OUTER % PART.replace("HTTP/1.1", "HTTP/1.1\r\n{}")]


@pytest.mark.parametrize("body", others_in_soak(BODIES, BODIES[1:3]))
def test_a_batch_is_read_in_linear_time(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = [("Content-Type", "multipart/mixed; boundary=b"), ("Authorization", "Bearer x")]
    check_linear(monkeypatch, ("POST", "/acme/$batch", headers, body))


@pytest.mark.parametrize("body", ["{}", '{{"a":[{}]}}', '{{"a":"{}"}}', "[{}"])
def test_a_row_is_read_in_linear_time(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_linear(monkeypatch, ("POST", "/acme/Orders", [("Authorization", "Bearer x")], body))


# --- bounds ------------------------------------------------------------------------------------------------


def test_more_parameters_than_the_service_has_are_refused_and_as_many_are_read() -> None:
    query = "&".join(f"p{number}=1" for number in range(parse.MAX_PARAMETERS))
    assert len(parse.parameters(query)) == parse.MAX_PARAMETERS
    for more in (f"{query}&one=more", "&" * 8_929):
        with pytest.raises(RequestRejected, match="more than 100 parameters") as refused:
            parse.parameters(more)
        assert (refused.value.status, refused.value.code) == (400, "InvalidQueryParameterValue")


def test_more_headers_than_a_client_sends_are_refused_and_as_many_are_read() -> None:
    headers = [(f"x-{number}", "1") for number in range(parse.MAX_HEADERS)]
    assert len(parse.read_headers(headers)) == parse.MAX_HEADERS
    with pytest.raises(RequestRejected, match="more than 128 headers") as refused:
        parse.read_headers([*headers, ("one", "more")])
    assert refused.value.status == 431
