"""Assembles a project's proxy, and runs it in one process from start to orderly shutdown."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from rekey.client.reading import LeaseSettings
from rekey.client.sdk.options import ClientOptions
from rekey.core.endpoints import are_other_accounts
from rekey.declaration.migration import Declared
from rekey.errors import ConfigurationError, ExitCode
from rekey.model import EntityKey, Row
from rekey.project.config import Account, Config, account_key
from rekey.project.secrets_source import MINIMUM_BYTES, read_local
from rekey.protocol.opening import Prepared, connect
from rekey.proxy.access import Access
from rekey.proxy.forward import Upstream
from rekey.proxy.handler import Handler
from rekey.proxy.meter import Meter
from rekey.proxy.route import Routes, cores_of, sides_of
from rekey.proxy.server import Health, Keys, ProxySockets
from rekey.proxy.tenant_keys import TenantKeys, TokenVerifier, fetch_keys
from rekey.serve.server import Address, listen
from rekey.serve.sockets import Bounds, Counts, Sockets
from rekey.tables.credentials import Signer, credential_of

_LOG = logging.getLogger("rekey.proxy")
_CONNECT_S, _READ_S = 5.0, 35.0
# Seconds in which connections open at the end may still deliver a request in flight.
_LAST_S = 1.0


def access_of(config: Config) -> Access:
    """Return whose requests the project's proxy grants. Raises SecretMissing and, for a bad key or when
    nobody could use the proxy, ConfigurationError."""
    proxy_access, keys = config.proxy.access, {}
    for name, source in proxy_access.keys.items():
        setting = f"`[proxy.access.keys.{name}]`"
        try:
            keys[name] = base64.b64decode(read_local(f"key `{name}`", setting, source), validate=True)
        except ValueError:
            keys[name] = b""
        if len(keys[name]) < MINIMUM_BYTES:
            raise ConfigurationError(
                f"key `{name}` is no account key of at least {MINIMUM_BYTES} bytes in base64",
                hint=f"make one with `openssl rand -base64 48` and put it where {setting} says",
            )
    if not keys and not proxy_access.bearer_tokens and proxy_access.entra is None:
        raise ConfigurationError(
            "nobody may use the proxy: no key is configured, and bearer tokens are not taken",
            hint="make an account key for an application with `openssl rand -base64 48 > NAME.key`, and add"
            ' [proxy.access.keys.NAME] with file = "NAME.key"',
        )
    return Access(config.tables.name, keys, proxy_access.bearer_tokens, proxy_access.entra)


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where a proxy listens."""

    # Where applications connect to.
    address: Address
    # Where health and metrics are; None: nowhere.
    admin: Address | None = None
    # None: http.
    tls: ssl.SSLContext | None = None
    # Whether several processes listen on the address.
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Listening:
    """A listening proxy: its addresses as URLs, and its health."""

    url: str
    admin: str
    health: Health


@asynccontextmanager
async def proxying(
    config: Config,
    declared: Sequence[Declared],
    access: Access,
    listeners: Listeners,
    *,
    not_followed: Sequence[Declared] = (),
    settings: LeaseSettings | None = None,
) -> AsyncIterator[Listening]:
    """Serve a project's tables within the context. Whatever needs no connection is checked before listening.

    Args:
        config: the project.
        declared: the migrations to follow.
        access: whose requests are granted.
        listeners: where to listen.
        not_followed: the project's other migrations.
        settings: the lease's times; None: as configured.

    Raises:
        ConfigurationError, SecretMissing: a wrong configuration, or an address that cannot be listened on.
    """
    limits, account = config.proxy.limits, config.tables
    times = settings or LeaseSettings(
        lease_s=limits.lease_s,
        longest_operation_s=limits.longest_operation_s,
        freeze_wait_s=limits.freeze_wait_s,
    )
    followed = [Prepared.of(config, script) for script in declared]
    options_of = partial(ClientOptions, name=limits.name, settings=times, tables_endpoint=account.endpoint)
    beside = [
        Prepared.of(config, script)
        for script in not_followed
        if any(script.is_beside(each) for each in declared)
    ]
    others = [
        table for script in not_followed for table in (script.migration.source, *script.migration.table_names)
    ]
    routes = Routes(
        cores_of(config, followed, options_of, beside),
        config.proxy.views,
        config.proxy.own_views,
        others,
        sides_of([*declared, *not_followed]),
    )
    secret_source = config.proxy.access.token
    token = (
        None
        if secret_source is None
        else read_local("the token for new keys", "[proxy.access.token]", secret_source)
    )
    mappers = [prepared.mapper for prepared in followed] if token else []
    accounts = connect(config)

    async def read(table: str, key: EntityKey) -> Row | None:
        return await accounts.tables.table(table).get(key)

    upstream = _upstream(account, limits.upstream)
    target_upstream = None if config.targets is None else _upstream(config.targets, limits.upstream)
    verifier = None
    if (entra := access.entra) is not None:
        verifier = TokenVerifier(entra, TenantKeys(entra, partial(fetch_keys, entra)))
    handler = Handler(
        account.name,
        upstream,
        routes,
        access,
        Meter(),
        # A gateway or a custom domain may lead to the restricted account.
        holds_restricted=not are_other_accounts(account.endpoint, config.restricted.endpoint),
        limits=limits,
        target_upstream=target_upstream,
        verifier=verifier,
    )
    health = Health(handler.meter, Keys(token, mappers, read))
    async with AsyncExitStack() as stack:
        # Closed from the last to the first.
        for part in (accounts, target_upstream, upstream, verifier, routes):
            if part is not None:
                stack.push_async_callback(part.close)
        runner = web.ServerRunner(ProxySockets(handler), shutdown_timeout=limits.request_s)
        aside = web.ServerRunner(Sockets(health.paths(), Bounds(), Counts()), shutdown_timeout=1.0)
        for server in (aside, runner):  # on leaving, requests are finished before anything else
            await server.setup()
            stack.push_async_callback(server.cleanup)
        stack.push_async_callback(_listen_no_more, runner, handler.meter)
        url = await listen(runner, listeners.address, listeners.tls, shared=listeners.shared)
        admin = listeners.admin
        yield Listening(url, "" if admin is None else await listen(aside, admin, None), health)


async def _listen_no_more(runner: web.ServerRunner, meter: Meter) -> None:
    """Accept no new connections, but answer requests in flight on open ones."""
    if not meter.is_ending:
        return
    for site in list(runner.sites):
        await site.stop()
    if meter.connections:
        await asyncio.sleep(_LAST_S)


def _upstream(account: Account, connections: int) -> Upstream:
    signer = Signer(credential_of(account.name, account_key(account)))
    return Upstream(account.endpoint, signer, connections=connections, connect_s=_CONNECT_S, read_s=_READ_S)


def run(served: Coroutine[Any, Any, None]) -> None:
    """Run what `until_ended` returned, on uvloop if it is installed."""
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(served)


async def until_ended(
    context: AbstractAsyncContextManager[Listening],
    started: Callable[[Listening], None],
    drain_s: float,
    *,
    ends_with_input: bool,
) -> None:
    """Serve until SIGTERM or SIGINT, then for `drain_s` more; a second one ends the process at once, which
    costs no more than a kill.

    Args:
        context: what `proxying` returned.
        started: called when it listens.
        drain_s: seconds during which requests are still accepted afterwards.
        ends_with_input: also end when standard input does.
    """
    loop, end_requested = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        if end_requested.is_set():
            os._exit(ExitCode.INTERRUPTED)
        end_requested.set()

    def read_input() -> None:
        if not os.read(0, 1):
            loop.remove_reader(0)
            end()

    async with context as listening:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        if ends_with_input:
            loop.add_reader(0, read_input)
        started(listening)
        await end_requested.wait()
        listening.health.ready = False
        _LOG.info("ending: not ready from now on", extra={"event": "stopping"})
        await asyncio.sleep(drain_s)
