"""The tenant's keys are fetched at a bounded rate, survive an endpoint that is down until `max_age`, and
follow a rotation; what was verified is remembered, within bounds, and no longer than its key and its
times."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from rekey.errors import RequestRejected, Unavailable
from rekey.proxy import tenant_keys
from rekey.proxy.tenant_keys import (
    REFRESH_S,
    RETRY_S,
    UNKNOWN_S,
    TenantKeys,
    TokenVerifier,
    fetch_keys,
)
from rekey.proxy.tokens import SKEW_S, Principal
from tests.fakes.issuer import USER, Issuer, entra_of, listening, private_key, user_claims

NOW = 1_790_000_000.0
HOUR = 3600.0
DAY = 24 * HOUR


class Setting:
    """A tenant's keys on a clock that is set by hand, and the issuer behind them."""

    def __init__(self, **changed: Any) -> None:
        self.issuer, self.entra, self.seconds = Issuer(), entra_of(**changed), 0.0
        self.keys = TenantKeys(self.entra, self.issuer.fetch, lambda: self.seconds)
        self.verifier = TokenVerifier(self.entra, self.keys, lambda: NOW + self.seconds)

    def token(self, key_id: str = "first", **changed: Any) -> str:
        claims = user_claims(self.entra, NOW, **{"exp": int(NOW + 30 * DAY), **changed})
        return self.issuer.token(claims, key_id)

    def rotate(self) -> None:
        """Sign with another key from now on; the tenant lists it alone."""
        self.issuer.keys = {"second": private_key("second")}

    async def settle(self) -> None:
        """Wait for a fetch that nobody waits for."""
        while self.keys._refreshing is not None:
            await asyncio.sleep(0)


async def code_of(setting: Setting, token: str) -> str:
    """Return "" for a token that is accepted, else the code of the error."""
    try:
        await setting.verifier.principal(token)
    except (RequestRejected, Unavailable) as error:
        return str(error.code)
    return ""


REFUSED, UNKNOWN = "InvalidAuthenticationInfo", "SigningKeysUnknown"


async def test_keys_are_fetched_with_the_first_token_and_once_for_many() -> None:
    setting = Setting()
    principals = await asyncio.gather(*(setting.verifier.principal(setting.token()) for _ in range(20)))
    assert (set(principals), setting.issuer.fetched) == ({Principal(USER)}, 1)


async def test_known_keys_outlive_an_endpoint_that_is_down_until_max_age_and_no_longer() -> None:
    setting = Setting(max_age_s=DAY)
    assert await code_of(setting, setting.token()) == ""
    setting.issuer.is_down = True
    for setting.seconds in (HOUR, 2 * HOUR, DAY - 1):
        assert await code_of(setting, setting.token()) == ""
        assert await code_of(setting, setting.token(uti="one that was not seen before")) == ""
        await setting.settle()
    setting.seconds = DAY
    for token in (setting.token(), setting.token(uti="another")):
        assert await code_of(setting, token) == UNKNOWN
    setting.issuer.is_down, setting.seconds = False, DAY + RETRY_S
    assert await code_of(setting, setting.token()) == ""


async def test_without_keys_nothing_is_accepted_and_attempts_are_bounded() -> None:
    setting = Setting()
    setting.issuer.is_down = True
    for _ in range(50):
        assert await code_of(setting, setting.token()) == UNKNOWN
    assert setting.issuer.fetched == 1
    setting.seconds += RETRY_S
    assert await code_of(setting, setting.token()) == UNKNOWN
    assert setting.issuer.fetched == 2


async def test_a_new_key_is_fetched_when_a_token_names_it() -> None:
    setting = Setting()
    await code_of(setting, setting.token())
    setting.rotate()
    setting.seconds = UNKNOWN_S
    assert await code_of(setting, setting.token("second")) == ""
    assert setting.issuer.fetched == 2


async def test_unknown_ids_cause_few_fetches() -> None:
    setting = Setting()
    await code_of(setting, setting.token())
    setting.issuer.keys["stranger"] = private_key("stranger")
    strange = setting.token("stranger")
    del setting.issuer.keys["stranger"]
    for setting.seconds in range(0, int(HOUR), 10):
        assert await code_of(setting, strange) == REFUSED
    assert 2 <= setting.issuer.fetched <= 1 + HOUR / UNKNOWN_S


async def test_an_unknown_id_is_not_refused_for_good_while_the_endpoint_is_down() -> None:
    """It may be a new key: 401 would make an application give up."""
    setting = Setting()
    await code_of(setting, setting.token())
    setting.rotate()
    setting.issuer.is_down, setting.seconds = True, UNKNOWN_S
    assert await code_of(setting, setting.token("second")) == UNKNOWN


async def test_a_key_that_the_tenant_gave_up_ends_the_tokens_that_it_signed() -> None:
    setting = Setting()
    token = setting.token()
    assert await code_of(setting, token) == ""
    setting.rotate()
    setting.seconds = REFRESH_S
    assert await code_of(setting, token) == ""  # answered before the keys came
    await setting.settle()
    assert await code_of(setting, token) == REFUSED


async def test_a_key_that_was_exchanged_under_its_id_ends_the_tokens_that_it_signed() -> None:
    setting = Setting()
    token = setting.token()
    assert await code_of(setting, token) == ""
    setting.issuer.keys = {"first": private_key("second")}
    setting.seconds = REFRESH_S
    await code_of(setting, token)
    await setting.settle()
    assert await code_of(setting, token) == REFUSED


async def test_nobody_waits_while_known_keys_are_fetched_again() -> None:
    setting, arrived = Setting(), asyncio.Event()

    async def slow() -> bytes:
        await arrived.wait()
        return await setting.issuer.fetch()

    await code_of(setting, setting.token())
    setting.keys._fetch = slow
    setting.seconds = REFRESH_S
    assert await asyncio.wait_for(code_of(setting, setting.token()), 1.0) == ""
    arrived.set()
    await setting.settle()
    assert setting.issuer.fetched == 2


async def test_a_set_without_keys_does_not_replace_known_ones(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "rekey.proxy")
    setting = Setting()
    await code_of(setting, setting.token())
    former, setting.issuer.keys = setting.token(), {}
    setting.seconds = REFRESH_S
    await code_of(setting, former)
    await setting.settle()
    assert await code_of(setting, former) == ""
    assert "the tenant's signing keys could not be fetched (ValueError)" in caplog.text


async def test_a_caller_that_is_canceled_does_not_end_the_fetch_of_others() -> None:
    setting, arrived = Setting(), asyncio.Event()

    async def slow() -> bytes:
        await arrived.wait()
        return await setting.issuer.fetch()

    setting.keys._fetch = slow
    first, second = (asyncio.create_task(code_of(setting, setting.token())) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    arrived.set()
    assert await second == ""


async def test_closing_ends_a_fetch() -> None:
    setting, begun = Setting(), asyncio.Event()

    async def never() -> bytes:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    setting.keys._fetch = never
    waiting = asyncio.create_task(code_of(setting, setting.token()))
    await begun.wait()
    await setting.verifier.close()
    await asyncio.gather(waiting, return_exceptions=True)
    assert setting.keys._refreshing is None


# --- what is remembered ----------------------------------------------------------------------------------


async def test_a_token_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    setting, calls = Setting(), list[str]()
    verify = tenant_keys.verify

    def counted(token: str, *arguments: Any) -> Any:
        calls.append(token)
        return verify(token, *arguments)

    monkeypatch.setattr(tenant_keys, "verify", counted)
    for _ in range(5):
        assert await setting.verifier.principal(setting.token()) == Principal(USER)
    assert len(calls) == 1


@pytest.mark.parametrize("remembers", [True, False])
async def test_a_token_ends_with_its_expiry_also_where_it_is_remembered(remembers: bool) -> None:
    setting = Setting()
    token = setting.token(exp=int(NOW + HOUR))
    if remembers:
        assert await code_of(setting, token) == ""
    setting.seconds = HOUR + SKEW_S - 1
    assert await code_of(setting, token) == ""
    setting.seconds = HOUR + SKEW_S
    assert await code_of(setting, token) == REFUSED
    assert setting.verifier.remembered == 0


async def test_so_many_tokens_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_keys, "MOST_TOKENS", 10)
    setting = Setting()
    for number in range(30):
        assert await code_of(setting, setting.token(uti=str(number))) == ""
    assert setting.verifier.remembered == 10


async def test_a_refused_token_is_not_remembered() -> None:
    setting = Setting()
    for token in (setting.token(aud="https://graph.microsoft.com"), setting.token()[:-4] + "AAAA", "x"):
        assert await code_of(setting, token) == REFUSED
    assert setting.verifier.remembered == 0


# --- over the wire ---------------------------------------------------------------------------------------


async def test_keys_are_fetched_over_http() -> None:
    issuer = Issuer()
    async with listening(issuer) as authority:
        entra = entra_of(authority=authority)
        assert await fetch_keys(entra) == issuer.document()
        issuer.is_down = True
        with pytest.raises(ValueError, match="no set of keys"):
            await fetch_keys(entra)


async def test_a_set_of_keys_that_never_ends_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_keys, "_MOST_BYTES", 100)
    async with listening(Issuer()) as authority:
        with pytest.raises(ValueError, match="no set of keys"):
            await fetch_keys(entra_of(authority=authority))


async def test_no_redirect_is_followed() -> None:
    """It could lead to keys of somebody else."""
    from aiohttp import web

    issuer = Issuer()
    async with listening(issuer) as authority:

        async def answer(_request: web.BaseRequest) -> web.Response:
            return web.Response(status=302, headers={"Location": entra_of(authority=authority).keys_url})

        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = runner.addresses[0][1]
            with pytest.raises(ValueError, match="no set of keys"):
                await fetch_keys(entra_of(authority=f"http://127.0.0.1:{port}"))
        finally:
            await runner.cleanup()
    assert issuer.fetched == 0
