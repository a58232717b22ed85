"""Recomputes content digests from the tables and compares them with those of a bundle. Needs only read access
to the migration's tables. A difference may be a later write as well as tampering; row counts are reported
too."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from rekey.core.key_space import KeySpace
from rekey.core.progress import Progress
from rekey.declaration.key_space import key_condition, space_of
from rekey.declaration.mapper import Mapper
from rekey.errors import TableBeingDeleted, TableMissing
from rekey.evidence import contents
from rekey.evidence.refusals import refusal
from rekey.model import Row
from rekey.tables.base import Table, TableService
from rekey.tables.kinds import by_number
from rekey.tables.part import part_of, parts_of
from rekey.verify.bucket_digests import BucketDigests
from rekey.verify.digest import Digester
from rekey.verify.first_pass import add_mapped
from rekey.verify.report import label_of

BEGIN, PARTITIONS_BEGIN = "row_keys_begin", "partition_keys_begin"


@dataclass(frozen=True, slots=True)
class Compared:
    """A digest of the bundle and the current one."""

    table: str
    # `source`, `target`, or `expected`: the rows of that target as mapped from the source.
    what: str
    # "" if not in the bundle; a source with few rows has none (`rekey.verify.bucket_digests.FEW`).
    recorded_digest: str
    # "" when the table does not exist; for `expected`, when the source does not.
    found_digest: str
    recorded_rows: int
    found_rows: int

    @property
    def is_equal(self) -> bool:
        """Whether row count and digest are as recorded; without a recorded digest, the row count."""
        if not self.found_digest:
            return False
        return self.found_rows == self.recorded_rows and self.recorded_digest in ("", self.found_digest)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "equal": self.is_equal}


def last_full(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the last full verification of a bundle. Raises Findings when there is none."""
    checks = [check for check in json.loads(files[contents.RECONCILIATION]) if check["mode"] == "full"]
    if not checks:
        raise refusal("no-full-verification")
    last: dict[str, Any] = checks[-1]
    return last


async def recompute(
    recorded: Mapping[str, Any],
    service: TableService,
    progress: Progress,
    *,
    mapper: Mapper | None = None,
    key_space: KeySpace | None = None,
) -> list[Compared]:
    """Read the tables and compare.

    Args:
        recorded: a full verification in the bundle.
        service: the account of the tables.
        progress: reports the rows read.
        mapper: also compares the expected target rows, mapped again (needs script and secrets); None: not.
        key_space: the part of the source that was migrated; None for the whole table.

    Raises:
        ServiceError: a table could not be read. A table that does not exist is a difference, not an error.
    """
    tables = recorded["tables"]
    digesters = [Digester(table["table"], frozenset(table["not_compared"])) for table in tables]
    expected = [BucketDigests() for _ in tables]
    adders = [digests.adder(digester) for digests, digester in zip(expected, digesters, strict=True)]

    def map_again(rows: Sequence[Row]) -> None:
        """Add the target rows of source rows; a refused row has none, as in the verification."""
        if mapper is not None:
            add_mapped(mapper, rows, lambda *_: None, adders)

    name = recorded["source"]
    source = BucketDigests()
    part = part_of(service.table(name), key_space)
    is_there = await _read(part, name, progress, source.adder(Digester(name)), map_again)
    comparisons = [_compared(name, "source", recorded, source if is_there else None)]
    beginnings = {
        number: (table.get(PARTITIONS_BEGIN, ""), table.get(BEGIN, "")) for number, table in enumerate(tables)
    }
    shared = {table["table"]: space_of(key_condition(table["keys"])) for table in tables if "keys" in table}
    names = [table["table"] for table in tables]
    targets = by_number(names, beginnings, parts_of(shared, service.table))
    rows = zip(tables, targets, digesters, expected, strict=True)
    for number, (entry, target, digester, digests) in enumerate(rows):
        name = label_of(entry["table"], *beginnings[number])
        if mapper is not None:
            comparisons.append(_compared(name, "expected", entry, digests if is_there else None))
        actual = BucketDigests()
        exists = await _read(target, name, progress, actual.adder(digester))
        comparisons.append(_compared(name, "target", entry, actual if exists else None))
    return comparisons


async def _read(
    table: Table, name: str, progress: Progress, *takers: Callable[[Sequence[Row]], None]
) -> bool:
    """Pass the rows of each page of a table to all takers; tell whether the table exists."""
    with suppress(TableMissing, TableBeingDeleted), progress.task(f"read {name}") as advance:
        async for page in table.scan():
            for take in takers:
                take(page.rows)
            advance(len(page.rows))
        return True
    return False


def _compared(table: str, what: str, recorded: Mapping[str, Any], digests: BucketDigests | None) -> Compared:
    prefix = "actual" if what == "target" else what
    digest, rows = ("", 0) if digests is None else (digests.content_digest(), digests.rows)
    return Compared(table, what, recorded[f"{prefix}_digest"], digest, recorded[f"{prefix}_rows"], rows)
