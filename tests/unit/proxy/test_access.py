"""Requests are granted by a key's signature over verb, date, path and `comp`, and by nothing like one.

Those of the packages for JavaScript were recorded: `azure-storage` 2.10.7 and `@azure/data-tables` 13.1.2.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import AzureError, ServiceRequestError
from azure.core.pipeline.transport import HttpTransport
from azure.data.tables import TableServiceClient
from hypothesis import given
from hypothesis import strategies as st

from rekey.errors import RequestRejected
from rekey.proxy.access import Access, CredentialKind, judge, needs
from rekey.proxy.parse import parameters
from rekey.proxy.sas import NEVER
from tests.worlds.access import (
    ACCESS,
    ACCOUNT,
    DATE,
    ENCODED,
    KEY,
    NOW,
    asked,
    granted,
    key_header,
    mac,
    refusal,
    table_sas,
)

LITE = f"{DATE}\n/acme/Orders"
SIGNED = asked(headers=[("x-ms-date", DATE), key_header(LITE)])
OLD_DATE = "Mon, 23 Nov 2026 20:35:10 GMT"
ROW = "/acme/Orders(PartitionKey=%27K%C3%BCche%27%27s%27,RowKey=%27a%20b%27)"
JSON = ("content-type", "application/json")
JAVASCRIPT: list[tuple[str, str, str, tuple[str, str], str, str]] = [
    ("GET", ROW, "", ("content-type", ""), "SharedKey", "Eg/z/n+K8Qi0a0fD447jRbLaeB0fkK3uu/qt4ZlnKrI="),
    ("POST", "/acme/Orders", "", JSON, "SharedKey", "AR3DxerGn2MM6Wit44JKts+fWwVZaICAmhkaLroS3nc="),
    (
        "GET",
        "/acme/Orders",
        "comp=acl",
        ("a", ""),
        "SharedKey",
        "tg4QEEr5lz+MT4JMOw5gu/Vw0GUnwsxtAyOE3jDFdDQ=",
    ),
    (
        *("MERGE", "/acme/Orders(PartitionKey=%27p%27,RowKey=%27r%27)", "", JSON, "SharedKey"),
        "ht3RadexF9uxgJbDNNoPKN6tO9yzwsLD1yoieXTQW6Q=",
    ),
    (
        *("GET", "/Orders(PartitionKey='K%C3%BCche''s',RowKey='a%20b')", "", ("a", ""), "SharedKeyLite"),
        "GsNqSWgX9+wT0vVaStdJUnB/xyZDfFR692QowHKHrP0=",
    ),
    ("POST", "/Orders", "", JSON, "SharedKeyLite", "H1jaSlrj60WdQxQDCSCzremyFrbXGFpHus1iwbJvmwc="),
    (
        "GET",
        "/Orders",
        "comp=acl",
        ("a", ""),
        "SharedKeyLite",
        "4/J0AJCPKP7GVT/LEi32mSsFT7i0FQq4Uu/mehX2gzA=",
    ),
]


class Recorded(HttpTransport[Any, Any]):
    """Keeps requests, and answers none."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def send(self, request: Any, **_: Any) -> Any:
        self.requests.append(request)
        raise ServiceRequestError("not sent")

    def open(self) -> None: ...

    def close(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def sent_by_the_sdk(endpoint: str, call: Any) -> Any:
    """Return the request of a call of azure-data-tables."""
    transport = Recorded()
    credential = AzureNamedKeyCredential(ACCOUNT, ENCODED)
    service = TableServiceClient(endpoint, credential=credential, transport=transport, retry_total=0)
    with suppress(AzureError):
        call(service.get_table_client("Orders"))
    return transport.requests[0]


@pytest.mark.parametrize("endpoint", ["https://acme.table.core.windows.net", "http://127.0.0.1:10102/acme"])
@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.create_entity({"PartitionKey": "p", "RowKey": "r"}),
        lambda table: table.get_entity("Küche's", "a/b %2F"),
        lambda table: table.upsert_entity({"PartitionKey": "p", "RowKey": "r"}),
        lambda table: list(table.query_entities("Age gt 1")),
        lambda table: table.submit_transaction([("upsert", {"PartitionKey": "p", "RowKey": "r"})]),
        lambda table: table.get_table_access_policy(),
        lambda table: table.create_table(),
    ],
)
def test_what_the_sdk_for_python_signs_is_granted(endpoint: str, call: Any) -> None:
    request = sent_by_the_sdk(endpoint, call)
    parts = urlsplit(request.url)
    headers = list(request.headers.items())
    now = judge_time(request.headers["x-ms-date"])
    whole = asked(method=request.method, path=parts.path, query=parts.query, headers=headers)
    assert (granted(whole, now=now).name, granted(whole, now=now).kind) == ("orders", CredentialKind.KEY)
    assert refusal(replace(whole, path=parts.path + "s"), now=now) == "AuthenticationFailed"


def judge_time(date: str) -> float:
    """Return the time of a date header."""
    return parsedate_to_datetime(date).timestamp()


@pytest.mark.parametrize(("method", "path", "query", "header", "scheme", "signature"), JAVASCRIPT)
def test_what_the_packages_for_javascript_sign_is_granted(
    method: str, path: str, query: str, header: tuple[str, str], scheme: str, signature: str
) -> None:
    date = OLD_DATE if scheme == "SharedKey" else DATE
    headers = [header, ("x-ms-date", date), ("authorization", f"{scheme} acme:{signature}")]
    assert granted(asked(method=method, path=path, query=query, headers=headers)).name == "orders"
    other = "SharedKeyLite" if scheme == "SharedKey" else "SharedKey"
    headers[-1] = ("authorization", f"{other} acme:{signature}")
    confused = asked(method=method, path=path, query=query, headers=headers)
    assert refusal(confused) == "AuthenticationFailed"


def test_either_of_two_keys_is_good_while_one_replaces_the_other() -> None:
    assert granted(SIGNED).name == "orders"
    both = Access(ACCOUNT, {"orders": KEY, "orders-next": b"the key that follows"})
    signature = mac(LITE, b"the key that follows")
    header = ("Authorization", f"SharedKeyLite acme:{signature}")
    assert granted(asked(headers=[("x-ms-date", DATE), header]), both).name == "orders-next"
    assert refusal(asked(headers=[("x-ms-date", DATE), header])) == "AuthenticationFailed"


def test_the_date_may_differ_by_a_quarter_of_an_hour_and_no_more() -> None:
    for off in (-900, 900):
        assert granted(SIGNED, now=NOW + off).name
        assert refusal(SIGNED, now=NOW + off + (1 if off > 0 else -1)) == "AuthenticationFailed"


def test_x_ms_date_counts_before_date() -> None:
    other = "Mon, 23 Nov 2026 20:30:00 GMT"
    assert granted(replace(SIGNED, headers={**SIGNED.headers, "date": other})).name
    assert granted(asked(headers=[("Date", DATE), key_header(LITE)])).name
    stale = [("x-ms-date", "Mon, 23 Nov 2026 10:00:00 GMT"), ("Date", DATE), key_header(LITE)]
    assert refusal(asked(headers=stale)) == "AuthenticationFailed"


@pytest.mark.parametrize("date", ["", "yesterday", "2026-11-23T20:34:42Z", "Mon, 99 Nov 2026 20:34:42 GMT"])
def test_a_date_that_cannot_be_read_is_refused(date: str) -> None:
    headers = [("x-ms-date", date), key_header(f"{date}\n/acme/Orders")]
    assert refusal(asked(headers=headers)) == "AuthenticationFailed"


@pytest.mark.parametrize("changed", ["method", "content-type", "content-md5", "path", "comp"])
def test_nothing_that_a_shared_key_covers_can_be_changed(changed: str) -> None:
    covered = {"content-md5": "bWQ1", "content-type": "application/json"}
    text = f"GET\nbWQ1\napplication/json\n{DATE}\n/acme/Orders?comp=acl"
    header = key_header(text, "SharedKey")
    first = asked(query="comp=acl&timeout=5", headers=[*covered.items(), ("x-ms-date", DATE), header])
    assert granted(first).name
    if changed in covered:
        covered[changed] = "other"
        altered = replace(first, headers={**first.headers, **covered})
    elif changed == "comp":
        altered = replace(first, parameters={"timeout": "5"})
    else:
        altered = replace(first, method="PUT") if changed == "method" else replace(first, path="/orders")
    assert refusal(altered) == "AuthenticationFailed"


@pytest.mark.parametrize("query", ["comp=acl", "%63omp=acl", "c%6Fmp=acl"])
def test_what_is_meant_cannot_be_changed_under_a_signature(query: str) -> None:
    assert refusal(replace(SIGNED, parameters=parameters(query))) == "AuthenticationFailed"


def test_the_account_that_is_named_is_that_of_the_proxy() -> None:
    header = key_header(f"{DATE}\n/other/Orders", account="other")
    assert refusal(asked(headers=[("x-ms-date", DATE), header])) == "AuthenticationFailed"


@pytest.mark.parametrize(
    "shown", ["", "Basic YTpi", "sharedkeylite acme:x", "SharedKey", "None acme:", "Negotiate x", "AWS4 x"]
)
def test_another_scheme_is_refused(shown: str) -> None:
    code = refusal(asked(headers=[("x-ms-date", DATE), ("Authorization", shown)]))
    assert code == ("AuthenticationFailed" if shown == "SharedKey" else "InvalidAuthenticationInfo")


def test_exactly_one_credential_is_taken() -> None:
    assert refusal(asked()) == "AuthenticationFailed"
    assert refusal(replace(SIGNED, parameters=parameters(table_sas()))) == "InvalidAuthenticationInfo"
    assert (
        refusal(asked(query=table_sas(), headers=[("Authorization", "Bearer x")]))
        == "InvalidAuthenticationInfo"
    )


def test_a_bearer_token_is_passed_on_where_that_is_configured_and_over_tls_alone() -> None:
    request, taking = asked(headers=[("Authorization", "Bearer abc.def")]), replace(ACCESS, tokens=True)
    found = granted(request, taking)
    assert (found.token, found.kind, found.name) == ("Bearer abc.def", CredentialKind.TOKEN, "")
    assert refusal(request) == "AuthenticationFailed"
    assert refusal(replace(request, secure=False), taking) == "AuthenticationFailed"
    for malformed in ("Bearer", "Bearer ", "Bearer a b"):
        broken = asked(headers=[("Authorization", malformed)])
        assert refusal(broken, taking) == "InvalidAuthenticationInfo"


def test_a_refusal_repeats_nothing_that_was_sent() -> None:
    headers = [("x-ms-date", DATE), ("Authorization", "SharedKey acme:hidden-signature")]
    request = asked(path="/Hidden", query="hidden=1", headers=headers)
    with pytest.raises(RequestRejected) as caught:
        granted(request)
    assert "idden" not in f"{caught.value} {caught.value.hint} {request!r} {ACCESS!r}"
    assert "secret" not in repr(ACCESS)


@given(
    st.one_of(
        st.text(max_size=60),
        st.binary(max_size=40).map(lambda data: base64.b64encode(data).decode()),
        st.integers(0, 43).flatmap(
            lambda at: st.characters().map(lambda one: mac(LITE)[:at] + one + mac(LITE)[at + 1 :])
        ),
    ),
    st.sampled_from(["SharedKey ", "SharedKeyLite ", ""]),
    st.sampled_from(["acme:", "acme", ":", "other:"]),
)
def test_a_mangled_signature_is_never_granted(signature: str, scheme: str, account: str) -> None:
    shown = f"{scheme}{account}{signature}"
    headers = [("x-ms-date", DATE), ("Authorization", shown)]
    if shown.strip() == key_header(LITE)[1]:
        return
    with pytest.raises(RequestRejected):
        granted(asked(headers=headers))


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_a_signature_of_another_request_grants_nothing(method: str, path: str, date: str, kind: str) -> None:
    headers = [("x-ms-date", date), ("content-type", kind), key_header(LITE, "SharedKey")]
    with pytest.raises(RequestRejected):
        granted(asked(method=method, path=path, headers=headers))


def test_what_an_operation_needs_is_what_the_service_asks_for() -> None:
    def told(kind: str, method: str, comp: str = "", *, conditional: bool = False) -> str:
        resource, rights = needs(kind, method, comp, conditional=conditional)
        return f"{resource} {''.join(sorted(rights))}"

    assert [told("service", "GET", "properties"), told("service", "PUT", "properties")] == ["s r", "s w"]
    assert [told("tables", "GET"), told("tables", "POST"), told("table", "DELETE")] == ["c l", "c c", "c d"]
    assert [told("rows", "GET"), told("rows", "POST"), told("row", "GET")] == ["o r", "o a", "o r"]
    assert [told("row", method) for method in ("PUT", "MERGE", "PATCH", "DELETE")] == ["o au"] * 3 + ["o d"]
    assert [told("row", method, conditional=True) for method in ("PUT", "MERGE", "PATCH")] == ["o u"] * 3
    assert told("batch", "POST") == "o "
    assert [told("rows", "GET", "acl"), told("rows", "PUT", "acl")] == [f"c {NEVER}"] * 2
    assert [told("rows", "PUT"), told("other", "GET"), told("row", "POST")] == [f"s {NEVER}"] * 3
    assert judge(SIGNED, ACCESS, NOW).within is None
