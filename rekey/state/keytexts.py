"""How keys stand in the state file: as they are, or sealed once the migration was opened.

Rules kept here:

* The state file itself cannot seal or open anything: the key to do so is in the restricted store, wrapped.
  Until a migration was opened for work, sealed keys are not read; counts need none.
* A column holds one form: a key in the clear is never taken for real where sealed ones belong.
"""

from __future__ import annotations

import json
from typing import Protocol

from rekey.errors import StateUnusable
from rekey.model import EntityKey

SEALED = "sealed:"
"""What the text of a sealed key begins with; that of a plain one is a JSON array."""


class KeyTexts(Protocol):
    """Writes keys as text, and reads them."""

    def to_text(self, column: str, key: EntityKey | None) -> str | None:
        """Return a key as a column holds it; None stays None."""

    def from_text(self, column: str, text: str | None) -> EntityKey | None:
        """Return the key that `to_text` wrote for that column. Raises StateUnusable when it is not."""


class PlainKeys:
    """Keys as they are: a JSON array in ASCII."""

    def to_text(self, column: str, key: EntityKey | None) -> str | None:  # noqa: ARG002 - of the protocol
        """Return a key as a JSON array."""
        return None if key is None else json.dumps([key.partition, key.row], separators=(",", ":"))

    def from_text(self, column: str, text: str | None) -> EntityKey | None:  # noqa: ARG002 - of the protocol
        """Return the key of a JSON array. Raises StateUnusable when it is sealed."""
        if text is None:
            return None
        if text.startswith(SEALED):
            raise StateUnusable(
                "the checkpoints in the state file are sealed, and the migration was not opened",
                kept="the state file, unchanged",
                hint="run the command with [sealing] configured as it was when the migration began",
            )
        partition, row = json.loads(text)
        return EntityKey(partition, row)


PLAIN = PlainKeys()
