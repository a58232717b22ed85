"""The script that `rekey new --from-inspect` writes for a table with several kinds of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rekey.inspect.kinds import SeenKind
from rekey.inspect.report import Inspection
from rekey.present.text import counted

# Names for the property that says of which kind a row of the new table is.
_TELLING = ("Kind", "RowKind", "KindOfRow")


def kinds_of(inspection: Inspection) -> str:
    """Return the kinds of a table as source text, as items of a list."""
    kinds, is_told = inspection.kinds, _are_told_by_keys(inspection.kinds)
    properties = {use.name for use in inspection.properties}
    numbered = (f"Kind{number}" for number in range(2, len(properties) + 3))
    name = next(name for name in (*_TELLING, *numbered) if name not in properties)
    empty = bool(inspection.partition_key.empty or inspection.row_key.empty)
    return "".join(_kind(kind, "" if is_told else name, allow_empty=empty) for kind in kinds)


def _are_told_by_keys(kinds: Sequence[SeenKind]) -> bool:
    """Tell whether one of the keys begins with constant text of its own in each kind."""
    return all(kind.row_prefix and not kind.partition_prefix for kind in kinds) or all(
        kind.partition_prefix and not kind.row_prefix for kind in kinds
    )


def _kind(kind: SeenKind, telling: str, *, allow_empty: bool) -> str:
    """Return a kind. `telling`: the property that says which it is; "" if its keys do."""
    lines = [
        f"# {counted(kind.rows, 'row')} of those read",
        "RowKind(",
        f"    {_text(kind.name)},",
        f"    when={_when(kind)},",
        "    target=Target(",
        "        TABLE,",
        *_hints(kind, telling),
        '        partition_key=keys.prop("PartitionKey"),',
        '        row_key=keys.prop("RowKey"),',
    ]
    if telling:
        properties = f"[*OLD_KEYS, props.set({_text(telling)}, {_text(kind.name)})]"
        lines.append("        # The constant proves of which kind a row of the new table is.")
    else:
        properties = "OLD_KEYS"
    lines.append(f"        properties={properties},")
    if allow_empty:
        lines += ["        # There are empty keys.", "        allow_empty=True,"]
    lines += ["    ),", "),"]
    return "".join(f"        {line}\n" for line in lines)


def _hints(kind: SeenKind, telling: str) -> Iterator[str]:
    """Say what a new key must begin with, where its beginning proves the kind."""
    if not telling:
        key = "row_key" if kind.row_prefix else "partition_key"
        prefix = _text(kind.row_prefix or kind.partition_prefix)
        yield f"        # A new {key} begins with keys.literal({prefix}), which proves the kind."


def _when(kind: SeenKind) -> str:
    """Return the condition that takes these rows, unless an earlier kind has."""
    conditions = []
    if kind.partition_prefix:
        conditions.append(f"rows.partition_key(prefix={_text(kind.partition_prefix)})")
    if kind.row_prefix:
        conditions.append(f"rows.row_key(prefix={_text(kind.row_prefix)})")
    if kind.has_property:
        conditions.append(f"rows.prop({_text(kind.has_property)})")
    if len(conditions) > 1:
        return f"rows.all_of({', '.join(conditions)})"
    return conditions[0] if conditions else "rows.every()"


def _text(value: str) -> str:
    """Return text as a literal in double quotes."""
    return json.dumps(value, ensure_ascii=False)
