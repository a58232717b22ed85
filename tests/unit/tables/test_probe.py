"""One request of the doctor: what an answer tells, with and without TLS, and that no failure is an error."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.errors import CredentialRefused, EndpointDown, ServiceError
from rekey.model import EntityKey
from rekey.tables.azure import AzureTableService
from rekey.tables.credentials import SharedKey
from rekey.tables.probe import BAD_CERTIFICATE, NO_TOKEN, ask
from rekey.tables.requests import RetryPolicy
from rekey.tables.transport import Network
from tests.fakes.clock import FakeClock

ENDS = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, list[dict[str, str]]]]:
    """A server that refuses everything as Azure Storage does; yields its address and what it was sent."""
    seen: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append({**request.headers, "path": request.raw_path})
        said = {
            "Server": "Windows-Azure-Table/1.0",
            "x-ms-version": "2020-12-06",
            "Date": "Mon, 01 Jan 2024 00:00:07 GMT",
        }
        body = '{"odata.error":{"code":"AuthenticationFailed","message":{"value":"secret words"}}}'
        return web.Response(status=403, headers=said, text=body)

    runner = web.AppRunner(_application(answer))
    await runner.setup()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        await web.SockSite(runner, listening, ssl_context=tls).start()
        scheme = "http" if tls is None else "https"
        try:
            yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}/account", seen
        finally:
            await runner.cleanup()


def _application(answer: Any) -> web.Application:
    application = web.Application()
    application.router.add_get("/{tail:.*}", answer)
    return application


def certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts of a server with a certificate of its own, and of who trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(ENDS - timedelta(days=60))
        .not_valid_after(ENDS)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server, ssl.create_default_context(cafile=str(path))


async def test_an_answer_tells_who_serves_its_clock_and_the_code() -> None:
    async with serving() as (endpoint, seen):
        heard = await ask(endpoint, "Tables?$top=1", None, clock=FakeClock())
    assert (heard.status, heard.code, heard.failure) == (403, "AuthenticationFailed", "")
    assert (heard.server, heard.api_version) == ("Windows-Azure-Table/1.0", "2020-12-06")
    assert heard.date == ticks_of("2024-01-01T00:00:07Z")
    assert heard.sent_at == heard.received_at == ticks_of("2024-01-01T00:00:00Z")
    assert (heard.tls, heard.certificate_ends) == ("", None)
    assert (heard.answered, heard.accepted) == (True, False)
    assert "secret words" not in repr(heard)
    assert "Authorization" not in seen[0] and seen[0]["path"] == "/account/Tables?$top=1"


async def test_a_key_signs_and_a_token_is_carried() -> None:
    class Token:
        async def get_token(self, *_scopes: str) -> AccessToken:
            return AccessToken("a-token", 0)

    async with serving() as (endpoint, seen):
        await ask(endpoint, "Tables", SharedKey("account", b"0123456789abcdef"), clock=FakeClock())
        await ask(endpoint, "Tables", Token(), clock=FakeClock())  # type: ignore[arg-type]
    assert seen[0]["Authorization"].startswith("SharedKeyLite account:") and seen[0]["x-ms-date"]
    assert seen[1]["Authorization"] == "Bearer a-token"


async def test_no_token_is_an_observation_and_nothing_is_sent() -> None:
    class Nobody:
        async def get_token(self, *_scopes: str) -> AccessToken:
            raise ClientAuthenticationError("tenant, user, all of it")

    async with serving() as (endpoint, seen):
        heard = await ask(endpoint, "Tables", Nobody(), clock=FakeClock())  # type: ignore[arg-type]
    assert (heard.failure, heard.answered, seen) == (NO_TOKEN, False, [])


async def test_protocol_and_end_of_the_certificate_are_seen(tmp_path: Path) -> None:
    server, trusting = certificate(tmp_path)
    async with serving(server) as (endpoint, _):
        heard = await ask(endpoint, "Tables", None, clock=FakeClock(), trusted=trusting)
    assert heard.tls.startswith("TLSv1.")
    assert heard.certificate_ends == int(ENDS.timestamp()) * TICKS_PER_SECOND


async def test_a_certificate_that_nobody_vouches_for_ends_the_request(tmp_path: Path) -> None:
    server, _ = certificate(tmp_path)
    async with serving(server) as (endpoint, seen):
        heard = await ask(endpoint, "Tables", None, clock=FakeClock())
    assert (heard.failure, heard.answered, seen) == (BAD_CERTIFICATE, False, [])


async def test_a_client_checks_certificates_as_it_was_told(tmp_path: Path) -> None:
    tls, _ = certificate(tmp_path)
    told: list[tuple[bool | str, type[ServiceError]]] = [
        (True, EndpointDown),
        (False, CredentialRefused),
        (str(tmp_path / "server.pem"), CredentialRefused),
    ]
    async with serving(tls) as (endpoint, _):
        for verify, answered in told:
            key = SharedKey("account", b"k")
            async with AzureTableService.open(
                endpoint,
                key,
                network=Network(verify=verify),
                retry=RetryPolicy(attempts=1, connect_attempts=1),
            ) as service:
                with pytest.raises(answered):
                    await service.table("Users").get(EntityKey("p", "r"))


async def test_who_does_not_answer_is_named_by_the_failure_alone() -> None:
    heard = await ask("http://127.0.0.1:1/account", "Tables", None, clock=FakeClock())
    assert (heard.status, heard.answered) == (0, False)
    assert heard.failure == "ConnectionRefusedError"
