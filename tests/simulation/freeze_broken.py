"""The freeze of capture "delta" with one of its rules switched off, to see the search find the loss.

Rules kept here:

* Exactly one rule is off in each; everything else is the program's own code, not a copy of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from rekey.runner.phases import backfill, cutover
from rekey.verify import full
from rekey.verify.bucket_digests import SOURCE
from rekey.verify.report import FullReport
from rekey.verify.settle import Candidate, Observation, TrackedPoint
from rekey.verify.trace import Trace


@contextmanager
def not_quiet_before() -> Iterator[None]:
    """Begin the comparison while requests of an earlier runner may be under way."""

    async def until_quiet(_run: object) -> None:
        return

    with (
        mock.patch.object(backfill, "until_quiet", until_quiet),
        mock.patch.object(cutover, "until_quiet", until_quiet),
    ):
        yield


def open_writes_forgotten() -> Any:
    """Move the authority while a write of the comparison may be under way."""
    return mock.patch.object(cutover, "open_s", lambda _run: 0.0)


def no_look() -> Any:
    """Look for no rows that were written since the freeze."""

    async def written_since(*_: object) -> AsyncIterator[Any]:
        for row in ():
            yield row

    return mock.patch.object(cutover, "written_since", written_since)


def not_compared_again() -> Any:
    """Take what was propagated for equal."""

    async def settle(_ctx: object, candidates: Iterator[Candidate]) -> AsyncIterator[list[TrackedPoint]]:
        for points in candidates:
            yield [TrackedPoint(point, 0.0, Observation((), None), settled=True) for point in points]

    return mock.patch.object(full, "settle", settle)


def one_side_read_again() -> Any:
    """Read only source rows again that have no equal target row; target rows that nothing gives stay."""
    left_over = Trace.left_over

    def of_the_source(self: Trace, *given: Any) -> Any:
        found = left_over(self, *given) or {}
        return {page: wanted for page, wanted in found.items() if self.page(page)[0] == SOURCE}

    return mock.patch.object(Trace, "left_over", of_the_source)


def sums_not_asked() -> Any:
    """Move the authority although the sums are not equal with the rows that were brought."""
    return mock.patch.multiple(FullReport, equal=True, unexplained=0)
