"""One script for many tables of one shape: a migration for each, made by a function of the table's name.

Rules kept here:

* The tables are named in the script, never found by a pattern when it is read: a table that appears later
  changes nothing, and every machine, client and worker reads the same script. `rekey new --each` finds them.
* Every migration has an id, a digest and a control row of its own: the script's id, `-` and the table's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rekey.declaration.keys.base import InvalidDeclaration, need, need_list, refuse_if
from rekey.declaration.migration import Migration

FIELD = "migrations"
_CURE = 'name the tables, ["OrdersDE", "OrdersFR"]; `rekey new NAME --each "Orders*"` finds them'


def for_each_table(tables: Sequence[str], make: Callable[[str], Migration]) -> dict[str, Migration]:
    """Return a migration for each table, for the name `migrations` in a script.

    Args:
        tables: names of source tables.
        make: returns the migration of the table that it is given.

    Raises:
        InvalidDeclaration: no table is named, one twice, or a migration has another source.
    """
    names = need_list(FIELD, tables, str, "table names", cure=_CURE)
    refuse_if(not names, FIELD, "no table is named", cure=_CURE)
    made: dict[str, Migration] = {}
    for name in names:
        migration = make(name)
        need(FIELD, migration, Migration, "is no Migration", cure="let the function return Migration(…)")
        if migration.source != name:
            problem = f"the migration for {name} has the source {migration.source}"
            raise InvalidDeclaration(FIELD, problem, cure="write source=name in it")
        twice = name.lower() in map(str.lower, made)
        refuse_if(twice, FIELD, f"{name} is named twice", cure="name every table once")
        made[name] = migration
    return made
