"""`all` for assertions: over nothing it is no proof."""

from __future__ import annotations

from collections.abc import Iterable


def every(conditions: Iterable[object]) -> bool:
    """Tell whether all conditions hold. Raises AssertionError when there is none."""
    held = [bool(one) for one in conditions]
    assert held, "there was nothing to look at"
    return all(held)
