"""Keys in the state file, sealed. Pure.

Rules kept here:

* They are sealed with a key that is derived from the migration's root key, so the state file alone tells
  nothing, and losing it loses nothing.
* They are bound to migration and column. An altered one is refused; a key in the clear is, too.
"""

from __future__ import annotations

import base64
import json

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rekey.errors import StateUnusable
from rekey.mapping.sealing import CURSOR, decrypted, encrypted
from rekey.model import EntityKey
from rekey.state.keytexts import SEALED


class SealedKeys:
    """Writes keys as sealed text, and reads them: `rekey.state.keytexts.KeyTexts`."""

    def __init__(self, script_id: str, key: bytes) -> None:
        """Take the migration and a key of 32 bytes."""
        self._script_id = script_id
        self._cipher = AESGCM(key)

    def to_text(self, column: str, key: EntityKey | None) -> str | None:
        """Return a key sealed; None stays None."""
        if key is None:
            return None
        plain = json.dumps([key.partition, key.row]).encode("ascii")
        return SEALED + base64.b64encode(encrypted(self._cipher, plain, self._bound(column))).decode()

    def from_text(self, column: str, text: str | None) -> EntityKey | None:
        """Return the key that `to_text` sealed for that column. Raises StateUnusable when it is not that."""
        if text is None:
            return None
        try:
            if not text.startswith(SEALED):
                raise ValueError("not sealed")
            sealed = base64.b64decode(text.removeprefix(SEALED), validate=True)
            plain = decrypted(self._cipher, sealed, self._bound(column))
        except (InvalidTag, ValueError):
            raise StateUnusable(
                f"a checkpoint of {self._script_id} in the state file was altered, or sealed by another run",
                kept="all tables, and the state file as it is",
                hint="move the state file away and run the command again: it copies again and loses nothing",
            ) from None
        partition, row = json.loads(plain)
        return EntityKey(partition, row)

    def _bound(self, column: str) -> bytes:
        return "\0".join((f"rekey/{CURSOR}/v1", self._script_id, column)).encode()
