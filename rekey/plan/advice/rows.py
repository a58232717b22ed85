"""Advice on rows: their size, their number, what they point to. Pure.

Rules kept here:

* Four fifths of a limit is near it: properties grow. What is over a limit is refused by the mapping itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from rekey.core.limits import MAX_ENTITY_BYTES, MAX_PROPERTIES
from rekey.core.severity import Severity
from rekey.plan.advice.facts import Advice, Facts, advice, count

NEAR = 0.8
FANNED_OUT = 10.0
WORTH_SAYING_ROWS = 100


def row_size(facts: Facts) -> Iterator[Advice]:
    """Rows near 1 MiB."""
    for table in facts.tables:
        if table.largest_row_bytes >= NEAR * MAX_ENTITY_BYTES:
            yield advice(
                "row-size",
                Severity.WARNING,
                table,
                f"the largest of {count(table.looked_at, 'row')} looked at has"
                f" {table.largest_row_bytes / 1024:,.0f} KiB of {MAX_ENTITY_BYTES // 1024:,}",
                reason="a row over 1 MiB cannot be written; four of this size fill a batch",
                cure="keep large values in a blob and its name in the row, or drop properties",
            )


def property_count(facts: Facts) -> Iterator[Advice]:
    """Rows near 252 properties."""
    for table in facts.tables:
        if table.most_properties >= NEAR * MAX_PROPERTIES:
            yield advice(
                "property-count",
                Severity.WARNING,
                table,
                f"{table.most_properties} properties of {MAX_PROPERTIES} in one of"
                f" {count(table.looked_at, 'row')} looked at",
                reason="the next property cannot be added; names are stored in each row",
                cure="put properties that belong together into one text, or into a row of their own",
            )


def pointer_dropped(facts: Facts) -> Iterator[Advice]:
    """An index table whose pointer is not carried."""
    if not facts.planned or not facts.today.pointer_rows:
        return
    main = facts.planned[0]
    if main.pointer_rows < facts.today.pointer_rows:
        yield advice(
            "pointer-dropped",
            Severity.WARNING,
            main,
            f"{count(facts.today.pointer_rows, 'row')} looked at hold a pointer, {main.pointer_rows:,} after",
            reason="an index row without MainPartitionKey and MainRowKey leads nowhere",
            cure="carry both properties: name them in props.keep, do not drop or rename them",
        )


def fan_out(facts: Facts) -> Iterator[Advice]:
    """Many index rows for each row."""
    for table in facts.planned[1:]:
        fanned = table.rows / facts.today.rows if facts.today.rows else 0.0
        if fanned > FANNED_OUT and facts.today.rows >= WORTH_SAYING_ROWS:
            yield advice(
                "fan-out",
                Severity.WARNING,
                table,
                f"{count(table.rows, 'row')} for {count(facts.today.rows, 'row')}: {fanned:.1f} each",
                reason="each write of the application becomes that many writes, none of them atomic with it",
                cure="index what is asked for only, or keep items together in one row",
            )


RULES = (row_size, property_count, pointer_dropped, fan_out)
