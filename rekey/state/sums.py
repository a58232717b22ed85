"""Sums of a verification under way, in the state file.

Rules kept here:

* One for each migration; a new one takes the place of the one before in one transaction.
* Keys in it stand as the `keys` of the migration write them, sealed if its mapping is.
* What it was made under is stored beside it; whoever goes on from it compares that first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.sqlite import insert as upsert

from rekey.errors import StateUnusable
from rekey.state import facts
from rekey.state.keytexts import KeyTexts
from rekey.state.models import KEYS_FORGOTTEN, PARTIAL_SUMS

Transaction: TypeAlias = Callable[[], AbstractContextManager[Connection]]
_KEYS = ("after", "upto", "cursor")


@dataclass(frozen=True, slots=True)
class StoredSums:
    """Sums as stored: what they were made under, when they were begun, and a JSON-able value."""

    basis: str
    begun_at: str
    sums: dict[str, Any] = field(repr=False)


def keep(writing: Transaction, script_id: str, stored: StoredSums | None, keys: KeyTexts) -> None:
    """Store sums in the place of those before; None removes them."""
    if stored is None:
        with writing() as connection:
            forget(connection, script_id)
        return
    parts = [
        [table, *(keys.to_text(name, key) for name, key in zip(_KEYS, bounds, strict=True)), done]
        for table, *bounds, done in stored.sums["parts"]
    ]
    values = {
        "basis": stored.basis,
        "begun_at": stored.begun_at,
        "sums": json.dumps({**stored.sums, "parts": parts}),
    }
    with writing() as connection:
        adding = upsert(PARTIAL_SUMS).values(script_id=script_id, **values)
        connection.execute(adding.on_conflict_do_update(index_elements=["script_id"], set_=values))
        facts.put(connection, script_id, {KEYS_FORGOTTEN: None})  # the file holds keys again


def forget(connection: Connection, script_id: str) -> int:
    """Remove what is stored, keys and all; return how many sums that were."""
    done = connection.execute(delete(PARTIAL_SUMS).where(PARTIAL_SUMS.c.script_id == script_id))
    return done.rowcount


def load(reading: Transaction, script_id: str, keys: KeyTexts) -> StoredSums | None:
    """Return what is stored, None when nothing is.

    Raises:
        StateUnusable: it cannot be read, or its keys cannot be opened.
    """
    with reading() as connection:
        row = connection.execute(
            select(PARTIAL_SUMS).where(PARTIAL_SUMS.c.script_id == script_id)
        ).one_or_none()
    if row is None:
        return None
    try:
        sums = json.loads(row.sums)
        sums["parts"] = [
            [table, *(keys.from_text(name, text) for name, text in zip(_KEYS, bounds, strict=True)), done]
            for table, *bounds, done in sums["parts"]
        ]
    except (KeyError, TypeError, ValueError):
        raise StateUnusable(
            "the stored sums of an earlier verification cannot be read",
            kept="all tables; a verification changes none",
            hint="run `rekey verify --mode full` again: it begins anew",
        ) from None
    return StoredSums(row.basis, row.begun_at, sums)
