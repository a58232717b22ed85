"""Rows that applications write in tests of whole lives: their keys, their content, and that it was kept."""

from __future__ import annotations

import random

from rekey.model import EntityKey, Row, key_of
from tests.worlds.company import Change, Company, Ledger
from tests.worlds.small import user

_WRITTEN = {"Users": "Nm", "UsersV2": "Name", "Posts": "Title", "PostsV2": "Title"}
"""The property that is another one in each write."""


def own_keys(name: str, partition: str, count: int = 8) -> list[EntityKey]:
    """Return keys that nobody else writes under."""
    return [EntityKey(partition, f"{name}-{number}") for number in range(count)]


def old_user(rng: random.Random, _key: EntityKey) -> Row:
    """Return content of a user in the old view."""
    return {"Nm": f"name-{rng.random()}"}


def new_users(ours: Company, old_keys: list[EntityKey]) -> tuple[list[EntityKey], Change]:
    """Return the new keys of users, and what makes their content in the new view."""
    rows = [ours.mapper.map(user(key.row, key.partition))[0].row for key in old_keys]
    mapped = {key_of(row): row for row in rows}

    def change(rng: random.Random, key: EntityKey) -> Row:
        return {**mapped[key], "Name": f"name-{rng.random()}"}

    return list(mapped), change


def old_post(rng: random.Random, _key: EntityKey) -> Row:
    """Return content of a post in the old view: its new key follows from it."""
    tags = ",".join(rng.sample(["a", "b", "c", "d"], rng.randint(0, 3)))
    return {"Month": f"2024-0{rng.randint(1, 3)}", "Tags": tags, "Title": f"title-{rng.random()}"}


def new_post(rng: random.Random, key: EntityKey) -> Row:
    """Return content of a post in the new view."""
    return {**old_post(rng, key), "Month": key.partition, "Blog": "blog"}


def lost(ours: Company, ledger: Ledger, table: str) -> list[EntityKey]:
    """Return the keys under which a table says something else than the last acknowledged write."""
    name = _WRITTEN[table]
    there = {key_of(row): row[name] for row in ours.project.rows(table)}
    return [key for key, row in ledger.rows.items() if there.get(key) != (row and row[name])]


def assert_kept(ours: Company, ledger: Ledger, table: str) -> None:
    """Every acknowledged write is in a table, under the key it was written under."""
    assert lost(ours, ledger, table) == []
    assert ledger.writes > 20
