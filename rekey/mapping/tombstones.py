"""Tombstones: what stands in the mapping table where something was erased. Pure.

Rules kept here:

* A tombstone has the key of what stood there, and the day. Nothing of the content is left, and nothing by
  which the rows of one subject could be brought together again.
* Where the mapping is sealed it carries a proof under a key that is made of the root key, bound to the place
  and the day: whoever can only write to the restricted store cannot pass a row off as erased.
* In a mapping in the clear there is no such key: there anybody who may write can also put one in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re

from rekey.core import edm
from rekey.errors import Erased
from rekey.mapping.ids import SHORT_CHARACTERS
from rekey.mapping.sealing import DataKey, derived, unreadable
from rekey.model import PARTITION_KEY, ROW_KEY, TYPE_SUFFIX, EntityKey, Row

ERASED_ON = "ErasedOn"
_PROOF = "Proof"
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_DAY_CHARACTERS = 10


def is_tombstone(row: Row) -> bool:
    """Tell whether a row of the mapping table says that it was erased."""
    return ERASED_ON in row


def day_of(moment: str) -> str:
    """Return the day of a moment of the service, as tombstones say it."""
    return moment[:_DAY_CHARACTERS]


class Tombstones:
    """Makes tombstones, and reads them."""

    def __init__(self, table: str, root: DataKey | None = None) -> None:
        """Take the mapping table's name, and the root key of a sealed migration."""
        self._table = table
        self._key = None if root is None else derived(root, "tombstones", salt=b"")

    def make(self, key: EntityKey, on: str) -> Row:
        """Return the tombstone for a row that stands under a key."""
        row: Row = {PARTITION_KEY: key.partition, ROW_KEY: key.row, ERASED_ON: on}
        if self._key is None:
            return row
        proof = base64.b64encode(self._proof(self._key, key, on)).decode("ascii")
        return row | {_PROOF: proof, _PROOF + TYPE_SUFFIX: edm.BINARY}

    def read(self, row: Row) -> str:
        """Return the day that a tombstone says.

        Raises:
            SealedUnreadable: it is not one that rekey put there.
        """
        key, on = EntityKey(row[PARTITION_KEY], row[ROW_KEY]), str(row[ERASED_ON])
        right = _DAY.fullmatch(on) is not None
        if right and self._key is not None:
            try:
                proof = base64.b64decode(str(row.get(_PROOF, "")), validate=True)
            except binascii.Error:
                proof = b""
            right = hmac.compare_digest(proof, self._proof(self._key, key, on))
        if not right:
            raise unreadable(self._table, key, "it says that it was erased, and that is not by rekey")
        return on

    def refuse(self, row: Row) -> None:
        """Raise Erased for a tombstone; SealedUnreadable for one that rekey did not put there."""
        if is_tombstone(row):
            raise Erased(f"row {str(row[ROW_KEY])[:SHORT_CHARACTERS]}", self.read(row))

    def _proof(self, secret: bytes, key: EntityKey, on: str) -> bytes:
        message = "\0".join(("rekey/erased/v1", self._table, key.partition, key.row, on))
        return hmac.new(secret, message.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
