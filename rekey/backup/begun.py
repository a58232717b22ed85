"""The migrations that a restricted store knows, whoever began them: no row is written past their clients."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self
from urllib.parse import urlsplit

from rekey.backup.refusals import refusal
from rekey.core.clock import Clock
from rekey.core.limits import is_in_target_account, own_name
from rekey.errors import Ambiguous, ConditionFailed, RekeyError, RowMissing, TableMissing
from rekey.model import PARTITION_KEY, ROW_KEY, Row, etag_of
from rekey.phases import ControlPhase
from rekey.project.config import is_same_account
from rekey.protocol.control import (
    CONTROL_ROW_KEY,
    GROUP_PREFIX,
    ControlRow,
    control_key,
    from_row,
    to_row,
)
from rekey.tables.base import Table

# Seconds between two readings of the control rows while rows are written.
EVERY_S = 5.0
# How often a control row that keeps changing is written.
_ATTEMPTS = 20
_ENDED = frozenset({ControlPhase.COMPLETE, ControlPhase.RETIRED})


async def control_rows(table: Table) -> list[ControlRow]:
    """Return the control rows of all migrations in a restricted store.

    Args:
        table: its `rekeycontrol`, which need not exist.

    Raises:
        StateUnusable: a row cannot be read by this program.
        ServiceError: the restricted store failed.
    """
    rows: list[ControlRow] = []
    with suppress(TableMissing):
        async for page in table.scan():
            rows += [from_row(row) for row in page.rows if _is_control(row)]
    return rows


def _is_control(row: Row) -> bool:
    return row[ROW_KEY] == CONTROL_ROW_KEY or str(row[PARTITION_KEY]).startswith(GROUP_PREFIX)


def names_in(control: ControlRow, table: str, endpoint: str) -> tuple[str, ...]:
    """Return the names that a migration has for a table: none if it is neither its source nor a target.

    Args:
        control: the migration.
        table: the table's name within its account.
        endpoint: the account's endpoint.
    """
    names = dict.fromkeys((control.source, *control.targets))
    return tuple(
        name
        for name in names
        if own_name(name).lower() == table.lower()
        and _is_home(
            control.target_account if is_in_target_account(name) else control.tables_endpoint, endpoint
        )
    )


def _is_home(recorded: str, endpoint: str) -> bool:
    # Migrations begun before 0.3 do not record the account of their tables: it may be this one.
    if not recorded or is_same_account(recorded, endpoint):
        return True
    first, second = urlsplit(recorded), urlsplit(endpoint)
    # An emulator has another host for every machine and container that uses it.
    return first.scheme == second.scheme == "http" and (first.port, first.path) == (second.port, second.path)


def require_ended(controls: Iterable[ControlRow], table: str, endpoint: str) -> None:
    """Refuse a table that is the source or a target of a migration in progress: of rows written past its
    clients the other side learns late, or never. Arguments as of `names_in`. Raises Refused."""
    for control in controls:
        if role := _role_in(control, table, endpoint):
            raise refusal("table-migrating", table=table, role=role, control=control)


def _role_in(control: ControlRow, table: str, endpoint: str, *, over: bool = False) -> str:
    """Return what a table is to a migration in progress; "" if it may be written. `over`: also to one that is
    over."""
    names = names_in(control, table, endpoint)
    is_source = control.source in names
    # Nothing is copied yet: the backfill takes the rows of the source as it finds them.
    is_before = is_source and control.phase is ControlPhase.SOURCE
    if not names or is_before or (_is_over(control) and not over):
        return ""
    return "the source" if is_source else "a target"


def _is_over(control: ControlRow) -> bool:
    return control.phase in _ENDED and not control.maintained


class Guard:
    """Refuses to write rows of a table once a migration of it has begun. As a context manager it checks again
    when all is written."""

    def __init__(self, stores: Sequence[Table], table: str, endpoint: str, clock: Clock) -> None:
        """Create it. `stores`: the `rekeycontrol` of restricted stores that may be read; else as of
        `names_in`."""
        self._stores, self._table, self._endpoint = stores, table, endpoint
        self._clock, self._due = clock, 0.0
        # The runs of migrations that were over at the first check.
        self._over: frozenset[str] | None = None

    async def check(self) -> None:
        """Read the control rows, at most every `EVERY_S` seconds. Raises Refused when a migration of the
        table has begun: no verification that it has made so far counts."""
        if self._clock.monotonic() >= self._due:
            self._due = self._clock.monotonic() + EVERY_S
            await self._read()

    async def _read(self) -> None:
        seen = [(store, control) for store in self._stores for control in await control_rows(store)]
        if self._over is None:
            self._over = frozenset(control.run_id for _, control in seen if _is_over(control))
        for store, control in seen:
            over = control.run_id not in self._over
            if role := _role_in(control, self._table, self._endpoint, over=over):
                await _mark_changed(store, control)
                raise refusal("table-migrating-since", table=self._table, role=role, control=control)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # Also after an error: what was written last may have come behind a verification.
        with suppress(*(() if error is None else (RekeyError,))):
            await self._read()


async def _mark_changed(store: Table, control: ControlRow) -> None:
    """Mark that no earlier verification of a migration covers what was written (`ControlRow.change_id`).
    Raises Unavailable: its control row kept changing."""
    key = control_key(control.script_id, control.group)
    for _ in range(_ATTEMPTS):
        row = await store.get(key)
        if row is None:
            return
        marked = replace(from_row(row), change_id=secrets.token_hex(16))
        with suppress(ConditionFailed, RowMissing, Ambiguous):
            await store.replace(to_row(marked), etag=etag_of(row))
            return
    raise refusal("control-row-changing", control=control)
