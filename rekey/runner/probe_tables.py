"""Throw-away tables: they show what the accounts do before a migration relies on it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rekey.core.endpoints import are_other_accounts
from rekey.core.limits import TARGET_ACCOUNT_SUFFIX, is_in_target_account, own_name
from rekey.errors import CredentialRefused, TableBeingDeleted
from rekey.runner.refusals import refusal
from rekey.runner.run import Run
from rekey.tables.sent import Overhead, overhead

_PREFIX = "rekeyprobe"


@asynccontextmanager
async def probe_table(run: Run, name: str) -> AsyncIterator[str]:
    """Make a throw-away table, and delete it at the end. Yields its name: another one where the service is
    still deleting that of an earlier run."""
    try:
        await run.tables.create_table(name)
    except TableBeingDeleted:
        name = _random_name() + (TARGET_ACCOUNT_SUFFIX if is_in_target_account(name) else "")
        await run.tables.create_table(name)
    try:
        yield name
    finally:
        await run.tables.delete_table(name)


def probe_name(run: Run, purpose: str = "") -> str:
    """Return the name of a throw-away table: the same each time, so that what a killed run has left is used
    again, and deleted."""
    record = run.state.migration(run.script_id)
    return f"{_PREFIX}{purpose}{record.run_id[:16]}" if record else _random_name()


def _random_name() -> str:
    return _PREFIX + secrets.token_hex(8)


async def require_two_accounts(run: Run) -> None:
    """Refuse a migration with tables of one name in [tables] and [targets] that may be one table, because the
    endpoints do not say whether they are of two accounts: then a table that is made in one must be missing
    in the other.

    Raises:
        ConfigurationError: they are of one account, or the credential may not make a table.
    """
    migration, targets = run.declared.migration, run.config.targets
    names = [own_name(name).lower() for name in dict.fromkeys((migration.source, *migration.table_names))]
    if targets is None or len(names) == len(set(names)):
        return
    if are_other_accounts(run.config.tables.endpoint, targets.endpoint):
        return
    name = probe_name(run, "two")
    with overhead(Overhead.PROBES):
        try:
            if await run.tables.table_exists(
                name
            ):  # left by a killed run, when both may have been one account
                name = _random_name()
            async with probe_table(run, name + TARGET_ACCOUNT_SUFFIX) as there:
                is_one = await run.tables.table_exists(own_name(there))
        except CredentialRefused:
            raise refusal("accounts-unproved", config=run.config.path) from None
    if is_one:
        raise refusal("one-account", config=run.config.path)
