"""The signing keys of a tenant, and the tokens that were verified with them (ADR 0049)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TypeAlias

import aiohttp
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from rekey.errors import Unavailable
from rekey.project.entra import Entra
from rekey.proxy.tokens import Principal, Verified, key_id_of, keys_in, refused_token, verify
from rekey.tables.transport import environment_proxy

_LOG = logging.getLogger("rekey.proxy")
# Seconds after which keys are fetched again, while the former ones are used.
REFRESH_S = 3600.0
# Seconds between fetches that unknown ids cause: anybody can send one. Entra ID publishes a key long before
# it signs with it.
UNKNOWN_S = 300.0
# Seconds between attempts while the endpoint does not answer.
RETRY_S = 10.0
_FETCH_S, _MOST_BYTES = 5.0, 1024**2
# Verified tokens that are remembered.
MOST_TOKENS = 10_000
# Returns the JWK set. Raises OSError, aiohttp.ClientError, ValueError.
Fetch: TypeAlias = Callable[[], Awaitable[bytes]]


class TenantKeys:
    """A tenant's signing keys. While the endpoint does not answer, known keys count until `max_age`."""

    def __init__(self, entra: Entra, fetch: Fetch, clock: Callable[[], float] = time.monotonic) -> None:
        self._entra, self._fetch, self._clock = entra, fetch, clock
        self._keys: dict[str, RSAPublicKey] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None

    async def key(self, key_id: str) -> RSAPublicKey:
        """Return a key by its id. Raises RequestRejected when the tenant has none with this id, and
        Unavailable when that cannot be known."""
        age = self._clock() - self._fetched_at
        if age >= self._entra.max_age_s:
            await self._refreshed()
            if self._clock() - self._fetched_at >= self._entra.max_age_s:
                raise _unknown()
        elif key_id not in self._keys and age >= UNKNOWN_S:
            await self._refreshed()
        elif age >= REFRESH_S:
            self._refresh()  # nobody waits for it
        key = self._keys.get(key_id)
        if key is None:
            if self._fetched_at < self._tried_at:
                raise _unknown()  # the endpoint did not answer: it may be a new key
            raise refused_token("The token is signed with a key that the tenant does not have.")
        return key

    def _refresh(self) -> asyncio.Task[None] | None:
        """Begin to fetch the keys, unless that is going on or was tried a moment ago."""
        if self._refreshing is None and self._clock() - self._tried_at >= RETRY_S:
            self._refreshing = asyncio.create_task(self._fetch_all())
        return self._refreshing

    async def _refreshed(self) -> None:
        """Wait for a fetch. It goes on when a caller that waits for it is canceled."""
        if (task := self._refresh()) is not None:
            await asyncio.shield(task)

    async def _fetch_all(self) -> None:
        self._tried_at = self._clock()
        try:
            self._keys = keys_in(await self._fetch(), self._entra)
            self._fetched_at = self._tried_at = self._clock()
        except (aiohttp.ClientError, OSError, ValueError) as failed:
            text = "the tenant's signing keys could not be fetched (%s)"
            _LOG.warning(text, type(failed).__name__, extra={"event": "signing-keys"})
        finally:
            self._refreshing = None

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)


class TokenVerifier:
    """Verifies tokens, and remembers what it has verified: by the token's hash, until it expires."""

    def __init__(self, entra: Entra, keys: TenantKeys, clock: Callable[[], float] = time.time) -> None:
        self._entra, self._keys, self._clock = entra, keys, clock
        self._known: OrderedDict[bytes, tuple[RSAPublicKey, Verified]] = OrderedDict()

    async def principal(self, token: str) -> Principal:
        """Return whose token it is. Raises RequestRejected (401), and Unavailable without the keys."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        if (known := self._known.get(digest)) is not None:
            key, verified = known
            # A key that the tenant gave up, or whose age is over, ends the tokens that it signed.
            if await self._keys.key(verified.key_id) is key and verified.holds(self._clock()):
                return verified.principal
        key = await self._keys.key(key_id_of(token))
        self._known.pop(digest, None)
        verified = verify(token, key, self._entra, self._clock())
        self._known[digest] = key, verified
        if len(self._known) > MOST_TOKENS:
            self._known.popitem(last=False)
        return verified.principal

    @property
    def remembered(self) -> int:
        """The number of tokens that are remembered."""
        return len(self._known)

    async def close(self) -> None:
        await self._keys.close()


async def fetch_keys(entra: Entra) -> bytes:
    """Return the tenant's JWK set. Raises OSError, aiohttp.ClientError, ValueError."""
    timeout = aiohttp.ClientTimeout(total=_FETCH_S)
    async with (
        aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
        # No redirect: it could lead to keys of somebody else.
        session.get(
            entra.keys_url, allow_redirects=False, proxy=environment_proxy(entra.keys_url)
        ) as response,
    ):
        document = bytearray()
        async for chunk in response.content.iter_any():
            document += chunk
            if len(document) > _MOST_BYTES:
                raise ValueError("no set of keys")
        if response.status != HTTPStatus.OK:
            raise ValueError("no set of keys")
        return bytes(document)


def _unknown() -> Unavailable:
    return Unavailable("nothing was done: the tenant's signing keys are unknown", code="SigningKeysUnknown")
