"""The comparison at the end of a copy, kept in a file so that one that was cut off continues."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from rekey.backup.copying import Watched
from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.errors import StateUnusable
from rekey.project.privatefiles import write_whole
from rekey.verify.bucket_digests import Partial


class KeptComparison:
    """The digests of a comparison so far, in a file that only its owner may read: it holds keys, and hashes
    and digests by which keys can be guessed. There is no secret to key these with: accounts by Entra ID have
    none. The file goes when the copy has ended."""

    def __init__(self, path: Path, began_at: str, source: Watched) -> None:
        """Create it; nothing is read yet.

        Args:
            path: the file, which need not exist.
            began_at: when the copy began that is compared; digests of another one are not continued.
            source: knows the rows of the source that changed meanwhile.
        """
        self._path, self._began_at, self._source = path, began_at, source

    @property
    def changed(self) -> int:
        """How many rows of the source were written since the copy began."""
        return len(self._source.changed)

    def left(self, now: int, max_age_s: Callable[[Partial], float]) -> Partial | None:
        """Return the digests to go on from; None: begin anew. What cannot be read is treated as absent: then
        all rows are read again.

        Args:
            now: this machine's time, in ticks.
            max_age_s: returns how old the first row that was read may be.
        """
        try:
            kept = json.loads(self._path.read_bytes())
            work = Partial.from_state(kept["digests"], targets=1)
            age_s = (now - ticks_of(work.begun_at)) / TICKS_PER_SECOND
            if kept["began_at"] != self._began_at or not 0 <= age_s < max_age_s(work):
                return None
            # Of those that an earlier command has read: some are read again.
            self._source.changed.update(map(int, kept["changed"]))
        except (OSError, ValueError, KeyError, TypeError, StateUnusable):
            return None
        return work

    def keep(self, work: Partial) -> None:
        """Store the digests. Raises OSError."""
        kept = {
            "began_at": self._began_at,
            "changed": sorted(self._source.changed),
            "digests": work.as_state(),
        }
        write_whole(self._path, json.dumps(kept).encode("ascii"), durable=False)
