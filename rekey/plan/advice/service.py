"""Advice on names, and on the service that the endpoint belongs to. Pure.

Rules kept here:

* A table cannot be renamed: a name that tells a passing state (old, new, tmp) will be wrong.
* Of targets in Cosmos DB for Table: that results are not sorted, and that it was not tried. Which rows it
  refuses is no advice: the mapper refuses them (`rekey.core.guarantees`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rekey.core.limits import is_elsewhere
from rekey.core.severity import Severity
from rekey.plan.advice.facts import Facts
from rekey.plan.result import Advice

PASSING = frozenset({"test", "tmp", "temp", "copy", "backup", "bak", "old", "new", "draft", "migrated"})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def table_name(facts: Facts) -> Iterator[Advice]:
    """Yield advice on table names that will be wrong one day."""
    for table in facts.tables:
        passing = [word for word in _WORD.findall(table.table) if word.lower() in PASSING]
        if passing:
            severity = Severity.NOTE if table.today else Severity.WARNING
            yield table.advice("table-name", severity, passing=", ".join(passing))


def cosmos_limits(facts: Facts) -> Iterator[Advice]:
    """Yield advice on targets in Cosmos DB for Table."""
    there = [one for one in facts.planned if facts.is_cosmos and is_elsewhere(one.table)]
    for table in there:
        said = "rekey was tested on 1,445 recorded answers of it, never on the service"
        yield table.advice("cosmos-limits", Severity.NOTE, evidence=said, cure="try it on a copy first")
    ordered = [one for one in facts.migration.queries if one.kind != "point"] if facts.migration else []
    if ordered and there:
        said = f"{ordered[0].describe()} is declared"
        cure = "sort in the application, and ask for a range of keys rather than for the first rows"
        yield there[0].advice("cosmos-limits", evidence=said, cure=cure)


RULES = (table_name, cosmos_limits)
