"""Addresses that a server listens on."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from rekey.serve.sockets import Bounds, Counts, Site, Sockets

BOTH = [
    (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
    (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
]


@pytest.fixture
async def runner() -> AsyncIterator[web.ServerRunner]:
    async def answers(_request: web.BaseRequest) -> web.Response:
        return web.Response()

    server_runner = web.ServerRunner(Sockets(answers, Bounds(), Counts()))
    await server_runner.setup()
    yield server_runner
    await server_runner.cleanup()


def without(monkeypatch: pytest.MonkeyPatch, families: set[int], error: int) -> None:
    """Let sockets of these address families be refused, and `localhost` have both."""
    create = socket.create_server

    def created(address: Any, *, family: int, **options: Any) -> socket.socket:
        if family in families:
            raise OSError(error, "refused")
        return create(address, family=family, **options)

    async def addresses(_loop: object, *_args: object, **_options: object) -> list[Any]:
        return BOTH

    monkeypatch.setattr(socket, "create_server", created)
    monkeypatch.setattr("asyncio.base_events.BaseEventLoop.getaddrinfo", addresses)


@pytest.mark.parametrize("error", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
async def test_a_host_with_an_ipv6_address_is_served_where_ipv6_is_off(
    runner: web.ServerRunner, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    without(monkeypatch, {socket.AF_INET6}, error)
    site = Site(runner, "localhost", 0, None, shared=False)
    await site.start()
    assert site.port > 0


@pytest.mark.parametrize(
    ("families", "error"),
    [({socket.AF_INET6, socket.AF_INET}, errno.EADDRNOTAVAIL), ({socket.AF_INET6}, errno.EADDRINUSE)],
)
async def test_an_address_that_cannot_be_had_is_an_error(
    runner: web.ServerRunner, monkeypatch: pytest.MonkeyPatch, families: set[int], error: int
) -> None:
    without(monkeypatch, families, error)
    with pytest.raises(OSError, match="refused") as caught:
        await Site(runner, "localhost", 0, None, shared=False).start()
    assert caught.value.errno == error
