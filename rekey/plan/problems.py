"""Problems of a migration: what `apply` will refuse, what will cost more than it must. Pure rules, no I/O.

Rules kept here:

* Every problem has a stable code, a message without keys, and a cure that is a command or an edit.
* An error is what `apply` would refuse or stop at; a warning is a cost or a loss that the operator should
  choose knowingly; a note is what the plan cannot know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rekey.core.severity import Severity
from rekey.declaration.migration import Declared
from rekey.inspect.inventory import Inventory
from rekey.model import TIMESTAMP
from rekey.plan.result import Collisions, Problem, RefusedRows, TableFill, TableState
from rekey.present.text import counted

FEW_ROWS_PER_BATCH = 10.0
WORTH_BATCHING_ROWS = 1_000
"""In tables of fewer rows than this, batches of few rows give no warning."""
NAMED_ROWS = 20


@dataclass(frozen=True, slots=True)
class Started:
    """A migration that was begun, by the control row or the state file.

    Attributes:
        phase: the phase it is in.
        digest: digest of the declaration it was begun with.
        secret_fingerprints: fingerprints of the secrets it was begun with, by name.
    """

    phase: str
    digest: str
    secret_fingerprints: Mapping[str, str]


def declaration_problems(
    declared: Declared,
    started: Started | None,
    missing_secrets: Sequence[str],
    fingerprints: Mapping[str, str],
    no_wrapping_key: str = "",
) -> Iterator[Problem]:
    """Yield the problems of the declaration, its secrets and its history, without looking at tables.

    Args:
        declared: the migration.
        started: phase, declaration and secrets when it was begun before; else None.
        missing_secrets: names of secrets that were not found.
        fingerprints: fingerprints of the secrets that were found, by name.
        no_wrapping_key: why the wrapping key of a sealed mapping cannot be used; "" when it can, or none is
            needed.
    """
    migration, source = declared.migration, declared.migration.source
    for name in missing_secrets:
        message = f"the secret {name!r} is not configured, empty, or shorter than 16 bytes"
        cure = f"set it as `[secrets.{name}]` in rekey.toml says; no row can be mapped without it"
        yield _error("secret-missing", message, cure)
    if migration.capture == "dual-write":
        if migration.indexes and not migration.reverse:
            tables = ", ".join(index.table for index in migration.indexes)
            message = f"reverse=False with {tables}: after cutover nothing could keep index tables current"
            cure = (
                "copy the old key into a property (props.copy) and leave reverse=False out; or leave index"
                ' tables to a migration of their own; or say capture="delta"'
            )
            yield _error("indexes-cannot-follow", message, cure)
        yield _note(
            "clients-first",
            f"every process that writes to {source} must write through rekey's client before `apply` copies"
            " anything. cutover asks for a live client and that all of them have acknowledged; writing stops"
            " only for the seconds of the freeze. A writer that goes round the client is seen by full"
            " verification only",
            f"deploy the clients, see them in `rekey status {declared.script_id}`, then take away from others"
            f" the right to write to {source}",
        )
        copied = any(one.property_mapping.from_timestamp for one in migration.filled)
        if TIMESTAMP in migration.key_inputs or copied:
            message = (
                "Timestamp is part of the new rows: it is known only after the source was written, so each"
                " write takes more round trips"
            )
            cure = "accept them, or copy a time that the application writes itself"
            yield _note("timestamp-copies", message, cure)
    for index in migration.indexes:
        if index.table == migration.target.table and index.partition_key != migration.target.partition_key:
            message = (
                f"rows of {index.where} need not have the PartitionKey of their main rows, and no transaction"
                " spans partitions: where they differ, a reader may find one without the other for a moment"
            )
            yield _warning("rows-apart", message, "give both the same partition_key=, or accept that")
    if not migration.reverse:
        message = "reverse=False: after cutover there is no rollback"
        cure = "copy the old key into a property (props.copy) and leave reverse=False out"
        yield _warning("no-way-back", message, cure)
    if started is not None and started.digest != declared.digest:
        message = f"the script was edited after the migration was begun (it is in phase `{started.phase}`)"
        cure = "put the script back as it was; to change it, roll back with it first: `rekey rollback`"
        yield _error("declaration-moved", message, cure)
    for name, known in sorted(started.secret_fingerprints.items()) if started is not None else ():
        if fingerprints.get(name, known) != known:
            message = f"the secret {name!r} is not the one the migration was begun with"
            cure = "configure the secret it was begun with; to change it, roll back with that one first"
            yield _error("secret-moved", message, cure)
    if no_wrapping_key:
        cure = (
            "put the key where [sealing] in rekey.toml says (`openssl rand -hex 32` makes one), or say"
            ' mapping="plain" in the script before it begins'
        )
        yield _error("wrapping-key-missing", no_wrapping_key, cure)


def table_problems(
    declared: Declared, source_exists: bool, made_by: str | None, targets: Sequence[TableState]
) -> Iterator[Problem]:
    """Yield the problems of tables that are missing or already hold rows.

    Args:
        declared: the migration.
        source_exists: whether the source table is there.
        made_by: the script planned before this one that makes the source table, if one does.
        targets: the target tables; `holds_rows`: with rows that are not this migration's.
    """
    source = declared.migration.source
    if not source_exists and made_by is not None:
        message = f"source table {source} will be made by {made_by}; its rows cannot be looked at yet"
        cure = f"plan again when {made_by} is complete"
        yield _note("source-not-yet", message, cure)
    elif not source_exists:
        message = f"source table {source} does not exist in this account"
        cure = f"check [tables] endpoint in rekey.toml, and `source=` in {declared.path.name}"
        yield _error("source-missing", message, cure)
    for target in targets:
        if target.holds_rows:
            message = f"target table {target.table} holds rows that this migration did not write"
            cure = f"choose another table name in {declared.path.name}, or empty that table"
            yield _error("target-holds-rows", message, cure)


def row_problems(
    inventory: Inventory,
    refused: Sequence[RefusedRows],
    collisions: Collisions,
    fills: Sequence[TableFill],
    ids_hold: bool,
) -> Iterator[Problem]:
    """Yield the problems that mapping the rows has shown."""
    looked_at = "" if inventory.exact else f" of {inventory.rows.at_least:,} looked at"
    for one in refused:
        message = (
            f"{counted(one.rows, 'row')}{looked_at} cannot be mapped: {one.field}: {one.problem} ({one.code})"
        )
        yield _error("row-refused", message, one.cure, rows=one.rows, row_ids=one.row_ids)
    if collisions.keys:
        first = [row_id for group in collisions.first for row_id in group.row_ids]
        yield _error(
            "collision",
            f"{collisions.rows:,} {'source' if collisions.exact else 'sampled'} rows share"
            f" {counted(collisions.keys, 'target key')}; every row needs a key of its own",
            "make the key expressions keep such rows apart, or mend the rows;"
            " `rekey plan --exact --show-keys` lists their keys",
            rows=collisions.rows,
            row_ids=first[:NAMED_ROWS],
        )
    if inventory.rows.at_least == 0:
        message = f"source table {inventory.table} holds no rows"
        cure = "check that this is the table and the account you mean"
        yield _warning("source-empty", message, cure)
    if not inventory.exact:
        message = f"{inventory.rows.at_least:,} rows were looked at; other rows may collide or be refused"
        cure = "`rekey plan --exact` looks at every row"
        yield _note("sampled", message, cure)
    if not ids_hold and (refused or collisions.keys):
        message = "the migration has no key for safe ids yet: the ids here hold for this plan only"
        cure = "see keys instead of ids: `rekey plan --show-keys`"
        yield _note("ids-not-kept", message, cure)
    for fill in fills:
        few = fill.table_rows < WORTH_BATCHING_ROWS
        if few or fill.rows_per_batch >= FEW_ROWS_PER_BATCH:
            continue
        alone = fill.rows_per_batch < 1.05
        yield _warning(
            "batches-of-one" if alone else "thin-batches",
            f"{fill.table} is written in batches of"
            f" {'one' if alone else f'{fill.rows_per_batch:.1f} rows'}: {fill.batches:,} requests instead of"
            f" {-(-fill.table_rows // 100):,}, as"
            + (" nearly every row has a partition of its own" if alone else " few rows share a partition"),
            "put rows that are written or read together into one partition, e.g. keys.bucket, keys.date;"
            " or accept the requests: each is billed, and rows of different partitions are never atomic",
            rows=fill.rows,
        )


def ordered(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems, errors first, otherwise in the order they were found."""
    return tuple(sorted(problems, key=lambda one: one.severity.place))


def _problem(
    severity: Severity, code: str, message: str, cure: str, *, rows: int = 0, row_ids: Sequence[str] = ()
) -> Problem:
    return Problem(code, severity, message, cure, rows, tuple(row_ids))


_error = partial(_problem, Severity.ERROR)
_warning = partial(_problem, Severity.WARNING)
_note = partial(_problem, Severity.NOTE)
