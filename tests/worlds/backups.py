"""What tests of exports share: tables of odd rows, small parts, and what a folder holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rekey.core.edm import DOUBLE, canonical_content
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.verify.digest import BUCKETS
from tests.contract.test_values import KEYS, VALUES, row_of
from tests.worlds.odd_rows import generic
from tests.worlds.projects import Project

ROWS = 1_300  # of two pages


def every_value() -> Iterator[Row]:
    """Yield the samples of the contract: a row of each value, one of all values, and a row of each key."""
    everything: Row = {"PartitionKey": "all", "RowKey": "all"}
    for name, (value, edm) in VALUES.items():
        row = row_of(name, value, edm, row_key=name)
        everything |= {key: row[key] for key in row if key not in ("PartitionKey", "RowKey")}
        yield row
    yield everything
    for text in KEYS.values():
        yield {"PartitionKey": text, "RowKey": text, "Whole@odata.type": DOUBLE, "Whole": 3.0}


def small_parts(monkeypatch: pytest.MonkeyPatch, rows: int = 128) -> None:
    """Let a part end after 1 of so many rows, and a range be split after each page."""
    monkeypatch.setattr("rekey.backup.parts._LAST_BUCKETS", BUCKETS // rows)
    monkeypatch.setattr("rekey.backup.export.LEAST_ROWS", 1_000)


def filled(project: Project, rows: Iterable[Row] | None = None, table: str = "Users") -> Project:
    """Fill a table of a project, and let a minute pass."""
    asyncio.run(project.fill(table, generic(ROWS) if rows is None else rows))
    asyncio.run(project.clock.sleep(60))
    return project


def contents(project: Project, table: str) -> list[Row]:
    """Return the rows of a table without what the service owns."""
    return [content_of(row) for row in project.rows(table)]


def canonical(rows: Iterable[Row]) -> list[tuple[EntityKey, list[tuple[str, str, str]]]]:
    """Return keys, EDM types and values of rows: a whole Double may be annotated, or not."""
    return [(key_of(row), canonical_content(row)) for row in rows]


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of an export."""
    document: dict[str, Any] = json.loads((folder / "manifest.json").read_text("utf-8"))
    return document


def parts_of(folder: Path) -> dict[str, bytes]:
    """Return the files of an export's parts, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".gz", ".sealed")}
