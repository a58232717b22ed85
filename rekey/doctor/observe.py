"""Observing everything that the checks judge, in an order that asks nothing in vain. The edge.

Rules kept here:

* An account that cannot be asked leaves its observations out; the other one is looked at all the same.
* The two accounts are connected one by one, so that a missing key of one does not hide the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from rekey.doctor.observe_accounts import (
    Ask,
    can_be_used,
    read_sources,
    read_store,
    see_account,
    try_crossing,
    try_writing,
)
from rekey.doctor.observe_machine import see_configuration, see_migrations, see_state, see_versions
from rekey.doctor.observed import Crossing, Observed, StoreSeen, Writing
from rekey.project.config import Account, Config
from rekey.tables.base import Accounts, TableService

T = TypeVar("T")


async def observe(
    config: Config, *, connect: Callable[[Config], Accounts], ask: Ask, writes: bool = True
) -> Observed:
    """Observe machine, accounts and restricted store.

    Args:
        config: the configuration.
        connect: connects accounts.
        ask: sends one request.
        writes: also try to write to the restricted account.
    """
    configuration = see_configuration(config)
    migrations = see_migrations(config, configuration.secrets)
    tables = await see_account("tables", config.tables, ask)
    restricted = await see_account("restricted", config.restricted, ask)
    if can_be_used(tables):
        migrations = await _on(
            config, config.tables, connect, lambda service: read_sources(service, migrations)
        )
    store, writing = StoreSeen(), Writing()
    if can_be_used(restricted):
        store = await _on(
            config, config.restricted, connect, lambda service: read_store(service, migrations, config.gates)
        )
        if writes:
            writing = await _on(
                config, config.restricted, connect, lambda service: try_writing(service, store)
            )
    crossing = Crossing()
    if not configuration.same_account:
        crossing = await try_crossing(config, tables, restricted, ask)
    return Observed(
        configuration=configuration,
        tables=tables,
        restricted=restricted,
        versions=see_versions(),
        state=see_state(config.state),
        migrations=migrations,
        store=store,
        writing=writing,
        crossing=crossing,
    )


async def _on(
    config: Config,
    account: Account,
    connect: Callable[[Config], Accounts],
    work: Callable[[TableService], Awaitable[T]],
) -> T:
    """Do something on one account, whatever is wrong with the other."""
    of_tables = account is config.tables
    accounts = connect(replace(config, tables=account, restricted=account))
    try:
        return await work(accounts.tables if of_tables else accounts.restricted)
    finally:
        await accounts.close()
