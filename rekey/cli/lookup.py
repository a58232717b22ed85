"""`rekey lookup`: which old key became which new key. Shows keys: it reads the restricted store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rekey.cli.naming import Named, check_reason, naming, record_look_up
from rekey.cli.project import Project, open_project
from rekey.cli.shell import SCRIPT, Shell, command, file_option
from rekey.core.plain import plain
from rekey.declaration.migration import Declared
from rekey.errors import ExitCode, Locked, MachineFailed, RekeyError, StateUnusable, reason_of
from rekey.mapping.lookup import ErasedRow, FoundKeys, Matches, Query, lookup_of
from rekey.phases import Phase
from rekey.present.text import shortened
from rekey.project.privatefiles import write_private
from rekey.protocol.opening import Prepared, open_migration, require_same_migration
from rekey.runner.refusals import refusal
from rekey.state.audit import Erasures, erasures
from rekey.state.store import State


@command(
    "lookup",
    example='rekey lookup 0001 --old eu someone@example.com --reason "ticket 4711"'
    '\nrekey lookup 0001 --id 3m9k2v7c0q1x --reason "named by verify"'
    '\nrekey lookup 0001 --bulk asked.csv --out answers.jsonl --reason "ticket 4712"',
)
@SCRIPT
@naming
@file_option("--out", help="Write the answers to a new private file (JSON Lines).")
def lookup(shell: Shell, script: str | None, named: Named, reason: str, out: Path | None) -> ExitCode:
    """Show which old key became which new keys, and back.

    The answer holds keys. The look-up and its reason are recorded before anything is read, and look-ups per
    minute are limited. Exit code 1 when there is no such row, or it was erased.
    """
    project = open_project(shell)
    queries = named.queries(project.config, reason)
    declared = project.the_one(script, Phase.PREPARE)
    answers = shell.do(_look_up(shell, project, declared, queries, reason, named.bulk is not None))
    matches = [
        answer for _, row_answers in answers for answer in row_answers if isinstance(answer, FoundKeys)
    ]
    erased = [answer for _, row_answers in answers for answer in row_answers if isinstance(answer, ErasedRow)]
    unknown = [row_id for met, row_answers in answers if not row_answers for row_id in met.row_ids]
    if (matches or erased) and out is not None:
        lines = [json.dumps(plain(answer), ensure_ascii=False) for answer in (*matches, *erased)]
        try:
            write_private(out, "".join(f"{line}\n" for line in lines).encode("utf-8"))
        except OSError as error:
            raise refusal("answers-not-written", file=out, reason=reason_of(error)) from None
    document: dict[str, Any] = {"script_id": declared.script_id, "unknown": len(unknown)}
    document |= {"out": str(out), "found": len(matches)} if out else {"rows": plain(matches)}
    document["erased"] = plain(erased)
    text = "\n".join(line for match in matches for line in _match_lines(declared, match))
    shown = f"{len(matches)} found, written to {out}" if out else text
    if not unknown and not erased:
        return shell.emit(document, shown)
    if len(erased) == 1 and not unknown and not matches:
        document["erased_on"] = erased[0].on
    if matches or erased:
        shell.tell_before_error(document, shown if matches else "")
    raise _not_found(declared, unknown, erased)


async def _look_up(
    shell: Shell, project: Project, declared: Declared, queries: Sequence[Query], reason: str, bulk: bool
) -> list[tuple[Matches, list[FoundKeys | ErasedRow]]]:
    """Return, for each query, its mapping rows and the answers; record the look-up before.

    Raises:
        SecretMissing: a secret or the wrapping key is missing.
        Refused: the migration has not begun; see also `_record`.
        click.UsageError: the reason holds a key of the answer.
    """
    prepared = Prepared.of(project.config, declared)
    async with shell.connect(project.config) as accounts:
        migration = open_migration(prepared, accounts)
        control = await migration.control.read()
        if control is None:
            raise refusal("nothing-looked-up", script=declared.script_id)
        with State.open(project.config.state, read_only=True) as state:
            record = state.migration(declared.script_id)
        require_same_migration(prepared, control, record.run_id if record else None)
        if declared.migration.is_sealed and (record is None or record.run_id != control.run_id):
            # Another state file would count look-ups from zero, and the record would be where nobody looks.
            raise refusal("look-up-elsewhere", script=declared.script_id, state=project.config.state)
        lookup = lookup_of(await migration.mapping(control), accounts.tables)
        matches = await lookup.find_all(queries)
        if not declared.migration.is_sealed and not bulk:
            shown = [answer for answer in await lookup.open(matches[0]) if isinstance(answer, FoundKeys)]
            check_reason(reason, [key for keys in shown for key in (keys.old, *(new for _, new in keys.new))])
        # The record holds no key of a row, and no unkeyed hash of one.
        known = sum(bool(match.rows) for match in matches)
        if bulk:
            asked = "\n".join(digest for match in matches for digest in match.digests)
            digest = hashlib.sha256(asked.encode()).hexdigest()
            details = {
                "by": "bulk",
                "count": len(matches),
                "found": known,
                "digest": digest,
                "reason": reason,
            }
        else:
            row_ids = list(matches[0].row_ids)
            details = {"by": matches[0].query.by, "rows": row_ids, "found": bool(known), "reason": reason}
        erasures = _record(shell, project, declared, details)
        lookup.was_erased(erasures.rows, erasures.cohorts, erasures.whole)
        has = declared.migration.has  # what is not migrated was not erased with the mapping either
        return [
            (match, await lookup.open(match) if match.query.old is None or has(match.query.old) else [])
            for match in matches
        ]


def _record(shell: Shell, project: Project, declared: Declared, details: dict[str, Any]) -> Erasures:
    """Add the look-up to the audit log; return the erasures that the log records.

    Raises:
        Refused: there were too many in the last minute.
        StateUnusable, Locked, MachineFailed: it cannot be recorded, and the mapping is sealed.
    """
    try:
        with State.open(project.config.state) as state:
            record_look_up(state, declared.script_id, details, most=project.config.lookup.per_minute)
            return erasures(state.audit_events(declared.script_id))
    except (StateUnusable, Locked, MachineFailed) as error:
        if declared.migration.is_sealed:
            raise
        # A mapping in the clear can be read in the restricted store without rekey, too.
        shell.note(f"warning: this lookup is not recorded: {error.what}", "warning")
        return Erasures()


def _not_found(declared: Declared, unknown: Sequence[str], erased: Sequence[ErasedRow]) -> RekeyError:
    returned = [row for row in erased if row.returned]
    findings = [f"row {row.row_id} was erased on {row.on}" for row in erased if not row.returned]
    findings += [f"row {row.row_id} was erased on {row.on}, and stands there again" for row in returned]
    if unknown:
        findings.append(f"{declared.script_id} has no such row ({shortened(unknown)})")
    what = shortened(findings, between="; ")
    if returned:
        return refusal("rows-returned", what=what, script=declared.script_id)
    if not unknown:
        return refusal("rows-erased", what=what)
    kept = "that it was erased, and when; nothing else of it" if erased else ""
    return refusal("rows-unknown", what=what, script=declared.script_id, kept=kept)


def _match_lines(declared: Declared, row: FoundKeys) -> list[str]:
    keys = [(f"old, {declared.migration.source}", row.old)]
    keys += [(f"new, {table}", key) for table, key in row.new]
    lines = [f"row {row.row_id}"]
    for label, key in keys:
        lines += [f"  {label}", f"    PartitionKey  {key.partition!r}", f"    RowKey        {key.row!r}"]
    return lines
