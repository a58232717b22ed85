"""Estimates how many rows a table holds from a few dozen page reads; Table storage has no count.

The keys form a tree of prefixes. From a page one can jump to the next prefix in a single request, so the
branches of a level are enumerated cheaply; branches that a page did not cover are *open*. Of all open
branches that split at the same depth one, drawn by lot, is enumerated and stands for all of them (Chen,
"Heterogeneous sampling", SIAM J. Comput. 21(2), 1992, after Knuth's estimate of a tree's size). The estimate
is unbiased; for keys of even form (padded numbers, dates, GUIDs) it is close. For others the mean of several
such estimates is closer, and their spread says how close.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import fmean, stdev
from typing import TypeAlias

from rekey.core.plain import json_field
from rekey.model import EntityKey

# PartitionKey, 0, RowKey as UTF-16 code units: these tuples compare as the service orders keys.
Units: TypeAlias = tuple[int, ...]

# A code unit that sorts above every character a key is likely to hold; a noncharacter might be refused.
_ABOVE = 0xFFFD
# Branches of a level to enumerate (more than hexadecimal digits); of the others some are drawn.
_MAX_BRANCHES = 17
# How many of a level's other branches are drawn.
_DRAWS = 8
_SEED = 20
# Runs after which a relative standard error of `_ENOUGH` suffices.
_LEAST_RUNS = 5
_ENOUGH = 0.05
# Digits, upper- and lowercase letters: a level with units of a class may have all of it.
_CLASSES = ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A))


def units_of(key: EntityKey) -> Units:
    """Return a key as code units that compare as the service orders keys."""
    data = f"{key.partition}\0{key.row}".encode("utf-16-be", "surrogatepass")
    return struct.unpack(f">{len(data) // 2}H", data)


def key_from(units: Units) -> EntityKey:
    """Return the key that `units` spell; half a surrogate pair at the end becomes the unit before it."""
    data = b"".join(unit.to_bytes(2, "big") for unit in units)
    try:
        text = data.decode("utf-16-be")
    except UnicodeDecodeError as error:
        text = data[: error.start].decode("utf-16-be") + "\ud7ff"
    partition, _, row = text.partition("\0")
    return EntityKey(partition, row)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows read at once: their keys in order, whether the table ended there, and the cost in requests."""

    keys: Sequence[Units]
    ended: bool
    requests: int = 1


# Reads about one page of rows after a key. `Stretch.requests` is subtracted from the budget.
Read: TypeAlias = Callable[[Units], Awaitable[Stretch]]


@dataclass(frozen=True, slots=True)
class RowEstimate:
    """How many rows a table holds."""

    # The best estimate; exact when `exact`.
    rows: int
    at_least: int = field(metadata=json_field("rows_at_least"))
    exact: bool
    # False when the requests ran out before the estimate covered the whole table.
    settled: bool
    # The relative standard error of the estimate; 0 where it is exact or not known.
    error: float = field(default=0.0, metadata=json_field("rows_error", digits=3, omit_default=True))


@dataclass(frozen=True, slots=True)
class _Open:
    """A branch of which only the beginning was read: all keys beginning with `prefix` after `last`."""

    prefix: Units
    last: Units
    # The level at which keys of the page that ends at `last` differ: the first to enumerate.
    depth: int
    # Branchings above it; branches of one generation are of similar size.
    generation: int
    # Levels below `prefix` at which the last keys of that page differ: the deeper, the fuller the branch.
    shape: int


@dataclass(slots=True)
class _Stratum:
    """Open branches of one generation that look alike; one of them stands for all."""

    # Number of branches.
    weight: float
    # The one that stands for all.
    branch: _Open
    # Its enumeration; None until that begins.
    walk: _Walk | None = None


class Sizer:
    """Estimates how many rows follow a stretch that was read: the mean of several runs, as many as the
    requests allow and the estimate needs."""

    def __init__(self, read: Read, requests: int, more: Callable[[float], int] = lambda _rows: 0) -> None:
        """Create an estimator with a budget of requests; the last stretch may exceed it. `more`: called with
        the estimate of the rows that follow when they have run out; returns how many more may be sent."""
        self._read = read
        self._requests = requests
        self._more: Callable[[float], int] | None = more
        self._lot = random.Random(_SEED)  # noqa: S311 - seeded: the same table gives the same estimate
        self._runs: list[float] = []
        # False when the requests ran out in the first run.
        self.settled = True

    @property
    def error(self) -> float:
        """The relative standard error of the estimate, by its runs; 0 where there is one."""
        if len(self._runs) < 2 or not (mean := fmean(self._runs)):
            return 0.0
        return stdev(self._runs) / sqrt(len(self._runs)) / mean

    async def rows_after(self, keys: Sequence[Units], before: int = 0) -> float:
        """Return the estimated number of rows after `keys`, a page that ends after `before` rows."""
        root = _Stratum(1.0, _Open((), keys[-1], _shared(keys[0], keys[-1]), 0, 0))
        while True:
            run = _Run(root, before)
            complete = await self._complete(run)
            if complete or not self._runs:
                self._runs.append(run.rows())
                self.settled = complete
            enough = len(self._runs) >= _LEAST_RUNS and self.error <= _ENOUGH
            if not complete or not run.drawn or enough or not self._may_read(run):
                return fmean(self._runs)

    async def _complete(self, run: _Run) -> bool:
        """Enumerate a branch of each stratum; tell whether the requests sufficed."""
        while (stratum := run.next_stratum()) is not None:
            walk = stratum.walk or _Walk(stratum.branch)  # that of the root serves all runs
            while not walk.finished:
                if not self._may_read(run):
                    return False
                page = await self._read(walk.next_probe())
                self._requests -= page.requests
                walk.take(page)
                stratum.walk = walk
            run.open(stratum, walk, self._lot)
        return True

    def _may_read(self, run: _Run) -> bool:
        if self._requests <= 0 and self._more is not None:
            more, self._more = self._more, None
            self._requests += more(run.rows())
        return self._requests > 0


class _Run:
    """One estimate. Of all branches that look alike one, drawn by lot, stands for all, wherever they are."""

    def __init__(self, root: _Stratum, before: int) -> None:
        self._strata = {_alike(root.branch): root}
        self._waiting = [_alike(root.branch)]
        self._before = before
        # Whether any branch stands for others.
        self.drawn = False

    def next_stratum(self) -> _Stratum | None:
        """Return the next stratum: of the earliest generation, whose strata no other branch joins
        any more, the one of the fullest branches. None: there is none."""
        if not self._waiting:
            return None
        alike = min(self._waiting, key=lambda alike: (alike[0], -alike[1]))
        self._waiting.remove(alike)
        return self._strata[alike]

    def open(self, stratum: _Stratum, walk: _Walk, lot: random.Random) -> None:
        """Add the branches that an enumeration left open to the strata of those alike."""
        for share, branch in walk.opened():
            weight, alike = stratum.weight * share, _alike(branch)
            known = self._strata.get(alike)
            if known is None:
                self._strata[alike] = _Stratum(weight, branch)
                self._waiting.append(alike)
                continue
            self.drawn = True
            known.weight += weight
            if lot.random() * known.weight < weight:
                known.branch = branch

    def rows(self) -> float:
        """Return the estimated rows. A stratum that was not enumerated counts like the first branch of its
        generation."""
        return self._size((0, 0), {}, {})

    def _size(
        self, alike: tuple[int, int], sizes: dict[tuple[int, int], float], firsts: dict[int, float]
    ) -> float:
        stratum = self._strata.get(alike)
        if stratum is None or stratum.walk is None:
            return firsts.get(alike[0], 0.0)
        if alike in sizes:
            return sizes[alike]
        walk, read = stratum.walk, self._before if alike == (0, 0) else 0
        climbs = sorted((generation, read + rows) for generation, rows in walk.firsts())
        size = 0.0
        # Later generations first: the others may be estimated from them.
        for share, branch in sorted(walk.opened(), key=lambda opened: -opened[1].generation):
            while climbs and climbs[-1][0] >= branch.generation:
                generation, rows = climbs.pop()
                firsts.setdefault(generation, rows + size)
            size += share * self._size(_alike(branch), sizes, firsts)
        sizes[alike] = size + walk.rows
        return sizes[alike]


def _alike(branch: _Open) -> tuple[int, int]:
    return branch.generation, branch.shape


class _Walk:
    """Enumerates one open branch after the last row read in it."""

    def __init__(self, branch: _Open) -> None:
        self._branch = branch
        self._floor = len(branch.prefix)
        self._depth = max(branch.depth, self._floor)
        self._last = branch.last
        self._met = self._units_at_depth([branch.last])
        # Rows of the pages read, each page times the branches it stands for.
        self.rows = 0.0
        self._rows_at_climb: list[float] = []
        self._opened: list[tuple[int, float, _Open]] = []
        # On a level too wide to enumerate: units drawn to stand for the others.
        self._draws: list[int] = []
        self._share = 1.0
        self._drawn_upto = 0
        self.finished = False
        if self._depth + 1 < len(branch.last):
            self._note_open([branch.last])

    def next_probe(self) -> Units:
        """Return the key after which to read the next page."""
        if self._draws:
            return (*self._last[: self._depth], self._draws[-1])
        return (*self._last[: self._depth + 1], _ABOVE)

    def take(self, page: Stretch) -> None:
        """Count the page that was read after `next_probe`."""
        if self._draws:
            self._take_draw(page)
            return
        inside = [key for key in page.keys if key[: self._floor] == self._branch.prefix]
        if not inside:
            self.finished = True
            return
        self._move_to(_shared(inside[0], self._last))
        # The page may continue on a higher level.
        self._move_to(min(self._depth, _shared(inside[0], inside[-1])))
        self._last = inside[-1]
        self._met |= self._units_at_depth(inside)
        if len(inside) < len(page.keys) or page.ended:
            self.finished = True
        else:
            self._note_open(inside)
            if len(self._met) >= _MAX_BRANCHES:
                self._draw_rest()
        self.rows += len(inside)

    def _take_draw(self, page: Stretch) -> None:
        prefix = (*self._last[: self._depth], self._draws.pop())
        inside = [key for key in page.keys if key[: len(prefix)] == prefix]
        if inside and len(inside) == len(page.keys) and not page.ended:
            self._note_open(inside)
        self.rows += len(inside) * self._share
        if not self._draws:
            # Units above the classes met so far, and higher levels, are enumerated again.
            self._share = 1.0
            self._last = (*self._last[: self._depth], self._drawn_upto)

    def opened(self) -> list[tuple[float, _Open]]:
        """Return the branches that were not read to their end, each with the branches it stands for."""
        # A branch is one generation deeper for each climb after it was met.
        first = self._branch.generation + 1 + len(self._rows_at_climb)
        return [(share, replace(branch, generation=first - climbs)) for climbs, share, branch in self._opened]

    def firsts(self) -> list[tuple[int, float]]:
        """Return for each level climbed to the generation of its branches, and `rows` before the climb."""
        first = self._branch.generation + 1 + len(self._rows_at_climb)
        return [(first - climbs, rows) for climbs, rows in enumerate(self._rows_at_climb, start=1)]

    def _move_to(self, depth: int) -> None:
        """Climb to a level, if it is higher; units met on a lower level say nothing about it."""
        if depth < self._depth:
            self._rows_at_climb.append(self.rows)
            self._depth = depth
            self._met = self._units_at_depth([self._last])

    def _draw_rest(self) -> None:
        """Draw some of the units that may follow on this level, evenly from first to last."""
        first = self._last[self._depth] + 1
        classes = [(low, high) for low, high in _CLASSES if any(low <= met <= high for met in self._met)]
        if rest := [unit for low, high in classes for unit in range(max(low, first), high + 1)]:
            stride = max(1, -(-len(rest) // _DRAWS))
            self._draws = rest[stride // 2 :: stride] or rest[:1]
            self._share = len(rest) / len(self._draws)
            self._drawn_upto = rest[-1]

    def _note_open(self, keys: Sequence[Units]) -> None:
        """Record as open the branch, one level below the current one, that holds the last key."""
        last = keys[-1]
        prefix = last[: self._depth + 1]
        own = [key for key in keys if key[: len(prefix)] == prefix]
        split = _shared(own[len(own) // 2], last) if len(own) > 1 else len(prefix)
        branch = _Open(prefix, last, max(split, len(prefix)), 0, split - len(prefix))
        self._opened.append((len(self._rows_at_climb), self._share, branch))

    def _units_at_depth(self, keys: Sequence[Units]) -> set[int]:
        return {key[self._depth] for key in keys if len(key) > self._depth}


def _shared(first: Units, second: Units) -> int:
    """Return how many leading units two keys share."""
    pairs = zip(first, second, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(first), len(second)))
