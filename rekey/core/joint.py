"""Joint tables: several tables that a migration fills as if they were one (ADR 0063). The name of a joint
table is made of theirs, and its PartitionKeys begin with the name of the table that holds the row. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rekey.model import PARTITION_KEY, EntityKey, Row

# Tables that a text names one by one.
_MOST_NAMED = 3
# Neither is in the name of a table.
_BETWEEN_NAMES = "+"
_AFTER_NAME = ":"


class JointName(str):
    """The name of a joint table. A type of its own, because a folder or a file may be called `A+B`, too."""

    __slots__ = ()


def joint_name(names: Sequence[str]) -> str:
    """Return the name of the joint table of some tables; of a single one its own."""
    return names[0] if len(names) == 1 else JointName(_BETWEEN_NAMES.join(names))


def names_in(name: str) -> tuple[str, ...]:
    """Return the names of the tables of a joint table; of any other table its own."""
    return tuple(name.split(_BETWEEN_NAMES))


def is_joint(name: str) -> bool:
    """Tell whether a name is that of a joint table."""
    return _BETWEEN_NAMES in name


def spoken(name: str) -> str:
    """Return the name of a table, which may be joint, in text for people."""
    names = names_in(name)
    more = len(names) - _MOST_NAMED
    *others, last = names if more <= 0 else (*names[: _MOST_NAMED - 1], f"{more + 1} more tables")
    return f"{', '.join(others)} and {last}" if others else last


def prefix_of(table: str) -> str:
    """Return how the PartitionKeys begin in a joint table of rows that are in this table."""
    return f"{table}{_AFTER_NAME}"


def joint_key(prefix: str, key: EntityKey) -> EntityKey:
    """Return the key in a joint table of a row of a table. `prefix`: of that table; "": it is in no joint
    table."""
    return EntityKey(prefix + key.partition, key.row) if prefix else key


def joint_row(prefix: str, row: Row) -> Row:
    """Return a row of a table, perhaps without its keys, as a row of a joint table. `prefix` as of
    `joint_key`."""
    is_named = prefix and PARTITION_KEY in row
    return {**row, PARTITION_KEY: prefix + row[PARTITION_KEY]} if is_named else row


def own_key(key: EntityKey) -> tuple[str, EntityKey]:
    """Return the name of the table that holds a row of a joint table, and the row's key there; "" for a key
    that no row of a joint table can have."""
    table, after_name, partition = key.partition.partition(_AFTER_NAME)
    return table if after_name else "", EntityKey(partition, key.row)


def own_row(row: Row) -> Row:
    """Return a row of a joint table as a row of the table that holds it."""
    return {**row, PARTITION_KEY: row[PARTITION_KEY].partition(_AFTER_NAME)[2]}


def place_of(name: str, key: EntityKey) -> tuple[str, EntityKey]:
    """Return the table that holds a row of a table, which may be joint, and the row's key there."""
    return own_key(key) if is_joint(name) else (name, key)
