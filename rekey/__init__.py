"""Online, verified, reversible key changes for Azure Table Storage.

A migration script needs these names only; see `migrations/` for examples that run.
"""

from __future__ import annotations

from rekey import keys, props
from rekey.declaration import Index, Migration, Target

__all__ = ["Index", "Migration", "Target", "keys", "props"]
