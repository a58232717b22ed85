"""Credentials: where they come from, what they sign, and that nothing shows them."""

from __future__ import annotations

import base64
from unittest.mock import AsyncMock

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.core.pipeline import PipelineContext, PipelineRequest
from azure.core.pipeline.transport import HttpRequest
from azure.identity.aio import DefaultAzureCredential

from rekey.errors import ConfigurationError, CredentialRefused
from rekey.model import EntityKey
from rekey.project.config import Account, account_key
from rekey.tables import credentials
from rekey.tables.azure import AzureTableService
from rekey.tables.credentials import (
    Credential,
    SharedKey,
    SharedKeyLitePolicy,
    credential_of,
    signed_headers,
)

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
    monkeypatch.setattr(credentials, "formatdate", lambda _at, usegmt: DATE)


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


@pytest.mark.usefixtures("one_moment")
async def test_a_key_that_its_owner_renews_signs_the_next_request() -> None:
    """An application's own credential object, which it may update at any time."""
    named = AzureNamedKeyCredential("tables", KEY)
    url = "http://127.0.0.1:10002/tables/T()"
    policy = SharedKeyLitePolicy(named)
    policy.next = AsyncMock()

    async def sent() -> dict[str, str]:
        message = HttpRequest("GET", url)
        await policy.send(PipelineRequest(message, PipelineContext(None)))
        return dict(message.headers)

    assert await sent() == signed_headers(SharedKey.of("tables", KEY), url)
    renewed = base64.b64encode(b"another key").decode()
    named.update("tables", renewed)
    assert await sent() == signed_headers(SharedKey.of("tables", renewed), url)


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
