"""What tests may expect of tables whose services guarantee different things (`rekey.core.guarantees`)."""

from __future__ import annotations

from collections.abc import Iterable

from rekey.errors import RowRefused
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey
from rekey.tables.base import Table


def taken(table: Table, keys: Iterable[EntityKey]) -> list[EntityKey]:
    """Return the keys that a table's service takes."""
    return [key for key in keys if takes(table, key)]


def takes(table: Table, key: EntityKey) -> bool:
    """Tell whether a table's service takes a key."""
    try:
        table.guarantees.check_row({PARTITION_KEY: key.partition, ROW_KEY: key.row}, "")
    except RowRefused:
        return False
    return True


def in_order(table: Table, keys: Iterable[EntityKey]) -> list[EntityKey]:
    """Return keys as they came, where they come in an order; else sorted."""
    found = list(keys)
    return found if table.guarantees.ordered else sorted(found, key=lambda key: key.order)
