"""A single request to an account, and everything its answer shows: for `rekey doctor`. One GET, no retry; a
failure is returned as a value, not raised."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND, Clock
from rekey.core.distribution import VERSION
from rekey.tables.answers import clean_code, moment_of
from rekey.tables.connections import Connection, Connections
from rekey.tables.credentials import SCOPE, Credential, NoToken, SharedKey, signed_headers
from rekey.tables.transport import environment_proxy
from rekey.tables.wire import COMMON_HEADERS, error_code

_SECONDS = 15.0
_CONNECT_SECONDS = 5.0
NO_TOKEN = "NoToken"  # noqa: S105 - a code
BAD_CERTIFICATE = "CertificateRefused"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of one request."""

    # Of the answer, 0 when none came.
    status: int = 0
    # The service's error code, "" when it gave none.
    code: str = ""
    # Why no answer came, "" when one did: the name of an error, NO_TOKEN or BAD_CERTIFICATE.
    failure: str = ""
    # The header `Server`.
    server: str = ""
    # The header `x-ms-version`.
    api_version: str = ""
    # The header `Date`, in ticks of the service's clock, whole seconds; None when there was none.
    date: int | None = None
    # Ticks of this machine's clock, like `received_at`.
    sent_at: int = 0
    received_at: int = 0
    # The protocol of the connection, e.g. `TLSv1.3`; "" when not encrypted or unknown.
    tls: str = ""
    # When the server's certificate ends, in ticks; None when not encrypted or unknown.
    certificate_ends: int | None = None

    @property
    def answered(self) -> bool:
        """Whether an answer came, also a refusal."""
        return self.status > 0

    @property
    def accepted(self) -> bool:
        """Whether the service did what was asked (a status of 2xx)."""
        return 200 <= self.status < 300


async def ask(
    endpoint: str,
    path: str,
    credential: Credential | None,
    *,
    clock: Clock,
    trusted: ssl.SSLContext | None = None,
) -> ProbeResult:
    """Send one GET request below an endpoint.

    Args:
        endpoint: without a trailing slash.
        path: below it, e.g. `Tables?$top=1`.
        credential: signs it; closed by the caller. None to send it without: any answer shows the server, its
            clock and its certificate.
        clock: this machine's.
        trusted: certificates to trust; those of the system by default.
    """
    address = f"{endpoint}/{path}"
    try:
        headers = await _headers(address, credential)
    except (NoToken, OSError, ValueError):
        return ProbeResult(failure=NO_TOKEN)
    started = clock.ticks()
    tls, ends = "", None
    connections = Connections(
        endpoint,
        most=1,
        connect_s=_CONNECT_SECONDS,
        read_s=_SECONDS,
        proxy=environment_proxy(endpoint),
        verify=trusted or True,
    )

    def going_out(connection: Connection) -> None:
        nonlocal tls, ends
        if (secured := connection.get_extra_info("ssl_object")) is not None:
            tls, ends = str(secured.version() or ""), (secured.getpeercert() or {}).get("notAfter")

    try:
        async with asyncio.timeout(_SECONDS):
            answer = await connections.exchange("GET", address, headers, None, going_out)
            received = clock.ticks()
    except ssl.SSLCertVerificationError:
        return ProbeResult(failure=BAD_CERTIFICATE)
    except (TimeoutError, OSError) as failed:
        return ProbeResult(failure=type(failed).__name__)
    finally:
        await connections.close()
    date = moment_of(answer.headers.get("Date", ""))
    return ProbeResult(
        status=answer.status,
        code=clean_code(error_code(answer.body)[0] or answer.headers.get("x-ms-error-code", "")),
        server=answer.headers.get("Server", ""),
        api_version=answer.headers.get("x-ms-version", ""),
        date=None if date is None else round(date.timestamp()) * TICKS_PER_SECOND,
        sent_at=started,
        received_at=received,
        tls=tls,
        certificate_ends=None if ends is None else round(ssl.cert_time_to_seconds(ends)) * TICKS_PER_SECOND,
    )


async def _headers(address: str, credential: Credential | None) -> dict[str, str]:
    headers = {**COMMON_HEADERS, "User-Agent": f"rekey/{VERSION}"}
    if credential is None:
        return headers
    if isinstance(credential, SharedKey):
        return {**headers, **signed_headers(credential, address)}
    asked: Any = getattr(credential, "get_token", None)
    if asked is None:
        raise ValueError("a configuration names a key or an identity")
    from azure.core.exceptions import AzureError

    try:
        token = await asked(SCOPE)
    except AzureError:
        raise NoToken from None
    return {**headers, "Authorization": f"Bearer {token.token}"}
