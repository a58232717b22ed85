"""Content digests, computed again from the tables and held against those of a bundle.

Rules kept here:

* Tables are only read; read access to the tables of the migration is all that is needed, neither the
  restricted store nor a secret.
* A digest is of a moment: a table that was written since has another one, and so has a table that was
  tampered with. Which of the two it is, this cannot tell; the row counts are told, too.
* With the mapping (script and secrets) the rows that the source gives are computed again as well.
* The source's digest is not in evidence when it has few rows (`rekey.verify.sums.FEW`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rekey.core.progress import Progress
from rekey.declaration.mapper import Mapper
from rekey.errors import Findings, RowRefused, TableBeingDeleted, TableMissing
from rekey.evidence import contents
from rekey.model import Row
from rekey.tables.base import TableService
from rekey.verify.digest import digester
from rekey.verify.sums import BucketSums


@dataclass(frozen=True, slots=True)
class Compared:
    """One digest of the bundle and what it is now.

    Attributes:
        table: the table.
        what: `source`, `target`, or `expected`: what the source's rows give for it.
        recorded, found: content digests; `recorded` is "" where none is told, `found` "" without a table.
        recorded_rows, found_rows: row counts.
    """

    table: str
    what: str
    recorded: str
    found: str
    recorded_rows: int
    found_rows: int

    @property
    def is_equal(self) -> bool:
        """Tell whether it is what it was; where no digest is told, whether there are as many rows."""
        if not self.found:
            return False
        return self.found_rows == self.recorded_rows and self.recorded in ("", self.found)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "table": self.table,
            "what": self.what,
            "recorded_digest": self.recorded,
            "found_digest": self.found,
            "recorded_rows": self.recorded_rows,
            "found_rows": self.found_rows,
            "equal": self.is_equal,
        }


def last_full(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the last full verification of a bundle. Raises Findings when there is none."""
    checks = [one for one in json.loads(files[contents.RECONCILIATION]) if one["mode"] == "full"]
    if not checks:
        raise Findings(
            "the bundle holds no full verification, so no content digests to compare with",
            hint="ask for a bundle that was exported after `rekey verify --mode full`",
        )
    found: dict[str, Any] = checks[-1]
    return found


async def recompute(
    recorded: Mapping[str, Any],
    service: TableService,
    progress: Progress,
    *,
    mapper: Mapper | None = None,
) -> list[Compared]:
    """Read the tables and compare.

    Args:
        recorded: a full verification, as the bundle holds it.
        service: the account of the tables.
        progress: who hears how far it is.
        mapper: maps the source's rows again; None leaves that out.

    Raises:
        ServiceError: a table could not be read. One that is not there is a difference.
    """
    tables = recorded["tables"]
    given = Given(mapper, recorded)
    source = await read(service, recorded["source"], frozenset(), progress, given)
    found = [
        Compared(
            recorded["source"],
            "source",
            recorded["source_digest"],
            _digest(source),
            recorded["source_rows"],
            _rows(source),
        )
    ]
    for number, one in enumerate(tables):
        if mapper is not None:
            found.append(_compared(one, "expected", given.sums[number] if source else None))
        left_out = frozenset(one["not_compared"])
        found.append(_compared(one, "actual", await read(service, one["table"], left_out, progress, None)))
    return found


class Given:
    """What the source's rows give, added up while they are read."""

    def __init__(self, mapper: Mapper | None, recorded: Mapping[str, Any]) -> None:
        """Take the mapping (None: rows give nothing) and what the verification was of."""
        self._mapper = mapper
        self.sums = [BucketSums() for _ in recorded["tables"]]
        self._adders = [
            sums.adder(digester(one["table"], frozenset(one["not_compared"])))
            for sums, one in zip(self.sums, recorded["tables"], strict=True)
        ]

    def add(self, row: Row) -> None:
        """Add what one source row gives; one that the mapping refuses gives nothing, now as then."""
        if self._mapper is None:
            return
        try:
            mapped = self._mapper.map(row)
        except RowRefused:
            return
        for number, target in mapped:
            self._adders[number](target)


async def read(
    service: TableService, name: str, without: frozenset[str], progress: Progress, given: Given | None
) -> BucketSums | None:
    """Return the sums of a table's rows, None when there is no such table."""
    sums = BucketSums()
    add = sums.adder(digester(name, without))
    try:
        with progress.task(f"read {name}") as advance:
            async for page in service.table(name).scan():
                for row in page.rows:
                    add(row)
                    if given is not None:
                        given.add(row)
                advance(len(page.rows))
    except (TableMissing, TableBeingDeleted):
        return None
    return sums


def _compared(recorded: Mapping[str, Any], side: str, sums: BucketSums | None) -> Compared:
    return Compared(
        recorded["table"],
        "target" if side == "actual" else side,
        recorded[f"{side}_digest"],
        _digest(sums),
        recorded[f"{side}_rows"],
        _rows(sums),
    )


def _digest(sums: BucketSums | None) -> str:
    return "" if sums is None else sums.content_digest()


def _rows(sums: BucketSums | None) -> int:
    return 0 if sums is None else sums.rows
