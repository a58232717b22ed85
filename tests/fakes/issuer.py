"""An issuer of access tokens in place of Microsoft Entra ID: its keys, the tokens that it signs, and where
they are fetched from."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from jwt.algorithms import RSAAlgorithm

from rekey.project.entra import Allowed, Entra, PrincipalKind, Rights, View

TENANT = "11111111-2222-3333-4444-555555555555"
OTHER_TENANT = "99999999-2222-3333-4444-555555555555"
USER = "aaaaaaaa-0000-0000-0000-000000000001"
SERVICE = "aaaaaaaa-0000-0000-0000-000000000002"
APPLICATION = "bbbbbbbb-0000-0000-0000-000000000001"
CLI = "bbbbbbbb-0000-0000-0000-000000000002"
GROUP = "cccccccc-0000-0000-0000-000000000001"


@cache
def private_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    """Return a key, the same for the same name: making one takes long."""
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def encoded(content: bytes) -> str:
    """Return bytes as a part of a token."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def signed(header: Mapping[str, Any], payload: bytes, key: rsa.RSAPrivateKey) -> str:
    """Return a token with this header and payload, signed with RS256 whatever the header says."""
    text = f"{encoded(json.dumps(header).encode())}.{encoded(payload)}"
    return f"{text}.{encoded(key.sign(text.encode(), padding.PKCS1v15(), SHA256()))}"


def jwk_of(key_id: str, key: rsa.RSAPrivateKey, **more: Any) -> dict[str, Any]:
    """Return a key as a set of keys lists it."""
    public: dict[str, Any] = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {"kty": "RSA", "use": "sig", "kid": key_id, "n": public["n"], "e": public["e"], **more}


def entra_of(*allow: Allowed, **changed: Any) -> Entra:
    """Return the settings for this issuer's tenant; without entries the user may write in both views."""
    usual = (Allowed(PrincipalKind.OBJECT, USER, View.BOTH, Rights.WRITE),)
    return Entra(TENANT, allow or usual, **changed)


def user_claims(entra: Entra, now: float, **changed: Any) -> dict[str, Any]:
    """Return the claims of a token of version 1.0 that Azure CLI gets for a user; None leaves a claim out."""
    claims = {
        "aud": entra.audience,
        "iss": entra.issuers["1.0"],
        "iat": int(now) - 300,
        "nbf": int(now) - 300,
        "exp": int(now) + 3600,
        "appid": CLI,
        "appidacr": "0",
        "idtyp": "user",
        "oid": USER,
        "scp": "user_impersonation",
        "sub": "a-pairwise-subject",
        "tid": entra.tenant,
        "ver": "1.0",
        **changed,
    }
    return {name: value for name, value in claims.items() if value is not None}


def application_claims(entra: Entra, now: float, **changed: Any) -> dict[str, Any]:
    """Return the claims of a token that a managed identity gets."""
    own = {"appid": APPLICATION, "idtyp": "app", "oid": SERVICE, "scp": None, "sub": SERVICE}
    return user_claims(entra, now, **{**own, **changed})


@dataclass
class Issuer:
    """Keys by their ids, whether they can be fetched, and how often they were."""

    keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=lambda: {"first": private_key("first")})
    is_down: bool = False
    fetched: int = 0

    def token(self, claims: Mapping[str, Any], key_id: str = "first", **header: Any) -> str:
        """Sign a token."""
        whole = {"typ": "JWT", "alg": "RS256", "kid": key_id, **header}
        return signed(whole, json.dumps(claims).encode(), self.keys[key_id])

    def document(self) -> bytes:
        """Return the set of keys."""
        return json.dumps({"keys": [jwk_of(key_id, key) for key_id, key in self.keys.items()]}).encode()

    async def fetch(self) -> bytes:
        """Be the endpoint of the keys."""
        self.fetched += 1
        if self.is_down:
            raise OSError("nobody answers")
        return self.document()


@asynccontextmanager
async def listening(issuer: Issuer) -> AsyncIterator[str]:
    """Serve an issuer's keys on this machine; yield its authority."""

    async def answer(request: web.BaseRequest) -> web.Response:
        issuer.fetched += 1
        if issuer.is_down:
            return web.Response(status=503)
        if request.path != f"/{TENANT}/discovery/v2.0/keys":
            return web.Response(status=404)
        return web.Response(body=issuer.document(), content_type="application/json")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@contextmanager
def listening_apart(issuer: Issuer) -> Iterator[str]:
    """Serve an issuer's keys from a thread, for a command that runs its own loop; yield its authority."""
    ready, authority = threading.Event(), list[str]()
    loop = asyncio.new_event_loop()

    async def serve(ended: asyncio.Event) -> None:
        async with listening(issuer) as address:
            authority.append(address)
            ready.set()
            await ended.wait()

    ended = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(ended),))
    thread.start()
    try:
        assert ready.wait(10.0)
        yield authority[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def now() -> float:
    """Return the time, for tokens that a running proxy judges."""
    return time.time()
