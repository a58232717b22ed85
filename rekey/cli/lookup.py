"""`rekey lookup`: which old key became which new key. Shows keys: it reads the restricted store.

Rules kept here:

* That somebody looked is recorded before the answer is printed: the row by its safe id, the reason as given.
  A reason that holds the key is refused.
* Where the state file cannot be written this is said, and the answer is given all the same: whoever may read
  the restricted store can read it without rekey, too.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rekey.cli.project import Project, open_project
from rekey.cli.shell import Shell, command
from rekey.errors import ExitCode, Findings, Locked, MachineFailed, Refused, StateUnusable
from rekey.phases import Phase

if TYPE_CHECKING:
    from rekey.declaration import Declared
    from rekey.mapping.store import MappingStore
    from rekey.model import EntityKey
    from rekey.tables.base import Accounts

_TELLING = 6
"""A part of a key that is at least so long must not stand in a reason."""


@dataclass(frozen=True, slots=True)
class _Query:
    """What was asked: exactly one of the three."""

    old: EntityKey | None
    new: EntityKey | None
    safe_id: str | None

    @property
    def by(self) -> str:
        return "old" if self.old else "new" if self.new else "id"


@dataclass(frozen=True, slots=True)
class _Found:
    """One source row and all keys it ever had in the targets."""

    row_id: str
    old: EntityKey
    new: tuple[tuple[str, EntityKey], ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "row_id": self.row_id,
            "old": {"partition_key": self.old.partition, "row_key": self.old.row},
            "new": [
                {"table": table, "partition_key": key.partition, "row_key": key.row}
                for table, key in self.new
            ],
        }


@command(
    "lookup",
    example='rekey lookup 0001 --old eu someone@example.com --reason "ticket 4711"'
    "\nrekey lookup 0001 --id 3m9k2v7c0q1x",
)
@click.argument("script", required=False)
@click.option("--old", nargs=2, metavar="PK RK", help="A key of the source.")
@click.option("--new", nargs=2, metavar="PK RK", help="A key of a target.")
@click.option(
    "--id", "safe_id", metavar="SAFEID", help="A safe id of a row, as plans, reports and errors show it."
)
@click.option("--reason", default="", metavar="TEXT", help="Why; it is recorded. It must not hold the key.")
def lookup(
    shell: Shell,
    script: str | None,
    old: tuple[str, str] | None,
    new: tuple[str, str] | None,
    safe_id: str | None,
    reason: str,
) -> ExitCode:
    """Show which old key became which new keys, and back.

    The answer holds keys. That you asked, and your reason, is recorded. Exit code 1 when there is no such
    row.
    """
    from rekey.model import EntityKey

    if sum(one is not None for one in (old, new, safe_id)) != 1:
        raise click.UsageError("give one of --old PK RK, --new PK RK, --id SAFEID")
    query = _Query(EntityKey(*old) if old else None, EntityKey(*new) if new else None, safe_id)
    project = open_project(shell)
    declared = project.the_one(script, lambda applied: Phase.PREPARE in applied)
    found, row_ids = asyncio.run(_look(shell, project, declared, query))
    _refuse_telling(reason, query, found)
    _record(shell, project, declared, query, row_ids, bool(found), reason)
    if not found:
        raise Findings(
            f"{declared.script_id} knows no such row ({', '.join(row_ids)})",
            hint="check the key character by character; rows that were never copied, and ids of rows in index"
            " tables, cannot be looked up",
        )
    shell.emit(
        {
            "exit_code": int(ExitCode.DONE),
            "script_id": declared.script_id,
            "rows": [one.as_json() for one in found],
        },
        "\n".join(line for one in found for line in _told(declared, one)),
    )
    return ExitCode.DONE


async def _look(
    shell: Shell, project: Project, declared: Declared, query: _Query
) -> tuple[list[_Found], list[str]]:
    """Return what was found, and the safe ids that the record names."""
    from rekey.dualwrite.control import ControlStore
    from rekey.runner.session import mapping_store

    accounts = shell.connect(project.config)
    try:
        control = await ControlStore(accounts.restricted, declared.script_id).read()
        if control is None:
            raise Refused(
                f"{declared.script_id} has not begun: nothing has a new key yet",
                hint=f"`rekey plan {declared.script_id} --show-keys` shows examples of what keys will be",
            )
        store = mapping_store(accounts, declared, control.id_key)
        sources = await _sources(store, accounts, declared, query)
        found = [one for key in sources if (one := await _row(store, key)) is not None]
        return found, [one.row_id for one in found] or [_asked_id(store, query)]
    finally:
        await accounts.close()


async def _sources(
    store: MappingStore, accounts: Accounts, declared: Declared, query: _Query
) -> list[EntityKey]:
    """Return the source keys that a query means."""
    from rekey.mapping.rows import read_source

    if query.old is not None:
        return [query.old]
    if query.safe_id is not None:
        wanted = query.safe_id.strip().lower()
        rows = [row for direction in ("f", "r") for row in await store.lookup(direction, wanted)]
        return list(dict.fromkeys(read_source(row) for row in rows))
    if query.new is None:
        return []
    owner = await store.owner(query.new) or await _owner_by_index(store, accounts, declared, query.new)
    return [] if owner is None else [owner.source]


async def _owner_by_index(store: MappingStore, accounts: Accounts, declared: Declared, key: EntityKey) -> Any:
    """Return the owner of a row in an index table, by the pointer to its main row."""
    from rekey.declaration import MAIN_PARTITION_KEY, MAIN_ROW_KEY
    from rekey.errors import TableMissing
    from rekey.model import EntityKey

    for name in declared.migration.tables[1:]:
        try:
            row = await accounts.tables.table(name).get(key)
        except TableMissing:
            continue
        if row is not None and MAIN_PARTITION_KEY in row and MAIN_ROW_KEY in row:
            owner = await store.owner(EntityKey(row[MAIN_PARTITION_KEY], row[MAIN_ROW_KEY]))
            if owner is not None:
                return owner
    return None


async def _row(store: MappingStore, source_key: EntityKey) -> _Found | None:
    forward = await store.forward(source_key)
    if forward is None:
        return None
    names = store.rows.tables
    return _Found(
        row_id=store.rows.ids.short(store.rows.source, source_key),
        old=source_key,
        new=tuple((names[target.table], target.key) for target in sorted(forward.targets)),
    )


def _asked_id(store: MappingStore, query: _Query) -> str:
    """Return the safe id of what was asked for."""
    rows = store.rows
    if query.old is not None:
        return rows.ids.short(rows.source, query.old)
    if query.new is not None:
        return rows.ids.short(rows.tables[0], query.new)
    return "the id that was given"


def _refuse_telling(reason: str, query: _Query, found: list[_Found]) -> None:
    keys = [key for key in (query.old, query.new) if key is not None]
    keys += [key for one in found for key in (one.old, *(new for _, new in one.new))]
    parts = {part.lower() for key in keys for part in key if len(part) >= _TELLING}
    if any(part in reason.lower() for part in parts):
        raise click.UsageError("--reason holds a part of the key, and it is recorded; say why, not whose")


def _record(
    shell: Shell,
    project: Project,
    declared: Declared,
    query: _Query,
    row_ids: list[str],
    found: bool,
    reason: str,
) -> None:
    from rekey.state.store import State

    try:
        with State.open(project.config.state) as state:
            details = {"by": query.by, "rows": row_ids, "found": found, "reason": reason}
            state.audit("lookup", declared.script_id, details)
    except (StateUnusable, Locked, MachineFailed) as error:
        shell.note(f"warning: this lookup is not recorded: {error.what}")


def _told(declared: Declared, found: _Found) -> list[str]:
    lines = [f"row {found.row_id}", *_key_lines(f"old, {declared.migration.source}", found.old)]
    for table, key in found.new:
        lines += _key_lines(f"new, {table}", key)
    return lines


def _key_lines(label: str, key: EntityKey) -> list[str]:
    return [f"  {label}", *_part("PartitionKey", key.partition), *_part("RowKey", key.row)]


def _part(label: str, text: str) -> list[str]:
    return [f"    {label:<13} {text!r}"]
