"""Rows for a rehearsal from a file: Azure CLI output, JSON Lines, or CSV, read row by row as wire rows.
Stated types are kept; every assumption about other types is reported. Errors name file, line and cure, never
a key or a value."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from rekey.core.edm import BOOLEAN, DATETIME, DOUBLE, INT32, INT64, INT_RANGES, STRING, TYPES
from rekey.declaration.casts import ANNOTATED, Lossy, is_text_of, wire_value
from rekey.errors import RequestRejected, reason_of
from rekey.model import ETAG, PARTITION_KEY, ROW_KEY, TIMESTAMP, TYPE_SUFFIX, Row
from rekey.present.text import counted
from rekey.rehearse.refusals import refusal
from rekey.tables.rules import written_form

_KEYS = (PARTITION_KEY, ROW_KEY)
# EDM types of JSON values, as Python reads them.
_PLAIN = {str: STRING, bool: BOOLEAN, float: DOUBLE}


class Format(StrEnum):
    """The formats of data files."""

    AZURE_CLI = "Azure CLI"
    JSON_LINES = "JSON Lines"
    CSV = "CSV"


_SUFFIXES = {
    ".jsonl": Format.JSON_LINES,
    ".ndjson": Format.JSON_LINES,
    ".csv": Format.CSV,
    ".json": Format.AZURE_CLI,
}
_HEADER = "PartitionKey,RowKey,Age:Edm.Int32,Joined:Edm.DateTime"
_MEMBERS = frozenset({"items", "nextMarker"})
_SERVER_OWNED = {
    Format.AZURE_CLI: frozenset({"etag", TIMESTAMP, ETAG}),
    Format.JSON_LINES: frozenset({TIMESTAMP, TIMESTAMP + TYPE_SUFFIX, ETAG}),
    Format.CSV: frozenset({TIMESTAMP.lower(), "etag", ETAG}),
}
_TYPE_COLUMNS = (TYPE_SUFFIX, "@type")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,7})?(Z|\+00:00)", re.ASCII)


class Note(StrEnum):
    """An assumption about the rows of a file; in the order in which they are reported."""

    DATETIME_BY_FORM = (
        "text of the form 2024-01-31T12:00:00.123456+00:00 was taken for a DateTime; the Azure CLI cuts"
        " DateTimes to microseconds, so the last digit of 100 ns is lost"
    )
    PLAIN_TEXT = "other text was taken for Edm.String; the Azure CLI prints Guid and Binary as plain text too"
    INT64_BY_SIZE = "a whole number without a type that does not fit Int32 was taken for Int64"
    TEXT_IN_LINES = "text without a type was taken for Edm.String, as the service means it"
    NO_TYPE_IN_HEADER = "the values of a CSV column without a type were taken for Edm.String"
    TYPE_OF_COLUMN = (
        "a CSV value with an empty type was taken for the one type that its column had until then"
    )
    NO_TYPE_IN_ROW = (
        "a CSV value with an empty type was taken for Edm.String: its column had no type until then, several,"
        " or one that does not fit"
    )
    EMPTY_TEXT = "an empty CSV cell with the type Edm.String was taken for empty text"
    EMPTY_CELL = "an empty CSV cell was taken for a property that the row lacks"
    NULL = "null was taken for a property that the row lacks"
    SERVER_OWNED = "Timestamp and etag are the server's own and were left out"
    MORE_PAGES = "nextMarker is set: the file holds a part of the table only"


@dataclass(eq=False)
class BadRow(ValueError):
    """A part of a data file cannot be read as a row. The text holds names of properties, no values. `where`
    is the place in the file; "" for the current row."""

    problem: str
    cure: str = "fix the file and start again"
    where: str = ""


@dataclass
class DataFile:
    """A file of rows."""

    path: Path
    format: Format
    _noted: Counter[Note] = field(default_factory=Counter)
    _columns_noted: dict[Note, dict[str, str]] = field(default_factory=dict)
    _where: str = ""

    def rows(self) -> Iterator[Row]:
        """Yield the rows as the service would store them. Raises ConfigurationError, also for a row that the
        service would refuse and for a file without rows."""
        self._noted.clear()
        self._columns_noted.clear()
        kept = None
        read = {Format.AZURE_CLI: self._azure_cli, Format.JSON_LINES: self._json_lines, Format.CSV: self._csv}
        try:
            with _opened(self.path) as file:
                for row in read[self.format](file):
                    try:
                        kept, is_foreseen = written_form(row)
                    except RequestRejected as refused:
                        raise BadRow(f"the service would refuse this row ({refused.code})") from None
                    if not is_foreseen:
                        raise BadRow("a value is not written in a form of its EDM type")
                    yield kept
        except BadRow as bad:
            place = ", ".join(filter(None, (self.path.name, bad.where or self._where)))
            raise refusal("bad-row", place=place, problem=bad.problem, hint=bad.cure) from None
        if kept is None:
            raise refusal("no-rows", file=self.path.name)

    @property
    def described(self) -> str:
        return f"from {self.path.name}, read as {self.format}"

    @property
    def assumptions(self) -> list[str]:
        """The assumptions about the rows read so far, one sentence each."""
        return [
            f"{note} ({', '.join([counted(count, 'value'), *self._columns_noted.get(note, {}).values()])})"
            for note in Note
            if (count := self._noted[note])
        ]

    # --- JSON ---------------------------------------------------------------------------------------------

    def _azure_cli(self, file: IO[str]) -> Iterator[Row]:
        number = 0
        for name, value in JsonStream(file).members():
            if name == "items":
                number += 1
                self._where = f"item {number}"
                yield self._json_row(value)
            elif name not in _MEMBERS:
                self._where = ""
                raise BadRow("it is not what `az storage entity query -o json` prints")
            elif value:
                self._noted[Note.MORE_PAGES] += 1

    def _json_lines(self, file: IO[str]) -> Iterator[Row]:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            self._where = f"line {number}"
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                place = f"{self._where}, column {error.colno}"
                raise BadRow("this is not one JSON object a line", where=place) from None
            yield self._json_row(value)

    def _json_row(self, item: object) -> Row:
        """Return an item of the Azure CLI, a wire row, or a plain object as a wire row."""
        if not isinstance(item, dict):
            raise BadRow("this is not an object", "a row is a JSON object with PartitionKey and RowKey")
        row: Row = {}
        for name, value in item.items():
            annotation = item.get(name + TYPE_SUFFIX)
            if name in _SERVER_OWNED[self.format] or name.startswith("odata."):
                self._noted[Note.SERVER_OWNED] += 1
            elif name in _KEYS:
                row[name] = value
            elif name.endswith(TYPE_SUFFIX):
                continue
            elif value is None:
                self._noted[Note.NULL] += 1
            elif annotation is not None:
                _put(row, name, type_named(str(annotation)), value)
            else:
                _put(row, name, *self._guessed(name, value))
        for key in _KEYS:
            if not isinstance(row.get(key), str):
                raise BadRow(f"{key} is missing or not text", "every row needs PartitionKey and RowKey")
        return row

    def _guessed(self, name: str, value: object) -> tuple[str, object]:
        if isinstance(value, str) and self.format is Format.AZURE_CLI:
            # The CLI prints DateTimes without their type: only the form tells them from text.
            is_moment = _MOMENT.fullmatch(value) is not None
            self._noted[Note.DATETIME_BY_FORM if is_moment else Note.PLAIN_TEXT] += 1
            return (DATETIME if is_moment else STRING), value
        if (plain := _PLAIN.get(type(value))) is not None:
            self._noted[Note.TEXT_IN_LINES] += plain == STRING
            return plain, value
        if isinstance(value, int):
            fits = value in INT_RANGES[INT32]
            self._noted[Note.INT64_BY_SIZE] += not fits
            return (INT32 if fits else INT64), value
        if isinstance(value, dict) and {"edm_type", "value"} >= value.keys() and "value" in value:
            return type_named(str(value.get("edm_type", ""))), value["value"]
        raise BadRow(f"{name} is a list or an object", "a property holds one value")

    # --- CSV ----------------------------------------------------------------------------------------------

    def _csv(self, file: IO[str]) -> Iterator[Row]:
        """Yield the rows of a CSV file.

        `Name:Edm.Type` is a column with a type. `Name@type` (or `Name@odata.type`) holds the type of `Name`
        row by row, as in exports of storage tools; where such a cell is empty, see `_type_not_stated`. A
        column with neither is Edm.String. An empty cell means that the row lacks the property, unless its row
        states the type Edm.String. Keys may be empty.
        """
        reader = csv.reader(file, strict=True)
        header: list[str] = []
        columns: list[_Column] = []
        try:
            for cells in reader:
                self._where = f"line {reader.line_num}"
                if not columns:
                    header, columns = cells, self._columns(cells)
                elif cells and len(cells) != len(header):
                    raise BadRow(
                        f"there are {len(cells)} cells, the header has {len(header)}",
                        "quote cells that hold commas, quotes or line breaks",
                    )
                elif cells:
                    yield self._csv_row(columns, cells)
        except csv.Error:
            place = f"line {reader.line_num}"
            raise BadRow("this is not CSV: a quote is out of place", where=place) from None

    def _columns(self, header: Sequence[str]) -> list[_Column]:
        """Return the columns that hold values. Raises BadRow."""
        columns: dict[str, _Column] = {}
        for at, head in enumerate(header):
            if head.endswith(_TYPE_COLUMNS):
                continue
            name, _, text = head.strip().partition(":")
            if name.lower() in _SERVER_OWNED[Format.CSV]:
                self._noted[Note.SERVER_OWNED] += 1
                continue
            if name in columns or not name:
                raise BadRow(
                    f"column {at + 1} has no name, or one that another column has",
                    f"give every column a name of its own: {_HEADER}",
                )
            types = [header.index(name + end) for end in _TYPE_COLUMNS if name + end in header]
            columns[name] = _Column(name, at, type_named(text) if text else "", types)
            if name in _KEYS and columns[name].edm not in ("", STRING):
                raise BadRow(f"{name} is not Edm.String", "keys are text")
        for key in _KEYS:
            if key not in columns:
                raise BadRow(
                    f"there is no column {key}",
                    f"the first line names the columns, both keys among them: {_HEADER}",
                )
        return list(columns.values())

    def _csv_row(self, columns: Sequence[_Column], cells: Sequence[str]) -> Row:
        row: Row = {}
        for column in columns:
            value = cells[column.at]
            if column.name in _KEYS:
                row[column.name] = value
                continue
            stated = column.edm or next(
                (type_named(cells[at]) for at in column.types if cells[at].strip()), ""
            )
            if not value and not (stated == STRING and column.types):
                self._note(Note.EMPTY_CELL, column)
                continue
            if not value:
                self._note(Note.EMPTY_TEXT, column)
            elif stated:
                column.stated.add(stated)
            _put(row, column.name, stated or self._type_not_stated(column, value), value)
        return row

    def _type_not_stated(self, column: _Column, value: str) -> str:
        """Return the assumed type of a CSV value: exports may state types in one row only, or omit text's."""
        if not column.types:
            self._note(Note.NO_TYPE_IN_HEADER, column)
            return STRING
        if len(column.stated) == 1 and is_text_of(known := next(iter(column.stated)), value):
            self._note(Note.TYPE_OF_COLUMN, column, f"{column.name}: {known}")
            return known
        self._note(Note.NO_TYPE_IN_ROW, column)
        return STRING

    def _note(self, note: Note, column: _Column, text: str = "") -> None:
        self._noted[note] += 1
        self._columns_noted.setdefault(note, {})[column.name] = text or column.name


@dataclass(eq=False)
class _Column:
    """A column of a CSV file that holds values."""

    name: str
    at: int
    edm: str  # the type in the header; "" for none
    types: Sequence[int]  # positions of the columns that state its type row by row
    stated: set[str] = field(default_factory=set)  # the types stated there so far


def open_data(path: Path) -> DataFile:
    """Return a data file, with the format of its suffix or first line. Raises ConfigurationError."""
    file_format = _SUFFIXES.get(path.suffix.lower())
    if file_format is None:
        raise refusal("no-known-format", file=path.name, header=_HEADER)
    with _opened(path) as file:
        first = next((line for line in file if line.strip()), "")
    if file_format is Format.AZURE_CLI:
        # A first line that is a complete object, but none of the Azure CLI's, is JSON Lines.
        try:
            value = json.loads(first)
        except json.JSONDecodeError:
            value = None
        if isinstance(value, dict) and not _MEMBERS & value.keys():
            file_format = Format.JSON_LINES
    return DataFile(path, file_format)


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """Open UTF-8 text, or UTF-16 with a byte order mark (from some shells). Raises ConfigurationError."""
    try:
        with path.open("rb") as binary:
            marked = binary.read(2) in (b"\xff\xfe", b"\xfe\xff")
        with path.open(encoding="utf-16" if marked else "utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise refusal("not-read", path=path, reason=reason_of(error)) from None
    except UnicodeDecodeError:
        raise refusal("not-utf8", file=path.name) from None


def type_named(name: str) -> str:
    """Return the EDM type of a name, `Edm.Int32` or `int32`. Raises BadRow."""
    wanted = name.strip().lower().removeprefix("edm.")
    for edm in TYPES:
        if edm.removeprefix("Edm.").lower() == wanted:
            return edm
    raise BadRow("a type is none of the service's own", f"use one of {', '.join(sorted(TYPES))}")


def _put(row: Row, name: str, edm: str, value: object) -> None:
    """Set a property from its text, or from a JSON value of any type. Raises BadRow."""
    try:
        row[name] = wire_value(edm, value if isinstance(value, str) else json.dumps(value))
    except Lossy:
        raise BadRow(f"{name} holds no {edm}", "fix the value, or give the property another type") from None
    if edm in ANNOTATED:
        row[name + TYPE_SUFFIX] = edm


# --- one large JSON document ------------------------------------------------------------------------------

_CHUNK = 256 * 1024
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = "0123456789.eE+-"


@dataclass
class JsonStream:
    """A JSON document that is read chunk by chunk: memory holds a chunk and the largest item. Errors give
    line and column, counted from 1, and no text."""

    file: IO[str]  # open for reading, at its beginning
    _text: str = ""
    _at: int = 0
    _line: int = 1
    _column: int = 1

    def members(self) -> Iterator[tuple[str, Any]]:
        """Yield the members of an object as (name, value). The items of its array `items`, or of a document
        that is an array, are yielded one by one under the name `items`. Raises BadRow."""
        if self._takes("["):
            yield from (("items", self._value()) for _ in self._listed("]"))
        else:
            self._expect("{")
            for _ in self._listed("}"):
                name = self._value()
                if not isinstance(name, str):
                    raise self._error(self._at)
                self._expect(":")
                if name == "items" and self._takes("["):
                    yield from ((name, self._value()) for _ in self._listed("]"))
                else:
                    yield name, self._value()
        if self._peek():
            raise self._error(self._at)

    def _listed(self, end: str) -> Iterator[None]:
        """Yield once before each element of a list that ends with `end`; the caller reads the element."""
        if self._takes(end):
            return
        while True:
            yield
            if self._takes(end):
                return
            self._expect(",")

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._more():
                    continue
                raise self._error(error.pos) from None
            # A number may continue in the next chunk (`-1.5e` is read as -1.5); other values end clearly.
            if not self._text[end:].strip(_NUMBER) and self._more():
                continue
            self._at = end
            return value

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            raise self._error(self._at)

    def _takes(self, sign: str) -> bool:
        there = self._peek() == sign
        self._at += there
        return there

    def _peek(self) -> str:
        """Return the next character that is not space, "" at the end, without consuming it."""
        while True:
            if space := _SPACE.match(self._text, self._at):
                self._at = space.end()
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def _more(self) -> bool:
        """Read the next chunk and drop consumed text; False at the end of the file."""
        if chunk := self.file.read(_CHUNK):
            self._line, self._column = self._place(self._at)
            self._text = self._text[self._at :] + chunk
            self._at = 0
        return bool(chunk)

    def _place(self, position: int) -> tuple[int, int]:
        before = self._text[:position]
        breaks = before.count("\n")
        if not breaks:
            return self._line, self._column + len(before)
        return self._line + breaks, len(before) - before.rfind("\n")

    def _error(self, position: int) -> BadRow:
        line, column = self._place(position)
        return BadRow("this is not JSON, or it is cut off", where=f"line {line}, column {column}")
