"""A proxy of a project, put together, and its life in one process.

Rules kept here:

* A mistake that can be found without a connection is found before anything is listened to.
* The end is in order: not ready, `drain`, no new connections, requests finished, leases returned, connections
  closed. A second signal ends at once, which costs no more than a kill does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from rekey.client.reading import LeaseSettings
from rekey.client.sdk.plan import Plan
from rekey.declaration.migration import Declared
from rekey.errors import ExitCode
from rekey.model import EntityKey, Row
from rekey.project.config import Account as StorageAccount
from rekey.project.config import Config, account_key
from rekey.project.secrets_source import read_local
from rekey.protocol.opening import Prepared, connect
from rekey.proxy.access import Access
from rekey.proxy.forward import Upstream
from rekey.proxy.handler import Account, Handler
from rekey.proxy.keys import Keys
from rekey.proxy.meter import Meter
from rekey.proxy.route import Routes, cores_of
from rekey.proxy.server import Health, listening
from rekey.serve.server import Address
from rekey.tables.credentials import Signer, credential_of

_LOG = logging.getLogger("rekey.proxy")
_CONNECT_S, _READ_S = 5.0, 35.0


@dataclass(frozen=True, slots=True)
class Listening:
    """A proxy that listens: the addresses as URLs, and its health."""

    url: str
    admin: str
    health: Health


@asynccontextmanager
async def proxying(
    config: Config,
    declared: Sequence[Declared],
    access: Access,
    address: Address,
    admin: Address | None,
    *,
    tls: ssl.SSLContext | None = None,
    shared: bool = False,
    settings: LeaseSettings | None = None,
) -> AsyncIterator[Listening]:
    """Serve a project's tables while the context lasts.

    Args:
        config: the project.
        declared: the migrations to follow.
        access: whom requests are granted to.
        address, admin, tls, shared: as for `listening`.
        settings: the lease's times; None: as configured.

    Raises:
        ConfigurationError, SecretMissing: something is configured wrong, or an address cannot be listened on.
    """
    limits, account = config.proxy.limits, config.tables
    times = settings or LeaseSettings(
        lease_s=limits.lease_s,
        longest_operation_s=limits.longest_operation_s,
        freeze_wait_s=limits.freeze_wait_s,
    )

    def plan(prepared: Prepared, table: str) -> Plan:
        return Plan(prepared, table, name=limits.name, settings=times)

    followed = [Prepared.of(config, one) for one in declared]
    routes = Routes(cores_of(config, followed, plan), config.proxy.views, config.proxy.own_views)
    said = config.proxy.access.token
    token = None if said is None else read_local("the token for new keys", "[proxy.access.token]", said)
    mappers = {one.declared.migration.source: one.mapper for one in followed} if token else {}
    accounts = connect(config)

    async def read(table: str, key: EntityKey) -> Row | None:
        return await accounts.tables.table(table).get(key)

    upstream = _upstream(account, limits.upstream)
    elsewhere = None if config.targets is None else _upstream(config.targets, limits.upstream)
    meter = Meter()
    handler = Handler(
        # An endpoint has several spellings (a port, a private link); the name of an account is unique.
        Account(
            account.name, account.is_same_as(config.restricted) or account.name == config.restricted.name
        ),
        upstream,
        routes,
        access,
        meter,
        body_bytes=limits.body,
        request_s=limits.request_s,
        elsewhere=elsewhere,
    )
    health = Health(meter, Keys(token, mappers, read))
    try:
        async with listening(handler, health, meter, limits, address, admin, tls=tls, shared=shared) as (
            url,
            aside,
        ):
            yield Listening(url, aside, health)
    finally:
        await routes.close()
        await upstream.close()
        if elsewhere is not None:
            await elsewhere.close()
        await accounts.close()


def _upstream(account: StorageAccount, connections: int) -> Upstream:
    signer = Signer(credential_of(account.name, account_key(account)))
    return Upstream(account.endpoint, signer, connections=connections, connect_s=_CONNECT_S, read_s=_READ_S)


def run(
    context: AbstractAsyncContextManager[Listening],
    started: Callable[[Listening], None],
    drain_s: float,
    *,
    ends_with_input: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends the process. On uvloop, where it is installed.

    Args:
        context: what `proxying` returned.
        started: called when it listens.
        drain_s: for how long requests are still taken afterwards.
        ends_with_input: end when standard input does, too.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_until_told(context, started, drain_s, ends_with_input=ends_with_input))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return made


async def _until_told(
    context: AbstractAsyncContextManager[Listening],
    started: Callable[[Listening], None],
    drain_s: float,
    *,
    ends_with_input: bool,
) -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        if told.is_set():
            os._exit(ExitCode.INTERRUPTED)
        told.set()

    def look() -> None:
        if not os.read(0, 1):
            loop.remove_reader(0)
            end()

    async with context as found:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        if ends_with_input:
            loop.add_reader(0, look)
        started(found)
        await told.wait()
        found.health.ready = False
        _LOG.info("ending: not ready from now on", extra={"event": "stopping"})
        await asyncio.sleep(drain_s)
