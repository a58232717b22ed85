"""One of the two keys over many rows: lengths, characters, shapes. Pure.

Rules kept here:

* Memory does not grow with the table: counters over fixed classes, a histogram of lengths, and a sample.
* The sample holds keys. It is for rules of advice that must see keys; reports hold counts only.
* The sample does not depend on the order of the keys: it holds those whose CRC-32 is lowest.
"""

from __future__ import annotations

import unicodedata
import zlib
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from enum import IntFlag
from itertools import accumulate
from string import ascii_lowercase, ascii_uppercase, digits

from rekey.core.limits import MAX_KEY_UNITS, utf16_units
from rekey.core.plain import told
from rekey.inspect.shapes import Shape, shapes_in

SAMPLED_KEYS = 2_000


class Mark(IntFlag):
    """Kinds of characters that a key holds."""

    LOWER = 1
    UPPER = 2
    DIGITS = 4
    # `-`, `.`, `_`, `~`: never escaped in addresses.
    PLAIN = 8
    SPACE = 16
    # Other ASCII characters: escaped in addresses, or with a meaning in filters.
    SPECIAL = 32
    NON_ASCII = 64
    # A space at the beginning or the end.
    EDGE = 128
    # Not in Unicode's composed form: two keys may look alike and differ.
    LOOSE = 256


# As plain integers: flags are slow.
_SPACE, _SPECIAL, _NON_ASCII, _EDGE, _LOOSE = map(
    int, (Mark.SPACE, Mark.SPECIAL, Mark.NON_ASCII, Mark.EDGE, Mark.LOOSE)
)
_MARK_OF = {
    **dict.fromkeys(ascii_lowercase, Mark.LOWER),
    **dict.fromkeys(ascii_uppercase, Mark.UPPER),
    **dict.fromkeys(digits, Mark.DIGITS),
    **dict.fromkeys("-._~", Mark.PLAIN),
    " ": Mark.SPACE,
}
# The marks of ASCII characters, by code, as a table for `bytes.translate`.
_MARKS = bytes(_MARK_OF.get(chr(code), Mark.SPECIAL) for code in range(256))


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of keys in UTF-16 units."""

    least: int
    median: int
    most: int
    mean: float = field(metadata=told(digits=2))


class KeyColumn:
    """Takes keys one by one (`add`) and keeps their counts and a sample."""

    def __init__(self) -> None:
        self.keys = 0
        self.empty = 0
        self.shapes: Counter[Shape] = Counter()
        self.specials: Counter[str] = Counter()
        self._units: Counter[int] = Counter()
        self._total_units = 0
        self._marks: Counter[int] = Counter()
        self._sample: list[tuple[int, str]] = []
        self._bar = 1 << 32

    def add(self, key: str) -> None:
        """Count one key."""
        self.keys += 1
        units = utf16_units(key)
        self._units[min(units, MAX_KEY_UNITS + 1)] += 1
        self._total_units += units
        in_ascii = key.encode("ascii", "ignore")
        marks = 0
        for mark in set(in_ascii.translate(_MARKS)):
            marks |= mark
        if len(in_ascii) < len(key):
            marks |= _NON_ASCII if unicodedata.is_normalized("NFC", key) else _NON_ASCII | _LOOSE
        if marks & _SPECIAL:
            self.specials.update(chr(code) for code in set(in_ascii) if _MARKS[code] == _SPECIAL)
        if marks & _SPACE and key != key.strip(" "):
            marks |= _EDGE
        self._marks[marks] += 1
        if not key:
            self.empty += 1
            return
        for shape in shapes_in(key):
            self.shapes[shape] += 1
        rank = zlib.crc32(key.encode("utf-8", "surrogatepass"))
        if rank < self._bar:
            self._sample.append((rank, key))
            if len(self._sample) > 2 * SAMPLED_KEYS:
                self._sample = sorted(self._sample)[:SAMPLED_KEYS]
                self._bar = self._sample[-1][0]

    @property
    def lengths(self) -> Lengths:
        """Return the lengths of the keys added; zeros without any."""
        if not self.keys:
            return Lengths(0, 0, 0, 0.0)
        used = sorted(self._units)
        keys_up_to = list(accumulate(self._units[units] for units in used))
        median = used[bisect_left(keys_up_to, (self.keys + 1) // 2)]
        return Lengths(used[0], median, used[-1], self._total_units / self.keys)

    @property
    def sample(self) -> list[str]:
        """Return up to 2,000 of the keys, drawn evenly; for rules, never for reports."""
        return [key for _, key in sorted(self._sample)[:SAMPLED_KEYS]]

    def marked(self, mark: Mark) -> int:
        """Return how many keys have any of these marks."""
        return sum(count for marks, count in self._marks.items() if marks & mark)

    def share(self, *shapes: Shape) -> float:
        """Return the share of keys with a shape, 0.0 to 1.0; for several shapes the sum, at most 1.0."""
        return min(1.0, sum(self.shapes[shape] for shape in shapes) / self.keys) if self.keys else 0.0
