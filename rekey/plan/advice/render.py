"""Advice as text for an operator. Pure.

Rules kept here:

* At most 98 columns. What blocks says so; what was set aside stands there with its reason.
* On today's keys a plan says one sentence a finding: they are what the migration is for.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rekey.plan.result import Advice, Rated

WIDTH = 98
"""Two less than a plan has: what is told of queries is indented there."""
_INDENT = " " * 8


def advice_lines(found: Sequence[Advice], *, with_today: bool = False) -> Iterator[str]:
    """Yield advice in full, the kind on today's keys (of a plan) in one sentence each.

    Args:
        found: the advice.
        with_today: in full on today's keys, too: they are all there is.
    """
    for one in found:
        if one.waived is not None:
            yield from _full(one, "WAIVED", f"set aside: {one.waived}")
        elif one.today and not with_today:
            then = "; the planned keys answer this" if one.answered else "; the planned keys have it, too"
            yield from _wrapped(
                f"{one.code}: {one.where}, today: {one.evidence}{then}",
                first=f"{one.severity.upper():<8}",
            )
        else:
            yield from _full(one, one.severity.upper(), f"cure: {one.cure}")


def query_lines(queries: Sequence[Rated]) -> Iterator[str]:
    """Yield how each declared query is answered today and by the planned keys."""
    for one in queries:
        yield from _wrapped(one.query.describe())
        yield from _wrapped(f"today    {one.today.describe()}", first="  ", rest=" " * 11)
        yield from _wrapped(f"planned  {one.planned.describe()}", first="  ", rest=" " * 11)


def _full(one: Advice, label: str, last: str) -> Iterator[str]:
    yield from _wrapped(f"{one.code}: {one.where}: {one.evidence}", first=f"{label:<8}")
    yield from _wrapped(f"why: {one.reason}", first=_INDENT, rest=_INDENT + "     ")
    yield from _wrapped(last, first=_INDENT, rest=_INDENT + "      ")


def _wrapped(text: str, *, first: str = "", rest: str = _INDENT) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
