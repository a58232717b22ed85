"""Credentials: where they come from, what they sign, and that nothing shows them."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from email.utils import formatdate

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.identity.aio import DefaultAzureCredential

from rekey.errors import ConfigurationError, CredentialRefused, EndpointDown
from rekey.model import EntityKey
from rekey.project.config import Account, account_key
from rekey.tables import credentials
from rekey.tables.answers import Answer
from rekey.tables.azure import AzureTableService
from rekey.tables.base import SIGNED_S
from rekey.tables.credentials import Credential, SharedKey, Signer, credential_of, signed_headers
from rekey.tables.requests import RetryPolicy

KEY = base64.b64encode(b"0123456789abcdef").decode()


def test_a_shared_key_is_not_shown() -> None:
    credential = SharedKey.of("tables", KEY)
    assert KEY not in repr(credential)
    assert "0123456789" not in repr(credential)
    assert "tables" in repr(credential)


@pytest.mark.parametrize("key", ["x y z!", "AccountKey=abc;", "é"])
def test_what_is_no_key_is_refused_without_being_repeated(key: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        SharedKey.of("tables", key)
    assert key not in str(raised.value)


DATE = "Wed, 31 Jan 2024 12:00:00 GMT"


@pytest.fixture
def one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_date", lambda second: DATE)


@pytest.mark.usefixtures("one_moment")
def test_a_signature_is_over_date_account_and_the_address_as_it_goes_out() -> None:
    """Shared Key Lite: HMAC-SHA-256 over date, newline, canonicalised resource. The expected value was
    computed with `openssl dgst -sha256 -mac HMAC`; a query is not part of it."""
    credential = SharedKey.of("tables", KEY)
    url = "http://127.0.0.1:10002/tables/T(PartitionKey='a%2Bb',RowKey='%27%27')?$select=A"
    expected = {
        "x-ms-date": DATE,
        "Authorization": "SharedKeyLite tables:52TeP3i59t5SVzelCBs+Ik10Q3ZaT+i2OkJaqZJICIU=",
    }
    assert signed_headers(credential, url) == expected
    assert signed_headers(credential, url.partition("?")[0]) == expected


def test_a_request_can_say_that_it_was_signed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """`rekey doctor --live` tries whether the service refuses it; Azurite does not look."""
    noon = 1706702400
    monkeypatch.setattr(credentials.time, "time", lambda: noon + 1020.0)
    late = SharedKey("tables", b"key", signed_s_ago=1020.0)
    assert signed_headers(late, "http://127.0.0.1:10002/tables/T()")["x-ms-date"] == DATE


@pytest.mark.usefixtures("one_moment")
async def test_a_key_that_its_owner_renews_signs_the_next_request() -> None:
    """An application's own credential object, which it may update at any time."""
    named = AzureNamedKeyCredential("tables", KEY)
    url = "http://127.0.0.1:10002/tables/T()"
    signer = Signer(named)

    async def sent() -> dict[str, str]:
        seen: list[dict[str, str]] = []

        async def exchange(address: str, headers: Mapping[str, str]) -> Answer:
            assert address == url
            seen.append(dict(headers))
            return Answer(200, {}, b"")

        await signer.send("GET", url, {}, exchange)
        return seen[0]

    assert await sent() == signed_headers(SharedKey.of("tables", KEY), url)
    renewed = base64.b64encode(b"another key").decode()
    named.update("tables", renewed)
    assert await sent() == signed_headers(SharedKey.of("tables", renewed), url)


async def test_a_signature_of_its_owner_stands_behind_the_query_of_every_attempt() -> None:
    """Azure's portal shows it with a question mark, which is no part of it."""
    shared, seen = AzureSasCredential("?sv=2019-02-02&sig=a%2Bb"), []

    async def exchange(address: str, _headers: Mapping[str, str]) -> Answer:
        seen.append(address)
        return Answer(200, {}, b"")

    signer = Signer(shared)
    await signer.send("GET", "https://account.table.core.windows.net/T()", {}, exchange)
    shared.update("sv=2019-02-02&sig=new")
    await signer.send("GET", "https://account.table.core.windows.net/T()?$top=1", {}, exchange)
    assert seen == [
        "https://account.table.core.windows.net/T()?sv=2019-02-02&sig=a%2Bb",
        "https://account.table.core.windows.net/T()?$top=1&sv=2019-02-02&sig=new",
    ]


async def test_a_token_is_kept_and_asked_for_again_when_the_service_demands_claims() -> None:
    """Continuous access evaluation: 401 with the claims that the next token must have."""
    asked: list[object] = []

    class Identity:
        async def get_token(
            self, *_scopes: str, claims: str | None = None, **_options: object
        ) -> AccessToken:
            asked.append(claims)
            return AccessToken(f"token{len(asked)}", int(time.time()) + 3600)

        async def close(self) -> None: ...

        async def __aenter__(self) -> Identity:
            return self

        async def __aexit__(self, *_error: object) -> None: ...

    claims = base64.urlsafe_b64encode(b'{"nbf": 1}').decode().rstrip("=")
    demand = {"WWW-Authenticate": f'Bearer error="insufficient_claims", claims="{claims}"'}
    answers = [Answer(200, {}, b""), Answer(401, demand, b""), Answer(200, {}, b"")]
    seen: list[str] = []

    async def exchange(_address: str, headers: Mapping[str, str]) -> Answer:
        seen.append(headers["Authorization"])
        return answers[len(seen) - 1]

    signer = Signer(Identity())
    assert signer.signature_valid_s == 24 * 3600
    for _ in range(2):
        answer = await signer.send("GET", "https://account.table.core.windows.net/T()", {}, exchange)
        assert answer.status == 200
    assert seen == ["Bearer token1", "Bearer token1", "Bearer token2"]
    assert asked == [None, '{"nbf": 1}']
    assert 3500 < signer.signature_valid_s <= 3600


@pytest.mark.parametrize(("ahead_s", "longer_s"), [(0, 0), (600, 600), (-600, 0), (9e8, 9e8)])
async def test_a_clock_that_is_ahead_makes_signatures_last_longer(ahead_s: float, longer_s: float) -> None:
    """The service compares the signed date with its own clock: a client may still send for so long."""
    date = formatdate(time.time() - ahead_s, usegmt=True)

    async def exchange(_address: str, _headers: Mapping[str, str]) -> Answer:
        return Answer(200, {"Date": date}, b"")

    for credential in (SharedKey.of("account", KEY), AzureNamedKeyCredential("account", KEY)):
        signer = Signer(credential)
        assert signer.signature_valid_s == SIGNED_S
        await signer.send("GET", "https://account.table.core.windows.net/T()", {}, exchange)
        assert signer.signature_valid_s == pytest.approx(SIGNED_S + longer_s, abs=3)


@pytest.mark.parametrize("ahead_s", [-7200, 0, 7200])
async def test_a_token_expires_by_the_services_clock(ahead_s: float) -> None:
    class Identity:
        async def get_token(self, *_scopes: str, **_options: object) -> AccessToken:
            return AccessToken("token", int(time.time() - ahead_s) + 7200)

        async def close(self) -> None: ...

        async def __aenter__(self) -> Identity:
            return self

        async def __aexit__(self, *_error: object) -> None: ...

    async def exchange(_address: str, _headers: Mapping[str, str]) -> Answer:
        return Answer(200, {"Date": formatdate(time.time() - ahead_s, usegmt=True)}, b"")

    signer = Signer(Identity())
    await signer.send("GET", "https://account.table.core.windows.net/T()", {}, exchange)
    assert signer.signature_valid_s == pytest.approx(max(7200, SIGNED_S + max(0, ahead_s)), abs=3)


def configured(account: Account) -> Credential:
    """Return the credential of a configured account."""
    return credential_of(account.name, account_key(account))


async def test_https_without_a_key_uses_ones_own_identity() -> None:
    credential = configured(Account("https://account.table.core.windows.net"))
    assert isinstance(credential, DefaultAzureCredential)
    await credential.close()


async def test_a_token_is_asked_for_storage_and_the_credential_closed_with_the_service() -> None:
    """No token is to be had here: that is a refused credential, not a service that is down."""

    class Nobody:
        scopes: tuple[str, ...] = ()
        closed = False

        async def get_token(self, *scopes: str, **_options: object) -> AccessToken:
            self.scopes = scopes
            raise ClientAuthenticationError("nobody is logged in, says identity ada@example.org")

        async def close(self) -> None:
            self.closed = True

        async def __aenter__(self) -> Nobody:
            return self

        async def __aexit__(self, *_error: object) -> None:
            await self.close()

    nobody = Nobody()
    async with AzureTableService.open("https://account.table.core.windows.net", nobody) as service:
        with pytest.raises(CredentialRefused) as raised:
            await service.table("Users").get(EntityKey("p", "r"))
    assert "az login" in raised.value.hint
    assert "ada" not in str(raised.value)
    assert nobody.scopes == ("https://storage.azure.com/.default",)
    assert nobody.closed


async def test_where_no_token_is_answered_the_endpoint_is_down_and_nothing_of_the_error_is_told() -> None:
    """Those who give tokens did not answer: that is no refusal, and nothing was sent to the service."""

    class Unanswered:
        async def get_token(self, *_scopes: str, **_options: object) -> AccessToken:
            raise ServiceRequestError(
                "no route to login.example.org", error=TimeoutError("for ada@example.org")
            )

        async def close(self) -> None:
            pass

    service = AzureTableService.open(
        "https://account.table.core.windows.net",
        Unanswered(),
        retry=RetryPolicy(attempts=1, connect_attempts=1),
    )
    async with service:
        with pytest.raises(EndpointDown, match="TimeoutError") as raised:
            await service.table("Users").upsert({"PartitionKey": "p", "RowKey": "r"})
    assert "example.org" not in str(raised.value)
    assert service.last_open is None


def test_a_key_comes_from_the_environment_variable_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account("https://account.table.core.windows.net", key_env="TABLES_KEY")
    monkeypatch.setenv("TABLES_KEY", KEY)
    assert configured(account) == SharedKey.of("account", KEY)
    monkeypatch.delenv("TABLES_KEY")
    with pytest.raises(ConfigurationError):
        configured(account)


def test_azurites_published_account_needs_no_variable_and_others_on_http_do() -> None:
    published = configured(Account("http://127.0.0.1:10002/devstoreaccount1"))
    assert isinstance(published, SharedKey)
    assert published.account == "devstoreaccount1"
    with pytest.raises(ConfigurationError):
        configured(Account("http://127.0.0.1:10002/tables"))
