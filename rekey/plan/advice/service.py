"""Advice on names, and on the service that the endpoint belongs to. Pure.

Rules kept here:

* A table cannot be renamed: a name that tells a passing state (old, new, tmp) will be wrong.
* Cosmos DB for Table: RowKey of at most 255 bytes, reserved property names, results that are not sorted
  (Microsoft's pages on the Table API). Only judged when the endpoint is Cosmos's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rekey.core.severity import Severity
from rekey.plan.advice.facts import Facts
from rekey.plan.result import Advice

PASSING = frozenset({"test", "tmp", "temp", "copy", "backup", "bak", "old", "new", "draft", "migrated"})
COSMOS_ROW_KEY_BYTES = 255
COSMOS_RESERVED = frozenset({"id", "rid", "etag", "resourceid"})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def table_name(facts: Facts) -> Iterator[Advice]:
    """Yield advice on table names that will be wrong one day."""
    for table in facts.tables:
        passing = [word for word in _WORD.findall(table.table) if word.lower() in PASSING]
        if passing:
            severity = Severity.NOTE if table.today else Severity.WARNING
            yield table.advice("table-name", severity, passing=", ".join(passing))


def cosmos_limits(facts: Facts) -> Iterator[Advice]:
    """Yield advice on the limits of Cosmos DB for Table, when the endpoint is Cosmos's."""
    if not facts.is_cosmos:
        return
    for table in facts.tables:
        sizes = [len(key.encode("utf-8", "surrogatepass")) for key in table.counts.row_keys.sample]
        longest = max([table.counts.row_keys.lengths.most, table.longest_row_key, *sizes])
        if longest > COSMOS_ROW_KEY_BYTES:
            said = f"RowKeys of up to {longest} bytes; the limit is {COSMOS_ROW_KEY_BYTES}"
            cure = "shorten the RowKey, e.g. by keys.opaque"
            yield table.advice("cosmos-limits", Severity.ERROR, key="RowKey", evidence=said, cure=cure)
        reserved = sorted(name for name in table.property_names if name.lower() in COSMOS_RESERVED)
        if reserved:
            said = f"properties named {', '.join(reserved)}"
            cure = "rename them: props.rename"
            yield table.advice("cosmos-limits", Severity.ERROR, evidence=said, cure=cure)
    ordered = [one for one in facts.migration.queries if one.kind != "point"] if facts.migration else []
    if ordered and facts.planned:
        said = f"{ordered[0].describe()} is declared"
        cure = "sort in the application, and ask for a range of keys rather than for the first rows"
        yield facts.planned[0].advice("cosmos-limits", evidence=said, cure=cure)


RULES = (table_name, cosmos_limits)
