"""For how long the mapping of a completed migration is kept, and what stands where it was erased. Pure.

Rules kept here:

* The retention time runs from the later of two moments: the end of the cohort (its month), and `complete`.
  Before `complete` nothing is over: the protocol needs the mapping.
* A mapping in the clear has no data keys that could be shredded. It is one cohort as a whole: nothing is
  written to it after `complete`, so all of it is over at one moment.
* A cohort that was shredded, and a mapping that expired, leave a tombstone; a mapping in the clear whose
  content is not all gone yet is not erased yet.
* A tombstone has the key of what stood there, and the day. Nothing of the content is left, and nothing by
  which the rows of one subject could be brought together again.
* Where the mapping is sealed it carries a proof under a key that is made of the root key, bound to the place
  and the day: write access to the restricted store is not enough to pass a row off as erased. In a mapping in
  the clear there is no such key, and it is enough.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass

from rekey.core import edm
from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.errors import Erased
from rekey.mapping.ids import SHORT_CHARACTERS
from rekey.mapping.sealing import ROOT, DataKey, derived, unreadable
from rekey.model import PARTITION_KEY, ROW_KEY, TYPE_SUFFIX, EntityKey, Row

WHOLE = "all"
"""The cohort that a mapping in the clear is; its tombstone stands among the data keys of others."""
DONE = "Done"
"""Of that tombstone: nothing of the content is left."""
_COHORT = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")
_MONTHS = 12
ERASED_ON = "ErasedOn"
_PROOF = "Proof"
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_DAY_CHARACTERS = 10


@dataclass(frozen=True, slots=True)
class Cohort:
    """A cohort of a completed migration.

    Attributes:
        name: its month, `2024-05`; `all` for a mapping in the clear.
        erased_on: the day on which it was shredded, "" when it was not.
        over_at: from when on it may be, ticks of the service's clock.
    """

    name: str
    erased_on: str
    over_at: int

    def is_due(self, now: int) -> bool:
        """Tell whether its retention time is over and it is not shredded yet."""
        return not self.erased_on and now >= self.over_at


def is_cohort(name: str) -> bool:
    """Tell whether a text is the name of a month."""
    return _COHORT.fullmatch(name) is not None


def end_of(name: str) -> int:
    """Return the end of a month, in ticks. Raises ValueError for another text."""
    found = _COHORT.fullmatch(name)
    if found is None:
        raise ValueError("a cohort is a month: 2024-05")
    months = int(found[1]) * _MONTHS + int(found[2])
    return ticks_of(f"{months // _MONTHS:04}-{months % _MONTHS + 1:02}-01T00:00:00Z")


def over_at(name: str, completed_at: str, keep_s: float) -> int:
    """Return from when on a cohort may be shredded, in ticks.

    Args:
        name: the cohort.
        completed_at: when the migration was completed, the service's time.
        keep_s: the retention time in seconds.
    """
    since = ticks_of(completed_at)
    if name != WHOLE:
        since = max(since, end_of(name))
    return since + round(keep_s * TICKS_PER_SECOND)


def cohorts(rows: Iterable[Row], *, sealed: bool, completed_at: str, keep_s: float) -> tuple[Cohort, ...]:
    """Return the cohorts of a completed migration, oldest first.

    Args:
        rows: what stands in the partition of its data keys; none of it is opened.
        sealed: whether its mapping is.
        completed_at, keep_s: as in `over_at`.
    """
    found: dict[str, str] = {} if sealed else {WHOLE: ""}
    for row in rows:
        name, on = str(row[ROW_KEY]), str(row.get(ERASED_ON, ""))
        if name == ROOT or (name in found and not row.get(DONE, False)):
            continue
        if is_cohort(name) if sealed else name == WHOLE:
            found[name] = on
    return tuple(Cohort(name, on, over_at(name, completed_at, keep_s)) for name, on in sorted(found.items()))


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
