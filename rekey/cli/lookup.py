"""`rekey lookup`: which old key became which new key. Shows keys: it reads the restricted store.

Rules kept here:

* That somebody asks is recorded before a mapping row is opened: rows by their safe ids, the reason as given.
  A reason that holds a key that was asked for, or an address, is refused.
* What is sealed is not opened without a record: where the state file cannot be written, there is no answer.
  Of a mapping in the clear whoever may read the restricted store reads it without rekey, too: there the
  answer is given, and it is said that the record is missing.
* Look-ups of a minute are counted in the audit log, over all processes. A file counts as one, is bounded by
  itself, and is recorded by how many keys it asks for and by a digest of their safe ids.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rekey.cli.project import Project, open_project
from rekey.cli.shell import Shell, command
from rekey.errors import (
    ConfigurationError,
    ExitCode,
    Findings,
    Locked,
    MachineFailed,
    Refused,
    StateUnusable,
)
from rekey.phases import Phase
from rekey.privatefiles import write_private

if TYPE_CHECKING:
    from rekey.declaration import Declared
    from rekey.mapping.lookup import Found, Met, Query
    from rekey.model import EntityKey
    from rekey.tables.base import Accounts

EVENT = "lookup"
_TELLING = 6
"""A part of a key that is at least so long must not stand in a reason."""
_ADDRESS = re.compile(r"[^\s@]+@[^\s@]+")
_MINUTE_S = 60.0
_COLUMNS = {
    ("old_partition_key", "old_row_key"): "old",
    ("new_partition_key", "new_row_key"): "new",
    ("id",): "safe_id",
}
_FILE = click.Path(dir_okay=False, path_type=Path)


@command(
    "lookup",
    example='rekey lookup 0001 --old eu someone@example.com --reason "ticket 4711"'
    '\nrekey lookup 0001 --id 3m9k2v7c0q1x --reason "named by verify"'
    '\nrekey lookup 0001 --bulk asked.csv --out answers.jsonl --reason "ticket 4712"',
)
@click.argument("script", required=False)
@click.option("--old", nargs=2, metavar="PK RK", help="A key of the source.")
@click.option("--new", nargs=2, metavar="PK RK", help="A key of a target.")
@click.option(
    "--id", "safe_id", metavar="SAFEID", help="A safe id of a row, as plans, reports and errors show it."
)
@click.option(
    "--bulk",
    type=_FILE,
    metavar="FILE",
    help="Many at once: CSV with the columns old_partition_key,old_row_key or new_partition_key,new_row_key"
    " or id.",
)
@click.option(
    "--out", type=_FILE, metavar="FILE", help="Write the answers there, for your eyes only (JSONL)."
)
@click.option(
    "--reason", required=True, metavar="TEXT", help="Why; it is recorded. It must not hold the key."
)
def lookup(
    shell: Shell,
    script: str | None,
    old: tuple[str, str] | None,
    new: tuple[str, str] | None,
    safe_id: str | None,
    bulk: Path | None,
    out: Path | None,
    reason: str,
) -> ExitCode:
    """Show which old key became which new keys, and back.

    The answer holds keys. That you ask, and your reason, is recorded before anything is read; look-ups are
    limited to so many a minute. Exit code 1 when there is no such row.
    """
    from rekey.mapping.lookup import Query
    from rekey.model import EntityKey

    if sum(one is not None for one in (old, new, safe_id, bulk)) != 1:
        raise click.UsageError("give one of --old PK RK, --new PK RK, --id SAFEID, --bulk FILE")
    if not reason.strip():
        raise click.UsageError("--reason is empty; say why, a ticket's number for example")
    project = open_project(shell)
    if bulk is not None:
        queries = _read_bulk(bulk, project.config.lookup.bulk_keys)
    else:
        queries = [Query(EntityKey(*old) if old else None, EntityKey(*new) if new else None, safe_id)]
    declared = project.the_one(script, lambda applied: Phase.PREPARE in applied)
    _refuse_telling(reason, [key for one in queries for key in (one.old, one.new) if key is not None])
    answers = asyncio.run(_look(shell, project, declared, queries, reason, bulk is not None))
    return _answer(shell, declared, answers, out)


async def _look(
    shell: Shell, project: Project, declared: Declared, queries: Sequence[Query], reason: str, bulk: bool
) -> list[tuple[Met, list[Found]]]:
    """Return what the questions mean and what was found; recorded before a row is opened."""
    from rekey.dualwrite.control import ControlStore
    from rekey.mapping.lookup import Lookup
    from rekey.mapping.opening import wrapping_for
    from rekey.runner.session import mapping_of

    sealed = declared.migration.is_sealed
    wrapping = wrapping_for(project.config, declared.migration)
    accounts: Accounts = shell.connect(project.config)
    try:
        control = await ControlStore(accounts.restricted, declared.script_id).read()
        if control is None:
            raise Refused(
                f"{declared.script_id} has not begun: nothing has a new key yet",
                hint=f"`rekey plan {declared.script_id} --show-keys` shows examples of what keys will be",
            )
        looking = Lookup(await mapping_of(accounts, declared, control.id_key, wrapping), accounts.tables)
        met = [await looking.meet(one) for one in queries]
        if not sealed and not bulk:
            found = await looking.tell(met[0])
            _refuse_telling(reason, [key for one in found for key in (one.old, *(new for _, new in one.new))])
        _record(shell, project, declared, _details(met, reason, bulk))
        return [(one, await looking.tell(one)) for one in met]
    finally:
        await accounts.close()


def _details(met: Sequence[Met], reason: str, bulk: bool) -> dict[str, Any]:
    """Return what is recorded of a look-up. No key, and no hash of one without a key."""
    known = sum(bool(one.rows) for one in met)
    if not bulk:
        [one] = met
        return {"by": one.query.by, "rows": list(one.row_ids), "found": bool(known), "reason": reason}
    asked = "\n".join(digest for one in met for digest in one.digests)
    digest = hashlib.sha256(asked.encode()).hexdigest()
    return {"by": "bulk", "count": len(met), "found": known, "digest": digest, "reason": reason}


def _record(shell: Shell, project: Project, declared: Declared, details: dict[str, Any]) -> None:
    """Add the look-up to the audit log.

    Raises:
        Refused: there were too many in the last minute.
        StateUnusable, Locked, MachineFailed: it cannot be recorded, and the mapping is sealed.
    """
    from rekey.state.store import State

    most = project.config.lookup.per_minute
    try:
        with State.open(project.config.state) as state:
            added = state.audit_within(EVENT, declared.script_id, details, most=most, seconds=_MINUTE_S)
    except (StateUnusable, Locked, MachineFailed) as error:
        if declared.migration.is_sealed:
            raise
        shell.note(f"warning: this lookup is not recorded: {error.what}")
        return
    if added is None:
        raise Refused(
            f"there were {most} look-ups in the last minute already",
            kept="the mapping, unopened; this look-up is not recorded",
            hint="wait a minute; for many keys use --bulk FILE, or raise [lookup] per_minute",
        )


def _refuse_telling(reason: str, keys: Sequence[EntityKey]) -> None:
    parts = {part.lower() for key in keys for part in key if len(part) >= _TELLING}
    if _ADDRESS.search(reason) or any(part in reason.lower() for part in parts):
        raise click.UsageError("--reason holds a part of the key, and it is recorded; say why, not whose")


# --- files ------------------------------------------------------------------------------------------------


def _read_bulk(path: Path, most: int) -> list[Query]:
    """Read what a file asks for. Its content is never repeated in a message."""
    from rekey.mapping.lookup import Query
    from rekey.model import EntityKey

    try:
        rows = list(csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline=""), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(
            f"the file {path} cannot be read ({type(error).__name__})",
            hint="give CSV in UTF-8 with a line of column names",
        ) from None
    header = tuple(rows[0]) if rows else ()
    asked = [row for row in rows[1:] if row]
    if header not in _COLUMNS or any(len(row) != len(header) for row in asked):
        wanted = "; ".join(",".join(columns) for columns in _COLUMNS)
        raise ConfigurationError(
            f"the file {path} has not the columns that are expected", hint=f"begin it with one of: {wanted}"
        )
    if not 0 < len(asked) <= most:
        raise ConfigurationError(
            f"the file {path} asks for {len(asked)} keys, and 1 to {most} may be asked for",
            hint="split it, or raise [lookup] bulk_keys",
        )
    kind = _COLUMNS[header]
    if kind == "safe_id":
        return [Query(safe_id=row[0]) for row in asked]
    keys = [EntityKey(*row) for row in asked]
    return [Query(old=key) if kind == "old" else Query(new=key) for key in keys]


def _write_out(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Write answers to a new file that only its owner may read."""
    try:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_private(path, text.encode("utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"the answers cannot be written to {path} ({type(error).__name__})",
            kept="the record of the look-up",
            hint="name a file that does not exist, in a folder that this user can write to",
        ) from None


# --- answers ----------------------------------------------------------------------------------------------


def _answer(
    shell: Shell, declared: Declared, answers: Sequence[tuple[Met, list[Found]]], out: Path | None
) -> ExitCode:
    """Show what was found. Raises Findings when something was not."""
    found = [one for _, some in answers for one in some]
    unknown = [row_id for met, some in answers if not some for row_id in met.row_ids]
    if found and out is not None:
        _write_out(out, [one.as_json() for one in found])
    document: dict[str, Any] = {"script_id": declared.script_id, "unknown": len(unknown)}
    document |= {"out": str(out), "found": len(found)} if out else {"rows": [one.as_json() for one in found]}
    text = "\n".join(line for one in found for line in _told(declared, one))
    shown = f"{len(found)} found, written to {out}" if out else text
    if not unknown:
        shell.emit({"exit_code": int(ExitCode.DONE), **document}, shown)
        return ExitCode.DONE
    if found:
        shell.so_far.update(document)
        shell.say(shown)
    named = ", ".join(unknown[:20]) + (", …" if len(unknown) > 20 else "")
    raise Findings(
        f"{declared.script_id} knows no such row ({named})",
        hint="check the key character by character; rows that were never copied, and ids of rows in index"
        " tables, cannot be looked up",
    )


def _told(declared: Declared, found: Found) -> list[str]:
    lines = [f"row {found.row_id}", *_key_lines(f"old, {declared.migration.source}", found.old)]
    for table, key in found.new:
        lines += _key_lines(f"new, {table}", key)
    return lines


def _key_lines(label: str, key: EntityKey) -> list[str]:
    return [f"  {label}", *_part("PartitionKey", key.partition), *_part("RowKey", key.row)]


def _part(label: str, text: str) -> list[str]:
    return [f"    {label:<13} {text!r}"]
