"""What a client is made of: checked when it is made, so that a mistake shows then and not at the first write.

Rules kept here:

* A client names one table of one declaration: the source (old view), the main target (new view) or an index
  table (new view, for reading). Any other table, or a view that is not the table's, is an error.
* The declaration is loaded and its secrets are tried before anything is connected.
* No credential and no secret is in a repr.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from azure.core.credentials import AzureNamedKeyCredential

from rekey.client.reading import ClientFacts, LeaseSettings
from rekey.declaration.migration import Declared, Migration
from rekey.declaration.scripts import load_script
from rekey.errors import ConfigurationError, SecretMissing
from rekey.mapping.wrapping import LocalWrappingKey, WrappingKey
from rekey.migration.opening import Prepared
from rekey.project.config import account_key, load_config
from rekey.protocol.rules import View
from rekey.tables.credentials import Credential

DEFAULT_SHADOW_READS = 0.01
DEFAULT_NAME = "application"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An account and what opens it."""

    address: str
    credential: Credential = field(repr=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the core of a client needs to know.

    Attributes:
        prepared: the migration, with its secrets and the wrapping key of its mapping.
        view: how the client addresses rows.
        table: the client's table, in the declaration's spelling.
        is_index: whether that is an index table.
        facts: what the lease compares with the control row.
        settings: the lease's times.
        tables, restricted: the two accounts.
        shadow_reads: share of reads that are also done on the replica, 0 to 1.
        shadow_seed: of the draw which reads these are; None for a different one each time.
    """

    prepared: Prepared = field(repr=False)
    view: View
    table: str
    is_index: bool
    facts: ClientFacts
    settings: LeaseSettings
    tables: Endpoint
    restricted: Endpoint
    shadow_reads: float = DEFAULT_SHADOW_READS
    shadow_seed: int | None = None

    @property
    def declared(self) -> Declared:
        """The migration."""
        return self.prepared.declared


def declared_of(migration: Declared | Path | str) -> Declared:
    """Return a migration, loaded if a path is given. Raises DeclarationError."""
    return migration if isinstance(migration, Declared) else load_script(Path(migration))


def view_of(migration: Migration, table: str, view: View | str | None) -> tuple[View, str, bool]:
    """Return the view of a client, its table as declared, and whether that is an index table.

    Raises:
        ConfigurationError: the migration has no such table, or the table is not of the view asked for.
    """
    spelled = {name.lower(): name for name in (migration.source, *migration.tables)}
    name = spelled.get(table.lower())
    if name is None:
        raise ConfigurationError(
            f"{table} is no table of this migration",
            hint=f"name {migration.source} for the old view or {migration.target.table} for the new one, or"
            " use the SDK's own TableClient for other tables",
        )
    belongs = View.OLD if name == migration.source else View.NEW
    if view is not None and View(view) is not belongs:
        raise ConfigurationError(
            f"{name} belongs to the {belongs} view, and view={str(view)!r} was asked for",
            hint=f"the old view addresses {migration.source}, the new one {migration.target.table};"
            " leave `view` away and the table's name decides",
        )
    return belongs, name, name not in (migration.source, migration.target.table)


def make_plan(
    *,
    declared: Declared,
    table: str,
    view: View | str | None,
    secrets: Mapping[str, bytes],
    tables: Endpoint,
    restricted: Endpoint,
    wrapping_key: bytes | WrappingKey | None = None,
    name: str = DEFAULT_NAME,
    settings: LeaseSettings | None = None,
    shadow_reads: float = DEFAULT_SHADOW_READS,
    shadow_seed: int | None = None,
) -> Plan:
    """Check what a client is made with.

    Raises:
        ConfigurationError: the table, the view or the share of shadow reads cannot be.
        SecretMissing: a secret that the declaration names, or the wrapping key of a sealed mapping, is absent
            or too short.
    """
    if not 0 <= shadow_reads <= 1:
        raise ConfigurationError(
            f"shadow_reads is {shadow_reads}, and it is a share of all reads",
            hint="give a number from 0 to 1",
        )
    migration = declared.migration
    found_view, spelled, is_index = view_of(migration, table, view)
    wrapping = _wrapping(migration, wrapping_key)
    prepared = Prepared(declared, lambda name: secrets.get(name, b""), lambda: wrapping)
    _ = prepared.mapper  # a secret that is absent or too short is told now
    facts = ClientFacts(
        script_id=declared.script_id,
        digest=declared.digest,
        fingerprints=prepared.fingerprints,
        view=str(found_view),
        name=name,
    )
    return Plan(
        prepared=prepared,
        view=found_view,
        table=spelled,
        is_index=is_index,
        facts=facts,
        settings=settings or LeaseSettings(),
        tables=tables,
        restricted=restricted,
        shadow_reads=shadow_reads,
        shadow_seed=shadow_seed,
    )


def _wrapping(migration: Migration, given: bytes | WrappingKey | None) -> WrappingKey | None:
    if not migration.is_sealed:
        return None
    if given is None:
        raise SecretMissing(
            "the mapping is sealed, and the client was given no wrapping key",
            hint="give wrapping_key=, what [sealing] in the runner's rekey.toml names; `from_config` reads it"
            " from there",
        )
    return LocalWrappingKey(given) if isinstance(given, bytes) else given


def configured(
    path: Path | str,
    script_id: str,
    table: str | None,
    view: View | str | None,
    identity: Callable[[], Any],
) -> tuple[dict[str, Any], list[Any]]:
    """Read the configuration, the script and the secrets of a client.

    Args:
        path: of `rekey.toml`.
        script_id: the migration, a file of its `[migrations]`.
        table: the client's table; None for the source or the main target, as the view says.
        view: `old` or `new`; None when a table is given.
        identity: makes the credential for an account without a key.

    Returns:
        The arguments of a client, and the credentials that were made for it.

    Raises:
        ConfigurationError, DeclarationError, SecretMissing: what is wrong with which of them.
    """
    if table is None and view is None:
        raise ConfigurationError("neither a view nor a table is given", hint='say view="old" or view="new"')
    config = load_config(Path(path))
    declared = load_script(config.migrations / f"{script_id}.py")
    migration = declared.migration
    if table is None:
        table = migration.source if View(str(view)) is View.OLD else migration.target.table
    prepared = Prepared.of(config, declared)
    keys = {account: account_key(account) for account in (config.tables, config.restricted)}
    made = {
        account: identity() if key is None else AzureNamedKeyCredential(account.name, key)
        for account, key in keys.items()
    }
    arguments = {
        "endpoint": config.tables.endpoint,
        "table_name": table,
        "credential": made[config.tables],
        "migration": declared,
        "restricted_endpoint": config.restricted.endpoint,
        "restricted_credential": made[config.restricted],
        "secrets": prepared.secrets,
        "wrapping_key": prepared.wrapping,
        "view": view,
    }
    return arguments, [made[account] for account, key in keys.items() if key is None]


def policies_of(given: Any) -> list[Any]:
    """Return the policies a caller gave as `per_call_policies`: none, one or several."""
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]
