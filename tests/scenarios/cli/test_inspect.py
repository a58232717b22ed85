"""`rekey inspect` at the command line: what is printed, where, and how it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.projects import Project
from tests.worlds.small import user


@pytest.fixture
def rekey(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    project = Project(tmp_path)
    asyncio.run(project.fill("Users", [user(f"user{number}@example.com") for number in range(300)]))
    return commands_on(project)


def test_a_table_is_told_of_without_scripts_and_without_keys(rekey: Commands) -> None:
    said = rekey("inspect", "Users")
    assert "rows            300" in said.out
    assert "email" in said.out and "300 of 300" in said.out
    assert "@example.com" not in said.all and "'eu'" not in said.all


def test_json_is_one_document_and_keys_come_only_when_asked_for(rekey: Commands) -> None:
    document = rekey("inspect", "Users", "--exact", "--json").json
    assert (document["rows"], document["exact"], document["exit_code"]) == (300, True, 0)
    assert [use["shape"] for use in document["row_key"]["shapes"]] == ["email"]
    assert "partition" not in document["partitions"]["largest"][0]
    shown = rekey("inspect", "Users", "--show-keys", "--json").json
    assert shown["partitions"]["largest"][0]["partition"] == "eu"


def test_a_table_that_is_not_there_and_a_name_that_cannot_be_are_usage(rekey: Commands) -> None:
    assert "there is no table Nobody" in rekey("inspect", "Nobody", code=2).err
    assert "not a table name" in rekey("inspect", "no-table", code=2).err
