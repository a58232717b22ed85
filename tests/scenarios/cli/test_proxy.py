"""`rekey proxy` before it listens: which migrations it follows, and which aliases it starts with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rekey.declaration.migration import Declared
from rekey.project.config import AZURITE_KEY
from tests.asserts.command_line import CommandsOn
from tests.worlds.projects import USERS_SCRIPT, Project

SECOND = USERS_SCRIPT.replace('"Users"', '"Posts"').replace('"UsersV2"', '"PostsV2"')


@pytest.mark.parametrize(
    ("words", "followed", "not_followed"),
    [
        (("0001",), ["0001_users"], ["0002_posts"]),
        ((), ["0001_users", "0002_posts"], []),
    ],
)
def test_other_migrations_aliases_do_not_block_the_proxy(
    words: Sequence[str],
    followed: list[str],
    not_followed: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    commands_on: CommandsOn,
) -> None:
    project = Project(tmp_path)
    told: dict[str, list[str]] = {}

    def proxying(_config: Any, declared: Sequence[Declared], *_: Any, **options: Any) -> None:
        told["followed"] = [one.script_id for one in declared]
        told["not_followed"] = [one.script_id for one in options["not_followed"]]

    monkeypatch.setattr("rekey.cli.proxy.proxying", proxying)
    monkeypatch.setattr("rekey.cli.proxy.run", lambda served: served.close())
    monkeypatch.setenv("APP_KEY", AZURITE_KEY)
    project.script(USERS_SCRIPT, "0001_users.py")
    project.script(SECOND, "0002_posts.py")
    config = project.folder / "rekey.toml"
    aliases = '[proxy.access.keys.app]\nenv = "APP_KEY"\n[proxy.views]\nPosts = "PostsV2"\n'
    config.write_text(config.read_text("utf-8") + aliases, "utf-8")
    commands_on(project)("proxy", *words)
    assert told == {"followed": followed, "not_followed": not_followed}
