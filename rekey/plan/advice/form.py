"""Advice on how keys are written: characters, length. Pure.

Rules kept here:

* `%` and `+` in keys are decoded twice by old clients and proxies, spaces at the ends are trimmed by
  others: a warning. What is merely escaped is a note.
* A key is stored in each row, and once more in every pointer and mapping row. Long keys are told with their
  bytes, and with what those cost where `[prices]` says it.
"""

from __future__ import annotations

from collections.abc import Iterator

from rekey.core.severity import Severity
from rekey.declaration.migration import Index
from rekey.inspect.columns import Mark
from rekey.plan.advice.facts import Advice, Facts, TableFacts, advice, count, percent
from rekey.project.prices import amount_text

TRAPS = "%+"
ESCAPED = "%+'&\"<>^`{}"
LONG_UNITS = 64
VERY_LONG_UNITS = 150
MUCH = 0.4


def escaped_characters(facts: Facts) -> Iterator[Advice]:
    """Keys that need escaping."""
    for table in facts.tables:
        for key, column in table.columns:
            found = {mark: column.specials[mark] for mark in ESCAPED if column.specials[mark]}
            edges = column.marked(Mark.EDGE)
            if not found and not edges:
                continue
            listed = [f"{mark} in {number:,}" for mark, number in found.items()]
            listed += [f"spaces at an end in {edges:,}"] if edges else []
            trapped = edges or any(mark in TRAPS for mark in found)
            yield advice(
                "escaped-characters",
                Severity.WARNING if trapped else Severity.NOTE,
                table,
                f"{', '.join(listed)} of {count(column.keys, 'key')} looked at",
                key=key,
                reason="they must be escaped in addresses and filters, and somebody always does it once"
                " too often"
                " or too seldom",
                cure="use keys.slug, or keys.opaque, and carry the text as a property",
            )


def non_ascii(facts: Facts) -> Iterator[Advice]:
    """Characters outside ASCII."""
    for table in facts.tables:
        for key, column in table.columns:
            found, loose = column.marked(Mark.NON_ASCII), column.marked(Mark.LOOSE)
            if found:
                more = f"; {loose:,} not in composed form (NFC)" if loose else ""
                yield advice(
                    "non-ascii",
                    Severity.WARNING if loose else Severity.NOTE,
                    table,
                    f"{count(found, 'key')} of {column.keys:,} looked at{more}",
                    key=key,
                    reason="keys that look alike can differ (é in one character or two), each is escaped"
                    " to three"
                    " bytes and more, and they sort by UTF-16 unit",
                    cure="use keys.normalize and keys.slug, or keys.opaque, and carry the text as a property",
                )


def long_keys(facts: Facts) -> Iterator[Advice]:
    """Long keys, with their bytes."""
    for table in facts.tables:
        units = _mean_units(table)
        share = 2 * units / table.mean_row_bytes if table.mean_row_bytes else 0.0
        # An index row is little else than keys: there only their length counts.
        mostly_keys = units >= LONG_UNITS and share >= MUCH and not isinstance(table.declared, Index)
        if units >= VERY_LONG_UNITS or mostly_keys:
            size = round(2 * units * table.rows)
            monthly = facts.prices.stored(size)
            cost = (
                ""
                if monthly is None
                else f": {amount_text(monthly, facts.prices.currency or '')} a month to store"
            )
            yield advice(
                "long-keys",
                Severity.WARNING,
                table,
                f"both keys take {units:.0f} characters on average: {size / 1024**2:,.1f} MiB in"
                f" {count(table.rows, 'row')},"
                f" {percent(min(1.0, share))} of the bytes{cost}",
                reason="keys are billed with every row, sent with every answer, and repeated in pointers",
                cure="shorten what is repeated in every key, or use keys.opaque: 32 characters",
            )


def _mean_units(table: TableFacts) -> float:
    return table.partition_keys.lengths.mean + table.row_keys.lengths.mean


RULES = (escaped_characters, non_ascii, long_keys)
