"""CSV with EDM types: in the header (`Age:Edm.Int32`), or in a column beside (`Age@type`).

Rules kept here:

* `Name:Edm.Type` says the type of the column. `Name@type` (or `Name@odata.type`) holds the type of `Name` row
  by row, as exports of storage tools have it. A column with neither is Edm.String.
* CSV knows no absent value: an empty cell means that the row lacks the property. Keys may be empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rekey.core.edm import STRING
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, TYPE_SUFFIX, Row
from rekey.rehearse.values import BadRow, Note, Noting, put_text, type_named

_TYPE_COLUMNS = (TYPE_SUFFIX, "@type")
_SERVER_OWNED = frozenset({TIMESTAMP.lower(), "etag", "odata.etag"})


@dataclass(frozen=True, slots=True)
class Column:
    """One column of values.

    Attributes:
        name: the property.
        at: its position.
        edm: its type; None when the column at `type_at` says it row by row.
        type_at: position of the column of types, None without one.
    """

    name: str
    at: int
    edm: str | None
    type_at: int | None


@dataclass(frozen=True, slots=True)
class CsvHeader:
    """The columns of a CSV file."""

    columns: tuple[Column, ...]
    width: int

    @classmethod
    def read(cls, cells: Sequence[str], note: Noting) -> CsvHeader:
        """Read the header line. Raises BadRow."""
        type_columns = {
            cell[: -len(suffix)]: at
            for at, cell in enumerate(cells)
            for suffix in _TYPE_COLUMNS
            if cell.endswith(suffix)
        }
        columns: dict[str, Column] = {}
        for at, cell in enumerate(cells):
            if cell.endswith(_TYPE_COLUMNS):
                continue
            name, _, said = cell.strip().partition(":")
            if name.lower() in _SERVER_OWNED:
                note(Note.SERVER_OWNED)
                continue
            if name in columns or not name:
                raise BadRow(
                    f"column {at + 1} has no name, or one that another column has",
                    "give every column a name of its own",
                )
            type_at = type_columns.get(name)
            columns[name] = Column(name, at, _column_type(name, said, type_at, note), type_at)
        for key in (PARTITION_KEY, ROW_KEY):
            if key not in columns:
                raise BadRow(
                    f"there is no column {key}", "the first line names the columns; both keys are needed"
                )
        return cls(tuple(columns.values()), len(cells))

    def row(self, cells: Sequence[str], note: Noting) -> Row:
        """Return one line as a wire row. Raises BadRow."""
        if len(cells) != self.width:
            raise BadRow(
                f"there are {len(cells)} cells, the header has {self.width}",
                "quote cells that hold commas, quotes or line breaks",
            )
        row: Row = {}
        for column in self.columns:
            text = cells[column.at]
            if column.name in (PARTITION_KEY, ROW_KEY):
                row[column.name] = text
            elif not text:
                note(Note.EMPTY_CELL)
            else:
                put_text(row, column.name, column.edm or _said_in_row(cells, column), text)
        return row


def _column_type(name: str, said: str, type_at: int | None, note: Noting) -> str | None:
    if said:
        edm = type_named(said)
        if name in (PARTITION_KEY, ROW_KEY) and edm != STRING:
            raise BadRow(f"{name} is not Edm.String", "keys are text")
        return edm
    if type_at is not None:
        return None
    if name not in (PARTITION_KEY, ROW_KEY):
        note(Note.NO_TYPE_IN_HEADER)
    return STRING


def _said_in_row(cells: Sequence[str], column: Column) -> str:
    said = cells[column.type_at] if column.type_at is not None else ""
    return type_named(said) if said else STRING
