"""The migrations that a restricted store knows, whoever began them: no row is written past their clients."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import urlsplit

from rekey.backup.refusals import refusal
from rekey.core.limits import is_in_target_account, own_name
from rekey.errors import TableMissing
from rekey.model import PARTITION_KEY, ROW_KEY, Row
from rekey.phases import ControlPhase
from rekey.project.config import is_same_account
from rekey.protocol.control import CONTROL_ROW_KEY, GROUP_PREFIX, ControlRow, from_row
from rekey.tables.base import Table

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
        names = names_in(control, table, endpoint)
        is_source = control.source in names
        # Nothing is copied yet: the backfill takes the rows of the source as it finds them.
        is_before = is_source and control.phase is ControlPhase.SOURCE
        if names and not is_before and (control.phase not in _ENDED or control.maintained):
            role = "the source" if is_source else "a target"
            raise refusal("table-migrating", table=table, role=role, control=control)
