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
from urllib.parse import urlsplit

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.credentials_async import AsyncTokenCredential
from azure.core.pipeline import PipelineRequest, PipelineResponse, policies
from azure.core.pipeline.transport import AsyncHttpResponse, HttpRequest

from rekey.errors import ConfigurationError
from rekey.tables.base import SIGNED_S

_LONGEST_TOKEN_S = 24 * 3600.0
"""Managed identities are given tokens for up to a day."""
SCOPE = "https://storage.azure.com/.default"


@dataclass(frozen=True, slots=True)
class SharedKey:
    """A storage account's name and shared key.

    Attributes:
        signed_s_ago: how long ago requests say that they were signed; for `rekey doctor --live`, which tries
            whether the service refuses what is late.
    """

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
    """Return date and signature (Shared Key Lite) of a request to a table service that is sent now.

    No request of rekey has a `comp` parameter, the only one that would be signed.
    """
    date = formatdate(time.time() - credential.signed_s_ago, usegmt=True)
    text = f"{date}\n/{credential.account}{urlsplit(url).path}"
    signature = base64.b64encode(hmac.digest(credential.key, text.encode(), "sha256")).decode("ascii")
    return {"x-ms-date": date, "Authorization": f"SharedKeyLite {credential.account}:{signature}"}
