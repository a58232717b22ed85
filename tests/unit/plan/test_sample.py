"""The sample of a plan: spread evenly over all rows, bounded, and the same whatever pages rows came in."""

from __future__ import annotations

import pytest

from rekey.core.limits import entity_bytes
from rekey.inspect.inventory import Inventory
from rekey.inspect.sampling import RowEstimate
from rekey.model import Row
from rekey.plan import survey
from rekey.plan.survey import MOST_ROWS, RowSample


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
    monkeypatch.setattr(survey, "MOST_BYTES", 100_000)
    of = rows(1_000, "x" * 1_000)
    kept = sampled(of, 100).rows
    assert kept == of[:: len(of) // len(kept) + 1]
    assert 40 <= len(kept) <= 100
    assert len(sampled(rows(9, "x" * 200_000)).rows) == 1, "one row is kept, however large"


def inventory(head: int, elsewhere: int, table: int) -> Inventory:
    estimate = RowEstimate(table, head + elsewhere, exact=False, settled=True)
    return Inventory("Users", estimate, 0, 0, 0, 0, None, head_rows=head)


def test_bytes_are_those_of_the_rows_weighted_by_what_they_stand_for() -> None:
    """Of 1,000 rows 20 large ones were read from the beginning and 80 small ones elsewhere."""
    large, small = rows(20, "x" * 1_000), rows(80)
    found = sampled([*large, *small], 10)
    bytes_now = found.stored_bytes(inventory(20, 80, 1_000))
    assert bytes_now == 20 * entity_bytes(large[0]) + 980 * entity_bytes(small[0])
    assert RowSample().stored_bytes(inventory(0, 0, 0)) == 0


def test_counts_of_a_table_that_was_read_whole_are_not_weighted() -> None:
    assert inventory(20, 0, 20).weights.merged([{"a": 3}, {}]) == {"a": 3}
    assert inventory(20, 10, 120).weights.merged([{"a": 3}, {"a": 1, "b": 2}]) == {"a": 13, "b": 20}
