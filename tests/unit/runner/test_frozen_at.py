"""Which freeze the times of a state file are of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rekey.runner.phases.cutover import FROZEN_AT, FROZEN_UNDER, frozen_at

STORED = "2026-11-28T10:00:01.0000000Z"
UNDER = "2026-11-28T10:00:00.0000000Z"


@pytest.mark.parametrize(
    ("under", "now", "known"),
    [
        (UNDER, UNDER, STORED),
        (UNDER, "2026-11-28T10:00:00Z", STORED),
        (UNDER, "2026-11-28T11:00:00Z", None),
        (None, UNDER, STORED),
        (UNDER, None, STORED),
    ],
    ids=["the same", "written without zeros", "another machine's", "of an earlier version", "no time"],
)
def test_times_of_the_freeze_that_the_control_row_names_are_known(
    under: str | None, now: str | None, known: str | None
) -> None:
    facts = {FROZEN_AT: STORED} | ({} if under is None else {FROZEN_UNDER: under})
    run: Any = SimpleNamespace(script_id="0001_users", state=SimpleNamespace(facts=lambda _: facts))
    control: Any = SimpleNamespace(frozen_at=now)
    assert frozen_at(run, control) == known
