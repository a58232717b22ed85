"""The table that somebody meant: named in an error about one that does not exist."""

from __future__ import annotations

import pytest

from rekey.errors import CredentialRefused
from rekey.tables.similar import similar_tables
from tests.fakes.memory import MemoryTableService


@pytest.mark.parametrize(
    ("tables", "asked", "said"),
    [
        (["Users", "Posts"], "users", "write Users, which exists; else "),
        (["Users", "Posts"], "Usres", "write Users, which exists; else "),
        (["Users", "Posts"], "Invoices", "the account has Posts, Users; "),
        ([f"T{number:02}" for number in range(12)], "Invoices", "*, T09, …; "),
        ([], "Users", ""),
        (["Users"], "Users@targets", ""),
    ],
)
async def test_a_similar_table_or_all_there_are_is_named(
    memory: MemoryTableService, tables: list[str], asked: str, said: str
) -> None:
    for name in tables:
        await memory.create_table(name)
    found = await similar_tables(memory, asked)
    assert found.endswith(said.removeprefix("*")) and (said.startswith("*") or found == said)


async def test_unlisted_adds_no_error(memory: MemoryTableService, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused() -> list[str]:
        raise CredentialRefused("list tables: refused")

    monkeypatch.setattr(memory, "table_names", refused)
    assert await similar_tables(memory, "Users") == ""
