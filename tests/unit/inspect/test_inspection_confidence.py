"""What a sample promises: intervals hold the truth as often as they say, over many kinds of keys.

Soak: larger tables.
Reason, and what `make test` covers: tables of 20,000 rows.
"""

from __future__ import annotations

import itertools
import random
import uuid
from bisect import bisect_right
from collections.abc import Callable

import pytest

from rekey.inspect.inspect import HEAD_ROWS, SAMPLE_REQUESTS
from rekey.inspect.report import FACTOR, poisson_upper, share_of
from rekey.inspect.sampling import Sizer, Stretch, Units, key_from, units_of
from rekey.model import EntityKey

NAMES = ("anna", "bob", "carl", "dora", "emil", "fritz", "greta", "hans", "ida", "jan", "karl", "lena", "uwe")
LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

Make = Callable[[int, random.Random], tuple[str, str]]
KINDS: dict[str, Make] = {
    "padded numbers": lambda n, lot: ("all", f"{n:010d}"),
    "numbers of any length": lambda n, lot: ("all", str(n)),
    "200 partitions": lambda n, lot: (f"p-{n % 200:03d}", f"r{n:08d}"),
    "partitions of 1,000": lambda n, lot: (f"p-{n // 1000:05d}", f"{n:010d}"),
    "partitions of 3": lambda n, lot: (f"{n // 3:09d}", str(n % 3)),
    "guids in rows": lambda n, lot: ("all", str(uuid.UUID(int=lot.getrandbits(128)))),
    "guids in partitions": lambda n, lot: (str(uuid.UUID(int=lot.getrandbits(128))), ""),
    "addresses by tenant": lambda n, lot: (f"tenant-{n % 20:03d}", f"{lot.choice(NAMES)}{n}@mail.example"),
    "addresses": lambda n, lot: ("all", f"{lot.choice(NAMES)}.{lot.choice(NAMES)}{n}@mail.example"),
    "days": lambda n, lot: (
        f"20{18 + n % 7}-{lot.randrange(1, 13):02d}-{lot.randrange(1, 29):02d}",
        f"{n:x}",
    ),
    "inverted ticks": lambda n, lot: (
        f"device-{n % 50:04d}",
        f"{2516 * 10**15 + lot.randrange(10**15):019d}",
    ),
    "very uneven partitions": lambda n, lot: (f"c{int(lot.paretovariate(0.7)) % 997:03d}", f"{n:07d}"),
    "words": lambda n, lot: (lot.choice(NAMES), f"{lot.choice(NAMES)}-{lot.choice(NAMES)}-{n}"),
    "letters and digits": lambda n, lot: ("".join(lot.choices(LETTERS, k=8)), "x"),
    "devices and days": lambda n, lot: (f"device-{n % 50:02d}_2024-{lot.randrange(1, 13):02d}", f"{n:019d}"),
}


async def estimated(units: list[Units]) -> float:
    """Return the estimate of a table's rows divided by the truth, within the requests of an inspection."""

    async def read(after: Units) -> Stretch:
        key = key_from(after)
        at = bisect_right(units, units_of(key))
        page = units[at : at + 1000]
        inside = units_of(EntityKey(key.partition, ""))
        full = len(page) == 1000 and page[-1][: len(inside)] == inside
        return Stretch(page, at + 1000 >= len(units), requests=1 if full else 2)

    sizer = Sizer(read, SAMPLE_REQUESTS - HEAD_ROWS // 1000 - 2)
    behind = await sizer.rows_after(units[HEAD_ROWS - 1000 : HEAD_ROWS], HEAD_ROWS)
    return (HEAD_ROWS + behind) / len(units)


@pytest.mark.parametrize(
    ("sizes", "turns"),
    [((20_000,), 1), pytest.param((20_000, 60_000, 120_000), 2, marks=pytest.mark.soak)],
    ids=["small tables", "larger tables"],
)
async def test_the_row_estimate_is_within_the_promised_factor(sizes: tuple[int, ...], turns: int) -> None:
    ratios: dict[str, list[float]] = {}
    for kind, make in KINDS.items():
        for rows, turn in itertools.product(sizes, range(turns)):
            lot = random.Random(f"{kind}/{turn}")
            keys = {EntityKey(*make(number, lot)) for number in range(rows)}
            ratios.setdefault(kind, []).append(await estimated(sorted(map(units_of, keys))))
    for kind, several in ratios.items():
        print(f"{kind:<24}" + "".join(f"{ratio:7.2f}" for ratio in several))
    every = [ratio for several in ratios.values() for ratio in several]
    held = sum(1 / FACTOR <= ratio <= FACTOR for ratio in every) / len(every)
    print(f"within a factor of {FACTOR}: {held:.1%} of {len(every)}")
    assert held >= 0.9


@pytest.mark.parametrize("truth", [0.02, 0.3, 0.9])
def test_a_share_lies_within_its_interval_nineteen_times_of_twenty(truth: float) -> None:
    """Rows of a page resemble each other: shares differ from page to page."""
    lot, held, trials = random.Random(7), 0, 400
    for _ in range(trials):
        pages = [(1000, round(1000 * lot.betavariate(8 * truth, 8 * (1 - truth)))) for _ in range(50)]
        share = share_of(pages, exact=False)
        held += share.low <= truth <= share.high
    assert held / trials >= 0.9


def test_what_was_never_or_always_seen_is_not_said_to_be_certain() -> None:
    assert share_of([(1000, 0)] * 30, exact=False).high == pytest.approx(0.1)
    assert share_of([(1000, 1000)] * 30, exact=False).low == pytest.approx(0.9)
    assert share_of([(1000, 10)], exact=False).high == 1.0
    assert share_of([], exact=False).high == 1.0
    assert share_of([(1000, 250)], exact=True) == share_of([(500, 125), (500, 125)], exact=True)


@pytest.mark.parametrize(("seen", "upper"), [(0, 3.69), (1, 5.57), (10, 18.39), (100, 121.63)])
def test_the_bound_on_counted_events_is_that_of_the_tables(seen: int, upper: float) -> None:
    assert poisson_upper(seen) == pytest.approx(upper, rel=0.02)
