"""Online, verified, reversible key changes for Azure Table Storage.

A migration script needs these names only; see `migrations/` for examples that run. `DualWriteTableClient` is
for applications, and imports the Azure SDK when it is asked for; `rekey.aio` has the asynchronous one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rekey import keys, props
from rekey.declaration import Index, Migration, Target

if TYPE_CHECKING:
    from rekey.dualwrite.sdk.client_sync import DualWriteTableClient

__all__ = ["DualWriteTableClient", "Index", "Migration", "Target", "keys", "props"]


def __getattr__(name: str) -> Any:
    if name == "DualWriteTableClient":
        from rekey.dualwrite.sdk.client_sync import DualWriteTableClient

        return DualWriteTableClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
