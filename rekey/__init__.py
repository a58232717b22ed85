"""Online, verified, reversible key changes for Azure Table Storage.

A migration script needs `Migration`, `Target`, `Index`, `keys` and `props`; `RowKind` and `rows` for several
kinds of rows, `for_each_table` for several tables, `for_each_part` for several parts of one; see
`migrations/` for examples that run. The other names are for applications, and import the Azure SDK; the
asynchronous client is in `rekey.aio`. Names are imported on first use: the command line needs few of them.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # without `typing`: until rekey.cli.signals is loaded, Ctrl-C shows a traceback
if TYPE_CHECKING:
    from typing import Any

    from rekey.client.reading import LeaseSettings
    from rekey.client.sdk.client_sync import DualWriteTableClient
    from rekey.client.sdk.errors import DualWriteRefused
    from rekey.declaration import keys, props, query, rows
    from rekey.declaration.kinds import RowKind
    from rekey.declaration.migration import Migration, for_each_part, for_each_table
    from rekey.declaration.targets import Index, Target

__all__ = [
    "DualWriteRefused",
    "DualWriteTableClient",
    "Index",
    "LeaseSettings",
    "Migration",
    "RowKind",
    "Target",
    "for_each_part",
    "for_each_table",
    "keys",
    "props",
    "query",
    "rows",
]

_MODULES = {
    "DualWriteRefused": "rekey.client.sdk.errors",
    "DualWriteTableClient": "rekey.client.sdk.client_sync",
    "Index": "rekey.declaration.targets",
    "LeaseSettings": "rekey.client.reading",
    "Migration": "rekey.declaration.migration",
    "RowKind": "rekey.declaration.kinds",
    "Target": "rekey.declaration.targets",
    "for_each_part": "rekey.declaration.migration",
    "for_each_table": "rekey.declaration.migration",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name)
    return getattr(import_module(module), name) if module else import_module(f"rekey.declaration.{name}")
