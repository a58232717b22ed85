"""Reading one large JSON document item by item, without holding it in memory.

Rules kept here:

* Only the items of one array are streamed: a top-level array, or the array under a named member of a
  top-level object; other members are returned as they come.
* Memory holds a chunk and the largest single item.
* A syntax error names line and column, never the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

_CHUNK = 256 * 1024
_SPACE = " \t\r\n"
_NUMBER = "0123456789.eE+-"


class NotJson(ValueError):
    """The document is not JSON, or is cut off. `line` and `column` count from 1."""

    def __init__(self, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}")
        self.line = line
        self.column = column


class JsonStream:
    """Items of a JSON document that is read as it is needed."""

    def __init__(self, file: IO[str]) -> None:
        """Take a text file, open for reading, at its beginning."""
        self._file = file
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._at = 0
        self._line = 1
        self._column = 1
        self._ended = False

    def peek(self) -> str:
        """Return the next character that is not space, "" at the end; it stays unread."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def items(self) -> Iterator[Any]:
        """Yield the items of an array that begins here."""
        self._expect("[")
        if self.peek() == "]":
            self._at += 1
            return
        while True:
            yield self._value()
            if self.peek() == ",":
                self._at += 1
                continue
            self._expect("]")
            return

    def members(self, streamed: str) -> Iterator[tuple[str, Any]]:
        """Yield the members of an object that begins here; of the member `streamed`, each item by itself."""
        self._expect("{")
        if self.peek() == "}":
            self._at += 1
            return
        while True:
            name = self._value()
            if not isinstance(name, str):
                raise self._error(self._at)
            self._expect(":")
            if name == streamed and self.peek() == "[":
                for item in self.items():
                    yield name, item
            else:
                yield name, self._value()
            if self.peek() == ",":
                self._at += 1
                continue
            self._expect("}")
            return

    def end(self) -> None:
        """Raise NotJson unless nothing but space follows."""
        if self.peek():
            raise self._error(self._at)

    def _value(self) -> Any:
        self.peek()
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
        if self.peek() != sign:
            raise self._error(self._at)
        self._at += 1

    def _more(self) -> bool:
        """Read on, forgetting what was consumed; False at the end of the file."""
        if self._ended:
            return False
        chunk = self._file.read(_CHUNK)
        if not chunk:
            self._ended = True
            return False
        self._line, self._column = self._place(self._at)
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return True

    def _place(self, position: int) -> tuple[int, int]:
        before = self._text[:position]
        breaks = before.count("\n")
        if not breaks:
            return self._line, self._column + len(before)
        return self._line + breaks, len(before) - before.rfind("\n")

    def _error(self, position: int) -> NotJson:
        return NotJson(*self._place(position))
