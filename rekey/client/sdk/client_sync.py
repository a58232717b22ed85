"""`rekey.DualWriteTableClient`: the SDK's synchronous `TableClient`, over the asynchronous client's core on a
background thread (`thread.py`), so that no rule is written twice."""

from __future__ import annotations

from typing import Any, Self

from azure.core.pipeline.policies import CustomHookPolicy
from azure.data.tables import TableClient

from rekey.client.sdk.client import DualWriting
from rekey.client.sdk.errors import DualWriteRefused, raising_refusals
from rekey.client.sdk.options import SyncCredential
from rekey.client.sdk.policy import SyncPolicy
from rekey.client.sdk.thread import LoopThread
from rekey.errors import RekeyError


@raising_refusals
class DualWriteTableClient(DualWriting[SyncCredential], TableClient):
    """A `TableClient` whose writes follow a migration.

    >>> client = DualWriteTableClient(
    ...     "https://ACCOUNT.table.core.windows.net", "Users", credential=credential,
    ...     migration="migrations/0001_users_opaque_ids.py", secrets={"users": secret},
    ...     restricted_endpoint="https://RESTRICTED.table.core.windows.net",
    ...     restricted_credential=credential, name="billing-api",
    ... )
    """

    def __enter__(self) -> Self:
        """Register, and read the control row. Raises DualWriteRefused; the client is closed then."""
        super().__enter__()
        try:
            self._thread.run(self._core.open())
        except RekeyError as error:
            self.close()
            raise DualWriteRefused(error) from None
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_args: object) -> None:
        self.close()

    def close(self) -> None:
        """Settle what is in flight, and close. Idempotent."""
        if self._thread.started:
            self._thread.run(self._core.close())
            self._thread.close()
        while self._own:
            self._own.pop().close()
        super().close()

    def _policy(self, hooks: CustomHookPolicy[Any, Any]) -> SyncPolicy:
        self._thread = LoopThread()
        return SyncPolicy(self._core, self._thread, hooks)

    @staticmethod
    def _identity() -> Any:
        from azure.identity import DefaultAzureCredential  # only clients that need an identity import it

        return DefaultAzureCredential()
