"""The caller's credentials, for requests that rekey makes itself.

Rules kept here:

* A credential stays its owner's: what the caller made is not closed here, and a key or signature that its
  owner renews is used from then on.
* A synchronous token credential is asked on a thread, so that a loop never waits for it.
* A signature in the endpoint's address counts as a credential, as it does for the SDK.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.core.credentials_async import AsyncTokenCredential

from rekey.errors import ConfigurationError
from rekey.tables.credentials import Credential

SyncCredential: TypeAlias = AzureNamedKeyCredential | AzureSasCredential | TokenCredential
AsyncCredential: TypeAlias = AzureNamedKeyCredential | AzureSasCredential | AsyncTokenCredential
AnyCredential: TypeAlias = SyncCredential | AsyncTokenCredential


class _Borrowed:
    """A token credential of somebody else: asked, never closed."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    async def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        """Return a token."""
        if asyncio.iscoroutinefunction(self._credential.get_token):
            token: AccessToken = await self._credential.get_token(*scopes, **kwargs)
            return token
        return await asyncio.to_thread(self._credential.get_token, *scopes, **kwargs)

    async def close(self) -> None:
        """Leave it open."""

    async def __aenter__(self) -> _Borrowed:
        return self

    async def __aexit__(self, *_args: object) -> None:
        pass


def account_of(endpoint: str, credential: AnyCredential | None, which: str) -> tuple[str, Credential]:
    """Return an account's endpoint without its query, and the credential for it.

    Args:
        endpoint: as the SDK takes it.
        credential: None when the endpoint has a shared access signature.
        which: which account this is, for messages.

    Raises:
        ConfigurationError: there is no credential.
    """
    address = endpoint if endpoint.lower().startswith("http") else f"https://{endpoint}"
    parts = urlsplit(address)
    bare = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    if credential is None and "sig=" in parts.query:
        return bare, AzureSasCredential(parts.query)
    if isinstance(credential, AzureNamedKeyCredential | AzureSasCredential):
        return bare, credential
    if not hasattr(credential, "get_token"):
        raise ConfigurationError(
            f"there is no credential for the {which} account",
            hint="give an AzureNamedKeyCredential, an AzureSasCredential or a token credential",
        )
    return bare, _Borrowed(credential)
