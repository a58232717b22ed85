"""The example for application teams runs as its doc string says, from before the migration to its end."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rekey
from rekey.cli.main import run
from rekey.rehearse.azurite import Azurite
from tests.asserts.documents import ROOT

pytestmark = pytest.mark.azurite

EXAMPLE = ROOT / "docs/examples/dual_write"


@pytest.fixture
def azurite() -> Iterator[Azurite]:
    """An Azurite of its own: the example's names are fixed."""
    with Azurite() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example, with the accounts of this Azurite in its configuration."""
    copied = tmp_path / "example"
    shutil.copytree(EXAMPLE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copied / "rekey.toml").read_text("utf-8")
    for name, account in (("tables", azurite.tables), ("restricted", azurite.restricted)):
        monkeypatch.setenv(f"EXAMPLE_{name.upper()}", account.key)
        text = re.sub(
            rf"\[{name}\]\nendpoint = .*",
            f'[{name}]\nendpoint = "{account.endpoint}"\nkey_env = "EXAMPLE_{name.upper()}"',
            text,
        )
    (copied / "rekey.toml").write_text(text, "utf-8")
    monkeypatch.setenv("USERS_SECRET", "0123456789abcdef0123456789abcdef")
    monkeypatch.setenv(
        "USERS_WRAPPING_KEY", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    )
    return copied


def loaded(folder: Path) -> Any:
    """Return the example's program as a module."""
    spec = importlib.util.spec_from_file_location("example_application", folder / "application.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_versions_run_through_the_whole_migration(
    folder: Path, azurite: Azurite, capsys: pytest.CaptureFixture[str]
) -> None:
    application = loaded(folder)

    def rekey_does(*words: str) -> None:
        code = run([*words, "--config", str(folder / "rekey.toml")])
        assert code == 0, capsys.readouterr().err

    async def by_id(email: str) -> list[str]:
        async with application.open_new() as users:
            found: list[str] = await application.sign_in_by_id(users, email)
            return found

    def new(email: str) -> list[str]:
        return asyncio.run(by_id(email))

    ada, bob = "ada@example.org", "bob@example.org"
    asyncio.run(create_source(azurite))
    with application.open_old() as users:
        assert application.sign_in(users, ada) == [f"{ada} 1"]
        with pytest.raises(rekey.DualWriteRefused, match="not all rows are copied"):
            new(bob)
        rekey_does("apply", "0001")
        assert new(bob) == [f"{ada} 1", f"{bob} 1"]
        assert application.sign_in(users, bob) == [f"{ada} 1", f"{bob} 2"]
        assert new(ada) == [f"{ada} 2", f"{bob} 2"]
        rekey_does("apply", "0001", "--to", "cutover")
        assert application.sign_in(users, ada) == [f"{ada} 3", f"{bob} 2"]
        assert new(ada) == [f"{ada} 4", f"{bob} 2"]
    rekey_does("apply", "0001", "--to", "complete", "--yes", "0001_users_opaque_ids")
    with (
        application.open_old() as users,
        pytest.raises(rekey.DualWriteRefused, match="by its old keys any more"),
    ):
        application.sign_in(users, ada)
    assert new(bob) == [f"{ada} 4", f"{bob} 3"]


def test_a_terminal_signs_in_whoever_is_typed(
    folder: Path,
    azurite: Azurite,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    application = loaded(folder)
    asyncio.run(create_source(azurite))
    monkeypatch.setattr(sys, "stdin", io.StringIO("ada@example.org\nada@example.org\n"))
    application.run_old()
    assert capsys.readouterr().out == "ada@example.org 1\nada@example.org 2\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("ada@example.org\n"))
    asyncio.run(application.run_new())
    assert capsys.readouterr().out.startswith("new-view-closed: ")


async def create_source(azurite: Azurite) -> None:
    """Create the table that the application had from the beginning."""
    from tests.conftest import open_account

    async with open_account(azurite.tables) as service:
        await service.create_table("Users")
