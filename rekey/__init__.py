"""Online, verified, reversible key changes for Azure Table Storage.

A migration script needs `Migration`, `Target`, `Index`, `keys` and `props`; see `migrations/` for examples
that run. The other names are for applications, and import the Azure SDK when they are asked for; the
asynchronous client is in `rekey.aio`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rekey import keys, props, query
from rekey.declaration import Index, Migration, Target

if TYPE_CHECKING:
    from rekey.dualwrite.reading import LeaseSettings
    from rekey.dualwrite.sdk.client_sync import DualWriteTableClient
    from rekey.dualwrite.sdk.errors import DualWriteRefused

__all__ = [
    "DualWriteRefused",
    "DualWriteTableClient",
    "Index",
    "LeaseSettings",
    "Migration",
    "Target",
    "keys",
    "props",
    "query",
]

_LATER = {
    "DualWriteRefused": "rekey.dualwrite.sdk.errors",
    "DualWriteTableClient": "rekey.dualwrite.sdk.client_sync",
    "LeaseSettings": "rekey.dualwrite.reading",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
