"""A whole way with tokens: an issuer on this machine, a proxy with a certificate for trials, the SDK's own
client with a token credential, and the account behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import HttpResponseError
from azure.data.tables.aio import TableClient

from rekey.declaration.migration import Declared
from rekey.proxy.running import Listeners, access_of, proxying
from rekey.proxy.tenant_keys import TokenVerifier
from rekey.proxy.tls import Certificate
from rekey.proxy.trial import TrialFiles, trial_files
from tests.contract.test_proxy import STATES, World, migration_of, row, world
from tests.fakes.issuer import SERVICE, TENANT, USER, Issuer, application_claims, listening, now, user_claims
from tests.worlds.proxy import ANYWHERE, QUICK

__all__ = ["world"]
pytestmark = [pytest.mark.azurite]


class Credential:
    """Gives tokens of an issuer, in turn, and tells what it was asked for."""

    def __init__(self, *tokens: str) -> None:
        self.tokens, self.asked = list(tokens), list[tuple[tuple[str, ...], str | None]]()

    async def get_token(self, *scopes: str, tenant_id: str | None = None, **_: Any) -> AccessToken:
        self.asked.append((scopes, tenant_id))
        token = self.tokens.pop(0) if len(self.tokens) > 1 else self.tokens[0]
        return AccessToken(token, int(now()) + 3600)

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> Credential:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


ENTRA = """
[proxy.access.entra]
tenant = "{tenant}"
authority = "{authority}"
allow = [
    {{ object_id = "{user}", view = "both", rights = "write" }},
    {{ object_id = "{service}", view = "new", rights = "read" }},
]
"""


class Proxied:
    """A proxy that takes tokens, and its issuer."""

    def __init__(self, world: World, url: str, files: TrialFiles, issuer: Issuer) -> None:
        self.world, self.url, self.files, self.issuer = world, url, files, issuer
        self.entra = world.config.proxy.access.entra
        assert self.entra is not None

    def client(self, table: str, credential: Credential) -> TableClient:
        endpoint = f"{self.url}{self.world.azurite.tables.name}"
        return TableClient(
            endpoint, table, credential=credential, connection_verify=str(self.files.ca), retry_total=0
        )

    def of_user(self, **changed: Any) -> str:
        assert self.entra is not None
        return self.issuer.token(user_claims(self.entra, now(), **changed))

    def of_service(self) -> str:
        assert self.entra is not None
        return self.issuer.token(application_claims(self.entra, now()))


@asynccontextmanager
async def taking_tokens(world: World, folder: Path, declared: Declared) -> AsyncIterator[Proxied]:
    issuer, files = Issuer(), trial_files(folder / "trial")
    async with listening(issuer) as authority:
        world.configure(ENTRA.format(tenant=TENANT, authority=authority, user=USER, service=SERVICE))
        listeners = Listeners(ANYWHERE, ANYWHERE, Certificate(files.certificate, files.key).context)
        access = access_of(world.config)
        async with proxying(world.config, [declared], access, listeners, settings=QUICK) as proxy:
            yield Proxied(world, proxy.url, files, issuer)


async def test_an_application_with_a_token_writes_in_both_views(world: World, tmp_path: Path) -> None:
    declared = migration_of(world.table_name)
    source, target = declared.migration.source, declared.migration.target.table
    await world.begun(STATES["dual_write"], declared)
    async with taking_tokens(world, tmp_path, declared) as proxy:
        credential = Credential(proxy.of_user())
        async with proxy.client(source, credential) as old, proxy.client(target, credential) as new:
            await old.create_entity(row("a", A=1))
            await old.upsert_entity(row("b", A=1))
            [moved] = [entity async for entity in new.list_entities() if entity["Mail"] == "a"]
            await new.update_entity({**moved, "A": 2})
            assert (await old.get_entity("eu", "a"))["A"] == 2
            await old.submit_transaction([("upsert", row("c", A=1)), ("delete", row("b"))])
            assert sorted([entity["RowKey"] async for entity in old.list_entities()]) == ["a", "c"]
            assert sorted([entity["Mail"] async for entity in new.list_entities()]) == ["a", "c"]
    assert proxy.issuer.fetched == 1


async def test_an_application_does_no_more_than_its_entry_says(world: World, tmp_path: Path) -> None:
    declared = migration_of(world.table_name)
    source, target = declared.migration.source, declared.migration.target.table
    await world.begun(STATES["dual_write"], declared)
    async with taking_tokens(world, tmp_path, declared) as proxy:
        credential = Credential(proxy.of_service())
        async with proxy.client(source, credential) as old, proxy.client(target, credential) as new:
            assert [entity async for entity in new.list_entities()] == []
            for refused in (
                new.create_entity(row("a")),
                new.delete_table(),
                new.submit_transaction([("upsert", row("a"))]),
                old.get_entity("eu", "a"),
                old.create_entity(row("a")),
            ):
                with pytest.raises(HttpResponseError) as caught:
                    await refused
                assert caught.value.status_code == 403
                assert "AuthorizationPermissionMismatch" in str(caught.value)


async def test_the_sdk_answers_the_challenge_with_a_token_for_tenant_and_audience(
    world: World, tmp_path: Path
) -> None:
    declared = migration_of(world.table_name)
    await world.begun(STATES["dual_write"], declared)
    async with taking_tokens(world, tmp_path, declared) as proxy:
        old = proxy.of_user(exp=int(now()) - 3600)
        credential = Credential(old, proxy.of_user())
        async with proxy.client(declared.migration.source, credential) as client:
            await client.create_entity(row("a"))
    assert credential.asked[1:] == [(("https://storage.azure.com/.default",), TENANT)]


async def test_a_proxy_that_ends_ends_what_it_fetches(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[TokenVerifier] = []

    async def close(self: TokenVerifier) -> None:
        closed.append(self)

    monkeypatch.setattr(TokenVerifier, "close", close)
    async with taking_tokens(world, tmp_path, migration_of(world.table_name)):
        assert closed == []
    assert len(closed) == 1


async def test_a_tenant_that_does_not_answer_is_a_busy_server(world: World, tmp_path: Path) -> None:
    declared = migration_of(world.table_name)
    await world.begun(STATES["dual_write"], declared)
    async with taking_tokens(world, tmp_path, declared) as proxy:
        proxy.issuer.is_down = True
        async with proxy.client(declared.migration.source, Credential(proxy.of_user())) as client:
            with pytest.raises(HttpResponseError) as caught:
                await client.create_entity(row("a"))
    assert caught.value.status_code == 503
    assert caught.value.response is not None
    assert caught.value.response.headers["Retry-After"] == "1"
