"""The parts of a client that need no service: what a request asks for, what an error becomes, what a client
is made of, the thread of the synchronous one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.rest import HttpRequest
from azure.data.tables import TableClient, TableTransactionError
from azure.data.tables.aio import TableClient as AsyncTableClient

from rekey import DualWriteTableClient, Migration, Target, keys
from rekey.aio import DualWriteTableClient as AsyncDualWriteTableClient
from rekey.client.reading import LeaseSettings
from rekey.client.sdk.answers import AsyncAnswer, SyncAnswer
from rekey.client.sdk.calls import Read, Table, Write, call_of, row_of
from rekey.client.sdk.client import policies_of
from rekey.client.sdk.errors import TransactionRefused, answer_to_error, refusal_in
from rekey.client.sdk.options import ClientOptions, Endpoint, account_of, prepared_with, timeouts_for, view_of
from rekey.client.sdk.thread import LoopThread
from rekey.errors import (
    Ambiguous,
    Collision,
    ConfigurationError,
    CredentialRefused,
    EndpointDown,
    Moved,
    RowExists,
    RowRefused,
    SecretMissing,
    TableMissing,
    Unavailable,
    WritesRefused,
)
from rekey.model import EntityKey
from rekey.protocol.rules import View
from rekey.tables.base import Verb
from tests.worlds.begun_migrations import SECRETS, WRAPPING_KEY, declared_as
from tests.worlds.small import POSTS, USERS

BASE = "https://account.table.core.windows.net"
KEY = "(PartitionKey='eu',RowKey='o%27%27brien%2F1')"


def request(method: str, path: str, **more: Any) -> HttpRequest:
    """Return a request as the SDK would make it."""
    return HttpRequest(method, f"{BASE}/{path}", **more)


# --- what a request asks for ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "headers", "verb"),
    [
        ("PUT", {"If-Match": "*"}, Verb.REPLACE),
        ("PUT", {}, Verb.INSERT_OR_REPLACE),
        ("PATCH", {"If-Match": "*"}, Verb.MERGE),
        ("PATCH", {}, Verb.INSERT_OR_MERGE),
        ("MERGE", {}, Verb.INSERT_OR_MERGE),
        ("POST", {"X-HTTP-Method": "MERGE", "If-Match": "*"}, Verb.MERGE),
        ("DELETE", {"If-Match": "*"}, Verb.DELETE),
    ],
)
def test_a_write_is_told_by_method_and_condition(method: str, headers: dict[str, str], verb: Verb) -> None:
    body = {} if method == "DELETE" else {"json": {"PartitionKey": "other", "RowKey": "other", "A": 1}}
    call = call_of(request(method, "Users" + KEY, headers=headers, **body), "users")
    assert isinstance(call, Write)
    [operation] = call.operations
    assert operation.verb is verb
    assert operation.key == EntityKey("eu", "o'brien/1")
    assert operation.etag == headers.get("If-Match")
    assert ("A" in operation.row) is (method != "DELETE")


def test_reads_and_requests_about_the_table_are_told_from_writes() -> None:
    assert call_of(request("GET", "Users" + KEY), "Users") == Read(EntityKey("eu", "o'brien/1"))
    assert call_of(request("GET", "Users()?$select=A&$top=2"), "Users") == Read(None, partial=True)
    assert call_of(request("POST", "Tables", json={"TableName": "Users"}), "Users") is Table.CREATE
    assert call_of(request("DELETE", "Tables('Users')"), "Users") is Table.DELETE
    assert call_of(request("PUT", "Users?comp=acl", content=b"<x/>"), "Users") is Table.POLICY
    assert call_of(request("GET", "Users?comp=acl"), "Users") is Table.POLICY


@pytest.mark.parametrize(
    "asked",
    [
        request("PUT", "Others" + KEY, json={}),
        request("POST", "Others", json={"PartitionKey": "", "RowKey": ""}),
        request("GET", "Others()"),
        request("PUT", "Users", json={}),
        request("POST", "Users" + KEY, json={}),
    ],
)
def test_a_request_that_is_not_understood_goes_nowhere(asked: HttpRequest) -> None:
    with pytest.raises(ValueError, match=r"alone|no TableClient makes"):
        call_of(asked, "Users")


def test_a_row_is_what_the_sdk_would_send_without_what_says_nothing() -> None:
    row = row_of(
        b'{"PartitionKey":"p","PartitionKey@odata.type":"Edm.String","RowKey":"r","odata.etag":"x",'
        b'"Timestamp":"2024-01-01T00:00:00Z","A":"a","A@odata.type":"Edm.String","B":null,'
        b'"B@odata.type":"Edm.Int64","C":"5","C@odata.type":"Edm.Int64","D":1.0}'
    )
    assert row == {
        "PartitionKey": "p",
        "RowKey": "r",
        "A": "a",
        "C": "5",
        "C@odata.type": "Edm.Int64",
        "D": 1.0,
    }


# --- what an error becomes --------------------------------------------------------------------------------


def test_an_error_without_an_answer_is_the_sdks_error_for_that() -> None:
    for error, kind in (
        (EndpointDown("write"), ServiceRequestError),
        (Ambiguous("write", status=412), ServiceResponseError),
        (CredentialRefused("insert into Users: no token"), ClientAuthenticationError),
    ):
        with pytest.raises(kind) as caught:
            answer_to_error(error, "Users")
        open_now = isinstance(error, Ambiguous)
        assert caught.value.outcome == ("open" if open_now else "nothing was written")  # type: ignore[attr-defined]


def test_a_service_that_is_busy_is_told_with_a_code_of_its_own_and_that_nothing_was_written() -> None:
    busy = Unavailable("insert into rekeyjournal: 503 ServerBusy", code="ServerBusy", status=503)
    connector = Unavailable("not reached", code="ClientConnectorError")
    for error in (busy, connector):
        response = SyncAnswer(request("POST", "Users"), answer_to_error(error, "Users"))
        refusal = refusal_in(HttpResponseError(response=response))
        assert (refusal.status_code, refusal.code, refusal.outcome) == (
            503,
            "unavailable",
            "nothing was written",
        )
        assert str(refusal).startswith("nothing was written: ")
        assert refusal.retryable


def test_an_error_of_another_table_is_not_taken_for_one_of_this_table() -> None:
    """`delete_entity` of the SDK takes any 404 for "there was no such row"."""
    own = answer_to_error(TableMissing("insert into Users: 404", code="TableNotFound", status=404), "users")
    assert (own.status, own.refusal) == (404, None)
    for what in ("insert into rekeyjournal: 404", "insert into UsersV2: 404"):
        other = answer_to_error(TableMissing(what, code="TableNotFound", status=404), "Users")
        assert other.status == 403
        assert other.refusal is not None
    credential = CredentialRefused("insert into rekeyjournal: 403", code="AuthorizationFailure", status=403)
    assert answer_to_error(credential, "Users").refusal is credential


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (WritesRefused("frozen", "writes wait", hint="repeat", retryable=True), 503, "frozen"),
        (WritesRefused("digest-moved", "another declaration", hint="deploy"), 403, "digest-moved"),
        (RowRefused("empty-key", "target.row_key", "it is empty", cure="fill it"), 400, "empty-key"),
        (Collision("UsersV2", "a1", "b2"), 400, "collision"),
        (Moved("moved", hint="look"), 403, "mapping-unusable"),
    ],
)
def test_a_refusal_is_an_sdk_error_with_cause_and_cure(error: Any, status: int, code: str) -> None:
    response = SyncAnswer(request("POST", "Users"), answer_to_error(error, "Users"))
    assert (response.status_code, response.headers["x-ms-error-code"]) == (status, code)
    refusal = refusal_in(HttpResponseError(response=response))
    assert isinstance(refusal, HttpResponseError)
    assert str(refusal) == str(error)
    assert refusal.hint
    assert refusal.hint in str(refusal)
    assert (refusal.status_code, refusal.code, refusal.error_code) == (status, code, code)
    assert refusal.retryable is (status == 503)
    assert ("Retry-After" in response.headers) is (status == 503)
    assert refusal.refusal is error


def test_a_refused_transaction_names_the_operation() -> None:
    error = RowRefused("empty-key", "target.row_key", "it is empty", cure="fill it")
    error.index = 3
    response = AsyncAnswer(request("POST", "$batch"), answer_to_error(error, "Users", batch=True))
    refusal = refusal_in(HttpResponseError(response=response), transaction=True)
    assert isinstance(refusal, TransactionRefused)
    assert isinstance(refusal, TableTransactionError)
    assert refusal.index == 3
    assert refusal_in(HttpResponseError("of the service")) is None


async def test_an_answer_keeps_what_azure_core_asks_of_a_response() -> None:
    exists = RowExists("insert", code="EntityAlreadyExists", status=409, index=2)
    answer = answer_to_error(exists, "Users", batch=True)
    asked = request(
        "POST", "$batch", headers={"x-ms-client-request-id": "mine", "x-ms-version": "2019-02-02"}
    )
    whole, found = SyncAnswer(asked, answer), AsyncAnswer(asked, answer)
    [part] = whole.parts()
    assert [one.json() async for one in found.parts()] == [part.json()]
    assert part.json()["odata.error"]["message"]["value"].startswith("2:The specified entity already exists")
    assert (whole.status_code, whole.reason, part.reason) == (202, "Accepted", "Conflict")
    assert whole.headers["X-MS-Client-Request-Id"] == "mine"
    assert part.encoding == "utf-8"
    part.encoding = "ascii"
    assert (whole.url, whole.is_closed, whole.is_stream_consumed) == (asked.url, True, True)
    assert part.read() == b"".join(part.iter_raw()) == b"".join(part.iter_bytes()) == part.body()
    async for one in found.parts():
        async with one:
            assert await one.read() == part.content == b"".join([piece async for piece in one.iter_raw()])
            assert part.content == b"".join([piece async for piece in one.iter_bytes()])
        await one.close()
        with pytest.raises(HttpResponseError):
            one.raise_for_status()
    with part:
        whole.raise_for_status()
        with pytest.raises(HttpResponseError):
            part.raise_for_status()
    part.close()


# --- what a client is made of -----------------------------------------------------------------------------


def test_the_table_says_the_view() -> None:
    assert view_of(POSTS, "posts", None) == (View.OLD, "Posts", False)
    assert view_of(POSTS, "PostsV2", "new") == (View.NEW, "PostsV2", False)
    assert view_of(POSTS, "PostsByTag", View.NEW) == (View.NEW, "PostsByTag", True)


def test_a_table_of_another_account_may_be_named_without_the_ending_where_that_says_it() -> None:
    moved = Migration(
        "Posts", Target("Posts@targets", partition_key=keys.keep(), row_key=keys.keep()), capture="delta"
    )
    assert view_of(moved, "Posts", None) == (View.OLD, "Posts", False)
    assert view_of(moved, "posts@targets", None) == (View.NEW, "Posts@targets", False)
    renamed = replace(moved, target=replace(moved.target, table="PostsV2@targets"))
    assert view_of(renamed, "PostsV2", None) == (View.NEW, "PostsV2@targets", False)


def test_a_client_without_the_account_of_targets_is_refused_when_it_is_made() -> None:
    moved = replace(USERS, target=replace(USERS.target, table="Users@targets"))
    with pytest.raises(ConfigurationError, match="targets_endpoint="):
        prepared_with(declared_as("0001_users", moved), SECRETS, WRAPPING_KEY)


@pytest.mark.parametrize(("table", "view"), [("Others", None), ("Posts", "new"), ("PostsV2", View.OLD)])
def test_an_invalid_table_is_refused_when_the_client_is_made(table: str, view: View | str | None) -> None:
    with pytest.raises(ConfigurationError, match=r"Next: .*(Posts|PostsV2)"):
        view_of(POSTS, table, view)


def test_a_view_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    for make in (
        lambda: view_of(POSTS, "Posts", "newest"),
        lambda: DualWriteTableClient.from_config("rekey.toml", "0001_users", view="newest"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            make()
        assert refused.value.what == "there is no view 'newest'"
        assert refused.value.hint.startswith('say view="old"')


@pytest.mark.parametrize("client", [DualWriteTableClient, AsyncDualWriteTableClient])
def test_the_ways_of_the_sdk_that_name_no_migration_are_refused_with_the_way_that_does(client: Any) -> None:
    for make in (client.from_connection_string, client.from_table_url):
        with pytest.raises(ConfigurationError, match="and no migration\nNext: write from_config"):
            make("UseDevelopmentStorage=true", "Users")


def options(**more: Any) -> ClientOptions:
    """Return the options of a client of USERS."""
    given = {"secrets": SECRETS, "wrapping_key": WRAPPING_KEY, **more}
    secrets, wrapping_key = given.pop("secrets"), given.pop("wrapping_key")
    prepared = prepared_with(declared_as("0001_users", USERS), secrets, wrapping_key)
    return ClientOptions(prepared, "Users", **given)


def test_a_plan_shows_no_secret_and_no_credential() -> None:
    made = options()
    shown = f"{made!r} {account_of(BASE, AzureNamedKeyCredential('account', 'a2V5'))!r}"
    assert made.facts.fingerprints.keys() == {"users"}
    assert not any(
        secret in shown for secret in (SECRETS["users"].decode(), "a2V5", "redential(", WRAPPING_KEY.decode())
    )


def test_what_cannot_work_is_refused_when_the_client_is_made() -> None:
    with pytest.raises(SecretMissing, match="users"):
        options(secrets={})
    with pytest.raises(SecretMissing, match="no wrapping key"):
        options(wrapping_key=None)
    with pytest.raises(SecretMissing, match="at least 32"):
        options(wrapping_key=b"short")
    with pytest.raises(ConfigurationError, match="shadow_reads"):
        options(shadow_reads=1.5)
    with pytest.raises(ConfigurationError, match=r"acknowledge is 'one'[\s\S]*both, authority"):
        options(acknowledge="one")
    with pytest.raises(ConfigurationError, match="view"):
        DualWriteTableClient.from_config("rekey.toml", "0001_users")


def test_policies_are_taken_as_the_sdk_takes_them() -> None:
    assert [policies_of(one) for one in (None, "one", ["a", "b"], ("c",))] == [[], ["one"], ["a", "b"], ["c"]]


def test_what_is_sent_has_taken_effect_within_the_longest_operation_or_never_does() -> None:
    for longest in (2.0, 3.0, 30.0, 600.0):
        settings = LeaseSettings(longest_operation_s=longest)
        found = timeouts_for(settings)
        assert found.service is not None
        assert 1 <= found.service <= 30
        assert longest / 2 <= settings.sending_s <= longest - found.service


def test_an_endpoint_and_its_credential_are_understood_as_by_the_sdk() -> None:
    named = AzureNamedKeyCredential("account", "a2V5")
    assert account_of("account.table.core.windows.net/", named) == Endpoint(BASE, named)
    found = account_of(f"{BASE}?sv=2019-02-02&sig=abc", None)
    assert found.address == BASE
    assert isinstance(found.credential, AzureSasCredential)
    with pytest.raises(ConfigurationError, match="restricted"):
        account_of(BASE, None)


NAMED = AzureNamedKeyCredential("account", "a2V5")
ENDPOINTS = dict.fromkeys(("endpoint", "restricted_endpoint", "targets_endpoint"), BASE)
COSMOS = "https://shop.table.cosmos.azure.com"
OF_COSMOS = r"is of Azure Cosmos DB[\s\S]*account of Azure Table Storage"
SECONDARY = r"secondary region[\s\S]*primary endpoint"


@pytest.mark.parametrize("which", ENDPOINTS)
@pytest.mark.parametrize(
    ("address", "refusal"),
    [
        (f"{BASE}/Users", rf"URL of a table[\s\S]*{BASE}$"),
        (COSMOS, OF_COSMOS),
        (COSMOS.removeprefix("https://"), OF_COSMOS),
        (f"{COSMOS}:443/?sv=1&sig=x", OF_COSMOS),
        ("https://account-secondary.table.core.windows.net", SECONDARY),
        ("http://127.0.0.1:10002/account-secondary", SECONDARY),
    ],
)
def test_an_unusable_account_is_refused_when_the_client_is_made(
    which: str, address: str, refusal: str
) -> None:
    with pytest.raises(ConfigurationError, match=refusal):
        DualWriteTableClient(
            table_name="Users",
            credential=NAMED,
            restricted_credential=NAMED,
            targets_credential=NAMED,
            migration=declared_as("0001_users", USERS),
            secrets=SECRETS,
            wrapping_key=WRAPPING_KEY,
            **{**ENDPOINTS, which: address},
        )


@pytest.mark.parametrize(
    "connection",
    [
        f"DefaultEndpointsProtocol=https;AccountName=shop;AccountKey=a2V5;TableEndpoint={COSMOS}:443/;",
        "DefaultEndpointsProtocol=https;AccountName=shop;AccountKey=a2V5;EndpointSuffix=cosmos.azure.com",
        "AccountEndpoint=https://shop.documents.azure.com:443/;AccountKey=a2V5;",
    ],
)
@pytest.mark.parametrize("client", [DualWriteTableClient, AsyncDualWriteTableClient])
def test_a_connection_string_of_cosmos_db_is_refused_without_its_key(client: Any, connection: str) -> None:
    with pytest.raises(ConfigurationError, match="is of Azure Cosmos DB") as error:
        client.from_connection_string(
            connection,
            "Users",
            migration=declared_as("0001_users", USERS),
            restricted_endpoint=BASE,
            restricted_credential=NAMED,
            secrets=SECRETS,
            wrapping_key=WRAPPING_KEY,
        )
    assert "a2V5" not in str(error.value)


def test_a_wrong_address_or_credential_of_the_tables_account_is_refused_as_by_the_sdk() -> None:
    """In its words, too: its own tests compare them."""
    named = AzureNamedKeyCredential("account", "a2V5")

    def refusal(kind: type[Any], endpoint: Any, credential: Any, **given: Any) -> str:
        with pytest.raises((ValueError, TypeError)) as refused:
            kind(endpoint, "Users", credential=credential, **given)
        return f"{refused.type.__name__}: {refused.value}"

    ours = {
        "migration": declared_as("0001_users", USERS),
        "secrets": SECRETS,
        "wrapping_key": WRAPPING_KEY,
        "restricted_endpoint": BASE,
        "restricted_credential": named,
    }
    for kind, dual in ((TableClient, DualWriteTableClient), (AsyncTableClient, AsyncDualWriteTableClient)):
        for endpoint, credential in ((123456, named), ("https://", named), (BASE, None), (BASE, "text")):
            assert refusal(dual, endpoint, credential, **ours) == refusal(kind, endpoint, credential)


class Asked:
    """A token credential, synchronous."""

    closed = False

    def get_token(self, *scopes: str, **_kwargs: Any) -> AccessToken:
        return AccessToken(f"{scopes[0]} on {threading.current_thread().name}", 0)

    def close(self) -> None:
        self.closed = True


class AskedAsync(Asked):
    """The same, asynchronous."""

    async def get_token(self, *scopes: str, **_kwargs: Any) -> AccessToken:
        return AccessToken(scopes[0], 0)


async def test_a_credential_is_asked_off_the_loop_and_stays_its_owners() -> None:
    for credential in (Asked(), AskedAsync()):
        found = account_of(BASE, credential).credential
        async with found as borrowed:
            token = (await borrowed.get_token("scope")).token
        await found.close()
        assert token.startswith("scope")
        assert "MainThread" not in token
        assert not credential.closed


def test_declaring_a_migration_does_not_load_the_azure_sdk() -> None:
    program = (
        "import sys, rekey\n"
        "from rekey import Migration\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('azure', 'aiohttp')]\n"
        "assert rekey.DualWriteTableClient.__name__ == 'DualWriteTableClient'\n"
        "try: rekey.Nothing\n"
        "except AttributeError: print('ok')\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "ok\n"


# --- the thread -------------------------------------------------------------------------------------------


def test_coroutines_run_on_one_thread_which_ends_with_close() -> None:
    thread = LoopThread()

    async def where() -> str:
        return threading.current_thread().name

    assert not thread.started
    assert thread.run(where()) == thread.run(where()) == "rekey-dualwrite"
    called = threading.Event()
    thread.post(called.set)
    assert called.wait(10)
    thread.close()
    thread.close()
    with pytest.raises(WritesRefused, match="closed"):
        thread.run(where())
    assert not [one for one in threading.enumerate() if one.name == "rekey-dualwrite"]


def test_a_context_is_held_while_the_caller_does_something() -> None:
    thread = LoopThread()
    steps: list[str] = []

    @asynccontextmanager
    async def held() -> AsyncIterator[int]:
        task = asyncio.current_task()
        steps.append("in")
        yield 5
        assert asyncio.current_task() is task
        steps.append("out")

    @asynccontextmanager
    async def refused() -> AsyncIterator[int]:
        raise ConfigurationError("no")
        yield 0

    with thread.holding(held) as value:
        steps.append(str(value))
    assert steps == ["in", "5", "out"]
    with pytest.raises(ConfigurationError), thread.holding(refused):
        raise AssertionError("never entered")
    with pytest.raises(KeyError), thread.holding(held):
        raise KeyError
    thread.close()


def test_a_client_made_before_a_fork_says_so_instead_of_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = LoopThread()
    thread.run(asyncio.sleep(0))
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        assert not thread.started
        with pytest.raises(WritesRefused, match="fork"):
            thread.run(asyncio.sleep(0))
    thread.close()


def test_a_caller_that_is_interrupted_cancels_what_it_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = LoopThread()
    cancelled = threading.Event()
    begun = threading.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    class Interrupted:
        def __init__(self, waiting: Any) -> None:
            self.waiting = waiting

        def result(self) -> None:
            assert begun.wait(10)
            raise KeyboardInterrupt

        def cancel(self) -> None:
            self.waiting.cancel()

    run = asyncio.run_coroutine_threadsafe
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda work, loop: Interrupted(run(work, loop)))
    with pytest.raises(KeyboardInterrupt):
        thread.run(endless())
    assert cancelled.wait(10)
    thread.close()


def test_work_left_on_the_loop_is_cancelled_when_it_ends() -> None:
    thread = LoopThread()
    cancelled: list[bool] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    async def begin() -> None:
        task = asyncio.create_task(endless())
        await asyncio.sleep(0)
        assert not task.done()

    thread.run(begin())
    thread.close()
    assert cancelled == [True]
