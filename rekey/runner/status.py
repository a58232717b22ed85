"""Reads and judges the status of a migration for `rekey status`, `apply`, the progress server and hooks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rekey.core.clock import Clock
from rekey.core.plain import plain
from rekey.declaration.migration import Declared
from rekey.project.config import Config
from rekey.protocol.control import ControlRow
from rekey.protocol.opening import Prepared, is_ours, open_migration, secrets_refused
from rekey.runner import steering
from rekey.state.store import State
from rekey.status.facts import read_facts
from rekey.status.judge import Status, judge
from rekey.status.tell import document
from rekey.tables.base import Accounts


async def read_status(
    config: Config,
    scripts: Mapping[str, Declared],
    declared: Declared,
    state: State,
    accounts: Accounts,
    clock: Clock,
    *,
    at_end: bool = False,
) -> Status:
    """Return the status of a migration; `at_end` and errors as of `read_facts`."""
    prepared, record = Prepared.of(config, declared), state.migration(declared.script_id)
    refused = partial(secrets_refused, open_migration(prepared, accounts))
    paused = steering.is_paused(config.state)

    def ours(row: ControlRow) -> bool:
        return is_ours(prepared, row, record.run_id if record else None)

    read = read_facts(
        declared, scripts, config, state, accounts, clock, refused, ours, paused=paused, at_end=at_end
    )
    return judge(await read)


def progress_document(config: Config, status: Status, clock: Clock) -> dict[str, Any]:
    """Return the progress document of one migration."""
    setting = steering.read(config.state) or steering.Steering()
    return document([status], plain(setting), clock.ticks())
