"""The two scripts that most tests migrate with. SOURCE, TARGET and INDEX stand for their tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rekey import Index, Migration, Target, keys
from rekey.declaration.migration import Declared

USERS = '''\
"""E-mail RowKeys to opaque ids."""
from rekey import Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.opaque(keys.prop("RowKey"), domain="user", secret="users"),
        properties=[props.copy("RowKey", to="ContactEmail"), props.rename("Nm", "Name"), props.drop("Ssn")],
    ),
    capture="delta",
)
'''
"""Keys from keys alone."""

INVERTED = '''\
"""Keys with a prefix, which say what they were: no mapping is stored."""
from rekey import Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET",
        partition_key=keys.literal("DE_") + keys.prop("PartitionKey"),
        row_key=keys.literal("U:") + keys.prop("RowKey"),
        properties=[props.rename("Nm", "Name"), props.drop("Ssn")],
    ),
    capture="delta",
    mapping="none",
    waive={"personal-data": "made-up addresses"},
)
'''
"""Keys from keys alone, and no mapping."""

FOLDED = '''\
"""E-mail RowKeys in lower case: `Ann` and `ann` have one target key."""
from rekey import Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.lower("RowKey"),
        properties=[props.copy("RowKey", to="OldRowKey")],
    ),
    capture="delta",
    waive={"personal-data": "made-up addresses", "merged-keys": "told as collisions here"},
)
'''
"""Keys that two rows can have."""

MOVE = '''\
"""The same table in another account: the keys stay as they are."""
from rekey import Migration, Target, keys

migration = Migration(
    source="SOURCE",
    target=Target("TARGET", partition_key=keys.keep(), row_key=keys.keep()),
    capture="delta",
    waive={"personal-data": "made-up addresses"},
)
'''
"""Unchanged keys."""

POSTS = '''\
"""Posts by month, with an index by tag."""
from rekey import Index, Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET",
        partition_key=keys.prop("Month"),
        row_key=keys.prop("RowKey"),
        properties=[props.copy("PartitionKey", to="Blog")],
    ),
    indexes=[
        Index("INDEX", each=keys.split("Tags", ","), partition_key=keys.item(),
              row_key=keys.prop("RowKey"), properties=[props.keep("Title")]),
    ],
    capture="delta",
)
'''
"""Keys from content, and an index table."""

SECONDARY = '''\
"""Registrations by bib, and in the same table by age, by team and by name."""
from rekey import Index, Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET",
        partition_key=keys.join("__", keys.prop("PartitionKey"), keys.prop("Club")),
        row_key=keys.join("__", keys.literal("BIB:") + keys.prop("RowKey"), keys.prop("Name")),
        properties=[props.copy("RowKey", to="Bib"), props.copy("PartitionKey", to="Race")],
    ),
    indexes=[
        Index("TARGET", partition_key=keys.join("__", keys.prop("PartitionKey"), keys.prop("Club")),
              row_key=keys.join("__", keys.literal("AGE:") + keys.zero_pad(3, "Age"), keys.prop("RowKey")),
              properties=[props.keep_all()]),
        Index("TARGET", each=keys.split("Teams", ","),
              partition_key=keys.join("__", keys.prop("PartitionKey"), keys.prop("Club")),
              row_key=keys.join("__", keys.literal("TEAM:") + keys.item(), keys.prop("RowKey"))),
        Index("TARGET", partition_key=keys.literal("all"),
              row_key=keys.join("__", keys.literal("NAME:") + keys.prop("Name"), keys.prop("RowKey")),
              properties=[props.keep("Age")]),
    ],
    capture="delta",
)
'''
"""Keys from content; secondary rows of three kinds: one for each row, some, and one in another partition."""

RACES = '''\
"""Registrations by bib and name, and next to each a secondary row by age."""
from rekey import Index, Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.join("__", keys.literal("BIB:") + keys.prop("RowKey"), keys.prop("Name")),
        properties=[props.copy("RowKey", to="Bib")],
    ),
    indexes=[
        Index("TARGET", partition_key=keys.prop("PartitionKey"),
              row_key=keys.join("__", keys.literal("AGE:") + keys.zero_pad(3, "Age"), keys.prop("RowKey")),
              properties=[props.keep_all()]),
    ],
    capture="delta",
)
'''
"""The script of `worlds.RACES`: keys from content, and one secondary row of each row, with all of it."""

SECONDARY_FROM_KEYS = '''\
"""Registrations by bib, and in the same table a second time for the announcer."""
from rekey import Index, Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.literal("BIB:") + keys.prop("RowKey"),
        properties=[props.copy("RowKey", to="Bib"), props.copy("PartitionKey", to="Race")],
    ),
    indexes=[
        Index("TARGET", partition_key=keys.prop("PartitionKey"),
              row_key=keys.literal("CALL:") + keys.prop("RowKey"), properties=[props.keep_all()]),
    ],
    capture="delta",
)
'''
"""Keys from keys alone; a secondary row of each row, with all of it."""


def named(script: str, source: str, target: str, index: str = "") -> str:
    """Return a script with the names of tables in the places of SOURCE, TARGET and INDEX."""
    for word, table in (("SOURCE", source), ("TARGET", target), ("INDEX", index)):
        script = script.replace(word, table)
    return script


def under_writes(script: str) -> str:
    """Return a script whose application never stops: capture "dual-write"."""
    return script.replace('capture="delta"', 'capture="dual-write"')


def filling(script_id: str, source: str, target: str, *indexes: str, depends: Iterable[str] = ()) -> Declared:
    """Return a script, as it would be loaded, that fills tables out of another one."""
    same = {"partition_key": keys.prop("PartitionKey"), "row_key": keys.prop("RowKey")}
    migration = Migration(
        source=source,
        target=Target(target, **same),
        indexes=[Index(name, **same) for name in indexes],
        capture="delta",
    )
    return Declared(script_id, Path(f"{script_id}.py"), "", frozenset(depends), migration, migration.digest())
