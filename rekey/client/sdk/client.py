"""The common part of the synchronous and the asynchronous client: how they are made, and what they own. All
that is not defined here is the SDK's. Nothing connects, and no thread starts, before the first use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeAlias, TypeVar

from azure.core.credentials import AzureNamedKeyCredential
from azure.core.pipeline.policies import CustomHookPolicy

from rekey.client.parts import Acknowledge
from rekey.client.reading import LeaseSettings
from rekey.client.sdk.options import (
    DEFAULT_NAME,
    DEFAULT_SHADOW_READS,
    AnyCredential,
    ClientOptions,
    account_of,
    check_connection_string,
    check_endpoint,
    connect,
    prepared_with,
    sdk_options,
    view_named,
)
from rekey.client.sdk.router import carrier_of
from rekey.core.joint import names_in
from rekey.core.limits import is_in_target_account, own_name
from rekey.declaration.migration import Declared
from rekey.declaration.scripts import load_script, read_scripts
from rekey.errors import ConfigurationError
from rekey.mapping.sealing import WrappingKey
from rekey.project.config import Account, account_key, load_config
from rekey.protocol.opening import Prepared
from rekey.protocol.rules import View
from rekey.tables.base import Accounts

CredentialT = TypeVar("CredentialT", bound=AnyCredential)
# A migration script: as loaded, or its path.
Script: TypeAlias = Declared | Path | str


def _needs_a_migration(name: str) -> ConfigurationError:
    hint = 'write from_config("rekey.toml", "0001_users", view="new"), or give the constructor a migration'
    return ConfigurationError(f"{name} names an account, and no migration", hint=hint)


class DualWriting(ABC, Generic[CredentialT]):
    """Makes a `TableClient`, the next class in the method resolution order, write as a migration says."""

    def __init__(
        self,
        endpoint: str,
        table_name: str,
        *,
        migration: Script | Sequence[Script],
        restricted_endpoint: str,
        restricted_credential: AnyCredential,
        targets_endpoint: str | None = None,
        targets_credential: CredentialT | None = None,
        secrets: Mapping[str, bytes],
        wrapping_key: bytes | WrappingKey | None = None,
        credential: CredentialT | None = None,
        view: View | str | None = None,
        name: str = DEFAULT_NAME,
        shadow_reads: float = DEFAULT_SHADOW_READS,
        shadow_seed: int | None = None,
        acknowledge: Acknowledge | str = Acknowledge.BOTH,
        settings: LeaseSettings | None = None,
        **kwargs: Any,
    ) -> None:
        """Check everything that can be checked without a connection.

        Args:
            endpoint, table_name, credential, kwargs: as for the SDK's client; `proxies` and
                `connection_verify` apply to all accounts. A new table in the target account is named as in
                the script, `Users@targets`, or without the suffix if the old table has another name.
            migration: the migration script's path, or the script as loaded; for the old view of a table of
                which several scripts move parts, and for the new view of a table that several fill, all of
                these.
            restricted_endpoint, restricted_credential: the account of mapping, journal and control row.
            targets_endpoint, targets_credential: the target account, if the script names tables there.
            secrets: the secrets that the declaration names.
            wrapping_key: what `[sealing]` of the runner names, if the mapping is sealed: a secret's bytes, or
                a `rekey.mapping.vault.KeyVaultWrappingKey`.
            view: `old` or `new`; by default the table's.
            name: what the client is called in `rekey status`.
            shadow_reads: share of reads that are repeated on the other side and compared, 0 to 1.
            shadow_seed: the seed of the sampling.
            acknowledge: `both`: a write is answered when its replicas are current; `authority`: when intent
                and authority are durable, and the replicas follow at once.
            settings: times of the lease.

        Raises:
            ConfigurationError, DeclarationError, SecretMissing: an argument, the script or a secret is wrong,
                or an argument of the SDK's client cannot apply to writes (`transport`, `per_retry_policies`,
                `connection_cert`, another `location_mode` or `api_version`).
            ValueError, TypeError: the tables account's endpoint or credential is wrong, as the SDK words it.
        """
        targets = (
            None if targets_endpoint is None else account_of(targets_endpoint, targets_credential, "targets")
        )
        scripts = [migration] if isinstance(migration, Declared | Path | str) else list(migration)
        if not scripts:
            raise ConfigurationError("the client was given no migration", hint="name a script, or several")
        followed = [
            ClientOptions(
                prepared_with(script, secrets, wrapping_key, targets),
                table_name,
                view,
                name=name,
                settings=settings,
                shadow_reads=shadow_reads,
                shadow_seed=shadow_seed,
                acknowledge=acknowledge,
                tables_endpoint=endpoint,
            )
            for script in scripts
        ]
        tables_endpoint = endpoint
        tables = partial(account_of, endpoint, credential, "tables")
        restricted = account_of(restricted_endpoint, restricted_credential)
        passed_on = sdk_options(kwargs)

        def connected(options: ClientOptions) -> Accounts:
            # The SDK's constructor has already refused a bad address or credential, in its words.
            return connect(tables(), restricted, options.settings, passed_on, targets)

        self._core = carrier_of(followed, connected)
        self._own: list[Any] = []
        policy = self._policy(CustomHookPolicy(**kwargs))
        first = [*policies_of(kwargs.pop("per_call_policies", None)), policy]
        if targets_endpoint is not None and is_in_target_account(self._core.table):
            endpoint, credential = targets_endpoint, targets_credential
        table_client: Any = super()
        own = own_name(table_name)
        table_client.__init__(endpoint, own, credential=credential, per_call_policies=first, **kwargs)
        check_endpoint(tables_endpoint, "tables")

    @classmethod
    def from_connection_string(cls, conn_str: str, *args: Any, **kwargs: Any) -> Self:
        """Make a client as the SDK does, with the constructor's keywords. Raises ConfigurationError: without
        `migration`, or for an account of Cosmos DB."""
        check_connection_string(conn_str)
        return cls._made_by("from_connection_string", conn_str, *args, **kwargs)

    @classmethod
    def from_table_url(cls, *args: Any, **kwargs: Any) -> Self:
        """Make a client as the SDK does. Raises ConfigurationError if the keyword `migration` is missing."""
        return cls._made_by("from_table_url", *args, **kwargs)

    @classmethod
    def _made_by(cls, name: str, *args: Any, **kwargs: Any) -> Self:
        if "migration" not in kwargs:
            raise _needs_a_migration(name)
        client: Self = getattr(super(), name)(*args, **kwargs)
        return client

    @classmethod
    def from_config(
        cls,
        path: Path | str,
        script_id: str | Sequence[str],
        *,
        table: str | None = None,
        view: View | str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Make a client from `rekey.toml`: endpoints, credentials, secrets and the script as rekey uses them.

        Args:
            path: of `rekey.toml`.
            script_id: the migration; for the new view of a table that several fill, all of these. Of a part
                of a table, the old view also follows the scripts of the other parts that are in the folder of
                migrations.
            table: the client's table; by default the source or the main target, as `view` says.
            view: `old` or `new`.
            kwargs: `name`, `shadow_reads`, `acknowledge`, `settings` and arguments of the SDK's client.

        Raises:
            ConfigurationError, DeclarationError, SecretMissing: an argument, the file, the script or a secret
                is wrong.
        """
        if table is None and view is None:
            raise ConfigurationError(
                "neither a view nor a table is given", hint='say view="old" or view="new"'
            )
        view = None if view is None else view_named(view)
        config = load_config(Path(path))
        ids = [script_id] if isinstance(script_id, str) else list(script_id)
        if not ids:
            raise ConfigurationError("the client was given no migration", hint="name a script, or several")
        scripts = [load_script(config.migrations / f"{each.removesuffix('.py')}.py") for each in ids]
        migration = scripts[0].migration
        if table is None:
            mains = names_in(migration.target.table)
            if view is View.NEW and len(mains) > 1:
                raise ConfigurationError(
                    f"{scripts[0].script_id} fills several tables",
                    hint=f"say which: table={' or '.join(map(repr, mains))}",
                )
            table = migration.source if view is View.OLD else migration.target.table
        if migration.where is not None and table.lower() == migration.source.lower():
            # Their rows are in the same table, and are written by the same application.
            known = {script.script_id for script in scripts}
            scripts += [
                script
                for script in read_scripts(config.migrations)[0]
                if script.is_beside(scripts[0]) and script.script_id not in known
            ]
        prepared = [Prepared.of(config, script) for script in scripts]
        wrapping = [each.wrapping for each in prepared]
        # Closed with the client; credentials that a caller gave stay the caller's.
        own: list[Any] = []

        def credential(account: Account) -> Any:
            key = account_key(account)
            if key is not None:
                return AzureNamedKeyCredential(account.name, key)
            own.append(cls._identity())
            return own[-1]

        client = cls(
            config.tables.endpoint,
            table,
            credential=credential(config.tables),
            migration=scripts,
            restricted_endpoint=config.restricted.endpoint,
            restricted_credential=credential(config.restricted),
            targets_endpoint=None if config.targets is None else config.targets.endpoint,
            targets_credential=None if config.targets is None else credential(config.targets),
            secrets={name: secret for each in prepared for name, secret in each.secrets.items()},
            wrapping_key=next(filter(None, wrapping), None),
            view=view,
            **kwargs,
        )
        client._own += own
        return client

    @staticmethod
    @abstractmethod
    def _identity() -> Any:
        """Return a credential for the identity of the process."""

    @abstractmethod
    def _policy(self, hooks: CustomHookPolicy[Any, Any]) -> Any:
        """Return the policy that comes first in the client's pipeline."""


def policies_of(policies: Any) -> list[Any]:
    """Return the policies a caller gave as `per_call_policies`: none, one or several."""
    if policies is None:
        return []
    return list(policies) if isinstance(policies, list | tuple) else [policies]
