"""The migration to plan and the options of planning: values that the caller fills."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rekey.core.safe_ids import SafeIds, new_key
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Declared
from rekey.errors import SecretMissing
from rekey.inspect.inventory import SampleSize
from rekey.mapping.store import keys_gone_since
from rekey.model import Row
from rekey.phases import ControlPhase
from rekey.plan.problems import Started
from rekey.plan.references import Lookup, lookups_of
from rekey.project.config import Config, Gates, Limits, Planning
from rekey.project.prices import Prices
from rekey.protocol.opening import OpenMigration, is_ours, name_taken
from rekey.state.models import MigrationRecord

# In later phases nothing is changed by refusing.
_MAY_REFUSE = (ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)

# Tells whether this migration wrote a row of its target table with that number (0: main).
OwnsRow = Callable[[int, Row], Awaitable[bool]]


@dataclass(frozen=True)
class Subject:
    """One migration to plan, with its secrets, safe ids and state. A missing secret or unusable wrapping key
    is a value here, to be reported in the plan."""

    declared: Declared
    # None when a secret is missing: then no row can be mapped.
    mapper: Mapper | None
    # The migration's own if `ids_hold`, else ephemeral ones.
    ids: SafeIds
    ids_hold: bool = False
    # Of the secrets that were found, by name.
    secret_fingerprints: Mapping[str, str] = field(default_factory=dict)
    missing_secrets: tuple[SecretMissing, ...] = ()
    # Why the wrapping key of a sealed mapping cannot be used.
    no_wrapping_key: str = ""
    # None: it has not begun.
    started: Started | None = None
    # That another project's migration has the same id in the restricted store.
    taken: str = ""
    # Asked about the first row of a target that holds rows; None: every such row is foreign, unless it has
    # begun.
    owns_row: OwnsRow | None = None
    # Where to look for rows that references name.
    lookups: tuple[Lookup, ...] = ()
    # Migrations in whose mappings old keys were erased that it would look up, and on which day.
    expired: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def offline(cls, declared: Declared, record: MigrationRecord | None) -> Subject:
        """Return what is known of a migration without secrets and accounts; `record` as for `subject_of`."""
        return cls(declared, None, SafeIds(new_key()), started=None if record is None else _recorded(record))


def _recorded(record: MigrationRecord) -> Started:
    return Started("source", record.digest, record.secret_fingerprints)


@dataclass(frozen=True)
class PlanOptions:
    """How to plan."""

    # Read every row instead of a sample.
    exact: bool = False
    # Keep keys of examples and collisions in the result, for the operator's eyes only.
    show_keys: bool = False
    sample: SampleSize = field(default_factory=SampleSize)
    limits: Limits = field(default_factory=Limits)
    gates: Gates = field(default_factory=Gates)
    # `apply` will map every row before the first write.
    tries_rows: bool = True
    prices: Prices = field(default_factory=Prices)
    # Applications use shared access signatures with a key range.
    key_ranges: bool = False
    planning: Planning = field(default_factory=Planning)
    # Most bytes of temporary files of this plan; above them it samples. None: no bound.
    most_disk: int | None = None
    # Bytes free where temporary files go; None: unknown.
    free_disk: int | None = None
    # The restricted store is in the account of `[tables]`: mapping rows count for its rate.
    mapping_with_tables: bool = False

    @classmethod
    def of(cls, config: Config, **how: Any) -> PlanOptions:
        """Return the options that a configuration gives; `how`: the others, or other ones."""
        options = {
            "gates": config.gates,
            "prices": config.prices,
            "key_ranges": config.proxy.access.key_ranges,
            "planning": config.plan,
            "mapping_with_tables": config.restricted.is_https and config.restricted.is_same_as(config.tables),
        }
        return cls(**{"limits": config.rates, **options, **how})


async def subject_of(migration: OpenMigration, record: MigrationRecord | None = None) -> Subject:
    """Return the subject of a plan. `record`: its record in the state file; the control row takes precedence
    over it. Raises CredentialRefused, EndpointDown, Unavailable."""
    prepared = migration.prepared
    control = await migration.control.read()
    started, taken = None, ""
    if control is not None and not is_ours(prepared, control, record.run_id if record else None):
        taken, control = name_taken(prepared.declared.script_id, control), None
    if control is not None:
        started = Started(str(control.phase), control.digest, control.fingerprints)
    elif record is not None:
        started = _recorded(record)
    store, no_wrapping = None, ""
    try:
        _ = prepared.wrapping  # evaluated here, so that a missing key is reported before the migration begins
        # The mapping of an edited script may have another form; the plan only reports the edit.
        edited = control is not None and control.digest != prepared.declared.digest
        store = None if control is None or edited else await migration.mapping(control)
    except SecretMissing as error:
        no_wrapping = error.what
    return Subject(
        declared=prepared.declared,
        mapper=None if prepared.missing else prepared.mapper,
        ids=SafeIds(new_key()) if store is None else store.rows.ids,
        ids_hold=store is not None,
        secret_fingerprints=prepared.fingerprints,
        missing_secrets=prepared.missing,
        no_wrapping_key=no_wrapping,
        started=started,
        taken=taken,
        owns_row=None if store is None else store.owns,
        lookups=await lookups_of(migration),
        expired=await _expired(migration) if control is None or control.phase in _MAY_REFUSE else {},
    )


async def _expired(migration: OpenMigration) -> dict[str, str]:
    looked_up_in = migration.prepared.declared.migration.looked_up_in
    days = {via: await keys_gone_since(migration.accounts.restricted, via) for via in sorted(looked_up_in)}
    return {via: day for via, day in days.items() if day}
