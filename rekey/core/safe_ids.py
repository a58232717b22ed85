"""Safe ids name rows in logs, errors, plans and evidence: HMAC-SHA-256 under a random key of the migration in
the restricted store, so that guessed legacy keys cannot be tested against a log or a plan."""

from __future__ import annotations

import secrets

from rekey.core.crockford import encode_id
from rekey.core.macs import hmac_sha256
from rekey.model import EntityKey

KEY_BYTES = 32
DIGEST_BYTES = 20
# 60 bits: the collision probability among ten million rows is below 0.005 %.
SHORT_CHARACTERS = 12


def new_key() -> bytes:
    """Return a new random key for `SafeIds`."""
    return secrets.token_bytes(KEY_BYTES)


class SafeIds:
    """Computes the safe ids of one migration."""

    def __init__(self, key: bytes) -> None:
        """Create it with a key of 32 bytes: random (`new_key`), or derived (`sealing.ids_key`)."""
        self._mac = hmac_sha256(key, b"rekey/row/v1\0")

    def raw(self, table: str, key: EntityKey) -> bytes:
        """Return the 20-byte digest of a row's table and key."""
        partition = key.partition.encode("utf-8", "surrogatepass")
        row = key.row.encode("utf-8", "surrogatepass")
        # Lengths first, so that no two (table, partition, row) give the same message.
        lengths = (len(table), len(partition), len(row))
        return self._mac(b"%d,%d,%d\0%b%b%b" % (*lengths, table.encode(), partition, row))[:DIGEST_BYTES]

    def long(self, table: str, key: EntityKey) -> str:
        """Return the 32-character id: the row key of the mapping table."""
        return encode_id(self.raw(table, key))

    def short(self, table: str, key: EntityKey) -> str:
        """Return the 12-character id that people see: the beginning of the long id. Only the restricted
        mapping table resolves it."""
        return self.long(table, key)[:SHORT_CHARACTERS]
