"""Credentials of a storage account, and how they sign its requests. Source: "Authorize with Shared Key",
section "Table service (Shared Key Lite authorization)"."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import parse_qs

from rekey.core.macs import hmac_sha256
from rekey.errors import ConfigurationError
from rekey.tables.base import SIGNED_S

if TYPE_CHECKING:
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
    from azure.core.credentials_async import AsyncTokenCredential

    from rekey.tables.tokens import BearerToken

# Managed identities get tokens for up to a day.
_LONGEST_TOKEN_S = 24 * 3600.0
SCOPE = "https://storage.azure.com/.default"


@dataclass(frozen=True, slots=True)
class SharedKey:
    """A storage account's name and shared key. `signed_s_ago`: the age that requests claim for their
    signature, so that `rekey doctor --live` can check whether the service refuses old ones."""

    account: str
    key: bytes = field(repr=False)
    signed_s_ago: float = 0.0

    @classmethod
    def of(cls, account: str, key: str) -> SharedKey:
        """Return the credential of an account and its key in base64. Raises ConfigurationError."""
        try:
            return cls(account, base64.b64decode(key, validate=True))
        except (binascii.Error, ValueError):
            raise ConfigurationError(
                f"the key of account {account} is not base64",
                hint="use the key alone as the portal shows it; not a connection string, not a SAS",
            ) from None


# What signs requests: a configuration names a key or an identity; an application may use any of these.
Credential: TypeAlias = "SharedKey | AzureNamedKeyCredential | AzureSasCredential | AsyncTokenCredential"


class _Answer(Protocol):
    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Any: ...


A = TypeVar("A", bound=_Answer)


def credential_of(account: str, key: str | None) -> Credential:
    """Return the credential of an account: its shared key in base64, or the identity of this process if that
    is None. The table service opened with it owns it and closes it. Raises ConfigurationError."""
    if key is not None:
        return SharedKey.of(account, key)
    # Imported only where needed: the import takes a fifth of a command's start time.
    from azure.identity.aio import DefaultAzureCredential

    return DefaultAzureCredential()


class NoToken(Exception):
    """An identity gets no token."""


class TokenUnreachable(OSError):
    """The issuer of an identity's tokens did not answer; holds the name of the error."""


class Signer:
    """Authorizes each attempt of a request with a credential, and closes that if it is a token credential."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential
        self._token: BearerToken | None = None
        # Seconds that this machine's clock is ahead of the service's, by the last answer; below 0: behind.
        self._ahead_s = 0.0
        if hasattr(credential, "get_token"):
            from rekey.tables.tokens import BearerToken  # azure-core is a tenth of a command's start

            self._token = BearerToken(cast(Any, credential), SCOPE)

    @property
    def is_identity(self) -> bool:
        return self._token is not None

    async def send(
        self,
        method: str,
        address: str,
        headers: dict[str, str],
        exchange: Callable[[str, Mapping[str, str]], Awaitable[A]],
    ) -> A:
        """Sign an attempt; `exchange` carries out the signed address and headers. Raises NoToken,
        TokenUnreachable."""

        async def timed(address: str, headers: Mapping[str, str]) -> A:
            answer = await exchange(address, headers)
            if (date := answer.headers.get("Date")) and (then := _seconds(date)) is not None:
                self._ahead_s = time.time() - then
            return answer

        credential: Any = self._credential
        if self._token is not None:
            from azure.core.exceptions import AzureError, ClientAuthenticationError

            dated = headers | {"x-ms-date": _date(int(time.time()))}
            try:
                return cast(A, await self._token.exchange(method, address, dated, timed))
            except ClientAuthenticationError:
                raise NoToken from None
            except AzureError as error:  # its text may hold an address
                raise TokenUnreachable(type(error.inner_exception or error).__name__) from None
        # The owner of one of azure-core's credentials may renew its signature or key at any time.
        if (signature := getattr(credential, "signature", None)) is not None:
            address += f"{'&' if '?' in address else '?'}{signature.lstrip('?')}"
            return await timed(address, headers)
        if (named := getattr(credential, "named_key", None)) is not None:
            credential = SharedKey.of(*named)
        headers.update(signed_headers(credential, address))
        return await timed(address, headers)

    @property
    def signature_valid_s(self) -> float:
        """Seconds for which the service accepts a request that is signed now, by its clock."""
        # Signed with a date ahead of the service's, a request is old that much later.
        signed_s = SIGNED_S + max(0.0, self._ahead_s)
        if isinstance(self._credential, SharedKey) or hasattr(self._credential, "named_key"):
            return signed_s
        expires_on = None if self._token is None else self._token.expires_on
        # The expiry of a SAS is not checked; a token that was not requested yet may be one of the longest.
        left_s = _LONGEST_TOKEN_S if expires_on is None else expires_on - (time.time() - self._ahead_s)
        return max(signed_s, left_s)

    async def close(self) -> None:
        if (close := getattr(self._credential, "close", None)) is not None:
            await close()


def signed_headers(credential: SharedKey, url: str) -> dict[str, str]:
    """Return date and signature (Shared Key Lite) of a request that is sent now."""
    date = _date(int(time.time() - credential.signed_s_ago))
    resource, _, query = url.partition("?")
    path = "/".join(resource.split("/", 3)[3:])
    comp = parse_qs(query).get("comp") if "comp=" in query else None  # the only signed parameter
    text = f"{date}\n/{credential.account}/{path}{f'?comp={comp[0]}' if comp else ''}"
    signature = base64.b64encode(_mac(credential.key)(text.encode())).decode("ascii")
    return {"x-ms-date": date, "Authorization": f"SharedKeyLite {credential.account}:{signature}"}


_mac = lru_cache(maxsize=8)(hmac_sha256)


@lru_cache(maxsize=1)
def _seconds(date: str) -> float | None:
    """Return the seconds since the Unix epoch of a `Date` header, None for one that cannot be read."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
