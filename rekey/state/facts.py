"""Facts in the state file, within a transaction that somebody else opened."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection
from sqlalchemy.dialects.sqlite import insert as upsert

from rekey.state.models import FACT


def set_facts(connection: Connection, script_id: str, facts: Mapping[str, str]) -> None:
    """Set facts of a migration; each takes the place of the one before."""
    for name, value in facts.items():
        setting = upsert(FACT).values(script_id=script_id, name=name, value=value)
        connection.execute(
            setting.on_conflict_do_update(index_elements=["script_id", "name"], set_={"value": value})
        )
