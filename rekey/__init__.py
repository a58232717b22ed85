"""Online, verified, reversible key changes for Azure Table Storage.

A migration script needs `Migration`, `Target`, `Index`, `keys` and `props`; see `migrations/` for examples
that run. The other names are for applications, and import the Azure SDK when they are asked for; the
asynchronous client is in `rekey.aio`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rekey.declaration import keys, props, query
from rekey.declaration.migration import Index, Migration, Target

if TYPE_CHECKING:
    from rekey.client.reading import LeaseSettings
    from rekey.client.sdk.client_sync import DualWriteTableClient
    from rekey.client.sdk.errors import DualWriteRefused

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
    "DualWriteRefused": "rekey.client.sdk.errors",
    "DualWriteTableClient": "rekey.client.sdk.client_sync",
    "LeaseSettings": "rekey.client.reading",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
