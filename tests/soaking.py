"""Cases that show one rule several times: a few in every run, the others in the soak."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def others_in_soak(values: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Return values for `parametrize`, tuples for several names; those not kept are for the soak alone."""
    return [
        one
        if one in kept
        else pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.soak)
        for one in values
    ]
