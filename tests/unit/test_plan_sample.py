"""The sample of a plan: spread evenly over all rows, bounded, and the same whatever pages rows came in."""

from __future__ import annotations

import pytest

from rekey.core.limits import entity_bytes
from rekey.model import Row
from rekey.plan import sample
from rekey.plan.sample import MOST_ROWS, RowSample


def rows(count: int, text: str = "") -> list[Row]:
    return [{"PartitionKey": "p", "RowKey": f"{number:07}", "Text": text} for number in range(count)]


def sampled(of: list[Row], page: int = 1_000) -> RowSample:
    made = RowSample()
    for start in range(0, len(of), page):
        made.take(of[start : start + page])
    return made


@pytest.mark.parametrize("count", [0, 1, MOST_ROWS])
def test_few_rows_are_all_kept(count: int) -> None:
    of = rows(count)
    assert sampled(of).rows == of


@pytest.mark.parametrize(("count", "every"), [(MOST_ROWS + 1, 2), (4 * MOST_ROWS, 4), (30 * MOST_ROWS, 32)])
def test_of_many_rows_every_nth_is_kept(count: int, every: int) -> None:
    of = rows(count)
    assert sampled(of).rows == of[::every]
    assert MOST_ROWS / 2 <= len(of[::every]) <= MOST_ROWS


def test_pages_of_any_size_give_the_same_sample() -> None:
    of = rows(3 * MOST_ROWS)
    assert sampled(of, 1).rows == sampled(of, 7).rows == sampled(of).rows


def test_large_rows_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "MOST_BYTES", 100_000)
    of = rows(1_000, "x" * 1_000)
    kept = sampled(of, 100).rows
    assert kept == of[:: len(of) // len(kept) + 1]
    assert 40 <= len(kept) <= 100
    assert len(sampled(rows(9, "x" * 200_000)).rows) == 1, "one row is kept, however large"


def test_the_mean_row_is_that_of_the_sample() -> None:
    of = rows(10)
    assert sampled(of).mean_row_bytes == entity_bytes(of[0])
    assert RowSample().mean_row_bytes == 0.0
