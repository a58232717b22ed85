"""Rows for a rehearsal, from a file: Azure CLI output, JSON Lines, or CSV.

Rules kept here:

* From every format rows come out as wire rows, one at a time; the file is never in memory as a whole.
* A type that is said is kept. What a format does not say is assumed, and every assumption that mattered is
  reported (`assumptions`): a rehearsal on guessed types proves less than one on the table itself.
* A row that the service would refuse is refused here. An error names the file, the line or record and the
  cure; it repeats no key and no value.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from rekey.core.edm import DATETIME, DOUBLE, INT64, STRING, TYPES
from rekey.declaration.casts import ANNOTATED, Lossy, wire_value
from rekey.errors import ConfigurationError, RequestRejected
from rekey.model import ETAG, PARTITION_KEY, ROW_KEY, TIMESTAMP, TYPE_SUFFIX, Row
from rekey.tables.rules import stored_form

_KEYS = (PARTITION_KEY, ROW_KEY)


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
_KNOWN = "use .json (az storage entity query -o json), .jsonl (one row a line) or .csv (types in the header)"
_MEMBERS = frozenset({"items", "nextMarker"})


class Note(StrEnum):
    """What was assumed, in the order in which it is told."""

    DATETIME_BY_FORM = (
        "text of the form 2024-01-31T12:00:00.123456+00:00 was taken for a DateTime; the Azure CLI cuts"
        " DateTimes to microseconds, so the last digit of 100 ns is lost"
    )
    PLAIN_TEXT = "other text was taken for Edm.String; the Azure CLI prints Guid and Binary as plain text too"
    INT64_BY_SIZE = "a whole number without a type that does not fit Int32 was taken for Int64"
    NO_TYPE_IN_HEADER = "a CSV column without a type was taken for Edm.String"
    EMPTY_CELL = "an empty CSV cell was taken for a property that the row lacks"
    NULL = "null was taken for a property that the row lacks"
    SERVER_OWNED = "Timestamp and etag are the server's own and were left out"
    MORE_PAGES = "nextMarker is set: the file holds a part of the table only"


Noting = Callable[[Note], None]


class BadRow(ValueError):
    """A row of a data file cannot be understood. Holds names of properties, no values."""

    def __init__(self, problem: str, cure: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.cure = cure


@dataclass
class DataFile:
    """A file of rows.

    Attributes:
        path: the file.
        format: what it was taken for.
    """

    path: Path
    format: Format
    _noted: Counter[Note] = field(default_factory=Counter)

    def rows(self) -> Iterator[Row]:
        """Yield the rows as the service would keep them.

        Raises:
            ConfigurationError: the file is not what it was taken for, a row is not one the service takes, or
                there is no row at all.
        """
        self._noted.clear()
        kept = None
        read = {
            Format.AZURE_CLI: self._azure_cli,
            Format.JSON_LINES: self._json_lines,
            Format.CSV: self._csv,
        }
        with _opened(self.path) as file:
            for where, row in read[self.format](file):
                try:
                    kept = stored_form(row)
                except RequestRejected as refused:
                    raise self._bad(where, f"the service would refuse this row ({refused.code})") from None
                yield kept
        if kept is None:
            raise ConfigurationError(f"{self.path.name} holds no rows", hint="give a file with rows")

    @property
    def assumptions(self) -> list[str]:
        """Return what was assumed about the rows read so far, one sentence each."""
        return [
            f"{note} ({count:,} {'value' if count == 1 else 'values'})"
            for note in Note
            if (count := self._noted[note])
        ]

    def _note(self, note: Note) -> None:
        self._noted[note] += 1

    def _azure_cli(self, file: IO[str]) -> Iterator[tuple[str, Row]]:
        number = 0
        try:
            for name, value in JsonStream(file).members():
                if name == "items":
                    number += 1
                    where = f"item {number}"
                    yield where, self._made(where, from_azure_cli, value)
                elif name == "nextMarker" and value:
                    self._note(Note.MORE_PAGES)
                elif name not in _MEMBERS:
                    raise self._bad("", "it is not what `az storage entity query -o json` prints")
        except NotJson as error:
            raise self._bad(str(error), "this is not JSON, or it is cut off") from None

    def _json_lines(self, file: IO[str]) -> Iterator[tuple[str, Row]]:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"line {number}"
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise self._bad(
                    f"{where}, column {error.colno}", "this is not one JSON object a line"
                ) from None
            yield where, self._made(where, from_json_line, value)

    def _csv(self, file: IO[str]) -> Iterator[tuple[str, Row]]:
        reader = csv.reader(file, strict=True)
        header = None
        try:
            for cells in reader:
                where = f"line {reader.line_num}"
                if header is None:
                    header = self._made(where, CsvHeader.read, cells)
                elif cells:
                    yield where, self._made(where, header.row, cells)
        except csv.Error:
            raise self._bad(f"line {reader.line_num}", "this is not CSV: a quote is out of place") from None

    def _made(self, where: str, make: Callable[[Any, Callable[[Note], None]], Any], value: Any) -> Any:
        try:
            return make(value, self._note)
        except BadRow as bad:
            raise self._bad(where, bad.problem, bad.cure) from None

    def _bad(
        self, where: str, problem: str, cure: str = "mend the file and start again"
    ) -> ConfigurationError:
        place = f"{self.path.name}, {where}" if where else self.path.name
        return ConfigurationError(f"{place}: {problem}", hint=cure)


def open_data(path: Path) -> DataFile:
    """Return a data file; its format is told by its name, and for `.json` by how it begins.

    Raises:
        ConfigurationError: no such file, or none of the formats.
    """
    found = _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise ConfigurationError(f"{path.name} is of no known format", hint=_KNOWN)
    with _opened(path) as file:
        if found is Format.AZURE_CLI and _is_json_lines(file):
            found = Format.JSON_LINES
    return DataFile(path, found)


def _is_json_lines(file: IO[str]) -> bool:
    """Tell whether the first line is a whole object that is no Azure CLI answer."""
    first = next((line for line in file if line.strip()), "")
    try:
        value = json.loads(first)
    except json.JSONDecodeError:
        return False
    return isinstance(value, dict) and not _MEMBERS & value.keys()


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """Open a text file in UTF-8, or in UTF-16 when its mark says so (as some shells redirect output)."""
    try:
        with path.open("rb") as binary:
            marked = binary.read(2) in (b"\xff\xfe", b"\xfe\xff")
        with path.open(encoding="utf-16" if marked else "utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error.strerror or 'I/O error'})", hint="give the path of a data file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{path.name} is not text in UTF-8", hint="save it as UTF-8 and start again"
        ) from None


# --- one large JSON document ------------------------------------------------------------------------------

_CHUNK = 256 * 1024
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = "0123456789.eE+-"


class NotJson(ValueError):
    """The document is not JSON, or is cut off; says line and column, which count from 1, and no text."""


class JsonStream:
    """A JSON document, read as it is needed: memory holds a chunk and the largest item."""

    def __init__(self, file: IO[str]) -> None:
        """Take a text file, open for reading, at its beginning."""
        self._file = file
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._at = 0
        self._line = 1
        self._column = 1

    def members(self) -> Iterator[tuple[str, Any]]:
        """Yield the members of an object, of the array `items` each item by itself; of an array, its items.

        Raises:
            NotJson: where the document breaks off, or stops being JSON.
        """
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
        """Yield before each element of a list that this sign ends."""
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
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._more():
                    continue
                raise self._error(error.pos) from None
            # A number may go on in the next chunk (`-1.5e` is read as -1.5); all else ends with its own sign.
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
        """Return the next character that is not space, "" at the end; it stays unread."""
        while True:
            if space := _SPACE.match(self._text, self._at):
                self._at = space.end()
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def _more(self) -> bool:
        """Read on, forgetting what was consumed; False at the end of the file."""
        chunk = self._file.read(_CHUNK)
        if chunk:
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

    def _error(self, position: int) -> NotJson:
        line, column = self._place(position)
        return NotJson(f"line {line}, column {column}")


# --- CSV --------------------------------------------------------------------------------------------------

_TYPE_COLUMNS = (TYPE_SUFFIX, "@type")
_SERVER_OWNED = frozenset({TIMESTAMP.lower(), "etag", "odata.etag"})


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of values.

    Attributes:
        name: the property.
        at: its position.
        edm: its type; that of a row without one when `type_at` is given.
        type_at: position of the column that says the type row by row, None without one.
    """

    name: str
    at: int
    edm: str
    type_at: int | None


@dataclass(frozen=True, slots=True)
class CsvHeader:
    """The columns of a CSV file.

    `Name:Edm.Type` says the type of a column. `Name@type` (or `Name@odata.type`) holds the type of `Name` row
    by row, as exports of storage tools have it. A column with neither is Edm.String. CSV knows no absent
    value: an empty cell means that the row lacks the property. Keys may be empty.
    """

    columns: tuple[_Column, ...]
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
        columns: dict[str, _Column] = {}
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
            edm = type_named(said) if said else STRING
            if name in _KEYS and edm != STRING:
                raise BadRow(f"{name} is not Edm.String", "keys are text")
            type_at = None if said else type_columns.get(name)
            if not said and type_at is None and name not in _KEYS:
                note(Note.NO_TYPE_IN_HEADER)
            columns[name] = _Column(name, at, edm, type_at)
        for key in _KEYS:
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
            if column.name in _KEYS:
                row[column.name] = text
            elif text:
                said = "" if column.type_at is None else cells[column.type_at]
                _put(row, column.name, type_named(said) if said else column.edm, text)
            else:
                note(Note.EMPTY_CELL)
        return row


# --- values -----------------------------------------------------------------------------------------------

_INT32 = range(-(2**31), 2**31)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,7})?(Z|\+00:00)", re.ASCII)
_CLI_SERVER = frozenset({"etag", TIMESTAMP, ETAG})


def from_azure_cli(item: object, note: Noting) -> Row:
    """Return an item of `az storage entity query -o json` as a wire row. Raises BadRow."""
    source = _object(item)
    row: Row = {}
    for name, value in source.items():
        if name in _CLI_SERVER:
            note(Note.SERVER_OWNED)
        elif name in _KEYS:
            row[name] = value
        elif isinstance(value, str):
            # The CLI prints a DateTime without its type: only its form tells it from text.
            guessed = DATETIME if _MOMENT.fullmatch(value) else STRING
            note(Note.DATETIME_BY_FORM if guessed == DATETIME else Note.PLAIN_TEXT)
            _put(row, name, guessed, value)
        else:
            _put_json(row, name, value, note)
    return _keyed(row)


def from_json_line(item: object, note: Noting) -> Row:
    """Return a wire row, or a plain object, as a wire row. Raises BadRow."""
    source = _object(item)
    row: Row = {}
    for name, value in source.items():
        if name in (TIMESTAMP, TIMESTAMP + TYPE_SUFFIX) or name.startswith("odata."):
            note(Note.SERVER_OWNED)
        elif name.endswith(TYPE_SUFFIX):
            continue
        elif name in _KEYS:
            row[name] = value
        elif value is not None and (said := source.get(name + TYPE_SUFFIX)) is not None:
            _put(row, name, type_named(str(said)), _said_text(value))
        elif isinstance(value, str):
            row[name] = value
        else:
            _put_json(row, name, value, note)
    return _keyed(row)


def type_named(name: str) -> str:
    """Return the EDM type of a name, `Edm.Int32` or `int32`. Raises BadRow."""
    wanted = name.strip().lower().removeprefix("edm.")
    for edm in TYPES:
        if edm.removeprefix("Edm.").lower() == wanted:
            return edm
    raise BadRow("a type is none of the service's own", f"use one of {', '.join(sorted(TYPES))}")


def _put(row: Row, name: str, edm: str, text: str) -> None:
    try:
        value = wire_value(edm, text)
    except Lossy:
        raise BadRow(f"{name} holds no {edm}", "mend the value, or give the property another type") from None
    row[name] = value
    if edm in ANNOTATED:
        row[name + TYPE_SUFFIX] = edm


def _put_json(row: Row, name: str, value: object, note: Noting) -> None:
    """Set a property from a JSON value that is not text."""
    if value is None:
        note(Note.NULL)
    elif isinstance(value, bool):
        row[name] = value
    elif isinstance(value, int):
        if value in _INT32:
            row[name] = value
        else:
            note(Note.INT64_BY_SIZE)
            _put(row, name, INT64, str(value))
    elif isinstance(value, float):
        _put(row, name, DOUBLE, _double_text(value))
    elif isinstance(value, dict) and {"edm_type", "value"} >= value.keys() and "value" in value:
        _put(row, name, type_named(str(value.get("edm_type", ""))), _said_text(value["value"]))
    else:
        raise BadRow(f"{name} is a list or an object", "a property holds one value")


def _said_text(value: object) -> str:
    """Return the text of a JSON value whose type is given next to it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double_text(value)
    return str(value)


def _double_text(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return repr(number)


def _object(item: object) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise BadRow("this is not an object", "a row is a JSON object with PartitionKey and RowKey")
    return item


def _keyed(row: Row) -> Row:
    for key in _KEYS:
        if not isinstance(row.get(key), str):
            raise BadRow(f"{key} is missing or not text", f"every row needs {PARTITION_KEY} and {ROW_KEY}")
    return row
