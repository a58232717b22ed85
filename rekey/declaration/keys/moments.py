"""Dates, .NET ticks and inversions that sort the newest first. Arithmetic is on integers of 100 ns, because
`datetime` would lose the seventh digit.

Moments are ISO 8601 text in UTC, like DateTime properties: `2024-03-05T10:20:30.1234567Z`, 0 to 7 fractional
digits, `Z` or `+00:00`. Other offsets are refused, not converted. Ticks are those of .NET: 100 ns since
0001-01-01T00:00:00 (https://learn.microsoft.com/dotnet/api/system.datetime.ticks).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from rekey.core.clock import MAX_TICKS, TICKS_PER_SECOND
from rekey.declaration.keys.base import Changed, Expression, Plain, Scope, need_int, need_one_of, operand

# Seconds from 0001-01-01 to 1970-01-01.
UNIX_EPOCH_SECONDS = 62_135_596_800

# The formats of `date`, with the number of characters of the ISO text that each takes.
FORMATS = {"yyyy": 4, "yyyy-MM": 7, "yyyy-MM-dd": 10, "yyyy-MM-dd-HH": 13}

_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.(\d{1,7}))?(?:Z|\+00:00)", re.ASCII
)
_SECONDS_LENGTH = len("yyyy-MM-ddTHH:mm:ss")

# Digits are read as ticks of these years only: within them no number can be both ticks and inverted ticks.
FIRST_YEAR, LAST_YEAR = 1990, 2060
_LOW_TICKS, _HIGH_TICKS = (
    (datetime(year, 1, 1) - datetime.min).days * 86_400 * TICKS_PER_SECOND  # noqa: DTZ001, DTZ901 - as .NET's
    for year in (FIRST_YEAR, LAST_YEAR)
)
_TICKS = re.compile(r"\d{18,19}", re.ASCII)


@lru_cache(maxsize=256)
def parse_ticks(text: str) -> int | None:
    """Return the .NET ticks of an ISO 8601 moment in UTC, or None for other text. Cached, because the keys of
    a row and its index rows often use the same moment."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        return None
    try:
        since = datetime.fromisoformat(text[:_SECONDS_LENGTH]) - datetime.min  # noqa: DTZ901 - year 1 of .NET
    except ValueError:  # 30 February, year 0
        return None
    return (since.days * 86_400 + since.seconds) * TICKS_PER_SECOND + int((match[1] or "0").ljust(7, "0"))


def read_ticks(text: str) -> tuple[int, bool] | None:
    """Return the .NET ticks that 18 or 19 digits stand for, and whether they are inverted; None for other
    text or for other years than 1990 to 2059."""
    if _TICKS.fullmatch(text) is None:
        return None
    for number, is_inverted in ((int(text), False), (MAX_TICKS - int(text), True)):
        if _LOW_TICKS <= number < _HIGH_TICKS:
            return number, is_inverted
    return None


def _ticks_of(of: Expression, scope: Scope) -> Callable[[str], int]:
    """Return the function that reads a moment; it refuses other text."""

    def ticks_of(text: str) -> int:
        ticks = parse_ticks(text)
        if ticks is None:
            problem = f"{of.describe()} is no UTC moment (yyyy-MM-ddTHH:mm:ss.fffffffZ)"
            cure = "name a DateTime property, or fix the rows"
            raise scope.refusal("not-a-date", problem, cure=cure)
        return ticks

    return ticks_of


@dataclass(frozen=True)
class Date(Changed, op="date"):
    """A moment's date. See `date`."""

    format: str
    of: Expression

    def __post_init__(self) -> None:
        need_one_of("keys.date(format)", self.format, FORMATS)

    def change(self, scope: Scope) -> Callable[[str], str]:
        check, length = _ticks_of(self.of, scope), FORMATS[self.format]

        def cut(text: str) -> str:
            ticks = read_ticks(text)
            if ticks is None:
                check(text)
            else:
                text = (datetime.min + timedelta(microseconds=ticks[0] // 10)).isoformat()  # noqa: DTZ901
            return text[:length].replace("T", "-")

        return cut


class Ticks(Plain, op="ticks"):
    """.NET ticks. See `ticks`."""

    def change(self, scope: Scope) -> Callable[[str], str]:
        moment = _ticks_of(self.of, scope)
        return lambda text: f"{moment(text):019d}"


class InvertedTicks(Plain, op="inverted_ticks"):
    """`DateTime.MaxValue` minus the moment. See `inverted_ticks`."""

    def change(self, scope: Scope) -> Callable[[str], str]:
        moment = _ticks_of(self.of, scope)
        return lambda text: f"{MAX_TICKS - moment(text):019d}"


@dataclass(frozen=True)
class InvertedSeconds(Changed, op="inverted_seconds"):
    """A maximum minus Unix seconds. See `inverted_seconds`."""

    max: int
    of: Expression

    def __post_init__(self) -> None:
        need_int("keys.inverted_seconds(max)", self.max, least=1)

    def change(self, scope: Scope) -> Callable[[str], str]:
        moment, most, width = _ticks_of(self.of, scope), self.max, len(str(self.max))

        def inverted(text: str) -> str:
            seconds = moment(text) // TICKS_PER_SECOND - UNIX_EPOCH_SECONDS
            if not 0 <= seconds <= most:
                problem = f"{self.of.describe()} is before 1970 or after the maximum of inverted_seconds"
                cure = "raise inverted_seconds(max, …), or use keys.inverted_ticks, which takes every date"
                raise scope.refusal("out-of-range", problem, cure=cure)
            return f"{most - seconds:0{width}d}"

        return inverted


def date(format: str, of: Expression | str) -> Expression:  # noqa: A002 - the natural name
    """Return the moment's UTC date in one of the formats `yyyy`, `yyyy-MM`, `yyyy-MM-dd`, `yyyy-MM-dd-HH`.

    The moment may also be .NET ticks, or inverted ones, as 18 or 19 digits (years 1990 to 2059).
    """
    return Date(format, operand("keys.date", of))


def ticks(of: Expression | str) -> Expression:
    """Return the moment's .NET ticks in 19 digits: sorts oldest first; keeps all 100 ns digits."""
    return Ticks(operand("keys.ticks", of))


def inverted_ticks(of: Expression | str) -> Expression:
    """Return `DateTime.MaxValue.Ticks - ticks` in 19 digits: sorts newest first; keeps all 100 ns digits."""
    return InvertedTicks(operand("keys.inverted_ticks", of))


def inverted_seconds(max: int, of: Expression | str) -> Expression:  # noqa: A002 - the natural name
    """Return `max` minus the moment's whole Unix seconds (fraction truncated), as wide as `max`: sorts newest
    first.

    Refuses moments before 1970 and moments past `max` seconds (`out-of-range`).
    """
    return InvertedSeconds(max, operand("keys.inverted_seconds", of))
