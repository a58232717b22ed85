"""Moments: dates, .NET ticks, and their inversions that put the newest first.

Rules kept here:

* Moments are ISO 8601 text in UTC, as DateTime properties are: `2024-03-05T10:20:30.1234567Z`, 0 to 7 digits
  of fraction, `Z` or `+00:00`. Text properties of that form do as well. Other offsets are refused, not
  converted.
* All arithmetic is on integers of 100 ns: `datetime` would lose the seventh digit.
* Ticks are those of .NET: 100 ns since 0001-01-01T00:00:00. `DateTime.MaxValue` is 3155378975999999999
  (https://learn.microsoft.com/dotnet/api/system.datetime.ticks). Both ticks and inverted ticks are padded to
  19 digits, so that text sorts as time does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date as calendar_date
from functools import lru_cache
from typing import ClassVar

from rekey.declaration.keys.base import Evaluator, Expression, Scope, need_int, need_one_of, operand
from rekey.model import Row

MAX_TICKS = 3_155_378_975_999_999_999
TICKS_PER_SECOND = 10_000_000
UNIX_EPOCH_SECONDS = 62_135_596_800
"""Seconds from 0001-01-01 to 1970-01-01."""

FORMATS = {"yyyy": 4, "yyyy-MM": 7, "yyyy-MM-dd": 10, "yyyy-MM-dd-HH": 13}
"""What `date` can write, and how many characters of the ISO text that is."""

_MOMENT = re.compile(
    r"(\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01]))T([01]\d|2[0-3]):([0-5]\d):([0-5]\d)"
    r"(?:\.(\d{1,7}))?(?:Z|\+00:00)",
    re.ASCII,
)


@lru_cache(maxsize=256)
def parse_ticks(text: str) -> int | None:
    """Return the .NET ticks of an ISO 8601 moment in UTC, or None when the text is none.

    Remembered for a while, because the keys of one row and its index rows often use the same moment.
    """
    match = _MOMENT.fullmatch(text)
    if match is None:
        return None
    day, hours, minutes, seconds, fraction = match.groups()
    try:
        days = calendar_date.fromisoformat(day).toordinal() - 1
    except ValueError:  # 30 February, year 0
        return None
    whole = ((days * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * TICKS_PER_SECOND + (int(fraction.ljust(7, "0")) if fraction else 0)


def _ticks_of(of: Expression, scope: Scope) -> Callable[[Row, str], int]:
    inner = of.compile(scope)

    def evaluate(row: Row, item: str) -> int:
        found = parse_ticks(inner(row, item))
        if found is None:
            raise scope.refusal(
                "not-a-date",
                f"{of.describe()} is no UTC moment (yyyy-MM-ddTHH:mm:ss.fffffffZ)",
                cure="name a DateTime property, or mend the rows",
            )
        return found

    return evaluate


@dataclass(frozen=True)
class Date(Expression):
    """A moment's date. See `date`."""

    format: str
    of: Expression
    op: ClassVar[str] = "date"

    def __post_init__(self) -> None:
        need_one_of("keys.date(format)", self.format, FORMATS)

    def compile(self, scope: Scope) -> Evaluator:
        """Return the closure; the text is checked to be a moment, then cut."""
        inner, length = self.of.compile(scope), FORMATS[self.format]

        def evaluate(row: Row, item: str) -> str:
            text = inner(row, item)
            if parse_ticks(text) is None:
                raise scope.refusal(
                    "not-a-date",
                    f"{self.of.describe()} is no UTC moment (yyyy-MM-ddTHH:mm:ss.fffffffZ)",
                    cure="name a DateTime property, or mend the rows",
                )
            return text[:length].replace("T", "-")

        return evaluate

    def describe(self) -> str:
        """Return `date(yyyy-MM, A)`."""
        return f"date({self.format}, {self.of.describe()})"


@dataclass(frozen=True)
class Ticks(Expression):
    """.NET ticks. See `ticks`."""

    of: Expression
    op: ClassVar[str] = "ticks"

    def compile(self, scope: Scope) -> Evaluator:
        """Return the closure."""
        moment = _ticks_of(self.of, scope)
        return lambda row, item: f"{moment(row, item):019d}"

    def describe(self) -> str:
        """Return `ticks(A)`."""
        return f"ticks({self.of.describe()})"


@dataclass(frozen=True)
class InvertedTicks(Expression):
    """`DateTime.MaxValue` minus the moment. See `inverted_ticks`."""

    of: Expression
    op: ClassVar[str] = "inverted_ticks"

    def compile(self, scope: Scope) -> Evaluator:
        """Return the closure."""
        moment = _ticks_of(self.of, scope)
        return lambda row, item: f"{MAX_TICKS - moment(row, item):019d}"

    def describe(self) -> str:
        """Return `inverted_ticks(A)`."""
        return f"inverted_ticks({self.of.describe()})"


@dataclass(frozen=True)
class InvertedSeconds(Expression):
    """A maximum minus Unix seconds. See `inverted_seconds`."""

    max: int
    of: Expression
    op: ClassVar[str] = "inverted_seconds"

    def __post_init__(self) -> None:
        need_int("keys.inverted_seconds(max)", self.max, least=1)

    def compile(self, scope: Scope) -> Evaluator:
        """Return the closure."""
        moment, most, width = _ticks_of(self.of, scope), self.max, len(str(self.max))

        def evaluate(row: Row, item: str) -> str:
            seconds = moment(row, item) // TICKS_PER_SECOND - UNIX_EPOCH_SECONDS
            if not 0 <= seconds <= most:
                raise scope.refusal(
                    "out-of-range",
                    f"{self.of.describe()} is before 1970 or after the maximum of inverted_seconds",
                    cure="raise inverted_seconds(max, …), or use keys.inverted_ticks, which takes every date",
                )
            return f"{most - seconds:0{width}d}"

        return evaluate

    def describe(self) -> str:
        """Return `inverted_seconds(9999999999, A)`."""
        return f"inverted_seconds({self.max}, {self.of.describe()})"


def date(format: str, of: Expression | str) -> Expression:  # noqa: A002 - the word meant
    """Return the moment's UTC date in one of the formats `yyyy`, `yyyy-MM`, `yyyy-MM-dd`, `yyyy-MM-dd-HH`."""
    return Date(format, operand("keys.date", of))


def ticks(of: Expression | str) -> Expression:
    """Return the moment's .NET ticks in 19 digits: sorts oldest first; keeps all 100 ns digits."""
    return Ticks(operand("keys.ticks", of))


def inverted_ticks(of: Expression | str) -> Expression:
    """Return `DateTime.MaxValue.Ticks - ticks` in 19 digits: sorts newest first; keeps all 100 ns digits."""
    return InvertedTicks(operand("keys.inverted_ticks", of))


def inverted_seconds(max: int, of: Expression | str) -> Expression:  # noqa: A002 - the word meant
    """Return `max` minus the moment's whole Unix seconds (fraction cut off), as wide as `max`: newest first.

    Refuses moments before 1970 and moments past `max` seconds (`out-of-range`).
    """
    return InvertedSeconds(max, operand("keys.inverted_seconds", of))
