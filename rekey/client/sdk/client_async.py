"""`rekey.aio.DualWriteTableClient`: the SDK's asynchronous `TableClient` over the core.

Rules kept here:

* It is the SDK's client: whatever is not said here (methods, arguments, types, exceptions) is the SDK's.
* The core lives on the loop that uses the client first. Nothing is connected before that.
* Closing the client closes what it opened; credentials that were given stay their owner's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from azure.core.pipeline.policies import CustomHookPolicy
from azure.data.tables.aio import TableClient

from rekey.client.reading import LeaseSettings
from rekey.client.sdk.connect import connect
from rekey.client.sdk.core import ClientCore
from rekey.client.sdk.credentials import AnyCredential, AsyncCredential, account_of
from rekey.client.sdk.plan import (
    DEFAULT_NAME,
    DEFAULT_SHADOW_READS,
    Endpoint,
    Plan,
    configured,
    declared_of,
    make_plan,
    policies_of,
)
from rekey.client.sdk.policy import AsyncPolicy
from rekey.client.sdk.refusals import raising_refusals
from rekey.declaration.migration import Declared
from rekey.mapping.wrapping import WrappingKey
from rekey.protocol.rules import View


@raising_refusals
class DualWriteTableClient(TableClient):
    """A `TableClient` whose writes follow a migration.

    >>> client = DualWriteTableClient(
    ...     "https://ACCOUNT.table.core.windows.net", "Users", credential=credential,
    ...     migration="migrations/0001_users_opaque_ids.py", secrets={"users": secret},
    ...     restricted_endpoint="https://RESTRICTED.table.core.windows.net",
    ...     restricted_credential=credential, name="billing-api",
    ... )
    """

    def __init__(
        self,
        endpoint: str,
        table_name: str,
        *,
        migration: Declared | Path | str,
        restricted_endpoint: str,
        restricted_credential: AnyCredential,
        secrets: Mapping[str, bytes],
        wrapping_key: bytes | WrappingKey | None = None,
        credential: AsyncCredential | None = None,
        view: View | str | None = None,
        name: str = DEFAULT_NAME,
        shadow_reads: float = DEFAULT_SHADOW_READS,
        shadow_seed: int | None = None,
        settings: LeaseSettings | None = None,
        **kwargs: Any,
    ) -> None:
        """Check everything that can be checked without a connection.

        Args:
            endpoint, table_name, credential, kwargs: as for the SDK's client.
            migration: the migration script's path, or the script as loaded.
            restricted_endpoint, restricted_credential: the account of mapping, journal and control row.
            secrets: the secrets that the declaration names.
            wrapping_key: what `[sealing]` of the runner names, if the mapping is sealed: a secret's bytes, or
                a `rekey.mapping.vault.KeyVaultWrappingKey`.
            view: `old` or `new`; by default the table's.
            name: what the client is called in `rekey status`.
            shadow_reads: share of reads that are also done on the other side and compared, 0 to 1.
            shadow_seed: of the draw which ones.
            settings: times of the lease.

        Raises:
            ConfigurationError, DeclarationError, SecretMissing: what is wrong with which of them.
        """
        plan = make_plan(
            declared=declared_of(migration),
            table=table_name,
            view=view,
            secrets=secrets,
            tables=Endpoint(*account_of(endpoint, credential, "tables")),
            restricted=Endpoint(*account_of(restricted_endpoint, restricted_credential, "restricted")),
            wrapping_key=wrapping_key,
            name=name,
            settings=settings,
            shadow_reads=shadow_reads,
            shadow_seed=shadow_seed,
        )
        self._core = self._make_core(plan)
        self._own: list[Any] = []
        policy = AsyncPolicy(self._core, CustomHookPolicy(**kwargs))
        first = [*policies_of(kwargs.pop("per_call_policies", None)), policy]
        super().__init__(endpoint, table_name, credential=credential, per_call_policies=first, **kwargs)

    @classmethod
    def from_config(
        cls,
        path: Path | str,
        script_id: str,
        *,
        table: str | None = None,
        view: View | str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Make a client from `rekey.toml`: endpoints, credentials, secrets and the script as rekey uses them.

        Args:
            path: of `rekey.toml`.
            script_id: the migration.
            table: the client's table; by default the source or the main target, as `view` says.
            view: `old` or `new`.
            kwargs: `name`, `shadow_reads`, `settings` and whatever the SDK's client takes.

        Raises:
            ConfigurationError, DeclarationError, SecretMissing: what is wrong with which of them.
        """
        arguments, own = configured(path, script_id, table, view, _identity)
        client = cls(**arguments, **kwargs)
        client._own += own
        return client

    def _make_core(self, plan: Plan) -> ClientCore:
        return ClientCore(plan, connect)

    async def __aenter__(self) -> Self:
        """Register, and look at the control row."""
        await super().__aenter__()
        await self._core.open()
        return self

    async def __aexit__(self, *args: Any) -> None:
        """Settle what is under way, and close."""
        await self._close_core()
        await super().__aexit__(*args)

    async def close(self) -> None:
        """Settle what is under way, and close. Idempotent."""
        await self._close_core()
        await super().close()

    async def _close_core(self) -> None:
        await self._core.close()
        while self._own:
            await self._own.pop().close()


def _identity() -> Any:
    # Only who needs an identity pays for importing it.
    from azure.identity.aio import DefaultAzureCredential

    return DefaultAzureCredential()
