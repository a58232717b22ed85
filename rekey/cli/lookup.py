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
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rekey.cli.asking import FILE, keys_in, naming, queries_of, refuse_telling, require_one, require_reason
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
from rekey.project.privatefiles import write_private

if TYPE_CHECKING:
    from rekey.declaration.migration import Declared
    from rekey.mapping.lookup import Found, Gone, Met, Query
    from rekey.model import EntityKey
    from rekey.state.erasures import Erasures
    from rekey.tables.base import Accounts

EVENT = "lookup"
_MINUTE_S = 60.0
_NAMED = 20


@command(
    "lookup",
    example='rekey lookup 0001 --old eu someone@example.com --reason "ticket 4711"'
    '\nrekey lookup 0001 --id 3m9k2v7c0q1x --reason "named by verify"'
    '\nrekey lookup 0001 --bulk asked.csv --out answers.jsonl --reason "ticket 4712"',
)
@click.argument("script", required=False)
@naming
@click.option("--out", type=FILE, metavar="FILE", help="Write the answers there, for your eyes only (JSONL).")
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
    limited to so many a minute. Exit code 1 when there is no such row, or it was erased.
    """
    require_one(old, new, safe_id, bulk)
    require_reason(reason)
    project = open_project(shell)
    queries = queries_of(project.config, old, new, safe_id, bulk)
    declared = project.the_one(script, lambda applied: Phase.PREPARE in applied)
    refuse_telling(reason, keys_in(queries))
    answers = asyncio.run(_look(shell, project, declared, queries, reason, bulk is not None))
    return _answer(shell, declared, answers, out)


async def _look(
    shell: Shell, project: Project, declared: Declared, queries: Sequence[Query], reason: str, bulk: bool
) -> list[tuple[Met, list[Found | Gone]]]:
    """Return what the questions mean and what was found; recorded before a row is opened."""
    from rekey.mapping.lookup import Found, Lookup
    from rekey.migration.opening import Prepared, open_migration

    sealed = declared.migration.is_sealed
    prepared = Prepared.of(project.config, declared)
    _ = prepared.wrapping  # absent, it is told before anything is asked
    accounts: Accounts = shell.connect(project.config)
    try:
        migration = open_migration(prepared, accounts)
        control = await migration.control.read()
        if control is None:
            raise Refused(
                f"{declared.script_id} has not begun: nothing has a new key yet",
                hint=f"`rekey plan {declared.script_id} --show-keys` shows examples of what keys will be",
            )
        looking = Lookup(await migration.mapping(control), accounts.tables)
        met = [await looking.meet(one) for one in queries]
        if not sealed and not bulk:
            found = await looking.tell(met[0])
            shown = [one for one in found if isinstance(one, Found)]
            refuse_telling(reason, [key for one in shown for key in (one.old, *(new for _, new in one.new))])
        said = _record(shell, project, declared, _details(met, reason, bulk))
        looking.was_erased(said.rows, said.cohorts, said.whole)
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


def _record(shell: Shell, project: Project, declared: Declared, details: dict[str, Any]) -> Erasures:
    """Add the look-up to the audit log; return what that says was erased.

    Raises:
        Refused: there were too many in the last minute.
        StateUnusable, Locked, MachineFailed: it cannot be recorded, and the mapping is sealed.
    """
    from rekey.state.erasures import Erasures, erasures
    from rekey.state.store import State

    most = project.config.lookup.per_minute
    try:
        with State.open(project.config.state) as state:
            added = state.audit_within(EVENT, declared.script_id, details, most=most, seconds=_MINUTE_S)
            said = erasures(state.audit_events(declared.script_id))
    except (StateUnusable, Locked, MachineFailed) as error:
        if declared.migration.is_sealed:
            raise
        shell.note(f"warning: this lookup is not recorded: {error.what}")
        return Erasures()
    if added is None:
        raise Refused(
            f"there were {most} look-ups in the last minute already",
            kept="the mapping, unopened; this look-up is not recorded",
            hint="wait a minute; for many keys use --bulk FILE, or raise [lookup] per_minute",
        )
    return said


# --- files ------------------------------------------------------------------------------------------------


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
    shell: Shell, declared: Declared, answers: Sequence[tuple[Met, list[Found | Gone]]], out: Path | None
) -> ExitCode:
    """Show what was found. Raises Findings when something was not, or was erased."""
    from rekey.mapping.lookup import Found, Gone

    found = [one for _, some in answers for one in some if isinstance(one, Found)]
    erased = [one for _, some in answers for one in some if isinstance(one, Gone)]
    unknown = [row_id for met, some in answers if not some for row_id in met.row_ids]
    if (found or erased) and out is not None:
        _write_out(out, [one.as_json() for one in found] + [one.as_json() for one in erased])
    document: dict[str, Any] = {"script_id": declared.script_id, "unknown": len(unknown)}
    document |= {"out": str(out), "found": len(found)} if out else {"rows": [one.as_json() for one in found]}
    document["erased"] = [one.as_json() for one in erased]
    text = "\n".join(line for one in found for line in _told(declared, one))
    shown = f"{len(found)} found, written to {out}" if out else text
    if not unknown and not erased:
        shell.emit({"exit_code": int(ExitCode.DONE), **document}, shown)
        return ExitCode.DONE
    if len(erased) == 1 and not unknown and not found:
        document["erased_on"] = erased[0].on
    if found or erased:
        shell.so_far.update(document)
    if found:
        shell.say(shown)
    raise _not_found(declared, unknown, erased)


def _not_found(declared: Declared, unknown: Sequence[str], erased: Sequence[Gone]) -> Findings:
    """Return the error for rows that nothing is known of, or nothing any more."""
    returned = [one for one in erased if one.returned]
    said = [f"row {one.row_id} was erased on {one.on}" for one in erased if not one.returned]
    said += [f"row {one.row_id} was erased on {one.on}, and stands there again" for one in returned]
    if unknown:
        said.append(f"{declared.script_id} knows no such row ({_some(unknown)})")
    kept = "that it was erased, and when; nothing else of it" if erased and not returned else ""
    hint = "the audit log says on whose word: `rekey evidence export`"
    if unknown:
        hint = (
            "check the key character by character; rows that were never copied, and ids of rows in index"
            " tables, cannot be looked up"
        )
    if returned:
        kept = "the rows as they stand there; they are not shown"
        hint = (
            "somebody put an old copy into the restricted store: find out who, and erase again"
            f" (`rekey retire {declared.script_id}`; the runbook on erasing says how)"
        )
    return Findings(_some(said, "; "), kept=kept, hint=hint)


def _some(names: Sequence[str], between: str = ", ") -> str:
    """Return the first of many texts."""
    return between.join(names[:_NAMED]) + (f"{between}…" if len(names) > _NAMED else "")


def _told(declared: Declared, found: Found) -> list[str]:
    lines = [f"row {found.row_id}", *_key_lines(f"old, {declared.migration.source}", found.old)]
    for table, key in found.new:
        lines += _key_lines(f"new, {table}", key)
    return lines


def _key_lines(label: str, key: EntityKey) -> list[str]:
    return [f"  {label}", *_part("PartitionKey", key.partition), *_part("RowKey", key.row)]


def _part(label: str, text: str) -> list[str]:
    return [f"    {label:<13} {text!r}"]
