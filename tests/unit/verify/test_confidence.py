"""What a sample proves."""

from fractions import Fraction
from math import comb

import pytest

from rekey.verify.confidence import as_percent, upper_bound

MANY = 10**9


def test_none_wrong_of_3000_proves_a_tenth_of_a_percent() -> None:
    """The design's own example."""
    assert as_percent(upper_bound(0, 3000, population=MANY)) == "0.1 %"


@pytest.mark.parametrize("drawn", [100, 1000, 3000, 100_000])
def test_none_wrong_follows_the_rule_of_three(drawn: int) -> None:
    assert upper_bound(0, drawn, population=MANY) == pytest.approx(3 / drawn, rel=0.02)


def at_most(wrong: int, drawn: int, share: Fraction) -> Fraction:
    """The binomial probability of at most `wrong` wrong rows, in exact arithmetic."""
    return sum(
        (comb(drawn, seen) * share**seen * (1 - share) ** (drawn - seen) for seen in range(wrong + 1)),
        Fraction(0),
    )


@pytest.mark.parametrize(("wrong", "drawn"), [(0, 50), (1, 10), (3, 100), (5, 20), (19, 20), (1, 300)])
def test_the_bound_is_where_so_few_failures_have_a_chance_of_five_percent(wrong: int, drawn: int) -> None:
    """The definition of Clopper and Pearson's upper limit, checked without floating point."""
    bound = upper_bound(wrong, drawn, population=MANY)
    below, above = Fraction(bound) * Fraction(999_999, 10**6), Fraction(bound) * Fraction(1_000_001, 10**6)
    assert at_most(wrong, drawn, above) < Fraction(1, 20) < at_most(wrong, drawn, below)


def test_a_sample_that_is_the_whole_table_proves_its_own_share() -> None:
    assert upper_bound(0, 40, population=40) == 0.0
    assert upper_bound(1, 40, population=40) == 1 / 40
    assert upper_bound(40, 40, population=40) == 1.0
    assert upper_bound(0, 0, population=0) == 0.0


def test_a_sample_of_nothing_proves_nothing() -> None:
    assert upper_bound(0, 0, population=5) == 1.0
    assert upper_bound(5, 5, population=50) == 1.0


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (0.1, "10 %"),
        (0.1001, "11 %"),
        (0.000998, "0.1 %"),
        (0.00001234, "0.0013 %"),
        (1.0, "100 %"),
    ],
)
def test_shares_are_rounded_up_for_people(share: float, text: str) -> None:
    assert as_percent(share) == text
