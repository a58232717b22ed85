"""What `rekey doctor` finds out about a tenant: whether its keys come, and whether a token of the proxy's own
identity would be taken. The token is shown nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError

from rekey.project.config import Account, Config
from rekey.project.entra import TenantCheck
from rekey.proxy import tenant_check
from rekey.proxy.tenant_check import check_tenant, try_tenant
from tests.fakes.issuer import OTHER_TENANT, Issuer, application_claims, entra_of, listening, now, private_key


class Identity:
    """An identity with one token, or with none."""

    def __init__(self, token: str) -> None:
        self.token, self.scopes, self.is_closed = token, list[str](), False

    async def get_token(self, *scopes: str) -> AccessToken:
        self.scopes += scopes
        if not self.token:
            raise ClientAuthenticationError("no account of https://login.example is signed in")
        return AccessToken(self.token, 0)

    async def close(self) -> None:
        self.is_closed = True


async def tried(identity: Any = None, **changed: Any) -> TenantCheck:
    async with listening(Issuer(**changed)) as authority:
        return await try_tenant(entra_of(authority=authority), identity)


async def test_the_keys_of_a_tenant_are_counted() -> None:
    assert await tried(keys={"a": private_key("first"), "b": private_key("second")}) == TenantCheck(2)


async def test_a_tenant_that_does_not_answer_is_named_by_the_error() -> None:
    assert await tried(is_down=True) == TenantCheck(failure="ValueError")


@pytest.mark.parametrize(
    ("claims", "own"),
    [
        ({}, ""),
        ({"tid": OTHER_TENANT}, "The token is of another tenant."),
        ({"aud": "https://graph.microsoft.com"}, "The token is for another audience."),
        ({"exp": 1}, "The token is expired."),
    ],
)
async def test_a_token_of_its_own_is_verified(claims: dict[str, Any], own: str) -> None:
    issuer = Issuer()
    async with listening(issuer) as authority:
        entra = entra_of(authority=authority)
        identity = Identity(issuer.token(application_claims(entra, now(), **claims)))
        check = await try_tenant(entra, cast(Any, identity))
    assert check == TenantCheck(1, own=own)
    assert identity.scopes == ["https://storage.azure.com/.default"]
    assert identity.token not in repr(check)


async def test_a_key_that_the_tenant_does_not_list_is_told() -> None:
    issuer = Issuer({"other": private_key("other")})
    identity = Identity(issuer.token(application_claims(entra_of(), now()), "other"))
    assert "does not have" in str((await tried(identity)).own)


async def test_an_identity_without_a_token_is_told_without_an_address() -> None:
    check = await tried(Identity(""))
    assert check.own == "this process's identity gets no token for that audience"


@pytest.mark.parametrize(
    ("tables", "is_asked"),
    [
        (Account("https://acme.table.core.windows.net"), True),
        (Account("https://acme.table.core.windows.net", "KEY"), False),
        (Account("http://127.0.0.1:10002/devstoreaccount1"), False),
    ],
)
async def test_an_identity_is_asked_where_the_proxy_uses_one(
    tables: Account, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = Identity("")
    monkeypatch.setattr(tenant_check, "credential_of", lambda *_: identity)
    async with listening(Issuer()) as authority:
        config = Config(Path(), tables, tables, Path(), Path())
        check = await check_tenant(config, entra_of(authority=authority))
    assert (check.own is not None, identity.is_closed) == (is_asked, is_asked)
