"""Shapes are found: precision and recall over keys labelled by Faker in 14 locales, printed (`-s`)."""

from __future__ import annotations

from collections import Counter

import pytest

from rekey.inspect.shapes import Shape, shapes_in
from tests.worlds.labelled_keys import LOCALES, labelled_keys

pytestmark = pytest.mark.xdist_group("shapes")  # whose keys are counted once
LEAST = 0.95
WEAK = {Shape.NUMBER, Shape.PADDED, Shape.SLUG, Shape.DIGEST}
"""Forms that stand inside others too (`order_17` holds a number): recall is asked of them, not precision."""


@pytest.fixture(scope="module")
def counts() -> dict[Shape, Counter[str]]:
    """For each shape: keys with it that were found, missed, and keys without it that were taken for it."""
    counted: dict[Shape, Counter[str]] = {shape: Counter() for shape in Shape}
    for label, key in labelled_keys():
        found = shapes_in(key)
        for shape in {*found, *([label] if label else [])}:
            counted[shape][
                "hit" if shape is label and shape in found else "miss" if shape is label else "false"
            ] += 1
    print(f"\n{'shape':<16}{'keys':>7}{'precision':>11}{'recall':>8}   ({len(LOCALES)} locales)")
    for shape, count in counted.items():
        precision, recall = measures(count)
        print(f"{shape:<16}{count['hit'] + count['miss']:>7}{precision:>11.3f}{recall:>8.3f}")
    return counted


def measures(count: Counter[str]) -> tuple[float, float]:
    """Return precision and recall."""
    return count["hit"] / (count["hit"] + count["false"]), count["hit"] / (count["hit"] + count["miss"])


@pytest.mark.parametrize("shape", Shape)
def test_shapes_are_found_with_few_false_positives(shape: Shape, counts: dict[Shape, Counter[str]]) -> None:
    precision, recall = measures(counts[shape])
    assert counts[shape]["hit"] + counts[shape]["miss"] >= 500
    assert recall >= LEAST
    assert shape in WEAK or precision >= LEAST
