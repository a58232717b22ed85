"""Cases that show one rule several times: a few in every run, the others in the soak."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
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


def soak_seconds() -> float:
    """Return for how long a search of the soak may go on: SOAK_SECONDS, a minute by default."""
    return float(os.environ.get("SOAK_SECONDS", "60"))


def files_of_the_soak() -> list[Path]:
    """Return the files of tests of which the soak runs some, in order."""
    marks = re.compile(r"\bmark\.soak\b|\bothers_in_soak\(")
    return [
        one
        for one in sorted(Path(__file__).parent.rglob("test_*.py"))
        if marks.search(one.read_text("utf-8"))
    ]
