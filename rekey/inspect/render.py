"""An inspection as text for an operator: estimates say `about`, lower bounds `at least`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rekey.inspect.kinds import SeenKind
from rekey.inspect.profile import Order
from rekey.inspect.report import Inspection, KeyReport
from rekey.present.text import KEYS_ARE_SHOWN, counted, field, report, size, underlined, wrapped

_field = partial(field, width=16)
_PROPERTIES_SHOWN = 30
_VERDICTS = {
    Order.APPEND: "append-only: rows go after the last one",
    Order.PREPEND: "prepend-only: rows go before the first one",
    Order.SCATTERED: "scattered",
    Order.UNKNOWN: "unknown: too few neighbors differ in Timestamp",
}


def inspection_text(inspection: Inspection) -> str:
    """Return an inspection as text. It holds no key unless `shows_keys`, and then says so."""
    return report(_lines(inspection))


def _lines(inspection: Inspection) -> Iterator[str]:
    if inspection.shows_keys:
        yield from (*wrapped(KEYS_ARE_SHOWN), "")
    yield from underlined(inspection.inventory.table)
    rows = inspection.inventory.rows
    low, high = inspection.rows_interval
    about = "" if inspection.exact else "about "
    between = "" if inspection.exact else f" (likely between {low:,} and {high:,})"
    yield from _field("rows", f"{about}{rows.rows:,}{between}")
    yield from _field("bytes", f"{about}{size(inspection.inventory.stored_bytes)}")
    properties = counted(inspection.most_properties, "property", "properties")
    yield from _field("largest row", f"{size(inspection.largest_row_bytes)}, at most {properties}")
    yield from _field(
        "basis", f"{inspection.inventory.basis}; {counted(inspection.inventory.requests, 'request')}"
    )
    if inspection.rows_read:
        yield from ("", *_partitions(inspection))
        yield from ("", *_key("PartitionKey", inspection.partition_key, "partitions"))
        yield from ("", *_key("RowKey", inspection.row_key, "rows"))
        yield from ("", *_properties(inspection))
    if inspection.kinds:
        yield from ("", *_kinds(inspection))


def _partitions(inspection: Inspection) -> Iterator[str]:
    partitions = inspection.partitions
    low, high = partitions.between
    count = (
        f"{low:,}"
        if inspection.exact
        else f"about {partitions.count:,} (likely between {low:,} and {high:,})"
    )
    yield from _field("partitions", count)
    for name, number in partitions.sizes.items():
        yield from _field(f"  {name} {'row' if name == '1' else 'rows'}", counted(number, "partition"))
    if partitions.cut:
        yield from _field("  not whole", f"{counted(partitions.cut, 'partition')} of which a part was read")
    for number, large in enumerate(partitions.largest[:5]):
        name = f"({large.partition!r})" if large.partition is not None else large.partition_id
        rows = ("" if large.whole else "at least ") + counted(large.rows, "row")
        share = f"{large.share:.1%} of {'all rows' if inspection.exact else 'the rows read'}"
        yield from _field("largest" if number == 0 else "", f"{name}  {rows}, {share}")


def _key(name: str, key: KeyReport, of: str) -> Iterator[str]:
    lengths, empty = key.lengths, f"; {key.empty:,} empty" if key.empty else ""
    average = f"{lengths.mean:.1f} on average{empty}"
    yield from _field(name, f"{lengths.least} to {lengths.most} characters, {average}")
    marks = [mark if number == key.keys else f"{mark} in {number:,}" for mark, number in key.marks.items()]
    yield from _field("  characters", ", ".join(marks) or "none")
    if key.specials:
        specials = [f"{mark} in {number:,}" for mark, number in key.specials.items()]
        yield from _field("  special", ", ".join(specials))
    for use in key.shapes:
        share = ""
        if use.share is not None:
            share = f", {use.share.value:.1%}"
            if use.share.low != use.share.high:
                share += f" (95 %: {use.share.low:.1%} to {use.share.high:.1%})"
        yield from _field(f"  {use.shape}", f"{use.keys:,} of {key.keys:,}{share}")
    yield from _field("  order", f"{_VERDICTS[key.order]}" + (f" ({of}, by Timestamp)" if key.pairs else ""))


def _properties(inspection: Inspection) -> Iterator[str]:
    schemas = len(inspection.schemas)
    known = "" if inspection.schemas_complete else "more than "
    most = (
        f"; the most frequent in {inspection.schemas[0] / inspection.rows_read:.1%} of rows"
        if schemas > 1
        else ""
    )
    yield from _field("schemas", f"{known}{schemas:,}{most}")
    for use in inspection.properties[:_PROPERTIES_SHOWN]:
        types, varies = ", ".join(use.types), ""
        if len(use.types) > 1:
            types = ", ".join(f"{edm} {number:,}" for edm, number in sorted(use.types.items()))
            varies = "  VARIES"
        rows = (
            "all rows"
            if use.rows == inspection.rows_read
            else f"{use.rows / inspection.rows_read:.1%} of rows"
        )
        yield from _field(f"  {use.name}", f"{types}, {rows}{varies}")
    if len(inspection.properties) > _PROPERTIES_SHOWN:
        more = counted(len(inspection.properties) - _PROPERTIES_SHOWN, "more property", "more properties")
        yield from _field("", f"and {more}")


def _kinds(inspection: Inspection) -> Iterator[str]:
    kinds = counted(len(inspection.kinds), "kind seems to be there", "kinds seem to be there")
    yield from _field("kinds of rows", f"{kinds}, by beginnings of keys and by properties")
    for kind in inspection.kinds:
        rows = f"{kind.rows / inspection.rows_read:.1%} of {'rows' if inspection.exact else 'the rows read'}"
        yield from _field(f"  {kind.name}", f"{seen_by(kind)}, {rows}")
    table = inspection.inventory.table
    yield from _field("", f"`rekey new NAME --from-inspect {table}` writes a script with a kind for each")


def seen_by(kind: SeenKind) -> str:
    """Return what the rows of a kind have in common."""
    parts = []
    if kind.partition_prefix:
        parts.append(f"PartitionKey begins with {kind.partition_prefix}")
    if kind.row_prefix:
        parts.append(f"RowKey begins with {kind.row_prefix}")
    if kind.has_property:
        parts.append(f"rows have {kind.has_property}")
    return " and ".join(parts) or "all other rows"
