"""Credentials of a storage account, and how they sign its requests.

Rules kept here:

* A repr never shows a key. A request is signed after everything else about it is decided, over the address
  as it goes out.
* Source: "Authorize with Shared Key", section "Table service (Shared Key Lite authorization)".
"""

from __future__ import annotations

import base64
import binascii
import hmac
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.credentials_async import AsyncTokenCredential
from azure.core.pipeline import PipelineRequest, PipelineResponse, policies
from azure.core.pipeline.transport import AsyncHttpResponse, HttpRequest

from rekey.errors import ConfigurationError
from rekey.tables.base import SIGNED_S

_LONGEST_TOKEN_S = 24 * 3600.0
"""Managed identities are given tokens for up to a day."""
SCOPE = "https://storage.azure.com/.default"
_RENEWED_S = 300.0
"""A token is renewed so long before it expires."""


@dataclass(frozen=True, slots=True)
class SharedKey:
    """A storage account's name and shared key."""

    account: str
    key: bytes = field(repr=False)

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


Credential: TypeAlias = SharedKey | AzureNamedKeyCredential | AzureSasCredential | AsyncTokenCredential
"""What signs requests: a configuration names a key or an identity; an application may use any of these."""


def credential_of(account: str, key: str | None) -> Credential:
    """Return the credential of an account: its shared key in base64, or the identity of this process if that
    is None. Raises ConfigurationError.

    The table service that is opened with the credential owns it: it closes a token credential when it closes.
    """
    if key is not None:
        return SharedKey.of(account, key)
    # Imported only where needed: the import takes a fifth of the time in which a command starts.
    from azure.identity.aio import DefaultAzureCredential

    return DefaultAzureCredential()


class SharedKeyLitePolicy(policies.AsyncHTTPPolicy[HttpRequest, AsyncHttpResponse]):
    """Pipeline policy that signs each attempt of a request with a shared key."""

    def __init__(self, credential: SharedKey | AzureNamedKeyCredential) -> None:
        super().__init__()
        self._credential = credential

    async def send(
        self, request: PipelineRequest[HttpRequest]
    ) -> PipelineResponse[HttpRequest, AsyncHttpResponse]:
        """Sign a request and send it on."""
        message, credential = request.http_request, self._credential
        if isinstance(credential, AzureNamedKeyCredential):
            credential = SharedKey.of(*credential.named_key)  # its owner may renew the key at any time
        message.headers.update(signed_headers(credential, message.url))
        return await self.next.send(request)


class _BearerToken(policies.AsyncBearerTokenCredentialPolicy[HttpRequest, AsyncHttpResponse]):
    """Pipeline policy that adds a token to each request, and tells when the present token expires."""

    @property
    def expires_on(self) -> int | None:
        """The token's expiry, in seconds since the Unix epoch; None before the first token."""
        return None if self._token is None else int(self._token.expires_on)


AuthPolicy: TypeAlias = (
    policies.AsyncHTTPPolicy[HttpRequest, AsyncHttpResponse]
    | policies.SansIOHTTPPolicy[HttpRequest, AsyncHttpResponse]
)


def auth_policy(credential: Credential) -> AuthPolicy:
    """Return the pipeline policy that authorises requests with a credential."""
    if isinstance(credential, SharedKey | AzureNamedKeyCredential):
        return SharedKeyLitePolicy(credential)
    if isinstance(credential, AzureSasCredential):
        policy: policies.SansIOHTTPPolicy[Any, Any] = policies.AzureSasCredentialPolicy(credential)
        return policy
    return _BearerToken(credential, SCOPE)


def accepted_s(credential: Credential, policy: AuthPolicy | None) -> float:
    """Return for how many seconds the service accepts a request that is signed with a credential now."""
    if isinstance(credential, SharedKey | AzureNamedKeyCredential):
        return SIGNED_S
    expires_on = policy.expires_on if isinstance(policy, _BearerToken) else None
    # How long a SAS holds is not looked at; a token that was not asked for yet may be one of the longest.
    return _LONGEST_TOKEN_S if expires_on is None else max(SIGNED_S, expires_on - time.time())


def signed_headers(credential: SharedKey, url: str) -> dict[str, str]:
    """Return date and signature (Shared Key Lite) of a request to a table service that is sent now."""
    date, parts = formatdate(usegmt=True), urlsplit(url)
    comp = parse_qs(parts.query).get("comp")  # the only parameter that is signed
    text = f"{date}\n/{credential.account}{parts.path}{f'?comp={comp[0]}' if comp else ''}"
    signature = base64.b64encode(hmac.digest(credential.key, text.encode(), "sha256")).decode("ascii")
    return {"x-ms-date": date, "Authorization": f"SharedKeyLite {credential.account}:{signature}"}


class Signer:
    """Signs requests that pass no pipeline, with an account's key or an identity's token."""

    def __init__(self, account: str, key: str | None) -> None:
        """Take an account's name and key, as `credential_of`."""
        credential: Any = credential_of(account, key)
        self._credential: SharedKey | AsyncTokenCredential = credential
        self._token: AccessToken | None = None

    async def headers(self, url: str) -> dict[str, str]:
        """Return what authorises a request that is sent now. Raises ClientAuthenticationError."""
        if isinstance(self._credential, SharedKey):
            return signed_headers(self._credential, url)
        if self._token is None or self._token.expires_on - time.time() < _RENEWED_S:
            self._token = await self._credential.get_token(SCOPE)
        return {"x-ms-date": formatdate(usegmt=True), "Authorization": f"Bearer {self._token.token}"}

    async def close(self) -> None:
        """Close a token credential."""
        if not isinstance(self._credential, SharedKey):
            await self._credential.close()
