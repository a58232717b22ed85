"""`rekey.aio.DualWriteTableClient`: the SDK's asynchronous `TableClient` over the core. The core belongs to
the event loop that uses the client first."""

from __future__ import annotations

from typing import Any, Self

from azure.core.pipeline.policies import CustomHookPolicy
from azure.data.tables.aio import TableClient

from rekey.client.sdk.client import DualWriting
from rekey.client.sdk.errors import DualWriteRefused, raising_refusals
from rekey.client.sdk.options import AsyncCredential
from rekey.client.sdk.policy import AsyncPolicy
from rekey.errors import RekeyError


@raising_refusals
class DualWriteTableClient(DualWriting[AsyncCredential], TableClient):
    """A `TableClient` whose writes follow a migration.

    >>> client = DualWriteTableClient(
    ...     "https://ACCOUNT.table.core.windows.net", "Users", credential=credential,
    ...     migration="migrations/0001_users_opaque_ids.py", secrets={"users": secret},
    ...     restricted_endpoint="https://RESTRICTED.table.core.windows.net",
    ...     restricted_credential=credential, name="billing-api",
    ... )
    """

    async def __aenter__(self) -> Self:
        """Register, and read the control row. Raises DualWriteRefused; the client is closed then."""
        await super().__aenter__()
        try:
            await self._core.open()
        except RekeyError as error:
            await self.close()
            raise DualWriteRefused(error) from None
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_args: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Settle what is in flight, and close. Idempotent."""
        await self._core.close()
        while self._own:
            await self._own.pop().close()
        await super().close()

    def _policy(self, hooks: CustomHookPolicy[Any, Any]) -> AsyncPolicy:
        return AsyncPolicy(self._core, hooks)

    @staticmethod
    def _identity() -> Any:
        from azure.identity.aio import DefaultAzureCredential  # only clients that need an identity import it

        return DefaultAzureCredential()
