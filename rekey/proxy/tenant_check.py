"""Tries what the proxy needs of a tenant: its signing keys, and a token that is verified with them. For
`rekey doctor`, which sends this token nowhere."""

from __future__ import annotations

import time
from typing import Any, cast

import aiohttp
from azure.core.exceptions import AzureError

from rekey.errors import RequestRejected
from rekey.project.config import Config
from rekey.project.entra import Entra, TenantCheck
from rekey.proxy.tenant_keys import fetch_keys
from rekey.proxy.tokens import CHALLENGED, key_id_of, keys_in, verify
from rekey.tables.credentials import Credential, credential_of

_NO_TOKEN = "this process's identity gets no token for that audience"  # noqa: S105 - a text


async def check_tenant(config: Config, entra: Entra) -> TenantCheck:
    """Fetch the tenant's keys and, where [tables] is opened with an identity, verify a token of that."""
    if not config.tables.is_https or config.tables.key_env is not None:
        return await try_tenant(entra, None)
    identity = credential_of(config.tables.name, None)
    try:
        return await try_tenant(entra, identity)
    finally:
        if (close := getattr(identity, "close", None)) is not None:
            await close()


async def try_tenant(entra: Entra, identity: Credential | None) -> TenantCheck:
    """Fetch the tenant's keys, and verify a token of an identity, if there is one."""
    try:
        keys = keys_in(await fetch_keys(entra), entra)
    except (aiohttp.ClientError, OSError, ValueError) as failed:
        return TenantCheck(failure=type(failed).__name__)
    if identity is None:
        return TenantCheck(len(keys))
    try:
        token = str((await cast(Any, identity).get_token(f"{entra.audience}/.default")).token)
    except AzureError:  # its text may hold addresses
        return TenantCheck(len(keys), own=_NO_TOKEN)
    try:
        if (key := keys.get(key_id_of(token))) is None:
            return TenantCheck(len(keys), own="it is signed with a key that the tenant does not have")
        verify(token, key, entra, time.time())
    except RequestRejected as refused:
        reason = refused.what.removeprefix(CHALLENGED).removesuffix(f"({refused.code})")
        return TenantCheck(len(keys), own=reason.strip())
    return TenantCheck(len(keys), own="")
