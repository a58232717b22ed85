"""What is applied according to a state file: the steps of the schema, and the phases of the scripts. Read by
everything that opens a state file, so without yoyo, whose import takes longer than the reading."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rekey.phases import LEAVES, ORDER, ControlPhase, Phase, ledger_id
from rekey.state.refusals import refusal

if TYPE_CHECKING:
    from rekey.declaration.migration import Declared

SCHEMA_PREFIX = "state-"
SCHEMA_FOLDER = Path(__file__).parent / "schema"
# yoyo's own tables, and their newest form that needs no import of yoyo; a test compares both with it.
LEDGER_TABLE = "_yoyo_migration"
LEDGER_FORM = 2
_INTERNAL = frozenset({"_yoyo_log", "_yoyo_version", LEDGER_TABLE, "yoyo_lock", "sqlite_sequence"})


def ledger_ids(connection: sqlite3.Connection) -> list[str]:
    """Return the ids of all applied entries: schema steps and phases."""
    if LEDGER_TABLE not in tables(connection):
        return []
    rows = connection.execute(f"SELECT migration_id FROM {LEDGER_TABLE}")  # noqa: S608 - a constant
    return [row[0] for row in rows]


def tables(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the tables in a file."""
    return [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


# --- the schema ---


def schema_steps(folder: Path = SCHEMA_FOLDER) -> list[Path]:
    """Return the scripts of our schema, in order."""
    return [path for path in sorted(folder.glob("*.sql")) if not path.name.endswith(".rollback.sql")]


def schema_version(ids: Iterable[str]) -> int:
    """Return the number of the newest schema step among ledger ids; 0: none."""
    return max((int(entry.split("-")[1]) for entry in ids if _is_schema(entry)), default=0)


def missing_steps(connection: sqlite3.Connection, path: Path, folder: Path = SCHEMA_FOLDER) -> list[Path]:
    """Return the schema steps that a file lacks, in order. Raises StateUnusable for a file of a newer rekey
    (its schema has steps that this program does not know) or of another program."""
    steps = schema_steps(folder)
    known = [step.stem for step in steps]
    ids = set(ledger_ids(connection))
    schema = {entry for entry in ids if _is_schema(entry)}
    phases = {entry.rpartition(".")[2] for entry in ids - schema}
    if schema - set(known) or phases - set(Phase) or not _is_form_known(connection):
        raise refusal("newer", path=path, schema=schema_version(schema), known=schema_version(known))
    if not schema and set(tables(connection)) - _INTERNAL:
        raise refusal("damaged", path=path, why="a database, but not one of rekey")
    return [step for step in steps if step.stem not in schema]


def _is_form_known(connection: sqlite3.Connection) -> bool:
    if "_yoyo_version" not in tables(connection):
        return True
    [(form,)] = connection.execute("SELECT max(version) FROM _yoyo_version").fetchall()
    if form in (None, LEDGER_FORM):
        return True
    from yoyo.internalmigrations import schema_versions

    return form in schema_versions


def _is_schema(entry: str) -> bool:
    # One yoyo table holds both: ids of phases are `<script>.<phase>`.
    return entry.startswith(SCHEMA_PREFIX) and "." not in entry


# --- phases ---


def applied_phases(ids: Iterable[str], script_id: str) -> list[Phase]:
    """Return the applied phases of a script, in order, from all ids of the ledger."""
    known = set(ids)
    return [phase for phase in ORDER if ledger_id(script_id, phase) in known]


def aligned(control: ControlPhase, applied: Sequence[Phase]) -> tuple[Phase, ...]:
    """Return the phases that count as applied. `control`: the control row's phase, after any freeze was left;
    `applied`: the ledger's phases, in order."""
    possible = [ORDER.index(phase) + 1 for phase in ORDER if LEAVES[phase] is control]
    # The control row is the truth, because clients act on it. Phases within `dual_write` do not move it: for
    # them the ledger counts.
    least = 0 if control is ControlPhase.SOURCE else possible[0]
    return ORDER[: max(least, min(len(applied), possible[-1]))]


def handover(before: Declared, after: Declared) -> Phase:
    """Return the phase of `before` that must be applied before `after`, which depends on it, can begin."""
    # Table names are case-insensitive (Azure: "Understanding the Table service data model").
    # A table that `before` fills gets writes propagated back until `complete`: it cannot be part of two
    # migrations.
    filled = {name.lower() for name in before.migration.table_names}
    if before.is_beside(after):
        return Phase.COMPLETE  # nor can a client follow two migrations of one source
    return Phase.COMPLETE if after.migration.source.lower() in filled else Phase.CUTOVER
