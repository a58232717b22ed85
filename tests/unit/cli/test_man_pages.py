"""Man pages say what `--help` says, as roff prints it unchanged."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from docs.man_pages import escaped, main, pages
from rekey.cli.main import run
from rekey.cli.shell import Surroundings
from tests.asserts.every import every

PAGES = dict(pages())


def plain(text: str) -> str:
    """Return text as words alone, without what roff and `--help` break lines by."""
    return "".join(text.replace("\b", "").split())


def test_what_roff_would_take_for_its_own_is_printed_as_it_is() -> None:
    assert escaped(".toml and\n'quoted' \\x, --json") == "\\&.toml and\n\\&'quoted' \\ex, \\-\\-json"


def test_every_page_has_the_parts_of_a_manual_page() -> None:
    for part in (".TH ", "\n.SH NAME\n", "\n.SH SYNOPSIS\n", "\n.SH DESCRIPTION\n", "\n.SH OPTIONS\n"):
        assert every(part in page for page in PAGES.values()), part


@pytest.mark.parametrize("name", ["plan", "evidence export", "rehearse"])
def test_a_page_holds_all_that_the_help_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*name.split(), "--help"], Surroundings()) == 0
    told = capsys.readouterr().out
    page = PAGES[f"rekey-{name.replace(' ', '-')}.1"]
    page = page.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")
    words = [
        line for line in told.splitlines() if line.strip() and not line.startswith(("Usage:", "Options:"))
    ]
    page = plain(
        "".join(line for line in page.splitlines() if not line.startswith((".PP", ".nf", ".fi", ".TP")))
    )
    page = page.replace(".B", "")
    assert every(plain(line) in page for line in words), [one for one in words if plain(one) not in page]


def test_the_page_of_rekey_names_every_command_and_the_exit_codes() -> None:
    others = [name.removesuffix(".1") for name in PAGES if name.count("-") == 1]
    assert len(others) > 15
    assert every(f".BR {escaped(name)} (1)" in PAGES["rekey.1"] for name in others)
    assert "Exit codes: 0 done" in PAGES["rekey.1"]


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff, which reads the pages")
def test_groff_has_nothing_to_complain_of(tmp_path: Path) -> None:
    main(tmp_path)
    words = ["groff", "-man", "-ww", "-Tutf8", "-z", *sorted(map(str, tmp_path.iterdir()))]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == ""
