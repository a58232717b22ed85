"""How sure a share is that was counted on some pages of a table. Pure.

Rules kept here:

* Rows of one page resemble each other, so it is pages that are counted as draws, not rows: the interval is
  that of a ratio over clusters (Cochran, "Sampling Techniques", on cluster sampling).
* What no page shows is at most 3 / pages frequent among pages, at 95 % (the rule of three).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.96
_NONE_SEEN = 3.0


def poisson_upper(events: int) -> float:
    """Return the upper end of the 95 % interval of how many events there are to be expected, having seen so
    many (Wilson and Hilferty's approximation)."""
    more = events + 1
    return more * (1 - 1 / (9 * more) + _Z / (3 * math.sqrt(more))) ** 3


@dataclass(frozen=True, slots=True)
class Share:
    """A share of rows with its 95 % interval, all 0.0 to 1.0."""

    value: float
    low: float
    high: float


def share_of(pages: Sequence[tuple[int, int]], *, exact: bool) -> Share:
    """Return the share of rows that have something.

    Args:
        pages: for each page read, its rows and how many of them have it.
        exact: the pages are all there are: then the share is the share.
    """
    rows, hits = sum(page[0] for page in pages), sum(page[1] for page in pages)
    if not rows:
        return Share(0.0, 0.0, 0.0 if exact else 1.0)
    value = hits / rows
    if exact:
        return Share(value, value, value)
    count = len(pages)
    if hits == 0:
        return Share(0.0, 0.0, min(1.0, _NONE_SEEN / count))
    if hits == rows:
        return Share(1.0, max(0.0, 1.0 - _NONE_SEEN / count), 1.0)
    if count < 2:
        return Share(value, 0.0, 1.0)
    spread = sum((hit - value * size) ** 2 for size, hit in pages) / (count * (count - 1))
    variance = spread / (rows / count) ** 2
    # As many independent rows as would vary like these pages; of those, Wilson's interval, which is not
    # symmetric: near 0 and 1 a symmetric one would miss the truth too often.
    draws = value * (1 - value) / variance if variance else float(rows)
    centre = (value + _Z**2 / (2 * draws)) / (1 + _Z**2 / draws)
    half = _Z * math.sqrt(value * (1 - value) / draws + (_Z / (2 * draws)) ** 2) / (1 + _Z**2 / draws)
    return Share(value, max(0.0, centre - half), min(1.0, centre + half))
