"""Problems of a migration: what `apply` will refuse (errors), costs or losses to choose knowingly (warnings),
what the plan cannot know (notes). Pure rules, no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rekey.core.joint import is_joint
from rekey.core.limits import is_in_target_account
from rekey.core.severity import Severity
from rekey.core.texts import catalogue, filled
from rekey.declaration.keys.base import InvalidDeclaration, Prop
from rekey.declaration.migration import Declared, Migration
from rekey.declaration.props import Copy
from rekey.errors import MachineFailed, SecretMissing
from rekey.inspect.inventory import Inventory
from rekey.model import EVERYTHING, PARTITION_KEY, ROW_KEY, SYSTEM_PROPERTIES, TIMESTAMP
from rekey.plan.estimate import CUTOVER, RECONCILE
from rekey.plan.result import SAMPLED, Disk, Estimate, MappingResult, Problem, ReferredRows, TableState
from rekey.present.text import counted, duration, size
from rekey.project.config import LEAST_MAX_AGE_S, Gates, Planning, RowCheck

# The entries `severity`, `message` and `cure` of all problems, by code.
TEXTS = catalogue(Path(__file__).with_name("problems.toml"))
FEW_ROWS_PER_BATCH = 10.0
# In tables of fewer rows than this, batches of few rows give no warning.
WORTH_BATCHING_ROWS = 1_000
# From this on the plan warns of the time for which writers stop.
LONG_STOP_S = 3600.0
NAMED_ROWS = 20


@dataclass(frozen=True, slots=True)
class Started:
    """A migration that has begun, with what it began with, by the control row or the state file."""

    phase: str
    digest: str
    secret_fingerprints: Mapping[str, str]


def declaration_problems(
    declared: Declared,
    started: Started | None,
    missing_secrets: Sequence[SecretMissing],
    fingerprints: Mapping[str, str],
    no_wrapping_key: str = "",
    taken: str = "",
    *,
    key_ranges: bool = False,
) -> Iterator[Problem]:
    """Yield the problems of the declaration, its secrets and its history, without reading tables.

    Args:
        declared: the migration.
        started: phase, declaration and secrets when it has begun; else None.
        missing_secrets: the errors about secrets that were not found.
        fingerprints: fingerprints of the secrets that were found, by name.
        no_wrapping_key: why the wrapping key of a sealed mapping cannot be used; "" when it can, or none is
            needed.
        taken: that another project's migration has the same id in the restricted store; "" if not.
        key_ranges: applications use shared access signatures with a key range.
    """
    if taken:
        yield _problem("name-taken", message=taken, file=declared.path.name)
    migration, source = declared.migration, declared.migration.source
    if started is not None and started.digest != declared.digest:
        yield _problem("declaration-moved", phase=migration.shown(started.phase), script=declared.script_id)
    if started is None and changes_nothing(migration):
        yield _problem(
            "nothing-changes", source=source, target=migration.target.table, file=declared.path.name
        )
    elif started is None and _needs_no_mapping(migration):
        yield _problem("mapping-not-needed", target=migration.target.table)
    for error in missing_secrets:
        yield _problem("secret-missing", message=error.what, cure=error.hint)
    if migration.capture == "dual-write":
        yield from _dual_write_problems(declared)
    if migration.key_space is not None and EVERYTHING in migration.key_space.ranges:
        yield _problem("part-without-range", source=source)
    if key_ranges:
        yield _problem("key-ranges", source=source, target=migration.target.table)
    yield from _mapping_problems(migration)
    for name, known in sorted(started.secret_fingerprints.items()) if started is not None else ():
        if fingerprints.get(name, known) != known:
            yield _problem("secret-moved", name=name, script=declared.script_id)
    if no_wrapping_key:
        yield _problem("wrapping-key-missing", message=no_wrapping_key)


def _needs_no_mapping(migration: Migration) -> bool:
    """Tell whether a stored mapping holds nothing that the target's keys do not say."""
    try:
        return migration.mapping != "none" and replace(migration, mapping="none").inverse is not None
    except InvalidDeclaration:
        return False


def _mapping_problems(migration: Migration) -> Iterator[Problem]:
    for target, indexes in migration.rules:
        for index in indexes:
            if index.table == target.table and index.partition_key != target.partition_key:
                yield _problem("rows-apart", where=index.where)
    for kind in migration.kinds if migration.reverse else ():
        read = kind.when.inputs() - SYSTEM_PROPERTIES
        if lost := sorted(name for name in read if not kind.target.property_mapping.gives_back(name)):
            yield _problem("kind-not-kept", kind=kind.name, lost=", ".join(lost), source=migration.source)
    if not migration.reverse:
        yield _problem("no-way-back")


def _dual_write_problems(declared: Declared) -> Iterator[Problem]:
    migration = declared.migration
    if migration.indexes and not migration.reverse:
        yield _problem("indexes-cannot-follow", tables=", ".join(index.table for index in migration.indexes))
    yield _problem("clients-first", source=migration.source, script=declared.script_id)
    if is_joint(migration.target.table):
        yield _problem("tables-apart", source=migration.source)
    if migration.where is not None and ROW_KEY in migration.where.inputs():
        yield _problem("part-of-partition", source=migration.source)
    copied = any(table.property_mapping.from_timestamp for _, table in migration.declared_tables)
    if TIMESTAMP in migration.key_inputs or copied:
        yield _problem("timestamp-copies")


def changes_nothing(migration: Migration) -> bool:
    """Tell whether the only target would be a copy of the source in its account (plus old keys)."""
    targets = [target for target, _ in migration.rules]
    return (
        is_in_target_account(migration.target.table) == is_in_target_account(migration.source)
        and not is_joint(migration.target.table)
        and not migration.indexes
        and all(
            (target.partition_key, target.row_key) == (Prop(PARTITION_KEY), Prop(ROW_KEY))
            and all(isinstance(prop, Copy) for prop in target.properties)
            for target in targets
        )
    )


def table_problems(
    declared: Declared,
    source_exists: bool,
    made_by: str | None,
    targets: Sequence[TableState],
    similar: str = "",
) -> Iterator[Problem]:
    """Yield the problems of tables that are missing or already hold rows.

    Args:
        declared: the migration.
        source_exists: whether the source table exists.
        made_by: the script planned before this one that makes the source table, if any.
        targets: the target tables; `holds_rows`: with rows that are not this migration's.
        similar: of a missing source, which tables there are (`similar_tables`).
    """
    source, file = declared.migration.source, declared.path.name
    if not source_exists and made_by is not None:
        yield _problem("source-not-yet", source=source, maker=made_by)
    elif not source_exists:
        yield _problem("source-missing", source=source, file=file, similar=similar)
    for target in targets:
        if target.holds_rows:
            yield _problem("target-holds-rows", table=target.table, file=file)


def row_problems(
    inventory: Inventory, mapping: MappingResult, ids_hold: bool, absent: Mapping[str, tuple[str, str]]
) -> Iterator[Problem]:
    """Yield the problems that mapping the rows has shown.

    Args:
        inventory: the source.
        mapping: the result of mapping its rows.
        ids_hold: whether the ids of rows stay the same.
        absent: properties that the declaration names and no sampled row has: where, and what to do.
    """
    refused, collisions, sampled = mapping.refused, mapping.collisions, mapping.sampled_rows
    read = inventory.rows.at_least
    looked_at = "" if inventory.exact else f" of {read:,} looked at"
    for refused_rows in refused:
        figures = {
            "field": refused_rows.field,
            "problem": refused_rows.problem,
            "code": refused_rows.code,
            "cure": refused_rows.cure,
        }
        about = f"{counted(refused_rows.rows, 'row')}{looked_at}"
        yield _problem("row-refused", refused_rows.rows, refused_rows.row_ids, about=about, **figures)
    if (left := mapping.not_migrated) is not None:
        names = {"about": f"{counted(left.rows_read, 'row')}{looked_at}", "reason": left.reason}
        yield _problem("rows-not-migrated", left.rows_read, left.row_ids, table=inventory.table, **names)
    reported = {rows.problem.rpartition(" ")[2] for rows in refused if rows.problem.startswith("no row has ")}
    for name, (where, cure) in absent.items():
        if name not in reported:
            of = counted(sampled, "row") + ("" if sampled == read else " looked at")
            yield _problem("property-not-found", where=where, name=name, of=of, cure=cure)
    if collisions is not None and collisions.keys:
        first = [row_id for group in collisions.first for row_id in group.row_ids]
        which = "source" if collisions.exact else "sampled"
        figures = {"which": which, "keys": counted(collisions.keys, "target key")}
        yield _problem("collision", collisions.rows, first[:NAMED_ROWS], **figures)
    if read == 0:
        yield _problem("source-empty", table=inventory.table)
    if not inventory.exact:
        yield _problem("sampled", read=read)
    if not ids_hold and (refused or (collisions is not None and collisions.keys)):
        yield _problem("ids-not-kept")
    for fill in mapping.fills:
        if fill.table_rows < WORTH_BATCHING_ROWS or fill.rows_per_batch >= FEW_ROWS_PER_BATCH:
            continue
        code = "batches-of-one" if fill.rows_per_batch < 1.05 else "thin-batches"
        yield _problem(code, fill.rows, fill=fill, least=-(-fill.table_rows // 100))


def expired_problems(migration: Migration, expired: Mapping[str, str]) -> Iterator[Problem]:
    """Yield a problem for each migration in whose mapping old keys were erased that would be looked up.
    `expired`: on which day, by its id."""
    for via, day in expired.items():
        table = migration.looked_up_in[via].migration.source
        yield _problem("referred-expired", via=via, day=day, table=table)


def reference_problems(source: str, references: Iterable[ReferredRows]) -> Iterator[Problem]:
    """Yield the problems of references to rows that are not there, or that were not looked for."""
    for referred in references:
        texts = {
            "source": source,
            **{name: getattr(referred, name) for name in ("name", "to", "via", "table")},
        }
        if referred.rows_missing:
            code = "dangling-reference-removed" if referred.removes else "dangling-reference"
            code = "dangling-reference-refused" if referred.refuses else code
            texts["of"] = counted(referred.rows_looked_up, "row")
            yield _problem(code, referred.rows_missing, referred.row_ids, **texts)
        if left := referred.rows - referred.rows_looked_up:
            reason = referred.not_looked_up or f"{counted(referred.rows_looked_up, 'row')} were, drawn evenly"
            code = (
                "references-not-proved"
                if referred.refuses and referred.not_looked_up
                else "references-not-looked-up"
            )
            yield _problem(code, **texts, left=counted(left, "row"), reason=reason)


def time_problems(estimated: Estimate, gates: Gates, rows: int) -> Iterator[Problem]:
    """Yield the problems that a comparison of everything takes longer than it counts, or counts for longer
    than usual because of what it takes, and that writers stop for long. `rows`: of the source."""
    stop_s = estimated.takes_s(CUTOVER)
    if stop_s > LONG_STOP_S:
        most = {"ten": f"{rows * 600 / stop_s:,.0f}", "hour": f"{rows * 3600 / stop_s:,.0f}"}
        yield _problem("long-write-downtime", stop=duration(stop_s), **most)
    takes_s = estimated.takes_s(RECONCILE)
    max_age_s = gates.max_age_s(takes_s)
    values = {"takes": duration(takes_s), "age": duration(max_age_s)}
    if takes_s > max_age_s:
        asked = f"{math.ceil(2 * takes_s / 3600)}h"
        yield _problem("comparison-outlasts-its-age", **values, asked=asked)
    elif gates.verification_max_age_s is None and max_age_s > LEAST_MAX_AGE_S:
        yield _problem("comparison-counts-longer", **values)


def disk_problems(disk: Disk, planning: Planning, free: int | None) -> Iterator[Problem]:
    """Yield the problems that `apply` tries a sample only, and that temporary files do not fit. `free`: bytes
    free where they go; None: unknown."""
    values = {"needed": size(disk.row_check_bytes), "most": size(planning.row_check_disk)}
    if disk.row_check == SAMPLED:
        why = '[plan] row_check is "sample"' if planning.row_check is RowCheck.SAMPLE else "that does not fit"
        yield _problem("row-check-samples", why=why, **values)
    if free is not None and disk.needed_bytes > free:
        yield _problem("disk-too-small", needed=f"about {size(disk.needed_bytes)}", free=size(free))


def no_room(free: int | None) -> MachineFailed:
    """Return the error for a row check that began, and whose temporary files will not fit. `free`: bytes."""
    problem = _problem("disk-too-small", needed="more than there is", free=size(free or 0))
    return MachineFailed(problem.message, kept="all tables; nothing was written", hint=problem.cure)


def ordered(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems, errors first, otherwise in the order they were found."""
    return tuple(sorted(problems, key=lambda problem: problem.severity.place))


def _problem(code: str, rows: int = 0, row_ids: Sequence[str] = (), /, **values: object) -> Problem:
    """Return a problem; `values` fill the names in braces in its texts, or replace `message` or `cure`."""
    texts = TEXTS[code]
    message, cure = filled(texts, {"rows": rows, **values}, "message", "cure")
    return Problem(code, Severity(texts["severity"]), message, cure, rows, tuple(row_ids))
