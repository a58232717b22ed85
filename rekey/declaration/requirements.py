"""Optional requirements in a script: queries, load and waived advice. They are in the canonical form only
when given, so that a script without them keeps its digest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from rekey.core.texts import table
from rekey.declaration.keys.base import invalid, need, need_list, refuse_if
from rekey.declaration.query import Query

# The names in `load=`, with their meanings. Unknown names are refused, so that a misspelled requirement is
# not silently ignored.
LOADS = {
    "writes_per_second": "rows written in a second, at the busiest",
    "rows_per_batch": "rows the application writes in one transaction",
    "rows": "rows the table will hold in the long run",
}


# Code and title of each advice. A code never changes, because scripts waive by it; each has a page in
# docs/advice/.
CODES: dict[str, str] = table(Path(__file__).with_name("codes.toml"))


def checked_queries(queries: object) -> tuple[Query, ...]:
    """Return the queries. Raises InvalidDeclaration."""
    checked = need_list("queries", queries, Query, "queries", cure="write queries=[query.point(…)]")
    for query in checked:
        cure = "write query.point(…), query.range(…) or query.latest(…)"
        need("queries", query, Query, "is not a query", cure=cure)
    return checked


def checked_load(load: object) -> dict[str, float]:
    """Return the load, sorted by name. Raises InvalidDeclaration."""
    if not isinstance(load, Mapping):
        raise invalid("load", "load-no-dict")
    for name, value in load.items():
        refuse_if(name not in LOADS, "load", "load-not-known", name=name, known=", ".join(LOADS))
        wrong = isinstance(value, bool) or not isinstance(value, int | float)
        wrong = wrong or not math.isfinite(value) or value <= 0
        refuse_if(wrong, f"load[{name}]", "load-no-number", meaning=LOADS[name])
    return dict(sorted(load.items()))


def checked_waive(waive: object) -> dict[str, str]:
    """Return the waived codes with their reasons, sorted by code. Raises InvalidDeclaration."""
    if not isinstance(waive, Mapping):
        raise invalid("waive", "waive-no-dict")
    for code, reason in waive.items():
        if code not in CODES:
            from difflib import get_close_matches

            near = get_close_matches(str(code), CODES, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise invalid("waive", "no-advice-code", advice=code, meant=meant)
        refuse_if(not isinstance(reason, str) or not reason.strip(), f"waive[{code}]", "no-waive-reason")
    return dict(sorted(waive.items()))
