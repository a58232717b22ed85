"""A table of a TOML file. Errors name file, line, table, key and cure, never a value: it may be a secret."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, TypeAlias, TypeVar, get_type_hints

from rekey.errors import ConfigurationError
from rekey.project.window import Window

T = TypeVar("T")
# A field written as a duration, `"24h"`, under the field's name without `_s`.
Seconds: TypeAlias = Annotated[float, "a duration"]
# A field written as a size, `"64MiB"`.
Bytes: TypeAlias = Annotated[int, "a size"]
AUTO: Final = "auto"
# A field written as a whole number or `"auto"`.
Rate: TypeAlias = int | Literal["auto"] | None
_fields_of: Callable[[type], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))
_TEXTS = re.compile(r"\"{3}[\s\S]*?\"{3}|'{3}[\s\S]*?'{3}")
_NAME = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_DOTTED = r"""((?:[\w\s.-]|"[^"]*"|'[^']*')+)"""
_HEADER, _KEY = re.compile(rf"\s*\[+{_DOTTED}\]"), re.compile(rf"{_DOTTED}=")
_DURATION = re.compile(r"(\d+)(s|m|h|d)")
_SIZE = re.compile(r"(\d+)(B|KiB|MiB|GiB)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def seconds_of(text: str) -> int | None:
    """Return a duration such as `"90s"`, `"15m"`, `"24h"` or `"30d"` in seconds, None for other text."""
    return _amount(text, _DURATION, _SECONDS)


def _amount(text: str, form: re.Pattern[str], units: Mapping[str, int]) -> int | None:
    match = form.fullmatch(text.strip())
    return None if match is None else int(match.group(1)) * units[match.group(2)]


def _line_of(text: str, names: list[str]) -> int:
    """Return the line of a key, or of the table that lacks it; 0 without either. The parser has no lines.

    Args:
        text: the whole file, which was parsed.
        names: of the tables around the key, and of the key.
    """
    table: list[str] = []
    line = deepest = 0
    # Lines of a multi-line text may look like keys.
    text = _TEXTS.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, content in enumerate(text.split("\n"), 1):
        if (match := _HEADER.match(content)) is not None:
            path = table = _names_in(match[1])
        elif (match := _KEY.match(content)) is not None:
            path = table + _names_in(match[1])
        else:
            continue
        depth = max(at for at in range(len(names) + 1) if path[:at] == names[:at])
        if depth > deepest:
            line, deepest = number, depth
    return line


def _names_in(dotted: str) -> list[str]:
    return [name.strip("\"'") for name in _NAME.findall(dotted)]


class Section:
    """One table of a file.

    Attributes:
        path: the file, for messages.
        name: the table's dotted name, "" for the whole file.
        content: the parsed table.
        text_of_file: the whole file, for line numbers; "" if there is none.
    """

    def __init__(self, path: Path, name: str, content: dict[str, Any], text: str = "") -> None:
        self.path = path
        self.name = name
        self.content = content
        self.text_of_file = text

    def fail(self, key: str, problem: str, cure: str) -> NoReturn:
        """Raise a ConfigurationError that names file, line, table, key, problem and cure."""
        where = f"[{self.name}] {key}".strip() if self.name else f"[{key}]"
        names = [name for name in (*self.name.split("."), key) if name]
        line = _line_of(self.text_of_file, names)
        place = f", line {line}" if line else ""
        raise ConfigurationError(f"{self.path}{place}: {where}: {problem}", hint=cure)

    def allow(self, *keys: str) -> None:
        """Raise ConfigurationError for any other key."""
        for key in self.content:
            if key not in keys:
                what = "key" if self.name else "section"
                near = get_close_matches(key.lower(), [str(key) for key in keys], 1, 0.7)
                instead = f"write {near[0]}" if near else "remove it"
                self.fail(key, f"unknown {what}", f"{instead}; known here: {', '.join(keys)}")

    def section(self, key: str, *, required: bool = False) -> Section:
        """Return a table within this one; an empty one when it is absent and not required."""
        value = self.content.get(key, {})
        name = f"{self.name}.{key}" if self.name else key
        if required and key not in self.content:
            self.fail(key, "is missing", f"add the section [{name}]; `rekey init` shows how")
        if not isinstance(value, dict):
            self.fail(key, "is not a section", f"write it as a section: [{name}]")
        return Section(self.path, name, value, self.text_of_file)

    def without(self, *keys: str) -> Section:
        """Return this table without some of its keys."""
        rest = {key: value for key, value in self.content.items() if key not in keys}
        return Section(self.path, self.name, rest, self.text_of_file)

    def read(self, value: type[T], more: dict[Any, Reader] | None = None) -> T:
        """Read all keys of this section as the fields of a dataclass; absent ones keep their defaults.

        A field's type determines how its key is written: `Seconds`, `Bytes`, `int` (at least 1), `float` (an
        amount) or `str`, the last three also with None; a list of words, or a window. `more` has readers for
        further types.

        Raises:
            ConfigurationError: a key is unknown, or its value has another form.
        """
        known = _READERS | (more or {})
        readers = {name.removesuffix("_s"): (name, known[kind]) for name, kind in _fields_of(value).items()}
        self.allow(*readers)
        values = {name: reader(self, key) for key, (name, reader) in readers.items() if key in self.content}
        return value(**values)

    def text(self, key: str) -> str | None:
        """Read a text that is not blank; None when absent."""
        value = self.content.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            self.fail(key, "is not a text", f'write {key} = "..."')
        return value

    def flag(self, key: str) -> bool:
        """Read `true` or `false`; false when absent."""
        value = self.content.get(key, False)
        if not isinstance(value, bool):
            self.fail(key, "is neither true nor false", f"write {key} = true")
        return value

    def count(self, key: str) -> int:
        return self._whole(key, "is not a whole number of at least 1", f"write for example {key} = 16")

    def rate(self, key: str) -> int | Literal["auto"]:
        if self.content[key] == AUTO:
            return AUTO
        problem = 'is neither a whole number of at least 1 nor "auto"'
        return self._whole(key, problem, f'write for example {key} = 5000, or "auto"')

    def _whole(self, key: str, problem: str, cure: str) -> int:
        value = self.content[key]
        if type(value) is not int or value < 1:
            self.fail(key, problem, cure)
        return int(value)

    def amount(self, key: str) -> float:
        """Read a number of at least 0, e.g. a price."""
        value = self.content[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            self.fail(key, "is not a number of at least 0", f"write for example {key} = 0.05")
        return float(value)

    def words(self, key: str) -> tuple[str, ...]:
        """Read a program and its arguments, as a list of texts."""
        value = self.content[key]
        if not isinstance(value, list) or not value or not value[0]:
            value = [None]
        if any(not isinstance(word, str) or "\0" in word for word in value):
            cure = f'write {key} = ["program", "argument"]; no shell reads it'
            self.fail(key, "is not a program with its arguments, as a list of texts", cure)
        return tuple(value)

    def window(self, key: str) -> Window:
        try:
            return Window.of(self.text(key) or "")
        except ValueError as error:
            self.fail(key, str(error), f'write for example {key} = "Sat 02:00-04:00 Europe/Berlin"')

    def duration(self, key: str) -> float:
        """Read `"90s"`, `"15m"`, `"24h"`, `"30d"` as seconds; `"0s"` is allowed, and is 0."""
        return self._with_unit(key, _DURATION, _SECONDS, '"90s", "15m", "24h" or "30d"')

    def size(self, key: str) -> int:
        """Read `"64MiB"` as bytes, at least 1."""
        examples = '"512KiB", "64MiB" or "1GiB"'
        size = self._with_unit(key, _SIZE, _BYTES, examples)
        if size == 0:
            self.fail(key, "is nothing", f"write for example {examples}")
        return size

    def _with_unit(self, key: str, form: re.Pattern[str], units: Mapping[str, int], examples: str) -> int:
        value = self.content[key]
        amount = _amount(value, form, units) if isinstance(value, str) else None
        if amount is None:
            self.fail(key, "is not an amount with its unit", f"write for example {examples}")
        return amount


# Reads the value of a key.
Reader: TypeAlias = Callable[[Section, str], Any]

_READERS: dict[Any, Reader] = {
    Seconds: Section.duration,
    Seconds | None: Section.duration,
    Bytes: Section.size,
    int: Section.count,
    int | None: Section.count,
    Rate: Section.rate,
    float | None: Section.amount,
    str: Section.text,
    str | None: Section.text,
    float: Section.amount,
    tuple[str, ...]: Section.words,
    Window | None: Section.window,
}
