"""`rekey runbook`: the pages of the package, and every message names the command that shows one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rekey.cli.main import run

ROOT = Path(__file__).parents[3]
PAGES = {path.stem: path for path in (ROOT / "runbooks").glob("*.md") if path.stem != "README"}


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert run(["runbook", *words]) == code
    out, err = capsys.readouterr()
    return err if code else out


def test_it_lists_every_page_and_when_it_is_of_use(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anywhere: no project is needed."""
    monkeypatch.chdir(tmp_path)
    listed = json.loads(said(capsys, "--json"))["runbooks"]
    assert {one["name"] for one in listed} == set(PAGES) and all(one["when"] for one in listed)
    text = said(capsys)
    assert "resume " in text and "something was killed, stopped, locked or lost" in text


@pytest.mark.parametrize("name", sorted(PAGES))
def test_it_shows_a_page_whose_links_are_commands(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    page, text = PAGES[name].read_text("utf-8"), said(capsys, name)
    assert json.loads(said(capsys, name, "--json"))["text"] == page
    assert "](" in page or text == page
    assert "](" not in text and text.splitlines()[0] == page.splitlines()[0]
    assert set(re.findall(r"rekey runbook ([\w-]+)", text)) <= set(PAGES)


def test_another_name_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there are: doctor, plan, " in said(capsys, "nothing", code=2)


def test_every_text_names_the_command_and_a_page_that_there_is() -> None:
    files = [one for kind in ("*.py", "*.toml", "*.txt", "*.html") for one in (ROOT / "rekey").rglob(kind)]
    texts = {path: re.sub(r'"\s*\n\s*f?"', "", path.read_text("utf-8")) for path in files}
    named = {name for text in texts.values() for name in re.findall(r"`rekey runbook ([\w-]+)`", text)}
    assert {"divergences", "resume", "wrapping-key"} <= named - {"NAME"} <= set(PAGES)
    paths = re.compile(r"runbooks/[\w-]+\.md|the runbook on", re.IGNORECASE)
    assert [path.name for path, text in texts.items() if paths.search(text)] == []
