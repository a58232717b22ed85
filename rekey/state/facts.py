"""Small facts in the state file: statements of one transaction each, which `store` opens."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.sqlite import insert as upsert

from rekey.state.models import FACT


def listed(connection: Connection, script_id: str) -> dict[str, str]:
    """Return all facts of a migration."""
    found = connection.execute(select(FACT.c.name, FACT.c.value).where(FACT.c.script_id == script_id))
    return {row.name: row.value for row in found}


def put(connection: Connection, script_id: str, facts: Mapping[str, str | None]) -> None:
    """Set facts of a migration; None removes one."""
    for name, value in facts.items():
        if value is None:
            connection.execute(delete(FACT).where(FACT.c.script_id == script_id, FACT.c.name == name))
            continue
        setting = upsert(FACT).values(script_id=script_id, name=name, value=value)
        connection.execute(
            setting.on_conflict_do_update(index_elements=["script_id", "name"], set_={"value": value})
        )
