"""Advice on keys as identities: unique, lasting, the same every time. Pure.

Rules kept here:

* The chance that two of n random ids of b bits are equal is 1 - exp(-pairs / 2^b) (the birthday problem). Ids
  in RowKeys need to differ within a partition only, so their pairs are counted there. From 1 % on it is an
  error, from one in a million on a warning.
* Bits are measured: the entropy at each place of a fixed-length key. A key that is not evenly random at every
  place is no random id and is not judged.
* Whether a property changes cannot be known from one reading of a table; names that say so are a warning.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from rekey.core.severity import Severity
from rekey.declaration.keys.base import Prop
from rekey.declaration.keys.escape import Custom
from rekey.inspect.columns import KeyColumn
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP
from rekey.plan.advice.facts import Facts, TableFacts, percent
from rekey.plan.advice.structure import folds, is_moment, parts_of
from rekey.plan.result import Advice
from rekey.present.text import counted

LIKELY, WORTH_SAYING = 0.01, 1e-6
LEAST_KEYS = 300
LEAST_CHARACTERS, MOST_CHARACTERS = 3, 24
EVEN = 0.95
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# Words in names of properties that change in a row's life.
CHANGING = frozenset(
    {"status", "state", "stage", "email", "mail", "phone", "name", "title", "score", "count", "rank", "price"}
    | {"amount", "balance", "quantity", "modified", "updated", "changed", "seen", "login", "address", "city"}
    | {"owner", "assignee", "priority", "level", "active", "enabled", "tags"}
)
# Names used in functions that do not always return the same value.
UNREPEATABLE = frozenset(
    {"random", "uuid1", "uuid4", "now", "utcnow", "today", "time", "time_ns", "urandom", "token_hex"}
    | {"token_bytes", "token_urlsafe", "randint", "randrange", "choice", "getrandbits", "monotonic"}
)


def short_id(facts: Facts) -> Iterator[Advice]:
    """Yield advice on random ids that are too short for the number of rows."""
    rows_today = facts.today.rows
    growth = max(1.0, facts.load.get("rows", 0.0) / rows_today) if rows_today else 1.0
    for table, key, column in facts.columns:
        bits = random_bits(column)
        if bits is None:
            continue
        rows = table.rows * growth
        others = table.largest_partition * growth if key == "RowKey" else rows
        chance = -math.expm1(-rows * max(0.0, others - 1) / 2 / 2**bits)
        if chance < WORTH_SAYING:
            continue
        severity = Severity.ERROR if chance >= LIKELY else Severity.WARNING
        said = percent(chance) if chance >= 0.001 else f"1 in {1 / chance:,.0f}"
        figures = {"most": column.lengths.most, "bits": bits, "rows": counted(round(rows), "row")}
        yield table.advice("short-id", severity, key=key, chance=said, **figures)


def merged_keys(facts: Facts) -> Iterator[Advice]:
    """Yield advice on truncation or folding that turns different keys into one."""
    for table in facts.planned:
        colliding = facts.colliding.get(table.table)
        folding = ", ".join(key.describe() for key in table.keys if folds(key))
        if colliding and folding and not _is_of_moments(table):
            yield table.advice("merged-keys", rows=counted(colliding, "row"), folding=folding)


def time_duplicates(facts: Facts) -> Iterator[Advice]:
    """Yield advice on RowKeys of moments alone, where rows share a moment."""
    for table in facts.planned:
        colliding = facts.colliding.get(table.table)
        if colliding and _is_of_moments(table):
            yield table.advice("time-duplicates", rows=counted(colliding, "row"))


def mutable_key(facts: Facts) -> Iterator[Advice]:
    """Yield advice on keys of the main target made of a property whose name says that it changes."""
    for table in facts.planned[:1]:
        for key, expression in zip((PARTITION_KEY, ROW_KEY), table.keys, strict=True):
            words = {name: _WORD.findall(name) for name in sorted(expression.inputs())}
            names = [name for name in words if any(word.lower() in CHANGING for word in words[name])]
            if names:
                yield table.advice("mutable-key", key=key, names=", ".join(names))


def unrepeatable_key(facts: Facts) -> Iterator[Advice]:
    """Yield advice on keys that are not deterministic."""
    migration = facts.migration
    if migration is None or not facts.planned:
        return
    said = []
    if facts.unrepeatable:
        said.append(f"{facts.unrepeatable:,} of {facts.repeated:,} rows got another key the second time")
    for field, expression in migration.key_expressions():
        for node in expression.walk():
            if isinstance(node, Custom):
                code = getattr(node.function, "__code__", None)
                names = sorted(UNREPEATABLE.intersection(code.co_names)) if code is not None else []
                said += [f"{field}: {node.reference} uses {', '.join(names)}"] if names else []
            if node == Prop(TIMESTAMP):
                said.append(f"{field} is made of Timestamp, which every write changes")
    if said:
        yield facts.planned[0].advice("unrepeatable-key", evidence="; ".join(said))


def random_bits(column: KeyColumn) -> float | None:
    """Return the random bits of keys of one length; None when they are no random ids."""
    keys = [key for key in column.sample if key]
    lengths = column.lengths
    fixed = lengths.least == lengths.most and LEAST_CHARACTERS <= lengths.most <= MOST_CHARACTERS
    if not fixed or len(keys) < LEAST_KEYS or all(key.isdigit() for key in keys):
        return None
    alphabet = set().union(*keys)
    if len(alphabet) < 8:
        return None
    most, bits = math.log2(len(alphabet)), 0.0
    for characters in zip(*keys, strict=True):
        entropy = -sum(
            times / len(keys) * math.log2(times / len(keys)) for times in Counter(characters).values()
        )
        if entropy < EVEN * most:
            return None
        bits += most
    return bits


def _is_of_moments(table: TableFacts) -> bool:
    parts = parts_of(table.keys[1])
    return bool(parts) and all(map(is_moment, parts))


RULES = (short_id, merged_keys, time_duplicates, mutable_key, unrepeatable_key)
