"""Advice on how keys, rows and names are written, and on the service that takes them. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rekey.core.limits import MAX_ENTITY_BYTES, MAX_PROPERTIES
from rekey.core.severity import Severity
from rekey.declaration.targets import Index
from rekey.inspect.profile import KeyColumn
from rekey.plan.advice.facts import Facts, percent, words_among
from rekey.plan.result import Advice
from rekey.present.text import counted
from rekey.project.prices import amount_text

# Decoded twice by old clients and proxies, which may also trim spaces at the ends.
TRAPS = "%+"
ESCAPED = "%+'&\"<>^`{}"
LONG_UNITS = 64
VERY_LONG_UNITS = 150
MUCH = 0.4
# Of a limit: properties grow.
NEAR = 0.8
FANNED_OUT = 10.0
WORTH_SAYING_ROWS = 100
LEAST_KEYS = 20
NEARLY_ALL = 0.95
_PREFIX = re.compile(r"(\D*)(\d{1,18})")
_BETWEEN = re.compile(r"[_|:;,~!]")


def unpadded_numbers(facts: Facts) -> Iterator[Advice]:
    """Yield advice on numbers that are not zero-padded: text sorts 111 before 2."""
    for table, key, column in facts.columns:
        widths = number_widths(column)
        if widths is not None:
            severity = Severity.WARNING if key == "RowKey" else Severity.NOTE
            keys = counted(column.keys, "key")
            yield table.advice("unpadded-numbers", severity, key=key, widths=widths, keys=keys)


def number_widths(column: KeyColumn) -> tuple[int, int] | None:
    """Return the least and most digits of unpadded numbers in keys, or None: numbers that make up the key
    (after a common prefix), or a part between separators. In `green-tea-12` the number means nothing."""
    keys = [key for key in column.sample if key]
    if len(keys) < LEAST_KEYS:
        return None
    prefixed = [match for match in map(_PREFIX.fullmatch, keys) if match is not None]
    if len(prefixed) >= NEARLY_ALL * len(keys):
        [(prefix, times)] = Counter(match[1] for match in prefixed).most_common(1)
        if times >= NEARLY_ALL * len(keys):
            return _varying([match[2] for match in prefixed if match[1] == prefix])
    split = [_BETWEEN.split(key) for key in keys]
    [(parts, _)] = Counter(map(len, split)).most_common(1)
    alike = [pieces for pieces in split if len(pieces) == parts]
    if parts < 2 or len(alike) < NEARLY_ALL * len(keys):
        return None
    for place in range(parts):
        digits = [pieces[place] for pieces in alike if pieces[place].isascii() and pieces[place].isdigit()]
        if len(digits) >= NEARLY_ALL * len(alike) and (widths := _varying(digits)):
            return widths
    return None


def _varying(digits: Sequence[str]) -> tuple[int, int] | None:
    padded = sum(len(digit) > 1 and digit[0] == "0" for digit in digits)
    widths = Counter(map(len, digits))
    if padded > (1 - NEARLY_ALL) * len(digits) or len(widths) < 2:
        return None
    return min(widths), max(widths)


def escaped_characters(facts: Facts) -> Iterator[Advice]:
    """Yield advice on keys that need escaping."""
    for table, key, column in facts.columns:
        marks = {mark: column.specials[mark] for mark in ESCAPED if column.specials[mark]}
        edges = column.marked("leading-or-trailing-space")
        if not marks and not edges:
            continue
        listed = [f"{mark} in {number:,}" for mark, number in marks.items()]
        listed += [f"spaces at an end in {edges:,}"] if edges else []
        severity = Severity.WARNING if edges or any(mark in TRAPS for mark in marks) else Severity.NOTE
        figures = {"listed": ", ".join(listed), "keys": counted(column.keys, "key")}
        yield table.advice("escaped-characters", severity, key=key, **figures)


def non_ascii(facts: Facts) -> Iterator[Advice]:
    """Yield advice on characters outside ASCII."""
    for table, key, column in facts.columns:
        count, loose = column.marked("non-ascii"), column.marked("not-composed")
        if count:
            more = f"; {loose:,} not in composed form (NFC)" if loose else ""
            figures = {"found": counted(count, "key"), "column": column, "more": more}
            yield table.advice("non-ascii", Severity.WARNING if loose else Severity.NOTE, key=key, **figures)


def long_keys(facts: Facts) -> Iterator[Advice]:
    """Yield advice on long keys, which are stored in each row, and in every pointer and mapping row."""
    for table in facts.tables:
        units = sum(column.lengths.mean for _, column in table.columns)
        row_bytes = table.counts.mean_row_bytes
        share = 2 * units / row_bytes if row_bytes else 0.0
        # An index row consists of little but keys: only the length says something there, not the share.
        mostly_keys = units >= LONG_UNITS and share >= MUCH and not isinstance(table.declared, Index)
        if units >= VERY_LONG_UNITS or mostly_keys:
            size = round(2 * units * table.rows)
            monthly, currency = facts.prices.stored(size), facts.prices.currency or ""
            cost = "" if monthly is None else f": {amount_text(monthly, currency)} a month to store"
            figures = {"mebibytes": size / 1024**2, "share": percent(min(1.0, share)), "cost": cost}
            yield table.advice("long-keys", units=units, rows=counted(table.rows, "row"), **figures)


def row_size(facts: Facts) -> Iterator[Advice]:
    """Yield advice on rows near 1 MiB."""
    for table in facts.tables:
        largest = table.counts.largest_row_bytes
        if largest >= NEAR * MAX_ENTITY_BYTES:
            figures = {"kibibytes": largest / 1024, "most": MAX_ENTITY_BYTES // 1024}
            yield table.advice("row-size", rows=counted(table.counts.rows, "row"), **figures)


def property_count(facts: Facts) -> Iterator[Advice]:
    """Yield advice on rows near 252 properties."""
    for table in facts.tables:
        if table.counts.most_properties >= NEAR * MAX_PROPERTIES:
            figures = {"counts": table.counts, "most": MAX_PROPERTIES}
            yield table.advice("property-count", rows=counted(table.counts.rows, "row"), **figures)


def pointer_dropped(facts: Facts) -> Iterator[Advice]:
    """Yield advice on a source with pointers (an index table) whose pointers are not carried over."""
    if facts.planned and (main := facts.planned[0]).pointer_rows < facts.today.pointer_rows:
        rows = counted(facts.today.pointer_rows, "row")
        yield main.advice("pointer-dropped", rows=rows, after=main.pointer_rows)


def fan_out(facts: Facts) -> Iterator[Advice]:
    """Yield advice on many index rows for each source row."""
    for table in facts.planned[1:]:
        fanned = table.rows / facts.today.rows if facts.today.rows else 0.0
        if fanned > FANNED_OUT and facts.today.rows >= WORTH_SAYING_ROWS:
            figures = {"rows": counted(table.rows, "row"), "today": counted(facts.today.rows, "row")}
            yield table.advice("fan-out", fanned=fanned, **figures)


def table_name(facts: Facts) -> Iterator[Advice]:
    """Yield advice on table names that tell a passing state (old, new, tmp): a table cannot be renamed."""
    for table in facts.tables:
        passing = words_among("passing", table.table)
        if passing:
            severity = Severity.NOTE if table.today else Severity.WARNING
            yield table.advice("table-name", severity, passing=", ".join(passing))


RULES = (
    *(unpadded_numbers, escaped_characters, non_ascii, long_keys),
    *(row_size, property_count, pointer_dropped, fan_out, table_name),
)
