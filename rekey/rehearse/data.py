"""Rows for a rehearsal, from a file: Azure CLI output, JSON Lines, or CSV.

Rules kept here:

* Whatever the format, rows come out as wire rows, one at a time; the file is never in memory as a whole.
* What a format does not say is assumed, and every assumption that mattered is reported (`assumptions`): a
  rehearsal on guessed types proves less than one on the table itself.
* A row that the service would refuse is refused here. An error names the file, the line or record and the
  cure; it repeats no key and no value.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from rekey.errors import ConfigurationError, RequestRejected
from rekey.model import Row
from rekey.rehearse.csvrows import CsvHeader
from rekey.rehearse.jsonstream import JsonStream, NotJson
from rekey.rehearse.values import NOTES, BadRow, Note, from_azure_cli, from_json_line
from rekey.tables.rules import stored_form


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


@dataclass
class DataFile:
    """A file of rows.

    Attributes:
        path: the file.
        format: what it was taken for.
        rows_read: rows that `rows` has yielded so far.
    """

    path: Path
    format: Format
    rows_read: int = 0
    _noted: Counter[Note] = field(default_factory=Counter)

    def rows(self) -> Iterator[Row]:
        """Yield the rows as the service would keep them.

        Raises:
            ConfigurationError: the file is not what it was taken for, a row is not one the service takes, or
                there is no row at all.
        """
        self.rows_read = 0
        self._noted.clear()
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
                self.rows_read += 1
                yield kept
        if not self.rows_read:
            raise ConfigurationError(f"{self.path.name} holds no rows", hint="give a file with rows")

    @property
    def assumptions(self) -> list[str]:
        """Return what was assumed about the rows read so far, one sentence each."""
        return [
            f"{NOTES[note]} ({count:,} {'value' if count == 1 else 'values'})"
            for note, count in sorted(self._noted.items())
        ]

    def _note(self, note: Note) -> None:
        self._noted[note] += 1

    def _azure_cli(self, file: IO[str]) -> Iterator[tuple[str, Row]]:
        stream = JsonStream(file)
        try:
            if stream.peek() == "[":
                found: Iterator[tuple[str, Any]] = (("items", item) for item in stream.items())
            else:
                found = stream.members("items")
            number = 0
            for name, value in found:
                if name == "items":
                    number += 1
                    where = f"item {number}"
                    yield where, self._made(where, from_azure_cli, value)
                elif name == "nextMarker" and value:
                    self._note(Note.MORE_PAGES)
                elif name not in _MEMBERS:
                    raise self._bad("", "it is not what `az storage entity query -o json` prints")
            stream.end()
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
