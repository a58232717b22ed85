"""Maps an application's table names to tables, and to the dual-write clients that carry their requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rekey.client.sdk.options import ClientOptions, Endpoint, connect
from rekey.client.sdk.router import Carrier, carrier_of
from rekey.core.limits import is_in_target_account
from rekey.declaration.migration import Declared
from rekey.errors import ConfigurationError
from rekey.mapping.rows import CONTROL_TABLE, JOURNAL_TABLE, MAPPING_TABLE
from rekey.project.config import Account, Config, account_key
from rekey.project.entra import View
from rekey.protocol.opening import Prepared
from rekey.tables.base import Accounts, rejected
from rekey.tables.credentials import credential_of

RESTRICTED = frozenset(name.lower() for name in (CONTROL_TABLE, JOURNAL_TABLE, MAPPING_TABLE))


@dataclass(frozen=True, slots=True)
class Route:
    """Where requests for a name go."""

    table: str  # the table upstream, as the declaration names it
    core: Carrier | None = None  # the client that carries them; None: they are forwarded
    alias: str = ""  # the application's name for the table, "" if it is the table's own


class Routes:
    """The routes of a proxy, by the application's names."""

    def __init__(
        self,
        cores: Mapping[str, Carrier],
        views: Mapping[str, str],
        own_views: Mapping[str, Mapping[str, str]],
        not_followed: Collection[str] = (),
        sides: Mapping[str, frozenset[View]] | None = None,
    ) -> None:
        """Create the routes.

        Args:
            cores: the clients, by their tables.
            views: tables by their aliases, for callers without aliases of their own.
            own_views: a caller's aliases, by the name of its key; they replace `views`.
            not_followed: tables of the project's migrations that this proxy does not follow.
            sides: `sides_of` all migrations of the project.

        Raises:
            ConfigurationError: an alias names no table of these migrations.
        """
        self.cores = cores
        self._sides = sides or {}
        self._not_followed = frozenset(name.lower() for name in not_followed)
        self._routes = {name: self._under(aliases) for name, aliases in (("", views), *own_views.items())}

    def _under(self, views: Mapping[str, str]) -> dict[str, Route | None]:
        """Return the routes under some aliases; None for an alias that is refused."""
        spelled = {name.lower(): name for name in self.cores}
        # A table in the target account needs an alias: no address can contain its qualified name.
        here = {name: core for name, core in self.cores.items() if not is_in_target_account(name)}
        routes: dict[str, Route | None] = {name.lower(): Route(name, core) for name, core in here.items()}
        for alias, table in views.items():
            name = spelled.get(table.lower())
            if name is None and table.lower() in self._not_followed:
                # By this name the application means the new table, but would reach its own.
                routes[alias.lower()] = None
                continue
            if name is None:
                raise ConfigurationError(
                    f"[proxy.views] {alias}: {table} is no table of a migration that this proxy follows",
                    hint='name the target of a migration with capture "dual-write"',
                )
            if alias.lower() != name.lower():
                routes[alias.lower()] = Route(name, self.cores[name], alias)
        return routes

    def of(self, table: str, caller: str) -> Route:
        """Return the route of a name. `caller`: the name of its key, "" for a token.

        Raises:
            RequestRejected: an alias of a table of a migration that this proxy does not follow.
        """
        route = self._routes.get(caller, self._routes[""]).get(table.lower(), Route(table))
        if route is None:
            text = "This name is an alias of a table of a migration that this proxy does not follow."
            raise rejected("alias-not-followed", text, status=403)
        return route

    def views_of(self, table: str) -> frozenset[View]:
        """Return the views that a table of a migration is in; none for any other table."""
        return self._sides.get(table.lower(), frozenset())

    async def close(self) -> None:
        """Close all clients; each settles what it has begun."""
        await asyncio.gather(*(core.close() for core in self.cores.values()), return_exceptions=True)


def sides_of(declared: Iterable[Declared]) -> dict[str, frozenset[View]]:
    """Return the views of tables, by their names in lower case: a source has old keys, what a migration fills
    has new ones, and a table between two migrations has both."""
    sides: dict[str, frozenset[View]] = {}
    for script in declared:
        migration = script.migration
        for table, view in (
            (migration.source, View.OLD),
            *((table, View.NEW) for table in migration.table_names),
        ):
            sides[table.lower()] = sides.get(table.lower(), frozenset()) | {view}
    return sides


def cores_of(
    config: Config,
    followed: Sequence[Prepared],
    options_of: Callable[[Prepared, str], ClientOptions],
    not_followed: Sequence[Prepared] = (),
) -> dict[str, Carrier]:
    """Return the clients of all tables of some migrations. A client connects and takes its lease with its
    first request, so that `complete` does not wait for a proxy that nobody asks for the old view.

    Args:
        config: the project.
        followed: the migrations; those with capture "delta" are skipped.
        options_of: makes the options of a client.
        not_followed: the project's other migrations. Those that move other parts of a source of `followed`
            are followed for that table.

    Raises:
        ConfigurationError, SecretMissing: a secret is missing, or a table is the source of one migration and
            is filled by another.
    """
    cores: dict[str, Carrier] = {}
    # The tables, in lower case, whose rows a router gives to several clients; True for a source.
    routed: set[tuple[str, bool]] = set()
    connected = partial(_connected, config)
    for prepared in followed:
        declared = prepared.declared
        migration = declared.migration
        if migration.capture != "dual-write":
            continue
        sources = [
            prepared,
            *(each for each in (*followed, *not_followed) if each.declared.is_beside(declared)),
        ]
        for table in dict.fromkeys((migration.source, *migration.table_names)):
            is_source = table == migration.source
            if (table.lower(), is_source) in routed:
                continue  # with the other migrations of it
            if table.lower() in map(str.lower, cores):
                raise ConfigurationError(
                    f"two migrations name the table {table}",
                    hint="name the migrations that this proxy follows: `rekey proxy SCRIPT`",
                )
            fillers = [each for each in followed if table.lower() in each.declared.fills]
            of_table = sources if is_source else fillers
            cores[table] = carrier_of([options_of(each, table) for each in of_table], connected)
            if len(of_table) > 1:
                routed.add((table.lower(), is_source))
    return cores


def _connected(config: Config, options: ClientOptions) -> Accounts:
    def endpoint(account: Account) -> Endpoint:
        return Endpoint(account.endpoint, credential_of(account.name, account_key(account)))

    endpoints = {section: endpoint(account) for section, account in config.accounts.items()}
    return connect(**endpoints, settings=options.settings, options={})
