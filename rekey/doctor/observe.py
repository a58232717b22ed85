"""Observing everything that the checks judge, in an order that asks nothing in vain. The edge.

Rules kept here:

* An account that cannot be asked leaves its observations out; the other one is looked at all the same. A
  service that does not answer one request is not asked the next ones: each would wait in vain.
* The two accounts are connected one by one, so that a missing key of one does not hide the other.
* To the account of the application's tables nothing is ever written. To the restricted account one row is
  written and removed, in `rekeycontrol` or, while there is none, in a table made and deleted for it; with
  `writes=False` not even that.
* The row's PartitionKey has a dot, which no script id has: it is never taken for one of a migration.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeAlias

from rekey.core.clock import ticks_of
from rekey.doctor.observe_machine import (
    see_configuration,
    see_migrations,
    see_state,
    see_versions,
    trouble_of,
)
from rekey.doctor.observed import (
    AccountSeen,
    Crossing,
    Kind,
    MigrationSeen,
    MigrationsSeen,
    Observed,
    Reading,
    ScriptSeen,
    StoreSeen,
    Writing,
)
from rekey.errors import ConfigurationError, CredentialRefused, RekeyError, ServiceError
from rekey.mapping.rows import CONTROL_TABLE, JOURNAL_TABLE, MAPPING_TABLE
from rekey.mapping.store import cohorts_kept
from rekey.migration.opening import credential_for
from rekey.model import PARTITION_KEY, ROW_KEY, key_of
from rekey.project.config import AZURITE_ACCOUNT, Account, Config, Gates, account_key
from rekey.protocol.control import ControlStore
from rekey.protocol.journal import intents_of
from rekey.protocol.registry import Registry, Standing, standing
from rekey.tables.base import Accounts, TableService
from rekey.tables.credentials import Credential, SharedKey
from rekey.tables.probe import Heard

STORE = (CONTROL_TABLE, JOURNAL_TABLE, MAPPING_TABLE)
_LIST = "Tables?$top=1"
_MADE_UP_BYTES = 64

Ask: TypeAlias = Callable[[str, str, Credential | None], Awaitable[Heard]]
"""Sends one GET request: endpoint, path below it, credential or None (`rekey.tables.probe.ask`)."""


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
    if _can_be_used(tables):
        async with _connected(config, config.tables, connect) as accounts:
            migrations = await _read_sources(accounts.tables, migrations)
    store, writing = StoreSeen(), Writing()
    if _can_be_used(restricted):
        async with _connected(config, config.restricted, connect) as accounts:
            store = await read_store(accounts.restricted, migrations, config.gates)
            if writes:
                writing = await _try_writing(accounts.restricted, store)
    crossing = Crossing()
    if not configuration.same_account:
        crossing = await _try_crossing(config, tables, restricted, ask)
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


@asynccontextmanager
async def _connected(
    config: Config, account: Account, connect: Callable[[Config], Accounts]
) -> AsyncIterator[Accounts]:
    """Connect one account alone, so that the other cannot be what fails."""
    accounts = connect(replace(config, tables=account, restricted=account))
    try:
        yield accounts
    finally:
        await accounts.close()


async def see_account(section: str, account: Account, ask: Ask) -> AccountSeen:
    """Ask an account without a credential, with its own and, where a token is used, with a made-up key."""
    seen = AccountSeen(
        section,
        account.endpoint,
        account.name,
        anonymous=await ask(account.endpoint, _LIST, None),
        key_env=account.key_env,
        published_key=account.key_env is None and not account.is_https and account.name == AZURITE_ACCOUNT,
    )
    try:
        account_key(account)
    except ConfigurationError as error:
        return replace(seen, trouble=trouble_of(error))
    if not seen.anonymous.answered:
        return seen
    seen = replace(seen, listing=await _with_own(account, _LIST, ask))
    if seen.uses_token and seen.kind is Kind.STORAGE:
        made_up = SharedKey(account.name, secrets.token_bytes(_MADE_UP_BYTES))
        seen = replace(seen, made_up=await ask(account.endpoint, _LIST, made_up))
    return seen


def _can_be_used(seen: AccountSeen) -> bool:
    """Tell whether asking the account for more makes sense."""
    return seen.listing is not None and seen.listing.answered and not (seen.is_refused or seen.is_failing)


async def _with_own(account: Account, path: str, ask: Ask) -> Heard:
    credential = credential_for(account)
    try:
        return await ask(account.endpoint, path, credential)
    finally:
        await _close(credential)


async def _close(credential: Credential) -> None:
    if (close := getattr(credential, "close", None)) is not None:
        await close()


# --- reading --------------------------------------------------------------------------------------------


async def _read_table(service: TableService, name: str) -> Reading:
    """Try to read a table."""
    try:
        return Reading.READ if await service.table_exists(name) else Reading.MISSING
    except CredentialRefused:
        return Reading.REFUSED
    except ServiceError:
        return Reading.FAILED


async def _read_sources(service: TableService, migrations: MigrationsSeen) -> MigrationsSeen:
    """Return the migrations with what came of reading their sources."""
    scripts = [
        replace(script, reading=await _read_table(service, script.source)) for script in migrations.scripts
    ]
    return replace(migrations, scripts=tuple(scripts))


async def read_store(service: TableService, migrations: MigrationsSeen, gates: Gates) -> StoreSeen:
    """Look at the restricted store: its tables, and each migration in numbers."""
    tables = {name: await _read_table(service, name) for name in STORE}
    if tables[CONTROL_TABLE] is not Reading.READ:
        return StoreSeen(tables)
    found = [await _migration(service, script, tables, gates) for script in migrations.scripts]
    return StoreSeen(tables, tuple(found))


async def _migration(
    service: TableService, script: ScriptSeen, tables: dict[str, Reading], gates: Gates
) -> MigrationSeen:
    script_id = script.script_id
    seen = MigrationSeen(script_id)
    try:
        control = await ControlStore(service, script_id).read()
        clients = await Registry(service, script_id).list()
        now = ticks_of(await service.server_time())
        intents = 0
        if tables[JOURNAL_TABLE] is Reading.READ:
            # Counted by their PartitionKeys; nothing else of an intent is asked for.
            pages = service.table(JOURNAL_TABLE).scan(intents_of(script_id), select=[PARTITION_KEY])
            intents = sum([len(page.rows) async for page in pages])
        kept = await cohorts_kept(
            service,
            script_id,
            None if control is None else control.ended_at,
            sealed=script.sealed,
            keep_s=gates.mapping_retention_s,
        )
    except RekeyError as error:
        return replace(seen, trouble=trouble_of(error))
    if control is not None:
        seen = replace(seen, phase=str(control.phase), epoch=control.epoch)
    stands = [(standing(one, now), one.version) for one in clients]
    counts = {which: sum(one is which for one, _ in stands) for which in Standing}
    return replace(
        seen,
        live=counts[Standing.LIVE],
        silent=counts[Standing.SILENT],
        over=counts[Standing.OVER],
        versions=tuple(sorted({version for one, version in stands if one is not Standing.OVER})),
        intents=intents,
        due=tuple(one.name for one in kept if one.is_due(now)),
        returned=tuple(one.name for one in kept if not one.erased_on and one.name in script.shredded),
    )


# --- writing --------------------------------------------------------------------------------------------


async def _try_writing(service: TableService, store: StoreSeen) -> Writing:
    """Write a row to the restricted account and remove it."""
    if store.tables.get(CONTROL_TABLE) is Reading.READ:
        return await _try_row(service, CONTROL_TABLE)
    name = f"rekeydoctor{secrets.token_hex(8)}"
    try:
        await service.create_table(name)
    except RekeyError as error:
        return Writing(name, trouble_of(error))
    writing = Writing(name)
    try:
        tried = await _try_row(service, name)
        writing = replace(tried, left="")  # what is left of the row goes with its table
    finally:
        try:
            await service.delete_table(name)
        except RekeyError as error:
            writing = Writing(name, writing.trouble or trouble_of(error), left=f"table {name}")
    return writing


async def _try_row(service: TableService, name: str) -> Writing:
    row = {PARTITION_KEY: f"doctor.{secrets.token_hex(8)}", ROW_KEY: "doctor"}
    table = service.table(name)
    try:
        await table.insert(row)
    except RekeyError as error:
        return Writing(name, trouble_of(error))
    try:
        await table.delete(key_of(row))
    except RekeyError as error:
        left = f"the row {row[PARTITION_KEY]} of {name}"
        return Writing(name, trouble_of(error), left=left)
    return Writing(name)


# --- more than it should ----------------------------------------------------------------------------------


async def _try_crossing(config: Config, tables: AccountSeen, restricted: AccountSeen, ask: Ask) -> Crossing:
    """Try to read the restricted account with the credential of the application's tables.

    A key is tried under both accounts' names: names are no secret.
    """
    if tables.trouble is not None or not restricted.anonymous.answered:
        return Crossing()
    if tables.uses_token and restricted.uses_token:
        return Crossing(same_identity=True)
    key = account_key(config.tables)
    if key is None and not restricted.is_https:
        return Crossing()  # a token is never sent over http
    credentials: list[Credential] = (
        [credential_for(config.tables)]
        if key is None
        else [SharedKey.of(name, key) for name in (config.tables.name, config.restricted.name)]
    )
    read: list[str] = []
    try:
        for credential in credentials:
            heard = await ask(config.restricted.endpoint, _LIST, credential)
            if heard.accepted:
                read.append("the list of tables")
            for name in STORE:
                heard = await ask(config.restricted.endpoint, f"{name}()?$top=1&$select=Epoch", credential)
                if heard.accepted or heard.code == "TableNotFound":
                    read.append(name)
    finally:
        for credential in credentials:
            await _close(credential)
    return Crossing(tried=True, read=tuple(dict.fromkeys(read)))
